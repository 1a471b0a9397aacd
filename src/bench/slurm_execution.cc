#include "bench/slurm_execution.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>

#include "base/number_text.h"
#include "slurm/slurm.h"

namespace orrery {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kAskEvery = std::chrono::seconds(1);
constexpr auto kLongestEpilog = std::chrono::minutes(30);
constexpr double kSpare = 120;  // s that Slurm's own limit is behind the runner's: its end is told by the runner

class SlurmRun final : public Execution {
 public:
  SlurmRun(const BenchConfig& config, const BenchRun& run, const std::string& store)
      : c_(config), run_(run), store_(store) {}

  Status start(const RunLaunch& launch, const std::string& directory) override {
    directory_ = directory;
    const std::int64_t each = std::max<std::int64_t>(1, c_.slurm.gpus_per_node);
    const bool ranks = launch.one_a_rank && run_.gpus > 1;
    const std::int64_t nodes = c_.slurm.gpus_per_node > 0 ? (run_.gpus + each - 1) / each : 1;
    const std::int64_t on_node = (run_.gpus + nodes - 1) / nodes;
    slurm::Batch b;
    b.token = slurm_token(store_, directory);
    b.options = {fmt::format("--nodes={}", nodes),
                 fmt::format("--time={:.0f}", std::ceil((c_.time_limit_s + kSpare) / 60)), "--no-requeue"};
    if (ranks) b.options.push_back(fmt::format("--ntasks={}", run_.gpus));
    // As many on each: a rank has a GPU of its node, and of these each has as many.
    if (ranks) b.options.push_back(fmt::format("--ntasks-per-node={}", on_node));
    if (c_.slurm.gpus_per_node > 0) b.options.push_back(fmt::format("--gres=gpu:{}", on_node));
    if (c_.memory_limit_gib > 0)
      b.options.push_back(fmt::format("--mem={:.0f}M", c_.memory_limit_gib * 1024 / static_cast<double>(nodes)));
    if (!c_.slurm.partition.empty()) b.options.push_back("--partition=" + c_.slurm.partition);
    if (!c_.slurm.account.empty()) b.options.push_back("--account=" + c_.slurm.account);
    b.options.insert(b.options.end(), c_.slurm.options.begin(), c_.slurm.options.end());
    b.argv = {"env"};
    // Of the shell that submits: ranks of other nodes would look for the first one there.
    for (const char* const of_shell : {"MASTER_ADDR", "MASTER_PORT"})
      if (launch.one_a_rank && std::none_of(launch.environment.begin(), launch.environment.end(),
                                            [&](const auto& v) { return v.first == of_shell; }))
        b.argv.insert(b.argv.end(), {"-u", of_shell});
    for (const auto& [name, value] : launch.environment) b.argv.push_back(name + "=" + value);
    if (ranks) b.argv.push_back(std::string(kLaunchVariable) + "=srun");
    // A rank that ends badly ends them all: the others would wait for it.
    if (ranks) b.argv.insert(b.argv.end(), {"srun", "--kill-on-bad-exit=1", "--unbuffered"});
    b.argv.insert(b.argv.end(), launch.argv.begin(), launch.argv.end());
    b.script = directory + "/job.sh";
    b.output = directory + "/stdout.log";
    b.directory = launch.start_in;
    const auto id = slurm::submit(b);
    if (!id) return tl::unexpected(id.error());
    id_ = *id;
    return {};
  }

  std::optional<Exit> poll() override {
    const auto now = Clock::now();
    if (now - asked_ < kAskEvery) return exit_;
    asked_ = now;
    // A controller that does not answer is no end of the job.
    const auto j = slurm::job(id_);
    if (!j) return exit_;
    state_ = j->state;
    configuring_ = j->state_text == "CONFIGURING";
    suspended_ = slurm::is_suspended(*j);
    if (state_ != slurm::State::completing) completing_since_ = now;
    if (state_ == slurm::State::unknown) {
      // Forgotten, and no accounts are kept: what the job itself left tells.
      if (++forgotten_ >= 3) exit_ = Exit{-1, 0};
      return exit_;
    }
    if (slurm::is_over(state_)) exit_ = Exit{j->exit_status, j->signal};
    return exit_;
  }

  std::string stop() override {
    if (exit_ && state_ != slurm::State::unknown) return "";
    const std::string left = "job " + job() + " of Slurm";
    if (!slurm::cancel(id_)) return left;
    const auto end = Clock::now() + std::chrono::seconds(60);
    for (bool completing = false;;) {
      const auto j = slurm::job(id_);
      if (j && (slurm::is_over(j->state) || j->state == slurm::State::unknown)) return "";
      completing = j && j->state == slurm::State::completing;  // an epilog may take its time
      if (Clock::now() >= end) return completing ? "" : left;
      timespec pause{0, 200'000'000};
      ::nanosleep(&pause, nullptr);
    }
  }

  std::string job() const override { return std::to_string(static_cast<std::int64_t>(id_)); }
  bool waiting() const override { return state_ == slurm::State::pending || configuring_; }
  bool paused() const override {
    if (state_ == slurm::State::completing) return Clock::now() - completing_since_ < kLongestEpilog;
    return suspended_ || state_ == slurm::State::unknown;
  }
  std::string ended_by() const override {
    switch (state_) {
      case slurm::State::out_of_memory:
        return "out-of-memory";
      case slurm::State::timeout:
      case slurm::State::deadline:
        return "time-limit";
      case slurm::State::node_fail:
      case slurm::State::boot_fail:
        return "its node failed";
      case slurm::State::preempted:
        return "preempted";
      case slurm::State::cancelled:
        return "cancelled";
      default:
        return "";
    }
  }

 private:
  const BenchConfig& c_;
  BenchRun run_;
  std::string store_, directory_;
  slurm::JobId id_{};
  slurm::State state_ = slurm::State::pending;
  std::optional<Exit> exit_;
  Clock::time_point asked_{}, completing_since_{};
  bool configuring_ = false, suspended_ = false;
  int forgotten_ = 0;
};

}  // namespace

std::unique_ptr<Execution> slurm_execution(const BenchConfig& config, const BenchRun& run, const std::string& store) {
  return std::make_unique<SlurmRun>(config, run, store);
}

std::string slurm_token(const std::string& store, const std::string& directory) {
  return "orrery-bench-" + hash_of(store + "\n" + directory);
}

Status cancel_slurm_run(const std::string& store, const std::string& directory, const std::string& job) {
  std::int64_t id = 0;
  if (read_int(job, id) == NumberState::ok && id > 0) return slurm::cancel(slurm::JobId{id});
  const auto named = slurm::jobs_named(slurm_token(store, directory));
  if (!named) return tl::unexpected(named.error());
  for (const slurm::Job& j : *named)
    if (!slurm::is_over(j.state))
      if (const Status ok = slurm::cancel(j.id); !ok) return ok;
  return {};
}

}  // namespace orrery
