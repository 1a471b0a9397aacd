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

// The tasks of one class on one stream. They come in stream order, which is time order but for rare overlaps: those
// wait in `stray` and are sorted at the end.
struct Run {
  Intervals rows, stray;

  void add(Ns begin, Ns end) {
    if (rows.empty() || begin >= rows.back().begin)
      append(rows, begin, end);
    else if (begin < end)
      stray.push_back({begin, end});
  }
  Intervals take() { return stray.empty() ? std::move(rows) : unite(rows, unite_all(std::move(stray))); }
};

// Pairs, then pairs of pairs: each stretch is copied log2(streams) times.
Intervals merge_runs(std::vector<Intervals> runs) {
  while (runs.size() > 1) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < runs.size(); i += 2)
      runs[kept++] = i + 1 < runs.size() ? unite(runs[i], runs[i + 1]) : std::move(runs[i]);
    runs.resize(kept);
  }
  return runs.empty() ? Intervals{} : std::move(runs.front());
}

}  // namespace

std::vector<DeviceTask> device_tasks(const ExecGraph& g) {
  std::vector<DeviceTask> out;
  std::vector<std::uint32_t> arrived(lane_count(g), kNone);  // by stream: the arrival whose transfer is to come
  for (std::uint32_t i = 0; i < g.size(); ++i) {
    if (class_of(g.kind[i]) == classes) continue;
    if (g.kind[i] != NodeKind::comm) {
      out.push_back({i, i});
      continue;
    }
    std::uint32_t& first = arrived[g.lane[i]];
    if (g.at_begin[i]) {
      first = i;
      continue;
    }
    out.push_back({first != kNone && g.source[first] == g.source[i] ? first : i, i});
    first = kNone;
  }
  return out;
}

std::vector<DeviceTime> device_times(const ExecGraph& g, const std::vector<DeviceTask>& tasks,
                                     const std::vector<Ns>& start) {
  const std::uint32_t lanes = lane_count(g);
  std::vector<Run> runs(std::size_t{lanes} * classes);
  for (const DeviceTask& t : tasks) {
    const auto c = static_cast<std::size_t>(class_of(g.kind[t.last]));
    runs[std::size_t{g.lane[t.last]} * classes + c].add(start[t.first], start[t.last] + g.duration[t.last]);
  }

  std::vector<DeviceTime> out(g.ranks.size());
  for (std::size_t k = 0; k < g.ranks.size(); ++k) {
    std::vector<Intervals> of_class[classes];
    for (std::uint32_t lane = g.ranks[k].first_lane; lane < g.ranks[k].first_lane + g.ranks[k].lanes; ++lane)
      for (std::size_t c = 0; c < classes; ++c) {
        Intervals rows = runs[std::size_t{lane} * classes + c].take();
        if (!rows.empty()) of_class[c].push_back(std::move(rows));
      }
    DeviceTime& d = out[k];
    d.compute = merge_runs(std::move(of_class[compute]));
    d.comm = merge_runs(std::move(of_class[comm]));
    d.memory = merge_runs(std::move(of_class[memory]));
    d.both = intersect(d.compute, d.comm);
    d.active = unite(d.compute, d.comm);
    d.busy = unite(d.active, d.memory);
  }
  return out;
}

}  // namespace orrery
