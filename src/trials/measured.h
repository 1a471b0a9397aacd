// Times that were measured, as a fixed part and one for each item: what every piece costs anew, whatever its size, must
// not be taken for work that grows with the items.
#pragma once
#include <map>
#include <string>

#include "trials/config.h"
#include "trials/run_store.h"

namespace orrery {

// Means of n, n^2, t, n t over measurements of `n` items that took `t` seconds, under the names "KIND n", ...
using Moments = std::map<std::string, StoredPrior>;

struct FixedAndEach {
  double fixed_s = 0, item_s = kNotKnown;  // kNotKnown: nothing was measured
  double known_items = 0;                  // > 0: pieces of about this size alone were seen, fixed_s is not known
};
// Least squares, neither part below 0; with pieces of one size the fixed part is taken for 0.
FixedAndEach fitted(const Moments& moments, const std::string& kind);

// The four moments of one measurement, by name.
std::map<std::string, double> moments_of(const std::string& kind, double items, double seconds);

// What the newest measurement counts for, when `count` were before: all alike at first, then at least a 16th.
double weight_of_newest(std::int64_t count);

MeasuredTimes times_of(const Moments& moments);  // kinds "item" and "metric"

// Sets what a unit needs to know of its metric; `items` of it, in pieces of no less than `least_s`.
struct BelievedMetric {
  double seconds = 0, fixed_s = 0;
  std::int64_t least_items = 1;
};
BelievedMetric believed_metric(const MeasuredTimes& times, double items, double least_s);

}  // namespace orrery
