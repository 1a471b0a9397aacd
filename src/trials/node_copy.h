// One copy of a checkpoint in the memory of a node, for all trials there. Locks of the kernel say who uses it: they go
// with their process, however it ends, so that a copy which nobody holds can be taken away.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "trials/checkpoint_files.h"

namespace orrery {

struct CopyTerms {
  std::string directory = "/dev/shm";  // in it a directory of this user's own
  double most_bytes = 0;               // of all copies together; 0 = what is free
  double bytes_per_s = 0;  // reading from storage, of all processes of the node together; 0 = as fast as it goes
};

// An open lock file; unlocked when it goes.
class CopyLock {
 public:
  CopyLock() = default;
  explicit CopyLock(int fd) : fd_(fd) {}
  CopyLock(CopyLock&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  CopyLock& operator=(CopyLock&& o) noexcept {
    std::swap(fd_, o.fd_);
    return *this;
  }
  ~CopyLock();
  bool held() const { return fd_ >= 0; }
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

struct NodeCopy {
  CopyLock use;            // while it lives, the copy stays
  std::string path;        // of the checkpoint, under its own name
  bool made_here = false;  // this call read it from storage
  double seconds = 0;      // that the call took, waiting for another's load included
  std::uint64_t bytes = 0;
};

// The copy of `source`, which must still have the fingerprint of `files`: made if there is none, by one process while
// others wait for it; every file has the size and, read back, the checksum of what was read; a checkpoint of
// liborrery_ckpt is held against its manifest as well. Room is made by taking away copies that nobody uses. Errors:
// `no_room` set: it does not fit; else storage cannot be read, or the checkpoint was altered or is gone, or `stop` said
// so while it waited or copied.
Result<NodeCopy> acquire_copy(const CopyTerms& terms, const std::string& source, const CheckpointFiles& files,
                              bool& no_room, const std::function<bool()>& stop = {});

// Whether `bytes` would fit if copies went that are in use now.
bool room_may_come(const CopyTerms& terms, std::uint64_t bytes);

// Holds the copy without making it, so that it stays between trials. Empty while there is none or it is being made.
CopyLock hold_copy(const CopyTerms& terms, const std::string& source, const std::string& fingerprint);

// Takes this copy away, if nobody holds it.
void drop_copy(const CopyTerms& terms, const std::string& source, const std::string& fingerprint);

// Takes away what no living process holds: the copies last used `idle_s` ago or earlier, and what is left of loads that
// were cut off. Returns how many.
std::size_t sweep_copies(const CopyTerms& terms, double idle_s);

}  // namespace orrery
