// PipelineTrace -> ExecGraph, in two halves, so that a changed job takes the same way as the measured one:
//   trace -> program (who does what in which order, and how long each operation takes) and model (what is learnt once:
//   which kinds wait for which, who meets, constant lags); program and model -> graph.
// docs/model.md, "Steps of pipelines", says what is modelled.
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <vector>

#include "base/result.h"
#include "data/pipeline.h"
#include "data/trace.h"
#include "graph/build.h"

namespace orrery {

struct PipelineRow {
  std::uint32_t rank = 0, step = 0, type = 0;  // rows of PipelineTrace's tables
  std::int32_t micro_batch = -1, chunk = -1;   // of transfers: the sender's
  std::uint32_t batch = 0;                     // equal for neighbours that are issued and waited for together
  std::uint32_t source = kNone;                // row of PipelineTrace::rows; kNone = made by a what-if
  Ns duration = 0;                             // of communication from the last partner's arrival on
};

struct PipelineMeeting {
  std::uint32_t first = 0, members = 0;  // of PipelineProgram::members
};

struct PipelineProgram {
  std::vector<PipelineRow> rows;  // by step, rank, then order of execution
  std::vector<PipelineMeeting> meetings;
  std::vector<std::uint32_t> members;  // rows
};

// Who meets in a collective: ranks that agree in the other coordinates.
enum class PipelineScope : std::uint8_t { alone, tensor, data, pipeline, model, world };

struct PipelineModel {
  struct LagKey {
    std::uint32_t rank = 0, from = 0, to = 0;  // row of ranks; types, or the two below
    bool hand_over = false;                    // from one stage to the next, in one hop: transfers are not recorded
    auto operator<=>(const LagKey&) const = default;
  };
  static constexpr std::uint32_t kBegin = kNone - 1, kEnd = kNone - 2;  // of the step
  struct Lag {
    Ns value = 0;
    bool sure = false;  // it decided often enough when the operation started
  };

  std::uint32_t types = 0;
  std::vector<PipelineScope> scope;     // by type
  std::vector<std::uint8_t> waits_for;  // [earlier * types + later]
  std::vector<std::uint8_t> eager;      // by type: sends that do not wait for their receive
  bool starts_together = false;         // communication is recorded from the last arrival on, waiting is not
  std::map<LagKey, Lag> lags;
  std::map<LagKey, Ns> typical;  // of those that are sure: of other ranks (rank = kNone), of this rank (from = kNone)

  bool waits(std::uint32_t later, std::uint32_t earlier) const {
    return later >= types || earlier >= types || waits_for[std::size_t{earlier} * types + later] != 0;
  }
  // From the end of what was waited for to the start, ns. Where it never decided on this rank: what other ranks show,
  // else what leads to such operations here, else 0.
  Ns lag(const LagKey& key) const;
};

struct PipelineIdle {  // of one rank in one step
  std::uint32_t rank = 0, step = 0;
  Ns idle = 0, unexplained = 0;  // measured; of it, what lies behind everything that was waited for
};

struct PipelineRun {
  PipelineProgram program;  // as measured
  PipelineModel model;
  std::vector<PipelineIdle> idle;
};
PipelineRun learn_pipeline(const PipelineTrace& trace);

// Meetings of rows that were put in another order. (learn_pipeline has done it for its own.)
void find_meetings(const PipelineTrace& trace, const PipelineModel& model, PipelineProgram& program);

// The rows as a rank's trace has them: names and lanes for reports. Behind those of the trace, each rank has names for
// what only what-ifs make, and its steps.
TraceSet pipeline_rows(const PipelineTrace& trace);

struct PipelineBuild {
  GraphBuild build;
  std::vector<std::uint32_t> node_of_row;  // where the row's duration is
};
// `out.build.graph.steps` has a row for every step and rank of the trace that ran it, in the same order for every
// program of the trace. Error: more nodes than 32 bits hold.
Status assemble_pipeline(const PipelineTrace& trace, const PipelineModel& model, const PipelineProgram& program,
                         PipelineBuild& out);
// After durations of rows were changed.
void refresh_durations(const PipelineProgram& program, PipelineBuild& build);

// The chunk that a pass has its input from, -1 = from nowhere: the stage before, of chunk 0 of the first none.
struct PipelinePlace {
  std::int32_t stage = -1, chunk = -1;
};
PipelinePlace input_of(const PipelineTrace& trace, PipelineKind pass, std::int32_t stage, std::int32_t chunk);

}  // namespace orrery
