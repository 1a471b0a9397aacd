// What releases a GPU task: its launch, the task before it on its stream, recorded tasks of other streams.
// One constant lag per edge kind; what the constants do not explain is a stall (long, with work queued) or unexplained
// idle, and both are counted.
#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <string_view>

#include "graph/draft.h"

namespace orrery {
namespace {

constexpr Ns kOverlap = 20'000;  // programmatic dependent launch: real overlaps are a few microseconds
constexpr Ns kLaunchOutlier = 100'000;
constexpr Ns kStreamOutlier = 20'000;
constexpr Ns kLongLaunch = 100'000;  // a launch call takes 3 to 20 us
constexpr Ns kCallCost = 5'000;
constexpr Ns kDefaultStall = 50'000;
constexpr std::size_t kEnough = 3;  // samples that make a constant of their own
constexpr std::uint32_t kQueueDepth = 1024;
constexpr std::uint32_t kFullFrom = 1000;  // a queue deeper than this may be full
constexpr Ns kBlockedCall = 30'000;
// A queue that holds less than usual shows as many calls that were blocked at one depth, the deepest, and at no other.
constexpr std::uint32_t kSmallQueue = 32, kBlockedAtOneDepth = 16;
constexpr Ns kClockTolerance = 2'000;

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
    infer_graph_branches();
    for (std::uint32_t i = 0; i < d.tasks.size(); ++i) release(i);
    queue_edges();
    learn();
    apply_lags();
    stalls();
    d.notes.add(
        "kernel-before-launch", Severity::warning, before_launch, name(first_before),
        "GPU tasks that start before their launch call (clock conversion): the edge stays, its delay is clamped");
    d.notes.add(
        "stream-overlap", Severity::info, overlaps, name(first_overlap),
        "GPU tasks that start more than 20 us before the task ahead on their stream ends: not ordered after it");
  }

 private:
  // Which of a task's edges released it, and by how much it stood out.
  struct Release {
    Ns best = INT64_MIN, second = INT64_MIN;  // predecessor's end + rough lag
    std::uint32_t edge = kNone;
  };

  Draft& d;
  std::vector<std::uint32_t> previous;  // by task: the task ahead that it is ordered after, kNone if none
  std::vector<Ns> lag_before;           // by task: negative overlap with it, 0 = the rank's constant
  std::vector<std::pair<std::uint32_t, std::uint32_t>> also_after;  // further orders: a task that outlasted the next
  std::array<Ns, kEdgeKinds> rough{};  // one lag an edge kind, before they are told apart by the kinds of node
  std::vector<Release> releases;
  std::uint64_t before_launch = 0, overlaps = 0;
  std::uint32_t first_before = kNone, first_overlap = kNone;  // the first examples, rows of the trace

  std::string_view name(std::uint32_t op) const {
    return op == kNone ? std::string_view{} : d.trace->name_of(OpId{op});
  }

  void order_streams() {
    for (const StreamRow& s : d.streams) {
      std::uint32_t longest = s.first_task;  // of the tasks so far, the one that ends last
      for (std::uint32_t i = s.first_task + 1; i < s.first_task + s.tasks; ++i) {
        std::uint32_t p = i - 1;
        const Ns start = d.tasks[i].start;
        if (d.tasks[p].end - start > kOverlap) {
          if (overlaps++ == 0) first_overlap = d.tasks[i].op;
          std::uint32_t back = 0;
          while (p > s.first_task && d.tasks[p].end > start && back < 64) {
            --p;
            ++back;
          }
        }
        if (d.tasks[p].end - start <= kOverlap) {
          previous[i] = p;
          lag_before[i] = std::min<Ns>(0, start - d.tasks[p].end);
          if (d.tasks[longest].end > d.tasks[p].end && d.tasks[longest].end <= start)
            also_after.emplace_back(longest, i);
        }
        if (d.tasks[i].end >= d.tasks[longest].end) longest = i;
      }
    }
    for (const auto& [from, to] : also_after) d.add_edge(d.tasks[from].node, d.tasks[to].node, EdgeKind::stream, 0);
  }

  bool is_constant(const DraftEdge& e) const {
    return e.from != kNone && e.lag >= 0 &&
           (e.kind == EdgeKind::launch || e.kind == EdgeKind::stream || e.kind == EdgeKind::event ||
            e.kind == EdgeKind::graph);
  }
  static Ns outlier(EdgeKind k) { return k == EdgeKind::launch ? kLaunchOutlier : kStreamOutlier; }

  // Two rounds: rough lags from the clearest cases, then a constant for each kind of edge between two kinds of node,
  // from the tasks that one edge released with a margin over all others.
  void learn() {
    rough[row(EdgeKind::launch)] = 6'000;
    for (const EdgeKind k : {EdgeKind::stream, EdgeKind::event, EdgeKind::graph}) rough[row(k)] = 1'000;
    constexpr std::size_t kKinds = LagTable::kNodeKinds;
    std::vector<std::vector<Ns>> samples(kEdgeKinds * kKinds * kKinds), by_kind(kEdgeKinds);
    for (int round = 0; round < 2; ++round) {
      const Ns margin = round == 0 ? 10'000 : 3'000;
      releases.assign(d.tasks.size(), Release{});
      for (std::uint32_t n = 0; n < d.edges.size(); ++n) {
        const DraftEdge& e = d.edges[n];
        if (e.to >= d.tasks.size()) continue;  // nodes of tasks come first, task i is node i
        const Ns from = e.from == kNone ? d.trace->window_start + e.lag : d.observed_end(e.from);
        const Ns t = from + (is_constant(e) ? rough[row(e.kind)] : e.from == kNone ? 0 : e.lag);
        Release& r = releases[e.to];
        if (t > r.best) {
          r.second = r.best;
          r.best = t;
          r.edge = n;
        } else if (t > r.second) {
          r.second = t;
        }
      }
      for (auto& v : by_kind) v.clear();
      for (const Task& t : d.tasks) {
        const Release& r = releases[t.node];
        if (r.edge == kNone || !is_constant(d.edges[r.edge]) || (r.second != INT64_MIN && r.best - r.second < margin))
          continue;
        const DraftEdge& e = d.edges[r.edge];
        const Ns delay = t.start - d.observed_end(e.from);
        if (delay < 0 || delay > outlier(e.kind) || e.from == launch_end(t)) continue;
        by_kind[row(e.kind)].push_back(delay);
        if (round == 1) samples[slot(e, t)].push_back(delay);
      }
      for (const EdgeKind k : {EdgeKind::launch, EdgeKind::stream, EdgeKind::event, EdgeKind::graph}) {
        rough[row(k)] = centre(by_kind[row(k)], k == EdgeKind::launch ? rough[row(k)] : rough[row(EdgeKind::stream)]);
      }
    }
    for (std::size_t k = 0; k < kEdgeKinds; ++k) {
      for (std::size_t s = k * kKinds * kKinds; s < (k + 1) * kKinds * kKinds; ++s) {
        if (rough[k] != 0) d.lags.lag[s] = samples[s].size() < kEnough ? rough[k] : centre(samples[s], rough[k]);
      }
    }
    // graph launches have a row of their own, and are few
    for (const NodeKind to : {NodeKind::kernel, NodeKind::comm, NodeKind::memcpy, NodeKind::memset}) {
      std::vector<Ns>& v =
          samples[(row(EdgeKind::launch) * kKinds + static_cast<std::size_t>(NodeKind::rendezvous)) * kKinds +
                  static_cast<std::size_t>(to)];
      d.lags.at(EdgeKind::launch, NodeKind::rendezvous, to) = centre(v, rough[row(EdgeKind::launch)]);
    }
  }

  std::uint32_t launch_end(const Task& t) const { return t.call == kNone ? kNone : d.calls[t.call].end_node; }

  // The kind that a lag is kept under for an edge's source; a graph launch is told from a plain one.
  NodeKind source_kind(const DraftEdge& e, const Task& t) const {
    if (e.kind == EdgeKind::launch && d.calls[t.call].kind == Call::graph_launch) return NodeKind::rendezvous;
    return d.node[e.from].kind;
  }
  std::size_t slot(const DraftEdge& e, const Task& t) const {
    return (row(e.kind) * LagTable::kNodeKinds + static_cast<std::size_t>(source_kind(e, t))) * LagTable::kNodeKinds +
           static_cast<std::size_t>(t.kind);
  }

  void apply_lags() {
    for (DraftEdge& e : d.edges) {
      if (e.kind == EdgeKind::sync) e.lag = d.lags.at(EdgeKind::sync, d.node[e.from].kind, NodeKind::host);
      if (!is_constant(e) || e.to >= d.tasks.size()) continue;
      const Task& t = d.tasks[e.to];
      e.lag = d.lags.lag[slot(e, t)];
      if (e.kind == EdgeKind::launch && e.from == launch_end(t)) e.lag = std::max<Ns>(0, e.lag - kCallCost);
    }
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
      const bool inside_graph = t.call != kNone && d.calls[t.call].tasks > 1 && d.tasks[p].call == t.call;
      d.add_edge(d.tasks[p].node, t.node, inside_graph ? EdgeKind::graph : EdgeKind::stream, lag_before[i]);
    }
    if (t.call != kNone) {
      const CallRow& call = d.calls[t.call];
      if (t.start < call.begin && before_launch++ == 0) first_before = t.op;
      if (t.graph_inner && p != kNone) return;
      // A long call did something first (loading the module at a kernel's first launch): the task leaves from its end,
      // unless it is a copy that the call waits for.
      const bool loaded =
          call.end - call.begin > kLongLaunch && t.start >= call.end - kLongLaunch / 10 && t.end > call.end;
      d.add_edge(loaded ? call.end_node : call.begin_node, t.node, EdgeKind::launch, 0);
      return;
    }
    // Launched before the window: the state that the window starts from. Back to back its stream holds it; after a
    // pause nothing in the trace does but its own start.
    const bool follows = p != kNone && t.start - d.tasks[p].end <= kStreamOutlier;
    if (!follows) d.add_edge(kNone, t.node, EdgeKind::root, t.start - d.trace->window_start);
  }

  // A launch blocks while about 1,024 tasks of its stream have not started: it returns when the task that many places
  // ahead starts (measured: 1,021 to 1,024). The deepest queue seen tells the number where the queue was ever full.
  void queue_edges() {
    if (!d.enabled(EdgeKind::queue)) return;
    std::uint32_t deepest = 0, deepest_task = 0, blocked = 0, long_calls = 0;
    std::map<std::uint32_t, std::uint32_t> blocked_at;  // by depth
    for (const StreamRow& s : d.streams) {
      for (std::uint32_t i = s.first_task + kSmallQueue; i < s.first_task + s.tasks; ++i) {
        const Task& t = d.tasks[i];
        if (t.call == kNone || d.tasks[i - kSmallQueue].start <= d.calls[t.call].end) continue;
        const CallRow& call = d.calls[t.call];
        const auto first = d.tasks.begin() + s.first_task;
        const auto started = std::upper_bound(first, first + (i - s.first_task), call.end,
                                              [](Ns at, const Task& other) { return at < other.start; });
        const std::uint32_t depth = i - s.first_task - static_cast<std::uint32_t>(started - first);
        if (depth > deepest) deepest = depth, deepest_task = i;
        // a call that took long and returned right after a task started was blocked until then
        const bool long_call = call.end - call.begin > kBlockedCall;
        if (!long_call || call.tasks != 1) continue;
        ++long_calls;
        if (started == first || call.end - std::prev(started)->start >= kStreamOutlier) continue;
        if (depth >= kFullFrom) ++blocked;
        ++blocked_at[depth];
      }
    }
    if (deepest > kQueueDepth + kQueueDepth / 8) {
      d.notes.add("queue-depth-unknown", Severity::info, 1,
                  std::to_string(deepest) + " ahead of " + d.trace->example_of(OpId{d.tasks[deepest_task].op}),
                  "over 1,150 tasks were queued on one stream: no launch-queue edges (not CUDA's usual depth)");
      return;
    }
    if (deepest < kFullFrom && deepest > 0) {
      std::uint32_t at_deepest = 0;
      for (const auto& [depth, n] : blocked_at)
        if (depth + 2 >= deepest) at_deepest += n;
      if (at_deepest >= kBlockedAtOneDepth && 10 * at_deepest >= 9 * long_calls) blocked = at_deepest;
    }
    const std::uint32_t depth = blocked == 0 ? std::max(kQueueDepth, deepest + 1) : deepest + 1;
    for (const StreamRow& s : d.streams) {
      for (std::uint32_t i = s.first_task + depth; i < s.first_task + s.tasks; ++i) {
        const Task& t = d.tasks[i];
        const Task& slot = d.tasks[i - depth];
        if (t.call == kNone || d.calls[t.call].tasks != 1) continue;
        const CallRow& call = d.calls[t.call];
        if (slot.start > call.end + kClockTolerance) {
          ++d.quality.dropped[row(EdgeKind::queue)];
          continue;
        }
        DraftNode& n = d.node[call.end_node];
        const Ns end = n.observed_start + n.duration;
        if (slot.start > n.observed_start) {  // it did block: the wait is not the host's time
          n.duration = std::max<Ns>(0, end - slot.start);
          n.observed_start = end - n.duration;
        }
        d.add_edge(slot.node, call.end_node, EdgeKind::queue, slot.start - slot.end);
      }
    }
  }

  // When every predecessor and its constant lag is accounted for, what remains of a task's delay.
  void stalls() {
    const Ns threshold = d.options->stall_threshold > 0 ? d.options->stall_threshold : kDefaultStall;
    d.explained_start.assign(d.tasks.size(), INT64_MIN);
    for (const DraftEdge& e : d.edges) {
      if (e.to >= d.tasks.size()) continue;
      const Ns from = e.from == kNone ? d.trace->window_start : d.observed_end(e.from);
      d.explained_start[e.to] = std::max(d.explained_start[e.to], from + e.lag);
    }
    std::vector<std::uint32_t> stall_of(d.tasks.size(), kNone);
    bool any = false;
    for (std::uint32_t i = 0; i < d.tasks.size(); ++i) {
      const Task& t = d.tasks[i];
      Ns& explained = d.explained_start[i];
      if (explained == INT64_MIN) {
        explained = t.start;
        d.add_edge(kNone, i, EdgeKind::root, t.start - d.trace->window_start);
        continue;
      }
      const Ns pause = t.start - explained;
      if (pause <= threshold || !d.enabled(EdgeKind::stall)) continue;
      stall_of[i] = d.add_node(pause, explained, d.node[i].lane, NodeKind::stall, 0, t.op);
      ++d.quality.stalls;
      d.quality.stall_ns += pause;
      any = true;
    }
    if (!any) return;
    for (DraftEdge& e : d.edges) {
      if (e.to < stall_of.size() && stall_of[e.to] != kNone) e.to = stall_of[e.to];
    }
    for (std::uint32_t i = 0; i < stall_of.size(); ++i) {
      if (stall_of[i] != kNone) d.add_edge(stall_of[i], i, EdgeKind::stall, 0);
    }
  }
};

}  // namespace

void add_device(Draft& d) { DeviceEdges(d).run(); }

}  // namespace orrery
