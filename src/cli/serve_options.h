// Options of a served model, and of the requests that it gets: what `estimate serve` and `loadgen` share.
#pragma once
#include <string>
#include <vector>

#include "cli/command.h"
#include "data/notes.h"
#include "serving/job.h"
#include "serving/summary.h"
#include "serving/workload.h"

namespace orrery {

std::vector<OptionSpec> workload_options();
// Engine, limits and what is asked of the answer; model, platform and layout are those of `estimate train`.
std::vector<OptionSpec> serve_options();

struct DescribedWorkload {
  Workload workload;
  double rate = 0;  // 0 = all at once, or a file's own times
  double cv = 1;
  std::uint64_t seed = 1;
  std::vector<std::string> assumptions;
};
Result<DescribedWorkload> described_workload(const Args& args, Notes& notes);

struct DescribedService {
  ServeJob job;
  ServeOptions options;
  ServiceLevel level;
  double price_per_gpu_hour = 0;
  std::vector<std::string> assumptions;
};
// Errors: unknown names (with the nearest), values that are none, what cannot be (serving/job.h).
Result<DescribedService> described_service(const Args& args);
Result<ServiceLevel> read_level(const Args& args);

}  // namespace orrery
