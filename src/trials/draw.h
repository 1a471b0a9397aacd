// What is to be simulated: units of a configuration, their times as believed and as they turn out.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trials/config.h"
#include "trials/plan.h"
#include "trials/simulate.h"

namespace orrery {

// One checkpoint of each model on every dataset; names by EvalUnit::dataset. Datasets without a prior take the stated
// default; `defaulted` counts them.
struct BelievedUnits {
  std::vector<EvalUnit> units;
  std::vector<std::string> datasets;
  std::int64_t defaulted = 0;
  bool guessed = false;  // the stated default of an item is among them
  double start_s = 0;    // measured: of a trial beside [trial] start_s
};

// Deterministic in `seed`: times of [[drawn]] datasets by their law, all in an order drawn as well, so that no order
// of a file favours anyone. Without [[drawn]] the datasets as they are.
// `measured` wins over what the file says.
using MeasuredByName = std::map<std::pair<std::string, std::string>, MeasuredTimes>;  // (model, dataset)
BelievedUnits draw_units(const EvalConfig& config, std::uint64_t seed, const MeasuredByName& measured = {});

// Times as they turn out: each unit's multiplied by a factor whose logarithm is normal with sigma `error`.
std::vector<EvalUnit> draw_truth(const std::vector<EvalUnit>& believed, double error, std::uint64_t seed);

// One uncontended load of a model by a node; of the smallest.
double load_seconds(const SimCluster& cluster);

SimCluster cluster_of(const EvalConfig& config, std::int64_t nodes);
TrialShape shape_of(const EvalConfig& config, std::int64_t nodes);

// The schedule that `run` would begin with, and what else there could be. Where one trial a unit would be shorter it is
// that: a run does not look so far ahead.
struct PlannedEvals {
  std::int64_t nodes = 1;
  BelievedUnits believed;
  std::vector<EvalTrial> trials;
  EvalTimeline timeline;
  double baseline_s = 0, size_partitioner_s = 0, bound_s = 0;
  MakespanTerms terms;
  // Datasets of which the shortest trial is longer than [trial] limit_s, with its seconds: of the slowest model.
  std::vector<std::pair<std::string, double>> over_limit;
};
PlannedEvals plan_evals(const EvalConfig& config, BelievedUnits believed);

struct SimulatedRun {
  std::uint64_t seed = 0;
  double makespan_s = 0, bound_s = 0, size_partitioner_s = 0;
  double baseline_s = 0;        // one trial a unit, loads of its own, metric on the GPU
  double loads_once_s = 0;      // ... with one load a node
  double metrics_on_cpu_s = 0;  // ... and metrics as CPU jobs: what planning then adds is makespan_s
  double gpu_s = 0;             // of all inference
};
struct SimulatedRuns {
  std::int64_t nodes = 1, gpus = 8;
  std::vector<SimulatedRun> runs;
  BelievedUnits first_units;  // of the first seed, to show
  std::vector<EvalTrial> first_trials;
  EvalTimeline first, first_baseline;
};
// Without measured times: `run` and `plan` have them.
SimulatedRuns simulate_runs(const EvalConfig& config, std::int64_t nodes, unsigned threads);

}  // namespace orrery
