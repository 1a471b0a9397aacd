// replay and predict on recorded steps of pipelines, as a whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli_run.h"

namespace orrery::test {
namespace {

using Json = nlohmann::ordered_json;

// Two stages, two micro-batches, 10 ms forward and 20 ms backward: F0 F1 B0 B1 over F0 B0 F1 B1 take 90 ms. The first
// of four iterations is ten times as long.
void write_job(const TempDir& dir) {
  const double first[] = {0, 10, 40, 70}, second[] = {10, 20, 40, 50};
  for (int stage = 0; stage < 2; ++stage) {
    Json j;
    for (int i = 1; i <= 4; ++i) {
      const double x = i == 1 ? 10 : 1;
      const double* t = stage == 0 ? first : second;
      Json& one = j[std::to_string(i)];
      const auto f = stage == 0 ? std::array{t[0], t[1]} : std::array{t[0], t[2]};
      const auto b = stage == 0 ? std::array{t[2], t[3]} : std::array{t[1], t[3]};
      for (int k = 0; k < 2; ++k) {
        one["fwd_start"].push_back(x * f[k]);
        one["fwd_end"].push_back(x * (f[k] + 10));
        one["bwd_start"].push_back(x * b[k]);
        one["bwd_end"].push_back(x * (b[k] + 20));
      }
      one["total"] = x * (stage == 0 ? 90 : 70);
    }
    write_text(dir / ("pp_rank_" + std::to_string(stage) + ".json"), j.dump());
  }
  write_text(dir / "config.json", R"({"pp_size": 2, "vp_size": 1, "num_mbs": 2, "dp_size": 1, "tp_size": 1})");
}

Json answer(const std::string& arguments) {
  const Outcome o = orrery(arguments + " --json");
  EXPECT_EQ(o.status, 0) << o.err;
  return o.status == 0 ? Json::parse(o.out) : Json();
}
void expect_refused(const std::string& arguments, const std::string& says) {
  const Outcome o = orrery(arguments);
  EXPECT_EQ(o.status, 2) << arguments;
  EXPECT_EQ(o.out, "");
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  EXPECT_NE(o.err.find(says), std::string::npos) << o.err;
}

TEST(CliPipeline, ReplayAnswersAsForTraces) {
  const TempDir dir;
  write_job(dir);
  const Json j = answer("replay '" + dir.path.string() + "'");
  EXPECT_DOUBLE_EQ(j["summary"]["iteration_measured_ms"], 90);
  EXPECT_DOUBLE_EQ(j["summary"]["iteration_replayed_ms"], 90);
  EXPECT_DOUBLE_EQ(j["summary"]["iteration_replayed_median_ms"], 90);
  EXPECT_EQ(j["steps"].size(), 6u);  // without the first iteration
  EXPECT_EQ(j["notes"][0]["name"], "warm-up");
  EXPECT_EQ(j["ranks"][1]["pp"], 1);
  EXPECT_EQ(j["stragglers"].size(), 0u);
  EXPECT_DOUBLE_EQ(j["slowdown"]["slowdown"], 1);
  EXPECT_DOUBLE_EQ(j["quality"]["explained_idle_pct"], 100);
  const Json first = answer("replay '" + dir.path.string() + "' --steps 1");
  EXPECT_DOUBLE_EQ(first["summary"]["iteration_measured_ms"], 900);
  EXPECT_EQ(answer("replay - < '" + dir / "pp_rank_0.json" + "'")["ranks"].size(), 1u);
  EXPECT_EQ(orrery("replay '" + dir.path.string() + "' --export '" + dir / "out.json" + "'").status, 0);
  EXPECT_GT(Json::parse(read_file(dir / "out.json"))["traceEvents"].size(), 16u);
}

TEST(CliPipeline, PredictChangesTheSchedule) {
  const TempDir dir;
  write_job(dir);
  const std::string job = "predict '" + dir.path.string() + "' ";
  EXPECT_DOUBLE_EQ(answer(job)["predicted"]["iteration_ms"], 90);
  const Json same = answer(job + "--schedule 1f1b");
  EXPECT_DOUBLE_EQ(same["speedup"], 1);
  EXPECT_EQ(same["edits"][0]["nodes_changed"], 0);
  const Json interleaved = answer(job + "--schedule interleaved:2");
  EXPECT_DOUBLE_EQ(interleaved["predicted"]["iteration_ms"], 75);
  EXPECT_EQ(interleaved["layout"]["new"]["num_microbatches"], 2);
  EXPECT_LT(interleaved["predicted"]["interval_ms"][0], 75);
  EXPECT_GT(interleaved["predicted"]["interval_ms"][1], 75);
  EXPECT_DOUBLE_EQ(answer(job + "--schedule zero-bubble")["predicted"]["iteration_ms"], 70);
  EXPECT_DOUBLE_EQ(answer(job + "--microbatches 4")["predicted"]["iteration_ms"], 150);
  EXPECT_DOUBLE_EQ(answer(job + "--kernel 'backward=0.5x'")["predicted"]["iteration_ms"], 60);
  EXPECT_DOUBLE_EQ(answer(job + "--without-stragglers --schedule interleaved:2")["predicted"]["iteration_ms"], 75);
}

TEST(CliPipeline, WhatItCannotAnswerIsSaid) {
  const TempDir dir;
  write_job(dir);
  const std::string job = "predict '" + dir.path.string() + "' ";
  expect_refused(job + "--dp 2", "--dp: cannot be changed where only the steps of pipelines were recorded");
  expect_refused(job + "--schedule gpipe", "not a schedule: gpipe");
  expect_refused(job + "--schedule interleaved:2 --num-microbatches 3", "not a multiple of 2 stages");
  expect_refused(job + "--num-microbatches 0", "not a whole number from 1: 0");
  write_text(dir / "pp_rank_1.json", "{\"1\": {\"fwd_start\": [1,}}");
  expect_refused("replay '" + dir.path.string() + "'", "pp_rank_1.json: not a valid file of a job's steps");
}

}  // namespace
}  // namespace orrery::test
