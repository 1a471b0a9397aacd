#include <fmt/format.h>

#include "graph/exec_graph.h"

namespace orrery {

std::string_view name_of(EdgeKind k) {
  switch (k) {
    case EdgeKind::root:
      return "root";
    case EdgeKind::thread:
      return "thread";
    case EdgeKind::launch:
      return "launch";
    case EdgeKind::stream:
      return "stream";
    case EdgeKind::event:
      return "event";
    case EdgeKind::sync:
      return "sync";
    case EdgeKind::queue:
      return "queue";
    case EdgeKind::handoff:
      return "handoff";
    case EdgeKind::graph:
      return "graph";
    case EdgeKind::stall:
      return "stall";
    case EdgeKind::collective:
      return "collective";
  }
  return "unknown";
}

std::string_view name_of(NodeKind k) {
  switch (k) {
    case NodeKind::host:
      return "host";
    case NodeKind::kernel:
      return "kernel";
    case NodeKind::comm:
      return "comm";
    case NodeKind::memcpy:
      return "memcpy";
    case NodeKind::memset:
      return "memset";
    case NodeKind::stall:
      return "stall";
    case NodeKind::rendezvous:
      return "rendezvous";
  }
  return "unknown";
}

namespace {

tl::unexpected<Error> bad(std::uint32_t node, std::string what) {
  return fail(std::move(what), fmt::format("execution graph, node {}", node));
}

Status check_sizes(const ExecGraph& g) {
  const std::size_t n = g.duration.size();
  if (n >= kNone) return fail("too many nodes for 32 bits", "execution graph");
  const struct {
    const char* name;
    std::size_t size;
  } columns[] = {{"observed_start", g.observed_start.size()},
                 {"lane", g.lane.size()},
                 {"kind", g.kind.size()},
                 {"at_begin", g.at_begin.size()},
                 {"rank", g.rank.size()},
                 {"source", g.source.size()}};
  for (const auto& c : columns)
    if (c.size != n) return fail(fmt::format("{} has {} rows, duration has {}", c.name, c.size, n), "execution graph");
  if (g.first_pred.size() != n + 1)
    return fail(fmt::format("first_pred has {} rows for {} nodes", g.first_pred.size(), n), "execution graph");
  const std::size_t m = g.pred.size();
  if (m >= kNone) return fail("too many edges for 32 bits", "execution graph");
  if (g.pred_kind.size() != m || g.pred_lag.size() != m)
    return fail(fmt::format("edge columns differ: pred {}, pred_kind {}, pred_lag {}", m, g.pred_kind.size(),
                            g.pred_lag.size()),
                "execution graph");
  if (g.first_pred.front() != 0 || g.first_pred.back() != m)
    return fail(fmt::format("first_pred runs from {} to {} for {} edges", g.first_pred.front(), g.first_pred.back(), m),
                "execution graph");
  return {};
}

Status check_edge(const ExecGraph& g, std::uint32_t i, std::uint32_t e) {
  const NodeId p = g.pred[e];
  if (static_cast<std::size_t>(g.pred_kind[e]) >= kEdgeKinds)
    return bad(i, fmt::format("edge {} is of no known kind", e));
  if ((p == kNoNode) != (g.pred_kind[e] == EdgeKind::root))
    return bad(i, fmt::format("edge {} of kind {} {} a predecessor", e, name_of(g.pred_kind[e]),
                              p == kNoNode ? "lacks" : "has"));
  if (p != kNoNode && raw(p) >= i) return bad(i, fmt::format("its predecessor {} does not come before it", raw(p)));
  return {};
}

Status check_node(const ExecGraph& g, std::uint32_t i) {
  if (g.duration[i] < 0) return bad(i, fmt::format("its duration is {} ns", g.duration[i]));
  if (static_cast<std::uint8_t>(g.kind[i]) > static_cast<std::uint8_t>(NodeKind::rendezvous))
    return bad(i, "it is of no known kind");
  if (g.rank[i] >= g.ranks.size()) return bad(i, fmt::format("there is no rank row {}", g.rank[i]));
  const GraphRank& rank = g.ranks[g.rank[i]];
  const bool laneless = g.lane[i] == kNone;
  if (laneless != (g.kind[i] == NodeKind::rendezvous))
    return bad(i, fmt::format("a {} {} a lane", name_of(g.kind[i]), laneless ? "lacks" : "has"));
  if (!laneless && (g.lane[i] < rank.first_lane || g.lane[i] - rank.first_lane >= rank.lanes))
    return bad(i, fmt::format("lane {} is not one of rank {}", g.lane[i], rank.rank));
  if (g.first_pred[i] >= g.first_pred[i + 1])
    return bad(i, g.first_pred[i] == g.first_pred[i + 1] ? "it has neither a predecessor nor a root edge"
                                                         : "its predecessor rows run backwards");
  if (g.first_pred[i + 1] > g.pred.size()) return bad(i, "its predecessor rows run past the last edge");
  for (std::uint32_t e = g.first_pred[i]; e < g.first_pred[i + 1]; ++e)
    if (Status s = check_edge(g, i, e); !s) return s;
  return {};
}

}  // namespace

Status check(const ExecGraph& g) {
  if (Status s = check_sizes(g); !s) return s;
  for (std::uint32_t i = 0; i < g.size(); ++i)
    if (Status s = check_node(g, i); !s) return s;
  for (std::size_t k = 0; k < g.steps.size(); ++k) {
    const Step& s = g.steps[k];
    const std::string where = fmt::format("execution graph, step row {} (step {})", k, s.number);
    if (s.rank >= g.ranks.size()) return fail(fmt::format("there is no rank row {}", s.rank), where);
    if (s.end < s.begin) return fail("it ends before it begins", where);
    for (NodeId b : {s.begin_node, s.end_node})
      if (b == kNoNode || raw(b) >= g.size()) return fail("a boundary node is missing", where);
  }
  return {};
}

}  // namespace orrery
