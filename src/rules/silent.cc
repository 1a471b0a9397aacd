// Trouble without an error line, from the steps that were logged.
#include <algorithm>
#include <cmath>
#include <map>

#include "base/median.h"
#include "rules/diagnose.h"

namespace orrery {
namespace {

constexpr double kSpike = 1.5;          // the Acme study's: a loss above 1.5 times the one before
constexpr double kSlower = 1.04;        // steps that became slow: at least so many times the median before,
constexpr double kSlowerThanNoise = 3;  // and by so many times what they varied
constexpr std::size_t kBaseline = 3;    // steps before
constexpr std::size_t kSlowTail = 2;    // slow ones at the end
constexpr std::size_t kRobustWindow = 32;
constexpr double kRobustDeviations = 8;  // of the median absolute deviation
constexpr std::size_t kStayed = 8;       // steps that a spike must last to be one that does not recover

Evidence drawn(const StepRows& s, std::size_t i, const std::string& why) {
  Evidence e;
  e.row = e.rule = kNoRow;
  e.file = s.file[i];
  e.line = s.line[i];
  e.rank = s.rank[i] >= 0 ? s.rank[i] : -1;
  e.why = why;
  return e;
}

Evidence bad_numbers(const StepRows& s, std::size_t i, const std::string& what) {
  Evidence e = drawn(s, i, what);
  e.reason = "Runtime Error";
  e.category = "Framework";
  e.restart = "auto-rollback";
  e.kind = "numeric";
  e.where = "rank";
  e.tier = 3;
  e.confidence = 0.7;
  e.advice = "The numbers went bad: go back to an earlier checkpoint and skip the batches after it.";
  return e;
}

// Indices of one series: steps of one file, one writer, with the value given.
using Series = std::vector<std::size_t>;

template <class Has>
std::vector<Series> series(const StepRows& s, Has has) {
  std::map<std::pair<std::uint32_t, std::int32_t>, Series> by;
  for (std::size_t i = 0; i < s.size(); ++i)
    if (has(i)) by[{s.file[i], s.rank[i]}].push_back(i);
  std::vector<Series> all;
  for (auto& [key, list] : by) all.push_back(std::move(list));
  return all;
}

void straggler(const StepRows& s, const Series& list, std::vector<Evidence>& out) {
  // Only the last stretch of steps that count on: a job that began anew has other steps.
  std::size_t from = list.size() - 1;
  while (from > 0 && (s.step[list[from]] < 0 || s.step[list[from - 1]] <= s.step[list[from]])) --from;
  const std::size_t n = list.size() - from;
  if (n < kBaseline + kSlowTail) return;
  const auto at = [&](std::size_t k) { return s.seconds[list[from + k]]; };
  // The tail is slow as a whole, what is before it is not.
  std::vector<double> fastest_from(n);
  for (std::size_t k = n; k-- > 0;) fastest_from[k] = k + 1 < n ? std::min(at(k), fastest_from[k + 1]) : at(k);
  double slowest_before = 0, fastest_before = at(0);
  for (std::size_t begin = 1; begin + kSlowTail <= n; ++begin) {
    slowest_before = std::max(slowest_before, at(begin - 1));
    fastest_before = std::min(fastest_before, at(begin - 1));
    const double fastest_after = fastest_from[begin];
    const double noise = slowest_before - fastest_before;
    if (begin < kBaseline || fastest_after < slowest_before + (kSlowerThanNoise - 1) * noise) continue;
    std::vector<double> before;
    for (std::size_t k = 0; k < begin; ++k) before.push_back(at(k));
    const double usual = median(before);
    if (usual <= 0 || fastest_after < kSlower * usual || fastest_after - usual < kSlowerThanNoise * noise) continue;
    Evidence e = drawn(s, list[from + begin], "slow-steps");
    const auto percent = static_cast<std::int64_t>(std::lround(100 * (fastest_after / usual - 1)));
    e.text = "steps take at least " + std::to_string(percent) + " % longer from here on than before";
    e.reason = "Straggler";
    e.category = "Infrastructure";
    e.restart = "auto-exclude";
    e.kind = "straggler";
    e.where = "none";
    e.tier = 4;
    e.confidence = 0.6;
    e.advice =
        "Steps became slower and stayed so: one GPU or node is slow; find it (orrery checknodes) and restart without "
        "it.";
    out.push_back(std::move(e));
    return;
  }
}

void losses(const LogTable& table, const Series& list, std::vector<Evidence>& out) {
  const StepRows& s = table.steps;
  // NaN that nothing finite follows
  std::size_t i = list.size();
  while (i > 0 && !std::isfinite(s.loss[list[i - 1]])) --i;
  if (i < list.size()) {
    Evidence e = bad_numbers(s, list[i], "loss-not-finite");
    e.text = "the loss is not finite from here on";
    out.push_back(std::move(e));
    return;
  }
  // A spike (the study's rule) that does not come down again, robustly: above the median by many deviations.
  for (std::size_t k = kRobustWindow; k + kStayed <= list.size(); ++k) {
    if (!(s.loss[list[k]] > kSpike * s.loss[list[k - 1]]) || s.loss[list[k - 1]] <= 0) continue;
    std::vector<double> before;
    for (std::size_t b = k - kRobustWindow; b < k; ++b) before.push_back(s.loss[list[b]]);
    const double usual = median(before);
    for (double& b : before) b = std::fabs(b - usual);
    const double limit = usual + std::max(kRobustDeviations * median(before), (kSpike - 1) * std::fabs(usual));
    bool stays = true;
    for (std::size_t a = k; a < list.size() && stays; ++a) stays = s.loss[list[a]] > limit;
    if (!stays) continue;
    Evidence e = bad_numbers(s, list[k], "loss-spike");
    e.text = "the loss rises above " + std::to_string(limit) + " here and does not come down";
    out.push_back(std::move(e));
    return;
  }
}

void gradients(const StepRows& s, const Series& list, std::vector<Evidence>& out) {
  std::size_t i = list.size();
  while (i > 0 && !std::isfinite(s.grad_norm[list[i - 1]])) --i;
  if (i == list.size()) return;
  Evidence e = bad_numbers(s, list[i], "gradients-not-finite");
  e.text = "the norm of the gradients is not finite from here on";
  out.push_back(std::move(e));
}

// Steps stop while the log goes on.
void hang(const LogTable& table, std::uint32_t file, std::vector<Evidence>& out) {
  const LogFile& f = table.files[file];
  if (f.steps < 8 || !f.last_step_time.known() || !f.last_time.known()) return;
  if (f.last_step_time.year != f.last_time.year) return;
  std::vector<double> seconds;
  for (std::size_t i = 0; i < table.steps.size(); ++i)
    if (table.steps.file[i] == file && table.steps.seconds[i] > 0 && table.steps.relative[i] == 0)
      seconds.push_back(table.steps.seconds[i]);
  // Where steps do not say how long they took: the time between them.
  if (seconds.empty() && f.first_step_time.year == f.last_step_time.year && f.steps > f.steps_before_time)
    seconds.push_back(static_cast<double>(f.last_step_time.in_year - f.first_step_time.in_year) * 1e-9 /
                      static_cast<double>(f.steps - f.steps_before_time));
  if (seconds.empty()) return;
  const double silent = static_cast<double>(f.last_time.in_year - f.last_step_time.in_year) * 1e-9;
  if (silent < std::max(900.0, 20 * median(seconds))) return;
  Evidence e;
  e.row = e.rule = kNoRow;
  e.file = file;
  e.line = f.last_step_line;
  e.why = "no-progress";
  e.text = "no step for " + std::to_string(static_cast<std::int64_t>(silent)) + " s after this one, which took " +
           std::to_string(median(seconds)) + " s";
  e.reason = "NCCL Timeout Error";
  e.category = "Infrastructure";
  e.restart = "auto";
  e.kind = "hang";
  e.where = "none";
  e.tier = 5;
  e.confidence = 0.5;
  e.advice = "Training stopped moving without an error: look at stacks of all ranks, restart.";
  out.push_back(std::move(e));
}

}  // namespace

std::vector<Evidence> silent_evidence(const LogTable& table) {
  const StepRows& s = table.steps;
  std::vector<Evidence> out;
  for (const Series& list : series(s, [&](std::size_t i) { return s.has_loss[i] != 0; })) losses(table, list, out);
  for (const Series& list : series(s, [&](std::size_t i) { return !(s.grad_norm[i] < 0); })) gradients(s, list, out);
  for (const bool relative : {false, true})
    for (const Series& list :
         series(s, [&](std::size_t i) { return s.seconds[i] > 0 && (s.relative[i] != 0) == relative; }))
      straggler(s, list, out);
  for (std::uint32_t f = 0; f < table.files.size(); ++f) hang(table, f, out);
  return out;
}

}  // namespace orrery
