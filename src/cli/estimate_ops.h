// orrery estimate ops: single operators and transfers.
#pragma once
#include <vector>

#include "cli/command.h"
#include "cli/options.h"

namespace orrery {

// What `estimate ops` takes beside --platform, --model, --precision and --gpus.
std::vector<OptionSpec> ops_options();

// Errors: a question that cannot be answered, with its option or line.
Result<int> run_estimate_ops(const Args& args, const RunOptions& options);

}  // namespace orrery
