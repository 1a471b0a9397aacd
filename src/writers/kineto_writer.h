// A rank's rows as the JSON that PyTorch's profiler (Kineto) would write: the inverse of importing, for made-up traces.
#pragma once
#include <string>

#include "data/trace.h"

namespace orrery {

// Shaped like the output of PyTorch 2.3 and later: host events before device events, flows beside their events, times
// in microseconds relative to base_ns, "baseTimeNanoseconds" after the events. Memory instants and "other" rows are
// left out.
std::string to_kineto_json(const RankTrace& trace);

}  // namespace orrery
