// Measured times: what each piece costs anew is not taken for work that grows with its items.
#include <gtest/gtest.h>

#include <cmath>

#include "reports/evals.h"
#include "trials/draw.h"
#include "trials/measured.h"
#include "trials/plan.h"

namespace orrery {
namespace {

void measure(Moments& m, double items, double seconds) {
  for (const auto& [what, value] : moments_of("metric", items, seconds)) {
    m[what].value += (value - m[what].value) * weight_of_newest(m[what].count);
    ++m[what].count;
  }
}

TEST(EvalsMeasured, AFixedPartIsSeenWherePiecesDiffer) {
  Moments m;
  EXPECT_TRUE(std::isnan(fitted(m, "metric").item_s));
  measure(m, 100, 5 + 0.1 * 100);
  EXPECT_NEAR(fitted(m, "metric").item_s, 0.15, 1e-12) << "one size says nothing of it";
  EXPECT_EQ(fitted(m, "metric").known_items, 100);
  measure(m, 20, 5 + 0.1 * 20);
  measure(m, 60, 5 + 0.1 * 60);
  EXPECT_NEAR(fitted(m, "metric").fixed_s, 5, 1e-9);
  EXPECT_NEAR(fitted(m, "metric").item_s, 0.1, 1e-9);
  Moments shrinks;  // larger pieces faster: neither part is below 0
  measure(shrinks, 10, 4);
  measure(shrinks, 100, 2);
  EXPECT_GE(fitted(shrinks, "metric").fixed_s, 0);
  EXPECT_GE(fitted(shrinks, "metric").item_s, 0);
  Moments grows;  // steeper than in proportion
  measure(grows, 10, 0.1);
  measure(grows, 100, 10);
  EXPECT_EQ(fitted(grows, "metric").fixed_s, 0);
}

// Twelve checkpoints of a dataset whose metric takes `fixed` + `each` an item in every job: pieces of each plan.
std::vector<std::size_t> pieces_of_twelve(double fixed, double each, double believed, double least_s) {
  std::vector<std::size_t> counts;
  Moments moments;
  for (int checkpoint = 0; checkpoint < 12; ++checkpoint) {
    EvalUnit u;
    u.items = 1000;
    u.item_s = 0.01;
    u.metric_s = believed;
    u.metric_by_item = true;
    if (!moments.empty()) {
      const BelievedMetric b = believed_metric(times_of(moments), 1000, least_s);
      u.metric_s = b.seconds;
      u.metric_fixed_s = b.fixed_s;
      u.metric_least_items = b.least_items;
    }
    std::size_t pieces = 0;
    for (const EvalTrial& t : plan_trials({u}, {.gpus = 2, .start_s = 0.1, .least_s = least_s}))
      for (const TrialPiece& p : t.pieces) {
        ++pieces;
        measure(moments, static_cast<double>(p.items), fixed + each * static_cast<double>(p.items));
      }
    counts.push_back(pieces);
  }
  return counts;
}

TEST(EvalsMeasured, RepeatedCheckpointsDoNotChangeThePieces) {
  for (const double least_s : {0.1, 2.0, 30.0})
    for (const double believed : {0.5, 2.0, 20.0}) {
      SCOPED_TRACE(std::to_string(least_s) + " " + std::to_string(believed));
      const auto counts = pieces_of_twelve(1, 0, believed, least_s);  // a metric that sleeps a second
      for (std::size_t i = 4; i < counts.size(); ++i) EXPECT_EQ(counts[i], counts[3]);
      for (const std::size_t n : counts) EXPECT_LE(n, 2 * counts.front()) << "one step at a time";
      EXPECT_LE(counts.back(), counts.front());
      EXPECT_LE(counts.back(), 4u);
    }
  // By the item all along: as many pieces as the plan of true times has.
  const auto counts = pieces_of_twelve(0, 0.1, 100, 0.1);
  for (const std::size_t n : counts) EXPECT_EQ(n, counts.front());
}

TEST(EvalsMeasured, PiecesForTheMetricsSakeAreNoShorterThanLeast) {
  EvalUnit u;
  u.items = 1000;
  u.item_s = 0.001;
  u.metric_s = 20;
  u.metric_by_item = true;
  std::size_t pieces = 0;
  for (const EvalTrial& t : plan_trials({u}, {.gpus = 4, .start_s = 0, .least_s = 5})) pieces += t.pieces.size();
  EXPECT_LE(pieces, 4u) << "21 s in all";
}

// What was measured of a model is that model's, and has the preparation in it.
TEST(EvalsMeasured, ModelsHaveTimesOfTheirOwn) {
  const auto config = parse_eval_config(
      "[trial]\nlimit_s = 3600\n[[model]]\nname = \"small\"\n[[model]]\nname = \"large\"\n[[dataset]]\nname = \"d\"\n"
      "items = 100\nitem_s = 3\nprepare_s = 20\nmetric_s = 1\nsplit = false\n[[dataset]]\nname = \"e\"\nitems = 10\n",
      "c.toml");
  ASSERT_TRUE(config) << config.error().line();
  MeasuredByName measured;
  measured[{"small", "d"}].item_s = 1;
  measured[{"large", "d"}].item_s = 50;
  measured[{"large", "d"}].item_fixed_s = 7;
  measured[{"small", "e"}].item_s = measured[{"small", "e"}].metric_item_s = 2;
  const BelievedUnits u = draw_units(*config, 1, measured);
  ASSERT_EQ(u.units.size(), 4u);
  EXPECT_EQ(u.units[0].item_s, 1);
  EXPECT_EQ(u.units[0].prepare_s, 0);
  EXPECT_EQ(u.units[2].checkpoint, 1);
  EXPECT_EQ(u.units[2].item_s, 50);
  EXPECT_EQ(u.units[2].dataset, 0);
  EXPECT_EQ(u.units[1].item_s, 2);
  EXPECT_EQ(u.units[3].item_s, 1) << "[prior]: it was not measured of this model";
  EXPECT_EQ(u.start_s, 7);
  EXPECT_EQ(u.defaulted, 1);
  EXPECT_TRUE(u.guessed);
  const BelievedUnits unknown = draw_units(*config, 1);
  EXPECT_EQ(unknown.units[2].prepare_s, 20);
  const PlannedEvals plan = plan_evals(*config, u);
  ASSERT_EQ(plan.over_limit.size(), 1u);
  EXPECT_EQ(plan.over_limit[0].first, "d");
  EXPECT_EQ(plan.over_limit[0].second, 10 + 7 + 100 * 50.0);
}

// The yardsticks of a run count the start once, and are those of the model that was evaluated.
TEST(EvalsMeasured, YardsticksOfARunAreOfWhatRan) {
  const auto config = parse_eval_config(
      "[cluster]\nlink_gbit_per_s = 8\n[trial]\nstart_s = 10\n[[model]]\nname = \"other\"\n[[model]]\nname = \"m\"\n"
      "[inference]\ncommand = [\"x\"]\n[[dataset]]\nname = \"d\"\nitems = 10\n[[dataset]]\nname = \"e\"\nitems = 5\n",
      "c.toml");
  ASSERT_TRUE(config) << config.error().line();
  EvalOutcome o;
  o.checkpoints.push_back({1, "m", "step-1", "/c/step-1", "f", 2'000'000'000, "ready", ""});  // 2 s
  StoredTrial t;
  t.id = t.checkpoint = 1;
  t.begun = 1000;
  t.loaded = 1002;
  t.ended = 1042;
  o.trials.push_back(t);
  const auto piece = [&](const char* dataset, std::int64_t items, double ended) {
    StoredPiece p;
    p.trial = p.checkpoint = 1;
    p.dataset = dataset;
    p.items = items;
    p.state = "dumped";
    p.ended = ended;
    o.pieces.push_back(p);
  };
  piece("d", 10, 1032);  // 20 s after the start
  piece("e", 5, 1042);
  const Document d = evals_run_document(*config, o);
  const Table& top = d.sections.front().table;
  const auto value = [&](const std::string& key) {
    for (std::size_t c = 0; c < top.columns.size(); ++c)
      if (top.columns[c].key == key) return std::get<double>(top.rows.front()[c]);
    return -1.0;
  };
  EXPECT_DOUBLE_EQ(value("baseline_s"), 2 + 10 + 20 + 2 + 10 + 10) << "each loads and starts";
  EXPECT_DOUBLE_EQ(value("lower_bound_s"), 2 + 30);
}

}  // namespace
}  // namespace orrery
