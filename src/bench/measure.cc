#include "bench/measure.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/byte_source.h"
#include "base/file_end.h"
#include "base/json_text.h"
#include "base/median.h"
#include "base/output.h"
#include "bench/plan_runs.h"
#include "bench/run_estimate.h"
#include "costs/operator_table.h"
#include "processes/find.h"
#include "processes/orphans.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr double kGib = 1 << 30;
constexpr std::size_t kMostOutput = std::size_t{64} << 20;
constexpr std::string_view kNotMeasured = "asked-and-not-measured";  // the note's name
constexpr double kGrace = 5;                                         // s, of a program that is told to end
constexpr auto kPoll = std::chrono::milliseconds(50), kPollAtFirst = std::chrono::milliseconds(10);
constexpr double kSampleEvery = 0.5, kSampleEveryAtFirst = 0.1, kFirst = 2;  // s
constexpr std::array kFirstSamples = {0.01, 0.02, 0.05, 0.1};                // s after the start
// How far above what this process holds a child's count must be to be of what it became: both are not exact.
constexpr double kAboveImage = 1.25;

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double own_cpu_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

// A run may be over in a moment.
double next_sample(double now_s) {
  for (const double s : kFirstSamples)
    if (now_s < s) return s;
  return now_s + (now_s < kFirst ? kSampleEveryAtFirst : kSampleEvery);
}

std::uint64_t size_of(const std::string& path) {
  struct stat s {};
  return ::stat(path.c_str(), &s) == 0 ? static_cast<std::uint64_t>(s.st_size) : 0;
}

// The whole file; of one that is larger than any report its begin.
std::string text_of(const std::string& path) { return read_at_most(path, kMostOutput).value_or(""); }

class Local final : public Execution {
 public:
  Local(double memory_limit_gib, std::int64_t ranks) : limit_(memory_limit_gib), ranks_(ranks) {}
  Status start(const RunLaunch& launch, const std::string& directory) override {
    ChildTerms terms;
    terms.argv = launch.argv;
    // util-linux's prlimit: what a process may keep of its own. Each rank has its share.
    if (limit_ > 0)
      terms.argv.insert(terms.argv.begin(),
                        {"prlimit", fmt::format("--data={:.0f}", limit_ * kGib / static_cast<double>(ranks_)), "--"});
    terms.environment = launch.environment;
    terms.directory = launch.start_in;
    terms.output = directory + "/stdout.log";
    terms.errors = directory + "/stderr.log";
    terms.dies_with_parent = true;
    image_bytes_ = resident_bytes();
    orphans_.emplace();
    auto child = start_child(terms);
    if (!child) return tl::unexpected(child.error());
    child_ = *child;
    directory_ = directory;
    return {};
  }
  std::optional<Exit> poll() override {
    orphans_->reap(child_);
    auto exit = poll_child(child_);
    if (!exit) return exit;
    if (static_cast<double>(exit->peak_bytes) <= kAboveImage * image_bytes_) exit->peak_bytes = 0;
    exit->peak_bytes = std::max(exit->peak_bytes, orphans_->peak_bytes());
    return exit;
  }
  std::string stop() override {
    const bool session = stop_session(child_, kGrace);
    // In sessions of their own, some with environments of their own.
    const bool marked = kill_processes_with(kRunVariable, directory_), orphans = orphans_->end();
    if (session && marked && orphans) return "";
    return processes_left(child_, directory_, orphans_->left());
  }
  Child child() const override { return child_; }

 private:
  double limit_;
  std::int64_t ranks_;
  Child child_;
  std::string directory_;
  std::optional<Orphans> orphans_;
  double image_bytes_ = 0;  // what this process held when it forked
};

// Those of the machine's devices that a run may use: what others draw and hold is not its own.
std::vector<std::size_t> devices_of(const BenchConfig& config, const BenchRun& run, const RunLaunch& launch,
                                    const DeviceLibrary* library) {
  const auto& options = config.operator_options;
  const bool operators_on_gpu = std::any_of(options.begin(), options.end(),
                                            [](const std::string& w) { return w.find("cuda") != std::string::npos; });
  if (library == nullptr || config.device == "cpu" || run.framework == BenchFramework::trainer ||
      (run.framework == BenchFramework::orrery && !operators_on_gpu))
    return {};
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");  // NOLINT: nothing sets it
  for (const auto& [name, value] : launch.environment)
    if (name == "CUDA_VISIBLE_DEVICES") visible = value.c_str();
  std::vector<std::string> uuids;
  for (std::size_t i = 0; i < library->count(); ++i) uuids.push_back(library->uuid(i));
  std::vector<std::size_t> devices = visible_devices(visible, uuids);
  devices.resize(std::min(devices.size(), static_cast<std::size_t>(run.gpus)));
  return devices;
}

std::optional<double> larger(std::optional<double> a, std::optional<double> b) {
  return a && b ? std::max(*a, *b) : a ? a : b;
}

void set_power(MachineSamples s, const WorkerReport& r, RunRow& row) {
  if (r.on_host) s.device_peak_bytes = s.device_watts = s.device_mhz = std::nullopt;
  row.device_power_w = r.power_w ? r.power_w : s.device_watts;
  row.host_power_w = s.host_watts;
  row.device_mhz = s.device_mhz;
  row.host_mhz = s.host_mhz;
  const auto gib = [](std::optional<double> bytes) { return bytes ? std::optional(*bytes / kGib) : std::nullopt; };
  // The device's own count has what the allocator does not: contexts and libraries. Samples of it may miss the peak,
  // and begin before the steps do: they stand where no worker told its device's count.
  row.device_memory_gib =
      gib(larger(r.device_peak_bytes, r.device_used_bytes ? r.device_used_bytes : s.device_peak_bytes));
  row.device_allocated_gib = gib(r.device_allocated_bytes);
  row.host_memory_gib = gib(r.host_peak_bytes ? r.host_peak_bytes : s.host_peak_bytes);
  row.host_base_gib = r.host_peak_bytes ? gib(r.host_base_bytes) : std::nullopt;
}

void set_times(const BenchRun& run, const WorkerReport& r, RunRow& row) {
  std::vector<double> ms, cpu;
  for (const MeasuredStep& s : r.steps) {
    ms.push_back(s.ms);
    if (s.cpu_ms) cpu.push_back(*s.cpu_ms);
  }
  row.step_ms = times_of(ms);
  if (!cpu.empty()) row.cpu_ms = times_of(cpu).median;
  if (!r.prefill_ms.empty()) row.prefill_ms = times_of(r.prefill_ms).median;
  if (!r.decode_ms.empty()) row.decode_ms = times_of(r.decode_ms).median;
  row.tokens_per_s = tokens_per_s(run, row);
}

// What is left where there is no such program: the exit status of env and sh, or a word of srun's.
bool was_not_found(const Ending& ending, const WorkerReport& report, const std::string& text) {
  if (!ending.exit || ending.exit->good() || !report.steps.empty() || report.warm_steps > 0) return false;
  return ending.exit->status == 127 || ending.exit->status == 126 || text.find("execve(): ") != std::string::npos;
}

// How the logs of a run end, in words: standard error first. "" = they say nothing.
std::string how_logs_end(const std::string& directory) {
  for (const char* const log : {"stderr.log", "stdout.log"})
    if (const std::string words = last_words(end_of_file(directory + "/" + log)); !words.empty())
      return fmt::format("{} ends: \"{}\"", log, quote_for_people(words, 200));
  return "";
}

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

// Traces that a worker left elsewhere, as if they were in `traces`: there a later runner finds them as well.
void link_traces(const fs::path& elsewhere, const fs::path& traces) {
  std::error_code error;
  if (!fs::is_directory(elsewhere, error) || fs::equivalent(elsewhere, traces, error)) return;
  if (fs::is_directory(traces, error) && !fs::is_empty(traces, error)) return;
  fs::remove(traces, error);
  fs::create_directory_symlink(elsewhere, traces, error);
}

// Of what the reason alone may not explain: the logs are to be asked.
bool ends_unexplained(RunState s) {
  return s == RunState::crashed || s == RunState::hang || s == RunState::time_limit || s == RunState::out_of_memory;
}

// The line of `orrery bench ops` that says what was asked for and not measured; "" = it was all.
std::string left_out_of(const std::string& text) {
  const std::size_t begin = text.find(kNotMeasured);
  if (begin == std::string::npos) return "";
  return quote_for_people(text.substr(begin, std::min(text.find('\n', begin), text.size()) - begin), 200);
}

// Of a table of `orrery bench ops`; none of one that cannot be read.
std::vector<OperatorRate> rates_of(const std::string& path) {
  std::vector<OperatorRate> out;
  const auto table = parse_operator_table(text_of(path), path);
  if (!table) return out;
  for (const OperatorRow& r : table->rows) {
    OperatorRate rate{kernel_text(r), shape_text(r), r.ns / 1e3};
    rate.spread = r.noisy ? std::max(r.spread, kNoisySpread) : r.spread;
    if (r.flops > 0) rate.tflops = r.flops / r.ns / 1e3;
    if (r.bytes > 0) rate.gb_per_s = r.bytes / r.ns;
    out.push_back(std::move(rate));
  }
  return out;
}

}  // namespace

std::string processes_left(const Child& child, const std::string& directory, const std::vector<pid_t>& others) {
  std::vector<pid_t> pids = processes_with(kRunVariable, directory);
  pids.insert(pids.end(), others.begin(), others.end());
  std::erase(pids, ::getpid());
  if (is_alive(child)) {
    const std::vector<pid_t> members = session_members(child.pid);
    pids.insert(pids.end(), members.begin(), members.end());
  }
  std::sort(pids.begin(), pids.end());
  pids.erase(std::unique(pids.begin(), pids.end()), pids.end());
  return pids.empty() ? "" : fmt::format("process {}", fmt::join(pids, ", "));
}

std::unique_ptr<Execution> local_execution(double memory_limit_gib, std::int64_t ranks) {
  return std::make_unique<Local>(memory_limit_gib, ranks);
}

void judge(const WorkerReport& report, const Ending& ending, const FoundCause& verdict, std::int64_t asked_steps,
           double silence_s, double limit_s, RunRow& row) {
  const auto say = [&](RunState state, std::string reason) {
    row.state = state;
    row.reason = std::move(reason);
    row.category = verdict.category;
    row.root_cause = verdict.root_cause;
    row.advice = verdict.advice;
  };
  const auto steps = static_cast<std::int64_t>(report.steps.size());
  // Nobody knows how it ended (Slurm forgot the job): what it reported tells.
  const bool untold = ending.exit && ending.exit->status == -1 && ending.exit->signal == 0;
  const std::string done = ending.operators ? fmt::format("{} operators", *ending.operators)
                                            : fmt::format("{} of {} steps", steps, asked_steps);
  if (!report.missing.empty()) {
    say(RunState::missing_package, "no package " + report.missing);
    row.advice = "install it for the Python that [bench] names, or take the run out of the matrix";
    return;
  }
  if (!report.refused.empty()) return say(RunState::refused, report.refused);
  const bool memory =
      verdict.reason == "Out of Memory Error" || ending.kernel_killed || ending.scheduler == "out-of-memory";
  if (ending.hung)
    return say(RunState::hang, fmt::format("nothing said for {:g} s after {}{}", silence_s, done,
                                           verdict.reason.empty() ? "" : "; its log: " + verdict.reason));
  if (ending.out_of_time || ending.scheduler == "time-limit")
    return say(RunState::time_limit, fmt::format("{} in {:g} s", done, limit_s));
  bool good = ending.exit && ending.exit->good(), all = steps >= asked_steps;
  if (ending.operators) {
    // With the exit status 1 it measured all but some that it names. What the scheduler ended is not whole.
    all = *ending.operators > 0 && ending.scheduler.empty();
    good = good || (all && ending.exit && ending.exit->signal == 0 && ending.exit->status == 1);
  }
  if ((good || untold) && all) {
    row.state = RunState::done;
    if (!ending.left_out.empty()) row.reason = ending.left_out;
    return;
  }
  if (memory)
    return say(RunState::out_of_memory,
               ending.kernel_killed ? "killed by the kernel, which was out of memory" : "Out of Memory Error");
  const std::string how = ending.exit && !untold ? describe(*ending.exit) : std::string("it is gone");
  if (verdict.reason == "Import Error" && verdict.root_cause.find("No module named") != std::string::npos) {
    const std::size_t from = verdict.root_cause.find("No module named");
    return say(RunState::missing_package, verdict.root_cause.substr(from, 80));
  }
  if (!verdict.reason.empty()) return say(RunState::crashed, fmt::format("{} ({})", verdict.reason, how));
  if (!ending.scheduler.empty()) return say(RunState::crashed, fmt::format("{} ({})", ending.scheduler, how));
  if (good) {
    say(RunState::crashed, fmt::format("it ended well after {}", done));
    if (!ending.operators) row.advice = "docs/formats/bench.md says how a command reports its steps";
    return;
  }
  say(RunState::crashed, fmt::format("{} after {}", how, done));
}

Result<RunOutcome> measure(const BenchConfig& config, const BenchRun& run, const MeasuredAs& as, RunRow row,
                           ResultStore& store, const RunTerms& terms) {
  RunOutcome m;
  m.row = std::move(row);
  RunRow& r = m.row;
  const double cpu_before = own_cpu_seconds();
  Ending ending;
  MachineSamples samples;
  const auto launch = launch_of(config, run, as, r.directory, terms.workers);
  Status started = launch ? Status{} : Status(tl::unexpected(launch.error()));
  if (started) started = write_file(r.directory + "/spec.json", launch->spec);
  if (started && as.trace_steps > 0 && run.framework != BenchFramework::trainer) {
    std::error_code error;
    fs::create_directories(r.directory + "/traces", error);
    if (error) started = fail("cannot be made: " + error.message(), r.directory + "/traces");
  }
  const std::string out = r.directory + "/stdout.log", err = r.directory + "/stderr.log";
  const auto oom_before = kernel_oom_kills();
  std::unique_ptr<Execution> execution;
  if (started) {
    execution = terms.start();
    started = execution->start(*launch, r.directory);
  }
  if (!started) {
    r.state = RunState::crashed;
    r.reason = "cannot be started: " + started.error().line();
    m.not_started = true;
    if (const Status ok = store.finish(r, {}, ""); !ok) return tl::unexpected(ok.error());
    return m;
  }
  if (const Status ok = store.started(r.id, execution->child(), execution->job()); !ok) {
    (void)execution->stop();
    return tl::unexpected(ok.error());
  }

  {
    Sampler sampler(execution->child(), {kRunVariable, r.directory}, terms.devices,
                    devices_of(config, run, *launch, terms.devices));
    auto ran = Clock::now(), spoke = ran, looked = ran;
    sampler.sample();  // a run may be over before the next
    double due = next_sample(0);
    std::uint64_t said = 0;
    while (!(ending.exit = execution->poll())) {
      if (terms.stop != nullptr && *terms.stop) {
        m.left = execution->stop();
        m.gave_up = true;
        break;
      }
      const auto before = std::exchange(looked, Clock::now());
      if (execution->waiting() || execution->paused()) {
        ran = execution->waiting() ? looked : ran + (looked - before);
        spoke = execution->waiting() ? looked : spoke + (looked - before);
        std::this_thread::sleep_for(kPoll);
        continue;
      }
      if (const double now_s = since(ran); now_s >= due) {
        sampler.sample();
        due = next_sample(now_s);
      }
      const std::uint64_t now = size_of(out) + size_of(err);
      if (now != said) {
        said = now;
        spoke = Clock::now();
      }
      if (since(ran) >= config.time_limit_s) ending.out_of_time = true;
      // This tool's own operators say nothing before they are all measured, within a budget of their own.
      if (run.task != BenchTask::operators && since(spoke) >= config.silence_limit_s) ending.hung = true;
      if (ending.out_of_time || ending.hung) {
        ending.exit = execution->poll();
        m.left = execution->stop();
        break;
      }
      std::this_thread::sleep_for(since(ran) < kFirstSamples.back() ? kPollAtFirst : kPoll);
    }
    // A rank may outlive the program that started it.
    if (ending.exit) m.left = execution->stop();
    r.seconds = since(ran);
    samples = sampler.result();
    // What the largest of its processes had is known whenever it ended.
    if (ending.exit && ending.exit->peak_bytes > 0)
      samples.host_peak_bytes = larger(samples.host_peak_bytes, static_cast<double>(ending.exit->peak_bytes));
  }
  r.overhead_s = own_cpu_seconds() - cpu_before;
  if (!m.left.empty()) return m;  // the next runner ends it, and measures again
  if (m.gave_up) {
    if (const Status ok = store.interrupted(r.id, "the runner was told to stop"); !ok)
      return tl::unexpected(ok.error());
    r.state = RunState::interrupted;
    return m;
  }
  ending.scheduler = execution->ended_by();
  const auto oom_after = kernel_oom_kills();
  const bool here = execution->child().pid != 0;  // else this machine's counters are not the run's
  ending.kernel_killed = here && oom_before && oom_after && *oom_after > *oom_before && ending.exit &&
                         (ending.exit->signal == SIGKILL || ending.exit->status == 128 + SIGKILL);

  const auto after = Clock::now();
  WorkerReport report;
  const std::string text = text_of(out);
  if (launch->reports == BenchCommand::Reports::lines) {
    report = read_worker_lines(text);
  } else if (launch->reports == BenchCommand::Reports::pattern) {
    report = read_by_pattern(text + "\n" + text_of(err), launch->step_ms, as.warmup_steps);
  } else {
    // Python's logging goes to standard error.
    for (const std::string& log : {out, err})
      if (const auto logged = terms.readers->logged_steps(log)) {
        WorkerReport more = read_logged_steps(*logged, as.warmup_steps);
        if (more.seen_steps() > report.seen_steps()) report = std::move(more);
      }
  }
  std::int64_t asked = as.steps;
  std::vector<OperatorRate> rates;
  if (run.task == BenchTask::operators) {
    asked = 0;
    rates = rates_of(r.directory + "/" + kOperatorsFile);
    ending.operators = static_cast<std::int64_t>(rates.size());
    ending.left_out = left_out_of(text);
  } else {
    set_times(run, report, r);
  }
  set_power(samples, report, r);
  FoundCause verdict;
  const bool well = ending.exit && ending.exit->good() && static_cast<std::int64_t>(report.steps.size()) >= asked;
  if (!well) {
    auto found = terms.readers->diagnose({out, err});
    if (found) verdict = std::move(*found);
  }
  judge(report, ending, verdict, asked, config.silence_limit_s, config.time_limit_s, r);
  const std::string errors = text_of(err);
  if (const std::string said = text + errors; r.state == RunState::crashed && was_not_found(ending, report, said)) {
    m.not_started = true;
    r.reason = "cannot be started: " + quote_for_people(last_line(said), 200);
  }
  if (r.root_cause.empty() && !m.not_started && ends_unexplained(r.state)) {
    const bool well_or_long = r.state == RunState::crashed
                                  ? ending.exit && ending.exit->good()
                                  : run.framework == BenchFramework::command && r.state != RunState::out_of_memory &&
                                        report.seen_steps() == 0;
    if (well_or_long && run.task != BenchTask::operators) {
      const bool both = launch->reports != BenchCommand::Reports::lines;
      r.root_cause = who_reported(report, both ? text + "\n" + errors : text, launch->reports, launch->step_ms);
    } else {
      r.root_cause = how_logs_end(r.directory);
    }
  }
  if (r.state == RunState::crashed && (size_of(out) > kMostOutput || size_of(err) > kMostOutput))
    r.reason += fmt::format("; of its output the first {} MiB were read", kMostOutput >> 20);
  if (report.bad_lines > 0) {
    r.dropped = fmt::format("{} line{} of its report dropped: {}", report.bad_lines, report.bad_lines > 1 ? "s" : "",
                            quote_for_people(report.first_bad, 100));
    r.reason += (r.reason.empty() ? "" : "; ") + r.dropped;
  }
  // What is neither a warm-up nor a measured step nor one of the trace: starting, and ending. A plan counts steps the
  // same way.
  double steps_s = 0;
  for (const MeasuredStep& s : report.steps) steps_s += s.ms / 1e3;
  if (!report.steps.empty()) {
    const double each = steps_s / static_cast<double>(report.steps.size());
    r.startup_s = std::max(0.0, r.seconds - each * counted_steps(run, as));
  }
  m.steps = report.steps;
  m.environment = environment_json(terms.devices, report.environment, here);
  r.after_s = since(after);
  if (r.state != RunState::done) rates.clear();
  if (const Status ok = store.finish(r, m.steps, m.environment, rates); !ok) return tl::unexpected(ok.error());

  // The row stands: a trace that cannot be read costs nothing of it.
  const auto reading = Clock::now();
  const std::string traces = r.directory + "/traces";
  std::error_code error;
  if (r.state == RunState::done && as.trace_steps > 0 && !report.trace_directory.empty())
    link_traces(fs::path(launch->start_in) / report.trace_directory, traces);
  if (r.state == RunState::done && as.trace_steps > 0 && fs::exists(traces, error) && !fs::is_empty(traces, error)) {
    const auto shares = terms.readers->dissect(traces);
    r.traced = shares ? 1 : -1;
    const Status ok = store.add_shares(r.id, r.traced, shares ? *shares : std::vector<ShareRow>(), since(reading));
    if (!ok) return tl::unexpected(ok.error());
  }
  r.after_s += since(reading);
  return m;
}

}  // namespace orrery
