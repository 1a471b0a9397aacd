// Expert and context parallelism, as process groups and the names of kernels tell them.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "data/trace.h"
#include "whatif/layout.h"

namespace orrery {

// What a group's description (in upper case) says of experts and contexts: Megatron-LM's EXPERT_MODEL_PARALLEL_GROUP
// and its like, DeepSpeed's "ep_size_4", the meshes of torchtitan ("mesh_ep"). Nothing: it speaks of neither.
std::optional<GroupRole> expert_role_of_label(std::string_view label);

struct ExpertNames {     // what names of operators and kernels tell
  bool experts = false;  // there are some
  std::int64_t ep = 0;   // ranks that exchange tokens, as DeepEP's kernels are compiled for; 0 = not told
};
ExpertNames read_expert_names(const TraceSet& traces);

// How many ranks a kernel of DeepEP is compiled for: the first whole number in the template arguments of
// deep_ep::intranode's kernels, 8 (its NUM_MAX_NVL_PEERS) times that of deep_ep::internode's (its kNumRDMARanks). 0: it
// is none of these.
std::int64_t ranks_of_deep_ep(std::string_view kernel);

// Degrees of experts from the roles of groups (`roles` by row of `groups`), what the ranks list, and names; tp, cp, dp
// and world are told. Errors: groups of experts that do not divide the ranks of a stage.
Status settle_experts(const TraceSet& traces, const Communication& c, const ExpertNames& names, JobLayout& layout);

}  // namespace orrery
