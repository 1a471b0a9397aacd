// What `orrery plan` says.
#pragma once
#include "data/table.h"
#include "estimate/plan.h"

namespace orrery {

// `command`: how to ask for one candidate, up to its options.
Document plan_document(const Plan& plan, double seconds, const std::string& command);

}  // namespace orrery
