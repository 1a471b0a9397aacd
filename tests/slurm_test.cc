// The functions of src/slurm against a real Slurm.
#include "slurm/slurm.h"

#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <functional>
#include <thread>

#include "processes/child.h"
#include "slurm_lab.h"
#include "temp_dir.h"

namespace orrery::test {
namespace {

using namespace orrery::slurm;
using Names = std::vector<std::string>;

bool wait_for(double seconds, const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

class Slurm : public SlurmTest {
 protected:
  JobId submitted(std::vector<std::string> argv, std::vector<std::string> options) {
    static int number = 0;
    const auto id = submit({.token = "test-" + std::to_string(::getpid()) + "-" + std::to_string(number++),
                            .options = std::move(options),
                            .argv = std::move(argv),
                            .script = dir_ / "job.sh",
                            .output = dir_ / "out"});
    EXPECT_TRUE(id.has_value()) << id.error().line();
    return id ? *id : JobId{};
  }
  static Job now(JobId id) {
    const auto j = slurm::job(id);
    EXPECT_TRUE(j.has_value()) << j.error().line();
    return j ? *j : Job{};
  }
  static bool reaches(JobId id, State state) {
    return wait_for(60, [&] { return now(id).state == state; });
  }
  static std::string shown(JobId id) {
    const auto said = run_captured({"scontrol", "show", "job", std::to_string(static_cast<std::int64_t>(id))});
    const auto nodes = run_captured({"sinfo", "-N"});
    return (said ? said->output : "") + (nodes ? nodes->output : "");
  }
  static bool starts_again(JobId id, std::vector<std::pair<std::string, std::string>> settings) {
    settings.emplace_back("StartTime", "now");
    // Not at once: a job that starts again on a node in the very second in which it was requeued there is refused as
    // killed, and has failed.
    auto next = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    return wait_for(90, [&] {
      const Job j = now(id);
      if (j.state == State::running && j.restarts > 0) return true;
      if (j.state == State::pending && std::chrono::steady_clock::now() >= next) {
        (void)update_job(id, settings);
        next = std::chrono::steady_clock::now() + std::chrono::seconds(4);
      }
      return false;
    });
  }
  static Node node(const std::string& name) {
    const auto found = nodes({name});
    EXPECT_TRUE(found.has_value()) << found.error().line();
    return found ? found->front() : Node{};
  }
  ScratchDir dir_;
};

TEST_F(Slurm, AJobFromSubmissionToItsEnd) {
  const JobId id = submitted({"printf", "[%s]", "it's $HOME", "a\n#SBATCH --nodes=99"}, {"--nodes=2"});
  ASSERT_TRUE(reaches(id, State::completed));
  const Job j = now(id);
  EXPECT_EQ(j.nodes.size(), 2u);
  EXPECT_EQ(j.restarts, 0);
  EXPECT_GT(j.start_s, 1'600'000'000);
  EXPECT_GE(j.end_s, j.start_s);
  EXPECT_TRUE(wait_for(10, [&] { return dir_.read("out") == "[it's $HOME][a\n#SBATCH --nodes=99]"; }))
      << dir_.read("out");
}

TEST_F(Slurm, HowItFailed) {
  const JobId failed = submitted({"sh", "-c", "exit 3"}, {"--nodes=1"});
  const JobId killed = submitted({"sh", "-c", "kill -KILL $$"}, {"--nodes=1"});
  ASSERT_TRUE(reaches(failed, State::failed));
  EXPECT_EQ(now(failed).exit_status, 3);
  EXPECT_EQ(now(failed).reason, "NonZeroExitCode");
  ASSERT_TRUE(reaches(killed, State::failed));
  EXPECT_EQ(now(killed).signal, SIGKILL);
  EXPECT_EQ(now(JobId{999'999}).state, State::unknown);
}

TEST_F(Slurm, StepsSignalsAndCancel) {
  const JobId id = submitted({"sh", "-c", "trap 'echo told' USR1; srun sleep 100 & while :; do wait; sleep 0.1; done"},
                             {"--nodes=2", "--ntasks=2"});
  ASSERT_TRUE(reaches(id, State::running));
  ASSERT_TRUE(wait_for(60, [&] { return steps(id)->size() == 2; })) << "the script and what it started by srun";
  const auto running = steps(id);
  ASSERT_TRUE(running.has_value());
  for (const Step& step : *running) EXPECT_EQ(step.nodes.size(), step.name == "sleep" ? 2u : 1u) << step.name;
  ASSERT_TRUE(signal_job(id, "USR1", true).has_value());
  EXPECT_TRUE(wait_for(30, [&] { return dir_.read("out") == "told\n"; })) << dir_.read("out");
  ASSERT_TRUE(cancel(id).has_value());
  ASSERT_TRUE(reaches(id, State::cancelled));
  EXPECT_TRUE(cancel(id).has_value()) << "once more does no harm";
  EXPECT_TRUE(steps(id)->empty());
}

TEST_F(Slurm, NoTokenRunsTwice) {
  Batch b{.token = "once-" + std::to_string(::getpid()),
          .options = {"--nodes=1"},
          .argv = {"true"},
          .script = dir_ / "job.sh"};
  const auto first = submit(b), second = submit(b);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(*first, *second);
  EXPECT_EQ(jobs_named(b.token)->size(), 1u);
  EXPECT_TRUE(jobs_named("never-" + b.token)->empty());
}

TEST_F(Slurm, DrainAndResumeAreSeen) {
  const JobId id = submitted({"sleep", "100"}, {"--nodes=1", "--nodelist=node1"});
  ASSERT_TRUE(reaches(id, State::running));
  ASSERT_TRUE(drain({"node1"}, "rank 3: Xid 79 | it's bad").has_value());
  EXPECT_TRUE(node("node1").drained);
  EXPECT_EQ(node("node1").reason, "rank 3: Xid 79 | it's bad");
  const auto sinfo = run_captured({"sinfo", "-h", "-n", "node1", "-p", "train", "-o", "%T %E"});
  EXPECT_EQ(sinfo->output, "draining rank 3: Xid 79 | it's bad\n");
  ASSERT_TRUE(cancel(id).has_value());
  ASSERT_TRUE(wait_for(60, [&] { return node("node1").state == "idle"; }));
  EXPECT_FALSE(node("node1").usable());
  ASSERT_TRUE(resume({"node1"}).has_value());
  EXPECT_TRUE(wait_for(60, [&] { return node("node1").usable(); }));
  EXPECT_EQ(nodes()->size(), static_cast<std::size_t>(SlurmLab::kNodes));
  EXPECT_EQ(nodes({"nodex"}).error().what, "no such node: nodex");
}

TEST_F(Slurm, ALostNodeAndAJobThatGoesOnWithoutIt) {
  const JobId id = submitted({"sleep", "100"}, {"--nodes=2", "--nodelist=node[2-3]", "--requeue"});
  ASSERT_TRUE(reaches(id, State::running));
  ASSERT_EQ(lab_->command("kill node3"), "");
  // Without waiting for Slurm to notice:
  ASSERT_TRUE(set_down({"node3"}, "no heartbeat").has_value());
  ASSERT_TRUE(starts_again(id, {{"ReqNodeList", ""}, {"ExcNodeList", "node3"}}));
  EXPECT_EQ(now(id).restarts, 1);
  for (const std::string& n : now(id).nodes) EXPECT_NE(n, "node3");
  EXPECT_EQ(node("node3").state, "down");
  ASSERT_EQ(lab_->command("start node3"), "");
  ASSERT_TRUE(resume({"node3"}, {.settle_s = 60}).has_value());
  EXPECT_TRUE(wait_for(60, [&] { return node("node3").usable(); }));
  EXPECT_TRUE(resume({"node3"}, {.settle_s = 0}).has_value()) << "it is there already";
}

TEST_F(Slurm, RequeuedOnRequest) {
  const JobId id = submitted({"sleep", "100"}, {"--nodes=1", "--requeue"});
  ASSERT_TRUE(reaches(id, State::running));
  ASSERT_TRUE(requeue(id).has_value());
  // Slurm makes it wait for two minutes, counted anew when the last of it has ended: told more than once.
  ASSERT_TRUE(starts_again(id, {})) << shown(id);
  EXPECT_EQ(now(id).restarts, 1);
}

TEST_F(Slurm, AControllerThatIsAwayIsWaitedFor) {
  const JobId id = submitted({"sleep", "100"}, {"--nodes=1"});
  ASSERT_TRUE(reaches(id, State::running));
  ASSERT_EQ(lab_->command("stop controller"), "");
  std::thread back([&] {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    EXPECT_EQ(lab_->command("start controller"), "");
  });
  const auto j = slurm::job(id, {.timeout_s = 30, .patience_s = 120});
  back.join();
  ASSERT_TRUE(j.has_value()) << j.error().line();
  EXPECT_EQ(j->state, State::running);
}

// All of a lab ends with the process that started it, also after kill -9.
TEST(SlurmLabItself, LeavesNothingBehind) {
  if (!SlurmLab::installed()) GTEST_SKIP() << "Slurm is not installed (slurm-wlm and munge)";
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    SlurmLab lab({"--nodes", "1"});
    ::setenv("SLURM_CONF", lab.conf().c_str(), 1);
    (void)run_captured({"sbatch", "--output=/dev/null", "--wrap=srun sleep 300"});
    const pid_t pid = lab.trouble().empty() ? lab.pid() : -1;
    for (int i = 0; i < 100 && run_captured({"squeue", "-h", "-s"})->output.find(".0") == std::string::npos; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    (void)!::write(ends[1], &pid, sizeof pid);
    ::pause();
    ::_exit(0);
  }
  pid_t lab = 0;
  ASSERT_EQ(::read(ends[0], &lab, sizeof lab), static_cast<ssize_t>(sizeof lab));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ends[0]);
  ::close(ends[1]);
  ASSERT_GT(lab, 0);
  EXPECT_TRUE(wait_for(60, [&] { return start_time_of(lab) == 0 || !is_alive({lab, start_time_of(lab)}); }));
  const auto left = run_captured({"pgrep", "-P", std::to_string(lab)});
  EXPECT_EQ(left->output, "");
}

}  // namespace
}  // namespace orrery::test
