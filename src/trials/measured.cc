#include "trials/measured.h"

#include <algorithm>
#include <cmath>

namespace orrery {

FixedAndEach fitted(const Moments& moments, const std::string& kind) {
  FixedAndEach out;
  const auto of = [&](const char* what) {
    const auto it = moments.find(kind + " " + what);
    return it == moments.end() ? 0.0 : it->second.value;
  };
  const double n = of("n"), nn = of("nn"), t = of("t"), nt = of("nt");
  if (n <= 0) return out;
  const double variance = nn - n * n;
  // Sizes within 10 % of each other say nothing of what a piece of no items would take.
  if (variance < 0.01 * n * n) {
    out.item_s = std::max(1e-9, t / n);
    out.known_items = n;
    return out;
  }
  double each = std::max(0.0, (nt - n * t) / variance), fixed = t - each * n;
  if (fixed < 0) {
    fixed = 0;
    each = nt / nn;
  }
  out.fixed_s = fixed;
  out.item_s = std::max(1e-9, each);
  return out;
}

std::map<std::string, double> moments_of(const std::string& kind, double items, double seconds) {
  return {{kind + " n", items}, {kind + " nn", items * items}, {kind + " t", seconds}, {kind + " nt", items * seconds}};
}

double weight_of_newest(std::int64_t count) { return std::max(1 / static_cast<double>(count + 1), 1.0 / 16); }

MeasuredTimes times_of(const Moments& moments) {
  const FixedAndEach item = fitted(moments, "item"), metric = fitted(moments, "metric");
  return {item.item_s, item.fixed_s, metric.item_s, metric.fixed_s, metric.known_items};
}

BelievedMetric believed_metric(const MeasuredTimes& times, double items, double least_s) {
  BelievedMetric m;
  m.fixed_s = times.metric_fixed_s;
  m.seconds = m.fixed_s + times.metric_item_s * items;
  // Smaller pieces than were seen may take as long: where something could be won, halves are tried, and then it is
  // known.
  if (times.metric_known_items > 0) {
    const bool worth_it = times.metric_known_items * times.metric_item_s >= least_s;
    m.least_items = std::max<std::int64_t>(1, std::llround(times.metric_known_items * (worth_it ? 0.5 : 1)));
  }
  return m;
}

}  // namespace orrery
