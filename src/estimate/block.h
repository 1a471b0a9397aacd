// A chain of operators on one stream, issued by one host thread, as one piece: exactly, not on average.
//
// The host needs H to issue the chain, the stream S to run it. Operator j can start when the host has issued it and its
// predecessor has ended, so a chain whose host begins at a and whose stream is free at b ends at
//   max(b + S, a + L),   L = max over j (host time up to the launch of j + stream time from j on + launch latency).
// Chains compose: H and S add up, L(first, second) = max(L(first) + S(second), H(first) + L(second)). So a whole pass
// of many layers is three numbers, and a graph of a hundred thousand launches a few nodes (max-plus algebra: Baccelli
// et al., Synchronization and Linearity, 1992, chapter 1).
#pragma once
#include <array>
#include <vector>

#include "estimate/operations.h"

namespace orrery {

// From a launch call to the start of its kernel on an idle stream. What traces of H100 and A100 servers show.
inline constexpr double kLaunchLatencyNs = 3'000;

struct Block {
  double host_ns = 0, stream_ns = 0;
  double late_ns = 0;  // L above
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
