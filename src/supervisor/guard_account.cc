#include "supervisor/guard_account.h"

#include <algorithm>

namespace orrery {
namespace {

double seconds(Ns from, Ns to) { return to > from ? static_cast<double>(to - from) * 1e-9 : 0; }

LostTime& of(std::vector<LostTime>& all, const std::string& cause) {
  for (LostTime& l : all)
    if (l.cause == cause) return l;
  all.push_back({});
  all.back().cause = cause;
  return all.back();
}

}  // namespace

GuardAccount account(const GuardState& s, Ns now) {
  GuardAccount out;
  const Ns end = s.phase == GuardPhase::stopped ? s.now : std::max(now, s.now);
  out.wall_s = seconds(s.began, end);
  for (std::size_t i = 0; i < s.attempts.size(); ++i) {
    const AttemptRecord& a = s.attempts[i];
    const bool over = a.fenced != 0 || a.ended != 0;
    const Ns last = a.fenced != 0 ? a.fenced : over ? a.ended : end;
    if (a.started != 0) out.running_s += seconds(a.started, last);
    const double trained = seconds(a.first_progress, a.last_progress);
    // A step's time is known from the second one on.
    const std::int64_t steps = a.last_step - a.first_step;
    double again = 0;
    if (i + 1 < s.attempts.size()) {
      // The first step that the next attempt logged follows the one it went on from.
      std::int64_t from = a.last_step;
      for (std::size_t k = i + 1; k < s.attempts.size(); ++k) {
        const AttemptRecord& next = s.attempts[k];
        if (next.first_step >= 0) from = std::min(from, next.first_step - 1);
        if (next.rollback) from = std::min(from, next.skip_from);  // those left out are gone, too
      }
      const double lost =
          static_cast<double>(std::clamp<std::int64_t>(a.last_step - from, 0, std::max<std::int64_t>(steps, 0)));
      if (steps > 0) again = trained * lost / static_cast<double>(steps);
    }
    out.useful_s += trained - again;
    const std::string before = i > 0 ? s.attempts[i - 1].failure.cause : "start";
    LostTime& start = of(out.lost, before.empty() ? "start" : before);
    if (a.started != 0) start.starting_s += seconds(a.started, a.first_progress != 0 ? a.first_progress : last);
    start.down_s += seconds(i == 0 ? s.began : (s.attempts[i - 1].noticed != 0 ? s.attempts[i - 1].noticed : a.asked),
                            a.started != 0 ? a.started : end);
    if (!over || a.failure.kind == FailureKind::none) continue;
    LostTime& lost = of(out.lost, a.failure.cause);
    ++lost.failures;
    lost.work_s += again;
    if (a.first_progress != 0) lost.noticing_s += seconds(a.last_progress, a.noticed);
  }
  for (const SaveRecord& r : s.saves) {
    ++out.saves;
    out.saving_s += std::max(0.0, r.cost_s);
  }
  std::sort(out.lost.begin(), out.lost.end(),
            [](const LostTime& a, const LostTime& b) { return a.all_s() > b.all_s(); });
  return out;
}

}  // namespace orrery
