// A guarded job that tests of decide() talk to.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "supervisor/decide.h"

namespace orrery {

inline constexpr Ns kSecond = 1'000'000'000;

inline GuardPolicy plain() {
  GuardPolicy p;
  p.check_nodes = false;
  return p;
}

// A job that is talked to.
struct Talk {
  GuardState s;
  Decision last;
  Ns at = 1'000 * kSecond;
  std::uint64_t serial = 0;

  explicit Talk(GuardPolicy policy = plain()) {
    GuardEvent e;
    e.kind = EventKind::begin;
    e.policy = policy;
    e.text = "og1";
    tell(std::move(e));
  }
  const Decision& tell(GuardEvent e) {
    at += kSecond;
    e.at = at;
    last = decide(s, e);
    s = last.next;
    return last;
  }
  GuardEvent event(EventKind kind, std::string text = {}) const {
    GuardEvent e;
    e.kind = kind;
    e.attempt = s.attempt;
    e.text = std::move(text);
    return e;
  }
  const Decision& tell(EventKind kind, std::string text = {}) { return tell(event(kind, std::move(text))); }

  // Up to a running attempt that has come to `step`; time passes where it waits.
  void run_to(std::int64_t step, std::vector<std::string> nodes = {}) {
    if (s.phase == GuardPhase::waiting) {
      at = std::max(at, s.until);
      tell(EventKind::tick);
    }
    ASSERT_EQ(s.phase, GuardPhase::starting) << name_of(s.phase) << " " << s.outcome_text;
    GuardEvent started = event(EventKind::started);
    started.handle = std::to_string(s.attempt);
    started.state.emplace();
    started.state->nodes = std::move(nodes);
    tell(started);
    progress(step);
  }
  void progress(std::int64_t step) {
    if (step < 0) return;
    GuardEvent e = event(EventKind::progress);
    e.step = step;
    tell(e);
  }
  void found(const std::string& reason, const std::string& category, const std::string& restart,
             const std::string& node = {}, double confidence = 0.9, const std::string& line = "its line") {
    GuardEvent e = event(EventKind::finding);
    e.finding.emplace();
    e.finding->verdict = "failed";
    e.finding->reason = reason;
    e.finding->category = category;
    e.finding->restart = restart;
    e.finding->node = node;
    e.finding->text = line;
    e.finding->at = "attempt-1.err:3";
    e.finding->confidence = confidence;
    e.finding->ended = true;
    tell(e);
  }
  const Decision& ends(std::optional<int> status, std::optional<int> signal = {}, EndReason reason = EndReason::none) {
    GuardEvent e = event(EventKind::ended);
    e.state.emplace();
    e.state->phase = AttemptPhase::ended;
    e.state->exit_status = status;
    e.state->signal = signal;
    e.state->reason = reason;
    tell(e);
    return tell(EventKind::fenced);
  }
  const Decision& lists(std::vector<std::int64_t> steps) {  // the newest first
    GuardEvent e = event(EventKind::checkpoints);
    e.attempt = 0;
    for (const std::int64_t step : steps) e.checkpoints.push_back({"step-" + std::to_string(step), step, 0});
    return tell(e);
  }
  void wait_over() {
    at = std::max(at, s.until);
    tell(EventKind::tick);
  }
  bool does(ActionKind kind) const {
    return std::any_of(last.actions.begin(), last.actions.end(), [&](const Action& a) { return a.kind == kind; });
  }
  const Action* action(ActionKind kind) const {
    for (const Action& a : last.actions)
      if (a.kind == kind) return &a;
    return nullptr;
  }
};

}  // namespace orrery
