// The tables of `orrery jobs`: who uses the GPUs, how long jobs run and wait, how they end.
#include <fmt/format.h>

#include "base/closest.h"
#include "reports/jobs.h"

namespace orrery {
namespace {

constexpr std::size_t kShown = 40;  // rows for people, of tables that may be long

double percent(double part, double all) { return all > 0 ? 100 * part / all : 0; }

// Cells of a spread, or as many nulls where there are no values.
void add_spread(std::vector<Cell>& row, const Spread& s, std::initializer_list<double Spread::*> which) {
  for (const auto member : which) row.push_back(cell_if(s.n != 0, s.*member));
}

using S = Spread;

Section shares(std::string key, std::string title, const std::vector<JobStats>& clusters,
               std::vector<Share> JobStats::*list, std::size_t text_rows) {
  Section out{.key = std::move(key), .title = std::move(title), .table = {}, .text_rows = text_rows};
  out.table.columns = {{.key = "cluster"},
                       {.key = "name"},
                       {.key = "count", .title = "GPU jobs"},
                       {.key = "count_pct", .title = "% of jobs", .digits = 2},
                       {.key = "gpu_time_s", .title = "GPU time s", .digits = 0},
                       {.key = "gpu_time_pct", .title = "% of GPU time", .digits = 2}};
  for (const JobStats& c : clusters)
    for (const Share& s : c.*list)
      out.table.rows.push_back({c.cluster, s.name, cell_of_count(s.count),
                                percent(static_cast<double>(s.count), static_cast<double>(c.gpu_jobs)),
                                cell_of_gpu_time(s.time), percent(gpu_seconds(s.time), gpu_seconds(c.gpu_time))});
  return out;
}

std::string size_name(const SizeClass& s) {
  if (s.to == 0) return "under 1";
  return s.from == s.to ? fmt::format("{}", s.to) : fmt::format("{}-{}", s.from, s.to);
}

Section sizes(const std::vector<JobStats>& clusters) {
  Section out{.key = "clusters[].sizes", .title = "Sizes (GPUs of a job)", .table = {}};
  out.table.columns = {{.key = "cluster"},
                       {.key = "gpus"},
                       {.key = "count", .title = "GPU jobs"},
                       {.key = "count_pct", .title = "% of jobs", .digits = 2},
                       {.key = "gpu_time_s", .json_only = true, .digits = 0},
                       {.key = "gpu_time_pct", .title = "% of GPU time", .digits = 2},
                       {.key = "mean_queue_s", .title = "mean wait s", .digits = 1},
                       {.key = "queue_over_3600_s_pct", .title = "% wait over 1 h", .digits = 2},
                       {.key = "failed_pct", .title = "% failed", .digits = 1}};
  for (const JobStats& c : clusters)
    for (const SizeClass& s : c.sizes) {
      const auto n = static_cast<double>(s.count);
      const auto queued = static_cast<double>(s.queued);
      out.table.rows.push_back({c.cluster, size_name(s), cell_of_count(s.count),
                                percent(n, static_cast<double>(c.gpu_jobs)), cell_of_gpu_time(s.time),
                                percent(gpu_seconds(s.time), gpu_seconds(c.gpu_time)),
                                cell_if(s.queued != 0, s.queue_sum_s / queued),
                                cell_if(s.queued != 0, percent(static_cast<double>(s.over_hour), queued)),
                                cell_if(s.stated != 0, percent(static_cast<double>(s.failed), n))});
    }
  return out;
}

// A line a cluster: how many, how much, how long.
Section summary(const std::vector<JobStats>& clusters, DurationKind kind) {
  Section out{.key = "clusters[]", .title = "Clusters", .table = {}};
  out.table.columns = {{.key = "name", .title = "cluster"},
                       {.key = "jobs"},
                       {.key = "gpu_jobs", .title = "GPU jobs"},
                       {.key = "cpu_jobs", .title = "CPU jobs"},
                       {.key = "gpu_time_s", .title = "GPU time s", .digits = 0},
                       {.key = "duration_kind", .title = "", .json_only = true},
                       {.key = "gpu_jobs_without_duration", .json_only = true}};
  std::string title = "Clusters (durations: ";
  title += kind == DurationKind::file  ? "as the file's column has them"
           : kind == DurationKind::run ? "start to end"
                                       : "submission to end";
  out.title = title + ")";
  const auto add = [&](const char* key, const char* people, bool hidden, int digits) {
    out.table.columns.push_back({.key = key, .title = people, .json_only = hidden, .digits = digits});
  };
  for (const char* what : {"duration_s", "queue_s"}) {
    const bool d = what[0] == 'd';
    const std::string w = what;
    add((w + ".mean").c_str(), d ? "mean duration s" : "mean wait s", false, 1);
    add((w + ".p25").c_str(), "", true, 3);
    add((w + ".p50").c_str(), d ? "median" : "median wait", false, 1);
    for (const char* q : {".p75", ".p90", ".p99"}) add((w + q).c_str(), "", true, 3);
    add((w + ".max").c_str(), "", true, 3);
  }
  add("gpus.mean", "mean GPUs", false, 2);
  for (const char* key : {"gpus.p50", "gpus.max", "same_second_pct", "interarrival_cv", "top5_users_pct"})
    add(key, "", true, 3);
  for (const JobStats& c : clusters) {
    const TypeStats& all = c.by_type.front();
    std::vector<Cell> row{c.cluster,
                          cell_of_count(c.jobs),
                          cell_of_count(c.gpu_jobs),
                          cell_of_count(c.cpu_jobs),
                          cell_of_gpu_time(c.gpu_time),
                          std::string(name_of(kind)),
                          cell_of_count(c.without_duration)};
    for (const Spread* s : {&all.duration_s, &all.queue_s})
      add_spread(row, *s, {&S::mean, &S::p25, &S::p50, &S::p75, &S::p90, &S::p99, &S::max});
    add_spread(row, all.gpus, {&S::mean, &S::p50, &S::max});
    for (const double x : {c.same_second_pct, c.interarrival_cv}) row.push_back(whole_or_real(x));
    const bool named = c.all_users.size() > 1 || (!c.all_users.empty() && c.all_users[0].name != kNameless);
    row.push_back(cell_if(named, c.top5_users_pct));
    out.table.rows.push_back(std::move(row));
  }
  return out;
}

Section quantiles_by_type(const std::vector<JobStats>& clusters) {
  Section out{.key = "clusters[].by_type{}",
              .title = "Duration, waiting (s) and GPUs by type",
              .table = {},
              .text_rows = kShown};
  auto& columns = out.table.columns;
  columns = {{.key = "cluster"}, {.key = "type"}};
  for (const char* what : {"duration_s", "queue_s"}) {
    const std::string people = what[0] == 'd' ? "duration " : "wait ";
    for (const char* q : {"mean", "p25", "p50", "p75", "p90", "p99", "max"}) {
      const std::string name = q;
      const bool shown = name == "p50" || name == "p90" || name == "mean";
      columns.push_back({.key = what + ("." + name),
                         .title = people + (name == "p50" ? "median" : name),
                         .json_only = !shown,
                         .digits = 1});
    }
  }
  for (const char* q : {"p5", "p25", "p50", "p75", "p95", "mean", "low", "high"}) {
    const std::string name = q;
    const bool shown = name == "p25" || name == "p50" || name == "p75" || name == "low" || name == "high";
    columns.push_back({.key = "gpus." + name,
                       .title = "GPUs " + (name == "p50" ? "median" : name),
                       .json_only = !shown,
                       .digits = 2});
  }
  for (const JobStats& c : clusters)
    for (const TypeStats& t : c.by_type) {
      std::vector<Cell> row{c.cluster, t.name};
      for (const Spread* s : {&t.duration_s, &t.queue_s})
        add_spread(row, *s, {&S::mean, &S::p25, &S::p50, &S::p75, &S::p90, &S::p99, &S::max});
      add_spread(row, t.gpus, {&S::p5, &S::p25, &S::p50, &S::p75, &S::p95, &S::mean, &S::low, &S::high});
      out.table.rows.push_back(std::move(row));
    }
  return out;
}

template <std::size_t N>
Section counts(const char* key, const std::vector<JobStats>& clusters, std::array<std::uint64_t, N> TypeStats::*which) {
  Section out{.key = key, .title = "", .table = {}, .values = true};
  out.table.columns = {{.key = "cluster"}, {.key = "type"}, {.key = "threshold_s"}, {.key = "jobs"}};
  for (const JobStats& c : clusters)
    for (const TypeStats& t : c.by_type)
      for (std::size_t k = 0; k < N; ++k)
        out.table.rows.push_back({c.cluster, t.name, std::int64_t{1} << k, cell_of_count((t.*which)[k])});
  return out;
}

Section gpus_counts(const std::vector<JobStats>& clusters) {
  Section out{.key = "clusters[].gpus_counts", .title = "", .table = {}, .values = true};
  out.table.columns = {{.key = "cluster"}, {.key = "gpus"}, {.key = "jobs"}, {.key = "gpu_time_share"}};
  for (const JobStats& c : clusters) {
    std::uint64_t jobs = 0;
    GpuTime time = 0;
    for (std::size_t g = 1; g < std::max<std::size_t>(1025, c.by_gpus.size()); ++g) {
      if (g < c.by_gpus.size()) {
        jobs += c.by_gpus[g].count;
        time += c.by_gpus[g].time;
      }
      out.table.rows.push_back({c.cluster, static_cast<std::int64_t>(g), cell_of_count(jobs),
                                cell_if(c.gpu_time != 0, gpu_seconds(time) / gpu_seconds(c.gpu_time))});
    }
  }
  return out;
}

Section type_states(const std::vector<JobStats>& clusters) {
  Section out{.key = "clusters[].type_states", .title = "", .table = {}};
  out.table.columns = {{.key = "cluster"}, {.key = "type"}, {.key = "state"}, {.key = "count"}, {.key = "gpu_time_s"}};
  for (const JobStats& c : clusters)
    for (const TypeState& t : c.type_states)
      out.table.rows.push_back({c.cluster, t.type, t.state, cell_of_count(t.count), cell_of_gpu_time(t.time)});
  return out;
}

Section all_states(const std::vector<JobStats>& clusters) {
  Section out{.key = "clusters[].all_states", .title = "", .table = {}};
  out.table.columns = {{.key = "cluster"}, {.key = "name"}, {.key = "count"}, {.key = "count_pct"}};
  for (const JobStats& c : clusters)
    for (const Share& s : c.all_states)
      out.table.rows.push_back({c.cluster, s.name, cell_of_count(s.count),
                                percent(static_cast<double>(s.count), static_cast<double>(c.jobs))});
  return out;
}

// Spreads over all jobs, CPU jobs and, for GPU time, GPU jobs.
Section all_jobs(const std::vector<JobStats>& clusters) {
  Section out{.key = "clusters[].all_jobs{}", .title = "", .table = {}};
  out.table.columns = {{.key = "cluster"}, {.key = "quantity"}, {.key = "jobs"}};
  for (const char* q : {"sum", "mean", "min", "p50", "p90", "p95", "p99", "max"})
    out.table.columns.push_back({.key = q});
  for (const JobStats& c : clusters)
    for (const auto& [name, s] : {std::pair<const char*, const Spread*>{"duration_s", &c.all_duration_s},
                                  {"queue_s", &c.all_queue_s},
                                  {"gpus", &c.all_gpus},
                                  {"cpus", &c.all_cpus},
                                  {"nodes", &c.all_nodes},
                                  {"cpu_job_duration_s", &c.cpu_duration_s},
                                  {"cpu_job_queue_s", &c.cpu_queue_s},
                                  {"gpu_job_gpu_time_s", &c.gpu_time_s}}) {
      std::vector<Cell> row{c.cluster, std::string(name), cell_of_count(s->n)};
      add_spread(row, *s, {&S::sum, &S::mean, &S::min, &S::p50, &S::p90, &S::p95, &S::p99, &S::max});
      out.table.rows.push_back(std::move(row));
    }
  return out;
}

}  // namespace

void describe_jobs(const std::vector<JobStats>& clusters, DurationKind kind, std::vector<Section>& out) {
  out.push_back(summary(clusters, kind));
  out.push_back(shares("clusters[].types", "Types", clusters, &JobStats::types, kShown));
  out.push_back(shares("clusters[].states", "States", clusters, &JobStats::states, kShown));
  out.push_back(quantiles_by_type(clusters));
  out.push_back(sizes(clusters));
  out.push_back(shares("clusters[].users", "Users", clusters, &JobStats::users, clusters.size() == 1 ? 10 : 20));
  for (const JobStats& c : clusters)
    if (c.groups.size() > 1) {
      out.push_back(shares("clusters[].groups", "Groups", clusters, &JobStats::groups, 10));
      break;
    }
  out.push_back(counts("clusters[].by_type{}.duration_counts", clusters, &TypeStats::duration_counts));
  out.push_back(counts("clusters[].by_type{}.queue_counts", clusters, &TypeStats::queue_counts));
  out.push_back(gpus_counts(clusters));
  out.push_back(type_states(clusters));
  out.push_back(all_states(clusters));
  out.push_back(all_jobs(clusters));
}

Result<Section> jobs_by(const std::vector<JobStats>& clusters, const std::string& by) {
  if (by == "type") return shares("by", "By type", clusters, &JobStats::types, 0);
  if (by == "state") return shares("by", "By state", clusters, &JobStats::states, 0);
  if (by == "user") return shares("by", "By user", clusters, &JobStats::users, 0);
  if (by == "group") return shares("by", "By group", clusters, &JobStats::groups, 0);
  if (by == "gpus") {
    Section out = shares("by", "By number of GPUs", clusters, &JobStats::by_gpus, 0);
    out.table.rows.clear();
    for (const JobStats& c : clusters)
      for (std::size_t g = 1; g < c.by_gpus.size(); ++g)
        if (const Share& s = c.by_gpus[g]; s.count != 0)
          out.table.rows.push_back({c.cluster, fmt::format("{}", g), cell_of_count(s.count),
                                    percent(static_cast<double>(s.count), static_cast<double>(c.gpu_jobs)),
                                    cell_of_gpu_time(s.time), percent(gpu_seconds(s.time), gpu_seconds(c.gpu_time))});
    return out;
  }
  const std::vector<std::string_view> known{"type", "state", "gpus", "user", "group"};
  const std::string_view near = closest(by, known);
  return fail("no grouping by " + by, "--by",
              near.empty() ? "type, state, gpus, user or group" : fmt::format("did you mean {}?", near));
}

}  // namespace orrery
