#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <unordered_map>

#include "base/json_text.h"
#include "importers/kineto.h"

namespace orrery {
namespace {

// GPU events this far before the first host event, or after the last, were not recorded in this window. Real launch
// queues and clock faults are microseconds to seconds; the fault in question shifts by about 10^14 ns.
constexpr Ns kFarBefore = 60'000'000'000;
constexpr Ns kFarAfter = 3'600'000'000'000;
// Other events over an hour away from all others are strays where they are so few; else the trace has two parts.
constexpr std::size_t kFewStrays = 3, kStrayShare = 100;
// An event at exactly 0 in a trace whose other events begin later than this has no time.
constexpr Ns kFarFromZero = 3'600'000'000'000;
constexpr Ns kOverrun = 1'000'000;

bool is_host(OpKind k) {
  return k == OpKind::cpu_op || k == OpKind::user_annotation || k == OpKind::python || k == OpKind::runtime;
}

std::string example(const RankTrace& t, std::size_t i, const std::string& what = {}) {
  return quote_for_people(t.strings.view(t.ops.name[i]), 80) + " at ts " + std::to_string(t.ops.start[i] / 1000) +
         " us" + what;
}

template <class T>
void keep_rows(std::vector<T>& v, const std::vector<bool>& drop) {
  std::size_t to = 0;
  for (std::size_t i = 0; i < v.size(); ++i)
    if (!drop[i]) v[to++] = v[i];
  v.resize(to);
}

// "B" and "E" events -> rows. An end closes the last begin of its name on its lane (they need not nest), an end without
// a name the last begin.
void pair_halves(RankTrace& t, Unfinished& b) {
  const std::vector<HalfEvent>& halves = b.halves;
  std::vector<std::uint32_t> order(halves.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t x, std::uint32_t y) {
    if (halves[x].lane != halves[y].lane) return raw(halves[x].lane) < raw(halves[y].lane);
    return halves[x].ts < halves[y].ts;
  });
  auto unpaired = [&](const HalfEvent& h) {
    if (b.tallies.count(Oddity::unpaired_begin_end))
      b.tallies.example(Oddity::unpaired_begin_end, quote_for_people(t.strings.view(h.name), 80));
  };
  std::vector<std::uint32_t> open;  // of one lane; closed ones stay until they are on top
  std::vector<bool> closed(halves.size(), false);
  std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> open_by_name;
  for (std::size_t k = 0; k < order.size(); ++k) {
    const HalfEvent& h = halves[order[k]];
    if (!h.end) {
      open.push_back(order[k]);
      open_by_name[raw(h.name)].push_back(order[k]);
    } else {
      while (!open.empty() && closed[open.back()]) open.pop_back();
      std::uint32_t begin = kNone;
      if (raw(h.name) == 0 && !open.empty()) begin = open.back();
      auto& candidates = open_by_name[raw(begin == kNone ? h.name : halves[begin].name)];
      if (!candidates.empty()) {
        begin = candidates.back();
        candidates.pop_back();
      }
      if (begin == kNone) {
        unpaired(h);
      } else {
        closed[begin] = true;
        OpTable& o = t.ops;
        Ns dur = 0;
        const bool usable = !__builtin_sub_overflow(h.ts, halves[begin].ts, &dur);
        o.start.push_back(halves[begin].ts);
        o.dur.push_back(usable ? dur : -1);
        o.name.push_back(halves[begin].name);
        o.lane.push_back(halves[begin].lane);
        o.kind.push_back(halves[begin].kind);
        o.corr.push_back(0);
        o.ext.push_back(0);
        o.extra.push_back(kNone);
      }
    }
    const bool last_of_lane = k + 1 == order.size() || halves[order[k + 1]].lane != h.lane;
    if (!last_of_lane) continue;
    for (const std::uint32_t i : open)
      if (!closed[i]) unpaired(halves[i]);
    open.clear();
    open_by_name.clear();
  }
  b.halves = {};
}

// Host events that span over an hour: are they groups with over an hour between them? Where one group has nearly all of
// them, first and last become that group's; else the groups are told.
void find_main_group(RankTrace& t, bool without_zero, Ns& first, Ns& last) {
  const OpTable& o = t.ops;
  const auto end = [&](std::uint32_t i) { return o.start[i] + std::max<Ns>(0, o.dur[i]); };
  std::vector<std::uint32_t> rows, groups;  // groups: where each begins in rows
  for (std::uint32_t i = 0; i < o.size(); ++i)
    if (is_host(o.kind[i]) && !(without_zero && o.start[i] == 0)) rows.push_back(i);
  std::sort(rows.begin(), rows.end(), [&](std::uint32_t a, std::uint32_t b) { return o.start[a] < o.start[b]; });
  std::vector<Ns> ends;  // of the groups
  for (std::uint32_t k = 0; k < rows.size(); ++k) {
    const Ns start = o.start[rows[k]];
    Ns gap = 0;
    if (k == 0 || __builtin_sub_overflow(start, ends.back(), &gap) || gap > kFarAfter) {
      groups.push_back(k);
      ends.push_back(end(rows[k]));
    }
    ends.back() = std::max(ends.back(), end(rows[k]));
  }
  if (groups.size() < 2) return;
  const auto size = [&](std::size_t g) { return (g + 1 < groups.size() ? groups[g + 1] : rows.size()) - groups[g]; };
  std::size_t main = 0;
  for (std::size_t g = 1; g < groups.size(); ++g)
    if (size(g) > size(main)) main = g;
  const std::size_t strays = rows.size() - size(main);
  if (strays < size(main) && strays <= std::max(kFewStrays, rows.size() / kStrayShare)) {
    first = o.start[rows[groups[main]]];
    last = ends[main];
    return;
  }
  t.notes.add("far-apart", Severity::warning, groups.size() - 1, "second group from " + example(t, rows[groups[1]]),
              "the events lie in groups over an hour apart; all are used. Without step markers the one step spans the "
              "gaps, inside of step markers nothing changes");
}

// Events without a place in the recorded window.
void drop_misplaced(RankTrace& t, Unfinished& b) {
  const OpTable& o = t.ops;
  const std::size_t n = o.size();
  constexpr Ns kMax = std::numeric_limits<Ns>::max(), kMin = std::numeric_limits<Ns>::min();
  Ns first_nonzero = kMax, host_first = kMax, host_last = kMin;
  bool zero = false;
  for (std::size_t i = 0; i < n; ++i) {
    zero = zero || o.start[i] == 0;
    if (o.start[i] == 0) continue;
    first_nonzero = std::min(first_nonzero, o.start[i]);
    if (!is_host(o.kind[i])) continue;
    host_first = std::min(host_first, o.start[i]);
    host_last = std::max(host_last, o.start[i] + std::max<Ns>(0, o.dur[i]));
  }
  const bool drop_zero = zero && first_nonzero != kMax && first_nonzero > kFarFromZero;
  if (Ns span; host_first != kMax && (__builtin_sub_overflow(host_last, host_first, &span) || span > kFarAfter))
    find_main_group(t, drop_zero, host_first, host_last);
  if (host_first == kMax) {  // no host events: the middle of the GPU tasks stands for the window
    std::vector<Ns> starts;
    for (std::size_t i = 0; i < n; ++i)
      if (is_gpu_task(o.kind[i]) && o.start[i] != 0) starts.push_back(o.start[i]);
    if (starts.size() >= 3) {
      const auto middle = starts.begin() + static_cast<std::ptrdiff_t>(starts.size() / 2);
      std::nth_element(starts.begin(), middle, starts.end());
      host_first = *middle - kFarAfter;
      host_last = *middle + kFarAfter;
    }
  }
  const bool window = host_first != kMax;
  const Ns low = window && host_first > kMin + kFarBefore ? host_first - kFarBefore : kMin;
  const Ns high = window && host_last < kMax - kFarAfter ? host_last + kFarAfter : kMax;
  const Ns other_low = window && host_first > kMin + kFarAfter ? host_first - kFarAfter : kMin;

  std::vector<bool> drop;
  for (std::size_t i = 0; i < n; ++i) {
    const bool at_zero = drop_zero && o.start[i] == 0;
    const bool gpu = is_gpu_task(o.kind[i]) || o.kind[i] == OpKind::gpu_annotation || o.kind[i] == OpKind::sync;
    const bool outside = o.start[i] < (gpu ? low : other_low) || o.start[i] > high;
    if (!at_zero && !outside) continue;
    if (drop.empty()) drop.resize(n);
    drop[i] = true;
    const Oddity what = at_zero ? Oddity::zero_time : (gpu ? Oddity::outside_window : Oddity::far_event);
    if (b.tallies.count(what)) b.tallies.example(what, example(t, i));
  }
  if (drop.empty()) return;
  std::apply([&](auto... column) { (keep_rows(t.ops.*column, drop), ...); }, kOpColumns);
}

void set_window(RankTrace& t) {
  Ns first = std::numeric_limits<Ns>::max(), last = std::numeric_limits<Ns>::min();
  for (std::size_t i = 0; i < t.ops.size(); ++i) {
    first = std::min(first, t.ops.start[i]);
    last = std::max(last, t.ops.start[i] + std::max<Ns>(0, t.ops.dur[i]));
  }
  if (first > last) first = last = 0;
  t.window_start = first;
  t.window_end = last;
}

// Open host events end with the innermost event around their beginning, or with the window; open GPU events get no
// length.
void close_open_events(RankTrace& t) {
  OpTable& o = t.ops;
  std::vector<bool> lane_has_open(t.lanes.size(), false);
  for (std::size_t i = 0; i < o.size(); ++i) {
    if (o.dur[i] >= 0) continue;
    t.open_ops.push_back(OpId{static_cast<std::uint32_t>(i)});
    if (is_host(o.kind[i]))
      lane_has_open[raw(o.lane[i])] = true;
    else
      o.dur[i] = 0;
  }
  if (t.open_ops.empty()) return;
  std::vector<std::uint32_t> rows;
  for (std::size_t i = 0; i < o.size(); ++i)
    if (lane_has_open[raw(o.lane[i])]) rows.push_back(static_cast<std::uint32_t>(i));
  // By lane and start; of those that start together the longest first, an open one before them all.
  std::stable_sort(rows.begin(), rows.end(), [&](std::uint32_t x, std::uint32_t y) {
    if (o.lane[x] != o.lane[y]) return raw(o.lane[x]) < raw(o.lane[y]);
    if (o.start[x] != o.start[y]) return o.start[x] < o.start[y];
    return static_cast<std::uint64_t>(o.dur[x]) > static_cast<std::uint64_t>(o.dur[y]);
  });
  std::vector<Ns> around;  // ends of the events that are open at this point
  for (std::size_t k = 0; k < rows.size(); ++k) {
    const std::uint32_t i = rows[k];
    if (k == 0 || o.lane[rows[k - 1]] != o.lane[i]) around.clear();
    while (!around.empty() && around.back() <= o.start[i]) around.pop_back();
    if (o.dur[i] < 0) o.dur[i] = std::max<Ns>(0, (around.empty() ? t.window_end : around.back()) - o.start[i]);
    const Ns end = o.start[i] + o.dur[i];
    if (around.empty() || end <= around.back()) around.push_back(end);
  }
}

// Flows, memory events and metadata name lanes by pid and tid alone: find the thread or stream they mean.
void resolve_lanes(RankTrace& t, Unfinished& b) {
  LaneTable& lanes = t.lanes;
  const std::size_t n = lanes.size();
  auto key = [&](std::size_t i) {
    return std::to_string(lanes.pid[i]) + ' ' + std::to_string(lanes.tid[i]) + ' ' +
           std::to_string(raw(lanes.pid_text[i])) + ' ' + std::to_string(raw(lanes.tid_text[i]));
  };
  std::unordered_map<std::string, std::uint32_t> threads, streams;
  for (std::uint32_t i = 0; i < n; ++i) {
    if (lanes.kind[i] == LaneKind::thread) threads.emplace(key(i), i);
    if (lanes.kind[i] == LaneKind::stream) streams.emplace(key(i), i);
  }
  // Per lane: what a host event, and what the finish of a launch flow, means by it.
  std::vector<std::uint32_t> host(n), device(n);
  for (std::uint32_t i = 0; i < n; ++i) {
    host[i] = device[i] = i;
    if (lanes.kind[i] != LaneKind::other) continue;
    const auto thread = threads.find(key(i));
    const auto stream = streams.find(key(i));
    if (thread != threads.end()) host[i] = device[i] = thread->second;
    if (stream != streams.end()) device[i] = stream->second;
    if (thread == threads.end() && stream != streams.end()) host[i] = stream->second;
  }
  for (const LaneAlias& a : b.aliases) {
    const std::uint32_t i = raw(a.written);
    device[i] = raw(a.stream);
    if (host[i] == i) host[i] = raw(a.stream);
  }
  for (LaneId& l : t.ops.lane) l = LaneId{host[raw(l)]};
  for (LaneId& l : t.memory.lane) l = LaneId{host[raw(l)]};
  for (std::size_t i = 0; i < t.flows.size(); ++i) {
    const bool launch_end = t.flows.kind[i] == FlowKind::ac2g && t.flows.is_finish[i] != 0;
    t.flows.lane[i] = LaneId{(launch_end ? device : host)[raw(t.flows.lane[i])]};
  }
  // Names: a thread's own before its process's; the last one given counts.
  std::unordered_map<std::int64_t, StrId> process_names;
  for (const LaneName& name : b.names) {
    const std::uint32_t l = raw(name.lane);
    if (name.process) {
      if (raw(lanes.pid_text[l]) == 0) process_names[lanes.pid[l]] = name.name;
      continue;
    }
    lanes.name[host[l]] = name.name;
    lanes.name[device[l]] = name.name;
  }
  // Lanes that only metadata mentions go.
  std::vector<bool> used(n, false);
  for (const LaneId l : t.ops.lane) used[raw(l)] = true;
  for (const LaneId l : t.memory.lane) used[raw(l)] = true;
  for (const LaneId l : t.flows.lane) used[raw(l)] = true;
  std::vector<std::uint32_t> renamed(n, kNone);
  LaneTable kept;
  for (std::size_t i = 0; i < n; ++i) {
    if (!used[i]) continue;
    renamed[i] = static_cast<std::uint32_t>(kept.size());
    kept.kind.push_back(lanes.kind[i]);
    kept.pid.push_back(lanes.pid[i]);
    kept.tid.push_back(lanes.tid[i]);
    kept.pid_text.push_back(lanes.pid_text[i]);
    kept.tid_text.push_back(lanes.tid_text[i]);
    StrId name = lanes.name[i];
    if (raw(name) == 0 && raw(lanes.pid_text[i]) == 0)
      if (const auto p = process_names.find(lanes.pid[i]); p != process_names.end()) name = p->second;
    kept.name.push_back(name);
  }
  for (LaneId& l : t.ops.lane) l = LaneId{renamed[raw(l)]};
  for (LaneId& l : t.memory.lane) l = LaneId{renamed[raw(l)]};
  for (LaneId& l : t.flows.lane) l = LaneId{renamed[raw(l)]};
  lanes = std::move(kept);
}

// Only told: what to make of it is the graph's business. Ties of start times are tick collisions, not overruns.
void note_overruns(const RankTrace& t, Unfinished& b) {
  const OpTable& o = t.ops;
  std::vector<std::vector<std::uint32_t>> by_lane(t.lanes.size());
  for (std::size_t i = 0; i < o.size(); ++i)
    if (is_gpu_task(o.kind[i])) by_lane[raw(o.lane[i])].push_back(static_cast<std::uint32_t>(i));
  std::uint32_t worst = kNone;
  Ns worst_by = 0;
  for (auto& rows : by_lane) {
    const auto earlier = [&](std::uint32_t x, std::uint32_t y) { return o.start[x] < o.start[y]; };
    if (!std::is_sorted(rows.begin(), rows.end(), earlier)) std::stable_sort(rows.begin(), rows.end(), earlier);
    for (std::size_t k = 0; k + 1 < rows.size(); ++k) {
      const std::uint32_t i = rows[k];
      if (o.start[i] == o.start[rows[k + 1]]) continue;
      const Ns by = o.start[i] + o.dur[i] - o.start[rows[k + 1]];
      if (by <= kOverrun) continue;
      b.tallies.count(Oddity::overrun);
      if (by > worst_by) worst = i, worst_by = by;
    }
  }
  if (worst != kNone)
    b.tallies.example(Oddity::overrun, example(t, worst, ", by " + std::to_string(worst_by / 1000) + " us"));
}

// Times of one table, moved to absolute nanoseconds. The first that does not fit int64 makes all stay relative.
bool fits(const std::vector<Ns>& v, Ns base) {
  Ns sum;
  return std::none_of(v.begin(), v.end(), [&](Ns ts) { return __builtin_add_overflow(ts, base, &sum); });
}

void add_base(RankTrace& t) {
  Ns sum;
  if (t.base_ns == 0) return;
  if (__builtin_add_overflow(t.window_start, t.base_ns, &sum) ||
      __builtin_add_overflow(t.window_end, t.base_ns, &sum) || !fits(t.flows.ts, t.base_ns) ||
      !fits(t.memory.ts, t.base_ns)) {
    t.notes.add(
        "base-time-too-large", Severity::warning, 1, std::to_string(t.base_ns),
        "ts + baseTimeNanoseconds does not fit 64-bit nanoseconds: times stay relative, and ranks cannot be compared");
    t.base_ns = 0;
    return;
  }
  for (Ns& ts : t.ops.start) ts += t.base_ns;
  for (Ns& ts : t.flows.ts) ts += t.base_ns;
  for (Ns& ts : t.memory.ts) ts += t.base_ns;
  t.window_start += t.base_ns;
  t.window_end += t.base_ns;
}

}  // namespace

void finish_rank(RankTrace& t, Unfinished& b) {
  if (!b.halves.empty()) pair_halves(t, b);
  drop_misplaced(t, b);
  set_window(t);
  resolve_lanes(t, b);
  close_open_events(t);
  set_window(t);
  note_overruns(t, b);
  if (b.short_fractions != 0 && b.zero_padded != 0) b.tallies.count(Oddity::fraction_not_padded, b.short_fractions);
  add_base(t);
  b.tallies.write(t.notes);
}

}  // namespace orrery
