// decide(): each rule of docs/guard.md's table by hand, then random events.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "guard_talk.h"
#include "supervisor/decide.h"
#include "supervisor/failure.h"

namespace orrery {
namespace {

TEST(GuardDecide, AJobThatGoesWell) {
  Talk t;
  EXPECT_TRUE(t.does(ActionKind::start));
  EXPECT_EQ(t.action(ActionKind::start)->token, "og1-1");
  t.run_to(100);
  t.ends(0);
  EXPECT_EQ(t.last.kind, "done");
  EXPECT_EQ(t.s.outcome, GuardOutcome::done);
  EXPECT_EQ(t.s.restarts, 0);
}

struct Row {
  const char* what;
  const char *reason, *category, *restart;
  std::optional<int> status, signal;
  EndReason end;
  const char* decision;  // after it has been fenced
  GuardOutcome outcome;
};

class GuardTable : public ::testing::TestWithParam<Row> {};

TEST_P(GuardTable, HowAnAttemptEndsDecides) {
  const Row& row = GetParam();
  Talk t;
  t.run_to(50);
  if (row.reason != nullptr) t.found(row.reason, row.category, row.restart);
  t.ends(row.status, row.signal, row.end);
  EXPECT_EQ(t.last.kind, row.decision) << row.what << ": " << t.last.text;
  EXPECT_EQ(t.s.outcome, row.outcome) << row.what;
  EXPECT_FALSE(t.last.evidence.empty()) << row.what;
}

INSTANTIATE_TEST_SUITE_P(
    Ends, GuardTable,
    ::testing::Values(
        Row{"the network",
            "Connection Error",
            "Infrastructure",
            "auto",
            1,
            {},
            EndReason::none,
            "restart",
            GuardOutcome::open},
        Row{"a program error",
            "Runtime Error",
            "Framework",
            "no",
            1,
            {},
            EndReason::none,
            "stop",
            GuardOutcome::failed},
        Row{"a script error", "Key Error", "Script", "no", 1, {}, EndReason::none, "stop", GuardOutcome::failed},
        Row{"an old warning and a good end",
            "OS Error",
            "Script",
            "no",
            0,
            {},
            EndReason::none,
            "done",
            GuardOutcome::done},
        Row{"killed", nullptr, "", "", {}, 9, EndReason::none, "restart", GuardOutcome::open},
        Row{"nobody saw how", nullptr, "", "", {}, {}, EndReason::none, "restart", GuardOutcome::open},
        Row{"nothing explains it", nullptr, "", "", 3, {}, EndReason::none, "restart", GuardOutcome::open},
        Row{"a crash that nothing explains", nullptr, "", "", {}, 11, EndReason::none, "restart", GuardOutcome::open},
        Row{"a node was lost", nullptr, "", "", 1, {}, EndReason::node_fail, "restart", GuardOutcome::open},
        Row{"preempted", nullptr, "", "", {}, 15, EndReason::preempted, "restart", GuardOutcome::open},
        Row{"time limit", nullptr, "", "", {}, 9, EndReason::time_limit, "restart", GuardOutcome::open},
        Row{"requeued", nullptr, "", "", {}, 15, EndReason::requeued, "restart", GuardOutcome::open},
        Row{"a person cancelled it", nullptr, "", "", {}, 15, EndReason::cancelled, "stop", GuardOutcome::failed},
        Row{"out of memory", nullptr, "", "", {}, 9, EndReason::out_of_memory, "stop", GuardOutcome::failed},
        Row{"cannot be started any more",
            nullptr,
            "",
            "",
            {},
            {},
            EndReason::launch_failed,
            "restart",
            GuardOutcome::open}));

TEST(GuardDecide, UnsureFindingsExplainNothing) {
  Talk t;
  t.run_to(50);
  t.found("Runtime Error", "Framework", "no", "", 0.3);
  t.ends(1);
  EXPECT_EQ(t.last.kind, "restart") << "as a failure that nothing explains, after some training";
}

TEST(GuardDecide, WhatFailsBeforeAnyTrainingIsNotRestartedBlindly) {
  Talk t;
  t.run_to(-1);
  t.ends(3);
  EXPECT_EQ(t.last.kind, "stop");
  EXPECT_NE(t.last.text.find("before any training"), std::string::npos) << t.last.text;
}

TEST(GuardDecide, AHangHasItsStacksTakenThenIsKilledThenRestarted) {
  Talk t;
  t.run_to(50);
  t.tell(EventKind::no_progress, "no rank moved");
  EXPECT_TRUE(t.does(ActionKind::stacks));
  EXPECT_FALSE(t.does(ActionKind::fence)) << "first the stacks";
  t.tell(EventKind::stacks, "stacks: file");
  EXPECT_TRUE(t.does(ActionKind::fence));
  EXPECT_FALSE(t.does(ActionKind::start));
  t.tell(EventKind::fenced);
  EXPECT_EQ(t.last.kind, "restart");
  t.wait_over();
  EXPECT_TRUE(t.does(ActionKind::start));
  EXPECT_EQ(t.s.attempts[0].failure.kind, FailureKind::hang);
}

TEST(GuardDecide, AJobThatGuardCannotReadIsLeftAlone) {
  Talk t;
  t.run_to(-1);
  GuardEvent e = t.event(EventKind::no_progress, "no step was seen");
  e.first = true;
  t.tell(e);
  EXPECT_EQ(t.last.kind, "notice");
  EXPECT_TRUE(t.last.actions.empty());
  EXPECT_EQ(t.tell(e).kind, "");
}

TEST(GuardDecide, StacksThatNeverComeDoNotHoldItUp) {
  Talk t;
  t.run_to(50);
  t.tell(EventKind::no_progress);
  t.wait_over();
  EXPECT_TRUE(t.does(ActionKind::fence));
}

// One rank has failed of the program's own mistake, the others wait for it for ever.
TEST(GuardDecide, AHangAfterAProgramErrorIsThatError) {
  Talk t;
  t.run_to(50);
  t.found("Type Error", "Script", "no");
  t.tell(EventKind::no_progress);
  t.tell(EventKind::stacks);
  t.tell(EventKind::fenced);
  EXPECT_EQ(t.last.kind, "stop");
  EXPECT_EQ(t.s.attempts[0].failure.reason, "Type Error");
}

TEST(GuardDecide, TheSameFailureAtTheSameStepTwiceIsNotTheMachines) {
  Talk t;
  for (int i = 0; i < 2; ++i) {
    t.run_to(50);
    t.found("NCCL Timeout Error", "Infrastructure", "auto");
    t.ends(1);
  }
  EXPECT_EQ(t.last.kind, "stop");
  EXPECT_NE(t.last.text.find("the same failure at the same step"), std::string::npos) << t.last.text;
  Talk other;
  for (const int step : {50, 60}) {
    other.run_to(step);
    other.found("NCCL Timeout Error", "Infrastructure", "auto");
    other.ends(1);
  }
  EXPECT_EQ(other.last.kind, "restart") << "at another step";
}

TEST(GuardDecide, TheSameFailureIsTriedOnceOnOtherNodes) {
  const std::vector<std::string> first{"a", "b"};
  const auto twice = [&](Talk& t) {
    for (int i = 0; i < 2; ++i) {
      t.run_to(50, first);
      t.found("CUDA Error", "Infrastructure", "auto");
      t.ends(1);
    }
  };
  const auto nodes = [](Talk& t, std::vector<std::string> usable) {
    GuardEvent e = t.event(EventKind::nodes);
    e.attempt = 0;
    for (const std::string& n : usable) e.nodes.push_back({n, "good", ""});
    t.tell(e);
  };
  Talk t;
  twice(t);
  EXPECT_EQ(t.last.kind, "restart");
  t.wait_over();
  EXPECT_TRUE(t.does(ActionKind::list_nodes));
  nodes(t, {"a", "b", "c", "d"});
  ASSERT_TRUE(t.does(ActionKind::start));
  EXPECT_EQ(t.action(ActionKind::start)->exclude, first);
  t.run_to(50, {"c", "d"});
  t.found("CUDA Error", "Infrastructure", "auto");
  t.ends(1);
  EXPECT_EQ(t.last.kind, "stop") << "on other nodes, too";

  Talk alone;
  twice(alone);
  alone.wait_over();
  nodes(alone, {"a", "b", "c"});
  EXPECT_EQ(alone.last.kind, "stop") << "one other node for two";
}

TEST(GuardDecide, BudgetOfRestartsInAllAndWithinATime) {
  GuardPolicy p = plain();
  p.most_restarts = 3;
  Talk t(p);
  int starts = 0;
  for (int step = 10; t.s.phase != GuardPhase::stopped; step += 10, ++starts) {
    t.run_to(step);
    t.ends({}, 9);
  }
  EXPECT_EQ(starts, 4);
  EXPECT_EQ(t.s.restarts, 3);

  p.most_restarts = 100;
  p.most_in_window = 2;
  p.window_s = 1000;
  Talk w(p);
  for (const int step : {10, 20}) {
    w.run_to(step);
    w.ends({}, 9);
  }
  w.at += 2000 * kSecond;  // those two are forgotten
  for (const int step : {30, 40}) {
    w.run_to(step);
    w.ends({}, 9);
  }
  EXPECT_EQ(w.s.phase, GuardPhase::waiting);
  w.run_to(50);
  w.ends({}, 9);
  EXPECT_EQ(w.last.kind, "stop");
}

TEST(GuardDecide, PreemptionsCostNoBudgetButMustGainSomething) {
  GuardPolicy p = plain();
  p.most_restarts = 1;
  p.most_without_progress = 2;
  Talk t(p);
  for (int step = 10; step <= 200; step += 10) {
    t.run_to(step);
    t.ends({}, 15, EndReason::preempted);
    ASSERT_EQ(t.s.phase, GuardPhase::waiting) << step;
  }
  int more = 0;
  while (t.s.phase != GuardPhase::stopped && more < 10) {
    t.run_to(150);  // never as far again
    t.ends({}, 9, EndReason::time_limit);
    ++more;
  }
  EXPECT_EQ(more, 3);
  EXPECT_NE(t.last.text.find("gained nothing"), std::string::npos) << t.last.text;
}

// Further each time, and never a checkpoint: no net progress.
TEST(GuardDecide, WithCheckpointsOnlyTheyCountAsGain) {
  GuardPolicy p = plain();
  p.knows_checkpoints = true;
  p.most_without_progress = 2;
  Talk t(p);
  int attempts = 0;
  while (t.s.phase != GuardPhase::stopped && attempts < 10) {
    if (t.s.phase == GuardPhase::waiting) t.wait_over();
    t.lists({});
    t.run_to(100 + attempts++);
    t.ends({}, 9, EndReason::time_limit);
  }
  EXPECT_EQ(attempts, 3);
}

TEST(GuardDecide, BackOffDoublesWhileNothingIsGained) {
  GuardPolicy p = plain();
  p.backoff_first_s = 1;
  p.backoff_most_s = 5;
  p.same_failure = OnSameFailure::stop;
  p.most_without_progress = 10;
  Talk t(p);
  std::vector<double> waits;
  for (int i = 0; i < 5; ++i) {
    t.run_to(50 - i);  // another step each time, and no further
    t.ends({}, 9);
    waits.push_back(std::round(static_cast<double>(t.s.until - t.at) * 1e-9));
  }
  EXPECT_EQ(waits, (std::vector<double>{1, 2, 4, 5, 5}));
}

TEST(GuardDecide, ANodeThatAPersonGivesBackIsUsedAgain) {
  Talk t;
  t.run_to(40, {"a", "b"});
  GuardEvent e = t.event(EventKind::ended);
  e.state = AttemptState{};
  e.state->phase = AttemptPhase::ended;
  e.state->signal = 9;
  e.state->lost = {"b"};
  t.tell(e);
  t.tell(EventKind::fenced);
  ASSERT_EQ(t.s.excluded.size(), 1u);
  GuardEvent drained = t.event(EventKind::nodes);
  drained.nodes.push_back({"b", "drained", ""});
  t.tell(drained);
  EXPECT_TRUE(t.s.excluded[0].drained);
  GuardEvent back = t.event(EventKind::nodes);
  back.nodes.push_back({"b", "resumed", ""});
  t.tell(back);
  EXPECT_TRUE(t.s.excluded.empty());
  EXPECT_EQ(t.last.kind, "notice");
}

// Slurm tells the ranks of a job to end, whose node is gone.
TEST(GuardDecide, APreemptionThatWasALostNodeIsOne) {
  Talk t;
  t.run_to(40, {"a", "b"});
  t.tell(EventKind::preemption, "Slurm has told it so");
  EXPECT_TRUE(t.does(ActionKind::signal));
  GuardEvent e = t.event(EventKind::ended);
  e.state = AttemptState{};
  e.state->phase = AttemptPhase::ended;
  e.state->reason = EndReason::preempted;
  e.state->lost = {"b"};
  t.tell(e);
  t.tell(EventKind::fenced);
  ASSERT_TRUE(t.does(ActionKind::drain));
  EXPECT_EQ(t.action(ActionKind::drain)->node, "b");
}

TEST(GuardDecide, BadNodesAreLeftOutWithAReason) {
  GuardPolicy p;
  Talk t(p);
  t.run_to(50, {"a", "b", "c", "d"});
  t.found("NCCL Remote Error", "Infrastructure", "auto");
  t.ends(1);
  EXPECT_TRUE(t.does(ActionKind::check_nodes));
  GuardEvent e = t.event(EventKind::nodes);
  e.attempt = 0;
  e.nodes = {{"a", "good", ""}, {"b", "bad", ""}, {"c", "slow", ""}, {"d", "link", ""}};
  t.tell(e);
  ASSERT_TRUE(t.does(ActionKind::drain));
  EXPECT_EQ(t.action(ActionKind::drain)->node, "b");
  EXPECT_NE(t.action(ActionKind::drain)->text.find("orrery guard: bad in the test of nodes, attempt 1"),
            std::string::npos);
  EXPECT_EQ(t.s.excluded.size(), 1u) << "slow ones and links are reported only";
  t.wait_over();
  EXPECT_EQ(t.action(ActionKind::start)->exclude, std::vector<std::string>{"b"});
}

TEST(GuardDecide, ATestThatFailsForMostNodesIsNotBelieved) {
  Talk t{GuardPolicy{}};
  t.run_to(50, {"a", "b"});
  t.ends({}, 9);
  GuardEvent e = t.event(EventKind::nodes);
  e.attempt = 0;
  e.nodes = {{"a", "bad", ""}, {"b", "bad", ""}, {"c", "good", ""}};
  t.tell(e);
  EXPECT_FALSE(t.does(ActionKind::drain));
  EXPECT_TRUE(t.s.excluded.empty());
}

TEST(GuardDecide, EvidenceOfTheNodeItselfLeavesItOut) {
  Talk t;
  t.run_to(50, {"a", "b"});
  t.found("ECC Error", "Infrastructure", "auto-exclude", "b");
  t.ends(1);
  EXPECT_EQ(t.s.excluded.size(), 1u);
  EXPECT_EQ(t.s.excluded[0].node, "b");
  Talk unsure;
  unsure.run_to(50, {"a", "b"});
  unsure.found("ECC Error", "Infrastructure", "auto-exclude", "b", 0.6);
  unsure.ends(1);
  EXPECT_TRUE(unsure.s.excluded.empty());
  Talk peer;
  peer.run_to(50, {"a", "b"});
  peer.found("Connection Error", "Infrastructure", "auto", "b");
  peer.ends(1);
  EXPECT_TRUE(peer.s.excluded.empty()) << "who reports a lost peer is innocent";
}

TEST(GuardDecide, LostNodesEndTheRestAndAreLeftOut) {
  Talk t;
  t.run_to(50, {"a", "b"});
  GuardEvent e = t.event(EventKind::lost, "b: no answer");
  e.nodes = {{"b", "bad", ""}};
  t.tell(e);
  EXPECT_TRUE(t.does(ActionKind::fence));
  t.tell(EventKind::fenced);
  EXPECT_EQ(t.s.excluded.size(), 1u);
  EXPECT_EQ(t.last.kind, "restart");
}

TEST(GuardDecide, TooFewNodesAreWaitedForThenItStops) {
  GuardPolicy p = plain();
  p.needed_nodes = 2;
  p.wait_nodes_s = 60;
  Talk t(p);
  const auto nodes = [&](std::vector<NodeReport> reports) {
    GuardEvent e = t.event(EventKind::nodes);
    e.attempt = 0;
    e.nodes = std::move(reports);
    t.tell(e);
  };
  EXPECT_TRUE(t.does(ActionKind::list_nodes));
  nodes({{"a", "good", ""}, {"b", "unusable", "drained"}});
  EXPECT_EQ(t.last.kind, "wait");
  for (int i = 0; i < 20 && t.s.phase != GuardPhase::stopped; ++i) {
    t.wait_over();
    nodes({{"a", "good", ""}});
  }
  EXPECT_EQ(t.s.outcome, GuardOutcome::failed);
  Talk u(p);
  GuardEvent e = u.event(EventKind::nodes);
  e.attempt = 0;
  e.nodes = {{"a", "good", ""}, {"b", "good", ""}, {"spare", "good", ""}};
  u.tell(e);
  EXPECT_TRUE(u.does(ActionKind::start));
}

TEST(GuardDecide, PreemptionAndTimeLimitSaveEndAndResume) {
  for (const EventKind kind : {EventKind::preemption, EventKind::time_limit_near}) {
    Talk t;
    t.run_to(50);
    t.tell(kind, "soon");
    ASSERT_TRUE(t.does(ActionKind::signal));
    EXPECT_EQ(t.action(ActionKind::signal)->number, 15);
    t.ends(0);
    EXPECT_EQ(t.last.kind, "restart") << "it has saved and ended; that is not the end of the job";
    t.run_to(60);
    t.ends(0);
    EXPECT_EQ(t.last.kind, "done");
  }
}

TEST(GuardDecide, WhoDoesNotEndWhenAskedIsEnded) {
  Talk t;
  t.run_to(50);
  t.tell(EventKind::time_limit_near);
  t.wait_over();
  EXPECT_TRUE(t.does(ActionKind::fence));
  t.tell(EventKind::fenced);
  EXPECT_EQ(t.last.kind, "restart");
}

TEST(GuardDecide, SavedOnAnothersRequestIsAnInterruption) {
  Talk t;
  t.run_to(50);
  GuardEvent e = t.event(EventKind::finding);
  e.finding.emplace();
  e.finding->verdict = "unknown";
  e.finding->sigterm = true;
  t.tell(e);
  t.ends(0);
  EXPECT_EQ(t.last.kind, "restart");
}

TEST(GuardDecide, StragglersAreReportedAndReplacedOnlyWhenTold) {
  Talk t;
  t.run_to(50, {"a", "b"});
  GuardEvent e = t.event(EventKind::straggler, "rank 1 is slow");
  e.rank = 1;
  e.node = "b";
  t.tell(e);
  EXPECT_EQ(t.last.kind, "notice");
  EXPECT_TRUE(t.last.actions.empty());
  EXPECT_EQ(t.tell(e).kind, "") << "told once";
  GuardPolicy p = plain();
  p.straggler = OnStraggler::replace;
  Talk r(p);
  r.run_to(50, {"a", "b"});
  r.tell(e);
  EXPECT_TRUE(r.does(ActionKind::signal)) << "it saves first";
  r.ends(0);
  EXPECT_EQ(r.last.kind, "restart");
  EXPECT_EQ(r.s.excluded.size(), 1u);
}

TEST(GuardDecide, APersonStopsItAndStartsItAgain) {
  Talk t;
  t.run_to(50);
  t.tell(EventKind::stop_asked, "told to end");
  EXPECT_TRUE(t.does(ActionKind::signal));
  t.ends(0);
  EXPECT_EQ(t.s.outcome, GuardOutcome::by_operator);
  GuardEvent e = t.event(EventKind::resumed);
  e.attempt = 0;
  e.policy = plain();
  t.tell(e);
  ASSERT_TRUE(t.does(ActionKind::start));
  EXPECT_EQ(t.s.attempt, 2);
  t.run_to(60);
  t.tell(EventKind::stop_asked, "told to end");
  t.tell(EventKind::stop_asked, "told to end");
  EXPECT_TRUE(t.does(ActionKind::fence)) << "the second time: at once";
}

TEST(GuardDecide, ADryRunOnlyTells) {
  GuardPolicy p = plain();
  p.dry_run = true;
  p.knows_checkpoints = true;
  Talk t(p);
  t.lists({});
  t.run_to(50, {"a"});
  GuardEvent bad = t.event(EventKind::bad_loss);
  bad.step = 40;
  for (GuardEvent e :
       {t.event(EventKind::no_progress), t.event(EventKind::lost), bad, t.event(EventKind::time_limit_near)}) {
    t.tell(e);
    EXPECT_EQ(t.last.kind, "dry-run");
    EXPECT_TRUE(t.last.actions.empty());
  }
  const std::size_t told = t.s.told.size();
  for (int left = 119; left > 0; --left) {
    t.tell(EventKind::time_limit_near, std::to_string(left) + " s until its time limit");
    EXPECT_EQ(t.last.kind, "") << "said already";
  }
  EXPECT_EQ(t.s.told.size(), told);
  t.ends({}, 9);
  EXPECT_EQ(t.last.kind, "stop");
}

TEST(GuardDecide, WhoTakesUpDoesWhatIsPending) {
  Talk t;
  GuardEvent e = t.event(EventKind::resumed);
  e.attempt = 0;
  e.policy = plain();
  t.tell(e);
  EXPECT_TRUE(t.does(ActionKind::find)) << "it may have been started";
  EXPECT_FALSE(t.does(ActionKind::start));
  t.tell(EventKind::not_started);
  EXPECT_EQ(t.s.phase, GuardPhase::waiting);
  t.wait_over();
  EXPECT_EQ(t.s.attempt, 2) << "a number is never used twice";
  t.run_to(10);
  e.attempt = 0;
  t.tell(e);
  EXPECT_TRUE(t.last.actions.empty());
  GuardEvent ended = t.event(EventKind::ended);
  ended.state.emplace();
  ended.state->signal = 9;
  t.tell(ended);
  t.tell(e);
  EXPECT_TRUE(t.does(ActionKind::fence));
}

TEST(GuardDecide, ALauncherThatRefusesIsAskedAgainALimitedNumberOfTimes) {
  Talk t;
  int asked = 0;
  while (t.s.phase != GuardPhase::stopped && asked < 100) {
    ++asked;
    t.tell(EventKind::not_started, "slurmctld does not answer");
    if (t.s.phase == GuardPhase::waiting) t.wait_over();
  }
  EXPECT_EQ(asked, 11);
  EXPECT_EQ(t.s.restarts, 0);
}

TEST(GuardDecide, WhatHasRunOnceAndCannotBeStartedThenIsTriedAgain) {
  GuardPolicy p;
  p.most_without_progress = 3;
  Talk t(p);
  t.run_to(50, {"a", "b"});
  t.ends({}, 9);
  GuardEvent good = t.event(EventKind::nodes);
  good.attempt = 0;
  good.nodes = {{"a", "good", ""}, {"b", "good", ""}};
  t.tell(good);
  int failed = 0;
  for (; t.s.phase != GuardPhase::stopped && failed < 20; ++failed) {
    t.run_to(-1);
    t.ends({}, {}, EndReason::launch_failed);
    if (t.s.phase == GuardPhase::stopped) continue;
    EXPECT_TRUE(t.does(ActionKind::check_nodes)) << "it may be the node's";
    t.tell(good);
  }
  EXPECT_EQ(failed, 4) << "until the budget ends it: " << t.last.text;
}

TEST(GuardDecide, APersonWhoCancelsMeansItAlsoWhereANodeIsLost) {
  Talk t;
  t.run_to(50, {"a", "b"});
  GuardEvent e = t.event(EventKind::ended);
  e.state.emplace();
  e.state->phase = AttemptPhase::ended;
  e.state->reason = EndReason::cancelled;
  e.state->lost = {"b"};
  t.tell(e);
  t.tell(EventKind::fenced);
  EXPECT_EQ(t.last.kind, "stop");
}

TEST(GuardDecide, BudgetsBeginAnewWhenAPersonStartsItAgain) {
  GuardPolicy p = plain();
  p.most_restarts = 2;
  Talk t(p);
  const auto until_it_stops = [&] {
    int starts = 0;
    for (int step = 10; t.s.phase != GuardPhase::stopped; step += 10, ++starts) {
      t.run_to(step + 1000 * static_cast<int>(t.s.attempt));
      t.ends({}, 9);
    }
    return starts;
  };
  EXPECT_EQ(until_it_stops(), 3);
  GuardEvent e = t.event(EventKind::resumed);
  e.attempt = 0;
  e.policy = p;
  t.tell(e);
  EXPECT_EQ(until_it_stops(), 3);

  p.needed_nodes = 2;
  p.wait_nodes_s = 60;
  Talk few(p);
  const auto waits = [&] {
    int looks = 0;
    for (; few.s.phase != GuardPhase::stopped; ++looks) {
      if (few.s.phase == GuardPhase::waiting) few.wait_over();
      GuardEvent nodes = few.event(EventKind::nodes);
      nodes.attempt = 0;
      nodes.nodes = {{"a", "good", ""}};
      few.tell(nodes);
    }
    return looks;
  };
  const int first = waits();
  EXPECT_GT(first, 3);
  e.policy = p;
  few.tell(e);
  EXPECT_EQ(waits(), first) << "as long as at first";
}

// Killed while the job saved, since a person had stopped it: who starts guard again wants it to go on.
TEST(GuardDecide, WhoTakesUpAStopGoesOn) {
  Talk t;
  t.run_to(50);
  t.tell(EventKind::stop_asked, "told to end");
  ASSERT_EQ(t.s.phase, GuardPhase::saving);
  GuardEvent e = t.event(EventKind::resumed);
  e.attempt = 0;
  e.policy = plain();
  t.tell(e);
  EXPECT_TRUE(t.does(ActionKind::signal));
  t.ends(0);
  EXPECT_EQ(t.last.kind, "restart") << t.last.text;
}

TEST(GuardDecide, DrainsThatMayNotHaveBeenDoneAreDoneByWhoTakesUp) {
  Talk t;
  t.run_to(50, {"a", "b"});
  t.found("ECC Error", "Infrastructure", "auto-exclude", "b");
  t.ends(1);
  ASSERT_TRUE(t.does(ActionKind::drain));
  GuardEvent e = t.event(EventKind::resumed);
  e.attempt = 0;
  e.policy = plain();
  t.tell(e);
  ASSERT_TRUE(t.does(ActionKind::drain));
  EXPECT_EQ(t.action(ActionKind::drain)->node, "b");
  EXPECT_EQ(t.action(ActionKind::drain)->text, "orrery guard: ECC Error, attempt 1");
  GuardEvent drained = t.event(EventKind::nodes);
  drained.nodes.push_back({"b", "drained", ""});
  t.tell(drained);
  t.tell(e);
  EXPECT_FALSE(t.does(ActionKind::drain));
}

TEST(GuardDecide, AnUntestedNodeIsNotABadOne) {
  Talk t{GuardPolicy{}};
  t.run_to(50, {"a", "b", "c", "d"});
  t.ends({}, 9);
  GuardEvent e = t.event(EventKind::nodes);
  e.attempt = 0;
  e.nodes = {{"a", "good", ""}, {"b", "untested", "srun: Unable to allocate resources"}, {"c", "good", ""}};
  t.tell(e);
  EXPECT_FALSE(t.does(ActionKind::drain));
  EXPECT_TRUE(t.s.excluded.empty());
  ASSERT_FALSE(t.last.evidence.empty());
  EXPECT_EQ(t.last.evidence[0], "b: untested srun: Unable to allocate resources");
}

TEST(GuardDecide, AnAttemptBeginsWhenItComesOutOfItsQueue) {
  Talk t;
  GuardEvent e = t.event(EventKind::started);
  e.handle = "7:1";
  e.first = true;
  t.tell(e);
  EXPECT_EQ(t.s.phase, GuardPhase::running);
  EXPECT_EQ(t.s.attempts[0].started, 0);
  t.at += 36'000 * kSecond;
  e.first = false;
  e.state.emplace();
  e.state->phase = AttemptPhase::running;
  e.state->nodes = {"a", "b"};
  t.tell(e);
  EXPECT_EQ(t.last.kind, "");
  EXPECT_EQ(t.s.attempts[0].started, t.at);
  EXPECT_EQ(t.s.attempts[0].nodes, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(t.last.actions.empty());
}

TEST(GuardDecide, TroubleThatLastsIsTold) {
  Talk t;
  t.run_to(50);
  t.tell(EventKind::trouble, "in vain");
  EXPECT_EQ(t.last.kind, "notice");
  EXPECT_EQ(t.last.text, "in vain");
  EXPECT_TRUE(t.last.actions.empty());
}

// ---- random events ----

// The world: at most one attempt may live, and it is not told to decide().
struct World {
  std::mt19937_64 random;
  Talk t;
  std::int64_t alive = 0;  // number of the attempt that lives; 0 = none
  std::set<std::int64_t> started;
  int starts = 0;

  World(std::uint64_t seed, const GuardPolicy& p) : random(seed), t(p) {}

  int pick(int n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); }

  void obey() {
    for (const Action& a : t.last.actions) {
      if (a.kind == ActionKind::start || (a.kind == ActionKind::find && !started.contains(a.attempt))) {
        if (a.kind == ActionKind::find) continue;
        ASSERT_EQ(alive, 0) << "a second copy";
        ASSERT_TRUE(started.insert(a.attempt).second) << "a number used twice";
        ++starts;
        alive = a.attempt;
      }
    }
  }

  // Whatever may come in this phase, and what may not.
  GuardEvent anything() {
    const int kinds = static_cast<int>(EventKind::queued) + 1;
    GuardEvent e = t.event(static_cast<EventKind>(1 + pick(kinds - 1)));  // not begin
    if (pick(8) == 0) e.attempt = pick(5);
    e.step = pick(100);
    e.loss = pick(2) == 0 ? NAN : 9;
    e.text = "x";
    e.fatal = pick(20) == 0;
    if (e.kind == EventKind::stop_asked && pick(30) != 0) e.kind = EventKind::tick;
    if (e.kind == EventKind::ended) {
      e.state.emplace();
      if (pick(3) == 0) e.state->exit_status = pick(10) == 0 ? 0 : 1;
      if (!e.state->exit_status && pick(2) == 0) e.state->signal = 9;
      e.state->reason = static_cast<EndReason>(pick(8));
      if (e.state->reason == EndReason::cancelled) e.state->reason = EndReason::none;
    }
    if (e.kind == EventKind::finding) {
      static constexpr const char* restarts[] = {"auto", "auto-exclude", "auto-rollback", "auto"};
      e.finding.emplace();
      e.finding->verdict = pick(4) == 0 ? "healthy" : "failed";
      e.finding->reason = "CUDA Error";
      e.finding->restart = restarts[pick(4)];
      e.finding->node = pick(2) == 0 ? "n1" : "";
      e.finding->confidence = 0.9;
      e.finding->ended = true;
    }
    if (e.kind == EventKind::nodes)
      for (const char* n : {"n1", "n2", "n3", "n4"}) e.nodes.push_back({n, pick(6) == 0 ? "bad" : "good", ""});
    if (e.kind == EventKind::checkpoints)
      for (int step = pick(100); step > 0; step -= 1 + pick(30))
        e.checkpoints.push_back({std::to_string(step), step, 0});
    if (e.kind == EventKind::resumed) e.policy = t.s.policy;
    return e;
  }

  // Never what cannot happen: fenced while it lives, started where it was not.
  bool possible(const GuardEvent& e) {
    switch (e.kind) {
      case EventKind::fenced:
        if (t.s.phase != GuardPhase::fencing || e.attempt != t.s.attempt) return false;
        alive = 0;
        return true;
      case EventKind::started:
        return alive != 0 && e.attempt == alive;
      case EventKind::not_started:
        if (t.s.phase != GuardPhase::starting || e.attempt != t.s.attempt) return false;
        alive = 0;  // the runner knows
        return true;
      case EventKind::resumed:
        return t.s.phase != GuardPhase::stopped;
      default:
        return true;
    }
  }
};

TEST(GuardDecide, RandomEventsNeverMakeASecondCopyAndAlwaysEnd) {
  int starts = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    GuardPolicy p;
    p.check_nodes = seed % 2 == 0;
    p.knows_checkpoints = seed % 3 != 0;
    p.needed_nodes = seed % 5 == 0 ? 2 : 0;
    p.most_restarts = 6;
    p.most_in_window = 50;
    p.most_without_progress = 5;
    World w(seed, p);
    w.obey();
    std::vector<GuardEvent> told;
    int n = 0;
    for (; n < 20'000 && w.t.s.phase != GuardPhase::stopped; ++n) {
      const GuardEvent e = w.anything();
      if (!w.possible(e)) continue;
      w.t.at += kSecond * w.pick(100);
      w.t.tell(e);
      w.obey();
      if (::testing::Test::HasFatalFailure()) FAIL() << "seed " << seed << " event " << n;
      if (w.t.s.phase == GuardPhase::waiting) w.t.at = std::max(w.t.at, w.t.s.until);
    }
    EXPECT_EQ(w.t.s.phase, GuardPhase::stopped) << "seed " << seed;
    EXPECT_EQ(w.alive, 0) << "seed " << seed << ": it stopped and something lives";
    EXPECT_LE(w.t.s.failure_restarts, p.most_restarts);
    EXPECT_LE(w.t.s.rollbacks_here, p.most_rollbacks + 1);
    starts += w.starts;
  }
  EXPECT_GT(starts, 800) << "the events must get somewhere";
}

}  // namespace
}  // namespace orrery
