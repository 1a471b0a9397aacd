// Ranks
//   rank  file             host    events  GPU tasks  CPU tasks  device                 clock offset ns  drift ppm
//      0  rank-0.json.gz   node0    20073       2911      12034  NVIDIA A100-SXM4-80GB                0        0.0
//
// events: all of the file, used or not. GPU tasks: kernels, copies and memsets. CPU tasks: operators and CUDA or HIP
// calls. Clock offset: the clock of the rank's host less that of the lowest rank's host, at the rank's first event,
// fitted on the ends of collectives; drift: its growth. Null where no collective ties the host to the first. Shown to
// people when there is more than one clock.
#include <array>

#include "reports/names.h"
#include "reports/reports.h"

namespace orrery {
namespace {

// The device that runs the rank's GPU tasks; the first listed where no task names one.
Cell device_of(const RankTrace& t) {
  if (t.devices.empty()) return {};
  const Device* device = &t.devices.front();
  for (std::size_t i = 0; i < t.ops.size(); ++i) {
    if (!is_gpu_task(t.ops.kind[i]) || t.ops.lane[i] == kNoLane) continue;
    for (const Device& d : t.devices)
      if (d.id == t.lanes.pid[raw(t.ops.lane[i])]) device = &d;
    break;
  }
  return device->name.empty() ? Cell{} : Cell{device->name};
}

}  // namespace

Section ranks_section(const TraceSet& traces, const ExecGraph& g, const Communication& c) {
  Section s{.key = "ranks", .title = "Ranks", .table = {}};
  s.text_rows = 32;
  s.table.columns = {{.key = "rank"},
                     {.key = "file"},
                     {.key = "host"},
                     {.key = "events"},
                     {.key = "gpu_tasks", .title = "GPU tasks"},
                     {.key = "cpu_tasks", .title = "CPU tasks"},
                     {.key = "device"},
                     {.key = "clock_offset_ns", .title = "clock offset ns", .json_only = c.clocks.size() < 2},
                     {.key = "clock_drift_ppm", .title = "drift ppm", .json_only = c.clocks.size() < 2, .digits = 2},
                     {.key = "clock_spread_us", .title = "+- us", .json_only = c.clocks.size() < 2, .digits = 1}};
  for (std::uint32_t row = 0; row < g.ranks.size(); ++row) {
    const GraphRank& rank = g.ranks[row];
    if (rank.trace >= traces.ranks.size()) continue;
    const std::uint32_t clock = row < c.clock_of_rank.size() ? c.clock_of_rank[row] : kNone;
    std::array<Cell, 3> time{std::int64_t{0}, 0.0, Cell{}};
    if (clock != kNone && clock != 0) {
      const HostClock& k = c.clocks[clock];
      time = {};
      if (k.known) time = {k.offset_at(rank.origin), k.drift_ppm, static_cast<double>(k.spread) / 1e3};
    }
    const RankTrace& t = traces.ranks[rank.trace];
    std::int64_t gpu = 0, cpu = 0;
    for (OpKind k : t.ops.kind) {
      gpu += is_gpu_task(k);
      cpu += is_cpu_task(k);
    }
    s.table.rows.push_back({rank.rank, t.file, t.host.empty() ? Cell{} : Cell{t.host},
                            static_cast<std::int64_t>(t.events), gpu, cpu, device_of(t), time[0], time[1], time[2]});
  }
  return s;
}

}  // namespace orrery
