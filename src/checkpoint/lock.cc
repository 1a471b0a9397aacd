#include "checkpoint/lock.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <mutex>
#include <set>
#include <system_error>

namespace orrery::ckpt {
namespace {

// A POSIX lock is the process's: no child that a data loader forked can hold it past the death of the trainer, and it
// works over NFS. But it does not exclude a second writer in the same process, and closing any descriptor of the file
// would drop it: hence this one list a process of the files that are locked.
struct Taken {
  pid_t process = ::getpid();
  std::mutex mutex;
  std::set<std::pair<dev_t, ino_t>> files;
};
Taken& taken() {
  static std::atomic<Taken*> now{new Taken};
  Taken* t = now;
  while (t->process != ::getpid()) {  // a forked child has none of its parent's locks, and the mutex may be held
    auto fresh = std::make_unique<Taken>();
    if (now.compare_exchange_strong(t, fresh.get())) return *fresh.release();
  }
  return *t;
}

std::string lock_path(const std::string& directory, int rank) {
  return fmt::format("{}/rank-{:05}.lock", directory, rank);
}

std::string reason() { return std::error_code(errno, std::generic_category()).message(); }

}  // namespace

struct RankLock::Held {
  int fd = -1;
  std::string path;
  std::pair<dev_t, ino_t> file;
  ~Held() {
    const std::scoped_lock guard(taken().mutex);
    ::close(fd);
    taken().files.erase(file);
  }
};

Result<RankLock> RankLock::take(const std::string& directory, int rank, const std::string& session) {
  const std::string path = lock_path(directory, rank);
  const std::scoped_lock guard(taken().mutex);
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && taken().files.contains({info.st_dev, info.st_ino})) {
    return fail("this process has a writer there already", path, "close it first");
  }
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd < 0 || ::fstat(fd, &info) != 0) {
    auto error = fail("cannot open its lock: " + reason(), path);
    if (fd >= 0) ::close(fd);
    return error;
  }
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (::fcntl(fd, F_SETLK, &whole) != 0) {
    const bool busy = errno == EACCES || errno == EAGAIN;
    auto error = fail("cannot lock: " + reason(), path, "mount the file system with locks, or turn the lock off");
    if (busy) {
      struct flock other = whole;
      ::fcntl(fd, F_GETLK, &other);
      error = fail(fmt::format("another writer has it (process {}, maybe on another host)", other.l_pid), path,
                   "end that one first, or write elsewhere");
    }
    ::close(fd);
    return error;
  }
  // A session used twice could complete a checkpoint with parts that a dead run left.
  std::string before(session.size() + 1, '\0');
  const ssize_t n = ::pread(fd, before.data(), before.size(), 0);
  if (n >= 0 && std::string_view(before).substr(0, static_cast<std::size_t>(n)) == session) {
    ::close(fd);
    return fail("session " + session + " was used by a run before", path, "give every run a session of its own");
  }
  const auto length = static_cast<ssize_t>(session.size());
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, session.data(), session.size(), 0) != length || ::fsync(fd) != 0) {
    auto error = fail("cannot write the session: " + reason(), path, "is there space?");
    ::close(fd);
    return error;
  }
  auto held = std::make_shared<Held>();
  held->fd = fd;
  held->path = path;
  held->file = {info.st_dev, info.st_ino};
  taken().files.insert(held->file);
  return RankLock(std::move(held));
}

Status RankLock::still_excludes() const {
  if (!held_) return {};
  struct stat info {};
  const bool there = ::stat(held_->path.c_str(), &info) == 0;
  if (!there && errno != ENOENT) {
    return fail("cannot tell whether its lock is still there: " + reason(), held_->path);
  }
  if (there && held_->file == std::pair{info.st_dev, info.st_ino}) {
    // Whoever in this process read that file and closed it has dropped the lock: it is taken again.
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    if (::fcntl(held_->fd, F_SETLK, &whole) == 0) return {};
    if (errno != EACCES && errno != EAGAIN) return fail("cannot lock: " + reason(), held_->path);
  }
  return fail("its lock was taken away, so another writer may be at work there; nothing more is written", held_->path,
              "see that one job alone writes there, and start it anew");
}

bool has_ended(const std::string& directory, int rank, const std::string& session) {
  const std::string path = lock_path(directory, rank);
  // To close a file that this process has locked would drop the lock.
  const std::scoped_lock guard(taken().mutex);
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || taken().files.contains({info.st_dev, info.st_ino})) return false;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  std::string text(session.size() + 1, '\0');
  const ssize_t n = ::pread(fd, text.data(), text.size(), 0);
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  // First the session: it is written once the lock is held.
  const bool ended = n >= 0 && std::string_view(text).substr(0, static_cast<std::size_t>(n)) == session &&
                     ::fcntl(fd, F_GETLK, &whole) == 0 && whole.l_type == F_UNLCK;
  ::close(fd);
  return ended;
}

}  // namespace orrery::ckpt
