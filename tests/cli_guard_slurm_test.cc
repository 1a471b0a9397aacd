// orrery guard --slurm with the example trainer on a real Slurm: whatever happens, its weights end as those of a run
// that nothing disturbed.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli_run.h"
#include "slurm_lab.h"

namespace orrery::test {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

bool wait_for(double seconds, const std::function<bool()>& condition) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

constexpr const char* kSmall = " --layers 1 --width 16 --heads 2 --sequence 16 --micro-batches 6 --seed 5 ";

const std::string& undisturbed(int steps) {
  static std::map<int, std::string> known;
  std::string& weights = known[steps];
  if (weights.empty()) {
    const TempDir dir;
    const Outcome o = shell("\"$(dirname \"$orrery\")/orrery_trainer\"" + std::string(kSmall) +
                            "--quiet --world 1 --steps " + std::to_string(steps) + " --weights-out " + (dir / "w"));
    EXPECT_EQ(o.status, 0) << o.err;
    weights = read_file(dir / "w");
  }
  return weights;
}

class CliGuardSlurm : public SlurmTest {
 protected:
  void SetUp() override {
    SlurmTest::SetUp();
    fs::create_directory(dir_ / "beats");
  }
  // One step takes 50 ms at least, so that there is time to strike.
  std::string command(int steps, const std::string& options) const {
    return " \"$orrery\" guard --slurm --state " + (dir_ / "state") + " --checkpoints " + (dir_ / "ckpt") +
           " --heartbeat " + (dir_ / "beats") + " " + options + " -- \"$(dirname \"$orrery\")/orrery_trainer\"" +
           kSmall + "--steps " + std::to_string(steps) +
           " --rank {rank} --world {world} --rendezvous {state}/ring-{attempt} --heartbeat {heartbeat} --timeout 40 "
           "--save-interval 20 --fault slow@0:0:50 --save " +
           (dir_ / "ckpt") + " --weights-out " + (dir_ / "w");
  }
  // In the background; its output is in files.
  void guard(int steps, const std::string& options, const std::string& before = {}) {
    const Outcome o = shell(before + command(steps, options) + " > '" + (dir_ / "report") + "' 2>> '" +
                            (dir_ / "decisions") + "' & echo $!");
    pid_ = static_cast<pid_t>(std::stol(o.out));
  }
  bool guarding() const { return fs::exists("/proc/" + std::to_string(pid_)) && state_of(pid_) != 'Z'; }
  static char state_of(pid_t pid) {
    const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
    const std::size_t at = stat.rfind(')');
    return at == std::string::npos || at + 2 >= stat.size() ? 'Z' : stat[at + 2];
  }
  void finish(double seconds = 240) {
    EXPECT_TRUE(wait_for(seconds, [&] { return !guarding(); })) << decisions();
    ::kill(pid_, SIGKILL);
  }
  std::string decisions() const { return read_file(dir_ / "decisions"); }
  std::string log(int attempt) const { return read_file(dir_ / ("state/attempt-" + std::to_string(attempt) + ".out")); }
  bool trains(int attempt, int step) const {
    return log(attempt).find("iteration " + std::string(8 - std::to_string(step).size(), ' ') + std::to_string(step) +
                             "/") != std::string::npos;
  }
  Json status() const {
    const Outcome o = orrery("guard status --json " + (dir_ / "state"));
    return Json::parse(o.out, nullptr, false);
  }
  // Jobs of this guard that Slurm has seen.
  int jobs() const {
    const Outcome o = shell("squeue -h -t all -o %k | grep -c '" + (dir_ / "state") + "' || true");
    return std::stoi(o.out);
  }
  TempDir dir_;
  pid_t pid_ = 0;
};

TEST_F(CliGuardSlurm, ALostNodeIsNoticedDrainedAndReplaced) {
  guard(300, "--nodes 4");
  ASSERT_TRUE(wait_for(120, [&] { return trains(1, 60); })) << decisions();
  const std::string nodes = shell("squeue -h -o %N").out;
  ASSERT_EQ(nodes, "node[0-3]\n");
  ASSERT_EQ(lab_->command("kill node3"), "");
  const auto killed = Clock::now();
  const bool again = wait_for(120, [&] { return log(2).find(" | lm loss") != std::string::npos; });
  const double seconds = std::chrono::duration<double>(Clock::now() - killed).count();
  ASSERT_TRUE(again) << decisions() << read_file(dir_ / "state/attempt-1.err");
  std::printf("[  NUMBER  ] %.1f s from the death of a node to training again on a spare\n", seconds);
  EXPECT_EQ(shell("sinfo -h -n node3 -p train -o '%T %E'").out.rfind("drained* orrery guard: Node Failure", 0), 0u)
      << shell("sinfo -N -l").out;
  EXPECT_NE(shell("squeue -h -o %N").out.find("4]"), std::string::npos) << "the spare";
  finish();
  EXPECT_EQ(read_file(dir_ / "w"), undisturbed(300)) << decisions();
  EXPECT_NE(decisions().find("node3 is left out: Node Failure"), std::string::npos) << decisions();
  EXPECT_NE(log(2).find("successfully loaded checkpoint"), std::string::npos) << log(2).substr(0, 500);
  EXPECT_EQ(status()["restarts"], 1);
  EXPECT_EQ(jobs(), 2);
}

TEST_F(CliGuardSlurm, WhyItWaitsIsSaidAndToldToEndItWaitsForNobody) {
  guard(20, "--nodes 5 --sbatch=--begin=now+1hour");
  ASSERT_TRUE(wait_for(60, [&] { return decisions().find("it waits in the queue: BeginTime") != std::string::npos; }))
      << decisions();
  ::kill(pid_, SIGTERM);
  EXPECT_TRUE(wait_for(60, [&] { return !guarding(); })) << decisions();
  EXPECT_EQ(shell("squeue -h").out, "");
}

// Taken for dead, it has come back: its rank still had the lock of the checkpoints, and ended when it heard.
TEST_F(CliGuardSlurm, AFrozenNodeHoldsTheJobUpAndEndsNothing) {
  write_text(dir_ / "c.toml", "[progress]\nlost_s = 2\n[slurm]\nstale_s = 1\nlost_after_s = 2\n");
  guard(200, "--nodes 3 --config " + (dir_ / "c.toml"));
  ASSERT_TRUE(wait_for(120, [&] { return trains(1, 45); })) << decisions();
  ASSERT_EQ(lab_->command("freeze node2"), "");
  ASSERT_TRUE(wait_for(120, [&] { return decisions().find("start: attempt 2") != std::string::npos; })) << decisions();
  ASSERT_TRUE(wait_for(120, [&] { return decisions().find("held by an attempt before") != std::string::npos; }))
      << decisions();
  ASSERT_EQ(lab_->command("thaw node2"), "");
  finish();
  EXPECT_EQ(read_file(dir_ / "w"), undisturbed(200)) << decisions();
}

TEST_F(CliGuardSlurm, WithoutASpareItGoesOnWithTheRest) {
  ASSERT_EQ(shell("scontrol update nodename=node4 state=drain reason=test").status, 0);
  guard(200, "--nodes 3-4");
  ASSERT_TRUE(wait_for(120, [&] { return trains(1, 1); })) << decisions();
  EXPECT_EQ(shell("squeue -h -o %D").out, "4\n") << "as many as there are";
  ASSERT_TRUE(wait_for(120, [&] { return trains(1, 45); })) << decisions();
  ASSERT_EQ(lab_->command("kill node0"), "");  // where the script and srun run
  finish();
  EXPECT_EQ(read_file(dir_ / "w"), undisturbed(200)) << decisions();
  EXPECT_NE(decisions().find("node0 is left out: Node Failure"), std::string::npos) << decisions();
}

// At whatever moment: while it trains, while it is decided what to do, between sbatch and the journal.
TEST_F(CliGuardSlurm, AGuardThatIsKilledFindsItsJobAgain) {
  // sbatch submits, and the guard dies before it hears of it.
  fs::create_directory(dir_ / "bin");
  write_text(dir_ / "bin/sbatch", "#!/bin/bash\nPATH=${PATH#*:}\nout=$(sbatch \"$@\")\nstatus=$?\nif [ ! -e " +
                                      (dir_ / "once") + " ]; then touch " + (dir_ / "once") +
                                      "; kill -9 $PPID; fi\necho \"$out\"\nexit $status\n");
  fs::permissions(dir_ / "bin/sbatch", fs::perms::owner_all);
  guard(200, "--nodes 2", "PATH=\"" + (dir_ / "bin") + ":$PATH\"");
  ASSERT_TRUE(wait_for(60, [&] { return !guarding(); }));
  EXPECT_EQ(jobs(), 1);
  guard(200, "--nodes 2");
  ASSERT_TRUE(wait_for(120, [&] { return trains(1, 30); })) << decisions();
  EXPECT_EQ(jobs(), 1) << "found by its token, not submitted again";
  ::kill(pid_, SIGKILL);
  const std::string mine = shell("squeue -h -o %N").out;
  ASSERT_EQ(lab_->command("kill " + std::string(mine.find("node[0-1]") == 0 ? "node1" : "node0")), "");
  std::this_thread::sleep_for(std::chrono::seconds(1));
  guard(200, "--nodes 2");  // notices that the attempt died while nobody looked
  std::this_thread::sleep_for(std::chrono::seconds(3));
  ::kill(pid_, SIGKILL);
  guard(200, "--nodes 2");
  finish();
  EXPECT_EQ(read_file(dir_ / "w"), undisturbed(200)) << decisions();
  EXPECT_EQ(jobs(), 2);
}

TEST_F(CliGuardSlurm, WhoCancelsTheJobMeansIt) {
  guard(400, "--nodes 2");
  ASSERT_TRUE(wait_for(120, [&] { return trains(1, 25); })) << decisions();
  ASSERT_EQ(shell("scancel $(squeue -h -o %A)").status, 0);
  finish();
  EXPECT_EQ(jobs(), 1) << "not started again behind their back\n" << decisions();
  EXPECT_NE(decisions().find("cancelled"), std::string::npos) << decisions();
  EXPECT_NE(log(1).find("exiting program after receiving SIGTERM"), std::string::npos) << "it saved first";
}

TEST_F(CliGuardSlurm, WhoRequeuesTheJobWantsItStartedAnew) {
  guard(200, "--nodes 2");
  ASSERT_TRUE(wait_for(120, [&] { return trains(1, 45); })) << decisions();
  ASSERT_EQ(shell("scontrol requeue $(squeue -h -o %A)").status, 0);
  finish();
  EXPECT_EQ(read_file(dir_ / "w"), undisturbed(200)) << decisions();
  EXPECT_NE(decisions().find("Requeue"), std::string::npos) << decisions();
  EXPECT_EQ(jobs(), 2) << "without Slurm's two minutes";
}

TEST_F(CliGuardSlurm, BeforeItsTimeIsUpItSavesAndGoesOnInAnotherJob) {
  write_text(dir_ / "guard.toml", "[stop]\ntime_limit_margin_s = 52\n");
  guard(300, "--nodes 2 --sbatch=--time=1 --config " + (dir_ / "guard.toml"));
  finish();
  EXPECT_EQ(read_file(dir_ / "w"), undisturbed(300)) << decisions();
  EXPECT_NE(decisions().find("time limit"), std::string::npos) << decisions();
  EXPECT_NE(log(1).find("exiting program after receiving SIGTERM"), std::string::npos) << decisions();
}

TEST_F(CliGuardSlurm, PreemptedItSavesAndComesBack) {
  guard(200, "--nodes 4");
  ASSERT_TRUE(wait_for(120, [&] { return trains(1, 25); })) << decisions();
  ASSERT_EQ(shell("sbatch -p urgent -N5 --exclusive -o /dev/null --wrap 'sleep 2'").status, 0);
  finish();
  EXPECT_EQ(read_file(dir_ / "w"), undisturbed(200)) << decisions();
  // Also where it saved and ended before anybody looked, and though its time is nearly up: it is grace.
  EXPECT_NE(decisions().find("reempt"), std::string::npos) << decisions();
  EXPECT_EQ(decisions().find("ime limit"), std::string::npos) << decisions();
  EXPECT_NE(log(1).find("exiting program after receiving SIGTERM"), std::string::npos) << decisions();
}

}  // namespace
}  // namespace orrery::test
