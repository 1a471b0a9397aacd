#include "processes/child.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>

#include "base/byte_source.h"
#include "base/number_text.h"

extern char** environ;

namespace orrery {
namespace {

using Clock = std::chrono::steady_clock;

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { close(); }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

struct Plan {  // all that the child needs between fork and exec, where nothing may be allocated
  std::vector<std::string> words, variables;
  std::vector<char*> argv, envp;
  std::string directory;
  int in = -1, out = -1, err = -1;
  bool dies_with_parent = false;
};

std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& more) {
  std::vector<std::string> all;
  for (char** v = environ; v && *v; ++v) {
    const std::string_view line = *v;
    const std::string_view name = line.substr(0, line.find('='));
    if (std::none_of(more.begin(), more.end(), [&](const auto& m) { return m.first == name; })) all.emplace_back(line);
  }
  for (const auto& [name, value] : more) all.push_back(name + "=" + value);
  return all;
}

Plan plan_of(const std::vector<std::string>& argv,
             const std::vector<std::pair<std::string, std::string>>& environment) {
  Plan plan;
  plan.words = argv;
  plan.variables = environment_with(environment);
  for (std::string& w : plan.words) plan.argv.push_back(w.data());
  for (std::string& v : plan.variables) plan.envp.push_back(v.data());
  plan.argv.push_back(nullptr);
  plan.envp.push_back(nullptr);
  return plan;
}

struct Trouble {  // what the child could not do, through a pipe that a successful exec closes
  int error = 0;
  int at_directory = 0;
};

[[noreturn]] void become(const Plan& plan, pid_t parent, int report) {
  Trouble trouble;
  ::setsid();
  if (plan.dies_with_parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
  }
  if (!plan.directory.empty() && ::chdir(plan.directory.c_str()) != 0) {
    trouble = {errno, 1};
  } else {
    ::dup2(plan.in, STDIN_FILENO);
    ::dup2(plan.out, STDOUT_FILENO);
    ::dup2(plan.err, STDERR_FILENO);
    // What another thread opened without close-on-exec is not the child's business.
    (void)::close_range(3, static_cast<unsigned>(report) - 1, 0);
    (void)::close_range(static_cast<unsigned>(report) + 1, ~0u, 0);
    for (int s = 1; s < NSIG; ++s)
      if (s != SIGKILL && s != SIGSTOP) ::signal(s, SIG_DFL);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::execvpe(plan.argv[0], plan.argv.data(), plan.envp.data());
    trouble = {errno, 0};
  }
  (void)!::write(report, &trouble, sizeof trouble);
  ::_exit(127);
}

Result<Child> launch(const Plan& plan) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail(std::string("no pipe: ") + std::strerror(errno), plan.words[0]);
  Descriptor mine(ends[0]);
  // Above the three descriptors that become standard ones, whatever this process has closed of its own.
  Descriptor theirs(::fcntl(ends[1], F_DUPFD_CLOEXEC, 10));
  ::close(ends[1]);
  if (theirs.get() < 0) return fail(std::string("no descriptor: ") + std::strerror(errno), plan.words[0]);
  const pid_t parent = ::getpid();
  // A signal handler of ours must not run in the child.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  const int error = errno;
  if (pid == 0) become(plan, parent, theirs.get());
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) return fail(std::string("cannot be started: ") + std::strerror(error), plan.words[0]);
  theirs.close();
  Trouble trouble;
  ssize_t n = 0;
  while ((n = ::read(mine.get(), &trouble, sizeof trouble)) < 0 && errno == EINTR) continue;
  if (n == static_cast<ssize_t>(sizeof trouble)) {
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) continue;
    if (trouble.at_directory) return fail(std::strerror(trouble.error), plan.directory, "a directory that exists");
    return fail(std::string("cannot be started: ") + std::strerror(trouble.error), plan.words[0],
                trouble.error == ENOENT ? "the name of a program on PATH, or its path" : "");
  }
  return Child{pid, start_time_of(pid)};
}

Result<Descriptor> open_output(const std::string& path) {
  Descriptor file(::open(path.empty() ? "/dev/null" : path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
  if (file.get() < 0) return fail(std::string("cannot be written: ") + std::strerror(errno), path);
  return file;
}

Exit exit_of(int status) {
  if (WIFSIGNALED(status)) return {0, WTERMSIG(status)};
  return {WEXITSTATUS(status), 0};
}

struct ProcessLine {
  char state = 0;
  pid_t parent = 0, session = 0;
  std::uint64_t started = 0;
};

std::optional<ProcessLine> process_line(pid_t pid) {
  const std::string line = read_at_most(fmt::format("/proc/{}/stat", pid), 4096).value_or("");
  const std::size_t name_end = line.rfind(") ");  // a program's name may hold blanks, parentheses and line ends
  if (name_end == std::string::npos) return std::nullopt;
  std::vector<std::string_view> fields;  // from field 3, the state
  const std::string_view rest = std::string_view(line).substr(name_end + 2);
  for (std::size_t i = 0; i < rest.size() && fields.size() < 20;) {
    const std::size_t end = std::min(rest.find(' ', i), rest.size());
    fields.push_back(rest.substr(i, end - i));
    i = end + 1;
  }
  std::int64_t parent = 0, session = 0, started = 0;
  if (fields.size() < 20 || fields[0].empty() || read_int(fields[1], parent) != NumberState::ok ||
      read_int(fields[3], session) != NumberState::ok || read_int(fields[19], started) != NumberState::ok)
    return std::nullopt;
  return ProcessLine{fields[0].front(), static_cast<pid_t>(parent), static_cast<pid_t>(session),
                     static_cast<std::uint64_t>(started)};
}

bool gone(char state) { return state == 'Z' || state == 'X' || state == 'x'; }

// Those that live.
template <class Each>
void each_process(Each each) {
  DIR* const directory = ::opendir("/proc");
  if (!directory) return;
  while (const dirent* const entry = ::readdir(directory)) {
    std::int64_t pid = 0;
    if (read_int(entry->d_name, pid) != NumberState::ok) continue;
    const auto line = process_line(static_cast<pid_t>(pid));
    if (line && !gone(line->state)) each(static_cast<pid_t>(pid), *line);
  }
  ::closedir(directory);
}

template <class Wanted>
std::vector<pid_t> those(Wanted wanted) {
  std::vector<pid_t> found;
  each_process([&](pid_t pid, const ProcessLine& line) {
    if (wanted(line)) found.push_back(pid);
  });
  std::sort(found.begin(), found.end());
  return found;
}

// Whether the session that this number names is still the child's: its leader lives, or is dead and others are left
// (the kernel does not give a number to a new process while a session has it).
bool is_its_own(const Child& child) {
  const auto line = process_line(child.pid);
  return !line || line->started == child.started;
}

template <class Done>
bool wait_until(double seconds, Done done) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  for (auto pause = std::chrono::microseconds(500);; pause = std::min(2 * pause, std::chrono::microseconds(20'000))) {
    if (done()) return true;
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace

std::string describe(Exit exit) {
  if (exit.signal != 0) return fmt::format("signal {} ({})", exit.signal, ::strsignal(exit.signal));
  return fmt::format("exit status {}", exit.status);
}

std::uint64_t start_time_of(pid_t pid) {
  const auto line = process_line(pid);
  return line ? line->started : 0;
}

std::optional<std::int64_t> kernel_oom_kills() {
  std::ifstream in("/proc/vmstat");
  for (std::string line; std::getline(in, line);) {
    std::int64_t n = 0;
    if (line.rfind("oom_kill ", 0) == 0 && read_int(line.substr(9), n) == NumberState::ok) return n;
  }
  return std::nullopt;
}

bool is_alive(const Child& child) {
  const auto line = process_line(child.pid);
  return line && line->started == child.started && !gone(line->state);
}

std::vector<pid_t> live_processes(std::uint64_t since) {
  return those([&](const ProcessLine& line) { return line.started >= since; });
}

std::vector<pid_t> session_members(pid_t session) {
  return those([&](const ProcessLine& line) { return line.session == session; });
}

std::vector<pid_t> descendants_of(pid_t ancestor) {
  std::multimap<pid_t, pid_t> children;
  each_process([&](pid_t pid, const ProcessLine& line) { children.emplace(line.parent, pid); });
  std::vector<pid_t> all{ancestor};
  for (std::size_t i = 0; i < all.size(); ++i)
    for (auto [it, last] = children.equal_range(all[i]); it != last; ++it) all.push_back(it->second);
  all.erase(all.begin());
  std::sort(all.begin(), all.end());
  return all;
}

Result<Child> start_child(const ChildTerms& terms) {
  if (terms.argv.empty() || terms.argv.front().empty()) return fail("no program to start", "", "name one");
  Plan plan = plan_of(terms.argv, terms.environment);
  plan.directory = terms.directory;
  plan.dies_with_parent = terms.dies_with_parent;
  Descriptor in(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  auto out = open_output(terms.output);
  if (!out) return tl::unexpected(out.error());
  plan.in = in.get();
  plan.out = plan.err = out->get();
  Descriptor separate;
  if (terms.errors == "&") {
    plan.err = STDERR_FILENO;
  } else if (terms.errors != "=") {
    auto err = open_output(terms.errors);
    if (!err) return tl::unexpected(err.error());
    separate = std::move(*err);
    plan.err = separate.get();
  }
  return launch(plan);
}

std::optional<Exit> poll_child(const Child& child) {
  int status = 0;
  pid_t ended = 0;
  rusage used{};
  while ((ended = ::wait4(child.pid, &status, WNOHANG, &used)) < 0 && errno == EINTR) continue;
  if (ended == child.pid) {
    Exit exit = exit_of(status);
    exit.peak_bytes = std::int64_t{1024} * used.ru_maxrss;
    return exit;
  }
  if (ended < 0 && !is_alive(child)) return Exit{-1, 0};
  return std::nullopt;
}

std::optional<Exit> wait_child(const Child& child, double timeout_s) {
  std::optional<Exit> exit;
  wait_until(timeout_s, [&] { return (exit = poll_child(child)).has_value(); });
  return exit;
}

void signal_group(const Child& child, int signal) {
  if (child.pid <= 1 || !is_its_own(child)) return;
  for (const pid_t pid : session_members(child.pid)) ::kill(pid, signal);
}

bool stop_session(const Child& child, double grace_s, double limit_s) {
  if (child.pid <= 1 || !is_its_own(child)) return true;
  const auto empty = [&] {
    (void)poll_child(child);
    return session_members(child.pid).empty();
  };
  signal_group(child, SIGTERM);
  signal_group(child, SIGCONT);  // what is stopped could not follow
  if (wait_until(grace_s, empty)) return true;
  return wait_until(limit_s, [&] {
    signal_group(child, SIGKILL);  // again: a process may have been started since
    return empty();
  });
}

Result<PipedChild> start_piped(const std::vector<std::string>& argv,
                               const std::vector<std::pair<std::string, std::string>>& environment) {
  if (argv.empty() || argv.front().empty()) return fail("no program to start", "", "name one");
  int in[2], out[2];
  if (::pipe2(in, O_CLOEXEC) != 0) return fail(std::string("no pipe: ") + std::strerror(errno), argv[0]);
  Descriptor to(in[1]), theirs_in(::fcntl(in[0], F_DUPFD_CLOEXEC, 10));
  ::close(in[0]);
  if (::pipe2(out, O_CLOEXEC) != 0) return fail(std::string("no pipe: ") + std::strerror(errno), argv[0]);
  Descriptor from(out[0]), theirs_out(::fcntl(out[1], F_DUPFD_CLOEXEC, 10));
  ::close(out[1]);
  Plan plan = plan_of(argv, environment);
  plan.in = theirs_in.get();
  plan.out = plan.err = theirs_out.get();
  plan.dies_with_parent = true;
  const auto child = launch(plan);
  if (!child) return tl::unexpected(child.error());
  ::fcntl(from.get(), F_SETFL, O_NONBLOCK);
  return PipedChild{*child, to.release(), from.release()};
}

Result<Captured> run_captured(const std::vector<std::string>& argv, const CaptureTerms& terms) {
  if (argv.empty() || argv.front().empty()) return fail("no program to start", "", "name one");
  int pipes[3][2];
  std::vector<Descriptor> ours, theirs;
  for (int i = 0; i < 3; ++i) {
    if (::pipe2(pipes[i], O_CLOEXEC) != 0) return fail(std::string("no pipe: ") + std::strerror(errno), argv[0]);
    ours.emplace_back(pipes[i][i == 0 ? 1 : 0]);
    theirs.emplace_back(::fcntl(pipes[i][i == 0 ? 0 : 1], F_DUPFD_CLOEXEC, 10));
    ::close(pipes[i][i == 0 ? 0 : 1]);
    ::fcntl(ours.back().get(), F_SETFL, O_NONBLOCK);
  }
  Plan plan = plan_of(argv, terms.environment);
  plan.in = theirs[0].get();
  plan.out = theirs[1].get();
  plan.err = theirs[2].get();
  const auto child = launch(plan);
  theirs.clear();
  if (!child) return tl::unexpected(child.error());

  Captured captured;
  // A program that does not read its input must not end this process.
  sigset_t pipe_signal, before;
  ::sigemptyset(&pipe_signal);
  ::sigaddset(&pipe_signal, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
  const bool was_pending = [] {
    sigset_t pending;
    return ::sigpending(&pending) == 0 && ::sigismember(&pending, SIGPIPE) == 1;
  }();
  const auto end = Clock::now() + std::chrono::duration<double>(terms.timeout_s);
  std::size_t sent = 0;
  if (terms.input.empty()) ours[0].close();
  std::optional<Exit> exit;
  std::string buffer(1 << 16, '\0');
  const auto drain = [&](Descriptor& from, std::string& into) {
    for (ssize_t n = 0;;) {
      n = ::read(from.get(), buffer.data(), buffer.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return;
      if (n <= 0) return from.close();
      const std::size_t room = terms.most_bytes - std::min(terms.most_bytes, into.size());
      captured.cut = captured.cut || static_cast<std::size_t>(n) > room;
      into.append(buffer, 0, std::min(room, static_cast<std::size_t>(n)));
    }
  };
  // What it left running may hold the pipes open: its own end is the end.
  while (!exit) {
    pollfd waiting[3] = {{ours[0].get(), POLLOUT, 0}, {ours[1].get(), POLLIN, 0}, {ours[2].get(), POLLIN, 0}};
    const bool closed = ours[1].get() < 0 && ours[2].get() < 0;
    (void)::poll(waiting, 3, closed ? 1 : 5);
    if (ours[0].get() >= 0 && waiting[0].revents != 0) {
      const ssize_t n = ::write(ours[0].get(), terms.input.data() + sent, terms.input.size() - sent);
      if (n > 0) sent += static_cast<std::size_t>(n);
      if ((n < 0 && errno != EAGAIN && errno != EINTR) || sent == terms.input.size()) ours[0].close();
    }
    if (ours[1].get() >= 0) drain(ours[1], captured.output);
    if (ours[2].get() >= 0) drain(ours[2], captured.errors);
    exit = poll_child(*child);
    if (!exit && Clock::now() >= end) {
      captured.timed_out = true;
      stop_session(*child, 0);
      exit = Exit{0, SIGKILL};
    }
  }
  if (ours[1].get() >= 0) drain(ours[1], captured.output);
  if (ours[2].get() >= 0) drain(ours[2], captured.errors);
  captured.exit = *exit;
  if (!was_pending) {
    const timespec now{};
    while (::sigtimedwait(&pipe_signal, nullptr, &now) < 0 && errno == EINTR) continue;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return captured;
}

}  // namespace orrery
