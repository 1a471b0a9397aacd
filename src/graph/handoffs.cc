// One CPU thread wakes another: backward runs on autograd's thread while the caller waits, then the caller goes on.
// A hole in a thread (no boundary for 30 us) in which another thread has a burst of work, tight at both ends, is a wait
// for that burst: the hole's host time is dropped, two edges take its place.
#include <algorithm>

#include "graph/draft.h"

namespace orrery {
namespace {

constexpr Ns kHole = 30'000;
constexpr Ns kWake = 5'000;  // a thread needs about this long to see a wake-up; the rest of a gap is its own work

struct Span {
  std::uint32_t first, last;  // draft nodes of one thread
};

// The node of `thread` with the last boundary before `t`, kNone if none.
std::uint32_t last_before(const Draft& d, const ThreadRow& thread, Ns t) {
  std::uint32_t lo = thread.first_node, hi = thread.first_node + thread.nodes;
  while (lo < hi) {
    const std::uint32_t mid = (lo + hi) / 2;
    if (d.observed_end(mid) < t) {
      lo = mid + 1;
    } else {
      hi = mid;
    }
  }
  return lo == thread.first_node ? kNone : lo - 1;
}

void wake(Draft& d, std::uint32_t from, std::uint32_t to) {
  const Ns released = d.observed_end(from), at = d.observed_end(to);
  d.node[to].duration = std::max<Ns>(0, at - released - kWake);
  d.node[to].observed_start = at - d.node[to].duration;
  d.add_edge(from, to, EdgeKind::handoff, std::min(kWake, at - released));
}

// `from` is what starts the thread: it has no root of its own.
void start_thread(Draft& d, std::uint32_t from, const ThreadRow& thread) {
  const std::uint32_t first = thread.first_node;
  const Ns released = d.observed_end(from), at = d.observed_end(first);
  d.edges[thread.root_edge] = {from, first, std::min(kWake, at - released), EdgeKind::handoff};
  d.node[first].duration = std::max<Ns>(0, at - released - kWake);
  d.node[first].observed_start = at - d.node[first].duration;
}

// The inside of a CUDA or HIP call: what it waits for, if anything, is the device.
bool inside_call(const Draft& d, std::uint32_t n) {
  const DraftNode &begin = d.node[n - 1], &end = d.node[n];
  return begin.source == end.source && begin.at_begin != 0 && end.at_begin == 0 &&
         d.trace->ops.kind[end.source] == OpKind::runtime;
}

}  // namespace

void add_handoffs(Draft& d) {
  if (d.threads.size() < 2 || !d.enabled(EdgeKind::handoff)) return;
  d.lags.at(EdgeKind::handoff, NodeKind::host, NodeKind::host) = kWake;
  std::vector<std::uint8_t> woken(d.nodes(), 0);
  for (std::uint32_t me = 0; me < d.threads.size(); ++me) {
    const ThreadRow thread = d.threads[me];
    for (std::uint32_t n = thread.first_node + 1; n < thread.first_node + thread.nodes; ++n) {
      if (d.node[n].duration <= kHole || woken[n] != 0 || inside_call(d, n)) continue;
      const Ns q = d.observed_end(n), p = d.node[n].observed_start;
      const Ns slack_allowed = std::max<Ns>(300'000, (q - p) / 4);
      std::uint32_t best = kNone;
      Span best_span{};
      Ns best_slack = slack_allowed;
      for (std::uint32_t other = 0; other < d.threads.size(); ++other) {
        if (other == me) continue;
        const ThreadRow& u = d.threads[other];
        const std::uint32_t last = last_before(d, u, q);
        if (last == kNone || d.observed_end(last) <= p) continue;
        std::uint32_t first = last_before(d, u, p + 1);
        first = first == kNone ? u.first_node : first + 1;
        // both ends of the burst must border on a pause of that thread
        // (a pause that is known as a wait has been cut out of the node's duration)
        const auto pause = [&](std::uint32_t node) { return woken[node] != 0 || d.node[node].duration > kHole; };
        const bool pause_before = first == u.first_node || pause(first);
        const bool pause_after = last + 1 == u.first_node + u.nodes || pause(last + 1);
        if (!pause_before || !pause_after || last <= first) continue;
        const Ns slack = (d.observed_end(first) - p) + (q - d.observed_end(last));
        if (slack < best_slack) {
          best = other;
          best_span = {first, last};
          best_slack = slack;
        }
      }
      if (best == kNone) continue;
      const ThreadRow& u = d.threads[best];
      if (woken[best_span.first] != 0) {
        // its begin is known already, as the end of a hole of that thread
      } else if (best_span.first == u.first_node) {
        start_thread(d, n - 1, u);
      } else {
        wake(d, n - 1, best_span.first);
      }
      wake(d, best_span.last, n);
      woken[best_span.first] = woken[n] = 1;
    }
  }
  // A thread whose first burst lies in a hole that is known as a wait, by its end: it starts when that wait begins.
  for (const ThreadRow& u : d.threads) {
    if (d.edges[u.root_edge].kind != EdgeKind::root) continue;
    const Ns at = d.observed_end(u.first_node);
    std::uint32_t best = kNone;
    for (const ThreadRow& thread : d.threads) {
      const std::uint32_t before = last_before(d, thread, at + 1);
      if (&thread == &u || before == kNone || before + 1 == thread.first_node + thread.nodes) continue;
      if (woken[before + 1] == 0 || inside_call(d, before + 1) || at - d.observed_end(before) > 300'000) continue;
      if (best == kNone || d.observed_end(before) > d.observed_end(best)) best = before;
    }
    if (best != kNone) start_thread(d, best, u);
  }
}

}  // namespace orrery
