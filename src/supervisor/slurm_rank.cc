// What runs on the nodes of an attempt: the job's script and a keeper for each rank.
#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/number_text.h"
#include "base/output.h"
#include "processes/child.h"
#include "slurm/host_list.h"
#include "supervisor/guard_options.h"
#include "supervisor/keeper.h"
#include "supervisor/local_runner.h"
#include "supervisor/slurm_attempt.h"

namespace orrery {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kBeat = std::chrono::milliseconds(500);
constexpr double kStacks_s = 15;
constexpr int kNotMine = 71;  // exit status: this attempt was started before
constexpr int kRevoked = 72;  // it was revoked before it began
constexpr int kCannotStart = 127;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::int64_t number(const char* name) {
  std::int64_t value = 0;
  return read_int(variable(name), value) == NumberState::ok ? value : 0;
}

std::int64_t unix_ns() { return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count(); }

void complain(const std::string& what) {
  (void)write_all(STDERR_FILENO, "orrery guard: " + what + "\n", "standard error");
}

std::string own_path() {
  std::error_code error;
  const std::string path = std::filesystem::read_symlink("/proc/self/exe", error).string();
  return error ? "orrery" : path;
}

// Signals, one after the other, to whoever waits: handlers could not do what has to be done.
class Signals {
 public:
  explicit Signals(std::initializer_list<int> which) {
    ::sigemptyset(&set_);
    for (const int s : which) ::sigaddset(&set_, s);
    ::pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  int wait(std::chrono::milliseconds at_most) const {  // 0 = none came
    const timespec limit{at_most.count() / 1000, (at_most.count() % 1000) * 1'000'000};
    const int s = ::sigtimedwait(&set_, nullptr, &limit);
    return s > 0 ? s : 0;
  }

 private:
  sigset_t set_;
};

class Keeper {
 public:
  Keeper(const std::string& state, std::int64_t attempt) : files_(state, attempt), spec_files_(state, attempt) {
    report_.rank = number("SLURM_PROCID");
    report_.node = variable("SLURMD_NODENAME");
  }

  int run() {
    const auto spec = read_spec(spec_files_);
    if (!spec) return failed(spec.error().line());
    // First that it is here, then whether it may: a supervisor that revokes the attempt looks the other way round.
    if (const Status ok = tell(true); !ok) return failed(ok.error().line());
    const auto orders = read_orders(read_line(files_.orders));
    if (!orders) return failed("cannot read its orders: " + files_.orders);
    if (orders->revoked) return end(RankReport::State::revoked, 0, kRevoked);
    done_ = *orders;
    const Signals signals({SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGCONT, SIGALRM});
    const auto child = start_child(terms_of(*spec));
    if (!child) return failed(child.error().line());
    for (;;) {
      if (const auto exit = poll_child(*child)) {
        stop_session(*child, 0);
        if (revoked_) return end(RankReport::State::revoked, exit->signal, kRevoked);
        if (exit->signal != 0) return end(RankReport::State::killed, exit->signal, 128 + exit->signal);
        return end(RankReport::State::exited, exit->status, exit->status);
      }
      if (const int s = signals.wait(std::chrono::milliseconds(20)); s != 0) {
        // From Slurm: before a job is preempted, cancelled, or out of time. It is the rank's to save what it can.
        if (s == SIGTERM || s == SIGINT) report_.told = s;
        signal_group(*child, s);
      }
      follow_orders(*child);
    }
  }

 private:
  ChildTerms terms_of(const AttemptSpec& spec) {
    ChildTerms t;
    const std::int64_t world = std::max<std::int64_t>(1, number("SLURM_NTASKS"));
    const auto nodes = slurm::expand_hosts(variable("SLURM_JOB_NODELIST"));
    const std::string first = nodes && !nodes->empty() ? nodes->front() : report_.node;
    const std::string rank = std::to_string(report_.rank), local = std::to_string(number("SLURM_LOCALID"));
    const Placeholders values{{"rank", rank},
                              {"world", std::to_string(world)},
                              {"local_rank", local},
                              {"node", report_.node},
                              {"first_node", first}};
    for (const std::string& w : spec.argv) t.argv.push_back(replaced(w, values));
    // As torchrun sets them; what the user has set stays.
    for (const auto& [name, value] : Placeholders{{"RANK", rank},
                                                  {"WORLD_SIZE", std::to_string(world)},
                                                  {"LOCAL_RANK", local},
                                                  {"NODE_RANK", std::to_string(number("SLURM_NODEID"))},
                                                  {"MASTER_ADDR", first},
                                                  {"PYTHONUNBUFFERED", "1"}})
      if (std::getenv(name.c_str()) == nullptr) t.environment.emplace_back(name, value);
    for (const auto& [name, value] : spec.environment) t.environment.emplace_back(name, replaced(value, values));
    t.directory = spec.directory;
    t.output = "/dev/stdout";  // srun's
    t.errors = "/dev/stderr";
    t.dies_with_parent = true;  // a keeper that is killed takes the rank along
    return t;
  }

  Status tell(bool sync) { return write_line(files_.rank(report_.rank), to_line(report_), sync); }

  void follow_orders(const Child& child) {
    if (Clock::now() < next_) return;
    next_ = Clock::now() + kBeat;
    ++report_.beats;
    (void)tell(false);
    const auto orders = read_orders(read_line(files_.orders));
    if (!orders) return;  // the storage does not answer: that alone ends nobody
    if (orders->revoked) {
      revoked_ = true;
      stop_session(child, 0);
      return;
    }
    if (orders->signals > done_.signals) signal_group(child, orders->signal);
    if (orders->stacks > done_.stacks) take_stacks(child, orders->stacks);
    report_.stacks = stacks_;
    done_ = *orders;
  }

  // Beside the loop: debuggers take their time, and the orders go on.
  void take_stacks(const Child& child, std::int64_t request) {
    if (stacker_.joinable()) stacker_.join();
    stacker_ = std::thread([this, child, request] {
      const std::string path = files_.stacks(report_.rank);
      if (write_file(path, process_stacks(session_members(child.pid), kStacks_s))) ::chmod(path.c_str(), 0600);
      stacks_ = request;
    });
  }

  int end(RankReport::State state, int value, int status) {
    if (stacker_.joinable()) stacker_.join();
    report_.state = state;
    report_.value = value;
    report_.ended = unix_ns();
    if (const Status ok = tell(true); !ok) complain(ok.error().line());
    return status;
  }
  int failed(const std::string& why) {
    complain(fmt::format("rank {} on {}: {}", report_.rank, report_.node, why));
    report_.why = why;
    return end(RankReport::State::failed, 0, kCannotStart);
  }

  SlurmFiles files_;
  AttemptFiles spec_files_;
  RankReport report_;
  Orders done_;
  bool revoked_ = false;
  Clock::time_point next_{};
  std::thread stacker_;
  std::atomic<std::int64_t> stacks_ = 0;
};

}  // namespace

int run_slurm_rank(const std::string& state_directory, std::int64_t attempt) {
  return Keeper(state_directory, attempt).run();
}

int run_slurm_batch(const std::string& state_directory, std::int64_t attempt, const std::vector<std::string>& srun) {
  const SlurmFiles files(state_directory, attempt);
  const auto spec = read_spec(AttemptFiles(state_directory, attempt));
  const auto orders = read_orders(read_line(files.orders));
  if (!spec || !orders) {
    complain(spec ? "no orders in " + files.orders : spec.error().line());
    return kCannotStart;
  }
  const auto mine = claim_attempt(files, variable("SLURM_JOB_ID"));
  if (!mine || !*mine) {
    complain(mine ? fmt::format("attempt {} was started before: not a second time", attempt) : mine.error().line());
    return kNotMine;
  }
  if (orders->revoked) return kRevoked;
  const Signals signals({SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGCONT});
  ChildTerms terms;
  terms.argv = {"srun", "--kill-on-bad-exit=1"};
  terms.argv.insert(terms.argv.end(), srun.begin(), srun.end());
  for (const std::string& w : {own_path(), std::string("guard"), std::string("rank"), state_directory})
    terms.argv.push_back(w);
  terms.argv.push_back(std::to_string(attempt));
  terms.output = spec->out;
  terms.errors = spec->err;
  terms.dies_with_parent = true;
  const auto child = start_child(terms);
  if (!child) {
    complain(child.error().line());
    (void)write_file(files.ended, "failed " + child.error().line() + "\n");
    return kCannotStart;
  }
  for (;;) {
    if (const auto exit = poll_child(*child)) {
      const bool killed = exit->signal != 0;
      (void)write_file(files.ended,
                       fmt::format("{} {}\n", killed ? "signal" : "exit", killed ? exit->signal : exit->status));
      return killed ? 128 + exit->signal : exit->status;
    }
    // The ranks are told by Slurm itself; here it is written down for the supervisor.
    if (const int s = signals.wait(std::chrono::milliseconds(50)); s != 0 && s != SIGCONT)
      (void)write_line(files.notice, fmt::format("{:<40}\n", s), false);
  }
}

}  // namespace orrery
