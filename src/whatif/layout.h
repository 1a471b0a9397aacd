// How the ranks of a job share its work: what a what-if of the layout starts from.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "costs/collective.h"
#include "data/trace.h"
#include "graph/build.h"
#include "whatif/whatif.h"

namespace orrery {

enum class GroupRole : std::uint8_t {
  tensor,
  data,
  pipeline,
  embedding,
  model,
  world,
  other,
  context,        // ranks that share a sequence
  expert,         // ranks that share the experts of a layer: tokens go to them and come back
  expert_tensor,  // ranks that share an expert
  expert_model,   // both
  expert_data,    // replicas of experts
  expert_stages   // expert_model of all stages
};
std::string_view name_of(GroupRole r);
inline bool is_of_experts(GroupRole r) { return r >= GroupRole::expert && r <= GroupRole::expert_stages; }

struct JobLayout {
  std::int64_t world = 1, tp = 1, pp = 1, dp = 1;
  std::int64_t cp = 1;           // ranks that share a sequence; next after tp in the order of ranks
  std::int64_t ep = 1, etp = 1;  // ranks that share a layer's experts, and one expert; within the ranks of a stage
  std::int64_t gpus_per_node = 8;
  bool pipeline_outermost = true;      // rank order: tp fastest, then dp, then pp; else tp, pp, dp
  std::int64_t num_microbatches = 0;   // of one pipeline, per step; 0 = not told
  std::int64_t layers = 0;             // of the whole model; 0 = not told
  bool distributed_optimizer = false;  // gradients reduce-scattered, parameters gathered
  std::vector<GroupRole> role;         // by row of Communication::groups
  double confidence = 1;               // 0 to 1: how much of it is said, not inferred
  std::vector<std::string> doubts;     // what was inferred, and from what

  // How far a stage is from the next, and the stage of a rank.
  std::int64_t stage_stride() const { return pipeline_outermost ? tp * cp * dp : tp * cp; }
  std::int64_t stage_of(std::int64_t rank) const { return rank / stage_stride() % pp; }

  // Replicas of one expert: what its gradients are reduced over.
  std::int64_t expert_replicas() const { return std::max<std::int64_t>(1, tp * cp * dp / (ep * etp)); }

  // Ranks of a group under this layout: how many there are, and how many share a server.
  Placement placement(GroupRole r) const;
};

// From process groups (their descriptions; failing those, their sizes, strides and what they carry), the peers of sends
// and receives, and the number of devices of a server. Errors: ranks whose groups do not multiply to the world.
Result<JobLayout> recognise_layout(const TraceSet& traces, const GraphBuild& build);

// What of the job's meetings a role is: point-to-point is the pipeline's, whatever group it uses, unless that is one of
// ranks that share a sequence.
GroupRole role_of(const JobLayout& layout, const Communication& c, const Meeting& m);

// ---- learn_network.cc ----

Pattern pattern_of(CommOp op);
// Where the members of a meeting are: by their hosts where the traces name several, else by their numbers
// (gpus_per_node = 0: all of them on one host).
Placement place_of(const GraphBuild& build, const Meeting& m, std::int64_t gpus_per_node);
// Bytes as NCCL's tests count them, of one send where a kernel has several. -1 = not known.
std::int64_t message_of(const Communication& c, const Meeting& m);
// The transfers of the traces, one row a size (to 1%), pattern and placement.
std::vector<TransferSample> transfer_samples(const GraphBuild& build, std::int64_t gpus_per_node);
// Both levels and all patterns, from the transfers of the job and the facts of its GPU; Level::seen where a transfer
// of the trace runs over such links.
NetworkModel learn_network(const TraceSet& traces, const GraphBuild& build, const JobLayout& layout);

// ---- edits of the layout ----

// Data parallelism of another degree: the ranks of the trace stay, as some of the new job's. Their data-parallel
// collectives have more members, and all groups may lie on other servers; a sharded optimizer has less or more to do.
// Errors: no data parallelism to change; a degree below 1.
Result<Changed> change_dp(const TraceSet& traces, GraphBuild& build, JobLayout& layout, std::int64_t dp);

}  // namespace orrery
