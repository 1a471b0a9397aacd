// Answers on the jobs of datacenters. Pure functions of tables; several clusters stand side by side in each.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cluster/failures.h"
#include "cluster/job_stats.h"
#include "cluster/patterns.h"
#include "cluster/scheduler.h"
#include "data/table.h"

namespace orrery {

// "file", "run", "total".
std::string_view name_of(DurationKind kind);

// Whole numbers as integers, others as doubles: seconds of milliseconds.
Cell whole_or_real(double x);
Cell cell_of_count(std::uint64_t n);
Cell cell_if(bool known, double x);  // null where it is not known
Cell cell_of_gpu_time(GpuTime t);    // GPU seconds

// The keys of the contract: clusters[] with counts, types, states, quantiles, by_type, gpus_counts.
void describe_jobs(const std::vector<JobStats>& clusters, DurationKind kind, std::vector<Section>& out);

// One grouping in full: --by type|state|gpus|user|group.
Result<Section> jobs_by(const std::vector<JobStats>& clusters, const std::string& by);

// What fails and what it costs; when jobs come.
void describe_failures(const std::vector<FailureStats>& clusters, const FailureTerms& terms, std::vector<Section>& out);
void describe_patterns(const std::vector<Patterns>& clusters, std::vector<Section>& out);

// The jobs of each cluster under each policy. Durations are those at work (DurationKind::run). Errors: a reservation
// for a type that no job has.
Result<std::vector<Section>> jobs_what_if(const std::vector<JobTable>& clusters,
                                          const std::vector<SimQuestion>& questions,
                                          const std::function<void(std::uint64_t, std::uint64_t)>& progress,
                                          Notes& notes);

}  // namespace orrery
