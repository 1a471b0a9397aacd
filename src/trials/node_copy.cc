#include "trials/node_copy.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/fnv.h"
#include "base/shared_rate.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr double kSlack = 1 << 20;                    // bytes: names, locks
constexpr std::size_t kPiece = std::size_t{1} << 18;  // bytes: what those who load at once take turns with

std::string reason() { return std::strerror(errno); }

// The user's own directory: in a place where everybody may write, it must be nobody else's.
Result<std::string> own_directory(const CopyTerms& terms) {
  // Several nodes of a small Slurm may share a machine.
  const char* const node = std::getenv("SLURMD_NODENAME");
  const std::string path = fmt::format("{}/orrery-evals-{}{}{}", terms.directory, ::getuid(),
                                       node != nullptr ? "-" : "", node != nullptr ? node : "");
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return fail("cannot be made: " + reason(), path, "[cluster] shared_memory names a directory in memory");
  struct stat s {};
  if (::lstat(path.c_str(), &s) != 0) return fail("cannot be read: " + reason(), path);
  if (!S_ISDIR(s.st_mode) || s.st_uid != ::getuid()) return fail("is not a directory of this user's own", path);
  return path;
}

std::string key_of(const std::string& source, const std::string& fingerprint) {
  std::error_code error;
  const fs::path whole = fs::weakly_canonical(source, error);
  return fmt::format("{:016x}-{}", fnv1a(error ? source : whole.string()), fingerprint);
}

using Stop = std::function<bool()>;

bool says_stop(const Stop& stop) { return stop && stop(); }
Error told_to_stop(const std::string& where) { return {"was told to stop", where, ""}; }

// Locks `path`, making it; `how` is of flock. Empty: another holds it (LOCK_NB), it cannot be made, or `stop` says so
// while another holds it.
CopyLock lock_file(const std::string& path, int how, const Stop& stop = {}) {
  for (;;) {
    CopyLock lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!lock.held()) return {};
    int done = 0;
    // With `stop` not within the kernel: a signal may come just before it would wait there.
    while ((done = ::flock(lock.get(), stop ? how | LOCK_NB : how)) != 0) {
      if (errno == EINTR) continue;
      if (!stop || (how & LOCK_NB) != 0 || errno != EWOULDBLOCK) break;
      if (stop()) {
        errno = EINTR;
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (done != 0) return {};
    // Taken away while we waited: that lock protects nothing any more.
    struct stat mine {
    }, there{};
    if (::fstat(lock.get(), &mine) == 0 && ::stat(path.c_str(), &there) == 0 && mine.st_ino == there.st_ino)
      return lock;
  }
}

void remove_all(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

std::uint64_t bytes_below(const std::string& path) {
  std::uint64_t all = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    if (!it->is_regular_file(gone)) continue;
    if (const std::uintmax_t bytes = fs::file_size(it->path(), gone); !gone) all += bytes;
  }
  return all;
}

bool same_files(const std::string& copy, const CheckpointFiles& files) {
  for (const CheckpointFile& f : files.files) {
    struct stat s {};
    const std::string path = f.name.empty() ? copy : copy + "/" + f.name;
    if (::stat(path.c_str(), &s) != 0 || static_cast<std::uint64_t>(s.st_size) != f.bytes) return false;
  }
  return true;
}

Result<std::uint32_t> checksum_of(const std::string& path, const Stop& stop) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fail("cannot be read back: " + reason(), path);
  std::vector<char> piece(kPiece);
  std::uint32_t crc = 0;
  ssize_t n = 0;
  bool stopped = false;
  while (!(stopped = says_stop(stop)) && (n = ::read(fd, piece.data(), piece.size())) > 0)
    crc = ckpt::crc32c(piece.data(), static_cast<std::size_t>(n), crc);
  const int error = errno;
  ::close(fd);
  if (stopped) return tl::unexpected(told_to_stop(path));
  if (n < 0) return fail(std::string("cannot be read back: ") + std::strerror(error), path);
  return crc;
}

// All of it, before anything is read: whoever looks for room next must see it gone.
Status allocate(const CheckpointFiles& files, const std::string& to, bool& no_room) {
  for (const CheckpointFile& f : files.files) {
    const std::string path = f.name.empty() ? to : to + "/" + f.name;
    std::error_code made;
    fs::create_directories(fs::path(path).parent_path(), made);
    const CopyLock out(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));  // closes alike
    if (!out.held()) {
      no_room = errno == ENOSPC;
      return fail("cannot be written: " + reason(), path);
    }
    if (const int error = f.bytes == 0 ? 0 : ::posix_fallocate(out.get(), 0, static_cast<off_t>(f.bytes)); error != 0) {
      no_room = error == ENOSPC || error == EDQUOT;
      return fail(std::string("no room: ") + std::strerror(error), path);
    }
  }
  return {};
}

// One file, read as SharedRate allows, written where its room is, read back.
Status copy_file(const std::string& from, const std::string& to, const CheckpointFile& file, const SharedRate& rate,
                 bool& no_room, const Stop& stop) {
  const CopyLock in(::open(from.c_str(), O_RDONLY | O_CLOEXEC));  // closes alike
  if (!in.held()) return fail("cannot be read: " + reason(), from, "the checkpoint may be gone");
  const CopyLock out(::open(to.c_str(), O_WRONLY | O_CLOEXEC));
  if (!out.held()) return fail("cannot be written: " + reason(), to);
  std::vector<char> piece(kPiece);
  std::uint64_t done = 0;
  std::uint32_t crc = 0;
  for (;;) {
    if (says_stop(stop)) return tl::unexpected(told_to_stop(from));
    const ssize_t n = ::read(in.get(), piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail("cannot be read: " + reason(), from);
    if (n == 0) break;
    rate.take(static_cast<std::uint64_t>(n));
    crc = ckpt::crc32c(piece.data(), static_cast<std::size_t>(n), crc);
    for (ssize_t written = 0; written < n;) {
      const ssize_t w = ::write(out.get(), piece.data() + written, static_cast<std::size_t>(n - written));
      if (w < 0 && errno == EINTR) continue;
      if (w < 0) {
        no_room = errno == ENOSPC || errno == EDQUOT;
        return fail("cannot be written: " + reason(), to);
      }
      written += w;
    }
    done += static_cast<std::uint64_t>(n);
  }
  struct stat now {};
  if (done != file.bytes || ::fstat(in.get(), &now) != 0 ||
      now.st_mtim.tv_sec * 1'000'000'000 + now.st_mtim.tv_nsec != file.changed_ns)
    return fail(fmt::format("was altered while it was read ({} of {} bytes)", done, file.bytes), from);
  const auto back = checksum_of(to, stop);
  if (!back) return tl::unexpected(back.error());
  if (*back != crc) return fail("the copy differs from what was read", to, "the node's memory is at fault");
  return {};
}

Status copy_all(const CopyTerms& terms, const std::string& own, const std::string& source, const CheckpointFiles& files,
                const std::string& to, bool& no_room, const Stop& stop) {
  SharedRate rate;
  if (terms.bytes_per_s > 0) {
    auto opened = SharedRate::open(own + "/rate", terms.bytes_per_s);
    if (!opened) return tl::unexpected(opened.error());
    rate = std::move(*opened);
  }
  for (const CheckpointFile& f : files.files) {
    const std::string from = f.name.empty() ? source : source + "/" + f.name;
    if (auto ok = copy_file(from, f.name.empty() ? to : to + "/" + f.name, f, rate, no_room, stop); !ok) return ok;
  }
  const fs::path copy(to);
  if (!ckpt::is_directory_name(copy.filename().string()) || !fs::exists(copy / ckpt::manifest_name)) return {};
  const auto checkpoint = ckpt::Checkpoint::open(copy.parent_path().string(), copy.filename().string());
  if (!checkpoint) return tl::unexpected(checkpoint.error());
  return checkpoint->verify();
}

double free_bytes(const std::string& directory) {
  struct statvfs s {};
  if (::statvfs(directory.c_str(), &s) != 0) return 0;
  return static_cast<double>(s.f_bavail) * static_cast<double>(s.f_frsize);
}

std::vector<std::string> keys_in(const std::string& own) {
  std::vector<std::string> keys;
  std::error_code error;
  for (fs::directory_iterator it(own, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (name.size() > 5 && name.ends_with(".lock")) name.resize(name.size() - 5);
    if (name.size() > 5 && name.ends_with(".part")) name.resize(name.size() - 5);
    if (name != "rate" && name != "room") keys.push_back(std::move(name));
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

double idle_seconds(const CopyLock& lock) {
  struct stat s {};
  if (::fstat(lock.get(), &s) != 0) return 0;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<double>(now.tv_sec - s.st_mtim.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec - s.st_mtim.tv_nsec);
}

// Of one key, if nobody holds it and it has not been used for `idle_s`.
bool remove_unused(const std::string& own, const std::string& key, double idle_s) {
  const std::string lock_path = own + "/" + key + ".lock";
  const CopyLock lock = lock_file(lock_path, LOCK_EX | LOCK_NB);
  if (!lock.held() || (idle_s > 0 && idle_seconds(lock) < idle_s)) return false;
  const bool was = fs::exists(own + "/" + key) || fs::exists(own + "/" + key + ".part");
  remove_all(own + "/" + key);
  remove_all(own + "/" + key + ".part");
  ::unlink(lock_path.c_str());
  return was;
}

// Whether `bytes` fit now; copies that nobody uses go first.
bool make_room(const CopyTerms& terms, const std::string& own, const std::string& mine, std::uint64_t bytes) {
  const auto fits = [&] {
    const double need = static_cast<double>(bytes) + kSlack;
    if (free_bytes(own) < need) return false;
    return terms.most_bytes <= 0 ||
           static_cast<double>(bytes_below(own)) + static_cast<double>(bytes) <= terms.most_bytes;
  };
  for (const std::string& key : keys_in(own)) {
    if (fits()) return true;
    if (key != mine) remove_unused(own, key, 0);
  }
  return fits();
}

}  // namespace

CopyLock::~CopyLock() {
  if (fd_ >= 0) ::close(fd_);
}

Result<NodeCopy> acquire_copy(const CopyTerms& terms, const std::string& source, const CheckpointFiles& files,
                              bool& no_room, const Stop& stop) {
  no_room = false;
  const auto begin = Clock::now();
  const auto own = own_directory(terms);
  if (!own) return tl::unexpected(own.error());
  const std::string key = key_of(source, files.fingerprint), directory = *own + "/" + key;
  const std::string name = fs::path(source).filename().string();
  NodeCopy out;
  out.path = directory + "/" + name;
  out.bytes = files.bytes;
  for (int missed = 0;;) {
    CopyLock use = lock_file(directory + ".lock", LOCK_SH, stop);
    if (says_stop(stop)) return tl::unexpected(told_to_stop(source));
    // The directory may have been swept away, empty, a moment ago.
    if (!use.held() && errno == ENOENT && ++missed < 10 && own_directory(terms)) continue;
    if (!use.held()) return fail("cannot be locked: " + reason(), directory + ".lock");
    if (fs::exists(directory)) {
      if (!same_files(out.path, files)) {
        if (out.made_here) return fail("the copy lost files", directory);
        use = {};
        if (CopyLock mine = lock_file(directory + ".lock", LOCK_EX); mine.held()) remove_all(directory);
        continue;
      }
      ::futimens(use.get(), nullptr);  // used now
      out.use = std::move(use);
      out.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      return out;
    }
    use = {};
    // Without waiting: who was first keeps a shared lock for as long as the copy is used. The next turn waits for its
    // copying instead.
    const CopyLock mine = lock_file(directory + ".lock", LOCK_EX | LOCK_NB);
    if (!mine.held()) {
      if (errno != EWOULDBLOCK) return fail("cannot be locked: " + reason(), directory + ".lock");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      continue;
    }
    if (fs::exists(directory)) continue;  // another one was first
    const auto now = look_at_checkpoint(source);
    if (!now) return tl::unexpected(now.error());
    if (now->fingerprint != files.fingerprint) return fail("was altered since it was found", source);
    const std::string part = directory + ".part";
    remove_all(part);
    // One looks for room and takes it at a time: what is free is free once.
    CopyLock room = lock_file(*own + "/room", LOCK_EX, stop);
    if (says_stop(stop)) return tl::unexpected(told_to_stop(source));
    if (!room.held()) return fail("cannot be locked: " + reason(), *own + "/room");
    if (!make_room(terms, *own, key, files.bytes)) {
      no_room = true;
      const double need = static_cast<double>(files.bytes), used = static_cast<double>(bytes_below(*own));
      const std::string allowed =
          terms.most_bytes > 0 ? fmt::format(", {:.6g} GB are allowed (shared_memory_gb)", terms.most_bytes / 1e9) : "";
      return fail(fmt::format("no room for {:.6g} GB: {:.6g} GB are free, copies in use take {:.6g} GB{}", need / 1e9,
                              free_bytes(*own) / 1e9, used / 1e9, allowed),
                  *own);
    }
    Status copied = allocate(files, part + "/" + name, no_room);
    if (copied) {
      room = {};
      copied = copy_all(terms, *own, source, files, part + "/" + name, no_room, stop);
    }
    if (!copied) {
      remove_all(part);
      return tl::unexpected(copied.error());
    }
    // Nor does it move while somebody adds up what is there: it would be missed.
    room = lock_file(*own + "/room", LOCK_EX);
    if (::rename(part.c_str(), directory.c_str()) != 0) return fail("cannot be renamed: " + reason(), part);
    out.made_here = true;
  }
}

bool room_may_come(const CopyTerms& terms, std::uint64_t bytes) {
  const auto own = own_directory(terms);
  if (!own) return false;
  const CopyLock room = lock_file(*own + "/room", LOCK_EX);  // no copy is renamed while it is added up
  const double need = static_cast<double>(bytes), used = static_cast<double>(bytes_below(*own));
  return used > 0 && need + kSlack <= free_bytes(*own) + used && (terms.most_bytes <= 0 || need <= terms.most_bytes);
}

CopyLock hold_copy(const CopyTerms& terms, const std::string& source, const std::string& fingerprint) {
  const auto own = own_directory(terms);
  if (!own) return {};
  const std::string directory = *own + "/" + key_of(source, fingerprint);
  if (!fs::exists(directory)) return {};
  CopyLock lock = lock_file(directory + ".lock", LOCK_SH | LOCK_NB);
  if (!lock.held() || !fs::exists(directory)) return {};
  return lock;
}

void drop_copy(const CopyTerms& terms, const std::string& source, const std::string& fingerprint) {
  if (const auto own = own_directory(terms)) remove_unused(*own, key_of(source, fingerprint), 0);
}

std::size_t sweep_copies(const CopyTerms& terms, double idle_s) {
  const auto own = own_directory(terms);
  if (!own) return 0;
  std::size_t removed = 0;
  for (const std::string& key : keys_in(*own)) removed += remove_unused(*own, key, idle_s) ? 1 : 0;
  if (idle_s <= 0 && keys_in(*own).empty()) {
    for (const char* const name : {"/rate", "/room"}) ::unlink((*own + name).c_str());
    ::rmdir(own->c_str());
  }
  return removed;
}

}  // namespace orrery
