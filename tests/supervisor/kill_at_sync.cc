// Preloaded into a program: kills it with -9 at its n-th fsync or fdatasync, before it (KILL_BEFORE_SYNC=n) or after it
// (KILL_AFTER_SYNC=n). What the program starts is left alone.
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

namespace {

int before = 0, after = 0;
std::atomic<int> count{0};

__attribute__((constructor)) void begin() {
  if (const char* n = std::getenv("KILL_BEFORE_SYNC")) before = std::atoi(n);  // NOLINT: no thread yet
  if (const char* n = std::getenv("KILL_AFTER_SYNC")) after = std::atoi(n);    // NOLINT: no thread yet
  for (const char* name : {"LD_PRELOAD", "KILL_BEFORE_SYNC", "KILL_AFTER_SYNC"}) ::unsetenv(name);
}

int sync_with(const char* name, int fd) {
  const auto real = reinterpret_cast<int (*)(int)>(::dlsym(RTLD_NEXT, name));
  const int n = ++count;
  if (n == before) ::raise(SIGKILL);
  const int result = real(fd);
  if (n == after) ::raise(SIGKILL);
  return result;
}

}  // namespace

extern "C" int fsync(int fd) { return sync_with("fsync", fd); }
extern "C" int fdatasync(int fd) { return sync_with("fdatasync", fd); }
