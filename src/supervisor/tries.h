// What is tried again and again. Pure: time is given, in seconds of any clock.
#pragma once
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

}  // namespace orrery
