// One run: started in a process group of its own, watched, ended at its limits, read, and its row finished.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/launch.h"
#include "bench/machine.h"
#include "bench/result_store.h"
#include "bench/worker_lines.h"

namespace orrery {

struct FoundCause {                                          // of what a run left, as `orrery diagnose` has it
  std::string reason{}, category{}, root_cause{}, advice{};  // reason "" = nothing was found
};

// What lies in other layers: logs and traces are read by their own commands' code.
struct BenchReaders {
  std::function<Result<FoundCause>(const std::vector<std::string>& logs)> diagnose;
  std::function<Result<std::vector<LoggedStep>>(const std::string& log)> logged_steps;
  std::function<Result<std::vector<ShareRow>>(const std::string& directory)> dissect;
};

// A program under way, here or elsewhere.
class Execution {
 public:
  virtual ~Execution() = default;
  virtual Status start(const RunLaunch& launch, const std::string& directory) = 0;
  virtual std::optional<Exit> poll() = 0;
  // With all that it started; returns when they are gone. What could not be ended, in words; "" = nothing.
  virtual std::string stop() = 0;
  virtual Child child() const { return {}; }
  virtual std::string job() const { return ""; }
  virtual bool waiting() const { return false; }  // not begun yet: a queue's time is not the run's
  virtual bool paused() const { return false; }   // begun, and now kept from running: no limit counts this time
  // Why it ended, where the scheduler knows: "out-of-memory", "time-limit", "node"; "" = it does not.
  virtual std::string ended_by() const { return ""; }
};
std::unique_ptr<Execution> local_execution(double memory_limit_gib, std::int64_t ranks);

// Of a run of this machine: what still lives of its session, of what has its directory in its environment and of
// `others`, in words; "" = nothing.
std::string processes_left(const Child& child, const std::string& directory, const std::vector<pid_t>& others = {});

struct RunTerms {
  std::string workers;  // directory of the scripts, absolute
  const BenchReaders* readers = nullptr;
  const DeviceLibrary* devices = nullptr;             // may be null
  const std::atomic<bool>* stop = nullptr;            // set: end the run and give up
  std::function<std::unique_ptr<Execution>()> start;  // a new one
};

struct RunOutcome {
  RunRow row;
  std::vector<MeasuredStep> steps;
  std::string environment;
  bool gave_up = false;      // told to stop: the row is interrupted
  std::string left;          // what of it could not be ended: the row stays as running; "" = nothing
  bool not_started = false;  // there is no such program
};

// `row` has been begun in the store; its directory is there and empty. What the run left is in it afterwards. Errors:
// of the store; that nothing could be started is a result (crashed).
Result<RunOutcome> measure(const BenchConfig& config, const BenchRun& run, const MeasuredAs& as, RunRow row,
                           ResultStore& store, const RunTerms& terms);

// How a run ended; what judge() makes state, reason and the rest of.
struct Ending {
  std::optional<Exit> exit{};
  bool hung = false, out_of_time = false;  // ended by the runner, at a limit
  bool kernel_killed = false;              // its out-of-memory killer struck
  std::string scheduler{};                 // Execution::ended_by
  // Of the task `operators`, which has no steps: rows of the table that it left, and what it says it did not measure.
  std::optional<std::int64_t> operators{};
  std::string left_out{};
};
void judge(const WorkerReport& report, const Ending& ending, const FoundCause& verdict, std::int64_t asked_steps,
           double silence_s, double limit_s, RunRow& row);

}  // namespace orrery
