// What is tried again and again. Pure: time is given, in seconds of any clock.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "supervisor/guard_types.h"

namespace orrery {

// Trouble that does not go away is told once.
class LastingTrouble {
 public:
  // It was met with just now: how long it has lasted, where that is to be told.
  std::optional<double> met(const std::string& what, double now_s) {
    Trouble& t = known_[what];
    if (now_s - t.last_s > kForgotten_s) t = {now_s, now_s, false};
    t.last_s = now_s;
    if (t.told || now_s - t.since_s < kLasting_s) return std::nullopt;
    t.told = true;
    return now_s - t.since_s;
  }

  static constexpr double kLasting_s = 60;
  static constexpr double kForgotten_s = 30;  // without it: it is over

 private:
  struct Trouble {
    double since_s = 0, last_s = -1e9;
    bool told = false;
  };
  std::map<std::string, Trouble> known_;
};

// Nodes that could not be drained yet: often at first (a controller that is slow), then now and then (who is not
// allowed to may be allowed later).
class DrainsOwed {
 public:
  void failed(const Action& drain, double now_s) {
    const auto [it, is_new] = owed_.try_emplace(drain.node, Owed{drain, now_s, now_s});
    if (!is_new) it->second.tried_s = now_s;
  }
  void done(const std::string& node) { owed_.erase(node); }
  std::vector<Action> due(double now_s) const {
    std::vector<Action> out;
    for (const auto& [node, o] : owed_)
      if (now_s - o.tried_s >= (now_s - o.since_s < kOften_s ? kAgain_s : kLater_s)) out.push_back(o.drain);
    return out;
  }
  std::vector<Action> all() const { return due(1e300); }

  static constexpr double kAgain_s = 5, kOften_s = 60, kLater_s = 60;

 private:
  struct Owed {
    Action drain;
    double since_s = 0, tried_s = 0;
  };
  std::map<std::string, Owed> owed_;
};

// Saves of an attempt that led to no complete checkpoint: told once until one does. A save counts as lost once the next
// one has begun and nothing has become complete for a while after that.
class SavesBegun {
 public:
  void begun(double now_s, std::int64_t step, bool in_logs) {
    // Heartbeats may count steps otherwise: where logs tell of saves, they alone do.
    if (!in_logs && in_logs_) return;
    if (in_logs && !in_logs_) waiting_ = last_ = -1;
    in_logs_ = in_logs;
    if (step <= std::max(last_, complete_.value_or(-1))) return;
    last_ = step;
    if (waiting_ < 0) {
      waiting_ = step;
      next_s_.reset();
    } else if (!next_s_) {
      next_s_ = now_s;
    }
  }
  // The iteration of the newest complete checkpoint; -1 = there is none.
  void complete(std::int64_t newest) {
    if (complete_ && newest > *complete_) told_ = false;
    complete_ = newest;
    if (waiting_ < 0 || newest < waiting_) return;
    waiting_ = last_ > newest ? last_ : -1;
    next_s_.reset();
  }
  // What is to be told; `over`: the job has ended, no save is under way.
  std::string lost(double now_s, bool over) {
    const bool late = over || (next_s_ && now_s - *next_s_ >= kGrace_s);
    if (told_ || waiting_ < 0 || !complete_ || !late) return {};
    told_ = true;
    return fmt::format("the checkpoint of iteration {} never became complete: {}", waiting_,
                       *complete_ < 0 ? "none is" : fmt::format("the newest is of {}", *complete_));
  }

  static constexpr double kGrace_s = 5;

 private:
  bool in_logs_ = false, told_ = false;
  std::int64_t waiting_ = -1, last_ = -1;  // the first that is not complete, and the last that was begun
  std::optional<double> next_s_;           // when the one after it was begun
  std::optional<std::int64_t> complete_;   // as far as known
};

}  // namespace orrery
