// orrery dissect as a shell runs it: exit statuses, one line of error, JSON and CSV.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli_run.h"

namespace orrery::test {
namespace {

using Json = nlohmann::json;

TEST(CliDissect, SampleAsTextAndJson) {
  const Outcome text = orrery("dissect samples/gpt-tp2-pp2-dp2 --quiet");
  EXPECT_EQ(text.status, 0) << text.err;
  for (const char* heading : {"\nPhases\n", "\nModules\n", "\nKernels\n", "\nClasses of kernels\n", "\nGPU busy\n"})
    EXPECT_NE(text.out.find(heading), std::string::npos) << heading;
  const Outcome o = orrery("dissect samples/gpt-tp2-pp2-dp2 --json");
  EXPECT_EQ(o.status, 0) << o.err;
  const Json j = Json::parse(o.out);
  EXPECT_EQ(j["command"], "dissect");
  for (const char* key :
       {"inputs", "notes", "step_ms", "phases", "modules", "operators", "kernels", "collectives", "memory", "gpu_busy"})
    EXPECT_TRUE(j.contains(key)) << key;
  for (const char* key : {"name", "cpu_ms", "gpu_ms", "pct"}) EXPECT_TRUE(j["phases"][0].contains(key)) << key;
  for (const char* key : {"name", "phase", "gpu_ms", "pct", "count"}) EXPECT_TRUE(j["modules"][0].contains(key)) << key;
  for (const char* key : {"name", "cpu_ms", "gpu_ms", "count"}) EXPECT_TRUE(j["operators"][0].contains(key)) << key;
  for (const char* key : {"name", "class", "gpu_ms", "count", "mean_us", "achieved_tflops", "achieved_gb_per_s"})
    EXPECT_TRUE(j["kernels"][0].contains(key)) << key;
  EXPECT_TRUE(j["gpu_busy"].contains("per_ms"));
}

TEST(CliDissect, OneLevel) {
  const Outcome o = orrery("dissect samples/gpt-tp2-pp2-dp2 --by layer --quiet");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_NE(o.out.find("\nLayers\n"), std::string::npos);
  EXPECT_EQ(o.out.find("\nModules\n"), std::string::npos);
  const Outcome bad = orrery("dissect samples/gpt-tp2-pp2-dp2 --by modul");
  EXPECT_EQ(bad.status, 2);
  EXPECT_EQ(bad.out, "");
  EXPECT_NE(bad.err.find("did you mean module?"), std::string::npos) << bad.err;
}

TEST(CliDissect, CsvHasEveryTable) {
  const TempDir dir;
  const Outcome o = orrery("dissect samples/gpt-tp2-pp2-dp2 --by phase --csv '" + (dir / "tables") + "'");
  EXPECT_EQ(o.status, 0) << o.err;
  for (const char* name : {"phases", "modules", "layers", "operators", "kernels"})
    EXPECT_NE(read_file(dir / ("tables/" + std::string(name) + ".csv")), "") << name;
}

TEST(CliDissect, BadInput) {
  const TempDir dir;
  write_text(dir / "empty.json", "");
  write_text(dir / "none.json", R"({"traceEvents": []})");
  write_text(dir / "text.json", "no trace at all");
  write_text(dir / "other.json", R"([{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 5,
    "args": {"stream": 7, "correlation": 3}}])");
  for (const char* name : {"empty.json", "none.json", "text.json", "absent.json"}) {
    const Outcome o = orrery("dissect '" + (dir / name) + "'");
    EXPECT_EQ(o.status, 2) << name;
    EXPECT_EQ(o.out, "") << name;
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  }
  const Outcome one = orrery("dissect '" + (dir / "other.json") + "' --json");
  EXPECT_EQ(one.status, 0) << one.err;
  double unattributed = 0;
  const Json answer = Json::parse(one.out);
  for (const Json& row : answer["phases"])
    if (row["name"] == "unattributed") unattributed = row["pct"].get<double>();
  EXPECT_EQ(unattributed, 100);
  EXPECT_EQ(orrery("dissect samples/gpt-tp2-pp2-dp2 --steps 99").status, 2);
  EXPECT_EQ(orrery("dissect").status, 2);
}

TEST(CliDissect, WhatWasCutIsAnsweredAndTold) {
  const TempDir dir;
  const Outcome cut =
      shell("gzip -dc samples/gpt-tp2-pp2-dp2/rank-0.json.gz | head -c 900000 > '" + (dir / "cut.json") + "'");
  ASSERT_EQ(cut.status, 0) << cut.err;
  const Outcome o = orrery("dissect '" + (dir / "cut.json") + "' --json");
  EXPECT_EQ(o.status, 1) << o.err;
  EXPECT_GT(Json::parse(o.out)["step_ms"].get<double>(), 0);
}

}  // namespace
}  // namespace orrery::test
