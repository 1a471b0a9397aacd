// Trials on a cluster whose nodes share a link to storage, as a model: who loads, infers and scores when.
#pragma once
#include <cstdint>
#include <vector>

#include "trials/plan.h"

namespace orrery {

struct SimCluster {
  std::int64_t nodes = 1, gpus_per_node = 8;
  std::int64_t cpu_jobs = 16;               // metric jobs at once, on all nodes together
  bool metrics_on_gpus = false;             // policy on_cpu: GPUs without a trial, when none is left, take metrics too
  double link_bytes_per_s = 3.125e9;        // of a node; concurrent loads share it evenly
  std::vector<double> model_bytes;          // of each checkpoint
  double start_s = 10;                      // of a trial, beside the load
  std::vector<std::int64_t> judge_at_once;  // of each judge
};

enum class SimLoads : std::uint8_t {
  each_trial,  // every trial reads the model from storage
  once_a_node  // the first trial of a checkpoint on a node has it read into shared memory, others wait for that
};
enum class SimMetrics : std::uint8_t {
  on_gpu,         // the trial computes the metric and holds its GPU: of whole units
  on_cpu,         // a CPU job as soon as the outputs are there, long ones first
  after_barrier,  // CPU jobs when all inference is done
};
struct TrialPolicy {
  SimLoads loads = SimLoads::once_a_node;
  SimMetrics metrics = SimMetrics::on_cpu;
};

struct TrialSpan {
  std::int32_t node = 0, gpu = 0;
  double start_s = 0, loaded_s = 0, end_s = 0;  // loaded_s: the model is there, the trial starts
  std::vector<double> piece_end_s;              // of inference, of each piece
};

struct LoadSpan {  // into the shared memory of a node
  std::int32_t node = 0, checkpoint = 0;
  double start_s = 0, end_s = 0;
};

struct MetricSpan {
  std::size_t unit = 0;
  std::int64_t items = 0;  // of the unit; all of them, or of one piece
  std::int32_t lane = 0;   // of the CPU jobs that run at once
  double start_s = 0, end_s = 0;
};

struct EvalTimeline {
  std::vector<TrialSpan> trials;  // as those given
  std::vector<LoadSpan> loads;
  std::vector<MetricSpan> metrics;
  double makespan_s = 0;
};

// Free GPUs take the trials in their order, GPU 0 of each node first. `truth` has the times as they turn out, one a
// unit; `trials` name those units. Deterministic.
EvalTimeline simulate_trials(const std::vector<EvalTrial>& trials, const std::vector<EvalUnit>& truth,
                             const SimCluster& cluster, TrialPolicy policy);

}  // namespace orrery
