// One job, measured and run again: what every command on traces begins with.
#pragma once
#include <string>
#include <vector>

#include "base/progress.h"
#include "cli/options.h"
#include "data/trace.h"
#include "graph/build.h"
#include "replay/replay.h"

namespace orrery {

struct Run {
  TraceSet traces;  // names alone, unless options.export_path says that more is needed
  GraphBuild build;
  Replay replay;
};

Result<Run> run_again(const std::vector<std::string>& paths, const RunOptions& options, Progress& progress);

// Writes the run as a Chrome trace to options.export_path, with the critical paths of the chosen steps.
Status export_run(const Run& run, const RunOptions& options);

}  // namespace orrery
