// --platform: the same job on other GPUs.
#pragma once
#include "facts/gpus.h"
#include "whatif/job_model.h"

namespace orrery {

// The GPU that the traces are from; nullptr = not named, or nothing is known of it.
const GpuFacts* gpu_of(const TraceSet& traces);
// The GPU that is meant, in letters of either case. Error: none; the known ones are named.
Result<GpuFacts> known_platform(const std::string& name);

// Products and attention go with the matrix throughput, what is bound by memory with its bandwidth, transfers inside a
// server with NVLink and between servers with the network of the usual server. Host work stays. Kernels of the build
// and the job's network model change in place. Errors: a name that no fact has; a traced GPU that no fact has.
Result<Changed> change_platform(const TraceSet& traces, GraphBuild& build, JobModel& job, const std::string& name);

}  // namespace orrery
