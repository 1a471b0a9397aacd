#include "data/utilization.h"

#include <algorithm>

#include "base/text_match.h"

namespace orrery {

double UtilMetric::at(double p) const {
  if (percentile.empty()) return 0;
  const auto after = std::upper_bound(percentile.begin(), percentile.end(), p);
  if (after == percentile.begin()) return value.front();
  if (after == percentile.end()) return value.back();
  const auto i = static_cast<std::size_t>(after - percentile.begin());
  const double width = percentile[i] - percentile[i - 1];
  return value[i - 1] + (value[i] - value[i - 1]) * (p - percentile[i - 1]) / width;
}

double UtilMetric::share_at_most(double limit) const {
  const auto above = std::upper_bound(value.begin(), value.end(), limit);
  if (above == value.begin()) return 0;
  if (above == value.end()) return 100;
  const auto i = static_cast<std::size_t>(above - value.begin());
  const double rise = value[i] - value[i - 1];
  return percentile[i - 1] + (percentile[i] - percentile[i - 1]) * (limit - value[i - 1]) / rise;
}

bool is_power(const std::string& metric) {
  const std::string name = lower(metric);
  return has(name, "power") || ends(name, "_w") || ends(name, "_watts") || has(name, "psu");
}

}  // namespace orrery
