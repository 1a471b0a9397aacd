// Blocking calls: what they waited for, and the wait cut out of the host's time.
#include <algorithm>

#include "graph/draft.h"

namespace orrery {
namespace {

constexpr Ns kClockTolerance = 2'000;
constexpr Ns kReturn = 100'000;  // a blocked call returns within this after the task it waited for
constexpr Ns kLong = 30'000;     // a call that took longer than this was blocked by something

Ns median(std::vector<Ns>& v, Ns otherwise) {
  if (v.empty()) return otherwise;
  const auto mid = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
  std::nth_element(v.begin(), mid, v.end());
  return *mid;
}

struct Blocked {
  std::uint32_t call;
  Ns released;  // latest end of its targets
};

class Syncs {
 public:
  explicit Syncs(Draft& draft) : d(draft) {}

  void run() {
    std::size_t f = 0;
    std::vector<std::uint32_t> last_launch(d.threads.size(), kNone);
    for (std::uint32_t c = 0; c < d.calls.size(); ++c) {
      const CallRow& call = d.calls[c];
      targets.clear();
      const std::size_t from = f;
      while (f < d.frontiers.size() && d.frontiers[f].call == c) ++f;
      switch (call.kind) {
        case Call::device_sync:
          for (std::size_t i = from; i < f; ++i) add_unless_contradicted(call, d.frontiers[i].task);
          break;
        case Call::stream_sync:
          stream_sync(call, from, f, last_launch[call.thread]);
          break;
        case Call::event_sync:
          if (call.exact) {
            for (std::size_t i = from; i < f; ++i) add_unless_contradicted(call, d.frontiers[i].task);
          } else if (const std::uint32_t t = latest_task_ending_before(call); t != kNone) {
            targets.push_back(t);
          }
          break;
        case Call::free_memory:
          free_memory(call, from, f);
          break;
        case Call::copy:
          for (std::uint32_t k = 0; k < call.tasks; ++k) copy(call, d.launched[call.first_task + k]);
          break;
        default:
          break;
      }
      if (!targets.empty()) wait(c);
      if (call.tasks != 0) last_launch[call.thread] = c;
    }
    cut();
  }

 private:
  Draft& d;
  std::vector<std::uint32_t> targets;  // tasks that the current call waits for
  std::vector<Blocked> blocked;
  std::vector<Ns> own;      // host time of calls that did not wait
  std::vector<Ns> returns;  // from the release to the end of the call, of calls that did

  bool ends_too_late(const CallRow& call, std::uint32_t task) const {
    return d.tasks[task].end > call.end + kClockTolerance;
  }

  void add_unless_contradicted(const CallRow& call, std::uint32_t task) {
    if (ends_too_late(call, task)) {
      ++d.quality.dropped[static_cast<std::size_t>(EdgeKind::sync)];
    } else {
      targets.push_back(task);
    }
  }

  // Without a cuda_sync event: the stream of the thread's previous launch, unless the times say otherwise.
  void stream_sync(const CallRow& call, std::size_t from, std::size_t to, std::uint32_t previous) {
    std::uint32_t stream = kNone;
    if (call.exact) {
      for (std::size_t i = from; i < to; ++i) add_unless_contradicted(call, d.frontiers[i].task);
      return;
    }
    if (previous != kNone) stream = d.tasks[d.launched[d.calls[previous].first_task]].stream;
    if (stream == kNone || !fits(call, from, to, stream)) {
      std::uint32_t best = kNone;
      Ns best_end = 0;
      for (std::size_t i = from; i < to; ++i) {
        const Ns end = d.tasks[d.frontiers[i].task].end;
        if (end <= call.begin || end < best_end || !fits(call, from, to, d.frontiers[i].stream)) continue;
        best = d.frontiers[i].stream;
        best_end = end;
      }
      if (best != kNone) stream = best;
    }
    for (std::size_t i = from; i < to; ++i) {
      if (d.frontiers[i].stream == stream) add_unless_contradicted(call, d.frontiers[i].task);
    }
  }

  // The frontier of `stream` agrees with how long the call took.
  bool fits(const CallRow& call, std::size_t from, std::size_t to, std::uint32_t stream) const {
    Ns released = 0;
    bool any = false;
    for (std::size_t i = from; i < to; ++i) {
      if (d.frontiers[i].stream != stream) continue;
      if (ends_too_late(call, d.frontiers[i].task)) return false;
      released = any ? std::max(released, d.tasks[d.frontiers[i].task].end) : d.tasks[d.frontiers[i].task].end;
      any = true;
    }
    if (!any) return false;
    return call.end - call.begin < kLong || call.end - std::max(released, call.begin) < kReturn;
  }

  // Event synchronise without ids: the task, on any stream, that ended last before the call returned.
  std::uint32_t latest_task_ending_before(const CallRow& call) const {
    std::uint32_t best = kNone;
    for (const StreamRow& s : d.streams) {
      std::uint32_t lo = s.first_task, hi = s.first_task + s.tasks;
      while (lo < hi) {
        const std::uint32_t mid = (lo + hi) / 2;
        if (d.tasks[mid].end <= call.end + kClockTolerance) {
          lo = mid + 1;
        } else {
          hi = mid;
        }
      }
      if (lo == s.first_task) continue;
      const std::uint32_t i = lo - 1;
      if (d.tasks[i].call != kNone && d.calls[d.tasks[i].call].begin > call.begin) continue;
      if (best == kNone || d.tasks[i].end > d.tasks[best].end) best = i;
    }
    if (best == kNone || d.tasks[best].end <= call.begin || call.end - d.tasks[best].end > kReturn) return kNone;
    return best;
  }

  // cudaFree waits for the device when memory is in use: only where the call took long and ended with the device.
  void free_memory(const CallRow& call, std::size_t from, std::size_t to) {
    if (call.end - call.begin < kLong) return;
    Ns released = 0;
    for (std::size_t i = from; i < to; ++i) {
      if (ends_too_late(call, d.frontiers[i].task)) return;
      released = std::max(released, d.tasks[d.frontiers[i].task].end);
    }
    if (released <= call.begin || call.end - released > kReturn) return;
    for (std::size_t i = from; i < to; ++i) targets.push_back(d.frontiers[i].task);
  }

  // A copy blocks when its call outlasts its GPU task: synchronous calls and pageable memory.
  void copy(const CallRow& call, std::uint32_t task) {
    if (ends_too_late(call, task) || call.end < d.tasks[task].end || d.tasks[task].kind != NodeKind::memcpy) return;
    const std::string_view api = d.trace->name_of(OpId{call.op});
    const std::string_view what = d.trace->name_of(OpId{d.tasks[task].op});
    const bool synchronous = api.find("Async") == std::string_view::npos;
    if (synchronous || what.find("Pageable") != std::string_view::npos) targets.push_back(task);
  }

  void wait(std::uint32_t c) {
    const CallRow& call = d.calls[c];
    Ns released = d.tasks[targets.front()].end;
    for (const std::uint32_t t : targets) {
      released = std::max(released, d.tasks[t].end);
      d.add_edge(d.tasks[t].node, call.end_node, EdgeKind::sync, 0);
    }
    if (released > d.node[call.end_node].observed_start) {
      blocked.push_back({c, released});
      returns.push_back(std::max<Ns>(0, call.end - released));
    } else {
      own.push_back(d.node[call.end_node].duration);
    }
  }

  // The host's own time in a call that waited is that of the calls that did not; the rest was the wait. From the
  // release to the return is one constant for the rank.
  void cut() {
    const Ns back = median(returns, 0);
    const Ns own_time = std::min(median(own, 2'000), back);
    for (const NodeKind from : {NodeKind::kernel, NodeKind::comm, NodeKind::memcpy, NodeKind::memset}) {
      d.lags.at(EdgeKind::sync, from, NodeKind::host) = back - own_time;
    }
    for (const Blocked& b : blocked) {
      const std::uint32_t n = d.calls[b.call].end_node;
      const Ns end = d.observed_end(n);
      d.node[n].duration = std::min(own_time, d.node[n].duration);
      d.node[n].observed_start = end - d.node[n].duration;
    }
  }
};

}  // namespace

void add_syncs(Draft& d) {
  if (d.enabled(EdgeKind::sync)) Syncs(d).run();
}

}  // namespace orrery
