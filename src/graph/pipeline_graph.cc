#include "graph/pipeline_graph.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/median.h"
#include "graph/pipeline_waits.h"

namespace orrery {
namespace {

constexpr Ns kClose = 20'000;                // what clocks and recorders are off by
constexpr std::uint32_t kFurthestBack = 64;  // batches

using Key = PipelineModel::LagKey;

// The widest group whose members end, or begin, together.
PipelineScope learn_scope(const PipelineTrace& t, const PipelineProgram& p, std::uint32_t type) {
  std::vector<PipelineScope> scope(t.types.size(), PipelineScope::alone);
  for (const PipelineScope s : {PipelineScope::world, PipelineScope::model, PipelineScope::pipeline,
                                PipelineScope::data, PipelineScope::tensor}) {
    scope[type] = s;
    std::vector<double> apart;  // of what is allowed
    for (const auto& [occurrence, rows] : collectives_of(t, p, scope, type)) {
      if (rows.size() < 2) continue;
      constexpr Ns kMax = std::numeric_limits<Ns>::max(), kMin = std::numeric_limits<Ns>::min();
      Ns first_end = kMax, last_end = kMin, first_start = kMax, last_start = kMin, shortest = kMax;
      for (const std::uint32_t i : rows) {
        const std::uint32_t k = p.rows[i].source;
        first_start = std::min(first_start, t.rows.start[k]);
        last_start = std::max(last_start, t.rows.start[k]);
        first_end = std::min(first_end, t.rows.end[k]);
        last_end = std::max(last_end, t.rows.end[k]);
        shortest = std::min(shortest, t.rows.end[k] - t.rows.start[k]);
      }
      // They end together, or begin together where the recorder leaves the waiting out.
      const double ends =
          static_cast<double>(last_end - first_end) / static_cast<double>(std::max(5 * kClose, shortest / 20));
      apart.push_back(std::min(ends, static_cast<double>(last_start - first_start) / (2.0 * kClose)));
    }
    if (!apart.empty() && median(apart) <= 1) return s;
  }
  return PipelineScope::alone;
}

// ---- order -------------------------------------------------------------------------------------------

// Rows that are communication and run side by side for most of their time were issued together.
void find_batches(const PipelineTrace& t, PipelineProgram& p) {
  for_each_run(p, [&](std::uint32_t a, std::uint32_t b) {
    std::uint32_t batch = 0, begun = a;
    for (std::uint32_t i = a; i < b; ++i) {
      if (i > a) {
        const std::uint32_t x = p.rows[i - 1].source, y = p.rows[i].source;
        const Ns shorter = std::min(t.rows.end[x] - t.rows.start[x], t.rows.end[y] - t.rows.start[y]);
        const bool together = is_transfer(kind_of(t, p.rows[i - 1])) && is_transfer(kind_of(t, p.rows[i])) &&
                              p.rows[i - 1].type != p.rows[i].type && i - begun < 4 &&
                              t.rows.end[x] - t.rows.start[y] > shorter / 2;
        if (!together) ++batch, begun = i;
      }
      p.rows[i].batch = batch;
    }
  });
}

// A later operation waits for an earlier one of another kind if the times say so nearly always.
void learn_order(const PipelineTrace& t, const PipelineProgram& p, PipelineModel& m) {
  std::vector<std::uint32_t> seen(std::size_t{m.types} * m.types, 0), kept(seen);
  for_each_run(p, [&](std::uint32_t a, std::uint32_t b) {
    for (std::uint32_t i = a; i < b; ++i)
      for (std::uint32_t j = i; j-- > a;) {
        if (p.rows[j].batch == p.rows[i].batch) continue;
        if (p.rows[i].batch - p.rows[j].batch > kFurthestBack) break;
        const std::uint32_t x = p.rows[j].source, y = p.rows[i].source;
        const std::size_t pair = std::size_t{p.rows[j].type} * m.types + p.rows[i].type;
        ++seen[pair];
        kept[pair] += t.rows.start[y] >= t.rows.end[x] - std::max(kClose, (t.rows.end[x] - t.rows.start[x]) / 20);
        if (!is_communication(kind_of(t, p.rows[j]))) break;
      }
  });
  m.waits_for.assign(seen.size(), 1);
  for (std::uint32_t x = 0; x < m.types; ++x)
    for (std::uint32_t y = 0; y < m.types; ++y) {
      const std::size_t pair = std::size_t{x} * m.types + y;
      if (is_communication(t.types[x].kind) || is_communication(t.types[y].kind))
        m.waits_for[pair] = kept[pair] * 10 >= seen[pair] * 9;
    }
}

// ---- what is learnt from the times ---------------------------------------------------------------------------------

// Transfer: from the last arrival to the end. Where the recorder let an operation begin when its partners were there,
// that is its whole length.
void learn_transfers(const PipelineTrace& t, PipelineProgram& p, PipelineModel& m) {
  std::vector<std::uint32_t> met(m.types, 0), left(m.types, 0);
  for (const PipelineMeeting& meeting : p.meetings) {
    Ns arrival = std::numeric_limits<Ns>::min();
    for (std::uint32_t k = 0; k < meeting.members; ++k)
      arrival = std::max(arrival, t.rows.start[p.rows[p.members[meeting.first + k]].source]);
    for (std::uint32_t k = 0; k < meeting.members; ++k) {
      PipelineRow& r = p.rows[p.members[meeting.first + k]];
      ++met[r.type];
      if (t.rows.end[r.source] <= arrival && t.rows.start[r.source] < arrival)
        ++left[r.type];  // before the last had arrived: its own length stays
      else
        r.duration = t.rows.end[r.source] - arrival;
    }
  }
  std::uint32_t together = 0;
  for (const PipelineMeeting& meeting : p.meetings) {
    Ns first = std::numeric_limits<Ns>::max(), last = std::numeric_limits<Ns>::min();
    for (std::uint32_t k = 0; k < meeting.members; ++k) {
      const Ns start = t.rows.start[p.rows[p.members[meeting.first + k]].source];
      first = std::min(first, start);
      last = std::max(last, start);
    }
    together += last - first <= 2 * kClose;
  }
  m.starts_together = together * 10 > p.meetings.size() * 9;
  for (std::uint32_t k = 0; k < m.types; ++k)
    m.eager[k] = is_send(t.types[k].kind) && met[k] > 0 && left[k] * 2 > met[k];
  for (PipelineRow& r : p.rows)
    if (m.eager[r.type]) r.duration = t.rows.end[r.source] - t.rows.start[r.source];
}

struct Samples {
  std::vector<Ns> lag;
  std::uint32_t occurrences = 0;
};

void learn_lags(const PipelineTrace& t, const PipelineProgram& p, const std::vector<PipelineWait>& waits,
                PipelineModel& m) {
  const std::uint32_t n = static_cast<std::uint32_t>(p.rows.size());
  std::map<Key, Samples> samples;
  std::vector<std::uint32_t> latest(n, kNone);  // row of `waits` that ended last, measured
  const auto ended = [&](const PipelineWait& w) {
    return w.from == kNone ? t.steps[p.rows[w.row].step].begin : t.rows.end[p.rows[w.from].source];
  };
  for (std::uint32_t k = 0; k < waits.size(); ++k) {
    ++samples[key_of(p, waits[k])].occurrences;
    std::uint32_t& l = latest[waits[k].row];
    if (l == kNone || ended(waits[k]) > ended(waits[l])) l = k;
  }
  std::vector<std::uint8_t> counts(n, 1);  // whether the start says when the operation could
  for (const PipelineMeeting& meeting : p.meetings) {
    Ns arrival = std::numeric_limits<Ns>::min(), free = arrival;
    for (std::uint32_t k = 0; k < meeting.members; ++k) {
      const std::uint32_t i = p.members[meeting.first + k];
      arrival = std::max(arrival, t.rows.start[p.rows[i].source]);
      free = std::max(free, ended(waits[latest[i]]));
    }
    for (std::uint32_t k = 0; k < meeting.members; ++k) {
      const std::uint32_t i = p.members[meeting.first + k];
      counts[i] = t.rows.start[p.rows[i].source] < arrival - kClose || ended(waits[latest[i]]) == free;
    }
  }
  for (std::uint32_t i = 0; i < n; ++i)
    if (counts[i] && latest[i] != kNone)
      samples[key_of(p, waits[latest[i]])].lag.push_back(t.rows.start[p.rows[i].source] - ended(waits[latest[i]]));
  for (auto& [key, s] : samples) {
    if (s.lag.empty()) continue;
    // What rarely decided was near to something else then, and its samples are too long.
    m.lags[key] = {std::max<Ns>(0, median(s.lag)), s.lag.size() * 10 >= s.occurrences};
  }
  // Passes and transfers follow each other differently from what stands at the ends of a step.
  const auto flows = [&](std::uint32_t type) {
    return type < t.types.size() && (is_pass(t.types[type].kind) || is_transfer(t.types[type].kind));
  };
  std::map<Key, std::vector<Ns>> alike;
  for (const auto& [key, lag] : m.lags) {
    if (!lag.sure) continue;
    alike[{kNone, key.from, key.to, key.hand_over}].push_back(lag.value);
    if (flows(key.from) == flows(key.to)) alike[{key.rank, kNone, key.to, key.hand_over}].push_back(lag.value);
  }
  for (auto& [key, values] : alike) {
    std::sort(values.begin(), values.end());
    m.typical[key] = values[(values.size() - 1) / 2];
  }
  // From the last operation to the end of the step.
  std::vector<std::vector<Ns>> tails(t.ranks.size());
  for_each_run(p, [&](std::uint32_t a, std::uint32_t b) {
    Ns last = std::numeric_limits<Ns>::min();
    for (std::uint32_t i = a; i < b; ++i) last = std::max(last, t.rows.end[p.rows[i].source]);
    tails[p.rows[a].rank].push_back(t.steps[p.rows[a].step].end[p.rows[a].rank] - last);
  });
  for (std::uint32_t r = 0; r < tails.size(); ++r)
    if (!tails[r].empty())
      m.lags[{r, PipelineModel::kEnd, PipelineModel::kEnd, false}] = {std::max<Ns>(0, median(tails[r])), true};
}

// Idle time of a rank inside its steps, and how much of it lies behind everything that was waited for.
std::vector<PipelineIdle> measure_idle(const PipelineTrace& t, const PipelineProgram& p, const PipelineModel& m,
                                       const std::vector<PipelineWait>& waits) {
  std::vector<PipelineIdle> out;
  std::vector<Ns> ready(p.rows.size(), std::numeric_limits<Ns>::min());
  const auto could = [&](const PipelineWait& w) {
    const Ns from = w.from == kNone ? t.steps[p.rows[w.row].step].begin : t.rows.end[p.rows[w.from].source];
    return from + m.lag(key_of(p, w));
  };
  for (const PipelineWait& w : waits) ready[w.row] = std::max(ready[w.row], could(w));
  for (const PipelineMeeting& meeting : p.meetings) {
    Ns all = std::numeric_limits<Ns>::min();
    for (std::uint32_t k = 0; k < meeting.members; ++k) all = std::max(all, ready[p.members[meeting.first + k]]);
    for (std::uint32_t k = 0; k < meeting.members; ++k) ready[p.members[meeting.first + k]] = all;
  }
  for_each_run(p, [&](std::uint32_t a, std::uint32_t b) {
    PipelineIdle& q = out.emplace_back(PipelineIdle{p.rows[a].rank, p.rows[a].step, 0, 0});
    const PipelineStep& step = t.steps[p.rows[a].step];
    Ns busy = step.begin;
    for (std::uint32_t i = a; i < b; ++i) {
      const Ns start = t.rows.start[p.rows[i].source];
      if (start > busy) {
        q.idle += start - busy;
        q.unexplained += std::clamp<Ns>(start - ready[i], 0, start - busy);
      }
      busy = std::max(busy, t.rows.end[p.rows[i].source]);
    }
    q.idle += std::max<Ns>(0, step.end[p.rows[a].rank] - busy);
  });
  return out;
}

}  // namespace

Ns PipelineModel::lag(const LagKey& key) const {
  const auto own = lags.find(key);
  if (own != lags.end() && own->second.sure) return own->second.value;
  auto other = typical.find({kNone, key.from, key.to, key.hand_over});
  if (other == typical.end()) other = typical.find({key.rank, kNone, key.to, key.hand_over});
  if (own == lags.end()) return other == typical.end() ? 0 : other->second;
  return other == typical.end() ? own->second.value : std::min(own->second.value, other->second);
}

PipelineRun learn_pipeline(const PipelineTrace& t) {
  PipelineRun out;
  PipelineProgram& p = out.program;
  PipelineModel& m = out.model;
  for (std::uint32_t i = 0; i < t.rows.size(); ++i)
    p.rows.push_back({t.rows.rank[i], t.rows.step[i], t.rows.type[i], t.rows.micro_batch[i], t.rows.chunk[i], 0, i,
                      t.rows.end[i] - t.rows.start[i]});
  m.types = static_cast<std::uint32_t>(t.types.size());
  m.scope.assign(m.types, PipelineScope::alone);
  m.eager.assign(m.types, 0);
  find_batches(t, p);
  number_transfers(t, p);
  for (std::uint32_t k = 0; k < m.types; ++k)
    if (t.types[k].kind == PipelineKind::collective) m.scope[k] = learn_scope(t, p, k);
  learn_order(t, p, m);
  find_meetings(t, m, p);
  learn_transfers(t, p, m);
  const std::vector<PipelineWait> waits = waits_of(t, m, p);
  learn_lags(t, p, waits, m);
  out.idle = measure_idle(t, p, m, waits);
  return out;
}

TraceSet pipeline_rows(const PipelineTrace& t) {
  TraceSet set;
  std::uint32_t lanes = 0;
  const std::vector<std::uint32_t> lane = lanes_of(t, lanes);
  for (std::size_t k = 0; k < t.ranks.size(); ++k) {
    RankTrace& r = set.ranks.emplace_back();
    r.file = t.ranks[k].file;
    r.rank = t.ranks[k].rank;
    r.place = static_cast<std::uint32_t>(k);
    r.world_size = std::int64_t{t.stages} * t.dp * t.tp;
    for (std::uint32_t l = 0; l < lanes; ++l) {
      r.lanes.kind.push_back(l == 0 ? LaneKind::thread : LaneKind::stream);
      r.lanes.pid.push_back(0);
      r.lanes.tid.push_back(l);
      r.lanes.pid_text.push_back(StrId{0});
      r.lanes.tid_text.push_back(StrId{0});
      r.lanes.name.push_back(r.strings.intern(l == 0 ? "steps" : l == 1 ? "compute" : ""));
    }
    for (std::size_t type = 0; type < lane.size(); ++type)
      if (lane[type] > 1) r.lanes.name[lane[type]] = r.strings.intern(t.types[type].name);
  }
  const auto add = [](RankTrace& r, Ns start, Ns end, std::string_view name, std::uint32_t l, OpKind kind) {
    r.ops.start.push_back(start);
    r.ops.dur.push_back(end - start);
    r.ops.name.push_back(r.strings.intern(name));
    r.ops.lane.push_back(LaneId{l});
    r.ops.kind.push_back(kind);
    r.ops.corr.push_back(0);
    r.ops.ext.push_back(0);
    r.ops.extra.push_back(kNone);
  };
  for (std::size_t i = 0; i < t.rows.size(); ++i) {
    RankTrace& r = set.ranks[t.rows.rank[i]];
    ++r.events;
    add(r, t.rows.start[i], t.rows.end[i], t.types[t.rows.type[i]].name, lane[t.rows.type[i]], OpKind::kernel);
  }
  for (std::size_t k = 0; k < set.ranks.size(); ++k) {
    RankTrace& r = set.ranks[k];
    // Names of what only what-ifs make.
    add(r, 0, 0, "backward-weight", 1, OpKind::other);
    for (std::size_t type = 0; type < t.types.size(); ++type)
      add(r, 0, 0, t.types[type].name, lane[type], OpKind::other);
    for (const PipelineStep& s : t.steps)
      add(r, s.begin, std::max(s.begin, s.end[k]), "step " + std::to_string(s.number), 0, OpKind::user_annotation);
    r.window_start = t.steps.empty() ? 0 : t.steps.front().begin;
    r.window_end = r.window_start;
    for (const PipelineStep& s : t.steps) r.window_end = std::max(r.window_end, s.end[k]);
  }
  return set;
}

}  // namespace orrery
