#include "estimate/block.h"

#include <algorithm>

namespace orrery {

Block block_of(const Operation& o) {
  Block b;
  b.issue_ns = o.host_ns;
  b.stream_ns = b.through_ns = o.stream_ns();
  b.host_ns = o.host_ns;
  b.late_ns = o.host_ns + kLaunchLatencyNs + b.stream_ns;
  if (o.host_waits) {
    b.host_ns = b.late_ns + kReturnNs;
    b.back_ns = b.through_ns + kReturnNs;
  }
  b.overlapped_ns = std::min(o.compute_ns, o.comm_ns);
  b.compute_ns = o.compute_ns - b.overlapped_ns;
  b.comm_ns = o.comm_ns - b.overlapped_ns;
  b.flops = o.flops;
  b.doubt_ns = o.doubt_ns;
  b.part_ns[static_cast<std::size_t>(o.part)] += o.compute_ns;
  b.part_ns[static_cast<std::size_t>(o.comm_part)] += b.comm_ns;
  return b;
}

Block then(const Block& first, const Block& second) {
  if (first.empty()) return second;
  if (second.empty()) return first;
  Block b = first;
  b.late_ns = std::max(first.late_ns + second.through_ns, first.host_ns + second.late_ns);
  b.host_ns = first.host_ns + second.host_ns;
  b.through_ns = first.through_ns + second.through_ns;
  b.back_ns = -1;
  if (second.back_ns >= 0) {
    b.host_ns = std::max(b.host_ns, first.late_ns + second.back_ns);
    b.back_ns = first.through_ns + second.back_ns;
  }
  if (first.back_ns >= 0) {
    b.back_ns = std::max(b.back_ns, first.back_ns + second.host_ns);
    b.through_ns = std::max(b.through_ns, first.back_ns + second.late_ns);
  }
  b.issue_ns += second.issue_ns;
  b.stream_ns += second.stream_ns;
  b.compute_ns += second.compute_ns;
  b.overlapped_ns += second.overlapped_ns;
  b.comm_ns += second.comm_ns;
  b.flops += second.flops;
  b.doubt_ns += second.doubt_ns;
  for (std::size_t k = 0; k < kParts; ++k) b.part_ns[k] += second.part_ns[k];
  return b;
}

Block block_of(const std::vector<Operation>& chain) {
  Block b;
  for (const Operation& o : chain) b = then(b, block_of(o));
  return b;
}

}  // namespace orrery
