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

namespace {

// A cycle of inferred edges: of the nodes still waiting the earliest goes first, its open edges are dropped later.
std::uint32_t earliest_waiting(const Draft& d, const std::vector<std::uint32_t>& waiting) {
  std::uint32_t best = kNone;
  for (std::uint32_t i = 0; i < waiting.size(); ++i) {
    if (waiting[i] != 0 && (best == kNone || d.observed_start[i] < d.observed_start[best])) best = i;
  }
  return best;
}

// Topological order of the draft's nodes into s.order, their places into s.place.
void sort_nodes(Draft& d, AssembleScratch& s) {
  const std::uint32_t n = d.nodes();
  s.first_in.assign(n + 1, 0);
  s.first_out.assign(n + 1, 0);
  s.waiting.assign(n, 0);
  for (const DraftEdge& e : d.edges) {
    ++s.first_in[e.to + 1];
    if (e.from != kNone) {
      ++s.first_out[e.from + 1];
      ++s.waiting[e.to];
    }
  }
  for (std::uint32_t i = 0; i < n; ++i) {
    s.first_in[i + 1] += s.first_in[i];
    s.first_out[i + 1] += s.first_out[i];
  }
  s.in.resize(d.edges.size());
  s.out.resize(s.first_out[n]);
  // fill backwards, so that the first_* rows end up as they began
  for (std::uint32_t i = n; i > 0; --i) {
    s.first_in[i] = s.first_in[i - 1];
    s.first_out[i] = s.first_out[i - 1];
  }
  for (std::uint32_t e = 0; e < d.edges.size(); ++e) {
    s.in[s.first_in[d.edges[e].to + 1]++] = e;
    if (d.edges[e].from != kNone) s.out[s.first_out[d.edges[e].from + 1]++] = d.edges[e].to;
  }

  s.order.clear();
  s.place.resize(n);
  for (std::uint32_t i = 0; i < n; ++i) {
    if (s.waiting[i] == 0) s.order.push_back(i);
  }
  for (std::uint32_t k = 0; k < n; ++k) {
    if (k == s.order.size()) {
      const std::uint32_t i = earliest_waiting(d, s.waiting);
      s.waiting[i] = 0;
      s.order.push_back(i);
      d.notes.add("cycle-cut", Severity::warning, 1, {}, "edges that closed a cycle were dropped");
    }
    const std::uint32_t i = s.order[k];
    s.place[i] = k;
    for (std::uint32_t o = s.first_out[i]; o < s.first_out[i + 1]; ++o) {
      if (s.waiting[s.out[o]] != 0 && --s.waiting[s.out[o]] == 0) s.order.push_back(s.out[o]);
    }
  }
}

}  // namespace

void assemble(Draft& d, std::uint32_t trace_row, AssembleScratch& s, ExecGraph& g) {
  if (d.options->without_edges != 0) std::erase_if(d.edges, [&](const DraftEdge& e) { return !d.enabled(e.kind); });
  sort_nodes(d, s);
  const std::uint32_t n = d.nodes();
  g.clear();
  g.duration.resize(n);
  g.observed_start.resize(n);
  g.lane.resize(n);
  g.kind.resize(n);
  g.at_begin.resize(n);
  g.rank.assign(n, 0);
  g.source.resize(n);
  g.first_pred.resize(n + 1);
  g.pred.reserve(d.edges.size() + n);
  g.pred_kind.reserve(d.edges.size() + n);
  g.pred_lag.reserve(d.edges.size() + n);
  for (std::uint32_t k = 0; k < n; ++k) {
    const std::uint32_t i = s.order[k];
    g.duration[k] = d.duration[i];
    g.observed_start[k] = d.observed_start[i];
    g.lane[k] = d.lane[i];
    g.kind[k] = d.kind[i];
    g.at_begin[k] = d.at_begin[i];
    g.source[k] = OpId{d.source[i]};
    for (std::uint32_t p = s.first_in[i]; p < s.first_in[i + 1]; ++p) {
      const DraftEdge& e = d.edges[s.in[p]];
      if (e.from != kNone && s.place[e.from] >= k) {
        ++d.quality.dropped[static_cast<std::size_t>(e.kind)];
        continue;
      }
      g.pred.push_back(e.from == kNone ? kNoNode : NodeId{s.place[e.from]});
      g.pred_kind.push_back(e.kind);
      g.pred_lag.push_back(e.lag);
      ++d.quality.edges[static_cast<std::size_t>(e.kind)];
    }
    if (g.edges() == g.first_pred[k]) {  // only when edges were left out on purpose or a cycle was cut
      g.pred.push_back(kNoNode);
      g.pred_kind.push_back(EdgeKind::root);
      g.pred_lag.push_back(0);
    }
    g.first_pred[k + 1] = g.edges();
  }
  for (Step step : d.steps) {
    step.begin_node = NodeId{s.place[raw(step.begin_node)]};
    step.end_node = NodeId{s.place[raw(step.end_node)]};
    g.steps.push_back(step);
  }
  g.ranks.push_back({d.trace->rank, trace_row, 0, static_cast<std::uint32_t>(d.trace->lanes.size()),
                     d.trace->window_start, d.lags});
}

void append(const ExecGraph& piece, ExecGraph& g) {
  const std::uint32_t nodes = g.size(), edges = g.edges();
  const auto rank_row = static_cast<std::uint32_t>(g.ranks.size());
  const std::uint32_t first_lane = g.ranks.empty() ? 0 : g.ranks.back().first_lane + g.ranks.back().lanes;
  auto add = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  add(g.duration, piece.duration);
  add(g.observed_start, piece.observed_start);
  add(g.kind, piece.kind);
  add(g.at_begin, piece.at_begin);
  add(g.source, piece.source);
  add(g.pred_kind, piece.pred_kind);
  add(g.pred_lag, piece.pred_lag);
  g.rank.resize(nodes + piece.size(), rank_row);
  for (const std::uint32_t l : piece.lane) g.lane.push_back(l == kNone ? kNone : first_lane + l);
  for (const NodeId p : piece.pred) g.pred.push_back(p == kNoNode ? kNoNode : NodeId{raw(p) + nodes});
  for (std::size_t i = 1; i < piece.first_pred.size(); ++i) g.first_pred.push_back(piece.first_pred[i] + edges);
  for (Step step : piece.steps) {
    step.rank = rank_row;
    step.begin_node = NodeId{raw(step.begin_node) + nodes};
    step.end_node = NodeId{raw(step.end_node) + nodes};
    g.steps.push_back(step);
  }
  GraphRank rank = piece.ranks.front();
  rank.first_lane = first_lane;
  g.ranks.push_back(rank);
}

}  // namespace orrery
