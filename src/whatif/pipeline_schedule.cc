#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "base/median.h"
#include "whatif/pipeline_steps.h"

namespace orrery {
namespace {

PipelineKind kind_of(const PipelineTrace& t, const PipelineRow& r) { return t.types[r.type].kind; }

PipelineKind kind_of(Pass p) {
  return p == Pass::forward    ? PipelineKind::forward
         : p == Pass::backward ? PipelineKind::backward
                               : PipelineKind::weight;
}

// Rows [first, last) of one rank in one step, for each.
template <class Use>
void for_each_run(const std::vector<PipelineRow>& rows, Use&& use) {
  for (std::uint32_t a = 0, b = 0; a < rows.size(); a = b) {
    while (b < rows.size() && rows[b].step == rows[a].step && rows[b].rank == rows[a].rank) ++b;
    use(a, b);
  }
}

std::uint32_t type_of(const PipelineTrace& t, PipelineKind kind) {
  for (std::uint32_t k = 0; k < t.types.size(); ++k)
    if (t.types[k].kind == kind) return k;
  return kNone;
}

// Passes of one rank and step, chunks of a stage together.
struct Work {
  struct Passes {
    Ns length = 0;
    std::uint32_t source = kNone;
  };
  std::array<std::map<std::int32_t, Passes>, 3> of;  // by Pass and micro-batch
  Ns typical(std::size_t pass) const {
    std::vector<Ns> all;
    for (const auto& [micro_batch, p] : of[pass]) all.push_back(p.length);
    return all.empty() ? 0 : median(all);
  }
  // Of a micro-batch; beyond the measured ones, of those in turn.
  const Passes* find(std::size_t pass, std::int32_t micro_batch) const {
    const auto& all = of[pass];
    if (const auto it = all.find(micro_batch); it != all.end()) return &it->second;
    if (all.empty()) return nullptr;
    auto it = all.begin();
    std::advance(it, micro_batch % static_cast<std::int32_t>(all.size()));
    return &it->second;
  }
};

Work work_of(const PipelineTrace& t, const std::vector<PipelineRow>& rows, std::uint32_t a, std::uint32_t b) {
  Work w;
  for (std::uint32_t i = a; i < b; ++i) {
    const PipelineKind k = kind_of(t, rows[i]);
    if (!is_pass(k)) continue;
    Work::Passes& p = w.of[k == PipelineKind::forward ? 0 : k == PipelineKind::backward ? 1 : 2][rows[i].micro_batch];
    p.length += rows[i].duration;
    if (p.source == kNone) p.source = rows[i].source;
  }
  return w;
}

// What a stage's pass takes beyond those of the stages in the middle, by stage and pass.
std::vector<std::array<Ns, 3>> extras(const PipelineTrace& t, const std::vector<PipelineRow>& rows) {
  std::vector<std::array<std::vector<Ns>, 3>> seen(static_cast<std::size_t>(t.stages));
  for_each_run(rows, [&](std::uint32_t a, std::uint32_t b) {
    const Work w = work_of(t, rows, a, b);
    for (std::size_t pass = 0; pass < 3; ++pass)
      if (!w.of[pass].empty())
        seen[static_cast<std::size_t>(t.ranks[rows[a].rank].pp)][pass].push_back(w.typical(pass));
  });
  std::vector<std::array<Ns, 3>> out(seen.size(), {0, 0, 0});
  for (std::size_t pass = 0; pass < 3; ++pass) {
    std::vector<Ns> middle, all;
    for (std::size_t s = 0; s < seen.size(); ++s) {
      if (seen[s][pass].empty()) continue;
      all.push_back(median(seen[s][pass]));
      if (s > 0 && s + 1 < seen.size()) middle.push_back(all.back());
    }
    if (all.empty()) continue;
    const Ns usual = middle.empty() ? *std::min_element(all.begin(), all.end()) : median(middle);
    for (const std::size_t s : {std::size_t{0}, seen.size() - 1})
      if (!seen[s][pass].empty()) out[s][pass] = std::max<Ns>(0, median(seen[s][pass]) - usual);
  }
  return out;
}

// What the largest run has; fewer than `micro_batches` say: their numbers mean nothing.
std::int64_t most_forwards(const PipelineTrace& t, const std::vector<PipelineRow>& rows) {
  std::int64_t most = 0;
  for_each_run(rows, [&](std::uint32_t a, std::uint32_t b) {
    most = std::max<std::int64_t>(most, std::count_if(rows.begin() + a, rows.begin() + b, [&](const PipelineRow& r) {
                                    return kind_of(t, r) == PipelineKind::forward;
                                  }));
  });
  return most;
}

std::int32_t stages_there(const PipelineTrace& t) {
  std::vector<std::int32_t> stages;
  for (const PipelineRank& r : t.ranks) stages.push_back(r.pp);
  std::sort(stages.begin(), stages.end());
  return static_cast<std::int32_t>(std::unique(stages.begin(), stages.end()) - stages.begin());
}

}  // namespace

Result<PipelineSchedule> parse_schedule(const std::string& text) {
  PipelineSchedule s;
  if (text == "1f1b") return s;
  if (text == "zero-bubble") {
    s.kind = ScheduleKind::zero_bubble;
    return s;
  }
  constexpr std::string_view kInterleaved = "interleaved:";
  if (text.starts_with(kInterleaved)) {
    const char* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data() + kInterleaved.size(), end, s.chunks);
    if (error == std::errc() && at == end && s.chunks >= 1 && s.chunks <= 1024) {
      s.kind = s.chunks == 1 ? ScheduleKind::one_f_one_b : ScheduleKind::interleaved;
      return s;
    }
  }
  return fail("not a schedule: " + text, "--schedule", "1f1b, interleaved:V (V chunks a stage) or zero-bubble");
}

std::optional<PipelineSchedule> recognise_schedule(const PipelineTrace& t, const PipelineProgram& p) {
  if (t.micro_batches < 1 || stages_there(t) != t.stages ||
      most_forwards(t, p.rows) != std::int64_t{t.micro_batches} * t.chunks)
    return std::nullopt;
  PipelineSchedule s{t.chunks > 1                                ? ScheduleKind::interleaved
                     : type_of(t, PipelineKind::weight) != kNone ? ScheduleKind::zero_bubble
                                                                 : ScheduleKind::one_f_one_b,
                     t.chunks, t.micro_batches};
  const auto schedule = make_schedule(s.kind, t.stages, s.chunks, s.micro_batches);
  if (!schedule) return std::nullopt;
  bool same = true;
  std::uint32_t runs = 0;
  for_each_run(p.rows, [&](std::uint32_t a, std::uint32_t b) {
    if (!same || ++runs > 1000) return;  // the steps of a job are alike
    const std::vector<Slot>& slots = schedule->stage[static_cast<std::size_t>(t.ranks[p.rows[a].rank].pp)];
    auto slot = slots.begin();
    for (std::uint32_t i = a; i < b && same; ++i) {
      const PipelineRow& r = p.rows[i];
      if (!is_pass(kind_of(t, r))) continue;
      slot = std::find_if(slot, slots.end(), [](const Slot& x) { return x.is_pass; });
      same = slot != slots.end() && kind_of(slot->pass) == kind_of(t, r) && slot->micro_batch == r.micro_batch &&
             slot->chunk == r.chunk;
      if (same) ++slot;
    }
    same = same && std::none_of(slot, slots.end(), [](const Slot& x) { return x.is_pass; });
  });
  return same && runs > 0 ? std::optional(s) : std::nullopt;
}

Result<Rescheduled> reschedule(const PipelineTrace& t, const PipelineModel& m, const PipelineProgram& base,
                               const PipelineSchedule& to) {
  const std::string where = fmt::format("{}{}, {} micro-batches", name_of(to.kind),
                                        to.chunks > 1 ? ":" + std::to_string(to.chunks) : "", to.micro_batches);
  if (const std::int32_t there = stages_there(t); there != t.stages)
    return fail(fmt::format("only {} of {} stages are in the input", there, t.stages), where,
                "give the files of all stages");
  if (most_forwards(t, base.rows) != std::int64_t{t.micro_batches} * t.chunks)
    return fail(
        fmt::format("no rank has the forward passes of {} micro-batches through {} chunks: which is which is not "
                    "known",
                    t.micro_batches, t.chunks),
        where);
  // two passes a chunk and micro-batch, on every rank and step, each with its transfers
  constexpr double kMostOperations = 20e6;
  const double operations = 4.0 * to.micro_batches * to.chunks * static_cast<double>(t.ranks.size()) *
                            static_cast<double>(std::max<std::size_t>(t.steps.size(), 1));
  if (operations > kMostOperations)
    return fail(fmt::format("too large to be put together: some {:.0f} million operations, more than {:.0f} million",
                            operations / 1e6, kMostOperations / 1e6),
                where, "fewer micro-batches");
  const auto schedule = make_schedule(to.kind, t.stages, to.chunks, to.micro_batches);
  if (!schedule) {
    Error e = schedule.error();
    if (e.where.empty()) e.where = where;
    return tl::unexpected(e);
  }

  Rescheduled out{t, {}, {}};
  out.trace.chunks = to.chunks;
  out.trace.micro_batches = to.micro_batches;
  const bool had_weight = type_of(t, PipelineKind::weight) != kNone;
  if (to.kind == ScheduleKind::zero_bubble && !had_weight)
    out.trace.types.push_back({"backward-weight", PipelineKind::weight});
  std::map<PipelineKind, std::uint32_t> types;
  for (const PipelineKind k :
       {PipelineKind::forward, PipelineKind::backward, PipelineKind::weight, PipelineKind::send_forward,
        PipelineKind::recv_forward, PipelineKind::send_backward, PipelineKind::recv_backward})
    types[k] = type_of(out.trace, k);
  if (types[PipelineKind::forward] == kNone || types[PipelineKind::backward] == kNone)
    return fail("forward or backward passes are not recorded", where);

  const std::vector<std::array<Ns, 3>> extra = extras(t, base.rows);
  // Typical transfers: of the rank in the step, of all in the step, of all.
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::vector<Ns>> transfers;
  if (t.has_transfers)
    for (const PipelineRow& r : base.rows)
      if (is_transfer(kind_of(t, r)))
        for (const std::uint32_t rank : {r.rank, kNone})
          for (const std::uint32_t type : {r.type, kNone}) transfers[{r.step, rank, type}].push_back(r.duration);
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, Ns> typical;
  for (const auto& [key, all] : transfers) typical[key] = median(all);

  for_each_run(base.rows, [&](std::uint32_t a, std::uint32_t b) {
    const std::uint32_t rank = base.rows[a].rank, step = base.rows[a].step;
    const auto stage = static_cast<std::size_t>(t.ranks[rank].pp);
    const Work work = work_of(t, base.rows, a, b);
    std::vector<PipelineRow>& rows = out.program.rows;
    if (work.of[0].empty() || work.of[1].empty()) {  // a rank without passes keeps what it has
      rows.insert(rows.end(), base.rows.begin() + a, base.rows.begin() + b);
      return;
    }
    std::uint32_t batch = 0;
    const auto add = [&](PipelineRow r) {
      r.rank = rank;
      r.step = step;
      r.batch = batch;
      rows.push_back(r);
    };
    const auto is_other = [&](const PipelineRow& r) { return !is_pass(kind_of(t, r)) && !is_transfer(kind_of(t, r)); };
    std::uint32_t i = a;
    for (; i < b && is_other(base.rows[i]); ++i, ++batch) add(base.rows[i]);

    const auto part = [&](std::size_t pass, std::int32_t chunk, Ns whole) {
      const Ns apart = std::min(whole, extra[stage][pass]), share = (whole - apart) / to.chunks;
      Ns length = chunk + 1 == to.chunks ? whole - apart - share * (to.chunks - 1) : share;
      const std::int32_t home = stage + 1 == extra.size() ? to.chunks - 1 : 0;  // of what only the ends have
      return chunk == home ? length + apart : length;
    };
    for (const Slot& slot : schedule->stage[stage]) {
      PipelineRow r;
      if (slot.is_pass) {
        const std::size_t measured = slot.pass == Pass::weight && !had_weight ? 1 : static_cast<std::size_t>(slot.pass);
        const Work::Passes* p = work.find(measured, slot.micro_batch);
        Ns whole = p == nullptr ? 0 : p->length;
        Ns length = part(measured, slot.chunk, whole);
        if (to.kind == ScheduleKind::zero_bubble && !had_weight && slot.pass != Pass::forward)
          length = slot.pass == Pass::weight ? length / 2 : length - length / 2;
        if (to.kind != ScheduleKind::zero_bubble && had_weight && slot.pass == Pass::backward)
          if (const Work::Passes* w = work.find(2, slot.micro_batch)) length += part(2, slot.chunk, w->length);
        r.type = types[kind_of(slot.pass)];
        r.micro_batch = slot.micro_batch;
        r.chunk = slot.chunk;
        r.duration = length;
        if (p != nullptr && (slot.pass != Pass::weight || had_weight)) r.source = p->source;
        add(r);
        ++batch;
        continue;
      }
      if (!t.has_transfers) continue;
      bool any = false;
      for (const Transfer& x : slot.transfers) {
        const PipelineKind k = x.forward ? (x.send ? PipelineKind::send_forward : PipelineKind::recv_forward)
                                         : (x.send ? PipelineKind::send_backward : PipelineKind::recv_backward);
        r.type = types[k];
        if (r.type == kNone) continue;
        r.micro_batch = x.micro_batch;
        r.chunk = x.chunk;
        r.duration = 0;
        for (const auto& [of_rank, of_type] :
             {std::pair{rank, r.type}, std::pair{kNone, r.type}, std::pair{kNone, kNone}})
          if (const auto it = typical.find({step, of_rank, of_type}); it != typical.end()) {
            r.duration = it->second;
            break;
          }
        add(r);
        any = true;
      }
      batch += any;
    }
    for (; i < b; ++i)
      if (is_other(base.rows[i])) {
        add(base.rows[i]);
        ++batch;
      }
  });
  find_meetings(out.trace, m, out.program);
  out.changed.nodes = out.program.rows.size();
  return out;
}

}  // namespace orrery
