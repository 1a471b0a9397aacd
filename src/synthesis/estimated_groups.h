// Process groups of an estimated job, as Megatron-LM makes and describes them. Rank order: tp fastest, then cp, then
// dp, then pp.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "data/trace.h"
#include "estimate/operations.h"

namespace orrery::synth {

enum class GroupKind : std::uint8_t {
  world,
  tensor,
  context,
  data,
  data_context,  // replicas of both kinds, where sequences are shared
  shard,         // of replicas, those that share a copy of the optimizer's state
  copies,        // one rank of every such group
  model,         // all ranks of one replica
  pipeline,
  embedding,  // the first and the last stage
  expert,
  expert_data
};
inline constexpr std::size_t kGroupKinds = 12;

// The group of a kind that `rank` is in; none where the job has no such group, or the rank is not in any.
std::optional<ProcessGroup> group_of(const EstimateJob& job, GroupKind kind, std::int64_t rank);
// The kind that a group of group_of() is, by its name.
GroupKind kind_of_name(const EstimateJob& job, std::string_view name);
// Where the estimate's transfers are made.
GroupKind kind_of(const EstimateJob& job, Group group);

}  // namespace orrery::synth
