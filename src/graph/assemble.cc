// Draft -> ExecGraph: topological order, compressed predecessor rows.
#include <algorithm>

#include "graph/draft.h"

namespace orrery {

void Draft::clear() {
  trace = nullptr;
  options = nullptr;
  quality = {};
  notes.rows.clear();
  lags = {};
  node.clear();
  edges.clear();
  threads.clear();
  streams.clear();
  tasks.clear();
  calls.clear();
  launched.clear();
  begin_node.clear();
  end_node.clear();
  explained_start.clear();
  steps.clear();
  frontiers.clear();
  groups.clear();
}

void ExecGraph::clear() {
  duration.clear();
  observed_start.clear();
  lane.clear();
  kind.clear();
  at_begin.clear();
  rank.clear();
  source.clear();
  first_pred.assign(1, 0);
  pred.clear();
  pred_kind.clear();
  pred_lag.clear();
  ranks.clear();
  steps.clear();
}

void refresh_queue_lags(ExecGraph& g) {
  for (std::uint32_t e = 0; e < g.edges(); ++e) {
    if (g.pred_kind[e] == EdgeKind::queue) g.pred_lag[e] = -g.duration[raw(g.pred[e])];
  }
}

namespace {

// A cycle of inferred edges: of the nodes not placed yet the earliest goes first, its open edges are dropped later.
std::uint32_t earliest_unplaced(const Draft& d, const std::vector<std::uint32_t>& place) {
  std::uint32_t best = kNone;
  for (std::uint32_t i = 0; i < place.size(); ++i) {
    if (place[i] == kNone && (best == kNone || d.node[i].observed_start < d.node[best].observed_start)) best = i;
  }
  return best;
}

// Topological order of the draft's nodes into s.order, their places into s.place. Chains (the boundaries of a thread)
// are followed as far as they go, which keeps neighbours together.
void sort_nodes(Draft& d, AssembleScratch& s) {
  const std::uint32_t n = d.nodes();
  const bool chains = d.enabled(EdgeKind::thread);
  s.first_in.assign(n + 2, 0);
  s.first_out.assign(n + 2, 0);
  s.waiting.assign(n, 0);
  for (const DraftEdge& e : d.edges) {
    ++s.first_in[e.to + 2];
    if (e.from == kNone) continue;
    ++s.first_out[e.from + 2];
    ++s.waiting[e.to];
  }
  for (std::uint32_t i = 2; i < n + 2; ++i) {
    s.first_in[i] += s.first_in[i - 1];
    s.first_out[i] += s.first_out[i - 1];
  }
  s.in.resize(d.edges.size());
  s.out.resize(s.first_out[n + 1]);
  // the fill moves row i + 1 from the start of node i to its end, which is where node i + 1 starts
  for (std::uint32_t e = 0; e < d.edges.size(); ++e) {
    s.in[s.first_in[d.edges[e].to + 1]++] = e;
    if (d.edges[e].from != kNone) s.out[s.first_out[d.edges[e].from + 1]++] = d.edges[e].to;
  }

  s.order.clear();
  s.place.assign(n, kNone);
  s.ready.clear();
  auto chained = [&](std::uint32_t i) { return chains && d.node[i].chained; };
  for (std::uint32_t i = n; i-- > 0;) {
    if (s.waiting[i] == 0 && !chained(i)) s.ready.push_back(i);
  }
  while (s.order.size() < n) {
    if (s.ready.empty()) {
      const std::uint32_t i = earliest_unplaced(d, s.place);
      s.waiting[i] = 0;
      s.ready.push_back(i);
      const std::uint32_t op = d.node[i].source;
      d.notes.add("cycle-cut", Severity::warning, 1, op == kNone ? "" : d.trace->name_of(OpId{op}),
                  "edges that closed a cycle were dropped");
    }
    std::uint32_t i = s.ready.back();
    s.ready.pop_back();
    while (s.place[i] == kNone) {
      s.place[i] = static_cast<std::uint32_t>(s.order.size());
      s.order.push_back(i);
      for (std::uint32_t o = s.first_out[i]; o < s.first_out[i + 1]; ++o) {
        const std::uint32_t to = s.out[o];
        if (s.waiting[to] == 0 || --s.waiting[to] != 0) continue;
        if (!chained(to) || s.place[to - 1] != kNone) s.ready.push_back(to);
      }
      if (i + 1 == n || !chained(i + 1) || s.waiting[i + 1] != 0) break;
      ++i;
    }
  }
}

}  // namespace

void assemble(Draft& d, std::uint32_t trace_row, AssembleScratch& s, ExecGraph& g) {
  if (d.options->without_edges != 0) {
    std::erase_if(d.edges, [&](const DraftEdge& e) { return !d.enabled(e.kind); });
  }
  sort_nodes(d, s);
  const bool chains = d.enabled(EdgeKind::thread);
  const std::uint32_t n = d.nodes();
  const std::size_t most_edges = d.edges.size() + n;
  g.clear();
  g.duration.resize(n);
  g.observed_start.resize(n);
  g.lane.resize(n);
  g.kind.resize(n);
  g.at_begin.resize(n);
  g.rank.assign(n, 0);
  g.source.resize(n);
  g.first_pred.resize(n + 1);
  g.pred.resize(most_edges);
  g.pred_kind.resize(most_edges);
  g.pred_lag.resize(most_edges);
  std::uint32_t out = 0;
  auto add = [&](NodeId from, EdgeKind kind, Ns lag) {
    g.pred[out] = from;
    g.pred_kind[out] = kind;
    g.pred_lag[out++] = lag;
    ++d.quality.edges[static_cast<std::size_t>(kind)];
  };
  for (std::uint32_t k = 0; k < n; ++k) {
    const std::uint32_t i = s.order[k];
    const DraftNode& node = d.node[i];
    g.duration[k] = node.duration;
    g.observed_start[k] = node.observed_start;
    g.lane[k] = node.lane;
    g.kind[k] = node.kind;
    g.at_begin[k] = node.at_begin;
    g.source[k] = OpId{node.source};
    const std::uint32_t first = out;
    if (chains && node.chained) {
      if (s.place[i - 1] < k) {
        add(NodeId{s.place[i - 1]}, EdgeKind::thread, 0);
      } else {
        ++d.quality.dropped[static_cast<std::size_t>(EdgeKind::thread)];
      }
    }
    for (std::uint32_t p = s.first_in[i]; p < s.first_in[i + 1]; ++p) {
      const DraftEdge& e = d.edges[s.in[p]];
      if (e.from == kNone) {
        add(kNoNode, e.kind, e.lag);
      } else if (s.place[e.from] < k) {
        add(NodeId{s.place[e.from]}, e.kind, e.lag);
      } else {
        ++d.quality.dropped[static_cast<std::size_t>(e.kind)];
      }
    }
    if (out == first) add(kNoNode, EdgeKind::root, 0);  // edges left out on purpose, or a cycle cut
    g.first_pred[k + 1] = out;
  }
  g.pred.resize(out);
  g.pred_kind.resize(out);
  g.pred_lag.resize(out);
  for (Step step : d.steps) {
    step.begin_node = NodeId{s.place[raw(step.begin_node)]};
    step.end_node = NodeId{s.place[raw(step.end_node)]};
    g.steps.push_back(step);
  }
  g.ranks.push_back(
      {d.trace->rank, trace_row, 0, static_cast<std::uint32_t>(d.trace->lanes.size()), d.trace->window_start, d.lags});
}

}  // namespace orrery
