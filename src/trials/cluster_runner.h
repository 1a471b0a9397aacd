// What the two ways onto a Slurm cluster have in common: Slurm chooses the node, and what a job says of itself lies in
// its directory, which all nodes must see.
#pragma once
#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/text_match.h"
#include "trials/job.h"
#include "trials/runner.h"

namespace orrery {

class ClusterRunner : public TrialRunner {
 public:
  ClusterRunner(const EvalConfig& config, std::string program)
      : cluster_(config.cluster), program_(std::move(program)) {}

  std::vector<JobPlace> places() const override {
    std::vector<JobPlace> all;
    for (std::int64_t g = 0; g < cluster_.nodes * cluster_.gpus_per_node; ++g) all.push_back({"", g});
    return all;
  }
  CopyTerms copy_terms(const std::string&) const override {
    return {cluster_.shared_memory, cluster_.shared_memory_gb * 1e9, cluster_.load_bytes_per_s};
  }
  bool local() const override { return false; }
  std::string node_of(const std::string& directory) const override {
    const auto owner = read_owner(directory);
    return owner ? owner->host : std::string();
  }

 protected:
  using Clock = std::chrono::steady_clock;
  static constexpr double kLookEvery = 1;  // seconds between two questions about the same jobs

  const std::vector<std::string>& options_of(bool on_gpu) const {
    return on_gpu ? cluster_.slurm_options : cluster_.slurm_cpu_options;
  }
  static bool says_gpus(const std::vector<std::string>& options) {
    return std::any_of(options.begin(), options.end(), [](const std::string& o) {
      return has_any(o, {"--gres", "--gpus"});
    });
  }
  // Nodes to exclude, a,b: none where there is no elsewhere.
  std::string excluded(const JobStart& job) const {
    const std::set<std::string> avoid(job.avoid.begin(), job.avoid.end());
    std::string list;
    if (static_cast<std::int64_t>(avoid.size()) < cluster_.nodes)
      for (const std::string& n : avoid) list += (list.empty() ? "" : ",") + n;
    return list;
  }
  static void wait_for_result(const std::string& directory, double wait_s) {
    const auto until = Clock::now() + std::chrono::duration<double>(wait_s);
    while (Clock::now() < until && !read_result(directory)) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  // A result may reach this machine a while after the word that the job is over.
  bool over_for_long(const std::string& directory) {
    constexpr double kGrace = 5;  // seconds
    const auto since = over_since_.try_emplace(directory, Clock::now()).first->second;
    return std::chrono::duration<double>(Clock::now() - since).count() >= kGrace;
  }

  EvalCluster cluster_;
  std::string program_;
  std::map<std::string, Clock::time_point> over_since_;  // by the job's directory
};

}  // namespace orrery
