// Kernels that compute and kernels that communicate slow each other down while both are on one GPU: a communication
// kernel holds SMs and memory bandwidth from its arrival on, whether it transfers or waits for its partners, and its
// transfer is slower beside kernels that compute. An edit that moves the two against each other changes how much of
// each runs beside the other, and with it their durations.
//
//   duration = alone / (1 - cost * share)      share: part of the duration beside the other kind, 0 to 1
//
// so that wholly beside the other kind it takes 1 / (1 - cost) times as long as alone.
//
// Use: learn_contention and overlap_of on the job as it is, then the edits, then replay_with_contention in place of
// replay. Nothing but ratios is applied: what did not move keeps its duration to the nanosecond.
#pragma once
#include <cstdint>
#include <vector>

#include "data/trace.h"
#include "graph/build.h"
#include "replay/replay.h"

namespace orrery {

struct Slowdown {
  double cost = 0;            // 0 = none was found (or none can be told from chance)
  double error = 0;           // standard error of `cost`
  std::uint64_t samples = 0;  // kernels beside the other kind that it was learnt on
  double factor() const { return 1 / (1 - cost); }
};

struct Contention {
  Slowdown long_compute, short_compute;  // kernels from kLongKernel on, and shorter ones (part of those is start-up)
  Slowdown transfer;                     // of collectives, beside kernels that compute
};
inline constexpr Ns kLongKernel = 30'000;

// From the measured times: kernels of one rank, name and grid, and collectives of one group, operation and size, beside
// the other kind and not. Grid sizes are asked where the traces still have their rows. Kernels whose durations are too
// different from each other (one name and grid for several shapes) tell nothing.
Contention learn_contention(const TraceSet& traces, const GraphBuild& build);

// How much of each GPU task of the job as it is runs beside the other kind, and what that costs it; by the trace and
// row that the task came from, so that edits may move, copy or drop its node.
struct Overlap {
  struct Row {
    float share = 0, cost = 0;
  };
  std::vector<std::vector<Row>> of_trace;  // by row of TraceSet::ranks, then of its OpTable; shorter where nothing is
};
// `replayed` is the replay of `g`, the graph before any edit.
Overlap overlap_of(const ExecGraph& g, const Contention& contention, const Replay& replayed);

// Replays, sees what runs beside what, changes durations by what that is more or less than it was, and replays again
// until durations settle (rarely more than 3 rounds, never more than kContentionRounds). `g` keeps the durations of the
// last round, `out` is their replay. Returns the rounds that changed a duration: 0 = as plain replay.
inline constexpr int kContentionRounds = 5;
int replay_with_contention(ExecGraph& g, const Overlap& before, Replay& out);

}  // namespace orrery
