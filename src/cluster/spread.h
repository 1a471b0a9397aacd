// How values are spread: mean, quantiles, extremes.
#pragma once
#include <algorithm>
#include <array>
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

// Puts what belongs at the places [p, q), ascending, where it belongs: the middle one first, then those on either side
// among what is left there. [from, to) holds them all.
template <class It>
void put_in_place(It first, const std::ptrdiff_t* p, const std::ptrdiff_t* q, std::ptrdiff_t from, std::ptrdiff_t to) {
  if (p == q || from >= to) return;
  const std::ptrdiff_t* mid = p + (q - p) / 2;
  if (*mid >= from && *mid < to) std::nth_element(first + from, first + *mid, first + to);
  put_in_place(first, p, mid, from, std::min(*mid, to));
  put_in_place(first, mid + 1, q, std::max(*mid + 1, from), to);
}

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
  // Each quantile lies between two neighbours in order.
  static constexpr std::array<double, 7> kAt = {0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99};
  std::array<std::ptrdiff_t, 2 * kAt.size()> places{};
  for (std::size_t i = 0; i < kAt.size(); ++i) {
    places[2 * i] = static_cast<std::ptrdiff_t>(kAt[i] * static_cast<double>(n - 1));
    places[2 * i + 1] = std::min(places[2 * i] + 1, n - 1);
  }
  std::sort(places.begin(), places.end());
  put_in_place(first, places.data(), places.data() + places.size(), 0, n);
  const auto at = [&](double p) {
    const double x = p * static_cast<double>(n - 1);
    const auto k = static_cast<std::ptrdiff_t>(x);
    double v = static_cast<double>(first[k]);
    if (x > static_cast<double>(k)) v += (static_cast<double>(first[k + 1]) - v) * (x - static_cast<double>(k));
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
