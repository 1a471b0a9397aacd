#include "costs/log_residual.h"

#include <algorithm>
#include <cmath>

namespace orrery {
namespace {

constexpr std::size_t kMost = 600;

LogResidual::Size logs(const LogResidual::Size& size) {
  LogResidual::Size x{};
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::log(std::max(1.0, size[i]));
  return x;
}

}  // namespace

// Matern's with 3/2: kinks of caches and tiles are no analytic functions.
double LogResidual::likeness(const Size& a, const Size& b) const {
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  const double d = std::sqrt(3 * squares) / reach_;
  return spread_ * spread_ * (1 + d) * std::exp(-d);
}

LogResidual LogResidual::learn(std::vector<Sample> samples, double reach, double spread) {
  LogResidual r;
  r.reach_ = reach, r.spread_ = spread;
  if (samples.size() > kMost) {
    std::vector<Sample> some;
    for (std::size_t i = 0; i < kMost; ++i) some.push_back(samples[i * samples.size() / kMost]);
    samples = std::move(some);
  }
  const std::size_t n = samples.size();
  for (const Sample& s : samples) {
    r.points_.push_back(logs(s.size));
    r.weight_.push_back(s.off);
    r.noise_.push_back(std::pow(std::max(s.noise, 0.01), 2));
  }
  std::vector<double> f(n * n, 0);  // Cholesky's factor
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = r.likeness(r.points_[i], r.points_[j]);
      if (i == j) sum += r.noise_[i];
      for (std::size_t k = 0; k < j; ++k) sum -= f[i * n + k] * f[j * n + k];
      f[i * n + j] = i == j ? std::sqrt(std::max(sum, 1e-12)) : sum / f[j * n + j];
    }
  }
  std::vector<double>& w = r.weight_;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < i; ++k) w[i] -= f[i * n + k] * w[k];
    w[i] /= f[i * n + i];
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t k = i + 1; k < n; ++k) w[i] -= f[k * n + i] * w[k];
    w[i] /= f[i * n + i];
  }
  return r;
}

LogResidual::Estimate LogResidual::at(const Size& size) const {
  Estimate e;
  e.doubt = spread_;
  if (points_.empty()) return e;
  const Size x = logs(size);
  const double known = spread_ * spread_;
  double explained = 0;
  for (std::size_t i = 0; i < points_.size(); ++i) {
    const double alike = likeness(points_[i], x);
    e.off += weight_[i] * alike;
    explained = std::max(explained, alike * alike / (known + noise_[i]));
  }
  e.doubt = std::sqrt(std::max(0.0, known - explained));
  return e;
}

}  // namespace orrery
