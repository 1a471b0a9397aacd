#include <algorithm>
#include <cmath>
#include <map>

#include "base/median.h"
#include "whatif/pipeline_steps.h"

namespace orrery {
namespace {

// By row of steps.
std::vector<std::uint8_t> chosen(const PipelineTrace& t, const std::vector<std::int64_t>& numbers) {
  std::vector<std::uint8_t> out;
  for (const PipelineStep& s : t.steps)
    out.push_back(numbers.empty() || std::find(numbers.begin(), numbers.end(), s.number) != numbers.end());
  return out;
}

}  // namespace

std::vector<Ns> ideal_times(const PipelineTrace& t, const PipelineProgram& p, const std::vector<std::int64_t>& steps) {
  const std::vector<std::uint8_t> counts = chosen(t, steps);
  std::vector<std::vector<Ns>> lengths(t.types.size());
  for (const PipelineRow& r : p.rows)
    if (counts[r.step]) lengths[r.type].push_back(r.duration);
  std::vector<Ns> out(t.types.size(), 0);
  for (std::size_t k = 0; k < out.size(); ++k) {
    std::vector<Ns>& all = lengths[k];
    if (all.empty()) continue;
    if (is_communication(t.types[k].kind)) {
      std::sort(all.begin(), all.end());
      const std::size_t half = all.size() / 2;
      out[k] = all.size() % 2 == 1 ? all[half] : all[half - 1] + (all[half] - all[half - 1]) / 2;
    } else {
      long double sum = 0;
      for (const Ns d : all) sum += static_cast<long double>(d);
      out[k] = std::llround(sum / static_cast<long double>(all.size()));
    }
  }
  return out;
}

Changed make_ideal(const std::vector<Ns>& ideal, const std::function<bool(const PipelineRow&)>& chosen,
                   PipelineProgram& p) {
  Changed changed;
  for (PipelineRow& r : p.rows) {
    if (!chosen(r)) continue;
    changed.nodes += r.duration != ideal[r.type];
    r.duration = ideal[r.type];
  }
  return changed;
}

void drop_launch_delays(ExecGraph& g) {
  for (std::size_t e = 0; e < g.pred.size(); ++e) {
    const EdgeKind k = g.pred_kind[e];
    if (k == EdgeKind::stream || k == EdgeKind::launch || k == EdgeKind::sync) g.pred_lag[e] = 0;
  }
}

namespace {

// How much the `which` of `all` lies over the median of the others; 0 = not clearly.
double clearly_over(const std::vector<double>& all, std::size_t which) {
  constexpr double kLeast = 0.03, kSpreads = 3;
  std::vector<double> others;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (i != which && all[i] > 0) others.push_back(all[i]);
  if (others.empty()) return 0;
  const double middle = median(others);
  for (double& v : others) v = std::abs(v - middle);
  const double over = all[which] - middle;
  return over > std::max(kLeast * middle, kSpreads * median(others)) ? all[which] / middle : 0;
}

}  // namespace

std::vector<SlowPart> find_slow_parts(const PipelineTrace& t, const PipelineProgram& p,
                                      const std::vector<std::int64_t>& numbers) {
  const std::vector<std::uint8_t> counts = chosen(t, numbers);
  // Mean over steps of the time in passes, by rank.
  std::vector<double> sum(t.ranks.size(), 0);
  std::vector<std::vector<std::uint8_t>> ran(t.ranks.size(), std::vector<std::uint8_t>(t.steps.size(), 0));
  for (const PipelineRow& r : p.rows) {
    if (!counts[r.step] || !is_pass(t.types[r.type].kind)) continue;
    sum[r.rank] += static_cast<double>(r.duration);
    ran[r.rank][r.step] = 1;
  }
  std::map<std::int32_t, std::vector<std::uint32_t>> ranks_of;
  for (std::uint32_t k = 0; k < t.ranks.size(); ++k) {
    const auto steps = std::count(ran[k].begin(), ran[k].end(), 1);
    if (steps == 0) continue;
    sum[k] /= static_cast<double>(steps);
    ranks_of[t.ranks[k].pp].push_back(k);
  }
  std::vector<SlowPart> out;
  std::vector<double> stages;
  std::vector<std::int32_t> stage_of;
  for (const auto& [stage, ranks] : ranks_of) {
    std::vector<double> own;
    for (const std::uint32_t k : ranks) own.push_back(sum[k]);
    for (std::size_t i = 0; i < ranks.size(); ++i)
      if (const double slower = clearly_over(own, i); slower > 0) out.push_back({stage, ranks[i], slower});
    stages.push_back(median(own));
    stage_of.push_back(stage);
  }
  for (std::size_t s = 0; s < stages.size(); ++s)
    if (const double slower = clearly_over(stages, s); slower > 0) out.push_back({stage_of[s], kNone, slower});
  std::stable_sort(out.begin(), out.end(), [](const SlowPart& a, const SlowPart& b) { return a.slower > b.slower; });
  return out;
}

}  // namespace orrery
