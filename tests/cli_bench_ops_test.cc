// orrery bench ops as a user runs it.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "cli_run.h"
#include "costs/operator_table.h"

namespace orrery::test {
namespace {

using Json = nlohmann::ordered_json;

void expect_refused(const std::string& arguments, const std::string& says) {
  const Outcome o = orrery("bench " + arguments);
  EXPECT_EQ(o.status, 2) << arguments;
  EXPECT_EQ(o.out, "") << arguments;
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << arguments << ": " << o.err;
  EXPECT_NE(o.err.find(says), std::string::npos) << arguments << ": " << o.err;
}

// What was asked for by its size is never left out without a word.
TEST(CliBenchOps, AProductThatIsNotMeasuredIsTold) {
  const Outcome o = orrery(
      "bench ops --sizes tiny --budget 0.5 --only gemm --dtypes fp32 --threads 1 --blas own "
      "--gemm 100000x100000x100000,8x8x16 --quiet");
  EXPECT_EQ(o.status, 1) << o.err;
  EXPECT_NE(o.out.find("asked-and-not-measured (1): gemm-fp32 100000x100000x100000"), std::string::npos) << o.out;
  const Outcome other =
      orrery("bench ops --sizes tiny --budget 0.5 --only copy --dtypes fp32 --threads 1 --attention 8x8x8 --quiet");
  EXPECT_EQ(other.status, 1) << other.err;
  EXPECT_NE(other.out.find("asked-and-not-measured (1): attention"), std::string::npos) << other.out;
}

// With a causal mask the first of more queries than keys would see nothing: without one, then.
TEST(CliBenchOps, MoreQueriesThanKeys) {
  const Outcome o = orrery(
      "bench ops --sizes tiny --budget 0.5 --only attention --dtypes fp32 --threads 1 --attention 20x8x16,9x8x16 "
      "--json");
  ASSERT_EQ(o.status, 0) << o.err;
  std::set<std::string> kernels;
  const Json answer = Json::parse(o.out);
  for (const Json& row : answer["operators"])
    if (row["shape"] == "20x8x16" || row["shape"] == "9x8x16") kernels.insert(row["kernel"]);
  EXPECT_EQ(kernels, std::set<std::string>{"attention-naive-fp32"});
}

TEST(CliBenchOps, RanksThatDoNotDivideTheModelAreRefused) {
  const TempDir dir;
  write_text(dir / "m.toml",
             "[model]\nsource = \"a test\"\nsure = \"stated\"\nname = \"small\"\nlayers = 2\nhidden = 128\nffn = "
             "256\nheads = 4\nvocab = 512\n");
  expect_refused("ops --sizes tiny --model " + (dir / "m.toml") + " --tp 3",
                 "4 attention heads cannot be divided by 3");
  expect_refused("ops --sizes tiny --model " + (dir / "m.toml") + " --tp 1.5", "not a whole number");
}

TEST(CliBenchOps, TableAndPlatformOfThisMachine) {
  const TempDir dir;
  const Outcome o = orrery("bench ops --json --sizes small --budget 1 --threads 2 --blas own -o " + (dir / "t.csv") +
                           " --platform-file " + (dir / "here.toml"));
  ASSERT_EQ(o.status, 0) << o.err;
  const Json j = Json::parse(o.out);
  EXPECT_EQ(j["machine"]["threads"], 2);
  EXPECT_EQ(j["machine"]["ranks"], 1);
  EXPECT_GT(j["machine"]["fp32_tflops"], 0);
  EXPECT_GT(j["machine"]["memory_gb_per_s"], 0);
  std::set<std::string> kinds;
  for (const Json& row : j["operators"]) {
    kinds.insert(row["operator"]);
    EXPECT_GT(row["time_us"], 0) << row.dump();
    EXPECT_LE(row["least_us"], row["time_us"]) << row.dump();
    if (row["operator"] == "gemm") {
      // its FLOP, its time and its rate agree
      EXPECT_NEAR(row["gflops"].get<double>() * row["time_us"].get<double>() * 1e3, row["flops"].get<double>(),
                  0.02 * row["flops"].get<double>());
    }
  }
  for (const char* kind : {"peak", "stream", "launch", "gemm", "attention", "copy", "add", "silu", "norm", "softmax",
                           "embedding", "adamw"})
    EXPECT_TRUE(kinds.contains(kind)) << kind;
  const auto from_csv = parse_operator_table(read_file(dir / "t.csv"), "t.csv");
  ASSERT_TRUE(from_csv) << from_csv.error().line();
  const auto from_json = parse_operator_table(o.out, "stdout");
  ASSERT_TRUE(from_json) << from_json.error().line();
  ASSERT_EQ(from_csv->rows.size(), from_json->rows.size());
  for (std::size_t i = 0; i < from_csv->rows.size(); ++i)
    EXPECT_NEAR(from_csv->rows[i].ns, from_json->rows[i].ns, 1e-3 * from_csv->rows[i].ns + 1);
  const Outcome e = orrery("estimate train --model gpt --shape layers=2,hidden=256,heads=4,vocab=1000 --platform " +
                           (dir / "here.toml") + " --gpus 1 --framework ddp --precision fp32 --seq-length 128 --json");
  EXPECT_EQ(e.status, 0) << e.err;
}

TEST(CliBenchOps, RanksExchange) {
  const Outcome o =
      orrery("bench ops --json --sizes small --budget 0.5 --ranks 2 --threads 1 --only all_reduce,all_to_all");
  ASSERT_EQ(o.status, 0) << o.err;
  const Json j = Json::parse(o.out);
  EXPECT_EQ(j["machine"]["transport"], "shared memory");
  std::set<std::string> kernels;
  for (const Json& row : j["operators"]) kernels.insert(row["kernel"]);
  EXPECT_TRUE(kernels.contains("all_reduce-fp32-x2"));
  EXPECT_TRUE(kernels.contains("all_to_all-fp32-x2"));
}

TEST(CliBenchOps, RanksOfMpi) {
  if (shell("command -v mpirun").status != 0) GTEST_SKIP() << "no mpirun here";
  const std::string mpirun =
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 60 mpirun --oversubscribe -n 2 ";
  const std::string command =
      mpirun + "\"$orrery\" bench ops --json --quiet --sizes tiny --budget 1 --threads 1 --blas own ";
  const Outcome o = shell(command + "--only all_reduce,all_gather,reduce_scatter,all_to_all,gemm");
  if (o.err.find("no MPI library") != std::string::npos) GTEST_SKIP() << o.err;
  ASSERT_EQ(o.status, 0) << o.err;
  const Json j = Json::parse(o.out);  // of one rank alone
  EXPECT_EQ(j["machine"]["ranks"], 2);
  EXPECT_EQ(j["machine"]["transport"].get<std::string>().rfind("MPI", 0), 0u);
  std::set<std::string> kernels;
  for (const Json& row : j["operators"]) kernels.insert(row["kernel"]);
  for (const char* kernel :
       {"gemm-fp32-x2", "all_reduce-fp32-x2", "all_gather-fp32-x2", "reduce_scatter-fp32-x2", "all_to_all-fp32-x2"})
    EXPECT_TRUE(kernels.contains(kernel)) << kernel;
  const Outcome refused = shell(command + "--ranks 3");
  EXPECT_NE(refused.status, 0);
  EXPECT_NE(refused.err.find("MPI started 2 ranks"), std::string::npos) << refused.err;
}

TEST(CliBenchOps, WhatIsAskedIsMeasured) {
  const Outcome o =
      orrery("bench ops --json --sizes small --budget 0.5 --only gemm --dtypes fp32 --gemm 33x65x17,3x20x30x40");
  ASSERT_EQ(o.status, 0) << o.err;
  const Json j = Json::parse(o.out);
  std::set<std::string> shapes;
  for (const Json& row : j["operators"])
    if (row["operator"] == "gemm") shapes.insert(row["shape"]);
  EXPECT_TRUE(shapes.contains("33x65x17"));
  EXPECT_TRUE(shapes.contains("3x20x30x40"));
}

TEST(CliBenchOps, RefusedInOneLine) {
  expect_refused("", "bench");
  expect_refused("opz", "did you mean ops");
  expect_refused("ops more", "bench");
  expect_refused("ops --sizes huge", "small, medium, large");
  expect_refused("ops --dtypes fp12", "not a precision of this device: fp12");
  expect_refused("ops --only gem", "not an operator: gem");
  expect_refused("ops --only all_reduce", "add --ranks 2");
  expect_refused("ops --gemm 3x4", "not a shape: 3x4");
  expect_refused("ops --gemm 0x4x4", "not a shape: 0x4x4");
  expect_refused("ops --ranks 0", "--ranks");
  expect_refused("ops --transport pigeon", "one of shm, mpi");
  expect_refused("ops --transport mpi", "no MPI launcher started this");
  expect_refused("ops --tokens 5", "add --model");
  expect_refused("ops --model no-such-model", "no-such-model");
  expect_refused("ops --blas libthere-is-no-such-blas.so", "no BLAS there");
  expect_refused("ops -o table.txt", "neither .csv nor .json");
  expect_refused("ops -o /proc/none/t.csv", "/proc/none");
  const TempDir dir;
  expect_refused("ops -o '" + (dir / "t.csv") + "' --platform-file '" + (dir / "t.csv") + "'", "would be written over");
  expect_refused("ops --attention 4x4", "QxKxD or BxQxKxD");
}

}  // namespace
}  // namespace orrery::test
