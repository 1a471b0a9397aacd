// Jobs as steps within a Slurm allocation in which this process runs: srun for each, all at the same time.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "slurm/slurm.h"
#include "trials/cluster_runner.h"

namespace orrery {
namespace {

class StepRunner final : public ClusterRunner {
 public:
  using ClusterRunner::ClusterRunner;

  std::vector<Result<std::string>> start(const std::vector<JobStart>& jobs) override {
    std::vector<Result<std::string>> handles;
    // As of local jobs: nobody asks for the srun of a job that left its result.
    std::erase_if(started_, [](const Child& c) { return poll_child(c).has_value(); });
    for (const JobStart& job : jobs) {
      if (std::getenv("SLURM_JOB_ID") == nullptr) {
        handles.push_back(fail("this is no Slurm allocation", "[cluster] runs = \"steps\"",
                               "within salloc or sbatch; or runs = \"slurm\""));
        continue;
      }
      const bool on_gpu = job.place.gpu >= 0;
      const std::vector<std::string>& own = options_of(on_gpu);
      std::vector<std::string> argv = {"srun", "--ntasks=1", "--nodes=1", "--exact"};
      if (!says_gpus(own)) argv.push_back(on_gpu ? "--gres=gpu:1" : "--gres=none");
      if (const std::string avoid = excluded(job); !avoid.empty()) argv.push_back("--exclude=" + avoid);
      argv.insert(argv.end(), own.begin(), own.end());
      argv.insert(argv.end(), {program_, "evals", "job", job.directory});
      const auto child = begin(std::move(argv), job.directory);
      if (child) started_.push_back(*child);
      handles.push_back(child.map(identity));
    }
    return handles;
  }

  bool gone(const std::string& directory, const std::string& handle) override {
    const auto owner = read_owner(directory);
    if (owner && owner->revoked) return true;
    const Child srun = child_of(handle);
    if (srun.pid > 0 && !poll_child(srun) && is_alive(srun)) return false;
    if (srun.pid <= 0 && owner && step_runs(directory, *owner)) return false;
    if (!over_for_long(directory)) return false;
    if (!owner) return revoke_job(directory);
    cancel(*owner);  // srun is dead: its step must be as well
    return true;
  }

  void ask_to_stop(const std::string& directory, const std::string&) override {
    if (!revoke_job(directory))
      if (const auto owner = read_owner(directory)) cancel(*owner);
  }

  void stop(const std::string& directory, const std::string& handle, double wait_s) override {
    if (const auto owner = read_owner(directory); owner && !owner->revoked) wait_for_result(directory, wait_s);
    stop_session(child_of(handle), std::min(5.0, wait_s + 1));
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
  // Of a step whose srun nobody knows; also where nobody answers.
  bool step_runs(const std::string& directory, const JobOwner& owner) {
    const Clock::time_point now = Clock::now();
    auto& [runs, at] = steps_[directory];
    if (at != Clock::time_point{} && std::chrono::duration<double>(now - at).count() < kLookEvery) return runs;
    const auto steps = slurm::steps(slurm::JobId{owner.job}, {.timeout_s = 30, .patience_s = 0});
    const std::string id = fmt::format("{}.{}", owner.job, owner.step);
    runs = !steps || std::any_of(steps->begin(), steps->end(), [&](const slurm::Step& s) { return s.id == id; });
    at = Clock::now();
    if (runs) over_since_.erase(directory);
    return runs;
  }
  static void cancel(const JobOwner& owner) {
    if (owner.job == 0 || owner.step.empty()) return;
    (void)run_captured({"scancel", fmt::format("{}.{}", owner.job, owner.step)}, {.timeout_s = 30});
  }

  std::vector<Child> started_;                                       // srun, as far as they are not known to have ended
  std::map<std::string, std::pair<bool, Clock::time_point>> steps_;  // by the job's directory
};

}  // namespace

std::unique_ptr<TrialRunner> step_runner(const EvalConfig& config, const std::string& program) {
  return std::make_unique<StepRunner>(config, program);
}

}  // namespace orrery
