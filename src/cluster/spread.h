// How values are spread: mean, quantiles, extremes.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace orrery {

// Quantiles by linear interpolation between order statistics (x = p (n - 1)).
struct Spread {
  std::uint64_t n = 0;  // 0: nothing else means anything
  double sum = 0, mean = 0, min = 0, p5 = 0, p25 = 0, p50 = 0, p75 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
  // Of a box plot: the outermost values within 1.5 interquartile ranges of the quartiles.
  double low = 0, high = 0;
};

// Reorders [first, last). Values are divided by `unit`.
template <class It>
Spread spread_of(It first, It last, double unit) {
  Spread s;
  const auto n = last - first;
  if (n <= 0) return s;
  s.n = static_cast<std::uint64_t>(n);
  // Sums of integers stay exact as long as they fit.
  long double sum = 0;
  for (It i = first; i != last; ++i) sum += static_cast<long double>(*i);
  s.sum = static_cast<double>(sum / static_cast<long double>(unit));
  s.mean = static_cast<double>(sum / static_cast<long double>(unit) / static_cast<long double>(n));
  It done = first;  // what lies before is in place
  const auto at = [&](double p) {
    const double x = p * static_cast<double>(n - 1);
    const auto k = static_cast<std::ptrdiff_t>(x);
    It nth = first + k;
    if (nth >= done) {
      std::nth_element(done, nth, last);
      done = nth;
    }
    double v = static_cast<double>(*nth);
    if (x > static_cast<double>(k)) {
      const double next = static_cast<double>(*std::min_element(nth + 1, last));
      v += (next - v) * (x - static_cast<double>(k));
    }
    return v / unit;
  };
  const auto [least, most] = std::minmax_element(first, last);
  s.min = static_cast<double>(*least) / unit;
  s.max = static_cast<double>(*most) / unit;
  s.p5 = at(0.05);
  s.p25 = at(0.25);
  s.p50 = at(0.5);
  s.p75 = at(0.75);
  s.p90 = at(0.9);
  s.p95 = at(0.95);
  s.p99 = at(0.99);
  const double reach = 1.5 * (s.p75 - s.p25);
  s.low = s.p25, s.high = s.p75;
  for (It i = first; i != last; ++i) {
    const double v = static_cast<double>(*i) / unit;
    if (v >= s.p25 - reach) s.low = std::min(s.low, v);
    if (v <= s.p75 + reach) s.high = std::max(s.high, v);
  }
  return s;
}

template <class T>
Spread spread_of(std::vector<T>& values, double unit = 1) {
  return spread_of(values.begin(), values.end(), unit);
}

}  // namespace orrery
