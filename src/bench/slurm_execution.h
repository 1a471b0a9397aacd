// A run as a job of Slurm: its directory must be on storage that the nodes share.
#pragma once
#include <memory>
#include <string>

#include "bench/measure.h"

namespace orrery {

// `store`: ResultStore::token().
std::unique_ptr<Execution> slurm_execution(const BenchConfig& config, const BenchRun& run, const std::string& store);

// The name of the job of the run of a store in that directory: what a killed runner left is found again by it. A store
// that is made anew at the same place has other names: Slurm knows jobs long after they ended.
std::string slurm_token(const std::string& store, const std::string& directory);

// Ends the job of such a run, whether its number was kept or not. Errors: Slurm's.
Status cancel_slurm_run(const std::string& store, const std::string& directory, const std::string& job);

}  // namespace orrery
