// Who launched each GPU task: the call, the operators and ranges round it, the Python frame, and the range on another
// thread that waits meanwhile (a backward pass runs on a thread of its own).
#include <algorithm>
#include <tuple>

#include "graph/build.h"
#include "graph/calls.h"
#include "reports/dissect.h"

namespace orrery {
namespace {

struct Span {
  std::uint32_t lane, row;
  Ns start, end;
};

std::vector<Span> spans_of(const RankTrace& t, OpKind kind) {
  std::vector<Span> rows;
  for (std::uint32_t i = 0; i < t.ops.size(); ++i)
    if (t.ops.kind[i] == kind && t.ops.lane[i] != kNoLane)
      rows.push_back({raw(t.ops.lane[i]), i, t.ops.start[i], t.ops.end(i)});
  // Rows of one place and length nest in the order of their names' text, whatever the order of the file.
  std::sort(rows.begin(), rows.end(), [&](const Span& a, const Span& b) {
    if (const auto x = std::tie(a.lane, a.start, b.end), y = std::tie(b.lane, b.start, a.end); x != y) return x < y;
    if (t.ops.name[a.row] != t.ops.name[b.row]) return t.name_of(OpId{a.row}) < t.name_of(OpId{b.row});
    return a.row < b.row;
  });
  return rows;
}

// The innermost row of `rows` round each task's launch, on the thread of the launch.
template <class Set>
void find_innermost(Dissection& d, const std::vector<Span>& rows, Set set) {
  if (rows.empty()) return;
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < d.tasks.size(); ++i)
    if (d.tasks[i].call != kNone) order.push_back(i);
  const auto lane = [&](std::uint32_t i) { return raw(d.trace->ops.lane[d.tasks[i].call]); };
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair{lane(a), d.tasks[a].at} < std::pair{lane(b), d.tasks[b].at};
  });
  std::vector<const Span*> open;
  std::size_t next = 0;
  std::uint32_t at_lane = kNone;
  for (const std::uint32_t i : order) {
    const Ns at = d.tasks[i].at;
    if (lane(i) != at_lane) {
      open.clear();
      at_lane = lane(i);
    }
    for (; next < rows.size() && (rows[next].lane < at_lane || (rows[next].lane == at_lane && rows[next].start <= at));
         ++next) {
      if (rows[next].lane != at_lane) continue;
      while (!open.empty() && open.back()->end <= rows[next].start) open.pop_back();
      open.push_back(&rows[next]);
    }
    while (!open.empty() && open.back()->end <= at) open.pop_back();
    if (!open.empty()) set(d.tasks[i], open.back()->row);
  }
}

// The thread that runs the steps: that of the markers, else the one with most launches outside of autograd.
std::uint32_t main_lane(const Dissection& d) {
  const RankTrace& t = *d.trace;
  std::vector<std::uint64_t> launches(t.lanes.size(), 0);
  for (const Launch& l : d.operators.launches) launches[raw(l.lane)] += l.backward ? 0 : 1;
  for (std::uint32_t i = 0; i < t.ops.size(); ++i)
    if (t.ops.kind[i] == OpKind::user_annotation && t.name_of(OpId{i}).substr(0, 13) == "ProfilerStep#" &&
        t.ops.lane[i] != kNoLane)
      return raw(t.ops.lane[i]);
  const auto most = std::max_element(launches.begin(), launches.end());
  return most == launches.end() ? kNone : static_cast<std::uint32_t>(most - launches.begin());
}

// The innermost range of the main thread that is open when another thread launches a task without a range of its own:
// the main thread waits for a backward pass.
void find_covers(Dissection& d) {
  const RankTrace& t = *d.trace;
  const std::uint32_t main = d.main_lane;
  std::vector<Span> ranges;
  for (const Span& s : spans_of(t, OpKind::user_annotation))
    if (s.lane == main && !is_neutral_range(t.name_of(OpId{s.row}))) ranges.push_back(s);
  if (ranges.empty()) return;
  std::stable_sort(ranges.begin(), ranges.end(), [](const Span& a, const Span& b) { return a.start < b.start; });
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < d.tasks.size(); ++i) {
    if (d.tasks[i].call == kNone || raw(d.tasks[i].lane) == main) continue;
    bool own = false;
    for (std::uint32_t p = d.tasks[i].near; p != kNone && !own; p = d.operators.parent[p])
      own = t.ops.kind[p] == OpKind::user_annotation && !is_neutral_range(t.name_of(OpId{p}));
    if (!own) order.push_back(i);
  }
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return d.tasks[a].at < d.tasks[b].at; });
  std::vector<const Span*> open;
  std::size_t next = 0;
  for (const std::uint32_t i : order) {
    const Ns at = d.tasks[i].at;
    for (; next < ranges.size() && ranges[next].start <= at; ++next) open.push_back(&ranges[next]);
    std::erase_if(open, [&](const Span* s) { return s->end <= at; });
    if (!open.empty()) d.tasks[i].cover = open.back()->row;
  }
}

// The frame round each frame.
std::vector<std::uint32_t> parents_of(const RankTrace& t, const std::vector<Span>& rows) {
  std::vector<std::uint32_t> parent(t.ops.size(), kNone);
  std::vector<const Span*> open;
  for (const Span& s : rows) {
    if (!open.empty() && open.back()->lane != s.lane) open.clear();
    while (!open.empty() && open.back()->end <= s.start) open.pop_back();
    if (!open.empty()) parent[s.row] = open.back()->row;
    open.push_back(&s);
  }
  return parent;
}

}  // namespace

void find_contexts(Dissection& d) {
  const RankTrace& t = *d.trace;
  const OpTable& ops = t.ops;
  std::vector<std::pair<std::int64_t, std::uint32_t>> calls;
  for (std::uint32_t i = 0; i < ops.size(); ++i)
    if (ops.kind[i] == OpKind::runtime && ops.corr[i] != 0) calls.emplace_back(ops.corr[i], i);
  std::sort(calls.begin(), calls.end(), [&](const auto& a, const auto& b) {
    return std::tie(a.first, ops.start[a.second]) < std::tie(b.first, ops.start[b.second]);
  });
  std::vector<std::uint32_t> launch_of(ops.size(), kNone);
  for (std::uint32_t n = 0; n < d.operators.launches.size(); ++n) launch_of[d.operators.launches[n].task] = n;
  std::vector<std::uint8_t> kind_of_name(t.strings.size(), 0);  // KernelClass + 1
  std::vector<std::uint8_t> talks(t.strings.size(), 0);         // 1 no, 2 yes: by name

  for (std::uint32_t i = 0; i < ops.size(); ++i) {
    if (!is_gpu_task(ops.kind[i])) continue;
    DissectedTask task;
    task.row = i;
    task.at = ops.start[i];
    task.lane = ops.lane[i];
    if (ops.corr[i] != 0) {
      const auto c = std::lower_bound(calls.begin(), calls.end(), ops.corr[i],
                                      [](const auto& a, std::int64_t corr) { return a.first < corr; });
      if (c != calls.end() && c->first == ops.corr[i]) {
        task.call = c->second;
        task.at = ops.start[c->second];
        task.lane = ops.lane[c->second];
        task.graph = classify_call(t.name_of(OpId{c->second})) == Call::graph_launch;
      }
    }
    task.launch = launch_of[i];
    if (task.launch != kNone) {
      task.near = d.operators.launches[task.launch].op;
    } else if (task.call != kNone) {
      task.near = d.operators.parent[task.call];
    }
    for (task.op = task.near; task.op != kNone && ops.kind[task.op] != OpKind::cpu_op;)
      task.op = d.operators.parent[task.op];
    if (ops.kind[i] != OpKind::kernel) {
      task.kind = KernelClass::memory;
    } else {
      const std::uint32_t extra = ops.extra[i];
      std::uint8_t& said = talks[raw(ops.name[i])];
      if (extra != kNone && t.kernel_args.comm[extra] != kNone) {
        task.communicates = is_communication(t, OpId{i});
      } else {
        if (said == 0) said = is_communication(t, OpId{i}) ? 2 : 1;
        task.communicates = said == 2;
      }
      std::uint8_t& kind = kind_of_name[raw(ops.name[i])];
      if (kind == 0) kind = static_cast<std::uint8_t>(1 + static_cast<int>(class_of_kernel(t.name_of(OpId{i}))));
      task.kind = task.communicates ? KernelClass::communication : static_cast<KernelClass>(kind - 1);
    }
    d.tasks.push_back(task);
  }
  std::sort(d.tasks.begin(), d.tasks.end(), [&](const DissectedTask& a, const DissectedTask& b) {
    if (const auto x = std::tie(a.at, ops.start[a.row]), y = std::tie(b.at, ops.start[b.row]); x != y) return x < y;
    if (ops.name[a.row] != ops.name[b.row]) return t.name_of(OpId{a.row}) < t.name_of(OpId{b.row});
    return a.row < b.row;
  });
  if (const std::vector<Span> frames = spans_of(t, OpKind::python); !frames.empty()) {
    d.frame_parent = parents_of(t, frames);
    find_innermost(d, frames, [](DissectedTask& task, std::uint32_t row) { task.frame = row; });
  }
  d.main_lane = main_lane(d);
  find_covers(d);
}

}  // namespace orrery
