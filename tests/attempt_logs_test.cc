// Logs of an attempt that are cut short, replaced, out of reach: what is written to them is read all the same.
#include "supervisor/attempt_logs.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <thread>

#include "temp_dir.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

SharedRules only_saving() {
  RuleSet set;
  Rule saving;
  saving.id = kSavingRule;
  saving.role = Role::context;
  saving.kind = "saving";
  saving.pattern = "saving checkpoint";
  set.rules.push_back(saving);
  Notes notes;
  std::promise<std::shared_ptr<Matcher>> compiled;
  compiled.set_value(Matcher::compile(set, notes).value());
  return compiled.get_future().share();
}

struct Logs {
  test::ScratchDir dir;
  AttemptLogs logs{only_saving(), {dir / "attempt-1.out", dir / "attempt-1.err"}};
  std::vector<StepSample> steps;
  LogNews last;

  Logs() {
    write("out", "");
    write("err", "");
  }
  void write(const std::string& end, const std::string& text) const {
    std::ofstream(dir / ("attempt-1." + end), std::ios::binary | std::ios::app) << text;
  }
  bool wait_for(const std::function<bool()>& condition) {
    for (int i = 0; i < 4000; ++i) {  // 20 s at least
      last = logs.look();
      steps.insert(steps.end(), last.steps.begin(), last.steps.end());
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
  bool sees_step(std::int64_t step) {
    return wait_for([&] { return !steps.empty() && steps.back().step == step; });
  }
};

TEST(AttemptLogs, ALogThatIsCutShortIsReadFromItsBegin) {
  Logs job;
  job.write("out", "step 1 loss 2.5\nstep 2 loss 2.5\n");
  ASSERT_TRUE(job.sees_step(2));
  fs::resize_file(job.dir / "attempt-1.out", 0);
  job.write("out", "step 3 loss 2.5\n");
  EXPECT_TRUE(job.sees_step(3));
  EXPECT_EQ(job.steps.size(), 3u);
}

// logrotate without copytruncate: the job writes on into the file that it has, under its new name.
TEST(AttemptLogs, ALogThatIsReplacedIsReadOnceTheNewOneIsWritten) {
  Logs job;
  job.write("out", "step 1 loss 2.5\n");
  ASSERT_TRUE(job.sees_step(1));
  std::ofstream old(job.dir / "attempt-1.out", std::ios::app);
  fs::rename(job.dir / "attempt-1.out", job.dir / "attempt-1.out.1");
  job.write("out", "");
  old << "step 2 loss 2.5\n" << std::flush;
  EXPECT_TRUE(job.sees_step(2));
  job.write("out", "step 3 loss 2.5\n");
  EXPECT_TRUE(job.sees_step(3));
}

// /proc/self/mem: reading it fails at its begin, as a file does whose server has forgotten it.
TEST(AttemptLogs, ALogThatCannotBeReadIsToldAndTriedAgain) {
  Logs job;
  job.write("err", "step 1 loss 2.5\n");
  ASSERT_TRUE(job.sees_step(1));
  EXPECT_EQ(job.last.unreadable, "");
  fs::remove(job.dir / "attempt-1.out");
  fs::create_symlink("/proc/self/mem", job.dir / "attempt-1.out");
  AttemptLogs broken(only_saving(), {job.dir / "attempt-1.out"});
  LogNews news;
  const auto until = [&](const std::function<bool()>& condition) {
    for (int i = 0; i < 4000 && !condition(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      news = broken.look();
    }
    return condition();
  };
  EXPECT_TRUE(until([&] { return !news.unreadable.empty(); }));
  EXPECT_EQ(news.unreadable.find("attempt-1.out: "), 0u) << news.unreadable;
  fs::remove(job.dir / "attempt-1.out");
  job.write("out", "step 7 loss 2.5\n");
  EXPECT_TRUE(until([&] { return !news.steps.empty(); }));
  EXPECT_EQ(news.unreadable, "");
}

// Steps in one file, saves in the other.
TEST(AttemptLogs, ASaveIsOverWhenAStepFollowsInAnyLog) {
  Logs job;
  job.write("out", "step 1 loss 2.5\n");
  ASSERT_TRUE(job.sees_step(1));
  EXPECT_FALSE(job.last.saving);
  job.write("err", "saving checkpoint at step 1\n");
  EXPECT_TRUE(job.wait_for([&] { return job.last.saving; }));
  job.write("out", "step 2 loss 2.5\n");
  EXPECT_TRUE(job.sees_step(2));
  EXPECT_FALSE(job.last.saving);
  EXPECT_FALSE(job.logs.look().saving) << "for good";
}

// Its line is not over until the training is.
TEST(AttemptLogs, EachStateOfABarIsAStepAsItComes) {
  for (const bool leads : {true, false}) {  // tqdm; print(..., end="\r")
    Logs job;
    const auto state = [&](int i) {
      const std::string bar = " 33%|##    | " + std::to_string(i) + "/300 [00:10<01:00,  9.8it/s, loss=2.5]";
      job.write("err", leads ? "\r" + bar : bar + "\r");
    };
    for (int i = 0; i <= 3; ++i) state(i);
    const int open = leads ? 1 : 0;  // whether the last one is complete is not known yet
    ASSERT_TRUE(job.sees_step(3 - open));
    state(4);
    ASSERT_TRUE(job.sees_step(4 - open));
    state(5);
    job.write("err", "\nstep 6 loss 2.5\n");
    ASSERT_TRUE(job.sees_step(6));
    std::vector<std::int64_t> steps;
    for (const StepSample& s : job.steps)
      if (s.step > 0) steps.push_back(s.step);
    EXPECT_EQ(steps, (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}));
  }
}

TEST(AttemptLogs, ABarOfOtherThingsIsNoStep) {
  Logs job;
  job.write("err", "\r  0%|    | 0/300 [00:00<?, ?it/s]\r 12%|#   | 5/40 [00:01<00:02, 9.8it/s]\r");
  job.write("err", "\rValidation DataLoader 0:  20%|#   | 8/40 [00:01<00:02, val_loss=9.5]\r");
  job.write("err", "\r 15%|#   | 6/40 [00:01<00:02, 9.8it/s]\r");
  ASSERT_TRUE(job.sees_step(6));
  ASSERT_EQ(job.steps.size(), 2u);
  EXPECT_EQ(job.steps[0].step, 5);
}

TEST(AttemptLogs, WhatASaveInterruptsIsABar) {
  Logs job;
  job.write("err", "\r 12%|#   | 5/40 [00:01<00:02, 9.8it/s]\r\rsaving checkpoint at step 5\n");
  EXPECT_TRUE(job.wait_for([&] { return job.last.saving; }));
  job.write("err", "\r 15%|#   | 6/40 [00:01<00:02, 9.8it/s]\r");
  ASSERT_TRUE(job.sees_step(6));
  EXPECT_FALSE(job.last.saving);
}

TEST(AttemptLogs, AThroughputIsNoTime) {
  Logs job;
  job.write("out", "step: 5 loss: 2.1 tps: 7654\nstep: 6 loss: 2.1 step_time: 60\n");
  ASSERT_TRUE(job.sees_step(6));
  EXPECT_LT(job.steps[0].seconds, 0);
  EXPECT_DOUBLE_EQ(job.steps[1].seconds, 60);
}

}  // namespace
}  // namespace orrery
