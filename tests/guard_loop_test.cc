// The supervisor's loop with a runner that is played: what does not work at once.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>

#include "supervisor/guard_account.h"
#include "supervisor/guard_run.h"
#include "temp_dir.h"

namespace orrery {
namespace {

// One attempt in a queue, then running; it ends when it is asked to.
class Played final : public JobRunner {
 public:
  std::string_view kind() const override { return "played"; }
  Result<std::string> start(const AttemptSpec& spec) override {
    ++starts;
    return std::to_string(spec.number);
  }
  Result<std::optional<std::string>> find(const AttemptSpec&) override { return std::optional<std::string>(); }
  Result<AttemptState> poll(const std::string&) override {
    AttemptState s;
    if (++polls <= queued) return s;
    s.phase = signalled ? AttemptPhase::ended : AttemptPhase::running;
    s.waits = !signalled && polls > suspended_from && polls <= suspended_to;
    if (signalled) s.exit_status = 0;
    s.nodes = {"n1"};
    return s;
  }
  Status signal(const std::string&, int) override {
    if (++signals <= refused) return fail("no room", "orders");
    signalled = true;
    return {};
  }
  Result<bool> fence(const std::string&) override { return true; }
  Result<std::vector<NodeState>> nodes() override { return std::vector<NodeState>{{"n1", true, ""}}; }
  Status drain(const std::string&, const std::string&) override { return {}; }
  Result<std::string> stacks(const std::string&, double) override { return fail("none"); }

  int starts = 0, polls = 0, queued = 0, signals = 0, refused = 0, suspended_from = 0, suspended_to = 0;
  bool signalled = false;
  std::vector<std::string> notices;
};

Result<GuardState> guarded(Played& runner, const std::string& state, int stop_after) {
  GuardOptions o;
  o.command = {"job"};
  o.state = state;
  o.poll_s = 0.01;
  o.policy.save_wait_s = 30;
  Notes notes;
  GuardHooks hooks;
  hooks.told = [&](const GuardEvent& e, const Decision& d, const GuardState&) {
    if (e.kind == EventKind::suspended) runner.notices.push_back(d.kind + ": " + d.text);
  };
  hooks.stops_asked = [&] { return runner.polls > stop_after ? 1 : 0; };
  return run_guard(o, runner, guard_rules(), hooks, notes);
}

TEST(GuardLoop, TheRequestToSaveIsRepeatedUntilItIsHeard) {
  const test::ScratchDir dir;
  Played runner;
  runner.refused = 3;
  const auto s = guarded(runner, dir / "s", 5);
  ASSERT_TRUE(s) << s.error().line();
  EXPECT_EQ(runner.signals, 4);
  EXPECT_EQ(s->outcome, GuardOutcome::by_operator);
  EXPECT_LT(s->attempts[0].ended - s->attempts[0].noticed, 25'000'000'000) << "it was not waited for and killed";
}

TEST(GuardLoop, WhatAnAttemptWaitedInItsQueueIsNotItsOwn) {
  const test::ScratchDir dir;
  Played runner;
  runner.queued = 40;
  const auto s = guarded(runner, dir / "s", 60);
  ASSERT_TRUE(s) << s.error().line();
  const AttemptRecord& a = s->attempts[0];
  EXPECT_GE(a.started - a.asked, 300'000'000) << "40 looks of 10 ms";
  EXPECT_EQ(a.nodes, std::vector<std::string>{"n1"});
  double down_s = 0;
  for (const LostTime& l : account(*s, s->now).lost) down_s += l.down_s;
  EXPECT_GE(down_s, 0.3);
}

TEST(GuardLoop, ThatItIsSuspendedIsToldAndIsDown) {
  const test::ScratchDir dir;
  Played runner;
  runner.suspended_from = 10;
  runner.suspended_to = 50;
  const auto s = guarded(runner, dir / "s", 60);
  ASSERT_TRUE(s) << s.error().line();
  ASSERT_EQ(runner.notices.size(), 2u);
  EXPECT_NE(runner.notices[0].find("notice: the scheduler has suspended it"), std::string::npos) << runner.notices[0];
  EXPECT_EQ(runner.notices[1], "notice: the scheduler lets it go on");
  const AttemptRecord& a = s->attempts[0];
  ASSERT_EQ(a.suspended.size(), 1u);
  EXPECT_GE(a.suspended[0].second - a.suspended[0].first, 300'000'000) << "40 looks of 10 ms";
  double down_s = 0;
  for (const LostTime& l : account(*s, s->now).lost) down_s += l.cause == "suspended" ? l.down_s : 0;
  EXPECT_GE(down_s, 0.3);
}

}  // namespace
}  // namespace orrery
