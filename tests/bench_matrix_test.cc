// What a matrix names: its file, the rules of mixing, the runs and their order.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "bench/embedded.h"
#include "bench/launch.h"
#include "bench/matrix.h"
#include "bench/order.h"
#include "bench/plan_runs.h"
#include "bench/run_estimate.h"

namespace orrery {
namespace {

constexpr const char* kSmall = R"(
[models.tiny]
layers = 2
hidden = 64
ffn = 128
heads = 4
vocab = 1000
)";

BenchConfig parsed(const std::string& text) {
  auto c = parse_bench_config(text + kSmall, "dir/m.toml");
  EXPECT_TRUE(c) << (c ? "" : c.error().line());
  return c ? *c : BenchConfig{};
}

std::string refused(const std::string& text) {
  const auto c = parse_bench_config(text, "m.toml");
  return c ? "" : c.error().line();
}

TEST(BenchMatrix, ProductsOfItsLists) {
  const BenchConfig c = parsed(R"(
[[matrix]]
task = ["pretrain", "finetune"]
model = "tiny"
techniques = ["", "R", "r + f"]
batch = [1, "max"]
gpus = [1, 2]
precision = "fp32"
)");
  EXPECT_EQ(c.store, "dir/m.db");
  const ExpandedMatrix e = expand(c);
  ASSERT_EQ(e.runs.size(), 2u * 3 * 2 * 2);
  EXPECT_TRUE(e.refused.empty());
  EXPECT_EQ(e.runs.front().id(), "pretrain/tiny/none/b1/s512/g1/fp32/pytorch");
  EXPECT_EQ(e.runs.back().id(), "finetune/tiny/R+F/max/s512/g2/fp32/pytorch");
  std::set<std::string> ids;
  for (const BenchRun& r : e.runs) ids.insert(r.id());
  EXPECT_EQ(ids.size(), e.runs.size());
}

TEST(BenchMatrix, MixesThatRulesRefuseAreToldWithTheReason) {
  const BenchConfig c = parsed(R"(
[[matrix]]
task = "finetune"
framework = "deepspeed"
model = "tiny"
techniques = ["Z2", "Z3", "L", "F"]
mix = true
)");
  const ExpandedMatrix e = expand(c);
  EXPECT_EQ(e.runs.size() + e.refused.size(), 16u);
  EXPECT_EQ(e.refused.size(), 4u);  // with Z2 and Z3 both
  for (const RefusedRun& r : e.refused) {
    EXPECT_TRUE(r.run.techniques.has("Z2") && r.run.techniques.has("Z3"));
    EXPECT_NE(r.reason.find("one kind of ZeRO"), std::string::npos);
  }
}

TEST(BenchMatrix, RulesOfMixing) {
  const auto why = [](const char* letters, const char* task, const char* framework) {
    return refused_because(read_techniques(letters).value(), task, framework);
  };
  EXPECT_EQ(why("R+F", "pretrain", "pytorch"), "");
  EXPECT_EQ(why("R+F+Z3O", "pretrain", "deepspeed"), "");
  EXPECT_EQ(why("Q", "pretrain", "pytorch"), "");
  EXPECT_NE(why("Q+R", "pretrain", "pytorch"), "");
  EXPECT_NE(why("L", "pretrain", "pytorch"), "");
  EXPECT_EQ(why("L+R", "finetune", "pytorch"), "");
  EXPECT_NE(why("L+Q", "finetune", "pytorch").find("QL is LoRA"), std::string::npos);
  EXPECT_NE(why("L+P", "finetune", "pytorch"), "");
  EXPECT_NE(why("Z2", "pretrain", "pytorch"), "");
  EXPECT_EQ(why("Z2", "pretrain", "fsdp"), "");
  EXPECT_NE(why("Z2O", "pretrain", "fsdp"), "");
  EXPECT_NE(why("R", "inference", "pytorch"), "");
  EXPECT_EQ(why("F+Q", "inference", "pytorch"), "");
  EXPECT_NE(why("", "inference", "megatron"), "");
  EXPECT_NE(why("R", "pretrain", "trainer"), "");
  EXPECT_EQ(why("", "pretrain", "trainer"), "");
  EXPECT_EQ(why("R+Z3+L", "finetune", "mine"), "");  // a command takes what its user says
}

// What the shipped programs have no code for they would leave out in silence.
TEST(BenchMatrix, ModelsThatTheWorkersDoNotBuildAreRefused) {
  const auto why = [](const std::string& model, const std::string& axes) {
    const ExpandedMatrix e = expand(parsed(
        "[commands.mine]\nargv = [\"x\"]\n[[matrix]]\ntask = \"inference\"\nmodel = \"" + model + "\"\n" + axes));
    EXPECT_EQ(e.runs.size() + e.refused.size(), 1u);
    return e.refused.empty() ? "" : e.refused.front().reason;
  };
  EXPECT_EQ(why("llama-2-7b", ""), "");
  EXPECT_NE(why("qwen3-4b", "").find("norms of queries and keys"), std::string::npos);
  EXPECT_NE(why("gemma-2-9b", "").find("2 norms, this model's 4"), std::string::npos);
  EXPECT_NE(why("gpt-j-6b", "").find("2 norms, this model's 1"), std::string::npos);
  EXPECT_NE(why("mixtral-8x7b", "").find("mixture of experts"), std::string::npos);
  EXPECT_EQ(why("gemma-3-1b", "framework = \"mine\"\n"), "");
  EXPECT_EQ(why("mistral-7b", "seq_length = 4032\n"), "");  // 64 more tokens fill the window
  EXPECT_NE(why("mistral-7b", "seq_length = 4033\n").find("this model to 4096"), std::string::npos);
}

TEST(BenchMatrix, TheTrainerHasItsOwnShape) {
  const auto why = [](const std::string& more) {
    const auto c = parse_bench_config(
        "[[matrix]]\ntask = \"pretrain\"\nframework = \"trainer\"\nmodel = \"m\"\n[models.m]\nlayers = 1\nhidden = "
        "64\nheads = 4\nvocab = 9\n" +
            more,
        "m.toml");
    EXPECT_TRUE(c) << c.error().line();
    const ExpandedMatrix e = expand(*c);
    return e.refused.empty() ? "" : e.refused.front().reason;
  };
  const std::string plain = "gated_mlp = false\nrms_norm = false\n";
  EXPECT_EQ(why(plain + "ffn = 256\n"), "");
  EXPECT_NE(why(plain + "ffn = 128\n").find("4 times as wide"), std::string::npos);
  EXPECT_NE(why(plain + "ffn = 256\nkv_heads = 2\n").find("keys of their own"), std::string::npos);
  EXPECT_NE(why(plain + "ffn = 256\nhead_dim = 32\n").find("share the hidden width"), std::string::npos);
  EXPECT_NE(why("ffn = 256\nrms_norm = false\n").find("gated MLP"), std::string::npos);
  EXPECT_NE(why("ffn = 256\ngated_mlp = false\n").find("LayerNorm"), std::string::npos);
}

TEST(BenchMatrix, TheTableOfTechniquesIsSound) {
  EXPECT_EQ(technique_table().techniques.size(), 10u);
  EXPECT_GE(technique_table().rules.size(), 10u);
  EXPECT_FALSE(parse_techniques("[[rule]]\nof = [\"X\"]\nreason = \"x\"\n", "t"));
  EXPECT_FALSE(parse_techniques("[[rule]]\nof = [\"R\"]\n", "t"));
  EXPECT_FALSE(parse_techniques("[[rul]]\nreason = \"x\"\n", "t"));
  bool worker = false;
  for (const EmbeddedBench& e : embedded_bench())
    worker = worker || (e.folder == "workers" && e.name == "torch_worker");
  EXPECT_TRUE(worker);
}

TEST(BenchMatrix, ARunNamedTwiceIsOne) {
  const BenchConfig c = parsed(R"(
[[matrix]]
task = "pretrain"
model = "tiny"
[[matrix]]
task = "pretrain"
model = "tiny"
batch = [1, 2]
)");
  const ExpandedMatrix e = expand(c);
  EXPECT_EQ(e.runs.size(), 2u);
  EXPECT_EQ(e.doubles, 1);
}

TEST(BenchMatrix, RefusedWithItsLine) {
  EXPECT_EQ(
      refused("[[matrix]]\ntask = \"pretrain\"\nmodle = \"x\"\n").rfind("m.toml:3: no key of [[matrix]]: modle", 0),
      0u);
  EXPECT_EQ(refused("x = 1\n").rfind("m.toml:1: no key of a matrix's file: x", 0), 0u);
  EXPECT_EQ(refused("[bench]\nsteps = 0\n").rfind("m.toml:2: steps: not a whole number from 1", 0), 0u);
  EXPECT_EQ(refused("[bench]\nstore = \"\"\n").rfind("m.toml:2: store: not a file's name", 0), 0u);
  EXPECT_EQ(refused("[bench]\nsteps = 1\n").rfind("m.toml:1: no [[matrix]]", 0), 0u);
  EXPECT_NE(refused("[[matrix]]\ntask = \"pretrain\"\nmodel = \"llama-2-7\"\n").find("m.toml:3:"), std::string::npos);
  EXPECT_EQ(refused("[[matrix]]\ntask = \"pretrain\"\n").rfind("m.toml:1: a matrix without a model", 0), 0u);
  EXPECT_NE(
      refused("[[matrix]]\ntask = \"pretrain\"\nmodel = \"llama-2-7b\"\ntechniques = \"Z4\"\n").find("no technique Z4"),
      std::string::npos);
  EXPECT_NE(refused("[[matrix]]\ntask = \"pretrain\"\nmodel = \"llama-2-7b\"\nframework = \"mine\"\n")
                .find("[commands.NAME]"),
            std::string::npos);
  EXPECT_NE(
      refused("[commands.a]\nargv = [\"x\"]\nstep_ms = '([0-9]+'\n[[matrix]]\ntask = \"pretrain\"\n").find("m.toml:3:"),
      std::string::npos);
  EXPECT_NE(refused("[commands.a]\nargv = [\"x\"]\ntechniques = { R = [\"{technique_words}\"] }\n[[matrix]]\ntask = "
                    "\"pretrain\"\n")
                .find("m.toml:3: no placeholder {technique_words}"),
            std::string::npos);
  EXPECT_NE(refused("[[[").find("not TOML"), std::string::npos);
  std::string many = "[[matrix]]\ntask = \"pretrain\"\nmodel = \"llama-2-7b\"\nbatch = [";
  for (int i = 1; i <= 500; ++i) many += std::to_string(i) + ",";
  many += "]\nseq_length = [";
  for (int i = 1; i <= 500; ++i) many += std::to_string(i) + ",";
  EXPECT_NE(refused(many + "]\n").find("more than 20000 runs"), std::string::npos);
}

// Runs are told apart by their model's name.
TEST(BenchMatrix, OneNameIsOneShape) {
  const std::string folder = ::testing::TempDir() + "bench-two-models";
  for (const char* const layers : {"1", "2"}) {
    std::filesystem::create_directories(folder + "/" + layers);
    std::ofstream(folder + "/" + layers + "/m.toml")
        << "[model]\nsource = \"a test\"\nsure = \"stated\"\nname = \"same\"\nlayers = " << layers
        << "\nhidden = 64\nffn = 256\nheads = 4\nvocab = 512\n";
  }
  const auto with = [&](const std::string& other) {
    return refused("[[matrix]]\ntask = \"pretrain\"\nmodel = \"" + folder + "/1/m.toml\"\n[[matrix]]\ntask = " +
                   "\"pretrain\"\nmodel = [\"" + folder + "/" + other + "/m.toml\"]\n");
  };
  EXPECT_EQ(with("1"), "");
  EXPECT_EQ(with("2").rfind("m.toml:6: another model of another shape has the name same", 0), 0u) << with("2");
  std::filesystem::remove_all(folder);
}

TEST(BenchMatrix, ShapesAreCheckedAsFactsAre) {
  EXPECT_NE(refused("[[matrix]]\ntask = \"pretrain\"\nmodel = \"a\"\n[models.a]\nlayers = 2\nhidden = 64\nheads = 3\n"
                    "ffn = 8\nvocab = 9\nkv_heads = 2\n")
                .find("do not divide"),
            std::string::npos);
}

TEST(BenchMatrix, ASpecificationComesBackAsItsRun) {
  const BenchConfig c =
      parsed("[[matrix]]\ntask = \"finetune\"\nmodel = \"tiny\"\ntechniques = \"L+R\"\nbatch = \"max\"\n");
  const BenchRun run = expand(c).runs.front();
  const auto back = run_of_spec(spec_of(c, run));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->id(), run.id());
  EXPECT_EQ(back->model.hidden, 64);
  EXPECT_FALSE(run_of_spec("{}"));
  EXPECT_FALSE(run_of_spec("no"));
  BenchConfig longer = c;
  longer.steps = 11;
  EXPECT_NE(hash_of(spec_of(longer, run)), hash_of(spec_of(c, run)));
}

TEST(BenchMatrix, ASpecificationHasAllThatMakesTheRun) {
  const BenchConfig c = parsed(R"(
[[matrix]]
task = "pretrain"
framework = "mine"
model = "tiny"
techniques = ["R", "F"]
[[matrix]]
task = "operators"
[commands.mine]
argv = ["prog", "{technique_words}"]
step_ms = 'took ([0-9.]+)'
techniques = { R = ["-r"], F = ["-f"] }
)");
  const auto runs = expand(c).runs;
  ASSERT_EQ(runs.size(), 3u);
  BenchConfig words = c, pattern = c, options = c;
  words.commands[0].technique_words[0].second = {"--recompute"};
  pattern.commands[0].step_ms = "time: ([0-9.]+)";
  options.operator_options = {"--budget", "9"};
  const auto differ = [&](const BenchConfig& other) {
    std::vector<std::string> all;
    for (const BenchRun& r : runs)
      if (spec_of(c, r) != spec_of(other, r)) all.push_back(r.techniques_text() + r.id().substr(0, 3));
    return all;
  };
  using All = std::vector<std::string>;
  const std::string changed = words.commands[0].technique_words[0].first;
  EXPECT_EQ(differ(words), All{changed + "pre"});  // no other run has these words
  EXPECT_EQ(differ(pattern), (All{"Rpre", "Fpre"}));
  EXPECT_EQ(differ(options), All{"ope"});
}

RunRow took(const BenchRun& run, double seconds) {
  RunRow r;
  r.run = run.id();
  r.state = RunState::done;
  r.seconds = seconds;
  return r;
}

TEST(BenchMatrix, CommandsAndOperatorsTakeAsLongAsTheyDid) {
  const BenchConfig c = parsed(R"(
[[matrix]]
task = ["pretrain", "inference"]
framework = ["mine", "other"]
model = "tiny"
[[matrix]]
task = "operators"
gpus = [1, 2]
[commands.mine]
argv = ["prog"]
[commands.other]
argv = ["prog"]
)");
  const auto runs = expand(c).runs;
  ASSERT_EQ(runs.size(), 6u);
  const std::vector<RunRow> rows = {took(runs[0], 600), took(runs[4], 30)};
  std::vector<double> seconds;
  RunEstimate none;
  none.unknown = "not known";
  for (const BenchRun& r : runs) seconds.push_back(seconds_of(c, r, none, pace_of(rows, r)));
  EXPECT_EQ(seconds, (std::vector<double>{600, 60, 600, 60, 30, 30}));
  const std::vector<RunRow> both = {took(runs[0], 600), took(runs[2], 5)};
  EXPECT_EQ(pace_of(both, runs[2]).unknown_s, 5);  // its own task is known
}

std::string launch_variable(const RunLaunch& l) {
  std::string value;
  for (const auto& [name, of] : l.environment)
    if (name == kLaunchVariable) value = of;
  return value;
}

// Whatever a job that this program runs in left in the environment.
TEST(BenchMatrix, AWorkerIsToldThatItStartsItsRanks) {
  const BenchConfig c = parsed(
      "[[matrix]]\ntask = \"pretrain\"\nmodel = \"tiny\"\n"
      "framework = [\"pytorch\", \"fsdp\", \"deepspeed\", \"megatron\"]\n");
  for (const BenchRun& run : expand(c).runs)
    EXPECT_EQ(launch_variable(launch_of(c, run, {}, "/d", "/w").value()), "one");
}

// Programs and launchers differ in which of two entries of a name they take.
TEST(BenchMatrix, AVariableIsPassedOnceTheNearestCounts) {
  const BenchConfig c = parsed(R"(
[bench]
environment = { A = "1", CUDA_VISIBLE_DEVICES = "0", PYTHONUNBUFFERED = "" }
[[matrix]]
task = "pretrain"
framework = "mine"
model = "tiny"
[commands.mine]
argv = ["prog"]
environment = { CUDA_VISIBLE_DEVICES = "1", ORRERY_BENCH_RUN = "x" }
)");
  auto environment = launch_of(c, expand(c).runs.front(), {}, "/d", "/w").value().environment;
  std::sort(environment.begin(), environment.end());
  EXPECT_EQ(environment,
            (std::vector<std::pair<std::string, std::string>>{
                {"A", "1"}, {"CUDA_VISIBLE_DEVICES", "1"}, {kRunVariable, "/d"}, {"PYTHONUNBUFFERED", ""}}));
}

TEST(BenchMatrix, PlaceholdersOfACommand) {
  const auto f = fill_in({"--b={batch}", "{{x}}", "plain"}, {{"batch", "4"}});
  ASSERT_TRUE(f);
  EXPECT_EQ(*f, (std::vector<std::string>{"--b=4", "{x}", "plain"}));
  EXPECT_NE(fill_in({"{batc}"}, {{"batch", "4"}}).error().line().find("{batch}"), std::string::npos);
  EXPECT_FALSE(fill_in({"{batch"}, {{"batch", "4"}}));

  const BenchConfig c = parsed(R"(
[[matrix]]
task = "pretrain"
framework = "mine"
model = "tiny"
techniques = ["R"]
batch = 3
[commands.mine]
argv = ["prog", "-n", "{layers}", "{technique_words}", "-o{directory}"]
techniques = { R = ["--recompute", "full"] }
)");
  const auto l = launch_of(c, expand(c).runs.front(), {.batch = 3, .steps = 1}, "/d", "/w");
  ASSERT_TRUE(l);
  EXPECT_EQ(l->argv, (std::vector<std::string>{"prog", "-n", "2", "--recompute", "full", "-o/d"}));
  EXPECT_EQ(launch_variable(*l), "");  // what the program does with its ranks is its own
  BenchConfig without = c;
  without.commands[0].technique_words.clear();
  EXPECT_NE(launch_of(without, expand(c).runs.front(), {}, "/d", "/w").error().line().find("technique R"),
            std::string::npos);
}

// ---- the order ----

OrderedRun of(std::vector<std::string> levels, double seconds, bool told = false) {
  return {std::move(levels), seconds, told};
}

TEST(BenchOrder, NewLevelsFirstThenNewPairs) {
  // Factors a (2 levels) and b (2). The first brings two levels and a pair; x2y2 the same again, x1y2 and x2y1 then
  // only a pair each.
  const std::vector<OrderedRun> runs = {of({"x1", "y1"}, 1), of({"x1", "y2"}, 1), of({"x2", "y1"}, 1),
                                        of({"x2", "y2"}, 1)};
  EXPECT_EQ(by_information(runs), (std::vector<std::size_t>{0, 3, 1, 2}));
}

TEST(BenchOrder, ForTheTimeThatItTakes) {
  // All bring the same at first; the cheap one comes first. Of the others x2y2 brings three points for 4 s, x1y2 two
  // (its level and the pair) for 1 s.
  const std::vector<OrderedRun> runs = {of({"x2", "y2"}, 4), of({"x1", "y2"}, 1), of({"x1", "y1"}, 0.5)};
  EXPECT_EQ(by_information(runs), (std::vector<std::size_t>{2, 1, 0}));
}

TEST(BenchOrder, WhatIsMeasuredTellsNothingNew) {
  const std::vector<OrderedRun> runs = {of({"x1", "y1"}, 1, true), of({"x1", "y2"}, 1), of({"x2", "y2"}, 1)};
  EXPECT_EQ(by_information(runs), (std::vector<std::size_t>{2, 1}));
}

TEST(BenchOrder, FactorsThatDoNotVaryCountForNothing) {
  const std::vector<OrderedRun> runs = {of({"c", "x1"}, 2), of({"c", "x2"}, 1)};
  EXPECT_EQ(by_information(runs), (std::vector<std::size_t>{1, 0}));
}

TEST(BenchOrder, ABudgetTakesWhatStillFits) {
  const std::vector<OrderedRun> runs = {of({"x1"}, 10), of({"x2"}, 3), of({"x3"}, 4)};
  const auto order = by_information(runs);
  EXPECT_EQ(order, (std::vector<std::size_t>{1, 2, 0}));
  EXPECT_EQ(within_budget(runs, order, 8), (std::vector<bool>{false, true, true}));
  EXPECT_EQ(within_budget(runs, {0, 1, 2}, 12), (std::vector<bool>{true, false, false}));
  EXPECT_EQ(within_budget(runs, {0, 1, 2}, 13), (std::vector<bool>{true, true, false}));
  EXPECT_EQ(within_budget(runs, order, 0), (std::vector<bool>{true, true, true}));
}

// The lazy queue against choosing anew each time.
TEST(BenchOrder, AsChoosingAnewEachTime) {
  std::vector<OrderedRun> runs;
  for (int i = 0; i < 60; ++i)
    runs.push_back(of({std::to_string(i % 3), std::to_string(i * 7 % 5), std::to_string(i * 11 % 4)}, 1 + i * 13 % 7));
  std::set<std::string> told;
  const auto points = [](const OrderedRun& r) {
    std::vector<std::string> all;
    for (std::size_t a = 0; a < r.levels.size(); ++a) {
      all.push_back(std::to_string(a) + r.levels[a]);
      for (std::size_t b = a + 1; b < r.levels.size(); ++b)
        all.push_back(std::to_string(a) + r.levels[a] + "/" + std::to_string(b) + r.levels[b]);
    }
    return all;
  };
  std::vector<std::size_t> slow;
  std::vector<bool> used(runs.size(), false);
  while (slow.size() < runs.size()) {
    std::size_t best = runs.size();
    double most = -1;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (used[i]) continue;
      double n = 0;
      for (const std::string& p : points(runs[i])) n += told.count(p) == 0 ? 1 : 0;
      n /= runs[i].seconds;
      if (n > most || (n == most && runs[i].seconds < runs[best].seconds)) best = i, most = n;
    }
    used[best] = true;
    for (const std::string& p : points(runs[best])) told.insert(p);
    slow.push_back(best);
  }
  EXPECT_EQ(by_information(runs), slow);
}

// ---- the estimate ----

TEST(BenchEstimate, TechniquesAreTheEstimatesOwn) {
  BenchRun r;
  r.task = BenchTask::finetune;
  r.framework = BenchFramework::pytorch;
  r.techniques = read_techniques("R+QL").value();
  r.gpus = 4;
  r.batch = 3;
  const EstimateJob j = job_of(r, PlatformFacts{}, 64, 32);
  EXPECT_EQ(j.recompute, Recompute::full);
  EXPECT_EQ(j.method, Method::qlora);
  EXPECT_EQ(j.quantize, Quantize::nf4);
  EXPECT_EQ(j.attention, AttentionKind::unfused);
  EXPECT_EQ(j.framework, Framework::ddp);
  EXPECT_EQ(j.dp, 4);
  EXPECT_EQ(j.micro_batch_size, 3);
  r.techniques = read_techniques("F+Z3O").value();
  r.framework = BenchFramework::deepspeed;
  const EstimateJob z = job_of(r, PlatformFacts{}, 64, 32);
  EXPECT_EQ(z.zero, 3);
  EXPECT_EQ(z.offload, Offload::all);
  EXPECT_EQ(z.attention, AttentionKind::flash);
}

TEST(BenchEstimate, MegatronShardsTheOptimizerAndFusesAttentionWhereAsked) {
  BenchConfig c = parsed(
      "[bench]\nplatform = \"a800-8x\"\n[[matrix]]\ntask = \"pretrain\"\nmodel = \"llama-2-7b\"\n"
      "framework = \"megatron\"\ntechniques = [\"\", \"F\"]\ngpus = [1, 8]\n");
  auto e = RunEstimator::of(c);
  ASSERT_TRUE(e);
  const auto runs = expand(c).runs;
  const RunEstimate alone = e->estimate_of(runs[0]), eight = e->estimate_of(runs[1]), fused = e->estimate_of(runs[3]);
  EXPECT_FALSE(alone.fits);
  EXPECT_TRUE(eight.fits) << eight.memory_gib;
  EXPECT_LT(eight.memory_gib, alone.memory_gib - 12 * 7 * 6.7 / 8 * 0.9);  // 12 bytes a parameter, 7 of 8 elsewhere
  EXPECT_LT(fused.step_ms, eight.step_ms);
}

TEST(BenchEstimate, LargerThanTheGpuDoesNotFitAndTheLargestBatchDoes) {
  BenchConfig c = parsed(
      "[bench]\nplatform = \"a800-8x\"\n[[matrix]]\ntask = \"pretrain\"\nmodel = \"llama-2-7b\"\n"
      "framework = \"deepspeed\"\ntechniques = [\"\", \"Z3\"]\nbatch = [1, \"max\"]\ngpus = 8\n");
  auto e = RunEstimator::of(c);
  ASSERT_TRUE(e);
  const auto runs = expand(c).runs;
  EXPECT_FALSE(e->estimate_of(runs[0]).fits);  // 7e9 parameters, 16 bytes each, against 80 GiB
  const RunEstimate z3 = e->estimate_of(runs[2]);
  EXPECT_TRUE(z3.fits);
  const RunEstimate most = e->estimate_of(runs[3]);
  EXPECT_TRUE(most.fits);
  EXPECT_GT(most.batch, 1);
  BenchRun more = runs[3];
  more.batch = most.batch + 1;
  EXPECT_FALSE(e->estimate_of(more).fits);
}

// A CPU that was measured alone says nothing of two ranks: what to do stands beside it.
TEST(BenchEstimate, RanksThatACpuWasNotMeasuredWith) {
  const std::string platform = ::testing::TempDir() + "one-rank-" + std::to_string(::getpid()) + ".toml";
  std::ofstream(platform) << "[platform]\nname = \"here\"\nsource = \"a test\"\nsure = \"stated\"\ngpus_per_node = 1\n"
                             "nvlink_gb_per_s = 0\n[gpu]\narch = \"CPU\"\nsms = 1\nfp32_tflops = 0.1\n"
                             "memory_gib = 16\nmemory_gb_per_s = 20\npcie_gb_per_s = 10\npcie_p2p = true\n"
                             "[host]\ncores = 2\nmemory_gb_per_s = 20\n";
  BenchConfig c =
      parsed("[bench]\nplatform = \"" + platform +
             "\"\n[[matrix]]\ntask = \"pretrain\"\nmodel = \"tiny\"\nprecision = \"fp32\"\ngpus = [1, 2]\n");
  auto e = RunEstimator::of(c);
  ASSERT_TRUE(e) << e.error().line();
  const auto runs = expand(c).runs;
  EXPECT_EQ(e->estimate_of(runs[0]).unknown, "");
  EXPECT_EQ(e->estimate_of(runs[1]).unknown,
            "2 ranks are asked for, the facts of here are of 1 (measure so many together: orrery bench ops --ranks 2 "
            "--platform-file "
            "FILE.toml)");
  std::filesystem::remove(platform);
}

TEST(BenchEstimate, GenerationReadsTheWeightsOnceAToken) {
  BenchConfig c = parsed(
      "[bench]\nplatform = \"a800-8x\"\noutput_tokens = 65\n[[matrix]]\ntask = \"inference\"\n"
      "model = \"llama-2-7b\"\ntechniques = \"F\"\nbatch = [1, 4]\n");
  auto e = RunEstimator::of(c);
  ASSERT_TRUE(e);
  const auto runs = expand(c).runs;
  const double one = e->estimate_of(runs[0]).step_ms, four = e->estimate_of(runs[1]).step_ms;
  EXPECT_GT(one, 64 * 13.5e9 / 2039e9 * 1e3);  // bytes of the weights over the GPU's bandwidth
  EXPECT_LT(four, 2 * one);
  EXPECT_NEAR(e->estimate_of(runs[0]).memory_gib, 12.9, 0.5);
}

}  // namespace
}  // namespace orrery
