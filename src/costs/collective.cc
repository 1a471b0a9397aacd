#include "costs/collective.h"

#include <algorithm>

namespace orrery {

double transfer_ns(const NetworkModel& net, Pattern pattern, double bytes, const Placement& where) {
  if (where.members < 2) return 0;
  const double n = static_cast<double>(where.members);
  const Level& level = where.one_server() ? net.intra : net.inter;
  double bandwidth = 0, factor = 1;
  if (pattern == Pattern::point_to_point) {
    bandwidth = level.p2p_gb_per_s;
  } else {
    bandwidth = level.gb_per_s;
    if (!where.one_server()) {
      bandwidth *= static_cast<double>(where.members_in_server);
      if (net.intra.gb_per_s > 0) bandwidth = std::min(bandwidth, net.intra.gb_per_s);
    }
    factor = (pattern == Pattern::all_reduce ? 2 : 1) * (n - 1) / n;
  }
  if (bandwidth <= 0) return -1;
  return level.latency_ns + bytes * factor / bandwidth;  // GB/s is bytes a ns
}

void complete(NetworkModel& net, const GpuFacts* gpu) {
  constexpr double kOfNetwork = 0.88, kOfNvlink = 0.72, kPointToPoint = 0.88;
  if (net.intra.gb_per_s <= 0 && gpu != nullptr) net.intra.gb_per_s = kOfNvlink * gpu->nvlink_gb_per_s;
  if (net.inter.gb_per_s <= 0 && gpu != nullptr) net.inter.gb_per_s = kOfNetwork * gpu->nic_gb_per_s;
  if (net.intra.p2p_gb_per_s <= 0) net.intra.p2p_gb_per_s = kPointToPoint * net.intra.gb_per_s;
  if (net.inter.p2p_gb_per_s <= 0) net.inter.p2p_gb_per_s = kPointToPoint * net.inter.gb_per_s;
  if (net.intra.latency_ns <= 0) net.intra.latency_ns = 8'000;
  if (net.inter.latency_ns <= 0) net.inter.latency_ns = 2.5 * net.intra.latency_ns;
}

}  // namespace orrery
