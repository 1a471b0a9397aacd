// Step windows and what the device did in them.
#include <algorithm>
#include <charconv>
#include <string>
#include <system_error>

#include "graph/draft.h"

namespace orrery {
namespace {

constexpr std::string_view kMarker = "ProfilerStep#";

void find_markers(Draft& d) {
  const RankTrace& t = *d.trace;
  for (std::uint32_t i = 0; i < t.ops.size(); ++i) {
    if (t.ops.kind[i] != OpKind::user_annotation || d.begin_node[i] == kNone || d.end_node[i] == kNone) continue;
    const std::string_view name = t.name_of(OpId{i});
    if (name.substr(0, kMarker.size()) != kMarker) continue;
    std::int64_t number = 0;
    const char* const end = name.data() + name.size();
    const auto read = std::from_chars(name.data() + kMarker.size(), end, number);
    if (read.ec != std::errc{} || read.ptr != end || number < 0) {
      d.notes.add("step-marker-unreadable", Severity::warning, 1, t.example_of(OpId{i}),
                  "step markers that are no ProfilerStep#N with a 64-bit number from 0 on: not taken for steps");
      continue;
    }
    d.steps.push_back({number, 0, t.ops.start[i], t.ops.end(i), NodeId{d.begin_node[i]}, NodeId{d.end_node[i]}});
  }
  std::stable_sort(d.steps.begin(), d.steps.end(), [](const Step& a, const Step& b) {
    if (a.number != b.number) return a.number < b.number;
    return a.end - a.begin > b.end - b.begin;
  });
  // The same step marked twice, on two threads: the longest is the step. Two windows of one number apart in time are
  // not that: the longest is kept, and the others are told.
  for (std::size_t i = 1; i < d.steps.size(); ++i) {
    const Step &a = d.steps[i - 1], &b = d.steps[i];
    if (a.number != b.number || (a.begin < b.end && b.begin < a.end)) continue;
    d.notes.add("repeated-step", Severity::warning, 1, "ProfilerStep#" + std::to_string(b.number),
                "step markers of one number in several places: only the longest is reported");
  }
  d.steps.erase(
      std::unique(d.steps.begin(), d.steps.end(), [](const Step& a, const Step& b) { return a.number == b.number; }),
      d.steps.end());
}

// Without markers the whole trace is step 0: two nodes without a lane, before and after everything.
void whole_trace(Draft& d) {
  const std::uint32_t work = d.nodes();
  if (work == 0) return;
  Ns begin = INT64_MAX, end = INT64_MIN;
  for (std::uint32_t n = 0; n < work; ++n) {
    begin = std::min(begin, d.observed_end(n) - (d.node[n].kind == NodeKind::host ? 0 : d.node[n].duration));
    end = std::max(end, d.observed_end(n));
  }
  const std::uint32_t first = d.add_node(0, begin, kNone, NodeKind::rendezvous, 1, kNone);
  d.add_edge(kNone, first, EdgeKind::root, begin - d.trace->window_start);
  const std::uint32_t last = d.add_node(0, end, kNone, NodeKind::rendezvous, 0, kNone);
  for (const ThreadRow& t : d.threads) d.add_edge(t.first_node + t.nodes - 1, last, EdgeKind::thread, 0);
  for (const Task& t : d.tasks) {
    // the last of each stream by order may not be the last by end where tasks overlap
    if (t.end >= end - 1'000'000 || &t == &d.tasks[d.streams[t.stream].first_task + d.streams[t.stream].tasks - 1]) {
      d.add_edge(t.node, last, EdgeKind::stream, 0);
    }
  }
  d.steps.push_back({0, 0, begin, end, NodeId{first}, NodeId{last}});
}

void measure_idle(Draft& d) {
  // Old traces have whole microseconds: a start and an end each rounded say nothing about less than two of them.
  const bool whole_us = std::all_of(d.tasks.begin(), d.tasks.end(), [](const Task& t) { return t.start % 1000 == 0; });
  const Ns resolution = whole_us ? 2'000 : 0;
  std::vector<std::uint32_t> order(d.tasks.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return d.tasks[a].start < d.tasks[b].start; });
  std::vector<Step> windows = d.steps;
  std::sort(windows.begin(), windows.end(), [](const Step& a, const Step& b) { return a.begin < b.begin; });
  std::size_t w = 0;
  Ns busy_until = INT64_MIN;
  for (const std::uint32_t i : order) {
    const Task& t = d.tasks[i];
    if (busy_until != INT64_MIN && t.start > busy_until) {
      while (w < windows.size() && windows[w].end <= busy_until) ++w;
      for (std::size_t k = w; k < windows.size() && windows[k].begin < t.start; ++k) {
        const Ns from = std::max(busy_until, windows[k].begin), to = std::min(t.start, windows[k].end);
        if (to <= from) continue;
        d.quality.idle_ns += to - from;
        const Ns unexplained = to - std::max(from, d.explained_start[i]);
        if (unexplained > resolution) d.quality.unexplained_idle_ns += unexplained;
      }
    }
    busy_until = std::max(busy_until, t.end);
  }
}

}  // namespace

void add_steps(Draft& d) {
  find_markers(d);
  if (d.steps.empty()) whole_trace(d);
  measure_idle(d);
}

}  // namespace orrery
