// Jobs as processes of this machine.
#include <fmt/format.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "trials/job.h"
#include "trials/runner.h"

namespace orrery {
namespace {

std::vector<std::string> visible_gpus() {
  std::vector<std::string> ids;
  const char* const text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) return ids;
  std::string id;
  for (const char* c = text;; ++c) {
    if (*c != ',' && *c != '\0') {
      id += *c;
      continue;
    }
    if (!id.empty()) ids.push_back(std::move(id));
    id.clear();
    if (*c == '\0') return ids;
  }
}

class LocalRunner : public TrialRunner {
 public:
  LocalRunner(const EvalConfig& config, std::string program)
      : cluster_(config.cluster), program_(std::move(program)), gpus_(visible_gpus()) {}

  std::vector<JobPlace> places() const override {
    std::vector<JobPlace> all;
    for (std::int64_t g = 0; g < cluster_.gpus_per_node; ++g)
      for (std::int64_t n = 0; n < cluster_.nodes; ++n) all.push_back({name(n), g});
    return all;
  }

  CopyTerms copy_terms(const std::string& node) const override {
    CopyTerms t{cluster_.shared_memory, cluster_.shared_memory_gb * 1e9, cluster_.load_bytes_per_s};
    if (cluster_.nodes > 1) {
      t.directory = fmt::format("{}/orrery-{}", t.directory, node);
      std::error_code ignored;
      std::filesystem::create_directories(t.directory, ignored);
    }
    return t;
  }

  bool local() const override { return true; }

  std::vector<Result<std::string>> start(const std::vector<JobStart>& jobs) override {
    std::vector<Result<std::string>> handles;
    // Nobody asks whether a job is gone that left its result: without this its process would stay as a zombie.
    std::erase_if(started_, [](const Child& c) { return poll_child(c).has_value(); });
    for (const JobStart& job : jobs) {
      ChildTerms terms;
      terms.argv = {program_, "evals", "job", job.directory};
      std::string gpu;  // of a CPU job: none
      if (job.place.gpu >= 0) {
        const auto g = static_cast<std::size_t>(job.place.gpu);
        gpu = g < gpus_.size() ? gpus_[g] : std::to_string(g);
      }
      terms.environment = {{"CUDA_VISIBLE_DEVICES", gpu}};
      terms.output = job.directory + "/job.log";
      terms.errors.assign(1, '=');
      const auto child = start_child(terms);
      if (child) started_.push_back(*child);
      handles.push_back(child.map(identity));
    }
    return handles;
  }

  bool gone(const std::string& directory, const std::string& handle) override {
    // Who owns the job says so himself; whoever was started and has not come so far is in the handle.
    const auto owner = read_owner(directory);
    if (owner && owner->revoked) return true;
    const Child process = owner ? owner->process : child_of(handle);
    if (process.pid <= 0) return true;
    if (!poll_child(process) && is_alive(process)) return false;
    // Killed: what it had started must not go on holding the GPU.
    if (const auto child = read_child(directory)) stop_session(*child, 0);
    return true;
  }

  void ask_to_stop(const std::string& directory, const std::string& handle) override {
    if (revoke_job(directory)) return;
    const auto owner = read_owner(directory);
    signal_group(owner ? owner->process : child_of(handle), SIGTERM);
  }

  void stop(const std::string& directory, const std::string& handle, double wait_s) override {
    if (revoke_job(directory)) return;
    const auto owner = read_owner(directory);
    stop_session(owner ? owner->process : child_of(handle), wait_s);
    if (const auto child = read_child(directory)) stop_session(*child, 0);
  }

  std::string node_of(const std::string&) const override { return {}; }

 private:
  static std::string name(std::int64_t n) { return fmt::format("node{}", n); }

  EvalCluster cluster_;
  std::string program_;
  std::vector<std::string> gpus_;
  std::vector<Child> started_;  // by this process, as far as they are not known to have ended
};

}  // namespace

std::unique_ptr<TrialRunner> local_runner(const EvalConfig& config, const std::string& program) {
  return std::make_unique<LocalRunner>(config, program);
}

}  // namespace orrery
