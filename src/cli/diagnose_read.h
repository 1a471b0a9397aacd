// Logs as orrery diagnose reads them: many files at once, or one that still grows.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/result.h"
#include "data/logs.h"
#include "importers/find_inputs.h"

namespace orrery {

// One table a log, in the order of `inputs`. Errors: an input that cannot be read.
Result<std::vector<LogTable>> read_logs(const std::vector<TraceInput>& inputs, const LinePatterns& patterns,
                                        unsigned threads, Progress& progress);

struct FollowOptions {
  double poll_s = 0.5;
  double settle_s = 5;         // a log that ended badly is quiet for so long before the verdict is given
  double hang_after_s = 1800;  // no new line for so long: no progress
};

// Reads a log while it grows. Ends when `ended(table)` has held for settle_s, at SIGINT or SIGTERM (a second one ends
// the program), or when nothing came for hang_after_s, and sets `hung` then. A file that became shorter is read again
// from its start, with a note.
Result<LogTable> follow_log(const TraceInput& input, const LinePatterns& patterns, const FollowOptions& options,
                            const std::function<bool(const LogTable&)>& ended, bool& hung);

}  // namespace orrery
