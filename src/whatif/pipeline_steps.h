// Changes to a job of which the steps of its pipelines were recorded: other durations, another schedule.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "graph/pipeline_graph.h"
#include "whatif/schedule.h"
#include "whatif/whatif.h"

namespace orrery {

// ---- pipeline_stragglers.cc ----

// By type, ns: what an operation takes where none is slow. Of compute the mean over all ranks and steps (the same work,
// evenly spread), of communication the median (of which the slow part is disturbance): the definition of Lin et al.,
// "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025. Of the steps with these numbers
// (empty = all).
std::vector<Ns> ideal_times(const PipelineTrace& trace, const PipelineProgram& program,
                            const std::vector<std::int64_t>& steps = {});
// Rows for which `chosen` holds take their type's ideal time.
Changed make_ideal(const std::vector<Ns>& ideal, const std::function<bool(const PipelineRow&)>& chosen,
                   PipelineProgram& program);
// Waits cost nothing but waiting: no lags on a rank, between operations and at the ends of a step. What a hop from
// stage to stage takes stays where transfers are not recorded.
void drop_launch_delays(ExecGraph& g);

struct SlowPart {
  std::int32_t stage = 0;
  std::uint32_t rank = kNone;  // row of ranks; kNone = the whole stage
  double slower = 1;           // time of its passes over the median of the other stages, or of the stage's ranks
};
// Stages slower than the others, and ranks slower than those of their own stage: beyond 3 % and three times the spread
// (median absolute deviation) of the others. The slowest first. Steps as above.
std::vector<SlowPart> find_slow_parts(const PipelineTrace& trace, const PipelineProgram& program,
                                      const std::vector<std::int64_t>& steps = {});

// ---- pipeline_schedule.cc ----

struct PipelineSchedule {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  std::int32_t chunks = 1, micro_batches = 1;
  bool operator==(const PipelineSchedule&) const = default;
};
// "1f1b", "interleaved:2", "zero-bubble"; micro_batches is left alone. Error: none of these.
Result<PipelineSchedule> parse_schedule(const std::string& text);
// What the measured passes are in the order of; nothing where that is none of the three.
std::optional<PipelineSchedule> recognise_schedule(const PipelineTrace& trace, const PipelineProgram& program);

struct Rescheduled {
  PipelineTrace trace;  // with the new chunks, micro-batches and types
  PipelineProgram program;
  Changed changed;
};
// The same work in another order. A chunk takes its share of the stage's pass; what the first and the last stage take
// beyond the others (embedding, output layer) stays whole, in the first and the last chunk. Under zero bubble half of a
// backward pass is the weights' unless the trace has it apart. Micro-batches beyond the measured ones take what those
// do, in turn; transfers the median of their kind. What is neither pass nor transfer stays before or behind.
// Errors: a schedule that this job cannot have.
Result<Rescheduled> reschedule(const PipelineTrace& trace, const PipelineModel& model, const PipelineProgram& program,
                               const PipelineSchedule& to);

}  // namespace orrery
