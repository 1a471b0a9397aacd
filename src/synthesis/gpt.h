// What one rank of a GPT training job does, step by step, in the manner of Megatron-LM: non-interleaved 1F1B over
// pipeline stages, tensor-parallel all-reduces, gradient all-reduce overlapped with the last backward pass, fused Adam.
#pragma once
#include <string>
#include <vector>

#include "synthesis/communicator.h"

namespace orrery::synth {

// All process groups of the job, as every rank creates them; a rank records those that it belongs to.
std::vector<ProcessGroup> process_groups(const SyntheticJob& job);

void record_rank(const SyntheticJob& job, const Gpu& gpu, const std::vector<ProcessGroup>& groups, std::int64_t rank,
                 Recorder& rec);

}  // namespace orrery::synth
