#include "bench/analysis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <unordered_map>
#include <unordered_set>

namespace orrery {
namespace {

constexpr double kLeastDrift = 0.05, kLeastChange = 0.03, kLeastOperatorChange = 0.1, kTimesNoise = 3, kNoisy = 0.2;

std::optional<double> error_of(double estimated, double measured) {
  if (!(measured > 0) || !(estimated > 0)) return std::nullopt;
  return 100 * (estimated / measured - 1);
}

void judge_change(double change, double allowed, ComparedRun& c) {
  c.change_pct = 100 * change;
  c.allowed_pct = 100 * allowed;
  c.change = change > allowed ? Change::slower : change < -allowed ? Change::faster : Change::same;
}

}  // namespace

std::optional<double> BenchEntry::memory_gib() const {
  // What came to no model has but Python's own.
  if (!row || row->state == RunState::missing_package || row->state == RunState::refused) return std::nullopt;
  if (row->device_memory_gib || !row->host_memory_gib) return row->device_memory_gib;
  return (*row->host_memory_gib - row->host_base_gib.value_or(0)) / static_cast<double>(run.gpus);
}
std::optional<double> BenchEntry::tokens_per_s() const {
  return done() ? orrery::tokens_per_s(run, *row) : std::nullopt;
}
bool BenchEntry::noisy() const { return done() && row->step_ms.sd > kNoisy * row->step_ms.median; }
std::optional<double> BenchEntry::error_pct() const {
  if (!done() || !estimate.unknown.empty() || row->step_ms.count == 0) return std::nullopt;
  return error_of(estimate.step_ms, row->step_ms.median);
}
std::optional<double> BenchEntry::cpu_error_pct() const {
  if (!done() || !estimate.unknown.empty() || !row->cpu_ms) return std::nullopt;
  return error_of(estimate.step_ms, *row->cpu_ms);
}

std::vector<RunRow> newest(const std::vector<RunRow>& rows) {
  std::map<std::string, const RunRow*> by;
  for (const RunRow& r : rows)
    if (r.kind == RunKind::run && is_result(r.state)) by[r.run] = &r;
  std::vector<RunRow> out;
  for (const auto& [id, r] : by) out.push_back(*r);
  return out;
}

std::vector<BenchEntry> entries_of(const RunPlan& plan, const std::vector<RunRow>& rows, RunEstimator& estimator) {
  std::vector<BenchEntry> out;
  std::unordered_map<std::string, RunRow> results;     // the newest of each id
  std::unordered_map<std::string, const RunRow*> own;  // the newest of each specification
  std::unordered_map<std::string, std::int64_t> attempts;
  for (const RunRow& r : newest(rows)) results.emplace(r.run, r);
  for (const RunRow& r : rows) {
    if (r.kind != RunKind::run || !is_result(r.state)) continue;
    own[r.hash] = &r;
    ++attempts[r.hash];
  }
  const auto with_result = [&](BenchEntry& e, const RunRow& r) {
    e.row = r;
    e.state = name_of(r.state);
    e.reason = r.reason;
    e.attempts = attempts[r.hash];
    e.fitted = estimator.fitted_to(r.run);
    // Of the largest batch the one that was found is what is compared.
    if (e.run.batch == 0 && e.row->batch > 0) {
      BenchRun at = e.run;
      at.batch = e.row->batch;
      e.estimate = estimator.estimate_of(at);
    }
  };
  for (std::size_t i = 0; i < plan.runs.size(); ++i) {
    const PlannedRun& p = plan.runs[i];
    BenchEntry e;
    e.run = p.run;
    e.estimate = p.estimate;
    e.state = name_of(p.state);
    e.reason = p.reason;
    e.seconds = p.seconds;
    const auto place = std::find(plan.order.begin(), plan.order.end(), i);
    if (place != plan.order.end()) e.place = place - plan.order.begin() + 1;
    const auto found = own.find(p.hash);
    if (found != own.end()) with_result(e, *found->second);
    const bool known = results.erase(e.run.id()) > 0;
    e.otherwise = known && !e.row && p.state != PlanState::refused;
    if (!e.row && p.state == PlanState::not_chosen) continue;
    out.push_back(std::move(e));
  }
  std::vector<std::string> left;
  for (const auto& [id, r] : results) left.push_back(id);
  std::sort(left.begin(), left.end());
  for (const std::string& id : left) {
    auto run = run_of_spec(results.at(id).spec);
    if (!run) continue;
    BenchEntry e;
    e.run = std::move(*run);
    e.estimate = estimator.estimate_of(e.run);
    with_result(e, results.at(id));
    out.push_back(std::move(e));
  }
  return out;
}

double spread_of_median(const StepSpread& t) {
  if (t.count < 2 || !(t.median > 0)) return 0;
  return 1.253 * t.sd / std::sqrt(static_cast<double>(t.count)) / t.median;
}

NoiseCheck noise_of(const std::vector<RunRow>& rows) {
  NoiseCheck n;
  std::string hash;
  for (const RunRow& r : rows)
    if (r.kind == RunKind::reference && r.state == RunState::done) hash = r.hash;
  if (hash.empty()) return n;
  for (const RunRow& r : rows)
    if (r.hash == hash && r.kind != RunKind::probe && r.state == RunState::done && r.step_ms.count > 0)
      n.series.push_back(r);
  if (n.series.size() < 2) return n;
  std::vector<double> medians;
  double spread = 0;
  for (const RunRow& r : n.series) {
    medians.push_back(r.step_ms.median);
    spread = std::max(spread, spread_of_median(r.step_ms));
  }
  const StepSpread t = times_of(medians);
  if (!(t.mean > 0) || !(medians.front() > 0)) return n;
  n.noise = t.sd / t.mean;
  n.drift = medians.back() / medians.front() - 1;
  n.drifts = std::abs(n.drift) > std::max(kLeastDrift, kTimesNoise * spread);
  return n;
}

std::string_view name_of(Change c) {
  constexpr std::array<std::string_view, 7> kNames = {"same",      "faster",     "slower",   "fails-now",
                                                      "works-now", "only-there", "only-here"};
  return kNames[static_cast<std::size_t>(c)];
}

namespace {

// Operators of two runs that both ended well; the runs are the last of `out`.
void compare_operators(const StoredResults& before, const RunRow& o, const StoredResults& now, const RunRow& n,
                       double noise, std::vector<ComparedRun>& out) {
  std::map<std::pair<std::string, std::string>, std::pair<OperatorRate, OperatorRate>> rates;
  for (const auto& [id, rate] : before.operators)
    if (id == o.id) rates[{rate.operation, rate.shape}].first = rate;
  for (const auto& [id, rate] : now.operators)
    if (id == n.id) rates[{rate.operation, rate.shape}].second = rate;
  const std::size_t run = out.size() - 1;
  for (const auto& [name, both] : rates) {
    const auto ms = [](std::optional<double> x) { return x && *x > 0 ? std::optional(*x / 1e3) : std::nullopt; };
    ComparedRun c;
    c.run = n.run, c.operation = name.first, c.shape = name.second;
    c.old_ms = ms(both.first.us), c.new_ms = ms(both.second.us);
    if (!c.old_ms && !c.new_ms) continue;
    c.worked = c.old_ms.has_value();
    if (c.old_ms && c.new_ms) {
      const double spread = std::hypot(both.first.spread, both.second.spread);
      judge_change(*c.new_ms / *c.old_ms - 1,
                   std::max({kLeastOperatorChange, kTimesNoise * spread, kTimesNoise * noise}), c);
      if (c.change == Change::slower) out[run].change = Change::slower;
    } else {
      c.change = c.old_ms ? Change::only_old : Change::only_new;
    }
    out.push_back(std::move(c));
  }
}

}  // namespace

std::vector<ComparedRun> compare(const StoredResults& before, const StoredResults& now) {
  const std::vector<RunRow> old_rows = newest(before.rows), new_rows = newest(now.rows);
  const double noise = std::hypot(noise_of(before.rows).noise, noise_of(now.rows).noise);
  std::vector<ComparedRun> out;
  std::size_t a = 0, b = 0;
  while (a < old_rows.size() || b < new_rows.size()) {
    const bool in_old = a < old_rows.size() && (b >= new_rows.size() || old_rows[a].run <= new_rows[b].run);
    const bool in_new = b < new_rows.size() && (a >= old_rows.size() || new_rows[b].run <= old_rows[a].run);
    ComparedRun c;
    c.run = in_old ? old_rows[a].run : new_rows[b].run;
    const RunRow* o = in_old ? &old_rows[a++] : nullptr;
    const RunRow* n = in_new ? &new_rows[b++] : nullptr;
    const auto worked = [](const RunRow* r) { return r != nullptr && r->state == RunState::done; };
    c.worked = worked(o);
    if (c.worked && o->step_ms.median > 0) c.old_ms = o->step_ms.median;
    if (worked(n) && n->step_ms.median > 0) c.new_ms = n->step_ms.median;
    if (o == nullptr) {
      c.change = Change::only_new;
    } else if (n == nullptr) {
      c.change = Change::only_old;
    } else if (c.worked != worked(n)) {
      c.change = c.worked ? Change::fails_now : Change::works_now;
    } else if (c.old_ms && c.new_ms) {
      // Runs of the largest batch are compared by what a token takes.
      const double work =
          o->batch > 0 && n->batch > 0 ? static_cast<double>(n->batch) / static_cast<double>(o->batch) : 1;
      const double change = *c.new_ms / *c.old_ms / work - 1;
      const double spread = std::hypot(spread_of_median(o->step_ms), spread_of_median(n->step_ms));
      judge_change(change, std::max({kLeastChange, kTimesNoise * spread, kTimesNoise * noise}), c);
    }
    out.push_back(std::move(c));
    if (worked(o) && worked(n)) compare_operators(before, *o, now, *n, noise, out);
  }
  return out;
}

}  // namespace orrery
