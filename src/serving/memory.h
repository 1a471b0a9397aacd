// What one GPU of a serving instance holds: weights, what a step needs, and the KV cache in the rest.
#pragma once
#include "serving/job.h"

namespace orrery {

struct ServeMemory {  // GiB of a GPU of the fullest stage
  double weights = 0, activations = 0, reserved = 0, kv_cache = 0, capacity = 0;
  std::int64_t kv_blocks = 0;  // of an instance
  bool kv_too_large = false;   // ServeJob::kv_tokens are stated, and a GPU cannot hold them beside the weights
  bool fits = true;            // weights, a step and the longest allowed sequence's blocks
};
ServeMemory memory_of(const ServeJob& job);

}  // namespace orrery
