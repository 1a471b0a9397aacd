// orrery synth: traces of estimated jobs, which replay and predict read as those of real ones; and --calibrate, which
// goes the other way.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli_run.h"

namespace orrery::test {
namespace {

using Json = nlohmann::ordered_json;

Json answer(const std::string& arguments) {
  const Outcome o = orrery(arguments + " --json");
  EXPECT_EQ(o.status, 0) << arguments << ": " << o.err;
  return o.status == 0 ? Json::parse(o.out) : Json();
}

void expect_refused(const std::string& arguments, const std::string& says) {
  const Outcome o = orrery(arguments);
  EXPECT_EQ(o.status, 2) << arguments;
  EXPECT_EQ(o.out, "") << arguments;
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << arguments << ": " << o.err;
  EXPECT_NE(o.err.find(says), std::string::npos) << arguments << ": " << o.err;
}

// Large enough for its GPUs to be busy, few enough layers for the test to be quick.
const std::string kModel = "--model llama-2-7b --shape layers=4 ";
const std::string kSmall = kModel + "--platform dgx-h100 ";

struct Case {
  const char* name;
  std::string options;
  bool finetune = false;
};
class SynthReplay : public testing::TestWithParam<Case> {};

TEST_P(SynthReplay, GivesBackTheEstimate) {
  const TempDir dir;
  const Case& c = GetParam();
  const Json made = answer("synth " + c.options + " -o '" + (dir / "traces") + "'");
  const Json estimate = answer(std::string("estimate ") + (c.finetune ? "finetune " : "train ") + c.options);
  const Json replay = answer("replay '" + (dir / "traces") + "'");
  ASSERT_FALSE(made.is_null() || estimate.is_null() || replay.is_null());
  const double step = estimate["iteration_ms"];
  EXPECT_NEAR(made["iteration_ms"].get<double>(), step, 0.005 * step);
  EXPECT_NEAR(replay["summary"]["iteration_measured_ms"].get<double>(), made["iteration_ms"].get<double>(),
              0.001 * step);
  EXPECT_NEAR(replay["summary"]["iteration_replayed_ms"].get<double>(), step, 0.005 * step);
  EXPECT_EQ(replay["quality"]["matched_collectives_pct"], 100.0);
  // Where a pass is one block, the estimate deals what runs beside it to its kernels and transfers by their shares.
  double sum = 0;
  for (const char* key : {"exposed_compute_ms", "overlapped_ms", "exposed_comm_ms", "other_ms"}) {
    double mean = 0;
    for (const Json& row : replay["steps"])
      mean += row["replayed"][key].get<double>() / static_cast<double>(replay["steps"].size());
    sum += mean;
    EXPECT_NEAR(mean, estimate["breakdown"][key].get<double>(), 0.06 * step) << key;
  }
  EXPECT_NEAR(sum, step, 0.01 * step);
  for (const Json& note : replay["notes"]) EXPECT_NE(note["severity"], "data-loss") << note;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, SynthReplay,
    testing::Values(Case{"tensor", kSmall + "--gpus 4 --tp 2 --num-microbatches 2"},
                    Case{"sequence", kSmall + "--gpus 4 --tp 4 --sequence-parallel on --recompute full"},
                    Case{"pipeline", kSmall + "--gpus 4 --pp 4 --num-microbatches 6"},
                    Case{"pipeline_tensor_data", kSmall + "--gpus 8 --pp 2 --tp 2 --num-microbatches 4"},
                    Case{"interleaved", kSmall + "--gpus 2 --pp 2 --schedule interleaved:2 --num-microbatches 4"},
                    Case{"zero_bubble", kSmall + "--gpus 2 --pp 2 --schedule zero-bubble --num-microbatches 4"},
                    Case{"tied",
                         "--model gpt --shape layers=4,hidden=2048,heads=16 --platform dgx-a100-80g --gpus 4 "
                         "--pp 2 --num-microbatches 4"},
                    Case{"zero1", kSmall + "--gpus 4 --zero 1 --num-microbatches 2"},
                    Case{"zero3", kSmall + "--gpus 4 --zero 3 --framework deepspeed"},
                    Case{"fsdp", kSmall + "--gpus 4 --framework fsdp"},
                    Case{"zero_groups", kSmall + "--gpus 16 --zero 3 --zero-group 8 --framework deepspeed"},
                    Case{"offload", kSmall + "--gpus 2 --zero 3 --framework deepspeed --offload all"},
                    Case{"context", kSmall + "--gpus 4 --context-parallel 2 --seq-length 8192"},
                    Case{"experts",
                         "--model mixtral-8x7b --shape layers=4 --platform dgx-h100 --gpus 8 "
                         "--expert-parallel 8"},
                    Case{"experts_tensor",
                         "--model mixtral-8x7b --shape layers=4 --platform dgx-h100 --gpus 8 --tp 2 "
                         "--sequence-parallel on --expert-parallel 4 --pp 2 --num-microbatches 4"},
                    Case{"lora", kSmall + "--gpus 2 --method lora --framework deepspeed", true},
                    Case{"qlora", kSmall + "--gpus 2 --method qlora --framework deepspeed", true},
                    // The host issues work more slowly than the GPU does it.
                    Case{"host_bound",
                         "--model gpt --shape layers=4,hidden=256,heads=4 --platform dgx-a100-80g "
                         "--gpus 4 --zero 1 --seq-length 128 --framework deepspeed"}),
    [](const auto& test) { return test.param.name; });

// Projections round the attention are told from it, forward and backward, as the estimate tells them.
TEST(SynthDissect, ModulesAreThoseOfTheEstimate) {
  const TempDir dir;
  answer("synth " + kSmall + "--gpus 1 -o '" + (dir / "traces") + "'");
  const Json estimate = answer("estimate train " + kSmall + "--gpus 1");
  const Json dissected = answer("dissect '" + (dir / "traces") + "'");
  const auto ms = [](const Json& rows, const std::string& name, const std::string& phase) {
    for (const Json& row : rows)
      if (row["name"] == name && row["phase"] == phase) return row["gpu_ms"].get<double>();
    return 0.0;
  };
  for (const char* phase : {"forward", "backward"})
    for (const auto& [here, there] :
         {std::pair{"qkv projection", "qkv"}, std::pair{"output projection", "output projection"},
          std::pair{"mlp down", "mlp down"}}) {
      const double told = ms(estimate["modules"], here, phase);
      EXPECT_GT(told, 0) << here << phase;
      EXPECT_NEAR(ms(dissected["modules"], there, phase), told, 0.01 * told) << here << ' ' << phase;
    }
}

TEST(CliSynth, AFileForEveryRankWithItsPlaceInTheJob) {
  const TempDir dir;
  const Json made = answer("synth " + kSmall + "--gpus 8 --pp 2 --tp 2 --steps 3 -o '" + (dir / "t") + "'");
  ASSERT_EQ(made["files"].size(), 8u);
  for (int rank = 0; rank < 8; ++rank) {
    const std::string file = dir / ("t/rank-" + std::to_string(rank) + ".json.gz");
    EXPECT_EQ(made["files"][static_cast<std::size_t>(rank)], file);
    const Outcome text = shell("gzip -dc '" + file + "'");
    ASSERT_EQ(text.status, 0);
    const Json trace = Json::parse(text.out);
    EXPECT_EQ(trace["distributedInfo"]["rank"], rank);
    EXPECT_EQ(trace["distributedInfo"]["world_size"], 8);
    std::size_t tensor = 0, steps = 0, own = 0;
    for (const Json& g : trace["distributedInfo"]["pg_config"])
      if (g["pg_desc"] == "TENSOR_MODEL_PARALLEL_GROUP") {
        ++tensor;
        EXPECT_EQ(g["ranks"], Json::array({rank / 2 * 2, rank / 2 * 2 + 1}));
      }
    for (const Json& e : trace["traceEvents"]) {
      if (e.value("cat", "") == "user_annotation" && e["name"].get<std::string>().starts_with("ProfilerStep#")) ++steps;
      if (e.value("cat", "") != "kernel") continue;
      EXPECT_EQ(e["args"]["device"], rank);
      ++own;
    }
    EXPECT_EQ(tensor, 1u);
    EXPECT_EQ(steps, 3u);
    EXPECT_GT(own, 100u);
  }
}

TEST(CliSynth, PredictKnowsTheJobAgain) {
  const TempDir dir;
  const std::string job = kSmall + "--pp 2 --tp 2 --num-microbatches 4 ";
  answer("synth " + job + "--gpus 4 -o '" + (dir / "t") + "'");
  const Json four = answer("predict '" + (dir / "t") + "' --pp 4");
  const Json& base = four["layout"]["base"];
  EXPECT_EQ(base["tp"], 2);
  EXPECT_EQ(base["pp"], 2);
  EXPECT_EQ(base["dp"], 1);
  EXPECT_EQ(base["num_microbatches"], 4);
  EXPECT_EQ(base["layers"], 4);
  EXPECT_EQ(base["hidden"], 4096);
  EXPECT_EQ(base["ffn"], 11008);
  EXPECT_EQ(base["heads"], 32);
  EXPECT_EQ(base["seq_length"], 2048);
  EXPECT_EQ(base["schedule"], "1f1b");
  const double estimated =
      answer("estimate train " + kSmall + "--gpus 8 --pp 4 --tp 2 --num-microbatches 4")["iteration_ms"];
  EXPECT_NEAR(four["predicted"]["iteration_ms"].get<double>(), estimated, 0.05 * estimated);

  answer("synth " + kSmall + "--gpus 4 --tp 2 --num-microbatches 2 -o '" + (dir / "d") + "'");
  const double more = answer("predict '" + (dir / "d") + "' --dp 4")["predicted"]["iteration_ms"];
  const double eight = answer("estimate train " + kSmall + "--gpus 8 --tp 2 --num-microbatches 2")["iteration_ms"];
  EXPECT_NEAR(more, eight, 0.05 * eight);
}

TEST(CliSynth, NothingHalfWritten) {
  const TempDir dir;
  const std::string job = "synth " + kSmall + "--gpus 2 --tp 2 -o ";
  // no file may be longer than a few KiB, as on a full disk
  const Outcome full = shell("trap '' XFSZ; ulimit -f 4; \"$orrery\" " + job + "'" + (dir / "full") + "'");
  EXPECT_EQ(full.status, 2) << full.out;
  EXPECT_NE(full.err.find("cannot write"), std::string::npos) << full.err;
  EXPECT_EQ(fs::exists(dir / "full"), false);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path), fs::directory_iterator{}), 0);

  fs::create_directory(dir / "used");
  write_text(dir / "used/mine.txt", "kept");
  expect_refused(job + "'" + (dir / "used") + "'", "is not empty");
  EXPECT_EQ(read_file(dir / "used/mine.txt"), "kept");
  expect_refused(job + "'" + (dir / "used/mine.txt") + "'", "is not a directory");
  expect_refused(job + "'" + (dir / "nowhere/traces") + "'", "cannot be made");
  fs::create_directory(dir / "empty");
  EXPECT_EQ(orrery(job + "'" + (dir / "empty") + "'").status, 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / "empty"), fs::directory_iterator{}), 2);
}

TEST(CliSynth, OptionsThatCannotBe) {
  const std::string job = "synth " + kSmall;
  expect_refused(job + "--gpus 2", "-o");
  expect_refused(job + "--gpus 2 -o x --steps 0", "--steps");
  expect_refused(job + "--gpus 2 -o x --ranks 2", "--ranks");
  expect_refused(job + "--gpus 2 -o x --ranks 1-0", "--ranks");
  expect_refused(job + "--gpus 1024 -o x", "--ranks 0-511");
  expect_refused(job + "--gpus 2 -o x --micro-batch-size max", "--micro-batch-size");
  expect_refused("synth --model llama-2-7b -o x", "no platform");
}

TEST(CliSynth, SomeRanksOfManyOnes) {
  const TempDir dir;
  const Json made = answer("synth " + kSmall + "--gpus 1024 --pp 2 --num-microbatches 2 --ranks 3,1020-1021 -o '" +
                           (dir / "t") + "'");
  ASSERT_EQ(made["files"].size(), 3u);
  EXPECT_TRUE(fs::exists(dir / "t/rank-1021.json.gz"));
}

double fact(const Json& answer, const std::string& name, const char* key) {
  for (const Json& row : answer["calibration"])
    if (row["fact"] == name) return row[key];
  return std::nan("");
}

// What the estimate would leave tells the facts that it was made from.
TEST(CliCalibrate, OwnTracesChangeNothing) {
  const TempDir dir;
  const std::string job = kSmall + "--gpus 4 --pp 2 --tp 2 --num-microbatches 4 ";
  answer("synth " + job + "-o '" + (dir / "t") + "'");
  const double before = answer("estimate train " + job)["iteration_ms"];
  const Json after = answer("estimate train " + job + "--calibrate '" + (dir / "t") + "'");
  EXPECT_NEAR(after["iteration_ms"].get<double>(), before, 0.02 * before);
  for (const char* kind : {"matrix products", "attention, forward", "attention, backward", "kernels bound by memory"})
    EXPECT_NEAR(fact(after, kind, "after") / fact(after, kind, "before"), 1, 0.01) << kind;
  EXPECT_GT(fact(after, "matrix products", "events"), 0);
}

TEST(CliCalibrate, LinksOfTheTraces) {
  const TempDir dir;
  const std::string job = kSmall + "--gpus 4 --tp 4 ";
  answer("synth " + job + "--nvlink off -o '" + (dir / "t") + "'");
  const Json off = answer("estimate train " + job + "--nvlink off");
  const Json after = answer("estimate train " + job + "--calibrate '" + (dir / "t") + "'");
  EXPECT_LT(fact(after, "links inside a server", "after"), 0.3 * fact(after, "links inside a server", "before"));
  EXPECT_NEAR(after["iteration_ms"].get<double>(), off["iteration_ms"].get<double>(),
              0.1 * off["iteration_ms"].get<double>());
}

TEST(CliCalibrate, Refused) {
  const TempDir dir;
  answer("synth " + kSmall + "--gpus 2 --tp 2 -o '" + (dir / "t") + "'");
  const std::string other = "estimate train " + kModel + "--platform dgx-a100-80g --gpus 2 --tp 2 --calibrate ";
  expect_refused(other + "'" + (dir / "t") + "'", "--calibrate");
  expect_refused(other + "'" + (dir / "nothing") + "'", "nothing");
  expect_refused("estimate ops --platform dgx-h100 --gemm 64x64x64 --calibrate x", "--calibrate");
}

TEST(CliCalibrate, PlanTakesIt) {
  const TempDir dir;
  const std::string job = kSmall + "--gpus 4 ";
  answer("synth " + job + "--tp 4 --nvlink off -o '" + (dir / "t") + "'");
  const Json plain = answer("plan " + job), after = answer("plan " + job + "--calibrate '" + (dir / "t") + "'");
  EXPECT_GT(after["candidates"][0]["iteration_ms"], plain["candidates"][0]["iteration_ms"]);
  EXPECT_FALSE(after["calibration"].empty());
}

// Jobs that were measured (here: played by an independent simulation).
TEST(CliCalibrate, NearerToTheMeasuredStep) {
  const fs::path data = fs::path(ORRERY_SOURCE_DIR) / "../shared/data/oracle";
  if (!fs::exists(data)) GTEST_SKIP() << "no data in " << data;
  const struct {
    const char* set;
    std::string job;
  } sets[] = {{"gpt-small",
               "--platform dgx-a100-80g --shape layers=8,hidden=2048,heads=16,vocab=50257 --gpus 8 "
               "--num-microbatches 8"},
              {"gpt3-15b",
               "--platform dgx-h100 --shape layers=48,hidden=6144,ffn=12288,heads=48,vocab=51200 --gpus 16 "
               "--num-microbatches 4"}};
  for (const auto& s : sets) {
    const fs::path base = data / s.set / "base";
    const double measured = Json::parse(read_file(base / "truth.json"))["iteration_ms"];
    const std::string job = "estimate train --model gpt --tp 2 --pp 2 " + s.job;
    const double before = answer(job)["iteration_ms"];
    const double after = answer(job + " --calibrate '" + base.string() + "'")["iteration_ms"];
    EXPECT_LT(std::abs(after / measured - 1), 0.05) << s.set;
    EXPECT_LT(std::abs(after / measured - 1), 0.5 * std::abs(before / measured - 1)) << s.set;
  }
}

}  // namespace
}  // namespace orrery::test
