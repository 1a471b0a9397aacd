// Rank 0's part: a checkpoint comes to be when all ranks' shards are there, agree and are verified; old ones go.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/result.h"
#include "checkpoint/manifest.h"
#include "checkpoint/storage.h"

namespace orrery::ckpt {

struct Gathered {
  enum class State { waiting, ready, given_up } state = State::waiting;
  std::string why;    // waiting: for whom; given up: which rank and why
  int missing = -1;   // waiting: the first rank of which there is nothing
  Manifest manifest;  // ready; its serial is not set
};

// Looks once at the receipts of one attempt. `elsewhere`: also for ranks that saved another step or slot at this turn.
Gathered gather(const Directory& root, const Attempt& attempt, bool elsewhere);

// Removes what the ranks left of an attempt that will not be completed, wherever they wrote it.
void remove_attempt(const Directory& root, const Attempt& attempt);

// The checkpoints there are, and the next serial. Opened once the lock is held.
class Catalogue {
 public:
  // Removes what earlier sessions left unfinished. What is of `session` is not touched: its other ranks may have begun.
  // Error if any of it cannot be looked at: a checkpoint that is not counted would be newer than those that follow, and
  // what cannot be seen to have no manifest is not removed.
  static Result<Catalogue> open(const Directory& root, const std::string& session);
  // Writes the manifest: from its rename on the checkpoint exists.
  Status commit(const Directory& root, Manifest manifest);
  // Removes all but the newest `keep` of a slot; 0 keeps all. Returns how many went.
  Result<unsigned> keep_newest(const Directory& root, Slot slot, unsigned keep);

 private:
  struct Entry {
    std::string id;
    Slot slot;
  };
  std::map<std::uint64_t, Entry> by_serial_;
  std::uint64_t last_serial_ = 0;  // also of those that do not count
};

}  // namespace orrery::ckpt
