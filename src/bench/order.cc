#include "bench/order.h"

#include <algorithm>
#include <map>
#include <queue>
#include <set>
#include <utility>

namespace orrery {

std::vector<std::string> levels_of(const BenchRun& run) {
  return {std::string(name_of(run.task)),
          run.model.name,
          run.techniques_text(),
          std::to_string(run.batch),
          std::to_string(run.seq_length),
          std::to_string(run.gpus),
          run.precision,
          run.framework == BenchFramework::command ? run.command : std::string(name_of(run.framework))};
}

std::vector<std::size_t> by_information(const std::vector<OrderedRun>& runs) {
  const std::size_t factors = runs.empty() ? 0 : runs.front().levels.size();
  // Levels as numbers, of the factors that vary.
  std::vector<std::map<std::string, std::uint64_t>> known(factors);
  std::vector<std::vector<std::uint64_t>> level(runs.size());
  for (const OrderedRun& r : runs)
    for (std::size_t f = 0; f < factors; ++f) known[f].try_emplace(r.levels[f], known[f].size());
  for (std::size_t i = 0; i < runs.size(); ++i)
    for (std::size_t f = 0; f < factors; ++f)
      if (known[f].size() > 1) level[i].push_back(f << 16 | known[f].at(runs[i].levels[f]));

  std::set<std::uint64_t> told;  // a level, or two of them
  const auto each = [&](std::size_t i, const auto& take) {
    for (std::size_t a = 0; a < level[i].size(); ++a) {
      take(level[i][a]);
      for (std::size_t b = a + 1; b < level[i].size(); ++b) take((level[i][a] + 1) << 32 | level[i][b]);
    }
  };
  const auto news = [&](std::size_t i) {
    double n = 0;
    each(i, [&](std::uint64_t what) { n += told.count(what) == 0 ? 1 : 0; });
    return n / std::max(1e-3, runs[i].seconds);
  };
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (runs[i].told) each(i, [&](std::uint64_t what) { told.insert(what); });

  // What a run tells only shrinks: a value worked out earlier is a bound.
  struct Bound {
    double value;
    std::size_t run;
    std::size_t round;
  };
  const auto later = [&](const Bound& a, const Bound& b) {
    if (a.value != b.value) return a.value < b.value;
    if (runs[a.run].seconds != runs[b.run].seconds) return runs[a.run].seconds > runs[b.run].seconds;
    return a.run > b.run;
  };
  std::priority_queue<Bound, std::vector<Bound>, decltype(later)> queue(later);
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (!runs[i].told) queue.push({news(i), i, 0});
  std::vector<std::size_t> order;
  while (!queue.empty()) {
    Bound best = queue.top();
    queue.pop();
    if (best.round != order.size()) {
      best.value = news(best.run);
      best.round = order.size();
      queue.push(best);
      continue;
    }
    each(best.run, [&](std::uint64_t what) { told.insert(what); });
    order.push_back(best.run);
  }
  return order;
}

std::vector<bool> within_budget(const std::vector<OrderedRun>& runs, const std::vector<std::size_t>& order,
                                double budget_s) {
  std::vector<bool> in(runs.size(), false);
  double left = budget_s;
  for (const std::size_t i : order) {
    if (budget_s > 0 && runs[i].seconds > left) continue;
    in[i] = true;
    left -= runs[i].seconds;
  }
  return in;
}

}  // namespace orrery
