// How much the graph explains (all steps)
//   explained idle %              99.61    of the measured device idle time inside steps, what an edge accounts for
//   matched collectives %         100.00    of the communication kernels whose partners are here
//   edges thread                 160585    edges by kind, all ranks
//   ...
//   dropped edges event              12    inferred, then contradicted by the measured times, and left out
//   stalls                            3    device pauses with work queued that nothing in the trace explains
//   stall ms                      7.214
#include <fmt/format.h>

#include <algorithm>

#include "reports/reports.h"

namespace orrery {

Section quality_section(const std::vector<RankQuality>& quality, const Communication& c) {
  RankQuality all;
  for (const RankQuality& q : quality) {
    for (std::size_t k = 0; k < kEdgeKinds; ++k) {
      all.edges[k] += q.edges[k];
      all.dropped[k] += q.dropped[k];
    }
    all.stalls += q.stalls;
    all.stall_ns += q.stall_ns;
    all.idle_ns += q.idle_ns;
    all.unexplained_idle_ns += q.unexplained_idle_ns;
    all.event_edges_by_sync += q.event_edges_by_sync;
    all.event_edges_inferred += q.event_edges_inferred;
  }

  Section s{.key = "quality", .title = "How much the graph explains (all steps)", .single = true, .table = {}};
  std::vector<Cell> row;
  const auto add = [&](Column column, Cell cell) {
    s.table.columns.push_back(std::move(column));
    row.push_back(std::move(cell));
  };
  const auto count = [](std::uint64_t n) { return Cell{static_cast<std::int64_t>(n)}; };
  add({.key = "explained_idle_pct", .digits = 2},
      percent(static_cast<double>(all.idle_ns - all.unexplained_idle_ns), static_cast<double>(all.idle_ns)));
  add({.key = "matched_collectives_pct", .digits = 2},
      percent(static_cast<double>(c.matched), static_cast<double>(c.expected)));
  add({.key = "measured_idle_ms"}, to_ms(all.idle_ns));
  add({.key = "measured_unexplained_idle_ms"}, to_ms(all.unexplained_idle_ns));
  add({.key = "stalls"}, count(all.stalls));
  add({.key = "stall_ms"}, to_ms(all.stall_ns));
  // Every kind is in the JSON, also those without an edge; people see what there is.
  const auto add_kinds = [&](const char* group, const std::array<std::uint64_t, kEdgeKinds>& counts) {
    for (std::size_t k = 0; k < kEdgeKinds; ++k)
      add({.key = fmt::format("{}.{}", group, name_of(static_cast<EdgeKind>(k))), .json_only = counts[k] == 0},
          count(counts[k]));
  };
  add_kinds("edges", all.edges);
  add_kinds("dropped_edges", all.dropped);
  add({.key = "event_edges_by_sync", .title = "event edges from sync events"}, count(all.event_edges_by_sync));
  add({.key = "event_edges_inferred"}, count(all.event_edges_inferred));
  s.table.rows.push_back(std::move(row));
  return s;
}

void note_unexplained_idle(const ExecGraph& g, const std::vector<RankQuality>& quality, Notes& notes) {
  constexpr double kLow = 90;
  constexpr Ns kLittle = 100'000;
  constexpr Ns kLittleShare = 100;  // one part in so many of the steps
  std::vector<Ns> steps(g.ranks.size(), 0);
  for (const Step& s : g.steps)
    if (s.rank < steps.size()) steps[s.rank] += s.end - s.begin;
  for (std::size_t k = 0; k < quality.size() && k < g.ranks.size(); ++k) {
    const RankQuality& q = quality[k];
    if (q.idle_ns < std::max(kLittle, steps[k] / kLittleShare)) continue;
    const double explained =
        100.0 * static_cast<double>(q.idle_ns - q.unexplained_idle_ns) / static_cast<double>(q.idle_ns);
    if (explained >= kLow) continue;
    notes.add("low-explained-idle", Severity::warning, 1,
              fmt::format("rank {}: {:.2f} % of {:.3f} ms", g.ranks[k].rank, explained, to_ms(q.idle_ns)),
              "ranks of whose device idle time the graph explains under 90 %: do not trust what the replay says of a "
              "changed run there (docs/model.md, stalls and unexplained idle)");
  }
}

}  // namespace orrery
