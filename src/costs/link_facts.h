// Times of collectives from facts of the links alone: the law of collective.h with numbers a generation of NVLink.
#pragma once
#include <string_view>

#include "costs/collective.h"
#include "facts/gpus.h"

namespace orrery {

// The links of `gpu` (nvlink_gb_per_s, nic_gb_per_s, nvlink_sharp: a platform may have put its own there) with what
// NCCL reaches on them. `platform`: its name where tables of that one were measured; "" = none in particular. Without
// NVLink only the network between servers is filled.
NetworkModel network_of(const GpuFacts& gpu, std::string_view platform = {});

}  // namespace orrery
