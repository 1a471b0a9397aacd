#include "graph/calls.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/text_match.h"
#include "graph/build.h"

namespace orrery {
namespace {

// Kernels of communication libraries, in lower case. "nccl" alone would also match framework kernels that prepare data.
constexpr std::array<std::string_view, 17> kCommunicationNames = {"nccldevkernel",
                                                                  "ncclkernel",
                                                                  "nccl:",
                                                                  "rccl",
                                                                  "msccl",
                                                                  "mscclpp",
                                                                  "nvshmem",
                                                                  "rocshmem",
                                                                  "dpsk::ep::",
                                                                  "deep_ep::",
                                                                  "cross_device_reduce",
                                                                  "custom_all_reduce",
                                                                  "two_shot_all_reduce",
                                                                  "one_shot_all_reduce",
                                                                  "multimem_all_reduce",
                                                                  "allreduce_fusion_kernel",
                                                                  "userbuffers"};

}  // namespace

Call classify_call(std::string_view name) {
  for (std::string_view prefix : {"cuda", "hip", "cu"}) {
    if (name.substr(0, prefix.size()) == prefix) {
      name.remove_prefix(prefix.size());
      break;
    }
  }
  auto starts = [&](std::string_view p) { return name.substr(0, p.size()) == p; };
  if (starts("EventRecord")) return Call::record;
  if (starts("StreamWaitEvent")) return Call::wait;
  if (starts("StreamSynchronize")) return Call::stream_sync;
  if (starts("DeviceSynchronize") || starts("CtxSynchronize") || starts("ThreadSynchronize")) return Call::device_sync;
  if (starts("EventSynchronize")) return Call::event_sync;
  if (starts("EventQuery") || starts("StreamQuery") || starts("ThreadExchangeStreamCaptureMode")) return Call::poll;
  if (starts("GraphLaunch")) return Call::graph_launch;
  if (starts("Memcpy")) return Call::copy;
  if (starts("Free") || starts("HostFree") || starts("MemFree") || starts("HostUnregister")) {
    return has(name, "Async") ? Call::other : Call::free_memory;
  }
  return Call::other;
}

bool is_communication(const RankTrace& t, OpId kernel) {
  const std::uint32_t extra = t.ops.extra[raw(kernel)];
  if (extra != kNone) {
    const std::uint32_t comm = t.kernel_args.comm[extra];
    if (comm != kNone && raw(t.comm_args.collective[comm]) != 0) return true;
  }
  return is_communication_name(t.name_of(kernel));
}

bool is_communication_name(std::string_view name) {
  const std::string s = lower(name);
  return std::any_of(kCommunicationNames.begin(), kCommunicationNames.end(),
                     [&](std::string_view part) { return has(s, part); });
}

}  // namespace orrery
