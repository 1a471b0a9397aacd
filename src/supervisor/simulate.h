// A large training job over months of failures, under policies of restarting and saving.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace orrery {

enum class Restarts : std::uint8_t { people, guard };
enum class Saves : std::uint8_t { sync, async };

struct Policy {
  Restarts restarts = Restarts::guard;
  Saves saves = Saves::async;
};
std::string_view name_of(Policy policy);  // "manual-sync", "manual-async", "guard-sync", "guard-async"

struct MonthsQuestion {
  std::int64_t gpus = 2048, gpus_per_node = 8;
  double days = 30;
  double mtbf_s = 0;          // between failures of the whole job; 0 = the study's rate at this many GPUs
  double interval_s = 1800;   // of training between saves; 0 = each policy's best
  double save_s = 60;         // until all of a checkpoint is on storage: what a synchronous save blocks
  double copy_s = 6;          // what an asynchronous save blocks
  double startup_s = 300;     // from the start of a run to its first step, loading included
  double detect_s = 30;       // guard: from the failure until it is noticed
  double check_s = 60;        // guard: finding the bad nodes
  double automatic = 0.9;     // guard: share of failures in which no person is needed
  std::int64_t spares = 2;    // guard: nodes that stand by
  double repair_s = 86'400;   // mean, exponential: until a bad node is a spare
  std::int64_t trials = 200;  // runs of so many days
  std::uint64_t seed = 1;
};

struct CauseLoss {
  std::string_view cause;  // a reason of the study; "start": the first one; "saves"
  double failures = 0;     // these and the seconds: mean of the trials
  double work_s = 0;       // trained and not kept
  double waiting_s = 0;    // from the failure to the next start
  double starting_s = 0;   // of the start that followed
  double saving_s = 0;
  double all_s() const { return work_s + waiting_s + starting_s + saving_s; }
};

struct PolicyMonths {
  Policy policy;
  double mtbf_s = 0, interval_s = 0, best_interval_s = 0, young_s = 0, daly_s = 0;
  double wall_s = 0;
  double running_s = 0;  // of wall_s: starts, training, saves
  double useful_s = 0;   // of running_s: training that was kept, or not yet lost in the end
  double failures = 0;
  std::vector<double> ettr;  // of each trial, ascending
  std::vector<CauseLoss> causes;
  // Of the GPU time of runs, and of the time from begin to end (effective training time ratio): shares that were of
  // use.
  double goodput() const { return useful_s / running_s; }
  double ettr_mean() const { return useful_s / wall_s; }
};

// How many failures all trials together would have, about: what a simulation costs.
double expected_failures(const MonthsQuestion& question);

// The same failures strike every policy: the n-th run of a trial lives as long in all of them, and fails of the same.
// Deterministic in the question, whatever `threads` (0 = all cores).
PolicyMonths simulate_months(const MonthsQuestion& question, Policy policy, unsigned threads);

}  // namespace orrery
