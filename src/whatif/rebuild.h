// A job put together anew from the pieces of a traced one: other stages, micro-batches, layers, replicas, schedules and
// sizes of everything.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "costs/collective.h"
#include "costs/memory.h"
#include "costs/work.h"
#include "data/trace.h"
#include "whatif/program.h"
#include "whatif/schedule.h"

namespace orrery {

struct JobShape {  // all that a rebuilt job is described by
  JobLayout layout;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  std::int32_t chunks = 1;        // of each stage
  bool overlap = false;           // several chunks: sends and receives beside the passes (Schedule::overlap)
  bool all_forward_first = true;  // several chunks: see make_schedule
  Dims dims;                      // of the model and a micro-batch
  bool gated_mlp = false;
  Recompute recompute = Recompute::none;
  std::int64_t expert_tp = 0;   // of a job with experts its tp, which no edit changes; 0 = there are none
  double positions = 0;         // rows of a learnt position embedding
  bool tied_embedding = false;  // one weight for embedding and head
  // Parameters of a rank as its reduced gradients tell them, where the dimensions are not known; all 0 = by dimensions.
  double layer_parameters = 0, first_parameters = 0, last_parameters = 0;
};

// The job under "1f1b", "interleaved:V" (V chunks of each stage) or "zero-bubble". An interleaved job keeps how it
// sends and receives; one that becomes interleaved does so beside its passes, Megatron-LM's default. Error: another
// text.
Result<JobShape> with_schedule(const JobShape& job, std::string_view schedule);

// What the pieces' times become; by node of the traced job.
struct Rates {
  std::vector<float> factor;            // of the duration of a task; empty = 1
  std::vector<std::uint8_t> parameter;  // 1: work over the stage's parameters (optimizer, zeroing); empty = none
  std::vector<float> ready;             // parameters whose gradient a task completes, as they will be; empty = none
  std::vector<float> ready_before;      // as they were
  std::vector<std::uint8_t> expert;     // 1: of these parameters are experts'; empty = none
  std::vector<double> slow;             // by rank: durations of its kernels over its peers'; empty = 1
};

// Some 15 GiB while it is put together and replayed, and a minute.
inline constexpr std::uint64_t kMostNodes = 100'000'000;

struct RebuildOptions {
  std::uint32_t max_replicas = 0;        // replicas of one stage that are run; 0 = as many as the trace has
  std::uint32_t max_tensor = 0;          // ranks of one layer that are run; 0 = as many as the trace has
  bool names = true;                     // false: Rebuilt::traces have no rows, only numbers are wanted
  std::uint64_t max_nodes = kMostNodes;  // of the new graph, as told beforehand; a larger one is refused
};

struct Rebuilt {
  TraceSet traces;  // names only: one row of `ranks` a column (the ranks of a pipeline) of the traced job
  GraphBuild build;
  std::vector<std::vector<std::uint32_t>> parts;  // by row of `traces`: the rows of the traced job's that are in it
  std::uint64_t unlike = 0;                       // waits that found no counterpart
  std::vector<std::string> modelled;              // what the traced job has nothing like
};

// Parameters of one stage under tensor parallelism, without experts of their own: of its layers, and of the embedding
// or head where it has one.
double stage_parameters(const Dims& d, double layers, bool first, bool last, bool gated, double positions);
// As counted where the shape has that, else by its dimensions.
double stage_parameters(const JobShape& shape, double layers, bool first, bool last);
// Beside those: of experts whose gradients are reduced over their own replicas.
double expert_parameters(const JobShape& shape, double layers);

// Errors: a shape that cannot be (layers that the parts do not divide ...); more nodes than RebuildOptions::max_nodes;
// ranks that would wait for each other.
Result<Rebuilt> rebuild(const TraceSet& traces, const GraphBuild& build, const Program& program, const JobShape& base,
                        const JobShape& next, const Rates& rates, const NetworkModel& net,
                        const RebuildOptions& options = {});

}  // namespace orrery
