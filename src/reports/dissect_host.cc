// Wall time of the steps by what the host's threads are in: at each instant the phase of an operator that is open on
// some thread, else of a range (its thread may only wait for another); of several the first of recompute, backward,
// optimizer, communication, forward, data. A pause
// between two stretches of one phase is that phase's (Python between operators), unless a call waits for the device in
// it. What is left is `host`: code between the phases, and waiting.
#include <algorithm>
#include <array>
#include <tuple>

#include "graph/calls.h"
#include "reports/dissect.h"

namespace orrery {
namespace {

using F = NameFlags;

constexpr Phase kNothing = Phase::unattributed;
constexpr std::array<Phase, 9> kPriority = {Phase::recompute,     Phase::backward, Phase::optimizer,
                                            Phase::communication, Phase::decode,   Phase::prefill,
                                            Phase::mixed,         Phase::forward,  Phase::data};

bool starts(std::string_view text, std::string_view part) { return text.substr(0, part.size()) == part; }

struct Edge {
  Ns at;
  Phase phase;
  bool range;  // of a range, not of an operator
  int by;      // +1 begins, -1 ends
};

struct Stretch {
  Ns begin, end;
  Phase phase;
};

class HostPhases {
 public:
  explicit HostPhases(Dissection& d) : d_(d), t_(*d.trace), o_(d.operators) {}

  void run() {
    find_phases_of_rows();
    find_edges();
    std::vector<Stretch> all = stretches();
    fill_pauses(all);
    Ns covered = 0;
    auto step = d_.steps.begin();
    for (const Stretch& s : all) {
      while (step != d_.steps.end() && step->end <= s.begin) ++step;
      for (auto at = step; at != d_.steps.end() && at->begin < s.end; ++at) {
        const Ns part = std::min(s.end, at->end) - std::max(s.begin, at->begin);
        d_.host[static_cast<std::size_t>(s.phase)] += part;
        covered += part;
      }
    }
    d_.host[static_cast<std::size_t>(Phase::host)] += d_.length - covered;
  }

 private:
  static bool is_host_row(OpKind k) { return k == OpKind::cpu_op || k == OpKind::user_annotation; }

  // What the row itself says; kNothing = as the row round it.
  Phase own_phase(std::uint32_t row) {
    const std::string_view name = t_.name_of(OpId{row});
    if (t_.ops.kind[row] == OpKind::user_annotation) {
      if (starts(name, "nccl:") || starts(name, "gloo:")) return Phase::communication;
      Phase p = phase_of_range(name).value_or(kNothing);
      if (is_forward(p) && inference_ != kNothing) p = inference_;
      return p;
    }
    const std::uint32_t f = o_.flags(row);
    if (name == "record_param_comms" || starts(name, "c10d::")) return Phase::communication;
    if ((f & F::checkpoint) != 0 && (f & F::autograd) != 0) return Phase::recompute;
    if ((f & F::autograd) != 0) return Phase::backward;
    if ((f & F::optimizer) != 0) return Phase::optimizer;
    if (o_.sequence(row) >= 0 || (f & (F::linear | F::attention | F::norm | F::loss | F::embedding)) != 0)
      return inference_ != kNothing ? inference_ : Phase::forward;
    return kNothing;
  }

  void find_phases_of_rows() {
    // Operators of inference say no more than "forward"; where all passes are of one kind, so are they.
    if (!d_.training) {
      std::array<bool, kPhases> seen{};
      for (const DissectedTask& task : d_.tasks)
        if (is_forward(task.phase)) seen[static_cast<std::size_t>(task.phase)] = true;
      for (const Phase p : {Phase::prefill, Phase::decode, Phase::mixed})
        if (seen[static_cast<std::size_t>(p)]) inference_ = inference_ == kNothing ? p : Phase::forward;
      if (inference_ == Phase::forward) inference_ = kNothing;
    }
    const OpTable& ops = t_.ops;
    phase_.assign(ops.size(), kNothing);
    by_range_.assign(ops.size(), 0);
    std::vector<char> done(ops.size(), 0);
    std::vector<std::uint32_t> path;
    for (std::uint32_t i = 0; i < ops.size(); ++i) {
      if (!is_host_row(ops.kind[i])) continue;
      path.clear();
      std::uint32_t p = i;
      for (; p != kNone && done[p] == 0; p = o_.parent[p]) path.push_back(p);
      for (auto row = path.rbegin(); row != path.rend(); ++row) {
        const std::uint32_t parent = o_.parent[*row];
        const Phase outer = parent == kNone ? kNothing : phase_[parent];
        const Phase own = own_phase(*row);
        const bool inside =
            outer == Phase::backward || outer == Phase::recompute || outer == Phase::optimizer || outer == Phase::data;
        // A range that says which pass it is knows more than the operators in it, which only say "forward".
        const bool told = is_forward(outer) && outer != Phase::forward && own == Phase::forward;
        phase_[*row] =
            own == kNothing || told || (inside && is_forward(own) && t_.ops.kind[*row] == OpKind::cpu_op) ? outer : own;
        const bool range = ops.kind[*row] == OpKind::user_annotation && own != Phase::communication;
        by_range_[*row] = phase_[*row] == own && own != kNothing ? range : parent != kNone && by_range_[parent];
        done[*row] = 1;
      }
    }
  }

  // A row of another phase than what is round it takes its time from it.
  void find_edges() {
    const OpTable& ops = t_.ops;
    for (std::uint32_t i = 0; i < ops.size(); ++i) {
      const bool waits =
          ops.kind[i] == OpKind::runtime && is_wait(i) && (o_.parent[i] == kNone || phase_[o_.parent[i]] == kNothing);
      if (waits && ops.dur[i] > 0) waits_.push_back({ops.start[i], ops.end(i)});
      if (!is_host_row(ops.kind[i]) || phase_[i] == kNothing || ops.dur[i] <= 0) continue;
      const std::uint32_t parent = o_.parent[i];
      const Phase outer = parent == kNone ? kNothing : phase_[parent];
      const bool outer_range = parent != kNone && by_range_[parent] != 0, range = by_range_[i] != 0;
      if (outer == phase_[i] && outer_range == range) continue;
      Ns begin = ops.start[i], end = ops.end(i);
      if (outer != kNothing) {
        end = std::min(end, ops.end(parent));
        if (begin >= end) continue;
        edges_.push_back({begin, outer, outer_range, -1});
        edges_.push_back({end, outer, outer_range, 1});
      }
      edges_.push_back({begin, phase_[i], range, 1});
      edges_.push_back({end, phase_[i], range, -1});
    }
    std::sort(edges_.begin(), edges_.end(), [](const Edge& a, const Edge& b) { return a.at < b.at; });
    unite_all(waits_);
  }

  bool is_wait(std::uint32_t row) const {
    const Call c = classify_call(t_.name_of(OpId{row}));
    return c == Call::stream_sync || c == Call::device_sync || c == Call::event_sync;
  }

  static Phase first_of(const std::array<std::int64_t, kPhases>& open) {
    for (const Phase p : kPriority)
      if (open[static_cast<std::size_t>(p)] > 0) return p;
    return kNothing;
  }

  std::vector<Stretch> stretches() const {
    std::vector<Stretch> out;
    std::array<std::int64_t, kPhases> open[2] = {};  // by operators, by ranges
    for (std::size_t i = 0; i < edges_.size();) {
      const Ns at = edges_[i].at;
      for (; i < edges_.size() && edges_[i].at == at; ++i)
        open[edges_[i].range ? 1 : 0][static_cast<std::size_t>(edges_[i].phase)] += edges_[i].by;
      if (i == edges_.size()) break;
      const Phase p = first_of(open[0]) != kNothing ? first_of(open[0]) : first_of(open[1]);
      if (p == kNothing) continue;
      const Ns end = edges_[i].at;
      if (!out.empty() && out.back().end == at && out.back().phase == p)
        out.back().end = end;
      else
        out.push_back({at, end, p});
    }
    return out;
  }

  void fill_pauses(std::vector<Stretch>& all) const {
    for (std::size_t i = 1; i < all.size(); ++i) {
      Stretch &a = all[i - 1], &b = all[i];
      if (a.phase != b.phase || a.phase == Phase::communication) continue;
      if (covered(waits_, a.end, b.begin) == 0) a.end = b.begin;
    }
  }

  Dissection& d_;
  const RankTrace& t_;
  const Operators& o_;
  Phase inference_ = kNothing;
  std::vector<Phase> phase_;
  std::vector<Edge> edges_;
  std::vector<char> by_range_;
  Intervals waits_;
};

}  // namespace

void find_host_time(Dissection& d) { HostPhases(d).run(); }

}  // namespace orrery
