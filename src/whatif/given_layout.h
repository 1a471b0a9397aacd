// What the user says of the traced job (`--layout KEY=VALUE,...`), where its traces do not tell it, or tell it wrong.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "costs/work.h"
#include "data/trace.h"
#include "graph/build.h"
#include "whatif/layout.h"
#include "whatif/schedule.h"

namespace orrery {

struct GivenLayout {
  std::optional<std::int64_t> tp, pp, dp, cp, ep;
  std::optional<std::int64_t> layers;            // of the whole model
  std::optional<std::int64_t> num_microbatches;  // of one pipeline, per step
  std::optional<std::int64_t> gpus_per_node;
  std::optional<ScheduleKind> schedule;
  std::optional<std::int32_t> chunks;  // of each stage; said with the schedule
  std::optional<bool> sequence_parallel, distributed_optimizer;
  std::optional<std::string> recompute;  // "none", "selective", "full"
  Dims dims;                             // seq, mbs, hidden, ffn, heads, kv_heads, head_dim, vocab; 0 = not said
  bool empty() const;
};

// Keys: tp, pp, dp, cp, ep, layers, num-microbatches (microbatches), gpus-per-node, schedule (1f1b, interleaved:V),
// hidden, ffn, heads, kv-heads, head-dim, seq-length (seq), micro-batch-size, vocab, sequence-parallel, recompute,
// distributed-optimizer; on, off for the last but one and the third from last. Errors: an unknown key (with those there
// are), one twice, a value that is none.
Result<GivenLayout> parse_layout(std::string_view text);

// What is said takes the place of what is told, and of its doubt. Errors: degrees that do not multiply to the world;
// a degree that the traces tell for sure (described groups, peers of sends) and that is another.
Status apply(const GivenLayout& given, JobLayout& layout);

// As recognise_layout(traces, build), which fails where this goes on with what is said.
Result<JobLayout> recognise_layout(const TraceSet& traces, const GraphBuild& build, const GivenLayout& given);

}  // namespace orrery
