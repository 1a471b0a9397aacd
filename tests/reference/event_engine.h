// A slow engine, obviously right, that only the tests use: Algorithm 1 of the Lumos paper (arXiv 2504.09307) without
// its run-time dependencies, which are edges here. A set of ready tasks, a count of open dependencies each, and when a
// task is run its dependents are told. Nodes may be numbered in any order; nothing is assumed of the graph but that it
// has no cycle.
#pragma once
#include <vector>

#include "graph/exec_graph.h"

namespace orrery {

struct ReferenceRun {
  std::vector<Ns> start, end;
  std::uint32_t ran = 0;  // fewer than the nodes: there is a cycle
};
void run_by_events(const ExecGraph& g, ReferenceRun& out);

}  // namespace orrery
