// Critical path of the steps
//   kind    rank  name                              ms      %
//   kernel     5  ampere_bf16_s16816gemm_...    41.220  27.46
//   comm       5  ncclDevKernel_SendRecv(...)   30.511  20.33
//   host       5  aten::linear                   9.870   6.58
//   launch     5  launch latency                 0.410   0.27
//
// The chain of waits that ends with the end of the longest rank's step: from its last boundary each node's releaser is
// followed back until the step's begin. A node's own time counts under its kind and name (host work under the innermost
// operator or call that it was part of), the lag of the edge that released it under the kind of the edge. Shortening
// anything that is not listed does not shorten the step. One path a step; rows are sums over the chosen steps, and add
// up to their replayed time.
#include <algorithm>
#include <unordered_map>

#include "reports/names.h"
#include "reports/reports.h"

namespace orrery {
namespace {

CriticalPath trace_back(const ExecGraph& g, const Replay& r, std::uint32_t row) {
  const Step& s = g.steps[row];
  const Window w = replayed_window(r, s);
  CriticalPath path;
  path.step = row;
  path.length = w.end - w.begin;
  Ns t = w.end;
  const auto take = [&](Ns down_to) {
    const Ns to = std::clamp(down_to, w.begin, t);
    const Ns span = t - to;
    t = to;
    return span;
  };
  // Clamping makes the pieces telescope also where a negative lag lets a node start before its releaser has ended.
  for (NodeId n = s.end_node; t > w.begin;) {
    Hop hop;
    hop.node = n;
    hop.how = r.released_how[raw(n)];
    hop.run = take(r.start[raw(n)]);
    const NodeId by = r.released_by[raw(n)];
    hop.wait = take(by == kNoNode ? w.begin : r.end[raw(by)]);
    path.hops.push_back(hop);
    n = by;
  }
  return path;
}

const char* wait_name(EdgeKind k) {
  switch (k) {
    case EdgeKind::root:
      return "before the first known work";
    case EdgeKind::thread:
      return "next on the thread";
    case EdgeKind::launch:
      return "launch latency";
    case EdgeKind::stream:
      return "next on the stream";
    case EdgeKind::event:
      return "wait for an event";
    case EdgeKind::sync:
      return "return from a synchronisation";
    case EdgeKind::queue:
      return "full launch queue";
    case EdgeKind::handoff:
      return "wake-up of a thread";
    case EdgeKind::graph:
      return "order inside a graph launch";
    case EdgeKind::stall:
      return "device stall";
    case EdgeKind::collective:
      return "collective";
  }
  return "";
}

// Of each hop of each path, path after path: its host owner, or the task's own row.
std::vector<std::vector<OpId>> rows_of_hops(const ExecGraph& g, const std::vector<CriticalPath>& paths) {
  struct Wanted {
    std::uint32_t node;
    OpId* to;
  };
  std::vector<std::vector<OpId>> out;
  std::vector<Wanted> wanted;
  std::vector<std::uint8_t> rank(g.ranks.size(), 0);
  std::uint32_t last = 0;
  for (const CriticalPath& p : paths) {
    std::vector<OpId>& rows = out.emplace_back(p.hops.size(), kNoOp);
    for (std::size_t k = 0; k < p.hops.size(); ++k) {
      const std::uint32_t n = raw(p.hops[k].node);
      rows[k] = g.source[n];
      if (g.kind[n] != NodeKind::host) continue;
      wanted.push_back({n, &rows[k]});
      rank[g.rank[n]] = 1;
      last = std::max(last, n);
    }
  }
  std::sort(wanted.begin(), wanted.end(), [](const Wanted& a, const Wanted& b) { return a.node < b.node; });
  HostOwner owner(g);
  auto w = wanted.begin();
  for (std::uint32_t i = 0; w != wanted.end() && i <= last; ++i) {
    if (g.kind[i] != NodeKind::host || !rank[g.rank[i]]) continue;
    const OpId row = owner.next(i);
    for (; w != wanted.end() && w->node == i; ++w) *w->to = row;
  }
  return out;
}

std::string run_name(const TraceSet& traces, const ExecGraph& g, NodeId n, OpId row) {
  if (g.kind[raw(n)] == NodeKind::host && row == kNoOp) return "between operators";
  const std::string_view name = op_name(traces, g, g.rank[raw(n)], row);
  return std::string(name.empty() ? name_of(g.kind[raw(n)]) : name);
}

}  // namespace

std::vector<CriticalPath> critical_paths(const ExecGraph& g, const Replay& r, const StepRows& rows) {
  std::vector<CriticalPath> out;
  for (std::size_t k = 0; k < rows.size();) {
    std::uint32_t longest = rows[k];
    Ns most = -1;
    const std::int64_t number = g.steps[rows[k]].number;
    for (; k < rows.size() && g.steps[rows[k]].number == number; ++k) {
      const Window w = replayed_window(r, g.steps[rows[k]]);
      if (w.end - w.begin > most) {
        most = w.end - w.begin;
        longest = rows[k];
      }
    }
    out.push_back(trace_back(g, r, longest));
  }
  return out;
}

std::vector<NodeId> nodes_of(const CriticalPath& path) {
  std::vector<NodeId> nodes;
  for (auto h = path.hops.rbegin(); h != path.hops.rend(); ++h) nodes.push_back(h->node);
  return nodes;
}

HostOwner::HostOwner(const ExecGraph& graph) : g_(graph), open_(lane_count(graph)) {}

OpId HostOwner::next(std::uint32_t i) {
  std::vector<OpId>& stack = open_[g_.lane[i]];
  const OpId owner = stack.empty() ? kNoOp : stack.back();
  if (g_.at_begin[i]) {
    stack.push_back(g_.source[i]);
  } else {
    // A child may outlive its parent by a little: close what ends, wherever it stands.
    const auto found = std::find(stack.rbegin(), stack.rend(), g_.source[i]);
    if (found != stack.rend()) stack.erase(found.base() - 1);
  }
  return owner;
}

Section critical_path_section(const TraceSet& traces, const ExecGraph& g, const std::vector<CriticalPath>& paths) {
  struct Row {
    std::string kind;
    std::int64_t rank;
    std::string name;
    Ns ns = 0;
  };
  // Hops are many and names few: find the row by a small number first.
  const auto row_of_hop = rows_of_hops(g, paths);
  std::vector<Row> rows;
  std::unordered_map<std::string, std::size_t> row_of;
  std::unordered_map<std::uint64_t, std::size_t> row_of_number;
  const auto row_for = [&](std::string_view kind, std::int64_t rank, std::string name) {
    std::string key = std::string(kind) + '\n' + std::to_string(rank) + '\n' + name;
    const auto [it, fresh] = row_of.emplace(std::move(key), rows.size());
    if (fresh) rows.push_back({std::string(kind), rank, std::move(name)});
    return it->second;
  };
  Ns total = 0;
  for (std::size_t p = 0; p < paths.size(); ++p) {
    total += paths[p].length;
    for (std::size_t k = 0; k < paths[p].hops.size(); ++k) {
      const Hop& h = paths[p].hops[k];
      const std::uint32_t i = raw(h.node);
      const std::int64_t rank = g.ranks[g.rank[i]].rank;
      const auto number = [&](std::size_t what, OpId op) {
        return (std::uint64_t{g.rank[i]} * 32 + what) << 32 | raw(op);
      };
      if (h.run > 0) {
        const OpId op = row_of_hop[p][k];
        const auto [it, fresh] = row_of_number.emplace(number(static_cast<std::size_t>(g.kind[i]), op), 0);
        if (fresh) it->second = row_for(name_of(g.kind[i]), rank, run_name(traces, g, h.node, op));
        rows[it->second].ns += h.run;
      }
      if (h.wait > 0) {
        const auto [it, fresh] = row_of_number.emplace(number(16 + static_cast<std::size_t>(h.how), kNoOp), 0);
        if (fresh) it->second = row_for(name_of(h.how), rank, wait_name(h.how));
        rows[it->second].ns += h.wait;
      }
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.ns > b.ns; });

  Section s{.key = "critical_path", .title = "Critical path of the steps", .table = {}};
  s.text_rows = 20;
  s.table.columns = {{.key = "kind"}, {.key = "rank"}, {.key = "name"}, {.key = "ms"}, {.key = "pct", .digits = 2}};
  for (Row& r : rows)
    s.table.rows.push_back({std::move(r.kind), r.rank, std::move(r.name), to_ms(r.ns),
                            percent(static_cast<double>(r.ns), static_cast<double>(total))});
  return s;
}

Section critical_path_hops_section(const TraceSet& traces, const ExecGraph& g, const Replay& r,
                                   const std::vector<CriticalPath>& paths) {
  Section s{.key = "critical_path_hops", .title = "", .table = {}};
  s.table.columns = {{.key = "step"},     {.key = "node"},        {.key = "kind"},    {.key = "rank"},  {.key = "name"},
                     {.key = "start_ns"}, {.key = "released_by"}, {.key = "wait_ms"}, {.key = "run_ms"}};
  const auto row_of_hop = rows_of_hops(g, paths);
  for (std::size_t p = 0; p < paths.size(); ++p)
    for (std::size_t k = paths[p].hops.size(); k-- > 0;) {
      const Hop& h = paths[p].hops[k];
      const std::uint32_t i = raw(h.node);
      s.table.rows.push_back({g.steps[paths[p].step].number, std::int64_t{i}, std::string(name_of(g.kind[i])),
                              g.ranks[g.rank[i]].rank, run_name(traces, g, h.node, row_of_hop[p][k]), r.start[i],
                              std::string(name_of(h.how)), to_ms(h.wait), to_ms(h.run)});
    }
  return s;
}

}  // namespace orrery
