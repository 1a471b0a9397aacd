// How long a transfer takes: latency and bytes over bandwidth, for links inside a server and between servers.
//
//   transfer = latency + bytes * bus factor / bandwidth
//   inside a server: the bus bandwidth of rings over NVLink (or PCIe), as seen in the trace
//   between servers: members of the group in one server times the network bandwidth of one GPU (rings are laid so that
//   each member's own network card carries a share), never more than inside a server
// Bus factors are those of NCCL's tests. A level that the trace never used comes from the GPU's facts, less what NCCL
// reaches of nominal figures (88% of the network, 72% of NVLink: the medians of the levels that traces of 8-GPU servers
// do show), and is marked.
#pragma once
#include <cstdint>

#include "facts/gpus.h"

namespace orrery {

struct Level {
  double gb_per_s = 0;  // bus bandwidth: of a ring inside a server; of one GPU's share between servers. 0 = not known
  double p2p_gb_per_s = 0;
  double latency_ns = 0;
  bool seen = false;  // in the trace
};

struct NetworkModel {
  Level intra, inter;
};

struct Placement {                     // a group of ranks on servers
  std::int64_t members = 1;            // of the group
  std::int64_t members_in_server = 1;  // of them, in one server
  bool one_server() const { return members_in_server >= members; }
};

enum class Pattern : std::uint8_t { all_reduce, gather_or_scatter, point_to_point };

// ns. 0 for one member. Level not known: -1.
double transfer_ns(const NetworkModel& net, Pattern pattern, double bytes, const Placement& where);

// Fills the levels that were not seen from facts.
void complete(NetworkModel& net, const GpuFacts* gpu);

}  // namespace orrery
