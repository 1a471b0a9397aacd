#include "checkpoint/storage.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

#include "checkpoint/safetensors.h"

namespace orrery::ckpt {

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

tl::unexpected<StorageError> Directory::failed(const char* what, const std::string& name) const {
  const int code = errno;
  std::string advice;
  if (code == ENOSPC || code == EDQUOT) advice = "free some space, or keep fewer checkpoints";
  if (code == ENOENT || code == ESTALE || code == EIO) advice = "is the storage still there?";
  if (code == EACCES || code == EPERM || code == EROFS) advice = "see its permissions and how it is mounted";
  if (code == EMFILE || code == ENFILE) advice = "too many files are open: close some, or raise the limit (ulimit -n)";
  StorageError e;
  e.what = std::string(what) + ": " + std::error_code(code, std::generic_category()).message();
  e.where = name.empty() ? path_ : path_ + "/" + name;
  e.advice = std::move(advice);
  e.code = code;
  return tl::unexpected(std::move(e));
}

tl::unexpected<StorageError> Directory::odd(const char* what, const std::string& name) const {
  StorageError e;
  e.what = what;
  e.where = path_ + "/" + name;
  return tl::unexpected(std::move(e));
}

bool Directory::injected(const char* operation, const std::string& name) const {
  if (!fault_) return false;
  const int code = fault_(operation, name.empty() ? path_ : path_ + "/" + name);
  if (code != 0) errno = code;
  return code != 0;
}

Status make_durably(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) != 0) {
    if (errno == EEXIST) return {};
    return fail("cannot make it: " + std::error_code(errno, std::generic_category()).message(), path,
                "its parent must be there and writable");
  }
  const std::size_t end = path.find_last_not_of('/');
  const std::size_t slash = path.rfind('/', end);
  const std::string parent = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  // Not every file system syncs directories, and whoever may write to one need not be let read it.
  const Fd fd(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() >= 0 && ::fsync(fd.get()) != 0 && errno != EINVAL)
    return fail("cannot sync: " + std::error_code(errno, std::generic_category()).message(), parent);
  return {};
}

Stored<Directory> Directory::open(const std::string& path, StorageFault fault) {
  Directory d;
  d.path_ = path;
  d.fault_ = std::move(fault);
  if (d.injected("open", {})) return d.failed("cannot open", {});
  d.fd_ = Fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (d.fd_.get() < 0) return d.failed("cannot open directory", {});
  return d;
}

Stored<Directory> Directory::inside(const std::string& name, bool make) const {
  if (make) {
    const int made = injected("mkdir", name) ? -1 : ::mkdirat(fd_.get(), name.c_str(), 0777);
    if (made != 0 && errno != EEXIST) return failed("cannot make directory", name);
  }
  Directory d;
  d.path_ = path_ + "/" + name;
  d.fault_ = fault_;
  if (injected("open", name)) return failed("cannot open directory", name);
  d.fd_ = Fd(::openat(fd_.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (d.fd_.get() < 0) return failed("cannot open directory", name);
  return d;
}

Result<Fd> Directory::create(const std::string& name) const {
  if (injected("open", name)) return failed("cannot create", name);
  Fd fd(::openat(fd_.get(), name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (fd.get() < 0) return failed("cannot create", name);
  return fd;
}

Stored<Fd> Directory::open_file(const std::string& name) const {
  if (injected("open", name)) return failed("cannot open", name);
  // not blocking: a pipe of that name must not stop a restart for ever
  Fd fd(::openat(fd_.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (fd.get() < 0) return failed("cannot open", name);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return failed("cannot read", name);
  if (!S_ISREG(info.st_mode)) return odd("is not a file", name);
  return fd;
}

Stored<std::string> Directory::read(const std::string& name, std::uint64_t at_most) const {
  auto fd = open_file(name);
  if (!fd) return tl::unexpected(fd.error());
  struct stat info {};
  if (::fstat(fd->get(), &info) != 0) return failed("cannot read", name);
  const auto bytes = static_cast<std::uint64_t>(info.st_size);
  if (bytes > at_most) return odd("is too large to be what its name says", name);
  std::string text(bytes, '\0');
  if (auto ok = read_at(fd->get(), name, text.data(), bytes, 0); !ok) return tl::unexpected(ok.error());
  return text;
}

Stored<bool> Directory::exists(const std::string& name) const {
  struct stat info {};
  if (!injected("stat", name) && ::fstatat(fd_.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  return failed("cannot tell whether it is there", name);
}

Stored<std::uint64_t> Directory::size(const std::string& name) const {
  struct stat info {};
  if (injected("stat", name) || ::fstatat(fd_.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
    return failed("cannot find", name);
  }
  if (!S_ISREG(info.st_mode)) return odd("is not a file", name);
  return static_cast<std::uint64_t>(info.st_size);
}

Stored<std::vector<std::string>> Directory::names() const {
  if (injected("list", {})) return failed("cannot list", {});
  const int fd = ::openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);  // a position of its own
  if (fd < 0) return failed("cannot list", {});
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::fdopendir(fd), ::closedir);
  if (!dir) {
    ::close(fd);
    return failed("cannot list", {});
  }
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(dir.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  if (errno != 0) return failed("cannot list", {});
  std::sort(names.begin(), names.end());
  return names;
}

Status Directory::allocate(int fd, const std::string& name, std::uint64_t bytes) const {
  if (bytes == 0) return {};
  // Says that space is lacking before anything is written. Not posix_fallocate: where the file system cannot, that
  // one writes zeros.
  const int got = injected("allocate", name) ? -1 : ::fallocate(fd, 0, 0, static_cast<off_t>(bytes));
  if (got == 0 || errno == EOPNOTSUPP || errno == ENOSYS || errno == EINTR) return {};
  return failed("cannot reserve space", name);
}

Status Directory::write(int fd, const std::string& name, const void* data, std::uint64_t bytes) const {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    if (injected("write", name)) return failed("cannot write", name);
    const ssize_t n = ::write(fd, at, std::min<std::uint64_t>(bytes, 1u << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed("cannot write", name);
    at += n;
    bytes -= static_cast<std::uint64_t>(n);
  }
  return {};
}

Status Directory::sync_file(int fd, const std::string& name) const {
  if (injected("sync", name) || ::fsync(fd) != 0) return failed("cannot write through to storage", name);
  return {};
}

Stored<void> Directory::read_at(int fd, const std::string& name, void* out, std::uint64_t bytes,
                                std::uint64_t offset) const {
  char* at = static_cast<char*>(out);
  while (bytes > 0) {
    if (injected("read", name)) return failed("cannot read", name);
    const ssize_t n = ::pread(fd, at, std::min<std::uint64_t>(bytes, 1u << 30), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed("cannot read", name);
    if (n == 0) return odd("is cut off", name);
    at += n;
    offset += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::uint64_t>(n);
  }
  return {};
}

Status Directory::rename(const std::string& from, const std::string& to) const {
  if (injected("rename", to) || ::renameat(fd_.get(), from.c_str(), fd_.get(), to.c_str()) != 0) {
    return failed("cannot rename into place", to);
  }
  return {};
}

Status Directory::unlink(const std::string& name) const {
  const int gone = injected("unlink", name) ? -1 : ::unlinkat(fd_.get(), name.c_str(), 0);
  if (gone != 0 && errno != ENOENT) return failed("cannot remove", name);
  return {};
}

Status Directory::remove_directory(const std::string& name) const {
  const int gone = injected("unlink", name) ? -1 : ::unlinkat(fd_.get(), name.c_str(), AT_REMOVEDIR);
  if (gone != 0 && errno != ENOENT) return failed("cannot remove", name);
  return {};
}

Status Directory::sync() const {
  if (injected("sync_dir", {}) || ::fsync(fd_.get()) != 0) return failed("cannot write through to storage", {});
  return {};
}

Status Directory::write_durably(const std::string& name, std::string_view text) const {
  const std::string partial = name + ".partial";
  const auto whole = [&]() -> Status {
    auto fd = create(partial);
    if (!fd) return tl::unexpected(fd.error());
    if (auto ok = write(fd->get(), partial, text.data(), text.size()); !ok) return ok;
    if (auto ok = sync_file(fd->get(), partial); !ok) return ok;
    return rename(partial, name);
  }();
  if (!whole) {
    (void)unlink(partial);
    return whole;
  }
  return sync();
}

bool Directory::still_at_its_path() const {
  struct stat here {
  }, there{};
  return ::fstat(fd_.get(), &here) == 0 && ::stat(path_.c_str(), &there) == 0 && here.st_dev == there.st_dev &&
         here.st_ino == there.st_ino;
}

Stored<void> verify_shard(const Directory& dir, const ShardRecord& shard, bool past_cache) {
  const std::string name = shard_name(shard.rank);
  const auto altered = [&](std::string what) {
    StorageError e;
    e.what = std::move(what);
    e.where = dir.path() + "/" + name;
    return tl::unexpected(std::move(e));
  };
  auto fd = dir.open_file(name);
  if (!fd) return tl::unexpected(fd.error());
  const auto size = dir.size(name);
  if (!size) return tl::unexpected(size.error());
  if (*size != shard.bytes) return altered("has not the size that was written");
  if (past_cache) ::posix_fadvise(fd->get(), 0, 0, POSIX_FADV_DONTNEED);
  std::string header(shard.header_bytes, '\0');
  if (auto ok = dir.read_at(fd->get(), name, header.data(), header.size(), 0); !ok) return ok;
  if (crc32c(header.data(), header.size()) != shard.header_crc32c) return altered("its header was altered");
  const auto parsed = read_safetensors_header(header, shard.bytes);
  if (!parsed) return altered(parsed.error().what);
  if (parsed->tensors.size() != shard.tensors.size()) return altered("its header names other tensors");
  std::vector<char> chunk(std::size_t{1} << 20);
  for (const TensorRecord& t : shard.tensors) {
    std::uint32_t crc = 0;
    for (std::uint64_t at = t.begin; at < t.end; at += chunk.size()) {
      const std::uint64_t n = std::min<std::uint64_t>(chunk.size(), t.end - at);
      if (auto ok = dir.read_at(fd->get(), name, chunk.data(), n, shard.header_bytes + at); !ok) return ok;
      crc = crc32c(chunk.data(), n, crc);
    }
    if (crc != t.crc32c) return altered("tensor " + printable(t.name) + " was altered");
  }
  return {};
}

Status remove_checkpoint(const Directory& root, const std::string& id) {
  auto dir = root.inside(id, false);
  if (!dir) return tl::unexpected(dir.error());
  const auto complete = dir->exists(manifest_name);
  if (!complete) return tl::unexpected(complete.error());
  if (*complete) {
    if (auto ok = dir->unlink(manifest_name); !ok) return ok;
    if (auto ok = dir->sync(); !ok) return ok;
  }
  auto names = dir->names();
  if (!names) return tl::unexpected(names.error());
  for (const std::string& name : *names) {
    if (auto ok = dir->unlink(name); !ok) return ok;
  }
  return root.remove_directory(id);
}

}  // namespace orrery::ckpt
