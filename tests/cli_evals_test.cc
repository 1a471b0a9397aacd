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
  refused("plan samples/nothing.toml", "samples/nothing.toml: cannot open: No such file or directory");
}

}  // namespace
}  // namespace orrery::test
