// Which layouts and techniques train a model on so many GPUs, best first.
#pragma once
#include <string>
#include <vector>

#include "estimate/estimate.h"

namespace orrery {

struct PlanSpace {
  std::int64_t gpus = 8;
  std::int64_t global_batch = 0;  // sequences of a step
  // Upper ends; 0 = what the model and the platform allow.
  std::int64_t max_tp = 0, max_pp = 0, max_micro_batch = 16, max_chunks = 4;
  // What was given on the command line is not varied.
  bool vary_tp = true, vary_pp = true, vary_ep = true, vary_micro_batch = true, vary_zero = true, vary_recompute = true,
       vary_schedule = true;
};

struct PlanCandidate {
  EstimateJob job;
  double iteration_ns = 0, relative_error = 0;
  double tokens_per_s = 0;
  MemoryParts memory;
  bool fits = true;
  Binds binds = Binds::compute;
};

struct Plan {
  std::vector<PlanCandidate> candidates;  // those that fit first, the fastest first
  std::uint64_t evaluated = 0;
  std::uint64_t pruned = 0;  // that do not fit whatever they take: not timed
};

// `base` has the model, the platform and what is not varied. Candidates that need over twice a GPU's memory are not
// timed.
Plan plan(const EstimateJob& base, const JobCosts& costs, const PlanSpace& space);

// "tp=2 pp=4 dp=1 ...": the layout and the techniques of a candidate; and as options that repeat it.
std::string layout_text(const EstimateJob& job);
std::string techniques_text(const EstimateJob& job);
std::string options_text(const EstimateJob& job);

}  // namespace orrery
