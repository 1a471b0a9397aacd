// All-reduces of the small messages of a decoding step, where latency is all: NCCL's low-latency protocol and the
// kernels that engines bring themselves. Large messages are costs/collective.h's.
#pragma once
#include "costs/collective.h"
#include "facts/platforms.h"

namespace orrery {

// ns; `custom`: the engine has kernels of its own, used where NVLink joins all members in one server. The quickest of
// what there is. Below 0: the level of the network is not known.
double all_reduce_ns(const PlatformFacts& platform, const NetworkModel& network, double bytes, const Placement& where,
                     bool custom);

}  // namespace orrery
