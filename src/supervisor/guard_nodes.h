// The test of nodes after a failure that may be theirs.
#pragma once
#include <string>
#include <vector>

#include "supervisor/guard_options.h"
#include "supervisor/guard_types.h"
#include "supervisor/job_runner.h"

namespace orrery {

struct NodesTested {
  std::vector<NodeReport> reports;  // of each usable node
  std::string text;                 // why they were not tested; "" = nothing to say
};

// By the command of the options, else by what the runner has, then those that it `ran` on alone: what others have may
// be theirs.
NodesTested test_nodes(const GuardOptions& options, JobRunner& runner, const std::vector<std::string>& usable,
                       const std::vector<std::string>& ran);

// What a check says of its `i`-th node. One of which no member came in its last test is "untested": whoever starts
// members may have been refused a node that is well.
NodeReport report_of(const std::string& node, const NodeCheck& check, std::size_t i);

}  // namespace orrery
