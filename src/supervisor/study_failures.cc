#include "supervisor/study_failures.h"

#include <cmath>

namespace orrery {
namespace {

// Source: Hu et al., NSDI 2024, table 3, rows of "Infrastructure". How sure: counts are the paper's; count x GPUs x
// time to failure gives the shares of GPU time that the table states within 25 %, but for S3 Storage Error (4.6 times);
// times to restart stand in the table alone. NCCL Remote Error: the table's mean, 0.0, is below its median. Left out:
// Connection Error (147, of jobs with 1 GPU in the median, after half a minute).
constexpr StudyFailure kFailures[] = {
    {"NVLink Error", 54, 800, 896, 868.1, 155.3, 95.6, 0.2, true},
    {"CUDA Error", 21, 847, 1024, 923.2, 586.0, 78.3, 2.0, true},
    {"Node Failure", 16, 712, 768, 1288.8, 535.8, 102.8, 21.5, true},
    {"ECC Error", 12, 680, 768, 1303.4, 1192.3, 2.8, 1.8, true},
    {"Network Error", 12, 758, 768, 549.6, 310.1, 592.1, 7.4, false},
    {"S3 Storage Error", 10, 422, 256, 2317.8, 202.2, 6.2, 0.2, false},
    {"NCCL Timeout Error", 6, 596, 512, 159.7, 48.1, 66.7, 43.6, false},
    {"NCCL Remote Error", 3, 1152, 1024, 50.5, 22.6, 0.0, 0.7, false},
};

// GPU-hours of the GPU jobs in the traces that the study published, and the shares that it states for pretraining (its
// section 3). Sure: the totals are sums over the published files; that the table counts all failures of these hours is
// taken for granted (it comes from logs; one that was missed makes the true rate higher).
constexpr double kSerenGpuHours = 5'626'520, kSerenPretraining = 0.695;
constexpr double kKalosGpuHours = 1'481'439, kKalosPretraining = 0.940;

double tail_mean_min(const StudyFailure& f) { return 2 * f.to_restart_mean_min - 1.5 * f.to_restart_median_min; }

}  // namespace

std::span<const StudyFailure> study_failures() { return kFailures; }

double study_gpu_hours() { return kSerenGpuHours * kSerenPretraining + kKalosGpuHours * kKalosPretraining; }

double study_mtbf_s(double gpus) {
  double count = 0;
  for (const StudyFailure& f : kFailures) count += f.count;
  return 3600 * study_gpu_hours() / (count * gpus);
}

double restart_by_people_s(const StudyFailure& f, double half, double tail) {
  const double mean = tail_mean_min(f);
  if (mean <= 0) return 60 * f.to_restart_median_min;
  if (half < 0.5) return 60 * f.to_restart_median_min * 2 * half;
  return 60 * (f.to_restart_median_min - mean * std::log1p(-tail));
}

double mean_restart_by_people_s(const StudyFailure& f) {
  return 60 * (tail_mean_min(f) <= 0 ? f.to_restart_median_min : f.to_restart_mean_min);
}

}  // namespace orrery
