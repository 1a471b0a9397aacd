// Servers: GPUs, what joins them, the host. One file a platform, facts/platforms/NAME.toml; GPUs under facts/gpus,
// hosts under facts/hosts.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "facts/gpus.h"

namespace orrery {

struct HostFacts {
  std::string name;
  double memory_gb_per_s = 0;  // all sockets
  double memory_gib = 0;
  double cores = 0;         // all sockets
  double launch_us = 4.5;   // of one kernel launch from the framework's C++ side, one call
  double operator_us = 12;  // what an eager operator of PyTorch adds around its launches; a server of unknown make
  std::string source = {}, sure = {};
  std::vector<std::string> aliases = {};
};

// What joins GPUs, hosts and servers.
struct LinkFacts {
  std::string name;
  double gb_per_s = 0;              // each way, of one GPU or one card
  double busbw_gb_per_s = 0;        // of a large all-reduce over it, measured, as nccl-tests counts it; 0 = not known
  double sharp_busbw_gb_per_s = 0;  // the same with switches that add
  double both_gb_per_s = 0;         // both ways at once, the sum; 0 = not known
  double latency_us = 0;            // of a small message; 0 = not known
  std::string source, sure;
  std::vector<std::string> aliases = {};
};

struct PlatformFacts {
  std::string name;
  GpuFacts gpu;
  std::int64_t gpus_per_node = 8;
  std::int64_t nvlink_domain = 8;  // GPUs that NVLink joins; more than gpus_per_node where switches join servers
  double nvlink_gb_per_s = 0;      // each way, all links of one GPU; 0 = none
  bool nvlink_in_pairs = false;    // bridges between two GPUs; others talk over PCIe
  double pcie_gb_per_s = 0;        // each way, one GPU to its host
  bool p2p = true;                 // over PCIe without NVLink; else transfers pass through host memory
  double host_path_gb_per_s = 0;   // from GPU to GPU through host memory, one pair, as measured; 0 = not known
  bool nvlink_sharp = false;
  double nic_gb_per_s = 0;  // each way, a GPU's share of the network; 0 = not known
  HostFacts host;
  std::string source, sure;
  std::string note = {};  // what was assumed; "" = nothing
  std::vector<std::string> aliases = {};
};

}  // namespace orrery
