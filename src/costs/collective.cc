#include "costs/collective.h"

#include <algorithm>
#include <cmath>

namespace orrery {
namespace {

constexpr std::size_t kN = kNetworkParameters;
using Vector = std::array<double, kN>;
using Matrix = std::array<Vector, kN>;

// How far from the law an average of many transfers of one size lies at least: of traces of simulated jobs 1 to 3%, of
// tables of NCCL's tests (Echo, vTrain) above 16 MB 2 to 5%. In groups that were not measured also a share of the
// latency (those tables, small messages).
constexpr double kMisfit = 0.03, kLatencyMisfit = 0.15;

// What facts give, of nominal: published all-reduces (NVIDIA GTC24 S62129; stas00/ml-engineering) reach 77% of NVLink's
// bandwidth on 8 A100, 82% on 8 H100, H200 and B200, less by the fixed cost; between servers 60% (Azure, Echo) to 96%.
constexpr double kOfNvlink = 0.88, kOfNetwork = 0.86;
// NVLink SHARP on H200: 414, 460, 473 GB/s of bus bandwidth with 5, 7, 8 GPUs (stas00/ml-engineering) are 259 to 270
// of message, 0.6 of nominal.
constexpr double kSwitch = 0.6 / kOfNvlink;
constexpr std::int64_t kSwitchFrom = 5;  // GPUs

// Rings that NCCL finds on the first GPUs of a DGX-1's hybrid cube mesh, of the six on all eight: cycles over its
// links, two ways each. With five GPUs there is none; what is left are ways back and forth (vTrain's tables, 2 to 8
// V100: 22.5, 45, 85, 37, 46, 87, 134 GB/s).
constexpr std::array<double, 9> kCubeRings = {0, 6, 1, 2, 4, 1.65, 2, 3.87, 6};

double rings_share(const NetworkModel& net, const Placement& where) {
  if (!net.cube_mesh || !where.one_server() || where.members >= 8) return 1;
  return kCubeRings[static_cast<std::size_t>(where.members)] / 6;
}

// Bytes from which a transfer's time is not mostly latency.
constexpr double kTellsBandwidth = 1 << 20;

TransferParts quicker(const TransferParts& a, const TransferParts& b) { return b.total() < a.total() ? b : a; }

// One standard deviation of the logarithm of each number before any trace, in the order of network_parameters().
// Latencies: those of NCCL's tests on Azure's A100 (Echo) are two to five times NCCL's own.
constexpr Vector kDoubt = {0.4,  0.8,               // small_ns, large_ns
                           0.8,  0.5,  0.6,  0.6,   // hops: small inside, between; large inside, between
                           0.10, 0.20,              // gb_per_s inside, between
                           0.2,  0.05, 0.5,  0.5,   // sends: share inside, between; latency inside, between
                           1.0,  0.5,  0.12, 1.0};  // small_share, fixed_cost, switch_share, rail_loss
static_assert(kDoubt.back() > 0);

bool invert(Matrix a, Matrix& out) {
  for (std::size_t i = 0; i < kN; ++i)
    for (std::size_t j = 0; j < kN; ++j) out[i][j] = i == j;
  for (std::size_t i = 0; i < kN; ++i) {
    std::size_t p = i;
    for (std::size_t r = i + 1; r < kN; ++r)
      if (std::abs(a[r][i]) > std::abs(a[p][i])) p = r;
    if (!(std::abs(a[p][i]) > 0)) return false;
    std::swap(a[i], a[p]);
    std::swap(out[i], out[p]);
    const double d = a[i][i];
    for (std::size_t j = 0; j < kN; ++j) a[i][j] /= d, out[i][j] /= d;
    for (std::size_t r = 0; r < kN; ++r) {
      if (r == i) continue;
      const double f = a[r][i];
      for (std::size_t j = 0; j < kN; ++j) a[r][j] -= f * a[i][j], out[r][j] -= f * out[i][j];
    }
  }
  return true;
}

// Change of the logarithm of a transfer time with that of each number.
Vector slopes(const NetworkModel& net, Pattern pattern, double bytes, const Placement& where) {
  constexpr double kStep = 0.01;
  Vector out{};
  NetworkModel moved = net;
  const auto at = network_parameters(moved);
  for (std::size_t k = 0; k < kN; ++k) {
    const double was = *at[k];
    if (was <= 0) continue;
    *at[k] = was * std::exp(kStep);
    const double up = transfer_ns(moved, pattern, bytes, where);
    *at[k] = was * std::exp(-kStep);
    const double down = transfer_ns(moved, pattern, bytes, where);
    *at[k] = was;
    if (up > 0 && down > 0) out[k] = (std::log(up) - std::log(down)) / (2 * kStep);
  }
  return out;
}

}  // namespace

std::array<double*, kNetworkParameters> network_parameters(NetworkModel& net) {
  Level &a = net.intra, &b = net.inter;
  return {&net.small_ns,    &net.large_ns,   &a.small_hop_ns,   &b.small_hop_ns, &a.large_hop_ns, &b.large_hop_ns,
          &a.gb_per_s,      &b.gb_per_s,     &a.p2p_share,      &b.p2p_share,    &a.p2p_ns,       &b.p2p_ns,
          &net.small_share, &net.fixed_cost, &net.switch_share, &net.rail_loss};
}

TransferParts transfer_parts(const NetworkModel& net, Pattern pattern, double bytes, const Placement& where) {
  if (where.members < 2) return {};
  const double n = static_cast<double>(where.members), s = static_cast<double>(where.servers());
  const double in_server = std::min(n, static_cast<double>(where.members_in_server));
  const bool one = where.one_server();
  const Level& level = one ? net.intra : net.inter;
  const TransferParts unknown{0, -1};
  if (level.gb_per_s <= 0) return unknown;
  const double p2p = level.gb_per_s * level.p2p_share;  // GB/s is bytes a ns
  if (pattern == Pattern::point_to_point) return {level.p2p_ns, bytes / p2p};
  if (pattern == Pattern::all_to_all) {  // every GPU's own link carries what it sends
    const double share = one && net.all_to_all_share > 0 ? net.all_to_all_share * level.gb_per_s : p2p;
    return {one && net.all_to_all_ns > 0 ? net.all_to_all_ns : level.p2p_ns,
            bytes * (one ? n - 1 : n - in_server) / n / share};
  }

  const bool reduce = pattern == Pattern::all_reduce;
  const double rounds = reduce ? 2 : 1;
  const double factor = pattern == Pattern::broadcast ? 1 : rounds * (n - 1) / n;
  const double inside = net.intra.gb_per_s > 0 ? bytes * (factor + net.fixed_cost * rounds / 2) /
                                                     (net.intra.gb_per_s * rings_share(net, where))
                                               : 0;
  const double time =
      one ? inside : std::max(inside, bytes * factor / (std::pow(in_server, 1 - net.rail_loss) * net.inter.gb_per_s));
  const auto latency = [&](double base, double hop_inside, double hop_between) {
    const double ring = rounds * ((n - s) * hop_inside + (s - 1) * hop_between);
    const double tree = 2 * ((in_server - 1) * hop_inside + std::log2(s) * hop_between);
    return base + (reduce && !one ? std::min(ring, tree) : ring);
  };
  const TransferParts small{latency(net.small_ns, net.intra.small_hop_ns, net.inter.small_hop_ns),
                            time / net.small_share};
  TransferParts large{latency(net.large_ns, net.intra.large_hop_ns, net.inter.large_hop_ns), time};
  if (reduce && one && where.members >= kSwitchFrom && net.switch_share > 0)
    large = quicker(large, {net.switch_ns > 0 ? net.switch_ns : net.large_ns + 2 * net.intra.large_hop_ns,
                            bytes / (net.switch_share * net.intra.gb_per_s)});
  return quicker(small, large);
}

double transfer_ns(const NetworkModel& net, Pattern pattern, double bytes, const Placement& where) {
  const TransferParts t = transfer_parts(net, pattern, bytes, where);
  return t.bytes_ns < 0 ? -1 : t.total();
}

double transfer_error(const NetworkModel& net, Pattern pattern, const Placement& from, const Placement& to,
                      double bytes_from, double bytes_to) {
  if (to.members < 2) return 0;
  const double before = transfer_ns(net, pattern, bytes_from, from), after = transfer_ns(net, pattern, bytes_to, to);
  if (before < 0 || after < 0) return 1;
  const Vector a = slopes(net, pattern, bytes_from, from), b = slopes(net, pattern, bytes_to, to);
  double variance = 0;
  for (std::size_t i = 0; i < kN; ++i)
    for (std::size_t j = 0; j < kN; ++j) variance += (b[i] - a[i]) * net.covariance[i][j] * (b[j] - a[j]);
  // the law's own error: in whole for another placement, by the distance of sizes for the same
  const double larger = std::max({bytes_from, bytes_to, 1.0}), smaller = std::max(std::min(bytes_from, bytes_to), 1.0);
  const double unlike = from == to ? std::min(1.0, std::log2(larger / smaller) / 4) : 1;
  const double latency = transfer_parts(net, pattern, bytes_to, to).latency_ns / after;
  const double law = std::hypot(net.misfit, from == to ? 0 : kLatencyMisfit * latency) * unlike;
  return std::sqrt(std::max(variance, 0.0) + law * law);
}

void complete(NetworkModel& net, const GpuFacts* gpu) {
  if (gpu == nullptr) return;
  if (net.intra.gb_per_s <= 0) net.intra.gb_per_s = kOfNvlink * gpu->nvlink_gb_per_s;
  if (net.inter.gb_per_s <= 0) net.inter.gb_per_s = kOfNetwork * gpu->nic_gb_per_s;
  if (gpu->nvlink_sharp && net.switch_share <= 0) net.switch_share = kSwitch;
}

NetworkModel fit_network(const std::vector<TransferSample>& samples, const GpuFacts* gpu) {
  NetworkModel net;
  complete(net, gpu);
  const auto at = network_parameters(net);
  Vector doubt = kDoubt;
  constexpr std::size_t kIntra = 6, kInter = 7;
  for (const bool one : {true, false}) {
    Level& level = one ? net.intra : net.inter;
    const TransferSample* largest = nullptr;
    for (const TransferSample& s : samples) {
      if (s.where.one_server() != one || s.where.members < 2 || s.ns <= 0) continue;
      level.seen |= s.bytes >= kTellsBandwidth;
      if (largest == nullptr || s.bytes > largest->bytes) largest = &s;
    }
    if (largest == nullptr || largest->bytes < kTellsBandwidth) continue;
    // Facts know the usual server; cards behind PCIe, other links or other GPUs are told by the largest transfer.
    const double known = level.gb_per_s;
    level.gb_per_s = 1;
    NetworkModel alone = net;
    if (!one) alone.intra.gb_per_s = 0;
    const double unit = transfer_parts(alone, largest->pattern, largest->bytes, largest->where).bytes_ns;
    const double told = unit / std::max(0.1 * largest->ns, largest->ns - net.large_ns);
    const bool far = known <= 0 || std::abs(std::log(told / known)) > 0.3;
    level.gb_per_s = far ? told : known;
    if (far) doubt[one ? kIntra : kInter] = 1;
  }

  Vector prior{};
  std::array<bool, kN> used{};
  for (std::size_t k = 0; k < kN; ++k) {
    used[k] = *at[k] > 0;
    prior[k] = used[k] ? std::log(*at[k]) : 0;
  }
  Vector theta = prior;
  const auto put = [&](const Vector& v) {
    for (std::size_t k = 0; k < kN; ++k)
      if (used[k]) *at[k] = std::exp(v[k]);
  };
  // Sizes of one pattern and placement share their distance from the law, so they count less than as many groups.
  std::vector<double> alike(samples.size(), 0);
  for (std::size_t k = 0; k < samples.size(); ++k)
    for (const TransferSample& other : samples)
      alike[k] += other.pattern == samples[k].pattern && other.where == samples[k].where;
  // Gauss-Newton; what is far from the law (a slow link, a size of its own) weighs less.
  Matrix normal{};
  for (int round = 0; round < 60; ++round) {
    normal = {};
    Vector right{};
    for (std::size_t k = 0; k < kN; ++k) {
      normal[k][k] = 1 / (doubt[k] * doubt[k]);
      right[k] = (prior[k] - theta[k]) / (doubt[k] * doubt[k]);
    }
    std::vector<double> distance;
    for (std::size_t k = 0; k < samples.size(); ++k) {
      const TransferSample& s = samples[k];
      const double t = transfer_ns(net, s.pattern, s.bytes, s.where);
      if (t <= 0 || s.ns <= 0) continue;
      const double sd = std::hypot(net.misfit, s.spread / std::sqrt(std::max(1.0, s.count)));
      const double off = std::log(s.ns / t);
      distance.push_back(std::abs(off));
      const double weight = std::min(1.0, 2 * sd / std::max(std::abs(off), 1e-12)) / (sd * sd * std::sqrt(alike[k]));
      const Vector slope = slopes(net, s.pattern, s.bytes, s.where);
      for (std::size_t i = 0; i < kN; ++i) {
        right[i] += weight * slope[i] * off;
        for (std::size_t j = 0; j < kN; ++j) normal[i][j] += weight * slope[i] * slope[j];
      }
    }
    if (!invert(normal, net.covariance)) break;
    double largest = 0;
    for (std::size_t i = 0; i < kN; ++i) {
      double step = 0;
      for (std::size_t j = 0; j < kN; ++j) step += net.covariance[i][j] * right[j];
      step = std::clamp(step, -0.5, 0.5);
      if (used[i]) theta[i] += step;
      largest = std::max(largest, std::abs(step));
    }
    put(theta);
    if (largest > 1e-3) continue;
    // Transfers that are further from the law than it should be tell less.
    if (distance.empty()) break;
    const auto mid = distance.begin() + static_cast<std::ptrdiff_t>(distance.size() / 2);
    std::nth_element(distance.begin(), mid, distance.end());
    const double misfit = std::max(kMisfit, 1.48 * *mid);
    if (std::abs(misfit - net.misfit) < 0.002) break;
    net.misfit = misfit;
  }
  return net;
}

}  // namespace orrery
