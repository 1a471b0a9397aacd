// orrery evals plan and simulate as a user meets them.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "cli_run.h"

namespace orrery::test {
namespace {

using Json = nlohmann::json;

TEST(CliEvals, PlanAnswersTheContract) {
  const Outcome o = orrery("evals plan samples/evals.toml --json");
  ASSERT_EQ(o.status, 0) << o.err;
  const Json d = Json::parse(o.out);
  EXPECT_EQ(d["command"], "evals");
  const double makespan = d["makespan_s"], bound = d["lower_bound_s"];
  EXPECT_GE(makespan, bound);
  EXPECT_LT(makespan, 1.1 * bound);
  EXPECT_GT(d["baseline_s"].get<double>(), makespan);
  EXPECT_GT(d["size_partitioner_s"].get<double>(), makespan);
  EXPECT_TRUE(d["scores"].is_object());
  std::map<std::string, std::int64_t> items;
  for (const Json& t : d["trials"]) {
    EXPECT_EQ(t["state"], "planned");
    EXPECT_LE(t["start_s"], t["end_s"]);
    EXPECT_LT(t["gpu"], 4);
    ASSERT_EQ(t["datasets"].size(), t["pieces"].size());
    for (std::size_t i = 0; i < t["pieces"].size(); ++i) {
      EXPECT_EQ(t["pieces"][i]["dataset"], t["datasets"][i]);
      items[t["datasets"][i].get<std::string>()] += t["pieces"][i]["items"].get<std::int64_t>();
    }
  }
  EXPECT_EQ(items.size(), 9u);
  EXPECT_EQ(items["mmlu"], 14042);
  EXPECT_EQ(items["summaries"], 200);
}

TEST(CliEvals, AScheduleFitsTheTerminal) {
  for (const int columns : {50, 70, 200}) {
    const Outcome o = shell("COLUMNS=" + std::to_string(columns) + " \"$orrery\" evals plan samples/evals.toml");
    ASSERT_EQ(o.status, 0) << o.err;
    const std::string gantt = o.out.substr(o.out.find("Schedule"));
    std::size_t lanes = 0;
    std::istringstream in(gantt);
    for (std::string line; std::getline(in, line);) {
      if (line.rfind("  node ", 0) != 0) continue;
      ++lanes;
      EXPECT_LE(line.size(), static_cast<std::size_t>(columns)) << line;
      EXPECT_EQ(line.find(".."), std::string::npos) << "cut: " << line;
      EXPECT_EQ(line.back() == '#' || line.back() == '=', true) << line;
    }
    EXPECT_EQ(lanes, 4u);
  }
}

TEST(CliEvals, PlanSaysWhatBinds) {
  const TempDir dir;
  const auto plan = [&](const std::string& cluster, const std::string& more) {
    std::string text = "[cluster]\ngpus_per_node = 4\n" + cluster + "[[model]]\nname = \"m\"\nsize_gb = 14\n" + more;
    write_text(dir / "c.toml", text);
    const Outcome o = orrery("evals plan '" + (dir / "c.toml") + "' --json");
    EXPECT_EQ(o.status, 0) << o.err;
    return Json::parse(o.out);
  };
  std::string datasets;
  for (int i = 0; i < 8; ++i)
    datasets += "[[dataset]]\nname = \"d" + std::to_string(i) + "\"\nitems = 100\nitem_s = 1\nmetric_s = 500\n";
  Json d = plan("cpu_jobs_per_node = 1\n", datasets);
  EXPECT_EQ(d["binds"], "CPU jobs, 1 at once");
  EXPECT_GE(d["lower_bound_with_cpus_s"], 4000);
  EXPECT_LT(d["lower_bound_s"], 600) << "of load, GPUs and the longest dataset alone";
  EXPECT_GE(d["makespan_s"], d["lower_bound_with_cpus_s"]);
  EXPECT_NE(d["notes"].dump().find("worse-than-one-trial-a-dataset"), std::string::npos) << d["notes"];
  const double bound = d["lower_bound_with_cpus_s"];
  d = plan("cpu_jobs_per_node = 1\nmetrics_on_gpus = true\n", datasets);
  EXPECT_GE(d["gain"], 1) << "as one trial a dataset does it";
  EXPECT_LT(d["lower_bound_with_cpus_s"], bound);
  EXPECT_GE(d["makespan_s"], d["lower_bound_with_cpus_s"]);
  EXPECT_EQ(d["notes"].dump().find("worse-than-one-trial-a-dataset"), std::string::npos) << d["notes"];
  d = plan("cpu_jobs_per_node = 16\n", datasets);
  EXPECT_EQ(d["notes"].dump().find("worse-than-one-trial-a-dataset"), std::string::npos);
  EXPECT_GE(d["gain"], 1);
  d = plan("",
           "[trial]\nlimit_s = 100\n[[dataset]]\nname = \"a\"\nitems = 100\nitem_s = 1\nmetric_s = 1\nsplit = false\n"
           "[[dataset]]\nname = \"b\"\nitems = 1000\nitem_s = 1\nmetric_s = 1\n");
  EXPECT_EQ(d["binds"], "4 GPUs");
  EXPECT_NE(d["notes"].dump().find("a: 110 s, limit_s = 100"), std::string::npos) << d["notes"];
  for (const Json& t : d["trials"]) {
    if (t["datasets"][0] == "a") continue;
    EXPECT_LE(t["end_s"].get<double>() - t["loaded_s"].get<double>(), 100.01) << t;
  }
}

TEST(CliEvals, PlanPrintsAGanttAndWritesAPage) {
  const TempDir dir;
  const Outcome o = orrery("evals plan samples/evals.toml --html '" + (dir / "p.html") + "'");
  ASSERT_EQ(o.status, 0) << o.err;
  EXPECT_NE(o.out.find("\n  node 0 gpu 3  "), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("##"), std::string::npos);
  const std::string page = read_file(dir / "p.html");
  EXPECT_NE(page.find("<svg"), std::string::npos);
  EXPECT_NE(page.find("arena"), std::string::npos);
  EXPECT_EQ(page.find("http"), page.find("http-")) << "nothing from a network";
}

TEST(CliEvals, SimulateGivesTheDistribution) {
  const Outcome o = orrery("evals simulate samples/evals-study.toml --seeds 3 --json");
  ASSERT_EQ(o.status, 0) << o.err;
  const Json d = Json::parse(o.out);
  ASSERT_EQ(d["clusters"].size(), 2u);
  EXPECT_EQ(d["clusters"][1]["gpus"], 32);
  ASSERT_EQ(d["runs"].size(), 6u);
  EXPECT_EQ(d["distribution"].size(), 8u);
  double sum = 0;
  for (int i = 0; i < 3; ++i) sum += d["runs"][i]["makespan_s"].get<double>();
  EXPECT_NEAR(d["makespan_s"].get<double>(), sum / 3, 1e-3);
  EXPECT_EQ(d["trials"][0]["state"], "simulated");
}

TEST(CliEvals, TimesThatAreNotKnownAreTold) {
  const TempDir dir;
  write_text(dir / "c.toml", "[[model]]\nname = \"m\"\n[[dataset]]\nname = \"d\"\nitems = 10\n");
  const Json d = Json::parse(orrery("evals plan '" + (dir / "c.toml") + "' --json").out);
  ASSERT_EQ(d["notes"].size(), 2u);
  EXPECT_EQ(d["notes"][0]["name"], "no-prior");
  EXPECT_EQ(d["notes"][1]["name"], "no-size");
}

TEST(CliEvals, APlanWithoutMetricJobsTakesNoTimesOfThem) {
  const TempDir dir;
  const std::string text =
      "[[model]]\nname = \"m\"\nsize_gb = 1\n[inference]\ncommand = [\"x\"]\n[[dataset]]\nname = \"d\"\n"
      "items = 10\n";
  write_text(dir / "c.toml", text);
  const Json d = Json::parse(orrery("evals plan '" + (dir / "c.toml") + "' --json").out);
  EXPECT_EQ(d["notes"][0]["first"], "1 s an item are taken");
  write_text(dir / "c.toml", text + "item_s = 0.5\n");
  const Json known = Json::parse(orrery("evals plan '" + (dir / "c.toml") + "' --json").out);
  EXPECT_EQ(known["notes"].dump().find("no-prior"), std::string::npos) << known["notes"];
}

TEST(CliEvals, RefusedInOneLine) {
  const auto refused = [](const std::string& arguments, const std::string& line) {
    const Outcome o = orrery("evals " + arguments);
    EXPECT_EQ(o.status, 2) << arguments;
    EXPECT_EQ(o.out, "") << arguments;
    EXPECT_EQ(o.err, "orrery: " + line + "\n");
  };
  refused("plan", "evals: needs plan|run|simulate CONFIG.toml (see orrery help evals)");
  refused("watch samples/evals.toml", "evals: not known: watch (plan, run or simulate)");
  refused("plan samples/evals.toml --nodes 0", "--nodes: not a whole number from 1 to 10000: 0");
  refused("plan samples/evals.toml --watch", "--watch: is of evals run (evals plan has no use for it)");
  refused("run samples/evals.toml --seeds 3", "--seeds: is of evals simulate (evals run has no use for it)");
  refused("plan samples/nothing.toml", "samples/nothing.toml: cannot open: No such file or directory");
}

}  // namespace
}  // namespace orrery::test
