// What fails in large training jobs, how often, and how long people take to restart them: facts of a published study.
#pragma once
#include <span>
#include <string_view>

namespace orrery {

// A row of table 3 of Hu et al., "Characterization of Large Language Model Development in the Datacenter" (NSDI 2024):
// six months of two clusters of A100 GPUs. Minutes. How sure: see study_failures.cc.
struct StudyFailure {
  std::string_view reason;
  double count;                   // in the six months
  double gpus_mean, gpus_median;  // of the jobs that failed
  double to_failure_mean_min, to_failure_median_min;
  double to_restart_mean_min, to_restart_median_min;  // from the failure until people had started the job again
  bool of_node;                                       // the machine has to go, not only the job to start again
};

// The infrastructure's reasons that strike large jobs. Failures of a framework or a script are not here: they come in
// the first minutes, and the same code fails again.
std::span<const StudyFailure> study_failures();

// GPU-hours of pretraining in which these came.
double study_gpu_hours();

// Seconds between failures of a job of so many GPUs: as many failures a GPU-hour as in the study, at constant rate.
double study_mtbf_s(double gpus);

// How long people take, in seconds. The study has mean and median alone, far apart: half of the restarts come evenly
// within the median, the other half with an exponential tail after it that gives the mean. `half`, `tail`: uniform in
// [0, 1). Where a mean below 3/4 of its median leaves no such tail, the median.
double restart_by_people_s(const StudyFailure& failure, double half, double tail);
double mean_restart_by_people_s(const StudyFailure& failure);

}  // namespace orrery
