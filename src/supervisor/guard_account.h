// Where the time of a guarded job went, from its state alone.
//
// Useful is the training that the final state rests on: the time from an attempt's first step to its last, less what a
// later attempt had to do again (in shares of steps). Goodput is the useful share of the time in which an attempt ran,
// the effective training time ratio (ETTR) its share of all time from begin to end: as of orrery guard simulate.
#pragma once
#include <string>
#include <vector>

#include "supervisor/guard_types.h"

namespace orrery {

struct LostTime {
  std::string cause;  // "NCCL Timeout Error", "hang", "preemption", "start" of the first attempt
  std::int64_t failures = 0;
  double work_s = 0;      // steps that had to be done again
  double noticing_s = 0;  // from the last step until it was known that something is wrong
  double down_s = 0;      // from then until another attempt ran: ending, testing, waiting
  double starting_s = 0;  // until its first step
  double all_s() const { return work_s + noticing_s + down_s + starting_s; }
};

struct GuardAccount {
  double wall_s = 0, running_s = 0, useful_s = 0;
  double saving_s = 0;  // training stood still for saves, as far as it is known; in useful_s
  std::int64_t saves = 0;
  std::vector<LostTime> lost;  // the most first
  double goodput() const { return running_s > 0 ? useful_s / running_s : 0; }
  double ettr() const { return wall_s > 0 ? useful_s / wall_s : 0; }
};

// `now`: Unix time; of a job that is over it does not count.
GuardAccount account(const GuardState& state, Ns now);

}  // namespace orrery
