// The configuration that structural edits ask for, checked as a whole.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "costs/memory.h"
#include "whatif/edits.h"
#include "whatif/job_model.h"

namespace orrery {

// Names of the options that say a number or word of the configuration, in the order in which answers list them.
const std::vector<std::string>& shape_edits();

// Whether each value is what its option takes, before any trace is read. Error: the first that is not.
Status check_values(const std::map<std::string, std::string>& asked);

// `asked`: option -> value. The final configuration is checked, not the way to it; no other dimension follows, except
// key-value heads that were as many as heads, the padding of a vocabulary split among other ranks, and micro-batches
// of a --global-batch-size. Errors: values that are none; a configuration that cannot be, with the reason.
Result<JobShape> target_shape(const JobModel& job, const std::map<std::string, std::string>& asked);
bool same_shape(const JobShape& a, const JobShape& b);
// The same for a configuration that was put together otherwise (a search).
Status check_shape(const JobShape& shape);

// One row an option: what it takes for granted and how sure it is. `changes` nodes for those that differ from the base.
std::vector<AppliedEdit> describe_shape_edits(const JobModel& job, const JobShape& next,
                                              const std::map<std::string, std::string>& asked, const RatesError& error,
                                              Changed changes);

// "1f1b", "interleaved:2", "zero-bubble".
std::string schedule_text(const JobShape& shape);

// Memory of the fullest stage, its activations scaled by what the traces measured.
MemoryJob memory_job(const JobModel& job, const JobShape& shape);

}  // namespace orrery
