// What a run of the matrix should take, by the same estimate that `orrery estimate` makes.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "bench/matrix.h"
#include "estimate/estimate.h"

namespace orrery {

struct RunEstimate {
  std::string unknown;                      // why there is none; "" = there is one
  std::int64_t batch = 0;                   // that it is for: the largest that fits, where the run asks for that
  double step_ms = 0;                       // of inference: the whole generation
  double memory_gib = 0, capacity_gib = 0;  // of a GPU; 0 = not known
  bool fits = true;
};

class RunEstimator {
 public:
  // `calibrate` changes the costs of a job before it is estimated. Errors: an unknown platform.
  using Calibrate = std::function<Status(const EstimateJob& job, JobCosts& costs)>;
  static Result<RunEstimator> of(const BenchConfig& config, Calibrate calibrate = {});

  RunEstimate estimate_of(const BenchRun& run);
  bool has_platform() const { return platform_.has_value(); }

 private:
  RunEstimate training(const BenchRun& run);
  RunEstimate generation(const BenchRun& run) const;

  std::int64_t lora_rank_ = 64, prompt_tokens_ = 32, largest_batch_ = 1;
  std::optional<PlatformFacts> platform_;
  Calibrate calibrate_;
  EstimateScratch scratch_;
};

// The job that such a run is. Precondition: training by a framework that is known.
EstimateJob job_of(const BenchRun& run, const PlatformFacts& platform, std::int64_t lora_rank,
                   std::int64_t prompt_tokens);

// Tokens that a step of all ranks works on; of inference those that it yields.
double tokens_of_step(const BenchRun& run, std::int64_t batch);

}  // namespace orrery
