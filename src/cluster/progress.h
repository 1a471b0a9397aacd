// The course of a pretraining run: what it reached, what it did again, when it stood still.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/run_log.h"

namespace orrery {

struct Rollback {
  double at_s = 0;                          // since the run's begin
  std::int64_t from_step = 0, to_step = 0;  // the last before, the first after
  std::int64_t lost_steps = 0;
  double lost_s = 0;  // from when `to_step` was reached first to the last step before
  double down_s = 0;  // from the last step before to the first after, less a usual step
};

// A pause without a rollback.
struct Standstill {
  double at_s = 0;  // when it went on, since the run's begin
  std::int64_t after_step = 0;
  double down_s = 0;  // less what the steps usually take
};

struct RunProgress {
  bool timed = true;  // false: times are sums of the seconds an iteration took, pauses do not show
  std::int64_t first_step = 0, last_step = 0, highest_step = 0;
  std::uint64_t steps_done = 0;                           // printed steps, those done again included
  double wall_s = 0, lost_s = 0, down_s = 0, step_s = 0;  // step_s: the middle of all
  std::vector<Rollback> rollbacks;
  std::vector<Standstill> standstills;
  std::vector<std::pair<double, std::int64_t>> curve;  // s, step; at most 2,000 points, rollbacks kept

  double ettr_pct() const { return wall_s > 0 ? 100 * (wall_s - lost_s - down_s) / wall_s : 0; }
};

// The logs are one run's, attempt after attempt, in order of time. A step at least two below the one before is a
// rollback; a pause of more than 20 usual steps (and a minute) without one is a standstill and counts as down.
RunProgress run_progress(const std::vector<ProgressLog>& logs);

}  // namespace orrery
