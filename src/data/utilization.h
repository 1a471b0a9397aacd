// How busy hardware was: the distribution of a metric over samples of devices.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/notes.h"

namespace orrery {

struct UtilMetric {
  std::string cluster;  // found out by whoever reads several files together
  std::string name;     // "gpu_util", "POWER_USAGE"
  std::string file;
  bool quantiles_only = false;                          // the file has a quantile function, not samples
  std::uint64_t samples = 0, missing = 0, devices = 0;  // of cells; columns or nodes
  // Percentiles 0, 0.1, ... 100 of the samples, or the file's own points.
  std::vector<double> percentile, value;
  double mean = 0, max = 0;
  double zero_pct = 0;       // samples at or below zero
  bool approximate = false;  // quantiles within 0.02 %
  // Of samples: seconds between them (the middle of all), and sums over devices.
  double step_s = 0, sum = 0;

  // The value below which p % lie, by linear interpolation.
  double at(double p) const;
  // The share (%) of samples at or below `limit`.
  double share_at_most(double limit) const;
};

// Power in watts, to be told by the name: "POWER_USAGE", "gpu_power_w", "Sys_Total_Power".
bool is_power(const std::string& metric);

}  // namespace orrery
