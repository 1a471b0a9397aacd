// What `orrery predict` says around its number: where the interval comes from, how much work a step does, who was taken
// out, what an edit leaves as it is, and what to do about traces that are missing or damaged.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli_run.h"

namespace orrery::test {
namespace {

using Json = nlohmann::ordered_json;

const std::string kSample = "samples/gpt-tp2-pp2-dp2";  // 2 * 2 * 2 GPUs, 4 micro-batches of 1 sequence of 2,048 tokens

Json predict(const std::string& arguments, int status = 0) {
  const Outcome o = orrery("predict --json --quiet --steps 5 " + arguments);
  EXPECT_EQ(o.status, status) << arguments << ": " << o.err;
  return o.status == status && !o.out.empty() ? Json::parse(o.out) : Json::object();
}
const Json* note(const Json& j, const std::string& name) {
  for (const Json& n : j["notes"])
    if (n["name"] == name) return &n;
  return nullptr;
}
std::string sample_file(int rank) { return kSample + "/rank-" + std::to_string(rank) + ".json.gz"; }

TEST(PredictAnswers, IntervalByCause) {
  for (const char* edits : {"", "--host 2x", "--tp 4 --hidden 4096", "--dp 8 --network intra=2x,latency_us=9"}) {
    SCOPED_TRACE(edits);
    const Json j = predict(kSample + " " + edits);
    const auto interval = j["predicted"]["interval_ms"].get<std::vector<double>>();
    double shares = 0, squares = 0, last = 1e9;
    for (const Json& row : j["predicted"]["interval"]) {
      const double half = row["half_width_ms"].get<double>();
      EXPECT_LE(half, last) << "the largest first";
      last = half;
      squares += half * half;
      shares += row["share_pct"].get<double>();
    }
    EXPECT_NEAR(shares, 100, 1e-3);
    EXPECT_NEAR(std::sqrt(squares), (interval[1] - interval[0]) / 2, 1e-4);
  }
  EXPECT_EQ(predict(kSample + " --host 3x")["predicted"]["interval"][0]["cause"], "host");
}

TEST(PredictAnswers, TokensAndGpus) {
  const Json j = predict(kSample + " --dp 4");
  EXPECT_EQ(j["baseline"]["gpus"], 8);
  EXPECT_EQ(j["predicted"]["gpus"], 16);
  EXPECT_EQ(j["baseline"]["global_batch_size"], 8);
  EXPECT_EQ(j["predicted"]["global_batch_size"], 16);
  const double ms = j["predicted"]["iteration_ms"].get<double>();
  EXPECT_NEAR(j["predicted"]["tokens_per_s"].get<double>(), 16 * 2048 / (ms / 1000), 1);
  EXPECT_NEAR(j["predicted"]["tokens_per_gpu_s"].get<double>(), 2048 / (ms / 1000), 1);
  ASSERT_NE(note(j, "batch-changes"), nullptr);
  EXPECT_NE((*note(j, "batch-changes"))["advice"].get<std::string>().find("--global-batch-size 8"), std::string::npos);
}

TEST(PredictAnswers, WhatDoesNotFollow) {
  const Json wide = predict(kSample + " --hidden 4096");
  ASSERT_NE(note(wide, "dimensions-stay"), nullptr);
  EXPECT_EQ((*note(wide, "dimensions-stay"))["first"], "--hidden 4096 leaves ffn 8192, heads 16 of 128");
  EXPECT_NE((*note(wide, "dimensions-stay"))["advice"].get<std::string>().find("--ffn 16384 --heads 32"),
            std::string::npos);
  EXPECT_EQ(note(predict(kSample + " --hidden 4096 --ffn 16384 --heads 32"), "dimensions-stay"), nullptr);
  EXPECT_EQ(note(predict(kSample + " --dp 4 --num-microbatches 2"), "batch-changes"), nullptr);
}

TEST(PredictAnswers, AStageWithoutATrace) {
  const std::string first = sample_file(0) + " " + sample_file(1) + " " + sample_file(2) + " " + sample_file(3);
  const Json j = predict(first + " --host 2x", 1);
  ASSERT_NE(note(j, "stages-without-trace"), nullptr);
  EXPECT_EQ((*note(j, "stages-without-trace"))["first"], "pipeline stage 1 of 2");
  const Outcome refused = orrery("predict " + first + " --dp 4 --num-microbatches 8");
  EXPECT_EQ(refused.status, 2);
  EXPECT_NE(refused.err.find("no rank of pipeline stage 1 of 2 has a trace"), std::string::npos) << refused.err;
  // peers stand for ranks that are missing
  const Json one_of_each = predict(sample_file(0) + " " + sample_file(4) + " --layers 8");
  EXPECT_EQ(note(one_of_each, "stages-without-trace"), nullptr);
  EXPECT_NE(note(one_of_each, "ranks-missing"), nullptr);
}

TEST(PredictAnswers, ADamagedFileIsNamedFirst) {
  const TempDir dir;
  for (int r = 0; r < 8; ++r) fs::copy(ORRERY_SOURCE_DIR "/" + sample_file(r), dir.path);
  const std::string broken = dir / "rank-3.json.gz";
  fs::resize_file(broken, fs::file_size(broken) / 3);
  const Outcome o = orrery("predict " + dir.path.string() + " --layers 8");
  EXPECT_EQ(o.status, 2);
  EXPECT_EQ(o.err.find("orrery: " + broken + ": truncated"), 0u) << o.err;
}

TEST(PredictAnswers, LayoutAgainstRecordedShapes) {
  const Outcome o = orrery("predict " + kSample + " --layout hidden=4096");
  EXPECT_EQ(o.status, 2);
  EXPECT_NE(o.err.find("--layout says hidden=4096, the shapes in the traces 2048"), std::string::npos) << o.err;
  predict(kSample + " --layout hidden=2048,seq-length=2048,micro-batch-size=1,heads=16,ffn=8192");
}

TEST(PredictAnswers, StragglersThatWereTakenOutAreListed) {
  const Json replay = Json::parse(orrery("replay --json --quiet --steps 5 " + kSample).out);
  const Json j = predict(kSample + " --without-stragglers");
  ASSERT_TRUE(j.contains("stragglers"));
  EXPECT_EQ(j["stragglers"], replay["stragglers"]);
  EXPECT_FALSE(predict(kSample).contains("stragglers"));
}

TEST(PredictAnswers, SearchNamesTheCommandOfEachLayout) {
  const Json j = predict(kSample + " --kernel gemm=0.5x --search gpus=4,chunks=1");
  const Json& best = j["candidates"][0];
  const std::string command = best["repeat"];
  EXPECT_EQ(command.find("orrery predict " + kSample + " --kernel gemm=0.5x"), 0u) << command;
  EXPECT_EQ(command.find("--search"), std::string::npos);
  const Outcome again = orrery(command.substr(7) + " --json --quiet");
  ASSERT_EQ(again.status, 0) << again.err;
  const Json alone = Json::parse(again.out);
  for (const char* key : {"tp", "pp", "dp", "num_microbatches"})
    EXPECT_EQ(alone["layout"]["new"][key], best["layout"][key]) << key;
  EXPECT_NEAR(alone["predicted"]["iteration_ms"].get<double>() / best["iteration_ms"].get<double>(), 1, 0.05);
  double sum = 0;
  for (const auto& [part, pct] : best["time_pct"].items()) sum += pct.get<double>();
  EXPECT_NEAR(sum, 100, 1e-6);
  EXPECT_EQ(orrery("predict " + kSample + " --search gpus=4 --export x.json").status, 2);
  const Outcome text = orrery("predict " + kSample + " --search gpus=4,chunks=1");
  EXPECT_EQ(text.out.find("Layouts, the fastest that fit first"), 0u) << "the answer to the question is on top";
}

TEST(PredictAnswers, PlatformsAreListed) {
  const Outcome list = orrery("predict --platform list --json");
  ASSERT_EQ(list.status, 0) << list.err;
  EXPECT_GE(Json::parse(list.out)["platforms"].size(), 5u);
  const Outcome unknown = orrery("predict absent.json --platform Z80");
  EXPECT_EQ(unknown.status, 2);
  EXPECT_NE(unknown.err.find("nearest: A"), std::string::npos) << unknown.err;
  EXPECT_NE(unknown.err.find("--platform list"), std::string::npos) << "where all are named: " << unknown.err;
}

TEST(PredictAnswers, TheSampleCostTable) {
  const Json j = predict(kSample + " --cost-table samples/cost-table.csv");
  EXPECT_NE(j["predicted"]["iteration_ms"], j["baseline"]["iteration_ms"]);
}

// Products measured alone tell how they change with their shape, whatever their kernels are called.
TEST(PredictAnswers, ATableOfOperators) {
  const TempDir dir;
  const std::string header = "kernel,shape,time_us,operator,dtype,device,machine\n";
  const auto table = [&](const std::string& name, double doubled, const std::string& device) {
    write_text(dir / name, header + "gemm-bf16,2048x3072x2048,50,gemm,bf16," + device + "\ngemm-bf16,4096x3072x2048," +
                               std::to_string(doubled) + ",gemm,bf16," + device + "\n");
    return " --cost-table " + (dir / name);
  };
  const std::string edit = kSample + " --micro-batch-size 2";
  const double plain = predict(edit)["predicted"]["iteration_ms"];
  const double twice = predict(edit + table("twice.csv", 100, "cuda,"))["predicted"]["iteration_ms"];
  const double tenfold = predict(edit + table("ten.csv", 500, "cuda,"))["predicted"]["iteration_ms"];
  EXPECT_NEAR(twice, plain, 0.05 * plain);  // about what the law says
  EXPECT_GT(tenfold, 1.02 * twice);
  // At their traced size kernels keep their time.
  const Outcome same = orrery("predict " + kSample + table("same.csv", 100, "cuda,"));
  EXPECT_EQ(same.status, 2);
  EXPECT_NE(same.err.find("no kernel of the job has a row"), std::string::npos) << same.err;
  for (const std::string device : {"cpu,", "cuda,NVIDIA A100-SXM4-80GB"}) {
    const Outcome other = orrery("predict " + edit + table("other.csv", 100, device));
    EXPECT_EQ(other.status, 2) << device;
    EXPECT_NE(other.err.find("is of "), std::string::npos) << other.err;
  }
}

TEST(PredictAnswers, FitsInto100Columns) {
  for (const char* edits : {"--hidden 4096 --dp 16 --without-stragglers --network intra=2x", "--search gpus=16"}) {
    std::istringstream lines(orrery("predict --quiet " + kSample + " " + edits).out);
    for (std::string line; std::getline(lines, line);) {
      if (line.find("orrery predict") == std::string::npos) {
        EXPECT_LE(line.size(), 100u) << line;
      }
    }
  }
}

}  // namespace
}  // namespace orrery::test
