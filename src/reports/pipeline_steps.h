// What `replay` and `predict` say beyond the usual of a job of which the steps of its pipelines were recorded.
#pragma once
#include <string>
#include <vector>

#include "graph/pipeline_graph.h"
#include "reports/reports.h"

namespace orrery {

struct PipelineView {
  const PipelineTrace& trace;
  const PipelineRun& run;
  const PipelineBuild& built;  // of run, as replayed
  const Replay& replay;
  const std::vector<std::int64_t>& settled;  // steps that say what is usual; empty = all
};

// Step numbers without those of warm-up: the first ones that take over half as long again as the median, which a note
// tells of. What is answered for where the user names none. Empty = all.
std::vector<std::int64_t> settled_steps(const ExecGraph& g, Notes& notes);

// Longest rank's step, by step number: measured (with `r` null) or replayed, ns.
std::vector<Ns> iterations(const ExecGraph& g, const Replay* r, const StepRows& rows);

// Slow stages, and slow ranks, with what each costs.
Section pipeline_stragglers_section(const PipelineView& view, const StepRows& rows);

// Into the document of `replay`: where each rank is in the job, slow stages and ranks in place of slow ranks alone, the
// slowdown that they make, medians of the iteration.
Status describe_pipeline(const PipelineView& view, const std::vector<std::int64_t>& steps, Document& document);

// Into the document of `predict`: medians of the iteration, before and after.
Status add_medians(const ExecGraph& base, const Replay& before, const ExecGraph& changed, const Replay& after,
                   const std::vector<std::int64_t>& steps, Document& document);

}  // namespace orrery
