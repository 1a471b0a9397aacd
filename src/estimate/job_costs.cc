#include <algorithm>
#include <array>

#include "costs/link_facts.h"
#include "estimate/operations.h"

namespace orrery {
namespace {

// Of a link's rate what NCCL's rings reach. PCIe: 24 of 31 GB/s with peer access (stas00/ml-engineering, network);
// through host memory a pair of RTX 4090 gets 12 GB/s (NVIDIA/nccl-tests issue 117), a ring over all pairs of a server
// about half, for every byte crosses host memory twice.
constexpr double kPcieRing = 0.77, kHostRing = 0.5, kHostPath = 12;

// Ranks of a server do not issue equally fast (cores, memory, what else runs there), and those that are slow stay so.
// In seven public sets of traces of several ranks the mean time from launch to launch differs from rank to rank by a
// standard deviation of 0.02 to 0.05 of it in six (dlrm, three torchrec, megatron, a decode) and of 0.17 in one
// (nanogpt): 0.1 over all, weighted by their ranks less one. Ranks that meet go at the pace of the slowest: of n
// normally distributed ones 0.56, 0.85, 1.03 ... standard deviations above the mean (Tippett 1925).
double slowest_host(std::int64_t ranks) {
  constexpr double kSpread = 0.1;
  constexpr std::array<double, 8> kHighest = {0, 0.564, 0.846, 1.029, 1.163, 1.267, 1.352, 1.424};
  const auto n = static_cast<std::size_t>(std::clamp<std::int64_t>(ranks, 1, kHighest.size()));
  return 1 + kSpread * kHighest[n - 1];
}

constexpr double kTakenOfCpu = 0.95;
// A loop that steps an optimizer and reads tokens that lie in memory.
constexpr double kCpuStepNs = 200'000;

// How many times as long as in fp32 PyTorch 2.15 takes on an EPYC with AVX2 alone, one thread: geometric means over
// seven products of 256 to 1,024 rows and widths of 384 to 4,096. Single ones are 0.7 to 1.5 times that.
constexpr std::array<double, kGemmLayouts> kEmulatedBf16 = {7.5, 44, 3.8}, kEmulatedFp16 = {7.3, 45, 17};
constexpr double kEmulationDoubt = 0.7;

}  // namespace

NetworkModel network_of(const PlatformFacts& p, std::int64_t gpus_per_node) {
  NetworkModel net;
  GpuFacts gpu = p.gpu;
  gpu.nvlink_gb_per_s = p.nvlink_gb_per_s;
  gpu.nic_gb_per_s = p.nic_gb_per_s;
  gpu.nvlink_sharp = p.nvlink_sharp;
  const bool linked = p.nvlink_gb_per_s > 0 && (!p.nvlink_in_pairs || gpus_per_node <= 2);
  if (!linked) {
    const double host = p.host_path_gb_per_s > 0 ? p.host_path_gb_per_s : kHostPath;
    // Of a ring over pairs that NVLink joins every second hop is NVLink's: half as many bytes cross the host's memory.
    const double share = p.nvlink_gb_per_s > 0 && p.nvlink_in_pairs ? 2 * kHostRing : kHostRing;
    net.intra.gb_per_s = p.p2p ? kPcieRing * p.pcie_gb_per_s : std::min(share * host, kPcieRing * p.pcie_gb_per_s);
    net.intra.p2p_share = 1;
    net.intra.p2p_ns = p.p2p ? 15'000 : 30'000;
    net.intra.large_hop_ns = p.p2p ? 5'000 : 12'000;
    gpu.nvlink_sharp = false;
    gpu.nvlink_gb_per_s = 0;
  }
  if (linked) return network_of(gpu, p.name);
  net.inter = network_of(gpu, p.name).inter;
  return net;
}

JobCosts costs_of(const EstimateJob& job) {
  JobCosts c{OperatorCosts(job.platform.gpu), network_of(job.platform, job.platform.gpus_per_node),
             1'000 * job.platform.host.launch_us, 1'000 * job.platform.host.operator_us};
  // Laws of products are fitted on runs of milliseconds. An A100 that multiplies for long comes to its power limit and
  // falls from 295 to 257 TFLOP/s (thonking.ai, zeros against random numbers, 8192^3); its tables of products are at
  // 261, so they show it. Those of Hopper are not down there: the same ratio is assumed. Of others nothing is known.
  if (c.operators.architecture() == Architecture::hopper) c.sustained = 0.87;
  // On NVLink NCCL launches 24 blocks beside 132 multiprocessors (an all-gather on H100, NVIDIA's developer forum,
  // 337991); on an A100 0.15 of them work for it (Calculon, systems/a100_80g.json), for transfers between servers 0.02.
  // Over PCIe, as slow as those, the same is assumed.
  c.taken_between = 0.02;
  const bool nvlink = job.platform.nvlink_gb_per_s > 0 && !job.platform.nvlink_in_pairs;
  const Architecture a = c.operators.architecture();
  c.taken_within = !nvlink ? 0.02 : a == Architecture::hopper || a == Architecture::blackwell ? 24.0 / 132 : 0.15;
  if (a == Architecture::cpu) {
    // Gloo's threads take the cores of those that compute (all of them, as good as: 1 would stand still).
    c.taken_within = c.taken_between = kTakenOfCpu;
    c.serial = true;
    c.launch_ns = 0;
    c.step_ns = kCpuStepNs, c.pass_ns = 0;
    c.emulated = is_emulated(job);
    if (c.emulated) c.factors.emulated = job.precision == Precision::fp16 ? kEmulatedFp16 : kEmulatedBf16;
    c.emulation_doubt = c.emulated ? kEmulationDoubt : 0;
    return c;
  }
  const double host = slowest_host(std::min(job.world(), job.platform.gpus_per_node));
  c.launch_ns *= host;
  c.operator_ns *= host;
  return c;
}

}  // namespace orrery
