// Answers on keeping a training job alive.
#pragma once
#include <vector>

#include "data/table.h"
#include "supervisor/simulate.h"

namespace orrery {

// The keys of the contract for the first policy; "policies" has all of them, "failures" what strikes.
Document months_document(const MonthsQuestion& question, const std::vector<PolicyMonths>& policies);

}  // namespace orrery
