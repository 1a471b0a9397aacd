// A job of which only the steps of its pipelines were recorded: one row an operation of a rank (the forward pass of a
// micro-batch, a send, a reduction of gradients), not a kernel. Times are integer nanoseconds in one clock for all
// ranks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "data/notes.h"

namespace orrery {

enum class PipelineKind : std::uint8_t {
  forward,   // of one micro-batch through one chunk of a stage
  backward,  // the same; with `weight` rows only the gradients of the inputs
  weight,    // gradients of the weights, where they are computed by themselves
  send_forward,
  recv_forward,
  send_backward,
  recv_backward,
  collective,  // of several ranks: gradients, parameters, norms
  compute      // other work of one rank: optimizer
};
inline bool is_pass(PipelineKind k) {
  return k == PipelineKind::forward || k == PipelineKind::backward || k == PipelineKind::weight;
}
inline bool is_transfer(PipelineKind k) { return k >= PipelineKind::send_forward && k <= PipelineKind::recv_backward; }
inline bool is_send(PipelineKind k) { return k == PipelineKind::send_forward || k == PipelineKind::send_backward; }
inline bool is_communication(PipelineKind k) { return is_transfer(k) || k == PipelineKind::collective; }

struct PipelineType {  // of operations, as the file names them
  std::string name;    // "forward-compute"
  PipelineKind kind = PipelineKind::compute;
};

struct PipelineRank {
  std::int64_t rank = 0;
  std::int32_t pp = 0, dp = 0, tp = 0;  // its place in the job
  std::string file;
};

struct PipelineStep {
  std::int64_t number = 0;
  Ns begin = 0;         // the same for all ranks
  std::vector<Ns> end;  // by row of `ranks`; before `begin` where the rank has nothing of the step
};

// One row an operation, by step, then rank, then start. `rank`, `step`, `type` are rows of the tables above.
struct PipelineRows {
  std::vector<std::uint32_t> rank, step, type;
  std::vector<std::int32_t> micro_batch, chunk;  // -1 = none
  std::vector<Ns> start, end;                    // end >= start
  std::size_t size() const { return rank.size(); }
};

struct PipelineTrace {
  std::vector<PipelineRank> ranks;  // by rank, ascending
  std::vector<PipelineType> types;
  std::vector<PipelineStep> steps;  // by number, ascending
  PipelineRows rows;
  std::int32_t stages = 1, dp = 1, tp = 1;
  std::int32_t chunks = 1;         // of a stage
  std::int32_t micro_batches = 0;  // of a pipeline, a step
  bool has_transfers = false;      // sends and receives are recorded; else what they take is in the gaps
  Notes notes;
};

}  // namespace orrery
