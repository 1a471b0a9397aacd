// What waited for what, ready to be run again.
//
// A node is a piece of time on one lane: a stretch of host work on a CPU thread, a GPU task, or (without a lane) a
// rendezvous. A node starts when every predecessor has ended and the edge's lag has passed:
//   start = max over predecessors (end(pred) + lag),   end = start + duration.
// Nodes are stored in topological order: every predecessor has a smaller number. finish() establishes that.
//
// A CPU thread is cut at every begin and end of its operators and calls: the node of a boundary carries the host work
// that leads up to it. So a call that begins at b and ends at e is the node ending at b (a launch edge leaves from it:
// kernels often begin before the call returns), then the node ending at e. Gaps are host time, waits are edges.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace orrery {

enum class NodeKind : std::uint8_t {
  host,    // host work up to a boundary (source, at_begin)
  kernel,  // GPU task that computes
  comm,    // GPU task that communicates: collective or point-to-point
  memcpy,
  memset,
  stall,      // device pause that nothing in the trace explains, with work queued; counted and shown
  rendezvous  // all members of a collective lead to it and depend on it; no lane
};

enum class EdgeKind : std::uint8_t {
  root,  // no predecessor: starts at ExecGraph::origin + lag (first host work of a thread, work from before the window)
  thread,     // next boundary on the same CPU thread
  launch,     // begin of the launch call -> GPU task
  stream,     // previous task of the same stream -> GPU task
  event,      // recorded task of another stream -> GPU task (cudaStreamWaitEvent)
  sync,       // GPU task -> end of a blocking host call
  queue,      // launch-queue depth: the task about 1,024 places earlier on the stream -> end of the launch call
  handoff,    // one CPU thread wakes another
  graph,      // between tasks of one graph launch, on one stream or two
  stall,      // device pause -> GPU task
  collective  // member <-> rendezvous
};
inline constexpr std::size_t kEdgeKinds = 11;
std::string_view name_of(EdgeKind k);
std::string_view name_of(NodeKind k);

// The constant lags learnt from one rank's trace, one for each kind of edge between two kinds of node: from the end of
// the predecessor to the start of the node. Never a lag of its own for an edge: that would be a recording.
struct LagTable {
  static constexpr std::size_t kNodeKinds = 7;
  std::array<Ns, kEdgeKinds * kNodeKinds * kNodeKinds> lag{};
  Ns& at(EdgeKind k, NodeKind from, NodeKind to) {
    return lag[(static_cast<std::size_t>(k) * kNodeKinds + static_cast<std::size_t>(from)) * kNodeKinds +
               static_cast<std::size_t>(to)];
  }
  Ns at(EdgeKind k, NodeKind from, NodeKind to) const { return const_cast<LagTable*>(this)->at(k, from, to); }
};

struct GraphRank {
  std::int64_t rank = 0;
  std::uint32_t trace = 0;       // row of TraceSet::ranks
  std::uint32_t first_lane = 0;  // graph lane = first_lane + LaneId of the rank's LaneTable
  std::uint32_t lanes = 0;
  Ns origin = 0;  // the rank's time zero: its window_start
  LagTable lags;
};

struct Step {  // one ProfilerStep of one rank, or the whole trace as step 0
  std::int64_t number = 0;
  std::uint32_t rank = 0;                           // row of ExecGraph::ranks
  Ns begin = 0, end = 0;                            // measured
  NodeId begin_node = kNoNode, end_node = kNoNode;  // boundaries whose end times are the replayed step's begin and end
};

struct ExecGraph {
  // per node
  std::vector<Ns> duration;
  std::vector<Ns> observed_start;   // measured, only ever compared with: replay never reads it
  std::vector<std::uint32_t> lane;  // graph lane; kNone for a rendezvous
  std::vector<NodeKind> kind;
  std::vector<std::uint8_t> at_begin;  // host nodes: 1 = leads up to source's begin, 0 = to its end
  std::vector<std::uint32_t> rank;     // row of `ranks`
  std::vector<OpId> source;            // the trace event this node came from, in its rank's OpTable
  // predecessors, compressed rows: those of node n are [first_pred[n], first_pred[n + 1])
  std::vector<std::uint32_t> first_pred{0};
  std::vector<NodeId> pred;  // kNoNode for EdgeKind::root
  std::vector<EdgeKind> pred_kind;
  std::vector<Ns> pred_lag;  // root: offset from the rank's origin

  std::vector<GraphRank> ranks;
  std::vector<Step> steps;

  std::uint32_t size() const { return static_cast<std::uint32_t>(duration.size()); }
  std::uint32_t edges() const { return static_cast<std::uint32_t>(pred.size()); }
  void clear();  // keeps the buffers
};

// A place in the launch queue is free when a task starts, so the lag of a queue edge is the task's duration, negative.
// To be called after durations were changed.
void refresh_queue_lags(ExecGraph& g);

// Structure only: sizes agree, predecessors smaller than their node, durations >= 0, every node has a predecessor or
// a root edge. The error names the first offending node.
Status check(const ExecGraph& g);

}  // namespace orrery
