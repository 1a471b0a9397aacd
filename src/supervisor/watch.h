// What a training job does that is not as it should be: it stands still, its loss went bad, one rank is slow. Pure:
// time is given. False alarms cost more than late ones: every limit follows from what this very job was seen to do.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "supervisor/guard_types.h"

namespace orrery {

struct WatchPolicy {
  // From the start of an attempt to its first step. Below 0: it was not said. Then half an hour, or three times the
  // longest start seen; and a job of which no step was ever seen is only reported.
  double start_grace_s = -1;
  double hang_floor_s = 300;  // no progress for less is never a hang
  double hang_factor = 10;    // ... nor for less than so many usual steps, nor twice the longest pause it came out of
  std::int64_t first_steps = 5;  // steps of an attempt that may take longer:
  double first_factor = 4;       // by so much
  double save_grace_s = 900;     // while it saves
  double chatter_factor = 3;     // while it writes to its logs without a step
  double linger_s = 180;         // after an error that the logs tell, nothing moving
  double lost_s = 10;            // nodes do not answer, nothing moving
  std::int64_t nan_steps = 2;    // steps in a row whose loss is not finite
  double spike_factor = 1.5;     // of the usual loss, and by
  double spike_deviations = 8;   // so many median absolute deviations above it
  double spike_floor = 0.5;      // ... and by so much: losses near 0 are small whatever happens to them
  std::int64_t spike_steps = 8;  // and not down again for so many logged steps
  std::int64_t spike_window = 32;
  double straggler_share = 0.3;  // of the time, all others wait for this one
  double slower_factor = 1.5;    // of the usual step time, for straggler_steps
  std::int64_t straggler_steps = 16;
};

struct StepSample {
  std::int64_t step = -1;  // -1 = not said
  std::optional<double> loss;
  double seconds = -1;  // below 0 = not said
  std::int32_t rank = -1;
};

struct Beat {  // what a rank's heartbeat says now
  std::int32_t rank = 0;
  std::int64_t step = -1;
  std::int64_t time = 0;  // its own clock
  std::string phase;      // "compute", "all_reduce", "save", ...
  std::string node;       // "" = not said
};

class Watch {
 public:
  explicit Watch(const WatchPolicy& policy) : p_(policy) {}

  // A new attempt, from the checkpoint of step `base` (-1 = not known); batches [skip_from, skip_to) are left out in
  // it. What was learned of the job stays.
  void begin_attempt(Ns now, std::int64_t skip_from, std::int64_t skip_to, std::int64_t base = -1);

  void step(Ns now, const StepSample& sample);
  void beats(Ns now, const std::vector<Beat>& beats);  // all that are known, at one look
  void output(Ns now) { last_output_ = now; }          // its logs grew
  void saving(Ns now);                                 // its logs say that it saves
  void failed(Ns now, bool ended);     // its logs say that some of it failed (ended: and that this is the end of it)
  void survived() { failed_at_ = 0; }  // it had no part of it fail, after all
  void nodes_lost(Ns now, const std::vector<std::string>& nodes);  // do not answer; empty = all do

  // What it makes of it. Each trouble is told once an attempt.
  std::vector<GuardEvent> look(Ns now);
  // When the attempt has ended: losses that were not finite last, however few.
  std::vector<GuardEvent> at_end(Ns now);

  double limit_s() const;       // how long nothing may move, now
  double usual_step_s() const;  // 0 = not known yet
  double silent_s(Ns now) const;
  std::int64_t first_step() const { return first_step_; }  // of the attempt; -1 = none yet
  std::int64_t last_step() const { return last_step_; }
  std::string node_of(std::int32_t rank) const;  // "" = not known

 private:
  void moved(Ns now);
  void took(double step_s);
  void loss(std::int32_t rank, std::int64_t step, double value);
  void judge(std::int64_t step, double value);
  std::optional<GuardEvent> bad_loss(std::int64_t enough);
  std::optional<GuardEvent> hang(Ns now) const;
  std::optional<GuardEvent> slower() const;
  std::optional<GuardEvent> slow_rank() const;

  WatchPolicy p_;
  // Of this attempt
  Ns began_ = 0, last_move_ = 0, last_step_at_ = 0, last_output_ = 0, failed_at_ = 0, saving_since_ = 0;
  std::int64_t skip_from_ = 0, skip_to_ = 0, base_ = -1;
  std::int64_t loaded_ = -1;  // a rank said that it is at this step, before it can have loaded the checkpoint
  std::int64_t first_step_ = -1, last_step_ = -1, last_log_step_ = -1, steps_seen_ = 0, log_steps_ = 0, beat_steps_ = 0;
  bool ended_by_log_ = false;
  std::map<std::int32_t, Beat> beats_;
  std::int64_t looks_ = 0;                       // with all ranks at the same step
  std::map<std::int32_t, std::int64_t> waited_;  // rank -> looks at which all others waited for it
  std::map<std::int32_t, std::int64_t> logged_;  // rank -> the step that it logged last
  struct Losses {
    std::deque<double> usual;
    std::int64_t bad_count = 0, first_bad = -1;
    double spike_limit = 0, worst = 0;
  };
  Losses losses_, losses_before_;  // losses_before_: without the step at hand, which several ranks may log
  std::optional<std::int64_t> loss_step_;
  std::set<std::int32_t> loss_ranks_;  // that told a loss of it
  double loss_sum_ = 0;                // of those that are finite
  std::int64_t loss_count_ = 0;
  bool bad_told_ = false, hang_told_ = false, slower_told_ = false;
  std::vector<std::int32_t> slow_told_;
  std::vector<std::string> lost_, lost_told_;
  Ns lost_since_ = 0;
  // Of the job
  std::deque<double> step_s_;              // recent, by the clock of whoever watches, or as logged
  std::deque<double> early_s_, recent_s_;  // of this attempt, as logged
  double longest_pause_s_ = 0, longest_save_s_ = 0, longest_start_s_ = 0;
  bool steps_known_ = false;  // some attempt told steps or had heartbeats
};

}  // namespace orrery
