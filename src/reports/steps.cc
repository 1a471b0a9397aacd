#include <fmt/format.h>

#include <algorithm>

#include "reports/reports.h"

namespace orrery {

namespace {

// "10 to 13" where nothing is missing, else "10, 12, 13"; long lists are cut.
std::string listed(const std::vector<std::int64_t>& sorted) {
  if (sorted.empty()) return "none";
  const auto n = static_cast<std::int64_t>(sorted.size());
  if (n > 2 && sorted.back() - sorted.front() == n - 1) return fmt::format("{} to {}", sorted.front(), sorted.back());
  std::string s;
  for (std::size_t i = 0; i < sorted.size() && i < 40; ++i) s += fmt::format("{}{}", i ? ", " : "", sorted[i]);
  if (sorted.size() > 40) s += ", ...";
  return s;
}

}  // namespace

Result<StepRows> select_steps(const ExecGraph& g, const std::vector<std::int64_t>& numbers) {
  std::vector<std::int64_t> known;
  for (const Step& s : g.steps) known.push_back(s.number);
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  for (std::int64_t n : numbers)
    if (!std::binary_search(known.begin(), known.end(), n))
      return fail(fmt::format("no step {} in the input", n), "--steps", "the steps are " + listed(known));

  StepRows rows;
  for (std::uint32_t i = 0; i < g.steps.size(); ++i)
    if (numbers.empty() || std::find(numbers.begin(), numbers.end(), g.steps[i].number) != numbers.end())
      rows.push_back(i);
  std::stable_sort(rows.begin(), rows.end(), [&](std::uint32_t a, std::uint32_t b) {
    const Step &x = g.steps[a], &y = g.steps[b];
    if (x.number != y.number) return x.number < y.number;
    return g.ranks[x.rank].rank < g.ranks[y.rank].rank;
  });
  return rows;
}

Window replayed_window(const Replay& r, const Step& s) { return {r.end[raw(s.begin_node)], r.end[raw(s.end_node)]}; }

Cell percent(double part, double whole) {
  if (whole == 0) return {};
  return 100.0 * part / whole;
}

}  // namespace orrery
