// Operators on the CPU: every width of vectors, awkward shapes, against plain loops in double.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "operators/cpu_operators.h"
#include "operators/measure_operators.h"
#include "operators/operator_plan.h"

namespace orrery {
namespace {

// Widths that this CPU has; the plain one always.
std::vector<const CpuKernels*> widths() {
  std::set<const CpuKernels*> all;
  for (const int w : {4, 8, 16}) all.insert(&cpu_kernels(w));
  return {all.begin(), all.end()};
}

std::vector<float> numbers(std::size_t n, std::uint32_t seed) {
  std::vector<float> v(n);
  for (float& x : v) {
    seed = seed * 1'664'525u + 1'013'904'223u;
    x = static_cast<float>(static_cast<double>(seed) / 2'147'483'648.0 - 1);
  }
  return v;
}

std::vector<double> plain_product(std::size_t m, std::size_t n, std::size_t k, const std::vector<float>& a,
                                  const std::vector<float>& b) {
  std::vector<double> c(m * n);
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < n; ++j)
      for (std::size_t d = 0; d < k; ++d) c[i * n + j] += static_cast<double>(a[i * k + d]) * b[d * n + j];
  return c;
}

struct Shape {
  std::size_t m, n, k;
};
const Shape kShapes[] = {{1, 1, 1},    {1, 33, 7},      {12, 32, 256}, {13, 31, 257}, {5, 64, 3},
                         {97, 50, 19}, {200, 130, 300}, {3, 2100, 2},  {193, 1, 65}};

TEST(OperatorKernels, ProductsOfEveryWidthAndShape) {
  for (const CpuKernels* kernels : widths())
    for (const Shape& s : kShapes) {
      const auto a = numbers(s.m * s.k, 1), b = numbers(s.k * s.n, 2);
      const auto expected = plain_product(s.m, s.n, s.k, a, b);
      std::vector<float> c(s.m * s.n, 99.0f);
      GemmScratch scratch;
      own_gemm(*kernels, s.m, s.n, s.k, {a.data(), s.k, 1}, {b.data(), s.n, 1}, c.data(), s.n, false, scratch);
      for (std::size_t i = 0; i < c.size(); ++i)
        ASSERT_NEAR(c[i], expected[i], 1e-4) << kernels->name << " " << s.m << "x" << s.n << "x" << s.k << " at " << i;
    }
}

TEST(OperatorKernels, ProductsOfTransposesAreAddedWhereAsked) {
  constexpr std::size_t m = 29, n = 41, k = 70;
  const auto a = numbers(m * k, 3), b = numbers(k * n, 4);
  const auto expected = plain_product(m, n, k, a, b);
  std::vector<float> at(m * k), bt(k * n);  // by columns
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t d = 0; d < k; ++d) at[d * m + i] = a[i * k + d];
  for (std::size_t d = 0; d < k; ++d)
    for (std::size_t j = 0; j < n; ++j) bt[j * k + d] = b[d * n + j];
  for (const CpuKernels* kernels : widths()) {
    constexpr std::size_t stride = n + 5;
    std::vector<float> c(m * stride, 1.0f);
    GemmScratch scratch;
    own_gemm(*kernels, m, n, k, {at.data(), 1, m}, {bt.data(), 1, k}, c.data(), stride, true, scratch);
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j < n; ++j) ASSERT_NEAR(c[i * stride + j], 1 + expected[i * n + j], 1e-4);
      for (std::size_t j = n; j < stride; ++j) ASSERT_EQ(c[i * stride + j], 1.0f) << "beyond a row";
    }
  }
}

TEST(OperatorKernels, Bf16SumsInFp32) {
  const CpuKernels& kernels = cpu_kernels();
  if (kernels.gemm_tile_bf16 == nullptr) GTEST_SKIP() << "this CPU multiplies no bf16";
  for (const Shape& s : kShapes) {
    auto a = numbers(s.m * s.k, 5), b = numbers(s.k * s.n, 6);
    std::vector<Bf16> a16, b16;
    for (float& x : a) a16.push_back(to_bf16(x)), x = from_bf16(a16.back());
    for (float& x : b) b16.push_back(to_bf16(x)), x = from_bf16(b16.back());
    const auto expected = plain_product(s.m, s.n, s.k, a, b);  // of the rounded operands: exact but for fp32 sums
    std::vector<float> c(s.m * s.n);
    GemmScratch scratch;
    own_gemm(kernels, s.m, s.n, s.k, {a16.data(), s.k, 1}, {b16.data(), s.n, 1}, c.data(), s.n, false, scratch);
    for (std::size_t i = 0; i < c.size(); ++i) ASSERT_NEAR(c[i], expected[i], 1e-4) << s.m << "x" << s.n << "x" << s.k;
  }
}

TEST(OperatorKernels, Bf16RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(to_bf16(1.0f + 1.0f / 256), 0x3f80);  // half way: to the even one
  EXPECT_EQ(to_bf16(1.0f + 3.0f / 256), 0x3f82);  // half way: to the even one
  EXPECT_EQ(to_bf16(1.0f + 1.01f / 256), 0x3f81);
  EXPECT_EQ(from_bf16(0xc000), -2.0f);
}

TEST(OperatorKernels, ElementsOfEveryWidthAndLength) {
  for (const CpuKernels* k : widths())
    for (const std::size_t n : {std::size_t{1}, std::size_t{15}, std::size_t{16}, std::size_t{33}, std::size_t{1000}}) {
      auto x = numbers(n, 7), y = numbers(n, 8), weight = numbers(n, 9);
      for (float& v : x) v *= 20;
      std::vector<float> sum(n), silu(n), soft(n), norm(n);
      k->add(x.data(), y.data(), sum.data(), n);
      k->silu(x.data(), silu.data(), n);
      k->softmax(x.data(), soft.data(), n);
      k->rms_norm(x.data(), weight.data(), norm.data(), n);
      double all = 0, squares = 0;
      for (const float v : x) all += std::exp(static_cast<double>(v)), squares += static_cast<double>(v) * v;
      const double by = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
      for (std::size_t i = 0; i < n; ++i) {
        const double v = x[i];
        ASSERT_EQ(sum[i], x[i] + y[i]);
        ASSERT_NEAR(silu[i], v / (1 + std::exp(-v)), 1e-5) << k->name << " " << n;
        ASSERT_NEAR(soft[i], std::exp(v) / all, 1e-6) << k->name << " " << n;
        ASSERT_NEAR(norm[i], v * weight[i] * by, 1e-5) << k->name << " " << n;
      }
      // Two steps of AdamW, by hand.
      auto w = numbers(n, 10);
      const auto w0 = w;
      std::vector<float> m(n, 0), v(n, 0);
      k->adamw(w.data(), y.data(), m.data(), v.data(), n);
      k->adamw(w.data(), y.data(), m.data(), v.data(), n);
      for (std::size_t i = 0; i < n; ++i) {
        double pw = w0[i], pm = 0, pv = 0;
        for (int step = 0; step < 2; ++step) {
          pm = 0.9 * pm + 0.1 * y[i], pv = 0.999 * pv + 0.001 * y[i] * y[i];
          pw = pw * (1 - 1e-5) - 1e-3 * pm / (std::sqrt(pv) + 1e-8);
        }
        ASSERT_NEAR(w[i], pw, 1e-5);
      }
      std::vector<Bf16> xb(n), yb(n), sb(n);
      for (std::size_t i = 0; i < n; ++i) xb[i] = to_bf16(x[i]), yb[i] = to_bf16(y[i]);
      k->add_bf16(xb.data(), yb.data(), sb.data(), n);
      for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(sb[i], to_bf16(from_bf16(xb[i]) + from_bf16(yb[i])));
    }
}

TEST(OperatorTeam, EveryRowIsSomebodys) {
  for (const unsigned threads : {1u, 2u, 5u})
    for (const std::size_t rows : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{100}})
      for (const std::size_t grain : {std::size_t{1}, std::size_t{16}}) {
        std::size_t next = 0;
        for (unsigned w = 0; w < threads; ++w) {
          const WorkShare s = share_of(rows, w, threads, grain);
          ASSERT_EQ(s.from, next);
          ASSERT_TRUE(s.from % grain == 0 || s.from == rows);
          next = s.to;
        }
        ASSERT_EQ(next, rows);
      }
  Team team(4, -1);  // more than many machines have cores
  std::vector<int> done(4, 0);
  for (int round = 0; round < 100; ++round) team.run([&](unsigned w) { ++done[w]; });
  EXPECT_EQ(done, std::vector<int>(4, 100));
}

// One rank of one.
class Alone final : public RankGroup {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string transport() const override { return "none"; }
  bool all_reduce(float*, std::size_t) override { return true; }
  bool all_gather(const float*, std::size_t, float*) override { return true; }
  bool reduce_scatter(const float*, std::size_t, float*) override { return true; }
  bool all_to_all(const float*, std::size_t, float*) override { return true; }
};

// Every operator of a plan, on every width and on more threads than units: its own check against a reference passes,
// and does not when the result is spoilt.
TEST(CpuOperators, ResultsAreRightAndTheCheckIsNotBlind) {
  Alone alone;
  PlanTerms terms;
  terms.sizes = SizeSet::small;
  terms.gemms = {{1, 3, 5, 7}, {3, 33, 2, 9}};
  terms.attentions = {{1, 1, 1, 8}, {3, 70, 300, 8}, {2, 129, 129, 16}};
  if (cpu_kernels().gemm_tile_bf16 != nullptr) terms.precisions.push_back(Precision::bf16);
  for (const int widest : {4, 8, 0}) {
    CpuOperators device({.threads = 3, .first_core = -1, .blas = nullptr, .widest = widest}, alone);
    for (OperatorRow row : plan_operators(terms)) {
      if (row.kind == OperatorKind::peak || row.kind == OperatorKind::stream) continue;
      if (row.precision == Precision::bf16 && row.kind == OperatorKind::gemm && !device.has_bf16()) continue;
      auto prepared = device.prepare(row);
      ASSERT_TRUE(prepared) << prepared.error().line();
      EXPECT_GT(prepared->run(2), 0);
      const Status ok = prepared->check();
      ASSERT_TRUE(ok) << kernel_text(row) << " " << shape_text(row) << ": " << ok.error().line();
      if (row.kind == OperatorKind::launch || is_collective(row.kind)) continue;
      auto again = device.prepare(row);  // the operands are there, the result is that of before or zeros: run is needed
      ASSERT_TRUE(again);
    }
  }
}

TEST(CpuOperators, WhatACpuDoesNotHaveIsAnError) {
  Alone alone;
  CpuOperators device({.threads = 1, .first_core = -1, .blas = nullptr, .widest = 4}, alone);
  OperatorRow row;
  row.precision = Precision::bf16;
  EXPECT_FALSE(device.prepare(row));  // four floats a vector: no product of bf16
  row.precision = Precision::fp8;
  EXPECT_FALSE(device.prepare(row));
  row = {};
  row.kind = OperatorKind::to_device;
  EXPECT_FALSE(device.prepare(row));
  row = {};
  row.kind = OperatorKind::copy;
  row.size[0] = 1e12;
  row.bytes = 8e12;
  EXPECT_FALSE(device.prepare(row));  // no memory
}

TEST(Blas, NoLibraryIsNone) {
  EXPECT_EQ(Blas::find("libthere-is-no-such-blas.so"), nullptr);
  EXPECT_EQ(Blas::find("libc.so.6"), nullptr) << "a library without sgemm_";
}

}  // namespace
}  // namespace orrery
