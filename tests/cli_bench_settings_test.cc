// orrery bench: settings that cannot work are refused before anything is measured; those that can, do.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench_fixture.h"
#include "cli_run.h"
#include "processes/child.h"
#include "processes/find.h"

namespace orrery::test {
namespace {

void expect_refused(const std::string& command, const std::string& says) {
  const Outcome o = orrery(command);
  EXPECT_EQ(o.status, 2) << command << "\n" << o.out;
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  EXPECT_NE(o.err.find(says), std::string::npos) << o.err;
}

std::string matrix(const std::string& axes, const std::string& command, const std::string& bench = "") {
  return "[bench]\nwarmup_steps = 0\nsteps = 2\n" + bench +
         "[[matrix]]\ntask = \"pretrain\"\nmodel = \"tiny\"\nframework = \"mine\"\nseq_length = [8, 9, 10]\n" + axes +
         kTiny + "[commands.mine]\nstep_ms = 'took ([0-9.]+)'\n" + command;
}

// The command starts this program again, through others where there is a limit of memory. It says nothing for longer
// than the limit of silence, which is not meant for it.
TEST(CliBenchSettings, OperatorsUnderALimitOfMemory) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  write_text(config,
             "[bench]\nmemory_limit_gib = 8\nsilence_limit_s = 0.1\n"
             "operator_options = [\"--sizes\", \"tiny\", \"--budget\", \"0.5\", "
             "\"--only\", \"copy\", \"--dtypes\", \"fp32\", \"--threads\", \"1\"]\n[[matrix]]\ntask = \"operators\"\n");
  const Json d = document(orrery("bench run '" + config + "' --json --quiet"));
  ASSERT_EQ(d["runs"].size(), 1u);
  const Json& run = d["runs"][0];
  EXPECT_EQ(run["state"], "done") << run;
  for (const char* const of_training : {"batch", "seq_length", "precision", "techniques"})
    EXPECT_TRUE(run[of_training].is_null()) << of_training;
  EXPECT_FALSE(document(orrery("bench report '" + config + "' --json"))["operators"].empty());
}

// Before anything is measured, by the plan as well.
TEST(CliBenchSettings, OptionsOfOperatorsAreCheckedFirst) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  const auto with = [&](const std::string& options, const std::string& task = "operators") {
    write_text(config, "[bench]\noperator_options = " + options + "\n[[matrix]]\ntask = \"" + task +
                           "\"\nmodel = \"tiny\"\n" + kTiny);
    return "bench plan '" + config + "' --quiet";
  };
  for (const auto& [options, says] : {std::pair<std::string, std::string>{R"(["--sizes", "huge"])", "--sizes"},
                                      {R"(["--size", "tiny"])", "unknown option --size"},
                                      {R"(["--gemm", "8x8"])", "not a shape: 8x8"},
                                      {R"(["--only", "all_reduce"])", "a collective needs ranks"},
                                      {R"(["-o", "x.csv"])", "option -o is given twice"},
                                      {R"(["--repeat"])", "is of other parts of bench"},
                                      {R"(["tiny"])", "takes no operand"}}) {
    expect_refused(with(options), says);
    expect_refused(with(options), "m.toml: operator_options: ");
  }
  EXPECT_EQ(orrery(with(R"(["--sizes", "tiny", "--platform-file", "p.toml"])")).status, 0);
  EXPECT_FALSE(fs::exists(ORRERY_SOURCE_DIR "/p.toml"));
  // Of two ranks it can be run; a file is the one beside the config.
  write_text(dir / "own.toml",
             "[model]\nname = \"own\"\nsource = \"a test\"\nsure = \"stated\"\nlayers = 2\nhidden = 64\nheads = 4\nffn "
             "= 128\nvocab = 256\n");
  EXPECT_EQ(orrery(with(R"(["--only", "all_reduce"])", "operators\"\ngpus = [1, 2]\nprecision = \"fp32")).status, 0);
  EXPECT_EQ(orrery(with(R"(["--model", "own.toml"])")).status, 0);
  EXPECT_EQ(orrery(with(R"(["--sizes", "huge"])", "pretrain")).status, 0) << "no run has them";
}

// A minute is taken for what nobody has timed: one such run would be all that such a budget has room for.
TEST(CliBenchSettings, WhatRunsLeaveOfABudgetIsGivenOutAgain) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  write_text(config, matrix("", "argv = [\"sh\", \"-c\", \"echo took 1; echo took 1\"]\n"));
  EXPECT_EQ(document(orrery("bench plan '" + config + "' --json --time-budget 61"))["planned"], 1);
  const Json d = document(orrery("bench run '" + config + "' --json --quiet --time-budget 61"));
  EXPECT_EQ(d["ran"], 3) << d;
  EXPECT_EQ(d["failed"], 0);
}

// Scripts are written once a sweep, however many rounds its budget makes.
TEST(CliBenchSettings, RoundsOfABudgetShareTheirScripts) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  write_text(config, matrix("",
                            "argv = [\"sh\", \"-c\", \"[ -e once ] || rm -r m.db.d/workers; touch once; echo took 1; "
                            "echo took 1\"]\n"));
  const Json d = document(orrery("bench run '" + config + "' --json --quiet --time-budget 61"));
  EXPECT_EQ(d["ran"], 3) << d;
  EXPECT_FALSE(fs::exists(dir.path / "m.db.d/workers"));
}

// What it is and what to do are told, and no directory is left beside it.
TEST(CliBenchSettings, AStoreThatCannotBeUsedIsToldAsWhatItIs) {
  const TempDir dir;
  const std::string config = dir / "m.toml", store = dir / "m.db";
  write_text(config, matrix("", "argv = [\"sh\", \"-c\", \"echo took 1; echo took 1\"]\n"));
  const auto refused_by_all = [&](const std::string& says) {
    for (const char* const part : {"plan", "run", "report"})
      expect_refused("bench " + std::string(part) + " '" + config + "' --quiet", says);
    expect_refused("bench report '" + config + "' --store '" + (dir / "good.db") + "' --against '" + store + "'", says);
    EXPECT_FALSE(fs::exists(store + ".d"));
  };
  ASSERT_EQ(orrery("bench run '" + config + "' --quiet --store '" + (dir / "good.db") + "'").status, 0);
  write_text(store, std::string(5000, 'x'));
  refused_by_all("not an SQLite database");
  const std::string whole = read_file(dir / "good.db");
  for (const std::size_t size : {std::size_t{100}, std::size_t{1000}, whole.size() / 2}) {
    write_text(store, whole.substr(0, size));
    refused_by_all("is damaged");
  }
  fs::remove(store);
  fs::create_directory(store);
  expect_refused("bench report '" + config + "'", "not a file");
  expect_refused("bench run '" + config + "'", "Is a directory");
  fs::remove(store);
  expect_refused("bench report '" + config + "'", "`orrery bench run` makes it");
  if (::geteuid() == 0) return;  // may read everything
  write_text(store, whole);
  fs::permissions(store, fs::perms::none);
  expect_refused("bench report '" + config + "'", "cannot be read: Permission denied (ask its owner");
  expect_refused("bench run '" + config + "'", "Permission denied");
  EXPECT_FALSE(fs::exists(store + ".d"));
}

TEST(CliBenchSettings, APlatformThatIsNotKnownIsRefusedWithTheFile) {
  const TempDir dir;
  write_text(dir / "m.toml", "[bench]\nplatform = \"no-such-machine\"\n[[matrix]]\ntask = \"operators\"\n");
  expect_refused("bench plan '" + (dir / "m.toml") + "'",
                 "m.toml: platform: no platform or GPU is named no-such-machine");
}

TEST(CliBenchSettings, PlaceholdersThatThereAreNotAreRefusedWithTheFile) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  for (const auto& [argv, says] :
       {std::pair<std::string, std::string>{"[\"echo\", \"{nope}\"]", "no placeholder {nope}"},
        {"[\"echo\", \"--batch={batch\"]", "a brace that stands alone: --batch={batch"},
        {"[\"echo\", \"x}\"]", "a brace that stands alone: x}"},
        {"[\"echo\", \"-t={technique_words}\"]", "no placeholder {technique_words}"},
        {"[\"echo\"]\ntechniques = { R = [\"{bach}\"] }", "did you mean {batch}?"}}) {
    write_text(config, matrix("", "argv = " + argv + "\n"));
    for (const char* const part : {"plan", "run"}) {
      expect_refused("bench " + std::string(part) + " '" + config + "'", says);
      expect_refused("bench " + std::string(part) + " '" + config + "'", "m.toml:1");  // with the line
    }
  }
  EXPECT_FALSE(fs::exists(dir.path / "m.db"));
}

TEST(CliBenchSettings, AnErrorOfAValueNamesItsKey) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  for (const auto& [line, says] :
       {std::pair<std::string, std::string>{"lora_rank = 0", "lora_rank: not a whole number"},
        {"time_limit_s = \"x\"", "time_limit_s: not a number from"},
        {"calibrate = 3", "calibrate: not a list"}}) {
    write_text(config, matrix("", "argv = [\"true\"]\n", line + "\n"));
    expect_refused("bench plan '" + config + "'", says);
  }
}

TEST(CliBenchSettings, ATechniqueThatTheCommandDoesNotTakeIsRefusedByThePlan) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  write_text(config, matrix("techniques = [\"R\", \"F\"]\n",
                            "argv = [\"sh\", \"-c\", \"echo took 1; echo took 1\", "
                            "\"{technique_words}\"]\ntechniques = { R = [\"-r\"] }\n"));
  int refused = 0;
  const Json d = document(orrery("bench run '" + config + "' --json --quiet"));
  for (const Json& r : d["runs"]) {
    EXPECT_EQ(r["state"], r["techniques"] == "R" ? "done" : "refused") << r;
    if (r["state"] != "refused") continue;
    EXPECT_EQ(r["reason"], "command mine does not say how it takes technique F");
    ++refused;
  }
  EXPECT_EQ(refused, 3);
}

TEST(CliBenchSettings, AProgramThatThereIsNotStopsBeforeTheFirstRun) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  for (const char* const program : {"/nonexistent/program", "no-such-program-anywhere", "./not-here.sh"}) {
    write_text(config, matrix("", "argv = [\"" + std::string(program) + "\", \"{batch}\"]\n"));
    expect_refused("bench run '" + config + "' --quiet", program);
  }
  write_text(config, matrix("", "argv = [\"true\"]\n") + "[[matrix]]\ntask = \"pretrain\"\nmodel = \"tiny\"\n");
  std::string workers = read_file(config);
  workers.replace(workers.find("[bench]\n"), 8, "[bench]\npython = \"venv/bin/python\"\n");
  write_text(config, workers);
  expect_refused("bench run '" + config + "' --quiet --runs pytorch", (dir / "venv/bin/python"));
  // What only the program's own start shows ends the sweep at once, and is no result.
  write_text(config, matrix("", "argv = [\"sh\", \"-c\", \"no-such-program-anywhere {batch}\"]\n"));
  const Outcome o = orrery("bench run '" + config + "' --json --quiet");
  EXPECT_EQ(o.status, 1) << o.err;
  const Json d = document(o);
  for (const Json& r : d["runs"]) EXPECT_EQ(r["state"], "planned") << r;
  EXPECT_EQ(d["notes"][0]["name"], "cannot-be-started");
  EXPECT_NE(d["notes"][0]["first"].get<std::string>().find("no-such-program-anywhere"), std::string::npos)
      << d["notes"];
}

// One operator that would take too long costs nothing of the others.
TEST(CliBenchSettings, OperatorsThatAreLeftOutAreTold) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  write_text(config,
             "[bench]\noperator_options = [\"--sizes\", \"tiny\", \"--budget\", \"0.5\", \"--only\", \"gemm\", "
             "\"--dtypes\", \"fp32\", \"--threads\", \"1\", \"--blas\", \"own\", \"--gemm\", "
             "\"100000x100000x100000\"]\n[[matrix]]\ntask = \"operators\"\n");
  const Json run = document(orrery("bench run '" + config + "' --json --quiet"))["runs"][0];
  EXPECT_EQ(run["state"], "done") << run;
  EXPECT_NE(run["reason"].get<std::string>().find("100000x100000x100000"), std::string::npos) << run;
  const Json d = document(orrery("bench report '" + config + "' --json"));
  EXPECT_GT(d["operators"].size(), 2u) << d;
}

// Scripts beside the file are found; what a run writes goes where the placeholders say.
TEST(CliBenchSettings, ACommandStartsInTheDirectoryOfTheFile) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  write_text(dir / "train.sh", "echo took $1; echo took $1; echo x > $2/checkpoint\n");
  write_text(config, matrix("", "argv = [\"sh\", \"train.sh\", \"{seq_length}\", \"{directory}\"]\n"));
  const Json d = document(orrery("bench run '" + config + "' --json --quiet"));
  ASSERT_EQ(d["runs"].size(), 3u);
  for (const Json& r : d["runs"]) {
    EXPECT_EQ(r["state"], "done") << r;
    EXPECT_EQ(r["step_ms"]["median"], r["seq_length"]);
    EXPECT_TRUE(fs::exists(r["directory"].get<std::string>() + "/checkpoint"));
  }
}

// GPU 0 is another's (30 GiB, 300 W): a run that does not use it has none of that.
TEST(CliBenchSettings, MemoryAndPowerAreOfTheDevicesThatARunSees) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  const std::string library = (fs::path(ORRERY_BINARY).parent_path() / "libfake_nvml.so").string();
  const auto measured = [&](const std::string& bench, const std::string& memory, const std::string& visible,
                            const std::string& runs = "mine") {
    write_text(dir / "train.sh", "echo '{\"orrery_bench\": " + memory +
                                     "}'\nfor i in 1 2; do echo '{\"orrery_bench\": "
                                     "\"step\", \"ms\": 5}'; done\n");
    write_text(config, "[bench]\nwarmup_steps = 0\nsteps = 2\n" + bench +
                           "[[matrix]]\ntask = \"pretrain\"\nmodel = \"tiny\"\nframework = [\"mine\", \"trainer\"]\n"
                           "seq_length = 8\n" +
                           kTiny +
                           "gated_mlp = false\nrms_norm = false\n"
                           "[commands.mine]\nargv = [\"sh\", \"train.sh\"]\n");
    const Json d = document(shell("ORRERY_NVML=" + library + " CUDA_VISIBLE_DEVICES=" + visible +
                                  " \"$orrery\" bench run '" + config + "' --json --quiet --repeat --runs " + runs));
    for (const Json& r : d["runs"]) {
      EXPECT_EQ(r["state"], "done") << r;
      if (r["framework"] != "trainer") continue;
      EXPECT_TRUE(r["device_memory_gib"].is_null()) << r;
      EXPECT_TRUE(r["device_power_w"].is_null()) << r;
    }
    return std::pair(d["runs"][0]["device_memory_gib"], d["runs"][0]["device_power_w"]);
  };
  using Both = std::pair<Json, Json>;
  const std::string none = "\"ready\"", both = "0,1", other = "1";
  EXPECT_EQ(measured("", none, both, "tiny"), (Both{30.0, 300.0}));  // a command may use what it sees
  EXPECT_EQ(measured("", none, other), (Both{5.0, 50.0}));
  EXPECT_EQ(measured("environment = { CUDA_VISIBLE_DEVICES = \"GPU-1\" }\n", none, both), (Both{5.0, 50.0}));
  EXPECT_EQ(measured("device = \"cpu\"\n", none, both), (Both{nullptr, nullptr}));
  EXPECT_EQ(measured("", "\"environment\", \"device\": \"cpu\"", both), (Both{nullptr, nullptr}));
  // What the worker knows exactly: a sample may miss the peak, and sees other processes.
  EXPECT_EQ(measured("", "\"memory\", \"device_peak_bytes\": 8589934592", other), (Both{8.0, 50.0}));
  EXPECT_EQ(measured("", "\"memory\", \"device_peak_bytes\": 1073741824, \"device_used_bytes\": 2147483648", other),
            (Both{2.0, 50.0}));
}

// Children with a session of their own: one ends with its run, one with a run that its limit ends.
TEST(CliBenchSettings, NothingOfARunOutlivesIt) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  for (const char* const ends : {"echo took 1; echo took 1", "sleep 1000"}) {
    write_text(config,
               matrix("", "argv = [\"sh\", \"-c\", \"setsid sleep 3600 & echo started; " + std::string(ends) + "\"]\n",
                      "time_limit_s = 1\n"));
    ASSERT_EQ(orrery("bench run '" + config + "' --quiet --repeat --runs s8").status, 0);
    for (const char* const run : {"000001", "000002"})
      EXPECT_TRUE(processes_with("ORRERY_BENCH_RUN", dir / ("m.db.d/runs/" + std::string(run))).empty()) << ends;
  }
  EXPECT_TRUE(fs::exists(dir.path / "m.db.d/runs/000002"));
}

// With a session and an environment of its own nothing but its parent tells whose it is.
TEST(CliBenchSettings, NothingThatCleanedItsEnvironmentOutlivesARun) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  for (const char* const ends : {"echo took 1; echo took 1", "kill -9 $$"}) {
    write_text(config, matrix("",
                              "argv = [\"sh\", \"-c\", '''env -i setsid sh -c "
                              "\"echo \\$\\$ >{directory}/pid; exec sleep 3600\" & "
                              "while [ ! -s {directory}/pid ]; do sleep 0.01; done; " +
                                  std::string(ends) + "''']\n"));
    ASSERT_EQ(orrery("bench run '" + config + "' --quiet --repeat --runs s8").status, 0);
  }
  for (const char* const run : {"000001", "000002"}) {
    const std::string pid = read_file(dir / ("m.db.d/runs/" + std::string(run) + "/pid"));
    ASSERT_FALSE(pid.empty());
    EXPECT_TRUE(session_members(std::stoi(pid)).empty()) << pid;
  }
}

// 256 MiB for some hundredths of a second: the kernel keeps what no sample sees.
TEST(CliBenchSettings, TheMemoryOfARunThatIsOverInAMomentIsKnown) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  write_text(config, matrix("",
                            "argv = [\"sh\", \"-c\", \"dd if=/dev/zero of=/dev/null bs=256M count=1; "
                            "echo took 1; echo took 1\"]\n"));
  const Json d = document(orrery("bench run '" + config + "' --json --quiet --runs s8"));
  int runs = 0;
  for (const Json& run : d["runs"])
    if (run["seq_length"] == 8) {
      ++runs;
      EXPECT_EQ(run["state"], "done") << run;
      ASSERT_TRUE(run["host_memory_gib"].is_number()) << run;
      EXPECT_NEAR(run["host_memory_gib"].get<double>() * 1024, 258, 10);
    }
  EXPECT_GT(runs, 0);
}

}  // namespace
}  // namespace orrery::test
