// Why the device was idle (ms, in the steps, replayed)
//   rank  host late  launch   sync  dependency  unexplained   idle  measured idle  of host late, after sync  peer late
//      0      4.512   0.310  0.044       0.420        0.030  5.316          5.317                    0.800     28.020
//
// Idle is a pause in which no stream of the rank runs a task. It ends when some task starts; what released that task,
// and what released its releaser, is walked back until the pause began, and every nanosecond on the way is given to one
// cause:
//   host late    a CPU thread was still working towards the launch (whatever thread: a thread that had been woken by
//                another is late because that other was)
//   launch       the launch had begun; the time until the kernel could start
//   sync         the launching thread was blocked: return from a synchronisation, a full launch queue, a wake-up by
//                another thread
//   dependency   the lag of an order on the device: stream, event, inside a graph launch
//   unexplained  a stall of the device, or time before anything that the trace knows
// These add up to the idle time: "other" less "memory" of the replayed step. "after sync" is the part of host late in
// pauses that began with the host waiting for the device: without that synchronisation it could have been hidden.
// Beside them stands the time in which the device was taken but nothing advanced:
//   peer late    nothing ran but communication kernels that waited for another rank; pauses that another rank ends,
//                if there are any, are counted here and not above. Null where no rank meets another.
#include <algorithm>
#include <limits>

#include "reports/names.h"
#include "reports/reports.h"

namespace orrery {
namespace {

constexpr Ns kFarPast = std::numeric_limits<Ns>::min();

IdleCause cause_of(EdgeKind k) {
  switch (k) {
    case EdgeKind::thread:
      return IdleCause::host_late;
    case EdgeKind::launch:
      return IdleCause::launch;
    case EdgeKind::sync:
    case EdgeKind::queue:
    case EdgeKind::handoff:
      return IdleCause::sync;
    case EdgeKind::stream:
    case EdgeKind::event:
    case EdgeKind::graph:
      return IdleCause::dependency;
    case EdgeKind::collective:
      return IdleCause::peer_late;
    case EdgeKind::stall:
    case EdgeKind::root:
      break;
  }
  return IdleCause::unexplained;
}

IdleCause cause_of(NodeKind k) {
  switch (k) {
    case NodeKind::host:
      return IdleCause::host_late;
    case NodeKind::rendezvous:
      return IdleCause::peer_late;
    case NodeKind::kernel:
    case NodeKind::comm:
    case NodeKind::memcpy:
    case NodeKind::memset:
      return IdleCause::dependency;  // not in a pause of its own rank, but for a negative lag
    case NodeKind::stall:
      break;
  }
  return IdleCause::unexplained;
}

// Gives every instant of [low, t) to a cause, from the late end down.
struct Pause {
  IdleTimes& out;
  Ns low, t;
  Ns host_late = 0;

  void take(IdleCause cause, Ns down_to) {
    down_to = std::max(down_to, low);
    if (down_to >= t) return;
    out.by_cause[static_cast<std::size_t>(cause)] += t - down_to;
    if (cause == IdleCause::host_late) host_late += t - down_to;
    t = down_to;
  }
};

// What kept `node` from starting before `p.t`.
void walk_back(const ExecGraph& g, const Replay& r, NodeId node, std::uint32_t rank, Pause& p) {
  for (NodeId n = node; p.t > p.low;) {
    const NodeId by = r.released_by[raw(n)];
    const EdgeKind how = r.released_how[raw(n)];
    if (by == kNoNode) {
      p.take(cause_of(how), kFarPast);
      return;
    }
    const bool peer = g.rank[raw(by)] != rank;
    if (how == EdgeKind::sync && !peer) p.out.host_late_after_sync += p.host_late, p.host_late = 0;
    p.take(peer ? IdleCause::peer_late : cause_of(how), r.end[raw(by)]);
    p.take(peer ? IdleCause::peer_late : cause_of(g.kind[raw(by)]), r.start[raw(by)]);
    n = by;
  }
}

// Time in [begin, end) of the steps in which nothing ran but communication that waited for others.
Ns waiting_alone(const ExecGraph& g, const Replay& r, const DeviceRuns& device, const StepRows& rows) {
  Intervals waiting, transfer;
  for (const DeviceTask& t : device.tasks) {
    if (t.kind != NodeKind::comm) continue;
    const Ns met = t.first == t.last ? r.start[t.last] : std::max(r.start[t.last], r.start[t.first]);
    if (met > r.start[t.first]) waiting.push_back({r.start[t.first], met});
    if (r.end[t.last] > met) transfer.push_back({met, r.end[t.last]});
  }
  unite_all(waiting);
  unite_all(transfer);
  Intervals work, memory, both;
  unite(device.replayed.compute, device.replayed.memory, memory);
  unite(memory, transfer, work);
  intersect(waiting, work, both);
  Ns alone = 0;
  for (const std::uint32_t row : rows) {
    const Step& s = g.steps[row];
    if (s.rank != device.rank) continue;
    const Window w = replayed_window(r, s);
    alone += covered(waiting, w.begin, w.end) - covered(both, w.begin, w.end);
  }
  return alone;
}

// For each stretch of the replayed device's busy time, a task that starts it.
std::vector<NodeId> first_tasks(const ExecGraph& g, const DeviceRuns& device) {
  const Intervals& busy = device.replayed.busy;
  std::vector<NodeId> first(busy.size(), kNoNode);
  const GraphRank& rank = g.ranks[device.rank];
  std::vector<std::size_t> cursor(rank.lanes, 0);  // by stream: tasks come nearly in order of time
  for (std::size_t i = 0; i < device.tasks.size(); ++i) {
    const DeviceTask& t = device.tasks[i];
    const Ns start = device.replayed_times[i].begin;
    if (start == device.replayed_times[i].end) continue;
    std::size_t& at = cursor[t.lane - rank.first_lane];
    while (at > 0 && busy[at].begin > start) --at;
    while (at + 1 < busy.size() && busy[at + 1].begin <= start) ++at;
    if (busy[at].begin == start && first[at] == kNoNode) first[at] = NodeId{t.first};
  }
  return first;
}

}  // namespace

IdleTimes idle_times(const ExecGraph& g, const Replay& r, const DeviceRuns& device, const StepRows& rows) {
  IdleTimes times;
  const Intervals& busy = device.replayed.busy;
  times.has_device = !busy.empty();
  const std::vector<NodeId> first = first_tasks(g, device);
  for (std::uint32_t row : rows) {
    const Step& s = g.steps[row];
    if (s.rank != device.rank) continue;
    const Window w = replayed_window(r, s);
    const auto last_before =
        std::partition_point(busy.begin(), busy.end(), [&](const Interval& i) { return i.end <= w.begin; });
    Ns low = w.begin;
    for (auto i = last_before; low < w.end; ++i) {
      const bool any = i != busy.end();
      const Ns high = any ? std::min(i->begin, w.end) : w.end;
      if (high > low) {
        times.idle += high - low;
        Pause p{times, low, high};
        const NodeId next = any ? first[static_cast<std::size_t>(i - busy.begin())] : s.end_node;
        // After the last task of all nothing waits for the device: the step's own end is what was waited for.
        if (!any) p.take(cause_of(g.kind[raw(next)]), r.start[raw(next)]);
        walk_back(g, r, next, s.rank, p);
        p.take(IdleCause::unexplained, kFarPast);
      }
      if (!any) break;
      low = std::max(low, i->end);
    }
  }
  times.peers_late = times.by_cause[static_cast<std::size_t>(IdleCause::peer_late)] + waiting_alone(g, r, device, rows);
  return times;
}

Section idle_section(const ExecGraph& g, const std::vector<IdleTimes>& times, const std::vector<StepTimes>& steps) {
  std::vector<Ns> measured(times.size(), 0);
  bool joined = std::find(g.pred_kind.begin(), g.pred_kind.end(), EdgeKind::collective) != g.pred_kind.end();
  for (std::uint32_t i = 0; i < g.size() && !joined; ++i)
    for (std::uint32_t e = g.first_pred[i]; e < g.first_pred[i + 1]; ++e)
      joined |= g.pred[e] != kNoNode && g.rank[raw(g.pred[e])] != g.rank[i];
  for (const StepTimes& t : steps) measured[g.steps[t.step].rank] += t.measured_classes.idle();

  Section s{.key = "idle", .title = "Why the device was idle (ms, in the steps, replayed)", .table = {}};
  s.table.columns = {{.key = "rank"},
                     {.key = "host_late_ms", .title = "host late"},
                     {.key = "launch_ms", .title = "launch"},
                     {.key = "sync_ms", .title = "sync"},
                     {.key = "dependency_ms", .title = "dependency"},
                     {.key = "unexplained_ms", .title = "unexplained"},
                     {.key = "idle_ms", .title = "idle"},
                     {.key = "idle_measured_ms", .title = "measured idle"},
                     {.key = "host_late_after_sync_ms", .title = "of host late, after sync"},
                     {.key = "peer_late_ms", .title = "peer late"}};
  for (std::size_t k = 0; k < times.size(); ++k) {
    const IdleTimes& t = times[k];
    std::vector<Cell> row{g.ranks[k].rank};
    if (t.has_device) {
      for (std::size_t c = 0; c < kIdleCauses; ++c) {
        if (c != static_cast<std::size_t>(IdleCause::peer_late)) row.emplace_back(to_ms(t.by_cause[c]));
      }
      row.emplace_back(to_ms(t.idle));
      row.emplace_back(to_ms(measured[k]));
      row.emplace_back(to_ms(t.host_late_after_sync));
      row.emplace_back();
      if (joined) row.back() = to_ms(t.peers_late);
    } else {
      row.resize(s.table.columns.size());  // no device, no idle time
    }
    s.table.rows.push_back(std::move(row));
  }
  return s;
}

}  // namespace orrery
