#include "supervisor/node_doors.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>

#include "supervisor/ring.h"

namespace orrery {
namespace {

constexpr std::size_t kMostSockets = 256;  // at once: a process has about a thousand descriptors

double seconds(std::chrono::steady_clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

// A resolver that does not answer holds its caller up for half a minute.
struct NodeDoors::Lookup {
  Clock::time_point began = Clock::now();
  std::atomic<bool> done = false;
  std::optional<SocketAddress> address;  // to be read once it is done
};

NodeDoors::~NodeDoors() {
  for (auto& [node, s] : states_)
    for (const Try& t : s.tries) ::close(t.fd);
}

bool NodeDoors::known(const State& s) const {
  if (s.failed >= terms_.tries || s.mute >= terms_.tries) return true;
  return s.failed == 0 && s.mute == 0 && s.answered != Clock::time_point{} &&
         seconds(Clock::now() - s.answered) < terms_.again_s;
}

DoorAnswer NodeDoors::of(const std::string& node) const {
  const auto it = states_.find(node);
  if (it == states_.end()) return DoorAnswer::asked;
  const State& s = it->second;
  if (s.failed >= terms_.tries) return DoorAnswer::away;
  if (s.mute >= terms_.tries) return DoorAnswer::mute;
  if (known(s)) return DoorAnswer::answers;
  return seconds(Clock::now() - s.since) >= terms_.unknown_s ? DoorAnswer::unknown : DoorAnswer::asked;
}

double NodeDoors::away_s(const std::string& node) const {
  return of(node) == DoorAnswer::away ? seconds(Clock::now() - states_.at(node).first_failed) : 0;
}

// Names that are not known yet, one after another in one thread; one that is not found is looked up again later.
void NodeDoors::look_up(const std::vector<Door>& doors) {
  std::vector<std::pair<std::shared_ptr<Lookup>, std::string>> names;
  for (const Door& d : doors) {
    State& s = states_[d.node];
    const bool again = s.address && s.address->done && !s.address->address &&
                       seconds(Clock::now() - s.address->began) > terms_.unknown_s;
    if (s.address && !again) continue;
    s.address = std::make_shared<Lookup>();
    if (const auto digits = address_of(d.host, true)) {
      s.address->address = *digits;
      s.address->done = true;
    } else {
      names.emplace_back(s.address, d.host);
    }
  }
  if (names.empty()) return;
  std::thread([names = std::move(names)] {
    for (const auto& [lookup, host] : names) {
      if (const auto found = address_of(host, false)) lookup->address = *found;
      lookup->done = true;
    }
  }).detach();
}

void NodeDoors::begin(const Door& door, State& s) {
  const auto now = Clock::now();
  // Asked about again after a while in which nobody wanted to know: what was seen then is old.
  if (seconds(now - s.wanted) > std::max(terms_.again_s, terms_.unknown_s)) {
    s.failed = s.mute = 0;
    s.since = now;
  }
  s.wanted = now;
  if (known(s)) s.since = now;
  if (!s.address->done || !s.address->address) return;
  const bool doubt =
      (s.failed > 0 && s.failed < terms_.tries) || (s.mute > 0 && s.mute < terms_.tries) || !s.tries.empty();
  // One that takes connections and does nothing has room for some only.
  const double apart = doubt ? terms_.apart_s : s.mute > 0 ? 5 * terms_.again_s : terms_.again_s;
  if (s.tried != Clock::time_point{} && seconds(now - s.tried) < apart) return;
  std::size_t open = 0;
  for (const auto& [node, other] : states_) open += other.tries.size();
  if (open >= kMostSockets) return;
  SocketAddress to = *s.address->address;
  to.set_port(door.port);
  const int fd = ::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;  // this machine's trouble is not the node's
  s.tried = now;
  const bool at_once = ::connect(fd, to.get(), to.size) == 0;
  if (!at_once && errno != EINPROGRESS) {
    const bool refused = errno == ECONNREFUSED || errno == EHOSTUNREACH || errno == ETIMEDOUT || errno == ECONNRESET;
    ::close(fd);
    if (refused && s.failed++ == 0) s.first_failed = now;
    return;
  }
  if (at_once) ::shutdown(fd, SHUT_WR);
  s.tries.push_back({fd, at_once, now});
}

void NodeDoors::step(State& s) {
  const auto now = Clock::now();
  for (std::size_t i = 0; i < s.tries.size();) {
    Try& t = s.tries[i];
    pollfd p{t.fd, static_cast<short>(t.open ? POLLIN : POLLOUT), 0};
    bool over = false, failed = false;
    if (::poll(&p, 1, 0) == 1) {
      int error = 0;
      socklen_t size = sizeof error;
      if (!t.open && (::getsockopt(t.fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0)) {
        over = failed = true;
      } else if (!t.open) {
        t.open = true;
        ::shutdown(t.fd, SHUT_WR);  // who listens there sees that nothing will be asked, and ends it
        s.failed = 0;
        continue;
      } else {
        over = true;
        s.failed = s.mute = 0;
        s.answered = now;
      }
    } else if (seconds(now - t.began) >= terms_.patience_s) {
      over = true;
      if (t.open) {
        s.failed = 0;
        ++s.mute;
      } else {
        failed = true;
      }
    }
    if (failed && s.failed++ == 0) s.first_failed = t.began;
    if (!over) {
      ++i;
      continue;
    }
    ::close(t.fd);
    s.tries.erase(s.tries.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void NodeDoors::ask(const std::vector<Door>& doors) {
  const auto end = Clock::now() + std::chrono::duration<double>(terms_.wait_s);
  for (auto& [node, s] : states_) step(s);  // also of those that nobody asks for any more
  look_up(doors);
  for (;;) {
    bool waiting = false;
    for (const Door& d : doors) {
      State& s = states_[d.node];
      begin(d, s);
      step(s);
      waiting = waiting || (!known(s) && (!s.address->done || !s.tries.empty()));
    }
    if (!waiting || Clock::now() >= end) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace orrery
