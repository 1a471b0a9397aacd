// What a run of the matrix should take, by the same estimate that `orrery estimate` makes.
#pragma once
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bench/matrix.h"
#include "bench/result_store.h"
#include "estimate/calibrate_tables.h"
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
  // Errors: an unknown platform; tables that cannot be read, or are of another device.
  static Result<RunEstimator> of(const BenchConfig& config);

  // Fits factors to the config's number of measured training runs: those that tell most of the factors that vary
  // (order.h). Errors: tables of another device than the platform's.
  Status fit(const std::vector<RunRow>& rows);
  bool fitted_to(const std::string& id) const { return fitted_.count(id) > 0; }
  std::size_t fitted() const { return fitted_.size(); }

  RunEstimate estimate_of(const BenchRun& run);
  bool has_platform() const { return platform_.has_value(); }
  Notes noisy_rows() const { return tables_.noisy_rows(); }  // of the tables that it is calibrated by

 private:
  RunEstimate training(const BenchRun& run);
  RunEstimate generation(const BenchRun& run) const;
  Result<JobCosts> costs(const EstimateJob& job) const;

  std::int64_t lora_rank_ = 64, prompt_tokens_ = 32, largest_batch_ = 1, runs_ = 0;
  bool cpu_ = false;
  std::optional<PlatformFacts> platform_;
  TableCalibration tables_;
  std::optional<StepFactors> factors_;
  std::set<std::string> fitted_;
  EstimateScratch scratch_;
};

// The job that such a run is. Precondition: training by a framework that is known.
EstimateJob job_of(const BenchRun& run, const PlatformFacts& platform, std::int64_t lora_rank,
                   std::int64_t prompt_tokens);

// Tokens that a step of all ranks works on; of inference those that it yields.
double tokens_of_step(const BenchRun& run, std::int64_t batch);

// By the median of its steps: one step that something else held up would turn a mean, and what is compared by it.
std::optional<double> tokens_per_s(const BenchRun& run, const RunRow& row);

}  // namespace orrery
