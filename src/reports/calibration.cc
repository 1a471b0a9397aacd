#include "reports/calibration.h"

#include <algorithm>

#include "data/rate_digits.h"

namespace orrery {

Section calibration_section(const std::vector<CalibratedFact>& facts) {
  Section s{.key = "calibration", .title = "Facts replaced by what was measured", .table = {}};
  double least = 1;
  for (const CalibratedFact& f : facts)
    for (const double x : {f.before, f.after})
      if (x > 0) least = std::min(least, x);
  const int digits = std::max(2, rate_digits(least));
  s.table.columns = {{.key = "fact"},
                     {.key = "unit"},
                     {.key = "before", .digits = digits},
                     {.key = "after", .digits = digits},
                     {.key = "change_pct", .title = "change %", .digits = 1},
                     {.key = "events"}};
  for (const CalibratedFact& f : facts) {
    std::vector<Cell>& row = s.table.rows.emplace_back();
    row = {f.fact, f.unit, f.before, f.after, std::monostate{}, static_cast<std::int64_t>(f.events)};
    if (f.before > 0) row[4] = 100 * (f.after / f.before - 1);
  }
  return s;
}

}  // namespace orrery
