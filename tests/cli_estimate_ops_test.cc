// orrery estimate ops: questions in, one answer each, errors with their place.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli_run.h"

namespace orrery::test {
namespace {

using Json = nlohmann::ordered_json;

Json ops(const std::string& arguments) {
  const Outcome o = orrery("estimate ops --json " + arguments);
  EXPECT_EQ(o.status, 0) << arguments << ": " << o.err;
  return o.status == 0 ? Json::parse(o.out) : Json();
}

void expect_refused(const std::string& arguments, const std::string& says) {
  const Outcome o = orrery("estimate ops " + arguments);
  EXPECT_EQ(o.status, 2) << arguments;
  EXPECT_EQ(o.out, "") << arguments;
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << arguments << ": " << o.err;
  EXPECT_NE(o.err.find(says), std::string::npos) << arguments << ": " << o.err;
}

TEST(CliEstimateOps, ProductsOfTheCommandLine) {
  const Json j = ops("--platform dgx-h100 --gemm 8192x8192x8192,1x4096x4096");
  ASSERT_EQ(j["gemm"].size(), 2u);
  const Json& large = j["gemm"][0];
  EXPECT_EQ(large["question"], 1);
  EXPECT_EQ(large["precision"], "bf16");
  // 2 * 8192^3 FLOP in the time that stands beside them
  EXPECT_NEAR(large["tflops"].get<double>() * large["time_us"].get<double>() * 1e6, 2.0 * 8192 * 8192 * 8192, 1e9);
  EXPECT_EQ(large["binds"], "compute");
  EXPECT_NE(j["gemm"][1]["binds"], "compute");
}

TEST(CliEstimateOps, EveryQuestionOfAFileIsAnsweredInItsPlace) {
  const TempDir dir;
  write_text(dir / "questions",
             "# operators\n"
             "gemm platform=A100-SXM4-80GB m=4096 n=4096 k=4096\n"
             "\n"
             "attention platform=dgx-h100 heads=32 queries=4096 pass=both\n"
             "memory platform=dgx-h100 bytes=1e9 kind=norm\n"
             "memcpy platform=dgx-h100 bytes=1e9 pinned=off\n"
             "collective platform=dgx-h100 op=all_gather bytes=1e9 gpus=16\n"
             "gemm platform=dgx-h100 m=4096 n=4096 k=4096 precision=fp8\n");
  const Json j = ops("--questions " + (dir / "questions"));
  EXPECT_EQ(j["gemm"][0]["question"], 1);
  EXPECT_EQ(j["attention"][0]["question"], 2);
  EXPECT_EQ(j["memory"][0]["question"], 3);
  EXPECT_EQ(j["memcpy"][0]["question"], 4);
  EXPECT_EQ(j["collectives"][0]["question"], 5);
  EXPECT_EQ(j["gemm"][1]["question"], 6);
  EXPECT_LT(j["gemm"][1]["time_us"].get<double>(), j["gemm"][0]["time_us"].get<double>());
}

TEST(CliEstimateOps, AModelHasAllTables) {
  const Json j = ops("--platform dgx-a100-80g --model llama-2-7b --gpus 8");
  for (const char* key : {"gemm", "attention", "memory", "memcpy", "collectives"}) EXPECT_GT(j[key].size(), 3u) << key;
}

TEST(CliEstimateOps, WhatCannotBeAnsweredIsRefusedWithItsPlace) {
  expect_refused("--gemm 1x1x1", "no platform");
  expect_refused("--platform dgx-h100 --gemm 12x4", "not MxNxK: 12x4");
  expect_refused("--platform dgx-h100 --gemm 0x4x4", "m=0 is not a number from 1");
  expect_refused("--platform no-such-server --gemm 4x4x4", "no-such-server");
  expect_refused("--platform dgx-h100 --attention heads=4,queries=1e9,heads=4", "given twice: heads");
  expect_refused("--platform dgx-h100 --attention queries=16", "attention needs heads=N");
  expect_refused("--platform dgx-h100 --collective all_reduce --bytes nan", "bytes=nan is not a number");
  expect_refused("--platform dgx-h100 --collective all_my_reduce", "all_my_reduce");
  const TempDir dir;
  write_text(dir / "questions",
             "gemm platform=A100-SXM4-80GB m=4 n=4 k=4\ngemm platform=A100-SXM4-80GB m=4 n=4 k=4 warn=on\n");
  expect_refused("--questions " + (dir / "questions"), ":2: gemm does not know warn");
  expect_refused("--questions /no/such/file", "cannot be read");
}

}  // namespace
}  // namespace orrery::test
