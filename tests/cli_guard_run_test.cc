// orrery guard -- COMMAND with the example trainer: whatever befalls job or guard, the weights in the end are those of
// a run that nothing disturbed, and never do two copies of the job live at once.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "cli_run.h"

namespace orrery::test {
namespace {

using Json = nlohmann::json;

constexpr const char* small = " --layers 1 --width 16 --heads 2 --sequence 16 --micro-batches 6 --seed 5 ";

std::string undisturbed(int steps, const std::string& more = {}) {
  const TempDir dir;
  const Outcome o = shell("\"$(dirname \"$orrery\")/orrery_trainer\"" + std::string(small) + "--quiet --steps " +
                          std::to_string(steps) + " " + more + " --weights-out " + (dir / "w"));
  EXPECT_EQ(o.status, 0) << o.err;
  return read_file(dir / "w");
}

// A job in a directory of its own. `job` is a script: it takes a lock that all its processes hold while they live, and
// tells when another copy has it.
struct Guarded {
  TempDir dir;
  std::string config =
      "[job]\npoll_s = 0.05\non_rollback = [\"--skip\", \"{skip_from}:{skip_to}\"]\n"
      "[progress]\nhang_floor_s = 30\nlinger_s = 4\nfirst_steps = 1\nrecord_s = 0.2\n"
      "[restart]\nbackoff_first_s = 0.05\n[stop]\nsettle_s = 2\nstacks_s = 3\n";
  std::string trainer, options;

  explicit Guarded(const std::string& more, int steps = 40, int timeout = 20) {
    // Where none is asked for a storage that stalls must not be taken for one.
    if (more.find("hang@") != std::string::npos) config.replace(config.find("= 30"), 4, "= 4");
    write_text(dir.path / "job", "#!/bin/bash\nexec 9>>'" + (dir / "copy") + "'\nflock -n 9 || echo second >> '" +
                                     (dir / "two") + "'\nexec \"$@\"\n");
    fs::permissions(dir.path / "job", fs::perms::owner_all);
    trainer = "'" + (dir / "job") + "' \"$(dirname \"$orrery\")/orrery_trainer\"" + std::string(small) +
              "--world 3 --timeout " + std::to_string(timeout) + " --steps " + std::to_string(steps) + " --save '" +
              (dir / "c") + "' --save-interval 5 --heartbeat '" + (dir / "hb") + "' --fault-marks '" +
              dir.path.string() + "' --weights-out '" + (dir / "w") + "' " + more;
  }
  // The command line; `before` stands in front of the program.
  std::string line(const std::string& more = {}, const std::string& before = {}) {
    write_text(dir.path / "g.toml", config);
    return before + " \"$orrery\" guard --json --state '" + (dir / "s") + "' --checkpoints '" + (dir / "c") +
           "' --heartbeat '" + (dir / "hb") + "' --config '" + (dir / "g.toml") + "' " + options + " " + more + " -- " +
           trainer;
  }
  Outcome run(const std::string& more = {}) { return shell(line(more)); }
  // Guard is killed as soon as the shell command `when` has ended; what it held is free afterwards.
  Outcome killed(const std::string& when) {
    return shell(line() + " & guard=$!\n" + when + "\nkill -9 $guard 2> /dev/null; wait $guard 2> /dev/null");
  }
  Outcome status() { return orrery("guard status '" + (dir / "s") + "' --json"); }
  std::string weights() const { return read_file(dir / "w"); }
  bool two() const { return fs::exists(dir.path / "two"); }
  std::string journal() const { return read_file(dir.path / "s" / "journal.jsonl"); }
};

Json answer(const Outcome& o) {
  Json d = Json::parse(o.out, nullptr, false);
  EXPECT_FALSE(d.is_discarded()) << o.out << o.err;
  return d.is_discarded() ? Json::object() : d;
}

void expect_whole(Guarded& job, const Outcome& o, const std::string& weights) {
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(job.weights(), weights) << o.err;
  EXPECT_FALSE(job.two()) << o.err;
}

template <class Done>
bool wait_for(Done done, double seconds = 60) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

TEST(CliGuardRun, FaultsOfTheMachineEndWithTheSameWeights) {
  const std::string expected = undisturbed(40);
  for (const char* fault : {"kill@17:1", "crash@17:2", "corrupt@17:1", "hang@17:2"}) {
    // Two checkpoints are complete before the newest is damaged.
    Guarded job(std::string("--wait-for-saves --fault slow@1:0:40 --fault ") + fault);
    const Outcome o = job.run();
    expect_whole(job, o, expected);
    const Json d = answer(o);
    EXPECT_EQ(d["state"], "done") << fault;
    EXPECT_EQ(d["step"], 40) << fault;
    EXPECT_GE(d["restarts"], 1) << fault;
    EXPECT_EQ(d["attempts"][0]["last_step"], 17) << fault;
    const bool hangs = std::string(fault).rfind("hang", 0) == 0;
    EXPECT_EQ(d["attempts"][0]["ended"] == "Hang", hangs) << o.out;
    EXPECT_EQ(fs::exists(job.dir.path / "s" / "attempt-1.stacks"), hangs || o.err.find("stacks") != std::string::npos);
    if (!hangs) continue;
    const std::string stacks = read_file(job.dir.path / "s" / "attempt-1.stacks");
    EXPECT_NE(stacks.find("orrery_trainer"), std::string::npos) << stacks;
    EXPECT_NE(stacks.find("  thread "), std::string::npos) << stacks;
  }
}

TEST(CliGuardRun, WhatEndsNothingIsReportedAndLeftAlone) {
  const std::string expected = undisturbed(40);
  for (const char* fault : {"storage@12:0", "slow@10:1:15"}) {
    Guarded job(std::string("--fault ") + fault);
    const Outcome o = job.run();
    expect_whole(job, o, expected);
    EXPECT_EQ(answer(o)["restarts"], 0) << fault << o.err;
    const bool lost = o.err.find("never became complete") != std::string::npos;
    EXPECT_EQ(lost, std::string(fault).starts_with("storage")) << o.err;
  }
}

TEST(CliGuardRun, ProgramErrorsAreReportedAndNotRestartedBlindly) {
  const std::string expected = undisturbed(40);
  for (const auto& [fault, reason] : {std::pair{"oom@17:1", "Out of Memory Error"}, {"error@17:0", "Runtime Error"}}) {
    Guarded job(std::string("--fault ") + fault);
    const Outcome o = job.run();
    EXPECT_EQ(o.status, 1) << fault;
    const Json d = answer(o);
    EXPECT_EQ(d["state"], "failed");
    EXPECT_EQ(d["restarts"], 0);
    EXPECT_EQ(d["attempts"][0]["ended"], reason);
    EXPECT_EQ(d["events"].back()["decision"], "stop");
    EXPECT_NE(d["events"].back()["evidence"].get<std::string>().find("attempt-1.err:2: "), std::string::npos)
        << "the line that tells it";
    // Mended by a person, it goes on where it was.
    expect_whole(job, job.run(), expected);
  }
}

// Its errors go to another file than its steps: they are older than steps all the same.
TEST(CliGuardRun, AnErrorThatTrainingSurvivedExplainsNoLaterEnd) {
  Guarded job("");
  // Further steps once guard has heard of the error, whatever else this machine does.
  write_text(job.dir / "train.sh",
             "step() { echo \"step $1: loss 2.0, 0.1 s/it\"; sleep 0.02; }\n"
             "for i in $(seq 1 20); do step $i; done\n"
             "test -e '" +
                 (job.dir / "mark") +
                 "' && exit 0\n"
                 "echo 'ValueError: bad sample 12, skipped' >&2\n"
                 "until grep -q 'bad sample' '" +
                 (job.dir / "s/journal.jsonl") +
                 "'; do sleep 0.05; done\n"
                 "for i in $(seq 21 60); do step $i; done\n"
                 "touch '" +
                 (job.dir / "mark") + "'; kill -9 $$\n");
  job.trainer = "bash '" + (job.dir / "train.sh") + "'";
  const Outcome o = job.run();
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(answer(o)["attempts"].size(), 2u) << o.err;
  EXPECT_NE(o.err.find("restart: signal 9"), std::string::npos) << o.err;
}

TEST(CliGuardRun, NotANumberGoesBackAndLeavesTheBatchesOut) {
  Guarded job("--wait-for-saves --fault nan@17:1");
  const Outcome o = job.run();
  EXPECT_EQ(o.status, 0) << o.err;
  const Json d = answer(o);
  ASSERT_GE(d["attempts"].size(), 2u);
  const std::string skip = d["attempts"][1]["skip"];
  EXPECT_TRUE(skip == "15:18" || skip == "10:18") << skip << ": the batch of iteration 17, to the checkpoint before";
  EXPECT_EQ(job.weights(), undisturbed(40, "--skip " + skip)) << o.err;
  EXPECT_NE(job.weights(), undisturbed(40));
  EXPECT_FALSE(job.two());
}

TEST(CliGuardRun, ALossThatLeapsGoesBackAndLeavesTheBatchesOut) {
  for (const std::string pace : {"", " --fault slow@0:0:10"}) {  // the quick one is over before anybody looks
    Guarded job("--wait-for-saves --fault spike@22 --keep 20" + pace, 60);
    job.config += "[loss]\nspike_window = 12\nspike_steps = 4\n";
    const Outcome o = job.run();
    EXPECT_EQ(o.status, 0) << o.err;
    const Json d = answer(o);
    ASSERT_EQ(d["attempts"].size(), 2u);
    const std::string skip = d["attempts"][1]["skip"];
    EXPECT_TRUE(skip == "20:24" || skip == "15:24") << skip << ": iteration 24 is the first that is logged as bad";
    EXPECT_EQ(job.weights(), undisturbed(60, "--skip " + skip)) << o.err;
    EXPECT_FALSE(job.two());
  }
}

TEST(CliGuardRun, ToldToEndTheJobSavesAndGoesOnWhenStartedAgain) {
  Guarded job("", 3000);
  const std::string out = (job.dir / "s") + "/attempt-1.out";
  const Outcome o = shell(job.line() + " & guard=$!\nfor i in $(seq 1200); do grep -q 'iteration ' '" + out +
                          "' 2> /dev/null && break; sleep 0.05; done\nkill $guard; wait $guard");
  const std::string expected = undisturbed(3000);
  if (answer(o)["state"] != "done") {  // else the machine is faster than any we know
    EXPECT_EQ(o.status, 1) << o.err;
    EXPECT_EQ(answer(o)["state"], "stopped");
    EXPECT_NE(read_file(job.dir.path / "s" / "attempt-1.out").find("after receiving SIGTERM"), std::string::npos);
  }
  expect_whole(job, job.run(), expected);
}

TEST(CliGuardRun, AJobThatWasPreemptedFromOutsideGoesOn) {
  Guarded job("--fault slow@0:0:2", 1500);  // long enough to be caught
  std::thread preempts([&] {
    int pid = 0;
    const auto started = [&] {
      std::istringstream in(read_file(job.dir.path / "s" / "attempt-1.job"));
      return (in >> pid) && read_file(job.dir.path / "s" / "attempt-1.out").find("iteration ") != std::string::npos;
    };
    if (wait_for(started)) ::kill(pid, SIGTERM);
  });
  const Outcome o = job.run();
  preempts.join();
  expect_whole(job, o, undisturbed(1500));
  EXPECT_EQ(answer(o)["attempts"][0]["kind"], "interrupted") << o.out;
}

TEST(CliGuardRun, BeforeItsTimeLimitItSavesAndGoesOn) {
  Guarded job("", 1500);
  job.config += "time_limit_margin_s = 1.2\n";
  const Outcome o = job.run("--time-limit 2");
  expect_whole(job, o, undisturbed(1500));
  if (answer(o)["restarts"] > 0) {
    EXPECT_EQ(answer(o)["attempts"][0]["ended"], "Time Limit") << o.out;
  }
}

TEST(CliGuardRun, ATimeLimitShorterThanTheMarginLeavesTimeToTrain) {
  const TempDir dir;
  const Outcome o = orrery("guard --json --time-limit 100 --state '" + (dir / "s") +
                           "' -- bash -c 'echo \"iteration 1/1 | lm loss: 2.0\"; sleep 1'");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.err.find("Time Limit"), std::string::npos) << o.err;
  EXPECT_EQ(answer(o)["attempts"].size(), 1u) << o.err;
}

TEST(CliGuardRun, ASecondGuardIsRefused) {
  Guarded job("--fault hang@3:0");
  job.config += "[nodes]\ncheck = false\n";
  const Outcome o =
      shell(job.line() + " & first=$!\n" + "for i in $(seq 600); do [ -e '" + (job.dir / "s") +
            "/attempt-1.job' ] && break; sleep 0.05; done\n" + job.line() + " 2> '" + (job.dir / "second") +
            "'; echo \"status $?\" >> '" + (job.dir / "second") + "'\nwait $first");
  EXPECT_EQ(o.status, 0) << o.err;
  const std::string second = read_file(job.dir.path / "second");
  EXPECT_NE(second.find("another guard has it (process "), std::string::npos) << second;
  EXPECT_NE(second.find("status 2"), std::string::npos) << second;
  expect_whole(job, o, undisturbed(40));
}

// Killed at random moments, guard is started again: it takes up the job that lived on, or starts it where it did not.
TEST(CliGuardRun, GuardKilledAgainAndAgainNeverStartsASecondCopy) {
  const std::string expected = undisturbed(1200);
  std::mt19937 random(11);
  Guarded job("--fault kill@300:1 --fault crash@700:0", 1200);
  int killed = 0;
  Outcome o;
  for (int i = 0; i < 60; ++i) {
    const int ms = 20 + static_cast<int>(random() % 400);
    o = i < 14 ? job.killed("sleep 0." + std::to_string(1000 + ms).substr(1)) : job.run();
    if (o.status == 0) break;
    EXPECT_TRUE(o.status == 137 || o.status == 128 + 9) << o.status << o.err;
    ++killed;
  }
  EXPECT_GE(killed, 3);
  expect_whole(job, o, expected);
}

// Before and after each time that guard puts something on storage.
TEST(CliGuardRun, GuardKilledAroundEachSyncNeverStartsASecondCopy) {
  const std::string expected = undisturbed(20);
  int killed = 0;
  for (int n = 1;; n += n < 6 ? 1 : 3) {
    Guarded job("--fault kill@9:1", 20);
    const std::string which = n % 2 == 0 ? "KILL_BEFORE_SYNC" : "KILL_AFTER_SYNC";
    const std::string preload =
        "ASAN_OPTIONS=verify_asan_link_order=0 LD_PRELOAD=\"$(dirname \"$orrery\")/kill_at_sync.so\" ";
    const Outcome first = shell(job.line("", "env " + which + "=" + std::to_string(n) + " " + preload));
    const bool whole = first.status == 0;  // so often it does not sync
    if (!whole) {
      EXPECT_EQ(first.status, 137) << first.err;
      ++killed;
    }
    const Outcome o = whole ? first : job.run();
    expect_whole(job, o, expected);
    EXPECT_EQ(answer(o)["state"], "done");
    if (whole || ::testing::Test::HasFailure()) break;
  }
  EXPECT_GE(killed, 6);
}

// The keeper and all of guard gone: the exit of the job is not known, the job is started again once it is dead.
TEST(CliGuardRun, WithoutItsKeeperAJobIsStillSeen) {
  const std::string expected = undisturbed(1200);
  Guarded job("", 1200);
  const Outcome o = shell(job.line() + " & guard=$!\nfor i in $(seq 1200); do [ -s '" + (job.dir / "s") +
                          "/attempt-1.job' ] && break; sleep 0.05; done\nread keeper rest < '" + (job.dir / "s") +
                          "/attempt-1.lock'\nkill -9 $keeper\nwait $guard");
  expect_whole(job, o, expected);
}

// Guard was gone before the first step and came back when all were done: that was training, not starting.
TEST(CliGuardRun, WhatWasTrainedWhileGuardWasGoneIsUseful) {
  Guarded job("--fault slow@0:0:40", 60);
  const Outcome gone = shell(job.line("",
                                      "env KILL_AFTER_SYNC=7 LD_PRELOAD=\"$(dirname \"$orrery\")/kill_at_sync.so\" "
                                      "ASAN_OPTIONS=verify_asan_link_order=0 "));
  if (gone.status != 137) GTEST_SKIP() << "nothing to be killed at sync with";
  EXPECT_NE(job.journal().find("\"started\""), std::string::npos);
  EXPECT_EQ(job.journal().find("\"progress\""), std::string::npos);
  const auto over = [&] { return fs::exists(job.dir.path / "s" / "attempt-1.exit"); };
  ASSERT_TRUE(wait_for(over)) << "the job goes on alone";
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const Outcome o = job.run();
  expect_whole(job, o, undisturbed(60));
  const Json d = answer(o);
  EXPECT_EQ(d["attempts"].size(), 1u);
  EXPECT_GT(d["useful_s"].get<double>(), 59 * 0.040) << o.out;
  double starting = 0;
  for (const Json& l : d["lost"]) starting += l["starting_s"].get<double>();
  EXPECT_LT(starting, d["wall_s"].get<double>() - 59 * 0.040) << o.out;
}

// The state directory fills up: guard says so, and how the job ended is known all the same. (A long name leaves no room
// in the page that the journal has.)
TEST(CliGuardRun, AFullStateDirectoryHidesNoEnd) {
  const TempDir dir;
  if (shell("unshare -rm sh -c \"mount -t tmpfs -o size=200k none '" + dir.path.string() + "'\"").status != 0)
    GTEST_SKIP() << "no file system of its own can be mounted here";
  write_text(dir.path / "run.sh",
             "mount -t tmpfs -o size=200k none \"$1\" || exit 99\ncd \"$1\"\n"
             "printf '#!/bin/bash\\ncat /dev/zero > \"$1/full\" 2> /dev/null\\n"
             "echo iteration 1/1 lm loss: 2.0\\nexit 0\\n' > job; chmod +x job\n"
             "\"$2\" guard --json --name $(printf %03400d 0) --state \"$1/s\" -- ./job \"$1\" > /dev/shm/$$.out 2> "
             "/dev/shm/$$.err & guard=$!\n"
             "for i in $(seq 1200); do [ -e s/attempt-1.exit ] && break; sleep 0.05; done\n"
             "for i in $(seq 1200); do grep -q 'cannot be written' /dev/shm/$$.err && break; sleep 0.05; done\n"
             "[ -e s/attempt-1.exit ] && echo known >&2\nrm full\nwait $guard\nstatus=$?\n"
             "cat /dev/shm/$$.out; cat /dev/shm/$$.err >&2; rm /dev/shm/$$.out /dev/shm/$$.err\nexit $status\n");
  fs::create_directory(dir.path / "m");
  const Outcome o = shell("unshare -rm bash '" + (dir / "run.sh") + "' '" + (dir / "m") + "' \"$orrery\"");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_NE(o.err.find("known\n"), std::string::npos) << "its exit was written although there was no room\n" << o.err;
  EXPECT_NE(o.err.find("orrery: guard: its journal cannot be written"), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("orrery: guard: its journal can be written again"), std::string::npos) << o.err;
  const Json d = answer(o);
  EXPECT_EQ(d["state"], "done") << o.out;
  EXPECT_EQ(d["attempts"].size(), 1u);
}

// A process of the job in a session of its own, with nothing of guard in its environment.
TEST(CliGuardRun, WhatHidesFromItsKeeperIsEndedAllTheSame) {
  const TempDir dir;
  const std::string seconds = std::to_string(100'000 + ::getpid()) + ".25";
  write_text(dir.path / "g.toml", "[stop]\nsettle_s = 0.2\n[job]\npoll_s = 0.05\n");
  write_text(dir.path / "job", "#!/bin/bash\nsetsid -f env -i /bin/sleep " + seconds + "\nuntil pgrep -f 'sleep " +
                                   seconds + "' > '" + (dir / "seen") + "'; do sleep 0.01; done\n");
  fs::permissions(dir.path / "job", fs::perms::owner_all);
  const Outcome o = shell("\"$orrery\" guard --json --state '" + (dir / "s") + "' --config '" + (dir / "g.toml") +
                          "' -- '" + (dir / "job") + "'; echo $? >&2; pgrep -f '[s]leep " + seconds + "' >&2");
  EXPECT_EQ(answer(o)["state"], "done") << o.out;
  EXPECT_FALSE(read_file(dir.path / "seen").empty());
  EXPECT_EQ(o.status, 1) << "it still lives: " << o.err;
}

// Three nodes, two needed: the test finds one of the first two bad, the spare takes its place.
TEST(CliGuardRun, NodesThatFailTheTestAreReplacedBySpares) {
  const TempDir dir;
  write_text(dir.path / "job",
             "#!/bin/bash\necho \"iteration 1/2 | lm loss: 2.0 on $1\"\n[ $ORRERY_GUARD_ATTEMPT = 2 ] && exit 0\n"
             "echo '[rank1]: DistBackendError: ALLREDUCE: Connection closed by peer: rank 0' >&2\nexit 1\n");
  write_text(dir.path / "test", "#!/bin/bash\ncase $1 in *bad*) exit 1;; esac\necho 10.0\n");
  for (const char* script : {"job", "test"}) fs::permissions(dir.path / script, fs::perms::owner_all);
  write_text(dir.path / "g.toml", "[nodes]\nnames = ['good1', 'bad', 'spare']\nneeded = 2\ncheck_command = ['" +
                                      (dir / "test") + "', '{hosts}']\n[restart]\nbackoff_first_s = 0.05\n");
  const Outcome o = shell("\"$orrery\" guard --json --state '" + (dir / "s") + "' --config '" + (dir / "g.toml") +
                          "' -- '" + (dir / "job") + "' '{nodes}'");
  EXPECT_EQ(o.status, 0) << o.err;
  const Json d = answer(o);
  ASSERT_EQ(d["attempts"].size(), 2u) << o.err;
  EXPECT_EQ(d["attempts"][0]["nodes"], "good1,bad");
  EXPECT_EQ(d["attempts"][1]["nodes"], "good1,spare");
  EXPECT_NE(o.err.find("bad is left out: bad in the test of nodes"), std::string::npos) << o.err;
}

TEST(CliGuardRun, StatusSaysWhatBecameOfIt) {
  Guarded job("--wait-for-saves --fault slow@1:0:30 --fault kill@17:1");  // long enough to be looked at more than once
  const Outcome o = job.run();
  const Outcome s = job.status();
  EXPECT_EQ(s.status, 0) << s.err;
  const Json d = answer(s), report = answer(o);
  EXPECT_EQ(d["command"], "guard");
  EXPECT_EQ(d["job"], "job");
  EXPECT_EQ(d["state"], "done");
  EXPECT_EQ(d["guarded"], false);
  EXPECT_EQ(d["events"], report["events"]);
  ASSERT_FALSE(d["events"].empty());
  for (const Json& e : d["events"])
    for (const char* key : {"time", "kind", "decision", "evidence"}) EXPECT_TRUE(e.contains(key)) << e;
  EXPECT_GT(d["goodput_pct"].get<double>(), 0);
  EXPECT_LE(d["goodput_pct"].get<double>(), 100);
  EXPECT_LE(d["ettr_pct"].get<double>(), d["goodput_pct"].get<double>());
  // As they were heard of: by the directory or by the log, which is read later.
  EXPECT_TRUE(std::any_of(d["saves"].begin(), d["saves"].end(), [](const Json& save) { return save["step"] == 5; }))
      << d["saves"];
  double lost = 0;
  for (const Json& l : d["lost"]) lost += l["lost_s"].get<double>();
  EXPECT_NEAR(d["useful_s"].get<double>() + lost, d["wall_s"].get<double>(), 1e-4);
  double ran = 0, down = 0;
  for (const Json& a : d["attempts"]) ran += a["ran_s"].get<double>();
  for (const Json& l : d["lost"]) down += l["down_s"].get<double>();
  EXPECT_NEAR(ran, d["running_s"].get<double>(), 1e-4);
  EXPECT_NEAR(ran + down, d["wall_s"].get<double>(), 1e-4);
  EXPECT_NEAR(d["goodput_pct"].get<double>(), 100 * d["useful_s"].get<double>() / ran, 1e-3);
  EXPECT_EQ(d["attempts"][0]["first_step"], 1);
  EXPECT_EQ(d["attempts"][1]["first_step"], 16) << "the one after the checkpoint";
  const Outcome text = orrery("guard status '" + (job.dir / "s") + "'");
  EXPECT_NE(text.out.find("Time lost"), std::string::npos) << text.out;
  const Outcome none = orrery("guard status '" + (job.dir / "nowhere") + "'");
  EXPECT_EQ(none.status, 2);
}

TEST(CliGuardRun, ADryRunKillsNothing) {
  Guarded job("--fault hang@17:2", 40, 9);
  const Outcome o = job.run("--dry-run");
  EXPECT_EQ(o.status, 1);
  EXPECT_NE(o.err.find("dry-run: would now: take stacks, kill it and start it again"), std::string::npos) << o.err;
  EXPECT_EQ(answer(o)["attempts"].size(), 1u);
  EXPECT_NE(read_file(job.dir.path / "s" / "attempt-1.err").find("Watchdog caught"), std::string::npos)
      << "it came to its own end";
}

TEST(CliGuardRun, LinesOfALogRunNothing) {
  const TempDir dir;
  const std::string pwned = dir / "pwned";
  const Outcome o = shell("\"$orrery\" guard --json --backoff 0.05 --restarts 1 --state '" + (dir / "s") +
                          "' -- printf '%s\\n' 'RuntimeError: $(touch " + pwned + ") `touch " + pwned + "`; touch " +
                          pwned + " {checkpoint} {state}/x {nothing}'");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_FALSE(fs::exists(pwned));
  const std::string out = read_file(dir.path / "s" / "attempt-1.out");
  EXPECT_NE(out.find("$(touch " + pwned + ")"), std::string::npos) << "as it was written";
  EXPECT_NE(out.find(" " + (dir / "s") + "/x {nothing}"), std::string::npos) << out;
}

TEST(CliGuardRun, SecretsThatTheJobPrintsAreNotKeptAsEvidence) {
  const TempDir dir;
  const Outcome o = shell("\"$orrery\" guard --restarts 0 --state '" + (dir / "s") +
                          "' -- bash -c 'echo iteration 1/2 lm loss: 2.0; echo RuntimeError: login with "
                          "password=hunter2 --db-pass s3cr3t failed >&2; exit 3'");
  EXPECT_EQ(o.status, 1);
  EXPECT_NE(o.err.find("password=*** --db-pass *** failed"), std::string::npos) << o.err;
  const std::string status = orrery("guard status --json '" + (dir / "s") + "'").out;
  EXPECT_NE(status.find("password=***"), std::string::npos) << status;
  for (const std::string& told : {o.out, o.err, status, read_file(dir.path / "s" / "journal.jsonl")})
    for (const char* secret : {"hunter2", "s3cr3t"}) EXPECT_EQ(told.find(secret), std::string::npos) << told;
  EXPECT_NE(read_file(dir.path / "s" / "attempt-1.err").find("hunter2"), std::string::npos) << "its own log";
}

TEST(CliGuardRun, FilesAreTheOwnersAlone) {
  Guarded job("");
  EXPECT_EQ(job.run("--metrics-file '" + (job.dir / "m") + "'").status, 0);
  for (const auto& f : fs::directory_iterator(job.dir.path / "s"))
    EXPECT_EQ(f.status().permissions() & (fs::perms::group_all | fs::perms::others_all), fs::perms::none) << f.path();
  const std::string metrics = read_file(job.dir.path / "m");
  EXPECT_NE(metrics.find("orrery_guard_step{job=\"job\"} 40\n"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("orrery_guard_state{job=\"job\",state=\"stopped\"} 1\n"), std::string::npos) << metrics;
}

TEST(CliGuardRun, RefusedInOneLine) {
  const TempDir dir;
  const auto refused = [&](const std::string& arguments, const std::string& part) {
    const Outcome o = orrery("guard --state '" + (dir / "s") + "' " + arguments);
    EXPECT_EQ(o.status, 2) << arguments;
    EXPECT_EQ(o.out, "") << arguments;
    EXPECT_NE(o.err.find(part), std::string::npos) << o.err;
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  };
  const auto config = [&](const std::string& text, const std::string& part) {
    write_text(dir.path / "c.toml", text);
    refused("--config '" + (dir / "c.toml") + "' -- true", part);
  };
  refused("--", "guard: no command to guard");
  refused("train.py", "guard: not known: train.py");
  refused("--hang-after 0 -- true", "--hang-after: not a number");
  refused("--webhook ftp://x -- true", "--webhook: not a URL");
  refused("--webhook http:// -- true", "--webhook: not a URL");
  refused("--webhook http://u:p@ -- true", "--webhook: not a URL");
  refused("--metrics :99999 -- true", "--metrics: not a port from 0 to 65535: 99999");
  refused("--metrics :-1 -- true", "--metrics: not a port from 0 to 65535: -1");
  refused("-- ''", "guard: no such program: ''");
  refused("-- nosuchprogram", "guard: no such program: 'nosuchprogram'");
  refused("-- /nonexistent/program", "guard: no such program: '/nonexistent/program'");
  refused("-- /etc/passwd", "guard: not a program that may be run: /etc/passwd");
  refused("--metrics nonsense -- true", "--metrics: not ADDRESS:PORT");
  for (const char* n : {"0", "4-3", "2-", "a", "1-2-3"})
    refused("--slurm --nodes " + std::string(n) + " -- true", "not a number of nodes: " + std::string(n));
  refused("--config /nonexistent.toml -- true", "cannot open");
  config("[job]\nnmae = 'x'\n", "c.toml:2: not known: nmae in [job] (did you mean name?)");
  config("[jobs]\n", "c.toml:1: not known: [jobs] (did you mean job?)");
  config("[restart]\nmost = 'x'\n", "c.toml:2: most in [restart] is not a whole number");
  config("[restart]\nsame_failure = 'go'\n", "is not one of stop, other-nodes");
  config("[progress]\nhang_factor = 0.5\n", "is not from 1 to 1e+06");
  config("[loss\n", "c.toml:1: not TOML");
  const auto nodes = [&](const std::string& text, const std::string& part) {
    write_text(dir.path / "c.toml", "[nodes]\n" + text);
    refused("--config '" + (dir / "c.toml") + "' -- true", part);
  };
  nodes("needed = 5\n", "needed in [nodes]: 5 nodes needed, and there is this machine alone");
  nodes("needed = 3\nnames = ['a', 'b']\n", "needed in [nodes]: 3 nodes needed, 2 named");
  refused("simulate --dry-run", "--state: not with simulate");
}

TEST(CliGuardRun, ADirectoryWhoseJobIsDoneTakesNoOther) {
  const TempDir dir;
  const std::string guard = "guard --json --state '" + (dir / "s") + "' -- ";
  EXPECT_EQ(orrery(guard + "true").status, 0);
  EXPECT_EQ(answer(orrery(guard + "true"))["attempt"], 1) << "it is done, and is not done again";
  const Outcome o = orrery(guard + "sleep 0");
  EXPECT_EQ(o.status, 2);
  EXPECT_NE(o.err.find("another job was guarded here, and it is done"), std::string::npos) << o.err;
}

TEST(CliGuardRun, AJobThatIsNotOverTakesNoOtherCommandAStoppedOneDoes) {
  const TempDir dir;
  const std::string guard = "guard --json --state '" + (dir / "s") + "' -- ";
  shell("\"$orrery\" " + guard + "sh -c 'until [ -e " + (dir / "go") + " ]; do sleep 0.05; done; exit 3' & guard=$!; " +
        "until grep -q '\"started\"' " + (dir / "s/journal.jsonl") +
        "; do sleep 0.05; done; kill -9 $guard; wait $guard");
  const std::string before = read_file(dir / "s/journal.jsonl");
  const Outcome o = orrery(guard + "true");
  EXPECT_EQ(o.status, 2);
  EXPECT_NE(o.err.find("has another command, and it is not over (take it up with that command, or name another"),
            std::string::npos)
      << o.err;
  EXPECT_EQ(read_file(dir / "s/journal.jsonl"), before);
  write_text(dir.path / "go", "");
  EXPECT_EQ(orrery(guard + "sh -c 'until [ -e " + (dir / "go") + " ]; do sleep 0.05; done; exit 3'").status, 1);
  const Outcome mended = orrery(guard + "true");  // the command that failed was mended
  EXPECT_EQ(mended.status, 0);
  EXPECT_NE(mended.err.find("started again by a person with another command"), std::string::npos) << mended.err;
  EXPECT_EQ(orrery(guard + "true").status, 0) << "done, and this is its command";
}

TEST(CliGuardRun, AnAttemptOnAnotherMachineIsNotTakenForDead) {
  Guarded job("--fault hang@3:0");
  job.killed("for i in $(seq 1200); do [ -s '" + (job.dir / "s") + "/attempt-1.job' ] && break; sleep 0.05; done");
  std::istringstream in(read_file(job.dir.path / "s" / "attempt-1.job"));
  std::string pid, ticks, boot, time;
  in >> pid >> ticks >> boot >> time;
  write_text(job.dir.path / "s" / "attempt-1.job", pid + " " + ticks + " other-boot " + time + " elsewhere\n");
  const Outcome o = job.run();
  EXPECT_EQ(o.status, 2);
  EXPECT_NE(o.err.find("attempt 1 was started on elsewhere"), std::string::npos) << o.err;
  ::kill(-std::stoi(pid), SIGKILL);
  EXPECT_TRUE(wait_for([&] { return fs::exists(job.dir.path / "s" / "attempt-1.exit"); })) << "its keeper tells";
}

TEST(CliGuardRun, ACommandThatCannotBeStartedIsTold) {
  const TempDir dir;
  const Outcome none = orrery("guard --json --state '" + (dir / "s") + "' -- /nonexistent/program");
  EXPECT_EQ(none.status, 2);
  EXPECT_EQ(none.out, "");
  EXPECT_FALSE(fs::exists(dir.path / "s")) << "nothing was begun";
  // Looked for where it will run
  write_text(dir.path / "job", "#!/bin/sh\ntrue\n");
  fs::permissions(dir.path / "job", fs::perms::owner_all);
  write_text(dir.path / "c.toml", "[job]\ndirectory = '" + dir.path.string() + "'\n");
  EXPECT_EQ(orrery("guard --state '" + (dir / "s2") + "' --config '" + (dir / "c.toml") + "' -- ./job").status, 0);
  // Found, and its interpreter is not
  write_text(dir.path / "job", "#!/nonexistent/interpreter\n");
  const Outcome o = orrery("guard --json --state '" + (dir / "s") + "' -- '" + (dir / "job") + "'");
  EXPECT_EQ(o.status, 1);
  EXPECT_EQ(answer(o)["state"], "failed");
  EXPECT_NE(o.err.find("cannot be started"), std::string::npos) << o.err;
}

TEST(CliGuardRun, StatusOfAnEmptyJournalIsNoJob) {
  const TempDir dir;
  fs::create_directory(dir.path / "s");
  write_text(dir.path / "s" / "journal.jsonl", "");
  const Outcome o = orrery("guard status '" + (dir / "s") + "'");
  EXPECT_EQ(o.status, 2);
  EXPECT_EQ(o.out, "");
  EXPECT_NE(o.err.find("no job was begun here"), std::string::npos) << o.err;
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  EXPECT_EQ(orrery("guard --state '" + (dir / "s") + "' -- true").status, 0) << "one may begin there";
}

TEST(CliGuardRun, MetricsMayBeWrittenIntoTheStateDirectory) {
  const TempDir dir;
  const Outcome o = orrery("guard --state '" + (dir / "s") + "' --metrics-file '{state}/m' --webhook " +
                           "http://127.0.0.1:1/hook -- true");
  EXPECT_EQ(o.status, 0) << o.err;
  const std::string text = read_file(dir.path / "s" / "m");
  const std::size_t at = text.find("orrery_guard_webhook_unsent_total{job=\"true\"} ");
  ASSERT_NE(at, std::string::npos) << text;
  EXPECT_GE(std::stoi(text.substr(text.find("} ", at) + 2)), 2) << "all posts, also the last";
}

}  // namespace
}  // namespace orrery::test
