// A matrix and what is measured of it already -> what is to be done, in which order.
#pragma once
#include <string>
#include <vector>

#include "bench/launch.h"
#include "bench/matrix.h"
#include "bench/order.h"
#include "bench/result_store.h"
#include "bench/run_estimate.h"

namespace orrery {

enum class PlanState : std::uint8_t {
  planned,
  measured,      // a result is in the store
  refused,       // by the rules
  does_not_fit,  // by the estimate
  over_budget,
  not_chosen  // --runs names others
};
std::string_view name_of(PlanState s);

struct PlannedRun {
  BenchRun run;
  RunEstimate estimate;
  std::string spec, hash;
  double seconds = 0;  // that it will take
  PlanState state = PlanState::planned;
  std::string reason;
  std::int64_t attempts = 0;  // results in the store
  RunRow latest;              // where there is one
};

struct RunPlan {
  std::vector<PlannedRun> runs;    // in the order of the file; those refused last
  std::vector<std::size_t> order;  // of those planned
  std::int64_t doubles = 0;
  double seconds = 0;  // of those planned together
};

struct RunPlanTerms {
  std::string only;     // part of an id; "" = all
  bool unfit = false;   // run what does not fit by the estimate, too
  bool repeat = false;  // run what is measured, too
  double budget_s = 0;  // 0 = the config's
};

RunPlan plan_runs(const BenchConfig& config, RunEstimator& estimator, const std::vector<RunRow>& rows,
                  const RunPlanTerms& terms);

// Steps that a run makes, as long as they take: one that is traced counts for three.
double counted_steps(const BenchRun& run, const MeasuredAs& as);

// How long a run takes: what runs of its framework or command took to start, and its steps. `scale`: measured step
// times over estimated ones, 1 where nothing is measured.
struct Pace {
  double startup_s = 0, scale = 1;
  double unknown_s = 60;  // of a run that is not estimated: as others of its task, else of its command
};
Pace pace_of(const std::vector<RunRow>& rows, const BenchRun& run);
std::string pace_key(const BenchRun& run);  // runs with the same have the same pace
double seconds_of(const BenchConfig& config, const BenchRun& run, const RunEstimate& estimate, const Pace& pace);

// The search for the largest batch: which is to be tried next, of what is known. 0 = it is settled: `largest` is the
// answer (0: not even one sequence fits).
struct BatchSearch {
  std::int64_t first = 1, limit = 1024;
  std::int64_t fits = 0;   // the largest that did
  std::int64_t fails = 0;  // the smallest that did not; 0 = none
  std::int64_t next() const;
  void tried(std::int64_t batch, bool fitted);
};

// What the probes of a specification in these rows say.
struct KnownBatches {
  std::vector<std::int64_t> fit{};  // ascending
  std::int64_t fails = 0;           // the smallest that did not; 0 = none
  bool cut = false;                 // one ended in another way, which says nothing of the memory
};
KnownBatches known_batches(const std::vector<RunRow>& rows, const std::string& hash);

// The run stands at the largest batch that its search was allowed to try: none was too large.
bool ended_at_its_limit(const RunRow& run, const std::vector<RunRow>& rows);

}  // namespace orrery
