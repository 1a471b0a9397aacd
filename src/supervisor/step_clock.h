// When an attempt did its steps, as far as that can be told of steps that nobody saw when they were done: several came
// between two looks, or the supervisor was not there. Pure: times are given.
#pragma once
#include <cstdint>

#include "base/ids.h"

namespace orrery {

class StepClock {
 public:
  StepClock() = default;
  // Of an attempt that was started then. `taken_up`: it has run while nobody looked.
  StepClock(Ns started, bool taken_up) : none_until_(started), taken_up_(taken_up) {}
  void none_seen(Ns now) {  // a look that saw no step yet
    if (!taken_up_) none_until_ = now;
  }
  void logged(double seconds) {  // of a step, as its log says; below 0: it does not
    if (seconds < 0) return;
    logged_s_ += seconds;
    ++logged_;
  }
  // When `first` was done, of an attempt that had done `last` at `at`: by the times of steps that were logged, else as
  // if all had taken equally long since no step was there.
  Ns first_at(std::int64_t first, std::int64_t last, Ns at) const;

 private:
  Ns none_until_ = 0;
  bool taken_up_ = false;
  double logged_s_ = 0;
  std::int64_t logged_ = 0;
};

}  // namespace orrery
