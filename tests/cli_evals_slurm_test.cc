// orrery evals run on a small Slurm: arrays, a node that is lost, the coordinator's own death.
#include <signal.h>

#include <chrono>
#include <functional>
#include <set>
#include <thread>

#include "evals_fixture.h"
#include "processes/child.h"
#include "slurm_lab.h"

namespace orrery::test {
namespace {

using Json = nlohmann::json;

class CliEvalsSlurm : public SlurmTest {
 protected:
  void SetUp() override {
    SlurmTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    e_.cluster =
        "runs = \"slurm\"\nnodes = 3\ngpus_per_node = 2\ncpu_jobs_per_node = 2\n"
        "slurm_options = [\"--gres=none\", \"--cpus-per-task=4\"]\n";
    e_.trial += "retries = 3\n";
  }

  Child begin() {
    ChildTerms terms;
    terms.argv = {ORRERY_BINARY, "evals", "run", e_.config(), "--json"};
    terms.output = e_.dir / "out";
    terms.errors = e_.dir / "err";
    const auto child = start_child(terms);
    EXPECT_TRUE(child) << child.error().line();
    return *child;
  }

  // Waits for the end; the answer.
  Json ended(const Child& c, int status) {
    const auto exit = wait_child(c, 240);
    if (!exit) {
      ADD_FAILURE() << "it does not end: " << read_file(e_.dir / "err");
      ::kill(c.pid, SIGKILL);
      return Json::object();
    }
    EXPECT_EQ(exit->status, status) << read_file(e_.dir / "err") << read_file(e_.dir / "out");
    const std::string out = read_file(e_.dir / "out");
    return out.empty() ? Json::object() : Json::parse(out);
  }

  bool eventually(const std::function<bool()>& done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!done()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return true;
  }

  std::string node_of_some_trial() {
    for (const auto& job : fs::directory_iterator(e_.dir / "state/jobs")) {
      if (job.path().filename().string().rfind("trial-", 0) != 0) continue;
      std::istringstream owner(read_file(job.path() / "owner"));
      std::string pid, started, host;
      if (owner >> pid >> started >> host && fs::exists(job.path() / "child")) return host;
    }
    return {};
  }

  Evaluation e_;
};

TEST_F(CliEvalsSlurm, ALostNodeLosesNothing) {
  e_.plain(9, 40);
  for (int i = 1; i <= 9; ++i) write_text(e_.dir / ("hang-d" + std::to_string(i)), "");  // until a node is dead
  const Child c = begin();
  std::string node;
  ASSERT_TRUE(eventually([&] { return fs::exists(e_.dir / "state/jobs") && !(node = node_of_some_trial()).empty(); }))
      << read_file(e_.dir / "err");
  ASSERT_TRUE(eventually([&] { return e_.lines("models").size() >= 4; }));
  ASSERT_EQ(lab_->command("kill " + node), "");
  for (int i = 1; i <= 9; ++i) fs::remove(e_.dir / ("hang-d" + std::to_string(i)));
  Json d = ended(c, 0);
  expect_scored_once(d, "step-1", 9, 40);
  bool lost = false;
  for (const Json& t : d["trials"]) lost = lost || (t["state"] == "lost" && t["node"] == node);
  EXPECT_TRUE(lost) << d["trials"].dump(1);
  EXPECT_EQ(e_.lines("scored").size(), 9u) << "a metric ran twice";
}

TEST_F(CliEvalsSlurm, KilledAndStartedAgainWhileJobsRun) {
  e_.plain(6, 40);
  const Child first = begin();
  ASSERT_TRUE(eventually([&] { return fs::exists(e_.dir / "models"); })) << read_file(e_.dir / "err");
  ::kill(first.pid, SIGKILL);
  ASSERT_TRUE(wait_child(first, 30));
  fs::remove(e_.dir / "out");
  Json d = ended(begin(), 0);
  expect_scored_once(d, "step-1", 6, 40);
  std::vector<std::string> completed = e_.lines("completed");
  std::sort(completed.begin(), completed.end());
  EXPECT_EQ(std::adjacent_find(completed.begin(), completed.end()), completed.end());
  for (const auto& node : fs::directory_iterator(e_.dir / "memory")) ADD_FAILURE() << "left behind: " << node.path();
}

// Slurm goes on knowing the jobs of the first one.
TEST_F(CliEvalsSlurm, AStateThatIsDeletedAndBegunAgainHasJobsOfItsOwn) {
  e_.plain(2, 40);
  ended(begin(), 0);
  fs::remove_all(e_.dir / "state");
  fs::remove(e_.dir / "out");
  Json d = ended(begin(), 0);
  expect_scored_once(d, "step-1", 2, 40);
  for (const Json& t : d["trials"]) EXPECT_EQ(t["state"], "ended") << t;
}

TEST_F(CliEvalsSlurm, StepsOfAnAllocation) {
  e_.cluster =
      "runs = \"steps\"\nnodes = 2\ngpus_per_node = 2\ncpu_jobs_per_node = 2\n"
      "slurm_options = [\"--gres=none\", \"--cpus-per-task=2\"]\nslurm_cpu_options = [\"--cpus-per-task=1\"]\n";
  e_.plain(5, 40);
  write_text(e_.dir / "fail-d3", "worker died\n");  // three times; d3 alone
  const auto o = run_captured({"salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=8",
                               ORRERY_BINARY, "evals", "run", e_.config(), "--json"},
                              {.timeout_s = 200});
  ASSERT_TRUE(o) << o.error().line();
  EXPECT_EQ(o->exit.status, 1) << o->errors;
  Json d = Json::parse(o->output);
  EXPECT_EQ(d["scored"], 4);
  std::set<std::string> nodes;
  for (const Json& t : d["trials"]) nodes.insert(t["node"].get<std::string>());
  EXPECT_EQ(nodes.size(), 2u) << d["trials"].dump(1);
  for (const auto& node : fs::directory_iterator(e_.dir / "memory")) ADD_FAILURE() << "left behind: " << node.path();
}

}  // namespace
}  // namespace orrery::test
