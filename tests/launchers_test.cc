// How members of rings get to their nodes, with Slurm's commands played by scripts.
#include "supervisor/launchers.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <thread>

#include "temp_dir.h"

namespace orrery {
namespace {

class Launchers : public ::testing::Test {
 protected:
  void SetUp() override {
    before_ = std::getenv("PATH");
    ::setenv("PATH", (dir_.path.string() + ":" + before_).c_str(), 1);
    dir_.program(
        "scontrol",
        "for n in 1 2 3; do printf 'NodeName=n%s Arch=x86_64\\n   NodeAddr=127.0.0.1 NodeHostName=h Port=7\\n   "
        "State=IDLE ThreadsPerCore=1\\n   Partitions=train\\n\\n' $n; done");
  }
  void TearDown() override {
    ::setenv("PATH", before_.c_str(), 1);
    for (const char* name : {"SLURM_JOB_ID", "SLURM_JOB_NODELIST"}) ::unsetenv(name);
  }
  static std::string launch(const std::vector<std::string>& nodes) {
    GroupRunTerms terms;
    const Status ok = by_slurm(nodes, {"--account=a"}, terms);
    EXPECT_TRUE(ok) << ok.error().line();
    std::string all;
    for (const std::string& word : terms.launch) all += word + " ";
    return all;
  }
  test::ScratchDir dir_;
  std::string before_;
};

TEST_F(Launchers, OutsideOfAnAllocationMembersAreShortJobs) {
  const std::string words = launch({"n1", "n2"});
  EXPECT_NE(words.find("srun "), std::string::npos) << words;
  EXPECT_NE(words.find("--immediate=10 --time=2 --account=a"), std::string::npos) << words;
  EXPECT_EQ(words.find("--overlap"), std::string::npos) << words;
}

TEST_F(Launchers, StepsOnlyWhereTheAllocationHasTheNodes) {
  ::setenv("SLURM_JOB_ID", "5", 1);
  ::setenv("SLURM_JOB_NODELIST", "n[1-2]", 1);
  EXPECT_EQ(launch({"n1", "n2"}).rfind("srun --nodes=1", 0), 0u);
  EXPECT_NE(launch({"n1", "n2"}).find("--overlap"), std::string::npos);
  const std::string elsewhere = launch({"n2", "n3"});
  EXPECT_EQ(elsewhere.find("--overlap"), std::string::npos) << elsewhere;
  EXPECT_NE(elsewhere.find("-u SLURM_JOB_ID "), std::string::npos) << "else it would be a step of job 5: " << elsewhere;
}

TEST_F(Launchers, WhatAdmitsTheJobAdmitsTheTest) {
  SlurmOptions o;
  o.partition = "train";
  o.sbatch = {"--time=600", "--account=team", "-qhigh", "--reservation=r1", "--exclusive"};
  EXPECT_EQ(admission_words(o),
            (std::vector<std::string>{"--partition=train", "--account=team", "-qhigh", "--reservation=r1"}));
}

// n2 is refused to its launcher, n3's member is let go without a word.
TEST_F(Launchers, WhoNeverCameIsTold) {
  dir_.program("launch", "[ $1 = n2 ] && { echo refused >&2; exit 1; }\nread line\necho 'orrery-ring failed 0 broken'");
  GroupRunTerms terms;
  terms.timeout_s = 60;
  terms.launch = {dir_ / "launch", "{host}"};
  terms.worker = {"worker", "{index}"};
  terms.addresses = {"127.0.0.1", "127.0.0.1", "127.0.0.1"};
  const auto outcomes = run_remote_rings(terms, {"n1", "n2", "n3"}, {{1}, {2}});
  ASSERT_TRUE(outcomes) << outcomes.error().line();
  EXPECT_FALSE((*outcomes)[0].passed);
  EXPECT_TRUE((*outcomes)[0].absent);
  EXPECT_NE((*outcomes)[0].why.find("refused"), std::string::npos) << (*outcomes)[0].why;
  EXPECT_FALSE((*outcomes)[1].passed);
  EXPECT_FALSE((*outcomes)[1].absent) << (*outcomes)[1].why;
}

// Told to end in the middle of it: no node is bad for that.
TEST_F(Launchers, ATestThatIsCutShortIsNoVerdict) {
  const std::string mark = dir_ / "begun";
  dir_.program("slow", "touch " + mark + "\nexec sleep 1000");
  const auto before = ::signal(SIGTERM, [](int) {});
  const auto cut = [&](const std::function<Result<std::vector<GroupOutcome>>()>& run) {
    std::filesystem::remove(mark);
    std::thread teller([&, told = ::pthread_self()] {
      while (!std::filesystem::exists(mark)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      ::pthread_kill(told, SIGTERM);
    });
    const auto outcomes = run();
    teller.join();
    EXPECT_FALSE(outcomes) << "told to end";
  };
  GroupRunTerms terms;
  terms.timeout_s = 100;
  terms.argv = {dir_ / "slow"};
  cut([&] { return run_commands(terms, {"n1", "n2"}, {{0, 1}}); });
  terms.launch = {dir_ / "slow"};
  terms.worker = {"{index}"};
  terms.addresses = {"127.0.0.1", "127.0.0.1"};
  cut([&] { return run_remote_rings(terms, {"n1", "n2"}, {{0, 1}}); });
  ::signal(SIGTERM, before);
}

}  // namespace
}  // namespace orrery
