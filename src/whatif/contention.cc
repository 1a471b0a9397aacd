#include "whatif/contention.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "base/median.h"

namespace orrery {
namespace {

constexpr double kAlone = 0.02, kBeside = 0.5;  // shares up to and from which a task counts as one or the other
constexpr std::size_t kEnoughAlone = 3;
constexpr std::uint64_t kEnough = 8;  // samples that make a slowdown
constexpr double kAlike = 0.15;       // durations alone that lie this close together are of one shape
constexpr Ns kMicrosecond = 1000;     // older traces have no finer times
constexpr Ns kCoarse = 20'000;        // of those, shorter durations tell nothing: 3 us against 2 may be rounding
constexpr double kMost = 0.5;         // no kernel is taken to be slowed down by more than half its speed

struct Span {
  Ns begin, end;
};

// The union of `spans`, in place.
void unite(std::vector<Span>& spans) {
  const auto earlier = [](const Span& a, const Span& b) { return a.begin < b.begin; };
  if (!std::is_sorted(spans.begin(), spans.end(), earlier)) std::sort(spans.begin(), spans.end(), earlier);
  std::size_t kept = 0;
  for (const Span s : spans) {
    if (kept > 0 && s.begin <= spans[kept - 1].end) {
      spans[kept - 1].end = std::max(spans[kept - 1].end, s.end);
    } else {
      spans[kept++] = s;
    }
  }
  spans.resize(kept);
}

struct Task {
  std::uint32_t node;  // of a collective: its transfer
  Ns begin, end;
};

// What one rank's GPU runs. A collective is resident from its arrival on.
struct Device {
  std::vector<Task> kernels, transfers;
  std::vector<Span> computing, communicating;  // unions over the streams
};

// Reused from round to round. `begin` and `end` give the times of a node.
class Devices {
 public:
  template <class Begin, class End>
  void look(const ExecGraph& g, const Begin& begin, const End& end) {
    of_rank_.resize(g.ranks.size());
    for (Device& d : of_rank_) {
      d.kernels.clear();
      d.transfers.clear();
      d.computing.clear();
      d.communicating.clear();
    }
    arrived_.clear();
    for (std::uint32_t n = 0; n < g.size(); ++n) {
      if (g.kind[n] == NodeKind::kernel) {
        const Task t{n, begin(n), end(n)};
        if (t.begin >= t.end) continue;
        Device& d = of_rank_[g.rank[n]];
        d.kernels.push_back(t);
        d.computing.push_back({t.begin, t.end});
      } else if (g.kind[n] == NodeKind::comm) {
        if (arrived_.size() <= g.lane[n]) arrived_.resize(g.lane[n] + 1, kNone);
        std::uint32_t& arrival = arrived_[g.lane[n]];
        if (g.at_begin[n] != 0) {
          arrival = n;
          continue;
        }
        Device& d = of_rank_[g.rank[n]];
        Ns from = begin(n);
        // a kernel that met nobody is one node: of it waiting and transfer cannot be told apart
        if (arrival != kNone && g.source[arrival] == g.source[n]) {
          from = std::min(from, begin(arrival));
          if (begin(n) < end(n)) d.transfers.push_back({n, begin(n), end(n)});
        }
        arrival = kNone;
        if (from < end(n)) d.communicating.push_back({from, end(n)});
      }
    }
    for (Device& d : of_rank_) {
      unite(d.computing);
      unite(d.communicating);
    }
  }

  // visit(task, share): every kernel, and every transfer of those that met others.
  template <class Visit>
  void visit(const Visit& visit) const {
    for (const Device& d : of_rank_) {
      shares(d.kernels, d.communicating, visit);
      shares(d.transfers, d.computing, visit);
    }
  }

 private:
  // Tasks come nearly in order of time: the search goes on from where the last one ended.
  template <class Visit>
  static void shares(const std::vector<Task>& tasks, const std::vector<Span>& others, const Visit& visit) {
    std::size_t at = 0;
    for (const Task& t : tasks) {
      if (at > 0 && others[at - 1].end > t.begin)
        at = static_cast<std::size_t>(
            std::partition_point(others.begin(), others.end(), [&](const Span& s) { return s.end <= t.begin; }) -
            others.begin());
      while (at < others.size() && others[at].end <= t.begin) ++at;
      Ns beside = 0;
      for (std::size_t k = at; k < others.size() && others[k].begin < t.end; ++k)
        beside += std::min(others[k].end, t.end) - std::max(others[k].begin, t.begin);
      visit(t, static_cast<float>(static_cast<double>(beside) / static_cast<double>(t.end - t.begin)));
    }
  }

  std::vector<Device> of_rank_;
  std::vector<std::uint32_t> arrived_;  // by lane: the arrival whose transfer is to come
};

struct Sample {
  std::uint64_t a, b, c;  // what makes tasks alike
  Ns duration;
  float share;
  auto key() const { return std::tie(a, b, c); }
};

// Of alike tasks: those beside the other kind against the median of those alone. out(time alone, cost told).
template <class Out>
void compare(const Sample* from, const Sample* to, const Out& out) {
  std::vector<Ns> alone;
  for (const Sample* s = from; s != to; ++s)
    if (s->share <= kAlone) alone.push_back(s->duration);
  if (alone.size() < kEnoughAlone) return;
  const auto at = [&](std::size_t percent) {
    const auto i = alone.begin() + static_cast<std::ptrdiff_t>(alone.size() * percent / 100);
    std::nth_element(alone.begin(), i, alone.end());
    return static_cast<double>(*i);
  };
  const double usual = at(50);
  if (at(90) - at(10) > kAlike * usual) return;
  const bool coarse = std::all_of(from, to, [](const Sample& s) { return s.duration % kMicrosecond == 0; });
  if (coarse && usual < static_cast<double>(kCoarse)) return;
  for (const Sample* s = from; s != to; ++s) {
    if (s->share < kBeside) continue;
    const auto t = static_cast<double>(s->duration);
    const double cost = (1 - usual / t) / static_cast<double>(s->share);
    if (std::abs(cost) <= kMost) out(usual, cost);
  }
}

// Median, as noise and kernels of another shape are to either side; none where chance gives as much.
Slowdown learn(std::vector<double> told) {
  Slowdown s;
  s.samples = told.size();
  if (told.size() < kEnough) return s;
  s.cost = median(told);
  for (double& x : told) x = std::abs(x - s.cost);
  // standard error of a median of normal values: 1.25 sigma / sqrt(n), sigma = 1.48 median deviations
  s.error = 1.25 * 1.48 * median(told) / std::sqrt(static_cast<double>(s.samples));
  if (s.cost < 2 * s.error) s.cost = 0;
  return s;
}

std::uint32_t grid_of(const RankTrace& t, OpId op) {
  if (raw(op) >= t.ops.extra.size() || t.ops.extra[raw(op)] >= t.kernel_args.grid_blocks.size()) return 0;
  return t.kernel_args.grid_blocks[t.ops.extra[raw(op)]];
}

}  // namespace

Contention learn_contention(const TraceSet& traces, const GraphBuild& build) {
  const ExecGraph& g = build.graph;
  const Communication& c = build.communication;
  std::vector<std::uint32_t> row_of;  // by node: row of c.rows + 1
  row_of.assign(g.size(), 0);
  for (std::uint32_t i = 0; i < c.rows.size(); ++i)
    if (c.rows[i].last < g.size()) row_of[c.rows[i].last] = i + 1;
  Devices devices;
  devices.look(
      g, [&](std::uint32_t n) { return g.observed_start[n]; },
      [&](std::uint32_t n) { return g.observed_start[n] + g.duration[n]; });
  std::vector<Sample> kernels, transfers;
  devices.visit([&](const Task& t, float share) {
    if (g.kind[t.node] == NodeKind::kernel) {
      if (g.source[t.node] == kNoOp) return;
      const RankTrace& trace = traces.ranks[g.ranks[g.rank[t.node]].trace];
      kernels.push_back({g.rank[t.node], raw(trace.ops.name[raw(g.source[t.node])]), grid_of(trace, g.source[t.node]),
                         t.end - t.begin, share});
    } else if (row_of[t.node] != 0) {
      const CommRow& row = c.rows[row_of[t.node] - 1];
      if (row.bytes < 0 || row.group == kNone || is_point_to_point(row.op)) return;
      transfers.push_back({row.group, static_cast<std::uint64_t>(row.op), static_cast<std::uint64_t>(row.bytes),
                           t.end - t.begin, share});
    }
  });
  std::vector<double> long_compute, short_compute, transfer;
  const auto in_groups = [](std::vector<Sample>& samples, const auto& out) {
    std::stable_sort(samples.begin(), samples.end(),
                     [](const Sample& a, const Sample& b) { return a.key() < b.key(); });
    for (auto from = samples.begin(); from != samples.end();) {
      auto to = from;
      while (to != samples.end() && to->key() == from->key()) ++to;
      compare(&*from, &*from + (to - from), out);
      from = to;
    }
  };
  in_groups(kernels, [&](double alone, double cost) {
    (alone >= static_cast<double>(kLongKernel) ? long_compute : short_compute).push_back(cost);
  });
  in_groups(transfers, [&](double, double cost) { transfer.push_back(cost); });
  return {learn(std::move(long_compute)), learn(std::move(short_compute)), learn(std::move(transfer))};
}

Overlap overlap_of(const ExecGraph& g, const Contention& contention, const Replay& replayed) {
  Overlap out;
  Devices devices;
  devices.look(
      g, [&](std::uint32_t n) { return replayed.start[n]; }, [&](std::uint32_t n) { return replayed.end[n]; });
  devices.visit([&](const Task& t, float share) {
    const OpId op = g.source[t.node];
    if (op == kNoOp) return;
    const Slowdown& s = g.kind[t.node] == NodeKind::comm ? contention.transfer
                        : t.end - t.begin >= kLongKernel ? contention.long_compute
                                                         : contention.short_compute;
    if (s.cost <= 0) return;
    const std::uint32_t trace = g.ranks[g.rank[t.node]].trace;
    if (out.of_trace.size() <= trace) out.of_trace.resize(trace + 1);
    auto& rows = out.of_trace[trace];
    if (rows.size() <= raw(op)) rows.resize(std::max<std::size_t>(raw(op) + 1, rows.size() * 2));
    rows[raw(op)] = {share, static_cast<float>(s.cost)};
  });
  return out;
}

int replay_with_contention(ExecGraph& g, const Overlap& before, Replay& out) {
  replay(g, out);
  if (before.of_trace.empty()) return 0;
  const std::vector<Ns> given = g.duration;  // of each task: as it took with the overlap of the unchanged job
  Devices devices;
  for (int round = 0; round < kContentionRounds; ++round) {
    Ns moved = 0, total = 0;
    devices.look(
        g, [&](std::uint32_t n) { return out.start[n]; }, [&](std::uint32_t n) { return out.end[n]; });
    devices.visit([&](const Task& t, float share) {
      const std::uint32_t trace = g.ranks[g.rank[t.node]].trace, op = raw(g.source[t.node]);
      if (trace >= before.of_trace.size() || op >= before.of_trace[trace].size()) return;
      const Overlap::Row& was = before.of_trace[trace][op];
      if (was.cost <= 0) return;
      const Ns now = std::llround(static_cast<double>(given[t.node]) * (1 - double{was.cost} * double{was.share}) /
                                  (1 - double{was.cost} * double{share}));
      moved += std::abs(now - g.duration[t.node]);
      total += now;
      g.duration[t.node] = now;
    });
    if (moved == 0) return round;
    refresh_queue_lags(g);
    replay(g, out);
    if (moved * 20'000 < total) return round + 1;  // a twentieth of a per mille: far below any kernel's noise
  }
  return kContentionRounds;
}

}  // namespace orrery
