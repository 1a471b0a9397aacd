#include "costs/link_facts.h"

#include <array>

#include "costs/operator_fits.h"

namespace orrery {
namespace {

struct LinkRow {
  std::string_view name;  // of the links, or of a platform
  double small_ns, large_ns, small_share, fixed_cost;
  double intra;  // of nominal
  double small_hop_ns, large_hop_ns;
  double inter, between_small_hop_ns, between_large_hop_ns, rail_loss;
  double all_to_all_share, all_to_all_ns;
  std::string_view source;  // what was not held out of it
};

// Tables: github.com/VIA-Research/vTrain@f8dda8473a48 (trace), github.com/NetX-lab/Echo@15f0d12c4174 (nccl-test-log),
// github.com/ai-dynamo/aiconfigurator@095f58a51c4c (NCCL), github.com/stas00/ml-engineering@744d01e18b79 (network).
// Between servers only Echo's were measured by size; others take its latencies.
constexpr std::array<LinkRow, 5> kLinks = {{
    {"nvlink2", 1.571e+04, 1.366e+04, 0.6338, 0.001019, 0.9038, 3061, 4712, 0.635, 1.686e+04, 1.279e+04, 0.01275, 0.56,
     1.65e+04, "vTrain, 2 to 8 V100 of a DGX-1"},
    {"nvlink3", 9511, 4.456e+04, 0.3074, 0.5445, 0.991, 1409, 2341, 0.6231, 1.537e+04, 1.706e+04, 0.001028, 0.562,
     1.65e+04, "vTrain and AIConfigurator, 2 to 8 A100; Echo, 2 to 128 A100"},
    {"nvlink4", 5459, 2.796e+04, 0.445, 0.4887, 1.05, 843.2, 50, 0.6231, 1.537e+04, 1.706e+04, 0.001028, 0.605,
     1.28e+04, "AIConfigurator, 2 to 8 H100 and H200; bus bandwidths of stas00/ml-engineering"},
    {"nvlink5", 8937, 2.087e+04, 0.4018, 0.3084, 0.896, 1243, 6352, 0.6231, 1.537e+04, 1.706e+04, 0.001028, 0.591,
     1.65e+04, "AIConfigurator, 2 to 8 B200, 2 and 4 GB200; bus bandwidths of stas00/ml-engineering"},
    {"nd-a100-v4", 9989, 5.245e+04, 0.073, 0.4645, 0.9537, 1129, 821.4, 0.635, 1.686e+04, 1.279e+04, 0.01275, 0.562,
     1.65e+04, "Echo, 2 to 128 A100 of Azure ND A100 v4; vTrain"},
}};

// Of a network card's rate: NVIDIA's DGX A100 and DGX H100 reach 192 of 200 and 380 of 400 GB/s a server (GTC24
// S62129), Azure's ND A100 v4 128 of 200 (Echo).
constexpr double kOfNetwork = 0.86, kOfDgxNetwork = 0.95;

// NVLink SHARP adds in the switch: 0.6 of nominal on H200, 0.53 on B200 (stas00/ml-engineering, 8 GiB), from messages
// of some 100 MB on; its latency there, PyTorch's call included.
constexpr double kSwitchHopper = 0.6, kSwitchBlackwell = 0.53, kSwitchNs = 85'000;

const LinkRow& links_of(const GpuFacts& gpu, std::string_view platform) {
  std::string_view name;
  switch (architecture_of(gpu)) {
    case Architecture::volta:
    case Architecture::turing:
      name = "nvlink2";
      break;
    case Architecture::ampere:
    case Architecture::ampere_ga102:
      name = "nvlink3";
      break;
    case Architecture::blackwell:
      name = "nvlink5";
      break;
    default:
      name = "nvlink4";
  }
  const LinkRow* found = nullptr;
  for (const LinkRow& r : kLinks)
    if (r.name == platform || (found == nullptr && r.name == name)) found = &r;
  return *found;
}

}  // namespace

NetworkModel network_of(const GpuFacts& gpu, std::string_view platform) {
  const LinkRow& row = links_of(gpu, platform);
  const Architecture a = architecture_of(gpu);
  NetworkModel net;
  net.inter.small_hop_ns = row.between_small_hop_ns;
  net.inter.large_hop_ns = row.between_large_hop_ns;
  net.rail_loss = row.rail_loss;
  const bool dgx = platform.starts_with("dgx");
  net.inter.gb_per_s = gpu.nic_gb_per_s * (row.name == platform ? row.inter : dgx ? kOfDgxNetwork : kOfNetwork);
  if (gpu.nvlink_gb_per_s <= 0) return net;
  net.small_ns = row.small_ns;
  net.large_ns = row.large_ns;
  net.small_share = row.small_share;
  net.fixed_cost = row.fixed_cost;
  net.intra.gb_per_s = row.intra * gpu.nvlink_gb_per_s;
  net.intra.small_hop_ns = row.small_hop_ns;
  net.intra.large_hop_ns = row.large_hop_ns;
  net.all_to_all_share = row.all_to_all_share;
  net.all_to_all_ns = row.all_to_all_ns;
  net.cube_mesh = a == Architecture::volta;
  if (gpu.nvlink_sharp) {
    net.switch_share = (a == Architecture::blackwell ? kSwitchBlackwell : kSwitchHopper) / row.intra;
    net.switch_ns = kSwitchNs;
  }
  return net;
}

}  // namespace orrery
