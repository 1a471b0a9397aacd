// Where time and memory of a job go: the attribution that `orrery dissect` is made of. Each rank is looked at by
// itself, from its own rows and in its own clock; nothing is run again.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/trace.h"
#include "facts/gpus.h"
#include "reports/intervals.h"
#include "whatif/operators.h"

namespace orrery {

// ---- the terms (dissect_names.cc) ----

// What a piece of work is for.
enum class Phase : std::uint8_t {
  forward,
  prefill,    // forward passes of inference, told apart by the queries of their attention
  decode,     // one query a sequence
  mixed,      // prefill of some requests and decode of others in one pass
  backward,   // without recomputation
  recompute,  // forward work done again for a backward pass
  optimizer,  // what lies between the last backward pass and the end of the optimizer: clipping, scaling, zeroing too
  data,       // loading, distributing and copying of inputs
  communication,
  host,         // code between the others
  unattributed  // nothing tells
};
inline constexpr std::size_t kPhases = 11;
std::string_view name_of(Phase p);
inline bool is_forward(Phase p) {
  return p == Phase::forward || p == Phase::prefill || p == Phase::decode || p == Phase::mixed;
}

enum class KernelClass : std::uint8_t {
  gemm,  // matrix products and convolutions, with what splits them and adds up their parts
  attention,
  elementwise,
  norm,
  softmax,
  embedding,
  optimizer,
  memory,  // copies and fills, by the copy engine or by kernels
  communication,
  other
};
std::string_view name_of(KernelClass c);
// By name alone. `communication` is the caller's to tell (graph/build.h).
KernelClass class_of_kernel(std::string_view kernel);

// A range that only says where the profiler, a compiler or a communication library is: no phase, no module.
bool is_neutral_range(std::string_view annotation);
std::optional<Phase> phase_of_range(std::string_view annotation);
// "## forward:bottom_mlp ##" -> "forward:bottom_mlp", "attn(F)" -> "attn": the pass is not the module's.
std::string name_of_range(std::string_view annotation);
// The module that a name speaks of, in the words of docs/model.md ("norm", "qkv", "mlp up" ...); "" = none.
std::string_view module_of_name(std::string_view name);

// What a task must do at least, as the recorded shapes tell (dissect_cost.cc). 0 = not told.
struct TaskCost {
  double flops = 0;  // of matrix products, convolutions and attention; a multiplication and an addition are two
  double bytes = 0;  // every input read and every output written once
  std::uint8_t element_bytes = 0;
};

// ---- one rank ----

struct DissectedTask {           // one GPU task of the trace, in the order of launches
  std::uint32_t row = 0;         // of RankTrace::ops
  Ns at = 0;                     // begin of the launch; without one the task's own start
  std::uint32_t call = kNone;    // the call that launched it; kNone = not recorded
  std::uint32_t launch = kNone;  // of Operators::launches; kNone = by a graph, or not recorded
  std::uint32_t near = kNone;    // innermost operator or range round the launch
  std::uint32_t op = kNone;      // innermost operator
  std::uint32_t frame = kNone;   // innermost Python frame
  std::uint32_t cover = kNone;   // a range on another thread that waits for this one
  LaneId lane = kNoLane;         // thread of the launch, or stream of a task without
  bool graph = false;            // launched by a graph
  bool communicates = false;
  KernelClass kind = KernelClass::other;
  Phase phase = Phase::unattributed;
  std::uint32_t module = 0;    // of Dissection::modules
  std::int32_t layer = -1;     // -1 = of none, or not told
  std::uint32_t visit = 0;     // tasks launched one after the other for one module share it
  std::uint32_t step = kNone;  // of Dissection::steps: in which it starts; kNone = in none of those chosen
  Ns exclusive = 0;            // of the chosen steps, what is this task's alone (dissect_time.cc)
  TaskCost cost;
};

struct Dissection {
  const RankTrace* trace = nullptr;
  Operators operators;
  std::vector<std::uint32_t> frame_parent;  // by row: the Python frame round a frame; empty = there are no frames
  std::vector<Interval> steps;              // chosen, ascending, disjoint, in the rank's own clock
  Ns length = 0;                            // of all of them together
  std::vector<DissectedTask> tasks;
  std::vector<std::string> modules;  // 0 = "unattributed"
  std::uint32_t main_lane = kNone;   // thread that runs the steps
  bool training = false;             // there is a backward pass
  bool layers_told = false;
  std::array<Ns, kPhases> host{};  // wall time of the steps by what the host's threads do; sums to `length`
  Ns idle = 0;                     // of the steps, no task runs; with all `exclusive` sums to `length`
  Intervals busy;
  Ns outside = 0;  // GPU time that lies in no step of the trace: before the first, after the last
  const GpuFacts* gpu = nullptr;
};

// Label of a communication kernel, by row of the trace: "allreduce TENSOR_MODEL_PARALLEL_GROUP".
struct CommLabel {
  std::uint32_t row = 0;
  std::string label;
};

// `steps`: ascending and disjoint, `all_steps` those of the whole trace. `labels` ascending by row.
Dissection dissect_rank(const RankTrace& trace, std::vector<Interval> steps, const std::vector<Interval>& all_steps,
                        std::span<const CommLabel> labels);

// Its parts, in the order of their calls.
void find_contexts(Dissection& d);                                       // dissect_context.cc: all but what follows
void find_phases(Dissection& d);                                         // dissect_phases.cc
void find_host_time(Dissection& d);                                      // dissect_host.cc
void find_modules(Dissection& d, std::span<const CommLabel> labels);     // dissect_modules.cc: modules, visits
void find_layers(Dissection& d);                                         // dissect_layers.cc
void find_costs(Dissection& d);                                          // dissect_cost.cc
void share_time(Dissection& d, const std::vector<Interval>& all_steps);  // dissect_time.cc: step, exclusive, idle, busy

// Places of a transformer layer told by the order of kernels alone (dissect_sequence.cc): the module of each kernel,
// "" = not told. `kinds` and `names` in the order of one pass of one stream.
struct SequenceItem {
  KernelClass kind = KernelClass::other;
  bool communicates = false;
  std::string_view name, word;  // word: module_of_name(name)
};
std::vector<std::string_view> modules_of_sequence(std::span<const SequenceItem> items);
// The longest stretch that repeats itself at least twice: items [begin, begin + period * count). count 0 = none.
struct Repetition {
  std::size_t begin = 0, period = 0, count = 0;
};
Repetition find_repetition(std::span<const std::uint32_t> keys);

}  // namespace orrery
