// Checkpoints of a training job: saved while it goes on, complete and verified or not there at all.
//
//   auto writer = Writer::open(options);              // once a rank; locks the directory, makes host buffers ready
//   writer->save(step, Slot::full, tensors, {});      // blocks for one copy to host memory
//   ...                                               // a thread writes, checks, and rank 0 commits
//   auto found = Checkpoint::newest_good(directory);  // after a restart
//   (*found)->read("adam.m", begin, shape, out);      // any part of any tensor, however many ranks wrote it
//
// The files: docs/formats/checkpoint.md. The C interface: orrery_ckpt.h.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace orrery::ckpt {

enum class Slot : std::uint8_t { full, snapshot };  // kept by numbers of their own
enum class WhenBusy : std::uint8_t {
  wait,  // for a buffer, as long as wait_timeout_s; then as skip
  skip,  // the new one is not saved
  drop,  // the oldest that is not being written yet makes room; none: as skip
};
enum class DType : std::uint8_t {
  boolean,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  i64,
  u64,
  f64
};
enum class Place : std::uint8_t { host, cuda };

constexpr std::size_t max_dims = 8;
std::string_view dtype_name(DType type);  // as safetensors writes it: "BF16"
std::uint64_t dtype_bytes(DType type);

// What one rank holds of a tensor. Split tensors: this rank has [offset, offset + shape[split_dim]) of `whole` along
// split_dim, and the ranks' pieces must tile it. Not split: one rank or several may give it, and all must be equal.
struct TensorView {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  // of the piece
  const void* data = nullptr;       // contiguous, row-major
  Place place = Place::host;
  int split_dim = -1;
  std::int64_t offset = 0, whole = 0;
};

using Metadata = std::map<std::string, std::string>;

// Called before each operation on the storage; what it returns (an errno, 0 for none) is what the operation gives.
// `operation` is open, stat, list, allocate, write, sync, read, rename, mkdir, unlink, sync_dir. For tests and drills.
using StorageFault = std::function<int(std::string_view operation, const std::string& path)>;

// All times are seconds from 0 to 1e9.
struct Options {
  std::string directory;    // made if absent; its parent must exist. Relative: to where open() is called
  int rank = 0, world = 1;  // world: at most a million
  // The same text in all ranks of a run, another one in every run (restart). Empty: made up for one rank; for more,
  // Slurm's job, step and restart number, without which open() fails.
  std::string session;
  unsigned keep_full = 2, keep_snapshot = 2;  // newest complete ones; 0 = all
  WhenBusy when_busy = WhenBusy::wait;
  double wait_timeout_s = 600;
  unsigned buffers = 2;                      // copies of the state in host memory: 1 to 64
  std::uint64_t buffer_bytes = 0;            // of each, made ready in open(); 0: at the first save, which is then slow
  bool pin = true;                           // page-lock buffers where CUDA's runtime is found
  std::string cuda_runtime;                  // the library; "" = the usual names
  bool read_back = true;                     // verify by reading what was written, past the page cache where possible
  double peer_timeout_s = 600;               // rank 0: how long it waits for the part of a rank that still runs
  double close_timeout_s = 600;              // how long close() waits for storage before it lets go
  std::uint64_t write_bytes_per_second = 0;  // 0 = as fast as it goes
  bool lock = true;  // off only where the file system has no locks and a launcher keeps writers apart
  StorageFault fault;
};

enum class Outcome : std::uint8_t { accepted, skipped };

// Counts since open(). "saves" = accepted + skipped + refused; accepted end as written or failed or dropped.
struct Stats {
  std::uint64_t saves = 0, accepted = 0, skipped = 0, dropped = 0;
  std::uint64_t written = 0;    // this rank's shard durable and verified
  std::uint64_t failed = 0;     // this rank's shard could not be written
  std::uint64_t committed = 0;  // rank 0: complete checkpoints
  std::uint64_t abandoned = 0;  // rank 0: not completed, since some rank skipped, failed or was silent
  std::uint64_t removed = 0;    // rank 0: old ones that keep-N took away
  std::uint64_t bytes_copied = 0, bytes_written = 0;
  std::uint64_t blocked_ns = 0, blocked_max_ns = 0, blocked_last_ns = 0;  // in save()
  std::uint64_t waited_ns = 0;                                            // of blocked_ns: for a free buffer
  std::uint64_t write_ns = 0, write_last_ns = 0;                          // in the background
  std::uint64_t buffer_growths = 0;                                       // saves that had to get memory
  std::uint64_t oldest_unwritten_ns =
      0;                             // age of the oldest accepted one that is not written: stuck storage shows here
  std::int64_t committed_step = -1;  // rank 0: newest
  bool pinned = false;
  std::uint64_t refused = 0;  // save() returned an error
  std::string last_error;     // "" = none yet
};

class Writer {
 public:
  static Result<Writer> open(const Options& options);
  Writer(Writer&&) noexcept;
  Writer& operator=(Writer&&) noexcept;
  ~Writer();  // close()

  // Copies the tensors and returns; they may change at once. All ranks call save() in the same order. Not from two
  // threads at once. `metadata` of rank 0 is kept with the checkpoint. Names and metadata are UTF-8 without zero bytes.
  // Error: unusable arguments, or no memory. It counts as this rank's turn all the same: rank 0 is told why, gives that
  // checkpoint up, and the next save() of all ranks works. So do not try again on one rank alone.
  Result<Outcome> save(std::int64_t step, Slot slot, std::span<const TensorView> tensors, const Metadata& metadata);

  // This rank's turn without a part, for a caller that found its own reason before save(). Returns that reason as
  // error.
  Status refuse(std::int64_t step, Slot slot, const std::string& why);

  // The process is about to be ended: from now on save() does not wait for a buffer, and wait() returns after
  // `within_s` at the latest, close() two seconds later; also those that are under way, which see it within a tenth of
  // a second. May be called from a signal handler or another thread.
  void hurry(double within_s) noexcept;

  // Until all that was accepted is written and, on rank 0, committed. Error: any of it failed since the last wait(),
  // or it took longer than `timeout_s`.
  Status wait(double timeout_s);
  Stats stats() const;
  // wait(), then the lock is let go; what hangs is left to itself. A rank that ends because a peer died has no use for
  // waiting long: that peer's part may never come. Storage that hangs is given two seconds more. In a forked child
  // nothing is done: the writer is its parent's.
  Status close(double timeout_s);
  Status close();  // close(close_timeout_s)

 private:
  struct Impl;
  Status usable() const;
  explicit Writer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  // of the whole
  int split_dim = -1;
  std::uint64_t bytes = 0;
};

struct Listed {
  std::string id;  // the name of its directory
  std::int64_t step = -1;
  Slot slot = Slot::full;
  std::uint64_t serial = 0;  // grows with every commit: the newest has the highest, whatever its step
  int world = 0;
  std::string problem;       // why it can't be read; "" = its manifest is good
  bool unreachable = false;  // the problem is not in it: it could not be looked at, and may be the newest
};

// Checkpoints with a manifest, the newest first, those with a problem last. An absent directory is an empty list.
Result<std::vector<Listed>> list(const std::string& directory);

// Withdraws every checkpoint committed after `id`: for a job that goes back on purpose, so that a later restart does
// not take what it left. Their manifests are renamed to manifest.json.withdrawn. Returns how many. Error, and none is
// withdrawn, if one cannot be looked at.
Result<std::size_t> withdraw_after(const std::string& directory, const std::string& id);

class Checkpoint {
 public:
  static Result<Checkpoint> open(const std::string& directory, const std::string& id);
  // The newest of which every byte of every shard is as it was written; those that are not are in rejected(). None: no
  // checkpoint was ever completed there, as far as that can be seen: where a file system is not mounted, its empty
  // mount point says the same. Error: there are some and none is good, or some cannot be looked at (no permission,
  // storage that does not answer), which is no reason to begin anew. One rank asks and tells the others the id: two
  // that ask may find different ones while a third saves.
  static Result<std::optional<Checkpoint>> newest_good(const std::string& directory, bool full = true,
                                                       bool snapshots = true);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  std::int64_t step() const;
  Slot slot() const;
  int world() const;
  const std::string& id() const;
  const Metadata& metadata() const;
  const std::vector<TensorInfo>& tensors() const;  // by name
  const TensorInfo* find(std::string_view name) const;
  const std::vector<std::string>& rejected() const;  // "ID: why", newest first

  // Reads and checks the shards with number % parts == part: ranks can share the work.
  Status verify(int part = 0, int parts = 1) const;

  // The box [begin, begin + shape) of the whole tensor, row-major, into `out`. Every byte used is checked.
  Status read(std::string_view name, std::span<const std::int64_t> begin, std::span<const std::int64_t> shape,
              void* out) const;
  Status read(std::string_view name, void* out) const;  // all of it
  // [begin, end) along one dimension, all of the others.
  Status read_part(std::string_view name, int dim, std::int64_t begin, std::int64_t end, void* out) const;

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace orrery::ckpt
