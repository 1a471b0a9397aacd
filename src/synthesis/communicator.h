// What torch.distributed's NCCL back end does around a collective: operator, record and wait towards NCCL's stream, the
// launch, and the wait for the result later.
#pragma once
#include <string>
#include <string_view>

#include "synthesis/nominal.h"
#include "synthesis/recorder.h"

namespace orrery::synth {

struct Communicator {  // one process group as one of its ranks sees it
  ProcessGroup info;
  std::int64_t id = 0;  // the same on all its ranks
  bool one_node = true;
  std::int64_t in_server = 1;  // members on this rank's server
  std::int64_t rails = 1;      // links to other servers that a collective has
  std::uint32_t stream = 0;    // torch's NCCL stream of the group
  std::uint32_t internal = 0;  // NCCL's own
  std::int64_t calls = 0;      // "Seq" of collectives, the same on all its ranks
  std::int64_t p2p_calls = 0;  // "Seq" of sends and receives: counts this rank's own

  std::int64_t size() const { return static_cast<std::int64_t>(info.ranks.size()); }
};

struct CommContext {
  Recorder& rec;
  const Gpu& gpu;
  std::uint32_t compute;  // stream
  bool nccl_internal;
  std::uint64_t seed;
  std::int64_t sigma_ppm;                         // of a transfer, the same for all members
  bool old_nccl = false;                          // names
  bool group_names = true;                        // descriptions of process groups
  std::int64_t own_node = -1, gpus_per_node = 0;  // where a pair of stages is told by itself
};

enum class Dtype { bf16, f32, i64 };
inline std::int64_t size_of(Dtype d) { return d == Dtype::bf16 ? 2 : d == Dtype::f32 ? 4 : 8; }

enum class Collective { all_reduce, reduce_scatter, all_gather, broadcast, barrier, all_to_all };
// Times that are known, and what the transfer waits for: nullptr = what the compute stream has.
struct Given {
  Ns duration = 0;
  const Event* after = nullptr;
};
// Starts the collective over `elements`, the larger of its input and output; wait_for_result() makes the compute stream
// wait for it.
Event collective(const CommContext& c, HostThread& t, Communicator& group, Collective kind, std::int64_t elements,
                 Dtype dtype, const Given* given = nullptr);
inline Event all_reduce(const CommContext& c, HostThread& t, Communicator& group, std::int64_t elements, Dtype dtype) {
  return collective(c, t, group, Collective::all_reduce, elements, dtype);
}
void wait_for_result(const CommContext& c, HostThread& t, const Event& done);

// One ncclGroup of at most one send and one receive with the same peer (a global rank). `exchange` counts those of the
// pair of ranks.
struct Exchange {
  std::int64_t peer = 0;
  bool send = false, receive = false;
  std::int64_t elements = 0;
  GraphDraft::MeetingKey key{};
  Ns duration = 0;  // 0: as the GPU's links give it
};
Event send_receive(const CommContext& c, HostThread& t, Communicator& group, const Exchange& x);
// One send or one receive as a kernel of its own, which carries its arguments.
Event send_or_receive(const CommContext& c, HostThread& t, Communicator& group, const Exchange& x);

}  // namespace orrery::synth
