#include "reference/report_helpers.h"

namespace orrery {

GraphMaker random_job(std::mt19937_64& random, int calls) {
  const auto pick = [&](Ns low, Ns high) { return std::uniform_int_distribution<Ns>(low, high)(random); };
  GraphMaker m;
  m.g.ranks[0].origin = 5000;
  NodeId thread[2], stream[2] = {kNoNode, kNoNode};
  thread[0] = m.host(0, pick(0, 20), {root()});
  thread[1] = m.host(1, pick(0, 20), {root(pick(0, 50))});
  Step whole, part;
  whole.begin_node = thread[0];
  part.number = 1;
  int on = 0;
  for (int c = 0; c < calls; ++c) {
    if (c == calls / 3) part.begin_node = thread[0];
    if (c == 2 * calls / 3) part.end_node = thread[0];
    const NodeId begin = m.host(static_cast<std::uint32_t>(on), pick(0, 30), {{thread[on], EdgeKind::thread, 0}});
    thread[on] = begin;
    const int what = static_cast<int>(pick(0, 9));
    const int s = static_cast<int>(pick(0, 1));
    if (what < 7) {
      std::vector<Pred> preds{{begin, EdgeKind::launch, 6}};
      if (stream[s] != kNoNode) preds.push_back({stream[s], EdgeKind::stream, pick(0, 9) == 0 ? -2 : 1});
      if (stream[1 - s] != kNoNode && pick(0, 3) == 0) preds.push_back({stream[1 - s], EdgeKind::event, 2});
      const auto lane = static_cast<std::uint32_t>(2 + s);
      if (pick(0, 19) == 0)
        preds.push_back({m.add(NodeKind::stall, lane, pick(5, 50), {preds.back()}), EdgeKind::stall, 0});
      constexpr NodeKind kKinds[] = {NodeKind::kernel, NodeKind::kernel, NodeKind::comm, NodeKind::memcpy,
                                     NodeKind::memset};
      stream[s] = m.add(kKinds[pick(0, 4)], lane, pick(0, 4) == 0 ? 0 : pick(1, 60), preds);
      thread[on] = m.host(static_cast<std::uint32_t>(on), pick(0, 5), {{begin, EdgeKind::thread, 0}});
    } else if (what == 7 && stream[s] != kNoNode) {
      thread[on] =
          m.host(static_cast<std::uint32_t>(on), 0, {{begin, EdgeKind::thread, 0}, {stream[s], EdgeKind::sync, 3}});
    } else if (what == 8) {
      const int other = 1 - on;
      thread[other] = m.host(static_cast<std::uint32_t>(other), 0,
                             {{thread[other], EdgeKind::thread, 0}, {begin, EdgeKind::handoff, 4}});
      on = other;
    }
  }
  whole.end_node = m.host(0, 5, {{thread[0], EdgeKind::thread, 0}, {thread[1], EdgeKind::handoff, 4}});
  m.g.steps = {whole};
  if (raw(part.begin_node) < raw(part.end_node)) m.g.steps.push_back(part);
  const Replay r = m.observe();
  for (Step& s : m.g.steps) {
    s.begin = r.end[raw(s.begin_node)];
    s.end = r.end[raw(s.end_node)];
  }
  return m;
}

}  // namespace orrery
