// orrery synth: an estimated job's traces.
#pragma once
#include <vector>

#include "cli/command.h"

namespace orrery {

std::vector<OptionSpec> synth_options();  // beside those of the job

}  // namespace orrery
