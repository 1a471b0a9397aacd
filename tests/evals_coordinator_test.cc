// What the coordinator does with jobs that are refused, ended by others or come to nothing: a runner plays them.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "temp_dir.h"
#include "trials/coordinator.h"
#include "trials/job.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct PlayedJob {
  std::string directory;
  bool trial = false;
  std::vector<std::string> argv;
  std::string source;
  std::string dataset() const { return argv.size() > 1 ? argv[1] : std::string(); }

  // `said` over a result that is good.
  void ends(const Json& said = Json::object()) const {
    std::ofstream(directory + "/owner") << "1 1 host 0\n";
    Json result{{"status", 0},        {"signal", 0},         {"error", ""},       {"cannot_start", false},
                {"timed_out", false}, {"stopped", false},    {"no_model", false}, {"began", 1.0},
                {"started", 1.0},     {"ended", 2.0},        {"load_s", 0.0},     {"load_from", "memory"},
                {"load_note", ""},    {"loaded_here", false}};
    result.update(said);
    std::ofstream(directory + "/result.part") << result.dump();
    fs::rename(directory + "/result.part", directory + "/result.json");
  }
  void ends_well() const {
    for (const std::string& word : argv)
      if (word.ends_with(".out")) std::ofstream(word) << "outputs\n";
    if (!trial) std::ofstream(directory + "/scores.json") << "{\"acc\": 0.5}";
    ends();
  }
};

class PlayedRunner : public TrialRunner {
 public:
  explicit PlayedRunner(std::int64_t gpus) : gpus_(gpus) {}
  std::function<Result<std::string>(const PlayedJob&)> begin = [](const PlayedJob& j) -> Result<std::string> {
    j.ends_well();
    return std::string("played");
  };
  std::vector<std::string> calls;  // "ask d1", "stop d1", "end"

  std::vector<JobPlace> places() const override {
    std::vector<JobPlace> all;
    for (std::int64_t g = 0; g < gpus_; ++g) all.push_back({"", g});
    return all;
  }
  CopyTerms copy_terms(const std::string&) const override { return {}; }
  bool local() const override { return false; }
  std::vector<Result<std::string>> start(const std::vector<JobStart>& jobs) override {
    std::vector<Result<std::string>> handles;
    for (const JobStart& j : jobs) handles.push_back(begin(job(j.directory)));
    return handles;
  }
  bool gone(const std::string&, const std::string&) override { return false; }
  void ask_to_stop(const std::string& directory, const std::string&) override {
    calls.push_back("ask " + job(directory).dataset());
  }
  void stop(const std::string& directory, const std::string&, double) override {
    calls.push_back("stop " + job(directory).dataset());
  }
  std::string node_of(const std::string&) const override { return "n1"; }
  void end(const std::vector<std::string>&) override { calls.emplace_back("end"); }

 private:
  static PlayedJob job(const std::string& directory) {
    std::ifstream in(directory + "/job.json");
    const Json j = Json::parse(in, nullptr, false);
    PlayedJob p{directory, j["loads"], j["argv"], j["source"]};
    return p;
  }
  std::int64_t gpus_;
};

class EvalsCoordinator : public ::testing::Test {
 protected:
  EvalsCoordinator() {
    fs::create_directories(dir_.path / "checkpoints/step-1");
    std::ofstream(dir_ / "checkpoints/step-1/weights") << "w";
    hooks_.poll_s = 0.01;
  }
  // Datasets d1 ... of 10 items, each a trial of its own.
  Result<EvalOutcome> run(PlayedRunner& runner, int datasets, bool metric = true) {
    std::string text = "[cluster]\n" + cluster_ + "[trial]\n" + trial_ +
                       "[[model]]\nname = \"m\"\nsettle_s = 0\ncheckpoints = \"" + checkpoints_ +
                       "\"\n[inference]\nseveral = false\ncommand = [\"infer\", \"{dataset}\", \"{output}\"]\n";
    text += metric ? "[metric]\ncommand = [\"score\", \"{dataset}\", \"{output...}\"]\n"
                   : "[metric]\nscores_file = \"{outputs}/{dataset}.json\"\n";
    for (int i = 1; i <= datasets; ++i)
      text += "[[dataset]]\nname = \"d" + std::to_string(i) + "\"\nitems = 10\nitem_s = 0.1\nsplit = false\n";
    auto config = parse_eval_config(text, "c.toml");
    if (!config) return tl::unexpected(config.error());
    config->directory = dir_.path;
    config->state = "state";
    return coordinate(*config, runner, hooks_);
  }
  static std::map<std::string, std::string> states(const EvalOutcome& o) {
    std::map<std::string, std::string> all;
    for (const ScoredDataset& d : o.datasets) all[d.dataset] = d.state + (d.why.empty() ? "" : ": " + d.why);
    return all;
  }
  static bool has_note(const EvalOutcome& o, const std::string& name) {
    return std::any_of(o.notes.rows.begin(), o.notes.rows.end(), [&](const Note& n) { return n.name == name; });
  }

  test::ScratchDir dir_;
  std::string cluster_, trial_, checkpoints_ = "checkpoints";
  EvalHooks hooks_;
};

const Result<std::string> kRunning = std::string("played");

TEST_F(EvalsCoordinator, WhatSomebodyElseStopsIsNotBegunForEver) {
  PlayedRunner runner(2);
  std::map<std::string, int> trials;
  int metrics = 0;
  runner.begin = [&](const PlayedJob& j) {
    if (j.trial) ++trials[j.dataset()];
    if (!j.trial) ++metrics;
    if (j.trial == (j.dataset() == "d1"))
      j.ends({{"stopped", true}, {"signal", 9}});  // d1's trial, d2's metric
    else
      j.ends_well();
    return kRunning;
  };
  const auto o = run(runner, 2);
  ASSERT_TRUE(o) << o.error().line();
  EXPECT_EQ(trials["d1"], 6) << "as of trials that are lost";
  EXPECT_EQ(trials["d2"], 1);
  EXPECT_EQ(metrics, 6);
  auto all = states(*o);
  const std::string why = "failed: lost: somebody else told it to stop (the time limit of its Slurm job?)";
  EXPECT_EQ(all["d1"], why);
  EXPECT_EQ(all["d2"], why);
  EXPECT_FALSE(o->stopped);
}

TEST_F(EvalsCoordinator, StartsThatAreRefusedWaitForWhatRuns) {
  PlayedRunner runner(2);
  std::vector<PlayedJob> first;
  int refused_trials = 0, refused_metrics = 0;
  runner.begin = [&](const PlayedJob& j) -> Result<std::string> {
    if (j.trial && j.dataset() == "d1") {  // runs until the others are done
      first.push_back(j);
      return kRunning;
    }
    if (j.trial && ++refused_trials <= 4) return fail("QOSMaxSubmitJobPerUserLimit", "sbatch");
    if (!j.trial && ++refused_metrics <= 4) return fail("QOSMaxSubmitJobPerUserLimit", "sbatch");
    j.ends_well();
    if (!j.trial && !first.empty()) first.front().ends_well();
    return kRunning;
  };
  const auto o = run(runner, 2);
  ASSERT_TRUE(o) << o.error().line();
  EXPECT_TRUE(o->complete);
  EXPECT_EQ(refused_trials, 5);
  EXPECT_EQ(refused_metrics, 6) << "and d1's";
  EXPECT_TRUE(has_note(*o, "starts-refused"));
}

TEST_F(EvalsCoordinator, AMetricThatIsRefusedOnceIsBegunAgain) {
  PlayedRunner runner(1);
  int metrics = 0;
  runner.begin = [&](const PlayedJob& j) -> Result<std::string> {
    if (!j.trial && ++metrics == 1) return fail("no more processes", "orrery");
    j.ends_well();
    return kRunning;
  };
  const auto o = run(runner, 1);
  ASSERT_TRUE(o) << o.error().line();
  EXPECT_TRUE(o->complete);
}

TEST_F(EvalsCoordinator, WhatIsNeverTakenIsToldSoon) {
  PlayedRunner runner(2);
  int asked = 0;
  runner.begin = [&](const PlayedJob&) -> Result<std::string> {
    ++asked;
    return fail("invalid partition", "sbatch");
  };
  const auto o = run(runner, 1);
  ASSERT_FALSE(o);
  EXPECT_EQ(o.error().what, "invalid partition");
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(runner.calls, std::vector<std::string>{"end"});
}

TEST_F(EvalsCoordinator, AfterAnErrorNothingIsLeft) {
  PlayedRunner runner(3);
  runner.begin = [&](const PlayedJob& j) {
    if (j.dataset() != "d3") return kRunning;
    std::ofstream(fs::path(j.directory).parent_path() / "metric-000001") << "no directory can be made here";
    j.ends_well();
    return kRunning;
  };
  const auto o = run(runner, 3);
  ASSERT_FALSE(o);
  EXPECT_EQ(o.error().what.substr(0, 14), "cannot be made") << o.error().line();
  EXPECT_EQ(runner.calls, (std::vector<std::string>{"ask d1", "ask d2", "stop d1", "stop d2", "end"}));
}

TEST_F(EvalsCoordinator, AllAreAskedToStopBeforeOneIsWaitedFor) {
  PlayedRunner runner(3);
  int begun = 0;
  runner.begin = [&](const PlayedJob&) {
    ++begun;
    return kRunning;
  };
  hooks_.stop = [&] { return begun == 3; };
  const auto o = run(runner, 3);
  ASSERT_TRUE(o) << o.error().line();
  EXPECT_TRUE(o->stopped);
  ASSERT_EQ(runner.calls.size(), 7u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(runner.calls[i].substr(0, 4), "ask ");
    EXPECT_EQ(runner.calls[3 + i].substr(0, 5), "stop ");
  }
  EXPECT_EQ(runner.calls[6], "end");
  for (const StoredTrial& t : o->trials) EXPECT_EQ(t.kind, "stopped");
}

TEST_F(EvalsCoordinator, AWatchThatCanBeginNothingMoreEnds) {
  PlayedRunner runner(1);
  runner.begin = [&](const PlayedJob& j) {
    j.ends({{"error", "no such program"}, {"cannot_start", true}});
    return kRunning;
  };
  hooks_.watch = true;
  const auto o = run(runner, 2);
  ASSERT_TRUE(o) << o.error().line();
  EXPECT_FALSE(o->complete);
  EXPECT_FALSE(o->stopped);
  EXPECT_EQ(states(*o)["d2"].substr(0, 9), "not tried");
}

TEST_F(EvalsCoordinator, OnlyLackOfRoomIsAReasonToStop) {
  for (const bool room : {true, false}) {
    SCOPED_TRACE(room);
    PlayedRunner runner(1);
    int begun = 0;
    runner.begin = [&](const PlayedJob& j) {
      if (++begun == 1)
        j.ends({{"error", "Input/output error"}, {"no_model", true}, {"no_room", !room}, {"load_from", ""}});
      else
        j.ends_well();
      return kRunning;
    };
    cluster_ = "when_full = \"stop\"\n";
    fs::remove_all(dir_.path / "state");
    const auto o = run(runner, 2);
    ASSERT_TRUE(o) << o.error().line();
    EXPECT_EQ(o->complete, room);
    EXPECT_EQ(begun == 1, !room);
  }
}

TEST_F(EvalsCoordinator, ACheckpointThatMovedIsReadWhereItIs) {
  PlayedRunner runner(1);
  runner.begin = [&](const PlayedJob& j) {
    j.ends({{"status", 1}});
    return kRunning;
  };
  trial_ = "retries = 0\n";
  ASSERT_TRUE(run(runner, 1));
  fs::rename(dir_.path / "checkpoints", dir_.path / "archive");
  checkpoints_ = "archive";
  std::string source;
  runner.begin = [&](const PlayedJob& j) {
    source = j.source;
    j.ends_well();
    return kRunning;
  };
  const auto o = run(runner, 1);
  ASSERT_TRUE(o) << o.error().line();
  EXPECT_TRUE(o->complete);
  EXPECT_EQ(source, dir_ / "archive/step-1");
  ASSERT_EQ(o->checkpoints.size(), 1u);
  EXPECT_EQ(o->checkpoints[0].path, dir_ / "archive/step-1");
  const auto again = run(runner, 1);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->checkpoints[0].path, dir_ / "archive/step-1") << "written down";
}

TEST_F(EvalsCoordinator, ATrialThatWroteNoScoresIsTriedAgain) {
  PlayedRunner runner(1);
  int begun = 0;
  runner.begin = [&](const PlayedJob& j) {
    if (++begun > 1) std::ofstream(j.directory + "/outputs/d1.json") << "{\"acc\": 0.5}";
    j.ends_well();
    return kRunning;
  };
  const auto o = run(runner, 1, false);
  ASSERT_TRUE(o) << o.error().line();
  EXPECT_TRUE(o->complete);
  ASSERT_EQ(o->trials.size(), 2u);
  EXPECT_EQ(o->trials[0].state, "failed");
  EXPECT_EQ(o->trials[0].kind, "no scores");
  EXPECT_EQ(o->trials[1].state, "ended");
}

TEST_F(EvalsCoordinator, TrialsThatNeverWriteScoresAreGivenUpAndMayBeMended) {
  PlayedRunner runner(1);
  int begun = 0;
  runner.begin = [&](const PlayedJob& j) {
    ++begun;
    j.ends_well();
    return kRunning;
  };
  auto o = run(runner, 9, false);
  ASSERT_TRUE(o) << o.error().line();
  EXPECT_EQ(begun, 3) << "the same thrice, and nothing has ever worked";
  EXPECT_EQ(states(*o)["d9"].substr(0, 20), "not tried: no scores");
  o = run(runner, 9, true);  // with a command that scores
  ASSERT_TRUE(o) << o.error().line();
  EXPECT_TRUE(o->complete);
}

TEST_F(EvalsCoordinator, WhatWorkedBeforeARestartHasWorked) {
  PlayedRunner runner(1);
  ASSERT_TRUE(run(runner, 1));
  runner.begin = [&](const PlayedJob& j) {  // one node without the program, one metric without
    if (j.dataset() == (j.trial ? "d2" : "d3"))
      j.ends({{"error", "no such program"}, {"cannot_start", true}});
    else
      j.ends_well();
    return kRunning;
  };
  const auto o = run(runner, 5);
  ASSERT_TRUE(o) << o.error().line();
  auto all = states(*o);
  EXPECT_EQ(all["d1"], "scored");
  EXPECT_EQ(all["d4"], "scored");
  EXPECT_EQ(all["d5"], "scored");
  EXPECT_EQ(all["d2"].substr(0, 6), "failed");
  EXPECT_EQ(all["d3"].substr(0, 6), "failed");
}

}  // namespace
}  // namespace orrery
