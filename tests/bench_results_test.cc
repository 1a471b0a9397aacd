// What comes of a run: lines of workers, how it ended, the store, the search for the largest batch, comparisons.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "bench/analysis.h"
#include "bench/machine.h"
#include "bench/measure.h"
#include "bench/sweep.h"
#include "bench/worker_lines.h"

namespace orrery {
namespace {

struct Directory {
  std::string path;
  Directory() {
    std::string name = (std::filesystem::temp_directory_path() / "orrery-bench-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~Directory() {
    std::error_code ignored;  // what still writes there
    std::filesystem::remove_all(path, ignored);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
};

TEST(BenchLines, StepsMemoryAndWhatElseAWorkerSays) {
  const WorkerReport r = read_worker_lines(
      "loading\n"
      "{\"orrery_bench\": \"environment\", \"torch\": \"9\"}\n"
      "{\"orrery_bench\": \"step\", \"step\": 0, \"warmup\": true, \"ms\": 900}\n"
      "[rank0]: {\"orrery_bench\": \"step\", \"step\": 1, \"ms\": 10.5, \"cpu_ms\": 9}\n"
      "{\"orrery_bench\": \"step\", \"step\": 2, \"ms\": 11}\n"
      "{\"orrery_bench\": \"memory\", \"rank\": 0, \"device_peak_bytes\": 5, \"host_peak_bytes\": 100, "
      "\"host_base_bytes\": 30}\n"
      "{\"orrery_bench\": \"memory\", \"rank\": 1, \"device_peak_bytes\": 7, \"device_used_bytes\": 9, "
      "\"host_peak_bytes\": 50}\n"
      "{\"orrery_bench\": \"step\", \"ms\": -1}\n"
      "{\"orrery_bench\": \"step\", \"ms\": \"x\"}\n"
      "{\"orrery_bench\": \"step\", \"ms\": 1\n"
      "{\"orrery_bench\": \"done\"}");
  EXPECT_EQ(r.warm_steps, 1);
  ASSERT_EQ(r.steps.size(), 2u);
  EXPECT_EQ(r.steps[0].ms, 10.5);
  EXPECT_EQ(r.steps[0].cpu_ms, 9);
  EXPECT_FALSE(r.steps[1].cpu_ms);
  EXPECT_EQ(r.device_peak_bytes, 7);  // of the fullest rank
  EXPECT_EQ(r.device_used_bytes, 9);
  EXPECT_EQ(r.host_peak_bytes, 150);  // of all together
  EXPECT_EQ(r.host_base_bytes, 30);
  EXPECT_EQ(r.environment, "{\"torch\":\"9\"}");
  EXPECT_EQ(r.bad_lines, 3);
}

TEST(BenchLines, WhatCannotBeIsDroppedAndCounted) {
  const WorkerReport r = read_worker_lines(
      "{\"orrery_bench\": \"step\", \"ms\": 0}\n"
      "{\"orrery_bench\": \"step\", \"ms\": 5, \"cpu_ms\": -1}\n"
      "{\"orrery_bench\": \"memory\", \"host_peak_bytes\": 1e300}\n"
      "{\"orrery_bench\": \"memory\", \"device_peak_bytes\": \"much\"}\n"
      "{\"orrery_bench\": \"step\", \"ms\": 5, \"cpu_ms\": 0}\n"
      "{\"orrery_bench\": \"memory\", \"host_peak_bytes\": 7, \"device_peak_bytes\": null}\n");
  EXPECT_EQ(r.bad_lines, 4);
  EXPECT_EQ(r.first_bad, "{\"orrery_bench\": \"step\", \"ms\": 0}");
  ASSERT_EQ(r.steps.size(), 1u);
  EXPECT_EQ(r.host_peak_bytes, 7);
  EXPECT_FALSE(r.device_peak_bytes);
  const WorkerReport p =
      read_by_pattern("took 0 ms\ntook inf ms\ntook -3 ms\ntook x ms\ntook 2 ms\n", "took (.*) ms", 0);
  EXPECT_EQ(p.bad_lines, 4);
  EXPECT_EQ(p.steps.size(), 1u);
  EXPECT_EQ(read_logged_steps({{1, 0}, {2, 0.5}, {3, -1}}, 0).bad_lines, 1);  // -1: not told
}

TEST(BenchLines, LessThanAMicrosecondIsNoStepTime) {
  const WorkerReport r =
      read_worker_lines("{\"orrery_bench\": \"step\", \"ms\": 1e-7}\n{\"orrery_bench\": \"step\", \"ms\": 0.001}\n");
  EXPECT_EQ(r.bad_lines, 1);
  ASSERT_EQ(r.steps.size(), 1u);
  EXPECT_EQ(r.steps[0].ms, 0.001);
  EXPECT_EQ(read_by_pattern("took 0.0000001\n", "took (.*)", 0).bad_lines, 1);
  EXPECT_EQ(read_logged_steps({{1, 1e-9}, {2, 1e-6}}, 0).bad_lines, 1);
}

TEST(BenchLines, HowManyLinesReportedAStep) {
  const std::string output = "loading\n\nstep 1 took 5 ms\nstep 2 took 5 ms\n";
  EXPECT_EQ(who_reported(read_by_pattern(output, "step ([0-9]+)ms", 0), output, BenchCommand::Reports::pattern,
                         "step ([0-9]+)ms"),
            "0 of 3 lines of its output reported a step; expected what matches step_ms = 'step ([0-9]+)ms'");
  EXPECT_EQ(who_reported(read_by_pattern(output, "took ([0-9]+)", 1), output, BenchCommand::Reports::pattern, "")
                .substr(0, 14),
            "2 of 3 lines o");
  EXPECT_EQ(who_reported({}, "x\n", BenchCommand::Reports::lines, ""),
            "0 of 1 lines of its output reported a step; expected {\"orrery_bench\": \"step\", \"ms\": NUMBER}");
}

TEST(BenchLines, TheLastWordsOfALog) {
  EXPECT_EQ(last_words("a\nno such device\n=====\n\n{\"orrery_bench\": \"done\"}\n"), "no such device");
  EXPECT_EQ(last_words("\n---\n"), "");
  EXPECT_EQ(last_words("no end of line"), "no end of line");
}

TEST(BenchLines, APatternAndALogLeaveTheWarmUpOut) {
  const WorkerReport r =
      read_by_pattern("step time: 9 ms\nx\nstep time: 5.5 ms\nstep time: 6 ms\n", "step time: ([0-9.]+) ms", 1);
  ASSERT_EQ(r.steps.size(), 2u);
  EXPECT_EQ(r.steps[0].ms, 5.5);
  const WorkerReport l = read_logged_steps({{1, 0.9}, {2, -1}, {3, 0.5}}, 1);
  ASSERT_EQ(l.steps.size(), 1u);
  EXPECT_EQ(l.steps[0].ms, 500);
}

TEST(BenchLines, ABarThatIsDrawnAnewHasNoLineEnds) {
  const WorkerReport r =
      read_by_pattern("\rstep 1: 9 ms\rstep 2: 5 ms\rstep 3: 6 ms\n", "step [0-9]+: ([0-9.]+) ms", 1);
  ASSERT_EQ(r.steps.size(), 2u);
  EXPECT_EQ(r.steps[1].ms, 6);
}

RunRow judged(const WorkerReport& report, const Ending& ending, const FoundCause& cause = {}) {
  RunRow row;
  judge(report, ending, cause, 2, 30, 100, row);
  return row;
}

WorkerReport two_steps() {
  WorkerReport r;
  r.steps = {{0, 1.0}, {1, 1.0}};
  return r;
}

TEST(BenchJudge, EveryEndHasAStateAndAReason) {
  EXPECT_EQ(judged(two_steps(), {.exit = Exit{0, 0}}).state, RunState::done);
  EXPECT_EQ(judged(two_steps(), {.exit = Exit{1, 0}}).state, RunState::crashed);
  const RunRow early = judged({}, {.exit = Exit{0, 0}});
  EXPECT_EQ(early.state, RunState::crashed);
  EXPECT_EQ(early.reason, "it ended well after 0 of 2 steps");
  EXPECT_EQ(judged({}, {.exit = Exit{1, 0}}, {.reason = "Out of Memory Error"}).state, RunState::out_of_memory);
  EXPECT_EQ(judged({}, {.exit = Exit{0, SIGKILL}, .kernel_killed = true}).state, RunState::out_of_memory);
  const RunRow killed = judged({}, {.exit = Exit{0, SIGSEGV}});
  EXPECT_EQ(killed.state, RunState::crashed);
  EXPECT_NE(killed.reason.find("signal 11"), std::string::npos);
  EXPECT_EQ(judged({}, {.hung = true}).state, RunState::hang);
  EXPECT_EQ(judged(two_steps(), {.out_of_time = true}).reason, "2 of 2 steps in 100 s");
  WorkerReport missing;
  missing.missing = "deepspeed";
  EXPECT_EQ(judged(missing, {.exit = Exit{3, 0}}).state, RunState::missing_package);
  EXPECT_EQ(judged({}, {.exit = Exit{1, 0}},
                   {.reason = "Import Error", .root_cause = "ModuleNotFoundError: No module named 'apex'"})
                .state,
            RunState::missing_package);
  WorkerReport refused;
  refused.refused = "no GPU";
  EXPECT_EQ(judged(refused, {.exit = Exit{4, 0}}).state, RunState::refused);
  EXPECT_EQ(judged({}, {.exit = Exit{1, 0}, .scheduler = "time-limit"}).state, RunState::time_limit);
}

// Slurm forgot the job: what it reported tells.
TEST(BenchJudge, AnEndThatNobodyKnowsIsToldByTheReport) {
  EXPECT_EQ(judged(two_steps(), {.exit = Exit{-1, 0}}).state, RunState::done);
  const RunRow early = judged({}, {.exit = Exit{-1, 0}});
  EXPECT_EQ(early.state, RunState::crashed);
  EXPECT_EQ(early.reason, "it is gone after 0 of 2 steps");
}

// A run of operators has no steps: it is its table that counts.
TEST(BenchJudge, OperatorsAreDoneWithATable) {
  const RunRow all = judged({}, {.exit = Exit{0, 0}, .operators = 3});
  EXPECT_EQ(all.state, RunState::done);
  EXPECT_EQ(all.reason, "");
  const RunRow but = judged({}, {.exit = Exit{1, 0}, .operators = 3, .left_out = "asked-and-not-measured (1): gemm"});
  EXPECT_EQ(but.state, RunState::done);
  EXPECT_EQ(but.reason, "asked-and-not-measured (1): gemm");
  const RunRow none = judged({}, {.exit = Exit{0, 0}, .operators = 0});
  EXPECT_EQ(none.state, RunState::crashed);
  EXPECT_EQ(none.reason, "it ended well after 0 operators");
  EXPECT_EQ(none.advice, "");
  EXPECT_EQ(judged({}, {.exit = Exit{1, 0}, .operators = 0}).state, RunState::crashed);
  EXPECT_EQ(judged({}, {.exit = Exit{2, 0}, .operators = 3}).state, RunState::crashed);
  // Cancelled before it began: Slurm says 0:0.
  const RunRow cancelled = judged({}, {.exit = Exit{0, 0}, .scheduler = "cancelled", .operators = 0});
  EXPECT_EQ(cancelled.state, RunState::crashed);
  EXPECT_NE(cancelled.reason.find("cancelled"), std::string::npos);
}

TEST(BenchSearch, FindsTheLargestThatFits) {
  for (std::int64_t largest = 0; largest <= 40; ++largest)
    for (const std::int64_t first : {1, 7, 33}) {
      BatchSearch s;
      s.first = first;
      s.limit = 64;
      int tries = 0;
      while (const std::int64_t b = s.next()) {
        ASSERT_LT(++tries, 20);
        ASSERT_TRUE(b != s.fits && b != s.fails);
        s.tried(b, b <= largest);
      }
      EXPECT_EQ(s.fits, largest) << "from " << first;
    }
  BatchSearch all{.first = 5, .limit = 12};
  while (const std::int64_t b = all.next()) all.tried(b, true);
  EXPECT_EQ(all.fits, 12);
}

RunRow probe_of(std::int64_t batch, RunState state, const std::string& hash = "h") {
  RunRow r;
  r.kind = RunKind::probe, r.hash = hash, r.batch = batch, r.state = state;
  return r;
}

TEST(BenchSearch, WhatProbesSayAndWhetherALimitEndedThem) {
  RunRow run;
  run.hash = "h", run.batch = 4, run.state = RunState::done;
  std::vector<RunRow> rows = {probe_of(1, RunState::done), probe_of(4, RunState::done), probe_of(2, RunState::done),
                              probe_of(9, RunState::out_of_memory, "other")};
  EXPECT_EQ(known_batches(rows, "h").fit, (std::vector<std::int64_t>{1, 2, 4}));
  EXPECT_TRUE(ended_at_its_limit(run, rows));
  run.batch = 2;  // many steps needed more
  EXPECT_FALSE(ended_at_its_limit(run, rows));
  run.batch = 4;
  rows.push_back(probe_of(8, RunState::hang));
  EXPECT_TRUE(known_batches(rows, "h").cut);
  EXPECT_FALSE(ended_at_its_limit(run, rows));
  rows.push_back(probe_of(8, RunState::out_of_memory));
  EXPECT_FALSE(known_batches(rows, "h").cut);
  EXPECT_EQ(known_batches(rows, "h").fails, 8);
  EXPECT_FALSE(ended_at_its_limit(run, rows));
}

TEST(BenchMachine, DevicesThatARunSees) {
  using All = std::vector<std::size_t>;
  const std::vector<std::string> uuids = {"GPU-aa11", "GPU-bb22", "GPU-bc33"};
  EXPECT_EQ(visible_devices(nullptr, uuids), (All{0, 1, 2}));
  EXPECT_EQ(visible_devices("", uuids), All{});
  EXPECT_EQ(visible_devices("2,0", uuids), (All{2, 0}));
  EXPECT_EQ(visible_devices(" 1 , GPU-bc", uuids), (All{1, 2}));
  EXPECT_EQ(visible_devices("1,7,0", uuids), All{1});  // what is not there ends it
  EXPECT_EQ(visible_devices("-1", uuids), All{});
  EXPECT_EQ(visible_devices("MIG-aa11", uuids), All{});
}

TEST(BenchMachine, ACounterThatRanOverIsLeftOut) {
  EXPECT_EQ(joules_between({1e6, 2e6}, {4e6, 2e6}), 3);
  EXPECT_FALSE(joules_between({1e6, 2e6}, {4e6, 1e6}));
  EXPECT_FALSE(joules_between({1e6}, {4e6, 1e6}));
  EXPECT_FALSE(joules_between({}, {}));
}

RunRow row_of(const std::string& run, double ms, double sd = 0.1, RunKind kind = RunKind::run) {
  RunRow r;
  r.run = run;
  r.hash = run;
  r.kind = kind;
  r.state = RunState::done;
  r.batch = 1;
  r.step_ms = {100, ms, ms, sd};
  return r;
}

TEST(BenchStore, WhatIsFinishedComesBack) {
  const Directory dir;
  auto store = ResultStore::open(dir.path + "/s.db", true);
  ASSERT_TRUE(store) << store.error().line();
  RunRow r;
  r.run = "a", r.spec = "{}", r.hash = "h", r.directory = "d", r.host = "n", r.batch = 4;
  r.estimated_step_ms = 7;
  const auto id = store->begin(r);
  ASSERT_TRUE(id);
  ASSERT_TRUE(store->started(*id, {12, 34}, ""));
  EXPECT_EQ(store->rows()->front().state, RunState::running);
  r.id = *id;
  r.state = RunState::done;
  r.step_ms = times_of({1, 2, 6});
  r.device_power_w = 300;
  r.traced = 1;
  r.dropped = "1 line";
  ASSERT_TRUE(
      store->finish(r, {{0, 1, 0.5}, {1, 2, {}}, {2, 6, {}}}, "{\"x\":1}", {{"copy", "1 MiB", 7, {}, {}, 0.04}}));
  ASSERT_TRUE(store->add_shares(*id, 1, {{"phase", "forward", "", 1, 2, 30}}));
  const auto rows = store->rows();
  ASSERT_TRUE(rows);
  const RunRow& back = rows->front();
  EXPECT_EQ(back.state, RunState::done);
  EXPECT_EQ(back.step_ms.mean, 3);
  EXPECT_EQ(back.step_ms.median, 2);
  EXPECT_NEAR(back.step_ms.sd, 2.6457513, 1e-6);
  EXPECT_EQ(back.device_power_w, 300);
  EXPECT_FALSE(back.host_power_w);  // not readable is not zero
  EXPECT_EQ(back.dropped, "1 line");
  EXPECT_EQ(back.estimated_step_ms, 7);
  EXPECT_EQ(back.child.pid, 12);
  EXPECT_EQ(back.environment, 1);
  EXPECT_EQ(store->steps(*id)->size(), 3u);
  EXPECT_EQ(store->shares()->front().second.pct, 30);
  EXPECT_EQ(store->operators()->front().second.us, 7);
  EXPECT_EQ(store->operators()->front().second.spread, 0.04);
  EXPECT_EQ(store->environments()->front().second, "{\"x\":1}");
  EXPECT_FALSE(ResultStore::open(dir.path + "/none.db", false));
}

// As it was before it had lines that were dropped.
TEST(BenchStore, AnOlderStoreIsRead) {
  const Directory dir;
  {
    auto store = ResultStore::open(dir.path + "/s.db", true);
    ASSERT_TRUE(store) << store.error().line();
    RunRow r;
    r.run = "a", r.spec = "{}", r.hash = "h", r.directory = "d", r.host = "n";
    ASSERT_TRUE(store->begin(r));
    StoreTerms terms{.application = 0x6f726263, .create = false};
    ASSERT_TRUE(Store::open(dir.path + "/s.db", terms)->run("drop table dropped; drop table operator_spreads"));
  }
  for (const bool writes : {false, true}) {
    const auto store = ResultStore::open(dir.path + "/s.db", writes);
    ASSERT_TRUE(store) << store.error().line();
    ASSERT_EQ(store->rows().value().size(), 1u);
    EXPECT_EQ(store->rows()->front().dropped, "");
    EXPECT_TRUE(store->operators()->empty());
  }
}

// The runner was killed before it said that a batch of its search failed after all.
TEST(BenchStore, ALargestBatchThatFailedIsNoResult) {
  const Directory dir;
  auto store = ResultStore::open(dir.path + "/s.db", true);
  ASSERT_TRUE(store) << store.error().line();
  for (const std::int64_t asked : {0, 6}) {
    BenchRun run;
    run.batch = asked;
    RunRow r;
    r.run = run.id(), r.spec = spec_of({}, run), r.hash = hash_of(r.spec), r.directory = "d", r.host = "n", r.batch = 6;
    r.id = store->begin(r).value();
    r.state = RunState::out_of_memory;
    ASSERT_TRUE(store->finish(r, {}, ""));
  }
  ASSERT_TRUE(settle_interrupted(*store));
  const auto rows = store->rows().value();
  EXPECT_EQ(rows[0].state, RunState::interrupted);
  EXPECT_EQ(rows[1].state, RunState::out_of_memory);  // this batch was asked for
}

RunRow begun(ResultStore& store, const std::string& directory) {
  RunRow r;
  r.run = "a", r.spec = "{}", r.hash = "h", r.directory = directory, r.host = host_name(), r.batch = 1;
  r.id = store.begin(r).value();
  return r;
}

// After a reboot the number of a session is another's: only while its leader lives is it known to be the run's.
TEST(BenchStore, ASessionWhoseLeaderIsGoneIsLeftAlone) {
  const Directory dir;
  auto store = ResultStore::open(dir.path + "/s.db", true);
  ASSERT_TRUE(store) << store.error().line();
  const auto others = start_child({.argv = {"sh", "-c", "sleep 1000 & exit 0"}});
  ASSERT_TRUE(others);
  ASSERT_TRUE(wait_child(*others, 60));
  const RunRow r = begun(*store, dir.path);
  ASSERT_TRUE(store->started(r.id, {others->pid, others->started + 1}, ""));
  ASSERT_TRUE(settle_interrupted(*store));
  EXPECT_EQ(store->rows()->front().state, RunState::interrupted);
  EXPECT_EQ(session_members(others->pid).size(), 1u);
  EXPECT_TRUE(stop_session(*others, 0));
}

// As the row says, whatever the matrix says now of Slurm.
TEST(BenchStore, ARunOfThisMachineIsEndedHere) {
  const Directory dir;
  auto store = ResultStore::open(dir.path + "/s.db", true);
  ASSERT_TRUE(store) << store.error().line();
  const auto child = start_child({.argv = {"sleep", "1000"}, .environment = {{kRunVariable, dir.path}}});
  ASSERT_TRUE(child);
  const RunRow r = begun(*store, dir.path);
  ASSERT_TRUE(store->started(r.id, *child, ""));
  ASSERT_TRUE(settle_interrupted(*store));
  EXPECT_FALSE(is_alive(*child));
  EXPECT_EQ(store->rows()->front().state, RunState::interrupted);
  (void)wait_child(*child, 60);
}

// A program that goes on for so many looks and says two steps at its end.
class Played final : public Execution {
 public:
  Played(int looks, std::string left) : looks_(looks), left_(std::move(left)) {}
  Status start(const RunLaunch&, const std::string& directory) override {
    std::ofstream(directory + "/stdout.log") << "took 1\ntook 1\n";
    return {};
  }
  std::optional<Exit> poll() override { return looks_-- > 0 ? std::nullopt : std::optional(Exit{0, 0}); }
  std::string stop() override { return left_; }
  bool paused() const override { return true; }

 private:
  int looks_;
  std::string left_;
};

RunOutcome played(ResultStore& store, const std::string& directory, int looks, const std::string& left) {
  BenchConfig c;
  c.path = "m.toml";
  c.time_limit_s = c.silence_limit_s = 0.1;
  BenchCommand k;
  k.name = "mine", k.argv = {"x"}, k.reports = BenchCommand::Reports::pattern, k.step_ms = "took ([0-9]+)";
  c.commands = {k};
  BenchRun run;
  run.framework = BenchFramework::command, run.command = "mine";
  BenchReaders readers;
  readers.diagnose = [](const std::vector<std::string>&) -> Result<FoundCause> { return FoundCause{}; };
  RunTerms terms;
  terms.readers = &readers;
  terms.start = [&] { return std::make_unique<Played>(looks, left); };
  auto m = measure(c, run, {.batch = 1, .steps = 2}, begun(store, directory), store, terms);
  EXPECT_TRUE(m) << m.error().line();
  return m ? *m : RunOutcome{};
}

// Suspended, or its nodes cleaned up after it: no limit counts that.
TEST(BenchMeasure, TimeInWhichItMayNotRunIsNoHang) {
  const Directory dir;
  auto store = ResultStore::open(dir.path + "/s.db", true);
  ASSERT_TRUE(store) << store.error().line();
  const RunOutcome m = played(*store, dir.path, 8, "");  // 0.4 s and more, against limits of 0.1 s
  EXPECT_EQ(m.row.state, RunState::done) << m.row.reason;
  EXPECT_EQ(store->rows()->front().state, RunState::done);
}

// It holds its devices still: the next runner ends it first.
TEST(BenchMeasure, WhatCannotBeEndedStaysRunning) {
  const Directory dir;
  auto store = ResultStore::open(dir.path + "/s.db", true);
  ASSERT_TRUE(store) << store.error().line();
  EXPECT_EQ(played(*store, dir.path, 0, "process 7").left, "process 7");
  EXPECT_EQ(store->rows()->front().state, RunState::running);
}

// Ranks that torchrun starts are in sessions of their own.
TEST(BenchMachine, MemoryOfOtherSessionsCounts) {
  const Directory dir;
  const auto first = start_child({.argv = {"sleep", "1000"}, .environment = {{kRunVariable, dir.path}}});
  const auto second = start_child({.argv = {"sleep", "1000"}, .environment = {{kRunVariable, dir.path}}});
  ASSERT_TRUE(first && second);
  const auto peak = [&](const std::string& mark) {
    Sampler sampler(*first, {kRunVariable, mark}, nullptr, {});
    sampler.sample();
    return sampler.result().host_peak_bytes.value_or(0);
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  bool both = false;  // each has loaded its libraries
  while (!both && std::chrono::steady_clock::now() < end) both = peak(dir.path) > 1.5 * peak("none");
  EXPECT_TRUE(both);
  for (const auto& child : {*first, *second}) EXPECT_TRUE(stop_session(child, 0));
}

TEST(BenchLock, OneRunnerAtATime) {
  const Directory dir;
  {
    const auto first = RunnerLock::take(dir.path);
    ASSERT_TRUE(first);
    const auto second = RunnerLock::take(dir.path);
    ASSERT_FALSE(second);
    EXPECT_NE(second.error().what.find(std::to_string(::getpid())), std::string::npos);
  }
  EXPECT_TRUE(RunnerLock::take(dir.path));
}

TEST(BenchAnalysis, SlowerBeyondTheNoise) {
  // Medians of 100 steps with a deviation of 1 vary by 0.125: three times both together are 0.53 % of 100 ms, so 3 %
  // decide.
  const std::vector<RunRow> before = {row_of("a", 100, 1), row_of("b", 100, 1),  row_of("c", 100, 1),
                                      row_of("d", 100),    row_of("e", 100, 40), row_of("only", 1)};
  std::vector<RunRow> now = {row_of("a", 102, 1), row_of("b", 104, 1), row_of("c", 90, 1), row_of("d", 1),
                             row_of("e", 110, 40)};
  now[3].state = RunState::crashed;
  const auto c = compare({before}, {now});
  ASSERT_EQ(c.size(), 6u);
  EXPECT_EQ(c[0].change, Change::same);
  EXPECT_EQ(c[1].change, Change::slower);
  EXPECT_EQ(c[2].change, Change::faster);
  EXPECT_EQ(c[3].change, Change::fails_now);
  EXPECT_EQ(c[4].change, Change::same);  // its steps vary by 40 %
  EXPECT_EQ(c[5].change, Change::only_old);
  EXPECT_TRUE(c[5].is_gone());
  EXPECT_FALSE(c[3].is_gone());
  EXPECT_NEAR(c[1].change_pct, 4, 1e-9);
}

TEST(BenchAnalysis, OperatorsAreComparedOneByOne) {
  RunRow run;
  run.id = 1, run.run = "operators/g1", run.state = RunState::done;
  StoredResults before{{run}, {{1, {"copy", "1 MiB", 10}}, {1, {"gemm", "64", 4}}, {1, {"add", "1 MiB", 3}}}}, now;
  run.id = 7;
  now = {{run}, {{6, {"copy", "1 MiB", 99}}, {7, {"copy", "1 MiB", 20}}, {7, {"gemm", "64", 4.2}}}};
  auto c = compare(before, now);
  ASSERT_EQ(c.size(), 4u);
  EXPECT_EQ(c[0].change, Change::slower);  // the run itself, since one of its operators is
  EXPECT_EQ(c[1].operation, "add");
  EXPECT_TRUE(c[1].is_gone());
  EXPECT_EQ(c[2].operation, "copy");
  EXPECT_EQ(c[2].change, Change::slower);
  EXPECT_NEAR(c[2].change_pct, 100, 1e-9);
  EXPECT_EQ(c[3].change, Change::same);  // 5 %
  now.operators[1].second.spread = 0.4;  // its batches vary as much
  c = compare(before, now);
  EXPECT_EQ(c[0].change, Change::same);
  EXPECT_EQ(c[2].change, Change::same);
  EXPECT_NEAR(c[2].allowed_pct, 120, 1e-9);
  now.rows[0].state = RunState::crashed;
  EXPECT_EQ(compare(before, now)[0].change, Change::fails_now);
  EXPECT_EQ(compare(now, before)[0].change, Change::works_now);
  EXPECT_TRUE(compare(before, {})[0].is_gone());
}

TEST(BenchAnalysis, ANoisyMachineAllowsMore) {
  std::vector<RunRow> before = {row_of("a", 100), row_of("r", 100)}, now = {row_of("a", 110), row_of("r", 100)};
  EXPECT_EQ(compare({before}, {now})[0].change, Change::slower);
  for (const double ms : {90.0, 110.0}) now.push_back(row_of("r", ms, 0.1, RunKind::reference));
  EXPECT_EQ(compare({before}, {now})[0].change, Change::same);  // the reference varies by 10 %
}

TEST(BenchAnalysis, TheNewestResultCounts) {
  std::vector<RunRow> rows = {row_of("a", 1), row_of("a", 2), row_of("a", 3)};
  rows[2].state = RunState::interrupted;
  const auto n = newest(rows);
  ASSERT_EQ(n.size(), 1u);
  EXPECT_EQ(n[0].step_ms.median, 2);
}

TEST(BenchAnalysis, DriftIsTheReferencesChange) {
  std::vector<RunRow> rows = {row_of("r", 100)};
  EXPECT_TRUE(noise_of(rows).series.empty());
  rows.push_back(row_of("r", 101, 0.1, RunKind::reference));
  EXPECT_FALSE(noise_of(rows).drifts);
  rows.push_back(row_of("r", 112, 0.1, RunKind::reference));
  const NoiseCheck n = noise_of(rows);
  EXPECT_TRUE(n.drifts);
  EXPECT_NEAR(n.drift, 0.12, 1e-9);
  EXPECT_EQ(n.series.size(), 3u);
}

}  // namespace
}  // namespace orrery
