// orrery evals run: everything scored once, whatever fails.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "evals_fixture.h"
#include "processes/child.h"

namespace orrery::test {
namespace {

using Json = nlohmann::json;

// A coordinator that the test can kill.
Child begin(Evaluation& e, const std::vector<std::string>& options = {}, const std::string& output = "out") {
  ChildTerms terms;
  terms.argv = {ORRERY_BINARY, "evals", "run", e.config(), "--json"};
  terms.argv.insert(terms.argv.end(), options.begin(), options.end());
  terms.output = e.dir / output;
  terms.errors = e.dir / "err";
  const auto child = start_child(terms);
  EXPECT_TRUE(child) << child.error().line();
  return *child;
}

template <class Done>
bool eventually(Done done, double seconds = 60) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

// Processes with that in their command lines: those that work on a job of this evaluation.
std::vector<pid_t> jobs_of(const Evaluation& e, const std::string& below = "/state/jobs/") {
  std::vector<pid_t> pids;
  for (const auto& p : fs::directory_iterator("/proc")) {
    const std::string name = p.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string line = read_file(p.path() / "cmdline");
    if (line.find(e.dir.path.string() + below) != std::string::npos) pids.push_back(std::stoi(name));
  }
  return pids;
}

// Also those that still look like the coordinator that forked them.
void kill_jobs_of(const Evaluation& e) {
  EXPECT_TRUE(eventually([&] {
    const auto pids = jobs_of(e, "/");
    for (const pid_t pid : pids) ::kill(pid, SIGKILL);
    return pids.empty();
  }));
}

TEST(CliEvalsRun, EveryDatasetIsScoredAndTheModelIsLoadedOnce) {
  Evaluation e;
  e.plain(6, 40);
  e.datasets.push_back("name = \"one\"\nitems = 60\nitem_s = 0.01\nmetric_s = 0.1\nmetric_by_item = true\n");
  Json d = e.answer();
  for (int i = 1; i <= 6; ++i) EXPECT_EQ(d["scores"]["step-1"]["d" + std::to_string(i)]["items"], 40);
  EXPECT_EQ(d["scored"], 7);
  EXPECT_GT(d["makespan_s"], 0);
  EXPECT_GT(d["lower_bound_s"], 0);
  std::set<std::string> models;
  int loads = 0;
  for (const std::string& m : e.lines("models")) models.insert(m);
  ASSERT_EQ(models.size(), 1u);
  EXPECT_EQ(models.begin()->rfind(e.dir / "memory", 0), 0u) << *models.begin();
  for (const auto& job : fs::directory_iterator(e.dir / "state/jobs"))
    if (const std::string r = read_file(job.path() / "result.json"); !r.empty())
      loads += Json::parse(r)["loaded_here"] == true;
  EXPECT_EQ(loads, 1);
  EXPECT_TRUE(e.memory_is_empty());
  const std::size_t done = e.lines("completed").size(), scored = e.lines("scored").size();
  Json again = e.answer();
  EXPECT_EQ(again["scores"], d["scores"]);
  EXPECT_EQ(e.lines("completed").size(), done) << "nothing runs twice";
  EXPECT_EQ(e.lines("scored").size(), scored);
}

TEST(CliEvalsRun, PeopleSeeOneTableOfScores) {
  Evaluation e;
  e.plain(2, 10);
  const Outcome o = orrery("evals run '" + e.config() + "'");
  ASSERT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.out.rfind("Scores\n", 0), 0u);
  EXPECT_NE(o.out.find("m      step-1      d1       items  10.0000     10  scored"), std::string::npos) << o.out;
}

// Kills the coordinator at random moments until an evaluation is done; the kills.
int killed_to_the_end(std::mt19937& random) {
  Evaluation e;
  e.plain(8, 40);
  int kills = 0;
  for (;;) {
    fs::remove(e.dir / "out");
    const Child c = begin(e);
    const double wait = kills >= 25 ? 60 : std::uniform_real_distribution<>(0, 0.12)(random);
    if (wait_child(c, wait)) break;
    ::kill(c.pid, SIGKILL);
    EXPECT_TRUE(wait_child(c, 30));
    if (++kills > 300) break;
  }
  EXPECT_EQ(read_file(e.dir / "err"), "");
  Json d = Json::parse(read_file(e.dir / "out"), nullptr, false);
  expect_scored_once(d, "step-1", 8, 40);
  std::vector<std::string> completed = e.lines("completed"), scored = e.lines("scored");
  std::sort(completed.begin(), completed.end());
  EXPECT_EQ(std::adjacent_find(completed.begin(), completed.end()), completed.end()) << "a finished piece ran twice";
  EXPECT_EQ(scored.size(), 8u) << "a metric ran twice";
  EXPECT_TRUE(eventually([&] { return jobs_of(e).empty(); }));
  EXPECT_TRUE(e.memory_is_empty());
  return kills;
}

TEST(CliEvalsRun, KilledAtManyMoments) {
  std::mt19937 random(7);
  int kills = 0;
  while (kills < 12 && !HasFailure()) kills += killed_to_the_end(random);  // one is over the sooner the faster this is
}

TEST(CliEvalsRun, KilledWithItsJobsAtManyMoments) {
  Evaluation e;
  e.plain(6, 40);
  e.trial += "retries = 20\n";
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    fs::remove(e.dir / "out");
    const Child c = begin(e);
    std::optional<Exit> exit;
    for (int k = 0; k < 4 && !exit; ++k) {
      exit = wait_child(c, std::uniform_real_distribution<>(0, 0.15)(random));
      const auto jobs = jobs_of(e);
      if (!jobs.empty() && round < 8) ::kill(jobs[random() % jobs.size()], SIGKILL);
    }
    if (!exit && round >= 8) exit = wait_child(c, 60);
    if (exit && (exit->good() || round >= 8)) break;
    if (exit) continue;  // one metric was killed too often
    ::kill(c.pid, SIGKILL);
    ASSERT_TRUE(wait_child(c, 30));
  }
  Json d = Json::parse(read_file(e.dir / "out"));
  expect_scored_once(d, "step-1", 6, 40);
  EXPECT_TRUE(eventually([&] { return jobs_of(e).empty(); }));
  EXPECT_TRUE(e.memory_is_empty());
}

TEST(CliEvalsRun, AProgramThatIsNotThereStopsAtOnce) {
  Evaluation e;
  e.plain(30, 10);
  e.inference = "command = [\"./no-such-program\", \"{model}\", \"{output...}\"]\n";
  Json d = e.answer(1);
  EXPECT_LE(d["trials"].size(), 4u);
  EXPECT_TRUE(has_note(d, "dataset-not-tried"));
  EXPECT_NE(d["results"][29]["why"].get<std::string>().find("cannot start"), std::string::npos) << d["results"][29];
}

TEST(CliEvalsRun, ADatasetThatIsTakenOutInMidTrialDoesNotMatter) {
  Evaluation e;
  e.plain(3, 20);
  e.cluster = "gpus_per_node = 1\n";
  e.inference += "dumped = \"{outputs}/{task}-0-20.out\"\n";
  write_text(e.dir / "hang-d3", "");
  const Child c = begin(e);
  ASSERT_TRUE(eventually([&] { return e.lines("completed").size() == 2; })) << read_file(e.dir / "err");
  ::kill(c.pid, SIGKILL);
  ASSERT_TRUE(wait_child(c, 30));
  kill_jobs_of(e);
  fs::remove(e.dir / "hang-d3");
  e.datasets.erase(e.datasets.begin() + 1);
  Json d = e.answer();
  EXPECT_EQ(d["scored"], 2);
  EXPECT_EQ(d["scores"]["step-1"]["d1"]["items"], 20);
  EXPECT_EQ(d["scores"]["step-1"]["d3"]["items"], 20);
}

TEST(CliEvalsRun, ABadCommandIsNotTriedOverAndOver) {
  Evaluation e;
  e.plain(40, 10);
  for (int i = 1; i <= 40; ++i)
    write_text(e.dir / ("fail-d" + std::to_string(i)),
               "Traceback (most recent call last):\n  File \"e.py\", line 3, in <module>\n    import lm\n"
               "ModuleNotFoundError: No module named 'lm'\n");
  Json d = e.answer(1);
  EXPECT_LE(d["trials"].size(), 12u);
  EXPECT_EQ(d["trials"][0]["kind"], "Import Error");
  EXPECT_TRUE(has_note(d, "dataset-not-tried"));
  for (int i = 1; i <= 40; ++i) fs::remove(e.dir / ("fail-d" + std::to_string(i)));
  expect_scored_once(e.answer(), "step-1", 40, 10);  // mended: what was given up gets another chance
}

TEST(CliEvalsRun, WhatFailsIsTriedElsewhereAndSpoilsNoOther) {
  Evaluation e;
  e.plain(5, 20);
  write_text(e.dir / "fail-d2", "worker died\n");
  Json d = e.answer(1);
  EXPECT_EQ(d["scored"], 4);
  std::set<int> gpus;
  int tries = 0;
  for (const auto& t : d["trials"])
    if (t["state"] == "failed") {
      ++tries;
      gpus.insert(t["gpu"].get<int>());
    }
  EXPECT_EQ(tries, 3) << "two retries";
  EXPECT_EQ(gpus.size(), 3u) << "each on another GPU";
  EXPECT_TRUE(has_note(d, "dataset-failed"));
}

// Import errors come again wherever a trial runs; "Killed" may be the memory that others had then.
TEST(CliEvalsRun, OnlyASureCauseEndsADatasetForGood) {
  Evaluation e;
  e.plain(3, 20);
  write_text(e.dir / "fail-d2", "Killed\n");
  write_text(e.dir / "fail-d3", "ModuleNotFoundError: No module named 'lm'\n");
  Json d = e.answer(1);
  std::map<std::string, int> tries;
  for (const auto& t : d["trials"]) ++tries[t["kind"].get<std::string>()];
  EXPECT_EQ(tries["Out of Memory Error"], 3) << d["trials"].dump(1);
  EXPECT_EQ(tries["Import Error"], 1) << d["trials"].dump(1);
}

TEST(CliEvalsRun, AMetricThatHangsIsEndedAndTheOthersGoOn) {
  Evaluation e;
  e.plain(3, 20);
  e.trial += "retries = 1\n";
  e.metric += "limit_s = 2\n";
  write_text(e.dir / "metric-hang-d2", "");
  Json d = e.answer(1);
  EXPECT_EQ(d["scored"], 2);
  EXPECT_NE(d["results"][1]["why"].get<std::string>().find("time limit"), std::string::npos) << d["results"];
  int tries = 0;
  for (const auto& m : d["metrics"]) tries += m["dataset"] == "d2";
  EXPECT_EQ(tries, 2);
  EXPECT_TRUE(eventually([&] { return jobs_of(e).empty(); }));  // a job tells its result, and ends then
  fs::remove(e.dir / "metric-hang-d2");
  EXPECT_EQ(e.answer()["scored"], 3);
}

TEST(CliEvalsRun, ATrialThatHangsIsEnded) {
  Evaluation e;
  e.plain(3, 20);
  e.trial += "retries = 0\nlimit_s = 5\n";
  write_text(e.dir / "hang-d3", "");
  Json d = e.answer(1);
  EXPECT_EQ(d["scored"], 2);
  EXPECT_NE(d["results"][2]["why"].get<std::string>().find("time limit"), std::string::npos) << d["results"];
}

TEST(CliEvalsRun, TwoCoordinatorsAreOneTooMany) {
  Evaluation e;
  e.plain(2, 20);
  write_text(e.dir / "hang-d1", "");
  const Child first = begin(e);
  ASSERT_TRUE(eventually([&] { return fs::exists(e.dir / "models"); }));
  const Outcome o = e.run();
  EXPECT_EQ(o.status, 2);
  EXPECT_NE(o.err.find("another coordinator works here (process " + std::to_string(first.pid) + " on "),
            std::string::npos)
      << o.err;
  ::kill(first.pid, SIGTERM);
  ASSERT_TRUE(wait_child(first, 60));
  EXPECT_TRUE(jobs_of(e).empty()) << "told to stop, it stops its jobs";
  EXPECT_TRUE(has_note(Json::parse(read_file(e.dir / "out")), "stopped"));
  fs::remove(e.dir / "hang-d1");
  expect_scored_once(e.answer(), "step-1", 2, 20);
}

TEST(CliEvalsRun, ToldToStopWhileTheModelIsLoadedTheJobsHearIt) {
  Evaluation e;
  e.plain(3, 20);
  e.inference += "several = false\n";
  e.cluster += "load_bytes_per_s = 400000\n";  // 100 s
  write_text(e.dir / "checkpoints/step-1/weights", std::string(40'000'000, 'w'));
  const Child c = begin(e);
  std::vector<fs::path> jobs;
  ASSERT_TRUE(eventually([&] {
    jobs.clear();
    std::error_code not_yet;
    for (const auto& job : fs::directory_iterator(e.dir / "state/jobs", not_yet))
      if (fs::exists(job.path() / "owner")) jobs.push_back(job.path());
    return jobs.size() >= 3;
  })) << read_file(e.dir / "err");
  ::kill(c.pid, SIGTERM);
  ASSERT_TRUE(wait_child(c, 90));
  for (const fs::path& job : jobs) {
    const Json result = Json::parse(read_file(job / "result.json"), nullptr, false);
    ASSERT_TRUE(result.is_object()) << "killed: " << job;
    EXPECT_EQ(result["stopped"], true);
  }
  EXPECT_TRUE(e.memory_is_empty());
  const Json answer = Json::parse(read_file(e.dir / "out"));
  EXPECT_GT(answer["trials"].size(), 0u);
  for (const auto& t : answer["trials"]) EXPECT_EQ(t["kind"], "stopped");
}

TEST(CliEvalsRun, ACheckpointThatIsStillBeingWrittenIsWaitedFor) {
  Evaluation e;
  e.plain(2, 20);
  e.model = "settle_s = 0.3\n";
  e.inference = "command = [\"sh\", \"infer2.sh\", \"{model}\", \"{output...}\"]\n";
  write_text(e.dir / "infer2.sh",
             "test $(wc -c < \"$1/model.safetensors\") = 94 && touch whole\nshift\nfor o in \"$@\"; do "
             "basename $o .out > $o.tmp; mv $o.tmp $o; done\n");
  fs::remove_all(e.dir / "checkpoints/step-1");
  // The length of the header, the header, 30 bytes.
  std::string file(8, '\0');
  file[0] = 56;
  file += R"({"w":{"dtype":"U8","shape":[30],"data_offsets":[0,30]}} )";
  file += std::string(30, 'x');
  ASSERT_EQ(file.size(), 94u);
  fs::create_directories(e.dir / "checkpoints/step-2");
  write_text(e.dir / "checkpoints/step-2/model.safetensors", file.substr(0, 70));
  const Child c = begin(e, {"--watch"});
  std::this_thread::sleep_for(std::chrono::milliseconds(900));
  EXPECT_FALSE(fs::exists(e.dir / "whole"));
  write_text(e.dir / "checkpoints/step-2/model.safetensors", file);
  const auto ended = [&] {  // both metrics, so that the signal stops none
    std::error_code ignored;
    int results = 0;
    for (const auto& job : fs::directory_iterator(e.dir / "state/jobs", ignored))
      results += job.path().filename().string().rfind("metric", 0) == 0 && fs::exists(job.path() / "result.json");
    return results == 2;
  };
  ASSERT_TRUE(eventually(ended)) << read_file(e.dir / "err");
  EXPECT_TRUE(fs::exists(e.dir / "whole"));
  ::kill(c.pid, SIGTERM);
  ASSERT_TRUE(wait_child(c, 60));
  expect_scored_once(Json::parse(read_file(e.dir / "out")), "step-2", 2, 20);
}

TEST(CliEvalsRun, WhatIsNeverCompleteIsToldNotEvaluated) {
  Evaluation e;
  e.plain(1, 20);
  fs::create_directories(e.dir / "checkpoints/step-2");
  write_text(e.dir / "checkpoints/step-2/model.safetensors", "short");
  Json d = e.answer(1);
  expect_scored_once(d, "step-1", 1, 20);
  EXPECT_TRUE(has_note(d, "checkpoint-incomplete"));
}

TEST(CliEvalsRun, ACheckpointThatVanishesIsFinishedFromMemory) {
  Evaluation e;
  e.plain(12, 20);
  e.inference =
      "command = [\"sh\", \"-c\", \"rm -rf checkpoints/step-1; exec sh infer.sh \\\"$@\\\"\", \"sh\", \"{model}\", "
      "\"{output...}\"]\n";
  expect_scored_once(e.answer(), "step-1", 12, 20);
  EXPECT_TRUE(e.memory_is_empty());
}

TEST(CliEvalsRun, WithoutMemoryTrialsReadStorageAndAVanishedCheckpointIsTold) {
  Evaluation e;
  e.plain(3, 20);
  e.cluster += "shared_memory_gb = 0.00001\n";
  Json d = e.answer();
  expect_scored_once(d, "step-1", 3, 20);
  EXPECT_TRUE(has_note(d, "memory-full"));
  for (const std::string& m : e.lines("models")) EXPECT_EQ(m, e.dir / "checkpoints/step-1");

  fs::remove_all(e.dir / "state");
  e.datasets.clear();
  e.plain(12, 20);
  e.cluster = "gpus_per_node = 1\nshared_memory_gb = 0.00001\n";
  e.inference =
      "command = [\"sh\", \"-c\", \"sh infer.sh \\\"$@\\\"; rm -rf checkpoints/step-1\", \"sh\", \"{model}\", "
      "\"{output}\"]\nseveral = false\n";
  Json gone = e.answer(1);
  EXPECT_EQ(gone["scored"], 1);
  EXPECT_TRUE(has_note(gone, "checkpoint-vanished"));
}

TEST(CliEvalsRun, AFullMemoryCanBeAReasonToStop) {
  Evaluation e;
  e.plain(20, 20);
  e.cluster += "shared_memory_gb = 0.00001\nwhen_full = \"stop\"\n";
  Json d = e.answer(1);
  EXPECT_LE(d["trials"].size(), 4u);
  EXPECT_NE(d["results"][19]["why"].get<std::string>().find("no room"), std::string::npos) << d["results"][19];
}

TEST(CliEvalsRun, WhatACrashLeftInMemoryIsTakenAway) {
  Evaluation e;
  e.plain(2, 20);
  write_text(e.dir / "hang-d1", "");
  const Child c = begin(e);
  ASSERT_TRUE(eventually([&] { return fs::exists(e.dir / "models"); }));
  ::kill(c.pid, SIGKILL);
  ASSERT_TRUE(wait_child(c, 30));
  kill_jobs_of(e);
  EXPECT_FALSE(e.memory_is_empty());
  fs::remove(e.dir / "hang-d1");
  fs::remove_all(e.dir / "state");  // nobody remembers that checkpoint
  fs::rename(e.dir / "checkpoints/step-1", e.dir / "checkpoints/step-2");
  Json d = e.answer();
  EXPECT_TRUE(has_note(d, "copies-left-behind"));
  EXPECT_TRUE(e.memory_is_empty());
}

TEST(CliEvalsRun, MeasuredTimesAreThePriorsOfTheNextPlan) {
  Evaluation e;
  e.datasets = {"name = \"a\"\nitems = 10\n", "name = \"b\"\nitems = 20\n"};
  e.model += "size_gb = 0.001\n";
  const std::string plan = "evals plan '" + e.config() + "' --json";
  EXPECT_TRUE(has_note(Json::parse(orrery(plan).out), "no-prior"));
  e.answer();
  Json d = Json::parse(orrery(plan).out);
  EXPECT_FALSE(has_note(d, "no-prior"));
  EXPECT_LT(d["makespan_s"], 20) << "10 s and 20 s were the defaults; 0.1 s are true";
}

TEST(CliEvalsRun, TheStateOfOtherDatasetsIsRefused) {
  Evaluation e;
  e.plain(1, 20);
  e.answer();
  e.datasets = {"name = \"d1\"\nitems = 30\n"};
  const Outcome o = e.run();
  EXPECT_EQ(o.status, 2);
  EXPECT_NE(o.err.find("dataset d1 was 20 items and is 30 items"), std::string::npos) << o.err;
}

TEST(CliEvalsRun, ScoresComeFromAFileAsWell) {
  Evaluation e;
  e.plain(1, 20);
  e.metric =
      "command = [\"sh\", \"-c\", \"echo '{\\\"all\\\": {\\\"d1\\\": {\\\"acc\\\": 0.5, \\\"n\\\": \\\"x\\\"}}}' > "
      "$1; echo talk\", \"sh\", \"{scores}\"]\nscores_at = \"/all/{dataset}\"\n";
  EXPECT_EQ(e.answer()["scores"]["step-1"]["d1"], Json::parse(R"({"acc": 0.5})"));
}

// Programs that leave what the suites leave.
TEST(CliEvalsRun, TheTemplatesFitWhatTheSuitesWrite) {
  Evaluation e;
  const std::string path = "PATH='" + (e.dir / "bin") + "':\"$PATH\" ";
  fs::create_directories(e.dir / "bin");
  e.datasets = {"name = \"gsm8k\"\nitems = 30\nitem_s = 0.01\ntask = \"gsm8k_gen\"\n",
                "name = \"mmlu\"\nitems = 30\nitem_s = 0.01\ntask = \"mmlu_gen\"\n"};
  write_text(e.dir / "bin/opencompass", R"(#!/bin/sh
while test $# -gt 0; do
  case $1 in
    --datasets) shift; while test "${1#--}" = "$1"; do tasks="$tasks $1"; shift; done; continue;;
    --work-dir) work=$2; shift;;
    --mode) mode=$2; shift;;
    --hf-path) test -f "$2/weights" || test $mode = eval || exit 9; shift;;
  esac; shift
done
for t in $tasks; do
  if test $mode = infer; then mkdir -p $work/20260101_000000/predictions/m_hf; echo '{}' > $work/20260101_000000/predictions/m_hf/${t%_gen}.json
  else mkdir -p $work/20260101_000000/results/m_hf; echo '{"accuracy": 41.5}' > $work/20260101_000000/results/m_hf/${t%_gen}.json; fi
done
)");
  write_text(e.dir / "bin/lm-eval", R"(#!/bin/sh
while test $# -gt 0; do
  case $1 in --tasks) tasks=$2;; --output_path) out=$2;; --samples) cat "$2" >> samples;; esac; shift
done
mkdir -p $out/m; echo '{"results": {' > $out/m/results_2026.json
for t in $(echo $tasks | tr , ' '); do echo "\"$t\": {\"acc,none\": 0.25, \"alias\": \"x\"}," >> $out/m/results_2026.json; done
echo '"z": {}}}' >> $out/m/results_2026.json
)");
  for (const char* name : {"bin/opencompass", "bin/lm-eval"}) fs::permissions(e.dir / name, fs::perms::owner_all);
  e.inference = "template = \"opencompass\"\n";
  e.metric = "limit_s = 60\n";
  Outcome o = shell(path + "\"$orrery\" evals run '" + e.config() + "' --json");
  ASSERT_EQ(o.status, 0) << o.err << o.out;
  EXPECT_EQ(Json::parse(o.out)["scores"]["step-1"]["mmlu"]["accuracy"], 41.5);

  fs::remove_all(e.dir / "state");
  e.inference = "template = \"lm-evaluation-harness\"\n";
  o = shell(path + "\"$orrery\" evals run '" + e.config() + "' --json");
  ASSERT_EQ(o.status, 0) << o.err << o.out;
  EXPECT_EQ(Json::parse(o.out)["scores"]["step-1"]["gsm8k"]["acc,none"], 0.25);
  EXPECT_NE(read_file(e.dir / "samples").find("\"gsm8k_gen\":[0,1,2"), std::string::npos);
}

TEST(CliEvalsRun, RefusedInOneLine) {
  Evaluation e;
  e.plain(1, 10);
  e.inference = "command = [\"x\", \"{modell}\"]\n";
  const Outcome o = e.run();
  EXPECT_EQ(o.status, 2);
  EXPECT_EQ(o.err, "orrery: " + (e.dir / "c.toml") + ": unknown placeholder {modell} (did you mean {model}?)\n");
  EXPECT_EQ(
      orrery("evals run samples/evals-study.toml").err,
      "orrery: samples/evals-study.toml: [[drawn]] datasets are made up and cannot be run (orrery evals simulate)\n");
}

}  // namespace
}  // namespace orrery::test
