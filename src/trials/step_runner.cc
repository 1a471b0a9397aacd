// Jobs as steps within a Slurm allocation in which this process runs: srun for each, all at the same time.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <set>
#include <thread>

#include "base/text_match.h"
#include "slurm/slurm.h"
#include "trials/job.h"
#include "trials/runner.h"

namespace orrery {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kGrace = 5;  // seconds that a result may need to reach this machine

class StepRunner : public TrialRunner {
 public:
  StepRunner(const EvalConfig& config, std::string program) : cluster_(config.cluster), program_(std::move(program)) {}

  std::vector<JobPlace> places() const override {
    std::vector<JobPlace> all;
    for (std::int64_t g = 0; g < cluster_.nodes * cluster_.gpus_per_node; ++g) all.push_back({"", g});
    return all;
  }
  CopyTerms copy_terms(const std::string&) const override {
    return {cluster_.shared_memory, cluster_.shared_memory_gb * 1e9, cluster_.load_bytes_per_s};
  }
  bool local() const override { return false; }

  Result<std::vector<std::string>> start(const std::vector<JobStart>& jobs) override {
    if (std::getenv("SLURM_JOB_ID") == nullptr)
      return fail("this is no Slurm allocation", "[cluster] runs = \"steps\"",
                  "within salloc or sbatch; or runs = \"slurm\"");
    std::vector<std::string> handles;
    for (const JobStart& job : jobs) {
      const bool on_gpu = job.place.gpu >= 0;
      const std::vector<std::string>& own = on_gpu ? cluster_.slurm_options : cluster_.slurm_cpu_options;
      std::vector<std::string> argv = {"srun", "--ntasks=1", "--nodes=1", "--exact"};
      const bool says_gpus = std::any_of(own.begin(), own.end(), [](const std::string& o) {
        return has_any(o, {"--gres", "--gpus"});
      });
      if (!says_gpus) argv.push_back(on_gpu ? "--gres=gpu:1" : "--gres=none");
      std::set<std::string> avoid(job.avoid.begin(), job.avoid.end());
      if (!avoid.empty() && static_cast<std::int64_t>(avoid.size()) < cluster_.nodes) {
        std::string list;
        for (const std::string& n : avoid) list += (list.empty() ? "" : ",") + n;
        argv.push_back("--exclude=" + list);
      }
      argv.insert(argv.end(), own.begin(), own.end());
      argv.insert(argv.end(), {program_, "evals", "job", job.directory});
      auto child = begin(std::move(argv), job.directory);
      if (!child) return tl::unexpected(child.error());
      handles.push_back(fmt::format("{} {}", child->pid, child->started));
    }
    return handles;
  }

  bool gone(const std::string& directory, const std::string& handle) override {
    const auto owner = read_owner(directory);
    if (owner && owner->revoked) return true;
    const Child srun = child_of(handle);
    if (srun.pid > 0 && !poll_child(srun) && is_alive(srun)) return false;
    auto& since = over_since_[directory];
    if (since == Clock::time_point{}) since = Clock::now();
    if (std::chrono::duration<double>(Clock::now() - since).count() < kGrace) return false;
    if (!owner) return revoke_job(directory);
    cancel(*owner);  // srun is dead: its step must be as well
    return true;
  }

  void stop(const std::string& directory, const std::string& handle) override {
    if (!revoke_job(directory))
      if (const auto owner = read_owner(directory)) cancel(*owner);
    for (int i = 0; i < 100 && read_owner(directory) && !read_owner(directory)->revoked && !read_result(directory); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    stop_session(child_of(handle), 5);
  }

  std::string node_of(const std::string& directory) const override {
    const auto owner = read_owner(directory);
    return owner ? owner->host : std::string();
  }

  void end(const std::vector<std::string>& nodes) override {
    for (const std::string& n : nodes) {
      const auto node = slurm::nodes({n}, {.timeout_s = 20, .patience_s = 20});
      if (!node || node->empty() || !node->front().usable()) continue;
      std::vector<std::string> argv = {"srun",      "--ntasks=1",  "--nodes=1",
                                       "--overlap", "--gres=none", "--nodelist=" + n};
      argv.insert(argv.end(), {program_, "evals", "sweep", cluster_.shared_memory});
      (void)run_captured(argv, {.timeout_s = 30});
    }
  }

 private:
  static Result<Child> begin(std::vector<std::string> argv, const std::string& directory) {
    ChildTerms terms;
    terms.argv = std::move(argv);
    terms.output = directory + "/job.log";
    terms.errors.assign(1, '=');
    return start_child(terms);
  }
  static Child child_of(const std::string& handle) {
    Child c;
    const std::size_t blank = handle.find(' ');
    if (blank == std::string::npos) return c;
    c.pid = static_cast<pid_t>(std::strtol(handle.c_str(), nullptr, 10));
    c.started = std::strtoull(handle.c_str() + blank, nullptr, 10);
    return c;
  }
  static void cancel(const JobOwner& owner) {
    if (owner.job == 0 || owner.step.empty()) return;
    (void)run_captured({"scancel", fmt::format("{}.{}", owner.job, owner.step)}, {.timeout_s = 30});
  }

  EvalCluster cluster_;
  std::string program_;
  std::map<std::string, Clock::time_point> over_since_;
};

}  // namespace

std::unique_ptr<TrialRunner> step_runner(const EvalConfig& config, const std::string& program) {
  return std::make_unique<StepRunner>(config, program);
}

}  // namespace orrery
