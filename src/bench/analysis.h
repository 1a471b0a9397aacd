// What the rows of a store say together: the newest result of each run, how much the machine's noise is and whether it
// drifts, and what became slower since another store.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/plan_runs.h"

namespace orrery {

// A run with all that is known of it.
struct BenchEntry {
  BenchRun run;
  RunEstimate estimate;
  std::string state, reason;  // of the newest result; else of the plan
  std::optional<RunRow> row;  // the newest result of this specification
  bool otherwise = false;     // there are but results of another specification (steps, a command's words)
  std::int64_t attempts = 0;
  bool fitted = false;     // the estimate was fitted to it
  double seconds = 0;      // that it will take
  std::int64_t place = 0;  // in the order, from 1; 0 = it does not run

  bool done() const { return row && row->state == RunState::done; }
  // Of one rank: its device's, else its share of the host's; the peak.
  std::optional<double> memory_gib() const;
  std::optional<double> tokens_per_s() const;  // of what ended well
  bool noisy() const;                          // its steps' standard deviation is above a fifth of their median
  // Estimated over measured, less one, in per cent; by wall time, and by processor time where that was told.
  std::optional<double> error_pct() const;
  std::optional<double> cpu_error_pct() const;
};

// Those of the plan in its order of the file but for what is neither measured nor chosen, then those of the store that
// the matrix no longer has.
std::vector<BenchEntry> entries_of(const RunPlan& plan, const std::vector<RunRow>& rows, RunEstimator& estimator);

struct NoiseCheck {
  std::vector<RunRow> series;  // the reference: its first result, then its repetitions
  double noise = 0;            // standard deviation of their medians over their mean; of at least two
  double drift = 0;            // the last over the first, less one
  bool drifts = false;         // by more than 5 % and by more than three times what single medians vary
};
NoiseCheck noise_of(const std::vector<RunRow>& rows);

// Standard deviation of a median of so many steps, over it (Gauss: 1.253 sd / sqrt(n)).
double spread_of_median(const StepSpread& t);

enum class Change : std::uint8_t { same, faster, slower, fails_now, works_now, only_old, only_new };
std::string_view name_of(Change c);
struct ComparedRun {
  std::string run;
  Change change = Change::same;
  std::string operation{}, shape{};          // "" = the run itself; else one of its operators
  std::optional<double> old_ms{}, new_ms{};  // medians; none of a run of operators, whose times are theirs
  double change_pct = 0, allowed_pct = 0;    // what counts: beyond the noise
  bool worked = false;                       // in the older store
  bool is_gone() const { return change == Change::only_old && worked; }
};
struct StoredResults {
  std::vector<RunRow> rows{};
  std::vector<std::pair<std::int64_t, OperatorRate>> operators{};  // by RunRow::id
};
// By id, and after a run of operators those by operation and shape. A change counts when it is beyond 3 % (of an
// operator 10 %), beyond three times what both medians vary (of an operator, its batches), and beyond three times the
// noise of both stores' references. A run of operators is slower when one of them is.
std::vector<ComparedRun> compare(const StoredResults& before, const StoredResults& now);

// Newest result of each id among runs of the matrix, by id.
std::vector<RunRow> newest(const std::vector<RunRow>& rows);

}  // namespace orrery
