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
  duration.clear();
  observed_start.clear();
  lane.clear();
  kind.clear();
  at_begin.clear();
  source.clear();
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

void assemble(Draft& d, std::uint32_t trace_row, ExecGraph& g) {
  const std::uint32_t n = d.nodes();
  const std::uint32_t base = g.size();
  const std::uint32_t rank_row = static_cast<std::uint32_t>(g.ranks.size());
  const std::uint32_t first_lane = g.ranks.empty() ? 0 : g.ranks.back().first_lane + g.ranks.back().lanes;

  std::erase_if(d.edges, [&](const DraftEdge& e) { return !d.enabled(e.kind); });

  // successors and predecessors of each node, as rows of d.edges
  std::vector<std::uint32_t> first_in(n + 1, 0), first_out(n + 1, 0), waiting(n, 0);
  for (const DraftEdge& e : d.edges) {
    ++first_in[e.to + 1];
    if (e.from != kNone) {
      ++first_out[e.from + 1];
      ++waiting[e.to];
    }
  }
  for (std::uint32_t i = 0; i < n; ++i) {
    first_in[i + 1] += first_in[i];
    first_out[i + 1] += first_out[i];
  }
  std::vector<std::uint32_t> in(d.edges.size()), out(first_out[n]);
  {
    std::vector<std::uint32_t> at_in(first_in.begin(), first_in.end() - 1),
        at_out(first_out.begin(), first_out.end() - 1);
    for (std::uint32_t e = 0; e < d.edges.size(); ++e) {
      in[at_in[d.edges[e].to]++] = e;
      if (d.edges[e].from != kNone) out[at_out[d.edges[e].from]++] = d.edges[e].to;
    }
  }

  std::vector<std::uint32_t> order, place(n, kNone);
  order.reserve(n);
  for (std::uint32_t i = 0; i < n; ++i) {
    if (waiting[i] == 0) order.push_back(i);
  }
  std::uint32_t next_stuck = 0;
  std::vector<std::uint32_t> by_time;  // only filled when a cycle must be cut
  for (std::uint32_t k = 0;; ++k) {
    if (k == order.size()) {
      if (k == n) break;
      // A cycle of inferred edges: the earliest node still waiting goes first, its open edges are dropped.
      if (by_time.empty()) {
        by_time.resize(n);
        for (std::uint32_t i = 0; i < n; ++i) by_time[i] = i;
        std::sort(by_time.begin(), by_time.end(),
                  [&](std::uint32_t a, std::uint32_t b) { return d.observed_start[a] < d.observed_start[b]; });
      }
      while (waiting[by_time[next_stuck]] == 0) ++next_stuck;
      waiting[by_time[next_stuck]] = 0;
      order.push_back(by_time[next_stuck]);
      d.notes.add("cycle-cut", Severity::warning, 1, {}, "edges that closed a cycle were dropped");
    }
    const std::uint32_t i = order[k];
    place[i] = base + k;
    for (std::uint32_t o = first_out[i]; o < first_out[i + 1]; ++o) {
      if (waiting[out[o]] != 0 && --waiting[out[o]] == 0) order.push_back(out[o]);
    }
  }

  for (const std::uint32_t i : order) {
    g.duration.push_back(d.duration[i]);
    g.observed_start.push_back(d.observed_start[i]);
    g.lane.push_back(d.lane[i] == kNone ? kNone : first_lane + d.lane[i]);
    g.kind.push_back(d.kind[i]);
    g.at_begin.push_back(d.at_begin[i]);
    g.rank.push_back(rank_row);
    g.source.push_back(OpId{d.source[i]});
    bool any = false;
    for (std::uint32_t p = first_in[i]; p < first_in[i + 1]; ++p) {
      const DraftEdge& e = d.edges[in[p]];
      if (e.from != kNone && place[e.from] >= place[i]) {
        ++d.quality.dropped[static_cast<std::size_t>(e.kind)];
        continue;
      }
      g.pred.push_back(e.from == kNone ? kNoNode : NodeId{place[e.from]});
      g.pred_kind.push_back(e.kind);
      g.pred_lag.push_back(e.lag);
      ++d.quality.edges[static_cast<std::size_t>(e.kind)];
      any = true;
    }
    if (!any) {  // only when edges were left out on purpose or a cycle was cut
      g.pred.push_back(kNoNode);
      g.pred_kind.push_back(EdgeKind::root);
      g.pred_lag.push_back(0);
    }
    g.first_pred.push_back(g.edges());
  }
  for (Step s : d.steps) {
    s.rank = rank_row;
    s.begin_node = NodeId{place[raw(s.begin_node)]};
    s.end_node = NodeId{place[raw(s.end_node)]};
    g.steps.push_back(s);
  }
  g.ranks.push_back({d.trace->rank, trace_row, first_lane, static_cast<std::uint32_t>(d.trace->lanes.size()),
                     d.trace->window_start, d.lags});
}

}  // namespace orrery
