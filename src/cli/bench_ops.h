// orrery bench ops: single operators, measured on this machine.
#pragma once
#include <vector>

#include "cli/command.h"

namespace orrery {

std::vector<OptionSpec> bench_ops_options();
std::vector<Example> bench_ops_examples();
Result<int> run_bench_ops(const Args& args);

// The words that a matrix gives its runs of operators, which begin with others of its own. Errors: what such a run
// would be refused for. Nothing is measured or written.
Status check_bench_ops(const std::vector<std::string>& words);

}  // namespace orrery
