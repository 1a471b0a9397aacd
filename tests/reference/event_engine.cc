#include "reference/event_engine.h"

#include <algorithm>
#include <limits>
#include <set>

namespace orrery {

void run_by_events(const ExecGraph& g, ReferenceRun& out) {
  constexpr Ns kNever = std::numeric_limits<Ns>::min();
  const std::uint32_t n = g.size();
  struct Dependent {
    std::uint32_t task;
    Ns lag;
  };
  std::vector<std::vector<Dependent>> dependents(n);
  std::vector<std::uint32_t> open(n, 0);
  out.start.assign(n, kNever);
  out.end.assign(n, kNever);
  out.ran = 0;

  for (std::uint32_t t = 0; t < n; ++t)
    for (std::uint32_t e = g.first_pred[t]; e < g.first_pred[t + 1]; ++e) {
      if (g.pred[e] == kNoNode) {
        out.start[t] = std::max(out.start[t], g.ranks[g.rank[t]].origin + g.pred_lag[e]);
      } else {
        dependents[raw(g.pred[e])].push_back({t, g.pred_lag[e]});
        ++open[t];
      }
    }

  std::set<std::pair<Ns, std::uint32_t>> ready;  // the earliest first, then the lowest number
  for (std::uint32_t t = 0; t < n; ++t)
    if (open[t] == 0) ready.insert({out.start[t], t});
  while (!ready.empty()) {
    const std::uint32_t t = ready.begin()->second;
    ready.erase(ready.begin());
    out.end[t] = out.start[t] + g.duration[t];
    ++out.ran;
    for (const Dependent& d : dependents[t]) {
      out.start[d.task] = std::max(out.start[d.task], out.end[t] + d.lag);
      if (--open[d.task] == 0) ready.insert({out.start[d.task], d.task});
    }
  }
}

}  // namespace orrery
