#include "importers/jobs_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/json_text.h"
#include "base/number_text.h"

namespace orrery {
namespace {

constexpr std::int32_t kMostGpus = 1'000'000;  // of one job: beyond, the number is something else
constexpr std::int64_t kDayMs = 86'400'000;
constexpr std::int64_t kRealMs = 631'152'000'000;      // 1990: seconds before it count from the begin of a trace
constexpr std::int64_t kLatestMs = 4'102'444'800'000;  // 2100: beyond, a date stands for "never"
constexpr std::int64_t kMostSpanMs = std::int64_t{1'000'000'000} * 1000;  // 31 years

std::uint64_t mix(std::uint64_t h, std::uint64_t v) {
  h = (h ^ v) * 0x9e3779b97f4a7c15ull;
  return h ^ (h >> 29);
}

}  // namespace

int JobHeader::find(std::initializer_list<std::string_view> any) const {
  for (const std::string_view name : any)
    for (std::size_t i = 0; i < names.size(); ++i)
      if (names[i] == name) return static_cast<int>(i);
  return -1;
}

bool JobHeader::has_all(std::initializer_list<std::string_view> all) const {
  return std::all_of(all.begin(), all.end(), [&](std::string_view name) { return find({name}) >= 0; });
}

JobRows::JobRows(JobTable& table, std::string label, const JobForm& form, const JobImportOptions& options)
    : t_(table),
      label_(std::move(label)),
      form_(form),
      times_(options.time_zone_s),
      zone_given_(options.time_zone_given) {
  t_.utc_offset_s = options.time_zone_s;
  t_.relative_times = form.relative_times;
  hashes_.resize(1 << 12);
}

void JobRows::bad(std::uint64_t line, std::string_view why, std::string_view value) {
  if (bad_++ != 0) return;
  first_bad_ = fmt::format("{}:{}: {}", label_, line, why);
  if (!value.empty()) first_bad_ += ": " + quote_for_people(value, 60);
}

void JobRows::absurd(std::string_view text, std::uint64_t line, std::int64_t& ms) {
  if (absurd_times_++ == 0) first_absurd_ = fmt::format("{}:{}: {}", label_, line, quote_for_people(text, 40));
  ms = kNoTime;
}

bool JobRows::time(JobField f, const JobRecord& record, std::uint64_t line, std::int64_t& ms) {
  ms = kNoTime;
  const std::string_view text = record[f];
  if (text.empty()) return true;
  switch (times_.read(text, ms)) {
    case TimeReader::State::ok:
      if (ms < -kDayMs || ms >= kLatestMs) absurd(text, line, ms);
      return true;
    case TimeReader::State::none:
      ms = kNoTime;
      return true;
    case TimeReader::State::bad:
      break;
  }
  bad(line, "not a time", text);
  return false;
}

bool JobRows::span(JobField f, const JobRecord& record, std::uint64_t line, std::int64_t& ms) {
  ms = kNoTime;
  const std::string_view text = record[f];
  if (is_missing(text)) return true;
  const bool clock = text.find(':') != std::string_view::npos;
  if (clock ? !read_clock(text, ms) : read_scaled(text, 3, ms) != NumberState::ok) {
    bad(line, f == JobField::queue ? "not a waiting time" : "not a duration", text);
    return false;
  }
  if (ms < 0 || ms > kMostSpanMs) {
    bad(line, f == JobField::queue ? "a waiting time that cannot be" : "a duration that cannot be", text);
    return false;
  }
  return true;
}

bool JobRows::count(JobField f, int scale, const JobRecord& record, std::uint64_t line, std::int32_t& milli) {
  milli = 0;
  const std::string_view text = record[f];
  if (text.empty()) return true;
  if (text.size() == 1 && text[0] >= '0' && text[0] <= '9' && scale == 3) {
    milli = (text[0] - '0') * 1000;
    return true;
  }
  if (is_missing(text)) return true;
  std::int64_t v = 0;
  if (read_scaled(text, scale, v) == NumberState::ok && v >= 0 && v <= std::int64_t{kMostGpus} * 1000) {
    milli = static_cast<std::int32_t>(v);
    return true;
  }
  bad(line,
      f == JobField::gpus   ? "not a number of GPUs"
      : f == JobField::cpus ? "not a number of CPUs"
                            : "not a number of nodes",
      text);
  return false;
}

void JobRows::remember(std::uint64_t hash, std::uint64_t line) {
  hash |= 1;
  __builtin_prefetch(&hashes_[hash & (hashes_.size() - 1)], 1);
  auto& slot = later_[later_count_++ % later_.size()];
  if (later_count_ > later_.size()) look_up(slot.first, slot.second);
  slot = {hash, line};
}

void JobRows::look_up(std::uint64_t hash, std::uint64_t line) {
  std::size_t at = hash & (hashes_.size() - 1);
  for (; hashes_[at] != 0; at = (at + 1) & (hashes_.size() - 1))
    if (hashes_[at] == hash) {
      if (t_.duplicates++ == 0) first_duplicate_ = fmt::format("{}:{}", label_, line);
      return;
    }
  hashes_[at] = hash;
  if (++hashed_ * 2 <= hashes_.size()) return;
  std::vector<std::uint64_t> old(hashes_.size() * 4);
  old.swap(hashes_);
  for (const std::uint64_t h : old) {
    if (h == 0) continue;
    std::size_t i = h & (hashes_.size() - 1);
    while (hashes_[i] != 0) i = (i + 1) & (hashes_.size() - 1);
    hashes_[i] = h;
  }
}

void JobRows::add(const JobRecord& r, std::uint64_t line) {
  using F = JobField;
  std::int64_t submit = 0, start = 0, end = 0, duration = 0, queue = 0, limit = 0;
  std::int32_t gpus = 0, cpus = 0, nodes_milli = 0;
  if (!time(F::submit, r, line, submit) || !time(F::start, r, line, start) || !time(F::end, r, line, end)) return;
  if (!span(F::duration, r, line, duration) || !span(F::queue, r, line, queue)) return;
  if (!count(F::gpus, form_.gpu_scale, r, line, gpus) || !count(F::cpus, form_.cpu_scale, r, line, cpus)) return;
  if (!count(F::nodes, 3, r, line, nodes_milli)) return;
  // The zero of a clock beside real times stands for "not yet".
  if (std::max({submit, start, end}) > kRealMs)
    for (const auto& [field, at] : {std::pair{F::submit, &submit}, {F::start, &start}, {F::end, &end}})
      if (*at != kNoTime && *at <= kDayMs) absurd(r[field], line, *at);
  if (start != kNoTime && end != kNoTime && end < start) {
    // Clocks set back by an hour (or half of one, or two) between start and end.
    const std::int64_t back = duration > 0 ? start + duration - end : 0;
    const auto by = [&](std::int64_t ms) { return std::abs(back - ms) <= 1000; };
    if (times_.saw_zone() || (!by(1'800'000) && !by(3'600'000) && !by(7'200'000)))
      return bad(line, "it ends before it starts", r[F::end]);
    if (set_back_++ == 0)
      first_set_back_ = fmt::format("{}:{}: {} to {}", label_, line, quote_for_people(r[F::start], 30),
                                    quote_for_people(r[F::end], 30));
    end = start + duration;
  }
  std::string_view state_text = r[F::state];
  if (const auto by = state_text.find(" by "); by != std::string_view::npos) state_text = state_text.substr(0, by);
  if (duration == kNoTime && start == kNoTime && submit == kNoTime && outcome_of(state_text) != Outcome::active)
    return bad(line, "neither times nor a duration");
  gpus_missing_ += is_missing(r[F::gpus]);
  // Limits are of interest to simulations alone: what is not a number ("UNLIMITED") is none.
  if (!r[F::limit].empty() && read_int(r[F::limit], limit) != NumberState::ok) limit = 0;

  if (queue == kNoTime && start != kNoTime && submit != kNoTime) {
    queue = start - submit;
    if (queue < 0) {
      if (early_starts_++ == 0) first_early_ = fmt::format("{}:{}: starts {} s early", label_, line, -queue / 1000);
      queue = 0;
    }
  }
  if (start == kNoTime && submit != kNoTime && queue != kNoTime) start = submit + queue;
  if (end != kNoTime && duration != kNoTime) {  // a second of rounding
    const auto near = [&](std::int64_t from) { return from != kNoTime && std::abs(end - from - duration) <= 1000; };
    const bool run = near(start), total = near(submit);
    t_.span_runs += run && !total;
    t_.span_totals += total && !run;
  }

  const StrId state = t_.names.intern(state_text);
  if (raw(state) >= known_state_.size()) known_state_.resize(raw(state) + 64);
  if (!known_state_[raw(state)]) {
    known_state_[raw(state)] = true;
    if (!state_text.empty() && outcome_of(state_text) == Outcome::other) {
      if (unknown_states_++ == 0)
        first_unknown_ = fmt::format("{}:{}: {}", label_, line, quote_for_people(state_text, 60));
    }
  }
  const StrId user = t_.names.intern(r[F::user]), group = t_.names.intern(r[F::group]);
  const StrId type = t_.names.intern(r[F::type]), reason = t_.names.intern(r[F::reason]);

  std::uint64_t h = std::hash<std::string_view>{}(r[F::id]);
  for (const std::int64_t v : {submit, start, end, duration, queue}) h = mix(h, static_cast<std::uint64_t>(v));
  h = mix(h, (std::uint64_t{raw(user)} << 32) ^ static_cast<std::uint64_t>(gpus));
  h = mix(h, (std::uint64_t{raw(state)} << 40) ^ (std::uint64_t{raw(type)} << 20) ^ raw(group));
  remember(h, line);

  t_.submit_ms.push_back(submit);
  t_.start_ms.push_back(start);
  t_.end_ms.push_back(end);
  t_.duration_ms.push_back(duration);
  t_.queue_ms.push_back(queue);
  t_.gpu_milli.push_back(gpus);
  t_.cpu_milli.push_back(cpus);
  t_.nodes.push_back(nodes_milli / 1000);
  t_.limit_s.push_back(static_cast<std::int32_t>(std::clamp<std::int64_t>(limit, 0, 2'000'000'000)));
  t_.user.push_back(user);
  t_.group.push_back(group);
  t_.type.push_back(type);
  t_.state.push_back(state);
  t_.reason.push_back(reason);
  if (t_.ids.size() + r[F::id].size() < 0xffffffffu) t_.ids += r[F::id];
  t_.id_end.push_back(static_cast<std::uint32_t>(t_.ids.size()));
}

void JobRows::finish() {
  for (std::size_t i = later_count_ - std::min(later_count_, later_.size()); i < later_count_; ++i)
    look_up(later_[i % later_.size()].first, later_[i % later_.size()].second);
  std::vector<std::uint64_t>().swap(hashes_);
  t_.notes.add("bad-row", Severity::data_loss, bad_, first_bad_, "rows that cannot be read are in no table");
  t_.notes.add("duplicate-row", Severity::info, t_.duplicates, first_duplicate_,
               "equal to an earlier row in all that is kept; counted as it stands");
  t_.notes.add("absurd-time", Severity::warning, absurd_times_, first_absurd_,
               "before 1970, from 2100 on, or zero beside real times: taken as unknown");
  t_.notes.add("clock-set-back", Severity::warning, set_back_, first_set_back_,
               "it ends before it starts by the clock on the wall: the end is start and duration");
  t_.notes.add("start-before-submit", Severity::warning, early_starts_, first_early_, "waiting taken as zero");
  t_.notes.add("unknown-state", Severity::warning, unknown_states_, first_unknown_,
               "shown under its own name; taken neither for a success nor for a failure");
  if (form_[JobField::gpus] >= 0)
    t_.notes.add("gpus-missing", Severity::info, gpus_missing_, label_, "no number of GPUs: taken for CPU jobs");
  if (times_.saw_zone() && !zone_given_) t_.utc_offset_s = times_.offset_s();
  if (times_.saw_local() && !times_.saw_zone() && !zone_given_)
    t_.notes.add("time-zone-assumed", Severity::info, 1, label_,
                 "times without a zone are taken as UTC; --time-zone says otherwise");
  if (times_.saw_seconds() && !times_.saw_local() && !times_.saw_zone() && !t_.submit_ms.empty()) {
    // Seconds that lie before 1990 do not count from 1970.
    std::int64_t last = 0;
    for (const auto* column : {&t_.submit_ms, &t_.start_ms})
      for (const std::int64_t v : *column) last = std::max(last, v);
    if (last < kRealMs) t_.relative_times = true;
  }
}

}  // namespace orrery
