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

}  // namespace
}  // namespace orrery::test
