// All that is learnt of a traced job once, so that another configuration of it can be put together quickly.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "costs/cost_table.h"
#include "costs/kernels.h"
#include "whatif/contention.h"
#include "whatif/given_layout.h"
#include "whatif/measured_memory.h"
#include "whatif/rebuild.h"
#include "whatif/work.h"

namespace orrery {

struct JobModel {
  JobShape base;
  ModelShape shape;
  Program program;
  NetworkModel net;
  KernelCosts costs;
  std::vector<std::string> names;        // of kernels, by KernelSample::name
  std::vector<KernelSample> samples;     // one a kernel name and work
  MeasuredMemory memory;                 // of the rank that held most
  double activation_scale = 1;           // measured over modelled, where the traces have memory events
  double capacity_gib = 0;               // of one GPU; 0 = not known
  std::vector<Work> work;                // by sample
  std::vector<Work> split_work;          // by sample: as it would be with sequence parallelism
  std::vector<std::uint32_t> sample_of;  // by node of the traced job; kNone
  std::vector<std::uint8_t> parameter;   // by node: goes with the parameters of a stage
  std::vector<std::uint8_t> weight;      // by node: a product that is the gradient of a weight
  std::vector<double> slow;              // by rank: durations of its kernels over its peers'
  double unknown_pct = 0;                // of the time of kernels that compute: what they compute is not known
};

// `layout` as recognised with the same `given`. Errors: see dissect_job, recognise_model; sends and receives without
// peers; a schedule, micro-batches or layers that are said to be others than the passes have.
Result<JobModel> learn_job(const TraceSet& traces, const GraphBuild& build, const JobLayout& layout,
                           const GivenLayout& given, const Overlap& overlap);

// Megatron-LM makes the rows of embedding and head a multiple of 128 for every tensor-parallel rank.
double padded_vocabulary(double vocab, double tp);
// The same for another degree than that of the base; a vocabulary that is not padded there stays.
double padded_vocabulary(const JobShape& base, double vocab, double tp);

// Whether sizes of work in `next` can be told. Error: a dimension that changes, or that the change needs, is neither in
// the traces nor said.
Status check_dimensions(const JobModel& job, const JobShape& next);

struct RatesError {
  // Of the time of all kernels that compute, one standard deviation: of those that the trace has points of, of others.
  double rescaled = 0, by_facts = 0;
  std::uint64_t from_facts = 0;  // kernels of which nothing in the trace tells
  std::uint64_t from_table = 0;  // kernels whose time the user stated
};
// Factors of durations from the base to `next`. What the table says of a kernel and shape wins.
Rates rates_for(const JobModel& job, const GraphBuild& build, const JobShape& next, const CostTable* table,
                RatesError& error);

// The job as `next`, from `build` (the traced job, or the same nodes with other durations).
Result<Rebuilt> rebuild_as(const TraceSet& traces, const GraphBuild& build, const JobModel& job, const JobShape& next,
                           const CostTable* table, const RebuildOptions& options, RatesError& error);

// Overlap of the traced job, in the rows of the rebuilt job's traces.
Overlap overlap_for(const Rebuilt& rebuilt, const Overlap& traced, const TraceSet& traces);

}  // namespace orrery
