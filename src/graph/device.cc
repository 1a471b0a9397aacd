// What releases a GPU task: its launch, the task before it on its stream, recorded tasks of other streams.
// One constant lag per edge kind; what the constants do not explain is a stall (long, with work queued) or unexplained
// idle, and both are counted.
#include <algorithm>

#include "graph/draft.h"

namespace orrery {
namespace {

constexpr Ns kOverlap = 20'000;  // programmatic dependent launch: real overlaps are a few microseconds
constexpr Ns kLaunchOutlier = 100'000;
constexpr Ns kStreamOutlier = 20'000;
constexpr Ns kDefaultStall = 200'000;
constexpr std::uint32_t kQueueDepth = 1024;

constexpr std::size_t row(EdgeKind k) { return static_cast<std::size_t>(k); }

// Mean of the values near the median: unbiased like a mean where the values are honest, deaf to outliers.
Ns centre(std::vector<Ns>& v, Ns otherwise) {
  if (v.empty()) return otherwise;
  const auto mid = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
  std::nth_element(v.begin(), mid, v.end());
  const Ns m = *mid;
  const Ns width = std::max<Ns>(m < 0 ? -m : m, 1'000);
  Ns sum = 0, n = 0;
  for (const Ns x : v) {
    if (x < m - width || x > m + width) continue;
    sum += x;
    ++n;
  }
  return sum / n;
}

class DeviceEdges {
 public:
  explicit DeviceEdges(Draft& draft) : d(draft), previous(d.tasks.size(), kNone), lag_before(d.tasks.size(), 0) {}

  void run() {
    order_streams();
    learn();
    infer_graph_branches();
    for (std::uint32_t i = 0; i < d.tasks.size(); ++i) release(i);
    queue_edges();
    stalls();
    d.notes.add(
        "kernel-before-launch", Severity::warning, before_launch, {},
        "GPU tasks that start before their launch call (clock conversion): the edge stays, its delay is clamped");
    d.notes.add(
        "stream-overlap", Severity::info, overlaps, {},
        "GPU tasks that start more than 20 us before the task ahead on their stream ends: not ordered after it");
  }

 private:
  Draft& d;
  std::vector<std::uint32_t> previous;  // by task: the task ahead that it is ordered after, kNone if none
  std::vector<Ns> lag_before;           // by task: negative overlap with it, 0 = the rank's constant
  std::vector<std::vector<std::uint32_t>> edges_of;
  std::uint64_t before_launch = 0, overlaps = 0;

  void order_streams() {
    for (const StreamRow& s : d.streams) {
      for (std::uint32_t i = s.first_task + 1; i < s.first_task + s.tasks; ++i) {
        std::uint32_t p = i - 1;
        const Ns start = d.tasks[i].start;
        if (d.tasks[p].end - start > kOverlap) {
          ++overlaps;
          std::uint32_t back = 0;
          while (p > s.first_task && d.tasks[p].end > start && back < 64) {
            --p;
            ++back;
          }
          if (d.tasks[p].end > start) continue;
        }
        previous[i] = p;
        lag_before[i] = std::min<Ns>(0, start - d.tasks[p].end);
      }
    }
  }

  void learn() {
    std::vector<Ns> launch, stream;
    const Ns guess = 10'000;
    for (std::uint32_t i = 0; i < d.tasks.size(); ++i) {
      const Task& t = d.tasks[i];
      const std::uint32_t p = previous[i];
      if (t.call != kNone && !t.graph_inner) {
        const CallRow& call = d.calls[t.call];
        const Ns delay = t.start - call.begin;
        if ((p == kNone || d.tasks[p].end <= call.begin) && call.tasks == 1 && delay >= 0 && delay <= kLaunchOutlier) {
          launch.push_back(delay);
        }
        if (p != kNone && d.tasks[p].end > call.begin + guess) {
          const Ns gap = t.start - d.tasks[p].end;
          if (gap >= 0 && gap <= kStreamOutlier) stream.push_back(gap);
        }
      }
    }
    d.lag[row(EdgeKind::launch)] = centre(launch, 5'000);
    d.lag[row(EdgeKind::stream)] = centre(stream, 1'000);

    std::vector<Ns> event;
    std::vector<Ns> latest(d.nodes(), INT64_MIN);
    for (const DraftEdge& e : d.edges) {
      if (e.kind == EdgeKind::event) latest[e.to] = std::max(latest[e.to], d.observed_end(e.from));
    }
    for (std::uint32_t i = 0; i < d.tasks.size(); ++i) {
      const Task& t = d.tasks[i];
      const Ns by_event = latest[t.node];
      if (by_event == INT64_MIN || t.call == kNone) continue;
      const Ns others =
          std::max(previous[i] == kNone ? INT64_MIN : d.tasks[previous[i]].end + d.lag[row(EdgeKind::stream)],
                   d.calls[t.call].begin + d.lag[row(EdgeKind::launch)]);
      if (by_event > others + 1'000 && t.start - by_event <= kStreamOutlier) event.push_back(t.start - by_event);
    }
    d.lag[row(EdgeKind::event)] = centre(event, d.lag[row(EdgeKind::stream)]);
    d.lag[row(EdgeKind::graph)] = d.lag[row(EdgeKind::stream)];
  }

  // Branches of a launched graph run on several streams; nothing in the trace says where they fork and join. A task
  // that starts right after a task of another branch ended, and not after its own stream's, is taken to wait for it.
  void infer_graph_branches() {
    for (const CallRow& call : d.calls) {
      if (call.tasks < 2) continue;
      std::vector<std::uint32_t> members(d.launched.begin() + call.first_task,
                                         d.launched.begin() + call.first_task + call.tasks);
      std::vector<std::uint32_t> by_end = members;
      std::sort(by_end.begin(), by_end.end(),
                [&](std::uint32_t a, std::uint32_t b) { return d.tasks[a].end < d.tasks[b].end; });
      for (const std::uint32_t i : members) {
        Task& t = d.tasks[i];
        const std::uint32_t p = previous[i];
        t.graph_inner = p != kNone && d.tasks[p].call == t.call;
        auto it = std::upper_bound(by_end.begin(), by_end.end(), t.start,
                                   [&](Ns start, std::uint32_t b) { return start < d.tasks[b].end; });
        for (int tries = 0; it != by_end.begin() && tries < 8; ++tries) {
          const Task& from = d.tasks[*--it];
          if (t.start - from.end > kStreamOutlier) break;
          if (from.stream == t.stream) continue;
          if (p != kNone && d.tasks[p].end >= from.end) break;
          d.add_edge(from.node, t.node, EdgeKind::graph, 0);
          t.graph_inner = true;
          break;
        }
      }
    }
  }

  void release(std::uint32_t i) {
    const Task& t = d.tasks[i];
    const std::uint32_t p = previous[i];
    if (p != kNone) {
      const Ns lag = lag_before[i] < 0 ? lag_before[i] : d.lag[row(EdgeKind::stream)];
      d.add_edge(d.tasks[p].node, t.node, EdgeKind::stream, lag);
    }
    if (t.call != kNone) {
      const CallRow& call = d.calls[t.call];
      if (t.start < call.begin) ++before_launch;
      if (!t.graph_inner || p == kNone)
        d.add_edge(call.begin_node, t.node, EdgeKind::launch, d.lag[row(EdgeKind::launch)]);
      return;
    }
    // Launched before the window: the state that the window starts from. Back to back its stream holds it; after a
    // pause nothing in the trace does but its own start.
    const bool follows = p != kNone && t.start - d.tasks[p].end <= kStreamOutlier;
    if (!follows) d.add_edge(kNone, t.node, EdgeKind::root, t.start - d.trace->window_start);
  }

  // A launch blocks while about 1,024 tasks of its stream are queued. An edge is only set where the times allow it.
  void queue_edges() {
    if (!d.enabled(EdgeKind::queue)) return;
    for (const StreamRow& s : d.streams) {
      for (std::uint32_t i = s.first_task + kQueueDepth; i < s.first_task + s.tasks; ++i) {
        const Task& t = d.tasks[i];
        const Task& slot = d.tasks[i - kQueueDepth];
        if (t.call == kNone || d.calls[t.call].tasks != 1) continue;
        const CallRow& call = d.calls[t.call];
        if (slot.end > call.end + 2'000) {
          ++d.quality.dropped[row(EdgeKind::queue)];
          continue;
        }
        const std::uint32_t n = call.end_node;
        if (slot.end > call.begin) {  // it did block: the wait is not the host's time
          const Ns end = d.observed_end(n);
          d.duration[n] = std::max<Ns>(0, end - std::max(slot.end, d.observed_start[n]));
          d.observed_start[n] = end - d.duration[n];
        }
        d.add_edge(slot.node, n, EdgeKind::queue, 0);
      }
    }
  }

  // When every predecessor and its constant lag is accounted for, what remains of a task's delay.
  void stalls() {
    const Ns threshold = d.options->stall_threshold > 0 ? d.options->stall_threshold : kDefaultStall;
    std::vector<Ns> explained(d.nodes(), INT64_MIN);
    for (DraftEdge& e : d.edges) {
      if (e.kind == EdgeKind::event || e.kind == EdgeKind::sync || e.kind == EdgeKind::graph)
        e.lag = d.lag[row(e.kind)];
      const Ns from = e.from == kNone ? d.trace->window_start : d.observed_end(e.from);
      explained[e.to] = std::max(explained[e.to], from + e.lag);
    }
    d.explained_start.resize(d.tasks.size());
    for (std::uint32_t i = 0; i < d.tasks.size(); ++i) {
      const Ns e = explained[d.tasks[i].node];
      d.explained_start[i] = e == INT64_MIN ? d.tasks[i].start : e;
    }
    std::vector<std::uint32_t> stall_of(d.nodes(), kNone);
    bool any = false;
    for (const Task& t : d.tasks) {
      if (explained[t.node] == INT64_MIN) {
        d.add_edge(kNone, t.node, EdgeKind::root, t.start - d.trace->window_start);
        continue;
      }
      const Ns pause = t.start - explained[t.node];
      if (pause <= threshold || !d.enabled(EdgeKind::stall)) continue;
      stall_of[t.node] = d.add_node(pause, explained[t.node], d.lane[t.node], NodeKind::stall, 0, t.op);
      ++d.quality.stalls;
      d.quality.stall_ns += pause;
      any = true;
    }
    if (!any) return;
    for (DraftEdge& e : d.edges) {
      if (e.to < stall_of.size() && stall_of[e.to] != kNone) e.to = stall_of[e.to];
    }
    for (std::uint32_t n = 0; n < stall_of.size(); ++n) {
      if (stall_of[n] != kNone) d.add_edge(stall_of[n], n, EdgeKind::stall, 0);
    }
  }
};

}  // namespace

void add_device(Draft& d) { DeviceEdges(d).run(); }

}  // namespace orrery
