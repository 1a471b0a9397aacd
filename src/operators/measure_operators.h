// All operators of a plan, one after the other, within a budget of time.
#pragma once
#include <functional>
#include <vector>

#include "data/notes.h"
#include "operators/measure.h"
#include "operators/operator_device.h"

namespace orrery {

struct MeasureAllTerms {
  double budget_s = 40;           // of all together; each gets its share of what is left
  double noisy = kNoisySpread;    // a spread above marks a row
  std::function<double()> now_s;  // a clock
  std::function<void(std::size_t done, std::size_t all)> progress = {};
};

struct MeasuredAll {
  std::vector<OperatorRow> rows;  // those that could be measured, in the plan's order
  Notes notes;                    // what was left out and why; drift of the clock; noise
};

// Each operator's result is checked before it is timed. One that would not fit into its share of the budget five times
// (by the floors that were measured first) is left out, and so is what the device cannot do: both told in the notes. A
// product of 512 (of 96 where the budget is small) is measured again now and then: how far it drifts is told. Errors: a
// wrong result; a rank that is gone.
Result<MeasuredAll> measure_operators(OperatorDevice& device, const std::vector<OperatorRow>& plan,
                                      const MeasureAllTerms& terms, Lockstep& ranks);

}  // namespace orrery
