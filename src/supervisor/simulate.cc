#include "supervisor/simulate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <queue>

#include "base/parallel.h"
#include "supervisor/checkpoint_interval.h"
#include "supervisor/study_failures.h"

namespace orrery {
namespace {

// The finalizer of splitmix64: every input bit moves every output bit, on every machine alike.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// The draws of one failure, by its number: what a policy does with them disturbs no other.
struct Draws {
  std::uint64_t key;
  double uniform(std::uint64_t which) const {  // in [0, 1)
    return static_cast<double>(mix(key + which) >> 11) * 0x1p-53;
  }
};
enum Draw : std::uint64_t { kLife, kReason, kHalf, kTail, kAutomatic, kRepair };

SaveRhythm rhythm_of(const MonthsQuestion& q, Policy policy) {
  const bool async = policy.saves == Saves::async;
  return {.startup = q.startup_s,
          .interval = q.interval_s,
          .block = async ? q.copy_s : q.save_s,
          .persist = async ? std::max(0.0, q.save_s - q.copy_s) : 0};
}

double mtbf_of(const MonthsQuestion& q) { return q.mtbf_s > 0 ? q.mtbf_s : study_mtbf_s(static_cast<double>(q.gpus)); }

std::vector<double> shares_up_to() {  // of the reasons, each with those before it
  std::vector<double> upto;
  double sum = 0;
  for (const StudyFailure& f : study_failures()) upto.push_back(sum += f.count);
  for (double& u : upto) u /= sum;
  return upto;
}

struct Trial {
  double running_s = 0, useful_s = 0;
  std::vector<CauseLoss> causes;
};

class OneTrial {
 public:
  OneTrial(const MonthsQuestion& q, Policy policy, const SaveRhythm& rhythm, const std::vector<double>& upto)
      : q_(q), policy_(policy), rhythm_(rhythm), upto_(upto) {
    for (std::int64_t i = 0; i < q.spares; ++i) spares_.push(0);
  }

  Trial run(std::uint64_t number) {
    Trial t;
    t.causes.resize(upto_.size() + 2);
    CauseLoss &first = t.causes[upto_.size()], &saves = t.causes.back();
    const double end = 86'400 * q_.days, mtbf = mtbf_of(q_);
    CauseLoss* started_by = &first;
    double now = 0;
    for (std::uint64_t failure = 0;; ++failure) {
      const Draws draws{mix(mix(q_.seed) ^ mix(number) * 3) ^ mix(failure * 8)};
      const double life = -mtbf * std::log1p(-draws.uniform(kLife));
      const bool last = now + life >= end;
      const RhythmProgress p = progress_at(rhythm_, last ? end - now : life);
      t.running_s += last ? end - now : life;
      started_by->starting_s += p.starting;
      saves.saving_s += p.saving;
      t.useful_s += last ? p.trained : p.kept;
      if (last) return t;
      now += life;
      const auto reason = static_cast<std::size_t>(
          std::upper_bound(upto_.begin(), upto_.end() - 1, draws.uniform(kReason)) - upto_.begin());
      CauseLoss& loss = t.causes[reason];
      ++loss.failures;
      loss.work_s += p.trained - p.kept;
      const double wait = std::min(wait_after(now, study_failures()[reason], draws), end - now);
      loss.waiting_s += wait;
      now += wait;
      if (now >= end) return t;
      started_by = &loss;
    }
  }

 private:
  // From the failure to the next start.
  double wait_after(double now, const StudyFailure& f, const Draws& draws) {
    const double people = restart_by_people_s(f, draws.uniform(kHalf), draws.uniform(kTail));
    if (policy_.restarts == Restarts::people || draws.uniform(kAutomatic) >= q_.automatic) return people;
    const double noticed = q_.detect_s + q_.check_s;
    if (!f.of_node) return noticed;
    // The bad node comes back as a spare; the first node that is whole takes its place, or one that people find.
    const double back = now - q_.repair_s * std::log1p(-draws.uniform(kRepair));
    const double first = spares_.empty() ? back : std::min(back, spares_.top());
    const double wait = std::max(0.0, first - now);
    if (people < wait) return noticed + people;
    if (!spares_.empty() && first == spares_.top()) {
      spares_.pop();
      spares_.push(back);
    }
    return noticed + wait;
  }

  const MonthsQuestion& q_;
  Policy policy_;
  const SaveRhythm& rhythm_;
  const std::vector<double>& upto_;
  std::priority_queue<double, std::vector<double>, std::greater<>> spares_;  // when each is whole
};

}  // namespace

std::string_view name_of(Policy policy) {
  const bool async = policy.saves == Saves::async;
  if (policy.restarts == Restarts::people) return async ? "manual-async" : "manual-sync";
  return async ? "guard-async" : "guard-sync";
}

double expected_failures(const MonthsQuestion& q) {
  return 86'400 * q.days / mtbf_of(q) * static_cast<double>(q.trials);
}

PolicyMonths simulate_months(const MonthsQuestion& q, Policy policy, unsigned threads) {
  PolicyMonths m{.policy = policy, .mtbf_s = mtbf_of(q), .wall_s = 86'400 * q.days, .ettr = {}, .causes = {}};
  SaveRhythm rhythm = rhythm_of(q, policy);
  m.best_interval_s = best_interval_s(rhythm, m.mtbf_s);
  m.young_s = young_interval_s(rhythm.block, m.mtbf_s);
  m.daly_s = daly_interval_s(rhythm.block, m.mtbf_s);
  if (rhythm.interval <= 0) rhythm.interval = m.best_interval_s;
  m.interval_s = rhythm.interval;

  const std::vector<double> upto = shares_up_to();
  std::vector<Trial> trials(static_cast<std::size_t>(q.trials));
  for_each_row(trials.size(), worker_count(threads),
               [&](std::size_t i, unsigned) { trials[i] = OneTrial(q, policy, rhythm, upto).run(i); });

  for (const StudyFailure& f : study_failures()) m.causes.push_back({.cause = f.reason});
  m.causes.push_back({.cause = "start"});
  m.causes.push_back({.cause = "saves"});
  const double each = 1 / static_cast<double>(q.trials);
  for (const Trial& t : trials) {
    m.running_s += each * t.running_s;
    m.useful_s += each * t.useful_s;
    m.ettr.push_back(t.useful_s / m.wall_s);
    for (std::size_t c = 0; c < m.causes.size(); ++c) {
      m.causes[c].failures += each * t.causes[c].failures;
      m.causes[c].work_s += each * t.causes[c].work_s;
      m.causes[c].waiting_s += each * t.causes[c].waiting_s;
      m.causes[c].starting_s += each * t.causes[c].starting_s;
      m.causes[c].saving_s += each * t.causes[c].saving_s;
      m.failures += each * t.causes[c].failures;
    }
  }
  std::sort(m.ettr.begin(), m.ettr.end());
  return m;
}

}  // namespace orrery
