// A slow, obvious engine: one instance, one step at a time, every block counted anew. What serving/simulate.h is
// compared with.
#pragma once
#include "serving/simulate.h"

namespace orrery::test {

// Chunked and prefill-first scheduling, paged or reserved cache, preemption by recomputing; no prefixes, no drafts, no
// stages, one replica.
std::vector<RequestRecord> serve_slowly(const StepCosts& costs, std::int64_t blocks, const Workload& workload);

}  // namespace orrery::test
