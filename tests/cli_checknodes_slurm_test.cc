// orrery checknodes among the nodes of a real Slurm.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli_run.h"
#include "slurm_lab.h"

namespace orrery::test {
namespace {

using Json = nlohmann::json;

// Nodes and verdicts; whoever else uses this machine may make one slow.
std::string verdicts(const Json& d) {
  std::string all;
  for (const Json& n : d["nodes"]) {
    const std::string verdict = n["verdict"].get<std::string>();
    all += (all.empty() ? "" : ", ") + n["node"].get<std::string>() + " " + (verdict == "slow" ? "good" : verdict);
  }
  return all;
}

class CliChecknodesSlurm : public SlurmTest {
 protected:
  // In a job of these nodes: what it prints.
  static Outcome in_job(const std::string& nodes, const std::string& command) {
    return shell("salloc --quiet --nodelist=" + nodes + " --ntasks-per-node=1 " + command);
  }
};

TEST_F(CliChecknodesSlurm, JobsOfTheirOwn) {
  const Outcome o = orrery("checknodes --json --mib 1 --slurm --hosts node[0-4]");
  EXPECT_LE(o.status, 1) << o.err << o.out;
  const Json d = Json::parse(o.out, nullptr, false);
  EXPECT_GE(d["tests"].size(), 2u);
  EXPECT_EQ(d["tests"][1]["group"], "node2,node3,node4");
  for (const Json& n : d["nodes"]) EXPECT_GT(n["gb_per_s"], 0);
}

TEST_F(CliChecknodesSlurm, ALostNodeIsBad) {
  ASSERT_EQ(lab_->command("kill node1"), "");
  const Outcome o = orrery("checknodes --json --mib 1 --timeout 6 --slurm --hosts node[0-3]");
  EXPECT_EQ(o.status, 1) << o.err << o.out;
  EXPECT_EQ(verdicts(Json::parse(o.out, nullptr, false)), "node0 good, node1 bad, node2 good, node3 good");
}

TEST_F(CliChecknodesSlurm, StepsOfTheAllocationItIsIn) {
  const Outcome o = in_job("node[1-3]", "\"$orrery\" checknodes --json --mib 1 --slurm");
  EXPECT_LE(o.status, 1) << o.err << o.out;
  EXPECT_EQ(verdicts(Json::parse(o.out, nullptr, false)), "node1 good, node2 good, node3 good");
}

TEST_F(CliChecknodesSlurm, OpenMpi) {
  if (shell("command -v mpirun").status != 0) GTEST_SKIP() << "Open MPI is not installed (openmpi-bin)";
  const std::string addresses = " --addresses 127.0.0.1,127.0.0.1,127.0.0.1,127.0.0.1";
  const Outcome o = in_job("node[0-3]", "\"$orrery\" checknodes --json --mib 1 --mpirun --hosts node[0-3]" + addresses);
  EXPECT_LE(o.status, 1) << o.err << o.out;
  const Json d = Json::parse(o.out, nullptr, false);
  for (const Json& n : d["nodes"]) EXPECT_TRUE(n["verdict"] == "good" || n["verdict"] == "slow") << o.out << o.err;
  std::size_t measured = 0;
  for (const Json& t : d["tests"]) measured += t["gb_per_s"].is_number() && t["gb_per_s"] > 0;
  EXPECT_GE(measured, 2u) << o.out << o.err;
}

TEST_F(CliChecknodesSlurm, RefusedInOneLine) {
  const Outcome unknown = orrery("checknodes --slurm --hosts node0,nodex");
  EXPECT_EQ(unknown.status, 2);
  EXPECT_EQ(unknown.err, "orrery: scontrol show node: no such node: nodex (sinfo lists the nodes)\n");
}

}  // namespace
}  // namespace orrery::test
