// Timing, ranks, plans and the order of events: no clock is read here.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <map>

#include "operators/measure_operators.h"
#include "operators/operator_plan.h"
#include "operators/rank_group.h"

namespace orrery {
namespace {

Lockstep& alone() {
  static Lockstep one;
  return one;
}

TEST(Measure, MedianAndSpreadOfBatches) {
  // Every repetition takes 1 us, every fourth batch ten times as long.
  int batch = 0;
  const Timing t =
      measure([&](std::int64_t n) { return 1'000.0 * static_cast<double>(n) * (++batch % 4 == 0 ? 10 : 1); },
              {.batch_ns = 100'000, .least_batches = 5, .most_batches = 40, .budget_ns = 1e12}, alone());
  EXPECT_EQ(t.batches, 40);
  EXPECT_EQ(t.repetitions, 100);  // of a batch of 100 us
  EXPECT_DOUBLE_EQ(t.ns, 1'000);
  EXPECT_DOUBLE_EQ(t.least_ns, 1'000);
  EXPECT_TRUE(t.noisy) << t.spread;
}

TEST(Measure, SteadyIsNotNoisy) {
  int batch = 0;
  const Timing t = measure([&](std::int64_t n) { return (1'000.0 + ++batch % 5) * static_cast<double>(n); },
                           {.budget_ns = 50e6}, alone());
  EXPECT_FALSE(t.noisy);
  EXPECT_LT(t.spread, 0.002);
  EXPECT_NEAR(t.ns, 1'002, 1);
}

TEST(Measure, LongOnesRunAFewTimesAlone) {
  int runs = 0;
  const Timing t = measure(
      [&](std::int64_t n) {
        runs += static_cast<int>(n);
        return 1e9 * static_cast<double>(n);
      },
      {.batch_ns = 1e6, .least_batches = 3, .most_batches = 50, .budget_ns = 1e6}, alone());
  EXPECT_EQ(t.batches, 3);
  EXPECT_LE(runs, 5);
  EXPECT_DOUBLE_EQ(t.ns, 1e9);
}

TEST(Measure, AFailureIsNoTime) {
  int left = 3;
  EXPECT_EQ(measure([&](std::int64_t) { return left-- > 0 ? 1'000.0 : 0.0; }, {}, alone()).ns, 0);
}

TEST(OperatorPlan, EachOnceAndTheirWork) {
  PlanTerms t;
  t.precisions = {Precision::fp32, Precision::bf16};
  t.ranks = 2;
  t.gemms = {{1, 512, 512, 512}, {2, 3, 5, 7}};  // the first is of the set already
  std::map<std::string, int> seen;
  for (const OperatorRow& r : plan_operators(t)) ++seen[kernel_text(r) + " " + shape_text(r)];
  for (const auto& [name, times] : seen) EXPECT_EQ(times, 1) << name;
  EXPECT_TRUE(seen.contains("gemm-fp32-x2 2x3x5x7"));
  EXPECT_TRUE(seen.contains("all_to_all-fp32-x2 256"));
  OperatorRow r;
  r.size = {2, 3, 5, 7};
  count_work(r);
  EXPECT_EQ(r.flops, 2 * 2 * 3 * 5 * 7);
  EXPECT_EQ(r.bytes, 2 * 4 * (3 * 7 + 7 * 5 + 3 * 5));
  r.precision = Precision::bf16;  // sums are written as fp32
  count_work(r);
  EXPECT_EQ(r.bytes, 2 * (2 * (3 * 7 + 7 * 5) + 4 * 3 * 5));
  r = {};
  r.kind = OperatorKind::attention, r.causal = true, r.size = {4, 8, 8, 16};
  count_work(r);
  EXPECT_EQ(r.flops, 4 * 4 * 36 * 16);  // 8 + 7 + ... + 1 pairs of a head, two products
  r = {};
  r.kind = OperatorKind::adamw, r.size = {10, 1, 1, 1};
  count_work(r);
  EXPECT_EQ(r.bytes, 280);
}

// The floor of memory is of arrays that no cache holds, however large the caches are.
TEST(OperatorPlan, TheFloorIsLargerThanTheCaches) {
  const auto bytes = [](double cache_mib, std::int64_t ranks) {
    PlanTerms t;
    t.cache_mib = cache_mib, t.ranks = ranks;
    const auto plan = plan_operators(t);
    return std::find_if(plan.begin(), plan.end(), [](const OperatorRow& r) { return r.kind == OperatorKind::stream; })
        ->bytes;
  };
  constexpr double kMib = 1 << 20;
  EXPECT_EQ(bytes(0, 1), 144 * kMib);
  EXPECT_EQ(bytes(32, 1), 144 * kMib);
  EXPECT_NEAR(bytes(768, 1), 4 * 768 * kMib, kMib);
  EXPECT_NEAR(bytes(768, 4), 768 * kMib, kMib);
}

TEST(OperatorPlan, AModelsProductsBothWays) {
  ModelFacts m;
  m.layers = 4, m.hidden = 256, m.heads = 8, m.kv_heads = 8, m.head_dim = 32, m.ffn = 688, m.vocab = 1'000;
  m.gated_mlp = true;
  PlanTerms t;
  t.sizes = SizeSet::small;
  t.only = {OperatorKind::gemm};
  t.model = &m, t.tokens = 96, t.tensor_parallel = 2;
  std::map<std::string, int> seen;
  for (const OperatorRow& r : plan_operators(t)) ++seen[shape_text(r)];
  EXPECT_TRUE(seen.contains("96x344x256"));  // gate or up of a rank, forward
  EXPECT_TRUE(seen.contains("96x256x344"));  // down; and towards the input of gate
  EXPECT_TRUE(seen.contains("344x256x96"));  // weights of gate
  EXPECT_TRUE(seen.contains("96x500x256"));  // the head
  EXPECT_TRUE(seen.contains("96x128x256"));  // queries of half the heads
}

// A device of another world: its clock and its results are what the test says.
class MadeDevice final : public OperatorDevice {
 public:
  Result<Prepared> prepare(OperatorRow& row) override {
    ++prepared[row.kind];
    if (row.kind == OperatorKind::embedding) return fail("has no tables", "made");
    if (row.kind == OperatorKind::peak) row.flops = 1e6;
    const double ns = row.kind == OperatorKind::stream ? row.bytes / 10
                      : row.kind == OperatorKind::peak ? 1e4
                                                       : 100 + row.flops / 100;
    const OperatorKind kind = row.kind;
    Prepared p;
    p.library = "made";
    p.run = [this, ns, kind](std::int64_t n) {
      const double t = static_cast<double>(n) * ns * (kind == OperatorKind::silu && ++silu % 2 == 0 ? 2 : 1);
      now += t / 1e9;
      return kind == OperatorKind::norm && fails ? 0.0 : t;
    };
    p.check = [this, kind]() -> Status {
      if (kind == OperatorKind::add && wrong) return fail("wrong result of a sum");
      return {};
    };
    return p;
  }
  std::map<OperatorKind, int> prepared;
  double now = 0;
  int silu = 0;
  bool wrong = false, fails = false;
};

MeasureAllTerms terms_of(MadeDevice& device, double budget) {
  return {.budget_s = budget, .noisy = 0.1, .now_s = [&device] { return device.now; }};
}
PlanTerms plan_terms() {
  PlanTerms t;
  t.sizes = SizeSet::small;
  return t;
}

TEST(MeasureOperators, WhatCannotBeDoneOrTakesTooLongIsTold) {
  MadeDevice device;
  PlanTerms t = plan_terms();
  t.gemms = {{1, 10'000, 10'000, 10'000}};  // 2e12 FLOP at 100 a ns: 20 s
  const auto plan = plan_operators(t);
  const auto all = measure_operators(device, plan, terms_of(device, 1), alone());
  ASSERT_TRUE(all) << all.error().line();
  std::map<std::string, std::uint64_t> notes;
  for (const Note& n : all->notes.rows) notes[n.name] = n.count;
  EXPECT_EQ(notes["operators-left-out"], 3u);  // sizes of embedding
  EXPECT_EQ(notes["operators-too-long"], 1u);
  EXPECT_EQ(notes["noisy-operators"], 3u);  // silu
  EXPECT_EQ(all->rows.size() + 4, plan.size());
  EXPECT_LT(device.now, 2);
  for (const OperatorRow& r : all->rows) {
    EXPECT_GT(r.ns, 0);
    EXPECT_EQ(r.library, "made");
    EXPECT_EQ(r.noisy, r.kind == OperatorKind::silu) << kernel_text(r);
  }
}

TEST(MeasureOperators, AWrongResultIsNotTimed) {
  MadeDevice device;
  device.wrong = true;
  const auto all = measure_operators(device, plan_operators(plan_terms()), terms_of(device, 1), alone());
  ASSERT_FALSE(all);
  EXPECT_NE(all.error().line().find("wrong result of a sum"), std::string::npos);
}

// most() says 0 where a rank is gone: what could not be done here is not taken for done then.
TEST(MeasureOperators, ARankThatIsGoneEndsItAlsoWhereThisOneCannotDoIt) {
  struct Gone final : Lockstep {
    double most(double mine) override { return mine == 1 ? 0 : mine; }
  } gone;
  MadeDevice device;
  const auto all = measure_operators(device, plan_operators(plan_terms()), terms_of(device, 1), gone);
  ASSERT_FALSE(all);
  EXPECT_NE(all.error().line().find("another rank is gone"), std::string::npos) << all.error().line();
  device.wrong = true;
  EXPECT_FALSE(measure_operators(device, plan_operators(plan_terms()), terms_of(device, 1), gone));
}

TEST(MeasureOperators, AFailureWhileTimedEndsIt) {
  MadeDevice device;
  device.fails = true;
  const auto all = measure_operators(device, plan_operators(plan_terms()), terms_of(device, 1), alone());
  ASSERT_FALSE(all);
  EXPECT_NE(all.error().line().find("norm-fp32"), std::string::npos);
}

// ---- processes ----

Status exchange_all(RankGroup& g, std::size_t n) {
  const auto size = static_cast<std::size_t>(g.size());
  const auto rank = static_cast<std::size_t>(g.rank());
  const auto value = [](std::size_t r, std::size_t i) { return static_cast<float>((r + 1) * (i % 101 + 1)); };
  float factor = 0;  // of a sum over ranks: 1 + 2 + ...
  for (std::size_t r = 0; r < size; ++r) factor += static_cast<float>(r + 1);
  std::vector<float> all(n * size), mine(n), got(n * size);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = value(rank, i);
  for (std::size_t i = 0; i < n; ++i) mine[i] = value(rank, i);
  if (!g.all_reduce(mine.data(), n)) return fail("all_reduce");
  for (std::size_t i = 0; i < n; ++i)
    if (mine[i] != factor * static_cast<float>(i % 101 + 1)) return fail("sum");
  for (std::size_t i = 0; i < n; ++i) mine[i] = value(rank, i);
  if (!g.all_gather(mine.data(), n, got.data())) return fail("all_gather");
  for (std::size_t r = 0; r < size; ++r)
    for (std::size_t i = 0; i < n; ++i)
      if (got[r * n + i] != value(r, i)) return fail("gathered");
  if (!g.reduce_scatter(all.data(), n, mine.data())) return fail("reduce_scatter");
  for (std::size_t i = 0; i < n; ++i)
    if (mine[i] != factor * static_cast<float>((rank * n + i) % 101 + 1)) return fail("scattered");
  if (!g.all_to_all(all.data(), n, got.data())) return fail("all_to_all");
  for (std::size_t r = 0; r < size; ++r)
    for (std::size_t i = 0; i < n; ++i)
      if (got[r * n + i] != value(r, rank * n + i)) return fail("exchanged");
  return {};
}

TEST(RankGroup, ExchangesAreExactAtEverySize) {
  for (const int ranks : {1, 2, 3}) {
    const Status ok = run_on_shared_memory(ranks, [](RankGroup& g) -> Status {
      for (const std::size_t n :
           {std::size_t{1}, std::size_t{2}, std::size_t{1'000}, std::size_t{70'000}, std::size_t{200'001}})
        if (const Status done = exchange_all(g, n); !done) return done;
      if (g.of_first(g.rank() + 5) != 5) return fail("of_first");
      if (g.most(g.rank()) != g.size() - 1) return fail("most");
      return {};
    });
    EXPECT_TRUE(ok) << ranks << ": " << ok.error().line();
  }
}

TEST(RankGroup, ARankThatDiesIsToldByTheOthers) {
  const Status ok = run_on_shared_memory(3, [](RankGroup& g) -> Status {
    if (g.rank() == 2) ::raise(SIGKILL);
    return g.meet() ? Status{} : Status(fail("a rank is gone"));
  });
  ASSERT_FALSE(ok);
  EXPECT_NE(ok.error().line().find("rank 2 was ended by signal 9"), std::string::npos) << ok.error().line();
}

TEST(RankGroup, WhyOneGaveUpIsSaid) {
  const Status ok = run_on_shared_memory(2, [](RankGroup& g) -> Status {
    if (g.rank() == 0) return fail("no library", "--blas");
    return g.meet() ? Status{} : Status(fail("a rank is gone"));
  });
  ASSERT_FALSE(ok);
  EXPECT_EQ(ok.error().line(), "--blas: no library");
}

}  // namespace
}  // namespace orrery
