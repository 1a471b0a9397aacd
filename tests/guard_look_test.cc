// The supervisor and a runner that is played: what it makes of what it is told.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <thread>

#include "supervisor/decide.h"
#include "supervisor/guard_run.h"
#include "supervisor/journal.h"
#include "temp_dir.h"

namespace orrery {
namespace {

using Clock = std::chrono::steady_clock;

SharedRules no_rules() {
  Notes notes;
  Rule one;
  one.id = kSavingRule;
  one.role = Role::context;
  one.kind = "saving";
  one.pattern = "saving checkpoint";
  std::promise<std::shared_ptr<Matcher>> compiled;
  compiled.set_value(Matcher::compile({{one}}, notes).value());
  return compiled.get_future().share();
}

struct Played final : JobRunner {
  std::function<AttemptState()> state;
  std::function<void(const AttemptSpec&)> started = [](const AttemptSpec&) {};
  int starts = 0;

  std::string_view kind() const override { return "played"; }
  Result<std::string> start(const AttemptSpec& spec) override {
    ++starts;
    started(spec);
    return std::to_string(spec.number);
  }
  Result<std::optional<std::string>> find(const AttemptSpec&) override { return std::optional<std::string>(); }
  Result<AttemptState> poll(const std::string&) override { return state(); }
  Status signal(const std::string&, int) override { return {}; }
  Result<bool> fence(const std::string&) override { return true; }
  Result<std::vector<NodeState>> nodes() override { return std::vector<NodeState>{{"n1", true, ""}}; }
  Status drain(const std::string&, const std::string&) override { return {}; }
  Result<std::string> stacks(const std::string&, double) override { return std::string("none"); }
};

AttemptState in(AttemptPhase phase) {
  AttemptState s;
  s.phase = phase;
  if (phase == AttemptPhase::ended) s.exit_status = 0;
  return s;
}

struct Watched {
  test::ScratchDir dir;
  GuardOptions options;
  Played runner;
  Notes notes;
  std::vector<GuardEvent> events;
  std::vector<std::string> warnings;
  Clock::time_point end = Clock::now() + std::chrono::seconds(60);

  Watched() {
    options.state = dir / "s";
    options.command = {"train"};
    options.poll_s = 0.005;
    options.policy.check_nodes = false;
    options.watch.start_grace_s = 0.05;
    options.watch.hang_floor_s = 0.05;
  }
  Result<GuardState> run() {
    GuardHooks hooks;
    hooks.stops_asked = [&] { return Clock::now() < end ? 0 : 2; };
    hooks.told = [&](const GuardEvent& e, const Decision&, const GuardState&) { events.push_back(e); };
    hooks.warned = [&](const std::string& line) { warnings.push_back(line); };
    return run_guard(options, runner, no_rules(), hooks, notes);
  }
  std::ptrdiff_t count(EventKind kind) const {
    return std::count_if(events.begin(), events.end(), [&](const GuardEvent& e) { return e.kind == kind; });
  }
};

// Longer than any limit, in a queue and suspended.
TEST(GuardLook, AnAttemptThatWaitsIsNotWatchedForHangs) {
  Watched job;
  int polls = 0;
  job.runner.state = [&] {
    ++polls;
    if (polls > 60) return in(AttemptPhase::ended);
    AttemptState s = in(polls <= 30 ? AttemptPhase::pending : AttemptPhase::running);
    s.waits = true;
    return s;
  };
  const auto state = job.run();
  ASSERT_TRUE(state) << state.error().line();
  EXPECT_EQ(state->outcome, GuardOutcome::done);
  EXPECT_EQ(job.count(EventKind::no_progress), 0);
  EXPECT_EQ(job.runner.starts, 1);
}

// It left something behind, which is waited for longer than any limit.
TEST(GuardLook, AfterTheCommandsEndNothingIsAHang) {
  Watched job;
  job.options.settle_s = 3600;
  int polls = 0;
  Clock::time_point since;
  job.runner.state = [&] {
    if (++polls == 1) since = Clock::now();
    AttemptState s = in(AttemptPhase::ending);
    s.exit_status = 0;
    const bool long_ago = polls > 60 && Clock::now() - since > std::chrono::milliseconds(500);
    return long_ago ? in(AttemptPhase::ended) : s;
  };
  const auto state = job.run();
  ASSERT_TRUE(state) << state.error().line();
  EXPECT_EQ(state->outcome, GuardOutcome::done);
  EXPECT_EQ(job.count(EventKind::no_progress), 0);
  EXPECT_EQ(job.runner.starts, 1);
}

TEST(GuardLook, AnAttemptWhoseLogsCannotBeReadIsNotWatchedForHangs) {
  Watched job;
  int polls = 0;
  job.runner.started = [](const AttemptSpec& spec) {
    std::filesystem::create_symlink("/proc/self/mem", spec.out);
    std::ofstream(spec.err) << "";
  };
  job.runner.state = [&] {
    if (!job.warnings.empty()) ++polls;
    AttemptState s = in(polls > 30 ? AttemptPhase::ended : AttemptPhase::running);
    s.waits = job.warnings.empty();  // the thread that reads may be late
    return s;
  };
  const auto state = job.run();
  ASSERT_TRUE(state) << state.error().line();
  EXPECT_EQ(state->outcome, GuardOutcome::done);
  EXPECT_EQ(job.count(EventKind::no_progress), 0);
  ASSERT_EQ(job.warnings.size(), 1u);
  EXPECT_NE(job.warnings[0].find("attempt-1.out"), std::string::npos) << job.warnings[0];
}

TEST(GuardLook, ADryRunIsToldOnceOfAnEndThatIsNear) {
  Watched job;
  job.options.policy.dry_run = true;
  job.options.watch.start_grace_s = 1000;
  int polls = 0;
  job.runner.state = [&] {
    if (++polls > 20) return in(AttemptPhase::ended);
    AttemptState s = in(AttemptPhase::running);
    s.reason = EndReason::preempted;
    s.started = 1;  // long ago: its whole limit is longer than the margin
    s.time_left = 100 - polls;
    return s;
  };
  const auto state = job.run();
  ASSERT_TRUE(state) << state.error().line();
  EXPECT_EQ(job.count(EventKind::preemption), 1);
  EXPECT_EQ(job.count(EventKind::time_limit_near), 1);
}

// The clock was two hours ahead, and has been set right since: back-off is not waited for so long, and heartbeats,
// whose files have the right time, are of this attempt.
TEST(GuardLook, AClockThatWasSetBackBetweenTwoSupervisorsStallsNothing) {
  Watched job;
  job.options.heartbeat = job.dir / "beats";
  job.options.watch.start_grace_s = 1000;
  {
    ASSERT_TRUE(std::filesystem::create_directory(job.options.state));
    const std::string path = journal_path(job.options.state);
    auto journal = Journal::open(path, read_journal(path).value());
    ASSERT_TRUE(journal);
    GuardState s;
    const auto tell = [&](GuardEvent e) {
      e.at = std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count() +
             Ns{7200} * 1'000'000'000;
      Decision d = decide(std::move(s), e);
      s = d.next;
      ASSERT_TRUE(journal->append(e, d));
    };
    GuardEvent begin;
    begin.kind = EventKind::begin;
    begin.policy = job.options.policy;
    begin.text = "og1";
    tell(begin);
    GuardEvent failed;
    failed.kind = EventKind::not_started;
    failed.attempt = 1;
    tell(failed);
    ASSERT_EQ(s.phase, GuardPhase::waiting);
  }
  Ns began = 0;
  std::int64_t step = 0;
  job.runner.started = [&](const AttemptSpec&) {
    began = std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // times of files are coarse
  };
  job.runner.state = [&] {
    std::ofstream(job.dir / "beats/rank-00000") << ++step << " 1 compute\n";
    AttemptState s = in(job.count(EventKind::progress) > 0 ? AttemptPhase::ended : AttemptPhase::running);
    s.started = began;
    return s;
  };
  const auto state = job.run();
  ASSERT_TRUE(state) << state.error().line();
  EXPECT_EQ(state->outcome, GuardOutcome::done) << state->outcome_text;
  EXPECT_GT(job.count(EventKind::progress), 0);
}

}  // namespace
}  // namespace orrery
