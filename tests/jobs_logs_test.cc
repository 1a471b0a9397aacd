// The course of runs and trials from their logs.
#include <gtest/gtest.h>

#include <cmath>

#include "cluster/progress.h"
#include "importers/jobs_log.h"

namespace orrery {
namespace {

ProgressLog log(const std::string& text) {
  const SourcePtr source = open_memory(text);
  auto l = import_progress_log(*source, "made.log");
  EXPECT_TRUE(l) << (l ? "" : l.error().line());
  return l ? std::move(*l) : ProgressLog{};
}

std::string line(int second, int step) {
  char text[200];
  std::snprintf(text, sizeof text,
                "2024-05-14 03:%02d:%02d,011 INFO train.py:281 -- tflops=188.1 step=%d loss=2.5 lr=3e-05\n",
                second / 60, second % 60, step);
  return text;
}

TEST(JobLogs, StepsOfSeveralFrameworks) {
  const ProgressLog megatron =
      log(" [2024-05-14 03:12:11] iteration       12/  500000 | consumed samples:        12288 | elapsed time per "
          "iteration "
          "(ms): 5321.4 | lm loss: 3.9E+00 | number of skipped iterations:   0 |\n"
          "saving checkpoint at iteration      12 to somewhere\n"
          " [2024-05-14 03:13:11] iteration       13/  500000 | elapsed time per iteration (ms): 5321.4 | lm loss: nan "
          "|\n");
  ASSERT_EQ(megatron.points.size(), 2u);
  EXPECT_EQ(megatron.points[1].step, 13);
  EXPECT_EQ(megatron.points[1].at_ms - megatron.points[0].at_ms, 60'000);
  EXPECT_DOUBLE_EQ(megatron.points[0].loss, 3.9);
  EXPECT_TRUE(std::isnan(megatron.points[1].loss));
  EXPECT_EQ(log(line(0, 5) + line(0, 5) + line(10, 6)).points.size(), 2u) << "two ranks print a step";
  EXPECT_EQ(log("[2025-01-07 10:50:11,020] [INFO] [Rank 0] step=60, skipped=0, lr=[2e-05], mom=[(0.9, 0.99)]\n")
                .points[0]
                .step,
            60);

  const ProgressLog untimed =
      log("iteration 1/ 9 | elapsed time per iteration (s): 10.5 | lm loss: 2 |\n"
          "iteration 2/ 9 | elapsed time per iteration (s): 9.5 | lm loss: 2 |\n");
  EXPECT_FALSE(untimed.timed);
  EXPECT_EQ(untimed.points[1].at_ms, 20'000);
  const SourcePtr none = open_memory("hello\nstep by step\n");
  EXPECT_FALSE(import_progress_log(*none, "made.log"));
}

TEST(JobLogs, ARollbackCostsWhatIsDoneAgain) {
  std::string text;
  for (int s = 0; s <= 10; ++s) text += line(s * 10, 100 + s);        // 100 to 110, ten seconds each
  for (int s = 0; s <= 10; ++s) text += line(400 + s * 10, 106 + s);  // again from 106, after five minutes
  const RunProgress p = run_progress({log(text)});
  EXPECT_DOUBLE_EQ(p.step_s, 10);
  ASSERT_EQ(p.rollbacks.size(), 1u);
  EXPECT_EQ(p.rollbacks[0].from_step, 110);
  EXPECT_EQ(p.rollbacks[0].to_step, 106);
  EXPECT_EQ(p.rollbacks[0].lost_steps, 5);
  EXPECT_DOUBLE_EQ(p.rollbacks[0].lost_s, 50);
  EXPECT_DOUBLE_EQ(p.rollbacks[0].down_s, 290);
  EXPECT_DOUBLE_EQ(p.wall_s, 500);
  EXPECT_DOUBLE_EQ(p.ettr_pct(), 100 * (500 - 50 - 290) / 500.0);
  EXPECT_EQ(p.highest_step, 116);
  // a rollback that goes behind an earlier one takes back what was kept there
  for (int s = 0; s <= 4; ++s) text += line(600 + s * 10, 103 + s);
  const RunProgress twice = run_progress({log(text)});
  ASSERT_EQ(twice.rollbacks.size(), 2u);
  EXPECT_DOUBLE_EQ(twice.rollbacks[1].lost_s, 500 - 20) << "since step 102, at 20 s";
}

TEST(JobLogs, ALongPauseIsAStandstill) {
  const RunProgress p = run_progress({log(line(0, 1) + line(10, 2) + line(20, 3) + line(620, 4) + line(630, 5))});
  EXPECT_TRUE(p.rollbacks.empty());
  EXPECT_DOUBLE_EQ(p.down_s, 590);
  ASSERT_EQ(p.standstills.size(), 1u);
  EXPECT_DOUBLE_EQ(p.standstills[0].at_s, 620);
  EXPECT_EQ(p.standstills[0].after_step, 3);
  EXPECT_DOUBLE_EQ(p.standstills[0].down_s, 590);
  // attempts of one run in files of their own
  const RunProgress q = run_progress({log(line(0, 1) + line(10, 2) + line(20, 3)), log(line(60, 2) + line(70, 3))});
  EXPECT_TRUE(q.rollbacks.empty()) << "one step back is a step printed twice";
}

TEST(JobLogs, StagesOfATrial) {
  const std::string text =
      "07/25 03:00:00 - OpenCompass - INFO - Task [m/humaneval]\n"
      "07/25 03:01:05 - OpenCompass - INFO - Start inferencing [m/humaneval]\n"
      "no time on this line\n"
      "07/25 03:02:59 - OpenCompass - INFO - Start evaluating\n"
      "07/25 03:03:41 - OpenCompass - INFO - done\n";
  const SourcePtr source = open_memory(text);
  const auto t = import_trial_log(*source, "made.log", {});
  ASSERT_TRUE(t);
  EXPECT_EQ(t->load_ms, 65'000);
  EXPECT_EQ(t->inference_ms, 114'000);
  EXPECT_EQ(t->metric_ms, 42'000);
  const SourcePtr again = open_memory(text);
  const auto own = import_trial_log(*again, "made.log", {.inference = "Task", .metric = "done"});
  EXPECT_EQ(own->load_ms, 0);
  EXPECT_EQ(own->inference_ms, 221'000);
  const SourcePtr third = open_memory(text);
  EXPECT_FALSE(import_trial_log(*third, "made.log", {.inference = "(", .metric = "x"}));
  const SourcePtr none = open_memory("no times\n");
  EXPECT_FALSE(import_trial_log(*none, "made.log", {}));
}

}  // namespace
}  // namespace orrery
