// Whether nodes' daemons are reached: doors of this machine that are open, shut, and open with nobody behind them.
#include "supervisor/node_doors.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "supervisor/ring.h"

namespace orrery {
namespace {

using Clock = std::chrono::steady_clock;

constexpr DoorTerms kQuick{
    .patience_s = 0.3, .apart_s = 0.05, .again_s = 0.2, .tries = 3, .wait_s = 0.02, .unknown_s = 2};

// Asks until it is answered thus; false: not within a minute.
bool comes_to(NodeDoors& doors, const NodeDoors::Door& door, DoorAnswer answer) {
  const auto end = Clock::now() + std::chrono::seconds(60);
  while (Clock::now() < end) {
    doors.ask({door});
    if (doors.of(door.node) == answer) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

struct Listener {
  SocketAddress at = *address_of("127.0.0.1", true);
  int fd = listen_at(at);
  ~Listener() { ::close(fd); }
  NodeDoors::Door door() const { return {"n1", "127.0.0.1", at.port()}; }
};

TEST(NodeDoors, ADaemonThatTakesAndEndsConnectionsAnswers) {
  const Listener l;
  std::atomic<bool> stop = false;
  std::thread daemon([&] {
    while (!stop) {
      const int fd = ::accept(l.fd, nullptr, nullptr);
      char c = 0;
      while (fd >= 0 && ::read(fd, &c, 1) > 0) continue;
      ::close(fd);
    }
  });
  NodeDoors doors(kQuick);
  EXPECT_EQ(doors.of("n1"), DoorAnswer::asked);
  EXPECT_TRUE(comes_to(doors, l.door(), DoorAnswer::answers));
  EXPECT_EQ(doors.away_s("n1"), 0);
  stop = true;
  ::shutdown(l.fd, SHUT_RDWR);
  daemon.join();
}

TEST(NodeDoors, OneThatStandsStillIsMuteAndNotAway) {
  const Listener l;  // the system takes connections, nobody else does
  NodeDoors doors(kQuick);
  EXPECT_TRUE(comes_to(doors, l.door(), DoorAnswer::mute));
  EXPECT_EQ(doors.away_s("n1"), 0);
}

TEST(NodeDoors, AwayAfterSeveralTriesAndNotAfterOne) {
  auto shut = std::make_optional<Listener>();
  const NodeDoors::Door door = shut->door();
  shut.reset();
  NodeDoors doors({.patience_s = 0.3, .apart_s = 1e3, .again_s = 1e3, .tries = 3, .wait_s = 0.02, .unknown_s = 2});
  for (int i = 0; i < 20; ++i) {
    doors.ask({door});
    EXPECT_NE(doors.of("n1"), DoorAnswer::away) << "a packet may be lost, a daemon may be started anew";
  }
  NodeDoors often(kQuick);
  EXPECT_TRUE(comes_to(often, door, DoorAnswer::away));
  EXPECT_GE(often.away_s("n1"), 2 * kQuick.apart_s) << "since the first of them";
}

TEST(NodeDoors, ANameThatIsNotFoundIsNotKnownToBeAway) {
  NodeDoors doors(kQuick);
  EXPECT_TRUE(comes_to(doors, {"n1", "no-such-host.invalid", 7}, DoorAnswer::unknown));
  for (int i = 0; i < 20; ++i) {
    doors.ask({{"n1", "no-such-host.invalid", 7}});
    EXPECT_NE(doors.of("n1"), DoorAnswer::away);
  }
}

TEST(NodeDoors, ManyAreAskedAtOnce) {
  const Listener l;
  std::vector<NodeDoors::Door> all;
  for (int i = 0; i < 40; ++i) all.push_back({"n" + std::to_string(i), "127.0.0.1", l.at.port()});
  DoorTerms terms = kQuick;
  terms.again_s = 1e3;
  NodeDoors doors(terms);
  const auto began = Clock::now();
  const auto done = [&] {
    doors.ask(all);
    for (const auto& d : all)
      if (doors.of(d.node) == DoorAnswer::asked) return false;
    return true;
  };
  while (!done() && Clock::now() - began < std::chrono::seconds(60)) continue;
  EXPECT_TRUE(done());
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - began).count(), 40 * kQuick.patience_s);
}

}  // namespace
}  // namespace orrery
