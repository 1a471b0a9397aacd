// orrery jobs progress, orrery jobs trials: answers from logs.
#pragma once
#include "cli/command.h"
#include "cli/options.h"

namespace orrery {

// The first operand, "progress" or "trials", is not among `paths`. Errors: a log that tells nothing.
Result<int> run_jobs_progress(const Args& args, const std::vector<std::string>& paths, const RunOptions& options);
Result<int> run_jobs_trials(const Args& args, const std::vector<std::string>& paths, const RunOptions& options);

}  // namespace orrery
