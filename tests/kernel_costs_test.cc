// What kernels take at other sizes, and times that the user states.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "costs/cost_table.h"
#include "costs/kernels.h"
#include "facts/gpus.h"

namespace orrery {
namespace {

// 128 SMs, 256 flops a ps, 1 byte a ps: numbers that divide.
const GpuFacts kGpu = {"test", 128, 256, 1000, 0, 0, 0, "invented"};

WorkSize gemm(double m, double n, double k, double batch = 1) { return {WorkKind::gemm, m, n, k, batch}; }
WorkSize memory(double elements) { return {.kind = WorkKind::memory, .m = elements}; }
WorkSize attention(double heads, double seq, double head_dim = 128) {
  return {WorkKind::attention, seq, seq, head_dim, heads};
}
KernelSample sample(std::uint32_t name, WorkSize size, double ns) {
  return {.name = name, .role = name, .size = size, .ns = ns, .spread = 0.01, .count = 100};
}
double flops(const WorkSize& s) { return 2 * s.m * s.n * s.k * s.batch; }

// GEMMs at 70% of the peak whatever their size, give or take `irregular`.
std::vector<KernelSample> some_gemms(double irregular = 0) {
  std::vector<KernelSample> samples;
  std::uint32_t i = 0;
  for (const auto& s : {gemm(2048, 6144, 2048), gemm(2048, 2048, 2048), gemm(2048, 8192, 2048), gemm(2048, 2048, 8192),
                        gemm(2048, 2048, 6144), gemm(6144, 2048, 4096), gemm(8192, 2048, 4096), gemm(2048, 1024, 2048),
                        gemm(4096, 4096, 1024), gemm(1024, 4096, 4096)}) {
    const double sign = i % 2 == 0 ? 1 : -1;
    samples.push_back(sample(i, s, flops(s) / (0.7 * 256e3) * (1 + sign * irregular)));
    ++i;
  }
  return samples;
}

// ---- any kernel ----

TEST(KernelCosts, ItsOwnSizeItsOwnTime) {
  const auto samples = some_gemms(0.1);
  const KernelCosts costs = KernelCosts::learn(samples, &kGpu);
  for (const KernelSample& s : samples) {
    const auto e = costs.rescale(s, s.size);
    EXPECT_EQ(e.ns, s.ns);
    EXPECT_LT(e.relative_error, 0.002);
    EXPECT_FALSE(e.from_facts);
  }
  const KernelSample norm = sample(1, memory(4e6), 10'000);
  EXPECT_EQ(costs.rescale(norm, norm.size).ns, 10'000);
}

TEST(KernelCosts, WhatDoesNotGoWithTheSizeKeepsItsTime) {
  const KernelCosts costs = KernelCosts::learn({}, &kGpu);
  const KernelSample tiny = sample(1, {.kind = WorkKind::fixed}, 1'900), odd = sample(2, {}, 50'000);
  EXPECT_EQ(costs.rescale(tiny, {.kind = WorkKind::fixed, .m = 7}).ns, 1'900);
  const auto e = costs.rescale(odd, {.kind = WorkKind::unknown, .m = 2});
  EXPECT_EQ(e.ns, 50'000);
  EXPECT_GE(e.relative_error, 0.2) << "nobody knows";
}

TEST(KernelCosts, NonsenseIsNeverANumberThatIsNone) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  std::vector<KernelSample> samples = some_gemms();
  samples.push_back(sample(90, gemm(0, -5, kNan), 1'000));
  samples.push_back(sample(91, gemm(kInf, 1e300, 1), 1'000));
  samples.push_back(sample(92, memory(0), 1'000));
  samples.push_back(sample(93, gemm(64, 64, 64), kNan));
  samples.push_back(sample(94, attention(0, 0, 0), 1'000));
  samples.push_back(sample(95, memory(1e6), -3));
  samples.push_back({.name = 96, .size = gemm(64, 64, 64), .ns = 5'000, .spread = kNan, .count = kNan});
  for (const GpuFacts* gpu : {static_cast<const GpuFacts*>(nullptr), &kGpu}) {
    const KernelCosts costs = KernelCosts::learn(samples, gpu);
    for (const KernelSample& s : samples)
      for (const WorkSize& to : {gemm(4096, 4096, 4096), gemm(0, 0, 0), gemm(kNan, kInf, 1e300), memory(1e300),
                                 memory(kNan), attention(kInf, 1e200), attention(8, 2048)}) {
        const auto e = costs.rescale(s, to);
        EXPECT_TRUE(std::isfinite(e.ns) || !(s.ns > 0));
        EXPECT_TRUE(std::isfinite(e.relative_error));
        EXPECT_TRUE(std::isfinite(costs.from_facts(to).ns));
      }
  }
}

// ---- memory-bound kernels ----

// 2 us, and of the rest 12 us of DRAM bandwidth go a fifth faster through the cache.
TEST(KernelCosts, BytesOverBandwidth) {
  const KernelCosts costs = KernelCosts::learn({}, &kGpu);
  const KernelSample large = sample(1, memory(1e8), 1'002'000 - 2'400);
  EXPECT_NEAR(costs.rescale(large, memory(2e8)).ns, 2'002'000 - 2'400, 1);
  EXPECT_NEAR(costs.rescale(large, memory(5e7)).ns, 502'000 - 2'400, 1);
  EXPECT_NEAR(costs.rescale(large, memory(5e5)).ns, 2'000 + 5'000 * 0.8, 1) << "fits the cache";
  const KernelSample cached = sample(2, memory(1e6), 2'000 + 8'000 * 0.8);
  EXPECT_NEAR(costs.rescale(cached, memory(2e6)).ns, 2'000 + 16'000 - 2'400, 1) << "no longer fits";
}

TEST(KernelCosts, ALaunchIsAFloor) {
  const KernelCosts costs = KernelCosts::learn({}, &kGpu);
  const KernelSample bias = sample(1, memory(2048), 1'900);
  EXPECT_NEAR(costs.rescale(bias, memory(8192)).ns, 1'900, 500) << "8,192 elements are nothing";
  EXPECT_GE(costs.rescale(bias, memory(8192)).ns, 1'900);
  const KernelSample large = sample(2, memory(1e8), 1'000'000);
  EXPECT_GE(costs.rescale(large, memory(1)).ns, 1'500);
}

TEST(KernelCosts, OtherSizesOfTheSameKernelCount) {
  // Its bandwidth falls with the size for a reason of its own: 1.1 times as long as the law has it at 4e8.
  const std::vector<KernelSample> samples = {sample(1, memory(1e8), 1e6), sample(1, memory(4e8), 4.4e6)};
  const KernelCosts costs = KernelCosts::learn(samples, &kGpu);
  const double alone = KernelCosts::learn({}, &kGpu).rescale(samples[0], memory(4e8)).ns;
  EXPECT_NEAR(alone, 4e6, 0.01e6);
  EXPECT_NEAR(costs.rescale(samples[0], memory(4e8)).ns, 4.4e6, 0.05e6);
  const double between = costs.rescale(samples[0], memory(2e8)).ns;
  EXPECT_GT(between, 2.02e6);
  EXPECT_LT(between, 2.2e6);
  // One that takes twice as long for as many elements does other work.
  const std::vector<KernelSample> mixed = {sample(1, memory(1e8), 1e6), sample(1, memory(4e8), 8e6)};
  EXPECT_NEAR(KernelCosts::learn(mixed, &kGpu).rescale(mixed[0], memory(4e8)).ns, 4e6, 0.1e6);
  // Another kernel does not.
  KernelSample other = samples[0];
  other.name = 2;
  EXPECT_NEAR(costs.rescale(other, memory(4e8)).ns, alone, 1);
}

// ---- GEMMs ----

TEST(KernelCosts, NoGemmBeatsTheRoofline) {
  std::vector<KernelSample> samples;
  for (const KernelSample& s : some_gemms()) samples.push_back(sample(s.name, s.size, flops(s.size) / (0.98 * 256e3)));
  const KernelCosts costs = KernelCosts::learn(samples, &kGpu);
  EXPECT_DOUBLE_EQ(costs.roofline_ns(gemm(2048, 2048, 2048)), 2.0 * 2048 * 2048 * 2048 / 256e3);
  EXPECT_DOUBLE_EQ(costs.roofline_ns(gemm(1, 8192, 8192)), 2.0 * (8192 + 8192 + 8192 * 8192) / 1000) << "the weights";
  for (const KernelSample& s : samples)
    for (double m = 1; m < 1e6; m *= 7)
      for (double k = 1; k < 1e6; k *= 7) {
        const WorkSize to = gemm(m, 4096, k);
        EXPECT_GE(costs.rescale(s, to).ns, costs.roofline_ns(to));
        EXPECT_GE(costs.from_facts(to).ns, costs.roofline_ns(to));
      }
}

TEST(KernelCosts, LargeGemmsGoWithTheirFlops) {
  const auto samples = some_gemms();
  for (const GpuFacts* gpu : {static_cast<const GpuFacts*>(nullptr), &kGpu}) {
    const KernelCosts costs = KernelCosts::learn(samples, gpu);
    // 2048 x 8192 x 2048 are four whole waves of 256 x 128; so are all its doublings.
    double last = samples[2].ns;
    for (double times = 2; times <= 64; times *= 2) {
      const double ns = costs.rescale(samples[2], gemm(2048 * times, 8192, 2048)).ns;
      EXPECT_GT(ns / last, 1.85) << times;
      EXPECT_LT(ns / last, 2.05) << times;
      last = ns;
    }
  }
}

TEST(KernelCosts, AWaveMoreIsMoreThanItsFlops) {
  const KernelCosts costs = KernelCosts::learn(some_gemms(), &kGpu);
  const KernelSample full = sample(50, gemm(2048, 2048, 8192), 400'000);  // 8 x 16 tiles of 256 x 128: each SM has one
  const double more = costs.rescale(full, gemm(2048, 2176, 8192)).ns;     // 136 tiles; 6% more flops
  EXPECT_GT(more, 1.15 * full.ns);
  // Without the number of SMs there are no waves.
  const KernelCosts blind = KernelCosts::learn(some_gemms(), nullptr);
  EXPECT_NEAR(blind.rescale(full, gemm(2048, 2176, 8192)).ns, 1.0625 * full.ns, 0.03 * full.ns);
}

TEST(KernelCosts, ASizeThatTheTraceHasInforms) {
  auto samples = some_gemms();
  const WorkSize odd = gemm(4096, 1024, 3072);
  samples.push_back(sample(70, odd, 1.3 * flops(odd) / (0.7 * 256e3)));  // an unlucky size
  samples.push_back(sample(71, odd, 1.3 * flops(odd) / (0.7 * 256e3)));
  const KernelCosts costs = KernelCosts::learn(samples, &kGpu);
  const double law = KernelCosts::learn(some_gemms(), &kGpu).rescale(samples[0], odd).ns;
  const auto seen = costs.rescale(samples[0], odd), turned = costs.rescale(samples[0], gemm(1024, 4096, 3072));
  EXPECT_GT(seen.ns, law + 0.5 * (samples.back().ns - law));
  EXPECT_DOUBLE_EQ(seen.ns, turned.ns) << "the transposed GEMM";
  EXPECT_LT(seen.relative_error, costs.rescale(samples[0], gemm(4096, 1152, 3072)).relative_error);
}

TEST(KernelCosts, TheErrorGrowsWithTheDistance) {
  const KernelCosts costs = KernelCosts::learn(some_gemms(), &kGpu);
  const KernelSample base = some_gemms()[0];
  double last = 0;
  for (const double times : {1.0, 1.02, 1.1, 1.5, 4.0, 32.0}) {
    const double error = costs.rescale(base, gemm(2048 * times, 6144, 2048)).relative_error;
    EXPECT_GT(error, last) << times;
    last = error;
  }
  EXPECT_LT(costs.rescale(base, gemm(2048 * 1.5, 6144, 2048)).relative_error, 0.06);
  EXPECT_LT(last, 0.3);
}

TEST(KernelCosts, AnIrregularGpuIsPredictedWithLessConfidence) {
  const WorkSize to = gemm(4096, 12288, 4096);
  const auto smooth = KernelCosts::learn(some_gemms(), &kGpu).rescale(some_gemms()[0], to);
  const auto rough = KernelCosts::learn(some_gemms(0.15), &kGpu).rescale(some_gemms(0.15)[0], to);
  EXPECT_GT(rough.relative_error, 1.5 * smooth.relative_error);
}

TEST(KernelCosts, PrecisionsDoNotMix) {
  auto samples = some_gemms();
  for (KernelSample s : some_gemms()) {  // FP32 without tensor cores: 16 times as long
    s.size.bytes_per_element = 4, s.ns *= 16, s.name += 100;
    samples.push_back(s);
  }
  const KernelCosts costs = KernelCosts::learn(samples, &kGpu), alone = KernelCosts::learn(some_gemms(), &kGpu);
  EXPECT_NEAR(costs.from_facts(gemm(4096, 4096, 4096)).ns / alone.from_facts(gemm(4096, 4096, 4096)).ns, 1, 0.02);
  WorkSize single = gemm(4096, 4096, 4096);
  single.bytes_per_element = 4;
  EXPECT_NEAR(costs.from_facts(single).ns / costs.from_facts(gemm(4096, 4096, 4096)).ns, 16, 1.5);
}

// cuBLAS on an A100-SXM4-80GB, bfloat16, us: github.com/ai-dynamo/aiconfigurator@095f58a51c4c, a100_sxm/gemm
TEST(KernelCosts, AnA100WithinATenth) {
  const GpuFacts* a100 = find_gpu("NVIDIA A100-SXM4-80GB");
  ASSERT_NE(a100, nullptr);
  const std::vector<KernelSample> samples = {
      sample(0, gemm(2048, 4096, 4096), 307'029), sample(1, gemm(2048, 8192, 4096), 515'584),
      sample(2, gemm(2048, 4096, 8192), 533'743), sample(3, gemm(2048, 2048, 4096), 203'742),
      sample(4, gemm(2048, 6144, 4096), 407'962), sample(5, gemm(2048, 4096, 1024), 89'020)};
  const KernelCosts costs = KernelCosts::learn(samples, a100);
  const auto within = [&](const KernelSample& base, const WorkSize& to, double truth) {
    EXPECT_NEAR(costs.rescale(base, to).ns / truth, 1, 0.1) << to.m << "x" << to.n << "x" << to.k;
  };
  within(samples[0], gemm(8192, 4096, 4096), 1'035'537);
  within(samples[1], gemm(2048, 16384, 8192), 2'077'525);
  within(samples[2], gemm(8192, 8192, 16384), 8'050'040);
  within(samples[3], gemm(2048, 6144, 6144), 608'461);
  within(samples[4], gemm(2048, 12288, 8192), 1'615'667);
  within(samples[1], gemm(8192, 8192, 4096), 2'090'155);
}

// ---- attention ----

TEST(KernelCosts, AttentionIsQuadraticInTheSequenceAndLinearInHeads) {
  const KernelCosts costs = KernelCosts::learn({}, &kGpu);
  const KernelSample base = sample(1, attention(64, 4096), 4'000'000);  // 16 whole waves of 128 rows
  EXPECT_NEAR(costs.rescale(base, attention(128, 4096)).ns / base.ns, 2, 0.01);
  EXPECT_NEAR(costs.rescale(base, attention(32, 4096)).ns / base.ns, 0.5, 0.01);
  const double twice = costs.rescale(base, attention(64, 8192)).ns / base.ns;
  EXPECT_GT(twice, 3.6) << "rows of blocks are longer, their start costs less";
  EXPECT_LT(twice, 4.0);
  EXPECT_NEAR(costs.rescale(base, attention(64, 4096, 256)).ns / base.ns, 2, 0.2);
}

TEST(KernelCosts, AttentionFillsTheGpu) {
  const KernelCosts costs = KernelCosts::learn({}, &kGpu);
  const KernelSample one_wave = sample(1, attention(8, 2048), 100'000);  // 8 * 16 blocks of 128 rows on 128 SMs
  const double fewer = costs.rescale(one_wave, attention(4, 2048)).ns;
  EXPECT_GT(fewer, 0.8 * one_wave.ns) << "half of the SMs have nothing to do";
  const double a_few_more = costs.rescale(one_wave, attention(9, 2048)).ns;
  EXPECT_GT(a_few_more, 1.4 * one_wave.ns) << "a second wave";
}

// ---- without a kernel to start from ----

TEST(KernelCosts, FactsAlone) {
  const KernelCosts costs = KernelCosts::learn({}, &kGpu);
  for (const WorkSize& s : {gemm(4096, 4096, 4096), memory(1e8), attention(64, 4096)}) {
    const auto e = costs.from_facts(s);
    EXPECT_TRUE(e.from_facts);
    EXPECT_GE(e.ns, costs.roofline_ns(s));
    EXPECT_GE(e.relative_error, 0.2);
  }
  EXPECT_LT(costs.from_facts(gemm(4096, 4096, 4096)).ns, 2 * costs.roofline_ns(gemm(4096, 4096, 4096)));
  const KernelCosts nothing = KernelCosts::learn({}, nullptr);
  for (const WorkSize& s : {gemm(4096, 4096, 4096), memory(1e8), attention(64, 4096)})
    EXPECT_EQ(nothing.from_facts(s).ns, -1);
}

TEST(KernelCosts, AGemmThatIsNewToTheTrace) {
  const auto e = KernelCosts::learn(some_gemms(), nullptr).from_facts(gemm(2048, 4096, 4096));
  EXPECT_NEAR(e.ns, flops(gemm(2048, 4096, 4096)) / (0.7 * 256e3), 0.1 * e.ns) << "as efficient as the others";
  EXPECT_LT(e.relative_error, 0.15);
}

// ---- times that the user states ----

TEST(CostTable, RowsByKernelAndShape) {
  const auto table = parse_cost_table(
      "kernel,shape,time_us\n"
      "gemm_a,2048x4096x1024,12.5\n"
      "gemm_a,,20\n"
      "\"void f<int, \"\"x\"\">(int)\",4194304,3\r\n"
      "\n"
      "gemm_b, 1X128 x64x32 ,1e3\n"
      "attention,16x2048x2048x128,80",
      "t.csv");
  ASSERT_TRUE(table) << table.error().line();
  ASSERT_EQ(table->rows().size(), 5u);
  EXPECT_EQ(table->lookup("gemm_a", shape_text(gemm(2048, 4096, 1024)))->ns, 12'500);
  EXPECT_EQ(table->lookup("gemm_a", shape_text(gemm(2048, 4096, 1025)))->ns, 20'000) << "any shape";
  EXPECT_EQ(table->lookup("void f<int, \"x\">(int)", shape_text(memory(4194304)))->ns, 3'000);
  EXPECT_EQ(table->lookup("gemm_b", shape_text(gemm(128, 64, 32)))->ns, 1e6);
  EXPECT_EQ(table->lookup("gemm_b", shape_text(gemm(128, 64, 32, 2))), nullptr);
  EXPECT_EQ(table->lookup("attention", shape_text(attention(16, 2048)))->line, 7u);
  EXPECT_EQ(table->lookup("gemm", ""), nullptr) << "whole names";
}

TEST(CostTable, ColumnsInAnyOrder) {
  const auto table = parse_cost_table("\xEF\xBB\xBFtime_us,source,kernel,shape\n5,bench,k,10\n", "t.csv");
  ASSERT_TRUE(table) << table.error().line();
  EXPECT_EQ(table->lookup("k", "10")->ns, 5'000);
}

TEST(CostTable, WhatIsWrongAndWhere) {
  const auto error = [](std::string_view text) {
    const auto table = parse_cost_table(text, "t.csv");
    return table ? std::string("none") : table.error().line();
  };
  const std::string head = "kernel,shape,time_us\n";
  EXPECT_TRUE(error("").starts_with("t.csv: empty"));
  EXPECT_TRUE(error("kernel,time_us\nk,1\n").starts_with("t.csv, line 1: no column shape"));
  EXPECT_TRUE(error(head + "k,1,5\nf<a,b>,1,5\n").starts_with("t.csv, line 3: 4 fields, the header has 3"));
  EXPECT_TRUE(error(head + "k,big,5\n").starts_with("t.csv, line 2: 'big' is not a shape"));
  EXPECT_TRUE(error(head + "k,2x3,5\n").starts_with("t.csv, line 2: '2x3' is not a shape"));
  EXPECT_TRUE(error(head + "k,2x3x,5\n").starts_with("t.csv, line 2: '2x3x' is not a shape"));
  EXPECT_TRUE(error(head + "k,1x2x3x4x5,5\n").starts_with("t.csv, line 2: "));
  EXPECT_TRUE(error(head + "k,0,5\n").starts_with("t.csv, line 2: "));
  for (const std::string time : {"", "fast", "-1", "0", "nan", "1e300"})
    EXPECT_TRUE(error(head + "k,1," + time + "\n").starts_with("t.csv, line 2: '" + time + "' is not a time"));
  EXPECT_TRUE(error(head + ",1,5\n").starts_with("t.csv, line 2: no kernel name"));
  EXPECT_TRUE(error(head + "\"k,1,5\n").starts_with("t.csv, line 2: a quoted field has no end"));
  EXPECT_TRUE(error(head + "\"k\"x,1,5\n").starts_with("t.csv, line 2: text after a quoted field"));
  EXPECT_TRUE(error(head + "k,1,5\n\"two\nlines\",1,5\nk,1,6\n")
                  .starts_with("t.csv, line 5: the same kernel and shape as in line 2"));
}

TEST(CostTable, FromAFile) {
  EXPECT_FALSE(read_cost_table("/nonexistent/t.csv"));
  const std::string path = testing::TempDir() + "cost_table_test.csv";
  std::ofstream(path) << "kernel,shape,time_us\nk,,2\n";
  const auto table = read_cost_table(path);
  ASSERT_TRUE(table) << table.error().line();
  EXPECT_EQ(table->lookup("k", "77")->ns, 2'000);
}

}  // namespace
}  // namespace orrery
