// What the allocator of a rank said of its memory, where the profiler recorded it (profile_memory=True), to set the
// activations of the memory model (costs/memory.h) right.
#pragma once
#include "costs/memory.h"
#include "data/trace.h"

namespace orrery {

// Of the GPU that holds most, over the window of the trace; GiB. 0 = the trace does not tell: no memory events, or
// those of an early format without totals. To be asked before RankTrace::keep_names().
struct MeasuredMemory {
  double peak_allocated = 0;
  double least_allocated = 0;  // what is never freed: weights, gradients that stay, optimizer
  double peak_reserved = 0;    // with what the allocator keeps for later; 0 = not told
};
MeasuredMemory measured_memory(const RankTrace& trace);
double peak_allocated_gib(const RankTrace& trace);

// Measured over modelled activations of one rank: what came and went over what should have. The model of the job under
// another configuration is to be multiplied by it. 1 where that is no measure: nothing was recorded, or less than half
// or more than three times what is modelled (a part of a step; gradients that come and go as well).
double activation_scale(const MeasuredMemory& measured, const MemoryParts& modelled);
// The same parts with the activations scaled, and the total that follows.
MemoryParts with_activations_scaled(MemoryParts parts, double scale);

}  // namespace orrery
