// What a law does not explain of measured times: a smooth function of the size, drawn to nothing where nothing was
// measured (regression by a Gaussian process on logarithms).
#pragma once
#include <array>
#include <cstddef>
#include <vector>

namespace orrery {

class LogResidual {
 public:
  using Size = std::array<double, 4>;  // each above 0
  struct Sample {
    Size size;
    double off = 0;    // logarithm of measured over law
    double noise = 0;  // of it: one standard deviation
  };
  // `reach`: the distance of logarithms over which sizes are alike; `spread`: how far the law is off, as known
  // beforehand. At most 600 samples count, spread over all of them.
  static LogResidual learn(std::vector<Sample> samples, double reach, double spread);

  struct Estimate {
    double off = 0, doubt = 0;  // doubt: one standard deviation, by the nearest sample alone (all would be a square)
  };
  Estimate at(const Size& size) const;
  bool empty() const { return points_.empty(); }

 private:
  double likeness(const Size& a, const Size& b) const;
  double reach_ = 1, spread_ = 0;
  std::vector<Size> points_;    // logarithms
  std::vector<double> weight_;  // of each
  std::vector<double> noise_;   // of each, squared
};

}  // namespace orrery
