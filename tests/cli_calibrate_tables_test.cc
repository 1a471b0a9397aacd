// orrery estimate and plan --calibrate with tables of operators and measured steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli_run.h"

namespace orrery::test {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kPlatform = R"([platform]
name = "here"
source = "a test"
sure = "stated"
gpus_per_node = 2
nvlink_gb_per_s = 0
[gpu]
arch = "CPU"
sms = 1
fp32_tflops = 0.1
memory_gib = 16
memory_gb_per_s = 20
pcie_gb_per_s = 10
[host]
cores = 2
memory_gb_per_s = 20
)";
constexpr const char* kTable =
    "operator,shape,dtype,time_us,bytes,flops,threads,ranks,device,machine\n"
    "gemm,256x256x256,fp32,400,786432,33554432,1,1,cpu,made\n"
    "gemm,512x512x512,fp32,3000,3145728,268435456,1,1,cpu,made\n"
    "gemm,64x256x1024,fp32,430,1376256,33554432,1,1,cpu,made\n"
    "add,65536,fp32,20,786432,0,1,1,cpu,made\n"
    "add,1048576,fp32,900,12582912,0,1,1,cpu,made\n";
constexpr const char* kModel =
    "--model gpt --shape layers=2,hidden=256,heads=4,ffn=688,vocab=2000,gated=1,tied=0,rms-norm=1,learned-positions=0,"
    "bias=0 --framework ddp --precision fp32 --attention unfused --micro-batch-size 2 --seq-length 128 --gpus 1 ";

struct Files {
  TempDir dir;
  Files() {
    write_text(dir / "here.toml", kPlatform);
    write_text(dir / "ops.csv", kTable);
  }
  std::string job() const { return kModel + ("--platform " + (dir / "here.toml")) + " "; }
};

Json answer(const std::string& arguments) {
  const Outcome o = orrery(arguments + " --json");
  EXPECT_EQ(o.status, 0) << arguments << ": " << o.err;
  return o.status == 0 ? Json::parse(o.out) : Json();
}
void expect_refused(const std::string& arguments, const std::string& says) {
  const Outcome o = orrery(arguments);
  EXPECT_EQ(o.status, 2) << arguments;
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  EXPECT_NE(o.err.find(says), std::string::npos) << o.err;
}

TEST(CliCalibrateTables, ATableIsTakenAndStepsPullTheEstimate) {
  const Files f;
  const std::string job = "estimate train " + f.job();
  const Json plain = answer(job), by_table = answer(job + "--calibrate " + (f.dir / "ops.csv"));
  ASSERT_FALSE(by_table["calibration"].empty());
  EXPECT_EQ(by_table["calibration"][0]["fact"], "matrix products, fp32");
  EXPECT_EQ(by_table["calibration"][0]["events"], 3);
  EXPECT_NE(plain["iteration_ms"], by_table["iteration_ms"]);
  // The same job measured as twice as long, another held out.
  const double ms = by_table["iteration_ms"];
  write_text(
      f.dir / "runs.jsonl",
      "{\"batch\": 2, \"seq_length\": 128, \"technique\": \"\", \"dtype\": \"fp32\", \"procs\": 1, \"step_ms\": " +
          std::to_string(2 * ms) + "}\n\n" +
          "{\"batch\": 4, \"seq_length\": 64, \"technique\": \"R\", \"procs\": 1, \"held_out\": true, "
          "\"step_ms\": {\"median\": 50, \"sd\": 1}}\n");
  const Json by_steps = answer(job + "--calibrate " + (f.dir / "ops.csv") + " --calibrate " + (f.dir / "runs.jsonl"));
  EXPECT_NEAR(by_steps["iteration_ms"], 2 * ms, 0.1 * ms);
  ASSERT_EQ(by_steps["calibrated_steps"].size(), 2u);
  EXPECT_NEAR(by_steps["calibrated_steps"][0]["before_ms"], ms, 0.001 * ms);
  EXPECT_EQ(by_steps["calibrated_steps"][0]["held_out"], false);
  EXPECT_EQ(by_steps["calibrated_steps"][1]["held_out"], true);
  EXPECT_GT(by_steps["calibrated_steps"][1]["after_ms"], by_steps["calibrated_steps"][1]["before_ms"]);
}

// What a table does not tell well is told: rows that varied, and products far above what was measured.
TEST(CliCalibrateTables, NoisyRowsAndProductsBeyondTheTableAreNoted) {
  const Files f;
  const auto note = [&](const std::string& options, const std::string& name) {
    const Json j = answer("estimate train " + f.job() + options);
    for (const Json& n : j["notes"])
      if (n["name"] == name) return n;
    return Json();
  };
  const std::string by_table = "--calibrate " + (f.dir / "ops.csv");
  EXPECT_TRUE(note(by_table, "noisy-rows").is_null());
  EXPECT_TRUE(note(by_table, "beyond-the-table").is_null());
  write_text(f.dir / "noisy.csv",
             "operator,shape,dtype,time_us,least_us,spread_pct,noisy,threads,ranks,device,machine\n"
             "gemm,64x64x64,fp32,10,9,3,false,1,1,cpu,made\n"
             "gemm,96x96x96,fp32,30,15,8,true,1,1,cpu,made\n"
             "gemm,128x128x128,fp32,60,50,20,,1,1,cpu,made\n"
             "add,65536,fp32,20,19,1,false,1,2,cpu,made\n");
  const std::string by_noisy = "--calibrate " + (f.dir / "noisy.csv");
  const Json noisy = note(by_noisy, "noisy-rows");
  ASSERT_FALSE(noisy.is_null());
  EXPECT_EQ(noisy["count"], 2);
  EXPECT_NE(noisy["first"].get<std::string>().find("gemm-fp32 96x96x96"), std::string::npos) << noisy;
  // 256 tokens of 256 by 2 * 688, against 128^3: 43 times; those of the attention are smaller.
  const Json beyond = note(by_noisy, "beyond-the-table");
  ASSERT_FALSE(beyond.is_null());
  EXPECT_GE(beyond["count"], 3);
  EXPECT_NE(beyond["first"].get<std::string>().find(" times the work of 128x128x128"), std::string::npos) << beyond;
  // A matrix that is calibrated by the table says so, too.
  write_text(f.dir / "m.toml",
             "[bench]\nplatform = \"here.toml\"\ncalibrate = [\"noisy.csv\"]\ndevice = \"cpu\"\nthreads = 1\n"
             "[[matrix]]\ntask = \"pretrain\"\nmodel = \"tiny\"\nprecision = \"fp32\"\nbatch = 1\n"
             "[models.tiny]\nlayers = 2\nhidden = 64\nheads = 4\nffn = 128\nvocab = 256\n");
  bool told = false;
  const Json plan = answer("bench plan '" + (f.dir / "m.toml") + "'");
  for (const Json& n : plan["notes"]) told = told || (n["name"] == "noisy-rows" && n["count"] == 2);
  EXPECT_TRUE(told) << plan["notes"];
}

// A rate of a thousandth is not printed as 0.0.
TEST(CliCalibrateTables, RatesOfACpuArePrintedWithEnoughDigits) {
  const Files f;
  std::string slow = kPlatform;
  slow.replace(slow.find("fp32_tflops = 0.1"), 17, "fp32_tflops = 0.02");
  write_text(f.dir / "here.toml", slow);
  const Json j = answer("estimate train " + f.job());
  ASSERT_LT(j["tflops_per_gpu"], 0.05);
  const std::string text = orrery("estimate train " + f.job()).out;
  const std::size_t at = text.find("hardware TFLOP/s");
  ASSERT_NE(at, std::string::npos) << text;
  const std::string line = text.substr(at, text.find('\n', at) - at);
  EXPECT_NE(line.find(" 0.0"), std::string::npos) << line;
  EXPECT_NEAR(std::stod(line.substr(line.find(" 0.0"))), j["hardware_tflops_per_gpu"].get<double>(), 1e-4) << line;
  const std::string ops =
      orrery("estimate ops --precision fp32 --gemm 64x64x64 --platform " + (f.dir / "here.toml")).out;
  EXPECT_EQ(ops.find(" 0.0 "), std::string::npos) << ops;
}

TEST(CliCalibrateTables, TheReportOfBench) {
  const Files f;
  write_text(f.dir / "report.json", R"({"orrery": "0.1.0", "command": "bench report", "runs": [
    {"id": "a", "state": "done", "techniques": ["R"], "batch": 2, "seq_length": 128, "gpus": 1, "step_ms": {"mean": 90, "median": 80, "sd": 2}},
    {"id": "b", "state": "out-of-memory", "techniques": [], "batch": 64, "seq_length": 128, "gpus": 1, "step_ms": null}]})");
  const Json j = answer("estimate train " + f.job() + "--calibrate " + (f.dir / "report.json"));
  ASSERT_EQ(j["calibrated_steps"].size(), 1u);
  EXPECT_EQ(j["calibrated_steps"][0]["measured_ms"], 80);
}

TEST(CliCalibrateTables, PlanTakesATable) {
  const Files f;
  const Json j = answer(
      "plan --model gpt --shape layers=2,hidden=256,heads=4,vocab=2000 --gpus 2 --precision fp32 "
      "--framework ddp --seq-length 128 --platform " +
      (f.dir / "here.toml") + " --calibrate " + (f.dir / "ops.csv"));
  EXPECT_FALSE(j["calibration"].empty());
}

TEST(CliCalibrateTables, RefusedInOneLine) {
  const Files f;
  const std::string job = "estimate train " + f.job() + "--calibrate ";
  const auto steps = [&](const std::string& text) {
    write_text(f.dir / "x.jsonl", text);
    return job + (f.dir / "x.jsonl");
  };
  expect_refused(steps("{\"step_ms\": 0}\n"), "line 1: no step_ms above 0");
  expect_refused(steps("{\"step_ms\": 5}\nnonsense\n"), "line 2: not an object");
  expect_refused(steps("{\"step_ms\": 5, \"technique\": \"XY\"}\n"), "not a technique: XY");
  expect_refused(steps("{\"step_ms\": 5, \"dtype\": \"fp12\"}\n"), "not a precision");
  expect_refused(steps("{\"step_ms\": 5, \"batch\": -1}\n"), "batch is not a whole number from 1");
  expect_refused(steps("{\"step_ms\": 5, \"model\": \"no-such-model\"}\n"), "no-such-model");
  expect_refused(steps("{\"step_ms\": 5, \"held_out\": true}\n"), "held out");
  write_text(f.dir / "bad.csv", std::string(kTable) + "gemm,1x1,fp32,1,0,0,1,1,cpu,made\n");
  expect_refused(job + (f.dir / "bad.csv"), "line 7: '1x1' is not a shape");
  expect_refused("estimate train " + std::string(kModel) + "--platform dgx-h100 --calibrate " + (f.dir / "ops.csv"),
                 "the table is of a CPU");
  for (const std::string& command : {std::string("estimate train --gpus 3 "), std::string("plan --gpus 3 ")})
    expect_refused(command +
                       "--model gpt --shape layers=2,hidden=256,heads=4,vocab=2000 --precision fp32 --framework ddp "
                       "--seq-length 128 --platform " +
                       (f.dir / "here.toml"),
                   "orrery bench ops --ranks 3 --platform-file");
  expect_refused("estimate ops --platform dgx-h100 --gemm 64x64x64 --calibrate " + (f.dir / "ops.csv"), "--calibrate");
}

}  // namespace
}  // namespace orrery::test
