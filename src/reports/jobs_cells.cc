// Cells of the tables on jobs.
#include <cmath>
#include <limits>

#include "reports/jobs.h"

namespace orrery {

Cell whole_or_real(double x) {
  if (std::isfinite(x) && std::fabs(x) < 9e15 && x == std::floor(x)) return static_cast<std::int64_t>(x);
  return x;
}

Cell cell_of_count(std::uint64_t n) { return static_cast<std::int64_t>(n); }

Cell cell_if(bool known, double x) {
  if (!known) return {};
  return whole_or_real(x);
}

Cell cell_of_gpu_time(GpuTime t) {
  if (t % 1'000'000 == 0 && t / 1'000'000 <= std::numeric_limits<std::int64_t>::max())
    return static_cast<std::int64_t>(t / 1'000'000);
  return gpu_seconds(t);
}

std::string_view name_of(DurationKind kind) {
  return kind == DurationKind::file ? "file" : kind == DurationKind::run ? "run" : "total";
}

}  // namespace orrery
