// The example trainer as a job: whatever befalls it, started again it ends with the weights of an undisturbed run.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "cli_run.h"

namespace orrery::test {
namespace {

constexpr const char* small = " --layers 1 --width 16 --heads 2 --sequence 16 --micro-batches 6 --seed 5 ";

Outcome train(const std::string& arguments, const std::string& before = {}) {
  return shell(before + " \"$(dirname \"$orrery\")/orrery_trainer\"" + small + arguments);
}

// Of a run of so many steps that nothing disturbed.
std::string undisturbed(int steps, const std::string& more = {}) {
  const TempDir dir;
  const Outcome o =
      train("--quiet --world 1 --steps " + std::to_string(steps) + more + " --weights-out " + (dir / "w"));
  EXPECT_EQ(o.status, 0) << o.err;
  return read_file(dir / "w");
}

struct Job {
  TempDir dir;
  std::string save = "--save " + (dir / "c") + " --save-interval 5 ";
  std::string out = "--weights-out " + (dir / "w") + " ";
  std::string weights() const { return read_file(dir / "w"); }
};

TEST(CliTrainer, LearnsAndSaysSoAsMegatronDoes) {
  const Outcome o = train("--world 2 --steps 80 --log-interval 40");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_NE(
      o.out.find("] iteration       40/      80 | consumed samples:          240 | elapsed time per iteration (ms): "),
      std::string::npos)
      << o.out;
  const std::size_t at = o.out.rfind("lm loss: ");
  ASSERT_NE(at, std::string::npos);
  EXPECT_LT(std::stod(o.out.substr(at + 9)), 3.0);  // ln 64 = 4.16 before
}

TEST(CliTrainer, NumberOfRanksDoesNotShow) {
  const std::string expected = undisturbed(20);
  ASSERT_GT(expected.size(), 10'000u);
  for (const int world : {2, 3, 5}) {
    const Job job;
    EXPECT_EQ(train("--quiet --steps 20 --world " + std::to_string(world) + " " + job.out).status, 0);
    EXPECT_EQ(job.weights(), expected) << world << " ranks";
  }
}

// All of its processes, at random moments, until it gets through; each time on another number of ranks.
TEST(CliTrainer, KilledAgainAndAgainItEndsWithTheSameWeights) {
  const std::string expected = undisturbed(600);
  const Job job;
  std::mt19937 random(7);
  const std::string line = "--quiet --steps 600 --snapshot-interval 3 " + job.save + job.out;
  int killed = 0, status = 1;
  for (int i = 0; i < 60 && status != 0; ++i) {
    const std::string limit = i < 8 ? "timeout -s KILL 0." + std::to_string(100 + random() % 100) : std::string();
    // The ranks of the run before may be dying still: their locks refuse the new ones, which then try again.
    const Outcome o = train(line + "--world " + std::to_string(1 + random() % 3), limit);
    status = o.status;
    killed += status == 128 + 9 || status == 137 ? 1 : 0;
    if (status != 0 && status != 137 && status != 128 + 9) {
      EXPECT_NE(o.err.find("another writer has it"), std::string::npos) << o.err;
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  }
  EXPECT_EQ(status, 0);
  EXPECT_GE(killed, 2);
  EXPECT_EQ(job.weights(), expected);
}

TEST(CliTrainer, EveryFaultThatEndsARankEndsTheJobAndLosesNothing) {
  const std::string expected = undisturbed(30);
  const std::pair<const char*, const char*> faults[] = {
      {"kill@17:1", "was killed by signal 9"},      {"crash@17:2", "was killed by signal 11"},
      {"oom@17:1", "RuntimeError: std::bad_alloc"}, {"error@17:0", "RuntimeError: shape"},
      {"corrupt@17:1", "was killed by signal 9"},   {"hang@17:2", "Watchdog caught collective operation timeout"},
  };
  for (const auto& [fault, evidence] : faults) {
    const Job job;
    const std::string line = "--quiet --world 3 --steps 30 --wait-for-saves --fault-marks " + job.dir.path.string() +
                             " " + job.save + job.out + "--fault " + fault +
                             (std::string(fault).rfind("hang", 0) == 0 ? " --timeout 10" : "");
    const Outcome first = train(line);
    EXPECT_EQ(first.status, 1) << fault;
    EXPECT_NE(first.err.find(evidence), std::string::npos) << fault << ": " << first.err;
    const Outcome second = train(line);
    EXPECT_EQ(second.status, 0) << fault << ": " << second.err;
    const bool fell_back = std::string(fault).rfind("corrupt", 0) == 0;
    EXPECT_NE(second.out.find(fell_back ? "at iteration 10\n" : "at iteration 15\n"), std::string::npos) << second.out;
    EXPECT_EQ(second.out.find("checkpoint rejected") != std::string::npos, fell_back) << second.out;
    EXPECT_EQ(job.weights(), expected) << fault;
  }
}

TEST(CliTrainer, AFullDiskStopsNothing) {
  const Job job;
  const std::string line = "--world 2 --steps 30 --quiet --wait-for-saves " + job.save + job.out;
  const Outcome o = train(line + "--fault storage@12:0 --fault storage@12:1");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_NE(o.out.find("No space left on device"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("6 saves, 2 complete, 0 skipped, 4 failed"), std::string::npos) << o.out;
  EXPECT_EQ(job.weights(), undisturbed(30));
  const Outcome again = train(line);
  EXPECT_NE(again.out.find("at iteration 10\n"), std::string::npos) << again.out;
}

// The rank can not even say that it has written nothing: it ends, and rank 0 sees that it did.
TEST(CliTrainer, AFullDiskOfOneRankHoldsUpNobody) {
  const Job job;
  const Outcome o = train("--world 3 --steps 30 --quiet --fault storage@12:1 " + job.save + job.out, "timeout 120");
  EXPECT_EQ(o.status, 0) << o.out << o.err;  // 124: it waited for peer_timeout_s
  EXPECT_NE(o.out.find("rank 1 has ended and left no part of it"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("WARNING: checkpoint not saved: rank 1: "), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("No space left on device"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("6 saves, "), std::string::npos) << o.out;
  EXPECT_EQ(job.weights(), undisturbed(30));
}

TEST(CliTrainer, AFullDiskOfOneRankHoldsUpNoSaveThatIsWaitedFor) {
  const Job job;
  const Outcome o = train("--world 2 --steps 30 --quiet --wait-for-saves --timeout 16 --fault storage@22:1 " + job.save,
                          "timeout 120");
  EXPECT_EQ(o.status, 0) << o.out << o.err;
  EXPECT_NE(o.out.find("rank 1 has not written"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("6 saves, 4 complete"), std::string::npos) << o.out;
}

TEST(CliTrainer, NotANumberIsNeverSaved) {
  const Job job;
  const std::string marks = "--fault-marks " + job.dir.path.string() + " --fault nan@12:1 ";
  const Outcome o = train("--world 2 --steps 30 " + marks + job.save + job.out);
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_NE(o.out.find("lm loss: NAN"), std::string::npos) << o.out;
  const Outcome again = train("--quiet --world 2 --steps 30 " + marks + job.save + job.out);
  EXPECT_NE(again.out.find("at iteration 10\n"), std::string::npos) << again.out;
  EXPECT_EQ(job.weights(), undisturbed(30));
}

TEST(CliTrainer, ASlowRankChangesTheTimeOnly) {
  const Job job;
  EXPECT_EQ(train("--quiet --world 2 --steps 20 --fault slow@5:1:10 " + job.out).status, 0);
  EXPECT_EQ(job.weights(), undisturbed(20));
}

TEST(CliTrainer, PreemptedItSavesAndGoesOn) {
  const Job job;
  const std::string line = "--world 2 --steps 400 --save " + (job.dir / "c") + " --save-interval 1000 " + job.out;
  const Outcome o = train(line + " --quiet --grace 60", "timeout -s TERM --preserve-status 0.4");
  if (o.out.find("after receiving SIGTERM") != std::string::npos) {  // else it was done before
    EXPECT_EQ(o.status, 0) << o.err;
    EXPECT_NE(o.out.find("1 complete"), std::string::npos) << o.out;
  }
  EXPECT_EQ(train(line + " --quiet").status, 0);
  EXPECT_EQ(job.weights(), undisturbed(400));
}

// Storage that takes a byte a second: the third save waits for a buffer, far longer than a scheduler does.
TEST(CliTrainer, SignalsAreSeenWhileASaveWaits) {
  for (const std::string signal : {"TERM", "INT"}) {
    const Job job;
    const std::string out = job.dir / "out";
    const Outcome o = shell("\"$(dirname \"$orrery\")/orrery_trainer\"" + std::string(small) +
                            "--quiet --world 2 --steps 4000 --grace 1 --write-bytes-per-second 1 " + job.save + "> " +
                            out + " & pid=$!; until grep -q 'iteration      15' " + out +
                            "; do kill -0 $pid || exit 9; sleep 0.05; done; kill -" + signal +
                            " $pid; timeout 60 tail --pid=$pid -f /dev/null || { kill -9 $pid; exit 8; }; wait $pid");
    EXPECT_EQ(o.status, 0) << o.err << read_file(out);
    EXPECT_NE(read_file(out).find("after receiving SIG" + signal), std::string::npos) << read_file(out);
  }
}

TEST(CliTrainer, GoesOnOnlyWithTheSettingsItHad) {
  const Job job;
  const auto run = [&](const std::string& changed) {
    std::string line = " --layers 1 --width 16 --sequence 16 --quiet --world 2 " + job.save + changed;
    for (const char* usual : {"--seed 5", "--heads 2", "--micro-batches 6", "--micro-batch 1", "--steps 10"}) {
      const std::string option = std::string(usual).substr(0, std::string(usual).find(' ') + 1);
      if (changed.find(option) == std::string::npos) line += std::string(" ") + usual;
    }
    return shell("\"$(dirname \"$orrery\")/orrery_trainer\"" + line);
  };
  EXPECT_EQ(run("").status, 0);
  for (const char* other : {"--seed 6", "--heads 4", "--micro-batches 3", "--micro-batch 2"}) {
    const Outcome o = run(other);
    EXPECT_EQ(o.status, 1) << other;
    EXPECT_NE(o.err.find("was trained with"), std::string::npos) << other << ": " << o.err;
  }
  EXPECT_EQ(run("--steps 12").status, 0);
}

TEST(CliTrainer, GoesBackOnPurposeAndLeavesBatchesOut) {
  const Job job;
  EXPECT_EQ(train("--quiet --world 2 --steps 20 --keep 0 " + job.save).status, 0);
  std::vector<std::string> ids;
  for (const auto& e : fs::directory_iterator(job.dir.path / "c")) {
    if (e.is_directory()) ids.push_back(e.path().filename().string());
  }
  std::sort(ids.begin(), ids.end());
  ASSERT_EQ(ids.size(), 4u);
  const Outcome o = train("--quiet --world 2 --steps 20 --skip 12:15 --load " + ids[1] + " --forget-later --keep 0 " +
                          job.save + job.out);
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_NE(o.out.find("at iteration 10\n"), std::string::npos) << o.out;
  EXPECT_EQ(job.weights(), undisturbed(20, " --skip 12:15"));
  EXPECT_NE(job.weights(), undisturbed(20));
}

// Rank 1 dies before its part is written; rank 0 must not wait for it as long as for one that is slow.
TEST(CliTrainer, ADeadRanksPartIsNotWaitedFor) {
  const Job job;
  const std::string line =
      "--quiet --steps 30 --world 2 --addresses 127.0.0.1:$port,127.0.0.1:$((port + 1)) "
      "--write-bytes-per-second 20000 --fault kill@6:1 " +
      job.save;
  const std::string program = "timeout 60 \"$(dirname \"$orrery\")/orrery_trainer\"" + std::string(small) + line;
  const Outcome o = shell("port=$((20000 + RANDOM % 10000)); " + program + "--rank 1 & " + program +
                          "--rank 0; first=$?; "
                          "wait; exit $first");
  EXPECT_EQ(o.status, 1) << o.err;  // 124: it hung
}

TEST(CliTrainer, HeartbeatOfEveryRank) {
  const Job job;
  EXPECT_EQ(train("--quiet --world 2 --steps 7 --heartbeat " + job.dir.path.string()).status, 0);
  for (const char* rank : {"rank-00000", "rank-00001"}) {
    std::istringstream line(read_file(job.dir.path / rank));
    std::int64_t step = 0, time = 0;
    std::string phase;
    line >> step >> time >> phase;
    EXPECT_EQ(step, 7);
    EXPECT_GT(time, 1'000'000'000'000'000'000);
    EXPECT_EQ(phase, "end");
  }
}

TEST(CliTrainer, RanksStartedOneByOne) {
  const Job job;
  const std::string both = "--quiet --steps 10 --world 2 --addresses 127.0.0.1:$port,127.0.0.1:$((port + 1)) ";
  const std::string program = "\"$(dirname \"$orrery\")/orrery_trainer\"" + std::string(small) + both;
  const Outcome o = shell("port=$((20000 + RANDOM % 10000)); " + program + "--rank 1 & " + program + "--rank 0 " +
                          job.out + "; first=$?; wait $! && exit $first");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(job.weights(), undisturbed(10));
}

// The three commands of README.md, one after the other: what it shows is what comes out, but for numbers that change.
TEST(CliTrainer, ReadmeShowsWhatComesOut) {
  const TempDir dir;
  std::istringstream lines(read_file(ORRERY_SOURCE_DIR "/README.md"));
  const std::string program = "$ build/orrery_trainer ";
  const auto without_numbers = [](std::string line) {
    const std::size_t at = std::min(line.find("crc32c"), std::min(line.find("blocked"), line.find("-full-")));
    return line.substr(0, at);
  };
  int run = 0;
  std::string out;
  std::vector<std::string> ends;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(program, 0) == 0) {
      const bool fails = line.find("--fault") != std::string::npos;
      const Outcome o = shell("program=\"$(dirname \"$orrery\")/orrery_trainer\"; cd " + dir.path.string() +
                              " && \"$program\" " + line.substr(program.size()) + (fails ? " --wait-for-saves" : "") +
                              " 2>&1");  // the checkpoint that is told of
      EXPECT_EQ(o.status, fails ? 1 : 0) << o.out;
      out = "\n" + o.out;
      const std::size_t weights = o.out.find("weights after");
      if (weights != std::string::npos) ends.push_back(o.out.substr(weights));
      ++run;
    } else if (line.rfind("```", 0) == 0) {
      out.clear();
    } else if (!out.empty() && line != "...") {
      EXPECT_NE(out.find("\n" + without_numbers(line)), std::string::npos) << line << "\nnot in" << out;
    }
  }
  EXPECT_EQ(run, 3);
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(ends[0], ends[1]);
}

TEST(CliTrainer, UnusableLinesAreRefused) {
  for (const char* line : {"--fault bang@3",
                           "--fault kill",
                           "--fault kill@x",
                           "--fault kill@100",
                           "--fault kill@-1",
                           "--fault kill@3:1",
                           "--fault kill@3:-1",
                           "--fault kill@3:0:5",
                           "--fault slow@3",
                           "--fault slow@3:0:-5",
                           "--fault slow@3:0:nan",
                           "--fault storage@3",
                           "--fault corrupt@3",
                           "--fault-marks /nowhere/at/all",
                           "--heartbeat /nowhere/at/all",
                           "--weights-out /nowhere/at/all/w",
                           "--weights-out /",
                           "--skip 3",
                           "--skip 9:5",
                           "--skip -3:5",
                           "--skip 200:300",
                           "--heads 3",
                           "--save-interval 3",
                           "--save c --save-interval -3",
                           "--save c --snapshot-interval -3",
                           "--save c --save-seconds nan",
                           "--save c --save-seconds -1",
                           "--save c --keep -1",
                           "--save c --write-bytes-per-second -1",
                           "--forget-later --save c",
                           "--steps -1",
                           "--seed -1",
                           "--learning-rate nan",
                           "--learning-rate inf",
                           "--learning-rate -1",
                           "--timeout 0",
                           "--timeout nan",
                           "--grace -1",
                           "--rank 0",
                           "--rank -1",
                           "--addresses 127.0.0.1:4000",
                           "--world 0",
                           "--nonsense"}) {
    const Outcome o = train(line);
    EXPECT_EQ(o.status, 2) << line << ": " << o.out;
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << line << ": " << o.err;
  }
}

}  // namespace
}  // namespace orrery::test
