// Edits that change which collectives a job has, written into its program before it is put together anew: data,
// pipeline and tensor parallelism where there were none or are none any more, sequence parallelism, a sharded
// optimizer.
//
// What the traced job has nothing like is modelled: its place as Megatron-LM has it (core/tensor_parallel/layers.py and
// mappings.py, core/distributed, core/pipeline_parallel), its host work as that of the median traced collective, its
// transfer by the network model.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"
#include "whatif/job_model.h"

namespace orrery {

// What frameworks do differently, of what is modelled. The defaults are Megatron-LM's.
struct CollectiveOptions {
  bool exchange_sync = true;    // the host waits for the GPU after each batch of sends and receives (batch_p2p_sync)
  bool broadcast_batch = true;  // under tensor parallelism one rank loads a micro-batch and sends it to the others
  bool scale_gradients = true;  // by the number of replicas, before they are reduced: a kernel for each bucket
  int loss_sums = 3;            // of the split vocabulary: the largest logit, the target's, the sum of exponentials
};

// Whether `next` needs another program than the traced job's.
bool collectives_differ(const JobModel& job, const JobShape& next);

// `job.program` with the collectives of `next`; `modelled` gets a line for each kind that is modelled, and for what it
// rests on. Errors: sharded parameters (check_sharding); work that is not recognised where collectives would have to be
// put; a network that nothing tells of.
Result<Program> edit_collectives(const TraceSet& traces, const GraphBuild& build, const JobModel& job,
                                 const JobShape& next, std::vector<std::string>& modelled,
                                 const CollectiveOptions& options = {});

// Error: parameters are gathered layer by layer in every pass (FSDP, ZeRO-3): such a job's collectives follow from its
// layers and cannot be told by stages' parameters.
Status check_sharding(const GraphBuild& build, const JobLayout& layout, const Program& program);

// Work of a job that is not sequence parallel, as it is when it is: what is done on whole activations outside of
// tensor-parallel regions is split by sequence. `name`: of the kernel.
Work under_sequence_parallelism(const Work& w, std::string_view name);

}  // namespace orrery
