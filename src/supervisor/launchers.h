// How members of rings get to their nodes: by srun, by mpirun, by a program of the user's.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"
#include "supervisor/group_runs.h"
#include "supervisor/slurm_options.h"

namespace orrery {

// Sets `launch` and `addresses` so that srun starts members on these nodes of Slurm: steps of the allocation that this
// process is in where that has all of them, else a job for each, which does not wait for nodes that are busy. `more`:
// words for srun. Errors: no
// such node, no address, a node that others have all of, no Slurm.
Status by_slurm(const std::vector<std::string>& nodes, const std::vector<std::string>& more, GroupRunTerms& terms);

// What says who may use which nodes, for srun as well: account, quality of service, reservation, partition.
std::vector<std::string> admission_words(const SlurmOptions& options);

// Sets `addresses`: of the names, looked up, or as given (one a node, or none). Errors: no such name; the loopback of
// this machine beside other addresses, which no other node can reach.
Status find_addresses(const std::vector<std::string>& nodes, const std::vector<std::string>& given,
                      GroupRunTerms& terms);

// Open MPI's mpirun with one process on {host}. `more`: words for it.
std::vector<std::string> mpirun_words(const std::vector<std::string>& more);

}  // namespace orrery
