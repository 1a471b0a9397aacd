// One job, measured and run again: what every command on traces begins with.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "cli/options.h"
#include "data/trace.h"
#include "graph/build.h"
#include "graph/pipeline_graph.h"
#include "replay/replay.h"

namespace orrery {

// Where the inputs record the steps of pipelines instead of kernels.
struct PipelineJob {
  PipelineTrace trace;
  PipelineRun run;
  PipelineBuild built;                      // of run; its build is Run::build as well
  std::vector<std::int64_t> settled_steps;  // without warm-up; empty = all. Answered for where --steps names none
};

struct Run {
  TraceSet traces;  // names alone, unless options.export_path says that more is needed
  GraphBuild build;
  Replay replay;
  std::optional<PipelineJob> pipeline;
};

// The first half: rows and graph, nothing replayed yet. Steps of pipelines are replayed (their graph is learnt so).
Result<Run> read_job(const std::vector<std::string>& paths, const RunOptions& options, Progress& progress);

Result<Run> run_again(const std::vector<std::string>& paths, const RunOptions& options, Progress& progress);

// What --steps says, else what the job itself leaves out.
std::vector<std::int64_t> chosen_steps(const Run& run, const RunOptions& options);

// Writes the run as a Chrome trace to options.export_path, with the critical paths of the chosen steps.
Status export_run(const Run& run, const RunOptions& options);

}  // namespace orrery
