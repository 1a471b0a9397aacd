#include "supervisor/group_processes.h"

#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <thread>

#include "supervisor/end_signals.h"

namespace orrery {

Result<std::vector<bool>> wait_for_groups(const std::vector<std::vector<pid_t>>& groups, double timeout_s) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(timeout_s);
  std::vector<std::vector<pid_t>> left = groups;
  std::vector<bool> passed(groups.size(), true);
  const EndSignals ends;  // what it starts leads groups of its own and would stay
  const auto give_up = [&](std::size_t g) {
    passed[g] = false;
    for (const pid_t pid : left[g]) ::kill(-pid, SIGKILL);
    for (const pid_t pid : left[g])
      while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) continue;
    left[g].clear();
  };
  bool told = false;
  for (bool waiting = true; waiting;) {
    waiting = false;
    told = told || ends.came();
    const bool late = told || Clock::now() >= end;
    for (std::size_t g = 0; g < left.size(); ++g) {
      bool failed = false;
      for (std::size_t i = 0; i < left[g].size();) {
        int status = 0;
        const pid_t ended = ::waitpid(left[g][i], &status, WNOHANG);
        if (ended == 0) {
          ++i;
          continue;
        }
        failed = failed || ended < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
        ::kill(-left[g][i], SIGKILL);  // what it started and left behind
        left[g].erase(left[g].begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (failed || (late && !left[g].empty())) give_up(g);
      waiting = waiting || !left[g].empty();
    }
    if (waiting) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (told) return fail("told to end", "a test of nodes");
  return passed;
}

}  // namespace orrery
