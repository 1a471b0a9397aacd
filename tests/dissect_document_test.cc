// The document of `orrery dissect`: shares that add up, means over ranks, what does not change with the order and the
// names of a file, and jobs whose truth is known.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "dissect_helpers.h"
#include "importers/importers.h"
#include "reports/reports.h"
#include "synthesis/synthetic_job.h"
#include "writers/json.h"

namespace orrery::testing {
namespace {

using Json = nlohmann::json;

Json document_of(const TraceSet& traces, const DissectReportOptions& options = {}) {
  const Result<GraphBuild> build = build_graph(traces);
  if (!build) {
    ADD_FAILURE() << build.error().line();
    return {};
  }
  const auto d = dissect_document(traces, *build, options);
  if (!d) {
    ADD_FAILURE() << d.error().line();
    return {};
  }
  return Json::parse(to_json(*d));
}

DissectReportOptions options_of(std::vector<std::int64_t> steps, unsigned threads = 0, std::string by = "") {
  DissectReportOptions o;
  o.steps = std::move(steps);
  o.threads = threads;
  o.by = std::move(by);
  return o;
}

double sum_of(const Json& rows, const char* key) {
  double sum = 0;
  for (const Json& row : rows)
    if (!row[key].is_null()) sum += row[key].get<double>();
  return sum;
}
Json row_of(const Json& rows, const std::string& name, const std::string& phase = "") {
  for (const Json& row : rows)
    if (row["name"] == name && (phase.empty() || row["phase"] == phase)) return row;
  return {};
}

// To what the writer rounds to.
void expect_whole(const Json& j) {
  const double step = j["step_ms"].get<double>();
  EXPECT_NEAR(sum_of(j["phases"], "gpu_ms"), step, 1e-6 * step);
  EXPECT_NEAR(sum_of(j["phases"], "cpu_ms"), step, 1e-6 * step);
  EXPECT_NEAR(sum_of(j["phases"], "pct"), 100, 1e-4);
  EXPECT_NEAR(sum_of(j["modules"], "gpu_ms"), step, 1e-6 * step);
  EXPECT_NEAR(sum_of(j["modules"], "pct"), 100, 1e-4);
  const double idle = row_of(j["phases"], "idle")["pct"].get<double>();
  EXPECT_NEAR(sum_of(j["kernels"], "pct") + idle, 100, 1e-4);
  EXPECT_NEAR(sum_of(j["operators"], "pct") + idle, 100, 1e-4);
  if (!j["layers"].empty()) {
    EXPECT_NEAR(sum_of(j["layers"], "gpu_ms"), step, 1e-6 * step);
  }
  for (const Json& row : j["phases"]) {  // modules of a phase are the phase
    double modules = 0;
    for (const Json& m : j["modules"])
      if (m["phase"] == row["name"]) modules += m["gpu_ms"].get<double>();
    EXPECT_NEAR(modules, row["gpu_ms"].get<double>(), 1e-6 * step) << row["name"];
  }
}

// A rank of two steps with a forward and a backward pass; `slow` kernels take so many times as long.
DissectBuilder rank_of(std::int64_t rank, double slow) {
  DissectBuilder b(rank);
  b.t.world_size = 2;
  b.t.devices.push_back({0, "NVIDIA A100-SXM4-80GB", 0, 108, 8, 0});
  for (int step = 0; step < 2; ++step) {
    const double at = 1000 * step;
    b.thread(1).step(4 + step, at, 1000);
    b.module("LayerNorm_0", at + 10, 50);
    b.says("aten::native_layer_norm", at + 12, 30,
           {.sequence = 10 * step + 1, .dims = "[[64, 128], [], [128], [128], []]"});
    b.run("vectorized_layer_norm_kernel", at + 15, at + 20, at + 20 + 30 * slow);
    b.module("MLP_0", at + 100, 50);
    b.module("Linear_0", at + 101, 40);
    b.says("aten::mm", at + 102, 30,
           {.sequence = 10 * step + 2, .dims = "[[64, 128], [128, 256]]", .types = R"(["c10::Half", "c10::Half"])"});
    b.run("ampere_fp16_gemm", at + 105, at + 120, at + 120 + 100 * slow);
    b.thread(2);
    b.says("autograd::engine::evaluate_function: MmBackward0", at + 400, 60, {.sequence = 10 * step + 2});
    b.run("ampere_fp16_gemm_2", at + 405, at + 410, at + 410 + 200 * slow);
  }
  return b;
}

TraceSet two_ranks() {
  TraceSet set;
  set.ranks.push_back(rank_of(0, 1).finish());
  set.ranks.push_back(rank_of(1, 1.5).finish());
  return set;
}

TEST(DissectDocument, SharesAndMeansOverRanks) {
  const Json j = document_of(two_ranks());
  expect_whole(j);
  EXPECT_DOUBLE_EQ(j["step_ms"], 1.0);
  const Json mlp = row_of(j["modules"], "mlp up", "forward");
  EXPECT_NEAR(mlp["gpu_ms"], 0.125, 1e-12);  // 100 and 150 us
  EXPECT_NEAR(mlp["min_gpu_ms"], 0.100, 1e-12);
  EXPECT_NEAR(mlp["max_gpu_ms"], 0.150, 1e-12);
  EXPECT_NEAR(mlp["pct"], 12.5, 1e-9);
  EXPECT_EQ(mlp["count"], 1);
  EXPECT_NEAR(row_of(j["modules"], "mlp up", "backward")["gpu_ms"], 0.250, 1e-12);
  EXPECT_NEAR(row_of(j["phases"], "forward")["gpu_ms"], 0.1625, 1e-12);
  const Json op = row_of(j["operators"], "aten::mm");
  EXPECT_NEAR(op["cpu_ms"], 0.030, 1e-12);
  EXPECT_NEAR(op["gpu_ms"], 0.125, 1e-12);
  EXPECT_EQ(op["count"], 1);
  const Json kernel = row_of(j["kernels"], "ampere_fp16_gemm");
  EXPECT_EQ(kernel["class"], "gemm");
  EXPECT_NEAR(kernel["mean_us"], 125, 1e-9);
  const double flops = 2.0 * 64 * 128 * 256;
  EXPECT_NEAR(kernel["achieved_tflops"], 2 * flops / 250e-6 / 1e12, 1e-6);  // of both ranks together
  // 64 x 128 + 128 x 256 + 64 x 256 two-byte elements over 2,039 GB/s, which is more than the product at 312 TFLOP/s
  EXPECT_NEAR(kernel["roofline_pct"], 100 * 2 * (2 * (64 * 128 + 128 * 256 + 64 * 256) / 2039.0) / 250e3, 1e-6);
  EXPECT_EQ(kernel["bound"], "memory");
  EXPECT_NEAR(j["gpu_busy"]["pct"], 41.25, 1e-9);  // 330 and 495 us
  EXPECT_EQ(j["gpu_busy"]["per_ms"].size(), 2u);
  ASSERT_EQ(j["ranks"].size(), 2u);
  EXPECT_NEAR(j["ranks"][1]["backward_ms"], 0.300, 1e-12);
  EXPECT_TRUE(j["memory"]["peak_gib"].is_null());
}

TEST(DissectDocument, ChosenSteps) {
  TraceSet set = two_ranks();
  const Json j = document_of(set, options_of({5}));
  expect_whole(j);
  EXPECT_DOUBLE_EQ(j["step_ms"], 1.0);
  EXPECT_EQ(j["gpu_busy"]["per_ms"].size(), 1u);
  const Result<GraphBuild> build = build_graph(set);
  const auto none = dissect_document(set, *build, options_of({9}));
  ASSERT_FALSE(none.has_value());
  EXPECT_NE(none.error().line().find("no step 9"), std::string::npos);
}

TEST(DissectDocument, OrderClockAndNumbersDoNotMatter) {
  const Json as_is = document_of(two_ranks());
  std::mt19937_64 random(3);
  for (int round = 0; round < 5; ++round) {
    TraceSet set = two_ranks();
    for (RankTrace& t : set.ranks) {
      shuffle_rows(t, random);
      for (Ns& start : t.ops.start) start += us(5'000'000);
      t.window_start += us(5'000'000), t.window_end += us(5'000'000);
      for (std::size_t lane = 0; lane < t.lanes.size(); ++lane)
        t.lanes.tid[lane] += 1000 + 7 * static_cast<std::int64_t>(t.lanes.size() - lane);
      for (std::int64_t& corr : t.ops.corr)
        if (corr != 0) corr = 90'000'000 - corr;
    }
    EXPECT_EQ(document_of(set), as_is) << "round " << round;
  }
}

TEST(DissectDocument, ThreadsDoNotMatter) {
  EXPECT_EQ(document_of(two_ranks(), options_of({}, 1)), document_of(two_ranks(), options_of({}, 4)));
}

TEST(DissectDocument, OneLevelForPeopleAndAllForTools) {
  const TraceSet set = two_ranks();
  const Result<GraphBuild> build = build_graph(set);
  const auto d = dissect_document(set, *build, options_of({}, 0, "kernel"));
  ASSERT_TRUE(d.has_value());
  for (const Section& s : d->sections) {
    if (s.key == "kernels") {
      EXPECT_FALSE(s.title.empty());
      EXPECT_EQ(s.text_rows, 0u);
    }
    if (s.key == "modules") {
      EXPECT_TRUE(s.title.empty());
    }
  }
  EXPECT_EQ(Json::parse(to_json(*d))["modules"], document_of(set)["modules"]);
}

TEST(DissectDocument, WithoutGpuWorkSharesAreTheHosts) {
  DissectBuilder b;
  b.step(1, 0, 100);
  b.range("forward", 10, 40);
  b.says("aten::mm", 12, 10, {.sequence = 1});
  TraceSet set;
  set.ranks.push_back(b.finish());
  const Json j = document_of(set);
  EXPECT_NEAR(row_of(j["phases"], "forward")["pct"], 40, 1e-9);
  EXPECT_NEAR(row_of(j["phases"], "host")["pct"], 60, 1e-9);
  EXPECT_TRUE(row_of(j["phases"], "idle").is_null());
  EXPECT_EQ(row_of(j["operators"], "aten::mm")["count"], 1);
}

TEST(DissectDocument, WorkBeyondTheLastMarkerIsTold) {
  DissectBuilder b;
  b.step(1, 0, 100);
  b.run("kernel_a", 10, 20, 50);
  b.run("kernel_b", 60, 90, 250);
  TraceSet set;
  set.ranks.push_back(b.finish());
  const Json j = document_of(set);
  expect_whole(j);
  bool told = false;
  for (const Json& n : j["notes"])
    told = told || (n["name"] == "work-outside-steps" && n["first"].get<std::string>().substr(0, 5) == "0.150");
  EXPECT_TRUE(told) << j["notes"];
}

TEST(DissectDocument, MemoryOverTime) {
  DissectBuilder b;
  b.step(1, 0, 3000);
  b.run("kernel_a", 10, 20, 50);
  const auto level = [&](double at, double gib, double change) {
    MemoryTable& m = b.t.memory;
    m.ts.push_back(us(at));
    m.lane.push_back(kNoLane);
    m.bytes.push_back(static_cast<std::int64_t>(change * (1 << 30)));
    m.total_allocated.push_back(static_cast<std::int64_t>(gib * (1 << 30)));
    m.total_reserved.push_back(4LL << 30);
    m.device_type.push_back(1);
    m.device.push_back(0);
  };
  level(500, 1.5, 0.5);
  level(1500, 3, 1.5);
  level(2500, 2, -1);
  TraceSet set;
  set.ranks.push_back(b.finish());
  const Json m = document_of(set)["memory"];
  EXPECT_DOUBLE_EQ(m["peak_gib"], 3);
  EXPECT_DOUBLE_EQ(m["peak_at_ms"], 1.5);
  EXPECT_DOUBLE_EQ(m["least_gib"], 1);
  EXPECT_DOUBLE_EQ(m["reserved_gib"], 4);
  EXPECT_EQ(m["per_ms"], (std::vector<double>{1.5, 3, 3}));  // the most of each
}

// ---- real and simulated jobs ----

std::string data(const std::string& path) { return std::string(ORRERY_SOURCE_DIR) + "/../shared/data/" + path; }

TEST(DissectDocument, SimulatedJobsAsTheirTruthSays) {
  for (const std::string set : {"gpt-small", "gpt-skewed"}) {
    const std::string dir = data("oracle/" + set + "/base");
    std::ifstream file(dir + "/truth.json");
    if (!file) GTEST_SKIP() << dir << " is absent";
    const Json truth = Json::parse(file);
    const auto traces = import_traces({dir});
    ASSERT_TRUE(traces.has_value()) << traces.error().line();
    const Json j = document_of(*traces, options_of({truth["steps"][0].get<std::int64_t>()}));
    expect_whole(j);
    const auto mean = [&](const char* key) {
      double sum = 0;
      for (const auto& [rank, b] : truth["breakdown"].items()) sum += b.value(key, 0.0);
      return sum / static_cast<double>(truth["breakdown"].size());
    };
    EXPECT_NEAR(row_of(j["phases"], "communication")["gpu_ms"], mean("exposed_comm_ms"), 0.001) << set;
    EXPECT_NEAR(row_of(j["phases"], "idle")["gpu_ms"], mean("idle_ms"), 0.001) << set;
    EXPECT_NEAR(row_of(j["classes"], "gemm")["gpu_ms"], mean("kernels_gemm_ms"), 0.001) << set;
    EXPECT_NEAR(row_of(j["classes"], "attention")["gpu_ms"], mean("kernels_attention_ms"), 0.001) << set;
    // Forward and backward products of each place, in every layer of every micro-batch.
    const Json& c = truth["config"];
    const double visits = c["layers"].get<double>() / c["pp"].get<double>() * c["microbatches"].get<double>();
    for (const char* module : {"qkv", "attention", "output projection", "mlp up", "mlp down"}) {
      EXPECT_EQ(row_of(j["modules"], module, "forward")["count"].get<double>(), visits) << set << ' ' << module;
      EXPECT_GT(row_of(j["modules"], module, "backward")["gpu_ms"].get<double>(),
                row_of(j["modules"], module, "forward")["gpu_ms"].get<double>())
          << set << ' ' << module;
    }
    EXPECT_TRUE(row_of(j["modules"], "linear").is_null()) << set;
  }
}

// Jobs of our own generator, by how they are written and recorded.
TEST(DissectDocument, MadeUpJobsOfEveryKind) {
  SyntheticJob base;
  base.layers = 4, base.hidden = 512, base.heads = 8, base.seq_length = 256, base.vocab = 1000;
  base.tp = 2, base.pp = base.dp = 1, base.num_microbatches = 2, base.steps = 1;
  std::vector<std::pair<std::string, SyntheticJob>> jobs;
  const auto job = [&](const char* name) -> SyntheticJob& {
    jobs.emplace_back(name, base);
    return jobs.back().second;
  };
  job("frames");
  job("no frames").modules = false;
  {
    SyntheticJob& j = job("full recompute");
    j.recompute = SyntheticJob::Recompute::full;
  }
  {
    SyntheticJob& j = job("nothing but operators, full recompute");
    j.recompute = SyntheticJob::Recompute::full;
    j.modules = j.annotations = j.shapes = false;
  }
  {
    SyntheticJob& j = job("unfused attention, recomputed");
    j.recompute = SyntheticJob::Recompute::selective;
    j.unfused_attention = true;
    j.modules = false;
  }
  {
    SyntheticJob& j = job("gated, sequence parallel");
    j.swiglu = j.sequence_parallel = true;
    j.modules = j.shapes = j.fused_pointwise = false;
  }
  {
    SyntheticJob& j = job("old PyTorch");
    j.legacy = true;
    j.modules = j.shapes = j.annotations = false;
  }
  for (const auto& [name, described] : jobs) {
    SCOPED_TRACE(name);
    const auto run = run_job(described);
    ASSERT_TRUE(run.has_value()) << run.error().line();
    const Json j = document_of(run->traces);
    expect_whole(j);
    const Json& modules = j["modules"];
    for (const char* phase : {"forward", "backward", "recompute"}) {
      const bool recompute = std::string(phase) == "recompute";
      for (const char* module : {"qkv", "output projection", "mlp up", "mlp down"}) {
        const Json row = row_of(modules, module, phase);
        if (recompute && described.recompute != SyntheticJob::Recompute::full) {
          EXPECT_TRUE(row.is_null()) << module;
          continue;
        }
        ASSERT_FALSE(row.is_null()) << phase << ' ' << module;
        EXPECT_EQ(row["count"], 8) << phase << ' ' << module;  // of four layers and two micro-batches
      }
      if (recompute && described.recompute == SyntheticJob::Recompute::none) continue;
      const Json attention = row_of(modules, described.unfused_attention ? "attention products" : "attention", phase);
      ASSERT_FALSE(attention.is_null()) << phase;
      EXPECT_EQ(attention["count"], described.unfused_attention ? 16 : 8) << phase;
    }
    EXPECT_EQ(row_of(modules, "lm head", "forward")["count"], 2);
    EXPECT_EQ(row_of(modules, "lm head", "backward")["count"], 2);
    for (const char* none : {"linear", "unattributed"}) EXPECT_TRUE(row_of(modules, none).is_null()) << none;
    std::set<std::int64_t> layers;
    for (const Json& row : j["layers"])
      if (!row["layer"].is_null()) layers.insert(row["layer"].get<std::int64_t>());
    EXPECT_EQ(layers, (std::set<std::int64_t>{0, 1, 2, 3}));
  }
}

TEST(DissectDocument, RealTracesAddUp) {
  int seen = 0;
  for (const char* name :
       {"nanogpt-8xh100", "megatron-tp2", "dlrm-8xv100", "deepseek-ep64-rank0", "cuda-graph-decode-h200",
        "torchrec-sst_long_a2a_optimizer", "single/b200-eager.json.gz", "single/h100-qwen1.5-0.5b.json.gz",
        "single/vllm-decode-graph.json.gz", "single/mi300-ddp-resnet18.json.gz", "single/ns-resolution.json.gz"}) {
    const std::string path = data(std::string("traces/") + name);
    if (!std::filesystem::exists(path)) continue;
    ++seen;
    SCOPED_TRACE(name);
    const auto traces = import_traces({path});
    ASSERT_TRUE(traces.has_value()) << traces.error().line();
    const Json j = document_of(*traces);
    expect_whole(j);
    double lost = 0;
    for (const Json& m : j["modules"])
      if (m["name"] == "unattributed") lost += m["pct"].get<double>();
    EXPECT_LT(lost, 1);
  }
  if (seen == 0) std::cout << "SKIP: no traces in ../shared/data\n";
}

TEST(DissectDocument, DecodingByAGraphHasItsLayers) {
  const std::string path = data("traces/cuda-graph-decode-h200");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent";
  const auto traces = import_traces({path});
  ASSERT_TRUE(traces.has_value());
  const Json j = document_of(*traces);
  EXPECT_EQ(row_of(j["modules"], "attention", "decode")["count"], 61);  // three dense layers, 58 with experts
  EXPECT_EQ(row_of(j["modules"], "router", "decode")["count"], 58);
  EXPECT_EQ(row_of(j["modules"], "lm head", "decode")["count"], 1);
  EXPECT_GT(row_of(j["modules"], "experts", "decode")["pct"].get<double>(), 5);
}

}  // namespace
}  // namespace orrery::testing
