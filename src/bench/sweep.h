// The runs of a plan, one after the other; kept in the store as they end, so that a kill at any moment costs the run
// that is under way. One runner at a time.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "bench/plan_runs.h"
#include "data/notes.h"

namespace orrery {

// Held while a sweep runs; the kernel lets go of it when the process ends, however it ends.
class RunnerLock {
 public:
  // Errors: another runner has it, and which process that is.
  static Result<RunnerLock> take(const std::string& state_directory);
  RunnerLock(RunnerLock&& other) noexcept;
  RunnerLock& operator=(RunnerLock&&) = delete;
  ~RunnerLock();

 private:
  explicit RunnerLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

// Beside the store: scripts, and a folder a run with its log, specification and traces.
std::string state_directory(const std::string& store);
// Where a run's logs are, for people: as the store is named, where it is the store's.
std::string logs_of(const std::string& store, const RunRow& row);

struct SweepProgress {
  std::size_t done = 0, all = 0;  // runs of the plan
  std::string what;               // id, and what is done of it
  double left_s = 0;              // estimated
  const RunRow* ended = nullptr;  // the run that just ended; nullptr = one begins
};

// What all rounds of a sweep share: made once.
struct SweepTools {
  std::string state, workers;              // directories: beside the store, and in it of the scripts
  std::shared_ptr<DeviceLibrary> devices;  // may be null
};

// Writes the scripts, and reads the traces that a killed runner left unread. Errors: of the store, of the state
// directory.
Result<SweepTools> prepare_sweep(ResultStore& store, const BenchReaders& readers);

struct SweepTerms {
  const SweepTools* tools = nullptr;
  const BenchReaders* readers = nullptr;
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const SweepProgress&)> progress;
};

struct SweepResult {
  std::size_t ran = 0, failed = 0;
  bool stopped = false;
  double seconds = 0, overhead_s = 0,
         after_s = 0;  // of all runs: wall time, the runner's own processor time beside them
  Notes notes;
  SweepResult& operator+=(const SweepResult& next);  // that followed
};

// One round: the plan's runs. Errors: of the store, of the state directory. What goes wrong with a run is its result.
Result<SweepResult> sweep(const BenchConfig& config, RunEstimator& estimator, RunPlan& plan, ResultStore& store,
                          const SweepTerms& terms);

// Errors: none of the planned runs can be started, for want of the program. Of jobs of Slurm that is not seen from
// here.
Status check_programs(const BenchConfig& config, const RunPlan& plan);

// Rows that a killed runner left as running: their processes or jobs are ended, the rows marked. Returns how many.
// Errors: of the store, of Slurm.
Result<std::int64_t> settle_interrupted(ResultStore& store);

}  // namespace orrery
