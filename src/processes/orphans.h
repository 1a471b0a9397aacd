// What a program leaves behind with another session and another environment, found by whose child it becomes.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "processes/child.h"

namespace orrery {

// As long as it lives, descendants of this process that lose their parent become its children (Linux's child
// subreaper). Made before a program is started, and while this process starts no other. Where it has children already
// it does nothing: which orphans are whose would not be known.
class Orphans {
 public:
  Orphans();
  ~Orphans();
  Orphans(const Orphans&) = delete;
  Orphans& operator=(const Orphans&) = delete;

  // Takes the exits of those that ended; `child`, whose exit is asked for elsewhere, is left.
  void reap(const Child& child);
  // Kills all that descends from this process, until nothing does. False: some were still there after `limit_s`.
  bool end(double limit_s = 30);
  std::vector<pid_t> left() const;  // alive, with `child` where it lives
  // The most memory that one of the reaped, or a child that it had waited for, ever had; 0 = none was reaped.
  std::int64_t peak_bytes() const { return peak_bytes_; }

 private:
  bool on_ = false;
  std::int64_t peak_bytes_ = 0;
};

}  // namespace orrery
