// The rows that a profiler trace becomes: one RankTrace a rank (a file, or what a tool fused into one), plain structs
// of arrays. Times are integer nanoseconds, absolute (ts * 1000 + baseTimeNanoseconds), in the clock of the rank's
// host.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/string_pool.h"
#include "data/notes.h"

namespace orrery {

// What a row is. Decided by the importer from `cat` (and older or AMD names of it) alone.
enum class OpKind : std::uint8_t {
  cpu_op,           // operator on a CPU thread
  user_annotation,  // record_function, ProfilerStep#N, nccl:*
  python,           // python_function: frames and nn.Module calls
  runtime,          // CUDA or HIP call, runtime or driver API, on a CPU thread
  kernel,           // GPU task
  memcpy,           // GPU task
  memset,           // GPU task
  gpu_annotation,   // annotation mirrored on a stream; never work
  sync,             // cuda_sync record; never work
  overhead,         // profiler overhead
  other             // kept only to be counted and exported
};
inline constexpr bool is_gpu_task(OpKind k) {
  return k == OpKind::kernel || k == OpKind::memcpy || k == OpKind::memset;
}

// One row a complete ("X") event, in file order; `by_time` gives time order.
// `extra` is the row of the table that belongs to the kind: OpArgs for cpu_op / user_annotation, PythonArgs for python,
// KernelArgs for kernel, CopyArgs for memcpy / memset, SyncArgs for sync; kNone when there is none.
struct OpTable {
  std::vector<Ns> start;
  std::vector<Ns> dur;  // >= 0; an open event (dur < 0 or absurd) is closed by the importer and counted
  std::vector<StrId> name;
  std::vector<LaneId> lane;
  std::vector<OpKind> kind;
  std::vector<std::int64_t> corr;  // correlation; 0 = unknown (also for -1 and missing)
  std::vector<std::int64_t> ext;   // "External id"; 0 = none. In older files the correlation: link with care
  std::vector<std::uint32_t> extra;

  std::size_t size() const { return name.size(); }
  Ns end(std::size_t i) const { return start[i] + dur[i]; }
};

struct OpArgs {
  std::vector<std::int64_t> sequence;    // autograd "Sequence number"; -1 = none
  std::vector<std::int64_t> fwd_thread;  // "Fwd thread id"; 0 = none
  std::vector<StrId> input_dims;         // JSON text as written: "[[8, 16], []]"
  std::vector<StrId> input_types;
  std::vector<StrId> concrete_inputs;
  std::vector<std::uint32_t> comm;  // row of CommArgs (record_param_comms), kNone = none
  std::size_t size() const { return sequence.size(); }
};

struct PythonArgs {
  std::vector<std::int64_t> id;      // "Python id"; -1 = none
  std::vector<std::int64_t> parent;  // "Python parent id"; -1 = none
  std::size_t size() const { return id.size(); }
};

struct KernelArgs {
  std::vector<std::uint32_t> grid_blocks;    // x*y*z, saturated
  std::vector<std::uint32_t> block_threads;  // x*y*z
  std::vector<std::uint32_t> shared_bytes;
  std::vector<std::uint16_t> registers;
  std::vector<float> occupancy_pct;  // NaN = not given
  std::vector<float> blocks_per_sm;  // NaN = not given
  std::vector<std::uint32_t> comm;   // row of CommArgs, kNone = none
  std::size_t size() const { return grid_blocks.size(); }
};

struct CopyArgs {
  std::vector<std::int64_t> bytes;  // -1 = not given
  std::size_t size() const { return bytes.size(); }
};

// Arguments of a collective or point-to-point call, on the operator or on the kernel.
struct CommArgs {
  std::vector<StrId> collective;  // "Collective name"; "" = none
  std::vector<StrId> dtype;
  std::vector<std::int64_t> in_elems, out_elems;           // -1 = not given
  std::vector<std::int64_t> group_size;                    // 0 = not given
  std::vector<StrId> group_name, group_desc, group_ranks;  // ranks as written; may be cut after 30
  std::vector<std::int64_t> seq;                           // -1 = not given
  std::vector<std::int32_t> src_rank, dst_rank;            // -1 = not given
  std::vector<StrId> in_split, out_split;                  // as written: "[]" or sizes of an uneven all-to-all
  std::size_t size() const { return collective.size(); }
};

// cuda_sync records: "Stream Wait Event", "Event Sync", "Stream Sync", "Context Sync" (older: "... Synchronize").
enum class SyncKind : std::uint8_t { stream_wait_event, event_sync, stream_sync, context_sync, unknown };
struct SyncArgs {
  std::vector<SyncKind> kind;
  std::vector<std::int64_t> stream;            // args.stream; -1 = none
  std::vector<std::int64_t> wait_stream;       // wait_on_stream; -1 = none
  std::vector<std::int64_t> wait_record_corr;  // wait_on_cuda_event_record_corr_id; -1 = unknown
  std::vector<std::int64_t> wait_event;        // wait_on_cuda_event_id; -1 = none
  std::size_t size() const { return kind.size(); }
};

enum class LaneKind : std::uint8_t { thread, stream, other };
struct LaneTable {
  std::vector<LaneKind> kind;
  std::vector<std::int64_t> pid;  // process, or device for a stream
  std::vector<std::int64_t> tid;  // thread, or stream number for a stream (args.stream before tid)
  std::vector<StrId> pid_text;    // set when the pid or tid was not an int64 ("Spans", 20 digits)
  std::vector<StrId> tid_text;
  std::vector<StrId> name;  // from thread_name / process_name metadata; "" = none
  std::size_t size() const { return kind.size(); }
};

enum class FlowKind : std::uint8_t { ac2g, fwdbwd, other };
struct FlowTable {  // Chrome flow events; start and finish share (kind, id). Duplicates and halves do occur.
  std::vector<std::int64_t> id;
  std::vector<Ns> ts;
  std::vector<LaneId> lane;
  std::vector<FlowKind> kind;
  std::vector<std::uint8_t> is_finish;
  std::size_t size() const { return id.size(); }
};

// Memory instants ("[memory]") and counters, for `dissect`.
struct MemoryTable {
  std::vector<Ns> ts;
  std::vector<LaneId> lane;
  std::vector<std::int64_t> bytes;            // signed change
  std::vector<std::int64_t> total_allocated;  // -1 = not given
  std::vector<std::int64_t> total_reserved;   // -1 = not given
  std::vector<std::int32_t> device_type, device;
  std::size_t size() const { return ts.size(); }
};

struct Device {
  std::int64_t id = 0;
  std::string name;
  std::int64_t memory_bytes = 0;
  std::int32_t sms = 0, compute_major = 0, compute_minor = 0;
};

struct ProcessGroup {  // distributedInfo.pg_config
  std::string name, desc, backend;
  std::int64_t size = 0;
  std::vector<std::int32_t> ranks;
};

struct RankTrace {
  std::string file;             // as given on the command line or found in a directory
  std::int64_t rank = -1;       // -1 until resolved
  std::uint32_t place = 0;      // among all that were read, in no order; told to ImportOptions::on_trace
  std::int64_t world_size = 0;  // 0 = unknown
  std::string host;             // "" = unknown
  std::int64_t base_ns = 0;     // baseTimeNanoseconds, already added to every time
  std::vector<Device> devices;
  std::vector<ProcessGroup> groups;
  std::string trace_name;

  StringPool strings;
  OpTable ops;
  OpArgs op_args;
  PythonArgs python_args;
  KernelArgs kernel_args;
  CopyArgs copy_args;
  CommArgs comm_args;
  SyncArgs sync_args;
  LaneTable lanes;
  FlowTable flows;
  MemoryTable memory;
  Ns window_start = 0, window_end = 0;  // first start and last end of any row of `ops`
  std::vector<OpId> open_ops;  // ascending: rows without a usable duration, closed by the importer (host: end of the
                               // parent or of the window; GPU: zero length). Not to be added to sums.

  std::uint64_t events = 0;      // every event of the rank's file, used or not; of a fused file those of the rank
  std::uint64_t json_bytes = 0;  // size of the JSON text after decompression
  Notes notes;

  std::string_view name_of(OpId i) const { return strings.view(ops.name[raw(i)]); }
  // For notes: the row's name and its time as the file has it.
  std::string example_of(OpId i) const {
    constexpr std::size_t kLongest = 80;
    const std::string_view name = name_of(i);
    return std::string(name.substr(0, kLongest)) + (name.size() > kLongest ? "..." : "") + " at ts " +
           std::to_string((ops.start[raw(i)] - base_ns) / 1000) + " us";
  }

  // Frees what nobody asks for once the graph is built and nothing is exported: all of the rows but name, lane and kind
  // of each (9 bytes of some 55).
  void keep_names() {
    OpTable kept;
    kept.name = std::move(ops.name);
    kept.lane = std::move(ops.lane);
    kept.kind = std::move(ops.kind);
    ops = std::move(kept);
    op_args = {};
    python_args = {};
    kernel_args = {};
    copy_args = {};
    comm_args = {};
    sync_args = {};
    flows = {};
    memory = {};
  }
};

struct TraceSet {
  std::vector<RankTrace> ranks;  // by rank, ascending
  Notes notes;                   // about the set: skipped files, assumed ranks
};

}  // namespace orrery
