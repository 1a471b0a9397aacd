// What the page of `orrery jobs` draws.
#include "reports/jobs_charts.h"

#include <algorithm>
#include <map>

#include "reports/jobs.h"

namespace orrery {
namespace {

std::vector<double> shares(const std::uint64_t* counts, std::size_t n, std::uint64_t all) {
  std::vector<double> y;
  for (std::size_t k = 0; k < n; ++k)
    y.push_back(all == 0 ? 0 : 100 * static_cast<double>(counts[k]) / static_cast<double>(all));
  return y;
}

std::vector<double> thresholds(std::size_t n) {
  std::vector<double> x;
  for (std::size_t k = 0; k < n; ++k) x.push_back(static_cast<double>(std::int64_t{1} << k));
  return x;
}

template <std::size_t N>
ChartSeries cdf(const std::string& name, const TypeStats& t, std::array<std::uint64_t, N> TypeStats::*counts,
                Spread TypeStats::*spread) {
  return {name, thresholds(N), shares((t.*counts).data(), N, (t.*spread).n)};
}

// One chart of two bars a name: share of jobs, share of GPU time.
Chart two_shares(const std::string& title, const JobStats& c, const std::vector<Share>& list) {
  Chart chart{.kind = Chart::Kind::bars, .title = title};
  chart.x_title = "% of the GPU jobs, and of their GPU time";
  chart.series = {{"jobs", {}, {}}, {"GPU time", {}, {}}};
  for (std::size_t i = 0; i < std::min<std::size_t>(list.size(), 12); ++i) {
    chart.labels.push_back(list[i].name);
    chart.series[0].y.push_back(100 * static_cast<double>(list[i].count) / static_cast<double>(c.gpu_jobs));
    chart.series[1].y.push_back(c.gpu_time > 0 ? 100 * gpu_seconds(list[i].time) / gpu_seconds(c.gpu_time) : 0);
  }
  return chart;
}

ChartBox box(const std::string& label, const Spread& s) { return {label, s.low, s.p25, s.p50, s.p75, s.high}; }

void of_cluster(const JobStats& c, const FailureStats& f, const Patterns& p, std::vector<Chart>& out) {
  const std::string of = ", " + c.cluster;
  out.push_back(two_shares("By type" + of, c, c.types));
  out.push_back(two_shares("By state" + of, c, c.states));
  Chart duration{.kind = Chart::Kind::lines, .title = "Duration by type" + of};
  duration.x_title = "s, at most";
  duration.y_title = "% of GPU jobs";
  duration.log_x = true;
  Chart queue = duration;
  queue.title = "Waiting by type" + of;
  Chart gpus{.kind = Chart::Kind::boxes, .title = "GPUs of a job by type" + of};
  gpus.x_title = "GPUs (quartiles, whiskers within 1.5 of their distance)";
  gpus.log_x = true;
  Chart lasts = gpus;
  lasts.title = "Duration by type" + of;
  lasts.x_title = "s (quartiles, whiskers within 1.5 of their distance)";
  for (std::size_t i = 0; i < std::min<std::size_t>(c.by_type.size(), 8); ++i) {
    const TypeStats& t = c.by_type[i];
    duration.series.push_back(cdf(t.name, t, &TypeStats::duration_counts, &TypeStats::duration_s));
    if (t.queue_s.n != 0) queue.series.push_back(cdf(t.name, t, &TypeStats::queue_counts, &TypeStats::queue_s));
    gpus.boxes.push_back(box(t.name, t.gpus));
    if (t.duration_s.n != 0) lasts.boxes.push_back(box(t.name, t.duration_s));
  }
  out.push_back(std::move(duration));
  if (!queue.series.empty()) out.push_back(std::move(queue));
  out.push_back(std::move(gpus));
  out.push_back(std::move(lasts));
  Chart size{.kind = Chart::Kind::lines, .title = "Size" + of};
  size.x_title = "GPUs of a job, at most";
  size.y_title = "%";
  size.log_x = true;
  size.series = {{"of the GPU jobs", {}, {}}, {"of their GPU time", {}, {}}};
  std::uint64_t jobs = 0;
  GpuTime time = 0;
  for (std::size_t g = 1; g < c.by_gpus.size(); ++g) {
    jobs += c.by_gpus[g].count;
    time += c.by_gpus[g].time;
    if (c.by_gpus[g].count == 0 && g + 1 < c.by_gpus.size()) continue;
    for (ChartSeries& s : size.series) s.x.push_back(static_cast<double>(g));
    size.series[0].y.push_back(100 * static_cast<double>(jobs) / static_cast<double>(c.gpu_jobs));
    size.series[1].y.push_back(c.gpu_time > 0 ? 100 * gpu_seconds(time) / gpu_seconds(c.gpu_time) : 0);
  }
  out.push_back(std::move(size));
  if (!p.days.empty()) {
    Chart week{.kind = Chart::Kind::heat, .title = "GPU jobs submitted, by hour of the week" + of};
    week.x_title = p.relative ? "hours from the begin of the trace" : "hour of the day";
    week.rows = {"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"};
    for (int h = 0; h < 24; ++h) week.labels.push_back(std::to_string(h));
    Chart work{.kind = Chart::Kind::lines, .title = "GPUs at work" + of, .caption = "average of each day"};
    work.x_title = "day of the trace";
    work.y_title = "GPUs";
    work.series = {{"GPUs", {}, {}}};
    for (std::size_t d = 0; d < 7; ++d) {
      week.cells.emplace_back();
      for (std::size_t h = 0; h < 24; ++h)
        week.cells.back().push_back(static_cast<double>(p.week[d * 24 + h].gpu_jobs));
    }
    double most = 0;
    for (std::size_t d = 0; d < p.days.size(); ++d) {
      work.series[0].x.push_back(static_cast<double>(d));
      work.series[0].y.push_back(p.days[d].gpus);
      most = std::max(most, p.days[d].gpus);
    }
    out.push_back(std::move(week));
    if (most > 0 && p.days.size() > 1) out.push_back(std::move(work));
  }
  if (f.reasons.size() > 1) {
    Chart lost{.kind = Chart::Kind::bars, .title = "GPU time of failed jobs, by reason" + of};
    lost.x_title = "GPU hours";
    lost.series = {{"GPU hours", {}, {}}};
    for (std::size_t i = 0; i < std::min<std::size_t>(f.reasons.size(), 15); ++i) {
      lost.labels.push_back(f.reasons[i].reason.empty() ? "(unknown)" : f.reasons[i].reason);
      lost.series[0].y.push_back(gpu_seconds(f.reasons[i].lost) / 3600);
    }
    out.push_back(std::move(lost));
  }
}

}  // namespace

std::vector<Chart> jobs_charts(const std::vector<JobStats>& clusters, const std::vector<FailureStats>& failures,
                               const std::vector<Patterns>& times, const std::vector<UtilMetric>& utilization) {
  std::vector<Chart> out;
  if (clusters.size() > 1) {
    Chart duration{.kind = Chart::Kind::lines, .title = "Duration, cluster beside cluster"};
    duration.x_title = "s, at most";
    duration.y_title = "% of GPU jobs";
    duration.log_x = true;
    Chart queue = duration;
    queue.title = "Waiting, cluster beside cluster";
    for (const JobStats& c : clusters) {
      duration.series.push_back(cdf(c.cluster, c.by_type[0], &TypeStats::duration_counts, &TypeStats::duration_s));
      if (c.by_type[0].queue_s.n != 0)
        queue.series.push_back(cdf(c.cluster, c.by_type[0], &TypeStats::queue_counts, &TypeStats::queue_s));
    }
    out.push_back(std::move(duration));
    if (!queue.series.empty()) out.push_back(std::move(queue));
  }
  for (std::size_t i = 0; i < clusters.size(); ++i)
    if (clusters[i].gpu_jobs != 0) of_cluster(clusters[i], failures[i], times[i], out);
  // One chart a metric, its clusters together.
  std::map<std::string, Chart> metrics;
  for (const UtilMetric& m : utilization) {
    Chart& c = metrics[m.name];
    c.title = m.name;
    c.x_title = "value, at most";
    c.y_title = "% of samples";
    c.series.push_back({m.cluster, m.value, m.percentile});
  }
  for (auto& [name, chart] : metrics) out.push_back(std::move(chart));
  return out;
}

}  // namespace orrery
