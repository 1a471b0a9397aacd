// The graphs of single ranks -> the graph of the job.
#pragma once
#include <vector>

#include "data/notes.h"
#include "graph/build.h"
#include "graph/communication.h"
#include "graph/exec_graph.h"

namespace orrery {

// `pieces` are graphs of one rank each, by rank; nodes of comm.rows are theirs before and those of `out` after. Times
// move to the common clock of comm.clocks. Every meeting becomes a rendezvous node (Meeting::node), every kernel in a
// meeting two nodes: its arrival (at_begin = 1, no duration) and its transfer. The first rank's origin and that of the
// others are in one clock.
void join(std::vector<ExecGraph>& pieces, Communication& comm, std::vector<RankQuality>& quality, Notes& notes,
          ExecGraph& out);

}  // namespace orrery
