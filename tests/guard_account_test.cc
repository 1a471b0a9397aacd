// Where the time went, of a life that can be added up by hand.
#include "supervisor/guard_account.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "supervisor/decide.h"
#include "supervisor/step_clock.h"

namespace orrery {
namespace {

constexpr Ns kSecond = 1'000'000'000;

AttemptRecord attempt(std::int64_t number, std::int64_t asked, std::int64_t started, std::int64_t first,
                      std::int64_t last, std::int64_t noticed, std::int64_t fenced, std::int64_t first_step,
                      std::int64_t last_step) {
  AttemptRecord a;
  a.number = number;
  a.asked = asked * kSecond;
  a.started = started * kSecond;
  a.first_progress = first * kSecond;
  a.last_progress = last * kSecond;
  a.noticed = noticed * kSecond;
  a.ended = a.fenced = fenced * kSecond;
  a.first_step = first_step;
  a.last_step = last_step;
  return a;
}

TEST(GuardAccount, EverySecondIsUsefulOrLostToACause) {
  GuardState s;
  s.phase = GuardPhase::stopped;
  s.began = 1000 * kSecond;
  // 100 steps in 100 s; a hang, noticed after 40 s, ended in 10; then from step 80 on.
  s.attempts.push_back(attempt(1, 1000, 1010, 1030, 1130, 1170, 1180, 1, 101));
  s.attempts[0].failure.kind = FailureKind::hang;
  s.attempts[0].failure.cause = "hang";
  s.attempts.push_back(attempt(2, 1190, 1200, 1220, 1320, 1320, 1320, 82, 182));
  s.now = 1320 * kSecond;
  const GuardAccount a = account(s, 9999 * kSecond);
  EXPECT_DOUBLE_EQ(a.wall_s, 320);
  EXPECT_DOUBLE_EQ(a.running_s, 170 + 120);
  EXPECT_DOUBLE_EQ(a.useful_s, 80 + 100) << "20 of the first 100 steps were done again";
  ASSERT_EQ(a.lost.size(), 2u);
  const LostTime& hang = a.lost[0];
  EXPECT_EQ(hang.cause, "hang");
  EXPECT_EQ(hang.failures, 1);
  EXPECT_DOUBLE_EQ(hang.work_s, 20);
  EXPECT_DOUBLE_EQ(hang.noticing_s, 40);
  EXPECT_DOUBLE_EQ(hang.ending_s, 10);
  EXPECT_DOUBLE_EQ(hang.down_s, 20) << "1180 to 1200";
  EXPECT_DOUBLE_EQ(hang.starting_s, 20);
  EXPECT_DOUBLE_EQ(a.lost[1].all_s(), 10 + 20) << "the first start";
  EXPECT_DOUBLE_EQ(a.useful_s + a.lost[0].all_s() + a.lost[1].all_s(), a.wall_s);
  EXPECT_DOUBLE_EQ(a.ettr(), 180.0 / 320);
  EXPECT_DOUBLE_EQ(a.goodput(), 180.0 / 290);
  EXPECT_EQ(a.restarts, 1);
}

TEST(GuardAccount, WhatARollbackThrewAwayIsLostInEachAttemptThatHadIt) {
  GuardState s;
  s.phase = GuardPhase::stopped;
  s.began = 0;
  s.attempts.push_back(attempt(1, 0, 0, 10, 110, 110, 110, 1, 101));
  s.attempts[0].started = 1;
  s.attempts[0].failure.kind = FailureKind::infrastructure;
  s.attempts[0].failure.cause = "killed";
  s.attempts.push_back(attempt(2, 110, 110, 120, 140, 140, 140, 102, 122));
  s.attempts[1].failure.kind = FailureKind::numbers;
  s.attempts[1].failure.cause = "loss";
  s.attempts.push_back(attempt(3, 140, 140, 150, 300, 300, 300, 62, 212));
  s.attempts[2].rollback = true;
  s.attempts[2].skip_from = 51;
  s.attempts[2].skip_to = 61;
  s.now = 300 * kSecond;
  const GuardAccount a = account(s, 0);
  EXPECT_DOUBLE_EQ(a.useful_s, 50 + 0 + 150) << "of the first 100, half was done again or left out";
}

TEST(GuardAccount, WhileItRunsTimeGoesOn) {
  GuardState s;
  s.phase = GuardPhase::running;
  s.began = 0;
  s.now = 50 * kSecond;
  s.attempts.push_back(attempt(1, 0, 10, 20, 50, 0, 0, 1, 31));
  const GuardAccount a = account(s, 60 * kSecond);
  EXPECT_DOUBLE_EQ(a.wall_s, 60);
  EXPECT_DOUBLE_EQ(a.running_s, 50);
  EXPECT_DOUBLE_EQ(a.useful_s, 30);
}

TEST(GuardAccount, ItsQueueIsDown) {
  GuardState s;
  s.phase = GuardPhase::running;
  s.began = 0;
  s.now = 100 * kSecond;
  s.attempts.push_back(attempt(1, 1, 0, 0, 0, 0, 0, -1, -1));
  GuardAccount a = account(s, 100 * kSecond);
  ASSERT_EQ(a.lost.size(), 1u);
  EXPECT_DOUBLE_EQ(a.lost[0].down_s, 100);
  EXPECT_DOUBLE_EQ(a.running_s, 0);
  s.attempts[0] = attempt(1, 1, 100, 110, 200, 0, 0, 1, 91);
  a = account(s, 200 * kSecond);
  EXPECT_DOUBLE_EQ(a.running_s, 100);
  EXPECT_DOUBLE_EQ(a.goodput(), 0.9) << "what it waited is not its own";
}

TEST(GuardAccount, WhatItWasSuspendedIsDown) {
  GuardState s;
  s.phase = GuardPhase::running;
  s.began = 0;
  s.now = 80 * kSecond;
  s.attempts.push_back(attempt(1, 0, 10, 20, 80, 0, 0, 1, 31));
  s.attempts[0].suspended = {{15 * kSecond, 18 * kSecond}, {40 * kSecond, 60 * kSecond}};
  GuardAccount a = account(s, 80 * kSecond);
  const auto down = [&] {
    for (const LostTime& l : a.lost)
      if (l.cause == "suspended") return l.down_s;
    return 0.0;
  };
  EXPECT_DOUBLE_EQ(a.useful_s, 40);
  EXPECT_DOUBLE_EQ(down(), 23);
  EXPECT_DOUBLE_EQ(a.running_s, 47);
  EXPECT_DOUBLE_EQ(a.attempts[0].to_first_step_s, 7);
  s.attempts[0].suspended.emplace_back(85 * kSecond, 0);
  a = account(s, 100 * kSecond);
  EXPECT_DOUBLE_EQ(down(), 38) << "it still is";
  EXPECT_DOUBLE_EQ(a.running_s, 52);
}

// From second 1000 on: 0 is "never".
AttemptRecord later(std::int64_t number, std::int64_t asked, std::int64_t started, std::int64_t first,
                    std::int64_t last, std::int64_t noticed, std::int64_t fenced, std::int64_t first_step,
                    std::int64_t last_step) {
  constexpr std::int64_t k = 1000;
  return attempt(number, k + asked, k + started, k + first, k + last, k + noticed, k + fenced, first_step, last_step);
}

double lost_s(const GuardAccount& a) {
  double sum = 0;
  for (const LostTime& l : a.lost) sum += l.all_s();
  return sum;
}

const LostTime& cause(const GuardAccount& a, const std::string& name) {
  static const LostTime none;
  for (const LostTime& l : a.lost)
    if (l.cause == name) return l;
  ADD_FAILURE() << "nothing lost to " << name;
  return none;
}

// It goes on training after it was asked to save, until it is ended by force.
TEST(GuardAccount, StepsAfterItWasAskedToSaveAreNotDownAsWell) {
  GuardState s;
  s.began = 1000 * kSecond;
  s.phase = GuardPhase::stopped;
  s.policy.knows_checkpoints = true;
  s.attempts.push_back(later(1, 0, 0, 1, 101, 40, 110, 1, 101));
  s.attempts[0].failure.kind = FailureKind::interrupted;
  s.attempts[0].failure.cause = "time limit";
  s.attempts.push_back(later(2, 115, 120, 121, 171, 171, 175, 22, 72));
  s.attempts[1].checkpoint = "step-000000000021-full-6e3a8311402c0161-000001";
  s.attempts[1].failure.reason = "done";
  s.now = 1175 * kSecond;
  const GuardAccount a = account(s, 0);
  EXPECT_DOUBLE_EQ(a.useful_s, 20 + 50);
  EXPECT_DOUBLE_EQ(cause(a, "time limit").work_s, 80);
  EXPECT_DOUBLE_EQ(cause(a, "time limit").noticing_s, 0);
  EXPECT_DOUBLE_EQ(cause(a, "time limit").ending_s, 9) << "101 to 110";
  EXPECT_DOUBLE_EQ(cause(a, "time limit").down_s, 10);
  EXPECT_DOUBLE_EQ(cause(a, "done").ending_s, 4) << "from the last step to the end";
  EXPECT_EQ(cause(a, "done").failures, 0);
  EXPECT_DOUBLE_EQ(a.useful_s + lost_s(a), 175);
}

TEST(GuardAccount, AnOutageCountsWhileItLasts) {
  GuardState s;
  s.began = 1000 * kSecond;
  s.phase = GuardPhase::waiting;
  s.attempts.push_back(later(1, 0, 0, 1, 5, 6, 7, 1, 5));
  s.attempts[0].failure.kind = FailureKind::infrastructure;
  s.attempts[0].failure.cause = "Node Failure";
  s.now = 1007 * kSecond;
  EXPECT_DOUBLE_EQ(cause(account(s, 1200 * kSecond), "Node Failure").down_s, 193);
  // Being ended still
  s.phase = GuardPhase::fencing;
  s.failure = s.attempts[0].failure;
  s.attempts[0].fenced = 0;
  s.attempts[0].failure = {};
  const GuardAccount a = account(s, 1020 * kSecond);
  EXPECT_DOUBLE_EQ(cause(a, "Node Failure").ending_s, 14);
  EXPECT_EQ(cause(a, "Node Failure").failures, 1);
}

// Logs that tell every 50th step alone: where it began is known from the checkpoint.
TEST(GuardAccount, AnAttemptBeganAfterItsCheckpoint) {
  GuardState s;
  s.began = 1000 * kSecond;
  s.phase = GuardPhase::stopped;
  s.policy.knows_checkpoints = true;
  s.attempts.push_back(later(1, 0, 0, 60, 110, 130, 130, 50, 100));
  s.attempts[0].failure.kind = FailureKind::infrastructure;
  s.attempts[0].failure.cause = "killed";
  s.attempts.push_back(later(2, 130, 130, 155, 205, 205, 205, 100, 150));
  s.attempts[1].checkpoint = "step-000000000080-full-6e3a8311402c0161-000002";
  s.now = 1205 * kSecond;
  const GuardAccount a = account(s, 0);
  EXPECT_EQ(a.attempts[0].first_step, 1);
  EXPECT_EQ(a.attempts[1].first_step, 81);
  EXPECT_DOUBLE_EQ(a.attempts[0].to_first_step_s, 60 - 49) << "a step a second";
  EXPECT_DOUBLE_EQ(a.attempts[1].to_first_step_s, 25 - 19);
  EXPECT_DOUBLE_EQ(cause(a, "killed").work_s, 20) << "81 to 100";
  EXPECT_DOUBLE_EQ(a.useful_s, 79 + 69);
  // It went on from something else than the newest that guard knows: what was seen counts.
  s.attempts[1].first_step = 5000;
  s.attempts[1].last_step = 5050;
  EXPECT_EQ(account(s, 0).attempts[1].first_step, 5000);
}

// Steps that came while nobody looked.
TEST(GuardStepClock, StepsTookWhatTheirLogSays) {
  StepClock logged(1000 * kSecond, true);
  for (int i = 0; i < 146; ++i) logged.logged(0.5);
  EXPECT_EQ(logged.first_at(1, 101, 1060 * kSecond), 1010 * kSecond);
  EXPECT_EQ(logged.first_at(1, 201, 1060 * kSecond), 1000 * kSecond) << "not before it was started";
  StepClock silent(1000 * kSecond, true);
  silent.logged(-1);
  silent.none_seen(1055 * kSecond);
  EXPECT_EQ(silent.first_at(1, 60, 1060 * kSecond), 1001 * kSecond) << "each as long as the others";
  StepClock watched(1000 * kSecond, false);
  watched.none_seen(1056 * kSecond);
  EXPECT_EQ(watched.first_at(1, 4, 1060 * kSecond), 1057 * kSecond) << "none was there a look before";
  EXPECT_EQ(watched.first_at(4, 4, 1060 * kSecond), 1060 * kSecond);
}

// Whatever happens, in any order and by clocks that disagree: no second is missing, none is there twice.
TEST(GuardAccount, AllTimeIsAccountedForInEveryState) {
  std::mt19937_64 random(7);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  std::size_t long_lives = 0;
  for (int life = 0; life < 3000; ++life) {
    GuardState s;
    Ns now = 1000 * kSecond;
    GuardEvent begin;
    begin.kind = EventKind::begin;
    begin.at = now;
    begin.policy.emplace();
    begin.policy->knows_checkpoints = below(2) == 0;
    begin.policy->needed_nodes = below(3);
    begin.policy->most_in_window = 100;
    begin.policy->straggler = OnStraggler::replace;
    s = decide(std::move(s), begin).next;
    for (int i = 0; i < 120; ++i) {
      now += below(20) * kSecond / 4;
      GuardEvent e;
      e.kind = static_cast<EventKind>(1 + below(static_cast<int>(EventKind::tick)));
      if (below(8) == 0) e.kind = EventKind::suspended;
      e.first = e.kind == EventKind::suspended && below(2) == 0;
      // Often what the state waits for, else it gets nowhere.
      if (below(2) == 0) {
        switch (s.phase) {
          case GuardPhase::choosing:
            e.kind = EventKind::checkpoints;
            break;
          case GuardPhase::starting:
            e.kind = EventKind::started;
            break;
          case GuardPhase::running:
            e.kind = EventKind::progress;
            break;
          case GuardPhase::fencing:
            e.kind = EventKind::fenced;
            break;
          case GuardPhase::checking:
            e.kind = EventKind::nodes;
            break;
          case GuardPhase::waiting:
            now += 100 * kSecond;
            e.kind = EventKind::tick;
            break;
          case GuardPhase::stopped:
            e.kind = EventKind::resumed;
            break;
          default:
            break;
        }
      }
      e.at = now - (below(4) == 0 ? below(30) * kSecond : 0);
      if (e.kind != EventKind::resumed && e.kind != EventKind::nodes) e.attempt = s.attempt;
      e.step = s.step + below(5);
      e.node = "a";
      e.loss = below(2) == 0 ? 1e9 : std::numeric_limits<double>::quiet_NaN();
      if (e.kind == EventKind::resumed) e.policy = begin.policy;
      if (e.kind == EventKind::ended || e.kind == EventKind::started) {
        e.state.emplace();
        if (below(3) == 0) {
          e.state->exit_status = static_cast<int>(below(2));
        } else {
          e.state->signal = 9;
        }
        e.state->reason = static_cast<EndReason>(below(8));
      }
      if (e.kind == EventKind::nodes) e.nodes = {{"a", "good", ""}, {"b", below(2) == 0 ? "bad" : "good", ""}};
      if (e.kind == EventKind::checkpoints && below(3) > 0)
        e.checkpoints = {{"step-000000000002-full-6e3a8311402c0161-000001", 2, 1}};
      if (e.kind == EventKind::saved) e.text = "x";
      s = decide(std::move(s), e).next;
      const GuardAccount a = account(s, now + below(3) * kSecond);
      ASSERT_NEAR(a.useful_s + lost_s(a), a.wall_s, 1e-6) << name_of(s.phase);
      ASSERT_GE(a.useful_s, 0);
      double down = 0, ran = 0;
      for (const LostTime& l : a.lost) {
        for (const double part : {l.work_s, l.noticing_s, l.ending_s, l.down_s, l.starting_s}) ASSERT_GE(part, 0);
        down += l.down_s;
      }
      for (const AttemptTime& t : a.attempts) ran += t.ran_s;
      ASSERT_NEAR(ran, a.running_s, 1e-6);
      ASSERT_NEAR(ran + down, a.wall_s, 1e-6);
      ASSERT_LE(a.goodput(), 1 + 1e-9);
    }
    long_lives += s.attempts.size() > 3 ? 1 : 0;
  }
  EXPECT_GT(long_lives, 100u);
}

}  // namespace
}  // namespace orrery
