// Plans of evaluation trials, against values worked out by hand and what must always hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "trials/draw.h"
#include "trials/plan.h"
#include "trials/simulate.h"

namespace orrery {
namespace {

EvalUnit unit(std::int64_t items, double item_s, double metric_s = 0) {
  EvalUnit u;
  u.items = items;
  u.item_s = item_s;
  u.metric_s = metric_s;
  return u;
}

// Every item of every unit once.
void expect_complete(const std::vector<EvalUnit>& units, const std::vector<EvalTrial>& trials) {
  std::map<std::size_t, std::vector<std::pair<std::int64_t, std::int64_t>>> covered;
  for (const EvalTrial& t : trials) {
    EXPECT_FALSE(t.pieces.empty());
    for (const TrialPiece& p : t.pieces) {
      EXPECT_GT(p.items, 0);
      EXPECT_EQ(units[p.unit].checkpoint, t.checkpoint);
      covered[p.unit].emplace_back(p.first, p.items);
    }
  }
  ASSERT_EQ(covered.size(), units.size());
  for (auto& [u, ranges] : covered) {
    std::sort(ranges.begin(), ranges.end());
    std::int64_t at = units[u].first;
    for (const auto& [first, items] : ranges) {
      EXPECT_EQ(first, at);
      at += items;
    }
    EXPECT_EQ(at, units[u].first + units[u].items);
    EXPECT_TRUE(units[u].split || ranges.size() == 1);
  }
}

SimCluster cluster(std::int64_t nodes, std::int64_t gpus, double start_s = 0, double bytes = 0) {
  SimCluster c;
  c.nodes = nodes;
  c.gpus_per_node = gpus;
  c.cpu_jobs = 100;
  c.link_bytes_per_s = 1;
  c.model_bytes = {bytes};
  c.start_s = start_s;
  return c;
}

TEST(EvalsPlan, LargeUnitsAreSplitAndSmallOnesShareATrial) {
  // 600 s of one and 20 x 10 s over 4 GPUs: 200 s each.
  std::vector<EvalUnit> units{unit(600, 1)};
  for (int i = 0; i < 20; ++i) units.push_back(unit(10, 1));
  const auto trials = plan_trials(units, {.gpus = 4, .start_s = 5, .least_s = 10});
  expect_complete(units, trials);
  ASSERT_EQ(trials.size(), 4u) << "one a GPU";
  for (const EvalTrial& t : trials) {
    double s = 0;
    for (const TrialPiece& p : t.pieces) s += gpu_seconds(units[p.unit], p);
    EXPECT_NEAR(s, 200, 11);
  }
}

TEST(EvalsPlan, LongMetricsComeFirst) {
  // 100 s of inference in all on each GPU; the metric of 90 s can only be hidden behind the rest.
  std::vector<EvalUnit> units{unit(90, 1), unit(10, 1, 90), unit(90, 1), unit(10, 1, 90)};
  const auto trials = plan_trials(units, {.gpus = 2, .start_s = 0, .least_s = 1});
  expect_complete(units, trials);
  EXPECT_NEAR(simulate_trials(trials, units, cluster(1, 2), {}).makespan_s, 100, 1.5);
}

TEST(EvalsPlan, WhatCannotBeSplitDecidesAndTheRestIsBalancedBelow) {
  std::vector<EvalUnit> units{unit(1, 100)};
  units[0].split = false;
  for (int i = 0; i < 6; ++i) units.push_back(unit(10, 1));
  const auto trials = plan_trials(units, {.gpus = 3, .start_s = 0, .least_s = 5});
  expect_complete(units, trials);
  const EvalTimeline t = simulate_trials(trials, units, cluster(1, 3), {});
  EXPECT_DOUBLE_EQ(t.makespan_s, 100);
  for (const TrialSpan& s : t.trials) EXPECT_TRUE(s.end_s == 100 || (s.end_s > 25 && s.end_s < 35)) << s.end_s;
}

TEST(EvalsPlan, AnswersScoredOneByOneAreScoredByManyJobs) {
  EvalUnit judged = unit(100, 0.1, 1000);
  judged.metric_by_item = true;
  std::vector<EvalUnit> units{judged, unit(300, 1)};
  const auto trials = plan_trials(units, {.gpus = 2, .start_s = 0, .least_s = 5});
  expect_complete(units, trials);
  EXPECT_LT(simulate_trials(trials, units, cluster(1, 2), {}).makespan_s, 220);
  judged.metric_by_item = false;
  units[0] = judged;
  EXPECT_NEAR(
      simulate_trials(plan_trials(units, {.gpus = 2, .start_s = 0, .least_s = 5}), units, cluster(1, 2), {}).makespan_s,
      1005, 5.1);
}

// What a trial scores by itself is over all that it did of a dataset.
TEST(EvalsPlan, ATrialThatScoresHasOnePieceOfADataset) {
  std::mt19937 random(3);
  const auto draw = [&](int least, int most) { return least + static_cast<int>(random() % (most - least + 1)); };
  int meet = 0;
  for (int i = 0; i < 60; ++i) {
    std::vector<EvalUnit> units;
    for (int d = 0, n = draw(1, 6); d < n; ++d) {
      EvalUnit u = unit(draw(50, 2000), 0.1 * draw(1, 10));
      u.dataset = d;
      u.metric_by_item = true;
      units.push_back(u);
      if (draw(0, 2) == 0) continue;
      u.first += u.items + 100;  // two free ranges of the same dataset
      units.push_back(u);
    }
    TrialShape shape{.gpus = draw(1, 8), .start_s = 5, .least_s = 10, .error = 0.1 * draw(0, 3)};
    const auto most_of_one = [&](const std::vector<EvalTrial>& trials) {
      std::map<std::pair<std::size_t, std::int32_t>, int> pieces;
      int most = 0;
      for (std::size_t t = 0; t < trials.size(); ++t)
        for (const TrialPiece& p : trials[t].pieces) most = std::max(most, ++pieces[{t, units[p.unit].dataset}]);
      return most;
    };
    meet += most_of_one(plan_trials(units, shape)) > 1 ? 1 : 0;
    shape.once = true;
    const auto trials = plan_trials(units, shape);
    expect_complete(units, trials);
    EXPECT_EQ(most_of_one(trials), 1);
  }
  EXPECT_GT(meet, 10) << "elsewhere they may meet";
}

TEST(EvalsPlan, APlanSplitsNothingThatARunCannot) {
  const std::string common =
      "[cluster]\ngpus_per_node = 8\n[[model]]\nname = \"m\"\n[[dataset]]\nname = \"d\"\nitems = 10000\nitem_s = 0.2\n"
      "metric_s = 10\n";
  const std::string template_of = "[inference]\ntemplate = \"lm-evaluation-harness\"\n";
  const auto plan = [&](const std::string& text) {
    const auto config = parse_eval_config(text, "c.toml");
    EXPECT_TRUE(config) << config.error().line();
    return plan_evals(*config, draw_units(*config, 1));
  };
  const PlannedEvals whole = plan(common + template_of);
  EXPECT_EQ(whole.trials.size(), 1u) << "the scores of a piece would not be the dataset's";
  EXPECT_TRUE(whole.timeline.metrics.empty()) << "the trial scores";
  const PlannedEvals split = plan(common + "metric_by_item = true\n" + template_of);
  EXPECT_EQ(split.trials.size(), 8u);
  EXPECT_TRUE(split.timeline.metrics.empty());
  EXPECT_EQ(plan(common).timeline.metrics.size(), 1u) << "nothing is said of commands";
}

TEST(EvalsPlan, NoTrialIsLongerThanItsLimit) {
  std::vector<EvalUnit> units{unit(1000, 1), unit(100, 1), unit(30, 1)};
  units[2].split = false;
  for (const double error : {0.0, 0.2}) {
    const TrialShape shape{.gpus = 2, .start_s = 10, .least_s = 5, .error = error, .limit_s = 110};
    const auto trials = plan_trials(units, shape);
    expect_complete(units, trials);
    for (const EvalTrial& t : trials) {
      double s = shape.start_s;
      for (const TrialPiece& p : t.pieces) s += gpu_seconds(units[p.unit], p);
      EXPECT_LE(s, 110 + 1e-6);
    }
    EXPECT_GE(trials.size(), 12u);
    EXPECT_LE(trials.size(), 20u);
  }
  // What is above it alone stays whole.
  std::vector<EvalUnit> hopeless{unit(3, 200), unit(300, 1)};
  hopeless[1].split = false;
  expect_complete(hopeless, plan_trials(hopeless, {.gpus = 2, .start_s = 10, .limit_s = 110}));
  EXPECT_DOUBLE_EQ(shortest_trial_s(hopeless[0], {.start_s = 10}), 210);
  EXPECT_DOUBLE_EQ(shortest_trial_s(hopeless[1], {.start_s = 10}), 310);
}

TEST(EvalsPlan, TheBoundCountsCpuJobsAndJudges) {
  std::vector<EvalUnit> units(8, unit(100, 1, 500));
  units[0].judge = 1;
  units[1].judge = 1;
  const MakespanTerms t = makespan_terms(units, 4, 1, {9, 2}, 7);
  EXPECT_DOUBLE_EQ(t.gpus_s, 200);
  EXPECT_DOUBLE_EQ(t.longest_s, 501);
  EXPECT_DOUBLE_EQ(t.cpu_jobs_s, 4000);
  EXPECT_DOUBLE_EQ(t.judge_s, 500);
  EXPECT_EQ(t.judge, 1);
  EXPECT_DOUBLE_EQ(t.bound_s(), 508);
  EXPECT_DOUBLE_EQ(t.bound_with_cpus_s(), 4007);
}

TEST(EvalsPlan, ATrialOfOnePieceWhereTheSuiteCanDoNoMore) {
  std::vector<EvalUnit> units(7, unit(100, 1));
  const auto trials = plan_trials(units, {.gpus = 2, .start_s = 1, .least_s = 10, .several = false});
  expect_complete(units, trials);
  for (const EvalTrial& t : trials) EXPECT_EQ(t.pieces.size(), 1u);
}

TEST(EvalsPlan, EarlierCheckpointsFirstAndNoTrialOfTwo) {
  std::vector<EvalUnit> units;
  for (std::int32_t c = 0; c < 3; ++c)
    for (int i = 0; i < 5; ++i) {
      units.push_back(unit(50, 1, 3));
      units.back().checkpoint = c;
    }
  for (const double error : {0.0, 0.3}) {
    const auto trials = plan_trials(units, {.gpus = 4, .start_s = 2, .least_s = 10, .error = error});
    expect_complete(units, trials);
    EXPECT_TRUE(std::is_sorted(trials.begin(), trials.end(),
                               [](const EvalTrial& a, const EvalTrial& b) { return a.checkpoint < b.checkpoint; }));
  }
}

TEST(EvalsPlan, CompleteWhateverComes) {
  std::uint64_t state = 1;
  const auto below = [&](std::uint64_t n) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (state >> 33) % n;
  };
  for (int round = 0; round < 400; ++round) {
    SCOPED_TRACE(round);
    std::vector<EvalUnit> units;
    for (std::uint64_t n = 1 + below(40); n > 0; --n) {
      EvalUnit u = unit(static_cast<std::int64_t>(1 + below(3000)), 0.001 * static_cast<double>(below(2000)),
                        static_cast<double>(below(3) == 0 ? below(2000) : 0));
      u.first = static_cast<std::int64_t>(below(2) * 17);
      u.split = below(4) != 0;
      u.metric_by_item = below(2) != 0;
      u.checkpoint = static_cast<std::int32_t>(below(2));
      u.prepare_s = static_cast<double>(below(30));
      units.push_back(u);
    }
    TrialShape shape{.gpus = static_cast<std::int64_t>(1 + below(40)),
                     .start_s = static_cast<double>(below(20)),
                     .least_s = 0.5 + static_cast<double>(below(60)),
                     .error = 0.1 * static_cast<double>(below(5)),
                     .several = below(5) != 0};
    SimCluster c = cluster(2, (shape.gpus + 1) / 2, shape.start_s);
    c.model_bytes = {3, 4};
    EXPECT_GE(simulate_trials(one_trial_a_unit(units), units, c, {{}, SimMetrics::on_gpu}).makespan_s,
              makespan_bound(units, 2 * c.gpus_per_node, 3) - 1e-6);
    for (const auto& trials : {plan_trials(units, shape), one_trial_a_unit(units), size_partition(units, 1000)}) {
      expect_complete(units, trials);
      for (const SimMetrics m : {SimMetrics::on_cpu, SimMetrics::after_barrier})
        for (const SimLoads l : {SimLoads::once_a_node, SimLoads::each_trial})
          EXPECT_GE(simulate_trials(trials, units, c, {l, m}).makespan_s,
                    makespan_bound(units, 2 * c.gpus_per_node, 3) - 1e-6);
    }
  }
}

TEST(EvalsBound, AsTheFormulaSays) {
  std::vector<EvalUnit> units{unit(100, 2, 30), unit(10, 1)};
  units[0].prepare_s = 50;  // shared by the items
  EXPECT_DOUBLE_EQ(makespan_bound(units, 2, 4), 4 + (250 + 10) / 2.0);
  EXPECT_DOUBLE_EQ(makespan_bound(units, 100, 4), 4 + 2.5 + 30);
  units[0].metric_by_item = true;
  EXPECT_DOUBLE_EQ(makespan_bound(units, 100, 4), 4 + 2.8);
  units[0].split = false;
  EXPECT_DOUBLE_EQ(makespan_bound(units, 100, 4), 4 + 280);
}

TEST(EvalsSizePartitioner, PacksAsOpenCompassDoes) {
  // Sizes at 20 an item: 100,000 splits into parts of at most 2,000 items (1,667 each), which count 40,000.
  std::vector<EvalUnit> units{unit(100, 1), unit(5000, 1), unit(1500, 1), unit(400, 1), unit(200, 1)};
  const auto trials = size_partition(units);
  expect_complete(units, trials);
  std::vector<std::vector<std::pair<std::size_t, std::int64_t>>> got;
  for (const EvalTrial& t : trials) {
    got.emplace_back();
    for (const TrialPiece& p : t.pieces) got.back().emplace_back(p.unit, p.items);
  }
  const decltype(got) want{{{1, 1667}}, {{1, 1667}}, {{1, 1666}}, {{2, 1500}, {3, 400}}, {{4, 200}, {0, 100}}};
  EXPECT_EQ(got, want);
}

TEST(EvalsSimulate, LoadsShareTheLinkEvenly) {
  // A model of 8 bytes at 1 byte/s. One trial: 8 s. Eight at once: 64 s each. Once a node: 8 s for all.
  std::vector<EvalUnit> units(8, unit(1, 10));
  const auto trials = one_trial_a_unit(units);
  const SimCluster one = cluster(1, 8, 0, 8);
  EXPECT_DOUBLE_EQ(simulate_trials({trials[0]}, {units[0]}, one, {SimLoads::each_trial, {}}).makespan_s, 18);
  EXPECT_NEAR(simulate_trials(trials, units, one, {SimLoads::each_trial, {}}).makespan_s, 74, 1e-9);
  EXPECT_DOUBLE_EQ(simulate_trials(trials, units, one, {}).makespan_s, 18);
  // Two nodes, a link each.
  EXPECT_NEAR(simulate_trials(trials, units, cluster(2, 4, 0, 8), {SimLoads::each_trial, {}}).makespan_s, 42, 1e-9);
}

TEST(EvalsSimulate, ALoadThatBeginsLaterSlowsTheOther) {
  // GPU 0 loads alone for 4 s of its 8 (4 bytes left), then with GPU 1: 4 bytes at half speed end at 12; GPU 1 has 4
  // bytes left then, alone: 16.
  std::vector<EvalUnit> units{unit(1, 10), unit(1, 10)};
  SimCluster c = cluster(1, 2, 0, 8);
  // The second GPU is held until 4 s by a trial of another model without weights.
  units.push_back(unit(1, 4));
  units[2].checkpoint = 1;
  c.model_bytes = {8, 0};
  const std::vector<EvalTrial> trials{{0, {{0, 0, 1}}}, {1, {{2, 0, 1}}}, {0, {{1, 0, 1}}}};
  const EvalTimeline t = simulate_trials(trials, units, c, {SimLoads::each_trial, {}});
  EXPECT_NEAR(t.trials[0].loaded_s, 12, 1e-9);
  EXPECT_NEAR(t.trials[2].start_s, 4, 1e-9);
  EXPECT_NEAR(t.trials[2].loaded_s, 16, 1e-9);
}

TEST(EvalsSimulate, MetricsHoldTheGpuOrDoNot) {
  std::vector<EvalUnit> units{unit(10, 1, 50), unit(10, 1, 50)};
  const auto trials = one_trial_a_unit(units);
  SimCluster c = cluster(1, 1, 2);
  EXPECT_DOUBLE_EQ(simulate_trials(trials, units, c, {SimLoads::each_trial, SimMetrics::on_gpu}).makespan_s, 124);
  EXPECT_DOUBLE_EQ(simulate_trials(trials, units, c, {}).makespan_s, 74);
  EXPECT_DOUBLE_EQ(simulate_trials(trials, units, c, {{}, SimMetrics::after_barrier}).makespan_s, 74);
  c.cpu_jobs = 1;
  EXPECT_DOUBLE_EQ(simulate_trials(trials, units, c, {}).makespan_s, 112);
  c.cpu_jobs = 2;
  c.judge_at_once = {1};
  units[0].judge = units[1].judge = 0;
  EXPECT_DOUBLE_EQ(simulate_trials(trials, units, c, {}).makespan_s, 112) << "a judge has a limit of its own";
}

TEST(EvalsDraw, TheLawIsWhatTheFileSays) {
  const auto config = parse_eval_config(R"(
[[model]]
name = "m"
size_gb = 1
[[drawn]]
name = "d"
count = 4000
busy_median_s = 220
busy_sigma = 1.55
busy_most_s = 8127
item_s = 0.7
metric_share = [0, 1]
metric_most_s = 1800
)",
                                        "t.toml");
  ASSERT_TRUE(config) << config.error().line();
  const BelievedUnits b = draw_units(*config, 3);
  ASSERT_EQ(b.units.size(), 4000u);
  int below = 0, at_most_256 = 0;
  double most = 0, metric = 0;
  for (const EvalUnit& u : b.units) {
    const double busy = u.gpu_s() + u.metric_s;
    below += busy < 220;
    at_most_256 += busy <= 1024 - 65;
    most = std::max(most, busy);
    metric = std::max(metric, u.metric_s);
  }
  EXPECT_NEAR(below, 2000, 130);
  EXPECT_NEAR(at_most_256 / 4000.0, 0.83, 0.03) << "the study's table has 78.4 %, the fit 82.9 %";
  EXPECT_NEAR(most, 8127, 1);
  EXPECT_NEAR(metric, 1800, 1e-6);
  EXPECT_NE(draw_units(*config, 4).units[0].item_s, b.units[0].item_s);
  EXPECT_EQ(draw_units(*config, 3).units[5].metric_s, b.units[5].metric_s);
}

TEST(EvalsSimulate, TheStudysCase) {
  auto config = read_eval_config(ORRERY_SOURCE_DIR "/samples/evals-study.toml");
  ASSERT_TRUE(config) << config.error().line();
  const auto mean = [](const SimulatedRuns& r, auto of) {
    double s = 0;
    for (const SimulatedRun& x : r.runs) s += of(x);
    return s / static_cast<double>(r.runs.size());
  };
  const auto gain = [](const SimulatedRun& x) { return x.baseline_s / x.makespan_s; };
  const auto over = [](const SimulatedRun& x) { return x.makespan_s / x.bound_s; };
  const SimulatedRuns one = simulate_runs(*config, 1, 1), four = simulate_runs(*config, 4, 1);
  ASSERT_EQ(one.runs.size(), 20u);
  EXPECT_GE(mean(one, gain), 1.3);
  EXPECT_GE(mean(four, gain), 1.8);
  EXPECT_LE(mean(one, over), 1.05);
  EXPECT_LE(mean(four, over), 1.05);
  for (const SimulatedRuns* r : {&one, &four})
    for (const SimulatedRun& x : r->runs) {
      EXPECT_GE(x.makespan_s, x.bound_s);
      EXPECT_GE(x.baseline_s, x.bound_s);
      EXPECT_GE(x.size_partitioner_s, x.bound_s);
    }
  const SimulatedRuns again = simulate_runs(*config, 4, 3);
  for (std::size_t i = 0; i < again.runs.size(); ++i) EXPECT_EQ(again.runs[i].makespan_s, four.runs[i].makespan_s);
}

}  // namespace
}  // namespace orrery
