#include <algorithm>
#include <array>

#include "reports/names.h"
#include "reports/reports.h"

namespace orrery {
namespace {

enum Class { compute, comm, memory, classes };

// By NodeKind; `classes` = no work of a device.
constexpr std::array<std::uint8_t, 7> kClassOf = {classes, compute, comm, memory, memory, classes, classes};
std::uint8_t class_of(NodeKind k) { return kClassOf[static_cast<std::size_t>(k)]; }

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
  DeviceTasks out;
  bool by_rank = true;
  std::uint32_t last_rank = 0;
  std::vector<std::uint32_t> arrived(lane_count(g), kNone);  // by stream: the arrival whose transfer is to come
  for (std::uint32_t i = 0; i < g.size(); ++i) {
    if (class_of(g.kind[i]) == classes) continue;
    DeviceTask task{i, i, g.lane[i], g.kind[i]};
    if (task.kind == NodeKind::comm) {
      std::uint32_t& arrival = arrived[task.lane];
      if (g.at_begin[i]) {
        arrival = i;
        continue;
      }
      if (arrival != kNone && g.source[arrival] == g.source[i]) task.first = arrival;
      arrival = kNone;
    }
    by_rank &= g.rank[i] >= last_rank;
    last_rank = g.rank[i];
    out.rows.push_back(task);
  }
  // by rank, in the order of nodes
  out.first_of_rank.assign(g.ranks.size() + 1, 0);
  for (const DeviceTask& t : out.rows) ++out.first_of_rank[g.rank[t.last] + 1];
  for (std::size_t k = 1; k < out.first_of_rank.size(); ++k) out.first_of_rank[k] += out.first_of_rank[k - 1];
  if (!by_rank) {
    std::vector<std::uint32_t> next(out.first_of_rank.begin(), out.first_of_rank.end() - 1);
    std::vector<DeviceTask> sorted(out.rows.size());
    for (const DeviceTask& t : out.rows) sorted[next[g.rank[t.last]]++] = t;
    std::swap(out.rows, sorted);
  }
  return out;
}

void device_time(std::span<const DeviceTask> tasks, std::span<const Interval> times, const GraphRank& rank,
                 DeviceTime& out) {
  if (out.runs.size() < std::size_t{rank.lanes} * classes) out.runs.resize(std::size_t{rank.lanes} * classes);
  for (DeviceTime::Run& run : out.runs) {
    run.rows.clear();
    run.stray.clear();
  }
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const DeviceTask& t = tasks[i];
    add(out.runs[(t.lane - rank.first_lane) * std::size_t{classes} + class_of(t.kind)], times[i].begin, times[i].end);
  }
  for (DeviceTime::Run& run : out.runs) {
    if (run.stray.empty()) continue;
    unite_all(run.stray);
    unite(run.rows, run.stray, out.spare);
    std::swap(run.rows, out.spare);
  }
  merge_class(out, compute, rank.lanes, out.compute);
  merge_class(out, comm, rank.lanes, out.comm);
  merge_class(out, memory, rank.lanes, out.memory);
  intersect(out.compute, out.comm, out.both);
  unite(out.compute, out.comm, out.active);
  unite(out.active, out.memory, out.busy);
}

void look_at_device(const ExecGraph& g, const Replay& r, const DeviceTasks& tasks, std::uint32_t rank,
                    DeviceRuns& out) {
  out.rank = rank;
  out.tasks = tasks.of(rank);
  out.measured_times.resize(out.tasks.size());
  out.replayed_times.resize(out.tasks.size());
  for (std::size_t i = 0; i < out.tasks.size(); ++i) {
    const DeviceTask& t = out.tasks[i];
    out.measured_times[i] = {g.observed_start[t.first], observed_end(g, t.last)};
    out.replayed_times[i] = {r.start[t.first], r.end[t.last]};
  }
  device_time(out.tasks, out.measured_times, g.ranks[rank], out.measured);
  device_time(out.tasks, out.replayed_times, g.ranks[rank], out.replayed);
}

}  // namespace orrery
