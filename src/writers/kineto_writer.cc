#include "writers/kineto_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "writers/json_append.h"

namespace orrery {
namespace {

struct CallId {
  std::string_view name;
  int cbid;  // CUPTI's number of the call
};
constexpr CallId kCallIds[] = {
    {"cudaLaunchKernel", 211},    {"cudaLaunchKernelExC", 430},   {"cuLaunchKernel", 307},
    {"cudaMemcpyAsync", 41},      {"cudaMemsetAsync", 51},        {"cudaEventRecord", 135},
    {"cudaStreamWaitEvent", 147}, {"cudaStreamSynchronize", 131}, {"cudaDeviceSynchronize", 165}};

class KinetoText {
 public:
  explicit KinetoText(const RankTrace& t) : t_(t) {}
  std::string write();

 private:
  void header();
  void distributed_info();
  void event(std::uint32_t i);
  void arguments(std::uint32_t i);
  void op_arguments(std::uint32_t row);
  void python_arguments(std::uint32_t row);
  void kernel_arguments(std::uint32_t row);
  void sync_arguments(std::uint32_t row);
  void comm_arguments(std::uint32_t row);
  void flows_at(std::uint32_t i);
  void flow(std::uint32_t f);
  void index_flows();
  void metadata(std::string_view name, std::int64_t pid, std::int64_t tid, std::string_view key,
                std::string_view value);
  void all_metadata();
  void footer();

  void place(LaneId lane) {
    fmt::format_to(std::back_inserter(out_), "\"pid\": {}, \"tid\": {}", t_.lanes.pid[raw(lane)],
                   t_.lanes.tid[raw(lane)]);
  }
  void time(Ns t) { append_us(out_, t - t_.base_ns); }
  void separate() {
    out_ += first_ ? "\n" : ",\n";
    first_ = false;
  }
  // One argument: the separator and the key; the value follows.
  std::string& argument(std::string_view key) {
    out_ += first_argument_ ? "\"" : ", \"";
    first_argument_ = false;
    out_ += key;
    out_ += "\": ";
    return out_;
  }
  void argument(std::string_view key, std::int64_t v) { append_int(argument(key), v); }
  void argument_text(std::string_view key, StrId s) { append_quoted(argument(key), t_.strings.view(s)); }

  const RankTrace& t_;
  std::string out_;
  bool first_ = true, first_argument_ = true;
  std::vector<std::uint32_t> flow_order_;
  std::vector<bool> flow_written_;
};

std::string_view category(OpKind k, std::string_view name) {
  switch (k) {
    case OpKind::cpu_op:
      return "cpu_op";
    case OpKind::user_annotation:
      return "user_annotation";
    case OpKind::python:
      return "python_function";
    case OpKind::runtime:
      return name.starts_with("cu") && !name.starts_with("cuda") ? "cuda_driver" : "cuda_runtime";
    case OpKind::kernel:
      return "kernel";
    case OpKind::memcpy:
      return "gpu_memcpy";
    case OpKind::memset:
      return "gpu_memset";
    case OpKind::gpu_annotation:
      return "gpu_user_annotation";
    case OpKind::sync:
      return "cuda_sync";
    case OpKind::overhead:
      return "overhead";
    case OpKind::other:
      return "";
  }
  return "";
}

bool from_profiler(OpKind k) { return k == OpKind::cpu_op || k == OpKind::user_annotation || k == OpKind::python; }

void KinetoText::header() {
  out_ += "{\n  \"schemaVersion\": 1,\n  \"deviceProperties\": [\n";
  for (std::size_t i = 0; i < t_.devices.size(); ++i) {
    const Device& d = t_.devices[i];
    out_ += "    {\n";
    fmt::format_to(std::back_inserter(out_), "      \"id\": {}, \"name\": ", d.id);
    append_quoted(out_, d.name);
    fmt::format_to(
        std::back_inserter(out_),
        ", \"totalGlobalMem\": {},\n      \"computeMajor\": {}, \"computeMinor\": {}, \"numSms\": {}\n    }}{}\n",
        d.memory_bytes, d.compute_major, d.compute_minor, d.sms, i + 1 < t_.devices.size() ? "," : "");
  }
  out_ += "  ],\n  \"record_shapes\": 1,\n";
  distributed_info();
  out_ += "  \"displayTimeUnit\": \"ms\",\n  \"traceEvents\": [";
}

void KinetoText::distributed_info() {
  if (t_.rank < 0) return;
  fmt::format_to(std::back_inserter(out_),
                 "  \"distributedInfo\": {{\"backend\": \"nccl\", \"rank\": {}, \"world_size\": {}, \"pg_count\": {}, "
                 "\"pg_config\": [",
                 t_.rank, t_.world_size, t_.groups.size());
  for (std::size_t i = 0; i < t_.groups.size(); ++i) {
    const ProcessGroup& g = t_.groups[i];
    out_ += i == 0 ? "{\"pg_name\": " : ", {\"pg_name\": ";
    append_quoted(out_, g.name);
    append_quoted(out_ += ", \"pg_desc\": ", g.desc);
    append_quoted(out_ += ", \"backend_config\": ", g.backend);
    append_int(out_ += ", \"pg_size\": ", g.size);
    out_ += ", \"ranks\": [";
    for (std::size_t r = 0; r < g.ranks.size(); ++r) {
      if (r > 0) out_ += ", ";
      append_int(out_, g.ranks[r]);
    }
    out_ += "]}";
  }
  out_ += "]},\n";
}

void KinetoText::comm_arguments(std::uint32_t row) {
  if (row == kNone) return;
  const CommArgs& c = t_.comm_args;
  argument_text("Collective name", c.collective[row]);
  if (c.in_elems[row] >= 0) argument("In msg nelems", c.in_elems[row]);
  if (c.out_elems[row] >= 0) argument("Out msg nelems", c.out_elems[row]);
  if (c.group_size[row] > 0) argument("Group size", c.group_size[row]);
  argument_text("dtype", c.dtype[row]);
  argument_text("In split size", c.in_split[row]);
  argument_text("Out split size", c.out_split[row]);
  if (c.group_name[row] != StrId{}) argument_text("Process Group Name", c.group_name[row]);
  if (c.group_desc[row] != StrId{}) argument_text("Process Group Description", c.group_desc[row]);
  argument_text("Process Group Ranks", c.group_ranks[row]);
  if (c.src_rank[row] >= 0) argument("Src Rank", c.src_rank[row]);
  if (c.dst_rank[row] >= 0) argument("Dst Rank", c.dst_rank[row]);
  if (c.seq[row] >= 0) argument("Seq", c.seq[row]);
}

void KinetoText::python_arguments(std::uint32_t row) {
  const PythonArgs& a = t_.python_args;
  if (a.parent[row] < 0)
    argument("Python parent id") += "null";
  else
    argument("Python parent id", a.parent[row]);
  argument("Python id", a.id[row]);
}

void KinetoText::op_arguments(std::uint32_t row) {
  const OpArgs& a = t_.op_args;
  argument("Record function id", 0);
  if (a.sequence[row] >= 0) {
    argument("Sequence number", a.sequence[row]);
    argument("Fwd thread id", a.fwd_thread[row]);
  }
  comm_arguments(a.comm[row]);
  if (a.concrete_inputs[row] != StrId{}) argument("Concrete Inputs") += t_.strings.view(a.concrete_inputs[row]);
  if (a.input_types[row] != StrId{}) argument("Input type") += t_.strings.view(a.input_types[row]);
  if (a.input_dims[row] != StrId{}) argument("Input Dims") += t_.strings.view(a.input_dims[row]);
}

void KinetoText::kernel_arguments(std::uint32_t row) {
  const KernelArgs& k = t_.kernel_args;
  argument("registers per thread", k.registers[row]);
  argument("shared memory", k.shared_bytes[row]);
  const auto per_sm = static_cast<double>(k.blocks_per_sm[row]);
  if (!std::isnan(per_sm)) {
    fmt::format_to(std::back_inserter(argument("blocks per SM")), "{:.6f}", per_sm);
    fmt::format_to(std::back_inserter(argument("warps per SM")), "{:.6f}", per_sm * k.block_threads[row] / 32);
  }
  fmt::format_to(std::back_inserter(argument("grid")), "[{}, 1, 1]", k.grid_blocks[row]);
  fmt::format_to(std::back_inserter(argument("block")), "[{}, 1, 1]", k.block_threads[row]);
  if (!std::isnan(k.occupancy_pct[row]))
    argument("est. achieved occupancy %", static_cast<std::int64_t>(k.occupancy_pct[row]));
  comm_arguments(k.comm[row]);
}

void KinetoText::sync_arguments(std::uint32_t row) {
  const SyncArgs& s = t_.sync_args;
  constexpr std::string_view kNames[] = {"Stream Wait Event", "Event Sync", "Stream Sync", "Context Sync", "Unknown"};
  append_quoted(argument("cuda_sync_kind"), kNames[static_cast<std::size_t>(s.kind[row])]);
  if (s.kind[row] == SyncKind::stream_wait_event) {
    argument("wait_on_stream", s.wait_stream[row]);
    argument("wait_on_cuda_event_record_corr_id", s.wait_record_corr[row]);
    argument("wait_on_cuda_event_id", s.wait_event[row]);
  }
  argument("stream", s.stream[row]);
}

void KinetoText::arguments(std::uint32_t i) {
  const OpTable& ops = t_.ops;
  const OpKind kind = ops.kind[i];
  const std::uint32_t row = ops.extra[i];
  first_argument_ = true;
  if (ops.ext[i] != 0) argument("External id", ops.ext[i]);
  if (from_profiler(kind)) {
    if (row != kNone && kind == OpKind::python) python_arguments(row);
    if (row != kNone && kind != OpKind::python) op_arguments(row);
    return;
  }
  if (kind == OpKind::runtime) {
    const std::string_view name = t_.strings.view(ops.name[i]);
    for (const CallId& c : kCallIds)
      if (c.name == name) argument("cbid", c.cbid);
    argument("correlation", ops.corr[i]);
    return;
  }
  if (kind == OpKind::kernel) argument("queued", 0);
  if (kind == OpKind::sync && row != kNone) sync_arguments(row);
  if (is_gpu_task(kind) || kind == OpKind::sync) {
    argument("device", t_.lanes.pid[raw(ops.lane[i])]);
    argument("context", 1);
    if (is_gpu_task(kind)) argument("stream", t_.lanes.tid[raw(ops.lane[i])]);
    argument("correlation", ops.corr[i]);
  }
  if (kind == OpKind::kernel && row != kNone) kernel_arguments(row);
  if ((kind == OpKind::memcpy || kind == OpKind::memset) && row != kNone && t_.copy_args.bytes[row] >= 0) {
    const std::int64_t bytes = t_.copy_args.bytes[row];
    argument("bytes", bytes);
    if (ops.dur[i] > 0)
      fmt::format_to(std::back_inserter(argument("memory bandwidth (GB/s)")), "{:.6f}",
                     static_cast<double>(bytes) / static_cast<double>(ops.dur[i]));
  }
}

void KinetoText::event(std::uint32_t i) {
  const OpTable& ops = t_.ops;
  const std::string_view name = t_.strings.view(ops.name[i]);
  separate();
  out_ += "  {\n    \"ph\": \"X\", \"cat\": \"";
  out_ += category(ops.kind[i], name);
  append_quoted(out_ += "\", \"name\": ", name);
  out_ += ", ";
  place(ops.lane[i]);
  out_ += ",\n    \"ts\": ";
  time(ops.start[i]);
  append_us(out_ += ", \"dur\": ", ops.dur[i]);
  out_ += ",\n    \"args\": {\n      ";
  arguments(i);
  out_ += "\n    }\n  }";
}

// Flows are written beside the event on whose lane, and at whose start, they are.
void KinetoText::index_flows() {
  const FlowTable& f = t_.flows;
  flow_order_.resize(f.size());
  for (std::uint32_t i = 0; i < f.size(); ++i) flow_order_[i] = i;
  std::sort(flow_order_.begin(), flow_order_.end(), [&](std::uint32_t a, std::uint32_t b) {
    if (f.lane[a] != f.lane[b]) return f.lane[a] < f.lane[b];
    return f.ts[a] != f.ts[b] ? f.ts[a] < f.ts[b] : a < b;
  });
  flow_written_.assign(f.size(), false);
}

void KinetoText::flow(std::uint32_t i) {
  const FlowTable& f = t_.flows;
  const std::string_view kind = f.kind[i] == FlowKind::ac2g     ? "ac2g"
                                : f.kind[i] == FlowKind::fwdbwd ? "fwdbwd"
                                                                : "flow";
  separate();
  out_ += f.is_finish[i] ? "  {\n    \"ph\": \"f\", \"id\": " : "  {\n    \"ph\": \"s\", \"id\": ";
  append_int(out_, f.id[i]);
  out_ += ", ";
  place(f.lane[i]);
  out_ += ", \"ts\": ";
  time(f.ts[i]);
  fmt::format_to(std::back_inserter(out_), ",\n    \"cat\": \"{}\", \"name\": \"{}\"{}\n  }}", kind, kind,
                 f.is_finish[i] ? ", \"bp\": \"e\"" : "");
  flow_written_[i] = true;
}

void KinetoText::flows_at(std::uint32_t i) {
  const OpTable& ops = t_.ops;
  const FlowTable& f = t_.flows;
  const bool device = is_gpu_task(ops.kind[i]), call = ops.kind[i] == OpKind::runtime;
  if (!device && !call && ops.kind[i] != OpKind::cpu_op) return;
  const LaneId lane = ops.lane[i];
  const Ns ts = ops.start[i];
  auto at = std::lower_bound(flow_order_.begin(), flow_order_.end(), i, [&](std::uint32_t a, std::uint32_t) {
    return f.lane[a] != lane ? f.lane[a] < lane : f.ts[a] < ts;
  });
  for (; at != flow_order_.end() && f.lane[*at] == lane && f.ts[*at] == ts; ++at) {
    const bool fits =
        f.kind[*at] == FlowKind::ac2g ? (device || call) && f.id[*at] == ops.corr[i] : ops.kind[i] == OpKind::cpu_op;
    if (fits && !flow_written_[*at]) flow(*at);
  }
}

void KinetoText::metadata(std::string_view name, std::int64_t pid, std::int64_t tid, std::string_view key,
                          std::string_view value) {
  separate();
  fmt::format_to(std::back_inserter(out_), "  {{\n    \"name\": \"{}\", \"ph\": \"M\", \"ts\": ", name);
  time(t_.window_start);
  fmt::format_to(std::back_inserter(out_),
                 ", \"pid\": {}, \"tid\": {},\n    \"args\": {{\n      \"{}\": {}\n    }}\n  }}", pid, tid, key, value);
}

void KinetoText::all_metadata() {
  const LaneTable& l = t_.lanes;
  std::set<std::pair<int, std::int64_t>> processes;
  for (std::size_t i = 0; i < l.size(); ++i) processes.insert({l.kind[i] == LaneKind::stream ? 1 : 0, l.pid[i]});
  for (const auto& [device, pid] : processes) {
    metadata("process_name", pid, 0, "name", "\"python3\"");
    metadata("process_labels", pid, 0, "labels", device ? fmt::format("\"GPU {}\"", pid) : "\"CPU\"");
    metadata("process_sort_index", pid, 0, "sort_index", fmt::format("{}", device ? 5'000'000 + pid : pid));
  }
  for (std::size_t i = 0; i < l.size(); ++i) {
    std::string name;
    append_quoted(name, t_.strings.view(l.name[i]));
    metadata("thread_name", l.pid[i], l.tid[i], "name", name);
    metadata("thread_sort_index", l.pid[i], l.tid[i], "sort_index", fmt::format("{}", l.tid[i]));
  }
}

void KinetoText::footer() {
  separate();
  out_ +=
      "  {\n    \"ph\": \"X\", \"cat\": \"Trace\", \"name\": \"PyTorch Profiler (0)\", \"pid\": \"Spans\", \"tid\": "
      "\"PyTorch Profiler\",\n    \"ts\": ";
  time(t_.window_start);
  append_us(out_ += ", \"dur\": ", t_.window_end - t_.window_start);
  out_ += ",\n    \"args\": {\n      \"Op count\": 0\n    }\n  }";
  separate();
  out_ +=
      "  {\n    \"name\": \"Record Window End\", \"ph\": \"i\", \"s\": \"g\",\n    \"pid\": \"\", \"tid\": \"\", "
      "\"ts\": ";
  time(t_.window_end);
  out_ += "\n  }\n  ],\n  \"traceName\": ";
  append_quoted(out_, t_.trace_name);
  append_int(out_ += ",\n  \"baseTimeNanoseconds\": ", t_.base_ns);
  out_ += "\n}\n";
}

std::string KinetoText::write() {
  const auto n = static_cast<std::uint32_t>(t_.ops.size());
  out_.reserve(n * std::size_t{420} + 16'384);
  index_flows();
  header();
  for (const bool profiler : {true, false})
    for (std::uint32_t i = 0; i < n; ++i) {
      if (from_profiler(t_.ops.kind[i]) != profiler || t_.ops.kind[i] == OpKind::other) continue;
      event(i);
      flows_at(i);
    }
  for (std::uint32_t f = 0; f < t_.flows.size(); ++f)
    if (!flow_written_[f]) flow(f);
  all_metadata();
  footer();
  return std::move(out_);
}

}  // namespace

std::string to_kineto_json(const RankTrace& trace) { return KinetoText(trace).write(); }

}  // namespace orrery
