// While it lives, a signal that would end this process waits: what it started is ended first.
#pragma once
#include <csignal>

namespace orrery {

class EndSignals {
 public:
  EndSignals() {
    ::sigemptyset(&ends_);
    for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
      struct sigaction now {};
      if (::sigaction(s, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) ::sigaddset(&ends_, s);  // as under nohup
    }
    ::pthread_sigmask(SIG_BLOCK, &ends_, &before_);
  }
  ~EndSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;

  bool came() const {
    sigset_t pending;
    ::sigpending(&pending);
    for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGQUIT})
      if (::sigismember(&pending, s) == 1 && ::sigismember(&ends_, s) == 1) return true;
    return false;
  }

 private:
  sigset_t ends_, before_;
};

}  // namespace orrery
