// How a guarded job runs on Slurm.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace orrery {

struct SlurmOptions {
  bool used = false;        // else: processes of this machine
  std::string nodes = "1";  // of sbatch --nodes: "4", or "3-4" where it can do with fewer
  std::int64_t tasks_per_node = 1;
  std::string partition = {};            // "" = Slurm's default
  std::vector<std::string> sbatch = {};  // more options, a word each
  std::vector<std::string> srun = {};    // more options of srun
  double stale_s = 3;                    // a keeper silent for so long, on a node that takes no connections, is lost
  double lost_after_s = 8;               // for so long a lost node may still answer that its ranks are dead
  double ask_s = 1;                      // between questions to Slurm
};

}  // namespace orrery
