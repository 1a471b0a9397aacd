// The graphs of single ranks -> the graph of the job.
#pragma once
#include <vector>

#include "graph/build.h"

namespace orrery {

// Graph: from the ranks' own, which are read only; out.communication holds their rows with nodes of those graphs before
// and of out.graph after. Times move to the common clock. Every meeting becomes a rendezvous node (Meeting::node),
// every kernel in a meeting two nodes: its arrival (at_begin = 1, no duration) and its transfer.
void join_graphs(const std::vector<RankGraph>& ranks, GraphBuild& out);

}  // namespace orrery
