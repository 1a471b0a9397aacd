// Slurm's commands played by scripts: what cannot be had from a real one at will. Lost answers, silence, accounts.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>

#include "processes/child.h"
#include "slurm/command.h"
#include "slurm/slurm.h"
#include "supervisor/slurm_runner.h"
#include "temp_dir.h"

namespace orrery::slurm {
namespace {

class SlurmCommands : public ::testing::Test {
 protected:
  void SetUp() override {
    before_ = std::getenv("PATH");
    ::setenv("PATH", (dir_.path.string() + ":" + before_).c_str(), 1);
    // what nobody plays is not there
    for (const char* name : {"squeue", "sacct", "scontrol", "sbatch", "scancel"}) dir_.program(name, "exit 99");
  }
  void TearDown() override { ::setenv("PATH", before_.c_str(), 1); }
  // Plays `first` at its first call, `then` afterwards; each call leaves its arguments in NAME.calls.
  void play(const std::string& name, const std::string& first, const std::string& then) const {
    const std::string calls = dir_ / (name + ".calls");
    dir_.program(name, "echo \"$*\" >> " + calls + "\nif [ $(wc -l < " + calls + ") = 1 ]; then\n" + first +
                           "\nelse\n" + then + "\nfi");
  }
  void play(const std::string& name, const std::string& body) const { play(name, body, body); }
  std::string calls(const std::string& name) const { return dir_.read(name + ".calls"); }
  Batch batch() const {
    return {.token = "tok-1", .options = {"--nodes=2"}, .argv = {"train"}, .script = dir_ / "job.sh"};
  }
  const std::string silence_ =
      "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1";
  const std::string lost_ =
      "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1";
  const std::string none_ = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1";
  const std::string no_accounts_ = "echo 'Slurm accounting storage is disabled' >&2; exit 1";
  const Terms quick_{.timeout_s = 30, .patience_s = 20, .settle_s = 20};
  test::ScratchDir dir_;
  std::string before_;
};

TEST_F(SlurmCommands, SilenceIsNotAJobThatIsGone) {
  play("squeue", silence_, "echo '5|RUNNING|None|10|N/A|n[1-2]|tok'");
  play("scontrol", silence_,
       "printf 'JobId=5 JobName=tok\\n   JobState=RUNNING Reason=None\\n   Requeue=1 Restarts=1 "
       "ExitCode=0:0\\n'");
  const auto j = job(JobId{5}, quick_);
  ASSERT_TRUE(j.has_value()) << j.error().line();
  EXPECT_EQ(j->state, State::running);
  EXPECT_EQ(j->restarts, 1);
  EXPECT_EQ(calls("squeue"), "-h -t all -o %A|%T|%r|%S|%e|%N|%j -j 5\n-h -t all -o %A|%T|%r|%S|%e|%N|%j -j 5\n");

  play("squeue", silence_);
  const auto silent = job(JobId{5}, {.timeout_s = 5, .patience_s = 0.5});
  ASSERT_FALSE(silent.has_value());
  EXPECT_EQ(
      silent.error().line(),
      "squeue -h -t all: slurm_load_jobs error: Unable to contact slurm controller (connect failure) (is slurmctld "
      "running? scontrol ping tells)");
}

// In the queue and while it is suspended nothing of it can move, and it cannot save either.
TEST_F(SlurmCommands, AnAttemptInTheQueueOrSuspendedWaits) {
  const SlurmFiles files(dir_.path.string(), 1);
  std::filesystem::create_directory(files.directory);
  SlurmOptions options;
  options.ask_s = 0;
  SlurmRunner runner(dir_.path.string(), "orrery", options);
  const auto says = [&](const std::string& state) {
    play("squeue", "echo '5|" + state + "|None|10|N/A|n1|tok'");
    play("scontrol", "printf 'JobId=5 JobName=tok\\n   JobState=" + state +
                         " Reason=None\\n   Requeue=1 Restarts=0 ExitCode=0:0\\n   StartTime=10 EndTime=20\\n"
                         "   PreemptEligibleTime=10 PreemptTime=15\\n'");
    return runner.poll("5:1");
  };
  auto s = says("PENDING");
  ASSERT_TRUE(s.has_value()) << s.error().line();
  EXPECT_EQ(s->phase, AttemptPhase::pending);
  EXPECT_TRUE(s->waits);
  ASSERT_TRUE(*claim_attempt(files, "5"));
  RankReport report;
  report.node = "n1";
  ASSERT_TRUE(write_line(files.rank(0), to_line(report), false).has_value());
  s = says("SUSPENDED");
  ASSERT_TRUE(s.has_value()) << s.error().line();
  EXPECT_EQ(s->phase, AttemptPhase::running);
  EXPECT_TRUE(s->waits);
  EXPECT_EQ(s->reason, EndReason::none);
  EXPECT_FALSE(s->time_left.has_value());
  s = says("RUNNING");
  ASSERT_TRUE(s.has_value()) << s.error().line();
  EXPECT_FALSE(s->waits);
  EXPECT_EQ(s->reason, EndReason::preempted);
  EXPECT_TRUE(s->time_left.has_value());
}

TEST_F(SlurmCommands, ACommandThatHangsIsEndedAndTriedAgain) {
  play("squeue", "sleep 100", "echo '5|PENDING|Resources|N/A|N/A||tok'");
  play("scontrol", "exit 1");
  const auto all = jobs({JobId{5}}, {.timeout_s = 0.3, .patience_s = 60});
  ASSERT_TRUE(all.has_value()) << all.error().line();
  EXPECT_EQ(all->front().reason, "Resources");
}

TEST_F(SlurmCommands, AccountsTellWhatTheControllerHasForgotten) {
  play("squeue", none_);
  play("sacct", "echo '5|RUNNING|0:0|10|Unknown|n[1-2]|tok'",
       "printf '5|NODE_FAIL|0:0|10|15|n[1-2]|tok\\n5|FAILED|3:0|20|25|n[1,3]|tok\\n'");
  const auto j = job(JobId{5}, quick_);
  ASSERT_TRUE(j.has_value()) << j.error().line();
  EXPECT_EQ(j->state, State::failed) << "accounts lag: asked again while they say that it runs";
  EXPECT_EQ(j->exit_status, 3);
  EXPECT_EQ(j->restarts, 1);
  EXPECT_EQ(j->end_s, 25);
}

TEST_F(SlurmCommands, WithoutAccountsItIsUnknown) {
  play("squeue", none_);
  play("sacct", no_accounts_);
  play("scontrol", none_);
  const auto j = job(JobId{5}, quick_);
  ASSERT_TRUE(j.has_value()) << j.error().line();
  EXPECT_EQ(j->state, State::unknown);
  EXPECT_EQ(j->id, JobId{5});
}

TEST_F(SlurmCommands, ManyJobsAreOneQuestion) {
  play("squeue", "printf '2|RUNNING|None|10|N/A|n1|a\\n4|COMPLETED|None|10|20|n2|b\\n'");
  play("sacct", no_accounts_);
  const auto all = jobs({JobId{4}, JobId{3}, JobId{2}}, quick_);
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ((*all)[0].state, State::completed);
  EXPECT_EQ((*all)[1].state, State::unknown);
  EXPECT_EQ((*all)[1].id, JobId{3});
  EXPECT_EQ((*all)[2].state, State::running);
  EXPECT_NE(calls("squeue").find("-j 4,3,2\n"), std::string::npos);
  EXPECT_NE(calls("sacct").find("-j 3\n"), std::string::npos);
}

TEST_F(SlurmCommands, AnAnswerThatWasLostIsNotSubmittedAgain) {
  play("squeue", "true", "echo '41|PENDING|None|N/A|N/A||tok-1'");
  play("sacct", no_accounts_);
  play("sbatch", lost_);
  const auto id = submit(batch(), quick_);
  ASSERT_TRUE(id.has_value()) << id.error().line();
  EXPECT_EQ(*id, JobId{41});
  EXPECT_EQ(calls("sbatch"), "--parsable --job-name=tok-1 --output=/dev/null --nodes=2 " + (dir_ / "job.sh") + "\n");
}

TEST_F(SlurmCommands, WhatDidNotArriveIsSubmittedAgain) {
  play("squeue", "true");
  play("sacct", no_accounts_);
  play("sbatch", silence_, "echo '42;cluster'");
  const auto id = submit(batch(), quick_);
  ASSERT_TRUE(id.has_value()) << id.error().line();
  EXPECT_EQ(*id, JobId{42});
}

TEST_F(SlurmCommands, FoundByItsTokenItIsNotSubmitted) {
  play("squeue", "true");
  play("sacct", "echo '40|COMPLETED|0:0|10|20|n1|tok-1'");
  const auto id = submit(batch(), quick_);
  ASSERT_TRUE(id.has_value()) << id.error().line();
  EXPECT_EQ(*id, JobId{40}) << "it is over already, and known to accounts alone";
}

TEST_F(SlurmCommands, AJobThatRunsIsFoundByItsNameWithoutAskingAccounts) {
  const std::string row = "echo '40|RUNNING|None|10|N/A|n1|tok-1'";
  play("squeue", row, "true");
  play("sacct", "echo '40|RUNNING|0:0|10|Unknown|n1|tok-1'");
  const Terms patient{.timeout_s = 30, .patience_s = 20, .settle_s = 1000};
  auto jobs = jobs_named("tok-1", patient);
  ASSERT_TRUE(jobs.has_value()) << jobs.error().line();
  EXPECT_EQ(jobs->size(), 1u);
  EXPECT_EQ(calls("sacct"), "");
  jobs = jobs_named("tok-1", patient);  // the controller has forgotten it, accounts lag
  ASSERT_TRUE(jobs.has_value()) << jobs.error().line();
  ASSERT_EQ(jobs->size(), 1u);
  EXPECT_EQ(jobs->front().state, State::running);
  const std::string asked = calls("sacct");
  EXPECT_EQ(std::count(asked.begin(), asked.end(), '\n'), 1) << "once: nobody waits for accounts to settle";
}

TEST_F(SlurmCommands, ARefusalIsSaidInOneLine) {
  play("squeue", "true");
  play("sacct", no_accounts_);
  play("sbatch",
       "printf 'sbatch: error: Batch job submission failed: Invalid partition name specified\\nmore\\n' >&2; "
       "exit 1");
  const auto id = submit(batch(), quick_);
  ASSERT_FALSE(id.has_value());
  EXPECT_EQ(
      id.error().line(),
      "sbatch --parsable --job-name=tok-1 --output=/dev/null: Batch job submission failed: Invalid partition name "
      "specified");
  play("sbatch", "echo Submitted");
  EXPECT_EQ(submit(batch(), quick_).error().what, "no id of a job in its answer: Submitted\n");
}

TEST_F(SlurmCommands, WordsThatWouldBeReadDifferentlyAreRefused) {
  Batch b = batch();
  b.token = "tok 1";
  EXPECT_EQ(submit(b, quick_).error().what, "not a token: tok 1");
  b = batch();
  b.options = {"other.sh"};
  EXPECT_EQ(submit(b, quick_).error().what, "not an option of sbatch in one word: other.sh");
  b = batch();
  b.argv = {};
  EXPECT_EQ(submit(b, quick_).error().what, "no program to run");
  EXPECT_EQ(drain({"a,b"}, "x", quick_).error().what, "not a name of a node: a,b");
  EXPECT_EQ(drain({"state=down"}, "x", quick_).error().what, "not a name of a node: state=down");
}

TEST_F(SlurmCommands, TheScriptRunsItsArgumentsAsTheyAreAndIsPrivate) {
  play("squeue", "true");
  play("sacct", no_accounts_);
  play("sbatch", "for last in \"$@\"; do :; done; \"$last\" > " + (dir_ / "out") + "; echo 1");
  Batch b = batch();
  b.argv = {"printf", "[%s]", "$(id) `id`", "it's", "a\r\n#SBATCH --nodes=99\n", "\"*\\", "", "\xff\x01"};
  ASSERT_TRUE(submit(b, quick_).has_value());
  EXPECT_EQ(dir_.read("out"), "[$(id) `id`][it's][a\r\n#SBATCH --nodes=99\n][\"*\\][][\xff\x01]");
  struct stat s {};
  ASSERT_EQ(::stat(b.script.c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777u, 0700u);
  EXPECT_EQ(dir_.read("job.sh").find("\r\n"), std::string::npos) << "sbatch refuses that";
}

TEST_F(SlurmCommands, AUsersFiltersDoNotHideJobs) {
  ::setenv("SQUEUE_STATES", "PENDING", 1);
  ::setenv("SACCT_FORMAT", "User", 1);
  play("squeue", "echo \"5|RUNNING|None|10|N/A|n1|filter${SQUEUE_STATES-none}$SLURM_TIME_FORMAT\"");
  const auto all = jobs({JobId{5}}, quick_);
  ::unsetenv("SQUEUE_STATES");
  ::unsetenv("SACCT_FORMAT");
  ASSERT_TRUE(all.has_value()) << all.error().line();
  EXPECT_EQ(all->front().name, "filternone%s");
}

TEST_F(SlurmCommands, ANodeBetweenTwoStatesIsTriedAgain) {
  const std::string between = "echo 'slurm_update error: Invalid node state specified' >&2; exit 1";
  play("scontrol", between, "printf 'NodeName=n1\\n   State=IDLE\\nNodeName=n2\\n   State=DOWN\\n'");
  EXPECT_TRUE(resume({"n1", "n2"}, quick_).has_value());
  EXPECT_EQ(calls("scontrol"),
            "update nodename=n[1-2] state=resume\nshow node n[1-2]\nupdate nodename=n[1-2] state=resume\n");
  std::filesystem::remove(dir_ / "scontrol.calls");
  play("scontrol", between, "printf 'NodeName=n1\\n   State=IDLE\\nNodeName=n2\\n   State=MIXED\\n'");
  EXPECT_TRUE(resume({"n1", "n2"}, quick_).has_value());
  EXPECT_EQ(calls("scontrol"), "update nodename=n[1-2] state=resume\nshow node n[1-2]\n") << "they came back";
  play("scontrol", "echo 'slurm_update error: Invalid user id' >&2; exit 1");
  const Status refusal = drain({"n1"}, "line one\nline two", quick_);
  ASSERT_FALSE(refusal.has_value());
  EXPECT_EQ(refusal.error().line(), "scontrol update nodename=n1 state=drain: slurm_update error: Invalid user id");
  EXPECT_NE(calls("scontrol").find("reason=line one line two"), std::string::npos);
}

TEST_F(SlurmCommands, NotInstalledIsSaid) {
  ::setenv("PATH", (dir_ / "nothing").c_str(), 1);
  const auto j = job(JobId{1}, quick_);
  ASSERT_FALSE(j.has_value());
  EXPECT_EQ(j.error().line(),
            "squeue: cannot be started: No such file or directory (Slurm's commands must be on PATH where --slurm is "
            "given)");
}

}  // namespace
}  // namespace orrery::slurm
