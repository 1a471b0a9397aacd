// Stragglers
//   rank  host   kind     slower %  cost ms  cost %
//      5  node0  compute     11.42    0.840    1.18
//
// Ranks that are slower than their peers at the same work (src/whatif/stragglers.cc says how that is told): at kernels
// (compute), at operators and calls (host), at collectives (network). Cost: what the iteration would be shorter by if
// the rank were as fast as the median of its peers and nothing else changed, from a replay without it. It can be
// nothing: a slow rank in a stage that waits anyway costs nothing. The costs of two stragglers do not add up.
#include "reports/names.h"
#include "reports/reports.h"
#include "whatif/whatif.h"

namespace orrery {
namespace {

// Mean over the chosen steps of the longest rank's, ns.
double iteration(const ExecGraph& g, const Replay& r, const StepRows& rows) {
  double sum = 0;
  std::size_t steps = 0;
  for (std::size_t k = 0; k < rows.size();) {
    const std::int64_t number = g.steps[rows[k]].number;
    Ns longest = 0;
    for (; k < rows.size() && g.steps[rows[k]].number == number; ++k) {
      const Window w = replayed_window(r, g.steps[rows[k]]);
      longest = std::max(longest, w.end - w.begin);
    }
    sum += static_cast<double>(longest);
    ++steps;
  }
  return steps == 0 ? 0 : sum / static_cast<double>(steps);
}

}  // namespace

Section stragglers_section(const TraceSet& traces, const GraphBuild& build, const Replay& r, const StepRows& rows) {
  Section s{.key = "stragglers", .title = "", .table = {}};
  s.table.columns = {{.key = "rank"},
                     {.key = "host"},
                     {.key = "kind"},
                     {.key = "slower_pct", .title = "slower %", .digits = 2},
                     {.key = "cost_ms", .title = "cost ms"},
                     {.key = "cost_pct", .title = "cost %", .digits = 2}};
  const std::vector<Straggler> found = find_stragglers(traces, build);
  if (found.empty()) return s;
  s.title = "Stragglers (cost: what the iteration would be shorter by without them)";
  const double with = iteration(build.graph, r, rows);
  GraphBuild changed;
  changed.graph = build.graph;
  changed.communication = build.communication;
  Replay without;
  for (const Straggler& f : found) {
    changed.graph.duration = build.graph.duration;
    changed.graph.pred_lag = build.graph.pred_lag;
    remove_stragglers(changed, {f});
    replay(changed.graph, without);
    const double saved = with - iteration(changed.graph, without, rows);
    const GraphRank& rank = build.graph.ranks[f.rank];
    const std::string& host = traces.ranks[rank.trace].host;
    s.table.rows.push_back({rank.rank, host.empty() ? Cell{} : Cell{host}, std::string(name_of(f.kind)),
                            100 * (f.slower - 1), saved / 1e6, percent(saved, with)});
  }
  return s;
}

}  // namespace orrery
