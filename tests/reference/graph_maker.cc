#include "reference/graph_maker.h"

#include <algorithm>

namespace orrery {

GraphMaker::GraphMaker(std::uint32_t ranks, std::uint32_t lanes_of_rank) {
  for (std::uint32_t r = 0; r < ranks; ++r) {
    GraphRank rank;
    rank.rank = r;
    rank.trace = r;
    rank.first_lane = r * lanes_of_rank;
    rank.lanes = lanes_of_rank;
    g.ranks.push_back(rank);
  }
}

NodeId GraphMaker::add(NodeKind kind, std::uint32_t lane, Ns duration, const std::vector<Pred>& preds, OpId source,
                       bool at_begin, std::uint32_t rank) {
  g.duration.push_back(duration);
  g.observed_start.push_back(0);
  g.lane.push_back(kind == NodeKind::rendezvous ? kNone : g.ranks[rank].first_lane + lane);
  g.kind.push_back(kind);
  g.at_begin.push_back(at_begin);
  g.rank.push_back(rank);
  g.source.push_back(source);
  for (const Pred& p : preds) {
    g.pred.push_back(p.from);
    g.pred_kind.push_back(p.how);
    g.pred_lag.push_back(p.lag);
  }
  g.first_pred.push_back(static_cast<std::uint32_t>(g.pred.size()));
  return NodeId{g.size() - 1};
}

void GraphMaker::step(std::int64_t number, Ns begin, Ns end, std::uint32_t rank) {
  Step s;
  s.number = number;
  s.rank = rank;
  s.begin = begin;
  s.end = end;
  s.begin_node = host(0, 0, {root(begin)}, kNoOp, false, rank);
  s.end_node = host(0, 0, {root(end)}, kNoOp, false, rank);
  g.steps.push_back(s);
}

Replay GraphMaker::observe() {
  Replay r;
  replay(g, r);
  g.observed_start = r.start;
  return r;
}

ExecGraph random_graph(std::uint32_t nodes, std::mt19937_64& random) {
  const auto pick = [&](Ns low, Ns high) { return std::uniform_int_distribution<Ns>(low, high)(random); };
  const Ns reach = pick(1, 50);  // how far back predecessors lie: chains or bushes
  GraphMaker m(static_cast<std::uint32_t>(pick(1, 3)), 4);
  for (GraphRank& rank : m.g.ranks) rank.origin = pick(-1000, 1000);
  constexpr EdgeKind kKinds[] = {EdgeKind::thread, EdgeKind::launch, EdgeKind::stream, EdgeKind::event,
                                 EdgeKind::sync,   EdgeKind::queue,  EdgeKind::handoff};
  for (std::uint32_t i = 0; i < nodes; ++i) {
    std::vector<Pred> preds;
    const Ns wanted = i == 0 ? 0 : pick(0, std::min<Ns>(i, pick(1, 6)));
    for (Ns k = 0; k < wanted; ++k) {
      const Ns back = pick(1, std::min<Ns>(i, reach));
      preds.push_back({NodeId{i - static_cast<std::uint32_t>(back)}, kKinds[pick(0, 6)], pick(-20, 20)});
    }
    if (preds.empty() || pick(0, 9) == 0) preds.push_back(root(pick(-5, 500)));
    const bool on_device = pick(0, 2) == 0;
    m.add(on_device ? NodeKind::kernel : NodeKind::host, static_cast<std::uint32_t>(pick(0, 3)),
          pick(0, 3) == 0 ? 0 : pick(1, 100), preds, kNoOp, false,
          static_cast<std::uint32_t>(pick(0, static_cast<Ns>(m.g.ranks.size()) - 1)));
  }
  return std::move(m.g);
}

}  // namespace orrery
