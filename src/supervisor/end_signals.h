// While it lives, a signal that would end this process waits: what it started is ended first.
#pragma once
#include <csignal>

namespace orrery {

class EndSignals {
 public:
  EndSignals() {
    sigset_t ends;
    ::sigemptyset(&ends);
    for (const int s : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&ends, s);
    ::pthread_sigmask(SIG_BLOCK, &ends, &before_);
  }
  ~EndSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;

  bool came() const {
    sigset_t pending;
    ::sigpending(&pending);
    return ::sigismember(&pending, SIGINT) == 1 || ::sigismember(&pending, SIGTERM) == 1 ||
           ::sigismember(&pending, SIGHUP) == 1;
  }

 private:
  sigset_t before_;
};

}  // namespace orrery
