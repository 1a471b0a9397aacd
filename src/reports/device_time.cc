#include "reports/names.h"
#include "reports/reports.h"

namespace orrery {
namespace {

enum Class { compute, comm, memory, classes };

int class_of(NodeKind k) {
  switch (k) {
    case NodeKind::kernel:
      return compute;
    case NodeKind::comm:
      return comm;
    case NodeKind::memcpy:
    case NodeKind::memset:
      return memory;
    case NodeKind::host:
    case NodeKind::stall:
    case NodeKind::rendezvous:
      break;
  }
  return classes;
}

// Tasks come in stream order, which is time order but for rare overlaps: those wait in `stray` and are sorted at the
// end.
void add(DeviceTime::Run& run, Ns begin, Ns end) {
  if (run.rows.empty() || begin >= run.rows.back().begin)
    append(run.rows, begin, end);
  else if (begin < end)
    run.stray.push_back({begin, end});
}

// Pairs of streams, then pairs of pairs: each stretch is copied log2(streams) times.
void merge_class(DeviceTime& d, std::size_t c, std::size_t lanes, Intervals& out) {
  std::size_t filled = 0;
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    Intervals& rows = d.runs[lane * classes + c].rows;
    if (!rows.empty()) std::swap(rows, d.runs[filled++ * classes + c].rows);
  }
  for (; filled > 1; filled = (filled + 1) / 2)
    for (std::size_t i = 0; i < filled; i += 2) {
      Intervals& to = d.runs[i / 2 * classes + c].rows;
      Intervals& from = d.runs[i * classes + c].rows;
      if (i + 1 < filled) {
        unite(from, d.runs[(i + 1) * classes + c].rows, d.spare);
        std::swap(to, d.spare);
      } else if (&to != &from) {
        std::swap(to, from);
      }
    }
  out.clear();
  if (filled == 1) std::swap(out, d.runs[c].rows);
}

}  // namespace

DeviceTasks device_tasks(const ExecGraph& g) {
  const auto counts = [&](std::uint32_t i) {
    return class_of(g.kind[i]) != classes && !(g.kind[i] == NodeKind::comm && g.at_begin[i]);
  };
  DeviceTasks out;
  std::vector<std::uint32_t>& first = out.first_of_rank;
  first.assign(g.ranks.size() + 1, 0);
  for (std::uint32_t i = 0; i < g.size(); ++i)
    if (counts(i)) ++first[g.rank[i] + 1];
  for (std::size_t k = 1; k < first.size(); ++k) first[k] += first[k - 1];
  out.rows.resize(first.back());

  std::vector<std::uint32_t> place(first.begin(), first.end());
  std::vector<std::uint32_t> arrived(lane_count(g), kNone);  // by stream: the arrival whose transfer is to come
  for (std::uint32_t i = 0; i < g.size(); ++i) {
    if (class_of(g.kind[i]) == classes) continue;
    DeviceTask task{i, i};
    if (g.kind[i] == NodeKind::comm) {
      std::uint32_t& arrival = arrived[g.lane[i]];
      if (g.at_begin[i]) {
        arrival = i;
        continue;
      }
      if (arrival != kNone && g.source[arrival] == g.source[i]) task.first = arrival;
      arrival = kNone;
    }
    out.rows[place[g.rank[i]]++] = task;
  }
  return out;
}

void device_time(const ExecGraph& g, const DeviceTasks& tasks, std::uint32_t rank, const std::vector<Ns>& start,
                 DeviceTime& out) {
  const GraphRank& of = g.ranks[rank];
  if (out.runs.size() < std::size_t{of.lanes} * classes) out.runs.resize(std::size_t{of.lanes} * classes);
  for (DeviceTime::Run& run : out.runs) {
    run.rows.clear();
    run.stray.clear();
  }
  for (const DeviceTask& t : tasks.of(rank)) {
    const auto c = static_cast<std::size_t>(class_of(g.kind[t.last]));
    add(out.runs[(g.lane[t.last] - of.first_lane) * std::size_t{classes} + c], start[t.first],
        start[t.last] + g.duration[t.last]);
  }
  for (DeviceTime::Run& run : out.runs) {
    if (run.stray.empty()) continue;
    unite_all(run.stray);
    unite(run.rows, run.stray, out.spare);
    std::swap(run.rows, out.spare);
  }
  merge_class(out, compute, of.lanes, out.compute);
  merge_class(out, comm, of.lanes, out.comm);
  merge_class(out, memory, of.lanes, out.memory);
  intersect(out.compute, out.comm, out.both);
  unite(out.compute, out.comm, out.active);
  unite(out.active, out.memory, out.busy);
}

void look_at_device(const ExecGraph& g, const Replay& r, const DeviceTasks& tasks, std::uint32_t rank,
                    DeviceRuns& out) {
  out.rank = rank;
  out.tasks = tasks.of(rank);
  device_time(g, tasks, rank, g.observed_start, out.measured);
  device_time(g, tasks, rank, r.start, out.replayed);
}

}  // namespace orrery
