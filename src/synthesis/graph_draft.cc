#include "synthesis/graph_draft.h"

#include <fmt/format.h>

namespace orrery::synth {

NodeId GraphDraft::add(NodeKind node_kind, std::uint32_t rank_row, std::uint32_t rank_lane, Ns dur, OpId op,
                       bool begin) {
  duration.push_back(dur);
  lane.push_back(rank_lane);
  kind.push_back(node_kind);
  at_begin.push_back(begin ? 1 : 0);
  rank.push_back(rank_row);
  source.push_back(op);
  return NodeId{size() - 1};
}

NodeId GraphDraft::meeting(MeetingKey key, std::uint32_t rank_row) {
  const auto [place, is_new] = meetings.try_emplace(key, kNoNode);
  if (is_new) place->second = add(NodeKind::rendezvous, rank_row, kNone, 0, kNoOp, false);
  return place->second;
}

Result<GraphDraft::Ordered> GraphDraft::in_order(const std::vector<std::uint32_t>& first_lane) const {
  const std::uint32_t n = size();
  // Edges by target (kept in order: of equal releases the first listed counts) and by source.
  std::vector<std::uint32_t> in_first(n + 1, 0), out_first(n + 1, 0), waits(n, 0);
  for (const Edge& e : edges) {
    ++in_first[raw(e.to) + 1];
    if (e.from == kNoNode) continue;
    ++out_first[raw(e.from) + 1];
    ++waits[raw(e.to)];
  }
  for (std::uint32_t i = 0; i < n; ++i) {
    in_first[i + 1] += in_first[i];
    out_first[i + 1] += out_first[i];
  }
  std::vector<std::uint32_t> in(edges.size()), out(out_first[n]), in_fill = in_first, out_fill = out_first;
  for (std::uint32_t k = 0; k < edges.size(); ++k) {
    in[in_fill[raw(edges[k].to)]++] = k;
    if (edges[k].from != kNoNode) out[out_fill[raw(edges[k].from)]++] = raw(edges[k].to);
  }

  std::vector<std::uint32_t> order;
  order.reserve(n);
  for (std::uint32_t i = 0; i < n; ++i)
    if (waits[i] == 0) order.push_back(i);
  for (std::uint32_t k = 0; k < order.size(); ++k)
    for (std::uint32_t e = out_first[order[k]]; e < out_first[order[k] + 1]; ++e)
      if (--waits[out[e]] == 0) order.push_back(out[e]);
  if (order.size() != n)
    return fail(fmt::format("{} of {} pieces of work wait for each other for ever", n - order.size(), n),
                "synthetic job", "with a launch queue this short the ranks deadlock; raise queue_depth");

  Ordered result;
  result.new_number.assign(n, kNoNode);
  for (std::uint32_t k = 0; k < n; ++k) result.new_number[order[k]] = NodeId{k};
  ExecGraph& g = result.graph;
  for (const std::uint32_t i : order) {
    g.duration.push_back(duration[i]);
    g.lane.push_back(lane[i] == kNone ? kNone : lane[i] + first_lane[rank[i]]);
    g.kind.push_back(kind[i]);
    g.at_begin.push_back(at_begin[i]);
    g.rank.push_back(rank[i]);
    g.source.push_back(source[i]);
    for (std::uint32_t e = in_first[i]; e < in_first[i + 1]; ++e) {
      const Edge& edge = edges[in[e]];
      g.pred.push_back(edge.from == kNoNode ? kNoNode : result.new_number[raw(edge.from)]);
      g.pred_kind.push_back(edge.kind);
      g.pred_lag.push_back(edge.lag);
    }
    g.first_pred.push_back(static_cast<std::uint32_t>(g.pred.size()));
  }
  g.observed_start.assign(n, 0);
  return result;
}

}  // namespace orrery::synth
