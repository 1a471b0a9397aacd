// All ranks on this machine. Their lives hang on this process: killed with -9, it takes them along.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <optional>
#include <utility>

#include "train.h"

namespace trainer {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds patience{5};  // of the ranks that are left when one failed

}  // namespace

int run_all(const Settings& settings) {
  std::vector<Address> addresses(static_cast<std::size_t>(settings.world));
  std::vector<int> listening;
  for (Address& a : addresses) listening.push_back(listen_at(a));
  // Waited for instead of handled: none is lost, whenever it comes. Ranks let them in once they have a handler.
  sigset_t waited_for;
  ::sigemptyset(&waited_for);
  for (const int signal : {SIGTERM, SIGINT, SIGCHLD}) ::sigaddset(&waited_for, signal);
  ::sigprocmask(SIG_BLOCK, &waited_for, nullptr);
  const pid_t parent = ::getpid();
  std::map<pid_t, int> running;
  for (int r = 0; r < settings.world; ++r) {
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      for (int other = 0; other < settings.world; ++other) {
        if (other != r) ::close(listening[static_cast<std::size_t>(other)]);
      }
      const int status = run_rank(settings, r, listening[static_cast<std::size_t>(r)], addresses);
      std::fflush(nullptr);
      ::_exit(status);
    }
    running[child] = r;
  }
  for (const int fd : listening) ::close(fd);
  int result = 0;
  bool passed_on = false;
  std::optional<Clock::time_point> kill_at;
  while (!running.empty()) {
    int status = 0;
    const pid_t child = ::waitpid(-1, &status, WNOHANG);
    if (child <= 0) {
      const timespec second{1, 0};
      const int signal = ::sigtimedwait(&waited_for, nullptr, &second);
      if ((signal == SIGTERM || signal == SIGINT) && !std::exchange(passed_on, true)) {
        for (const auto& [pid, rank] : running) ::kill(pid, signal);
      }
      if (kill_at && Clock::now() >= *kill_at) {
        for (const auto& [pid, rank] : running) ::kill(pid, SIGKILL);
      }
      continue;
    }
    const int rank = running[child];
    running.erase(child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    result = 1;
    if (WIFSIGNALED(status)) {
      std::fprintf(stderr, "orrery_trainer: rank %d (process %d) was killed by signal %d\n", rank, child,
                   WTERMSIG(status));
    } else {
      std::fprintf(stderr, "orrery_trainer: rank %d (process %d) failed with exit status %d\n", rank, child,
                   WEXITSTATUS(status));
    }
    if (!kill_at) kill_at = Clock::now() + patience;  // the others notice by their connections, and say so
  }
  return result;
}

}  // namespace trainer
