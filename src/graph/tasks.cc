// GPU tasks by stream, and the calls that launched them.
#include <algorithm>
#include <unordered_map>

#include "graph/draft.h"

namespace orrery {
namespace {

// A duration that runs past the starts of later tasks of its stream by more than this is a clock or buffer fault, not
// an overlap of programmatic dependent launch (4.6 us at most in the traces known to us).
constexpr Ns kOverrun = 100'000;

NodeKind kind_of(const RankTrace& t, std::uint32_t op, std::vector<std::uint8_t>& comm_name) {
  switch (t.ops.kind[op]) {
    case OpKind::memcpy:
      return NodeKind::memcpy;
    case OpKind::memset:
      return NodeKind::memset;
    default:
      break;
  }
  const std::uint32_t extra = t.ops.extra[op];
  if (extra != kNone) {
    const std::uint32_t comm = t.kernel_args.comm[extra];
    if (comm != kNone && raw(t.comm_args.collective[comm]) != 0) return NodeKind::comm;
  }
  std::uint8_t& known = comm_name[raw(t.ops.name[op])];  // 0 = not asked yet, 1 = no, 2 = yes
  if (known == 0) known = is_communication_name(t.strings.view(t.ops.name[op])) ? 2 : 1;
  return known == 2 ? NodeKind::comm : NodeKind::kernel;
}

// Clips durations that run far past the next start on their stream: a stream runs one task after the other, so such a
// duration is a fault of the record. Two tasks side by side (AMD's queue-less copies) are left alone: only a task that
// covers at least two later starts is clipped.
void clip_overruns(Draft& d, const StreamRow& s) {
  const std::uint32_t last = s.first_task + s.tasks;
  for (std::uint32_t i = s.first_task; i + 2 < last; ++i) {
    Task& t = d.tasks[i];
    if (t.end <= d.tasks[i + 2].start || t.end - d.tasks[i + 1].start <= kOverrun) continue;
    d.notes.add("duration-overrun", Severity::warning, 1, d.trace->name_of(OpId{t.op}),
                "GPU tasks whose duration runs past later tasks of their stream by more than 100 us: clipped to the "
                "next start");
    t.end = std::max(t.start, d.tasks[i + 1].start);
    d.node[t.node].duration = t.end - t.start;
  }
}

}  // namespace

void add_tasks(Draft& d) {
  const RankTrace& t = *d.trace;
  const std::uint32_t rows = static_cast<std::uint32_t>(t.ops.size());
  const std::uint32_t lanes = static_cast<std::uint32_t>(t.lanes.size());

  // rows of GPU tasks, bucketed by lane, then by start
  d.bucket.assign(lanes + 1, 0);
  std::uint32_t total = 0;
  for (std::uint32_t i = 0; i < rows; ++i) {
    if (!is_gpu_task(t.ops.kind[i])) continue;
    ++d.bucket[raw(t.ops.lane[i]) + 1];
    ++total;
  }
  for (std::uint32_t l = 0; l < lanes; ++l) {
    const std::uint32_t count = d.bucket[l + 1];
    if (count != 0) d.streams.push_back({l, t.lanes.pid[l], t.lanes.tid[l], d.bucket[l], count});
    d.bucket[l + 1] += d.bucket[l];
  }
  d.order.resize(total);
  for (std::uint32_t i = 0; i < rows; ++i) {
    if (is_gpu_task(t.ops.kind[i])) d.order[d.bucket[raw(t.ops.lane[i])]++] = i;
  }
  if (total == 0)
    d.notes.add("no-gpu-tasks", Severity::info, 1, t.file,
                "no kernel, copy or memset in the trace: only host time is replayed; record with "
                "ProfilerActivity.CUDA");
  d.name_flags.assign(t.strings.size(), 0);
  d.tasks.reserve(total);
  auto earlier = [&](std::uint32_t a, std::uint32_t b) {
    if (t.ops.start[a] != t.ops.start[b]) return t.ops.start[a] < t.ops.start[b];
    if (t.ops.corr[a] != t.ops.corr[b]) return t.ops.corr[a] < t.ops.corr[b];
    return a < b;
  };
  for (std::uint32_t s = 0; s < d.streams.size(); ++s) {
    const StreamRow& stream = d.streams[s];
    const auto from = d.order.begin() + stream.first_task;
    const auto to = from + stream.tasks;
    if (!std::is_sorted(from, to, earlier)) std::sort(from, to, earlier);
    for (auto it = from; it != to; ++it) {
      const std::uint32_t op = *it;
      const NodeKind kind = kind_of(t, op, d.name_flags);
      const std::uint32_t node = d.add_node(t.ops.dur[op], t.ops.start[op], stream.lane, kind, 0, op);
      d.begin_node[op] = d.end_node[op] = node;
      d.tasks.push_back({t.ops.start[op], t.ops.end(op), op, s, node, kNone, kind, false});
    }
    clip_overruns(d, stream);
  }

  // Tasks by correlation, in `launched`; `slots` finds a group by its correlation.
  std::size_t size = 16;
  while (size < total * 2u) size *= 2;
  d.group_mask = static_cast<std::uint32_t>(size - 1);
  d.group_slots.assign(size, kNone);
  d.groups.clear();
  d.order.assign(total, kNone);
  for (std::uint32_t i = 0; i < total; ++i) {
    const std::int64_t corr = t.ops.corr[d.tasks[i].op];
    if (corr == 0) continue;
    std::size_t slot = slot_of(corr, d.group_mask);
    while (d.group_slots[slot] != kNone && d.groups[d.group_slots[slot]].corr != corr) slot = (slot + 1) & d.group_mask;
    if (d.group_slots[slot] == kNone) {
      d.group_slots[slot] = static_cast<std::uint32_t>(d.groups.size());
      d.groups.push_back({corr, 0, 0, kNone});
    }
    d.order[i] = d.group_slots[slot];
    ++d.groups[d.order[i]].tasks;
  }
  std::uint32_t first = 0;
  for (TaskGroup& g : d.groups) {
    g.first = first;
    first += g.tasks;
    g.tasks = 0;
  }
  d.launched.resize(first);
  for (std::uint32_t i = 0; i < total; ++i) {
    if (d.order[i] == kNone) continue;
    TaskGroup& g = d.groups[d.order[i]];
    d.launched[g.first + g.tasks++] = i;
  }
}

// Links each call to the tasks it launched: by correlation; where a task has none, by its ac2g flow.
void link_launches(Draft& d) {
  const RankTrace& t = *d.trace;
  std::uint64_t shared = 0;
  std::uint32_t first_shared = kNone;
  for (std::uint32_t c = 0; c < d.calls.size(); ++c) {
    CallRow& call = d.calls[c];
    TaskGroup* g = d.find_group(t.ops.corr[call.op]);
    if (g == nullptr) continue;
    if (g->call != kNone) {  // the first of several calls with one correlation keeps it
      const CallRow& kept = d.calls[g->call];
      const bool inside = call.thread == kept.thread && call.end <= kept.end;  // a runtime call's own driver call
      if (!inside && shared++ == 0) first_shared = call.op;
      continue;
    }
    g->call = c;
    call.first_task = g->first;
    call.tasks = g->tasks;
    for (std::uint32_t k = 0; k < g->tasks; ++k) d.tasks[d.launched[g->first + k]].call = c;
  }

  if (shared != 0)
    d.notes.add("correlation-shared", Severity::warning, shared,
                t.example_of(OpId{first_shared}) + " under " + std::to_string(t.ops.corr[first_shared]),
                "calls with the correlation id of an earlier call: that one is taken to have launched the GPU tasks");

  std::uint64_t unknown = 0;
  std::uint32_t example = kNone;
  for (const Task& task : d.tasks) {
    if (t.ops.corr[task.op] == 0) {
      if (example == kNone) example = task.op;
      ++unknown;
    }
  }
  if (unknown == 0) return;
  std::uint64_t by_flow = 0;
  std::uint32_t first_by_flow = kNone;
  std::unordered_map<std::int64_t, std::uint32_t> flow_start;  // id -> flow row
  for (std::uint32_t f = 0; f < t.flows.size(); ++f) {
    if (t.flows.kind[f] == FlowKind::ac2g && t.flows.is_finish[f] == 0) flow_start.try_emplace(t.flows.id[f], f);
  }
  struct Place {
    std::uint64_t lane;
    Ns ts;
    bool operator==(const Place&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Place& p) const {
      return std::hash<std::uint64_t>{}(p.lane * 0x9e3779b97f4a7c15ull ^ static_cast<std::uint64_t>(p.ts));
    }
  };
  std::unordered_map<Place, std::uint32_t, Hash> task_at, call_at;
  for (std::uint32_t i = 0; i < d.tasks.size(); ++i) {
    if (t.ops.corr[d.tasks[i].op] == 0) task_at.try_emplace(Place{raw(t.ops.lane[d.tasks[i].op]), d.tasks[i].start}, i);
  }
  for (std::uint32_t c = 0; c < d.calls.size(); ++c) {
    call_at.try_emplace(Place{raw(t.ops.lane[d.calls[c].op]), d.calls[c].begin}, c);
  }
  for (std::uint32_t f = 0; f < t.flows.size(); ++f) {
    if (t.flows.kind[f] != FlowKind::ac2g || t.flows.is_finish[f] == 0) continue;
    const auto task = task_at.find(Place{raw(t.flows.lane[f]), t.flows.ts[f]});
    const auto start = flow_start.find(t.flows.id[f]);
    if (task == task_at.end() || start == flow_start.end()) continue;
    const auto call = call_at.find(Place{raw(t.flows.lane[start->second]), t.flows.ts[start->second]});
    if (call == call_at.end() || d.calls[call->second].tasks != 0 || d.tasks[task->second].call != kNone) continue;
    CallRow& c = d.calls[call->second];
    c.first_task = static_cast<std::uint32_t>(d.launched.size());
    c.tasks = 1;
    d.launched.push_back(task->second);
    d.tasks[task->second].call = call->second;
    if (by_flow++ == 0) first_by_flow = d.tasks[task->second].op;
  }
  d.notes.add("launch-by-flow", Severity::info, by_flow,
              first_by_flow == kNone ? "" : t.example_of(OpId{first_by_flow}),
              "GPU tasks without a correlation id, linked to their launch by a flow event");
  d.notes.add("launch-unknown", Severity::warning, unknown - by_flow, t.example_of(OpId{example}),
              "GPU tasks without a usable correlation id: only their stream's order holds them in the replay");
}

}  // namespace orrery
