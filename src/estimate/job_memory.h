// Memory of one GPU of an estimated job, by part.
//
// Weights, gradients and optimizer state follow from who keeps which parameters (ZeRO, Rajbhandari et al. 2020, section
// 3.1: 2 + 2 + 12 bytes of a parameter in mixed precision with Adam; Megatron-LM keeps gradients in fp32: 18).
// Activations: Megatron-LM's as costs/memory.h has them (Korthikanti et al. 2022); of eager models what PyTorch's
// autograd keeps of each operator, listed in job_memory.cc, at the fullest of three moments: the backward pass begins
// (all activations, no gradients yet), it ends (all gradients), the update (its temporaries).
#pragma once
#include <string>

#include "estimate/stages.h"

namespace orrery {

struct JobMemory {
  MemoryParts most, mean;  // of the stage that needs most; over the stages
  double allocated = 0;  // GiB of the most: what PyTorch's allocator counts; neither context, NCCL nor stranded blocks
  // Bytes of paged moments that travel to the host and back in every step: what does not fit beside the rest; all where
  // they do not even fit while weights are updated, for pages go in the order of their last use and an update uses all
  // in turn.
  double paged_out = 0;
  double host = 0;  // GiB of a server's own memory: what its ranks keep there; all taken to be of the fullest stage
};
// Whether a job fits into the memory of its GPUs and, where that is known, of its servers.
bool fits(const EstimateJob& job, const JobMemory& memory);
// Bytes that an eager model keeps of one layer until its backward pass; where it is recomputed, its input.
double kept_of_layer(const EstimateJob& job);
JobMemory memory_of(const EstimateJob& job, const std::vector<StageWork>& stages);
// What would make a job fit that does not, the largest saving first: "--zero 3", "--recompute full" ... ; "" = nothing
// known.
std::string what_would_fit(const EstimateJob& job, const MemoryParts& m);

}  // namespace orrery
