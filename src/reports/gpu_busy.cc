// GPU busy, share of each ms
//   rank 0  measured 86.1 %  replayed 86.1 %  measured  ▄▇██▇▂████
//                                             replayed  ▄▇██▇▂████
//
// Per rank, step after step and in each from its begin: each millisecond's share in which at least one stream executes
// (the "SM utilisation" of the Lumos paper; it says nothing about how full the SMs are). The last value of a step is
// the share of what is left of it. The replayed row runs from the replayed begin to the replayed end of each step. The
// percentage is the share of all chosen steps together.
#include <algorithm>

#include "reports/reports.h"

namespace orrery {
namespace {

constexpr Ns kMs = 1'000'000;

void add_shares(const Intervals& busy, Window w, std::vector<double>& out) {
  const std::size_t base = out.size();
  const auto bins = static_cast<std::size_t>((w.end - w.begin + kMs - 1) / kMs);
  std::vector<Ns> filled(bins, 0);
  auto i = std::partition_point(busy.begin(), busy.end(), [&](const Interval& x) { return x.end <= w.begin; });
  for (; i != busy.end() && i->begin < w.end; ++i) {
    const Ns stop = std::min(i->end, w.end);
    for (Ns t = std::max(i->begin, w.begin); t < stop;) {
      const auto bin = static_cast<std::size_t>((t - w.begin) / kMs);
      const Ns next = std::min(stop, w.begin + static_cast<Ns>(bin + 1) * kMs);
      filled[bin] += next - t;
      t = next;
    }
  }
  out.resize(base + bins);
  for (std::size_t k = 0; k < bins; ++k) {
    const Ns length = std::min(kMs, w.end - w.begin - static_cast<Ns>(k) * kMs);
    out[base + k] = static_cast<double>(filled[k]) / static_cast<double>(length);
  }
}

// One run of one rank, over its chosen steps.
struct Busy {
  std::vector<double> shares;
  Ns busy = 0, length = 0;
  void add(const Intervals& set, Window w) {
    add_shares(set, w, shares);
    busy += covered(set, w.begin, w.end);
    length += w.end - w.begin;
  }
  Cell pct() const { return percent(static_cast<double>(busy), static_cast<double>(length)); }
};

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
    Busy seen, again;
    for (std::uint32_t row : rows) {
      const Step& step = g.steps[row];
      if (step.rank != k) continue;
      seen.add(measured[k].busy, {step.begin, step.end});
      again.add(replayed[k].busy, replayed_window(r, step));
    }
    if (seen.length == 0) continue;
    s.table.rows.push_back({g.ranks[k].rank, seen.pct(), again.pct(), std::move(seen.shares), std::move(again.shares)});
  }
  return s;
}

}  // namespace orrery
