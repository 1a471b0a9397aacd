// What fails and what that costs: reasons, time to failure and to restart, failures a node-hour, time of use.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cluster/job_stats.h"
#include "data/job_reasons.h"

namespace orrery {

struct FailureTerms {
  double checkpoint_s = 0;           // a failed job loses what came after its last checkpoint, half of this on average;
                                     // 0 = it loses all it did
  double restart_s = 0;              // of each run, before it is of use
  double gpus_per_node = 8;          // for node-hours where the file has no nodes
  double restart_within_s = 86'400;  // a later submission is no restart
};

struct ReasonRow {
  std::string reason, category;  // "" = not known
  std::uint64_t count = 0, restarts = 0;
  Spread gpus, to_failure_s, to_restart_s;
  GpuTime lost = 0;  // GPU time of the failed runs
};

// A class of GPU jobs: a type, or a range of sizes.
struct ReliabilityRow {
  std::string name;
  std::uint64_t runs = 0, stated = 0;              // stated: have a state
  std::uint64_t failures = 0, infrastructure = 0;  // failed or lost a node; of these by the hardware
  double run_hours = 0, wait_hours = 0, node_hours = 0, gpu_hours = 0, lost_gpu_hours = 0;
  double productive_hours = 0;  // of run_hours: less what was lost and restarts

  // Hours; 0 failures = not known.
  double mttf_h() const { return run_hours / static_cast<double>(failures); }
  double node_mttf_h() const { return node_hours / static_cast<double>(failures); }
  // Effective training time ratio: time of use over time from submission to end (Kokolis et al., "Revisiting
  // Reliability in Large-Scale Machine Learning Research Clusters").
  double ettr_pct() const { return 100 * productive_hours / (run_hours + wait_hours); }
  double goodput_pct() const { return 100 * (gpu_hours - lost_gpu_hours) / gpu_hours; }
};

struct FailureStats {
  std::string cluster;
  std::vector<ReasonRow> reasons;            // most GPU time lost first
  std::vector<ReliabilityRow> types, sizes;  // types: "ALL" first
  double span_h = 0;                         // first start to last end
  std::uint64_t failures = 0, infrastructure = 0;
  double mtbf_h() const { return span_h / static_cast<double>(failures); }
  // Fairness over users with GPU jobs. Gini: 0 = all alike, towards 1 = one has all. Jain: 1 = all alike, 1/n = one has
  // all.
  std::uint64_t users = 0;             // 0: the records name none
  bool stated = false, waits = false;  // some record has a state; a waiting time
  double gini_gpu_time = 0, jain_gpu_time = 0, jain_slowdown = 0;
};

FailureStats failure_stats(const JobTable& jobs, const FailureTerms& terms, const Categories& categories);

double gini(std::vector<double> values);  // of what is not negative
double jain(const std::vector<double>& values);

// The reasons of a file into the reason column of a table; returns how many rows got one. `used`, as long as the file's
// list, gets true for each entry that some row took.
std::uint64_t join_reasons(JobTable& jobs, const ReasonFile& file, std::vector<bool>* used = nullptr);

}  // namespace orrery
