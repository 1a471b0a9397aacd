// GPU busy, share of each ms
//   rank 0  measured 86.1 %  replayed 86.1 %  measured  ▄▇██▇▂████
//                                             replayed  ▄▇██▇▂████
//
// Per rank, step after step and in each from its begin: each millisecond's share in which at least one stream executes
// (the "SM utilisation" of the Lumos paper; it says nothing about how full the SMs are). The last value of a step is
// the share of what is left of it. Over a million milliseconds there is only the percentage. The replayed row runs from
// the replayed begin to the replayed end of each step. The percentage is the share of all chosen steps together.
#include <algorithm>

#include "reports/reports.h"

namespace orrery {
namespace {

constexpr Ns kMs = 1'000'000;
constexpr Ns kLongest = 1'000'000 * kMs;  // a quarter of an hour of single milliseconds is nothing that anyone reads

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

Cell pct(const BusyShares& b) { return percent(static_cast<double>(b.busy), static_cast<double>(b.length)); }

}  // namespace

BusyShares busy_shares(const DeviceTime& device, const std::vector<Window>& steps) {
  BusyShares out;
  for (const Window& w : steps) {
    if (w.end - w.begin > kLongest - static_cast<Ns>(out.shares.size()) * kMs) {
      out.too_long = true;
    } else {
      add_shares(device.busy, w, out.shares);
    }
    out.busy += covered(device.busy, w.begin, w.end);
    out.length += w.end - w.begin;
  }
  if (out.too_long) out.shares = {};
  return out;
}

RankBusy gpu_busy(const ExecGraph& g, const Replay& r, const DeviceRuns& device, const StepRows& rows) {
  std::vector<Window> measured, replayed;
  for (std::uint32_t row : rows) {
    const Step& s = g.steps[row];
    if (s.rank != device.rank) continue;
    measured.push_back({s.begin, s.end});
    replayed.push_back(replayed_window(r, s));
  }
  return {device.rank, busy_shares(device.measured, measured), busy_shares(device.replayed, replayed)};
}

Section gpu_busy_section(const ExecGraph& g, std::vector<RankBusy> busy) {
  Section s{.key = "gpu_busy", .title = "GPU busy, share of each ms", .table = {}};
  s.text_rows = 16;
  s.table.columns = {{.key = "rank"},
                     {.key = "measured_pct", .title = "measured %", .digits = 1},
                     {.key = "replayed_pct", .title = "replayed %", .digits = 1},
                     {.key = "measured"},
                     {.key = "replayed"}};
  for (RankBusy& b : busy) {
    if (b.measured.length == 0) continue;  // none of the chosen steps
    s.table.rows.push_back({g.ranks[b.rank].rank, pct(b.measured), pct(b.replayed), std::move(b.measured.shares),
                            std::move(b.replayed.shares)});
  }
  return s;
}

}  // namespace orrery
