// Attempts as jobs of Slurm: each attempt is one job, submitted once, whose script starts the command by srun, one
// keeper a rank (slurm_attempt.h).
//
// When is an attempt seen dead? Its ranks are told by the orders that it is revoked, the job is cancelled, and then
//   - of each rank its keeper has written that it has ended or has been ended, or Slurm says that the job is over on
//     nodes that answer: their slurmd has seen every step end;
//   - a node that does not answer is dead for us when Slurm has it down (the supervisor sets it down where its slurmd
//     has taken no connection for `lost_after_s`) and none of its keepers has answered for `lost_after_s` since the
//     attempt was revoked. A keeper that reaches the state directory answers within a second; one that does not cannot
//     write there either, and what comes back later finds the revocation first. Whatever it may still write into a
//     checkpoint of its own is refused by the library's lock.
//
// A job is submitted with --requeue, so that `scontrol requeue` works; it is not run a second time by Slurm all the
// same, since an attempt's claim is taken once: what Slurm starts again ends at once, and the supervisor starts the
// next attempt instead, without Slurm's two minutes of waiting.
#pragma once
#include <chrono>
#include <map>
#include <set>

#include "slurm/slurm.h"
#include "supervisor/job_runner.h"
#include "supervisor/node_doors.h"
#include "supervisor/slurm_attempt.h"
#include "supervisor/slurm_options.h"

namespace orrery {

class SlurmRunner final : public JobRunner {
 public:
  // The state directory and this program: absolute, and seen by all nodes.
  SlurmRunner(std::string directory, std::string program, SlurmOptions options);

  std::string_view kind() const override { return "slurm"; }
  Result<std::string> start(const AttemptSpec& spec) override;
  bool is_final(const Error& error, const AttemptSpec& spec) const override;
  Result<std::optional<std::string>> find(const AttemptSpec& spec) override;
  Result<AttemptState> poll(const std::string& handle) override;
  Status signal(const std::string& handle, int number) override;
  Result<bool> fence(const std::string& handle) override;
  std::string left(const std::string& handle) override;
  Result<std::vector<NodeState>> nodes() override;
  Status drain(const std::string& node, const std::string& reason) override;
  Result<std::string> stacks(const std::string& handle, double timeout_s) override;
  // Rings among them, started by srun.
  std::optional<RunGroups> tester(const std::vector<std::string>& nodes, double timeout_s) override;

 private:
  std::string nodes_wanted(const AttemptSpec& spec) const;
  using Clock = std::chrono::steady_clock;
  struct Handle {
    slurm::JobId job{};
    std::int64_t attempt = 0;
  };
  struct Beat {
    std::int64_t beats = -1;
    Clock::time_point moved{};
  };
  // What is known of the attempt that is looked at; another one begins anew.
  struct Known {
    std::int64_t attempt = 0;
    std::map<std::int64_t, Beat> beats;  // by rank
    std::optional<Clock::time_point> revoked;
    bool notice = false;
    slurm::Job job;
    Clock::time_point asked{};                         // when Slurm said so
    std::map<std::string, NodeDoors::Door> doors;      // of their slurmds
    Clock::time_point doors_asked{};                   // when Slurm was asked for them
    std::set<std::string> set_down;                    // Slurm knows that they are down
    std::map<std::string, Clock::time_point> telling;  // when it was tried last to tell it
  };

  static Result<Handle> read_handle(const std::string& handle);
  Known& known(std::int64_t attempt);
  Result<slurm::Job> job(const Handle& handle);
  Status give_orders(const SlurmFiles& files, const Orders& orders);
  Status revoke(const SlurmFiles& files, Known& known);
  void ask_nodes(Known& known, const std::set<std::string>& nodes);
  static double silent_s(Known& known, const RankReport& report);
  std::vector<std::string> lost_nodes(Known& known, const std::vector<RankReport>& reports, bool over, bool& asking);
  void describe_end(const SlurmFiles& files, const std::vector<RankReport>& reports, AttemptState& state) const;

  std::string directory_, program_;
  SlurmOptions options_;
  slurm::Terms terms_;
  Known known_;
  NodeDoors doors_;
};

}  // namespace orrery
