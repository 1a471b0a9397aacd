#include "operators/measure.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace orrery {
namespace {

double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - static_cast<double>(low));
}

}  // namespace

Timing measure(const std::function<double(std::int64_t)>& run, const MeasureTerms& terms, Lockstep& ranks) {
  constexpr std::int64_t kMost = 1'000'000;
  Timing t;
  const auto batch = [&](std::int64_t n) {
    if (!ranks.meet()) return 0.0;
    const double mine = run(n);
    return mine <= 0 ? 0 : ranks.most(mine);
  };
  // Warm-up: caches, page tables, clocks; it also tells how many repetitions are a batch.
  double spent = 0;
  std::int64_t n = 1;
  for (int i = 0; i < 24; ++i) {
    const double ns = batch(n);
    spent += ns;
    if (ns <= 0) return t;
    if (i > 0 && (ns >= 0.5 * terms.batch_ns || n >= kMost)) break;
    const double wanted = static_cast<double>(n) * terms.batch_ns / ns;
    const double next = std::clamp(wanted, static_cast<double>(n), 10.0 * static_cast<double>(n));
    n = static_cast<std::int64_t>(ranks.of_first(std::min(next, static_cast<double>(kMost))));
    if (i > 0 && spent > terms.budget_ns / 2) break;
  }
  std::vector<double> each;
  while (static_cast<int>(each.size()) < terms.most_batches) {
    const bool enough = static_cast<int>(each.size()) >= terms.least_batches && spent >= terms.budget_ns;
    if (ranks.of_first(enough ? 1 : 0) > 0) break;
    const double ns = batch(n);
    if (ns <= 0) return Timing{};
    spent += ns;
    each.push_back(ns / static_cast<double>(n));
  }
  std::sort(each.begin(), each.end());
  t.ns = quantile(each, 0.5);
  t.least_ns = each.front();
  t.spread = (quantile(each, 0.75) - quantile(each, 0.25)) / 2 / t.ns;
  t.batches = static_cast<std::int64_t>(each.size());
  t.repetitions = n;
  // Quartiles do not see that most batches were slow.
  t.noisy = t.spread > terms.noisy || t.ns > (1 + 5 * terms.noisy) * t.least_ns;
  return t;
}

}  // namespace orrery
