// Of each instant of the steps one GPU task's: of those that run one that computes before one that communicates before
// a copy; of these the one that began first. So what overlaps counts once, and all tasks and the idle time together
// are the steps.
#include <algorithm>
#include <set>
#include <tuple>

#include "reports/dissect.h"

namespace orrery {
namespace {

struct Running {
  int rank;  // 0 computes, 1 communicates, 2 copies
  std::uint32_t order;
  bool operator<(const Running& o) const { return std::tie(rank, order) < std::tie(o.rank, o.order); }
};

}  // namespace

void share_time(Dissection& d, const std::vector<Interval>& all_steps) {
  const OpTable& ops = d.trace->ops;
  // by start, and the same whatever the order of the file
  std::vector<std::uint32_t> order(d.tasks.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const std::uint32_t x = d.tasks[a].row, y = d.tasks[b].row;
    return std::tie(ops.start[x], a) < std::tie(ops.start[y], b);
  });
  struct Edge {
    Ns at;
    bool begins;
    std::uint32_t order;
  };
  std::vector<Edge> edges;
  std::vector<Interval> rows;
  for (std::uint32_t i = 0; i < order.size(); ++i) {
    DissectedTask& task = d.tasks[order[i]];
    const Ns start = ops.start[task.row], end = ops.end(task.row);
    const auto step =
        std::upper_bound(d.steps.begin(), d.steps.end(), start, [](Ns t, const Interval& s) { return t < s.begin; });
    if (step != d.steps.begin() && start < std::prev(step)->end)
      task.step = static_cast<std::uint32_t>(step - d.steps.begin() - 1);
    if (end <= start) continue;
    edges.push_back({start, true, i});
    edges.push_back({end, false, i});
    rows.push_back({start, end});
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    return std::tie(a.at, a.begins, a.order) < std::tie(b.at, b.begins, b.order);
  });
  unite_all(rows);
  d.busy = std::move(rows);

  std::set<Running> running;
  auto step = d.steps.begin();
  const auto rank_of = [&](std::uint32_t i) {
    const DissectedTask& task = d.tasks[order[i]];
    return task.communicates ? 1 : ops.kind[task.row] == OpKind::kernel ? 0 : 2;
  };
  for (std::size_t i = 0; i < edges.size(); ++i) {
    const Running r{rank_of(edges[i].order), edges[i].order};
    if (edges[i].begins)
      running.insert(r);
    else
      running.erase(r);
    if (running.empty() || i + 1 == edges.size() || edges[i + 1].at == edges[i].at) continue;
    const Ns begin = edges[i].at, end = edges[i + 1].at;
    while (step != d.steps.end() && step->end <= begin) ++step;
    for (auto s = step; s != d.steps.end() && s->begin < end; ++s)
      d.tasks[order[running.begin()->order]].exclusive += std::min(end, s->end) - std::max(begin, s->begin);
  }
  d.idle = d.length;
  for (const DissectedTask& task : d.tasks) d.idle -= task.exclusive;
  for (const Interval& b : d.busy) d.outside += b.end - b.begin;
  for (const Interval& s : all_steps) d.outside -= covered(d.busy, s.begin, s.end);
}

}  // namespace orrery
