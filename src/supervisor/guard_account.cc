#include "supervisor/guard_account.h"

#include <algorithm>
#include <charconv>

#include "checkpoint/manifest.h"

namespace orrery {
namespace {

constexpr double kFits = 1.5;  // steps before the first that was seen need at most so much of the time there was

double seconds(Ns from, Ns to) { return to > from ? static_cast<double>(to - from) * 1e-9 : 0; }

LostTime& of(std::vector<LostTime>& all, std::string_view cause) {
  for (LostTime& l : all)
    if (l.cause == cause) return l;
  all.push_back({});
  all.back().cause = cause;
  return all.back();
}

// In which the scheduler held it still.
double suspended(const AttemptRecord& a, Ns from, Ns to) {
  double sum = 0;
  for (const auto& [begin, end] : a.suspended) sum += seconds(std::max(from, begin), end == 0 ? to : std::min(to, end));
  return sum;
}

// Goes through time once: nothing is counted twice, whatever order the state's times are in.
struct Cursor {
  Ns at = 0, end = 0;
  const AttemptRecord* attempt = nullptr;  // of which time in suspension is not passed, but goes here:
  double suspended_s = 0;
  double to(Ns when) {
    const Ns next = std::clamp(when, at, end);
    const double still = attempt != nullptr ? std::min(suspended(*attempt, at, next), seconds(at, next)) : 0;
    const double passed = seconds(at, next) - still;
    suspended_s += still;
    at = next;
    return passed;
  }
};

}  // namespace

std::int64_t base_of(const GuardState& s, const AttemptRecord& a) {
  if (a.checkpoint.empty()) return s.policy.knows_checkpoints ? 0 : -1;
  for (const KnownCheckpoint& c : s.checkpoints)
    if (c.id == a.checkpoint) return c.step;
  std::int64_t step = -1;
  if (ckpt::is_directory_name(a.checkpoint)) {
    const std::size_t digits = a.checkpoint.find('-') + 1;
    std::from_chars(a.checkpoint.data() + digits, a.checkpoint.data() + a.checkpoint.size(), step);
  }
  return step;
}

namespace {

struct Trained {
  std::int64_t first_step = -1, last_step = -1;
  Ns first = 0, last = 0;
};

// What was seen of its steps, and those before that must have been: a log may tell every hundredth only.
Trained trained_of(const GuardState& s, const AttemptRecord& a) {
  Trained t{a.first_step, a.last_step, std::max(a.first_progress, a.started), a.last_progress};
  t.last = std::max(t.last, t.first);
  std::int64_t base = base_of(s, a);
  if (base >= 0 && a.skip_to > a.skip_from) base = std::max(base, a.skip_to);
  const std::int64_t missing = base >= 0 ? t.first_step - base - 1 : 0;
  if (missing <= 0) return t;
  const std::int64_t steps = t.last_step - t.first_step;
  const double there = seconds(a.started, t.first) - suspended(a, a.started, t.first);
  const double each = steps > 0
                          ? (seconds(t.first, t.last) - suspended(a, t.first, t.last)) / static_cast<double>(steps)
                          : there / static_cast<double>(missing + 1);
  const double needed = each * static_cast<double>(missing);
  if (needed > kFits * there) return t;  // it began with something else
  t.first_step = base + 1;
  t.first -= static_cast<Ns>(1e9 * std::min(needed, there));
  t.first = std::max(t.first, a.started);
  return t;
}

// Of what it had trained, the share that a later attempt had to do again.
double again_share(const GuardState& s, std::size_t i, const Trained& t) {
  const std::int64_t steps = t.last_step - t.first_step;
  if (steps <= 0) return 0;
  std::int64_t from = t.last_step;
  for (std::size_t k = i + 1; k < s.attempts.size(); ++k) {
    const AttemptRecord& next = s.attempts[k];
    if (next.started == 0) continue;
    const std::int64_t base = base_of(s, next);
    // The first step that it did follows the one it went on from.
    const std::int64_t began =
        next.first_step >= 0 ? trained_of(s, next).first_step - 1 : (base >= 0 ? base : t.last_step);
    from = std::min(from, began);
    if (next.rollback) from = std::min(from, next.skip_from);  // those left out are gone, too
  }
  return static_cast<double>(std::clamp<std::int64_t>(t.last_step - from, 0, steps)) / static_cast<double>(steps);
}

}  // namespace

GuardAccount account(const GuardState& s, Ns now) {
  GuardAccount out;
  if (s.phase == GuardPhase::nothing) return out;
  Cursor cursor{s.began, std::max(s.began, s.phase == GuardPhase::stopped ? s.now : std::max(now, s.now))};
  out.wall_s = seconds(cursor.at, cursor.end);
  std::string before = "start";  // what time that no attempt had is lost to
  for (std::size_t i = 0; i < s.attempts.size(); ++i) {
    const AttemptRecord& a = s.attempts[i];
    out.attempts.emplace_back();
    if (a.started == 0) continue;
    AttemptTime& time = out.attempts.back();
    ++out.restarts;
    of(out.lost, before).down_s += cursor.to(a.started);
    cursor.attempt = &a;
    cursor.suspended_s = 0;
    const bool last = i + 1 == s.attempts.size();
    const Ns begin = cursor.at, dead = a.fenced != 0 ? a.fenced : last ? cursor.end : a.ended;
    const Failure* failure = a.fenced != 0 ? &a.failure : last && a.noticed != 0 && s.failure ? &*s.failure : nullptr;
    const bool done = failure != nullptr && failure->kind == FailureKind::none;
    std::string own(kSinceLastStep);
    if (failure != nullptr) own = done ? "done" : failure->cause.empty() ? "unknown" : failure->cause;
    const Ns noticed = failure != nullptr && a.noticed != 0 ? std::min(a.noticed, dead) : dead;
    if (a.first_progress == 0) {
      of(out.lost, before).starting_s += cursor.to(noticed);
    } else {
      const Trained t = trained_of(s, a);
      of(out.lost, before).starting_s += cursor.to(std::min(t.first, dead));
      time.first_step = t.first_step;
      time.to_first_step_s = seconds(begin, cursor.at) - cursor.suspended_s;
      const double trained = cursor.to(std::min(t.last, dead));
      const double again = trained * again_share(s, i, t);
      out.useful_s += trained - again;
      LostTime& lost = of(out.lost, own);
      lost.work_s += again;
      if (!done) lost.noticing_s += cursor.to(noticed);
    }
    of(out.lost, own).ending_s += cursor.to(dead);
    if (failure != nullptr && !done) ++of(out.lost, own).failures;
    time.ran_s = seconds(begin, cursor.at) - cursor.suspended_s;
    if (cursor.suspended_s > 0) of(out.lost, "suspended").down_s += cursor.suspended_s;
    cursor.attempt = nullptr;
    out.running_s += time.ran_s;
    before = own;
  }
  out.restarts = std::max<std::int64_t>(0, out.restarts - 1);
  of(out.lost, before).down_s += cursor.to(cursor.end);
  for (const SaveRecord& r : s.saves) {
    ++out.saves;
    out.saving_s += std::max(0.0, r.cost_s);
  }
  std::erase_if(out.lost, [](const LostTime& l) { return l.failures == 0 && l.all_s() == 0; });
  std::sort(out.lost.begin(), out.lost.end(),
            [](const LostTime& a, const LostTime& b) { return a.all_s() > b.all_s(); });
  return out;
}

}  // namespace orrery
