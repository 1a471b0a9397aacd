// Files of a checkpoint directory: every operation relative to a directory that is held open, every error with its
// path, faults injected by tests in one place.
#pragma once
#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"

namespace orrery::ckpt {

// `code` is the errno that the system gave; 0: it answered, and what is there is not what its name says, or is altered.
struct StorageError : Error {
  int code = 0;
};
template <class T>
using Stored = tl::expected<T, StorageError>;

// Looked for and not there: gone, or another kind of thing than was looked for. Any other error of the system says
// nothing about what is there.
inline bool says_absent(int code) { return code == ENOENT || code == ENOTDIR || code == ELOOP || code == ENXIO; }

class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd();
  int get() const { return fd_; }

 private:
  int fd_;
};

// A directory, where none is; its parent's entry is on storage when this returns, where the system lets us.
Status make_durably(const std::string& path);

// A directory that stays the same one even when its path is renamed or another is mounted over it.
class Directory {
 public:
  Directory() = default;  // none
  static Stored<Directory> open(const std::string& path, StorageFault fault = {});
  // `name` in this one; made if `make`. Error if absent otherwise.
  Stored<Directory> inside(const std::string& name, bool make) const;

  Result<Fd> create(const std::string& name) const;  // for writing; an older one is emptied
  Stored<Fd> open_file(const std::string& name) const;
  Stored<std::string> read(const std::string& name, std::uint64_t at_most) const;
  Stored<bool> exists(const std::string& name) const;  // error: it cannot be told
  Stored<std::uint64_t> size(const std::string& name) const;
  Stored<std::vector<std::string>> names() const;  // sorted

  Status allocate(int fd, const std::string& name, std::uint64_t bytes) const;
  Status write(int fd, const std::string& name, const void* data, std::uint64_t bytes) const;
  Status sync_file(int fd, const std::string& name) const;
  Stored<void> read_at(int fd, const std::string& name, void* out, std::uint64_t bytes, std::uint64_t offset) const;
  Status rename(const std::string& from, const std::string& to) const;
  Status unlink(const std::string& name) const;            // absent already is fine
  Status remove_directory(const std::string& name) const;  // an empty one; absent already is fine
  Status sync() const;                                     // its entries

  // Written under another name, synced, renamed, entries synced: whole and durable, or as it was before.
  Status write_durably(const std::string& name, std::string_view text) const;

  bool still_at_its_path() const;  // not moved away, not hidden under another mount
  const std::string& path() const { return path_; }

 private:
  tl::unexpected<StorageError> failed(const char* what, const std::string& name) const;
  bool injected(const char* operation, const std::string& name) const;                // sets errno
  tl::unexpected<StorageError> odd(const char* what, const std::string& name) const;  // `code` 0
  Fd fd_;
  std::string path_;
  StorageFault fault_;
};

// Every byte of a shard against its record: size, header, tensors. `past_cache` asks the system to read from storage.
Stored<void> verify_shard(const Directory& dir, const ShardRecord& shard, bool past_cache);

// A checkpoint's files, the manifest first: from then on it does not exist, whatever stops the rest. Nothing is removed
// where it cannot be told whether there is a manifest.
Status remove_checkpoint(const Directory& root, const std::string& id);

}  // namespace orrery::ckpt
