// How long a transfer takes, by its size and by where the members of its group are.
//
//   transfer = latency + bytes' share of it, the quicker of two protocols: one for small messages, one for large
//   latency of a collective = a constant + hops inside servers + hops between servers. A ring of n members in s servers
//     has n - s hops inside and s - 1 between, twice for an all-reduce; an all-reduce over servers is a tree when that
//     is quicker: twice the members in a server less one, and twice the logarithm of s
//   inside a server: message * (bus factor + fixed cost) / bandwidth. Bus factors are those of NCCL's tests; the fixed
//     cost is what every byte pays however few members there are (a copy), so small groups reach less bus bandwidth
//   between servers: rings are laid so that each member's own network card carries a share: message * bus factor over
//     the cards of the members in a server (a little less than as many times one: the slowest ring sets the pace),
//     never quicker than inside a server
//   large all-reduces of 5 or more GPUs on one switch that can add (NVLink SHARP): message over the switch's bandwidth
//   sends: latency + message / bandwidth of one link of that kind
//
// The form is that of NCCL's tuning model (src/graph/tuning.cc: latencies of protocols and hops, bandwidth of the small
// protocol) plus the fixed cost, which the tables of all-reduces on 2 to 8 A100 (vTrain, trace/a100) show: bus
// bandwidth 195, 212, 220, 223, 226, 228, 228 GB/s is within 1% of 294 * f / (f + 0.51); on H200 and B200 it is nearer
// 0.1.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "facts/gpus.h"

namespace orrery {

struct Level {                // links of one kind
  double gb_per_s = 0;        // inside a server of a ring of many members; between servers of one card. 0 = not known
  double p2p_share = 0.8;     // of it, what a send and its receive reach
  double p2p_ns = 10'000;     // latency of a send
  double small_hop_ns = 600;  // from one member to the next, small messages
  double large_hop_ns = 3'400;
  bool seen = false;  // in the trace, with messages of a MiB or more
};

inline constexpr std::size_t kNetworkParameters = 16;

// Defaults: NCCL's tuning model (rings and trees of its LL and Simple protocols), what traces do not tell.
struct NetworkModel {
  Level intra, inter{.p2p_share = 0.95, .p2p_ns = 18'000, .small_hop_ns = 5'000, .large_hop_ns = 14'000};
  double small_ns = 6'700, large_ns = 8'400;  // latency of any collective, before hops
  double small_share = 0.25;                  // bandwidth of the small protocol over that of the large
  double fixed_cost = 0.3;                    // inside a server, of an all-reduce (half of the others); in bus factors
  double rail_loss = 0.02;                    // several cards of a server reach (cards)^(1 - loss) times one
  double switch_share = 0;                    // message a ns of an adding switch over intra.gb_per_s; 0 = there is none
  double switch_ns = 0;                       // latency of its all-reduce; 0 = large_ns and two hops
  double all_to_all_share = 0, all_to_all_ns = 0;  // inside a server; 0 = as sends
  bool cube_mesh = false;                          // eight GPUs without a switch (DGX-1): fewer GPUs have fewer rings
  double misfit = 0.03;  // how far transfers of one size lie from the law, relative: one standard deviation
  // Of the logarithms of the numbers above but misfit, in the order of network_parameters(); how well each is known.
  std::array<std::array<double, kNetworkParameters>, kNetworkParameters> covariance{};
};
std::array<double*, kNetworkParameters> network_parameters(NetworkModel& net);

struct Placement {                     // a group of ranks on servers
  std::int64_t members = 1;            // of the group
  std::int64_t members_in_server = 1;  // of them, in one server
  bool one_server() const { return members_in_server >= members; }
  std::int64_t servers() const { return (members + members_in_server - 1) / members_in_server; }
  bool operator==(const Placement&) const = default;
};

enum class Pattern : std::uint8_t { all_reduce, gather_or_scatter, point_to_point, broadcast, all_to_all };

struct TransferParts {
  double latency_ns = 0, bytes_ns = 0;
  double total() const { return latency_ns + bytes_ns; }
};
// Both 0 for one member. Level not known: bytes_ns is -1.
TransferParts transfer_parts(const NetworkModel& net, Pattern pattern, double bytes, const Placement& where);
// ns. 0 for one member. Level not known: -1.
double transfer_ns(const NetworkModel& net, Pattern pattern, double bytes, const Placement& where);

// Of the quotient of two transfer times: one standard deviation, relative. Small between like transfers, whose errors
// cancel; wide where a level comes from facts. Level not known: 1.
double transfer_error(const NetworkModel& net, Pattern pattern, const Placement& from, const Placement& to,
                      double bytes_from, double bytes_to);

// Transfers of one size, pattern and placement, as traced.
struct TransferSample {
  Pattern pattern = Pattern::all_reduce;
  Placement where;
  double bytes = 0;
  double ns = 0;      // the median
  double spread = 0;  // of one transfer, relative: one standard deviation
  double count = 1;
};

// Every number of the model from what is known beforehand (facts of the GPU, NCCL's own model; each with its error) and
// from the samples, which pull those that they tell of: a least-squares fit of logarithms. `gpu` may be nullptr.
NetworkModel fit_network(const std::vector<TransferSample>& samples, const GpuFacts* gpu);

// Fills the levels that were not seen from facts.
void complete(NetworkModel& net, const GpuFacts* gpu);

}  // namespace orrery
