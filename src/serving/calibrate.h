// A served model calibrated by what a real server took: the result of `orrery loadgen`.
#pragma once
#include <string>
#include <vector>

#include "serving/summary.h"

namespace orrery {

struct MeasuredRun {
  std::vector<RequestRecord> requests;  // end below 0: failed
};
// A JSON document of `orrery loadgen --json` or --out. Errors: not such a document, no request that ended.
Result<MeasuredRun> read_measured_run(const std::string& path);
Result<MeasuredRun> parse_measured_run(std::string_view text, const std::string& where);

struct ServiceFactor {
  std::string fact, unit;
  double before = 0, after = 0;
  std::uint64_t events = 0;  // requests that tell
};

// The measured requests are simulated as they came. Steps take so many times as long that the mean time per token is
// the measured one; what is left of the time to the first token is request_us. Changes `costs` and
// `job.engine.request_us`, which is that of the job that is estimated, whatever its own workload. Of the first tokens
// the quickest tenth is compared: of requests that did not wait for others. Errors: requests of a single token alone;
// more than 20 times quicker or slower than the estimate.
Result<std::vector<ServiceFactor>> calibrate_service(const MeasuredRun& run, ServeJob& job, StepCosts& costs,
                                                     const ServeOptions& options);

}  // namespace orrery
