// Jobs as elements of Slurm's job arrays: one array a round of starts. Slurm decides where they run; what a job says of
// itself lies in its directory, which all nodes must see.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <thread>

#include "base/output.h"
#include "slurm/slurm.h"
#include "trials/cluster_runner.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

constexpr double kPatience = 10;            // seconds, of what is asked for at the end
constexpr std::size_t kMostElements = 500;  // of an array; Slurm's own limit is 1,001 unless it was changed

class SlurmRunner final : public ClusterRunner {
 public:
  using ClusterRunner::ClusterRunner;

  void name_jobs(const std::string& token) override { token_ = token; }

  std::vector<Result<std::string>> start(const std::vector<JobStart>& jobs) override {
    std::vector<Result<std::string>> handles(jobs.size());
    std::map<std::pair<bool, std::string>, std::vector<std::size_t>> alike;  // on GPUs; nodes to avoid
    for (std::size_t i = 0; i < jobs.size(); ++i) alike[{jobs[i].place.gpu >= 0, excluded(jobs[i])}].push_back(i);
    for (const auto& [how, rows] : alike)
      for (std::size_t from = 0; from < rows.size(); from += kMostElements) {
        const std::size_t n = std::min(kMostElements, rows.size() - from);
        const auto token = submit(jobs, &rows[from], n, how.first, how.second);
        for (std::size_t k = 0; k < n; ++k) handles[rows[from + k]] = token;
      }
    return handles;
  }

  bool gone(const std::string& directory, const std::string& handle) override {
    const auto owner = read_owner(directory);
    if (owner && owner->revoked) return true;
    // An array whose name was not written down in time: its element has said which job it is.
    const std::vector<slurm::Job>* rows = rows_of(handle, slurm::JobId{owner ? owner->job : 0});
    if (rows == nullptr) return false;  // nobody answers: nothing is known
    const auto over = [](const slurm::Job& j) { return slurm::is_over(j.state) || j.state == slurm::State::unknown; };
    const bool ended = std::all_of(rows->begin(), rows->end(), [&](const slurm::Job& j) {
      return over(j) || (owner && owner->job != 0 && static_cast<std::int64_t>(j.id) != owner->job);
    });
    if (!ended) {
      over_since_.erase(directory);
      return false;
    }
    if (!over_for_long(directory)) return false;
    return owner || revoke_job(directory);
  }

  void ask_to_stop(const std::string& directory, const std::string& handle) override {
    const bool nobody = revoke_job(directory);
    const auto owner = read_owner(directory);
    if (!nobody && owner && owner->job != 0) {
      if (owner->element.empty())
        (void)slurm::cancel(slurm::JobId{owner->job}, terms(kPatience));
      else
        (void)run_captured({"scancel", owner->element}, {.timeout_s = 30});
      return;
    }
    if (const std::vector<slurm::Job>* rows = handle.empty() ? nullptr : rows_of(handle, {}))
      for (const slurm::Job& j : *rows)
        if (j.state == slurm::State::pending) (void)slurm::cancel(j.id, terms(kPatience));
  }

  void stop(const std::string& directory, const std::string&, double wait_s) override {
    if (const auto owner = read_owner(directory); owner && !owner->revoked) wait_for_result(directory, wait_s);
  }

  // On every node that worked: nobody uses the copies any more.
  void end(const std::vector<std::string>& nodes) override {
    std::vector<std::string> tokens;
    for (const std::string& name : nodes) {
      const auto node = slurm::nodes({name}, terms(kPatience));
      if (!node || node->empty() || !node->front().usable() || state_.empty()) continue;
      slurm::Batch batch;
      batch.token =
          fmt::format("{}-sweep-{}-{}", prefix(), name, std::chrono::system_clock::now().time_since_epoch().count());
      batch.options = {"--ntasks=1", "--nodelist=" + name, "--no-requeue"};
      add(cluster_.slurm_cpu_options, batch.options);
      batch.argv = {program_, "evals", "sweep", cluster_.shared_memory};
      batch.script = state_ + "/" + batch.token + ".sh";
      if (slurm::submit(batch, terms(kPatience))) tokens.push_back(batch.token);
    }
    const auto until = Clock::now() + std::chrono::seconds(30);
    for (const std::string& token : tokens)
      while (Clock::now() < until) {
        const auto rows = slurm::jobs_named(token, terms());
        if (rows && std::all_of(rows->begin(), rows->end(), [](const auto& j) { return slurm::is_over(j.state); }))
          break;
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
      }
  }

 private:
  // Without waiting for accounts: what they do not say yet is asked again. Nor for a controller that does not answer,
  // save where something is submitted: a round of looks must not last as long as it is away.
  static slurm::Terms terms(double patience_s = 0) {
    return {.timeout_s = 30, .patience_s = patience_s, .settle_s = 0};
  }
  static void add(const std::vector<std::string>& more, std::vector<std::string>& to) {
    to.insert(to.end(), more.begin(), more.end());
  }
  // Of this state alone: of one that was deleted and begun again at the same path Slurm knows jobs for long.
  std::string prefix() const { return "orrery-evals-" + token_; }

  Result<std::string> submit(const std::vector<JobStart>& jobs, const std::size_t* rows, std::size_t n, bool on_gpu,
                             const std::string& avoid) {
    const fs::path first = jobs[rows[0]].directory;
    state_ = first.parent_path().string();
    std::string list;
    for (std::size_t k = 0; k < n; ++k) list += jobs[rows[k]].directory + "\n";
    slurm::Batch batch;
    batch.token = prefix() + "-" + first.filename().string();
    const std::string list_path = state_ + "/" + batch.token + ".list";
    if (auto ok = write_file(list_path, list); !ok) return tl::unexpected(ok.error());
    const std::vector<std::string>& own = options_of(on_gpu);
    // Lost nodes are this coordinator's business: Slurm would begin the same job again.
    batch.options = {"--ntasks=1", "--no-requeue", fmt::format("--array=0-{}", n - 1)};
    if (on_gpu && !says_gpus(own)) batch.options.emplace_back("--gres=gpu:1");
    if (!avoid.empty()) batch.options.push_back("--exclude=" + avoid);
    add(own, batch.options);
    batch.argv = {program_, "evals", "job", list_path};
    batch.script = state_ + "/" + batch.token + ".sh";
    batch.output = state_ + "/slurm-%A_%a.log";
    const auto id = slurm::submit(batch, terms(120));
    if (!id) return tl::unexpected(id.error());
    return batch.token;
  }

  // Jobs of that name; without one, that job. Null: nobody answers. Then nobody is asked for as long as that took: with
  // a controller that is away each look lasts until Slurm's commands give up.
  const std::vector<slurm::Job>* rows_of(const std::string& token, slurm::JobId job) {
    auto& [rows, at] = rows_[token.empty() ? std::to_string(static_cast<std::int64_t>(job)) : token];
    if (at != Clock::time_point{} && std::chrono::duration<double>(Clock::now() - at).count() < kLookEvery)
      return &rows;
    const Clock::time_point asked = Clock::now();
    if (asked < silent_until_) return nullptr;
    auto now = !token.empty()          ? slurm::jobs_named(token, terms())
               : job != slurm::JobId{} ? slurm::jobs({job}, terms())
                                       : std::vector<slurm::Job>();
    if (!now) {
      const auto least = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(kLookEvery));
      silent_until_ = Clock::now() + std::max(least, Clock::now() - asked);
      return nullptr;
    }
    rows = std::move(*now);
    at = Clock::now();
    return &rows;
  }

  std::string token_;  // of the state
  std::string state_;  // directory of the jobs
  std::map<std::string, std::pair<std::vector<slurm::Job>, Clock::time_point>> rows_;
  Clock::time_point silent_until_;
};

}  // namespace

std::unique_ptr<TrialRunner> slurm_runner(const EvalConfig& config, const std::string& program) {
  return std::make_unique<SlurmRunner>(config, program);
}

}  // namespace orrery
