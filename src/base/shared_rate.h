// A rate that all processes of a machine share, through one small file: what a link does to those who use it at once.
#pragma once
#include <fcntl.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/result.h"

namespace orrery {

// Each piece of work books the next free stretch of time, so that those who work at the same time take turns.
class SharedRate {
 public:
  SharedRate() = default;  // no limit
  // Processes that name the same file share the rate. It is made if it is not there.
  static Result<SharedRate> open(const std::string& path, double bytes_per_s) {
    SharedRate r;
    r.bytes_per_s_ = bytes_per_s;
    r.fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (r.fd_ < 0) return fail(std::string("cannot be opened: ") + std::strerror(errno), path);
    return r;
  }
  SharedRate(SharedRate&& o) noexcept : fd_(o.fd_), bytes_per_s_(o.bytes_per_s_) { o.fd_ = -1; }
  SharedRate& operator=(SharedRate&& o) noexcept {
    std::swap(fd_, o.fd_);
    std::swap(bytes_per_s_, o.bytes_per_s_);
    return *this;
  }
  ~SharedRate() {
    if (fd_ >= 0) ::close(fd_);
  }

  // Returns when `bytes` have had their time. Small pieces share best.
  void take(std::uint64_t bytes) const {
    if (fd_ < 0 || bytes_per_s_ <= 0) return;
    while (::flock(fd_, LOCK_EX) != 0 && errno == EINTR) continue;
    std::int64_t next = 0;
    if (::pread(fd_, &next, sizeof next, 0) != static_cast<ssize_t>(sizeof next)) next = 0;
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    const std::int64_t at = now.tv_sec * 1'000'000'000 + now.tv_nsec;
    const auto lasts = static_cast<std::int64_t>(static_cast<double>(bytes) / bytes_per_s_ * 1e9);
    // Of an earlier boot, or broken: nobody books beyond an hour.
    if (next < at || next > at + 3'600'000'000'000) next = at;
    next += lasts;
    (void)!::pwrite(fd_, &next, sizeof next, 0);
    ::flock(fd_, LOCK_UN);
    const timespec until{next / 1'000'000'000, next % 1'000'000'000};
    while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) continue;
  }

 private:
  int fd_ = -1;
  double bytes_per_s_ = 0;
};

}  // namespace orrery
