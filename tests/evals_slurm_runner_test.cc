// Jobs of an evaluation on Slurm, its commands played by scripts: what is refused in part, and what nobody wrote down.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "temp_dir.h"
#include "trials/job.h"
#include "trials/runner.h"

namespace orrery {
namespace {

class EvalsSlurmRunner : public ::testing::Test {
 protected:
  void SetUp() override {
    before_ = std::getenv("PATH");
    ::setenv("PATH", (dir_.path.string() + ":" + before_).c_str(), 1);
    for (const char* name : {"squeue", "sacct", "scontrol", "sbatch", "scancel", "srun"}) play(name, "exit 99");
    config_.cluster.nodes = 2;
  }
  void TearDown() override { ::setenv("PATH", before_.c_str(), 1); }
  void play(const std::string& name, const std::string& body) const {
    dir_.program(name, "echo \"$*\" >> " + (dir_ / (name + ".calls")) + "\n" + body);
  }
  std::string calls(const std::string& name) const { return dir_.read(name + ".calls"); }
  // A job; with an owner, job 77 of Slurm has claimed it.
  std::string job(const std::string& name, bool owned = false) const {
    std::filesystem::create_directories(dir_.path / name);
    EXPECT_TRUE(write_job(dir_ / name, {.argv = {"true"}}));
    if (owned) std::ofstream(dir_ / (name + "/owner")) << "1 1 n1 77 3\n";
    return dir_ / name;
  }
  EvalConfig config_;
  test::ScratchDir dir_;
  std::string before_;
};

TEST_F(EvalsSlurmRunner, AnArrayThatIsRefusedDoesNotTakeTheOthersHandles) {
  play("squeue", "true");
  play("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1");
  play("sbatch",
       "case \"$*\" in *--exclude=n1*) echo 'sbatch: error: Batch job submission failed: no' >&2; exit 1;; "
       "*) echo 41;; esac");
  const auto runner = slurm_runner(config_, "orrery");
  runner->name_jobs("token");
  const auto handles =
      runner->start({{job("trial-1"), {"", 0}, {}}, {job("trial-2"), {"", 1}, {"n1"}}, {job("trial-3"), {"", 2}, {}}});
  ASSERT_EQ(handles.size(), 3u);
  EXPECT_EQ(handles[0].value_or(""), "orrery-evals-token-trial-1");
  EXPECT_EQ(handles[2].value_or(""), "orrery-evals-token-trial-1") << "of the same array";
  ASSERT_FALSE(handles[1]);
  EXPECT_NE(handles[1].error().what.find("submission failed: no"), std::string::npos) << handles[1].error().line();
}

TEST_F(EvalsSlurmRunner, AJobWhoseArrayWasNotWrittenDownIsFoundByItsOwner) {
  play("squeue", "case \"$*\" in *'-j 77'*) echo '77|RUNNING|None|10|N/A|n1|x';; esac");
  play("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1");
  const auto runner = slurm_runner(config_, "orrery");
  EXPECT_FALSE(runner->gone(job("trial-1", true), ""));
  EXPECT_NE(calls("squeue").find("-j 77\n"), std::string::npos) << calls("squeue");
  EXPECT_EQ(calls("squeue").find("--name"), std::string::npos) << "nobody has that name";
}

TEST_F(EvalsSlurmRunner, AStepWhoseStarterWasNotWrittenDownGoesOn) {
  play("squeue", "echo '77.3|n1|orrery'");
  const auto runner = step_runner(config_, "orrery");
  EXPECT_FALSE(runner->gone(job("trial-1", true), ""));
  EXPECT_NE(calls("squeue").find("-s "), std::string::npos) << "it is asked whether the step runs";
  EXPECT_EQ(calls("scancel"), "");
}

TEST_F(EvalsSlurmRunner, AControllerThatIsAwayIsAskedOnceARound) {
  play("squeue",
       "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; sleep 1; exit 1");
  const auto runner = slurm_runner(config_, "orrery");
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i)
    EXPECT_FALSE(runner->gone(job("trial-" + std::to_string(i), true), "array-" + std::to_string(i)));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60)) << "each would be 120 s";
  const std::string asked = calls("squeue");
  EXPECT_LT(std::count(asked.begin(), asked.end(), '\n'), 20);
}

TEST_F(EvalsSlurmRunner, OneElementIsStoppedAndNotItsArray) {
  play("scancel", "true");
  const auto runner = slurm_runner(config_, "orrery");
  const std::string first = job("trial-1"), second = job("trial-2", true);
  std::ofstream(first + "/owner") << "1 1 n1 77 - 77_3\n";
  runner->ask_to_stop(first, "array");
  EXPECT_EQ(calls("scancel"), "77_3\n");
  runner->ask_to_stop(second, "array");
  EXPECT_EQ(calls("scancel"), "77_3\n77\n") << "of an owner that said no more";
}

// What nobody asks about any more, since its result is there.
TEST_F(EvalsSlurmRunner, NoZombieStaysOfJobsThatEnded) {
  play("srun", "exit 0");
  ::setenv("SLURM_JOB_ID", "77", 1);
  for (const bool local : {true, false}) {
    SCOPED_TRACE(local);
    const auto runner = local ? local_runner(config_, dir_ / "srun") : step_runner(config_, "orrery");
    const auto first = runner->start({{job("trial-1"), {"", 0}, {}}});
    ASSERT_TRUE(first.front()) << first.front().error().line();
    const pid_t pid = child_of(*first.front()).pid;
    siginfo_t ended{};
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOWAIT), 0);  // it is left as a zombie
    const auto second = runner->start({{job("trial-2"), {"", 0}, {}}});
    ASSERT_TRUE(second.front());
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOWAIT | WNOHANG), -1);
    EXPECT_TRUE(wait_child(child_of(*second.front()), 60));
  }
  ::unsetenv("SLURM_JOB_ID");
}

// Slurm's accounts say that a job runs until well after its end.
TEST_F(EvalsSlurmRunner, NobodyWaitsForAccounts) {
  play("squeue", "echo '77|RUNNING|None|10|N/A|n1|array'");
  play("sacct", "echo '77|RUNNING|0:0|10|Unknown|n1|array'");
  const auto runner = slurm_runner(config_, "orrery");
  for (int i = 0; i < 30; ++i) EXPECT_FALSE(runner->gone(job("trial-" + std::to_string(i), true), "array"));
  EXPECT_EQ(calls("sacct"), "");
}

}  // namespace
}  // namespace orrery
