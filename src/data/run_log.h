// What the logs of a run say of its course: steps over time, or the stages of an evaluation trial.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/notes.h"

namespace orrery {

struct ProgressPoint {
  std::int64_t at_ms = 0;  // since 1970, or since the log's begin where its lines have no times
  std::int64_t step = 0;
  double loss = 0;  // NaN = not on the line
};

struct ProgressLog {
  std::string file;
  bool timed = true;  // false: times are sums of the seconds an iteration took
  std::vector<ProgressPoint> points;
  Notes notes;
};

struct TrialLog {
  std::string file;
  // Milliseconds; load: first line to the begin of inference; metric: end of inference to the last line.
  std::int64_t load_ms = 0, inference_ms = 0, metric_ms = 0;
  bool reached_inference = false, reached_metric = false;
  Notes notes;
};

}  // namespace orrery
