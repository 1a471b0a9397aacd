// Whether the daemons of nodes can be reached: connections that are tried beside the caller's work, all at once. One
// that fails says little (a packet is lost, a daemon is being started anew): a node is away after several in a row,
// some time apart.
#pragma once
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace orrery {

struct DoorTerms {
  double patience_s = 2;  // of one try: the system sends the first packet twice in it
  double apart_s = 1;     // from one try to the next while there is doubt
  double again_s = 2;     // ... once there is none: an answer older than that is asked for again
  int tries = 3;          // that must fail
  double wait_s = 0.1;    // that ask() waits for answers at most
  double unknown_s = 6;   // without an answer of any kind (its name is not found): not known, no longer asked
};

enum class DoorAnswer {
  asked,    // not known yet
  unknown,  // cannot be told: its address is not found, this machine has no socket
  answers,  // takes connections and ends them: a daemon is there
  mute,     // takes connections, and nothing more: the system does that, also of a process that stands still
  away      // takes none
};

class NodeDoors {
 public:
  struct Door {
    std::string node, host;
    int port = 0;
  };

  explicit NodeDoors(const DoorTerms& terms = {}) : terms_(terms) {}
  ~NodeDoors();
  NodeDoors(const NodeDoors&) = delete;
  NodeDoors& operator=(const NodeDoors&) = delete;

  // Goes on with what was begun and tries what is due. Names are looked up by a thread of their own.
  void ask(const std::vector<Door>& doors);
  DoorAnswer of(const std::string& node) const;  // as far as is known now
  double away_s(const std::string& node) const;  // since the first try that failed; 0 = not away

 private:
  using Clock = std::chrono::steady_clock;
  struct Lookup;
  struct Try {
    int fd = -1;
    bool open = false;  // connected; its end is waited for
    Clock::time_point began{};
  };
  struct State {
    std::shared_ptr<Lookup> address;
    std::vector<Try> tries;
    int failed = 0, mute = 0;                                                  // in a row
    Clock::time_point first_failed{}, tried{}, answered{}, wanted{}, since{};  // since: it is asked without an answer
  };

  void look_up(const std::vector<Door>& doors);
  void begin(const Door& door, State& s);
  void step(State& s);
  bool known(const State& s) const;

  DoorTerms terms_;
  std::map<std::string, State> states_;
};

}  // namespace orrery
