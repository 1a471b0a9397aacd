// Where the time of a guarded job went, from its state alone: every moment from its begin to its end, or to now, is
// useful or lost to one cause, in one part of it.
//
// Useful is the training that the final state rests on: the time from an attempt's first step to its last, less what a
// later attempt had to do again (in shares of steps). Goodput is the useful share of the time in which an attempt ran,
// from its start until all of it was dead: of all time but what was down. The effective training time ratio (ETTR) is
// the useful share of all time: as of orrery guard simulate.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "supervisor/guard_types.h"

namespace orrery {

// A cause that is none: from the last step that an attempt is known to have done, while nothing is wrong.
inline constexpr std::string_view kSinceLastStep = "since the last step";

struct LostTime {
  // "NCCL Timeout Error", "hang", "preemption"; "start" of the first attempt; "done": its end; "suspended"
  std::string cause;
  std::int64_t failures = 0;
  double work_s = 0;      // steps that had to be done again
  double noticing_s = 0;  // from the last step until it was known that something is wrong
  double ending_s = 0;    // from then until all of it was dead; of a job that is done: from its last step
  double down_s = 0;      // until another attempt ran: testing, waiting; "suspended": until it was resumed
  double starting_s = 0;  // of that attempt, until its first step
  double all_s() const { return work_s + noticing_s + ending_s + down_s + starting_s; }
};

struct AttemptTime {
  std::int64_t first_step = -1;  // where the checkpoint that it began with is known: the one after it
  double to_first_step_s = -1;   // below 0 = none yet
  double ran_s = 0;              // until all of it was dead, or now; without what it was suspended
};

struct GuardAccount {
  double wall_s = 0, running_s = 0, useful_s = 0;  // wall_s = useful_s + all that is lost
  double saving_s = 0;                             // training stood still for saves, as far as known; in useful_s
  std::int64_t saves = 0, restarts = 0;            // restarts: attempts that were started after the first
  std::vector<LostTime> lost;                      // the most first
  std::vector<AttemptTime> attempts;               // as in the state
  double goodput() const { return running_s > 0 ? useful_s / running_s : 0; }
  double ettr() const { return wall_s > 0 ? useful_s / wall_s : 0; }
};

// The step of the checkpoint that an attempt began with; -1 = not known.
std::int64_t base_of(const GuardState& state, const AttemptRecord& attempt);

// `now`: Unix time; of a job that is over it does not count.
GuardAccount account(const GuardState& state, Ns now);

}  // namespace orrery
