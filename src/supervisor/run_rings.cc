// Back-end of checknodes: an all-gather in a ring over TCP, among processes on this machine's loopback.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "supervisor/group_processes.h"
#include "supervisor/group_runs.h"

namespace orrery {
namespace {

struct Member {
  sockaddr_in address{};
  int listener = -1;
};

bool loopback(const std::string& node, sockaddr_in& address) {
  address = {};
  address.sin_family = AF_INET;
  return ::inet_pton(AF_INET, node.c_str(), &address.sin_addr) == 1 && (ntohl(address.sin_addr.s_addr) >> 24) == 127;
}

// Listens on a port that the system chooses; a sender's bytes cannot arrive before all members listen.
bool open_member(const std::string& node, Member& m) {
  if (!loopback(node, m.address)) return false;
  m.listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t size = sizeof m.address;
  auto* const address = reinterpret_cast<sockaddr*>(&m.address);
  return m.listener >= 0 && ::bind(m.listener, address, size) == 0 && ::listen(m.listener, 1) == 0 &&
         ::getsockname(m.listener, address, &size) == 0;
}

// Sends one chunk and receives one, whichever goes on first.
bool exchange(int to, int from, const std::vector<char>& out, std::vector<char>& in) {
  std::size_t sent = 0, got = 0;
  while (sent < out.size() || got < in.size()) {
    pollfd p[2] = {{to, static_cast<short>(sent < out.size() ? POLLOUT : 0), 0},
                   {from, static_cast<short>(got < in.size() ? POLLIN : 0), 0}};
    if (::poll(p, 2, -1) < 0 && errno != EINTR) return false;
    if (sent < out.size() && p[0].revents != 0) {
      const ssize_t n = ::send(to, out.data() + sent, out.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (n > 0) sent += static_cast<std::size_t>(n);
    }
    if (got < in.size() && p[1].revents != 0) {
      const ssize_t n = ::recv(from, in.data() + got, in.size() - got, MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
      if (n > 0) got += static_cast<std::size_t>(n);
    }
  }
  return true;
}

std::vector<char> pattern(std::size_t member, std::size_t bytes) {
  std::vector<char> chunk(bytes);
  for (std::size_t i = 0; i < bytes; ++i) chunk[i] = static_cast<char>((i * 131 + i / 251 + member * 17) & 0xff);
  return chunk;
}

// In the child. The rate in GB/s, or -1.
double take_part(const std::vector<Member>& ring, std::size_t self, std::size_t bytes) {
  const Member& next = ring[(self + 1) % ring.size()];
  const int to = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in own = ring[self].address;  // leaves by its own address as well
  own.sin_port = 0;
  if (to < 0 || ::bind(to, reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0 ||
      ::connect(to, reinterpret_cast<const sockaddr*>(&next.address), sizeof next.address) != 0)
    return -1;
  const int from = ::accept(ring[self].listener, nullptr, nullptr);
  if (from < 0) return -1;
  std::vector<char> out = pattern(self, bytes), in(bytes);
  std::vector<char> hello(1), answer(1);
  if (!exchange(to, from, hello, answer)) return -1;  // all are there
  const std::size_t steps = std::max<std::size_t>(1, ring.size() - 1);
  double seconds = 0;
  for (std::size_t step = 1; step <= steps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    if (!exchange(to, from, out, in)) return -1;
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (in != pattern((self + ring.size() - step % ring.size()) % ring.size(), bytes)) return -1;
    std::swap(in, out);
  }
  return static_cast<double>(steps * bytes) / 1e9 / std::max(seconds, 1e-9);
}

struct Ring {
  std::vector<Member> members;
  int told[2] = {-1, -1};  // a pipe: the rate of each member
};

void close_ring(Ring& r) {
  for (const Member& m : r.members)
    if (m.listener >= 0) ::close(m.listener);
  for (const int fd : r.told)
    if (fd >= 0) ::close(fd);
}

}  // namespace

Result<std::vector<GroupOutcome>> run_rings(const GroupRunTerms& terms, const std::vector<std::string>& nodes,
                                            const std::vector<NodeGroup>& groups) {
  sockaddr_in unused{};
  for (const std::string& node : nodes)
    if (!loopback(node, unused))
      return fail("not an address of this machine's loopback: " + node, "--hosts",
                  "the built-in ring runs on 127.0.0.0/8; --command tests other nodes");
  std::vector<Ring> rings(groups.size());
  std::vector<std::vector<pid_t>> started(groups.size());
  const auto cannot = [&](const std::string& what) {
    const std::string why = std::strerror(errno);
    wait_for_groups(started, 0);
    for (Ring& r : rings) close_ring(r);
    return fail(what + ": " + why, "ring");
  };
  for (std::size_t g = 0; g < groups.size(); ++g) {
    Ring& r = rings[g];
    if (::pipe2(r.told, O_CLOEXEC) != 0) return cannot("no pipe");
    for (const std::size_t n : groups[g])
      if (!open_member(nodes[n], r.members.emplace_back())) return cannot("cannot listen on " + nodes[n]);
    for (std::size_t i = 0; i < r.members.size(); ++i) {
      const pid_t pid = ::fork();
      if (pid < 0) return cannot("no process");
      if (pid == 0) {
        ::setpgid(0, 0);
        const double rate = take_part(r.members, i, terms.bytes);
        ::_exit(rate > 0 && ::write(r.told[1], &rate, sizeof rate) == sizeof rate ? 0 : 1);
      }
      ::setpgid(pid, pid);  // in both, so that it is done whoever comes first
      started[g].push_back(pid);
    }
  }
  const std::vector<bool> passed = wait_for_groups(started, terms.timeout_s);
  std::vector<GroupOutcome> outcomes;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    GroupOutcome o{.passed = passed[g]};
    for (std::size_t i = 0; passed[g] && i < groups[g].size(); ++i) {  // the slowest member
      double rate = 0;
      if (::read(rings[g].told[0], &rate, sizeof rate) == sizeof rate)
        o.gb_per_s = i == 0 ? rate : std::min(o.gb_per_s, rate);
    }
    outcomes.push_back(o);
    close_ring(rings[g]);
  }
  return outcomes;
}

}  // namespace orrery
