// A chain of operators on one stream, issued by one host thread, as one piece: exactly, not on average.
//
// Operator j can start when the host has issued it and its predecessor has ended; some make the host wait for the
// stream. So a chain turns the time at which the host is free, h, and that of the stream, s, into
//   h' = max(h + host, s + back),   s' = max(h + late, s + through)
// and chains compose as matrices over (max, +) do (Baccelli et al., Synchronization and Linearity, 1992, chapter 1).
// Without a wait of the host: host is the sum of its times, through that of the stream's, late the longest way from the
// host's begin over the launch of any operator to the end. So a whole pass of many layers is four numbers, and a graph
// of a hundred thousand launches a few nodes.
#pragma once
#include <array>
#include <vector>

#include "estimate/operations.h"

namespace orrery {

// From a launch call to the start of its kernel on an idle stream. What traces of H100 and A100 servers show.
inline constexpr double kLaunchLatencyNs = 3'000;
// From the end of a kernel to the return of the call that waits for it, the copy of a few bytes in between.
inline constexpr double kReturnNs = 15'000;

struct Block {
  double host_ns = 0, late_ns = 0, through_ns = 0;
  double back_ns = -1;   // negative: nothing makes the host wait
  double issue_ns = 0;   // the host's own time
  double stream_ns = 0;  // the stream's own time: through_ns less what it waits for hosts that wait for it
  // Of the stream's time: kernels alone, kernels beside a transfer, transfers alone. They add up to stream_ns.
  double compute_ns = 0, overlapped_ns = 0, comm_ns = 0;
  double flops = 0;
  double doubt_ns = 0;                      // standard deviations of all, added up: laws err alike
  std::array<double, kParts> part_ns = {};  // stream time by part; hidden transfers are not in it
  bool empty() const { return stream_ns <= 0 && host_ns <= 0; }
};

Block block_of(const Operation& o);
Block block_of(const std::vector<Operation>& chain);
Block then(const Block& first, const Block& second);

}  // namespace orrery
