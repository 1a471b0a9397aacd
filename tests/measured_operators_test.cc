// Laws fitted to tables: what was hidden in made tables is found again.
#include "costs/measured_operators.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "costs/fit_logs.h"
#include "facts/library.h"
#include "operators/operator_plan.h"

namespace orrery {
namespace {

GpuFacts made_cpu() {
  GpuFacts g;
  g.name = "made", g.arch = "CPU", g.sms = 2;
  g.fp32_tflops = 0.2, g.bf16_tflops = 0.4;
  g.memory_gb_per_s = 20, g.memory_gib = 16;
  return g;
}

// Between -1 and 1, the same each time.
double noise(std::size_t k) { return static_cast<double>((k * 2'654'435'761u) % 2'001u) / 1'000 - 1; }

// The medium plan with times of a hidden law.
OperatorTable made_table(const std::function<double(const OperatorRow&)>& ns, double spread, std::int64_t ranks = 1) {
  PlanTerms terms;
  terms.precisions = {Precision::fp32, Precision::bf16};
  terms.ranks = ranks, terms.threads = 2;
  OperatorTable t;
  t.machine = "made";
  for (OperatorRow r : plan_operators(terms)) {
    r.ns = ns(r) * std::exp(spread * noise(t.rows.size()));
    if (!(r.ns > 0)) continue;
    r.spread = spread / 2;
    t.rows.push_back(r);
  }
  return t;
}

// Not of the form of the law that is fitted: tiles of 16 by 32, a slow start, small products of a slow kind.
double hidden_gemm(const OperatorRow& r) {
  const double m = std::ceil(r.size[1] / 16) * 16, n = std::ceil(r.size[2] / 32) * 32, k = r.size[3] + 20;
  const double peak = r.precision == Precision::bf16 ? 250 : 130;
  const double compute = 2 * r.size[0] * m * n * k / peak * (r.flops < 1e7 ? 1.3 : 1);
  return 800 + std::max(compute, r.bytes / 15);
}
// What a cache does not hold takes longer.
double hidden_memory(const OperatorRow& r) { return 300 + r.bytes / 60 + std::max(0.0, r.bytes - 4e6) / 25; }

double hidden(const OperatorRow& r) {
  if (r.kind == OperatorKind::gemm) return hidden_gemm(r);
  if (r.kind == OperatorKind::attention) return r.way == AttentionWay::tiled ? 3'000 + r.flops / 45 : 1;
  if (moves_memory(r.kind)) return hidden_memory(r);
  return 0;
}

OperatorCosts with(const OperatorTable& table, const GpuFacts& gpu, std::int64_t ranks = 1) {
  OperatorCosts costs(gpu);
  costs.use(std::make_shared<const MeasuredOperators>(MeasuredOperators::of_table(table, ranks, gpu, costs)));
  return costs;
}

TEST(FitLogs, FindsWhatWasHidden) {
  double a = 1, b = 1;
  std::vector<FittedTime> times;
  for (double x = 1; x < 1e4; x *= 2) times.push_back({70 + 3 * x, 0.02});
  fit_logs({{&a, 3}, {&b, 3}}, times, [&](std::size_t k) { return a + b * std::pow(2, static_cast<double>(k)); });
  EXPECT_NEAR(a, 70, 1);
  EXPECT_NEAR(b, 3, 0.02);
}

TEST(FitLogs, WithoutTimesNothingMoves) {
  double a = 5;
  fit_logs({{&a, 1}}, {{0, 0.1}, {10, 0.1}}, [&](std::size_t k) { return k == 0 ? a : 0; });
  EXPECT_NEAR(a, 5, 1e-9);
}

TEST(FitLogs, OneTimeThatIsFarOffDoesNotLead) {
  double a = 1;
  std::vector<FittedTime> times(9, {10, 0.05});
  times.push_back({1'000, 0.05});
  fit_logs({{&a, 3}}, times, [&](std::size_t) { return a; });
  EXPECT_NEAR(a, 10, 0.5);
}

TEST(FitLogs, OneTimeForTwoNumbersMovesTheLessKnown) {
  double sure = 10, unsure = 10;
  fit_logs({{&sure, 0.05}, {&unsure, 1}}, {{40, 0.01}}, [&](std::size_t) { return sure + unsure; });
  EXPECT_NEAR(sure + unsure, 40, 1);
  EXPECT_LT(sure, 10.5);
  EXPECT_GT(unsure, 28);
}

TEST(LogResidual, IsWhatWasMeasuredThereAndNothingFarAway) {
  std::vector<LogResidual::Sample> samples;
  for (double x = 1; x <= 1024; x *= 2) samples.push_back({{x, 1, 1, 1}, 0.2 * std::sin(std::log(x)), 0.01});
  const LogResidual r = LogResidual::learn(samples, 1.5, 0.3);
  for (const auto& s : samples) EXPECT_NEAR(r.at(s.size).off, s.off, 0.01);
  EXPECT_NEAR(r.at({48, 1, 1, 1}).off, 0.2 * std::sin(std::log(48)), 0.02);  // between two
  const auto far = r.at({1, 1e9, 1, 1e9});
  EXPECT_NEAR(far.off, 0, 1e-3);
  EXPECT_NEAR(far.doubt, 0.3, 1e-3);
  EXPECT_LT(r.at({48, 1, 1, 1}).doubt, 0.1);
  EXPECT_EQ(LogResidual().at({1, 2, 3, 4}).off, 0);
}

// 3 % for each factor of e of work beyond the largest measured, and nothing within the table.
TEST(MeasuredOperators, FarBeyondTheTableIsKnownLessWell) {
  const OperatorTable t = made_table(hidden, 0);
  GemmWork w;
  double largest = 0;
  for (const OperatorRow& r : t.rows)
    if (r.kind == OperatorKind::gemm && r.precision == Precision::fp32) {
      const double flop = 2 * r.size[0] * r.size[1] * r.size[2] * r.size[3];
      if (flop > largest) largest = flop, w.batch = r.size[0], w.m = r.size[1], w.n = r.size[2], w.k = r.size[3];
    }
  w.precision = Precision::fp32;
  const OperatorCosts costs = with(t, made_cpu());
  EXPECT_LT(costs.gemm(w).relative_error, 0.1);
  w.m *= 1e8;  // no residual there
  const double far = costs.gemm(w).relative_error;
  w.m *= 10;
  const double beyond = 0.03 * std::log(1e8), further = 0.03 * std::log(1e9);
  EXPECT_NEAR(costs.gemm(w).relative_error, std::sqrt(far * far - beyond * beyond + further * further), 1e-9);
}

// A fourth of the shapes is left out; the laws of the others say what they take.
TEST(MeasuredOperators, ShapesThatWereLeftOutAreFound) {
  const OperatorTable all = made_table(hidden, 0.02);
  OperatorTable some = all;
  some.rows.clear();
  std::vector<OperatorRow> out;
  for (std::size_t i = 0; i < all.rows.size(); ++i) (i % 4 == 2 ? out : some.rows).push_back(all.rows[i]);
  const OperatorCosts laws(made_cpu()), fitted = with(some, made_cpu());
  double off = 0, before = 0, worst = 0;
  int n = 0;
  for (const OperatorRow& r : out) {
    const double now = modelled_ns(r, fitted), law = modelled_ns(r, laws);
    if (now <= 0) continue;
    off += std::abs(std::log(now / r.ns)), before += std::abs(std::log(law / r.ns)), ++n;
    worst = std::max(worst, std::abs(std::log(now / r.ns)));
  }
  ASSERT_GT(n, 30);
  EXPECT_LT(off / n, 0.1);
  EXPECT_LT(off / n, before / n / 3);
  EXPECT_LT(worst, 0.5);
}

TEST(MeasuredOperators, MeasuredShapesAreTheirTimes) {
  const OperatorTable t = made_table(hidden, 0);
  const OperatorCosts costs = with(t, made_cpu());
  for (const OperatorRow& r : t.rows) {
    const double now = modelled_ns(r, costs);
    if (now > 0) {
      EXPECT_NEAR(now / r.ns, 1, 0.08) << kernel_text(r) << " " << shape_text(r);
    }
  }
}

TEST(MeasuredOperators, MoreWorkTakesLonger) {
  const OperatorCosts costs = with(made_table(hidden, 0.02), made_cpu());
  for (const Precision p : {Precision::fp32, Precision::bf16})
    for (const MemoryKernel k : {MemoryKernel::elementwise, MemoryKernel::norm, MemoryKernel::softmax,
                                 MemoryKernel::activation, MemoryKernel::loss, MemoryKernel::copy})
      for (double bytes = 16; bytes < 1e10; bytes *= 2)
        EXPECT_LE(costs.memory(bytes, k, p).ns, costs.memory(2 * bytes, k, p).ns) << bytes;
  // Beyond what was measured: at the rate of the largest.
  const double large = costs.memory(1e9).ns, larger = costs.memory(2e9).ns;
  EXPECT_NEAR(larger / large, 2, 1e-6);
  GemmWork w;
  w.precision = Precision::fp32;
  double before = 0;
  for (double m = 1; m < 1e5; m *= 3) {
    w.m = m, w.n = 512, w.k = 512;
    const double ns = costs.gemm(w).ns;
    EXPECT_GT(ns, 0.9 * before);  // what is smooth may dip a little between measured shapes
    before = ns;
  }
}

TEST(MeasuredOperators, NoisyRowsCountWithTheirQuickestBatch) {
  OperatorRow r;
  r.ns = 100, r.least_ns = 40, r.spread = 0.5, r.noisy = true;
  EXPECT_EQ(time_of(r).first, 40);
  r.noisy = false, r.spread = 0.01;
  EXPECT_EQ(time_of(r).first, 100);
}

TEST(MeasuredOperators, ACpuWithoutATableHasLawsOfItsOwn) {
  const OperatorCosts costs(made_cpu());
  EXPECT_EQ(costs.architecture(), Architecture::cpu);
  GemmWork w;
  w.m = w.n = w.k = 1'024, w.precision = Precision::fp32;
  // 2 * 1024^3 FLOP at 0.2 TFLOP/s: 10.7 ms and no less; no launch of a GPU in a small one.
  EXPECT_GT(costs.gemm(w).ns, 10.7e6);
  EXPECT_LT(costs.gemm(w).ns, 20e6);
  w.m = w.n = w.k = 8;
  EXPECT_LT(costs.gemm(w).ns, 1'500);
  EXPECT_NEAR(costs.memory(2e9).ns, 1e8, 5e7);
  EXPECT_LT(costs.memory(64).ns, 1'000);
}

TEST(MeasuredOperators, OfAGpuTheLawIsCorrectedWhereItWasMeasured) {
  const GpuFacts gpu = *gpu_named("H100");
  const OperatorCosts laws(gpu);
  OperatorTable t;
  t.device = "cuda", t.machine = "NVIDIA H100 80GB HBM3";
  for (const double m : {256.0, 1'024.0, 4'096.0})
    for (const double n : {1'024.0, 4'096.0}) {
      OperatorRow r;
      r.size = {1, m, n, 4'096}, r.precision = Precision::bf16;
      r.ns = 1.3 * modelled_ns(r, laws), r.spread = 0.01;
      t.rows.push_back(r);
    }
  OperatorRow launch;
  launch.kind = OperatorKind::launch, launch.ns = 2'100;
  t.rows.push_back(launch);
  const auto measured = std::make_shared<const MeasuredOperators>(MeasuredOperators::of_table(t, 1, gpu, laws));
  EXPECT_EQ(measured->launch_ns(), 2'100);
  OperatorCosts costs = laws;
  costs.use(measured);
  GemmWork w;
  w.m = 2'048, w.n = 4'096, w.k = 4'096;
  EXPECT_NEAR(costs.gemm(w).ns / laws.gemm(w).ns, 1.3, 0.05);  // between measured ones
  w.precision = Precision::fp32;
  EXPECT_EQ(costs.gemm(w).ns, laws.gemm(w).ns);  // another precision
  EXPECT_EQ(costs.memory(1e8).ns, laws.memory(1e8).ns);
}

TEST(MeasuredOperators, TransfersOfATable) {
  // 4 ranks: 20 us, and 5 GB/s of bus bandwidth.
  OperatorTable t;
  for (const OperatorKind kind : {OperatorKind::all_reduce, OperatorKind::all_gather})
    for (double bytes = 1'024; bytes < 3e7; bytes *= 4) {
      OperatorRow r;
      r.kind = kind, r.ranks = 4, r.size[0] = bytes / 4, r.bytes = bytes;
      r.ns = 20'000 + bytes * (kind == OperatorKind::all_reduce ? 1.5 : 0.75) / 5;
      t.rows.push_back(r);
    }
  const auto samples = transfer_samples(t, 4);
  ASSERT_EQ(samples.size(), t.rows.size());
  EXPECT_TRUE(transfer_samples(t, 2).empty());
  const NetworkModel net = fit_network(samples, nullptr);
  for (const double bytes : {1e5, 1e6, 1e7})
    EXPECT_NEAR(transfer_ns(net, Pattern::all_reduce, bytes, {4, 4}) / (20'000 + bytes * 0.3), 1, 0.25) << bytes;
}

}  // namespace
}  // namespace orrery
