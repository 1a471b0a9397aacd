#include "replay/replay.h"

#include <limits>

namespace orrery {

void replay(const ExecGraph& g, Replay& out) {
  const std::uint32_t n = g.size();
  out.start.resize(n);
  out.end.resize(n);
  out.released_by.resize(n);
  out.released_how.resize(n);
  const Ns* dur = g.duration.data();
  const std::uint32_t* first = g.first_pred.data();
  const NodeId* pred = g.pred.data();
  const EdgeKind* how = g.pred_kind.data();
  const Ns* lag = g.pred_lag.data();
  Ns* end = out.end.data();
  for (std::uint32_t i = 0; i < n; ++i) {
    Ns best = std::numeric_limits<Ns>::min();
    std::uint32_t by = first[i];
    for (std::uint32_t e = first[i]; e < first[i + 1]; ++e) {
      const Ns from = pred[e] == kNoNode ? g.ranks[g.rank[i]].origin : end[raw(pred[e])];
      const Ns t = from + lag[e];
      if (t > best) {
        best = t;
        by = e;
      }
    }
    out.start[i] = best;
    end[i] = best + dur[i];
    out.released_by[i] = pred[by];
    out.released_how[i] = how[by];
  }
}

}  // namespace orrery
