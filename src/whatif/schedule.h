// The order of work of every pipeline stage: passes of micro-batches, and between them the batches of sends and
// receives, as Megatron-LM issues them (megatron/core/pipeline_parallel/schedules.py).
//
// Part c * stages + s of the model is chunk c of stage s. What leaves the last stage's chunk c goes to the first
// stage's chunk c + 1.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace orrery {

enum class ScheduleKind : std::uint8_t { one_f_one_b, interleaved, zero_bubble };
std::string_view name_of(ScheduleKind k);

// Under zero bubble, backward is the gradients of the inputs alone and weight those of the weights; else backward is
// both and weight does not occur.
enum class Pass : std::uint8_t { forward, backward, weight };

// What is carried is named by its sender: (sending stage, forward, chunk, micro_batch), once a step.
struct Transfer {
  bool send = false;
  bool forward = true;  // activations; else their gradients
  std::int32_t peer_stage = 0;
  std::int32_t micro_batch = 0;
  std::int32_t chunk = 0;  // of the sender
  bool operator==(const Transfer&) const = default;
};

enum class Direction : std::uint8_t { next, previous };
// Where the peer lies in the ring of stages, which peer_stage does not tell of two stages.
inline Direction direction_of(const Transfer& t) { return t.send == t.forward ? Direction::next : Direction::previous; }

// A pass, or one batch of sends and receives that are issued together and waited for together; with overlap they are
// only issued together, and what is received is waited for by the pass that needs it. The transfers are in Megatron's
// order: to the previous stage, from it, to the next, from it. A batch is never empty.
struct Slot {
  bool is_pass = false;
  Pass pass = Pass::forward;
  std::int32_t micro_batch = 0, chunk = 0;
  std::vector<Transfer> transfers;
};

struct Schedule {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  std::int32_t stages = 1, chunks = 1, micro_batches = 1;
  bool overlap = false;
  std::vector<std::vector<Slot>> stage;  // in the order of execution
};

// 1F1B (Narayanan et al., SC 2021, section 2.2), interleaved 1F1B (there; `chunks` of each stage), or ZB-H1 (Qi et al.,
// Zero Bubble Pipeline Parallelism, ICLR 2024, section 2.2: the warm-up and the peak memory of 1F1B). One chunk
// interleaved is 1F1B. With one stage there are no transfers.
// `overlap`: sends and receives beside the passes (Megatron's overlap_p2p_comm, its default for several chunks): the
// transfers of a forward are issued before the backward that follows it, not together with those of that backward.
// `all_forward_first`: interleaved, as many micro-batches as stages, all forwards come before all backwards
// (Megatron-LM up to core 0.8; later versions do without). Errors: a number below 1, or too large; chunks without
// interleaving; micro-batches that the stages do not divide, interleaved; overlap of one chunk.
Result<Schedule> make_schedule(ScheduleKind kind, std::int32_t stages, std::int32_t chunks, std::int32_t micro_batches,
                               bool overlap = false, bool all_forward_first = true);

// The receive that a pass of `stage` starts from; none at the ends of the model and for weight passes.
std::optional<Transfer> input_of(const Schedule& job, std::int32_t stage, const Slot& pass);

}  // namespace orrery
