#include "processes/orphans.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <thread>

namespace orrery {
namespace {

// A child that ended, left as it is; 0 = none did, -1 = there is no child.
pid_t ended_child() {
  siginfo_t info{};
  int failed = 0;
  while ((failed = ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT)) != 0 && errno == EINTR) continue;
  return failed != 0 ? -1 : info.si_pid;
}

}  // namespace

Orphans::Orphans() {
  int was = 0;
  if (::prctl(PR_GET_CHILD_SUBREAPER, &was) != 0 || was != 0 || ended_child() != -1) return;
  on_ = ::prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
}

Orphans::~Orphans() {
  if (on_) ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

void Orphans::reap(const Child& child) {
  if (!on_) return;
  for (pid_t pid = 0; (pid = ended_child()) > 0 && pid != child.pid;) {
    int status = 0;
    rusage used{};
    if (::wait4(pid, &status, WNOHANG, &used) != pid) return;
    peak_bytes_ = std::max<std::int64_t>(peak_bytes_, std::int64_t{1024} * used.ru_maxrss);
  }
}

bool Orphans::end(double limit_s) {
  if (!on_) return true;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
  for (;;) {
    const std::vector<pid_t> pids = left();
    reap({});  // also those that ended since one looked
    // One that forked and ended while one looked leaves a child that was not seen.
    if (pids.empty() && ended_child() == -1) return true;
    for (const pid_t pid : pids) ::kill(pid, SIGKILL);
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

std::vector<pid_t> Orphans::left() const { return on_ ? descendants_of(::getpid()) : std::vector<pid_t>(); }

}  // namespace orrery
