#include "trials/plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

namespace orrery {
namespace {

struct Placed {
  std::vector<std::vector<TrialPiece>> of_gpu;
  std::vector<double> load;  // seconds, starts included
};

// Units onto GPUs in a given order. What cannot be split goes to the GPU with the least load; what can fills GPUs up
// one after the other (McNaughton's wrap-around), so that no room is lost and few units are split.
class Placement {
 public:
  Placement(const std::vector<EvalUnit>& units, const TrialShape& shape, std::vector<TrialPiece> parts)
      : units_(units), shape_(shape), parts_(std::move(parts)) {}

  // Everything so that every metric ends by `end` and no GPU is filled beyond `fill` with what can be split; false =
  // not found.
  bool place(double end, double fill, Placed& out) const {
    const auto gpus = static_cast<std::size_t>(shape_.gpus);
    out.of_gpu.assign(gpus, {});
    out.load.assign(gpus, 0);
    std::vector<std::int32_t> last(gpus, -1);  // checkpoint that the GPU has loaded last
    for (const TrialPiece& part : parts_)
      if (!place_part(part, end, fill, out, last)) return false;
    return true;
  }

 private:
  bool place_part(const TrialPiece& part, double end, double fill, Placed& out, std::vector<std::int32_t>& last) const {
    const EvalUnit& unit = units_[part.unit];
    const double all = unit.gpu_s();
    const bool by_item = unit.split && unit.metric_by_item;
    // Scored in proportion, beside what each job takes.
    const double metric_share = by_item ? (unit.metric_s - unit.metric_fixed_s) / std::max(all, 1e-12) : 0;
    if (by_item) end -= unit.metric_fixed_s;
    const double by = std::min(end - (by_item ? 0 : unit.metric_s), unit.split ? fill : end);
    const auto load_with = [&](std::size_t g) {
      return out.load[g] + (last[g] == unit.checkpoint ? 0 : shape_.start_s);
    };
    // Seconds of this unit that still fit on g: they and their share of the metric by `end`.
    const auto room = [&](std::size_t g) {
      const double load = load_with(g);
      return std::min(by - load, (end - load) / (1 + metric_share));
    };
    const auto give = [&](std::size_t g, std::int64_t first, std::int64_t items) {
      const TrialPiece piece{part.unit, first, items};
      out.load[g] = load_with(g) + gpu_seconds(unit, piece);
      out.of_gpu[g].push_back(piece);
      last[g] = unit.checkpoint;
    };
    const double item = all / static_cast<double>(unit.items);
    std::int64_t first = part.first, items = part.items;
    while (items > 0) {
      const double left = item * static_cast<double>(items);
      std::size_t tightest = kNone, widest = 0;  // that holds all that is left; with most room
      double tight = 0, wide = -1;
      for (std::size_t g = 0; g < out.load.size(); ++g) {
        const double r = room(g);
        if (r > wide) {
          wide = r;
          widest = g;
        }
        if (r >= left - 1e-9 && (tightest == kNone || r < tight)) {
          tight = r;
          tightest = g;
        }
      }
      if (tightest != kNone) {
        give(unit.split ? tightest : widest, first, items);
        return true;
      }
      if (!unit.split || wide < shape_.least_s || left < 2 * shape_.least_s) return false;
      std::int64_t n = static_cast<std::int64_t>(std::floor(std::min(wide, left - shape_.least_s) / item));
      if (n < 1 || n >= items) return false;
      give(widest, first, n);
      first += n;
      items -= n;
    }
    return true;
  }

  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  const std::vector<EvalUnit>& units_;
  const TrialShape& shape_;
  std::vector<TrialPiece> parts_;
};

// Earlier checkpoints; then what cannot be split, long first; then what can, long metrics first: each is the last of
// its GPU to run when it is placed, so that room for its metric is room at the end.
void sort_parts(const std::vector<EvalUnit>& units, std::vector<TrialPiece>& parts) {
  const auto key = [&](const TrialPiece& p) {
    const EvalUnit& x = units[p.unit];
    return std::tuple(x.checkpoint, x.split, x.split ? -x.metric_s : -x.gpu_s() - x.metric_s, -gpu_seconds(x, p),
                      p.unit);
  };
  std::sort(parts.begin(), parts.end(), [&](const TrialPiece& a, const TrialPiece& b) { return key(a) < key(b); });
}

// A unit whose answers are scored one by one, for long: in parts, of which each is scored by a job of its own.
void add_parts(const EvalUnit& unit, std::size_t u, double bound, double least_s, std::vector<TrialPiece>& out) {
  std::int64_t n = 1;
  if (unit.split && unit.metric_by_item && bound > 0) {
    // Parts in which what each job takes anew is most of it win nothing.
    const double fixed = unit.metric_fixed_s, each = std::max({0.25 * bound - fixed, fixed, 1e-12});
    const double most = std::min(std::round(static_cast<double>(unit.items / unit.metric_least_items)),
                                 std::floor((unit.gpu_s() + unit.metric_s) / least_s));
    n = static_cast<std::int64_t>(std::min(std::ceil((unit.metric_s - fixed) / each * (1 - 1e-9)),
                                           std::min(most, static_cast<double>(unit.items))));
    n = std::max<std::int64_t>(n, 1);
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t begin = unit.items * i / n, end = unit.items * (i + 1) / n;
    out.push_back({u, unit.first + begin, end - begin});
  }
}

// The part of a unit that lasts about `seconds`; at least `least_s` of it stay, or nothing.
TrialPiece cut(const EvalUnit& unit, TrialPiece& from, double seconds, double least_s) {
  const double item = unit.gpu_s() / static_cast<double>(unit.items), all = gpu_seconds(unit, from);
  std::int64_t n = from.items;
  if (unit.split && all > seconds && all >= 2 * least_s)
    n = std::clamp<std::int64_t>(std::llround(std::min(seconds, all - least_s) / item), 1, from.items);
  const TrialPiece piece{from.unit, from.first, n};
  from.first += n;
  from.items -= n;
  return piece;
}

// One trial a checkpoint, or a piece where a trial cannot do several. Long metrics first.
void add_trials(const std::vector<EvalUnit>& units, const TrialShape& shape, std::vector<TrialPiece> pieces,
                std::vector<EvalTrial>& out) {
  std::stable_sort(pieces.begin(), pieces.end(), [&](const TrialPiece& a, const TrialPiece& b) {
    const EvalUnit &x = units[a.unit], &y = units[b.unit];
    if (x.checkpoint != y.checkpoint) return x.checkpoint < y.checkpoint;
    const double m = x.metric_by_item ? metric_seconds(x, a) : x.metric_s;
    const double n = y.metric_by_item ? metric_seconds(y, b) : y.metric_s;
    return m > n;
  });
  for (const TrialPiece& p : pieces) {
    const std::int32_t checkpoint = units[p.unit].checkpoint;
    if (!shape.several || out.empty() || out.back().checkpoint != checkpoint || out.back().pieces.empty())
      out.push_back({checkpoint, {}});
    out.back().pieces.push_back(p);
  }
}

// Where times are uncertain: work of the last checkpoint that is left for later, taken from `parts`. Small units first,
// with metrics that are short enough to come last. It is worth further starts of trials only where GPUs would be idle
// for longer.
void keep_back(const std::vector<EvalUnit>& units, const TrialShape& shape, std::vector<TrialPiece>& parts,
               std::vector<TrialPiece>& kept) {
  const std::int32_t newest = std::max_element(units.begin(), units.end(), [](const EvalUnit& a, const EvalUnit& b) {
                                return a.checkpoint < b.checkpoint;
                              })->checkpoint;
  double total = 0;
  for (const EvalUnit& u : units) total += u.checkpoint == newest ? u.gpu_s() : 0;
  const double share = std::min(0.5, 1.5 * shape.error), of_gpu = share * total / static_cast<double>(shape.gpus);
  if (of_gpu <= 2 * shape.start_s + 0.5 * shape.least_s) return;
  std::vector<TrialPiece> by_size(parts);
  const auto chain = [&](const TrialPiece& p) { return units[p.unit].gpu_s() + units[p.unit].metric_s; };
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](const TrialPiece& a, const TrialPiece& b) { return chain(a) < chain(b); });
  parts.clear();
  double left = share * total;
  for (TrialPiece& p : by_size) {
    const EvalUnit& unit = units[p.unit];
    const bool may = unit.checkpoint == newest && unit.metric_s <= 0.25 * of_gpu &&
                     (unit.split || unit.gpu_s() <= 0.5 * of_gpu) && left > shape.least_s;
    if (may) {
      kept.push_back(cut(unit, p, left, shape.least_s));
      left -= gpu_seconds(unit, kept.back());
    }
    if (p.items > 0) parts.push_back(p);
  }
}

// What was kept back as short trials, shorter and shorter ones (factoring: most of what is left in each round).
void add_tail(const std::vector<EvalUnit>& units, const TrialShape& shape, std::vector<TrialPiece> kept,
              std::vector<EvalTrial>& out) {
  double left = 0;
  for (const TrialPiece& p : kept) left += gpu_seconds(units[p.unit], p);
  while (!kept.empty()) {
    const double size = std::max({shape.least_s, 3 * shape.start_s, 0.7 * left / static_cast<double>(shape.gpus)});
    for (std::int64_t i = 0; i < shape.gpus && !kept.empty(); ++i) {
      EvalTrial trial{units[kept.back().unit].checkpoint, {}};
      double filled = 0;
      while (!kept.empty() && filled < size - shape.least_s / 2) {
        TrialPiece& from = kept.back();  // the largest is last
        trial.pieces.push_back(cut(units[from.unit], from, size - filled, shape.least_s));
        filled += gpu_seconds(units[from.unit], trial.pieces.back());
        if (from.items == 0) kept.pop_back();
        if (!shape.several) break;
      }
      left -= filled;
      out.push_back(std::move(trial));
    }
  }
}

}  // namespace

double gpu_seconds(const EvalUnit& unit, const TrialPiece& piece) {
  return unit.gpu_s() * static_cast<double>(piece.items) / static_cast<double>(unit.items);
}

double metric_seconds(const EvalUnit& unit, const TrialPiece& piece) {
  const double share = static_cast<double>(piece.items) / static_cast<double>(unit.items);
  return unit.metric_fixed_s + (unit.metric_s - unit.metric_fixed_s) * share;
}

double shortest_trial_s(const EvalUnit& unit, const TrialShape& shape) {
  return shape.start_s + (unit.split ? unit.gpu_s() / static_cast<double>(unit.items) : unit.gpu_s());
}

void keep_below_limit(const std::vector<EvalUnit>& units, const TrialShape& shape, std::vector<EvalTrial>& trials) {
  const double most = shape.limit_s - shape.start_s;
  std::vector<std::vector<EvalTrial>> turns;
  for (const EvalTrial& trial : trials) {
    std::size_t turn = 0;
    double filled = 0;
    EvalTrial now{trial.checkpoint, {}};
    const auto end = [&] {
      if (now.pieces.empty()) return;
      if (turns.size() <= turn) turns.emplace_back();
      turns[turn++].push_back(std::exchange(now, {trial.checkpoint, {}}));
      filled = 0;
    };
    for (TrialPiece piece : trial.pieces) {
      const EvalUnit& unit = units[piece.unit];
      while (piece.items > 0) {
        const double seconds = gpu_seconds(unit, piece);
        const bool alone = now.pieces.empty(), fits = filled + seconds <= most * (1 + 1e-9);
        if (!fits && !alone) {
          end();
          continue;
        }
        TrialPiece part = piece;
        if (!fits && unit.split && shortest_trial_s(unit, shape) <= shape.limit_s) {
          const auto parts = static_cast<std::int64_t>(std::ceil(seconds / most));
          part.items = std::max<std::int64_t>(1, piece.items / parts);
        }
        now.pieces.push_back(part);
        filled += gpu_seconds(unit, part);
        piece.first += part.items;
        piece.items -= part.items;
      }
    }
    end();
  }
  if (turns.size() < 2) return;
  trials.clear();
  for (auto& turn : turns) trials.insert(trials.end(), turn.begin(), turn.end());
  std::stable_sort(trials.begin(), trials.end(),
                   [](const EvalTrial& a, const EvalTrial& b) { return a.checkpoint < b.checkpoint; });
}

void one_piece_a_dataset(const std::vector<EvalUnit>& units, std::vector<EvalTrial>& trials) {
  // All items of a unit last alike: how many of them a trial has stays, which ones does not matter.
  std::vector<std::int64_t> next;
  for (const EvalUnit& u : units) next.push_back(u.first);
  std::vector<EvalTrial> out;
  for (const EvalTrial& trial : trials) {
    std::vector<EvalTrial> parted;
    for (const TrialPiece& piece : trial.pieces) {
      const auto alike = [&](const TrialPiece& p) {
        return units[p.unit].dataset == units[piece.unit].dataset && p.unit != piece.unit;
      };
      auto into = std::find_if(parted.begin(), parted.end(), [&](const EvalTrial& t) {
        return std::none_of(t.pieces.begin(), t.pieces.end(), alike);
      });
      if (into == parted.end()) into = parted.insert(into, {trial.checkpoint, {}});
      const auto mine = std::find_if(into->pieces.begin(), into->pieces.end(),
                                     [&](const TrialPiece& p) { return p.unit == piece.unit; });
      if (mine != into->pieces.end()) {
        mine->items += piece.items;
      } else {
        into->pieces.push_back(piece);
      }
    }
    for (EvalTrial& t : parted) {
      for (TrialPiece& p : t.pieces) p.first = std::exchange(next[p.unit], next[p.unit] + p.items);
      out.push_back(std::move(t));
    }
  }
  trials = std::move(out);
}

double MakespanTerms::bound_s() const { return load_s + std::max(longest_s, gpus_s); }
double MakespanTerms::bound_with_cpus_s() const { return load_s + std::max({longest_s, gpus_s, cpu_jobs_s, judge_s}); }

double makespan_bound(const std::vector<EvalUnit>& units, std::int64_t gpus, double load_s) {
  return makespan_terms(units, gpus, 1, {}, load_s).bound_s();
}

MakespanTerms makespan_terms(const std::vector<EvalUnit>& units, std::int64_t gpus, std::int64_t cpu_jobs,
                             const std::vector<std::int64_t>& judge_at_once, double load_s) {
  MakespanTerms t;
  t.load_s = load_s;
  std::vector<double> of_judge(judge_at_once.size(), 0);
  for (const EvalUnit& u : units) {
    const double item = u.gpu_s() / static_cast<double>(u.items);
    const double inference = u.split ? item : u.gpu_s();
    const double metric = u.split && u.metric_by_item ? metric_seconds(u, {0, u.first, 1}) : u.metric_s;
    t.longest_s = std::max(t.longest_s, inference + metric);
    t.gpus_s += u.gpu_s() / static_cast<double>(gpus);
    t.cpu_jobs_s += u.metric_s / static_cast<double>(cpu_jobs);
    if (u.judge < 0 || static_cast<std::size_t>(u.judge) >= of_judge.size()) continue;
    const auto j = static_cast<std::size_t>(u.judge);
    of_judge[j] += u.metric_s / static_cast<double>(judge_at_once[j]);
    if (of_judge[j] > t.judge_s) {
      t.judge_s = of_judge[j];
      t.judge = u.judge;
    }
  }
  return t;
}

std::vector<EvalTrial> plan_trials(const std::vector<EvalUnit>& units, const TrialShape& shape) {
  if (units.empty()) return {};
  std::vector<TrialPiece> parts, kept;
  const double bound = makespan_bound(units, shape.gpus, 0);
  for (std::size_t u = 0; u < units.size(); ++u) add_parts(units[u], u, bound, shape.least_s, parts);
  keep_back(units, shape, parts, kept);
  sort_parts(units, parts);
  const Placement placement(units, shape, parts);
  Placed best, tried;
  // The least x in (low, high] at which `place(x, tried)` succeeds, where it does at `high`; what it gave is in `best`.
  const auto least_of = [&](double low, double high, const auto& place) {
    for (int i = 0; i < 40 && high - low > 1e-4 * high; ++i) {
      const double middle = 0.5 * (low + high);
      if (place(middle)) {
        std::swap(best, tried);
        high = middle;
      } else {
        low = middle;
      }
    }
    return high;
  };
  // By when metrics have to end, if times turn out as believed: as early as anything could, with what starts cost and a
  // margin for those that turn out longer; later if that cannot be held.
  double low = 0, end = bound + (kept.empty() ? 1 : 3) * shape.start_s;
  end /= 1 + 2 * shape.error;
  while (!placement.place(end, end, best)) {
    low = end;
    end = 2 * end + 1;
  }
  if (low > 0) end = least_of(low, end, [&](double x) { return placement.place(x, x, tried); });
  // Where something long decides the end, the rest is balanced below it.
  least_of(0, end, [&](double x) { return placement.place(end, x, tried); });

  std::vector<std::vector<EvalTrial>> of_gpu(best.of_gpu.size());
  for (std::size_t g = 0; g < best.of_gpu.size(); ++g) add_trials(units, shape, best.of_gpu[g], of_gpu[g]);
  std::vector<EvalTrial> trials;
  for (std::size_t turn = 0, before = 1; trials.size() != before || turn == 0; ++turn) {
    before = trials.size();
    for (auto& mine : of_gpu)
      if (turn < mine.size()) trials.push_back(std::move(mine[turn]));
    std::stable_sort(trials.begin() + static_cast<std::ptrdiff_t>(before), trials.end(),
                     [](const EvalTrial& a, const EvalTrial& b) { return a.checkpoint < b.checkpoint; });
  }

  keep_below_limit(units, shape, trials);
  std::vector<EvalTrial> tail;
  add_tail(units, shape, std::move(kept), tail);
  keep_below_limit(units, shape, tail);
  trials.insert(trials.end(), tail.begin(), tail.end());
  if (shape.once) one_piece_a_dataset(units, trials);
  return trials;
}

std::vector<EvalTrial> one_trial_a_unit(const std::vector<EvalUnit>& units) {
  std::vector<EvalTrial> trials;
  for (std::size_t u = 0; u < units.size(); ++u)
    trials.push_back({units[u].checkpoint, {{u, units[u].first, units[u].items}}});
  return trials;
}

std::vector<EvalTrial> size_partition(const std::vector<EvalUnit>& units, std::int64_t max_task_size,
                                      std::int64_t gen_coefficient) {
  struct Chunk {
    std::int64_t size;
    TrialPiece piece;
  };
  std::vector<std::int32_t> checkpoints;
  for (const EvalUnit& u : units) checkpoints.push_back(u.checkpoint);
  std::sort(checkpoints.begin(), checkpoints.end());
  checkpoints.erase(std::unique(checkpoints.begin(), checkpoints.end()), checkpoints.end());
  std::vector<EvalTrial> trials;
  for (const std::int32_t checkpoint : checkpoints) {
    std::vector<Chunk> chunks;
    for (std::size_t u = 0; u < units.size(); ++u) {
      const EvalUnit& unit = units[u];
      if (unit.checkpoint != checkpoint) continue;
      const std::int64_t size = unit.items * gen_coefficient;
      if (size <= max_task_size || !unit.split) {
        chunks.push_back({size, {u, unit.first, unit.items}});
        continue;
      }
      const std::int64_t most = std::max<std::int64_t>(1, max_task_size / gen_coefficient);
      const std::int64_t parts = (unit.items + most - 1) / most, step = (unit.items + parts - 1) / parts;
      for (std::int64_t at = 0; at < unit.items; at += step)
        chunks.push_back({max_task_size, {u, unit.first + at, std::min(step, unit.items - at)}});
    }
    std::stable_sort(chunks.begin(), chunks.end(), [](const Chunk& a, const Chunk& b) { return a.size > b.size; });
    std::int64_t filled = 0;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      if (i == 0 || filled + chunks[i].size > max_task_size) {
        trials.push_back({checkpoint, {}});
        filled = 0;
      }
      trials.back().pieces.push_back(chunks[i].piece);
      filled += chunks[i].size;
    }
  }
  return trials;
}

}  // namespace orrery
