// Back-end of checknodes: an all-gather in a ring over TCP, among processes on this machine's loopback.
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "supervisor/group_processes.h"
#include "supervisor/group_runs.h"
#include "supervisor/ring.h"

namespace orrery {
namespace {

struct Member {
  SocketAddress address{};
  int listener = -1;
};

Result<SocketAddress> loopback(const std::string& node) {
  auto address = address_of(node, true);
  if (address && !address->is_loopback()) return fail("not an address of this machine's loopback: " + node);
  return address;
}

// In the child. The rate in GB/s, or -1.
double take_part(const std::vector<Member>& ring, std::size_t self, std::size_t bytes) {
  // Leaves by its own address as well. All members listen: a sender's bytes cannot arrive before.
  const int to = connect_from(ring[self].address, ring[(self + 1) % ring.size()].address);
  if (to < 0) return -1;
  const int from = ::accept(ring[self].listener, nullptr, nullptr);
  return from < 0 ? -1 : gather_in_ring(to, from, self, ring.size(), bytes, -1);
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
  for (const std::string& node : nodes)
    if (!loopback(node))
      return fail("not an address of this machine's loopback: " + node, "--hosts",
                  "--slurm, --launch, --mpirun and --command test other nodes");
  const pid_t self = ::getpid();
  std::vector<Ring> rings(groups.size());
  std::vector<std::vector<pid_t>> started(groups.size());
  const auto cannot = [&](const std::string& what) {
    const std::string why = std::strerror(errno);
    (void)wait_for_groups(started, 0);
    for (Ring& r : rings) close_ring(r);
    return fail(what + ": " + why, "ring");
  };
  for (std::size_t g = 0; g < groups.size(); ++g) {
    Ring& r = rings[g];
    if (::pipe2(r.told, O_CLOEXEC) != 0) return cannot("no pipe");
    for (const std::size_t n : groups[g]) {
      Member& m = r.members.emplace_back();
      m.address = *loopback(nodes[n]);
      m.listener = listen_at(m.address);
      if (m.listener < 0) return cannot("cannot listen on " + nodes[n]);
    }
    for (std::size_t i = 0; i < r.members.size(); ++i) {
      const pid_t pid = ::fork();
      if (pid < 0) return cannot("no process");
      if (pid == 0) {
        ::setpgid(0, 0);
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody else would end it once this process is killed
        if (::getppid() != self) ::_exit(1);
        const double rate = take_part(r.members, i, terms.bytes);
        ::_exit(rate > 0 && ::write(r.told[1], &rate, sizeof rate) == sizeof rate ? 0 : 1);
      }
      ::setpgid(pid, pid);  // in both, so that it is done whoever comes first
      started[g].push_back(pid);
    }
  }
  const auto passed = wait_for_groups(started, terms.timeout_s);
  if (!passed) {
    for (Ring& r : rings) close_ring(r);
    return tl::unexpected(passed.error());
  }
  std::vector<GroupOutcome> outcomes;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    GroupOutcome o{.passed = (*passed)[g]};
    for (std::size_t i = 0; (*passed)[g] && i < groups[g].size(); ++i) {  // the slowest member
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
