// One training step of a job as an execution graph: one rank of each pipeline stage, for ranks of a stage behave alike
// (same operators, same sizes, same placement: what one does all do at the same time, so a collective among them is a
// duration). Passes are blocks (estimate/block.h); what runs beside them has nodes of its own.
#pragma once
#include <cstdint>
#include <vector>

#include "estimate/stages.h"
#include "graph/exec_graph.h"
#include "whatif/schedule.h"

namespace orrery {

enum class StepPhase : std::uint8_t { forward, backward, weight, optimizer };
inline constexpr std::size_t kStepPhases = 4;

// A stretch of the compute lane, or a transfer or copy beside it.
struct StepPiece {
  std::uint32_t stage = 0;
  NodeId from = kNoNode;  // a transfer: begins when this has ended, its wait for peers included; kNoNode: with `to`
  NodeId to = kNoNode;    // ends with this; a block: its last operator, the stream was busy for through_ns before
  const Block* block = nullptr;  // of the compute lane; it is the stages' and outlives the graph
  Part part = Part::data_comm;   // of a transfer
  StepPhase phase = StepPhase::forward;
  bool sends = false;    // beside the passes: nobody here waits for it
  double slowed_ns = 0;  // a block: what transfers beside it take from its kernels; it is so much longer
};

// Of the host, after a wait for the device.
inline constexpr double kSyncHostNs = 20'000;

// What a stage's host does, one after the other: the program that the graph's nodes come from.
enum class ActKind : std::uint8_t {
  step,        // host work before the passes
  pass,        // the begin of a pass of `phase`: host work
  hook,        // host work round a layer
  chain,       // the operators of `block`, behind what `node` waits for
  transfer,    // `shape` on a lane of its own, behind what `node` waits for
  post,        // one of a batch of sends and receives, `carried`: launched
  settle,      // the batch posted last is waited for by the compute lane
  arrive,      // what was posted as `carried` is waited for by the compute lane
  drain,       // the host waits for the compute lane
  passes_end,  // no pass is to come
  tie,         // gradients of the embedding are summed over the first and the last stage
  norm,        // the norm of all gradients is agreed on (ns: by a collective that long; 0: alone) and read by the host
  host_update  // the optimizer, on the host, behind `node`
};
struct Act {
  ActKind kind = ActKind::chain;
  std::uint32_t stage = 0;
  StepPhase phase = StepPhase::forward;
  NodeId node = kNoNode, tail = kNoNode;  // of the graph; tail: what stands for it in the order of the compute lane
  double ns = 0;                          // of the host, or of a transfer
  const Block* block = nullptr;
  double slowed_ns = 0;  // chain
  TransferShape shape;
  Transfer transfer;          // post
  double host_ns = 0;         // post: to issue it
  std::uint32_t carried = 0;  // post, arrive: the same for the sender and the receiver, once a step
};

struct StepGraph {
  ExecGraph graph;  // ranks: one a stage; steps: the step of each
  std::vector<StepPiece> pieces;
  std::vector<Act> program;  // of all stages, each in its order; empty unless asked for
  std::vector<NodeId> last;  // of each stage: its end
};

// `micro_batches` of each pipeline: may be fewer than the job's (estimate/estimate.h). The buffers of `out` are reused.
// Errors: those of make_schedule.
Status write_step(const EstimateJob& job, const JobCosts& costs, const std::vector<StageWork>& stages,
                  std::int64_t micro_batches, bool with_program, StepGraph& out);

}  // namespace orrery
