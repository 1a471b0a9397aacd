// decide() where checkpoints matter: numbers that went bad, none that is good, some that are held.
#include <gtest/gtest.h>

#include <cmath>

#include "guard_talk.h"
#include "supervisor/decide.h"

namespace orrery {
namespace {

// A frozen node was taken for dead: its rank still has the lock of the checkpoints.
TEST(GuardCheckpoints, CheckpointsThatAnAttemptBeforeHoldsAreWaitedFor) {
  Talk t;
  t.run_to(40);
  t.ends({}, 9);
  t.wait_over();
  for (int i = 0; i < 12; ++i) {
    t.tell(EventKind::started);
    t.found("Runtime Error", "Framework", "no", {}, 0.9,
            "RuntimeError: c/rank-00002.lock: another writer has it (process 7, maybe on another host)");
    t.ends(1);
    ASSERT_EQ(t.last.kind, "wait") << i;
    t.wait_over();
  }
  EXPECT_EQ(t.s.outcome, GuardOutcome::open) << "it gained nothing, and that is nobody's fault";
}

TEST(GuardCheckpoints, BadNumbersWithNowhereToGoBackToAreReported) {
  Talk t;
  t.run_to(40);
  GuardEvent bad = t.event(EventKind::bad_loss, "not finite");
  bad.loss = NAN;
  t.tell(bad);
  EXPECT_EQ(t.last.kind, "notice");
  EXPECT_TRUE(t.last.actions.empty());
}

TEST(GuardCheckpoints, BadNumbersGoBackToAnEarlierCheckpointAndSkip) {
  GuardPolicy p = plain();
  p.knows_checkpoints = true;
  p.skip_extra = 2;
  Talk t(p);
  t.lists({});
  t.run_to(40);
  GuardEvent bad = t.event(EventKind::bad_loss, "not finite");
  bad.step = 33;
  bad.loss = NAN;
  t.tell(bad);
  EXPECT_TRUE(t.does(ActionKind::fence));
  EXPECT_FALSE(t.does(ActionKind::signal)) << "what it has now must not be saved";
  t.tell(EventKind::fenced);
  EXPECT_EQ(t.last.kind, "rollback");
  t.wait_over();
  ASSERT_TRUE(t.does(ActionKind::list_checkpoints));
  EXPECT_EQ(t.action(ActionKind::list_checkpoints)->step, 32);
  t.lists({40, 35, 30, 20});
  const Action* start = t.action(ActionKind::start);
  ASSERT_NE(start, nullptr);
  EXPECT_EQ(start->checkpoint, "step-30") << "the newest of before";
  EXPECT_TRUE(start->rollback);
  EXPECT_EQ(start->skip_from, 30);
  EXPECT_EQ(start->skip_to, 35);

  // A failure before anything was saved beyond the gap: the same again.
  t.run_to(34);
  t.ends({}, 9);
  t.wait_over();
  t.lists({34, 30, 20});
  start = t.action(ActionKind::start);
  ASSERT_NE(start, nullptr);
  EXPECT_EQ(start->checkpoint, "step-30");
  EXPECT_EQ(start->skip_to, 35);
  EXPECT_TRUE(start->rollback);
  // Once it is behind, the newest.
  t.run_to(60);
  t.ends({}, 9);
  t.wait_over();
  t.lists({60, 50});
  start = t.action(ActionKind::start);
  ASSERT_NE(start, nullptr);
  EXPECT_EQ(start->checkpoint, "step-60");
  EXPECT_FALSE(start->rollback);
}

TEST(GuardCheckpoints, TheSameBadNumbersAgainGoBackFurtherThenStop) {
  GuardPolicy p = plain();
  p.knows_checkpoints = true;
  p.most_rollbacks = 2;
  p.most_without_progress = 10;
  Talk t(p);
  t.lists({});
  std::vector<std::string> from;
  while (t.s.phase != GuardPhase::stopped) {
    t.run_to(40);
    GuardEvent bad = t.event(EventKind::bad_loss);
    bad.step = 33;
    t.tell(bad);
    t.tell(EventKind::fenced);
    if (t.s.phase == GuardPhase::stopped) break;
    t.wait_over();
    t.lists({30, 20, 10});
    from.push_back(t.action(ActionKind::start)->checkpoint);
  }
  EXPECT_EQ(from, (std::vector<std::string>{"step-30", "step-20"}));
  EXPECT_NE(t.last.text.find("it came again"), std::string::npos) << t.last.text;
}

TEST(GuardCheckpoints, NoEarlierCheckpointIsAStop) {
  GuardPolicy p = plain();
  p.knows_checkpoints = true;
  Talk t(p);
  t.lists({50});
  t.run_to(60);
  GuardEvent bad = t.event(EventKind::bad_loss);
  bad.step = 33;
  t.tell(bad);
  t.tell(EventKind::fenced);
  t.wait_over();
  t.lists({60, 50});
  EXPECT_EQ(t.last.kind, "stop");
  EXPECT_NE(t.last.text.find("every checkpoint is of after iteration 32"), std::string::npos) << t.last.text;
}

TEST(GuardCheckpoints, AnExitWithBadNumbersIsNotDone) {
  GuardPolicy p = plain();
  p.knows_checkpoints = true;
  Talk t(p);
  t.lists({});
  t.run_to(60);
  t.found("Runtime Error", "Framework", "auto-rollback");
  t.ends(0);
  EXPECT_EQ(t.last.kind, "rollback");
  p.bad_loss = OnBadLoss::report;
  Talk r(p);
  r.lists({});
  r.run_to(60);
  r.found("Runtime Error", "Framework", "auto-rollback");
  r.ends(0);
  EXPECT_EQ(r.last.kind, "done");
}

TEST(GuardCheckpoints, NoGoodCheckpointIsNoReasonToBeginAnew) {
  GuardPolicy p = plain();
  p.knows_checkpoints = true;
  Talk t(p);
  GuardEvent e = t.event(EventKind::checkpoints, "none is good");
  e.attempt = 0;
  e.fatal = true;
  t.tell(e);
  EXPECT_EQ(t.last.kind, "stop");
}
// What is to be withdrawn is still there, and newer than the step that it is to go beyond.
TEST(GuardCheckpoints, ARollbackThatDidNotBeginIsNotBehindIt) {
  GuardPolicy p = plain();
  p.knows_checkpoints = true;
  Talk t(p);
  t.lists({});
  t.run_to(170);
  GuardEvent bad = t.event(EventKind::bad_loss, "not finite");
  bad.step = 120;
  bad.loss = NAN;
  t.tell(bad);
  t.tell(EventKind::fenced);
  t.wait_over();
  t.lists({150, 100, 50});
  ASSERT_EQ(t.action(ActionKind::start)->checkpoint, "step-100");
  t.tell(EventKind::not_started, "what came after step-100 cannot be withdrawn");
  t.wait_over();
  t.lists({150, 100, 50});
  const Action* again = t.action(ActionKind::start);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->checkpoint, "step-100") << "150 is of after the numbers went bad";
  EXPECT_TRUE(again->rollback);
  EXPECT_EQ(again->skip_from, 100);
  EXPECT_EQ(again->skip_to, 120);
  t.run_to(140);  // that one began
  t.ends({}, 9);
  t.wait_over();
  t.lists({130, 100, 50});
  EXPECT_EQ(t.action(ActionKind::start)->checkpoint, "step-130") << "behind it now";
}

}  // namespace
}  // namespace orrery
