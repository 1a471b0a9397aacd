// One rank of a made-up job: what its threads and streams do becomes both rows of a trace (times are filled in later)
// and nodes of a graph. Knows CUDA's order rules, nothing of models.
#pragma once
#include <string_view>
#include <vector>

#include "synthesis/graph_draft.h"
#include "synthesis/noise.h"
#include "synthesis/synthetic_job.h"

namespace orrery::synth {

// Host time of the ordinary case, ns.
inline constexpr Ns kOpLead = 2'700, kOpTail = 1'900, kPythonLead = 8'500, kPythonTail = 4'000, kCallGap = 300;
inline constexpr Ns kLaunchCall = 5'200, kCopyCall = 6'800, kEventCall = 1'050, kWaitCall = 1'300, kSyncCall = 2'400;
// Lags of the device, ns.
inline constexpr Ns kLaunchLag = 5'600, kStreamLag = 1'150, kEventLag = 1'500, kSyncLag = 1'700;
struct Lags {
  Ns launch = kLaunchLag, stream = kStreamLag, event = kEventLag, sync = kSyncLag;
};
inline constexpr Ns kWakeLag = 24'000, kWakeBackLag = 17'000;

struct TaskRef {
  NodeId first = kNoNode;  // its first node
  NodeId node = kNoNode;   // its last node
  std::int64_t correlation = 0;
  std::uint32_t stream = 0;
  std::uint32_t place = 0;  // in its stream
};

struct Event {  // cudaEvent_t after a cudaEventRecord: the work that it stands for
  std::vector<TaskRef> tasks;
  std::int64_t record = 0;  // correlation id
  std::int64_t id = 0;
  std::uint32_t stream = 0;
};

struct TaskSpec {
  OpKind kind = OpKind::kernel;
  std::string_view name;
  Ns duration = 0;
  std::uint32_t blocks = 1, threads = 256, shared_bytes = 0;
  std::uint16_t registers = 32;
  std::int64_t bytes = -1;     // copies and memsets
  std::uint32_t comm = kNone;  // row of CommArgs to show on the kernel
  bool meets = false;          // a communication kernel: meets its peers at `key`, then takes `duration`
  GraphDraft::MeetingKey key{};
  std::string_view group;  // description of the process group
};

struct HostThread {
  struct Frame {
    OpId op;
    std::int64_t ext;     // of the innermost cpu_op; 0 = none
    OpId annotation;      // innermost user_annotation
    std::int64_t python;  // innermost python frame; -1 = none
  };
  LaneId lane = kNoLane;
  NodeId last = kNoNode;
  std::vector<Frame> open;
  NodeId woken_by = kNoNode;  // by another thread, before the next boundary
  Ns wake_lag = 0;
};

class Recorder {
 public:
  Recorder(const SyntheticJob& job, std::int64_t rank, GraphDraft& draft);

  void set_lags(const Lags& lags) { lags_ = lags; }

  HostThread add_thread(std::int64_t tid, std::string_view name);
  std::uint32_t add_stream(std::int64_t number);

  // Opens an operator, annotation or python frame after `lead` of host work; close() ends the innermost after `tail`.
  OpId open(HostThread& t, OpKind kind, std::string_view name, Ns lead);
  void close(HostThread& t, Ns tail);
  // The next boundary of `to` waits for the latest of `from`.
  void wake(const HostThread& from, HostThread& to, Ns lag);

  // Runtime and driver calls. launch() gives the task's correlation id.
  std::int64_t launch(HostThread& t, std::uint32_t stream, const TaskSpec& task, std::string_view call,
                      bool blocks = false);
  Event record(HostThread& t, std::uint32_t stream);
  void wait(HostThread& t, std::uint32_t stream, const Event& event);
  void synchronize_stream(HostThread& t, std::uint32_t stream);
  void synchronize_device(HostThread& t);

  // What the host did since mark(), all of its threads together; and the same work in `total` instead, in proportion.
  std::uint32_t mark() const { return draft_.size(); }
  Ns host_since(std::uint32_t mark) const;
  void scale_host_since(std::uint32_t mark, Ns total);

  // An operator that launches one kernel on `stream`.
  OpId kernel_op(HostThread& t, std::string_view op, std::uint32_t stream, const TaskSpec& kernel,
                 std::string_view call = "cudaLaunchKernel");

  void set_sequence(OpId op, std::int64_t sequence, std::int64_t forward_thread);
  void set_shapes(OpId op, std::string_view dims, std::string_view types);
  void set_comm(OpId op, std::uint32_t comm);
  void link_backward(OpId forward, OpId backward) { backward_links_.push_back({forward, backward}); }
  StrId text(std::string_view s) { return trace_.strings.intern(s); }
  CommArgs& comm_args() { return trace_.comm_args; }
  void mark_step(std::int64_t number, OpId op) { steps_.push_back({number, op}); }
  // Streams that only NCCL itself uses: their edges are marked in the truth.
  void mark_internal(std::uint32_t stream) { streams_[stream].internal = true; }

  // Times from the replay of the whole job (`new_number`: of this draft's nodes), plus the clock's error.
  void finish(const Replay& r, const std::vector<NodeId>& new_number, Ns clock_error);
  RankTrace& trace() { return trace_; }
  TrueRank& truth() { return truth_; }
  std::uint32_t lanes() const { return static_cast<std::uint32_t>(trace_.lanes.size()); }
  // The draft nodes of a step's boundaries.
  struct StepNodes {
    std::int64_t number;
    NodeId begin, end;
  };
  std::vector<StepNodes> step_nodes() const;

 private:
  struct Stream {
    LaneId lane;
    std::int64_t number;
    std::vector<TaskRef> tasks;
    std::vector<TaskRef> waiting;           // waits that no task has taken yet
    std::vector<std::uint32_t> open_waits;  // rows of truth_.event_edges, as above
    bool internal = false;
  };
  struct Mirror {  // a user annotation on a stream
    OpId annotation;
    std::uint32_t stream;
    OpId first, last;
  };
  struct SyncRow {
    OpId row, call;
  };

  OpId add_op(OpKind kind, std::string_view name, LaneId lane);
  NodeId boundary(HostThread& t, OpId op, bool begin, Ns work);
  OpId begin_call(HostThread& t, OpKind kind, std::string_view name);
  NodeId end_call(HostThread& t, OpId op, Ns work);
  TaskRef enqueue(HostThread& t, std::uint32_t stream, const TaskSpec& task, OpId call);
  void wait_for(NodeId end, OpId call, const std::vector<TaskRef>& tasks);
  std::vector<TaskRef> work_of(std::uint32_t stream) const;
  void add_sync_row(SyncKind kind, std::string_view name, OpId call, std::int64_t stream, const Event* event);
  void mirror(OpId annotation, std::uint32_t stream, OpId task);
  Ns host(Ns work) { return host_noise_.vary(scaled(work, host_ppm_), host_sigma_); }
  Ns lag(Ns nominal) { return lag_noise_.vary(nominal, lag_sigma_); }
  static Ns scaled(Ns t, std::int64_t ppm) { return t / 1'000 * ppm / 1'000 + t % 1'000 * ppm / 1'000'000; }
  Ns task_time(const TaskSpec& task);
  void fill_flows();

  const SyntheticJob& job_;
  GraphDraft& draft_;
  std::uint32_t row_;
  std::int64_t device_;
  Noise host_noise_, lag_noise_, kernel_noise_;
  std::int64_t host_sigma_, lag_sigma_, kernel_sigma_, host_ppm_;
  Lags lags_;
  RankTrace trace_;
  TrueRank truth_;
  std::vector<Stream> streams_;
  std::vector<NodeId> begin_node_, end_node_;  // by op; kNoNode where times are filled otherwise
  std::vector<OpId> call_of_;                  // by op: the call that launched this task
  std::vector<Mirror> mirrors_;
  std::vector<SyncRow> sync_rows_;
  std::vector<std::pair<OpId, OpId>> backward_links_;
  std::vector<std::pair<std::int64_t, OpId>> steps_;
  std::vector<std::pair<std::uint32_t, OpId>> meetings_;  // row of truth_.transfers, op
  std::int64_t correlation_, external_ = 0, python_ = 0, event_ = 7;
};

}  // namespace orrery::synth
