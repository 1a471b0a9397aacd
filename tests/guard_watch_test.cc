// What the supervisor sees in steps, losses and heartbeats: hangs that are, and above all those that are not.
#include <gtest/gtest.h>

#include <cmath>

#include "supervisor/watch.h"

namespace orrery {
namespace {

WatchPolicy quick() {
  WatchPolicy p;
  p.start_grace_s = 100;
  p.hang_floor_s = 20;
  p.hang_factor = 10;
  p.save_grace_s = 200;
  p.linger_s = 5;
  return p;
}

struct Job {
  Watch watch;
  Ns now = 0;
  std::int64_t step = 0;
  explicit Job(const WatchPolicy& p = quick(), std::int64_t skip_from = 0, std::int64_t skip_to = 0) : watch(p) {
    watch.begin_attempt(now, skip_from, skip_to);
  }
  void wait(double s) { now += static_cast<Ns>(s * 1e9); }
  void train(int steps, double each, double loss = 2.0) {
    for (int i = 0; i < steps; ++i) {
      wait(each);
      StepSample s;
      s.step = ++step;
      s.seconds = each;
      s.loss = loss;
      watch.step(now, s);
    }
  }
  std::vector<GuardEvent> look() { return watch.look(now); }
  bool sees(EventKind kind) {
    for (const GuardEvent& e : look())
      if (e.kind == kind) return true;
    return false;
  }
};

TEST(GuardWatch, NothingIsAHangBeforeTheFirstStepsGrace) {
  Job job;
  job.wait(99);
  EXPECT_TRUE(job.look().empty());
  job.wait(2);
  EXPECT_TRUE(job.sees(EventKind::no_progress));
  EXPECT_TRUE(job.look().empty()) << "told once";
}

TEST(GuardWatch, TheLimitFollowsFromTheJobsOwnSteps) {
  Job fast;
  fast.train(40, 0.1);
  EXPECT_DOUBLE_EQ(fast.watch.limit_s(), 20) << "the floor";
  Job slow;
  slow.train(40, 30);
  EXPECT_DOUBLE_EQ(slow.watch.limit_s(), 300) << "ten of its steps";
  slow.wait(299);
  EXPECT_FALSE(slow.sees(EventKind::no_progress));
  slow.wait(2);
  EXPECT_TRUE(slow.sees(EventKind::no_progress));
}

TEST(GuardWatch, TheFirstStepsMayTakeLonger) {
  Job job;
  job.train(3, 1);
  EXPECT_DOUBLE_EQ(job.watch.limit_s(), 100) << "as a start, or four times as long as later";
}

// Every fiftieth step is logged, 25 minutes apart: the second line is no later than the first was.
TEST(GuardWatch, FewLinesAreNoHang) {
  Job job{WatchPolicy{}};
  for (int i = 0; i < 8; ++i) {
    for (int minute = 0; minute < 25; ++minute) {
      job.wait(60);
      EXPECT_TRUE(job.look().empty()) << i << " " << minute;
    }
    StepSample s;
    s.step = 50 * (i + 1);
    s.seconds = 30;
    job.watch.step(job.now, s);
  }
}

// Guard reads nothing of it that it understands: no reason to kill it.
TEST(GuardWatch, AJobWithoutStepsIsReportedOnly) {
  Job job{WatchPolicy{}};
  job.wait(1801);
  auto events = job.look();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_TRUE(events[0].first);
  Job other{WatchPolicy{}};
  other.train(10, 1);
  other.watch.begin_attempt(other.now, 0, 0);
  other.wait(1801);
  events = other.look();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_FALSE(events[0].first) << "an attempt before told steps";
}

// An evaluation every now and then: what it came out of before is no hang now.
TEST(GuardWatch, PausesThatItCameOutOfAreLearned) {
  Job job;
  job.train(40, 1);
  job.wait(18);
  job.train(1, 1);
  EXPECT_DOUBLE_EQ(job.watch.limit_s(), 38);
  job.watch.begin_attempt(job.now, 0, 0);
  job.step = 0;
  job.train(20, 1);
  EXPECT_DOUBLE_EQ(job.watch.limit_s(), 38) << "also in the next attempt";
}

TEST(GuardWatch, WhileItSavesItMayTakeLong) {
  Job job;
  job.train(40, 0.1);
  job.watch.saving(job.now);
  job.wait(150);
  EXPECT_FALSE(job.sees(EventKind::no_progress));
  job.train(1, 0.1);
  job.wait(30);
  EXPECT_TRUE(job.sees(EventKind::no_progress)) << "the save is over";
}

TEST(GuardWatch, AJobThatStillWritesIsGivenLonger) {
  Job job;
  job.train(40, 0.1);
  job.wait(25);
  job.watch.output(job.now);
  EXPECT_FALSE(job.sees(EventKind::no_progress));
  job.wait(40);
  job.watch.output(job.now);
  EXPECT_TRUE(job.sees(EventKind::no_progress)) << "three times the limit, talking or not";
}

TEST(GuardWatch, NothingIsAHangWhileAnyRankMoves) {
  Job job;
  job.train(40, 0.1);
  for (int i = 0; i < 50; ++i) {
    job.wait(10);
    // Rank 1 alone goes from one thing to the next.
    job.watch.beats(job.now, {{0, 40, 1, "compute", ""}, {1, 40, i, i % 2 == 0 ? "compute" : "all_reduce", ""}});
    EXPECT_FALSE(job.sees(EventKind::no_progress)) << i;
  }
  for (int i = 0; i < 3; ++i) {
    job.wait(10);
    job.watch.beats(job.now, {{0, 40, 1, "compute", ""}, {1, 40, 49, "all_reduce", ""}});
  }
  EXPECT_TRUE(job.sees(EventKind::no_progress));
}

TEST(GuardWatch, HeartbeatsAloneTellSteps) {
  Job job;
  for (int i = 0; i < 40; ++i) {
    job.wait(4);
    job.watch.beats(job.now, {{0, i, i, "compute", "node7"}});
  }
  EXPECT_EQ(job.watch.last_step(), 39);
  EXPECT_EQ(job.watch.first_step(), 1) << "the one it is at";
  EXPECT_DOUBLE_EQ(job.watch.usual_step_s(), 4);
  EXPECT_EQ(job.watch.node_of(0), "node7");
}

TEST(GuardWatch, WhatARankSaysWhileItLoadsIsNoStep) {
  const auto first_of = [](std::int64_t base, const std::vector<Beat>& beats) {
    Job job;
    job.watch.begin_attempt(job.now, 0, 0, base);
    for (const Beat& b : beats) {
      job.wait(1);
      job.watch.beats(job.now, {b});
    }
    return job.watch.first_step();
  };
  EXPECT_EQ(first_of(-1, {{0, 0, 1, "start", ""}}), -1);
  EXPECT_EQ(first_of(-1, {{0, 0, 1, "start", ""}, {0, 80, 2, "compute", ""}}), 81);
  EXPECT_EQ(first_of(80, {{0, 0, 1, "load", ""}}), -1);
  EXPECT_EQ(first_of(80, {{0, 0, 1, "load", ""}, {0, 0, 2, "compile", ""}, {0, 80, 3, "compute", ""}}), 81);
  EXPECT_EQ(first_of(80, {{0, 0, 1, "load", ""}, {0, 83, 2, "compute", ""}}), 84);
  EXPECT_EQ(first_of(80, {{0, 0, 1, "compute", ""}, {0, 3, 2, "compute", ""}, {0, 90, 3, "compute", ""}}), 1)
      << "it did not take the checkpoint";
}

// Steps are counted anew in each epoch, or ranks go back to a checkpoint by themselves (torchrun).
TEST(GuardWatch, StepsThatBeginAnewAreProgress) {
  Job job;
  job.train(40, 1);
  for (const std::int64_t back : {0, 20}) {
    job.step = back;
    for (int i = 0; i < 15; ++i) {
      job.train(1, 10);
      EXPECT_FALSE(job.sees(EventKind::no_progress)) << back << " " << i;
    }
  }
  EXPECT_EQ(job.watch.last_step(), 40) << "the furthest";
  EXPECT_DOUBLE_EQ(job.watch.usual_step_s(), 1);
  StepSample again;
  again.step = job.step;
  for (int i = 0; i < 3; ++i) {
    job.wait(10);
    job.watch.step(job.now, again);
  }
  EXPECT_TRUE(job.sees(EventKind::no_progress)) << "the same step again and again is none";
}

// A quick job: the first look at the heartbeats is late, and it stands still then.
TEST(GuardWatch, LogsTellOfTheStepsBeforeTheFirstHeartbeat) {
  Job job;
  job.watch.beats(job.now, {{0, 17, 1, "compute", "node7"}});
  job.train(17, 0.01);
  EXPECT_EQ(job.watch.first_step(), 1);
  EXPECT_EQ(job.watch.last_step(), 17);
}

TEST(GuardWatch, AnErrorAfterWhichNothingMovesIsNotWaitedForAsLong) {
  Job job;
  job.train(40, 0.1);
  job.watch.failed(job.now, true);
  job.wait(6);
  EXPECT_TRUE(job.sees(EventKind::no_progress));
  Job evaluates;
  evaluates.train(40, 0.1);
  evaluates.watch.failed(evaluates.now, true);
  for (int i = 0; i < 12; ++i) {
    evaluates.wait(1);
    evaluates.watch.output(evaluates.now);
    EXPECT_FALSE(evaluates.sees(EventKind::no_progress)) << "it writes all the time";
  }
  Job survived;
  survived.train(40, 0.1);
  survived.watch.failed(survived.now, true);
  survived.train(1, 0.1);
  survived.wait(6);
  EXPECT_FALSE(survived.sees(EventKind::no_progress)) << "training went on after it";
}

TEST(GuardWatch, NodesThatDoNotAnswerCountOnlyWhenNothingMoves) {
  Job job;
  job.train(20, 0.1);
  for (int i = 0; i < 30; ++i) {
    job.watch.nodes_lost(job.now, {"b"});
    job.train(1, 1);
    EXPECT_FALSE(job.sees(EventKind::lost));
  }
  for (int i = 0; i < 12; ++i) {
    job.wait(1);
    job.watch.nodes_lost(job.now, {"b"});
  }
  EXPECT_TRUE(job.sees(EventKind::lost));
  for (int i = 0; i < 30; ++i) {
    job.wait(1);
    job.watch.nodes_lost(job.now, {"b"});
    EXPECT_FALSE(job.sees(EventKind::lost)) << "told once";
  }
  job.watch.nodes_lost(job.now, {"b", "c"});
  EXPECT_TRUE(job.sees(EventKind::lost)) << "another one";
}

TEST(GuardWatch, LossesThatAreNotFinite) {
  Job job;
  job.train(40, 1);
  job.train(1, 1, NAN);
  EXPECT_FALSE(job.sees(EventKind::bad_loss)) << "one may be skipped by a loss scaler";
  job.train(1, 1, 2.0);
  job.train(1, 1, NAN);
  job.train(1, 1, NAN);
  const auto events = job.look();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, EventKind::bad_loss);
  EXPECT_EQ(events[0].step, 43);
}

// Merged output of eight ranks: a step counts once, by their mean.
TEST(GuardWatch, AStepIsJudgedOnceHoweverManyRanksLogIt) {
  for (const bool numbered : {true, false}) {
    for (const bool labelled : {true, false}) {
      if (!numbered && !labelled) continue;
      Job job;
      const auto all = [&](double loss) {
        job.wait(1);
        ++job.step;
        for (std::int32_t rank = 0; rank < 8; ++rank) {
          StepSample s;
          if (numbered) s.step = job.step;
          if (labelled) s.rank = rank;
          s.loss = loss;
          job.watch.step(job.now, s);
        }
      };
      for (int i = 0; i < 40; ++i) all(2.0 + 0.01 * (i % 5));
      all(6.0);
      all(2.0);
      all(NAN);
      all(2.0);
      for (int i = 0; i < 7; ++i) all(6.0);
      EXPECT_FALSE(job.sees(EventKind::bad_loss)) << numbered << labelled;
      all(6.0);
      const auto events = job.look();
      ASSERT_EQ(events.size(), 1u);
      EXPECT_EQ(events[0].step, numbered ? 45 : -1);
      Job nan;
      nan.train(40, 1);
      std::swap(job, nan);
      all(NAN);
      EXPECT_FALSE(job.sees(EventKind::bad_loss)) << numbered << labelled;
      all(NAN);
      EXPECT_TRUE(job.sees(EventKind::bad_loss)) << numbered << labelled;
    }
  }
}

// Other stages of a pipeline have no loss to tell.
TEST(GuardWatch, ALossThatOnlySomeRanksHaveIsNoTrouble) {
  Job job;
  for (int i = 0; i < 40; ++i) {
    job.train(1, 1, NAN);
    --job.step;
    job.train(1, 1, 2.0);
    EXPECT_FALSE(job.sees(EventKind::bad_loss)) << i;
  }
}

TEST(GuardWatch, ASpikeThatComesDownIsNone) {
  Job job;
  for (int i = 0; i < 40; ++i) job.train(1, 1, 2.0 + 0.01 * (i % 5));
  job.train(7, 1, 6.0);
  job.train(1, 1, 2.0);
  job.train(7, 1, 6.0);
  EXPECT_FALSE(job.sees(EventKind::bad_loss));
  job.train(1, 1, 6.0);
  const auto events = job.look();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].step, 49);
}

TEST(GuardWatch, ASlowRiseOrANoisyLossIsNoSpike) {
  Job job;
  for (int i = 0; i < 400; ++i) job.train(1, 1, 2.0 + 0.005 * i);
  EXPECT_FALSE(job.sees(EventKind::bad_loss));
  Job noisy;
  for (int i = 0; i < 400; ++i) noisy.train(1, 1, i % 3 == 0 ? 4.0 : 1.0 + 0.5 * (i % 7));
  EXPECT_FALSE(noisy.sees(EventKind::bad_loss));
}

// Preference training begins at 0 and stays near it.
TEST(GuardWatch, LossesNearZeroAreSmallWhateverHappensToThem) {
  Job job;
  job.train(60, 1, 0.0);
  job.train(40, 1, 0.004);
  EXPECT_FALSE(job.sees(EventKind::bad_loss));
  job.train(20, 1, 3.0);
  EXPECT_TRUE(job.sees(EventKind::bad_loss));
}

TEST(GuardWatch, BatchesLeftOutHaveNoLoss) {
  Job job(quick(), 45, 50);
  job.train(45, 1);
  job.train(5, 1, 0.0);
  job.train(40, 1);
  EXPECT_FALSE(job.sees(EventKind::bad_loss));
}

TEST(GuardWatch, ARankThatAllOthersWaitFor) {
  Job job;
  job.train(40, 1);
  for (int i = 0; i < 80; ++i) {
    job.wait(0.1);
    const bool waits = i % 2 == 0;
    job.watch.beats(job.now, {{0, 40 + i, i, waits ? "all_reduce" : "compute", "a"},
                              {1, 40 + i, i, "compute", "b"},
                              {2, 40 + i, i, waits ? "all_reduce" : "compute", "c"}});
  }
  const auto events = job.look();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, EventKind::straggler);
  EXPECT_EQ(events[0].rank, 1);
  EXPECT_EQ(events[0].node, "b");
}

TEST(GuardWatch, StepsThatBecameSlow) {
  Job job;
  job.train(60, 1);
  job.train(15, 2);
  EXPECT_FALSE(job.sees(EventKind::straggler));
  job.train(1, 2);
  EXPECT_TRUE(job.sees(EventKind::straggler));
}

}  // namespace
}  // namespace orrery
