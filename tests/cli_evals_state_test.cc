// orrery evals run on a state that is there already, and what it is asked to begin.
#include <signal.h>

#include <chrono>
#include <thread>

#include "evals_fixture.h"
#include "processes/child.h"

namespace orrery::test {
namespace {

using Json = nlohmann::json;

TEST(CliEvalsState, ScoresOfOtherCommandsAreNotTakenForThese) {
  Evaluation e;
  e.plain(1, 20);
  e.answer();
  const std::string metric = e.metric, inference = e.inference;
  e.metric = "command = [\"sh\", \"-c\", \"echo 7\"]\n";
  Outcome o = e.run();
  EXPECT_EQ(o.status, 2) << o.out;
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1);
  EXPECT_NE(o.err.find("[metric] command was [\"sh\",\"metric.sh\",\"{output...}\"] and is [\"sh\",\"-c\",\"echo 7\"] "
                       "(what is done here was made by the old one: name another state, [evals] state)"),
            std::string::npos)
      << o.err;
  e.metric = metric;
  e.inference = "command = [\"sh\", \"infer.sh\", \"{model}\", \"{output...}\", \"more\"]\n";
  o = e.run();
  EXPECT_EQ(o.status, 2);
  EXPECT_NE(o.err.find("[inference] command was "), std::string::npos) << o.err;
  e.inference = inference;
  e.datasets = {"name = \"d1\"\nitems = 20\ntask = \"d1_hard\"\n"};
  EXPECT_NE(e.run().err.find("task of dataset d1 was "), std::string::npos);
}

TEST(CliEvalsState, ACommandOfWhichNothingCameMayBeMended) {
  Evaluation e;
  e.plain(2, 20);
  const std::string metric = e.metric, inference = e.inference;
  e.inference = "command = [\"./no-such-program\", \"{model}\", \"{output...}\"]\n";
  e.answer(1);
  e.inference = inference;
  e.metric = "command = [\"sh\", \"-c\", \"exit 4\"]\n";
  e.answer(1);
  e.metric = metric;
  expect_scored_once(e.answer(), "step-1", 2, 20);
}

TEST(CliEvalsState, WatchingThatIsEndedWithAllDoneHasLostNothing) {
  Evaluation e;
  e.plain(2, 20);
  for (const int signal : {SIGTERM, SIGINT}) {
    ChildTerms terms;
    terms.argv = {ORRERY_BINARY, "evals", "run", e.config(), "--json", "--watch"};
    terms.output = e.dir / ("out" + std::to_string(signal));
    terms.errors = e.dir / "err";
    const auto child = start_child(terms);
    ASSERT_TRUE(child);
    for (int i = 0; i < 600 && e.lines("scored").size() < 2; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    // It hears signals once it has its lock.
    const std::string own = "process " + std::to_string(child->pid) + " ";
    for (int i = 0; i < 600 && read_file(e.dir / "state/lock").rfind(own, 0) != 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    ::kill(child->pid, signal);
    const auto exit = wait_child(*child, 60);
    ASSERT_TRUE(exit);
    EXPECT_EQ(exit->status, 0) << read_file(terms.output);
    const Json d = Json::parse(read_file(terms.output));
    EXPECT_EQ(d["scored"], 2);
    EXPECT_FALSE(has_note(d, "stopped"));
  }
}

TEST(CliEvalsState, AWordIsNeverLongerThanTheKernelTakes) {
  Evaluation e;  // 60,000 items: 340 KB of samples in one word, so several trials
  e.datasets = {"name = \"d1\"\nitems = 60000\nitem_s = 0.0000001\n"};
  e.trial = "start_s = 0.05\nleast_s = 30\n";
  e.inference = "command = [\"sh\", \"infer.sh\", \"{model}\", \"{output...}\", \"--{samples}\"]\n";
  write_text(e.dir / "infer.sh",
             "shift; for o in \"$@\"; do case $o in --*) ;; *) basename $o .out > $o.t; mv $o.t $o;; esac; done\n");
  Json d = e.answer();
  expect_scored_once(d, "step-1", 1, 60000);
  EXPECT_GT(d["trials"].size(), 2u);
}

TEST(CliEvalsState, WhatNoWordCanHoldIsToldAndTheOthersGoOn) {
  Evaluation e;
  e.datasets = {"name = \"d1\"\nitems = 60000\nitem_s = 0.0000001\nsplit = false\n",
                "name = \"d2\"\nitems = 10\nitem_s = 0.01\n"};
  e.inference = "command = [\"sh\", \"infer.sh\", \"{model}\", \"{output...}\", \"--{samples}\"]\n";
  write_text(e.dir / "infer.sh",
             "shift; for o in \"$@\"; do case $o in --*) ;; *) basename $o .out > $o.t; mv $o.t $o;; esac; done\n");
  Json d = e.answer(1);
  EXPECT_EQ(d["scores"]["step-1"]["d2"]["items"], 10);
  EXPECT_NE(d["results"][0]["why"].get<std::string>().find("longer than the 131,071 bytes that the kernel takes"),
            std::string::npos)
      << d["results"];
  Evaluation file;  // in a file it is no matter
  file.datasets = {e.datasets.front()};
  file.inference = "command = [\"sh\", \"infer.sh\", \"{model}\", \"{output}\", \"{samples_file}\"]\nseveral = false\n";
  write_text(file.dir / "infer.sh",
             "test $(tr , '\\n' < $3 | wc -l) = 59999 || exit 3; basename $2 .out > $2.t; mv $2.t $2\n");
  expect_scored_once(file.answer(), "step-1", 1, 60000);
}

TEST(CliEvalsState, AnEmptyCheckpointIsNotComplete) {
  Evaluation e;
  e.plain(1, 20);
  write_text(e.dir / "checkpoints/step-2", "");
  Json d = e.answer(1);
  EXPECT_EQ(d["scored"], 1);
  EXPECT_TRUE(has_note(d, "checkpoint-incomplete"));
  EXPECT_NE(d["notes"].dump().find("step-2: has no bytes"), std::string::npos) << d["notes"];
}

// A share that was not there for a moment; names that are no longer asked for.
TEST(CliEvalsState, ACheckpointThatComesBackIsGoneOnWith) {
  Evaluation e;
  e.plain(2, 20);
  e.trial += "retries = 0\n";
  write_text(e.dir / "fail-d2", "worker died\n");
  EXPECT_EQ(e.answer(1)["scored"], 1);
  fs::rename(e.dir / "checkpoints", e.dir / "elsewhere");
  const Json gone = e.answer(1);
  EXPECT_TRUE(has_note(gone, "checkpoint-vanished"));
  EXPECT_EQ(gone["checkpoints"][0]["state"], "vanished");
  fs::rename(e.dir / "elsewhere", e.dir / "checkpoints");
  const Json back = e.answer(1);
  EXPECT_FALSE(has_note(back, "checkpoint-vanished"));
  EXPECT_EQ(back["checkpoints"][0]["state"], "ready");
  EXPECT_EQ(back["results"][1]["state"], "failed");
  fs::remove(e.dir / "fail-d2");
  e.model += "only = \"other-*\"\n";
  expect_scored_once(e.answer(), "step-1", 2, 20);
}

TEST(CliEvalsState, NamesWithCharactersOfPatternsStandForThemselves) {
  Evaluation e;
  e.state = "st[1]";
  e.cluster = "gpus_per_node = 1\n";
  e.datasets = {"name = \"a*\"\nitems = 20\nitem_s = 0.01\n", "name = \"ab\"\nitems = 10\nitem_s = 0.01\n"};
  const Json d = e.answer();
  EXPECT_EQ(d["scores"]["step-1"]["a*"]["items"], 20);
  EXPECT_EQ(d["scores"]["step-1"]["ab"]["items"], 10);
}

TEST(CliEvalsState, APlanRefusesWhatARunWouldRefuse) {
  Evaluation e;
  e.plain(1, 10);
  e.inference = "command = [\"x\", \"{modell}\"]\n";
  for (const char* what : {"plan", "simulate"}) {
    const Outcome o = orrery(std::string("evals ") + what + " '" + e.config() + "'");
    EXPECT_EQ(o.status, 2) << what;
    EXPECT_EQ(o.err, "orrery: " + (e.dir / "c.toml") + ": unknown placeholder {modell} (did you mean {model}?)\n");
  }
}

TEST(CliEvalsState, AMemoryThatIsFullForAMomentIsWaitedFor) {
  Evaluation e;  // one copy fits, two do not
  e.plain(4, 10);
  fs::create_directories(e.dir / "checkpoints/step-2");
  write_text(e.dir / "checkpoints/step-2/weights", std::string(100'000, 'v'));
  e.cluster += "shared_memory_gb = 0.00015\nwhen_full = \"stop\"\n";
  write_text(e.dir / "hang-d1", "");
  ChildTerms terms;
  terms.argv = {ORRERY_BINARY, "evals", "run", e.config(), "--json"};
  terms.output = e.dir / "out";
  terms.errors = e.dir / "err";
  const auto child = start_child(terms);
  ASSERT_TRUE(child);
  std::this_thread::sleep_for(std::chrono::seconds(3));  // three GPUs are free for the other checkpoint
  EXPECT_FALSE(wait_child(*child, 0.1));
  fs::remove(e.dir / "hang-d1");
  const auto exit = wait_child(*child, 120);
  ASSERT_TRUE(exit);
  const Json d = Json::parse(read_file(e.dir / "out"));
  EXPECT_EQ(exit->status, 0) << d.dump(1);
  EXPECT_EQ(d["scored"], 8);
}

TEST(CliEvalsState, AMemoryThatIsTooSmallSaysSo) {
  Evaluation e;
  e.plain(2, 10);
  e.cluster += "shared_memory_gb = 0.00005\nwhen_full = \"stop\"\n";
  const Json d = e.answer(1);
  EXPECT_NE(d["results"][0]["why"].get<std::string>().find("no room for 0.0001 GB"), std::string::npos) << d["results"];
  EXPECT_NE(d["results"][0]["why"].get<std::string>().find("5e-05 GB are allowed (shared_memory_gb)"),
            std::string::npos)
      << d["results"];
}

TEST(CliEvalsState, ReasonsAreWholeAndSaidOnce) {
  Evaluation e;
  e.plain(3, 20);
  e.trial += "retries = 0\n";
  const std::string odd = "the tokenizer of this thing is not the one that the weights were trained with, dear reader";
  for (const char* d : {"d1", "d2"}) write_text(e.dir / (std::string("fail-") + d), "starting\n" + odd + "\n\n");
  fs::create_directories(e.dir / "checkpoints/step-2");
  const Json d = e.answer(1, "--csv '" + (e.dir / "csv") + "'");
  const std::string why = d["results"][0]["why"];
  EXPECT_EQ(why.rfind("exit status 1: " + odd + " (log: " + (e.dir / "state/jobs/trial-"), 0), 0u) << why;
  EXPECT_EQ(why.find("exit status 1", 5), std::string::npos) << why;
  EXPECT_EQ(read_file(why.substr(why.find("log: ") + 5, why.size() - why.find("log: ") - 6)),
            "starting\n" + odd + "\n\n");
  for (const auto& n : d["notes"])
    if (n["name"] == "dataset-failed") {
      EXPECT_EQ(n["count"], 2);
      EXPECT_NE(n["first"].get<std::string>().find("; also d2 of step-1"), std::string::npos) << n;
    }
  ASSERT_EQ(d["checkpoints"].size(), 2u);
  EXPECT_EQ(d["checkpoints"][1]["checkpoint"], "step-2");
  EXPECT_EQ(d["checkpoints"][1]["state"], "incomplete");
  EXPECT_EQ(d["checkpoints"][1]["why"], "has no file");
  EXPECT_NE(read_file(e.dir / "csv/checkpoints.csv").find("step-2"), std::string::npos);
  EXPECT_NE(read_file(e.dir / "csv/results.csv").find(odd), std::string::npos);
  const Outcome people = orrery("evals run '" + e.config() + "'");
  EXPECT_NE(people.out.find(odd), std::string::npos) << people.out;
}

TEST(CliEvalsState, APageHasTheRunAsAChartAndPausesAreNotCounted) {
  Evaluation e;
  e.plain(2, 20);
  const double first = e.answer(0, "--html '" + (e.dir / "p.html") + "'")["makespan_s"];
  const std::string page = read_file(e.dir / "p.html");
  EXPECT_NE(page.find("<svg"), std::string::npos);
  EXPECT_NE(page.find("node0 GPU 0"), std::string::npos);
  EXPECT_NE(page.find("metric job 1"), std::string::npos);
  std::this_thread::sleep_for(std::chrono::seconds(6));
  fs::create_directories(e.dir / "checkpoints/step-2");
  write_text(e.dir / "checkpoints/step-2/weights", "v");
  const double both = e.answer()["makespan_s"];
  EXPECT_GT(both, first);
  EXPECT_LT(both, first + 6) << "nobody ran in between";
}

TEST(CliEvalsState, ATrialWithoutScoresIsToldAsThat) {
  Evaluation e;
  e.plain(1, 10);
  e.trial += "retries = 0\n";
  e.inference = "command = [\"true\"]\n";
  e.metric = "";
  const Json d = e.answer(1);
  const std::string why = d["results"][0]["why"];
  EXPECT_EQ(why.rfind("no scores: " + (e.dir / "state/jobs/trial-000001/out.log") +
                          ": the trial wrote no scores (there is no [metric])",
                      0),
            0u)
      << why;
}

TEST(CliEvalsState, TheNewestStateOfACheckpointHasItsName) {
  Evaluation e;
  e.plain(1, 10);
  EXPECT_EQ(e.answer()["checkpoints"][0]["checkpoint"], "step-1");
  const std::string weights = e.dir / "checkpoints/step-1/weights", old = read_file(weights);
  const auto changed = fs::last_write_time(weights);
  write_text(weights, "others");
  Json d = e.answer();
  ASSERT_EQ(d["checkpoints"].size(), 2u);
  EXPECT_EQ(d["checkpoints"][0]["checkpoint"], "m/step-1#1");
  EXPECT_EQ(d["checkpoints"][0]["state"], "altered");
  EXPECT_EQ(d["checkpoints"][1]["checkpoint"], "step-1");
  EXPECT_EQ(d["checkpoints"][1]["state"], "ready");
  EXPECT_EQ(d["scored"], 2);
  EXPECT_TRUE(has_note(d, "checkpoint-replaced"));
  EXPECT_FALSE(has_note(d, "checkpoint-altered"));
  write_text(weights, old);  // it is back as it was
  fs::last_write_time(weights, changed);
  d = e.answer();
  EXPECT_EQ(d["checkpoints"][0]["checkpoint"], "step-1");
  EXPECT_EQ(d["checkpoints"][0]["state"], "ready");
  EXPECT_EQ(d["checkpoints"][1]["checkpoint"], "m/step-1#2");
  EXPECT_EQ(d["checkpoints"][1]["state"], "altered");
  EXPECT_EQ(e.lines("scored").size(), 2u);
  write_text(weights, "");  // the newest is not complete
  d = e.answer(1);
  EXPECT_EQ(d["checkpoints"][0]["checkpoint"], "m/step-1#1");
  EXPECT_EQ(d["checkpoints"][2]["checkpoint"], "step-1");
  EXPECT_EQ(d["checkpoints"][2]["state"], "incomplete");
}

TEST(CliEvalsState, ADirectoryThatIsNotThereIsNoEmptyOne) {
  Evaluation e;
  e.plain(1, 10);
  fs::rename(e.dir / "checkpoints", e.dir / "elsewhere");
  const Json d = e.answer(1);
  ASSERT_EQ(d["notes"].size(), 1u);
  EXPECT_EQ(d["notes"][0]["name"], "no-checkpoint");
  EXPECT_EQ(d["notes"][0]["first"], (e.dir / "checkpoints") + ": there is no such directory");
  ChildTerms terms;
  terms.argv = {ORRERY_BINARY, "evals", "run", e.config(), "--json", "--watch"};
  terms.output = e.dir / "out";
  terms.errors = e.dir / "err";
  const auto child = start_child(terms);
  ASSERT_TRUE(child);
  for (int i = 0; i < 1200 && read_file(e.dir / "err").empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(read_file(e.dir / "err"), "orrery evals: waiting for a directory of checkpoints that is not there: " +
                                          (e.dir / "checkpoints") + "\n");
  fs::rename(e.dir / "elsewhere", e.dir / "checkpoints");
  for (int i = 0; i < 1200 && e.lines("scored").empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ::kill(child->pid, SIGTERM);
  ASSERT_TRUE(wait_child(*child, 60));
  EXPECT_FALSE(e.lines("scored").empty());
}

TEST(CliEvalsState, LargeAndSmallScoresAreNumbers) {
  Evaluation e;
  e.datasets = {"name = \"d1\"\nitems = 10\nitem_s = 0.01\n"};
  e.metric = "command = [\"echo\", '{\"large\": 1e308, \"small\": 2e-05}']\n";
  const Json d = e.answer();
  EXPECT_EQ(d["scores"]["step-1"]["d1"]["large"], 1e308);
  EXPECT_EQ(d["scores"]["step-1"]["d1"]["small"], 2e-05);
  const Outcome people = orrery("evals run '" + e.config() + "'");
  EXPECT_NE(people.out.find("large  1e+308"), std::string::npos) << people.out;
  EXPECT_NE(people.out.find("small  0.00002000"), std::string::npos) << people.out;
}

TEST(CliEvalsState, WhatIsIncompleteIsNamed) {
  Evaluation e;
  e.plain(1, 10);
  for (const char* name : {"step-2", "step-3", "x\xff"}) write_text((e.dir / "checkpoints/") + name, "");
  write_text(e.dir / "checkpoints/x\xff", "bytes");
  const Json d = e.answer(1);
  EXPECT_EQ(d["scored"], 1);
  for (const auto& n : d["notes"])
    if (n["name"] == "checkpoint-incomplete") {
      EXPECT_EQ(n["count"], 3);
      EXPECT_EQ(n["first"], "step-2: has no bytes; also step-3, x\xef\xbf\xbd");
    }
  EXPECT_EQ(d["checkpoints"][3]["why"], "its name is not UTF-8");
}

TEST(CliEvalsState, WatchingThatIsEndedBesideAnIncompleteCheckpointHasLostNoScores) {
  Evaluation e;
  e.plain(1, 10);
  write_text(e.dir / "checkpoints/step-2", "");
  ChildTerms terms;
  terms.argv = {ORRERY_BINARY, "evals", "run", e.config(), "--json", "--watch"};
  terms.output = e.dir / "out";
  terms.errors = e.dir / "err";
  const auto child = start_child(terms);
  ASSERT_TRUE(child);
  for (int i = 0; i < 1200 && e.lines("scored").empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (int i = 0; i < 1200 && !fs::exists(e.dir / "state/jobs/metric-000001/result.json"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ::kill(child->pid, SIGTERM);
  const auto exit = wait_child(*child, 60);
  ASSERT_TRUE(exit);
  const Json d = Json::parse(read_file(e.dir / "out"));
  EXPECT_EQ(exit->status, 1);
  EXPECT_EQ(d["scored"], 1);
  EXPECT_TRUE(has_note(d, "checkpoint-incomplete"));
  EXPECT_FALSE(has_note(d, "stopped"));
}

// A command that opens the name it was given: half of it is there when the metric begins.
struct HalfWritten : Evaluation {
  HalfWritten() {
    datasets = {"name = \"d1\"\nitems = 10\nitem_s = 0.01\nsplit = false\n"};
    write_text(dir / "metric.sh", "n=$(wc -l < \"$1\")\necho $n >> scored\necho $n\n");
  }
  // Goes on when `until` is there.
  void infer(const std::string& until, const std::string& then) {
    write_text(dir / "infer.sh", "echo try >> tries\necho a > \"$2\"\nwhile ! test -f " + until +
                                     "; do sleep 0.05; done\necho b >> \"$2\"\n" + then);
  }
};

TEST(CliEvalsState, OutputsThatWereStillWrittenAreScoredAnew) {
  HalfWritten e;
  e.infer("scored", "");
  const Json d = e.answer();
  EXPECT_EQ(d["scores"]["step-1"]["d1"]["score"], 2);
  EXPECT_EQ(e.lines("scored"), (std::vector<std::string>{"1", "2"}));
  EXPECT_EQ(e.lines("tries").size(), 1u);
  ASSERT_TRUE(has_note(d, "outputs-changed")) << d["notes"];
  EXPECT_NE(d["notes"].dump().find("d1 of step-1: "), std::string::npos) << d["notes"];
  const Json again = e.answer();
  EXPECT_EQ(again["scores"], d["scores"]);
  EXPECT_EQ(e.lines("scored").size(), 2u) << "what counts now stays";
}

TEST(CliEvalsState, AMetricOverOutputsThatWereStillWrittenIsStopped) {
  HalfWritten e;
  write_text(e.dir / "metric.sh", "if mkdir first; then touch reads; sleep 300; fi\nwc -l < \"$1\"\n");
  e.infer("reads", "");
  const Json d = e.answer();
  EXPECT_EQ(d["scores"]["step-1"]["d1"]["score"], 2);
  EXPECT_EQ(d["metrics"][0]["kind"], "outputs changed");
}

TEST(CliEvalsState, HalfOutputsOfATrialThatFailedAreInferredAgain) {
  HalfWritten e;
  e.infer("scored", "mkdir first && exit 9; echo c >> \"$2\"\n");
  Json d = e.answer();
  EXPECT_EQ(d["scores"]["step-1"]["d1"]["score"], 3);
  EXPECT_EQ(e.lines("tries").size(), 2u);
  EXPECT_TRUE(has_note(d, "outputs-changed"));
  HalfWritten never;
  never.trial += "retries = 0\n";
  never.infer("scored", "exit 9\n");
  d = never.answer(1);
  EXPECT_EQ(d["scored"], 0);
  EXPECT_EQ(d["results"][0]["state"], "failed");
}

// Whoever writes through a buffer and is killed leaves an empty file.
TEST(CliEvalsState, EmptyOutputsOfATrialThatFailedAreInferredAgain) {
  HalfWritten e;
  write_text(e.dir / "infer.sh",
             "echo try >> tries\n: > \"$2\"\nmkdir first && sleep 0.5 && kill -9 $$\necho a >> \"$2\"\n");
  const Json d = e.answer();
  EXPECT_EQ(d["scores"]["step-1"]["d1"]["score"], 1);
  EXPECT_EQ(e.lines("tries").size(), 2u);
}

// What a metric said of half an output is no reason to give up, and a restart knows what was taken.
TEST(CliEvalsState, ARestartFindsOutputsThatChangedMeanwhile) {
  HalfWritten e;
  write_text(e.dir / "metric.sh", "n=$(wc -l < \"$1\")\necho $n >> scored\ntest $n = 2 || exit 5\necho $n\n");
  e.infer("go-on", "");
  ChildTerms terms;
  terms.argv = {ORRERY_BINARY, "evals", "run", e.config(), "--json"};
  terms.output = e.dir / "out";
  terms.errors = e.dir / "err";
  const auto child = start_child(terms);
  ASSERT_TRUE(child);
  for (int i = 0; i < 1200 && e.lines("scored").size() < 3; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ::kill(child->pid, SIGKILL);
  ASSERT_TRUE(wait_child(*child, 60));
  write_text(e.dir / "go-on", "");
  for (int i = 0; i < 1200 && !fs::exists(e.dir / "state/jobs/trial-000001/result.json"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const Json d = e.answer();
  EXPECT_EQ(d["scores"]["step-1"]["d1"]["score"], 2);
  EXPECT_EQ(e.lines("tries").size(), 1u);
  EXPECT_TRUE(has_note(d, "outputs-changed"));
}

// 40 items last 1.6 s, the limit is 1 s, and 4 ms were believed.
TEST(CliEvalsState, WhatRanIntoTheLimitIsTriedInHalves) {
  Evaluation e;
  e.datasets = {"name = \"d1\"\nitems = 40\nitem_s = 0.0001\n"};
  e.trial = "start_s = 0\nleast_s = 0.1\nlimit_s = 1\n";
  write_text(e.dir / "infer.sh", R"(shift
for o in "$@"; do
  name=$(basename "$o" .out); sleep $(awk -v n=${name##*-} 'BEGIN {print 0.04 * n}')
  echo "$name" > "$o.tmp"; mv "$o.tmp" "$o"
done
)");
  const Json d = e.answer();
  expect_scored_once(d, "step-1", 1, 40);
  EXPECT_EQ(d["trials"][0]["kind"], "time limit");
  EXPECT_GE(d["trials"].size(), 3u);
}

// The most metrics that run at the same time.
TEST(CliEvalsState, IdleGpusTakeMetricsWhereTheyMay) {
  for (const bool may : {false, true}) {
    Evaluation e;
    e.plain(4, 10);
    e.cluster = std::string("gpus_per_node = 4\ncpu_jobs_per_node = 1\n") + (may ? "metrics_on_gpus = true\n" : "");
    e.metric = "command = [\"sh\", \"m.sh\"]\n";  // ends when three run, or after a while
    write_text(e.dir / "m.sh", R"(touch running.$$; i=0
while test $(ls | grep -c '^running') -lt 3 && test $i -lt 12; do sleep 0.1; i=$((i + 1)); done
ls | grep -c '^running' >> most; sleep 0.2; rm running.$$; echo 1
)");
    EXPECT_EQ(e.answer()["scored"], 4);
    const std::vector<std::string> most = e.lines("most");
    EXPECT_EQ(*std::max_element(most.begin(), most.end()) > "1", may);
  }
}

}  // namespace
}  // namespace orrery::test
