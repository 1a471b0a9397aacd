// Logs of training runs and of evaluation trials, line by line.
#pragma once
#include <string>

#include "base/byte_source.h"
#include "data/run_log.h"

namespace orrery {

// Lines that name a step and tell of training (a loss, a rate, the time of an iteration): Megatron-LM, InternEvo,
// DeepSpeed and what writes like them. Errors: no such line; the medium.
Result<ProgressLog> import_progress_log(ByteSource& source, const std::string& label);

struct TrialPatterns {  // RE2; the first line that matches begins the stage
  std::string inference = "(?i)(start|begin)(s|ing)? (of )?inferenc|inferencing|generating|start generation";
  std::string metric =
      "(?i)(start|begin)(s|ing)? (of )?(evaluat|scor|judg|comput)|evaluating|computing (the )?(metric|score)|"
      "postprocess";
};

// Errors: a pattern that is none, no line with a time; the medium.
Result<TrialLog> import_trial_log(ByteSource& source, const std::string& label, const TrialPatterns& patterns);

}  // namespace orrery
