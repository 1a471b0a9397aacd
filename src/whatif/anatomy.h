// What each node of a job's graph belongs to: the passes of its micro-batches, their layers, the exchanges between
// stages, the begin and the end of a step. The ground of every edit that takes the job apart and puts it together anew.
#pragma once
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "graph/build.h"
#include "whatif/layout.h"

namespace orrery {

enum class PieceKind : std::uint8_t {
  outside,         // before the first step, after the last
  step_begin,      // up to the first pass or exchange of a step
  exchange,        // sends and receives between stages, issued together, and the waiting for them
  forward_begin,   // a forward pass up to its first layer: batch, embedding
  forward_layer,   // one layer
  forward_end,     // after the last layer: head, loss
  backward_begin,  // the same, backward
  backward_layer,
  backward_end,
  bucket,   // gradients reduced while backward goes on, with what packs and scales them
  step_end  // after the last pass or exchange: gradients, optimizer
};
std::string_view name_of(PieceKind k);

struct Piece {
  PieceKind kind = PieceKind::outside;
  std::int32_t step = -1;   // of the rank, from 0
  std::int32_t pass = -1;   // forward or backward passes of the step counted apart; of an exchange its number
  std::int32_t layer = -1;  // of the pass; of a bucket the layer's (-1: before the first) in whose backward it lies
};

struct RankAnatomy {
  std::vector<Piece> pieces;  // in program order
  std::int32_t layers = 0;    // of a pass
  std::int32_t passes = 0;    // forward passes of a step
  std::uint32_t main_lane = kNone;
  std::vector<std::uint8_t> order;  // the passes of the first step in their order: 0 forward, 1 backward
};

struct Anatomy {
  std::vector<RankAnatomy> ranks;    // by row of ExecGraph::ranks
  std::vector<std::uint32_t> piece;  // by node: row of its rank's pieces; kNone for rendezvous
};

// Forward passes are stretches of launches of a step's own thread that hold the layers, backward passes those of
// another thread; layers are the longest stretch of launches that repeats itself. `packs` by node: 1 where a task packs
// or scales gradients for their reduction (nullptr: not known).
// Errors: no such stretch; passes of a step that differ in their layers or are not as many forward as backward.
Result<Anatomy> dissect_job(const TraceSet& traces, const GraphBuild& build, const JobLayout& layout,
                            const std::vector<std::uint8_t>* packs);

}  // namespace orrery
