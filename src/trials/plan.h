// Which trial does what: the datasets that are left to do on checkpoints -> trials, balanced over GPUs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace orrery {

// One dataset on one checkpoint, or what is left of it. Times are those that are believed.
struct EvalUnit {
  std::int32_t checkpoint = 0, dataset = 0;  // indices of the caller
  std::int64_t first = 0, items = 1;         // [first, first + items)
  double item_s = 0, prepare_s = 0;          // of inference on one GPU; prepare_s of all items, which pieces share
  double metric_s = 0;                       // of all items in one job, on a CPU
  double metric_fixed_s = 0;                 // of it what each job takes anew, whatever its items
  std::int64_t metric_least_items = 1;       // for its metric's sake it is not split below
  std::int32_t judge = -1;                   // metric jobs of the same judge have a limit together; -1 = none
  bool split = true, metric_by_item = false;

  double gpu_s() const { return prepare_s + item_s * static_cast<double>(items); }
};

// Items of one unit within one trial.
struct TrialPiece {
  std::size_t unit = 0;
  std::int64_t first = 0, items = 0;
};

// One process on one GPU: a load of one checkpoint, then its pieces in their order.
struct EvalTrial {
  std::int32_t checkpoint = 0;
  std::vector<TrialPiece> pieces;
};

inline constexpr double kErrorOfGuesses = 0.3;  // TrialShape::error where nothing is known of some time

struct TrialShape {
  std::int64_t gpus = 1;
  double start_s = 0;   // of a trial, beside the load
  double least_s = 30;  // a piece of a unit is no shorter, its own metric included
  double error = 0;     // sigma of ln(true / believed) of a unit's time: how much is left to decide later
  bool several = true;  // a trial can do several pieces
  bool once = false;    // and at most one of a dataset: what it scores by itself is over all that it did of it
  double limit_s = std::numeric_limits<double>::infinity();  // of a trial, its start included and its load not
};

double gpu_seconds(const EvalUnit& unit, const TrialPiece& piece);
double metric_seconds(const EvalUnit& unit, const TrialPiece& piece);  // its share

// Trials in the order in which free GPUs are to take them. First one a GPU, of even length, in which units with long
// metrics come first and large units are split; then, where times are uncertain, short ones for whoever is free first.
// Every item of every unit is in exactly one piece. Units of an earlier checkpoint come first.
std::vector<EvalTrial> plan_trials(const std::vector<EvalUnit>& units, const TrialShape& shape);

// Splits trials so that none is believed to last longer than the limit, as far as units can be split; those that are
// over it alone stay. The parts of all come in turns, in order of their checkpoints.
void keep_below_limit(const std::vector<EvalUnit>& units, const TrialShape& shape, std::vector<EvalTrial>& trials);
// Seconds of the shortest trial that a unit can be part of: of an item, or of all where it cannot be split.
double shortest_trial_s(const EvalUnit& unit, const TrialShape& shape);

// At most one piece of a dataset in each trial: pieces of one unit that meet in a trial become one, and units of the
// same dataset that meet are parted.
void one_piece_a_dataset(const std::vector<EvalUnit>& units, std::vector<EvalTrial>& trials);

// The yardstick: one trial a unit, in their order.
std::vector<EvalTrial> one_trial_a_unit(const std::vector<EvalUnit>& units);

// OpenCompass' size partitioner: units of descending size (items * gen_coefficient), those above max_task_size in even
// parts, then packed in that order up to max_task_size.
std::vector<EvalTrial> size_partition(const std::vector<EvalUnit>& units, std::int64_t max_task_size = 40'000,
                                      std::int64_t gen_coefficient = 20);

// What no schedule can be shorter than, one after the other beside a load; judge: of the busiest one.
struct MakespanTerms {
  double load_s = 0, longest_s = 0, gpus_s = 0, cpu_jobs_s = 0, judge_s = 0;
  std::int32_t judge = -1;
  double bound_s() const;            // load, longest and gpus: makespan_bound()
  double bound_with_cpus_s() const;  // ... and CPU jobs and judges
};
MakespanTerms makespan_terms(const std::vector<EvalUnit>& units, std::int64_t gpus, std::int64_t cpu_jobs,
                             const std::vector<std::int64_t>& judge_at_once, double load_s);

// No schedule is shorter: load_s + max(the longest piece that cannot be split, with the metric that follows it; all
// inference over the GPUs). load_s: one uncontended load of a checkpoint by a node.
double makespan_bound(const std::vector<EvalUnit>& units, std::int64_t gpus, double load_s);

}  // namespace orrery
