// orrery bench ops: single operators, measured on this machine.
#pragma once
#include <vector>

#include "cli/command.h"

namespace orrery {

std::vector<OptionSpec> bench_ops_options();
std::vector<Example> bench_ops_examples();
Result<int> run_bench_ops(const Args& args);

}  // namespace orrery
