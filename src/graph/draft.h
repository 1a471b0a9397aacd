// One rank's graph while it is being put together: nodes in any order, edges as a list. Each file of this folder adds
// one kind of knowledge; build.cc calls them in order and assemble.cc turns the draft into an ExecGraph.
// All buffers are cleared and reused from rank to rank.
#pragma once
#include <cstdint>
#include <vector>

#include "graph/build.h"
#include "graph/calls.h"

namespace orrery {

struct DraftNode {
  Ns duration;
  Ns observed_start;
  std::uint32_t lane;    // LaneId of the rank, kNone = none
  std::uint32_t source;  // row of OpTable, kNone = none
  NodeKind kind;
  std::uint8_t at_begin;
  bool chained;  // a thread edge without lag leads here from the node before: most edges are that, and are not listed
};

struct DraftEdge {
  std::uint32_t from;  // draft node, kNone for a root
  std::uint32_t to;    // draft node
  Ns lag;
  EdgeKind kind;
};

// A call that matters to streams (launch, record, wait, blocking), in host order over all threads.
struct CallRow {
  Ns begin, end;
  std::uint32_t op;      // row of OpTable
  std::uint32_t thread;  // row of `threads`
  std::uint32_t begin_node, end_node;
  std::uint32_t comm_op;            // enclosing record_param_comms, kNone = none
  std::uint32_t nccl_range;         // enclosing nccl:* annotation, kNone = none
  std::uint32_t parent;             // innermost enclosing row, kNone = none
  std::uint32_t first_task, tasks;  // rows of `launched`: the GPU tasks that it launches
  std::uint32_t next_launch;        // next call that launches, of this thread if it launches again; kNone = none
  Call kind;
  bool exact;  // blocking: its frontiers are its targets, read from a cuda_sync event
};

struct Task {  // one GPU task, in order of (stream, start)
  Ns start, end;
  std::uint32_t op;
  std::uint32_t stream;  // row of `streams`
  std::uint32_t node;
  std::uint32_t call;  // launching call, kNone = launched before the window or unknown
  NodeKind kind;
  bool graph_inner;  // launched by a graph launch, not the first on its stream
};

struct TaskGroup {  // GPU tasks that share a correlation id
  std::int64_t corr;
  std::uint32_t first, tasks;  // rows of `launched`
  std::uint32_t call;          // the call that launched them, kNone = not in the window
};

inline std::size_t slot_of(std::int64_t corr, std::uint32_t mask) {
  return static_cast<std::size_t>(static_cast<std::uint64_t>(corr) * 0x9e3779b97f4a7c15ull >> 32) & mask;
}

struct StreamRow {
  std::uint32_t lane;
  std::int64_t device, number;
  std::uint32_t first_task, tasks;  // rows of `tasks`
};

struct ThreadRow {
  std::uint32_t lane;
  std::uint32_t first_node, nodes;  // boundaries in time order are consecutive draft nodes
  std::uint32_t root_edge;          // row of `edges`: what starts the thread
};

struct Frontier {  // what a stream still had to run when a blocking call began
  std::uint32_t call, stream, task;
};

struct Draft {
  const RankTrace* trace = nullptr;
  const GraphOptions* options = nullptr;
  RankQuality quality;
  Notes notes;
  LagTable lags;

  std::vector<DraftNode> node;  // GPU tasks first: task i is node i
  std::vector<DraftEdge> edges;

  std::vector<ThreadRow> threads;
  std::vector<StreamRow> streams;
  std::vector<Task> tasks;
  std::vector<CallRow> calls;             // by begin
  std::vector<std::uint32_t> launched;    // tasks by launching call
  std::vector<std::uint32_t> begin_node;  // by op: boundary nodes of host rows, or the task's node; kNone
  std::vector<std::uint32_t> end_node;

  std::vector<Ns> explained_start;  // by task: when its edges say it could start, on the measured times
  std::vector<Step> steps;          // nodes are draft nodes until assembled
  std::vector<Frontier> frontiers;  // by call, in host order
  std::vector<TaskGroup> groups;
  std::vector<std::uint32_t> group_slots;  // open addressing, by slot_of(corr)
  std::uint32_t group_mask = 0;

  // scratch
  struct RowKey {
    Ns start, end;
    std::uint32_t op;
  };
  std::vector<RowKey> rows;  // host rows by lane, then by time
  std::vector<RowKey> open;  // rows begun and not ended, the earliest end last
  std::vector<std::uint32_t> order, bucket;
  std::vector<Call> call_of_name;
  std::vector<std::uint8_t> name_flags;

  std::uint32_t nodes() const { return static_cast<std::uint32_t>(node.size()); }
  std::uint32_t add_node(Ns dur, Ns start, std::uint32_t on_lane, NodeKind k, std::uint8_t begin, std::uint32_t op,
                         bool chained = false) {
    node.push_back({dur, start, on_lane, op, k, begin, chained});
    return nodes() - 1;
  }
  Ns observed_end(std::uint32_t n) const { return node[n].observed_start + node[n].duration; }
  bool enabled(EdgeKind k) const { return (options->without_edges >> static_cast<unsigned>(k) & 1u) == 0; }
  void add_edge(std::uint32_t from, std::uint32_t to, EdgeKind k, Ns edge_lag) {
    edges.push_back({from, to, edge_lag, k});
  }
  TaskGroup* find_group(std::int64_t corr) {
    if (corr == 0) return nullptr;
    for (std::size_t i = slot_of(corr, group_mask); group_slots[i] != kNone; i = (i + 1) & group_mask) {
      if (groups[group_slots[i]].corr == corr) return &groups[group_slots[i]];
    }
    return nullptr;
  }
  void clear();
};

// In this order. Each reads what the earlier ones wrote.
void add_tasks(Draft& d);      // GPU tasks by stream
void add_threads(Draft& d);    // host boundaries, thread edges, the list of calls
void link_launches(Draft& d);  // which call launched which tasks
void add_handoffs(Draft& d);   // one thread wakes another; its gap is a wait
void add_events(Draft& d);     // event records and waits, read or inferred; what blocking calls may wait for
void add_syncs(Draft& d);      // blocking calls: the wait is cut out of the host's time
void add_device(Draft& d);     // launch, stream, queue and graph edges; constant lags; stalls; unexplained idle

void add_steps(Draft& d);  // ProfilerStep windows, or the whole trace as step 0; device idle inside them

// Buffers of assemble, reused from rank to rank.
struct AssembleScratch {
  std::vector<std::uint32_t> first_in, first_out, in, out, waiting, ready, order, place;
};

// Overwrites `g` with the draft as its only rank, in topological order. Edges that would close a cycle are dropped and
// counted; edges that the options leave out are not there.
void assemble(Draft& d, std::uint32_t trace_row, AssembleScratch& scratch, ExecGraph& g);

}  // namespace orrery
