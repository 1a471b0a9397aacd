#include "supervisor/keeper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/byte_source.h"
#include "base/output.h"

namespace orrery {
namespace {

std::string why() { return std::strerror(errno); }

std::string text_of(const std::string& path) { return read_at_most(path, std::size_t{1} << 24).value_or(""); }

std::string boot_id() {
  std::string id = text_of("/proc/sys/kernel/random/boot_id");
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id.empty() ? "unknown" : id;
}

void sync_directory_of(const std::string& path) {
  const int fd = ::open(path.substr(0, path.rfind('/')).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

// Whole and on storage, or not there.
Status write_durably(const std::string& path, const std::string& text) {
  const std::string partial = path + ".partial";
  const int fd = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return fail("cannot be written: " + why(), partial);
  Status ok = write_all(fd, text, partial);
  if (ok && ::fsync(fd) != 0) ok = fail("cannot be synced: " + why(), partial);
  ::close(fd);
  if (ok && ::rename(partial.c_str(), path.c_str()) != 0) ok = fail("cannot be renamed: " + why(), partial);
  if (!ok) return ok;
  sync_directory_of(path);
  return {};
}

// How the command ended, once: in a file whose room is taken before it starts, so that a full disk hides no end.
class ExitFile {
 public:
  explicit ExitFile(std::string path) : path_(std::move(path)), partial_(path_ + ".partial") {
    constexpr off_t kRoom = 4096;
    fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd_ < 0 || ::posix_fallocate(fd_, 0, kRoom) == 0) return;
    ::close(fd_);  // it will be tried when there is something to write
    fd_ = -1;
  }
  ExitFile(const ExitFile&) = delete;
  ExitFile& operator=(const ExitFile&) = delete;
  ~ExitFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  bool write(const std::string& text) const {
    if (fd_ < 0) return write_durably(path_, text).has_value();
    const auto size = static_cast<ssize_t>(text.size());
    if (::pwrite(fd_, text.data(), text.size(), 0) != size || ::ftruncate(fd_, size) != 0 || ::fsync(fd_) != 0 ||
        ::rename(partial_.c_str(), path_.c_str()) != 0)
      return false;
    sync_directory_of(path_);
    return true;
  }

 private:
  std::string path_, partial_;
  int fd_ = -1;
};

int open_lock(const AttemptFiles& files) {
  return ::open(files.lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
}

constexpr timespec kLook{5, 0};

// The kernel does not say whom it killed for want of memory, only how many on the whole machine. A job that dies by
// SIGKILL within a minute of such a kill is taken for one.
class OomKills {
 public:
  OomKills() { look(); }
  void look() {
    constexpr std::size_t kKept = 12;  // a minute
    const auto now = std::chrono::steady_clock::now();
    if (!seen_.empty() && now - last_ < std::chrono::seconds(kLook.tv_sec)) return;
    if (seen_.size() == kKept) seen_.erase(seen_.begin());
    seen_.push_back(kernel_oom_kills().value_or(0));
    last_ = now;
  }
  bool struck() const { return kernel_oom_kills().value_or(0) > seen_.front(); }

 private:
  std::vector<std::int64_t> seen_;
  std::chrono::steady_clock::time_point last_;
};

bool there(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

}  // namespace

std::string machine_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "localhost";
}

AttemptFiles::AttemptFiles(const std::string& directory, std::int64_t number) {
  const std::string stem = fmt::format("{}/attempt-{}.", directory, number);
  spec = stem + "spec";
  lock = stem + "lock";
  job = stem + "job";
  exit = stem + "exit";
  void_mark = stem + "void";
}

Status write_spec(const AttemptFiles& files, const AttemptSpec& s) {
  const nlohmann::json json{
      {"number", s.number},       {"token", s.token}, {"argv", s.argv}, {"environment", s.environment},
      {"directory", s.directory}, {"out", s.out},     {"err", s.err},   {"nodes", s.nodes}};
  return write_durably(files.spec, json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

Result<AttemptSpec> read_spec(const AttemptFiles& files) {
  const auto json = nlohmann::json::parse(text_of(files.spec), nullptr, false);
  if (json.is_discarded()) return fail("not a specification of an attempt", files.spec);
  AttemptSpec s;
  try {
    s.number = json.at("number").get<int>();
    s.token = json.at("token").get<std::string>();
    s.argv = json.at("argv").get<std::vector<std::string>>();
    s.environment = json.at("environment").get<std::vector<std::pair<std::string, std::string>>>();
    s.directory = json.at("directory").get<std::string>();
    s.out = json.at("out").get<std::string>();
    s.err = json.at("err").get<std::string>();
    s.nodes = json.at("nodes").get<std::vector<std::string>>();
  } catch (const nlohmann::json::exception& error) {
    return fail(std::string("not a specification of an attempt: ") + error.what(), files.spec);
  }
  return s;
}

std::optional<KeptJob> read_job(const AttemptFiles& files) {
  std::istringstream in(text_of(files.job));
  KeptJob job;
  std::string boot;
  if (!(in >> job.child.pid >> job.child.started >> boot >> job.started >> job.machine)) return std::nullopt;
  job.this_boot = boot == boot_id();
  return job;
}

std::optional<KeptExit> read_exit(const AttemptFiles& files) {
  std::istringstream in(text_of(files.exit));
  std::string how;
  if (!(in >> how)) return std::nullopt;
  KeptExit e;
  int number = 0;
  if (how == "failed") {
    std::getline(in >> std::ws, e.failed);
    if (e.failed.empty()) e.failed = "cannot be started";
  } else if (in >> number) {
    (how == "signal" ? e.signal : e.status) = number;
    std::string more;
    e.out_of_memory = static_cast<bool>(in >> more) && more == "out-of-memory";
  } else {
    return std::nullopt;
  }
  return e;
}

bool keeper_lives(const AttemptFiles& files) {
  const int fd = ::open(files.lock.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  const bool free = ::flock(fd, LOCK_SH | LOCK_NB) == 0;
  ::close(fd);
  return !free;
}

Child keeper_of(const AttemptFiles& files) {
  std::istringstream in(text_of(files.lock));
  Child keeper;
  if (!(in >> keeper.pid >> keeper.started)) return {};
  return keeper;
}

Result<bool> void_attempt(const AttemptFiles& files) {
  const int fd = open_lock(files);
  if (fd < 0) return fail("cannot be opened: " + why(), files.lock);
  bool dead = ::flock(fd, LOCK_EX | LOCK_NB) == 0;
  Status ok;
  if (dead && (there(files.job) || there(files.exit))) dead = false;
  if (dead) ok = write_durably(files.void_mark, "void\n");
  ::close(fd);
  if (!ok) return tl::unexpected(ok.error());
  return dead;
}

int run_keeper(const std::string& directory, std::int64_t number) {
  const AttemptFiles files(directory, number);
  const int fd = open_lock(files);
  if (fd < 0) return 2;
  // Who only looks whether it is locked holds it for a moment.
  bool mine = false;
  for (int i = 0; i < 500 && !mine; ++i) {
    mine = ::flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (!mine) ::usleep(10'000);
  }
  if (!mine || there(files.void_mark) || there(files.job) || there(files.exit)) return 2;
  const std::string self = fmt::format("{} {}\n", ::getpid(), start_time_of(::getpid()));
  if (::pwrite(fd, self.data(), self.size(), 0) < 0) return 2;
  for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(s, SIG_IGN);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // what the command leaves behind is reaped, not lost to another parent
  ::prctl(PR_SET_NAME, "orrery-keeper");
  sigset_t ends;
  ::sigemptyset(&ends);
  ::sigaddset(&ends, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &ends, nullptr);  // is waited for, below
  const ExitFile exit(files.exit);
  const auto spec = read_spec(files);
  if (!spec) return exit.write("failed " + spec.error().line() + "\n") ? 1 : 2;
  ChildTerms terms;
  terms.argv = spec->argv;
  terms.environment = spec->environment;
  terms.directory = spec->directory;
  terms.output = spec->out;
  terms.errors = spec->err;
  const auto child = start_child(terms);
  if (!child) return exit.write("failed " + child.error().line() + "\n") ? 1 : 2;
  const Ns now = std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  const std::string note = fmt::format("{} {} {} {} {}\n", child->pid, child->started, boot_id(), now, machine_name());
  // Not written, for there is no room: it is found by the token in its environment meanwhile (local_runner.cc).
  bool noted = write_durably(files.job, note).has_value();
  OomKills oom;
  bool written = false;
  for (;;) {
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, WNOHANG);
    if (ended == 0) {
      oom.look();
      if (!noted) noted = write_durably(files.job, note).has_value();
      ::sigtimedwait(&ends, nullptr, &kLook);
    }
    if (ended == 0 || (ended < 0 && errno == EINTR)) continue;
    // Whatever it left behind is a child of this process now, whatever session or environment it took: as long as any
    // of it lives, the keeper does.
    if (ended < 0) return written ? 0 : 2;
    if (ended != child->pid || written) continue;
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    const std::string how = WIFSIGNALED(status) ? fmt::format("signal {}{}\n", WTERMSIG(status),
                                                              killed && oom.struck() ? " out-of-memory" : "")
                                                : fmt::format("exit {}\n", WEXITSTATUS(status));
    while (!exit.write(how)) {                               // a full disk: until there is room
      if (::access(directory.c_str(), F_OK) != 0) return 2;  // nobody is left to know
      ::sleep(1);
    }
    written = true;
  }
}

}  // namespace orrery
