#include "costs/fit_logs.h"

#include <algorithm>
#include <cmath>

namespace orrery {
namespace {

constexpr int kRounds = 40;
constexpr double kFar = 8;  // of a logarithm from where it began: beyond any law

// Solves a x = b for a symmetric, positive a (Cholesky), in place. False: not positive.
bool solve(std::vector<double>& a, std::vector<double>& b) {
  const std::size_t n = b.size();
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = a[i * n + j];
      for (std::size_t k = 0; k < j; ++k) sum -= a[i * n + k] * a[j * n + k];
      if (i == j) {
        if (!(sum > 0)) return false;
        a[i * n + i] = std::sqrt(sum);
      } else {
        a[i * n + j] = sum / a[j * n + j];
      }
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < i; ++k) b[i] -= a[i * n + k] * b[k];
    b[i] /= a[i * n + i];
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t k = i + 1; k < n; ++k) b[i] -= a[k * n + i] * b[k];
    b[i] /= a[i * n + i];
  }
  return true;
}

}  // namespace

void fit_logs(const std::vector<FittedNumber>& numbers, const std::vector<FittedTime>& times,
              const std::function<double(std::size_t)>& law) {
  const std::size_t n = numbers.size(), m = times.size();
  std::vector<double> prior(n), at(n);
  for (std::size_t i = 0; i < n; ++i) prior[i] = at[i] = std::log(*numbers[i].value);
  const auto put = [&](const std::vector<double>& x) {
    for (std::size_t i = 0; i < n; ++i) *numbers[i].value = std::exp(x[i]);
  };
  // How far the measured times are from the law, in doubts; 0 where either says nothing.
  const auto offs = [&] {
    std::vector<double> off(m, 0);
    for (std::size_t k = 0; k < m; ++k)
      if (const double t = law(k); times[k].ns > 0 && t > 0) off[k] = std::log(times[k].ns / t) / times[k].doubt;
    return off;
  };
  const auto cost = [&](const std::vector<double>& off, const std::vector<double>& x) {
    double sum = 0;
    for (const double o : off) sum += std::abs(o) <= 2 ? o * o : 4 * std::abs(o) - 4;
    for (std::size_t i = 0; i < n; ++i) sum += std::pow((x[i] - prior[i]) / numbers[i].doubt, 2);
    return sum;
  };
  std::vector<double> off = offs();
  double now = cost(off, at), damping = 1e-3;
  for (int round = 0; round < kRounds && damping < 1e6; ++round) {
    constexpr double kStep = 1e-4;
    std::vector<double> slope(n * m, 0);
    for (std::size_t i = 0; i < n; ++i) {
      std::vector<double> moved = at;
      moved[i] += kStep;
      put(moved);
      const std::vector<double> there = offs();
      for (std::size_t k = 0; k < m; ++k) slope[i * m + k] = (off[k] - there[k]) / kStep;
    }
    std::vector<double> normal(n * n, 0), right(n, 0);
    for (std::size_t i = 0; i < n; ++i) {
      const double own = 1 / (numbers[i].doubt * numbers[i].doubt);
      right[i] = own * (prior[i] - at[i]);
      normal[i * n + i] = own;
      for (std::size_t k = 0; k < m; ++k) {
        const double weight = std::min(1.0, 2 / std::max(std::abs(off[k]), 1e-12));
        right[i] += weight * slope[i * m + k] * off[k];
        for (std::size_t j = 0; j <= i; ++j) normal[i * n + j] += weight * slope[i * m + k] * slope[j * m + k];
      }
    }
    for (std::size_t i = 0; i < n; ++i) normal[i * n + i] *= 1 + damping;
    if (!solve(normal, right)) {
      damping *= 10;
      put(at);
      continue;
    }
    std::vector<double> next = at;
    double largest = 0;
    for (std::size_t i = 0; i < n; ++i) {
      next[i] = std::clamp(at[i] + std::clamp(right[i], -1.0, 1.0), prior[i] - kFar, prior[i] + kFar);
      largest = std::max(largest, std::abs(next[i] - at[i]));
    }
    put(next);
    const std::vector<double> there = offs();
    const double then = cost(there, next);
    if (then <= now) {
      at = next, off = there, now = then;
      damping = std::max(1e-6, damping / 5);
      if (largest < 1e-5) break;
    } else {
      damping *= 10;
    }
  }
  put(at);
}

}  // namespace orrery
