#include "reports/guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "supervisor/study_failures.h"

namespace orrery {
namespace {

constexpr double kNothing = 0.01;  // of the time in which it runs: a policy that gains less gains nothing

double quantile(const std::vector<double>& ascending, double q) {
  return ascending[static_cast<std::size_t>(std::lround(q * static_cast<double>(ascending.size() - 1)))];
}

// lost_gpu_s.CAUSE: of JSON alone, the printed table turns them round.
void add_lost(const MonthsQuestion& q, const PolicyMonths& m, std::vector<Column>& columns, std::vector<Cell>& row,
              bool heads) {
  for (const CauseLoss& c : m.causes) {
    if (heads) columns.push_back({.key = fmt::format("lost_gpu_s.{}", c.cause), .json_only = true});
    row.emplace_back(static_cast<double>(q.gpus) * c.all_s());
  }
}

Section first_section(const MonthsQuestion& q, const PolicyMonths& m) {
  Section s{.key = "", .title = "", .single = true, .table = {}};
  s.table.columns = {{.key = "policy", .json_only = true},
                     {.key = "goodput_pct", .json_only = true},
                     {.key = "ettr_pct", .json_only = true}};
  std::vector<Cell> row{std::string(name_of(m.policy)), 100 * m.goodput(), 100 * m.ettr_mean()};
  add_lost(q, m, s.table.columns, row, true);
  s.table.columns.push_back({.key = "best_checkpoint_interval_s", .json_only = true});
  row.emplace_back(m.best_interval_s);
  s.table.rows.push_back(std::move(row));
  return s;
}

Section policies_section(const MonthsQuestion& q, const std::vector<PolicyMonths>& policies) {
  Section s{.key = "policies",
            .title = fmt::format("{} GPUs for {:g} days, mean of {} runs", q.gpus, q.days, q.trials),
            .table = {}};
  s.table.columns = {{.key = "policy"},
                     {.key = "goodput_pct", .title = "goodput %", .digits = 2},
                     {.key = "ettr_pct", .title = "ETTR %", .digits = 2},
                     {.key = "ettr_p5_pct", .title = "p5", .digits = 2},
                     {.key = "ettr_p95_pct", .title = "p95", .digits = 2},
                     {.key = "failures", .digits = 1},
                     {.key = "interval_s", .title = "save every s", .digits = 0},
                     {.key = "best_checkpoint_interval_s", .title = "best s", .digits = 0},
                     {.key = "young_interval_s", .title = "Young's s", .digits = 0},
                     {.key = "daly_interval_s", .title = "Daly's s", .digits = 0},
                     {.key = "spare_gpu_s", .json_only = true}};
  for (const PolicyMonths& m : policies) {
    const bool stand_by = m.policy.restarts == Restarts::guard;
    std::vector<Cell> row{std::string(name_of(m.policy)),
                          100 * m.goodput(),
                          100 * m.ettr_mean(),
                          100 * quantile(m.ettr, 0.05),
                          100 * quantile(m.ettr, 0.95),
                          m.failures,
                          m.interval_s,
                          m.best_interval_s,
                          m.young_s,
                          m.daly_s,
                          stand_by ? static_cast<double>(q.spares * q.gpus_per_node) * m.wall_s : 0.0};
    add_lost(q, m, s.table.columns, row, &m == &policies.front());
    s.table.rows.push_back(std::move(row));
  }
  return s;
}

Section lost_section(const MonthsQuestion& q, const std::vector<PolicyMonths>& policies) {
  Section s{.key = "lost", .title = "Lost to (thousands of GPU hours)", .table = {}};
  s.table.columns.push_back({.key = "cause", .text_only = true});
  for (const PolicyMonths& m : policies)
    s.table.columns.push_back({.key = std::string(name_of(m.policy)), .text_only = true});
  const double scale = static_cast<double>(q.gpus) / 3.6e6;
  for (std::size_t c = 0; c < policies.front().causes.size(); ++c) {
    std::vector<Cell> row{std::string(policies.front().causes[c].cause)};
    for (const PolicyMonths& m : policies) row.emplace_back(scale * m.causes[c].all_s());
    s.table.rows.push_back(std::move(row));
  }
  return s;
}

Section how_section(const std::vector<PolicyMonths>& policies) {
  Section s{.key = "losses", .title = "How it was lost (hours of the whole job)", .table = {}};
  s.table.columns = {{.key = "policy"},
                     {.key = "lost_work_h", .title = "work lost", .digits = 2},
                     {.key = "waiting_h", .title = "waiting", .digits = 2},
                     {.key = "starting_h", .title = "starting", .digits = 2},
                     {.key = "saving_h", .title = "saving", .digits = 2}};
  for (const PolicyMonths& m : policies) {
    CauseLoss all;
    for (const CauseLoss& c : m.causes) {
      all.work_s += c.work_s;
      all.waiting_s += c.waiting_s;
      all.starting_s += c.starting_s;
      all.saving_s += c.saving_s;
    }
    s.table.rows.push_back({std::string(name_of(m.policy)), all.work_s / 3600, all.waiting_s / 3600,
                            all.starting_s / 3600, all.saving_s / 3600});
  }
  return s;
}

Section failures_section(const PolicyMonths& m) {
  Section s{.key = "failures", .title = "What strikes", .table = {}};
  s.table.columns = {{.key = "reason"},
                     {.key = "share_pct", .title = "share %", .digits = 1},
                     {.key = "mtbf_h", .title = "one in hours", .digits = 1},
                     {.key = "restart_mean_min", .title = "people restart, mean min", .digits = 1},
                     {.key = "restart_median_min", .title = "median min", .digits = 1},
                     {.key = "takes_a_node", .title = "takes a node"}};
  double count = 0;
  for (const StudyFailure& f : study_failures()) count += f.count;
  for (const StudyFailure& f : study_failures())
    s.table.rows.push_back({std::string(f.reason), 100 * f.count / count, m.mtbf_s / 3600 * count / f.count,
                            mean_restart_by_people_s(f) / 60, f.to_restart_median_min, f.of_node});
  return s;
}

}  // namespace

Document months_document(const MonthsQuestion& q, const std::vector<PolicyMonths>& policies) {
  Document d;
  d.command = "guard";
  Section mtbf{.key = "job", .title = "", .single = true, .table = {}};
  mtbf.table.columns = {{.key = "gpus"}, {.key = "days"}, {.key = "mtbf_s"}, {.key = "trials"}, {.key = "seed"}};
  mtbf.table.rows.push_back({q.gpus, q.days, policies.front().mtbf_s, q.trials, static_cast<std::int64_t>(q.seed)});
  d.sections = {first_section(q, policies.front()), policies_section(q, policies),      how_section(policies),
                lost_section(q, policies),          failures_section(policies.front()), std::move(mtbf)};
  if (q.mtbf_s <= 0)
    d.notes.add("rate-of-a-study", Severity::info, 1,
                fmt::format("one failure in {:.1f} hours of {} GPUs", policies.front().mtbf_s / 3600, q.gpus),
                "of jobs on some 400 to 1,200 A100s in 2023; --mtbf states one's own");
  const auto idle = [](const PolicyMonths& m) { return m.goodput() < kNothing; };
  if (std::any_of(policies.begin(), policies.end(), idle) || policies.front().mtbf_s <= q.startup_s)
    d.notes.add("next-to-nothing-trained", Severity::warning, 1,
                fmt::format("one failure in {:.3g} s, and a start takes {:g} s", policies.front().mtbf_s, q.startup_s),
                "few attempts come to their first step: the best interval says little then; --mtbf is in hours");
  return d;
}

}  // namespace orrery
