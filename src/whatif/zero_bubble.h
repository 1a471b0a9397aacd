// Backward passes in two halves, as zero-bubble schedules run them (Qi et al., Zero Bubble Pipeline Parallelism, ICLR
// 2024): the gradients of the inputs, which the stage before waits for, and those of the weights, which nobody does.
#pragma once
#include <cstdint>
#include <vector>

#include "data/trace.h"
#include "whatif/program.h"

namespace orrery {

// Fills Program::weight: in backward passes the products chosen by `weight` (by node of the traced job), what adds up
// their parts, and the host work that leads up to their launches. All else is of the first half: gradients of biases
// and norms too, which are computed together with those of the inputs.
void mark_weight_gradients(Program& program, const TraceSet& traces, const GraphBuild& build,
                           const std::vector<std::uint8_t>& weight);

}  // namespace orrery
