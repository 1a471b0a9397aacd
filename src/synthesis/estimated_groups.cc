#include "synthesis/estimated_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

namespace orrery::synth {
namespace {

constexpr std::array<std::string_view, kGroupKinds> kDescriptions = {"default_pg",
                                                                     "TENSOR_MODEL_PARALLEL_GROUP",
                                                                     "CONTEXT_PARALLEL_GROUP",
                                                                     "DATA_PARALLEL_GROUP",
                                                                     "DATA_PARALLEL_GROUP_WITH_CP",
                                                                     "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP",
                                                                     "INTER_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP",
                                                                     "MODEL_PARALLEL_GROUP",
                                                                     "PIPELINE_MODEL_PARALLEL_GROUP",
                                                                     "EMBEDDING_GROUP",
                                                                     "EXPERT_MODEL_PARALLEL_GROUP",
                                                                     "EXPERT_DATA_PARALLEL_GROUP"};

bool exists(const EstimateJob& job, GroupKind kind) {
  switch (kind) {
    case GroupKind::context:
    case GroupKind::data_context:
      return job.cp > 1;
    case GroupKind::shard:
    case GroupKind::copies:
      return job.zero_group > 0 && job.zero_group < job.replicas();
    case GroupKind::embedding:
      return job.pp > 1 && job.model.tied_embeddings;
    case GroupKind::expert:
    case GroupKind::expert_data:
      return job.model.experts > 0;
    default:
      return true;
  }
}

}  // namespace

std::optional<ProcessGroup> group_of(const EstimateJob& job, GroupKind kind, std::int64_t rank) {
  if (!exists(job, kind)) return std::nullopt;
  const std::int64_t stage_ranks = job.tp * job.replicas();
  struct Place {
    std::int64_t t, c, d, p, in_stage, replica;
  };
  const auto place = [&](std::int64_t r) {
    const std::int64_t in_stage = r % stage_ranks, replica = in_stage / job.tp;
    return Place{r % job.tp, replica % job.cp, replica / job.cp, r / stage_ranks, in_stage, replica};
  };
  const Place own = place(rank);
  const std::int64_t shards = std::max<std::int64_t>(1, job.shards());
  const auto joins = [&](const Place& x) {
    const bool stage = x.p == own.p, same = stage && x.t == own.t;
    switch (kind) {
      case GroupKind::world:
        return true;
      case GroupKind::tensor:
        return stage && x.replica == own.replica;
      case GroupKind::context:
        return same && x.d == own.d;
      case GroupKind::data:
        return same && x.c == own.c;
      case GroupKind::data_context:
        return same;
      case GroupKind::shard:
        return same && x.replica / shards == own.replica / shards;
      case GroupKind::copies:
        return same && x.replica % shards == own.replica % shards;
      case GroupKind::model:
        return x.replica == own.replica;
      case GroupKind::pipeline:
        return x.in_stage == own.in_stage;
      case GroupKind::embedding:
        return x.in_stage == own.in_stage && (x.p == 0 || x.p == job.pp - 1);
      case GroupKind::expert:
        return stage && x.in_stage / job.ep == own.in_stage / job.ep;
      case GroupKind::expert_data:
        return stage && x.in_stage % job.ep == own.in_stage % job.ep;
    }
    return false;
  };
  ProcessGroup g;
  bool inside = false;
  for (std::int64_t r = 0; r < job.world(); ++r) {
    if (!joins(place(r))) continue;
    inside = inside || r == rank;
    g.ranks.push_back(static_cast<std::int32_t>(r));
  }
  if (!inside) return std::nullopt;
  g.name = fmt::format("{}", static_cast<std::int64_t>(kind) * job.world() + g.ranks.front());
  g.desc = kDescriptions[static_cast<std::size_t>(kind)];
  g.backend = "cuda:nccl";
  g.size = static_cast<std::int64_t>(g.ranks.size());
  return g;
}

GroupKind kind_of_name(const EstimateJob& job, std::string_view name) {
  std::int64_t n = 0;
  std::from_chars(name.data(), name.data() + name.size(), n);
  return static_cast<GroupKind>(n / job.world());
}

GroupKind kind_of(const EstimateJob& job, Group group) {
  const GroupKind replicas = job.cp > 1 ? GroupKind::data_context : GroupKind::data;
  switch (group) {
    case Group::tensor:
      return GroupKind::tensor;
    case Group::context:
      return GroupKind::context;
    case Group::expert:
      return GroupKind::expert;
    case Group::data:
      return replicas;
    case Group::shard:
      return exists(job, GroupKind::shard) ? GroupKind::shard : replicas;
    case Group::copies:
      return GroupKind::copies;
    case Group::expert_data:
      return GroupKind::expert_data;
    case Group::pipeline:
      return GroupKind::embedding;  // sends and receives use the pipeline's
  }
  return GroupKind::world;
}

}  // namespace orrery::synth
