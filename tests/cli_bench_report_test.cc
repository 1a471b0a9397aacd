// orrery bench report: what its figures add up to, from commands that report what a test says.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "bench_fixture.h"
#include "cli_run.h"

namespace orrery::test {
namespace {

// Runs of `axes` by one command, whose words are given.
std::string matrix(const std::string& axes, const std::string& argv, const std::string& bench = "") {
  return "[bench]\nwarmup_steps = 0\nsteps = 3\nreference_every = 0\n" + bench +
         "[[matrix]]\ntask = \"inference\"\nmodel = \"tiny\"\nframework = \"mine\"\n" + axes + kTiny +
         "[commands.mine]\nstep_ms = 'took ([0-9.]+)'\nargv = " + argv + "\n";
}

// One step of the host: prefill 0..40, decode 50..90 of 100 us, each with a product of 10 us.
constexpr const char* kHostTrace = R"({"schemaVersion": 1, "traceEvents": [
 {"ph":"X","cat":"user_annotation","name":"ProfilerStep#0","pid":1,"tid":1,"ts":0,"dur":100,"args":{}},
 {"ph":"X","cat":"user_annotation","name":"prefill","pid":1,"tid":1,"ts":0,"dur":40,"args":{}},
 {"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":5,"dur":10,"args":{}},
 {"ph":"X","cat":"user_annotation","name":"decode","pid":1,"tid":1,"ts":50,"dur":40,"args":{}},
 {"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":55,"dur":10,"args":{}}
]})";

TEST(CliBenchReport, StagesOfTheHostAddUpToTheStep) {
  const TempDir dir;
  const std::string config = dir / "m.toml", trace = dir / "rank-0.json";
  write_text(trace, kHostTrace);
  write_text(config, matrix("seq_length = 8\n",
                            "[\"sh\", \"-c\", \"cp " + trace +
                                " {trace_directory}; echo took 1; echo took 1; echo "
                                "took 1\"]",
                            "trace_steps = 1\n"));
  ASSERT_EQ(orrery("bench run '" + config + "' --quiet").status, 0);
  const std::string page = dir / "page.html";
  const Json d = document(orrery("bench report '" + config + "' --json --html '" + page + "'"));
  std::map<std::string, double> stages;
  double all = 0, modules = 0;
  for (const Json& s : d["phases"]) {
    stages[s["name"]] = s["pct"];
    all += s["pct"].get<double>();
    EXPECT_TRUE(s["gpu_ms"].is_null()) << s;
  }
  EXPECT_NEAR(all, 100, 1e-6);
  EXPECT_EQ(stages.size(), 3u);  // neither "forward" nor "idle"
  EXPECT_NEAR(stages["prefill"], 40, 1e-6);
  EXPECT_NEAR(stages["decode"], 40, 1e-6);
  EXPECT_NEAR(stages["host"], 20, 1e-6);
  double outside = 0;
  for (const Json& m : d["modules"]) {
    modules += m["pct"].get<double>();
    if (m["name"] == "outside of operators") outside = m["pct"];
  }
  EXPECT_NEAR(modules, 100, 1e-6);
  EXPECT_NEAR(outside, 80, 1e-6);
  for (const Json& o : d["trace_operators"]) EXPECT_NEAR(o["pct"].get<double>(), 20, 1e-6) << o;
  const std::string text = orrery("bench report '" + config + "'").out;
  EXPECT_EQ(text.find("GPU ms"), std::string::npos) << text;
  EXPECT_EQ(text.find("idle"), std::string::npos) << text;
  EXPECT_EQ(read_file(page).find("idle"), std::string::npos);
}

// Two processes whose steps take 100 us and 150 us: shares are of their mean.
TEST(CliBenchReport, StagesOfSeveralProcessesAddUpToTheirMeanStep) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  const auto trace = [&](int rank, int step) {
    write_text(dir / ("rank-" + std::to_string(rank) + ".json"),
               R"({"schemaVersion": 1, "distributedInfo": {"backend": "gloo", "rank": )" + std::to_string(rank) +
                   R"(, "world_size": 2}, "traceEvents": [
 {"ph":"X","cat":"user_annotation","name":"ProfilerStep#0","pid":1,"tid":1,"ts":0,"dur":)" +
                   std::to_string(step) + R"(,"args":{}},
 {"ph":"X","cat":"user_annotation","name":"forward","pid":1,"tid":1,"ts":0,"dur":50,"args":{}},
 {"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":5,"dur":10,"args":{}}]})");
  };
  trace(0, 100);
  trace(1, 150);
  write_text(config, matrix("seq_length = 8\ngpus = 2\n",
                            "[\"sh\", \"-c\", \"cp " + dir.path.string() +
                                "/rank-*.json {trace_directory}; echo took 1; echo took 1; echo took 1\"]",
                            "trace_steps = 1\n"));
  ASSERT_EQ(orrery("bench run '" + config + "' --quiet").status, 0);
  const Json d = document(orrery("bench report '" + config + "' --json"));
  ASSERT_EQ(d["phases"].size(), 2u) << d["phases"];
  EXPECT_NEAR(d["phases"][0]["pct"], 40, 1e-3);  // 50 of 125 us
  EXPECT_NEAR(d["phases"][1]["pct"], 60, 1e-3);
}

TEST(CliBenchReport, LinesThatWereDroppedAreTold) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  write_text(
      config,
      matrix("seq_length = [8, 9]\n",
             "[\"sh\", \"-c\", \"echo took 0; echo took 1; echo took 2; [ {seq_length} = 9 ] || echo took 3\"]"));
  const Json d = document(orrery("bench run '" + config + "' --json --quiet"));
  const std::string dropped = "1 line of its report dropped: took 0";
  EXPECT_EQ(d["runs"][0]["state"], "done");
  EXPECT_EQ(d["runs"][0]["reason"], dropped);
  EXPECT_EQ(d["runs"][1]["state"], "crashed");
  EXPECT_EQ(d["runs"][1]["reason"], "it ended well after 2 of 3 steps; " + dropped);
  EXPECT_EQ(d["runs"][1]["root_cause"],
            "2 of 3 lines of its output reported a step; expected what matches step_ms = 'took ([0-9.]+)'");
  for (const Json& answer : {d, document(orrery("bench report '" + config + "' --json"))}) {
    std::map<std::string, Json> notes;
    for (const Json& n : answer["notes"]) notes[n["name"]] = n;
    EXPECT_EQ(notes["dropped-lines"]["count"], 2);
  }
}

// Ranks and threads are the run's, not the environment's; a version is.
TEST(CliBenchReport, EnvironmentsAreWithoutWhatTheRunSays) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  write_text(config,
             "[bench]\nwarmup_steps = 0\nsteps = 3\nreference_every = 0\n[[matrix]]\ntask = \"pretrain\"\n"
             "model = \"tiny\"\nframework = \"mine\"\ngpus = [1, 2]\n" +
                 std::string(kTiny) + "[commands.mine]\nargv = [\"sh\", \"train.sh\", \"{gpus}\"]\n");
  const auto report_of = [&](const std::string& torch) {
    write_text(dir / "train.sh", R"(printf '{"orrery_bench": "environment", "world": %d, "threads": %d, "torch": ")" +
                                     torch + R"("}\n' $1 $((4 / $1))
for i in 1 2 3; do echo '{"orrery_bench": "step", "ms": 5}'; done
)");
    EXPECT_EQ(orrery("bench run '" + config + "' --quiet --repeat").status, 0);
    return document(orrery("bench report '" + config + "' --json"));
  };
  const auto warned = [](const Json& d) {
    std::string told;
    for (const Json& n : d["notes"])
      if (n["name"] == "several-environments") told = n["first"];
    return told;
  };
  const Json one = report_of("1.0");
  EXPECT_EQ(one["environments"].size(), 1u) << one["environments"];
  EXPECT_EQ(one["environments"][0]["torch"], "1.0");
  EXPECT_EQ(warned(one), "");
  const Json two = report_of("2.0");
  EXPECT_EQ(two["environments"].size(), 2u);
  EXPECT_EQ(warned(two), "worker.torch");
  write_text(dir / "train.sh", "for i in 1 2 3; do echo '{\"orrery_bench\": \"step\", \"ms\": 5}'; done\n");
  const std::string quiet = dir / "quiet.db";  // one tells its versions, one does not: no difference
  const auto measure = [&](const std::string& runs) {
    EXPECT_EQ(orrery("bench run '" + config + "' --quiet --store '" + quiet + "' --runs " + runs).status, 0);
  };
  measure("g1");
  (void)report_of("2.0");
  measure("g2");
  const Json three = document(orrery("bench report '" + config + "' --json --store '" + quiet + "'"));
  EXPECT_EQ(three["environments"].size(), 2u);
  EXPECT_EQ(warned(three), "");
}

// Only its interpreter was in memory.
TEST(CliBenchReport, AMissingPackageHasNoMemory) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  write_text(config, matrix("seq_length = 8\n",
                            "[\"sh\", \"-c\", \"sleep 0.3; echo ModuleNotFoundError: No module named apex; "
                            "exit 1\"]"));
  const Json run = document(orrery("bench run '" + config + "' --json --quiet"))["runs"][0];
  EXPECT_EQ(run["state"], "missing-package") << run;
  EXPECT_TRUE(run["memory_gib"].is_null()) << run;
}

// Nothing is left beside the store, figures are written out, and what the older store has is not forgotten.
TEST(CliBenchReport, LeavesNothingBehindAndForgetsNothing) {
  const TempDir dir;
  const std::string config = dir / "m.toml", store = dir / "m.db", page = dir / "page.html";
  const std::string command = "[\"sh\", \"-c\", \"echo took 3.5; echo took 3.5; echo took 3.5\"]";
  write_text(config, matrix("seq_length = [8, 9, 10]\nbatch = [4]\ntechniques = [\"\", \"F\"]\n", command) +
                         "techniques = { F = [\"-f\"] }\n");
  ASSERT_EQ(orrery("bench run '" + config + "' --quiet").status, 0);
  ASSERT_EQ(orrery("bench report '" + config + "' --html '" + page + "'").status, 0);
  for (const char* const end : {"-wal", "-shm"}) EXPECT_FALSE(fs::exists(store + end)) << end;
  EXPECT_EQ(read_file(page).find("e+0"), std::string::npos);  // 73142.9 tokens/s
  EXPECT_NE(read_file(page).find("73.1k"), std::string::npos);
  // Nor is a page written over what it is made of.
  const std::string before = read_file(config), results = read_file(store);
  for (const std::string& file : {config, store, dir / "./m.db"}) {
    const Outcome over = orrery("bench report '" + config + "' --html '" + file + "'");
    EXPECT_EQ(over.status, 2);
    EXPECT_NE(over.err.find("--html: would be written over "), std::string::npos) << over.err;
  }
  EXPECT_EQ(read_file(config), before);
  EXPECT_EQ(read_file(store), results);

  write_text(config, matrix("seq_length = 8\nbatch = 4\n", command));
  const std::string now = dir / "now.db";
  ASSERT_EQ(orrery("bench run '" + config + "' --quiet --store '" + now + "'").status, 0);
  const Outcome o = orrery("bench report '" + config + "' --quiet --store '" + now + "' --against '" + store + "'");
  EXPECT_EQ(o.status, 1);
  EXPECT_NE(o.out.find("gone (5)"), std::string::npos) << o.out;
}

// What was measured with other steps is no result of the run that the matrix names now.
TEST(CliBenchReport, ResultsOfAnotherSpecificationDoNotCount) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  const auto with_words = [&](const std::string& ms) {
    write_text(config, matrix("seq_length = [8, 9]\ntechniques = [\"\", \"F\"]\n",
                              "[\"sh\", \"-c\", \"for i in 1 2 3; do echo took ${{1:-5}}; done\", \"x\", "
                              "\"{technique_words}\"]\ntechniques = { F = [\"" +
                                  ms + "\"] }"));
  };
  const auto states = [&](const std::string& command) {
    const Json d = document(orrery("bench " + command + " '" + config + "' --json --quiet"));
    std::map<std::string, int> all;
    for (const Json& r : d["runs"]) ++all[r["techniques"].get<std::string>() + " " + r["state"].get<std::string>()];
    for (const Json& n : d["notes"])
      if (n["name"] == "measured-otherwise") all["otherwise"] = n["count"];
    return all;
  };
  using All = std::map<std::string, int>;
  with_words("7");
  EXPECT_EQ(states("run"), (All{{"none done", 2}, {"F done", 2}}));
  with_words("9");
  for (const char* const command : {"plan", "report"})
    EXPECT_EQ(states(command), (All{{"none done", 2}, {"F planned", 2}, {"otherwise", 2}})) << command;
  const Json d = document(orrery("bench run '" + config + "' --json --quiet"));
  EXPECT_EQ(d["ran"], 2);
  for (const Json& r : d["runs"]) EXPECT_EQ(r["step_ms"]["median"], r["techniques"] == "F" ? 9 : 5) << r;
  with_words("7");  // those of before are there still
  EXPECT_EQ(states("report"), (All{{"none done", 2}, {"F done", 2}}));
}

// What the matrix does not mean (another specification, other runs) is not compared, and an option without use is
// refused.
TEST(CliBenchReport, OnlyWhatTheMatrixMeansIsCompared) {
  const TempDir dir;
  const std::string config = dir / "m.toml", old = dir / "old.db", now = dir / "now.db";
  const auto took = [](const char* ms) {
    std::string argv = "[\"sh\", \"-c\", \"";
    for (int i = 0; i < 3; ++i) argv += std::string("echo took ") + ms + ";";
    return argv + "\"]";
  };
  const auto report = [&](const std::string& more) {
    return orrery("bench report '" + config + "' --json --store '" + now + "' --against '" + old + "' " + more);
  };
  write_text(config, matrix("seq_length = 8\nbatch = [1, 2]\n", took("10")));
  ASSERT_EQ(orrery("bench run '" + config + "' --quiet --store '" + old + "'").status, 0);
  write_text(config, matrix("seq_length = 8\nbatch = 1\n", took("10")));
  ASSERT_EQ(orrery("bench run '" + config + "' --quiet --store '" + now + "'").status, 0);
  write_text(config, matrix("seq_length = 8\nbatch = 2\n", took("20")));
  ASSERT_EQ(orrery("bench run '" + config + "' --quiet --store '" + now + "'").status, 0);
  EXPECT_EQ(report("").status, 1) << "b2 is slower";
  const Outcome first = report("--runs b1");
  EXPECT_EQ(first.status, 0) << first.out;
  EXPECT_EQ(document(first)["compared"].size(), 1u);
  EXPECT_EQ(document(first)["runs"].size(), 1u);

  write_text(config, matrix("seq_length = 8\nbatch = [1, 2]\n", took("5")));  // never measured
  const Outcome none = report("");
  EXPECT_EQ(none.status, 2) << none.out;
  EXPECT_EQ(none.out, "");
  EXPECT_NE(none.err.find("has a result in both stores"), std::string::npos) << none.err;

  const Outcome odd = orrery("bench plan '" + config + "' --against '" + old + "'");
  EXPECT_EQ(odd.status, 2);
  EXPECT_EQ(odd.err, "orrery: --against: is of bench report (bench plan has no use for it)\n");
}

TEST(CliBenchReport, WhatFailedIsToldWithItsWholeReason) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  write_text(config, matrix("seq_length = [8, 9]\n",
                            "[\"sh\", \"-c\", \"sleep 0.3; echo ModuleNotFoundError: No module named "
                            "apex_of_the_matter; exit 1\"]"));
  const Outcome o = orrery("bench run '" + config + "' --quiet");
  EXPECT_NE(o.out.find("What did not end well"), std::string::npos) << o.out;
  const Json d = document(orrery("bench report '" + config + "' --json"));
  ASSERT_EQ(d["failures"].size(), 1u) << d["failures"];
  EXPECT_EQ(d["failures"][0]["runs"], 2);
  EXPECT_EQ(d["failures"][0]["state"], "missing-package");
}

// Where nothing is known of what a log says its end does, whole, with the place of it.
TEST(CliBenchReport, WhatFailedIsToldWithTheEndOfItsLog) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  write_text(config, matrix("seq_length = [8, 9]\n",
                            "[\"sh\", \"-c\", \"echo loading; echo the widget of length {seq_length} does not fit into "
                            "the frobnicator of this machine >&2; echo ---- >&2; exit 3\"]"));
  const Outcome ran = orrery("bench run '" + config + "' --store '" + (dir / "m.db") + "'");
  const std::string says = "exit status 3 after 0 of 3 steps",
                    end =
                        "stderr.log ends: \"the widget of length 8 does not fit into the frobnicator of this machine\"",
                    logs = dir / "m.db.d/runs/000001";
  EXPECT_NE(ran.err.find("crashed: " + says + ": " + end + "; logs in " + logs), std::string::npos) << ran.err;
  for (const std::string& text : {ran.out, orrery("bench report '" + config + "'").out})
    for (const std::string& part : {says, end, std::string("inference/tiny/none/b1/s8+64/g1/bf16/mine"), logs})
      EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  const Json d = document(orrery("bench report '" + config + "' --json"));
  ASSERT_EQ(d["failures"].size(), 1u) << d["failures"];
  EXPECT_EQ(d["failures"][0]["runs"], 2);
  EXPECT_EQ(d["failures"][0]["root_cause"], end);
  EXPECT_EQ(d["failures"][0]["logs"], logs);
  EXPECT_FALSE(d.contains("shown_failure"));
}

// R takes 14 ms a step where none takes 10, but one of the steps of none took 100: R is the slower one.
TEST(CliBenchReport, OneSlowStepDoesNotTurnTheAnswer) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  write_text(config, matrix("seq_length = 8\ntechniques = [\"\", \"F\"]\nbatch = 1\n",
                            "[\"sh\", \"-c\", \"case x{techniques} in x) echo took 10; echo took 10; echo took "
                            "100;; *) echo took 14; echo took 14; echo took 14;; esac\"]"));
  ASSERT_EQ(orrery("bench run '" + config + "' --quiet").status, 0);
  const Json d = document(orrery("bench report '" + config + "' --json"));
  ASSERT_EQ(d["throughput"].size(), 2u);
  EXPECT_NEAR(d["throughput"][0]["tokens_per_s"], 64 / 10e-3, 1e-6);  // a step yields 64 tokens
  EXPECT_NEAR(d["throughput"][1]["times_none"], 10.0 / 14, 1e-5);
  EXPECT_EQ(d["runs"][1]["tokens_per_s"], d["throughput"][1]["tokens_per_s"]);
  std::map<std::string, Json> notes;
  for (const Json& n : d["notes"]) notes[n["name"]] = n;
  ASSERT_EQ(notes.count("noisy-steps"), 1u);
  EXPECT_EQ(notes["noisy-steps"]["count"], 1);
  EXPECT_NE(notes["noisy-steps"]["first"].get<std::string>().find("none/b1"), std::string::npos);
}

}  // namespace
}  // namespace orrery::test
