// orrery estimate serve: what serving a model costs.
#pragma once
#include "cli/command.h"
#include "cli/options.h"

namespace orrery {

Result<int> run_estimate_serve(const Args& args, const RunOptions& options);

}  // namespace orrery
