// ExecGraph -> when every node starts and ends, and what released it. The loop, nothing else.
#pragma once
#include <vector>

#include "graph/exec_graph.h"

namespace orrery {

struct Replay {  // 21 bytes a node; times in the same absolute nanoseconds as the trace
  std::vector<Ns> start, end;
  std::vector<NodeId> released_by;  // kNoNode when a root edge released it
  std::vector<EdgeKind> released_how;
};

// One longest-path sweep in node order. Of several predecessors that release at the same instant the first listed is
// kept. Buffers of `out` are reused.
void replay(const ExecGraph& g, Replay& out);

}  // namespace orrery
