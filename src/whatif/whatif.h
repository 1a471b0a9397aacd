// Changes to the graph of a job, one file each. They edit durations and lags, never the loop that replays them; the
// caller replays before and after. A factor of 0.5 halves a duration; a factor of a bandwidth multiplies the bandwidth.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/trace.h"
#include "graph/build.h"

namespace orrery {

struct Changed {
  std::uint64_t nodes = 0, edges = 0;
};

// Error: times that no run takes. Durations and lags add up to more than a hundred years, which a replay cannot count.
// To be asked after edits: factors may be any. (host.cc)
Status check_times(const ExecGraph& g);

// All time of CPU threads, launch calls included. Waits are edges and follow by themselves. (host.cc)
Changed scale_host(ExecGraph& g, double factor, std::uint32_t only_rank = kNone);

// Calls that launch GPU tasks alone. (host.cc)
Changed scale_launches(ExecGraph& g, double factor);

// Kernels whose name satisfies `chosen`; communication is not asked. (kernel.cc)
Changed scale_kernels(ExecGraph& g, const TraceSet& traces, const std::function<bool(std::string_view)>& chosen,
                      double factor);
// Every kernel, copy and memset of one rank that does not communicate.
Changed scale_compute(ExecGraph& g, std::uint32_t rank, double factor);

// ---- network.cc ----

enum class Link : std::uint8_t { intra, inter };  // all members on one host, or not
Link link_of(const Communication& c, const Meeting& m);

// Both change a transfer by the quotient of what the model of costs/collective.h, fitted on the job's own transfers,
// says before and after.
// Transfers over links of one kind with `factor` times the bandwidth.
Changed scale_bandwidth(GraphBuild& build, Link link, double factor);
// With another latency, of a whole transfer, in place of its own by the model.
Changed set_latency(GraphBuild& build, Link link, Ns latency);
// Bus bandwidth, GB/s, that the collectives of the largest messages over such links reach (median); 0 = none.
double bus_bandwidth(const Communication& c, Link link);

// ---- stragglers.cc ----

enum class StragglerKind : std::uint8_t { compute, host, network };
std::string_view name_of(StragglerKind k);
struct Straggler {
  std::uint32_t rank = 0;  // row of ExecGraph::ranks
  StragglerKind kind = StragglerKind::compute;
  double slower = 1;  // its time over that of the median of its peers, for the same work
};
// Ranks that are slower than others at the same work: at the same kernels (compute), the same operators and calls
// (host), at collectives of the same operation and size on links of the same kind (network). Work is the same where
// names and counts are; only what is clearly beyond the spread of the peers is listed. By rank, then kind.
std::vector<Straggler> find_stragglers(const TraceSet& traces, const GraphBuild& build);
// As if they were as fast as the median of their peers. A transfer over a slow link, of which both ends are listed, is
// made faster once.
Changed remove_stragglers(GraphBuild& build, const std::vector<Straggler>& stragglers);

}  // namespace orrery
