// Facts replaced by what the traces of a job show: how fast kernels of each kind are, what the host takes, how fast
// links are.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "estimate/operations.h"
#include "whatif/job_model.h"

namespace orrery {

struct CalibratedFact {
  std::string fact, unit;
  double before = 0, after = 0;
  std::uint64_t events = 0;  // that `after` comes from
};

// Changes `costs`, which are those of `job`'s platform. What the traces do not show stays and has no row. `learned` is
// the traced job, which need not be `job`: another model, layout or size. Kernels and host work are compared layer by
// layer with what the estimate has for the traced job, with `job`'s framework and techniques.
// Errors: traces of another GPU than the platform's; a traced job that no estimate can be made of; nothing that tells.
Result<std::vector<CalibratedFact>> calibrate(const TraceSet& traces, const GraphBuild& build, const JobModel& learned,
                                              const EstimateJob& job, JobCosts& costs);

}  // namespace orrery
