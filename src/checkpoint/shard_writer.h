// One rank's part of one checkpoint: bytes to storage, verified, then the receipt.
#pragma once
#include <atomic>

#include "base/result.h"
#include "checkpoint/manifest.h"
#include "checkpoint/storage.h"

namespace orrery::ckpt {

struct ShardJob {
  Attempt attempt;
  int rank = 0;
  std::vector<TensorRecord> tensors;  // offsets set, checksums not
  Metadata metadata;
  const char* data = nullptr;  // tensors at their offsets
  std::uint64_t bytes = 0;
};

// Returns the bytes written. Between pieces of at most a twentieth of a second's worth of `bytes_per_second` (0 = no
// limit) it looks at `stop`.
Result<std::uint64_t> write_shard(const Directory& root, const ShardJob& job, bool read_back,
                                  std::uint64_t bytes_per_second, const std::atomic<bool>& stop);

// Tells rank 0 that this rank's part will not come.
Status write_refusal(const Directory& root, const Attempt& attempt, int rank, const std::string& why);

}  // namespace orrery::ckpt
