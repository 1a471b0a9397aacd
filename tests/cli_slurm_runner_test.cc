// Attempts as jobs of a real Slurm, and what their ranks and the supervisor tell each other.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <ctime>
#include <functional>
#include <thread>

#include "cli_run.h"
#include "slurm_lab.h"
#include "supervisor/keeper.h"
#include "supervisor/local_runner.h"
#include "supervisor/slurm_runner.h"

namespace orrery::test {
namespace {

using Clock = std::chrono::steady_clock;

bool wait_for(double seconds, const std::function<bool()>& condition) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

AttemptSpec spec_in(const TempDir& dir, std::vector<std::string> argv) {
  AttemptSpec s;
  s.token = "t" + std::to_string(::getpid()) + "-" + dir.path.filename().string();
  s.argv = std::move(argv);
  s.environment = {{"ORRERY_GUARD_TOKEN", s.token}, {"GREETING", "rank {rank} of {world} on {node}"}};
  s.directory = dir.path.string();
  s.out = dir / "out";
  s.err = dir / "err";
  return s;
}

TEST(SlurmAttempt, LinesComeBackAndOthersAreNone) {
  const Orders o{.revoked = true, .signals = 3, .signal = 15, .stacks = 2};
  const auto back = read_orders(to_line(o));
  ASSERT_TRUE(back.has_value());
  EXPECT_TRUE(back->revoked);
  EXPECT_EQ(back->signals, 3);
  EXPECT_EQ(back->signal, 15);
  EXPECT_EQ(back->stacks, 2);
  EXPECT_EQ(to_line(o).size(), to_line(Orders{}).size()) << "written in place: a shorter line would leave the end";
  for (const char* line : {"", "run", "run 1 2", "stop 0 0 0", "run -1 0 0", "run x 0 0"})
    EXPECT_FALSE(read_orders(line));
  RankReport r;
  r.rank = 7;
  r.state = RankReport::State::failed;
  r.node = "node3";
  r.beats = 12;
  r.why = "no such file\nor directory";
  const auto read = read_report(to_line(r));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->rank, 7);
  EXPECT_EQ(read->state, RankReport::State::failed);
  EXPECT_EQ(read->why, "no such file or directory");
  r.why.clear();
  EXPECT_EQ(read_report(to_line(r))->node, "node3");
  for (const char* line : {"", "7", "7 r 0 0 0 0 0", "7 q 0 0 0 0 0 node3 ", "x r 0 0 0 0 0 node3 "})
    EXPECT_FALSE(read_report(line)) << line;
}

TEST(SlurmAttempt, StartsOnceAndNotAfterItWasRevoked) {
  const TempDir dir;
  const SlurmFiles files(dir.path.string(), 4);
  fs::create_directory(files.directory);
  ASSERT_TRUE(write_spec(AttemptFiles(dir.path.string(), 4), spec_in(dir, {"true"})).has_value());
  ASSERT_TRUE(write_line(files.orders, to_line(Orders{}), true).has_value());
  EXPECT_TRUE(*claim_attempt(files, "12"));
  EXPECT_FALSE(*claim_attempt(files, "12")) << "the same job, put into the queue again by Slurm";
  EXPECT_FALSE(*claim_attempt(files, "13"));
  EXPECT_EQ(read_line(files.claim), "12");
  const std::string batch = "SLURM_JOB_ID=12 \"$orrery\" guard batch '" + dir.path.string() + "' 4";
  EXPECT_EQ(shell(batch).status, 71);
  fs::remove(files.claim);
  ASSERT_TRUE(write_line(files.orders, to_line(Orders{.revoked = true}), true).has_value());
  EXPECT_EQ(shell(batch).status, 72);
  const Outcome rank = shell("SLURM_PROCID=3 SLURMD_NODENAME=n1 \"$orrery\" guard rank '" + dir.path.string() + "' 4");
  EXPECT_EQ(rank.status, 72);
  const auto reports = read_reports(files);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].state, RankReport::State::revoked);
  EXPECT_EQ(reports[0].rank, 3);
}

class CliSlurmRunner : public SlurmTest {
 protected:
  SlurmRunner runner(const std::string& nodes) const {
    SlurmOptions o;
    o.nodes = nodes;
    o.ask_s = 0.2;
    return SlurmRunner(dir_.path.string(), ORRERY_BINARY, o);
  }
  static bool runs(SlurmRunner& r, const std::string& handle) {
    return wait_for(60, [&] {
      const auto s = r.poll(handle);
      return s && s->phase == AttemptPhase::running;
    });
  }
  bool ends(SlurmRunner& r, const std::string& handle, AttemptState& state) const {
    return wait_for(60, [&] {
      const auto s = r.poll(handle);
      if (s) state = *s;
      return s && s->phase == AttemptPhase::ended;
    });
  }
  TempDir dir_;
};

TEST_F(CliSlurmRunner, RanksKnowWhoTheyAreAndHearSignals) {
  SlurmRunner r = runner("2");
  const auto spec = spec_in(dir_, {"bash", "-c",
                                   "trap 'echo told {rank}; exit 0' USR1; echo \"$GREETING $RANK $WORLD_SIZE\"; "
                                   "for ((;;)); do sleep 0.1; done"});
  const auto handle = r.start(spec);
  ASSERT_TRUE(handle.has_value()) << handle.error().line();
  ASSERT_TRUE(runs(r, *handle));
  ASSERT_TRUE(wait_for(30, [&] {
    const std::string out = read_file(spec.out);
    return out.find("rank 0 of 2 on node0 0 2") != std::string::npos &&
           out.find("rank 1 of 2 on node1 1 2") != std::string::npos;
  })) << read_file(spec.out);
  EXPECT_EQ(fs::status(spec.out).permissions() & fs::perms::all, fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_NEAR(static_cast<double>(r.poll(*handle)->started) * 1e-9, static_cast<double>(std::time(nullptr)), 100)
      << "as Slurm tells, not since it was submitted";
  EXPECT_EQ(**r.find(spec), *handle);
  const auto stacks = r.stacks(*handle, 20);
  ASSERT_TRUE(stacks.has_value()) << stacks.error().line();
  EXPECT_NE(stacks->find("==== rank 1 on node1\n"), std::string::npos) << *stacks;
  ASSERT_TRUE(r.signal(*handle, SIGUSR1).has_value());
  AttemptState state;
  ASSERT_TRUE(ends(r, *handle, state));
  EXPECT_EQ(state.exit_status, 0);
  EXPECT_EQ(state.reason, EndReason::none);
  EXPECT_NE(read_file(spec.out).find("told 1"), std::string::npos);
  EXPECT_TRUE(wait_for(60, [&] { return *r.fence(*handle); }));
}

TEST_F(CliSlurmRunner, TheFirstRankThatFailedIsNamed) {
  SlurmRunner r = runner("2");
  const auto handle = r.start(spec_in(dir_, {"bash", "-c", "[[ $RANK == 1 ]] && exit 3; exec sleep 1000"}));
  ASSERT_TRUE(handle.has_value()) << handle.error().line();
  AttemptState state;
  ASSERT_TRUE(ends(r, *handle, state)) << "one rank that ends ends the step";
  EXPECT_EQ(state.exit_status, 3);
  EXPECT_NE(state.detail.find("rank 1 on node1 was the first to fail"), std::string::npos) << state.detail;
  EXPECT_TRUE(state.lost.empty());
}

// A dying node: its keeper could still tell that the rank was killed, srun heard nothing of it.
TEST_F(CliSlurmRunner, ANodeThatDiedAfterItsRankIsLost) {
  SlurmRunner r = runner("2");
  const auto handle = r.start(spec_in(dir_, {"sleep", "1000"}));
  ASSERT_TRUE(handle.has_value()) << handle.error().line();
  ASSERT_TRUE(runs(r, *handle));
  const SlurmFiles files(dir_.path.string(), 1);
  ASSERT_TRUE(wait_for(30, [&] { return read_reports(files).size() == 2; }));
  EXPECT_TRUE(r.poll(*handle)->lost.empty());
  ASSERT_EQ(lab_->command("kill node1"), "");
  RankReport report = read_reports(files)[1];
  ASSERT_EQ(report.node, "node1");
  report.state = RankReport::State::killed;
  report.value = SIGKILL;
  report.ended = 1;
  ASSERT_TRUE(write_line(files.rank(1), to_line(report), true).has_value());
  AttemptState state;
  ASSERT_TRUE(wait_for(60, [&] {
    if (const auto s = r.poll(*handle)) state = *s;
    return !state.lost.empty() || state.phase == AttemptPhase::ended;
  }));
  EXPECT_EQ(state.lost, (std::vector<std::string>{"node1"})) << state.detail;
}

TEST_F(CliSlurmRunner, WhatCannotStartIsNoFailureOfTraining) {
  SlurmRunner r = runner("1");
  const auto handle = r.start(spec_in(dir_, {"/no/such/program"}));
  ASSERT_TRUE(handle.has_value()) << handle.error().line();
  AttemptState state;
  ASSERT_TRUE(ends(r, *handle, state));
  EXPECT_EQ(state.reason, EndReason::launch_failed);
  EXPECT_NE(state.detail.find("/no/such/program"), std::string::npos) << state.detail;
}

// A node that stands still, with all its processes: they are not dead, whatever Slurm thinks of it.
TEST_F(CliSlurmRunner, NobodyIsTakenForDeadWhoMayComeBack) {
  SlurmRunner r = runner("2");
  const auto spec = spec_in(dir_, {"sleep", "1000"});
  const auto handle = r.start(spec);
  ASSERT_TRUE(handle.has_value()) << handle.error().line();
  ASSERT_TRUE(runs(r, *handle));
  ASSERT_TRUE(wait_for(30, [&] { return processes_with("ORRERY_GUARD_TOKEN", spec.token).size() == 2; }));
  ASSERT_EQ(lab_->command("freeze node1"), "");
  for (int i = 0; i < 40; ++i) {
    const auto dead = r.fence(*handle);
    EXPECT_FALSE(dead && *dead);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  ASSERT_EQ(processes_with("ORRERY_GUARD_TOKEN", spec.token).size(), 1u);
  ASSERT_EQ(lab_->command("thaw node1"), "");
  EXPECT_TRUE(wait_for(60, [&] {
    const auto dead = r.fence(*handle);
    return dead && *dead;
  }));
  EXPECT_TRUE(processes_with("ORRERY_GUARD_TOKEN", spec.token).empty());
}

TEST_F(CliSlurmRunner, ASlurmdThatLivesAnswersAFrozenOneIsMute) {
  const auto nodes = slurm::nodes({"node0", "node1"});
  ASSERT_TRUE(nodes.has_value()) << nodes.error().line();
  std::vector<NodeDoors::Door> doors;
  for (const slurm::Node& n : *nodes) doors.push_back({n.name, n.address, n.port});
  ASSERT_EQ(lab_->command("freeze node1"), "");
  NodeDoors asked;
  EXPECT_TRUE(wait_for(60, [&] {
    asked.ask(doors);
    return asked.of("node0") == DoorAnswer::answers && asked.of("node1") == DoorAnswer::mute;
  }));
  ASSERT_EQ(lab_->command("thaw node1"), "");
}

// As one that waits for a storage that is busy with another node's checkpoint.
TEST_F(CliSlurmRunner, AKeeperThatIsSilentBesideALivingSlurmdIsNotLost) {
  SlurmOptions o;
  o.nodes = "2";
  o.ask_s = 0.2;
  o.stale_s = 1;
  SlurmRunner r(dir_.path.string(), ORRERY_BINARY, o);
  const auto handle = r.start(spec_in(dir_, {"sleep", "1000"}));
  ASSERT_TRUE(handle.has_value()) << handle.error().line();
  ASSERT_TRUE(runs(r, *handle));
  const SlurmFiles files(dir_.path.string(), 1);
  ASSERT_TRUE(wait_for(30, [&] { return read_reports(files).size() == 2; }));
  const Outcome keeper =
      shell("for p in $(pgrep -f 'guard rank " + dir_.path.string() +
            "'); do [ \"$(readlink /proc/$p/exe)\" = \"$(readlink -f \"$orrery\")\" ] && "
            "tr '\\0' '\\n' < /proc/$p/environ | grep -qx SLURMD_NODENAME=node1 && echo $p; done; true");
  ASSERT_FALSE(keeper.out.empty());
  const auto pid = static_cast<pid_t>(std::stol(keeper.out));
  ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  const auto end = Clock::now() + std::chrono::seconds(6);  // longer than four times its second
  while (Clock::now() < end) {
    const auto s = r.poll(*handle);
    EXPECT_TRUE(!s || s->lost.empty());
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  ::kill(pid, SIGCONT);
  EXPECT_TRUE(wait_for(60, [&] { return *r.fence(*handle); }));
}

TEST(SlurmAttempt, WhatSbatchRefusesIsFinalWhatPassesIsNot) {
  const SlurmRunner r("/nowhere", "orrery", {});
  const std::string sbatch = "sbatch --parsable --job-name=t --output=/dev/null";
  AttemptSpec spec;
  const auto final = [&](const std::string& what) { return r.is_final({what, sbatch, ""}, spec); };
  for (const char* what : {
           "Invalid --time specification",
           "Invalid --mem specification",
           "unrecognized option '--bogus=1'",
           "Invalid numeric value \"x\" for --nodes.",
           "Memory specification can not be satisfied",
           "Batch job submission failed: Requested reservation is invalid",
           "Batch job submission failed: Invalid partition name specified",
           "Batch job submission failed: Requested node configuration is not available",
           "Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
           "QOSMaxCpuPerUserLimit",
       })
    EXPECT_TRUE(final(what)) << what;
  for (const char* what :
       {"AssocMaxSubmitJobLimit", "QOSMaxSubmitJobPerUserLimit",
        "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time "
        "limits)",
        "Slurm temporarily unable to accept job, sleeping and retrying",
        "Batch job submission failed: Required node not available (down, drained or reserved)",
        "Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "resolve_ctls_from_dns_srv: res_nsearch error: Unknown host", "exit status 1", "signal 9 (Killed)"})
    EXPECT_FALSE(final(what)) << what;
  EXPECT_FALSE(r.is_final({"did not end", sbatch, "is slurmctld well? scontrol ping tells"}, spec));
  EXPECT_FALSE(r.is_final({"Invalid user", "squeue --noheader", ""}, spec));
  EXPECT_FALSE(r.is_final({"no id of a job in its answer: x", "sbatch", ""}, spec));
  spec.exclude = {"n1"};
  EXPECT_FALSE(final("Batch job submission failed: Requested node configuration is not available"));
}

TEST_F(CliSlurmRunner, WhatWasNeverSubmittedNeverWillBe) {
  SlurmRunner r = runner("1");
  auto spec = spec_in(dir_, {"true"});
  auto found = r.find(spec);
  ASSERT_TRUE(found.has_value()) << found.error().line();
  EXPECT_FALSE(found->has_value());
  // The supervisor died between its note and sbatch.
  const SlurmFiles files(dir_.path.string(), 1);
  fs::create_directory(files.directory);
  ASSERT_TRUE(write_line(files.orders, to_line(Orders{}), true).has_value());
  found = r.find(spec);
  ASSERT_TRUE(found.has_value());
  EXPECT_FALSE(found->has_value());
  EXPECT_TRUE(read_orders(read_line(files.orders))->revoked) << "what may still come of it must not run";
}

TEST_F(CliSlurmRunner, NodesThatAreLeftOut) {
  SlurmRunner r = runner("2");
  ASSERT_TRUE(r.drain("node0", "orrery guard: bad").has_value());
  auto spec = spec_in(dir_, {"sleep", "1000"});
  spec.exclude = {"node1", "node4"};
  const auto handle = r.start(spec);
  ASSERT_TRUE(handle.has_value()) << handle.error().line();
  ASSERT_TRUE(runs(r, *handle));
  EXPECT_EQ(r.poll(*handle)->nodes, (std::vector<std::string>{"node2", "node3"}));
  const auto nodes = r.nodes();
  ASSERT_TRUE(nodes.has_value());
  for (const NodeState& n : *nodes) EXPECT_EQ(n.usable, n.name != "node0") << n.name << n.why;
  EXPECT_NE(nodes->front().why.find("orrery guard: bad"), std::string::npos) << nodes->front().why;
  EXPECT_TRUE(wait_for(60, [&] { return *r.fence(*handle); }));
}

}  // namespace
}  // namespace orrery::test
