// Ranks that an MPI launcher started, through an MPI library opened at run time.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "operators/rank_group.h"

namespace orrery {

// How many ranks mpirun, mpiexec or srun started, of which this process is one, by the variables that they set; 0: none
// of them did.
std::int64_t ranks_of_launcher();

// Runs `work` as this process's rank. `library`: "" = the usual names (Open MPI, MPICH and what is compatible with it).
// Errors: no library, one without what is needed; those of `work`, after which all ranks are ended.
Status run_on_mpi(const std::string& library, const std::function<Status(RankGroup&)>& work);

}  // namespace orrery
