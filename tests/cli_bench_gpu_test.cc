// orrery bench ops on GPUs that a library stands in for (tests/operators/fake_gpu.cc): every call is made with pointers
// of the right device, every result is checked, and what goes wrong is one line.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "cli_run.h"
#include "costs/operator_table.h"

namespace orrery::test {
namespace {

using Json = nlohmann::ordered_json;

std::string library() { return (fs::path(ORRERY_BINARY).parent_path() / "libfake_gpu.so").string(); }
std::string arguments(const std::string& device) {
  return "bench ops --sizes tiny --budget 1 --device " + device + " --gpu-library " + library() + " ";
}
// Small ones: the stand-in multiplies slowly.
const std::string kFew =
    "--only launch,gemm,copy,add,softmax,to_device,to_host,all_reduce,all_gather,reduce_scatter,all_to_all,attention ";

TEST(CliBenchGpu, BothVendorsAndAllOperators) {
  for (const std::string device : {"cuda", "rocm"}) {
    const TempDir dir;
    const Outcome o = orrery(arguments(device) + kFew + "--ranks 3 --json -o " + (dir / "t.csv"));
    ASSERT_EQ(o.status, 0) << device << ": " << o.err;
    const Json j = Json::parse(o.out);
    EXPECT_EQ(j["machine"]["device"], device);
    EXPECT_EQ(j["machine"]["name"], device == "cuda" ? "NVIDIA H100 80GB HBM3" : "AMD Instinct MI300X");
    std::set<std::string> kernels;
    for (const Json& row : j["operators"]) kernels.insert(row["kernel"]);
    for (const char* kernel :
         {"launch-fp32", "gemm-fp32", "gemm-bf16", "gemm-fp16", "attention-composed-fp32", "attention-composed-bf16",
          "copy-fp32", "add-fp32", "add-bf16", "softmax-fp32", "to_device-fp32", "to_host-fp32", "all_reduce-fp32-x3",
          "all_gather-fp32-x3", "reduce_scatter-fp32-x3", "all_to_all-fp32-x3"})
      EXPECT_TRUE(kernels.contains(kernel)) << device << " " << kernel;
    EXPECT_EQ(kernels.contains("gemm-tf32"), device == "cuda");
    const auto table = parse_operator_table(read_file(dir / "t.csv"), "t.csv");
    ASSERT_TRUE(table) << table.error().line();
    EXPECT_EQ(table->device, device);
    bool told = false;
    for (const Json& note : j["notes"]) told |= note["name"] == "attention-composed";
    EXPECT_TRUE(told);
  }
}

// It is not fp32 alone that attention is measured in.
TEST(CliBenchGpu, AttentionInBf16IsWhatWasAskedFor) {
  const Outcome o = orrery(arguments("cuda") + "--only attention --dtypes bf16 --attention 2x4x8x16 --json --quiet");
  EXPECT_EQ(o.status, 0) << o.err << o.out;
  EXPECT_EQ(o.out.find("asked-and-not-measured"), std::string::npos) << o.out;
}

TEST(CliBenchGpu, TheTableCalibratesAnEstimate) {
  const TempDir dir;
  const Outcome o = orrery(arguments("cuda") + "--only launch,gemm,copy,add,all_reduce --dtypes bf16 --ranks 2 -o " +
                           (dir / "t.json") + " --platform-file " + (dir / "p.toml"));
  ASSERT_EQ(o.status, 0) << o.err;
  const std::string job =
      "estimate train --model gpt --shape layers=2,hidden=256,heads=4,vocab=2000 --gpus 2 --seq-length 128 --json ";
  for (const std::string& platform : {std::string("h100"), dir / "p.toml"}) {
    const Outcome e = orrery(job + "--platform " + platform + " --calibrate " + (dir / "t.json"));
    ASSERT_TRUE(e.status == 0) << e.err;
    std::set<std::string> facts;
    const Json answer = Json::parse(e.out);
    for (const Json& row : answer["calibration"]) facts.insert(row["fact"]);
    for (const char* fact : {"matrix products, bf16", "launch call", "kernels bound by memory"})
      EXPECT_TRUE(facts.contains(fact)) << fact;
  }
  const Outcome other = orrery(job + "--platform dgx-a100-80g --calibrate " + (dir / "t.json"));
  EXPECT_EQ(other.status, 2);
  EXPECT_NE(other.err.find("H100"), std::string::npos) << other.err;
}

struct Fault {
  const char *fault, *says;
};
class CliBenchGpuFaults : public ::testing::TestWithParam<Fault> {};
TEST_P(CliBenchGpuFaults, AreOneLine) {
  const Outcome o = shell("FAKE_GPU=" + std::string(GetParam().fault) + " \"$orrery\" " + arguments("cuda") +
                          "--only gemm --dtypes fp32");
  EXPECT_EQ(o.status, 2) << o.err;
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  EXPECT_NE(o.err.find(GetParam().says), std::string::npos) << o.err;
}
INSTANTIATE_TEST_SUITE_P(All, CliBenchGpuFaults,
                         ::testing::Values(Fault{"no-device", "no GPU here"},
                                           Fault{"wrong", "wrong result of a product"},
                                           Fault{"dies", "failed while it was timed"}));

TEST(CliBenchGpu, WhatIsMissingIsANote) {
  const auto notes = [&](const std::string& fault, const std::string& only) {
    const Outcome o =
        shell("FAKE_GPU=" + fault + " \"$orrery\" " + arguments("cuda") + "--json --dtypes fp32 --only " + only);
    EXPECT_EQ(o.status, 0) << o.err;
    const Json j = o.status == 0 ? Json::parse(o.out) : Json();
    std::string first;
    for (const Json& note : j["notes"])
      if (note["name"] == "operators-left-out") first = note["first"];
    return first;
  };
  EXPECT_NE(notes("no-compiler", "add,copy").find("no compiler for kernels"), std::string::npos);
  EXPECT_NE(notes("no-memory", "copy").find("out of memory"), std::string::npos);
}

TEST(CliBenchGpu, RefusedInOneLine) {
  const auto refused = [](const std::string& command, const std::string& says) {
    const Outcome o = orrery(command);
    EXPECT_EQ(o.status, 2) << command;
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
    EXPECT_NE(o.err.find(says), std::string::npos) << o.err;
  };
  refused("bench ops --device cuda --gpu-library /dev/null", "cannot be opened");
  refused("bench ops --device rocm --gpu-library libc.so.6", "lacks functions");
  refused("bench ops --gpu-library x.so", "add --device");
  refused(arguments("cuda") + "--threads 2", "is of a CPU");
  refused(arguments("cuda") + "--ranks 9", "9 GPUs are asked for, 4 are here");
  refused(arguments("cuda") + "--dtypes int8", "not a precision of this device");
}

}  // namespace
}  // namespace orrery::test
