// The replayed run as a Chrome trace that Perfetto opens.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"
#include "data/trace.h"
#include "graph/exec_graph.h"
#include "replay/replay.h"

namespace orrery {

// A process a rank, its CPU threads above its GPU streams; times are microseconds since the earliest event
// ("baseTimeNanoseconds"), in the common clock of the ranks. Slices carry their names and categories of the trace, what
// was observed beside what was replayed, and what released them; a slice that would not nest goes to a track of its own
// ("stream 7 (overlap)"). Flows: launch -> task, and every wait that decided when a node started; through a collective
// the arrow comes from the member, of whatever rank, that arrived last. `critical_path` holds nodes in order of time,
// one or several paths after each other; its slices are marked, and again on a track "critical path" with the reason of
// each hop. gzip when `path` ends in .gz. Errors: what cannot be written; a replay of another graph.
Status write_chrome_trace(const std::string& path, const TraceSet& traces, const ExecGraph& graph, const Replay& replay,
                          const std::vector<NodeId>& critical_path);

}  // namespace orrery
