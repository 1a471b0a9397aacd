// Where the time went, of a life that can be added up by hand.
#include "supervisor/guard_account.h"

#include <gtest/gtest.h>

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
  EXPECT_DOUBLE_EQ(hang.down_s, 30) << "1170 to 1200";
  EXPECT_DOUBLE_EQ(hang.starting_s, 20);
  EXPECT_DOUBLE_EQ(a.lost[1].all_s(), 10 + 20) << "the first start";
  EXPECT_DOUBLE_EQ(a.useful_s + a.lost[0].all_s() + a.lost[1].all_s(), a.wall_s);
  EXPECT_DOUBLE_EQ(a.ettr(), 180.0 / 320);
  EXPECT_DOUBLE_EQ(a.goodput(), 180.0 / 290);
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

}  // namespace
}  // namespace orrery
