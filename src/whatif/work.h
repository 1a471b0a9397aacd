// The model's dimensions, and what every GPU task computes in terms of them, as the rows of the traces tell.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "costs/work.h"
#include "data/trace.h"

namespace orrery {

struct ModelShape {         // 0 = not told
  Dims dims;                // `layers` is left to the caller
  bool gated_mlp = false;   // two projections in: SwiGLU and the like
  bool fused_gate = false;  // ... in one product of twice the width
  bool flash_attention = false;
  bool batch_first = false;         // activations are [batch, seq, width]
  std::string recompute;            // "none", "selective", "full"; "" = not told
  std::int8_t tied_embedding = -1;  // one weight for embedding and head: 1, 0; -1 = not told
  std::int64_t positions = 0;       // rows of a learnt position embedding; 0 = none seen
  std::int64_t dtype_bytes = 0;     // of activations
  // Experts, as one rank has them; all 0: there are none, or nothing tells.
  bool experts = false;
  std::int64_t local_experts = 0;   // of one layer
  double expert_width = 0;          // of one, as split over the ranks that share it
  bool expert_gate = false;         // two projections in, in one product of twice the width
  double routed = 0;                // tokens that a rank's experts work on, a token of a micro-batch: the mean
  std::int64_t router_width = 0;    // of the whole layer: experts
  double confidence = 0;            // 0..1: share of the dimensions that were told, times how well the sources agree
  std::vector<std::string> doubts;  // what is missing, and what was assumed from what
  std::vector<std::string> contradictions;  // of what was said with recorded shapes that agree with each other
};

// What each GPU task of one rank computes. Equal works are one row.
struct TaskWork {
  std::vector<Work> kinds;
  std::vector<std::uint32_t> of_op;  // by row of the trace: row of `kinds`; kNone for rows that are no GPU task
};

// From the shapes of attention, embedding, norm and linear layers, and their order, on all ranks. `tp` and `dp` are the
// layout's. What is said in `given` (0 = not said) wins; what the traces tell otherwise is a doubt, and where all of
// them agree a contradiction. Errors: no ranks; a `tp` or `dp`
// below 1.
Result<ModelShape> recognise_model(const TraceSet& traces, std::int64_t tp, std::int64_t dp, const Dims& given);

// A task whose recorded sizes are not those that the dimensions give is unknown, as is one that nothing tells about.
// Communication is unknown here.
TaskWork recognise_work(const RankTrace& trace, const ModelShape& model);

}  // namespace orrery
