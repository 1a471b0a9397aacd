#include "synthesis/recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace orrery::synth {
namespace {

std::int64_t ppm(double factor) { return static_cast<std::int64_t>(std::llround(factor * 1e6)); }

NodeKind node_kind(const TaskSpec& t) {
  if (t.kind == OpKind::memcpy) return NodeKind::memcpy;
  if (t.kind == OpKind::memset) return NodeKind::memset;
  return t.meets ? NodeKind::comm : NodeKind::kernel;
}

}  // namespace

Recorder::Recorder(const SyntheticJob& job, std::int64_t rank, GraphDraft& draft)
    : job_(job), draft_(draft), row_(static_cast<std::uint32_t>(rank)), device_(rank % job.gpus_per_node) {
  const std::uint64_t key = mix(job.seed * 1'000'003 + static_cast<std::uint64_t>(rank));
  host_noise_.key = mix(key + 1);
  lag_noise_.key = mix(key + 2);
  kernel_noise_.key = mix(key + 3);
  host_sigma_ = ppm(job.host_sigma * job.noise);
  lag_sigma_ = ppm(0.04 * job.noise);
  kernel_sigma_ = ppm(job.kernel_sigma * job.noise);
  host_ppm_ = ppm(job.host_factor);
  correlation_ = 20'000 + static_cast<std::int64_t>(key % 977);
}

HostThread Recorder::add_thread(std::int64_t tid, std::string_view name) {
  LaneTable& l = trace_.lanes;
  l.kind.push_back(LaneKind::thread);
  l.pid.push_back(4'000 + row_);
  l.tid.push_back(tid);
  l.pid_text.push_back(StrId{});
  l.tid_text.push_back(StrId{});
  l.name.push_back(text(name));
  HostThread t;
  t.lane = LaneId{lanes() - 1};
  return t;
}

std::uint32_t Recorder::add_stream(std::int64_t number) {
  LaneTable& l = trace_.lanes;
  l.kind.push_back(LaneKind::stream);
  l.pid.push_back(device_);
  l.tid.push_back(number);
  l.pid_text.push_back(StrId{});
  l.tid_text.push_back(StrId{});
  l.name.push_back(text(fmt::format("stream {} ", number)));
  streams_.push_back({LaneId{lanes() - 1}, number, {}, {}, {}, false});
  return static_cast<std::uint32_t>(streams_.size() - 1);
}

OpId Recorder::add_op(OpKind kind, std::string_view name, LaneId lane) {
  OpTable& ops = trace_.ops;
  ops.start.push_back(0);
  ops.dur.push_back(0);
  ops.name.push_back(text(name));
  ops.lane.push_back(lane);
  ops.kind.push_back(kind);
  ops.corr.push_back(0);
  ops.ext.push_back(0);
  ops.extra.push_back(kNone);
  begin_node_.push_back(kNoNode);
  end_node_.push_back(kNoNode);
  call_of_.push_back(kNoOp);
  return OpId{static_cast<std::uint32_t>(ops.size() - 1)};
}

NodeId Recorder::boundary(HostThread& t, OpId op, bool begin, Ns work) {
  const NodeId node = draft_.add(NodeKind::host, row_, raw(t.lane), host(work), op, begin);
  if (t.last != kNoNode) draft_.link(t.last, node, EdgeKind::thread, 0);
  if (t.woken_by != kNoNode) draft_.link(t.woken_by, node, EdgeKind::handoff, t.wake_lag);
  if (t.last == kNoNode && t.woken_by == kNoNode) draft_.link(kNoNode, node, EdgeKind::root, 0);
  t.woken_by = kNoNode;
  t.last = node;
  (begin ? begin_node_ : end_node_)[raw(op)] = node;
  return node;
}

OpId Recorder::open(HostThread& t, OpKind kind, std::string_view name, Ns lead) {
  const OpId op = add_op(kind, name, t.lane);
  HostThread::Frame frame = t.open.empty() ? HostThread::Frame{kNoOp, 0, kNoOp, -1} : t.open.back();
  frame.op = op;
  if (kind == OpKind::python) {
    PythonArgs& a = trace_.python_args;
    trace_.ops.extra[raw(op)] = static_cast<std::uint32_t>(a.size());
    a.parent.push_back(frame.python);
    a.id.push_back(python_);
    frame.python = python_++;
  } else {
    OpArgs& a = trace_.op_args;
    trace_.ops.extra[raw(op)] = static_cast<std::uint32_t>(a.size());
    a.sequence.push_back(-1);
    a.fwd_thread.push_back(0);
    a.input_dims.push_back(StrId{});
    a.input_types.push_back(StrId{});
    a.concrete_inputs.push_back(StrId{});
    a.comm.push_back(kNone);
    trace_.ops.ext[raw(op)] = ++external_;
    if (kind == OpKind::cpu_op) frame.ext = external_;
    if (kind == OpKind::user_annotation) frame.annotation = op;
  }
  t.open.push_back(frame);
  boundary(t, op, true, lead);
  return op;
}

void Recorder::close(HostThread& t, Ns tail) {
  boundary(t, t.open.back().op, false, tail);
  t.open.pop_back();
}

void Recorder::wake(const HostThread& from, HostThread& to, Ns nominal) {
  to.woken_by = from.last;
  to.wake_lag = lag(nominal);
}

OpId Recorder::begin_call(HostThread& t, OpKind kind, std::string_view name) {
  const OpId op = add_op(kind, name, t.lane);
  trace_.ops.corr[raw(op)] = ++correlation_;
  if (job_.legacy)
    trace_.ops.ext[raw(op)] = correlation_;
  else if (!t.open.empty())
    trace_.ops.ext[raw(op)] = t.open.back().ext;
  boundary(t, op, true, kCallGap);
  return op;
}

NodeId Recorder::end_call(HostThread& t, OpId op, Ns work) { return boundary(t, op, false, work); }

Ns Recorder::task_time(const TaskSpec& task) {
  Ns time = kernel_noise_.vary(task.duration, kernel_sigma_);
  if (task.meets) return scaled(time, ppm(job_.transfer_factor));
  time = scaled(time, ppm(job_.kernel_factor));
  if (task.name.find("gemm") != std::string_view::npos) time = scaled(time, ppm(job_.gemm_factor));
  if (job_.straggler == static_cast<std::int64_t>(row_)) time = scaled(time, ppm(job_.straggler_factor));
  return time;
}

TaskRef Recorder::enqueue(HostThread& t, std::uint32_t stream, const TaskSpec& task, OpId call) {
  Stream& s = streams_[stream];
  const std::int64_t correlation = trace_.ops.corr[raw(call)];
  const OpId op = add_op(task.kind, task.name, s.lane);
  trace_.ops.corr[raw(op)] = correlation;
  trace_.ops.ext[raw(op)] = trace_.ops.ext[raw(call)];
  call_of_[raw(op)] = call;

  const Ns time = task_time(task);
  const NodeKind kind = node_kind(task);
  const NodeId first = draft_.add(kind, row_, raw(s.lane), task.meets ? 0 : time, op, task.meets);
  NodeId last = first;
  draft_.link(begin_node_[raw(call)], first, EdgeKind::launch, lag(lags_.launch));
  if (!s.tasks.empty()) draft_.link(s.tasks.back().node, first, EdgeKind::stream, lag(lags_.stream));
  for (const TaskRef& w : s.waiting) draft_.link(w.node, first, EdgeKind::event, lag(lags_.event));
  for (const std::uint32_t row : s.open_waits) truth_.event_edges[row].to_task = correlation;
  s.waiting.clear();
  s.open_waits.clear();
  if (task.meets) {
    const NodeId meeting = draft_.meeting(task.key, row_);
    last = draft_.add(kind, row_, raw(s.lane), time, op, false);
    draft_.link(first, meeting, EdgeKind::collective, 0);
    draft_.link(meeting, last, EdgeKind::collective, 0);
    meetings_.push_back({static_cast<std::uint32_t>(truth_.transfers.size()), op});
    truth_.transfers.push_back({correlation, std::string(task.group), 0, 0});
  }
  begin_node_[raw(op)] = first;
  end_node_[raw(op)] = last;

  if (task.kind == OpKind::kernel) {
    KernelArgs& k = trace_.kernel_args;
    trace_.ops.extra[raw(op)] = static_cast<std::uint32_t>(k.size());
    k.grid_blocks.push_back(task.blocks);
    k.block_threads.push_back(task.threads);
    k.shared_bytes.push_back(task.shared_bytes);
    k.registers.push_back(task.registers);
    const double sms = trace_.devices.empty() ? 1 : trace_.devices.front().sms;
    const double resident = std::min(100.0, 100.0 * task.blocks * task.threads / (sms * 2'048));
    k.occupancy_pct.push_back(static_cast<float>(std::floor(resident)));
    k.blocks_per_sm.push_back(static_cast<float>(task.blocks / sms));
    k.comm.push_back(task.comm);
  } else {
    trace_.ops.extra[raw(op)] = static_cast<std::uint32_t>(trace_.copy_args.size());
    trace_.copy_args.bytes.push_back(task.bytes);
  }
  if (!job_.legacy && !t.open.empty() && t.open.back().annotation != kNoOp)
    mirror(t.open.back().annotation, stream, op);
  const TaskRef ref{first, last, correlation, stream, static_cast<std::uint32_t>(s.tasks.size())};
  s.tasks.push_back(ref);
  return ref;
}

void Recorder::mirror(OpId annotation, std::uint32_t stream, OpId task) {
  for (auto m = mirrors_.rbegin(); m != mirrors_.rend() && m - mirrors_.rbegin() < 8; ++m)
    if (m->annotation == annotation && m->stream == stream) {
      m->last = task;
      return;
    }
  mirrors_.push_back({annotation, stream, task, task});
}

void Recorder::wait_for(NodeId end, OpId call, const std::vector<TaskRef>& tasks) {
  TrueSync sync;
  sync.call = trace_.ops.corr[raw(call)];
  for (const TaskRef& w : tasks) {
    draft_.link(w.node, end, EdgeKind::sync, lag(lags_.sync));
    sync.tasks.push_back(w.correlation);
  }
  truth_.syncs.push_back(std::move(sync));
}

std::int64_t Recorder::launch(HostThread& t, std::uint32_t stream, const TaskSpec& task, std::string_view name,
                              bool blocks) {
  const bool driver = name.starts_with("cu") && !name.starts_with("cuda");
  const OpId call = begin_call(t, OpKind::runtime, name);
  const TaskRef ref = enqueue(t, stream, task, call);
  const bool copies = task.kind != OpKind::kernel;
  const NodeId end = end_call(t, call, copies ? kCopyCall : driver ? kLaunchCall + 400 : kLaunchCall);
  const auto& tasks = streams_[stream].tasks;
  const auto depth = static_cast<std::size_t>(job_.queue_depth);
  if (tasks.size() > depth) {  // a place in the queue is free once a task has started
    const NodeId started = tasks[tasks.size() - 1 - depth].first;
    draft_.link(started, end, EdgeKind::queue, -draft_.duration[raw(started)]);
  }
  if (blocks) wait_for(end, call, {ref});
  return ref.correlation;
}

std::vector<TaskRef> Recorder::work_of(std::uint32_t stream) const {
  const Stream& s = streams_[stream];
  std::vector<TaskRef> work = s.waiting;
  if (!s.tasks.empty()) work.push_back(s.tasks.back());
  return work;
}

Event Recorder::record(HostThread& t, std::uint32_t stream) {
  const OpId call = begin_call(t, OpKind::runtime, "cudaEventRecord");
  end_call(t, call, kEventCall);
  return {work_of(stream), trace_.ops.corr[raw(call)], ++event_, stream};
}

void Recorder::wait(HostThread& t, std::uint32_t stream, const Event& event) {
  const OpId call = begin_call(t, OpKind::runtime, "cudaStreamWaitEvent");
  end_call(t, call, kWaitCall);
  Stream& s = streams_[stream];
  TrueEventEdge edge;
  edge.wait = trace_.ops.corr[raw(call)];
  edge.record = event.record;
  edge.nccl_internal = s.internal || streams_[event.stream].internal;
  for (const TaskRef& w : event.tasks) {
    edge.from_tasks.push_back(w.correlation);
    if (w.stream == stream) continue;  // the stream's own order says so already
    const auto same = std::find_if(s.waiting.begin(), s.waiting.end(), [&](auto& o) { return o.stream == w.stream; });
    if (same == s.waiting.end())
      s.waiting.push_back(w);
    else if (same->place < w.place)
      *same = w;
  }
  s.open_waits.push_back(static_cast<std::uint32_t>(truth_.event_edges.size()));
  truth_.event_edges.push_back(std::move(edge));
  if (job_.cuda_sync) add_sync_row(SyncKind::stream_wait_event, "Stream Wait Event", call, s.number, &event);
}

void Recorder::add_sync_row(SyncKind kind, std::string_view name, OpId call, std::int64_t stream, const Event* event) {
  LaneId lane = streams_.front().lane;
  for (const Stream& s : streams_)
    if (s.number == stream) lane = s.lane;
  const OpId row = add_op(OpKind::sync, name, lane);
  trace_.ops.corr[raw(row)] = trace_.ops.corr[raw(call)];
  trace_.ops.ext[raw(row)] = trace_.ops.ext[raw(call)];
  SyncArgs& a = trace_.sync_args;
  trace_.ops.extra[raw(row)] = static_cast<std::uint32_t>(a.size());
  a.kind.push_back(kind);
  a.stream.push_back(stream);
  a.wait_stream.push_back(event ? streams_[event->stream].number : -1);
  a.wait_record_corr.push_back(event ? event->record : -1);
  a.wait_event.push_back(event ? event->id : -1);
  sync_rows_.push_back({row, call});
}

void Recorder::synchronize_stream(HostThread& t, std::uint32_t stream) {
  const OpId call = begin_call(t, OpKind::runtime, "cudaStreamSynchronize");
  wait_for(end_call(t, call, kSyncCall), call, work_of(stream));
  if (job_.cuda_sync) add_sync_row(SyncKind::stream_sync, "Stream Sync", call, streams_[stream].number, nullptr);
}

void Recorder::synchronize_device(HostThread& t) {
  const OpId call = begin_call(t, OpKind::runtime, "cudaDeviceSynchronize");
  std::vector<TaskRef> work;
  for (std::uint32_t s = 0; s < streams_.size(); ++s)
    for (const TaskRef& w : work_of(s)) work.push_back(w);
  wait_for(end_call(t, call, kSyncCall), call, work);
  if (job_.cuda_sync) add_sync_row(SyncKind::context_sync, "Context Sync", call, -1, nullptr);
}

Ns Recorder::host_since(std::uint32_t mark) const {
  Ns sum = 0;
  for (std::uint32_t i = mark; i < draft_.size(); ++i)
    if (draft_.kind[i] == NodeKind::host && draft_.rank[i] == row_) sum += draft_.duration[i];
  return sum;
}

void Recorder::scale_host_since(std::uint32_t mark, Ns total) {
  const Ns before = host_since(mark);
  if (before <= 0) return;
  Ns done = 0, scaled = 0;  // of the sum, so that rounding does not add up
  for (std::uint32_t i = mark; i < draft_.size(); ++i) {
    if (draft_.kind[i] != NodeKind::host || draft_.rank[i] != row_) continue;
    done += draft_.duration[i];
    const Ns reach =
        static_cast<Ns>(static_cast<double>(done) / static_cast<double>(before) * static_cast<double>(total));
    draft_.duration[i] = reach - scaled;
    scaled = reach;
  }
}

OpId Recorder::kernel_op(HostThread& t, std::string_view op, std::uint32_t stream, const TaskSpec& kernel,
                         std::string_view call) {
  const OpId id = open(t, OpKind::cpu_op, op, kOpLead);
  launch(t, stream, kernel, call);
  close(t, kOpTail);
  return id;
}

void Recorder::set_sequence(OpId op, std::int64_t sequence, std::int64_t forward_thread) {
  const std::uint32_t row = trace_.ops.extra[raw(op)];
  trace_.op_args.sequence[row] = sequence;
  trace_.op_args.fwd_thread[row] = forward_thread;
}

void Recorder::set_shapes(OpId op, std::string_view dims, std::string_view types) {
  if (!job_.shapes) return;
  const std::uint32_t row = trace_.ops.extra[raw(op)];
  trace_.op_args.input_dims[row] = text(dims);
  trace_.op_args.input_types[row] = text(types);
}

void Recorder::set_comm(OpId op, std::uint32_t comm) { trace_.op_args.comm[trace_.ops.extra[raw(op)]] = comm; }

std::vector<Recorder::StepNodes> Recorder::step_nodes() const {
  std::vector<StepNodes> nodes;
  for (const auto& [number, op] : steps_) nodes.push_back({number, begin_node_[raw(op)], end_node_[raw(op)]});
  return nodes;
}

void Recorder::fill_flows() {
  OpTable& ops = trace_.ops;
  FlowTable& f = trace_.flows;
  const auto add = [&](std::int64_t id, OpId at, FlowKind kind, bool finish) {
    f.id.push_back(id);
    f.ts.push_back(ops.start[raw(at)]);
    f.lane.push_back(ops.lane[raw(at)]);
    f.kind.push_back(kind);
    f.is_finish.push_back(finish ? 1 : 0);
  };
  for (std::uint32_t i = 0; i < ops.size(); ++i) {
    if (call_of_[i] == kNoOp) continue;
    add(ops.corr[i], call_of_[i], FlowKind::ac2g, false);
    add(ops.corr[i], OpId{i}, FlowKind::ac2g, true);
  }
  std::int64_t id = 0;
  for (const auto& [forward, backward] : backward_links_) {
    add(++id, forward, FlowKind::fwdbwd, false);
    add(id, backward, FlowKind::fwdbwd, true);
  }
}

void Recorder::finish(const Replay& r, const std::vector<NodeId>& new_number, Ns clock_error) {
  OpTable& ops = trace_.ops;
  const auto begin = [&](std::uint32_t i, bool task) {
    const std::uint32_t n = raw(new_number[raw(begin_node_[i])]);
    return (task ? r.start[n] : r.end[n]) + clock_error;
  };
  const auto end = [&](std::uint32_t i) { return r.end[raw(new_number[raw(end_node_[i])])] + clock_error; };
  const auto set = [&](std::uint32_t i, Ns from, Ns to) {  // rounding down both keeps what nests nested
    ops.start[i] = from - from % job_.clock_grain;
    ops.dur[i] = to - to % job_.clock_grain - ops.start[i];
  };
  for (std::uint32_t i = 0; i < ops.size(); ++i)
    if (end_node_[i] != kNoNode) set(i, begin(i, is_gpu_task(ops.kind[i])), end(i));
  for (const SyncRow& s : sync_rows_) {  // inside the call, a little shorter
    const Ns from = ops.start[raw(s.call)], dur = ops.dur[raw(s.call)];
    const Ns margin = std::min<Ns>(dur / 4, 400);
    set(raw(s.row), from + margin, from + dur - margin);
  }
  for (const auto& [row, op] : meetings_) {
    const std::uint32_t first = raw(new_number[raw(begin_node_[raw(op)])]);
    const std::uint32_t last = raw(new_number[raw(end_node_[raw(op)])]);
    truth_.transfers[row].waiting = r.start[last] - r.start[first];
    truth_.transfers[row].transfer = r.end[last] - r.start[last];
  }
  for (const Mirror& m : mirrors_) {
    const std::uint32_t row = raw(add_op(OpKind::gpu_annotation, {}, streams_[m.stream].lane));
    ops.name[row] = ops.name[raw(m.annotation)];
    ops.ext[row] = ops.ext[raw(m.annotation)];
    set(row, ops.start[raw(m.first)], ops.end(raw(m.last)));
  }
  fill_flows();
  trace_.window_start = std::numeric_limits<Ns>::max();
  trace_.window_end = std::numeric_limits<Ns>::min();
  for (std::uint32_t i = 0; i < ops.size(); ++i) {
    trace_.window_start = std::min(trace_.window_start, ops.start[i]);
    trace_.window_end = std::max(trace_.window_end, ops.end(i));
  }
}

}  // namespace orrery::synth
