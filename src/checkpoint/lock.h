// One writer a rank: a lock that goes with the process, however it ends.
#pragma once
#include <memory>
#include <string>

#include "base/result.h"

namespace orrery::ckpt {

class RankLock {
 public:
  // Error: another process, or this one, writes as this rank; or the session was this rank's before.
  static Result<RankLock> take(const std::string& directory, int rank, const std::string& session);
  RankLock(RankLock&&) noexcept = default;
  RankLock& operator=(RankLock&&) noexcept = default;
  RankLock() = default;  // holds nothing

  // Error: the file that is locked is not the one of that name any more, or another has the lock, so nothing keeps
  // another writer out. A lock that was lost to nobody is taken again. Good for one that holds nothing.
  Status still_excludes() const;

 private:
  struct Held;
  explicit RankLock(std::shared_ptr<Held> held) : held_(std::move(held)) {}
  std::shared_ptr<Held> held_;
};

// True: that rank's writer was of this session and has ended, whether it was closed or died. False: it has not, or that
// cannot be told.
bool has_ended(const std::string& directory, int rank, const std::string& session);

}  // namespace orrery::ckpt
