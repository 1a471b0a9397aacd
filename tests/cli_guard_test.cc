// orrery guard as a user meets it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli_run.h"

namespace orrery::test {
namespace {

using Json = nlohmann::json;

TEST(CliGuard, SimulateAnswersTheContract) {
  const Outcome o = orrery("guard simulate --json");
  ASSERT_EQ(o.status, 0) << o.err;
  const Json d = Json::parse(o.out);
  EXPECT_EQ(d["command"], "guard");
  EXPECT_EQ(d["policy"], "guard-async");
  ASSERT_EQ(d["policies"].size(), 4u);
  for (const char* key : {"policy", "goodput_pct", "ettr_pct", "lost_gpu_s", "best_checkpoint_interval_s"})
    EXPECT_EQ(d[key], d["policies"][0][key]) << key;
  double lost = 0;
  for (const auto& [cause, seconds] : d["lost_gpu_s"].items()) lost += seconds.get<double>();
  EXPECT_NEAR(lost / (2048 * 30 * 86'400.0), 1 - d["ettr_pct"].get<double>() / 100, 1e-6);
  EXPECT_TRUE(d["lost_gpu_s"].contains("NVLink Error"));
  EXPECT_EQ(d["failures"].size(), 8u);
  EXPECT_FALSE(d.contains("lost")) << "of people's table alone";
}

TEST(CliGuard, TheFirstPolicyNamedIsTheAnswer) {
  const Json d = Json::parse(orrery("guard simulate --policy manual-sync,guard-sync --interval best --json").out);
  EXPECT_EQ(d["policy"], "manual-sync");
  EXPECT_EQ(d["policies"][1]["policy"], "guard-sync");
  EXPECT_EQ(d["policies"][0]["interval_s"], d["best_checkpoint_interval_s"]);
  EXPECT_EQ(d["policies"][0]["spare_gpu_s"], 0.0);
}

TEST(CliGuard, RefusedInOneLine) {
  const auto refused = [](const std::string& arguments, const std::string& line) {
    const Outcome o = orrery("guard " + arguments);
    EXPECT_EQ(o.status, 2) << arguments;
    EXPECT_EQ(o.out, "") << arguments;
    EXPECT_EQ(o.err, "orrery: " + line + "\n");
  };
  refused("", "guard: needs a command (orrery guard [OPTION...] -- COMMAND..., or guard status, or guard simulate)");
  refused("watch",
          "guard: not known: watch (orrery guard [OPTION...] -- COMMAND..., or guard status, or guard simulate)");
  refused("simulate --gpus 0", "--gpus: not a whole number from 1 to 10000000: 0");
  refused("simulate --days nan", "--days: not a number from 0.001 to 3650: nan");
  refused("simulate --interval 0", "--interval: not a number from 0.1 to 1e+09: 0");
  refused("simulate --interval worst", "--interval: not a number from 0.1 to 1e+09: worst");
  refused("simulate --policy guard", "--policy: not known: guard (guard-async, guard-sync, manual-async, manual-sync)");
  refused("simulate --policy guard-sync,",
          "--policy: not known:  (guard-async, guard-sync, manual-async, manual-sync)");
  refused("simulate --policy guard-sync,guard-sync", "--policy: given twice: guard-sync");
  refused("simulate --copy 61",
          "--copy: copying takes 61 s, longer than the whole save of 60 s (at most what --save says)");
  refused("simulate --automatic 101", "--automatic: not a number from 0 to 100: 101");
  refused("simulate --spares 1000 --gpus 8", "--spares: 1000 nodes stand by for 8 GPUs (100 at most)");
  refused("simulate --dry-run", "--dry-run: not with simulate (only with -- COMMAND)");
  refused("simulate --nodes 3", "--nodes: not with simulate (only with -- COMMAND)");
  refused("status samples/guarded-job --gpus 3", "--gpus: not with status (only with simulate)");
  refused("status samples/guarded-job --restarts 3", "--restarts: not with status (only with -- COMMAND)");
  refused("--gpus 8 -- true", "--gpus: not with -- COMMAND (only with simulate)");
  refused("simulate --mtbf 0.001 --days 3650 --trials 100",
          "--trials: 8.8e+09 failures to go through, 2e+08 at most (fewer trials or days)");
}

TEST(CliGuard, AJobThatComesToNothingIsSaid) {
  const Outcome o = orrery("guard simulate --mtbf 0.001 --trials 1 --days 1");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_NE((o.out + o.err).find("one failure in 3.6 s, and a start takes 300 s"), std::string::npos) << o.out << o.err;
  const Outcome well = orrery("guard simulate --trials 1");
  EXPECT_EQ((well.out + well.err).find("and a start takes"), std::string::npos);
}

}  // namespace
}  // namespace orrery::test
