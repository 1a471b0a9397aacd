// Traces of one rank written a row a line, and graphs that are looked at by the names of their rows. For tests.
// Times are microseconds, as in the diagrams of trace reports: X(name, cat, stream, ts, dur, corr) is a GPU task or any
// other row, L(api, ts, dur, corr) a call on the current CPU thread.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/trace.h"
#include "graph/build.h"
#include "replay/replay.h"

namespace orrery::testing {

inline constexpr Ns us(double t) { return static_cast<Ns>(t * 1000 + (t < 0 ? -0.5 : 0.5)); }
inline constexpr double to_us(Ns t) { return static_cast<double>(t) / 1000; }

class TraceBuilder {
 public:
  RankTrace t;

  explicit TraceBuilder(std::int64_t rank = 0) {
    t.rank = rank;
    t.file = "rank-" + std::to_string(rank) + ".json";
  }

  // The CPU thread of the rows that follow.
  TraceBuilder& on(std::int64_t thread) {
    thread_ = thread;
    return *this;
  }

  OpId row(OpKind kind, std::string_view name, LaneId lane, double ts, double dur, std::int64_t corr = 0,
           std::uint32_t extra = kNone) {
    OpTable& o = t.ops;
    o.start.push_back(us(ts));
    o.dur.push_back(us(ts + dur) - us(ts));
    o.name.push_back(t.strings.intern(name));
    o.lane.push_back(lane);
    o.kind.push_back(kind);
    o.corr.push_back(corr == -1 ? 0 : corr);  // as the importer does
    o.ext.push_back(0);
    o.extra.push_back(extra);
    return OpId{static_cast<std::uint32_t>(o.size() - 1)};
  }

  // cat: kernel, gpu_memcpy, gpu_memset, gpu_user_annotation.
  OpId X(std::string_view name, std::string_view cat, std::int64_t stream, double ts, double dur,
         std::int64_t corr = 0) {
    const OpKind kind = cat == "kernel"       ? OpKind::kernel
                        : cat == "gpu_memcpy" ? OpKind::memcpy
                        : cat == "gpu_memset" ? OpKind::memset
                                              : OpKind::gpu_annotation;
    return row(kind, name, stream_lane(stream), ts, dur, corr);
  }
  OpId kernel(std::string_view name, std::int64_t stream, double ts, double dur, std::int64_t corr = 0) {
    return X(name, "kernel", stream, ts, dur, corr);
  }
  OpId L(std::string_view api, double ts, double dur, std::int64_t corr = 0) {
    return row(OpKind::runtime, api, thread_lane(thread_), ts, dur, corr);
  }
  OpId op(std::string_view name, double ts, double dur) {
    return row(OpKind::cpu_op, name, thread_lane(thread_), ts, dur);
  }
  OpId range(std::string_view name, double ts, double dur) {
    return row(OpKind::user_annotation, name, thread_lane(thread_), ts, dur);
  }
  OpId step(std::int64_t number, double ts, double dur) {
    return range("ProfilerStep#" + std::to_string(number), ts, dur);
  }

  // A launch call and its kernel, under one new correlation.
  OpId launched(std::string_view name, double call_ts, double call_dur, std::int64_t stream, double ts, double dur) {
    const std::int64_t corr = ++next_corr_;
    L("cudaLaunchKernel", call_ts, call_dur, corr);
    return kernel(name, stream, ts, dur, corr);
  }

  // The cuda_sync row of the call with `corr`; -1 where the profiler gives nothing.
  OpId sync_row(SyncKind kind, double ts, double dur, std::int64_t corr, std::int64_t stream,
                std::int64_t wait_stream = -1, std::int64_t record_corr = -1, std::int64_t event = -1) {
    SyncArgs& s = t.sync_args;
    s.kind.push_back(kind);
    s.stream.push_back(stream);
    s.wait_stream.push_back(wait_stream);
    s.wait_record_corr.push_back(record_corr);
    s.wait_event.push_back(event);
    return row(OpKind::sync, "cuda_sync", lane(LaneKind::stream, 0, stream), ts, dur, corr,
               static_cast<std::uint32_t>(s.size() - 1));
  }
  OpId record(double ts, double dur, std::int64_t corr) { return L("cudaEventRecord", ts, dur, corr); }
  // `stream` waits for the event that call `record_corr` recorded on `recorded_stream`.
  OpId wait(double ts, double dur, std::int64_t corr, std::int64_t stream, std::int64_t recorded_stream,
            std::int64_t record_corr) {
    sync_row(SyncKind::stream_wait_event, ts, dur, corr, stream, recorded_stream, record_corr);
    return L("cudaStreamWaitEvent", ts, dur, corr);
  }
  // The same without what it waits for, as the profiler's default writes it.
  OpId bare_wait(double ts, double dur, std::int64_t corr) { return L("cudaStreamWaitEvent", ts, dur, corr); }

  // What a collective or point-to-point call says of itself.
  struct Comm {
    std::string_view collective;
    std::int64_t elems = -1;  // of input and output alike
    std::string_view group = {}, desc = {}, ranks = {};
    std::int64_t size = 0, seq = -1;
    std::int32_t src = -1, dst = -1;
    std::string_view dtype = "Float";
  };
  std::uint32_t comm(const Comm& c) {
    CommArgs& a = t.comm_args;
    a.collective.push_back(t.strings.intern(c.collective));
    a.dtype.push_back(t.strings.intern(c.dtype));
    a.in_elems.push_back(c.elems);
    a.out_elems.push_back(c.elems);
    a.group_size.push_back(c.size);
    a.group_name.push_back(t.strings.intern(c.group));
    a.group_desc.push_back(t.strings.intern(c.desc));
    a.group_ranks.push_back(t.strings.intern(c.ranks));
    a.seq.push_back(c.seq);
    a.src_rank.push_back(c.src);
    a.dst_rank.push_back(c.dst);
    a.in_split.push_back(StrId{0});
    a.out_split.push_back(StrId{0});
    return static_cast<std::uint32_t>(a.size() - 1);
  }
  // Gives an earlier kernel its arguments.
  OpId describe(OpId kernel_row, const Comm& c) {
    KernelArgs& k = t.kernel_args;
    k.grid_blocks.push_back(1);
    k.block_threads.push_back(1);
    k.shared_bytes.push_back(0);
    k.registers.push_back(0);
    k.occupancy_pct.push_back(0);
    k.blocks_per_sm.push_back(0);
    k.comm.push_back(comm(c));
    t.ops.extra[raw(kernel_row)] = static_cast<std::uint32_t>(k.size() - 1);
    return kernel_row;
  }
  // record_param_comms on the current thread.
  OpId comm_op(double ts, double dur, const Comm& c) {
    OpArgs& a = t.op_args;
    a.sequence.push_back(-1);
    a.fwd_thread.push_back(0);
    a.input_dims.push_back(StrId{0});
    a.input_types.push_back(StrId{0});
    a.concrete_inputs.push_back(StrId{0});
    a.comm.push_back(comm(c));
    return row(OpKind::cpu_op, "record_param_comms", thread_lane(thread_), ts, dur, 0,
               static_cast<std::uint32_t>(a.size() - 1));
  }

  void flow(FlowKind kind, std::int64_t id, double from_ts, LaneId from, double to_ts, LaneId to) {
    half_flow(kind, id, from_ts, from, false);
    half_flow(kind, id, to_ts, to, true);
  }
  void half_flow(FlowKind kind, std::int64_t id, double ts, LaneId where, bool finish) {
    FlowTable& f = t.flows;
    f.id.push_back(id);
    f.ts.push_back(us(ts));
    f.lane.push_back(where);
    f.kind.push_back(kind);
    f.is_finish.push_back(finish ? 1 : 0);
  }

  LaneId thread_lane(std::int64_t thread) { return lane(LaneKind::thread, 1, thread); }
  LaneId stream_lane(std::int64_t stream, std::int64_t device = 0) { return lane(LaneKind::stream, device, stream); }

  // The finished trace; the window is what the importer makes it: from the first start to the last end of any row.
  RankTrace finish() {
    t.window_start = t.window_end = 0;
    for (std::size_t i = 0; i < t.ops.size(); ++i) {
      t.window_start = i == 0 ? t.ops.start[i] : std::min(t.window_start, t.ops.start[i]);
      t.window_end = i == 0 ? t.ops.end(i) : std::max(t.window_end, t.ops.end(i));
    }
    return std::move(t);
  }

 private:
  std::int64_t thread_ = 1;
  std::int64_t next_corr_ = 1'000'000;  // out of the way of those that a test chooses

  LaneId lane(LaneKind kind, std::int64_t pid, std::int64_t tid) {
    LaneTable& l = t.lanes;
    for (std::uint32_t i = 0; i < l.size(); ++i) {
      if (l.kind[i] == kind && l.pid[i] == pid && l.tid[i] == tid) return LaneId{i};
    }
    l.kind.push_back(kind);
    l.pid.push_back(pid);
    l.tid.push_back(tid);
    l.pid_text.push_back(StrId{0});
    l.tid_text.push_back(StrId{0});
    l.name.push_back(StrId{0});
    return LaneId{static_cast<std::uint32_t>(l.size() - 1)};
  }
};

inline TraceSet one_rank(TraceBuilder b) {
  TraceSet set;
  set.ranks.push_back(b.finish());
  return set;
}

// The rows of a trace in another order; row i becomes row places[i] (also in open_ops).
inline std::vector<std::uint32_t> shuffle_rows(RankTrace& t, std::mt19937_64& random) {
  std::vector<std::uint32_t> old_of(t.ops.size()), place(t.ops.size());
  std::iota(old_of.begin(), old_of.end(), 0u);
  std::shuffle(old_of.begin(), old_of.end(), random);
  auto permute = [&](auto& column) {
    auto was = column;
    for (std::size_t i = 0; i < old_of.size(); ++i) column[i] = was[old_of[i]];
  };
  permute(t.ops.start);
  permute(t.ops.dur);
  permute(t.ops.name);
  permute(t.ops.lane);
  permute(t.ops.kind);
  permute(t.ops.corr);
  permute(t.ops.ext);
  permute(t.ops.extra);
  for (std::uint32_t i = 0; i < old_of.size(); ++i) place[old_of[i]] = i;
  for (OpId& o : t.open_ops) o = OpId{place[raw(o)]};
  std::sort(t.open_ops.begin(), t.open_ops.end());
  return place;
}

// A graph and its replay. Rows are named as in the trace: "k1" is a GPU task, "op>" and "op<" the begin and the end of
// a host row, "stall:k1" the pause before k1. Times are microseconds from the start of the rank's window.
class Built {
 public:
  TraceSet traces;
  GraphBuild build;
  Replay run;

  explicit Built(TraceSet set, const GraphOptions& options = {}) : traces(std::move(set)) {
    Result<GraphBuild> b = build_graph(traces, options);
    if (!b) {
      ADD_FAILURE() << b.error().line();
      return;
    }
    build = std::move(*b);
    const Status s = check(build.graph);
    EXPECT_TRUE(s.has_value()) << s.error().line();
    replay(build.graph, run);
  }
  explicit Built(TraceBuilder b, const GraphOptions& options = {}) : Built(one_rank(std::move(b)), options) {}

  const ExecGraph& graph() const { return build.graph; }
  const RankQuality& quality(std::size_t rank = 0) const { return build.quality[rank]; }

  std::string label(NodeId n, std::uint32_t row) const {
    if (n == kNoNode) return "window";
    const ExecGraph& g = build.graph;
    if (g.source[raw(n)] == kNoOp) return g.at_begin[raw(n)] != 0 ? "first" : "last";
    const std::string name(traces.ranks[row].name_of(g.source[raw(n)]));
    if (g.kind[raw(n)] == NodeKind::host) return name + (g.at_begin[raw(n)] != 0 ? ">" : "<");
    return (g.kind[raw(n)] == NodeKind::stall ? "stall:" : "") + name;
  }

  // The first node with that label; a failure where there is none.
  NodeId node(std::string_view name, std::uint32_t rank = 0) const {
    const NodeId n = find(name, rank);
    if (n == kNoNode) ADD_FAILURE() << "no node " << name;
    return n;
  }
  NodeId find(std::string_view name, std::uint32_t rank = 0) const {
    for (std::uint32_t i = 0; i < build.graph.size(); ++i) {
      if (build.graph.rank[i] == rank && label(NodeId{i}, rank) == name) return NodeId{i};
    }
    return kNoNode;
  }

  // What leads to a node: "launch cudaLaunchKernel>, stream k1", in alphabetical order. "" when there is no such node.
  std::string into(std::string_view name, std::uint32_t rank = 0) const {
    const NodeId n = node(name, rank);
    if (n == kNoNode) return "";
    const ExecGraph& g = build.graph;
    std::vector<std::string> edges;
    for (std::uint32_t e = g.first_pred[raw(n)]; e < g.first_pred[raw(n) + 1]; ++e) {
      edges.push_back(std::string(name_of(g.pred_kind[e])) + " " + label(g.pred[e], rank));
    }
    std::sort(edges.begin(), edges.end());
    std::string s;
    for (const std::string& e : edges) s += (s.empty() ? "" : ", ") + e;
    return s;
  }
  // The lag of the edge between two nodes, us; a failure where there is none.
  double lag(std::string_view from, std::string_view to) const {
    const ExecGraph& g = build.graph;
    const NodeId a = node(from), b = node(to);
    if (a == kNoNode || b == kNoNode) return 0;
    for (std::uint32_t e = g.first_pred[raw(b)]; e < g.first_pred[raw(b) + 1]; ++e) {
      if (g.pred[e] == a) return to_us(g.pred_lag[e]);
    }
    ADD_FAILURE() << "no edge from " << from << " to " << to;
    return 0;
  }
  double duration(std::string_view name) const {
    const NodeId n = node(name);
    return n == kNoNode ? -1 : to_us(build.graph.duration[raw(n)]);
  }

  // Replayed and measured times.
  double start(std::string_view name, std::uint32_t rank = 0) const {
    const NodeId n = node(name, rank);
    return n == kNoNode ? -1 : to_us(run.start[raw(n)] - build.graph.ranks[rank].origin);
  }
  double end(std::string_view name, std::uint32_t rank = 0) const {
    const NodeId n = node(name, rank);
    return n == kNoNode ? -1 : to_us(run.end[raw(n)] - build.graph.ranks[rank].origin);
  }
  double step_us(std::size_t row = 0) const {
    const Step& s = build.graph.steps[row];
    return to_us(run.end[raw(s.end_node)] - run.end[raw(s.begin_node)]);
  }

  // Changes the duration of nodes, and runs again.
  Built& scale(NodeKind kind, double factor) {
    ExecGraph& g = build.graph;
    for (std::uint32_t i = 0; i < g.size(); ++i) {
      if (g.kind[i] == kind) g.duration[i] = static_cast<Ns>(static_cast<double>(g.duration[i]) * factor + 0.5);
    }
    return again();
  }
  Built& scale(std::string_view name, double factor) {
    const NodeId n = node(name);
    if (n != kNoNode) build.graph.duration[raw(n)] = us(duration(name) * factor);
    return again();
  }
  Built& again() {
    refresh_queue_lags(build.graph);
    replay(build.graph, run);
    return *this;
  }

  std::uint64_t edges(EdgeKind kind, std::size_t rank = 0) const {
    return build.quality[rank].edges[static_cast<std::size_t>(kind)];
  }
  std::uint64_t dropped(EdgeKind kind, std::size_t rank = 0) const {
    return build.quality[rank].dropped[static_cast<std::size_t>(kind)];
  }
  std::uint64_t noted(std::string_view name) const {
    for (const Note& n : build.notes.rows)
      if (n.name == name) return n.count;
    return 0;
  }
};

}  // namespace orrery::testing
