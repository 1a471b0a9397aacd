// A job described on the command line: what `estimate`, `plan` and `synth` share.
#pragma once
#include <string>
#include <vector>

#include "cli/command.h"
#include "estimate/job.h"
#include "facts/library.h"

namespace orrery {

// Options of the model, the platform, the layout and the techniques.
std::vector<OptionSpec> job_options();

// --facts, --model, --shape, --platform; `what`: train, serve ... Errors: none given, unknown names (with the nearest).
Status read_model_and_platform(const Args& args, const std::string& what, OwnFacts& own, ModelFacts& model,
                               PlatformFacts& platform, std::vector<std::string>& assumptions);

struct DescribedJob {
  EstimateJob job;
  bool largest_micro_batch = false;  // --micro-batch-size max
  std::vector<std::string> assumptions;
};

// The job that the options describe, checked as a whole. Errors: unknown names (with the nearest), values that are
// none, what cannot be (estimate/job.h).
Result<DescribedJob> described_job(const Args& args, bool finetune);

}  // namespace orrery
