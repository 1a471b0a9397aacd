// All that is learnt of a traced job once, so that another configuration of it can be put together quickly.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "costs/kernels.h"
#include "whatif/contention.h"
#include "whatif/given_layout.h"
#include "whatif/rebuild.h"
#include "whatif/work.h"

namespace orrery {

struct JobModel {
  JobShape base;
  ModelShape shape;
  Program program;
  NetworkModel net;
  KernelCosts costs;
  std::vector<KernelSample> samples;       // one a kernel name and work
  std::vector<Work> work;                  // by sample
  std::vector<std::uint32_t> sample_of;    // by node of the traced job; kNone
  std::vector<std::uint8_t> parameter;     // by node: goes with the parameters of a stage
  std::vector<double> slow;                // by rank: durations of its kernels over its peers'
  double unknown_pct = 0;                  // of the time of kernels that compute: what they compute is not known
};

// `layout` as recognised with the same `given`. Errors: see dissect_job, recognise_model; sends and receives without
// peers; a schedule, micro-batches or layers that are said to be others than the passes have.
Result<JobModel> learn_job(const TraceSet& traces, const GraphBuild& build, const JobLayout& layout,
                           const GivenLayout& given, const Overlap& overlap);

// Whether sizes of work in `next` can be told. Error: a dimension that changes, or that the change needs, is neither in
// the traces nor said.
Status check_dimensions(const JobModel& job, const JobShape& next);

struct RatesError {
  double relative = 0;    // of the time of all kernels that compute: one standard deviation
  double from_facts = 0;  // share of that time that nothing in the trace tells of
};
// Factors of durations from the base to `next`.
Rates rates_for(const JobModel& job, const GraphBuild& build, const JobShape& next, RatesError& error);

}  // namespace orrery
