// A job that ran on the host alone: its operators taken for the kernels of a device, so that what is told of kernels
// (modules, classes, layers) is told of them as well.
#pragma once
#include "data/trace.h"

namespace orrery {

// Of a trace without any GPU task: every operator that computes (its innermost ones; views and allocations are none)
// becomes a launch at its begin and a kernel of its duration on a stream of its own, with a note. Other traces are left
// as they are. Returns how many.
std::size_t host_as_device(RankTrace& trace);

}  // namespace orrery
