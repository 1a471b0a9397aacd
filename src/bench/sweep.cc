#include "bench/sweep.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>
#include <thread>

#include "base/json_text.h"
#include "base/number_text.h"
#include "base/unix_time.h"
#include "bench/slurm_execution.h"
#include "processes/find.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

constexpr double kGrace = 5;                     // s
constexpr int kTries = 3;                        // to end what a killed runner left
constexpr const char* kJobToCome = "submitted";  // in a row's slurm_job, until its number is known
// How long after a row began its job may still come, where nothing tells its number: sbatch goes on trying, and
// outlives a runner that is killed.
constexpr double kJobMayCome = 3600;  // s

// Out of memory at a batch of which the search said that it fits: what the search goes on from, and no result; the
// runner may have been killed before it said so.
bool is_unsettled_search(const RunRow& r) {
  if (r.kind != RunKind::run || r.state != RunState::out_of_memory || r.batch <= 1) return false;
  const auto run = run_of_spec(r.spec);
  return run && run->batch == 0;
}

class Sweeper {
 public:
  Sweeper(const BenchConfig& config, RunEstimator& estimator, RunPlan& plan, ResultStore& store,
          const SweepTerms& terms)
      : c_(config), estimator_(estimator), plan_(plan), store_(store), terms_(terms) {}

  Result<SweepResult> run();

 private:
  Result<RunOutcome> once(const PlannedRun& p, RunKind kind, std::int64_t batch, std::int64_t warmup,
                          std::int64_t steps, std::int64_t trace, const std::string& remark = "");
  Result<RunOutcome> planned(const PlannedRun& p);
  Result<RunOutcome> largest(const PlannedRun& p);
  Result<bool> reference();  // true: the sweep is to end
  void tell(const std::string& what, const RunRow* ended);
  bool one_program() const;  // all planned runs start the same

  const BenchConfig& c_;
  RunEstimator& estimator_;
  RunPlan& plan_;
  ResultStore& store_;
  const SweepTerms& terms_;
  SweepResult out_;
  RunTerms measure_;
  std::vector<RunRow> rows_;  // of the store, with those of this sweep
  std::size_t at_ = 0;        // of the order
};

void Sweeper::tell(const std::string& what, const RunRow* ended) {
  if (!terms_.progress) return;
  std::map<std::string, Pace> paces;
  double left = 0;
  for (std::size_t i = at_ + (ended != nullptr ? 1 : 0); i < plan_.order.size(); ++i) {
    const PlannedRun& p = plan_.runs[plan_.order[i]];
    const auto [pace, fresh] = paces.try_emplace(pace_key(p.run));
    if (fresh) pace->second = pace_of(rows_, p.run);
    left += seconds_of(c_, p.run, p.estimate, pace->second);
  }
  terms_.progress({at_ + (ended != nullptr ? 1 : 0), plan_.order.size(), what, left, ended});
}

Result<RunOutcome> Sweeper::once(const PlannedRun& p, RunKind kind, std::int64_t batch, std::int64_t warmup,
                                 std::int64_t steps, std::int64_t trace, const std::string& remark) {
  RunRow row;
  row.run = p.run.id();
  row.spec = p.spec;
  row.hash = p.hash;
  row.kind = kind;
  row.batch = batch;
  row.reason = remark;  // of a run that ends well: others have their own
  for (const RunRow& r : rows_)
    if (r.kind == kind && r.hash == p.hash && is_result(r.state)) row.attempt = std::max(row.attempt, r.attempt + 1);
  row.started = unix_seconds();
  row.host = host_name();
  if (c_.slurm.asked) row.slurm_job = kJobToCome;
  if (!c_.slurm.asked) row.load = load_average();  // of the machine that it runs on
  if (p.estimate.unknown.empty()) {
    BenchRun at = p.run;
    at.batch = batch;
    const RunEstimate e = p.run.batch == batch ? p.estimate : estimator_.estimate_of(at);
    if (e.unknown.empty()) {
      row.estimated_step_ms = e.step_ms;
      row.estimated_memory_gib = e.memory_gib;
    }
  }
  // A number that no earlier run had, also where the store was made anew beside an old directory.
  std::int64_t number = rows_.empty() ? 1 : rows_.back().id + 1;
  std::error_code error;
  do {
    row.directory = fmt::format("{}/runs/{:06}", terms_.tools->state, number++);
  } while (!fs::create_directory(row.directory, error) && !error);
  if (error) return fail("cannot be made: " + error.message(), row.directory);
  const auto id = store_.begin(row);
  if (!id) return tl::unexpected(id.error());
  row.id = *id;
  measure_.start = [&]() -> std::unique_ptr<Execution> {
    if (c_.slurm.asked) return slurm_execution(c_, p.run, store_.token());
    return local_execution(c_.memory_limit_gib, p.run.gpus);
  };
  auto m = measure(c_, p.run, {batch, warmup, steps, trace}, row, store_, measure_);
  if (!m) return m;
  if (!m->left.empty()) {
    out_.notes.add("left-running", Severity::warning, 1, row.run + ": " + m->left,
                   "could not be ended: nothing is measured beside it; the next `orrery bench run` tries again");
    m->gave_up = true;
    return m;
  }
  rows_.push_back(m->row);
  out_.seconds += m->row.seconds;
  out_.overhead_s += m->row.overhead_s;
  out_.after_s += m->row.after_s;
  return m;
}

Result<RunOutcome> Sweeper::largest(const PlannedRun& p) {
  BatchSearch search;
  search.limit = c_.largest_batch;
  search.first = std::clamp<std::int64_t>(p.estimate.batch, 1, c_.largest_batch);
  const auto learn = [&](const RunRow& r) {  // only what is out of memory says that a batch is too large
    if (r.state == RunState::done) search.tried(r.batch, true);
    if (r.state == RunState::out_of_memory) search.tried(r.batch, false);
  };
  for (const RunRow& r : rows_)
    if (r.kind == RunKind::probe && r.hash == p.hash && is_result(r.state)) learn(r);
  for (;;) {
    std::string cut;
    while (const std::int64_t batch = search.next()) {
      tell(fmt::format("{}: does a batch of {} fit?", p.run.id(), batch), nullptr);
      auto probe = once(p, RunKind::probe, batch, 1, 1, 0);
      if (!probe || probe->gave_up) return probe;
      const RunState s = probe->row.state;
      if (s != RunState::done && s != RunState::out_of_memory) {
        cut = fmt::format("a batch of {} ended as {}", batch, name_of(s));
        out_.notes.add("batch-search-cut", Severity::warning, 1, p.run.id() + ": " + cut,
                       "not for want of memory: the largest batch found may not be the largest that fits");
        cut = "more may fit: " + cut;
        break;
      }
      learn(probe->row);
    }
    std::int64_t batch = std::max<std::int64_t>(1, search.fits);
    if (search.fits == 0)  // below what failed some may have fitted
      for (const std::int64_t fitted : known_batches(rows_, p.hash).fit)
        if (search.fails == 0 || fitted < search.fails) batch = fitted;
    tell(fmt::format("{}: measured at a batch of {}", p.run.id(), batch), nullptr);
    auto m = once(p, RunKind::run, batch, c_.warmup_steps, c_.steps, c_.trace_steps, cut);
    if (!m || m->gave_up || m->row.state != RunState::out_of_memory || batch <= 1) return m;
    // Many steps need more than two did. It is no result of its own: the search goes on below.
    if (const Status ok = store_.interrupted(m->row.id, fmt::format("out of memory at a batch of {}", batch)); !ok)
      return tl::unexpected(ok.error());
    rows_.back().state = RunState::interrupted;
    search.fails = batch;
    search.fits = 0;
  }
}

bool Sweeper::one_program() const {
  const auto program = [&](std::size_t i) {
    const auto launch = launch_of(c_, plan_.runs[i].run, {}, "/", "/");
    return launch ? launch->argv.front() : std::string();
  };
  const std::string first = program(plan_.order.front());
  return std::all_of(plan_.order.begin(), plan_.order.end(), [&](std::size_t i) { return program(i) == first; });
}

Result<RunOutcome> Sweeper::planned(const PlannedRun& p) {
  if (p.run.batch == 0) return largest(p);
  tell(p.run.id(), nullptr);
  return once(p, RunKind::run, p.run.batch, c_.warmup_steps, c_.steps, c_.trace_steps);
}

// The first run that ended well, again: what has changed since is the machine.
Result<bool> Sweeper::reference() {
  if (c_.reference_every <= 0) return false;
  const RunRow* first = nullptr;
  std::int64_t since = 0;
  for (const RunRow& r : rows_) {
    if (r.kind == RunKind::reference && is_result(r.state)) since = 0;
    if (r.kind != RunKind::run || !is_result(r.state)) continue;
    ++since;
    if (!first && r.state == RunState::done && r.step_ms.count > 0)
      if (std::any_of(plan_.runs.begin(), plan_.runs.end(), [&](const PlannedRun& p) { return p.hash == r.hash; }))
        first = &r;
  }
  if (!first || since < c_.reference_every) return false;
  const std::string hash = first->hash;
  const std::int64_t batch = first->batch;
  for (const PlannedRun& p : plan_.runs) {
    if (p.hash != hash) continue;
    tell(p.run.id() + ": the reference again", nullptr);
    const auto m = once(p, RunKind::reference, batch, c_.warmup_steps, c_.steps, 0);
    if (!m) return tl::unexpected(m.error());
    return m->gave_up;
  }
  return false;
}

Result<SweepResult> Sweeper::run() {
  measure_.workers = terms_.tools->workers;
  measure_.readers = terms_.readers;
  measure_.devices = terms_.tools->devices.get();
  measure_.stop = terms_.stop;
  auto rows = store_.rows();
  if (!rows) return tl::unexpected(rows.error());
  rows_ = std::move(*rows);

  for (at_ = 0; at_ < plan_.order.size(); ++at_) {
    if (terms_.stop != nullptr && *terms_.stop) break;
    const auto ends = reference();
    if (!ends) return tl::unexpected(ends.error());
    if (*ends || (terms_.stop != nullptr && *terms_.stop)) break;
    PlannedRun& p = plan_.runs[plan_.order[at_]];
    const auto m = planned(p);
    if (!m) return tl::unexpected(m.error());
    if (m->gave_up) break;
    if (m->not_started && out_.ran == 0 && one_program()) {
      // No result of any run: the settings are wrong.
      if (const Status ok = store_.interrupted(m->row.id, m->row.reason); !ok) return tl::unexpected(ok.error());
      out_.notes.add("cannot-be-started", Severity::warning, 1, p.run.id() + ": " + m->row.reason,
                     "the other runs start the same program: none was tried");
      break;
    }
    ++out_.ran;
    out_.failed += m->row.state == RunState::done ? 0 : 1;
    p.latest = m->row;
    ++p.attempts;
    p.state = PlanState::measured;
    tell(p.run.id(), &m->row);
  }
  out_.stopped = at_ < plan_.order.size();
  return out_;
}

}  // namespace

std::string state_directory(const std::string& store) { return fs::absolute(store).string() + ".d"; }

std::string logs_of(const std::string& store, const RunRow& row) {
  const std::string state = state_directory(store);
  return row.directory.starts_with(state + "/") ? store + ".d" + row.directory.substr(state.size()) : row.directory;
}

Result<RunnerLock> RunnerLock::take(const std::string& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return fail("cannot be made: " + error.message(), directory, "store in [bench], or --store, elsewhere");
  const std::string path = directory + "/runner.lock";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return fail(std::string("cannot be written: ") + std::strerror(errno), path);
  char text[32] = {};
  ssize_t n = 0;
  bool taken = false;
  const auto holder_lives = [&] {
    n = ::pread(fd, text, sizeof text - 1, 0);
    std::int64_t pid = 0;
    return read_int(std::string_view(text, n > 0 ? static_cast<std::size_t>(n) : 0), pid) != NumberState::ok ||
           ::kill(static_cast<pid_t>(pid), 0) == 0;
  };
  // A process that a killed runner was about to start has the lock for a moment longer.
  for (int tries = 0; !(taken = ::flock(fd, LOCK_EX | LOCK_NB) == 0) && tries < 250 && !holder_lives(); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  if (!taken) {
    ::close(fd);
    return fail(fmt::format("another runner measures into this store{}",
                            n > 0 ? fmt::format(" (process {})", std::string(text, static_cast<std::size_t>(n))) : ""),
                directory, "wait for it, or end it");
  }
  const std::string mine = std::to_string(::getpid());
  if (::ftruncate(fd, 0) == 0) (void)!::pwrite(fd, mine.data(), mine.size(), 0);
  return RunnerLock(fd);
}
RunnerLock::RunnerLock(RunnerLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
RunnerLock::~RunnerLock() {
  if (fd_ >= 0) ::close(fd_);
}

Status check_programs(const BenchConfig& config, const RunPlan& plan) {
  Status first;
  for (const std::size_t i : plan.order) {
    const auto launch = launch_of(config, plan.runs[i].run, {}, "/", "/");
    if (launch && (config.slurm.asked || !find_program(launch->argv.front(), launch->start_in).empty())) return {};
    if (!first) continue;
    const std::string id = plan.runs[i].run.id();
    first = launch ? fail("no such program, or it may not be run: " + quote_for_people(launch->argv.front(), 200), id,
                          "a name on PATH, or a path seen from the matrix's file")
                   : Status(tl::unexpected(launch.error()));
  }
  return first;
}

Result<std::int64_t> settle_interrupted(ResultStore& store) {
  const auto rows = store.rows();
  if (!rows) return tl::unexpected(rows.error());
  std::int64_t settled = 0;
  for (const RunRow& r : *rows) {
    if (is_unsettled_search(r)) {
      if (const Status ok = store.interrupted(r.id, "out of memory at the largest batch of its search"); !ok)
        return tl::unexpected(ok.error());
      continue;
    }
    const bool may_come = r.state == RunState::interrupted && r.slurm_job == kJobToCome &&
                          std::abs(unix_seconds() - r.started) < kJobMayCome;
    if (r.state != RunState::running && !may_come) continue;
    if (!r.slurm_job.empty()) {
      const Status ok = cancel_slurm_run(store.token(), r.directory, r.slurm_job);
      if (may_come) continue;
      if (!ok) return tl::unexpected(ok.error());
    } else if (r.host == host_name()) {
      // Only while its leader lives is a session of this number known to be its own: a reboot begins them anew.
      std::string left;
      for (int tries = 0; tries < kTries; ++tries) {  // one that just becomes another program is not seen for a moment
        if (is_alive(r.child)) (void)stop_session(r.child, kGrace);
        (void)kill_processes_with(kRunVariable, r.directory);
        if ((left = processes_left(r.child, r.directory)).empty()) break;
      }
      if (!left.empty())
        return fail("cannot be ended: " + left, r.run, "nothing is measured beside what an earlier run left");
    }
    if (const Status ok = store.interrupted(r.id, "the runner ended before it did"); !ok)
      return tl::unexpected(ok.error());
    ++settled;
  }
  return settled;
}

SweepResult& SweepResult::operator+=(const SweepResult& next) {
  ran += next.ran, failed += next.failed;
  stopped = next.stopped;
  seconds += next.seconds, overhead_s += next.overhead_s, after_s += next.after_s;
  notes.merge(next.notes);
  return *this;
}

Result<SweepTools> prepare_sweep(ResultStore& store, const BenchReaders& readers) {
  SweepTools tools;
  tools.state = state_directory(store.path());
  tools.workers = tools.state + "/workers";
  std::error_code error;
  fs::create_directories(tools.state + "/runs", error);
  if (error) return fail("cannot be made: " + error.message(), tools.state + "/runs");
  if (const Status ok = write_workers(tools.workers); !ok) return tl::unexpected(ok.error());
  tools.devices = DeviceLibrary::open();
  const auto rows = store.rows();
  if (!rows) return tl::unexpected(rows.error());
  for (const RunRow& r : *rows) {
    const std::string traces = r.directory + "/traces";
    if (r.state != RunState::done || r.traced != 0 || !fs::exists(traces, error) || fs::is_empty(traces, error))
      continue;
    if (const Status ok = store.add_shares(r.id, -1, {}); !ok) return tl::unexpected(ok.error());
    if (const auto shares = readers.dissect(traces))
      if (const Status ok = store.add_shares(r.id, 1, *shares); !ok) return tl::unexpected(ok.error());
  }
  return tools;
}

Result<SweepResult> sweep(const BenchConfig& config, RunEstimator& estimator, RunPlan& plan, ResultStore& store,
                          const SweepTerms& terms) {
  return Sweeper(config, estimator, plan, store, terms).run();
}

}  // namespace orrery
