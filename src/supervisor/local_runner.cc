#include "supervisor/local_runner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "base/byte_source.h"
#include "supervisor/keeper.h"

namespace orrery {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kStart_s = 10;  // until the keeper has started the command, or has said why not

Result<std::int64_t> number_of(const std::string& handle) {
  std::int64_t n = 0;
  const auto [end, error] = std::from_chars(handle.data(), handle.data() + handle.size(), n);
  if (error != std::errc{} || end != handle.data() + handle.size() || n < 1)
    return fail("not an attempt on this machine: " + handle);
  return n;
}

Status make_new(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return fail(std::string("cannot be written: ") + std::strerror(errno), path);
  ::close(fd);
  return {};
}

double seconds_since(Ns unix_ns) {
  const Ns now = std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  return static_cast<double>(now - unix_ns) * 1e-9;
}

}  // namespace

Status same_machine(const std::string& directory, std::int64_t attempt) {
  const auto job = read_job(AttemptFiles(directory, attempt));
  if (!job || job->machine == machine_name()) return {};
  return fail(fmt::format("attempt {} was started on {}: whether it lives cannot be seen from {}", attempt,
                          job->machine, machine_name()),
              directory, "run guard there");
}

std::vector<pid_t> LocalRunner::members(std::int64_t number, const std::string& token) const {
  std::vector<pid_t> all = processes_with("ORRERY_GUARD_TOKEN", token);
  const AttemptFiles files(options_.directory, number);
  const auto job = read_job(files);
  // The session's number may have come again once nothing of it was left.
  const bool ours = job && job->this_boot &&
                    (is_alive(job->child) || start_time_of(job->child.pid) == 0 ||
                     start_time_of(job->child.pid) == job->child.started);
  if (ours)
    for (const pid_t pid : session_members(job->child.pid)) all.push_back(pid);
  const Child keeper = keeper_of(files);
  const bool kept = is_alive(keeper);
  if (kept)
    for (const pid_t pid : descendants_of(keeper.pid)) all.push_back(pid);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  if (kept) std::erase(all, keeper.pid);
  return all;
}

Result<std::string> LocalRunner::start(const AttemptSpec& spec) {
  const AttemptFiles files(options_.directory, spec.number);
  for (const std::string& path : {spec.out, spec.err})
    if (const Status ok = make_new(path); !ok) return tl::unexpected(ok.error());
  if (const Status ok = write_spec(files, spec); !ok) return tl::unexpected(ok.error());
  ChildTerms terms;
  terms.argv = options_.keeper;
  terms.argv.push_back(options_.directory);
  terms.argv.push_back(std::to_string(spec.number));
  // What it forks is found by this from the first moment on.
  terms.environment = {{"ORRERY_GUARD_TOKEN", spec.token}};
  const auto keeper = start_child(terms);
  if (!keeper) return tl::unexpected(keeper.error());
  keepers_[spec.number] = *keeper;
  const auto end = Clock::now() + std::chrono::duration<double>(kStart_s);
  while (!read_job(files) && !read_exit(files) && is_alive(*keeper) && Clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  return std::to_string(spec.number);
}

Result<std::optional<std::string>> LocalRunner::find(const AttemptSpec& spec) {
  const AttemptFiles files(options_.directory, spec.number);
  const std::string handle = std::to_string(spec.number);
  const auto known = [&] { return read_job(files) || read_exit(files); };
  if (known()) return handle;
  const auto dead = void_attempt(files);
  if (!dead) return tl::unexpected(dead.error());
  if (!*dead) {
    if (known()) return handle;
    return fail("its keeper is about to start it", files.lock, "ask again");
  }
  // A keeper that was killed between the start and its note.
  if (!processes_with("ORRERY_GUARD_TOKEN", spec.token).empty()) return handle;
  return std::optional<std::string>();
}

Result<AttemptState> LocalRunner::poll(const std::string& handle) {
  const auto number = number_of(handle);
  if (!number) return tl::unexpected(number.error());
  if (const Status ok = same_machine(options_.directory, *number); !ok) return tl::unexpected(ok.error());
  const AttemptFiles files(options_.directory, *number);
  if (const auto it = keepers_.find(*number); it != keepers_.end() && poll_child(it->second)) keepers_.erase(it);
  AttemptState state;
  const auto spec = read_spec(files);
  if (!spec) return tl::unexpected(spec.error());
  state.nodes = spec->nodes.empty() ? std::vector<std::string>{machine_name()} : spec->nodes;
  const bool kept = keeper_lives(files);  // before its notes are read: it writes them while it lives
  const auto job = read_job(files);
  auto exit = read_exit(files);
  if (job) state.started = job->started;
  if (!exit && job && job->this_boot && is_alive(job->child)) {
    state.phase = AttemptPhase::running;
    if (options_.time_limit_s > 0) state.time_left = options_.time_limit_s - seconds_since(job->started);
    return state;
  }
  if (!exit && kept) {
    // Over, and its keeper has not written down how: there is no room, or it is about to.
    state.phase = job ? AttemptPhase::running : AttemptPhase::pending;
    return state;
  }
  if (exit && !exit->failed.empty()) {
    state.phase = AttemptPhase::ended;
    state.reason = EndReason::launch_failed;
    state.detail = exit->failed;
    return state;
  }
  const bool left = !members(*number, spec->token).empty();
  if (!exit) {
    if (!job && left) {
      state.phase = AttemptPhase::running;
      return state;
    }
    state.detail = job && !job->this_boot ? "the machine was started anew" : "its keeper was killed";
  } else {
    state.exit_status = exit->status;
    state.signal = exit->signal;
    if (exit->out_of_memory) {
      state.reason = EndReason::out_of_memory;
      state.detail = "the kernel killed a process of this machine for want of memory within that minute";
    }
  }
  state.phase = left ? AttemptPhase::ending : AttemptPhase::ended;
  return state;
}

Status LocalRunner::signal(const std::string& handle, int number) {
  const auto attempt = number_of(handle);
  if (!attempt) return tl::unexpected(attempt.error());
  const auto spec = read_spec(AttemptFiles(options_.directory, *attempt));
  if (!spec) return tl::unexpected(spec.error());
  for (const pid_t pid : members(*attempt, spec->token)) ::kill(pid, number);
  return {};
}

Result<bool> LocalRunner::fence(const std::string& handle) {
  const auto number = number_of(handle);
  if (!number) return tl::unexpected(number.error());
  if (const Status ok = same_machine(options_.directory, *number); !ok) return tl::unexpected(ok.error());
  const AttemptFiles files(options_.directory, *number);
  const auto spec = read_spec(files);
  if (!spec) return tl::unexpected(spec.error());
  if (!read_job(files) && !read_exit(files) && keeper_lives(files)) return false;  // in the middle of its start
  const auto end = Clock::now() + std::chrono::seconds(1);
  for (;;) {
    const std::vector<pid_t> left = members(*number, spec->token);
    // The keeper ends when it has no child any more: what was started between two looks has been seen dead then, too.
    const Child keeper = keeper_of(files);
    if (left.empty() && !is_alive(keeper)) break;
    if (left.empty() && is_alive(keeper)) ::kill(keeper.pid, SIGCONT);
    if (Clock::now() >= end) return false;
    for (const pid_t pid : left) ::kill(pid, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (const auto it = keepers_.find(*number); it != keepers_.end() && poll_child(it->second)) keepers_.erase(it);
  return true;
}

std::string LocalRunner::left(const std::string& handle) {
  const auto number = number_of(handle);
  const auto spec = number ? read_spec(AttemptFiles(options_.directory, *number)) : tl::unexpected(number.error());
  if (!spec) return "";
  const std::vector<pid_t> pids = members(*number, spec->token);
  return pids.empty() ? "" : fmt::format("processes {}", fmt::join(pids, ", "));
}

Result<std::vector<NodeState>> LocalRunner::nodes() {
  std::vector<NodeState> all;
  for (const std::string& n : options_.nodes) all.push_back({n, true, ""});
  if (all.empty()) all.push_back({machine_name(), true, ""});
  return all;
}

Status LocalRunner::drain(const std::string&, const std::string&) { return {}; }  // the journal remembers it

Result<std::string> LocalRunner::stacks(const std::string& handle, double timeout_s) {
  const auto number = number_of(handle);
  if (!number) return tl::unexpected(number.error());
  const auto spec = read_spec(AttemptFiles(options_.directory, *number));
  if (!spec) return tl::unexpected(spec.error());
  return process_stacks(members(*number, spec->token), timeout_s);
}

}  // namespace orrery
