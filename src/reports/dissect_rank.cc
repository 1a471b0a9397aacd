#include <algorithm>

#include "reports/dissect.h"

namespace orrery {
namespace {

// The device that runs the rank's GPU tasks; the first listed where no task names one.
const GpuFacts* gpu_of(const RankTrace& t) {
  if (t.devices.empty()) return nullptr;
  const Device* device = &t.devices.front();
  for (std::size_t i = 0; i < t.ops.size(); ++i) {
    if (!is_gpu_task(t.ops.kind[i]) || t.ops.lane[i] == kNoLane) continue;
    for (const Device& d : t.devices)
      if (d.id == t.lanes.pid[raw(t.ops.lane[i])]) device = &d;
    break;
  }
  return find_gpu(device->name);
}

}  // namespace

Dissection dissect_rank(const RankTrace& trace, std::vector<Interval> steps, const std::vector<Interval>& all_steps,
                        std::span<const CommLabel> labels) {
  Dissection d;
  d.trace = &trace;
  d.gpu = gpu_of(trace);
  d.steps = std::move(steps);
  for (const Interval& s : d.steps) d.length += s.end - s.begin;
  d.operators = read_operators(trace);
  find_contexts(d);
  find_phases(d);
  find_modules(d, labels);
  find_layers(d);
  find_costs(d);
  share_time(d, all_steps);
  find_host_time(d);
  return d;
}

}  // namespace orrery
