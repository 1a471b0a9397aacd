// --calibrate TRACE...: what `estimate` and `plan` share.
#pragma once
#include <vector>

#include "cli/options.h"
#include "data/table.h"
#include "estimate/operations.h"

namespace orrery {

OptionSpec calibrate_option();

// Nothing without --calibrate. Else `costs` are changed by the traces, and a section says which facts were replaced.
// Errors: traces that cannot be read or taken apart; those of calibrate().
Status calibrate_by(const Args& args, const RunOptions& options, const EstimateJob& job, JobCosts& costs,
                    std::vector<Section>& sections);

}  // namespace orrery
