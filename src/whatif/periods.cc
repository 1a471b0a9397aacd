#include "whatif/periods.h"

#include <algorithm>
#include <cmath>

namespace orrery {

Stretch longest_stretch(const std::vector<NamedCost>& l, std::size_t period, std::size_t least) {
  Stretch best;
  std::size_t start = 0;
  for (std::size_t i = 0; i + period <= l.size(); ++i) {
    if (i + period < l.size() && l[i].name == l[i + period].name) continue;
    const std::size_t length = i - start + period;  // of the periodic stretch that ends here
    if (i > start && length > best.length) best = {start, length / period, length};
    start = i + 1;
  }
  return best.layers >= 2 && best.length >= least ? best : Stretch{};
}

std::size_t find_period(const std::vector<NamedCost>& l) {
  std::size_t best = 0, best_length = 0;
  const std::size_t n = l.size();
  // a pass of tens of thousands of launches is looked at for short periods only: each takes a walk over all of it
  const std::size_t longest = std::min(n / 2, 40'000'000 / std::max<std::size_t>(1, n));
  for (std::size_t period = 4; period <= longest; ++period) {
    const Stretch s = longest_stretch(l, period, n / 3);
    const std::size_t length = s.layers * period;
    if (s.layers >= 2 && length > best_length + best_length / 20) best_length = length, best = period;
  }
  return best;
}

std::size_t shift_of_layers(const std::vector<NamedCost>& l, const Stretch& s, std::size_t period) {
  const std::size_t slack = s.length - s.layers * period;
  std::vector<double> cost;
  for (std::size_t k = 0; k <= slack; ++k) {
    double sum = 0;
    for (std::size_t i = s.first + k; i + period < s.first + k + s.layers * period; ++i)
      sum += std::abs(static_cast<double>(l[i].duration - l[i + period].duration));
    cost.push_back(sum);
  }
  const double least = *std::min_element(cost.begin(), cost.end());
  if (least > 0.7 * cost.front()) return 0;
  std::size_t k = 0;
  while (cost[k] > 1.1 * least) ++k;
  return k;
}

std::vector<std::size_t> layer_starts(const std::vector<NamedCost>& l, const std::vector<NamedCost>& model,
                                      std::size_t period, std::size_t layers, std::size_t first, std::size_t shift) {
  std::vector<std::size_t> out;
  std::size_t begin = 0;
  for (std::size_t i = 0; i + period < l.size(); ++i) {
    if (l[i].name != l[i + period].name) begin = i + 1;
    if (i + 1 - begin + period < layers * period) continue;
    std::size_t found = begin;
    bool goes_on = begin + shift + layers * period <= l.size();
    for (std::size_t k = begin + layers * period; goes_on && k < begin + shift + layers * period; ++k)
      goes_on = l[k].name == l[k - period].name;
    if (goes_on) found += shift;
    for (std::size_t k = 0; k <= layers; ++k) out.push_back(found + k * period);
    return out;
  }
  std::size_t j = 0;
  const std::size_t end = first + layers * period;
  for (std::size_t i = 0; i <= end && i < model.size(); ++i) {
    while (j < l.size() && l[j].name != model[i].name) ++j;
    if (j == l.size()) {
      if (i != end) return {};
      break;
    }
    if (i >= first && (i - first) % period == 0) out.push_back(j);
    ++j;
  }
  if (out.size() == layers) out.push_back(l.size());
  return out.size() == layers + 1 ? out : std::vector<std::size_t>{};
}

}  // namespace orrery
