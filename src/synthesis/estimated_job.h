// The traces that an estimated job would leave, one a rank: the estimate's step, operator by operator, as PyTorch's
// profiler would have recorded it. Their replay gives back the estimate.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/progress.h"
#include "data/trace.h"
#include "estimate/operations.h"

namespace orrery {

// Ranks of a stage behave alike: of each stage one is recorded.
struct EstimatedRun {
  EstimateJob job;
  std::vector<RankTrace> stages;  // of the first rank of each
  double iteration_ns = 0;        // mean over the steps of the longest stage's
};

// `steps` from 1. Errors: those of a schedule; a job whose traces would be too long to be of use.
Result<EstimatedRun> record_estimated(const EstimateJob& job, const JobCosts& costs, std::int64_t steps);

// The trace of any rank below the job's world.
RankTrace trace_of_rank(const EstimatedRun& run, std::int64_t rank);

// Writes DIR/rank-N.json.gz for each of `ranks`; DIR is made, or empty. All files appear together or none. The names,
// in the order of `ranks`. Errors: DIR has something in it or is no directory, cannot be written, the disk is full.
Result<std::vector<std::string>> write_traces(const EstimatedRun& run, const std::vector<std::int64_t>& ranks,
                                              const std::string& directory, unsigned threads, Progress& progress);

}  // namespace orrery
