// libFuzzer target of the graph builder: rows of any times, kinds, lanes and ids, in tables of the shape that
// data/trace.h promises, must give a graph that holds, and a replay of it; one to three ranks, each with rows of its
// own or all with the same (then their collectives meet). Builders are used again for every input and compared with a
// fresh one. The bytes are a header and rows of eight bytes each (see Rows), so that seeds are small.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "graph/build.h"
#include "replay/replay.h"

namespace {

using namespace orrery;

void require(bool ok) {
  if (!ok) std::abort();
}

constexpr std::string_view kHostNames[] = {"cudaLaunchKernel",
                                           "cudaLaunchKernelExC",
                                           "cudaMemcpyAsync",
                                           "cudaMemcpy",
                                           "cudaEventRecord",
                                           "cudaStreamWaitEvent",
                                           "cudaEventQuery",
                                           "cudaStreamSynchronize",
                                           "cudaDeviceSynchronize",
                                           "cudaEventSynchronize",
                                           "cudaFree",
                                           "cudaGraphLaunch",
                                           "hipStreamWaitEvent",
                                           "hipEventRecord",
                                           "cudaStreamIsCapturing",
                                           "unknownCall",
                                           "record_param_comms",
                                           "nccl:all_reduce",
                                           "nccl:coalesced",
                                           "ProfilerStep#1",
                                           "ProfilerStep#2",
                                           "ProfilerStep#-9",
                                           "ProfilerStep#99999999999999999999",
                                           "aten::mm",
                                           "c10d::allreduce_",
                                           "ProfilerStep#",
                                           "",
                                           "backward"};
constexpr std::string_view kDeviceNames[] = {"gemm",
                                             "elementwise",
                                             "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
                                             "ncclDevKernel_SendRecv",
                                             "Memcpy DtoH (Device -> Pageable)",
                                             "Memcpy HtoD (Pinned -> Device)",
                                             "Memset (Device)",
                                             ""};
constexpr std::string_view kCollectives[] = {"allreduce",
                                             "_allgather_base",
                                             "_reduce_scatter_base",
                                             "send",
                                             "recv",
                                             "broadcast",
                                             "all_to_allv",
                                             "wait",
                                             "send",
                                             "recv",
                                             "coalesced",
                                             "barrier",
                                             "init",
                                             "reduce",
                                             "allreduce",
                                             ""};
struct Group {
  std::string_view name, desc, ranks;
  std::int64_t size;
};
constexpr Group kGroups[] = {{"0", "default_pg", "[0, 1, 2]", 3},
                             {"1", "TP", "[0, 1]", 2},
                             {"2", "DP", "[0, 1]", 2},
                             {"3", "undefined", "[0, 1, 2, ...]", 3},
                             {"4", "undefined", "[0, 1]", 2},
                             {"5", "", "", 2},
                             {"6", "OTHERS", "[5, 6]", 2},  // of which no rank is here
                             {"", "", "[1, 99999999999999999999", -1}};
constexpr std::size_t kMostRows = 3000;
// What a graph can hold: the importer promises only that start + duration fits int64. A path is no longer than all
// durations and lags together, which this keeps below 2^63.
constexpr Ns kFarthest = Ns{1} << 61;
constexpr Ns kLongest = Ns{1} << 49;

// One row: what, lane, start (2 bytes), duration (2 bytes), correlation, how. What a communication call says of itself
// is told by the duration: collective (4 bits), group (3), size (2), Seq (2), peer (2), type (1), and by the rank: of
// two ranks with the same rows one sends what the other receives.
class Rows {
 public:
  Rows(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}

  // Rows until the data or the share of this rank end.
  RankTrace rank(std::int64_t number, std::size_t rows) {
    RankTrace t;
    t.rank = number;
    t.file = "fuzz";
    for (std::int64_t i = 0; i < 4; ++i) lane(t, LaneKind::thread, 1, i);
    for (std::int64_t i = 0; i < 3; ++i) lane(t, LaneKind::stream, 0, 7 + i);
    lane(t, LaneKind::stream, 1, 7);
    lane(t, LaneKind::other, 0, -1);
    clock_ = 0;
    rank_ = number;
    seq_ = 0;
    while (rows-- > 0 && end_ - at_ >= 8) row(t);
    set_window(t);
    return t;
  }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
  Ns clock_ = 0;
  std::int64_t rank_ = 0, seq_ = 0;

  static void lane(RankTrace& t, LaneKind kind, std::int64_t pid, std::int64_t tid) {
    t.lanes.kind.push_back(kind);
    t.lanes.pid.push_back(pid);
    t.lanes.tid.push_back(tid);
    t.lanes.pid_text.push_back(StrId{0});
    t.lanes.tid_text.push_back(StrId{0});
    t.lanes.name.push_back(StrId{0});
  }

  // Microseconds, milliseconds, or any power of two up to what a trace may hold.
  static Ns stretch(Ns value, std::uint8_t how) {
    switch (how & 7) {
      case 7:
        return value * (Ns{1} << 33);
      case 6:
        return value * 1'000'000;
      case 5:
        return value;
      default:
        return value * 1000;
    }
  }

  void row(RankTrace& t) {
    const std::uint8_t what = at_[0], where = at_[1], how = at_[7];
    const auto start = static_cast<std::int16_t>(at_[2] | at_[3] << 8);
    const auto dur = static_cast<std::uint16_t>(at_[4] | at_[5] << 8);
    const std::int64_t corr = static_cast<std::int8_t>(at_[6]);
    at_ += 8;
    const auto lanes = static_cast<std::uint32_t>(t.lanes.size());
    if (what == 249) {
      repeat(t, dur % 1500);
      return;
    }
    if (what >= 250) {  // a flow
      FlowTable& f = t.flows;
      f.id.push_back(corr);
      f.ts.push_back(clock_ + stretch(start, how));
      f.lane.push_back(LaneId{where % lanes});
      f.kind.push_back(static_cast<FlowKind>(what % 3));
      f.is_finish.push_back(how >> 7);
      return;
    }
    // the clock moves on by small steps only: a far row leaves the others where they are
    const Ns at = clock_ + stretch(start, how);
    if ((how & 7) < 4) clock_ = at;
    const auto kind = static_cast<OpKind>(what % 11);
    const bool device = is_gpu_task(kind) || kind == OpKind::gpu_annotation || kind == OpKind::sync;
    OpTable& o = t.ops;
    o.start.push_back(at);
    o.dur.push_back(stretch(dur, static_cast<std::uint8_t>(how >> 3)));
    o.name.push_back(t.strings.intern(device ? kDeviceNames[where % std::size(kDeviceNames)]
                                             : kHostNames[(what / 11 + where) % std::size(kHostNames)]));
    const std::uint32_t l = (how & 64) != 0 ? where % lanes : device ? 4 + where % 4 : where % 4;
    o.lane.push_back(LaneId{l});
    o.kind.push_back(kind);
    o.corr.push_back(corr);
    o.ext.push_back(where);
    o.extra.push_back(extra(t, kind, where, corr, dur));
  }

  // The last call and the last GPU task, over and over: fills a launch queue with few bytes.
  static void repeat(RankTrace& t, std::uint32_t times) {
    OpTable& o = t.ops;
    std::uint32_t call = kNone, task = kNone;
    for (std::uint32_t i = 0; i < o.size(); ++i) {
      if (o.kind[i] == OpKind::runtime) call = i;
      if (is_gpu_task(o.kind[i])) task = i;
    }
    if (call == kNone || task == kNone || o.size() + 2 * times > kMostRows) return;
    for (std::uint32_t k = 1; k <= times; ++k) {
      const std::int64_t corr = 1000 + static_cast<std::int64_t>(o.size());
      for (const std::uint32_t i : {call, task}) {
        o.start.push_back(o.start[i] + k * (std::min<Ns>(o.dur[i], 1'000'000) + 1000));
        o.dur.push_back(o.dur[i]);
        o.name.push_back(o.name[i]);
        o.lane.push_back(o.lane[i]);
        o.kind.push_back(o.kind[i]);
        o.corr.push_back(corr);
        o.ext.push_back(0);
        o.extra.push_back(kNone);
      }
    }
  }

  std::uint32_t extra(RankTrace& t, OpKind kind, std::uint8_t where, std::int64_t corr, std::uint16_t say) {
    if ((where & 128) != 0 && kind != OpKind::sync) return kNone;
    switch (kind) {
      case OpKind::kernel: {
        KernelArgs& k = t.kernel_args;
        k.grid_blocks.push_back(1);
        k.block_threads.push_back(1);
        k.shared_bytes.push_back(0);
        k.registers.push_back(0);
        k.occupancy_pct.push_back(0);
        k.blocks_per_sm.push_back(0);
        k.comm.push_back((where & 64) != 0 ? comm(t, say) : kNone);
        return static_cast<std::uint32_t>(k.size() - 1);
      }
      case OpKind::cpu_op: {
        if ((where & 64) == 0) return kNone;
        OpArgs& a = t.op_args;
        a.sequence.push_back(-1);
        a.fwd_thread.push_back(0);
        for (auto* column : {&a.input_dims, &a.input_types, &a.concrete_inputs}) column->push_back(StrId{0});
        a.comm.push_back(comm(t, say));
        return static_cast<std::uint32_t>(a.size() - 1);
      }
      case OpKind::sync: {
        SyncArgs& s = t.sync_args;
        s.kind.push_back(static_cast<SyncKind>(where % 5));
        s.stream.push_back(where % 7 == 0 ? -1 : 7 + where / 5 % 4);
        s.wait_stream.push_back(where % 11 == 0 ? -1 : 7 + where / 20 % 4);
        s.wait_record_corr.push_back(where >= 200 ? -1 : corr - where % 3);
        s.wait_event.push_back(-1);
        return static_cast<std::uint32_t>(s.size() - 1);
      }
      default:
        return kNone;
    }
  }

  std::uint32_t comm(RankTrace& t, std::uint16_t say) {
    CommArgs& c = t.comm_args;
    std::string_view name = kCollectives[say & 15];
    if (rank_ % 2 == 1 && (name == "send" || name == "recv")) name = name == "send" ? "recv" : "send";
    const Group& group = kGroups[say >> 4 & 7];
    const std::int64_t elems = std::array<std::int64_t, 4>{-1, 64, 4096, INT64_MAX / 3}[say >> 7 & 3];
    const int peer = std::array<int, 4>{static_cast<int>(rank_ ^ 1), static_cast<int>(rank_ + 1) % 3,
                                        static_cast<int>(rank_), -1}[say >> 11 & 3];
    ++seq_;
    c.collective.push_back(t.strings.intern(name));
    c.dtype.push_back(t.strings.intern((say >> 13 & 1) != 0 ? "BFloat16" : "Float"));
    c.group_name.push_back(t.strings.intern(group.name));
    c.group_desc.push_back(t.strings.intern(group.desc));
    c.group_ranks.push_back(t.strings.intern(group.ranks));
    c.group_size.push_back(group.size);
    c.in_elems.push_back(elems);
    c.out_elems.push_back(elems);
    c.seq.push_back(std::array<std::int64_t, 4>{-1, seq_, seq_ + rank_, INT64_MAX - seq_}[say >> 9 & 3]);
    c.src_rank.push_back(name == "recv" ? peer : -1);
    c.dst_rank.push_back(name == "send" ? peer : -1);
    c.in_split.push_back(StrId{0});
    c.out_split.push_back(StrId{0});
    return static_cast<std::uint32_t>(c.size() - 1);
  }

  static void set_window(RankTrace& t) {
    if (t.ops.size() == 0) return;
    t.window_start = INT64_MAX;
    t.window_end = INT64_MIN;
    for (std::size_t i = 0; i < t.ops.size(); ++i) {
      t.window_start = std::min(t.window_start, t.ops.start[i]);
      t.window_end = std::max(t.window_end, t.ops.end(i));
    }
    for (const Ns ts : t.flows.ts) {
      t.window_start = std::min(t.window_start, ts);
      t.window_end = std::max(t.window_end, ts);
    }
  }
};

// Every node starts when its last predecessor lets it, and not before.
void require_replay(const ExecGraph& g, const Replay& r) {
  require(r.start.size() == g.size() && r.end.size() == g.size());
  for (std::uint32_t n = 0; n < g.size(); ++n) {
    bool binds = false;
    for (std::uint32_t e = g.first_pred[n]; e < g.first_pred[n + 1]; ++e) {
      const Ns from = g.pred[e] == kNoNode ? g.ranks[g.rank[n]].origin : r.end[raw(g.pred[e])];
      require(from + g.pred_lag[e] <= r.start[n]);
      binds |= from + g.pred_lag[e] == r.start[n];
    }
    require(binds);
    require(r.end[n] == r.start[n] + g.duration[n]);
  }
}

bool precedes(const ExecGraph& g, std::uint32_t from, std::uint32_t to) {
  for (std::uint32_t e = g.first_pred[to]; e < g.first_pred[to + 1]; ++e)
    if (g.pred[e] == NodeId{from}) return true;
  return false;
}

// Every meeting is a rendezvous behind all its members; nobody who waits for it ends before.
void require_meetings(const ExecGraph& g, const Communication& c, const Replay& r) {
  require(c.matched <= c.expected && c.expected <= c.rows.size() && c.alone <= c.rows.size());
  require(g.ranks.size() == 1 || c.clock_of_rank.size() == g.ranks.size());
  std::vector<std::uint8_t> meets(c.rows.size());
  for (const Meeting& m : c.meetings) {
    require(m.members >= 2 && m.first + m.members <= c.members.size() && m.transfer >= 0);
    require(m.group == kNone || m.group < c.groups.size());
    require(m.node != kNoNode && g.kind[raw(m.node)] == NodeKind::rendezvous && g.lane[raw(m.node)] == kNone);
    for (std::uint32_t k = 0; k < m.members; ++k) {
      const Member& member = c.members[m.first + k];
      const CommRow& row = c.rows[member.row];
      meets[member.row] = 1;
      require(precedes(g, row.node, raw(m.node)));
      require(!member.waits || precedes(g, raw(m.node), row.last));
      require(!member.waits || r.end[row.last] >= r.end[raw(m.node)]);
    }
  }
  for (std::size_t i = 0; i < c.rows.size(); ++i) {
    const CommRow& row = c.rows[i];
    require(row.rank < g.ranks.size() && row.node < g.size() && row.last < g.size());
    for (const std::uint32_t n : {row.node, row.last}) require(g.kind[n] == NodeKind::comm && g.rank[n] == row.rank);
    require((row.node != row.last) == (meets[i] != 0));
    require(row.node == row.last || (g.at_begin[row.node] == 1 && g.duration[row.node] == 0));
    require(g.source[row.node] == g.source[row.last]);
    require(r.end[row.last] >= r.start[row.node]);
  }
}

void move_clock(RankTrace& t, Ns by) {
  for (Ns& x : t.ops.start) x += by;
  for (Ns& x : t.flows.ts) x += by;
  t.window_start += by;
  t.window_end += by;
}

void require_equal(const ExecGraph& a, const ExecGraph& b) {
  require(a.duration == b.duration && a.observed_start == b.observed_start && a.lane == b.lane && a.kind == b.kind);
  require(a.at_begin == b.at_begin && a.rank == b.rank && a.source == b.source && a.first_pred == b.first_pred);
  require(a.pred == b.pred && a.pred_kind == b.pred_kind && a.pred_lag == b.pred_lag);
  require(a.steps.size() == b.steps.size() && a.ranks.size() == b.ranks.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  GraphOptions options;
  options.threads = 1;
  options.hide_sync_events = (data[0] & 1) != 0;
  if ((data[0] & 2) != 0) options.without_edges = static_cast<std::uint32_t>(data[1]) << (data[2] & 3);
  if ((data[0] & 4) != 0) options.stall_threshold = 1 + data[2] * 1000;
  const std::size_t rows = std::min((size - 4) / 8, kMostRows);
  const std::size_t first = (data[0] & 8) != 0 ? rows * data[3] / 256 : rows;

  TraceSet set;
  if ((data[0] & 16) != 0) {  // two or three ranks with the same rows, but for some at the start
    for (std::int64_t r = 0; r < 2 + (data[0] >> 7); ++r) {
      const std::size_t skip =
          (data[0] & 8) != 0 ? std::min<std::size_t>(rows, data[3] % 8 * static_cast<std::size_t>(r)) : 0;
      Rows bytes(data + 4 + 8 * skip, size - 4 - 8 * skip);
      set.ranks.push_back(bytes.rank(r, rows - skip));
    }
  } else {
    Rows bytes(data + 4, size - 4);
    set.ranks.push_back(bytes.rank(0, first));
    if (first != rows) set.ranks.push_back(bytes.rank(1, rows - first));
  }
  for (RankTrace& t : set.ranks) {
    if ((data[0] & 32) != 0) t.host = "h" + std::to_string(t.rank * (data[2] & 1));
    if ((data[0] & 64) != 0) move_clock(t, t.rank * (static_cast<std::int8_t>(data[3]) * Ns{7'000'001}));
    if (data[1] == 1) t.world_size = 3 + t.rank * (data[2] >> 7);
    if (data[1] == 2)
      for (const Group& g : kGroups)
        t.groups.push_back({std::string(g.name), std::string(g.desc), "nccl", 3, {0, 1, 2}});
  }
  for (const RankTrace& t : set.ranks) {
    if (t.window_start < -kFarthest || t.window_end > kFarthest || t.window_end - t.window_start > kLongest) return 0;
  }

  static GraphBuilder builder;
  static GraphBuild built;
  static Replay run;
  const Status made = builder.build(set, options, built);
  const Result<GraphBuild> fresh = build_graph(set, options);
  require(made.has_value() == fresh.has_value());
  if (!made) {
    require(!made.error().what.empty());
    return 0;
  }
  require_equal(built.graph, fresh->graph);
  require(built.communication.groups == fresh->communication.groups);
  require(built.communication.meetings.size() == fresh->communication.meetings.size());
  require(check(built.graph).has_value());
  require(built.quality.size() == set.ranks.size());
  for (const RankQuality& q : built.quality) {
    require(q.idle_ns >= 0 && q.stall_ns >= 0 && q.unexplained_idle_ns >= 0 && q.unexplained_idle_ns <= q.idle_ns);
  }
  replay(built.graph, run);
  require_replay(built.graph, run);
  require_meetings(built.graph, built.communication, run);
  for (Ns& d : built.graph.duration) d = d / 2;
  refresh_queue_lags(built.graph);
  replay(built.graph, run);
  require_replay(built.graph, run);
  require_meetings(built.graph, built.communication, run);
  return 0;
}
