#include "bench/plan_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <unordered_map>

#include "base/median.h"

namespace orrery {
namespace {

// Of the search for the largest batch: doublings and halvings until one fits and one does not.
constexpr double kProbes = 8, kProbeSteps = 2;

constexpr double kTracedStep = 3;  // times a step that is not

double first_startup(BenchFramework f) { return f == BenchFramework::trainer ? 0.5 : 15; }

// The task is the first part of an id, the framework or the command's name the last one; of operators it is all the
// same program.
std::string task_of_id(const std::string& id) { return id.substr(0, id.find('/')); }
std::string program_of_id(const std::string& id) {
  return task_of_id(id) == name_of(BenchTask::operators) ? "" : id.substr(id.rfind('/') + 1);
}

}  // namespace

std::string_view name_of(PlanState s) {
  constexpr std::array<std::string_view, 6> kNames = {"planned",      "measured",    "refused",
                                                      "does-not-fit", "over-budget", "not-chosen"};
  return kNames[static_cast<std::size_t>(s)];
}

std::string pace_key(const BenchRun& run) {
  const std::string id = run.id();
  return task_of_id(id) + "/" + program_of_id(id);
}

Pace pace_of(const std::vector<RunRow>& rows, const BenchRun& run) {
  Pace p;
  const std::string id = run.id();
  std::vector<double> startups, scales, all, of_task;
  for (const RunRow& r : rows) {
    if (r.state != RunState::done || program_of_id(r.run) != program_of_id(id)) continue;
    if (r.startup_s) startups.push_back(*r.startup_s);
    if (r.estimated_step_ms && *r.estimated_step_ms > 0) scales.push_back(r.step_ms.median / *r.estimated_step_ms);
    if (r.kind == RunKind::probe) continue;
    all.push_back(r.seconds);
    if (task_of_id(r.run) == task_of_id(id)) of_task.push_back(r.seconds);
  }
  p.startup_s = startups.empty() ? first_startup(run.framework) : median(startups);
  if (!scales.empty()) p.scale = median(scales);
  if (!all.empty()) p.unknown_s = median(of_task.empty() ? all : of_task);
  return p;
}

double counted_steps(const BenchRun& run, const MeasuredAs& as) {
  const std::int64_t traced = run.framework == BenchFramework::trainer ? 0 : as.trace_steps;
  return static_cast<double>(as.warmup_steps + as.steps) + kTracedStep * static_cast<double>(traced);
}

double seconds_of(const BenchConfig& c, const BenchRun& run, const RunEstimate& e, const Pace& pace) {
  const double probes = run.batch == 0 ? kProbes : 0;
  if (!e.unknown.empty()) return (1 + probes) * std::min(pace.unknown_s, c.time_limit_s);
  const double step_s = e.step_ms * pace.scale / 1e3;
  const double steps = counted_steps(run, {run.batch, c.warmup_steps, c.steps, c.trace_steps});
  return std::min(c.time_limit_s, pace.startup_s + steps * step_s) +
         probes * std::min(c.time_limit_s, pace.startup_s + kProbeSteps * step_s);
}

RunPlan plan_runs(const BenchConfig& config, RunEstimator& estimator, const std::vector<RunRow>& rows,
                  const RunPlanTerms& terms) {
  RunPlan plan;
  ExpandedMatrix expanded = expand(config);
  plan.doubles = expanded.doubles;
  std::unordered_map<std::string, std::vector<const RunRow*>> results;
  for (const RunRow& r : rows)
    if (r.kind == RunKind::run && is_result(r.state)) results[r.hash].push_back(&r);
  std::map<std::string, Pace> paces;
  std::vector<OrderedRun> ordered;
  for (BenchRun& run : expanded.runs) {
    PlannedRun p;
    p.spec = spec_of(config, run);
    p.hash = hash_of(p.spec);
    p.estimate = estimator.estimate_of(run);
    const auto [pace, fresh] = paces.try_emplace(pace_key(run));
    if (fresh) pace->second = pace_of(rows, run);
    p.seconds = seconds_of(config, run, p.estimate, pace->second);
    if (const auto found = results.find(p.hash); found != results.end()) {
      p.attempts = static_cast<std::int64_t>(found->second.size());
      p.latest = *found->second.back();
    }
    // A limit that was raised since: the search goes on where it ended.
    const bool goes_on =
        run.batch == 0 && p.attempts > 0 && p.latest.batch < config.largest_batch && ended_at_its_limit(p.latest, rows);
    if (p.attempts > 0 && !terms.repeat && !goes_on) {
      p.state = PlanState::measured;
    } else if (!terms.only.empty() && run.id().find(terms.only) == std::string::npos) {
      p.state = PlanState::not_chosen;
      p.reason = "--runs " + terms.only;
    } else if (!p.estimate.fits && !terms.unfit) {
      p.state = PlanState::does_not_fit;
      p.reason =
          fmt::format("{:.1f} GiB are estimated, {:.1f} are there", p.estimate.memory_gib, p.estimate.capacity_gib);
    }
    const bool waits = p.state == PlanState::planned;
    ordered.push_back({levels_of(run), p.seconds, p.attempts > 0 && !waits});
    p.run = std::move(run);
    plan.runs.push_back(std::move(p));
  }
  // What does not run tells nothing and is not in the order.
  std::vector<std::size_t> places;
  std::vector<OrderedRun> waiting;
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    if (plan.runs[i].state != PlanState::planned && !ordered[i].told) continue;
    places.push_back(i);
    waiting.push_back(ordered[i]);
  }
  const std::vector<std::size_t> order = by_information(waiting);
  const std::vector<bool> in = within_budget(waiting, order, terms.budget_s > 0 ? terms.budget_s : config.budget_s);
  for (const std::size_t i : order) {
    PlannedRun& p = plan.runs[places[i]];
    if (in[i]) {
      plan.order.push_back(places[i]);
      plan.seconds += p.seconds;
    } else {
      p.state = PlanState::over_budget;
      p.reason = fmt::format("{:.0f} s do not fit into what the budget leaves", p.seconds);
    }
  }
  for (RefusedRun& r : expanded.refused) {
    if (!terms.only.empty() && r.run.id().find(terms.only) == std::string::npos) continue;
    PlannedRun p;
    p.run = std::move(r.run);
    p.state = PlanState::refused;
    p.reason = std::move(r.reason);
    p.estimate.unknown = "refused";
    plan.runs.push_back(std::move(p));
  }
  return plan;
}

std::int64_t BatchSearch::next() const {
  if (fits == 0 && fails == 0) return std::min(first, limit);
  if (fails == 0) return fits >= limit ? 0 : std::min(2 * fits, limit);
  if (fails <= 1) return 0;
  if (fits == 0) return std::max<std::int64_t>(1, fails / 2);
  return fails - fits <= 1 ? 0 : fits + (fails - fits) / 2;
}

void BatchSearch::tried(std::int64_t batch, bool fitted) {
  if (fitted) {
    fits = std::max(fits, batch);
  } else if (fails == 0 || batch < fails) {
    fails = batch;
  }
}

KnownBatches known_batches(const std::vector<RunRow>& rows, const std::string& hash) {
  KnownBatches k;
  std::set<std::int64_t> fit, cut;
  for (const RunRow& r : rows) {
    if (r.kind != RunKind::probe || r.hash != hash || !is_result(r.state)) continue;
    cut.erase(r.batch);  // tried again
    if (r.state == RunState::done) {
      fit.insert(r.batch);
    } else if (r.state == RunState::out_of_memory) {
      k.fails = k.fails == 0 ? r.batch : std::min(k.fails, r.batch);
    } else {
      cut.insert(r.batch);
    }
  }
  k.fit.assign(fit.begin(), fit.end());
  k.cut = !cut.empty();
  return k;
}

bool ended_at_its_limit(const RunRow& run, const std::vector<RunRow>& rows) {
  if (run.state != RunState::done) return false;
  const KnownBatches k = known_batches(rows, run.hash);
  return k.fails == 0 && !k.cut && !k.fit.empty() && k.fit.back() == run.batch;
}

}  // namespace orrery
