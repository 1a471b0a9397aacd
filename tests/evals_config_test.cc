// The configuration of orrery evals: what is read, and what is refused in one line.
#include <gtest/gtest.h>

#include <cmath>

#include "trials/config.h"
#include "trials/templates.h"

namespace orrery {
namespace {

constexpr const char* kLeast = R"([[model]]
name = "m"
size_gb = 2
[[dataset]]
name = "d"
items = 10
)";

std::string refused(const std::string& text) {
  const auto c = parse_eval_config(text, "c.toml");
  return c ? "accepted" : c.error().line();
}

TEST(EvalsConfig, DefaultsAndEverything) {
  const auto least = parse_eval_config(kLeast, "dir/c.toml");
  ASSERT_TRUE(least) << least.error().line();
  EXPECT_EQ(least->directory, "dir");
  EXPECT_EQ(least->state, "orrery-evals-evals");
  EXPECT_EQ(least->datasets[0].task, "d");
  EXPECT_TRUE(std::isnan(least->datasets[0].item_s));
  const auto c = parse_eval_config(R"(
[evals]
name = "n"
state = "s"
[cluster]
runs = "slurm"
nodes = 3
gpus_per_node = 4
cpu_jobs_per_node = 5
link_gbit_per_s = 100
shared_memory = "/dev/shm/x"
shared_memory_gb = 30
when_full = "stop"
load_bytes_per_s = 1e6
slurm_options = ["--partition=eval"]
slurm_cpu_options = ["--partition=cpu"]
[trial]
start_s = 1
least_s = 2
limit_s = 3
retries = 4
[[model]]
name = "m"
checkpoints = "ckpt"
only = "step-*"
complete = "marker"
complete_marker = "DONE"
settle_s = 3
[[judge]]
name = "j"
at_once = 2
[[dataset]]
name = "d"
task = "d_gen"
results = "d_file"
items = 10
item_s = 0.5
prepare_s = 1
metric_s = 2
judge = "j"
split = false
metric_by_item = true
[inference]
command = ["a", "{model}"]
dumped = "x"
splits = false
several = false
[metric]
command = ["b"]
scores_file = "f"
scores_at = "/a"
limit_s = 9
[prior]
item_s = 3
metric_s = 4
[simulate]
seeds = 5
nodes = [1, 2]
prior_error = 0.1
)",
                                   "c.toml");
  ASSERT_TRUE(c) << c.error().line();
  EXPECT_EQ(c->cluster.runs, RunsOn::slurm);
  EXPECT_FALSE(c->cluster.storage_when_full);
  EXPECT_EQ(c->models[0].complete, CompleteRule::marker);
  EXPECT_EQ(c->simulate.nodes, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(c->metric.argv, std::vector<std::string>{"b"});
  EXPECT_FALSE(c->inference.several);
  EXPECT_TRUE(check_runnable(*c));
}

TEST(EvalsConfig, RefusedInOneLine) {
  const std::string least = kLeast;
  EXPECT_EQ(refused("[cluster]\nx = t\ny = 1\n").find('\n'), std::string::npos);
  EXPECT_EQ(refused("["), "c.toml:1: " + refused("[").substr(10));
  EXPECT_EQ(refused(""), "c.toml:1: nothing to evaluate on ([[dataset]] with name and items)");
  EXPECT_EQ(refused(least + "[clutser]\n"), "c.toml:7: unknown table [clutser] (did you mean [cluster]?)");
  EXPECT_EQ(refused(least + "[cluster]\nnode = 3\n"), "c.toml:8: [cluster] unknown key node (did you mean nodes?)");
  EXPECT_EQ(refused(least + "[cluster]\nnodes = 0\n"),
            "c.toml:8: [cluster] nodes = 0 is not possible (from 1 to 10000)");
  EXPECT_EQ(refused(least + "[cluster]\nnodes = \"x\"\n"), "c.toml:8: [cluster] nodes is not a whole number");
  EXPECT_EQ(refused(least + "[cluster]\nruns = \"k8s\"\n"),
            "c.toml:7: runs = k8s is not known (local, slurm or steps)");
  EXPECT_EQ(refused(least + "[trial]\nstart_s = nan\n"),
            "c.toml:8: [trial] start_s = nan is not possible (from 0 to 86400)");
  EXPECT_EQ(refused(least + "[[dataset]]\nname = \"d\"\n"), "c.toml:7: a second dataset of the name d");
  EXPECT_EQ(refused(least + "[[dataset]]\nname = \"a/b\"\n"),
            "c.toml:8: not a name: a/b (ASCII letters, digits and signs, without blanks, commas and slashes, no dot or "
            "hyphen at the beginning)");
  EXPECT_EQ(refused(least + "[evals]\nstate = \"s\"\nname = \"a b\"\n").substr(0, 28), "c.toml:9: not a name: a b (A");
  EXPECT_EQ(refused(least + "[[dataset]]\nname = \"e\"\njudge = \"x\"\n").substr(10),
            "dataset e names a judge that is not there: x ([[judge]] with name and at_once)");
  EXPECT_EQ(refused(least + "[dataset2]\n").substr(0, 9), "c.toml:7:");
  EXPECT_EQ(refused("[dataset]\nname = \"x\"\n"), "c.toml:1: [dataset] may stand several times ([[dataset]])");
  EXPECT_EQ(refused(least + "[inference]\ntemplate = \"vlmevalkit\"\n"),
            "c.toml:8: no template of the name vlmevalkit (one of lm-evaluation-harness, opencompass)");
  EXPECT_EQ(refused(least + "[inference]\ncommand = [1]\n"),
            "c.toml:8: [inference] command holds something else than texts");
}

TEST(EvalsConfig, TemplatesGiveCommandsThatTheFileMayReplace) {
  const auto c = parse_eval_config(
      std::string(kLeast) + "[inference]\ntemplate = \"opencompass\"\n[metric]\nlimit_s = 5\n", "c.toml");
  ASSERT_TRUE(c) << c.error().line();
  EXPECT_EQ(c->inference.argv.front(), "opencompass");
  EXPECT_FALSE(c->inference.splits);
  EXPECT_EQ(c->metric.limit_s, 5);
  EXPECT_EQ(c->metric.scores_file, "{outputs}/*/results/*/{results}.json");
  EXPECT_NE(find_eval_template("lm-evaluation-harness"), nullptr);
  EXPECT_EQ(find_eval_template("x"), nullptr);
}

TEST(EvalsConfig, OnlyRunNeedsCommandsAndCheckpoints) {
  const auto c = parse_eval_config(kLeast, "c.toml");
  ASSERT_TRUE(c);
  EXPECT_EQ(check_runnable(*c).error().what, "no command for inference");
}

}  // namespace
}  // namespace orrery
