// orrery bench run through a real Slurm: jobs end well, badly and too late; what a killed runner left is cancelled.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli_run.h"
#include "processes/child.h"
#include "slurm_lab.h"

namespace orrery::test {
namespace {

using Json = nlohmann::json;

constexpr const char* kTiny =
    "[models.tiny]\nlayers = 1\nhidden = 16\nffn = 64\nheads = 2\nvocab = 32\n[slurm]\ngpus_per_node = 0\n";

class CliBenchSlurm : public SlurmTest {
 protected:
  // {gpus} tasks by srun, each says where it is.
  static std::string config(const std::string& bench, const std::string& frameworks, const std::string& commands) {
    return "[bench]\nwarmup_steps = 0\nsteps = 2\n" + bench +
           "\n[[matrix]]\ntask = \"pretrain\"\nmodel = \"tiny\"\nframework = [" + frameworks + "]\n" + kTiny + commands;
  }
};

TEST_F(CliBenchSlurm, RunsAreJobs) {
  const TempDir dir;
  const std::string path = dir / "m.toml";
  write_text(
      path,
      config("time_limit_s = 8\nsilence_limit_s = 30", "\"good\", \"bad\", \"late\"",
             "[commands.good]\nstep_ms = 'took ([0-9.]+)'\nargv = [\"sh\", \"-c\", \"echo job $SLURM_JOB_ID; echo "
             "took 4; echo took 6\"]\n"
             "[commands.bad]\nargv = [\"sh\", \"-c\", \"echo 'RuntimeError: CUDA out of memory. Tried to allocate 2.00 "
             "GiB'; exit 1\"]\n"
             "[commands.late]\nargv = [\"sleep\", \"1000\"]\n"));
  const Outcome o = orrery("bench run '" + path + "' --json --quiet");
  EXPECT_EQ(o.status, 0) << o.err;
  const Json d = Json::parse(o.out, nullptr, false);
  ASSERT_TRUE(d.is_object()) << o.out;
  std::map<std::string, Json> runs;
  for (const Json& r : d["runs"]) runs[r["framework"]] = r;
  EXPECT_EQ(runs["good"]["state"], "done") << runs["good"];
  EXPECT_EQ(runs["good"]["step_ms"]["mean"], 5);
  EXPECT_EQ(runs["bad"]["state"], "out-of-memory") << runs["bad"];
  EXPECT_EQ(runs["late"]["state"], "time-limit") << runs["late"];
  const auto queue = run_captured({"squeue", "-h", "-t", "PENDING,RUNNING"});
  ASSERT_TRUE(queue);
  EXPECT_EQ(queue->output, "");
}

TEST_F(CliBenchSlurm, AKilledRunnersJobIsCancelledAndRunAgain) {
  const TempDir dir;
  const std::string path = dir / "m.toml", marks = dir / "marks";
  // The first time it waits for ever.
  write_text(path, config("time_limit_s = 60", "\"waits\"",
                          "[commands.waits]\nstep_ms = 'took ([0-9.]+)'\nargv = [\"sh\", \"-c\", \"if [ -e " + marks +
                              " ]; then echo took 1; echo took 1; else touch " + marks + "; sleep 1000; fi\"]\n"));
  const auto child = start_child({.argv = {ORRERY_BINARY, "bench", "run", path, "--quiet"}});
  ASSERT_TRUE(child);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!fs::exists(marks) && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ASSERT_TRUE(fs::exists(marks));
  ::kill(child->pid, SIGKILL);
  (void)wait_child(*child, 30);
  const Outcome o = orrery("bench run '" + path + "' --json --quiet");
  const Json d = Json::parse(o.out, nullptr, false);
  ASSERT_TRUE(d.is_object()) << o.out << o.err;
  EXPECT_EQ(d["runs"][0]["state"], "done") << d["runs"][0];
  EXPECT_EQ(d["runs"][0]["attempts"], 1);
  const auto queue = run_captured({"squeue", "-h", "-t", "PENDING,RUNNING"});
  ASSERT_TRUE(queue);
  EXPECT_EQ(queue->output, "");
}

// Only the nodes know whether there is such a program: after the first job nothing more is tried, and nothing is a
// result.
TEST_F(CliBenchSlurm, AProgramThatThereIsNotStopsTheSweep) {
  const TempDir dir;
  const std::string path = dir / "m.toml";
  std::string text = config("time_limit_s = 60", "\"mine\"", "[commands.mine]\nargv = [\"/nonexistent/program\"]\n");
  text.replace(text.find("[models.tiny]"), 0, "seq_length = [8, 9, 10]\n");
  write_text(path, text);
  const Outcome o = orrery("bench run '" + path + "' --json --quiet");
  EXPECT_EQ(o.status, 1) << o.err;
  const Json d = Json::parse(o.out, nullptr, false);
  ASSERT_TRUE(d.is_object()) << o.out << o.err;
  ASSERT_EQ(d["runs"].size(), 3u);
  for (const Json& r : d["runs"]) EXPECT_EQ(r["state"], "planned") << r;
  EXPECT_FALSE(fs::exists(dir.path / "m.db.d/runs/000002"));
  ASSERT_FALSE(d["notes"].empty());
  EXPECT_EQ(d["notes"][0]["name"], "cannot-be-started");
  EXPECT_NE(d["notes"][0]["first"].get<std::string>().find("/nonexistent/program"), std::string::npos) << d["notes"];
}

TEST_F(CliBenchSlurm, OperatorsAreMeasuredInAJob) {
  const TempDir dir;
  const std::string path = dir / "m.toml";
  write_text(
      path,
      "[bench]\ntime_limit_s = 60\noperator_options = [\"--sizes\", \"tiny\", \"--budget\", \"0.5\", \"--only\", "
      "\"copy\", \"--dtypes\", \"fp32\", \"--threads\", \"1\"]\n[[matrix]]\ntask = \"operators\"\n"
      "[slurm]\ngpus_per_node = 0\n");
  const Outcome o = orrery("bench run '" + path + "' --json --quiet");
  const Json d = Json::parse(o.out, nullptr, false);
  ASSERT_TRUE(d.is_object()) << o.out << o.err;
  EXPECT_EQ(d["runs"][0]["state"], "done") << d["runs"][0];
}

// Ranks meet where the job says, not where the shell does that submits it; as many on each node. What is known of this
// machine is nothing of theirs.
TEST_F(CliBenchSlurm, RanksAreOfTheirJobAlone) {
  const TempDir dir;
  const std::string path = dir / "m.toml", python = dir / "python";
  write_text(
      python,
      "#!/bin/sh\n[ $SLURM_PROCID = 1 ] && echo '{\"orrery_bench\": \"environment\", \"host\": \"there\"}' && echo "
      "'{\"orrery_bench\": \"refused\", \"reason\": \"'at $MASTER_ADDR, $SLURM_NTASKS_PER_NODE a node'\"}'\n"
      "exit 0\n");
  fs::permissions(python, fs::perms::owner_all);
  std::string text = config("time_limit_s = 60\npython = \"" + python + "\"", "\"pytorch\"", "");
  text.replace(text.find("[models.tiny]"), 0, "gpus = 2\n");
  write_text(path, text);
  const Outcome o = shell("MASTER_ADDR=localhost \"$orrery\" bench run '" + path + "' --json --quiet");
  const Json d = Json::parse(o.out, nullptr, false);
  ASSERT_TRUE(d.is_object()) << o.out << o.err;
  EXPECT_EQ(d["runs"][0]["state"], "refused") << d["runs"][0];
  EXPECT_EQ(d["runs"][0]["reason"], "at , 2 a node");
  EXPECT_TRUE(d["runs"][0]["load"].is_null());
  const Json report = Json::parse(orrery("bench report '" + path + "' --json").out, nullptr, false);
  const Json environment = Json::parse(report["environments"][0]["json"].get<std::string>());
  EXPECT_FALSE(environment.contains("cpu")) << environment;
  EXPECT_EQ(environment["worker"]["host"], "there");
}

// Slurm still knows the jobs of the store that was there before: they are not taken for those of the new one.
TEST_F(CliBenchSlurm, AStoreBegunAgainAtTheSamePlaceIsMeasuredAgain) {
  const TempDir dir;
  const std::string path = dir / "m.toml", ms = dir / "ms";
  write_text(path, config("time_limit_s = 60", "\"mine\"",
                          "[commands.mine]\nstep_ms = 'took ([0-9.]+)'\nargv = [\"sh\", \"-c\", \"echo took $(cat " +
                              ms + "); echo took $(cat " + ms + ")\"]\n"));
  for (const char* const took : {"4", "7"}) {
    write_text(ms, took);
    const Outcome o = orrery("bench run '" + path + "' --json --quiet");
    const Json d = Json::parse(o.out, nullptr, false);
    ASSERT_TRUE(d.is_object()) << o.out << o.err;
    EXPECT_EQ(d["runs"][0]["state"], "done") << d["runs"][0];
    EXPECT_EQ(d["runs"][0]["step_ms"]["median"], std::atoi(took));
    for (const char* const end : {"m.db", "m.db-wal", "m.db-shm", "m.db.d"}) fs::remove_all(dir.path / end);
  }
}

}  // namespace
}  // namespace orrery::test
