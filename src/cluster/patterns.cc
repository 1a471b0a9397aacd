#include "cluster/patterns.h"

#include <algorithm>

namespace orrery {
namespace {

constexpr std::int64_t kHourMs = 3'600'000, kDay = 24;
constexpr std::int64_t kMostHours = 24 * 366 * 40;  // forty years: beyond, times are something else

std::int64_t hour_of(std::int64_t ms) { return ms >= 0 ? ms / kHourMs : -((-ms + kHourMs - 1) / kHourMs); }
std::int64_t day_of(std::int64_t hour) { return hour >= 0 ? hour / kDay : -((-hour + kDay - 1) / kDay); }

}  // namespace

Patterns patterns(const JobTable& t) {
  Patterns p;
  p.cluster = t.cluster;
  p.utc_offset_s = t.utc_offset_s;
  p.relative = t.relative_times;
  const std::int64_t offset = std::int64_t{t.utc_offset_s} * 1000;
  std::int64_t first = kNoTime, last = kNoTime;
  for (const auto* column : {&t.submit_ms, &t.start_ms, &t.end_ms})
    for (const std::int64_t ms : *column) {
      if (ms == kNoTime) continue;
      const std::int64_t h = hour_of(ms + offset);
      if (first == kNoTime || h < first) first = h;
      if (last == kNoTime || h > last) last = h;
    }
  if (first == kNoTime || last - first > kMostHours) return p;
  p.first_day = day_of(first);
  const std::int64_t begin = p.first_day * kDay;  // hours are counted from the begin of the first day
  const auto n = static_cast<std::size_t>((day_of(last) - p.first_day + 1) * kDay);
  std::vector<HourRow> hours(n);
  std::vector<double> whole(n + 1);  // changes of the GPUs that work through whole hours
  for (std::size_t r = 0; r < t.size(); ++r) {
    const double gpus = t.gpu_milli[r] / 1000.0;
    if (t.submit_ms[r] != kNoTime) {
      HourRow& h = hours[static_cast<std::size_t>(hour_of(t.submit_ms[r] + offset) - begin)];
      ++(t.gpu_milli[r] != 0 ? h.gpu_jobs : h.cpu_jobs);
    }
    const std::int64_t run = duration_of(t, r, DurationKind::run);
    if (gpus == 0 || t.start_ms[r] == kNoTime || run == kNoTime || run <= 0) continue;
    const std::int64_t from = t.start_ms[r] + offset - begin * kHourMs;
    const std::int64_t to = std::min(from + run, static_cast<std::int64_t>(n) * kHourMs);
    if (to <= from) continue;
    const std::int64_t a = from / kHourMs, b = (to - 1) / kHourMs;
    const auto share = [&](std::int64_t ms) { return gpus * static_cast<double>(ms) / static_cast<double>(kHourMs); };
    if (a == b) {
      hours[static_cast<std::size_t>(a)].gpus += share(to - from);
      continue;
    }
    hours[static_cast<std::size_t>(a)].gpus += share((a + 1) * kHourMs - from);
    hours[static_cast<std::size_t>(b)].gpus += share(to - b * kHourMs);
    whole[static_cast<std::size_t>(a + 1)] += gpus;
    whole[static_cast<std::size_t>(b)] -= gpus;
  }
  double working = 0;
  std::array<double, 24> of_day{};
  std::array<double, 168> of_week{};
  p.days.resize(n / kDay);
  for (std::size_t h = 0; h < n; ++h) {
    working += whole[h];
    const std::size_t day = h / kDay;
    // 1970-01-01 was a Thursday.
    const std::int64_t weekday = ((p.first_day + static_cast<std::int64_t>(day) + 3) % 7 + 7) % 7;
    const auto of = static_cast<std::size_t>(weekday * kDay) + h % kDay;
    of_day[h % kDay] += 1;
    of_week[of] += 1;
    for (HourRow* row : {&p.hours[h % kDay], &p.week[of], &p.days[day]}) {
      row->gpu_jobs += hours[h].gpu_jobs;
      row->cpu_jobs += hours[h].cpu_jobs;
      row->gpus += std::max(0.0, hours[h].gpus + working);
    }
  }
  for (std::size_t h = 0; h < p.hours.size(); ++h) p.hours[h].gpus /= std::max(1.0, of_day[h]);
  for (std::size_t h = 0; h < p.week.size(); ++h) p.week[h].gpus /= std::max(1.0, of_week[h]);
  for (HourRow& d : p.days) d.gpus /= static_cast<double>(kDay);
  return p;
}

}  // namespace orrery
