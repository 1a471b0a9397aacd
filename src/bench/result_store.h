// What was measured: one SQLite file, one row a run, with the environment that it ran in. A kill at any moment leaves
// what was finished, and a row that says what was under way.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "processes/child.h"
#include "store/sqlite.h"

namespace orrery {

enum class RunState : std::uint8_t {
  running,  // or was, when the runner was killed
  done,
  out_of_memory,
  hang,        // no line of output for the silence limit
  time_limit,  // it still reported steps
  crashed,
  missing_package,
  refused,     // the worker said why it cannot be
  interrupted  // the runner ended before it did: it is run again
};
std::string_view name_of(RunState s);
bool is_result(RunState s);  // stays: neither running nor interrupted

enum class RunKind : std::uint8_t {
  run,        // of the matrix
  reference,  // the same run again, every so often: what changes is noise and drift
  probe       // of the search for the largest batch
};

struct StepSpread {  // of the steps after the warm-up, ms
  std::int64_t count = 0;
  double mean = 0, median = 0, sd = 0;
};
StepSpread times_of(const std::vector<double>& ms);

struct MeasuredStep {
  std::int64_t step = 0;
  double ms = 0;
  std::optional<double> cpu_ms{};  // processor time of rank 0
};

struct RunRow {
  std::int64_t id = 0;
  std::string run;   // BenchRun::id()
  std::string spec;  // JSON: the run and how it is measured
  std::string hash;  // of spec
  RunKind kind = RunKind::run;
  std::int64_t attempt = 1, batch = 0;
  RunState state = RunState::running;
  std::string reason, category, root_cause, advice;  // of what did not end well
  std::string dropped;  // how many lines of its report were not as they should be, and the first; "" = none
  double started = 0;   // Unix seconds
  double seconds = 0;   // of the whole run
  std::optional<double> startup_s{};  // what is no step: starting, ending, what it left
  Child child;
  std::string host, slurm_job, directory;
  std::int64_t environment = 0;  // 0 = not told
  StepSpread step_ms;
  std::optional<double> cpu_ms{}, prefill_ms{}, decode_ms{};  // medians
  std::optional<double> tokens_per_s{};
  std::optional<double> device_memory_gib{}, device_allocated_gib{}, host_memory_gib{};  // peak; device: largest rank
  std::optional<double> host_base_gib{};  // of host_memory_gib what was there before the model was made
  std::optional<double> device_power_w{}, host_power_w{};  // mean while it ran, all devices; absent = not readable
  std::optional<double> device_mhz{}, host_mhz{}, load{};  // clocks, and the load when it began
  std::optional<double> estimated_step_ms{}, estimated_memory_gib{};
  double overhead_s = 0;  // the runner's own processor time while it ran
  double after_s = 0;     // reading what it left
  int traced = 0;         // 1: shares are stored; 0: there is no trace; -1: it could not be read
};

struct ShareRow {     // where a step's time goes, of its trace
  std::string level;  // phase, module, operator, class
  std::string name, phase;
  double cpu_ms = 0, gpu_ms = 0, pct = 0;
};

struct OperatorRate {  // of an operators run
  std::string operation, shape;
  std::optional<double> us{}, tflops{}, gb_per_s{};
  double spread = 0;  // of its batches, relative; 0 = not known
};

class ResultStore {
 public:
  // Errors: of store/sqlite.h; `create` false: no such file.
  static Result<ResultStore> open(const std::string& path, bool create);

  Result<std::int64_t> begin(const RunRow& row);  // its id; state running
  Status started(std::int64_t id, const Child& child, const std::string& slurm_job);
  // Everything of a run at once, but what its trace says. `environment`: JSON, "" = not told.
  Status finish(const RunRow& row, const std::vector<MeasuredStep>& steps, const std::string& environment,
                const std::vector<OperatorRate>& operators = {});
  // `seconds` that reading them took are added to what the run's reading took.
  Status add_shares(std::int64_t id, int traced, const std::vector<ShareRow>& shares, double seconds = 0);
  Status interrupted(std::int64_t id, const std::string& reason);

  Result<std::vector<RunRow>> rows() const;  // by id
  Result<std::vector<MeasuredStep>> steps(std::int64_t id) const;
  Result<std::vector<std::pair<std::int64_t, ShareRow>>> shares() const;         // of all runs, by id
  Result<std::vector<std::pair<std::int64_t, OperatorRate>>> operators() const;  // the same
  Result<std::vector<std::pair<std::int64_t, std::string>>> environments() const;
  const std::string& path() const { return store_.path(); }
  // Random, made with the store and kept in it; "" of one that was opened to be read.
  const std::string& token() const { return token_; }

 private:
  explicit ResultStore(Store store) : store_(std::move(store)) {}
  Result<bool> has_table(const char* name) const;  // stores of older versions have fewer
  Store store_;
  std::string token_;
};

}  // namespace orrery
