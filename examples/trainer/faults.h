// What can be made to go wrong, for real where that is possible: signals, memory that is not there, a file altered on
// disk.
#pragma once
#include <atomic>
#include <cstdint>

#include "settings.h"

namespace trainer {

class Faults {
 public:
  Faults(const Settings& settings, int rank) : settings_(settings), rank_(rank) {}
  // At the start of an iteration. kill, crash, hang, oom, error and corrupt do not return.
  void strike(std::int64_t step);
  bool poisoned() const { return poisoned_; }          // nan: this iteration's gradients are not numbers
  double too_far() const { return too_far_; }          // spike: so many times as far goes this iteration's update
  double delay_ms() const { return delay_ms_; }        // slow
  bool storage_full() const { return storage_full_; }  // asked by the checkpoint library's thread

 private:
  bool first_time(const Fault& fault) const;
  const Settings& settings_;
  int rank_;
  bool poisoned_ = false;
  double too_far_ = 1, delay_ms_ = 0;
  std::atomic<bool> storage_full_{false};
};

}  // namespace trainer
