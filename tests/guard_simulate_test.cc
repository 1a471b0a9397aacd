// Months of failures against closed forms, and what must not change the answer.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "supervisor/checkpoint_interval.h"
#include "supervisor/simulate.h"
#include "supervisor/study_failures.h"

namespace orrery {
namespace {

constexpr Policy kGuardAsync{Restarts::guard, Saves::async}, kGuardSync{Restarts::guard, Saves::sync};
constexpr Policy kManualAsync{Restarts::people, Saves::async}, kManualSync{Restarts::people, Saves::sync};
constexpr Policy kAll[] = {kGuardAsync, kGuardSync, kManualAsync, kManualSync};

// Every restart takes detect + check seconds: no people, and more spares than nodes that break.
MonthsQuestion plain() {
  MonthsQuestion q;
  q.automatic = 1;
  q.spares = 20'000;
  q.repair_s = 0;
  q.mtbf_s = 7200;
  q.days = 365;
  q.trials = 50;
  return q;
}

// Mean work that a run keeps when it fails at constant rate: the sum over its saves of interval * P(they count).
double kept_in_closed_form(const SaveRhythm& r, double mtbf) {
  return r.interval * std::exp(-(r.startup + r.interval + r.block + r.persist) / mtbf) /
         -std::expm1(-r.period() / mtbf);
}

// The interval that keeps most, of the closed form without persist: exp((T + C) / M) (1 - T / M) = 1, by halving.
double best_in_closed_form(double block, double mtbf) {
  double low = 0, high = mtbf;
  for (int i = 0; i < 200; ++i) {
    const double t = (low + high) / 2;
    (std::exp((t + block) / mtbf) * (1 - t / mtbf) > 1 ? low : high) = t;
  }
  return low;
}

TEST(CheckpointInterval, ARunByHand) {
  const SaveRhythm sync{.startup = 100, .interval = 50, .block = 10, .persist = 0};
  const auto expect = [](const RhythmProgress& p, double starting, double trained, double saving, double kept) {
    EXPECT_EQ(p.starting, starting);
    EXPECT_EQ(p.trained, trained);
    EXPECT_EQ(p.saving, saving);
    EXPECT_EQ(p.kept, kept);
  };
  expect(progress_at(sync, 40), 40, 0, 0, 0);
  expect(progress_at(sync, 130), 100, 30, 0, 0);
  expect(progress_at(sync, 159), 100, 50, 9, 0);  // torn: does not count
  expect(progress_at(sync, 160), 100, 50, 10, 50);
  expect(progress_at(sync, 225), 100, 105, 20, 100);  // two periods of 60 s, then 5 s
  const SaveRhythm async{.startup = 0, .interval = 50, .block = 2, .persist = 20};
  expect(progress_at(async, 71), 0, 69, 2, 0);  // copied at 52, on storage at 72
  expect(progress_at(async, 72), 0, 70, 2, 50);
  const SaveRhythm slow{.startup = 0, .interval = 10, .block = 1, .persist = 30};
  expect(progress_at(slow, 41), 0, 20, 21, 10);  // trained by 21, waits for storage until 41
  expect(progress_at(slow, 43), 0, 21, 22, 10);
  expect(progress_at(slow, 72), 0, 30, 42, 20);
}

TEST(CheckpointInterval, YoungAndDaly) {
  EXPECT_DOUBLE_EQ(young_interval_s(60, 30'000), std::sqrt(2 * 60 * 30'000.0));
  EXPECT_DOUBLE_EQ(daly_interval_s(2, 100), 20 * (1 + 0.1 / 3 + 0.01 / 9) - 2);
  EXPECT_EQ(daly_interval_s(200, 100), 100);
}

TEST(CheckpointInterval, TheBestIsThatOfTheClosedFormAndNearDalys) {
  for (const double block : {1.0, 6.0, 60.0, 600.0})
    for (const double mtbf : {3600.0, 36'000.0, 360'000.0}) {
      SCOPED_TRACE(testing::Message() << block << " " << mtbf);
      const double best = best_interval_s({.block = block}, mtbf);
      EXPECT_NEAR(best / best_in_closed_form(block, mtbf), 1, 0.02);
      EXPECT_NEAR(best / daly_interval_s(block, mtbf), 1, 0.03);
    }
}

TEST(CheckpointInterval, TheTimeToStorageIsTheBestWhereTrainingWouldWait) {
  EXPECT_NEAR(best_interval_s({.block = 6, .persist = 54}, 36'000) / best_interval_s({.block = 6}, 36'000), 1, 0.02);
  EXPECT_DOUBLE_EQ(best_interval_s({.block = 1, .persist = 5000}, 36'000), 5000);
}

// Runs that live hardly longer than storage takes keep a part of little, or nothing.
TEST(CheckpointInterval, IsBelowTheTimeToStorageWhereFailuresAreAsFrequent) {
  for (const auto& [persist, mtbf] : {std::pair{590.0, 360.0}, {590.0, 3.6}, {5000.0, 3600.0}}) {
    SCOPED_TRACE(testing::Message() << persist << " " << mtbf);
    SaveRhythm rhythm{.block = 10, .persist = persist};
    const auto kept = [&](double interval) {
      rhythm.interval = interval;
      double sum = 0;  // midpoints of equal shares of the exponential law
      for (int i = 0; i < 20'000; ++i) sum += progress_at(rhythm, -mtbf * std::log((i + 0.5) / 20'000)).kept;
      return sum;
    };
    const double best = best_interval_s({.block = 10, .persist = persist}, mtbf);
    EXPECT_LT(best, persist);
    for (double interval = 0.01; interval < 3 * persist; interval *= 1.1)
      EXPECT_LE(kept(interval), 1.01 * kept(best)) << interval << " against " << best;
  }
}

TEST(StudyFailures, RestartsKeepMeanAndMedian) {
  for (const StudyFailure& f : study_failures()) {
    SCOPED_TRACE(f.reason);
    double sum = 0;
    int below = 0, above = 0;  // the median
    for (int i = 0; i < 1000; ++i)
      for (int k = 0; k < 400; ++k) {
        const double s = restart_by_people_s(f, (i + 0.5) / 1000, (k + 0.5) / 400);
        sum += s;
        below += s < 60 * f.to_restart_median_min;
        above += s > 60 * f.to_restart_median_min;
      }
    EXPECT_EQ(below, above);
    EXPECT_EQ(below, f.reason == "NCCL Remote Error" ? 0 : 200'000);  // always the median: its mean is below
    EXPECT_NEAR(sum / 400'000 / mean_restart_by_people_s(f), 1, 0.01);
  }
}

TEST(StudyFailures, RateByGpuCount) {
  EXPECT_NEAR(study_mtbf_s(2048) / 3600, 5'302'984 / (134 * 2048.0), 0.01);  // 19.3 hours
  EXPECT_DOUBLE_EQ(study_mtbf_s(1024), 2 * study_mtbf_s(2048));
}

TEST(GuardSimulate, ShareOfUseOfExponentialFailures) {
  MonthsQuestion q = plain();
  for (const Policy policy : {kGuardSync, kGuardAsync})
    for (const double interval : {120.0, 900.0, 3600.0}) {
      SCOPED_TRACE(testing::Message() << name_of(policy) << " " << interval);
      q.interval_s = interval;
      const bool async = policy.saves == Saves::async;
      const SaveRhythm r{q.startup_s, interval, async ? q.copy_s : q.save_s, async ? q.save_s - q.copy_s : 0};
      const double kept = kept_in_closed_form(r, q.mtbf_s);
      const PolicyMonths m = simulate_months(q, policy, 0);  // some 200,000 failures
      EXPECT_NEAR(m.goodput() / (kept / q.mtbf_s), 1, 0.005);
      EXPECT_NEAR(m.ettr_mean() / (kept / (q.mtbf_s + q.detect_s + q.check_s)), 1, 0.005);
      EXPECT_NEAR(m.failures / (m.wall_s / (q.mtbf_s + q.detect_s + q.check_s)), 1, 0.01);
    }
}

TEST(GuardSimulate, WithoutFailuresOnlySavesAndTheStartCost) {
  MonthsQuestion q;
  q.mtbf_s = 1e15;
  q.days = 10;
  q.interval_s = 940;
  const PolicyMonths m = simulate_months(q, kManualSync, 0);
  EXPECT_EQ(m.failures, 0);
  const double train = 864'000 - 300;  // in periods of 1,000 s: 863 whole ones and 700 s
  EXPECT_NEAR(m.useful_s, train - 863 * 60, 1e-3);
  EXPECT_NEAR(m.goodput(), m.ettr_mean(), 1e-12);
}

TEST(GuardSimulate, PeopleTakeTheStudysTimes) {
  MonthsQuestion q = plain();
  q.trials = 200;
  q.days = 3650;
  q.mtbf_s = 36'000;
  const PolicyMonths m = simulate_months(q, kManualSync, 0);
  for (std::size_t i = 0; i < study_failures().size(); ++i) {
    const StudyFailure& f = study_failures()[i];
    SCOPED_TRACE(f.reason);
    EXPECT_NEAR(m.causes[i].failures / m.failures / (f.count / 134), 1, 0.03);
    EXPECT_NEAR(m.causes[i].waiting_s / m.causes[i].failures / mean_restart_by_people_s(f), 1, 0.05);
  }
}

TEST(GuardSimulate, AllTimeIsOfUseOrLostToACause) {
  MonthsQuestion q;
  for (const Policy policy : kAll) {
    const PolicyMonths m = simulate_months(q, policy, 0);
    double lost = 0, waiting = 0;
    for (const CauseLoss& c : m.causes) {
      lost += c.all_s();
      waiting += c.waiting_s;
    }
    EXPECT_NEAR((m.useful_s + lost) / m.wall_s, 1, 1e-9);
    EXPECT_NEAR((m.running_s + waiting) / m.wall_s, 1, 1e-9);
    EXPECT_TRUE(std::is_sorted(m.ettr.begin(), m.ettr.end()));
    EXPECT_NEAR(std::accumulate(m.ettr.begin(), m.ettr.end(), 0.0) / static_cast<double>(q.trials), m.ettr_mean(),
                1e-9);
  }
}

TEST(GuardSimulate, TheUnitOfTimeDoesNotMatter) {
  MonthsQuestion q = plain(), twice = q;
  twice.days *= 2;
  for (double* s : {&twice.mtbf_s, &twice.interval_s, &twice.save_s, &twice.copy_s, &twice.startup_s, &twice.detect_s,
                    &twice.check_s})
    *s *= 2;
  for (const Policy policy : {kGuardSync, kGuardAsync})
    EXPECT_NEAR(simulate_months(q, policy, 0).ettr_mean(), simulate_months(twice, policy, 0).ettr_mean(), 1e-9);
}

TEST(GuardSimulate, SameQuestionSameAnswerWhateverTheThreads) {
  MonthsQuestion q;
  const PolicyMonths one = simulate_months(q, kGuardAsync, 1), many = simulate_months(q, kGuardAsync, 7);
  EXPECT_EQ(one.ettr, many.ettr);
  EXPECT_EQ(one.useful_s, many.useful_s);
  q.seed = 2;
  EXPECT_NE(simulate_months(q, kGuardAsync, 1).ettr, one.ettr);
}

TEST(GuardSimulate, EachMeansHelpsAndGpusHurt) {
  MonthsQuestion q;
  q.trials = 1000;
  const auto ettr = [&](Policy p) { return simulate_months(q, p, 0).ettr_mean(); };
  EXPECT_GT(ettr(kGuardAsync), ettr(kGuardSync));
  EXPECT_GT(ettr(kGuardSync), ettr(kManualSync));
  EXPECT_GT(ettr(kManualAsync), ettr(kManualSync));
  const double base = ettr(kGuardAsync);
  q.gpus = 16'384;
  EXPECT_LT(ettr(kGuardAsync), base);
  double before = 0;
  for (const std::int64_t spares : {0, 1, 4, 64}) {
    q.spares = spares;
    EXPECT_GT(ettr(kGuardAsync), before) << spares;
    before = ettr(kGuardAsync);
  }
  EXPECT_EQ(ettr(kManualAsync), (q.spares = 0, ettr(kManualAsync))) << "people find nodes elsewhere";
  q.automatic = 0;  // a guard that needs people for everything
  EXPECT_EQ(ettr(kGuardSync), ettr(kManualSync));
}

TEST(GuardSimulate, OwnBestIntervalIsTheBest) {
  MonthsQuestion q = plain();
  q.interval_s = 0;
  const PolicyMonths best = simulate_months(q, kGuardSync, 0);
  EXPECT_EQ(best.interval_s, best.best_interval_s);
  for (const double factor : {0.5, 2.0}) {
    q.interval_s = factor * best.best_interval_s;
    EXPECT_LT(simulate_months(q, kGuardSync, 0).ettr_mean(), best.ettr_mean());
  }
}

}  // namespace
}  // namespace orrery
