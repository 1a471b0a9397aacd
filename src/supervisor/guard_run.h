// The supervisor itself: hears (logs, heartbeats, the runner, signals), writes down, does what decide() says.
#pragma once
#include <functional>
#include <memory>

#include "data/notes.h"
#include "rules/matcher.h"
#include "supervisor/attempt_logs.h"
#include "supervisor/guard_options.h"
#include "supervisor/guard_types.h"
#include "supervisor/job_runner.h"

namespace orrery {

struct GuardHooks {
  // How often a person or the system asked it to stop so far; the second time means at once.
  std::function<int()> stops_asked;
  // After each event that was written down, and the state after it; `decision.kind` is empty where nothing was decided,
  // `decision.next` is not to be used.
  std::function<void(const GuardEvent&, const Decision&, const GuardState&)> told;
  std::function<void(const std::string&)> warned;  // what stops it for a while, at once: one line
  std::function<void(const GuardState&)> looked;   // after each look at the job: for metrics
};

// The rules of orrery diagnose and what guard itself looks for, compiled by a thread of its own.
SharedRules guard_rules();

// Until the job is done, has failed for good or was stopped. Errors: the state directory cannot be used or another
// guard has it, its journal was altered, it cannot be written any more (the job goes on).
Result<GuardState> run_guard(const GuardOptions& options, JobRunner& runner, const SharedRules& rules,
                             const GuardHooks& hooks, Notes& notes);

std::string journal_path(const std::string& state_directory);

}  // namespace orrery
