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

 private:
  struct Held;
  explicit RankLock(std::shared_ptr<Held> held) : held_(std::move(held)) {}
  std::shared_ptr<Held> held_;
};

}  // namespace orrery::ckpt
