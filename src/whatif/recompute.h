// Activations that are computed again in the backward pass, or kept.
#pragma once
#include <string_view>

#include "costs/memory.h"
#include "whatif/rebuild.h"
#include "whatif/whatif.h"

namespace orrery {

// "none", "selective", "full", as ModelShape::recompute and the command line have it. Error: anything else.
Result<Recompute> recompute_of(std::string_view name);

// Rewrites the backward passes of `program`. What `from` computes again is taken out: forward work inside of autograd
// nodes, with its host work. Then what `to` computes again is put in, each layer's before its backward: full, the whole
// forward of that layer and micro-batch, tensor-parallel collectives too; selective, the core of the attention (with
// fused attention its forward kernel) right before the backward of that. It runs on autograd's thread and on the
// streams of the forward pass. `base` is the traced job's shape.
// Optimistic: states of random number generators are not saved and restored, and a graph of the layer is not built and
// walked once more by the host.
// Counts items taken out and put in, and their waits.
// Errors: nothing to take out where `from` says so; no forward pass of a layer; no attention to compute again.
Result<Changed> change_recompute(Program& program, const TraceSet& traces, const GraphBuild& build,
                                 const JobShape& base, Recompute from, Recompute to);

}  // namespace orrery
