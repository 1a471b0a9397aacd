// One training step of a job as an execution graph: one rank of each pipeline stage, for ranks of a stage behave alike
// (same operators, same sizes, same placement: what one does all do at the same time, so a collective among them is a
// duration). Passes are blocks (estimate/block.h); what runs beside them has nodes of its own.
#pragma once
#include <cstdint>
#include <vector>

#include "estimate/stages.h"
#include "graph/exec_graph.h"

namespace orrery {

enum class StepPhase : std::uint8_t { forward, backward, weight, optimizer };
inline constexpr std::size_t kStepPhases = 4;

// A stretch of the compute lane, or a transfer or copy beside it.
struct StepPiece {
  std::uint32_t stage = 0;
  NodeId from = kNoNode;  // a transfer: begins when this has ended, its wait for peers included; kNoNode: with `to`
  NodeId to = kNoNode;    // ends with this
  const Block* block = nullptr;  // of the compute lane; it is the stages' and outlives the graph
  Part part = Part::data_comm;   // of a transfer
  StepPhase phase = StepPhase::forward;
};

struct StepGraph {
  ExecGraph graph;  // ranks: one a stage; steps: the step of each
  std::vector<StepPiece> pieces;
  std::vector<NodeId> last;  // of each stage: its end
};

// `micro_batches` of each pipeline: may be fewer than the job's (estimate/estimate.h). The buffers of `out` are reused.
// Errors: those of make_schedule.
Status write_step(const EstimateJob& job, const JobCosts& costs, const std::vector<StageWork>& stages,
                  std::int64_t micro_batches, StepGraph& out);

}  // namespace orrery
