#include "data/jobs.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "base/text_match.h"

namespace orrery {

Outcome outcome_of(std::string_view state) {
  struct Word {
    std::string_view word;
    Outcome outcome;
  };
  // Slurm, AcmeTrace and Helios; Philly (Pass, Killed); Alibaba PAI (Terminated); Kubernetes (Succeeded, Running).
  static constexpr std::array<Word, 32> kWords = {
      {{"completed", Outcome::completed},  {"complete", Outcome::completed},  {"pass", Outcome::completed},
       {"passed", Outcome::completed},     {"succeeded", Outcome::completed}, {"success", Outcome::completed},
       {"terminated", Outcome::completed}, {"finished", Outcome::completed},  {"failed", Outcome::failed},
       {"failure", Outcome::failed},       {"error", Outcome::failed},        {"out_of_memory", Outcome::failed},
       {"oomkilled", Outcome::failed},     {"boot_fail", Outcome::node_fail}, {"node_fail", Outcome::node_fail},
       {"cancelled", Outcome::cancelled},  {"canceled", Outcome::cancelled},  {"killed", Outcome::cancelled},
       {"stopped", Outcome::cancelled},    {"deadline", Outcome::timeout},    {"timeout", Outcome::timeout},
       {"preempted", Outcome::preempted},  {"requeued", Outcome::preempted},  {"evicted", Outcome::preempted},
       {"running", Outcome::active},       {"pending", Outcome::active},      {"suspended", Outcome::active},
       {"completing", Outcome::active},    {"configuring", Outcome::active},  {"waiting", Outcome::active},
       {"ready", Outcome::active},         {"queued", Outcome::active}}};
  const std::string name = lower(state);
  for (const Word& w : kWords)
    if (name == w.word) return w.outcome;
  return Outcome::other;
}

std::int64_t duration_of(const JobTable& jobs, std::size_t r, DurationKind kind) {
  const std::int64_t start = jobs.start_ms[r], end = jobs.end_ms[r], column = jobs.duration_ms[r];
  const std::int64_t queue = jobs.queue_ms[r];
  const bool ran = start != kNoTime && end != kNoTime;
  if (kind == DurationKind::file) return column != kNoTime ? column : ran ? end - start : kNoTime;
  std::int64_t run = kNoTime;
  if (ran) {
    run = end - start;
  } else if (column != kNoTime) {
    const bool waited = jobs.duration_counts_waiting();
    if (!waited)
      run = column;
    else if (queue != kNoTime)
      run = column - queue;
  }
  if (kind == DurationKind::run) return run;
  if (end != kNoTime && jobs.submit_ms[r] != kNoTime) return end - jobs.submit_ms[r];
  return run != kNoTime && queue != kNoTime ? run + queue : kNoTime;
}

RepeatedRows repeated_rows(const JobTable& t, const std::vector<std::size_t>& parts) {
  std::vector<std::pair<std::uint64_t, std::size_t>> rows(t.size());
  for (std::size_t r = 0; r < t.size(); ++r) {
    std::uint64_t h = std::hash<std::string_view>{}(t.id(r));
    const auto mix = [&](std::uint64_t v) {
      h = (h ^ v) * 0x9e3779b97f4a7c15ull;
      h ^= h >> 29;
    };
    for (const auto* times : {&t.submit_ms, &t.start_ms, &t.end_ms, &t.duration_ms, &t.queue_ms})
      mix(static_cast<std::uint64_t>((*times)[r]));
    mix(static_cast<std::uint64_t>(t.gpu_milli[r]));
    for (const auto* names : {&t.user, &t.group, &t.type, &t.state}) mix(raw((*names)[r]));
    rows[r] = {h, r};
  }
  std::sort(rows.begin(), rows.end());
  RepeatedRows out{0, t.size()};
  const auto part = [&](std::size_t r) { return std::upper_bound(parts.begin(), parts.end(), r) - parts.begin(); };
  std::size_t like = 0;  // where the rows equal to this one begin
  for (std::size_t i = 1; i < rows.size(); ++i) {
    if (rows[i].first != rows[i - 1].first) {
      like = i;
      continue;
    }
    ++out.count;
    if (part(rows[i].second) != part(rows[like].second)) out.first = std::min(out.first, rows[i].second);
  }
  return out;
}

void append_jobs(JobTable& a, const JobTable& b) {
  const auto columns = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  columns(a.submit_ms, b.submit_ms);
  columns(a.start_ms, b.start_ms);
  columns(a.end_ms, b.end_ms);
  columns(a.duration_ms, b.duration_ms);
  columns(a.queue_ms, b.queue_ms);
  columns(a.gpu_milli, b.gpu_milli);
  columns(a.cpu_milli, b.cpu_milli);
  columns(a.nodes, b.nodes);
  columns(a.limit_s, b.limit_s);
  const auto names = [&](std::vector<StrId>& to, const std::vector<StrId>& from) {
    std::vector<StrId> known(b.names.size(), StrId{kNone});
    for (const StrId id : from) {
      StrId& mine = known[raw(id)];
      if (raw(mine) == kNone) mine = a.names.intern(b.names.view(id));
      to.push_back(mine);
    }
  };
  names(a.user, b.user);
  names(a.group, b.group);
  names(a.type, b.type);
  names(a.state, b.state);
  names(a.reason, b.reason);
  const auto offset = static_cast<std::uint32_t>(a.ids.size());
  a.ids += b.ids;
  for (const std::uint32_t end : b.id_end) a.id_end.push_back(offset + end);
  a.span_runs += b.span_runs;
  a.span_totals += b.span_totals;
  a.duplicates += b.duplicates;
  a.notes.merge(b.notes);
}

}  // namespace orrery
