// What trainers log of a step: Megatron, DeepSpeed, Hugging Face, Lightning, fairseq, InternEvo, torchtitan, NeMo and
// whatever writes "step 12 loss 2.1".
#pragma once
#include <cstdint>
#include <string_view>

namespace orrery {

struct StepValues {
  std::int64_t step = -1;  // -1 = not said
  bool has_loss = false;
  double loss = 0;        // NaN and infinities as logged
  double seconds = -1;    // of one step; below 0 = not said
  bool relative = false;  // only how fast it was said: `seconds` compare with each other, and are none
  double grad_norm = -1;  // below 0 = not said; NaN as logged
};

// False: the line tells of no step (neither a loss, nor an iteration, nor a bar of the training).
bool read_step(std::string_view message, StepValues& values);

}  // namespace orrery
