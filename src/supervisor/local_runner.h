// Attempts as processes of this machine, each under a keeper (keeper.h).
//
// All that an attempt started is a descendant of its keeper, whatever session or environment it took; where the keeper
// was killed, it is found by its session and by the token in its environment (ORRERY_GUARD_TOKEN). fence() kills all of
// them and is true when none is left and the keeper has ended, which it does when it has no child any more.
#pragma once
#include <map>

#include "processes/child.h"
#include "processes/find.h"
#include "supervisor/job_runner.h"

namespace orrery {

struct LocalOptions {
  std::string directory;            // the state directory, absolute
  std::vector<std::string> keeper;  // command that runs run_keeper(); directory and number are appended
  std::vector<std::string> nodes;   // that {nodes} may name; empty = this machine alone
  double time_limit_s = 0;          // of an attempt; 0 = none
};

class LocalRunner final : public JobRunner {
 public:
  explicit LocalRunner(LocalOptions options) : options_(std::move(options)) {}

  std::string_view kind() const override { return "local"; }
  Result<std::string> start(const AttemptSpec& spec) override;
  Result<std::optional<std::string>> find(const AttemptSpec& spec) override;
  Result<AttemptState> poll(const std::string& handle) override;
  Status signal(const std::string& handle, int number) override;
  Result<bool> fence(const std::string& handle) override;
  std::string left(const std::string& handle) override;
  Result<std::vector<NodeState>> nodes() override;
  Status drain(const std::string& node, const std::string& reason) override;
  Result<std::string> stacks(const std::string& handle, double timeout_s) override;

 private:
  std::vector<pid_t> members(std::int64_t number, const std::string& token) const;
  LocalOptions options_;
  std::map<std::int64_t, Child> keepers_;  // children of this process, to be reaped
};

// Errors: the attempt was started on another machine (its directory is shared): it cannot be watched from here.
Status same_machine(const std::string& directory, std::int64_t attempt);

// Where the processes stand, as text (process_stacks.cc): py-spy or gdb where they are installed, else what the kernel
// says of each thread. No longer than `timeout_s` in all.
std::string process_stacks(const std::vector<pid_t>& processes, double timeout_s);

}  // namespace orrery
