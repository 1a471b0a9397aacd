#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>

#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/storage.h"

namespace orrery::ckpt {
namespace {

Stored<Manifest> manifest_in(const Directory& dir) {
  const auto text = dir.read(manifest_name, max_manifest_bytes);
  if (!text) return tl::unexpected(text.error());
  auto m = read_manifest(*text);
  if (m) return std::move(*m);
  StorageError altered;
  altered.what = m.error().what;
  altered.where = dir.path() + "/" + manifest_name;
  return tl::unexpected(std::move(altered));
}

// The system's answer says nothing about what is there: no permission, no descriptors, storage that does not answer.
bool unreachable(const StorageError& e) { return e.code != 0 && !says_absent(e.code); }

Status named(const std::string& directory) {
  if (directory.empty()) return fail("no directory for checkpoints");
  if (directory.find('\0') != std::string::npos) return fail("a directory's name has a zero byte in it");
  return {};
}

// A box of a row-major tensor.
struct Box {
  std::array<std::int64_t, max_dims> begin{}, size{};
};

// What `piece` and `wanted` have in common, as runs that are contiguous in both. `copy(from, to, elements)` takes
// offsets in elements: in the piece and in the box that is wanted.
template <class Copy>
void for_each_run(const Box& piece, const Box& wanted, std::size_t dims, Copy&& copy) {
  std::array<std::int64_t, max_dims> low{}, length{}, at{};
  for (std::size_t d = 0; d < dims; ++d) {
    low[d] = std::max(piece.begin[d], wanted.begin[d]);
    length[d] = std::min(piece.begin[d] + piece.size[d], wanted.begin[d] + wanted.size[d]) - low[d];
    if (length[d] <= 0) return;
  }
  std::size_t outer = dims;  // dimensions before this one are walked, the others are one run
  std::int64_t run = 1;
  while (outer > 0) {
    --outer;
    run *= length[outer];
    if (length[outer] != piece.size[outer] || length[outer] != wanted.size[outer]) break;
  }
  for (;;) {
    std::int64_t from = 0, to = 0;
    for (std::size_t d = 0; d < dims; ++d) {
      from = from * piece.size[d] + low[d] + at[d] - piece.begin[d];
      to = to * wanted.size[d] + low[d] + at[d] - wanted.begin[d];
    }
    copy(static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to), static_cast<std::uint64_t>(run));
    std::size_t d = outer;
    while (d > 0 && ++at[d - 1] == length[d - 1]) at[--d] = 0;
    if (d == 0) return;
  }
}

struct Piece {
  const ShardRecord* shard;
  const TensorRecord* tensor;
};

}  // namespace

struct Checkpoint::Impl {
  std::string id;
  Directory dir;
  Manifest manifest;
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::vector<Piece>, std::less<>> pieces;
  std::vector<std::string> rejected;

  static Stored<std::unique_ptr<Impl>> open(const std::string& directory, const std::string& id);
  Stored<void> verify(int part, int parts) const;

  // The bytes of one tensor of one shard, checked.
  Status fetch(const Piece& p, char* out) const {
    const std::string name = shard_name(p.shard->rank);
    const auto fd = dir.open_file(name);
    if (!fd) return tl::unexpected(fd.error());
    const std::uint64_t bytes = p.tensor->end - p.tensor->begin;
    const std::uint64_t at = p.shard->header_bytes + p.tensor->begin;
    if (auto ok = dir.read_at(fd->get(), name, out, bytes, at); !ok) return tl::unexpected(ok.error());
    if (crc32c(out, bytes) != p.tensor->crc32c) {
      return fail("tensor " + printable(p.tensor->name) + " was altered", dir.path() + "/" + name,
                  "go back to an older checkpoint");
    }
    return {};
  }
};

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

std::int64_t Checkpoint::step() const { return impl_->manifest.attempt.step; }
Slot Checkpoint::slot() const { return impl_->manifest.attempt.slot; }
int Checkpoint::world() const { return impl_->manifest.attempt.world; }
const std::string& Checkpoint::id() const { return impl_->id; }
const Metadata& Checkpoint::metadata() const { return impl_->manifest.metadata; }
const std::vector<TensorInfo>& Checkpoint::tensors() const { return impl_->tensors; }
const std::vector<std::string>& Checkpoint::rejected() const { return impl_->rejected; }

const TensorInfo* Checkpoint::find(std::string_view name) const {
  const auto at = std::lower_bound(impl_->tensors.begin(), impl_->tensors.end(), name,
                                   [](const TensorInfo& t, std::string_view n) { return t.name < n; });
  return at != impl_->tensors.end() && at->name == name ? &*at : nullptr;
}

Result<std::vector<Listed>> list(const std::string& directory) {
  if (auto ok = named(directory); !ok) return tl::unexpected(ok.error());
  const auto root = Directory::open(directory);
  if (!root && root.error().code == ENOENT) return std::vector<Listed>{};
  if (!root) return tl::unexpected(root.error());
  const auto names = root->names();
  if (!names) return tl::unexpected(names.error());
  std::vector<Listed> all;
  const auto trouble = [&](const std::string& name, const StorageError& e) {
    Listed l;
    l.id = name;
    l.problem = e.line();
    l.unreachable = unreachable(e);
    all.push_back(std::move(l));
  };
  for (const std::string& name : *names) {
    if (!is_directory_name(name)) continue;
    const auto dir = root->inside(name, false);
    if (!dir && says_absent(dir.error().code)) continue;  // taken away just now, or not ours
    if (!dir) {
      trouble(name, dir.error());
      continue;
    }
    const auto complete = dir->exists(manifest_name);
    if (!complete) trouble(name, complete.error());
    if (!complete || !*complete) continue;
    const auto m = manifest_in(*dir);
    if (m) {
      Listed l;
      l.id = name;
      l.step = m->attempt.step;
      l.slot = m->attempt.slot;
      l.serial = m->serial;
      l.world = m->attempt.world;
      if (name != directory_name(m->attempt)) l.problem = "its manifest is of another checkpoint";
      all.push_back(std::move(l));
    } else if (m.error().code != ENOENT) {  // else taken away just now
      trouble(name, m.error());
    }
  }
  std::sort(all.begin(), all.end(), [](const Listed& a, const Listed& b) {
    if (a.problem.empty() != b.problem.empty()) return a.problem.empty();
    if (a.serial != b.serial) return a.serial > b.serial;
    return a.step != b.step ? a.step > b.step : a.id > b.id;
  });
  return all;
}

Result<std::size_t> withdraw_after(const std::string& directory, const std::string& id) {
  if (!is_directory_name(id)) return fail("is no name of a checkpoint", "\"" + printable(id) + "\"");
  const auto all = list(directory);
  if (!all) return tl::unexpected(all.error());
  for (const Listed& l : *all) {
    if (l.unreachable)
      return fail("cannot be looked at, so nothing is withdrawn: " + l.problem, directory + "/" + l.id);
  }
  const auto keep = std::find_if(all->begin(), all->end(), [&](const Listed& l) { return l.id == id; });
  if (keep == all->end()) return fail("there is no such checkpoint, so nothing is withdrawn", directory + "/" + id);
  if (!keep->problem.empty()) return fail("is not good, so nothing is withdrawn: " + keep->problem);
  const auto root = Directory::open(directory);
  if (!root) return tl::unexpected(root.error());
  std::size_t withdrawn = 0;
  for (const Listed& l : *all) {  // newest first: stopped half way, the newest left is still one to be withdrawn
    if (!l.problem.empty() || l.serial <= keep->serial) continue;
    const auto dir = root->inside(l.id, false);
    if (!dir) return tl::unexpected(dir.error());
    if (auto ok = dir->rename(manifest_name, withdrawn_name); !ok) return tl::unexpected(ok.error());
    if (auto ok = dir->sync(); !ok) return tl::unexpected(ok.error());
    ++withdrawn;
  }
  return withdrawn;
}

Result<Checkpoint> Checkpoint::open(const std::string& directory, const std::string& id) {
  if (auto ok = named(directory); !ok) return tl::unexpected(ok.error());
  if (!is_directory_name(id)) return fail("is no name of a checkpoint", "\"" + printable(id) + "\"");
  auto impl = Impl::open(directory, id);
  if (!impl) return tl::unexpected(impl.error());
  return Checkpoint(std::move(*impl));
}

Stored<std::unique_ptr<Checkpoint::Impl>> Checkpoint::Impl::open(const std::string& directory, const std::string& id) {
  const auto root = Directory::open(directory);
  if (!root) return tl::unexpected(root.error());
  auto dir = root->inside(id, false);
  if (!dir) return tl::unexpected(dir.error());
  auto manifest = manifest_in(*dir);
  if (!manifest) return tl::unexpected(manifest.error());
  const auto wrong = [](std::string what, std::string where) {
    StorageError e;
    e.what = std::move(what);
    e.where = std::move(where);
    return tl::unexpected(std::move(e));
  };
  if (directory_name(manifest->attempt) != id) {
    return wrong("its manifest is of another checkpoint", directory + "/" + id);
  }
  auto impl = std::make_unique<Impl>();
  impl->id = id;
  impl->dir = std::move(*dir);
  impl->manifest = std::move(*manifest);
  for (const ShardRecord& s : impl->manifest.shards) {
    for (const TensorRecord& t : s.tensors) impl->pieces[t.name].push_back({&s, &t});
  }
  for (const auto& [name, pieces] : impl->pieces) {
    const TensorRecord& first = *pieces.front().tensor;
    TensorInfo info{name, first.dtype, first.shape, first.split_dim, 0};
    if (first.split_dim >= 0) info.shape[static_cast<std::size_t>(first.split_dim)] = first.whole;
    const auto bytes = tensor_bytes(info.dtype, info.shape);
    if (!bytes) return wrong(bytes.error().what, directory + "/" + id + ": " + name);
    info.bytes = *bytes;
    impl->tensors.push_back(std::move(info));
  }
  return impl;
}

Stored<void> Checkpoint::Impl::verify(int part, int parts) const {
  for (const ShardRecord& s : manifest.shards) {
    if (s.rank % parts != part) continue;
    if (auto ok = verify_shard(dir, s, false); !ok) return ok;
  }
  return {};
}

Result<std::optional<Checkpoint>> Checkpoint::newest_good(const std::string& directory, bool full, bool snapshots) {
  if (auto ok = named(directory); !ok) return tl::unexpected(ok.error());
  if (!full && !snapshots) return fail("asked for neither full checkpoints nor snapshots", directory);
  std::vector<std::string> rejected;
  std::string unseen;  // why it cannot be told which is the newest
  // A writer may take old ones away while they are read: then look again.
  for (int look = 0; look < 3; ++look) {
    const auto all = list(directory);
    if (!all) return tl::unexpected(all.error());
    rejected.clear();
    unseen.clear();
    for (const Listed& l : *all) {
      if (l.unreachable && unseen.empty()) unseen = l.problem;
    }
    bool vanished = false;
    for (const Listed& l : *all) {
      if (!unseen.empty()) break;
      if (l.problem.empty() && !(l.slot == Slot::full ? full : snapshots)) continue;
      if (!l.problem.empty()) {
        rejected.push_back(l.id + ": " + l.problem);
        continue;
      }
      auto c = Impl::open(directory, l.id);
      const Stored<void> ok = c ? (*c)->verify(0, 1) : tl::unexpected(c.error());
      if (ok) {
        for (const Listed& bad : *all) {
          if (!bad.problem.empty()) rejected.push_back(bad.id + ": " + bad.problem);
        }
        (*c)->rejected = std::move(rejected);
        return std::optional<Checkpoint>(Checkpoint(std::move(*c)));
      }
      struct stat info {};
      const bool gone = ::stat((directory + "/" + l.id + "/" + manifest_name).c_str(), &info) != 0 && errno == ENOENT;
      vanished = vanished || gone;
      // A place of the medium that cannot be read is damage like any other; whatever else the system says is not.
      if (!gone && unreachable(ok.error()) && ok.error().code != EIO) unseen = ok.error().line();
      rejected.push_back(l.id + ": " + ok.error().line());
    }
    if (!vanished) break;
  }
  if (!unseen.empty()) {
    return fail("what may be the newest checkpoint cannot be looked at: " + unseen);
  }
  if (rejected.empty()) return std::optional<Checkpoint>();
  std::string first = rejected.front();
  return fail(fmt::format("{} checkpoints, none of them good: {}", rejected.size(), first), directory,
              "restore one from elsewhere, or move them away to begin anew");
}

Status Checkpoint::verify(int part, int parts) const {
  if (parts < 1 || part < 0 || part >= parts) return fail(fmt::format("there is no part {} of {}", part, parts));
  if (auto ok = impl_->verify(part, parts); !ok) return tl::unexpected(ok.error());
  return {};
}

Status Checkpoint::read(std::string_view name, std::span<const std::int64_t> begin, std::span<const std::int64_t> shape,
                        void* out) const {
  const TensorInfo* info = find(name);
  if (info == nullptr) return fail("has no tensor " + printable(name), impl_->dir.path());
  const std::size_t dims = info->shape.size();
  if (begin.size() != dims || shape.size() != dims) {
    return fail("asked for with another number of dimensions than it has", printable(name));
  }
  Box wanted;
  for (std::size_t d = 0; d < dims; ++d) {
    if (begin[d] < 0 || shape[d] < 0 || begin[d] > info->shape[d] || shape[d] > info->shape[d] - begin[d]) {
      return fail("asked for beyond its shape", printable(name));
    }
    wanted.begin[d] = begin[d];
    wanted.size[d] = shape[d];
  }
  const std::uint64_t element = dtype_bytes(info->dtype);
  char* to_bytes = static_cast<char*>(out);
  std::vector<char> scratch;
  for (const Piece& p : impl_->pieces.find(name)->second) {
    Box box;
    std::uint64_t elements = 1;
    for (std::size_t d = 0; d < dims; ++d) {
      box.size[d] = p.tensor->shape[d];
      elements *= static_cast<std::uint64_t>(box.size[d]);
    }
    if (info->split_dim >= 0) box.begin[static_cast<std::size_t>(info->split_dim)] = p.tensor->offset;
    Status fetched;
    bool any = false;
    for_each_run(box, wanted, dims, [&](std::uint64_t from, std::uint64_t to, std::uint64_t run) {
      if (!fetched) return;
      if (!any && run == elements) {  // all of the piece in one place
        fetched = impl_->fetch(p, to_bytes + to * element);
      } else {
        if (!any) {
          scratch.resize(elements * element);
          fetched = impl_->fetch(p, scratch.data());
        }
        if (fetched) std::memcpy(to_bytes + to * element, scratch.data() + from * element, run * element);
      }
      any = true;
    });
    if (!fetched) return fetched;
    if (info->split_dim < 0) break;  // one copy is as good as another: they were compared
  }
  return {};
}

Status Checkpoint::read(std::string_view name, void* out) const {
  const TensorInfo* info = find(name);
  if (info == nullptr) return fail("has no tensor " + printable(name), impl_->dir.path());
  const std::vector<std::int64_t> zeros(info->shape.size(), 0);
  return read(name, zeros, info->shape, out);
}

Status Checkpoint::read_part(std::string_view name, int dim, std::int64_t begin, std::int64_t end, void* out) const {
  const TensorInfo* info = find(name);
  if (info == nullptr) return fail("has no tensor " + printable(name), impl_->dir.path());
  if (dim < 0 || static_cast<std::size_t>(dim) >= info->shape.size() || begin > end) {
    return fail("asked for along a dimension that it has not", printable(name));
  }
  std::vector<std::int64_t> from(info->shape.size(), 0), shape = info->shape;
  from[static_cast<std::size_t>(dim)] = begin;
  shape[static_cast<std::size_t>(dim)] = end - begin;
  return read(name, from, shape, out);
}

}  // namespace orrery::ckpt
