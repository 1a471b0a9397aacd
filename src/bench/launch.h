// A run as a program to start: its words, variables and what the worker reads.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "bench/matrix.h"

namespace orrery {

inline constexpr const char* kOperatorsFile = "operators.csv";  // what a run of operators leaves in its directory

// In the environment of all that a run starts, its value the run's directory: what left the run's session is found by
// it.
inline constexpr const char* kRunVariable = "ORRERY_BENCH_RUN";

struct MeasuredAs {  // how one run is measured
  std::int64_t batch = 1, warmup_steps = 0, steps = 1, trace_steps = 0;
};

struct RunLaunch {
  std::vector<std::string> argv;
  std::vector<std::pair<std::string, std::string>> environment;
  BenchCommand::Reports reports = BenchCommand::Reports::lines;
  std::string step_ms;      // pattern, where that is how it reports
  std::string spec;         // what stands in DIRECTORY/spec.json
  std::string start_in;     // directory: of a command that of the matrix's file, of all others the run's own
  bool one_a_rank = false;  // under Slurm each rank is started, else one program that starts its ranks itself
};

// Tells a worker whether it is the "one" program that starts its ranks itself, or a rank by "srun": other variables of
// a rank in the environment may be those of what this program itself runs in.
inline constexpr const char* kLaunchVariable = "ORRERY_BENCH_LAUNCH";

// JSON that tells a run and how it is measured from every other.
std::string spec_of(const BenchConfig& config, const BenchRun& run);
std::string hash_of(const std::string& spec);  // 16 hexadecimal digits
// Errors: not what spec_of writes.
Result<BenchRun> run_of_spec(const std::string& spec);

// `directory`: of the run, absolute; `workers`: where the scripts are. Errors: a command that does not say how it takes
// a technique; no trainer.
Result<RunLaunch> launch_of(const BenchConfig& config, const BenchRun& run, const MeasuredAs& as,
                            const std::string& directory, const std::string& workers);

// Errors: a placeholder of a command that there is not, a brace that stands alone. {technique_words} is one of a
// command's words, not of what stands for it.
Status check_words(const std::vector<std::string>& words, bool of_technique);

// What is told of a model to a program: the same text of two is the same shape under the same name.
std::string shape_text(const ModelFacts& model);

// A technique of the run that its command has no words for; "" = it has them all.
std::string untold_technique(const BenchCommand& command, const Techniques& techniques);
const BenchCommand* command_named(const BenchConfig& config, const std::string& name);

// The words of a command with its placeholders filled in. Errors: an unknown placeholder.
Result<std::vector<std::string>> fill_in(const std::vector<std::string>& words,
                                         const std::vector<std::pair<std::string, std::string>>& values);

// The workers' scripts in `directory`, as this program has them.
Status write_workers(const std::string& directory);

}  // namespace orrery
