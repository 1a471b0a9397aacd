// Steps (ms; classes measured/replayed)
//   step  rank  measured  replayed  error %  exposed compute  overlapped   exposed comm  other        memory        ...
//     12     0   150.079   150.081     0.00  78.6/78.6        8.301/8.296  56.86/56.87   6.319/6.31   1.003/1.003
//     12     1   150.087   150.090     0.00  81.15/81.15      6.152/6.15   57.74/57.75   5.037/5.036  0.9767/0.9767
//
// One row a step of a rank. The window is the rank's CPU ProfilerStep; in the replayed run it lies between the replayed
// times of the same two boundaries. Classes are unions over all streams of the rank, clipped to the window:
//   exposed compute  a kernel that does not communicate runs, and no communication
//   exposed comm     a communication kernel runs, and no such kernel
//   overlapped       both
//   other            the rest of the window: idle, and time in which only copies and memsets run ("memory")
// The first four add up to the step. error % is replayed over measured, signed.
//
// makespan: from the first start to the last end of the GPU tasks that the step launched (without a known launch: that
// start in the step), wherever they run. A step without a blocking sync ends before its kernels do, and its length
// follows from the host alone; the makespan then says what the step cannot.
//
// Summary
//   iteration measured ms     150.093    mean over the steps of the longest rank's step
//   iteration replayed ms     150.095
//   mean abs error %            0.002    over all rows of "steps"
//   max abs error %             0.004
//   class mean abs error %             by class: the sum over the rows of |replayed - measured| over the sum of
//   measured,
//     exposed compute ms        0.010  so that a rank with next to none of a class does not drown the others; n/a where
//     ...                              nothing was measured
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "reports/reports.h"

namespace orrery {
namespace {

struct ClassName {
  const char* key;
  const char* title;
  Ns ClassTimes::*member;
};
constexpr ClassName kClasses[] = {{"exposed_compute_ms", "exposed compute", &ClassTimes::exposed_compute},
                                  {"overlapped_ms", "overlapped", &ClassTimes::overlapped},
                                  {"exposed_comm_ms", "exposed comm", &ClassTimes::exposed_comm},
                                  {"other_ms", "other", &ClassTimes::other},
                                  {"memory_ms", "memory", &ClassTimes::memory}};

double abs_diff(Ns a, Ns b) { return std::fabs(static_cast<double>(a - b)); }

// The launching call's begin where it is known, else the task's own start.
Ns launch_time(const ExecGraph& g, std::uint32_t task) {
  for (std::uint32_t e = g.first_pred[task]; e < g.first_pred[task + 1]; ++e)
    if (g.pred_kind[e] == EdgeKind::launch) return observed_end(g, raw(g.pred[e]));
  return g.observed_start[task];
}

struct Span {
  Ns first = std::numeric_limits<Ns>::max(), last = std::numeric_limits<Ns>::min();
  void add(const Interval& task) {
    first = std::min(first, task.begin);
    last = std::max(last, task.end);
  }
};

// `mine`: the rank's rows of `times`.
void add_makespans(const ExecGraph& g, const DeviceRuns& device, std::vector<std::size_t> mine,
                   std::vector<StepTimes>& times) {
  const auto begin_of = [&](std::size_t k) { return g.steps[times[k].step].begin; };
  std::sort(mine.begin(), mine.end(), [&](std::size_t a, std::size_t b) { return begin_of(a) < begin_of(b); });
  std::vector<Span> measured(mine.size()), replayed(mine.size());
  std::size_t at = 0;  // launches come nearly in order of time; a rank's steps do not overlap
  for (std::size_t i = 0; i < device.tasks.size(); ++i) {
    const Ns t = launch_time(g, device.tasks[i].first);
    while (at > 0 && begin_of(mine[at]) > t) --at;
    while (at + 1 < mine.size() && begin_of(mine[at + 1]) <= t) ++at;
    if (t < begin_of(mine[at]) || t >= g.steps[times[mine[at]].step].end) continue;
    measured[at].add(device.measured_times[i]);
    replayed[at].add(device.replayed_times[i]);
  }
  for (std::size_t k = 0; k < mine.size(); ++k) {
    if (measured[k].last < measured[k].first) continue;
    times[mine[k]].measured_makespan = measured[k].last - measured[k].first;
    times[mine[k]].replayed_makespan = replayed[k].last - replayed[k].first;
  }
}

Cell signed_error(Ns measured, Ns replayed) {
  return percent(static_cast<double>(replayed - measured), static_cast<double>(measured));
}

}  // namespace

ClassTimes class_times(const DeviceTime& d, Ns begin, Ns end) {
  ClassTimes t;
  t.overlapped = covered(d.both, begin, end);
  t.exposed_compute = covered(d.compute, begin, end) - t.overlapped;
  t.exposed_comm = covered(d.comm, begin, end) - t.overlapped;
  const Ns active = t.overlapped + t.exposed_compute + t.exposed_comm;
  t.other = end - begin - active;
  t.memory = covered(d.busy, begin, end) - active;
  return t;
}

void add_step_times(const ExecGraph& g, const Replay& r, const DeviceRuns& device, const StepRows& rows,
                    std::vector<StepTimes>& times) {
  std::vector<std::size_t> mine;
  for (std::size_t k = 0; k < rows.size(); ++k) {
    const Step& s = g.steps[rows[k]];
    if (s.rank != device.rank) continue;
    mine.push_back(k);
    const Window w = replayed_window(r, s);
    StepTimes& t = times[k];
    t.step = rows[k];
    t.measured = s.end - s.begin;
    t.replayed = w.end - w.begin;
    t.measured_classes = class_times(device.measured, s.begin, s.end);
    t.replayed_classes = class_times(device.replayed, w.begin, w.end);
  }
  if (!mine.empty()) add_makespans(g, device, std::move(mine), times);
}

Section steps_section(const ExecGraph& g, const std::vector<StepTimes>& times) {
  Section s{.key = "steps", .title = "Steps (ms; classes measured/replayed)", .table = {}};
  s.text_rows = 32;
  s.table.columns = {{.key = "step"},
                     {.key = "rank"},
                     {.key = "measured_ms", .title = "measured"},
                     {.key = "replayed_ms", .title = "replayed"},
                     {.key = "error_pct", .title = "error %", .digits = 2}};
  for (const ClassName& c : kClasses) s.table.columns.push_back({.key = c.title, .title = c.title, .text_only = true});
  for (const char* run : {"measured.", "replayed."})
    for (const ClassName& c : kClasses)
      s.table.columns.push_back({.key = std::string(run) + c.key, .title = "", .json_only = true});
  s.table.columns.push_back({.key = "makespan_measured_ms", .title = "", .json_only = true});
  s.table.columns.push_back({.key = "makespan_replayed_ms", .title = "", .json_only = true});
  s.table.columns.push_back({.key = "makespan_error_pct", .title = "makespan error %", .digits = 2});

  for (const StepTimes& t : times) {
    const Step& step = g.steps[t.step];
    std::vector<Cell> row{step.number, g.ranks[step.rank].rank, to_ms(t.measured), to_ms(t.replayed),
                          signed_error(t.measured, t.replayed)};
    for (const ClassName& c : kClasses)
      row.emplace_back(
          fmt::format("{:.4g}/{:.4g}", to_ms(t.measured_classes.*c.member), to_ms(t.replayed_classes.*c.member)));
    for (const ClassTimes* run : {&t.measured_classes, &t.replayed_classes})
      for (const ClassName& c : kClasses) row.emplace_back(to_ms(run->*c.member));
    if (t.measured_makespan < 0) {
      row.insert(row.end(), 3, Cell{});
    } else {
      row.emplace_back(to_ms(t.measured_makespan));
      row.emplace_back(to_ms(t.replayed_makespan));
      row.push_back(signed_error(t.measured_makespan, t.replayed_makespan));
    }
    s.table.rows.push_back(std::move(row));
  }
  return s;
}

Section summary_section(const ExecGraph& g, const std::vector<StepTimes>& times) {
  // Rows come by step number: the longest rank of each step.
  double measured_sum = 0, replayed_sum = 0;
  std::int64_t steps = 0;
  for (std::size_t k = 0; k < times.size(); ++steps) {
    const std::int64_t number = g.steps[times[k].step].number;
    Ns measured = 0, replayed = 0;
    for (; k < times.size() && g.steps[times[k].step].number == number; ++k) {
      measured = std::max(measured, times[k].measured);
      replayed = std::max(replayed, times[k].replayed);
    }
    measured_sum += to_ms(measured);
    replayed_sum += to_ms(replayed);
  }

  double error_sum = 0, error_max = 0, span_error = 0, span = 0;
  std::size_t counted = 0;
  for (const StepTimes& t : times) {
    if (t.measured_makespan > 0) {
      span += static_cast<double>(t.measured_makespan);
      span_error += abs_diff(t.replayed_makespan, t.measured_makespan);
    }
    if (t.measured == 0) continue;
    const double error = 100.0 * abs_diff(t.replayed, t.measured) / static_cast<double>(t.measured);
    error_sum += error;
    error_max = std::max(error_max, error);
    ++counted;
  }

  Section s{.key = "summary", .title = "Summary", .single = true, .table = {}};
  std::vector<Cell> row;
  const auto add = [&](Column column, Cell cell) {
    s.table.columns.push_back(std::move(column));
    row.push_back(std::move(cell));
  };
  const auto mean = [](double sum, double n) { return n == 0 ? Cell{} : Cell{sum / n}; };
  const auto n = static_cast<double>(steps);
  add({.key = "iteration_measured_ms"}, mean(measured_sum, n));
  add({.key = "iteration_replayed_ms"}, mean(replayed_sum, n));
  add({.key = "mean_abs_error_pct", .digits = 2}, mean(error_sum, static_cast<double>(counted)));
  add({.key = "max_abs_error_pct", .digits = 2}, counted == 0 ? Cell{} : Cell{error_max});
  for (const ClassName& c : kClasses) {
    double diff = 0, size = 0;
    for (const StepTimes& t : times) {
      diff += abs_diff(t.replayed_classes.*c.member, t.measured_classes.*c.member);
      size += static_cast<double>(t.measured_classes.*c.member);
    }
    add({.key = std::string("class_mean_abs_error_pct.") + c.key,
         .title = fmt::format("{} mean abs error %", c.title),
         .digits = 2},
        percent(diff, size));
  }
  add({.key = "makespan_mean_abs_error_pct", .title = "GPU makespan mean abs error %", .digits = 2},
      percent(span_error, span));
  s.table.rows.push_back(std::move(row));
  return s;
}

}  // namespace orrery
