// The same pieces of work in another sequence: micro-batches more or fewer.
#pragma once
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "graph/build.h"

namespace orrery {

// Which slice of its rank each node belongs to. Slices of a rank follow each other in program order: the host nodes
// between two cuts, the tasks that they launch, the meetings that those arrive at.
struct Slices {
  std::vector<std::uint32_t> of_node;
  std::vector<std::uint32_t> count;  // by rank
  // Slices that repeat inside a pass (the layers of one forward or backward): by rank and slice, which run of the rank
  // they belong to and their place in it; kNone = none. Empty: no runs.
  struct Place {
    std::uint32_t run = kNone, index = 0;
  };
  std::vector<std::vector<Place>> runs;
};

struct Cut {  // where a slice ends: host nodes that end later are of the next
  Ns at;
};
// `cuts` by rank, ascending. Tasks go with their launch, transfers with their arrival, meetings with the arrival on
// their own rank.
Slices slice(const GraphBuild& build, const std::vector<std::vector<Cut>>& cuts);

// The graph whose rank r runs the slices sequence[r], a list of slices of `slices` with repeats and omissions. A node
// keeps its waits at the same distance in slices: where that leads to another slice than it did, to the node of the
// same lane and place there. So slices that stand in for each other must be alike: same tasks in the same order.
// `unlike` counts waits whose place was not there; they go to the nearest of the lane.
// Error: waits in a circle, which a sequence that the job cannot run has.
Status resequence(GraphBuild& build, const Slices& slices, const std::vector<std::vector<std::uint32_t>>& sequence,
                  std::uint64_t& unlike);

}  // namespace orrery
