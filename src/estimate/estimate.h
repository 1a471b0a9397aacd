// What a training or fine-tuning job costs: time, memory, and where both go.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "estimate/job_memory.h"
#include "estimate/step_graph.h"
#include "replay/replay.h"

namespace orrery {

struct FourClasses {  // ns
  double exposed_compute = 0, overlapped = 0, exposed_comm = 0, other = 0, memory = 0;
};

enum class Binds : std::uint8_t { compute, memory_bandwidth, links, bubble, host, copies };
std::string_view name_of(Binds b);

inline constexpr double kHalfOf90 = 1.645;  // half of a 90 % interval, in standard deviations

struct Estimate {
  double iteration_ns = 0;
  double relative_error = 0;        // one standard deviation
  MemoryParts memory, mean_memory;  // of the stage that needs most; over the stages
  double allocated_gib = 0;         // of that stage, what PyTorch's allocator counts as in use
  double capacity_gib = 0;
  double host_memory_gib = 0, host_capacity_gib = 0;  // of a server: what offloading keeps there; 0 = none, not known
  bool fits = true;
  double model_flops = 0;     // of a step, the whole job: 6 a parameter and token, and the attention
  double hardware_flops = 0;  // of a step, one GPU on average: all products, recomputed ones too
  FourClasses classes;        // mean over stages
  struct PartTime {
    Part part;
    StepPhase phase;
    double gpu_ns;  // of a step, mean over stages
  };
  std::vector<PartTime> parts;
  struct PhaseTime {
    double gpu_ns = 0, host_ns = 0;
  };
  std::array<PhaseTime, kStepPhases> phases{};
  std::vector<double> stage_ns;  // compute lane busy
  double bubble_ns = 0;          // compute lane idle while it waits for other stages, mean
  Binds binds = Binds::compute;
  std::uint64_t nodes = 0;
};

// Scratch of many estimates.
struct EstimateScratch {
  StepGraph step;
  Replay replay;
};

// Of a job that check() passes. Many micro-batches are not all simulated: once the pipeline is full every further one
// adds the same time, so two runs that differ by a few give the rest (exact where it is so; the tests compare).
Estimate estimate(const EstimateJob& job, const JobCosts& costs, EstimateScratch& scratch);
// With what stages_of(job, costs) gave.
Estimate estimate(const EstimateJob& job, const JobCosts& costs, const std::vector<StageWork>& stages,
                  EstimateScratch& scratch);

// The largest micro-batch that fits; 0 = none does.
std::int64_t largest_micro_batch(EstimateJob job, const JobCosts& costs);

double model_flops(const EstimateJob& job);

}  // namespace orrery
