// Failures by reason, reliability by class, fairness over users; and when jobs come.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "base/calendar.h"
#include "cluster/failures.h"
#include "cluster/patterns.h"
#include "reports/jobs.h"

namespace orrery {
namespace {

using S = Spread;

Section reasons(const std::vector<FailureStats>& clusters) {
  Section s{
      .key = "clusters[].failures", .title = "Failures by reason (GPU jobs that failed or lost a node)", .table = {}};
  s.text_rows = 30;
  s.table.columns = {{.key = "cluster"},
                     {.key = "reason"},
                     {.key = "category"},
                     {.key = "count"},
                     {.key = "gpus_mean", .title = "mean GPUs", .digits = 1},
                     {.key = "gpus_median", .json_only = true},
                     {.key = "lost_gpu_time_s", .title = "GPU time s", .digits = 0},
                     {.key = "lost_gpu_time_pct", .title = "% of lost", .digits = 2},
                     {.key = "to_failure_min_mean", .title = "to failure min", .digits = 1},
                     {.key = "to_failure_min_median", .title = "median", .digits = 1},
                     {.key = "restarts", .json_only = true},
                     {.key = "to_restart_min_mean", .title = "to restart min", .digits = 1},
                     {.key = "to_restart_min_median", .title = "median", .digits = 1}};
  for (const FailureStats& c : clusters) {
    GpuTime all = 0;
    for (const ReasonRow& r : c.reasons) all += r.lost;
    for (const ReasonRow& r : c.reasons) {
      const bool again = r.to_restart_s.n != 0;
      std::vector<Cell> row{c.cluster, r.reason.empty() ? "(unknown)" : r.reason};
      if (r.category.empty())
        row.emplace_back();
      else
        row.emplace_back(r.category);
      row.push_back(cell_of_count(r.count));
      row.push_back(whole_or_real(r.gpus.mean));
      row.push_back(whole_or_real(r.gpus.p50));
      row.push_back(cell_of_gpu_time(r.lost));
      row.push_back(cell_if(all > 0, 100 * gpu_seconds(r.lost) / std::max(1e-9, gpu_seconds(all))));
      row.push_back(whole_or_real(r.to_failure_s.mean / 60));
      row.push_back(whole_or_real(r.to_failure_s.p50 / 60));
      row.push_back(cell_of_count(r.restarts));
      row.push_back(cell_if(again, r.to_restart_s.mean / 60));
      row.push_back(cell_if(again, r.to_restart_s.p50 / 60));
      s.table.rows.push_back(std::move(row));
    }
  }
  return s;
}

// The categories together, where reasons have any.
Section categories(const std::vector<FailureStats>& clusters) {
  Section s{.key = "clusters[].failure_categories", .title = "Failures by category", .table = {}};
  s.table.columns = {{.key = "cluster"},
                     {.key = "category"},
                     {.key = "count"},
                     {.key = "count_pct", .title = "% of failures", .digits = 2},
                     {.key = "lost_gpu_time_s", .title = "GPU time s", .digits = 0},
                     {.key = "lost_gpu_time_pct", .title = "% of lost", .digits = 2}};
  for (const FailureStats& c : clusters) {
    std::map<std::string, Share> by;
    Share all;
    for (const ReasonRow& r : c.reasons)
      for (Share* to : {&by[r.category], &all}) {
        to->count += r.count;
        to->time += r.lost;
      }
    if (by.size() == 1 && by.begin()->first.empty()) continue;
    for (const auto& [name, share] : by) {
      std::vector<Cell> row{c.cluster, name.empty() ? std::string("(unknown)") : name, cell_of_count(share.count)};
      row.push_back(whole_or_real(100 * static_cast<double>(share.count) / static_cast<double>(all.count)));
      row.push_back(cell_of_gpu_time(share.time));
      row.push_back(cell_if(all.time > 0, 100 * gpu_seconds(share.time) / std::max(1e-9, gpu_seconds(all.time))));
      s.table.rows.push_back(std::move(row));
    }
  }
  return s;
}

Section reliability(const std::vector<FailureStats>& clusters, std::vector<ReliabilityRow> FailureStats::*rows,
                    const char* key, const char* title, const char* name) {
  Section s{.key = key, .title = title, .table = {}, .text_rows = 40};
  s.table.columns = {{.key = "cluster"},
                     {.key = name},
                     {.key = "runs"},
                     {.key = "failures"},
                     {.key = "infrastructure_failures", .title = "by hardware"},
                     {.key = "node_hours", .title = "node hours", .digits = 0},
                     {.key = "mttf_h", .title = "MTTF h", .digits = 2},
                     {.key = "node_hours_per_failure", .title = "node-h a failure", .digits = 1},
                     {.key = "infrastructure_node_hours_per_failure", .title = "... by hardware", .digits = 0},
                     {.key = "ettr_pct", .title = "ETTR %", .digits = 1},
                     {.key = "goodput_pct", .title = "goodput %", .digits = 1}};
  for (const FailureStats& c : clusters)
    for (const ReliabilityRow& r : c.*rows) {
      std::vector<Cell> row{c.cluster, r.name, cell_of_count(r.runs)};
      row.push_back(cell_if(r.stated != 0, static_cast<double>(r.failures)));
      row.push_back(cell_if(r.stated != 0, static_cast<double>(r.infrastructure)));
      row.push_back(whole_or_real(r.node_hours));
      row.push_back(cell_if(r.failures != 0, r.mttf_h()));
      row.push_back(cell_if(r.failures != 0, r.node_mttf_h()));
      row.push_back(cell_if(r.infrastructure != 0, r.node_hours / static_cast<double>(r.infrastructure)));
      row.push_back(cell_if(r.stated != 0 && r.run_hours + r.wait_hours > 0, r.ettr_pct()));
      row.push_back(cell_if(r.stated != 0 && r.gpu_hours > 0, r.goodput_pct()));
      s.table.rows.push_back(std::move(row));
    }
  return s;
}

Section fairness(const std::vector<FailureStats>& clusters) {
  Section s{.key = "clusters[]", .title = "The cluster as a whole", .table = {}};
  s.table.columns = {{.key = "name", .title = "cluster"},
                     {.key = "span_h", .title = "span h", .digits = 0},
                     {.key = "failures_total", .title = "failures"},
                     {.key = "mtbf_h", .title = "MTBF h", .digits = 3},
                     {.key = "infrastructure_mtbf_h", .title = "MTBF h by hardware", .digits = 2},
                     {.key = "fairness.users", .title = "users"},
                     {.key = "fairness.gini_gpu_time", .title = "Gini of GPU time", .digits = 3},
                     {.key = "fairness.jain_gpu_time", .title = "Jain of GPU time", .digits = 3},
                     {.key = "fairness.jain_slowdown", .title = "Jain of slowdown", .digits = 3}};
  for (const FailureStats& c : clusters) {
    std::vector<Cell> row{c.cluster, cell_if(c.span_h > 0, c.span_h),
                          cell_if(c.stated, static_cast<double>(c.failures))};
    row.push_back(cell_if(c.failures != 0 && c.span_h > 0, c.mtbf_h()));
    row.push_back(cell_if(c.infrastructure != 0 && c.span_h > 0, c.span_h / static_cast<double>(c.infrastructure)));
    row.push_back(cell_if(c.users != 0, static_cast<double>(c.users)));
    row.push_back(cell_if(c.users != 0, c.gini_gpu_time));
    row.push_back(cell_if(c.users != 0, c.jain_gpu_time));
    row.push_back(cell_if(c.users != 0 && c.waits, c.jain_slowdown));
    s.table.rows.push_back(std::move(row));
  }
  return s;
}

}  // namespace

void describe_failures(const std::vector<FailureStats>& clusters, const FailureTerms& terms,
                       std::vector<Section>& out) {
  const std::string title = fmt::format(
      "Reliability by type (a failed run loses {}; {:g} s to restart)",
      terms.checkpoint_s > 0 ? fmt::format("up to {:g} s", terms.checkpoint_s / 2) : "all it did", terms.restart_s);
  out.push_back(fairness(clusters));
  out.push_back(reasons(clusters));
  if (Section s = categories(clusters); !s.table.rows.empty()) out.push_back(std::move(s));
  out.push_back(reliability(clusters, &FailureStats::types, "clusters[].reliability", title.c_str(), "type"));
  out.push_back(
      reliability(clusters, &FailureStats::sizes, "clusters[].reliability_by_gpus", "Reliability by GPUs", "gpus"));
}

void describe_patterns(const std::vector<Patterns>& clusters, std::vector<Section>& out) {
  Section hours{.key = "clusters[].hours", .title = "", .table = {}};
  hours.table.columns = {{.key = "cluster"},
                         {.key = "hour"},
                         {.key = "gpu_jobs", .title = "GPU jobs submitted"},
                         {.key = "cpu_jobs", .title = "CPU jobs"},
                         {.key = "gpus_at_work", .title = "GPUs at work", .digits = 1}};
  Section week{.key = "clusters[].week_hours", .title = "", .table = {}};
  week.table.columns = {{.key = "cluster"},  {.key = "weekday"},  {.key = "hour"},
                        {.key = "gpu_jobs"}, {.key = "cpu_jobs"}, {.key = "gpus_at_work"}};
  Section days{.key = "clusters[].days", .title = "", .table = {}};
  days.table.columns = {
      {.key = "cluster"}, {.key = "date"}, {.key = "gpu_jobs"}, {.key = "cpu_jobs"}, {.key = "gpus_at_work"}};
  static constexpr const char* kDays[] = {"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"};
  std::string zones;
  for (const Patterns& p : clusters) {
    const std::int32_t minutes = std::abs(p.utc_offset_s) / 60;
    const std::string zone =
        p.relative ? "from the begin of the trace"
                   : fmt::format("{}{:02}:{:02}", p.utc_offset_s < 0 ? "-" : "+", minutes / 60, minutes % 60);
    if (zones.find(zone) == std::string::npos) zones += (zones.empty() ? "" : ", ") + zone;
    const auto add = [&](Section& s, std::vector<Cell> row, const HourRow& h) {
      row.push_back(cell_of_count(h.gpu_jobs));
      row.push_back(cell_of_count(h.cpu_jobs));
      row.push_back(whole_or_real(h.gpus));
      s.table.rows.push_back(std::move(row));
    };
    for (std::size_t h = 0; h < 24; ++h) add(hours, {p.cluster, static_cast<std::int64_t>(h)}, p.hours[h]);
    for (std::size_t h = 0; h < 168; ++h)
      add(week, {p.cluster, std::string(kDays[h / 24]), static_cast<std::int64_t>(h % 24)}, p.week[h]);
    for (std::size_t d = 0; d < p.days.size(); ++d) {
      const std::int64_t day = p.first_day + static_cast<std::int64_t>(d);
      add(days, {p.cluster, p.relative ? fmt::format("day {}", day) : date_text(day)}, p.days[d]);
    }
  }
  // For people: a line a cluster, hours 0 to 23.
  Section lines{.key = "hours_of_day", .title = "By hour of the day (0 to 23, " + zones + ")", .table = {}};
  lines.table.columns = {{.key = "cluster", .text_only = true},
                         {.key = "submitted", .title = "GPU jobs submitted", .text_only = true},
                         {.key = "at_work", .title = "GPUs at work", .text_only = true}};
  for (const Patterns& p : clusters) {
    std::vector<double> submitted, working;
    for (const HourRow& h : p.hours) {
      submitted.push_back(static_cast<double>(h.gpu_jobs));
      working.push_back(h.gpus);
    }
    lines.table.rows.push_back({p.cluster, submitted, working});
  }
  out.push_back(std::move(lines));
  out.push_back(std::move(hours));
  out.push_back(std::move(week));
  out.push_back(std::move(days));
}

}  // namespace orrery
