// orrery guard -- COMMAND, guard status and the keeper of a local job.
#pragma once
#include <vector>

#include "cli/command.h"

namespace orrery {

std::vector<OptionSpec> guard_run_options();

Result<int> run_guard_command(const Args& args);
Result<int> run_guard_status(const Args& args);
Result<int> run_guard_on_node(const Args& args);  // the same on nodes: guard batch|rank DIRECTORY NUMBER [-- SRUN...]
Result<int> run_guard_keeper(const Args& args);   // of guard's own: guard keep DIRECTORY NUMBER

}  // namespace orrery
