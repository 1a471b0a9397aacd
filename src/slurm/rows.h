// What Slurm's commands print, as rows. Nothing here fails: what cannot be read is left out.
#pragma once
#include <string_view>
#include <vector>

#include "slurm/slurm.h"

namespace orrery::slurm {

// squeue -h -o: the name comes last, it may hold anything.
inline constexpr const char* kJobFormat = "%A|%T|%r|%S|%e|%N|%j";
std::vector<Job> read_squeue(std::string_view text);

// sacct -n -P -X -o: of several rows of a job (-D) the last counts.
inline constexpr const char* kAccountFormat = "JobIDRaw,State,ExitCode,Start,End,NodeList,JobName";
std::vector<Job> read_sacct(std::string_view text);

// scontrol show job: adds state, reason, restarts, exit and times.
void read_job_details(std::string_view text, Job& job);

inline constexpr const char* kStepFormat = "%i|%N|%j";
std::vector<Step> read_steps(std::string_view text);

std::vector<Node> read_nodes(std::string_view text);  // scontrol show node

}  // namespace orrery::slurm
