// What the page of `orrery jobs` draws: shares, CDFs, boxes, hours of the week, failures, utilisation.
#pragma once
#include <vector>

#include "cluster/failures.h"
#include "cluster/job_stats.h"
#include "cluster/patterns.h"
#include "data/chart.h"
#include "data/utilization.h"

namespace orrery {

// The first three side by side, one a cluster.
std::vector<Chart> jobs_charts(const std::vector<JobStats>& clusters, const std::vector<FailureStats>& failures,
                               const std::vector<Patterns>& times, const std::vector<UtilMetric>& utilization);

}  // namespace orrery
