// GPU busy, share of each ms
//   rank 0  measured 86.1 %  replayed 86.1 %  measured  ▄▇██▇▂████
//                                             replayed  ▄▇██▇▂████
//
// Per rank, from the begin of its first chosen step to the end of its last one, each millisecond's share in which at
// least one stream executes (the "SM utilisation" of the Lumos paper; it says nothing about how full the SMs are). The
// last millisecond is taken whole, also where the step ends within it. The replayed row starts at the replayed begin of
// the step, so the n-th value of both rows is the same part of the step. The percentage is the mean over the whole
// stretch.
#include <algorithm>

#include "reports/reports.h"

namespace orrery {
namespace {

constexpr Ns kMs = 1'000'000;

std::vector<double> shares(const Intervals& busy, Window w) {
  const auto bins = static_cast<std::size_t>((w.end - w.begin + kMs - 1) / kMs);
  std::vector<Ns> filled(bins, 0);
  const Ns end = w.begin + static_cast<Ns>(bins) * kMs;
  auto i = std::partition_point(busy.begin(), busy.end(), [&](const Interval& x) { return x.end <= w.begin; });
  for (; i != busy.end() && i->begin < end; ++i) {
    const Ns stop = std::min(i->end, end);
    for (Ns t = std::max(i->begin, w.begin); t < stop;) {
      const auto bin = static_cast<std::size_t>((t - w.begin) / kMs);
      const Ns next = std::min(stop, w.begin + static_cast<Ns>(bin + 1) * kMs);
      filled[bin] += next - t;
      t = next;
    }
  }
  std::vector<double> out(bins);
  std::transform(filled.begin(), filled.end(), out.begin(), [](Ns x) { return static_cast<double>(x) / kMs; });
  return out;
}

Cell busy_percent(const Intervals& busy, Window w) {
  return percent(static_cast<double>(covered(busy, w.begin, w.end)), static_cast<double>(w.end - w.begin));
}

}  // namespace

Section gpu_busy_section(const ExecGraph& g, const Replay& r, const std::vector<DeviceTime>& measured,
                         const std::vector<DeviceTime>& replayed, const StepRows& rows) {
  Section s{.key = "gpu_busy", .title = "GPU busy, share of each ms", .table = {}};
  s.text_rows = 16;
  s.table.columns = {{.key = "rank"},
                     {.key = "measured_pct", .title = "measured %", .digits = 1},
                     {.key = "replayed_pct", .title = "replayed %", .digits = 1},
                     {.key = "measured"},
                     {.key = "replayed"}};
  std::vector<std::uint32_t> ranks(g.ranks.size());
  for (std::uint32_t k = 0; k < ranks.size(); ++k) ranks[k] = k;
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return g.ranks[a].rank < g.ranks[b].rank; });
  for (std::uint32_t k : ranks) {
    const Step *first = nullptr, *last = nullptr;
    for (std::uint32_t row : rows) {
      const Step& step = g.steps[row];
      if (step.rank != k) continue;
      if (!first || step.begin < first->begin) first = &step;
      if (!last || step.end > last->end) last = &step;
    }
    if (!first) continue;
    const Window seen{first->begin, last->end};
    const Window again{replayed_window(r, *first).begin, replayed_window(r, *last).end};
    s.table.rows.push_back({g.ranks[k].rank, busy_percent(measured[k].busy, seen),
                            busy_percent(replayed[k].busy, again), shares(measured[k].busy, seen),
                            shares(replayed[k].busy, again)});
  }
  return s;
}

}  // namespace orrery
