// The supervisor itself: hears (logs, heartbeats, the runner, signals), writes down, does what decide() says.
#pragma once
#include <functional>
#include <memory>

#include "data/notes.h"
#include "rules/matcher.h"
#include "supervisor/guard_options.h"
#include "supervisor/guard_types.h"
#include "supervisor/job_runner.h"

namespace orrery {

struct GuardHooks {
  // How often a person or the system asked it to stop so far; the second time means at once.
  std::function<int()> stops_asked;
  // After each event that was written down; `decision.kind` is empty where nothing was decided.
  std::function<void(const GuardEvent&, const Decision&)> told;
  std::function<void(const GuardState&)> looked;  // after each look at the job: for metrics
};

// The rules of orrery diagnose and what guard itself looks for.
Result<std::shared_ptr<Matcher>> guard_rules(Notes& notes);

// Until the job is done, has failed for good or was stopped. Errors: the state directory cannot be used or another
// guard has it, its journal was altered, it cannot be written any more (the job goes on).
Result<GuardState> run_guard(const GuardOptions& options, JobRunner& runner, const std::shared_ptr<Matcher>& matcher,
                             const GuardHooks& hooks, Notes& notes);

std::string journal_path(const std::string& state_directory);

}  // namespace orrery
