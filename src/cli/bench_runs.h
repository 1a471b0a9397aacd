// orrery bench plan|run|report: a matrix of runs, measured.
#pragma once
#include <vector>

#include "cli/command.h"

namespace orrery {

std::vector<OptionSpec> bench_runs_options();
std::vector<Example> bench_runs_examples();
Result<int> run_bench_plan(const Args& args);
Result<int> run_bench_run(const Args& args);
Result<int> run_bench_report(const Args& args);

}  // namespace orrery
