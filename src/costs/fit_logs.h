// Least squares of logarithms for a few positive numbers: what calibrates laws by measured times.
#pragma once
#include <cstddef>
#include <functional>
#include <vector>

namespace orrery {

struct FittedNumber {
  double* value;       // above 0: what is known beforehand; replaced by what fits
  double doubt = 0.5;  // of its logarithm beforehand: one standard deviation
};
struct FittedTime {
  double ns = 0;        // measured
  double doubt = 0.05;  // relative: one standard deviation
};

// Gauss-Newton on the logarithms of the numbers: the squares of log(measured / law) over their doubts plus those of how
// far each number moves over its own. A time further from the law than twice its doubt weighs less (Huber). law(k) is
// the law's time of times[k] with the numbers as they are. Times or laws of 0 or less are left out.
void fit_logs(const std::vector<FittedNumber>& numbers, const std::vector<FittedTime>& times,
              const std::function<double(std::size_t)>& law);

}  // namespace orrery
