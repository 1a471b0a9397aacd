// orrery predict, of a job of which the steps of its pipelines were recorded.
#pragma once
#include "cli/run.h"

namespace orrery {

// `run.pipeline` is there. Errors: an edit that such a recording cannot answer.
Result<int> predict_steps(Run& run, const Args& args, const RunOptions& options, Progress& progress);

}  // namespace orrery
