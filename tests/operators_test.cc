// Times of operators: what can be worked out by hand, what must hold for every shape, and rows that no fit saw.
#include "costs/operators.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <vector>

#include "costs/link_facts.h"
#include "facts/library.h"

namespace orrery {
namespace {

GpuFacts gpu(const char* name) { return gpu_named(name).value(); }

// Ten multiprocessors of 100 FLOP a ns each, no overheads, slices that never pay.
constexpr GemmFit kPlain = {0, 1, 1, 0, 1, 0, 8, 0, 1e12, 0, 1e9, 0, 0, 1, 0, 0, 0};
const GemmOnGpu kTen{1000, 10, 1e6, 0, 2, 2, 2};

TEST(GemmLaw, TilesInWaves) {
  // 64 tiles of 16 x 64 take 7 rounds of 20.48 ns for each k; larger tiles 163.84 ns
  const GemmParts t = gemm_parts(kPlain, kTen, {256, 256, 1000, 1, false, false});
  EXPECT_NEAR(t.compute_ns, 7 * 20.48 * 1000, 1);
  EXPECT_NEAR(t.ns, t.compute_ns, 1);
  // one tile less than a full round of 64 x 64 more: ten tiles, one round
  EXPECT_NEAR(gemm_parts(kPlain, kTen, {640, 64, 1000, 1, false, false}).compute_ns, 81'920, 1);
}

TEST(GemmLaw, MemoryBindsWhatIsThin) {
  GemmOnGpu slow = kTen;
  slow.bandwidth = 1;
  // operands 2 * (1 * 1000 + 1000 * 1000), result 2 * 1000 bytes, at a byte a ns
  EXPECT_NEAR(gemm_parts(kPlain, slow, {1, 1000, 1000, 1, false, false}).memory_ns, 2'004'000, 1);
}

TEST(Operators, LargeProductsReachTheStatedShareOfPeak) {
  const std::map<const char*, std::pair<double, double>> shares = {
      {"A100-SXM4-80GB", {0.78, 0.92}}, {"H100-SXM5-80GB", {0.65, 0.85}}, {"B200", {0.6, 0.85}}};
  for (const auto& [name, range] : shares) {
    const GpuFacts g = gpu(name);
    const double ns = OperatorCosts(g).gemm({8192, 8192, 8192}).ns;
    const double share = 2 * std::pow(8192.0, 3) / ns / 1e3 / g.bf16_tflops;
    EXPECT_GT(share, range.first) << name;
    EXPECT_LT(share, range.second) << name;
  }
}

TEST(Operators, NeverAboveTheRoofline) {
  const auto gpus = known_gpus();
  ASSERT_TRUE(gpus);
  for (const GpuFacts& g : *gpus) {
    const OperatorCosts costs(g);
    for (const Precision p : {Precision::bf16, Precision::fp8, Precision::nvfp4, Precision::fp32}) {
      for (const double m : {1.0, 100.0, 4096.0}) {
        GemmWork w{m, 5000, 3000, 2, p};
        const double ns = costs.gemm(w).ns, bytes = 2 * bytes_of(p) * 3000 * (m + 5000);
        EXPECT_GE(ns, 2 * 2 * m * 5000 * 3000 / peak_flop_per_ns(g, p)) << g.name << " " << name_of(p) << " " << m;
        EXPECT_GE(ns, bytes / g.memory_gb_per_s) << g.name << " " << name_of(p) << " " << m;
      }
    }
    AttentionWork a;
    a.batch = 4;
    a.heads = a.kv_heads = 16;
    a.queries = 1;
    a.keys = 8192;
    EXPECT_GE(costs.attention(a).ns, 4 * 16 * 8192 * 2 * 128 * 2 / g.memory_gb_per_s) << g.name;
    a.queries = a.keys;
    a.causal = false;
    EXPECT_GE(costs.attention(a).ns, 4.0 * 4 * 16 * 8192 * 8192 * 128 / peak_flop_per_ns(g, Precision::bf16)) << g.name;
  }
}

TEST(Operators, ProductsGrowWithEachSide) {
  for (const char* name : {"A100-SXM4-80GB", "H100-SXM5-80GB", "L40S", "RTX-3090"}) {
    const OperatorCosts costs(gpu(name));
    const std::vector<double> sizes = {1, 8, 17, 64, 100, 128, 129, 500, 1000, 1024, 3000, 4096, 9000, 16384};
    for (const double a : sizes) {
      for (const double b : {64.0, 1000.0, 8192.0}) {
        double m = 0, n = 0, k = 0;
        for (const double x : sizes) {
          const double by_m = costs.gemm({x, a, b}).ns, by_n = costs.gemm({a, x, b}).ns,
                       by_k = costs.gemm({a, b, x}).ns;
          EXPECT_GE(by_m, m) << name << " " << x << " " << a << " " << b;
          EXPECT_GE(by_n, n) << name << " " << a << " " << x << " " << b;
          EXPECT_GE(by_k, k) << name << " " << a << " " << b << " " << x;
          m = by_m, n = by_n, k = by_k;
        }
      }
    }
  }
}

TEST(Operators, TransposedProductsTakeTheSameWhereTilesAreLarge) {
  const OperatorCosts costs(gpu("A100-SXM4-80GB"));
  for (const double m : {1024.0, 4096.0}) {
    const double a = costs.gemm({m, 8192, 2048}).ns, b = costs.gemm({8192, m, 2048}).ns;
    EXPECT_NEAR(a / b, 1, 0.05);
  }
}

TEST(Operators, TheSmallestProductIsTheOverhead) {
  for (const char* name : {"A100-SXM4-80GB", "H100-SXM5-80GB"}) {
    const OperatorCosts costs(gpu(name));
    const OperatorTime t = costs.gemm({1, 1, 1});
    EXPECT_EQ(t.bound, Bound::latency);
    EXPECT_GT(t.ns, 1'000);
    EXPECT_LT(t.ns, 10'000);
    EXPECT_GT(costs.memory(0).ns, 1'000);
    EXPECT_LT(costs.memory(0).ns, 10'000);
  }
}

TEST(Operators, QuantisedWeightsSaveWhatTheyDoNotRead) {
  const OperatorCosts costs(gpu("H100-SXM5-80GB"));
  GemmWork w{1, 16384, 16384};
  const double full = costs.gemm(w).ns;
  w.weight_bytes = 0.5;
  EXPECT_LT(costs.gemm(w).ns, 0.5 * full);
  EXPECT_GT(costs.gemm(w).ns, 0.25 * full);
}

TEST(Operators, QuantisingActivationsIsExtra) {
  const OperatorCosts costs(gpu("H100-SXM5-80GB"));
  GemmWork w{4096, 4096, 4096, 1, Precision::fp8};
  const double alone = costs.gemm(w).ns;
  w.quantise = true;
  EXPECT_GT(costs.gemm(w).ns, alone + 4096.0 * 4096 * 3 / 3350);
}

TEST(Attention, ACausalMaskHalvesLongSequences) {
  EXPECT_EQ(attention_pairs(4, 4, true), 10);
  EXPECT_EQ(attention_pairs(2, 4, true), 7);  // the last two of four: 3 and 4 keys
  EXPECT_EQ(attention_pairs(1, 4, true), 4);
  EXPECT_EQ(attention_pairs(4, 4, false), 16);
  const OperatorCosts costs(gpu("A100-SXM4-80GB"));
  AttentionWork w;
  w.batch = 2;
  w.heads = w.kv_heads = 32;
  w.queries = w.keys = 16384;
  const double half = costs.attention(w).ns;
  w.causal = false;
  EXPECT_NEAR(half / costs.attention(w).ns, 0.5, 0.03);
  w.causal = true;
  w.backward = true;
  EXPECT_GT(costs.attention(w).ns, 2 * half);
  EXPECT_LT(costs.attention(w).ns, 4 * half);
}

TEST(Attention, GroupedHeadsReadTheirKeysOnce) {
  const OperatorCosts costs(gpu("H100-SXM5-80GB"));
  AttentionWork w;
  w.batch = 64;
  w.heads = 32;
  w.kv_heads = 8;
  w.queries = 1;
  w.keys = 8192;
  const double grouped = costs.attention(w).ns;
  w.shared_kv = false;
  EXPECT_GT(costs.attention(w).ns, 3 * grouped);
  w.shared_kv = true;
  w.kv_bytes = 1;
  EXPECT_LT(costs.attention(w).ns, 0.65 * grouped);
}

TEST(Attention, FusedIsQuickerThanItsParts) {
  const OperatorCosts costs(gpu("A100-SXM4-80GB"));
  AttentionWork w;
  w.heads = w.kv_heads = 32;
  w.queries = w.keys = 4096;
  const double fused = costs.attention(w).ns;
  w.kernel = AttentionKernel::unfused;
  EXPECT_GT(costs.attention(w).ns, 3 * fused);
}

TEST(Copies, PinnedPageableAndHostAdam) {
  // 25 GB over PCIe4 x16 at 0.8 of 31 GB/s
  EXPECT_NEAR(host_copy(25e9, 31, true).ns, 25e9 / 24.8, 1e6);
  EXPECT_GT(host_copy(25e9, 31, false).ns, 2 * host_copy(25e9, 31, true).ns);
  // 30 bytes a parameter at 0.6 of 100 GB/s
  EXPECT_NEAR(host_adam(1e9, 100).ns, 0.5e9, 1);
}

TEST(LinkFacts, RingsOfACubeMesh) {
  const NetworkModel net = network_of(gpu("V100-SXM2-32GB"));
  const auto bus = [&](std::int64_t n) {
    return 1e9 * 2 * static_cast<double>(n - 1) / static_cast<double>(n) /
           transfer_ns(net, Pattern::all_reduce, 1e9, {n, 8});
  };
  EXPECT_NEAR(bus(3) / bus(2), 2, 0.1);
  EXPECT_NEAR(bus(4) / bus(2), 4, 0.3);
  EXPECT_LT(bus(5), bus(4));
  EXPECT_NEAR(bus(8), 134, 10);
}

TEST(LinkFacts, SwitchesThatAddExceedRings) {
  GpuFacts h = gpu("H200-SXM-141GB");
  h.nvlink_gb_per_s = 450;
  h.nvlink_sharp = true;
  const double with = transfer_ns(network_of(h), Pattern::all_reduce, 8e9, {8, 8});
  h.nvlink_sharp = false;
  const double without = transfer_ns(network_of(h), Pattern::all_reduce, 8e9, {8, 8});
  EXPECT_LT(with, 0.85 * without);
}

std::uint32_t crc32(const std::string& text) {
  std::uint32_t crc = 0xffffffff;
  for (const char c : text) {
    crc ^= static_cast<unsigned char>(c);
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}

// AIConfigurator's matrix products that no fit saw.
TEST(Operators, HeldOutProductsAreNear) {
  EXPECT_EQ(crc32("123456789"), 0xcbf43926u);
  const std::filesystem::path path = ORRERY_SOURCE_DIR "/../shared/data/published/aiconfigurator_ops.tsv";
  std::ifstream file(path);
  if (!file) {
    std::cout << "SKIP: no tables in ../shared/data\n";
    return;
  }
  const std::vector<std::pair<std::string, const char*>> names = {
      {"A100-SXM4", "A100-SXM4-80GB"}, {"GB200", "GB200"}, {"B200", "B200"},           {"H100", "H100-SXM5-80GB"},
      {"H200", "H200-SXM-141GB"},      {"L40S", "L40S"},   {"RTX PRO", "RTX-PRO-6000"}};
  std::map<std::string, OperatorCosts> costs;
  double error = 0;
  int rows = 0;
  for (std::string line; std::getline(file, line);) {
    std::vector<std::string> cells;
    std::istringstream in(line);
    for (std::string cell; std::getline(in, cell, '\t');) cells.push_back(cell);
    if (cells.size() < 8 || cells[0] != "GEMM" || crc32(cells[3] + cells[4] + cells[5]) % 5 != 0) continue;
    GemmWork w;
    w.warm = w.quantise = true;
    ASSERT_TRUE(read_precision(cells[4].substr(cells[4].find(';') + 1), w.precision)) << cells[4];
    ASSERT_EQ(std::sscanf(cells[5].c_str(), "M=%lf;N=%lf;K=%lf", &w.m, &w.n, &w.k), 3) << cells[5];
    const auto name = std::find_if(names.begin(), names.end(),
                                   [&](const auto& n) { return cells[3].find(n.first) != std::string::npos; });
    ASSERT_NE(name, names.end()) << cells[3];
    const OperatorCosts& c = costs.try_emplace(name->second, gpu(name->second)).first->second;
    error += std::abs(c.gemm(w).ns / 1e3 / std::stod(cells[7]) - 1);
    ++rows;
  }
  ASSERT_GT(rows, 500);
  EXPECT_LT(error / rows, 0.10);
}

}  // namespace
}  // namespace orrery
