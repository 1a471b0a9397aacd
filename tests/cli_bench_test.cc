// orrery bench, whole: a matrix is planned, measured (the example trainer, and commands that fail in every way),
// killed, gone on with, and reported.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "bench_fixture.h"

namespace orrery::test {
namespace {

const std::string kTrainer = fs::path(ORRERY_BINARY).parent_path().string() + "/orrery_trainer";

const char* const kTrainersTiny = R"(
[models.tiny]
layers = 1
hidden = 16
ffn = 64
heads = 2
vocab = 32
gated_mlp = false
rms_norm = false
)";

// A matrix of the trainer's runs: batches, lengths, ranks.
std::string matrix(const std::string& bench, const std::string& axes) {
  return "[bench]\nwarmup_steps = 1\nsteps = 3\n" + bench + "\n[[matrix]]\ntask = \"pretrain\"\nmodel = \"tiny\"\n" +
         axes + kTrainersTiny;
}

std::map<std::string, Json> by_id(const Json& d) {
  std::map<std::string, Json> runs;
  for (const Json& r : d["runs"]) runs[r["id"]] = r;
  return runs;
}

TEST(CliBench, PlanRunReport) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  write_text(config, matrix("", "framework = \"trainer\"\nbatch = [1, 2]\nseq_length = 8\ngpus = [1, 2]\n"));
  const Json plan = document(orrery("bench plan '" + config + "' --json"));
  EXPECT_EQ(plan["runs"].size(), 4u);
  for (const Json& r : plan["runs"]) {
    EXPECT_EQ(r["state"], "planned");
    EXPECT_TRUE(r["step_ms"]["mean"].is_null());
  }
  EXPECT_EQ(orrery("bench report '" + config + "'").status, 2);  // nothing there yet

  const Outcome ran = orrery("bench run '" + config + "' --json --quiet");
  EXPECT_EQ(ran.status, 0);
  EXPECT_EQ(ran.err, "");
  const Json run = document(ran);
  EXPECT_EQ(run["ran"], 4);
  for (const Json& r : run["runs"]) {
    EXPECT_EQ(r["state"], "done") << r;
    EXPECT_EQ(r["steps"], 3);
    EXPECT_GT(r["step_ms"]["median"], 0);
    EXPECT_TRUE(r["host_memory_gib"].is_null() || r["host_memory_gib"] > 0);  // it may be over before it is looked at
    const double tokens = r["batch"].get<double>() * 8 * r["gpus"].get<double>();
    EXPECT_NEAR(r["tokens_per_s"].get<double>() * r["step_ms"]["median"].get<double>() / 1e3, tokens, 1e-2 * tokens);
  }
  // Once is enough, unless it is meant.
  const Outcome again = orrery("bench run '" + config + "' --quiet");
  EXPECT_EQ(again.status, 0);
  EXPECT_EQ(again.err, "");
  EXPECT_NE(again.out.find("  done      4\n"), std::string::npos) << again.out;
  EXPECT_NE(orrery("bench run '" + config + "'").out.find("measured-already (4)"), std::string::npos);
  const Outcome none = orrery("bench run '" + config + "' --quiet --runs nosuch");
  EXPECT_EQ(none.status, 2);
  EXPECT_NE(none.err.find("--runs nosuch: no run of"), std::string::npos) << none.err;
  EXPECT_EQ(orrery("bench plan '" + config + "' --repeat --runs nosuch").status, 2);
  const Json one = document(orrery("bench run '" + config + "' --json --quiet --repeat --runs b2/s8/g1"));
  EXPECT_EQ(one["ran"], 1);

  const std::string page = dir / "page.html";
  const Json report = document(
      orrery("bench report '" + config + "' --json --html '" + page + "' --csv '" + dir.path.string() + "/csv'"));
  EXPECT_EQ(report["done"], 4);
  EXPECT_EQ(by_id(report)["pretrain/tiny/none/b2/s8/g1/fp32/trainer"]["attempts"], 2);
  EXPECT_EQ(report["scaling"].size(), 4u);
  EXPECT_EQ(report["scaling"][0]["efficiency_pct"], 100);
  ASSERT_EQ(report["environments"].size(), 1u);
  const Json environment = Json::parse(report["environments"][0]["json"].get<std::string>());
  for (const char* key : {"orrery", "commit", "host", "kernel", "cpu", "cores", "driver", "gpus"})
    EXPECT_TRUE(environment.contains(key)) << key;
  EXPECT_NE(read_file(page).find("<svg"), std::string::npos);
  EXPECT_TRUE(fs::exists(dir.path / "csv" / "throughput.csv"));
}

// Each command ends in another way; none ends the sweep.
TEST(CliBench, WhatFailsIsAResultWithItsReason) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  const std::string base =
      "argv = [\"" + kTrainer +
      "\", \"--steps\", \"{total_steps}\", \"--layers\", \"1\", \"--width\", \"16\", \"--heads\", "
      "\"2\", \"--sequence\", \"{seq_length}\", \"--vocabulary\", \"32\", \"--micro-batches\", \"1\"";
  const auto command = [&](const std::string& name, const std::string& fault) {
    return "[commands." + name + "]\nreports = \"log\"\n" + base + ", \"--fault\", \"" + fault + "\"]\n";
  };
  write_text(
      config,
      matrix("silence_limit_s = 8\ntime_limit_s = 90",
             "framework = [\"memory\", \"hangs\", \"crash\", \"wrong\", \"absent\", \"slow\", \"lines\", \"gone\", "
             "\"pattern\", \"trainer\"]\nseq_length = 8\n") +
          command("memory", "oom@2") + command("hangs", "hang@2") + command("crash", "crash@2") +
          command("wrong", "error@2") +
          "[commands.absent]\nargv = [\"sh\", \"-c\", \"echo \\\"ModuleNotFoundError: No module named 'apex'\\\" >&2; "
          "exit "
          "1\"]\n"
          "[commands.slow]\nreports = \"log\"\n" +
          base + ", \"--fault\", \"slow@0:0:50\"]\n" +
          "[commands.lines]\nargv = [\"sh\", \"-c\", \"for i in 1 2 3 4; do echo '{{\\\"orrery_bench\\\": "
          "\\\"step\\\", "
          "\\\"ms\\\": '$i'}}'; done; echo '{{\\\"orrery_bench\\\": \\\"refused\\\", \\\"reason\\\": \\\"no such "
          "GPU\\\"}}'; exit 4\"]\n"
          "[commands.gone]\nargv = [\"/nonexistent/program\"]\n"
          "[commands.pattern]\nstep_ms = 'took ([0-9.]+) ms'\nargv = [\"printf\", \"took %s ms\\\\n\", \"9\", \"1\", "
          "\"2\", \"3\"]\n");
  const Outcome o = orrery("bench run '" + config + "' --json --quiet");
  EXPECT_EQ(o.status, 0) << o.err;
  const auto runs = by_id(document(o));
  const auto state = [&](const std::string& name) -> const Json& {
    return runs.at("pretrain/tiny/none/b1/s8/g1/" + std::string(name == "trainer" ? "fp32/" : "bf16/") + name);
  };
  EXPECT_EQ(state("memory")["state"], "out-of-memory") << state("memory");
  EXPECT_EQ(state("hangs")["state"], "hang") << state("hangs");
  EXPECT_NE(state("hangs")["reason"].get<std::string>().find("after 1 of 3 steps"), std::string::npos);
  EXPECT_EQ(state("crash")["state"], "crashed");
  EXPECT_EQ(state("wrong")["state"], "crashed");
  EXPECT_EQ(state("wrong")["category"], "Framework") << state("wrong");
  EXPECT_FALSE(state("wrong")["root_cause"].get<std::string>().empty());
  EXPECT_EQ(state("absent")["state"], "missing-package") << state("absent");
  EXPECT_EQ(state("slow")["state"], "done");
  EXPECT_GT(state("slow")["step_ms"]["median"], 50);
  EXPECT_EQ(state("lines")["state"], "refused");
  EXPECT_EQ(state("lines")["reason"], "no such GPU");
  EXPECT_EQ(state("gone")["state"], "crashed");
  EXPECT_NE(state("gone")["reason"].get<std::string>().find("cannot be started"), std::string::npos);
  EXPECT_EQ(state("pattern")["state"], "done");
  EXPECT_EQ(state("pattern")["step_ms"]["median"], 2);
  EXPECT_EQ(state("trainer")["state"], "done");
}

TEST(CliBench, TheTimeLimitEndsWhatStillWorks) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  write_text(config, matrix("time_limit_s = 1.5", "framework = \"slow\"\nseq_length = 8\n") +
                         "[commands.slow]\nargv = [\"sh\", \"-c\", \"while :; do echo x; sleep 0.1; done & wait\"]\n");
  const Json d = document(orrery("bench run '" + config + "' --json --quiet"));
  EXPECT_EQ(d["runs"][0]["state"], "time-limit") << d["runs"][0];
  EXPECT_LT(d["runs"][0]["seconds"], 20);
}

// A command that has memory for batches of up to 11: the search finds it.
TEST(CliBench, TheLargestBatchByBisection) {
  const TempDir dir;
  const std::string config = dir / "m.toml", script = dir / "train.sh";
  write_text(script,
             "if [ $1 -gt 11 ]; then echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB' "
             ">&2; exit 1; fi\n"
             "for i in 1 2 3 4; do echo \"took $((10 * $1)) ms\"; done\n");
  write_text(config, matrix("largest_batch = 100", "framework = \"mine\"\nbatch = \"max\"\nseq_length = 8\n") +
                         "[commands.mine]\nstep_ms = 'took ([0-9.]+) ms'\nargv = [\"sh\", \"" + script +
                         "\", \"{batch}\"]\n");
  const Json d = document(orrery("bench run '" + config + "' --json --quiet"));
  ASSERT_EQ(d["runs"].size(), 1u);
  EXPECT_EQ(d["runs"][0]["state"], "done") << d["runs"][0];
  EXPECT_EQ(d["runs"][0]["batch"], 11);
  EXPECT_EQ(d["runs"][0]["step_ms"]["median"], 110);
  EXPECT_EQ(d["runs"][0]["tokens_per_s"], 800);  // 11 * 8 tokens in 110 ms
}

// A limit that was raised: the search goes on where it ended.
TEST(CliBench, TheSearchGoesOnBeyondItsOldLimit) {
  const TempDir dir;
  const std::string config = dir / "m.toml", script = dir / "train.sh";
  write_text(
      script,
      "echo x >> runs; if [ $1 -gt 5 ]; then echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
      "2.00 GiB' >&2; exit 1; fi\nfor i in 1 2 3 4; do echo \"took $1 ms\"; done\n");
  const auto measured = [&](const std::string& limit) {
    write_text(config, matrix("largest_batch = " + limit, "framework = \"mine\"\nbatch = \"max\"\nseq_length = 8\n") +
                           "[commands.mine]\nstep_ms = 'took ([0-9.]+) ms'\nargv = [\"sh\", \"" + script +
                           "\", \"{batch}\"]\n");
    Json d = document(orrery("bench run '" + config + "' --json --quiet"));
    return std::pair(d["runs"][0]["batch"], d["notes"].dump().find("largest-batch") != std::string::npos);
  };
  using Found = std::pair<Json, bool>;
  EXPECT_EQ(measured("2"), (Found{2, true}));
  const auto told = orrery("bench report '" + config + "'");
  EXPECT_NE(told.out.find("largest-batch"), std::string::npos) << told.out;
  EXPECT_EQ(measured("9"), (Found{5, false}));
  const std::string runs = read_file(dir / "runs");
  EXPECT_EQ(measured("20"), (Found{5, false}));
  EXPECT_EQ(read_file(dir / "runs"), runs);  // what failed for want of memory is known
}

// What ended for another reason than memory says nothing of it: told wherever the result is.
TEST(CliBench, ASearchThatWasCutSaysSo) {
  const TempDir dir;
  const std::string config = dir / "m.toml", script = dir / "train.sh";
  write_text(script, "if [ $1 -gt 3 ]; then exit 7; fi\nfor i in 1 2 3 4; do echo \"took $1 ms\"; done\n");
  write_text(config, matrix("largest_batch = 100", "framework = \"mine\"\nbatch = \"max\"\nseq_length = 8\n") +
                         "[commands.mine]\nstep_ms = 'took ([0-9.]+) ms'\nargv = [\"sh\", \"" + script +
                         "\", \"{batch}\"]\n");
  EXPECT_EQ(orrery("bench run '" + config + "' --quiet").status, 0);
  const Json run = document(orrery("bench report '" + config + "' --json"))["runs"][0];
  EXPECT_EQ(run["state"], "done") << run;
  EXPECT_EQ(run["batch"], 2) << run;
  EXPECT_EQ(run["reason"], "more may fit: a batch of 4 ended as crashed") << run;
}

TEST(CliBench, AgainstAnOlderStore) {
  const TempDir dir;
  const std::string config = dir / "m.toml", script = dir / "train.sh";
  write_text(script, "ms=$(cat " + (dir / "ms") + "); for i in 1 2 3 4 5 6; do echo \"took $ms ms\"; done\n");
  write_text(config, matrix("", "framework = \"mine\"\nseq_length = 8\n") +
                         "[commands.mine]\nstep_ms = 'took ([0-9.]+) ms'\nargv = [\"sh\", \"" + script + "\"]\n");
  const auto measured = [&](const std::string& ms, const std::string& store) {
    write_text(dir / "ms", ms);
    EXPECT_EQ(orrery("bench run '" + config + "' --quiet --store '" + (dir / store) + "'").status, 0);
  };
  measured("100", "old.db");
  measured("102", "same.db");
  measured("120", "slow.db");
  const auto report = [&](const std::string& store) {
    return orrery("bench report '" + config + "' --json --store '" + (dir / store) + "' --against '" +
                  (dir / "old.db") + "'");
  };
  EXPECT_EQ(report("same.db").status, 0);
  const Outcome slow = report("slow.db");
  EXPECT_EQ(slow.status, 1);
  const Json c = document(slow)["compared"][0];
  EXPECT_EQ(c["change"], "slower");
  EXPECT_NEAR(c["change_pct"], 20, 1e-6);
  EXPECT_EQ(
      orrery("bench report '" + config + "' --store '" + (dir / "old.db") + "' --against '" + config + "'").status, 2);
}

struct Background {  // `orrery bench run`, in a process group of its own
  pid_t pid = 0;
  explicit Background(const std::string& config) {
    pid = ::fork();
    if (pid == 0) {
      ::setpgid(0, 0);
      const std::string out = config + ".out";
      (void)!::freopen(out.c_str(), "a", stdout);
      (void)!::freopen(out.c_str(), "a", stderr);
      ::execl(ORRERY_BINARY, ORRERY_BINARY, "bench", "run", config.c_str(), "--quiet", nullptr);
      ::_exit(127);
    }
  }
  // Its status, or nothing after so long.
  std::optional<int> wait(double seconds) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    for (int raw = 0;;) {
      if (::waitpid(pid, &raw, WNOHANG) == pid) return WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
      if (std::chrono::steady_clock::now() >= end) return std::nullopt;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
};

// Killed without warning at moments that differ, it goes on until every run is done once, and nothing is left running.
TEST(CliBench, KilledAtAnyMomentItGoesOn) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  write_text(config, matrix("reference_every = 3",
                            "framework = [\"trainer\", \"shell\"]\nbatch = [1, 2]\nseq_length = [8, 12]\n") +
                         // its child would outlive it
                         "[commands.shell]\nstep_ms = 'took ([0-9.]+) ms'\n"
                         "argv = [\"sh\", \"-c\", \"sleep 0.1; for i in 1 2 3 4; do echo took $i ms; done; sleep 3600 "
                         "& sleep 0.1\"]\n");
  std::mt19937 random(7);
  int kills = 0;
  std::optional<int> status;
  for (int i = 0; i < 200 && !status; ++i) {
    const Background b(config);
    // Later each time, so that it comes to an end on a slow machine as well.
    const double after = std::uniform_real_distribution<double>(0.01, 0.25 + 0.1 * i)(random);
    status = b.wait(after);
    if (status) break;
    ::kill(b.pid, SIGKILL);
    (void)b.wait(60);
    ++kills;
  }
  ASSERT_TRUE(status);
  EXPECT_EQ(*status, 0) << read_file(config + ".out");  // also where the last kill came after the last run
  EXPECT_GT(kills, 2);
  const Json d = document(orrery("bench report '" + config + "' --json"));
  EXPECT_EQ(d["runs"].size(), 8u);
  for (const Json& r : d["runs"]) {
    EXPECT_EQ(r["state"], "done") << r;
    EXPECT_EQ(r["attempts"], 1) << r;
  }
  // Every row that was begun is a result or interrupted, and none runs.
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::ifstream in(entry.path() / "environ", std::ios::binary);
    const std::string all((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    if (all.find("ORRERY_BENCH_RUN=" + dir.path.string()) != std::string::npos) left.insert(entry.path().string());
  }
  EXPECT_TRUE(left.empty()) << *left.begin();
}

TEST(CliBench, OneRunnerAtATimeAndATermEndsItCleanly) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  write_text(config, matrix("", "framework = \"forever\"\nseq_length = [8, 9]\n") +
                         "[commands.forever]\nargv = [\"sh\", \"-c\", \"echo started; sleep 3600\"]\n");
  const Background b(config);
  const fs::path log = config.substr(0, config.size() - 5) + ".db.d/runs/000001/stdout.log";
  for (int i = 0; i < 6000 && read_file(log).empty(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const Outcome second = orrery("bench run '" + config + "' --quiet");
  EXPECT_EQ(second.status, 2);
  EXPECT_NE(second.err.find("another runner measures into this store (process " + std::to_string(b.pid) + ")"),
            std::string::npos)
      << second.err;
  ::kill(b.pid, SIGTERM);
  EXPECT_EQ(b.wait(60), 1);
  const Json d = document(orrery("bench report '" + config + "' --json"));
  for (const Json& r : d["runs"]) EXPECT_EQ(r["state"], "planned");  // interrupted: still to do
}

// A trace that a command leaves is taken apart: shares of stages and modules.
TEST(CliBench, TracesBecomeShares) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  write_text(config, matrix("trace_steps = 1", "framework = \"mine\"\nseq_length = 8\n") +
                         "[commands.mine]\nstep_ms = 'took ([0-9.]+)'\nargv = [\"sh\", \"-c\", \"cp " ORRERY_SOURCE_DIR
                         "/samples/gpt-tp2-pp2-dp2/rank-0.json.gz {trace_directory}; for i in 1 2 3 4; do echo took "
                         "$i; done\"]\n");
  EXPECT_EQ(orrery("bench run '" + config + "' --quiet").status, 0);
  const Json d = document(orrery("bench report '" + config + "' --json"));
  const Json trace = document(orrery("dissect samples/gpt-tp2-pp2-dp2/rank-0.json.gz --json"));
  ASSERT_EQ(d["phases"].size(), trace["phases"].size());
  for (std::size_t i = 0; i < d["phases"].size(); ++i) {
    EXPECT_EQ(d["phases"][i]["name"], trace["phases"][i]["name"]);
    EXPECT_EQ(d["phases"][i]["pct"], trace["phases"][i]["pct"]);
  }
  EXPECT_EQ(d["modules"].size(), trace["modules"].size());
}

// Where the command says that they are.
TEST(CliBench, TracesElsewhereAreFound) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  write_text(dir / "train.sh",
             "mkdir -p $1/elsewhere; cp " ORRERY_SOURCE_DIR
             "/samples/gpt-tp2-pp2-dp2/rank-0.json.gz $1/elsewhere\nfor i in 1 2 3 4; do echo '{\"orrery_bench\": "
             "\"step\", \"ms\": 5}'; done\necho '{\"orrery_bench\": \"trace\", \"directory\": \"'$1/elsewhere'\"}'\n");
  write_text(config, matrix("trace_steps = 1", "framework = \"mine\"\nseq_length = 8\n") +
                         "[commands.mine]\nargv = [\"sh\", \"train.sh\", \"{directory}\"]\n");
  EXPECT_EQ(orrery("bench run '" + config + "' --quiet").status, 0);
  const Json d = document(orrery("bench report '" + config + "' --json"));
  EXPECT_GT(d["phases"].size(), 1u) << d;
}

// Python's logging goes to standard error.
TEST(CliBench, StepsAreReadFromBothLogs) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  write_text(config, matrix("", "framework = \"mine\"\nseq_length = 8\n") +
                         "[commands.mine]\nreports = \"log\"\nargv = [\"sh\", \"-c\", \"" + kTrainer +
                         " --steps {total_steps} --layers 1 --width 16 --heads 2 --sequence 8 --vocabulary 32 "
                         "--micro-batches 1 >&2\"]\n");
  const Json run = document(orrery("bench run '" + config + "' --json --quiet"))["runs"][0];
  EXPECT_EQ(run["state"], "done") << run;
  EXPECT_EQ(run["steps"], 3) << run;
}

// Asked with a PyTorch of nearly nothing: the worker only looks at its environment.
TEST(CliBench, AWorkersRankIsWhatItsOwnLauncherSays) {
  if (shell("python3 --version").status != 0) GTEST_SKIP() << "no Python here";
  const TempDir dir;
  fs::create_directories(dir.path / "torch");
  write_text(dir / "torch/__init__.py",
             "class Module: pass\nclass nn: Module = Module\nfloat32 = bfloat16 = float16 = None\n"
             "def no_grad(): return lambda f: f\n");
  write_text(dir / "torch/distributed.py", "");
  const auto rank = [&](const std::string& environment) {
    const Outcome o = shell("PYTHONDONTWRITEBYTECODE=1 PYTHONPATH='" + dir.path.string() + "':src/bench/workers " +
                            environment + " python3 -c 'import torch_worker; print(torch_worker.given_rank())'");
    return o.out + o.err;
  };
  EXPECT_EQ(rank("RANK=2"), "2\n");  // torchrun
  EXPECT_EQ(rank("SLURM_PROCID=3 ORRERY_BENCH_LAUNCH=srun RANK=0"), "3\n");
  EXPECT_EQ(rank("SLURM_PROCID=0 ORRERY_BENCH_LAUNCH= RANK=1"), "1\n");  // of those that a worker started
  EXPECT_EQ(rank("SLURM_PROCID=0 ORRERY_BENCH_LAUNCH=one RANK=0"), "None\n");
  EXPECT_EQ(rank("X=1"), "None\n");
}

// A Python that has PyTorch; "" = none here.
std::string python_with_torch() {
  for (const char* python : {"python3", "/usr/bin/python3"})
    if (shell(std::string(python) + " -c 'import torch'").status == 0) return python;
  return "";
}

TEST(CliBench, PyTorchWorkersTrainFineTuneAndGenerate) {
  const std::string python = python_with_torch();
  if (python.empty()) GTEST_SKIP() << "no Python with PyTorch here (Debian: python3-torch)";
  const TempDir dir;
  const std::string config = dir / "m.toml";
  const std::string axes = "model = \"tiny\"\nseq_length = 8\n";
  write_text(config,
             "[bench]\npython = \"" + python +
                 "\"\nwarmup_steps = 1\nsteps = 2\ntrace_steps = 2\ndevice = \"cpu\"\nthreads = 1\nlora_rank = 4\n"
                 "prompt_tokens = 3\noutput_tokens = 4\nreference_every = 0\n"
                 "[[matrix]]\ntask = \"pretrain\"\nprecision = \"fp32\"\n" +
                 axes + "[[matrix]]\ntask = \"pretrain\"\ntechniques = \"R\"\ngpus = 2\n" + axes +
                 "[[matrix]]\ntask = \"finetune\"\ntechniques = [\"L\", \"P\", \"R+Q\"]\n" + axes +
                 "[[matrix]]\ntask = \"inference\"\nprecision = \"fp32\"\n" + axes +
                 "[[matrix]]\ntask = \"pretrain\"\nframework = \"deepspeed\"\n" + axes + kTrainersTiny);
  // As it were in a job of Slurm, which makes no rank of a worker that starts its own.
  const Outcome o = shell("SLURM_PROCID=0 RANK=0 WORLD_SIZE=2 \"$orrery\" bench run '" + config + "' --json --quiet");
  EXPECT_EQ(o.status, 0) << o.err;
  const auto runs = by_id(document(o));
  ASSERT_EQ(runs.size(), 7u);
  for (const auto& [id, r] : runs) {
    if (id.find("deepspeed") != std::string::npos || id.find("R+Q") != std::string::npos) {  // further packages
      EXPECT_TRUE(r["state"] == "missing-package" || r["state"] == "done") << r;
      continue;
    }
    EXPECT_EQ(r["state"], "done") << r << read_file(r["directory"].get<std::string>() + "/stderr.log");
    EXPECT_EQ(r["steps"], 2);
    EXPECT_GT(r["cpu_ms"], 0);
    EXPECT_GT(r["host_memory_gib"], 0.05);
    EXPECT_TRUE(r["device_memory_gib"].is_null());
  }
  EXPECT_GT(runs.at("inference/tiny/none/b1/s8+4/g1/fp32/pytorch")["prefill_ms"], 0);
  const Json d = document(orrery("bench report '" + config + "' --json"));
  const Json worker = Json::parse(d["environments"][0]["json"].get<std::string>())["worker"];
  EXPECT_TRUE(worker.contains("torch"));
  if (!d.contains("phases")) {  // Debian's PyTorch 1.13 has no Kineto: its traces are empty
    EXPECT_NE(orrery("bench report '" + config + "'").out.find("unread-trace"), std::string::npos);
    return;
  }
  // What the profiler recorded was taken apart: forward, backward and optimizer of the run with all three.
  std::map<std::string, double> phases;
  std::set<std::string> modules;
  for (const Json& p : d["phases"])
    if (p["run"] == "pretrain/tiny/none/b1/s8/g1/fp32/pytorch") phases[p["name"]] += p["pct"].get<double>();
  for (const char* phase : {"forward", "backward", "optimizer"}) EXPECT_GT(phases[phase], 1) << phase;
  for (const Json& m : d["modules"]) modules.insert(m["name"].get<std::string>());
  for (const char* module : {"qkv", "mlp up", "mlp down", "lm head"}) EXPECT_EQ(modules.count(module), 1u) << module;
  const Json plain = runs.at("pretrain/tiny/none/b1/s8/g1/fp32/pytorch");
  // Shares are of a step, not of all that was traced.
  EXPECT_NE(read_file(plain["directory"].get<std::string>() + "/traces/rank-0.json").find("ProfilerStep#1"),
            std::string::npos);
}

TEST(CliBench, TheStudysMatrixIsPlanned) {
  const Json d = document(orrery("bench plan samples/bench-a800.toml --json"));
  std::map<std::string, int> states;
  double seconds = 0;
  std::set<std::string> levels;
  for (const Json& r : d["runs"]) {
    ++states[r["state"]];
    if (r["state"] != "planned") continue;
    EXPECT_GT(r["estimated_step_ms"], 0);
    seconds += r["estimated_s"].get<double>();
  }
  EXPECT_GT(states["planned"], 50);
  EXPECT_GT(states["refused"], 100);  // mixes with several kinds of ZeRO
  EXPECT_GT(states["does-not-fit"], 0);
  EXPECT_LE(seconds, 14'400);
  EXPECT_NEAR(d["estimated_s"], seconds, 1);
  const Json less = document(orrery("bench plan samples/bench-a800.toml --json --time-budget 600"));
  double budget = 0;
  std::set<std::string> tasks;
  for (const Json& r : less["runs"]) {
    if (r["state"] != "planned") continue;
    budget += r["estimated_s"].get<double>();
    tasks.insert(r["task"]);
  }
  EXPECT_LE(budget, 600);
  EXPECT_EQ(tasks.size(), 3u);  // also a small budget looks at every task
}

}  // namespace
}  // namespace orrery::test
