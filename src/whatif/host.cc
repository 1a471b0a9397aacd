// --host and --launch: time of CPU threads.
#include <cmath>

#include "whatif/whatif.h"

namespace orrery {

Status check_times(const ExecGraph& g) {
  constexpr double kCentury = 3.15e18;
  double sum = 0;
  bool negative = false;  // what was rounded beyond int64
  for (const Ns d : g.duration) {
    sum += static_cast<double>(d);
    negative = negative || d < 0;
  }
  for (const Ns lag : g.pred_lag) sum += static_cast<double>(lag > 0 ? lag : 0);
  if (!negative && sum < kCentury) return {};
  return fail("the changed job would run for more than a hundred years");
}

Changed scale_host(ExecGraph& g, double factor, std::uint32_t only_rank) {
  Changed changed;
  for (std::uint32_t n = 0; n < g.size(); ++n) {
    if (g.kind[n] != NodeKind::host || g.duration[n] == 0 || (only_rank != kNone && g.rank[n] != only_rank)) continue;
    const Ns t = std::llround(static_cast<double>(g.duration[n]) * factor);
    changed.nodes += t != g.duration[n];
    g.duration[n] = t;
  }
  return changed;
}

Changed scale_launches(ExecGraph& g, double factor) {
  Changed changed;
  std::vector<std::uint8_t> launches(g.size(), 0);  // the begin of a call that launches
  for (std::uint32_t e = 0; e < g.edges(); ++e)
    if (g.pred_kind[e] == EdgeKind::launch) launches[raw(g.pred[e])] = 1;
  for (std::uint32_t n = 0; n < g.size(); ++n) {
    if (g.kind[n] != NodeKind::host || g.at_begin[n] != 0 || g.first_pred[n] == g.first_pred[n + 1]) continue;
    // the boundary before it on the thread is the first predecessor
    const std::uint32_t begin = raw(g.pred[g.first_pred[n]]);
    if (begin == kNone || (launches[begin] == 0 && launches[n] == 0) || g.source[begin] != g.source[n]) continue;
    const Ns t = std::llround(static_cast<double>(g.duration[n]) * factor);
    changed.nodes += t != g.duration[n];
    g.duration[n] = t;
  }
  return changed;
}

}  // namespace orrery
