// All ranks on this machine. Their lives hang on this process: killed with -9, it takes them along.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <map>

#include "train.h"

namespace trainer {
namespace {

volatile sig_atomic_t asked_to_stop = 0;  // a handler can reach nothing else
void on_signal(int signal) { asked_to_stop = signal; }

}  // namespace

int run_all(const Settings& settings) {
  std::vector<Address> addresses(static_cast<std::size_t>(settings.world));
  std::vector<int> listening;
  for (Address& a : addresses) listening.push_back(listen_at(a));
  struct sigaction action {};
  action.sa_handler = on_signal;  // without SA_RESTART: waitpid returns
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGINT, &action, nullptr);
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
  bool passed_on = false, killing = false;
  while (!running.empty()) {
    int status = 0;
    const pid_t child = ::waitpid(-1, &status, 0);
    if (child < 0 && errno == EINTR && asked_to_stop != 0 && !passed_on) {
      passed_on = true;
      for (const auto& [pid, rank] : running) ::kill(pid, asked_to_stop);
    } else if (child < 0 && errno == EINTR && killing) {
      for (const auto& [pid, rank] : running) ::kill(pid, SIGKILL);
    }
    if (child < 0) continue;
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
    if (!killing) {  // the others notice by their connections, and say so; who does not is killed
      killing = true;
      action.sa_handler = [](int) {};
      ::sigaction(SIGALRM, &action, nullptr);
      ::alarm(5);
    }
  }
  return result;
}

}  // namespace trainer
