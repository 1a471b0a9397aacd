#include "whatif/measured_memory.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace orrery {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr std::int32_t kCpu = 0;  // c10::DeviceType; a type that is not given is taken for a GPU

struct Totals {
  std::int64_t most = 0, least = std::numeric_limits<std::int64_t>::max(), reserved = 0;
};

}  // namespace

MeasuredMemory measured_memory(const RankTrace& trace) {
  const MemoryTable& m = trace.memory;
  std::map<std::pair<std::int32_t, std::int32_t>, Totals> devices;
  for (std::size_t i = 0; i < m.size(); ++i) {
    if (m.device_type[i] == kCpu || m.total_allocated[i] < 0) continue;
    Totals& d = devices[{m.device_type[i], m.device[i]}];
    // The total is that after the event; what it was before is a level too, of which no other event may tell.
    const std::int64_t after = m.total_allocated[i], before = std::max<std::int64_t>(0, after - m.bytes[i]);
    d.most = std::max({d.most, after, before});
    d.least = std::min({d.least, after, before});
    d.reserved = std::max(d.reserved, m.total_reserved[i]);
  }
  Totals most{0, 0, 0};
  for (const auto& [device, d] : devices)
    if (d.most > most.most) most = d;
  return {static_cast<double>(most.most) / kGiB, static_cast<double>(most.least) / kGiB,
          static_cast<double>(most.reserved) / kGiB};
}

double peak_allocated_gib(const RankTrace& trace) { return measured_memory(trace).peak_allocated; }

double activation_scale(const MeasuredMemory& measured, const MemoryParts& modelled) {
  if (measured.peak_allocated <= 0 || modelled.activations <= 0) return 1;
  const double scale = (measured.peak_allocated - measured.least_allocated) / modelled.activations;
  return scale >= 0.5 && scale <= 3 ? scale : 1;
}

MemoryParts with_activations_scaled(MemoryParts parts, double scale) {
  parts.total += parts.activations * (scale - 1);
  parts.activations *= scale;
  return parts;
}

}  // namespace orrery
