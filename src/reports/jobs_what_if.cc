// The same jobs under another cluster or policy: waiting, use of the GPUs, what was done again.
#include <fmt/format.h>

#include <algorithm>

#include "cluster/by_name.h"
#include "cluster/scheduler.h"
#include "reports/jobs.h"

namespace orrery {
namespace {

// A policy is one text for machines; for people a column for each of its terms that some question names.
std::vector<Column> policy_columns(const std::vector<SimQuestion>& questions) {
  std::vector<Column> c = {{.key = "policy", .json_only = true},
                           {.key = "gpus_asked", .title = "GPUs", .text_only = true, .digits = 1},
                           {.key = "order", .title = "policy", .text_only = true}};
  const auto any = [&](auto which) { return std::any_of(questions.begin(), questions.end(), which); };
  if (any([](const SimQuestion& q) { return q.policy.reserved_milli != 0; })) {
    c.push_back({.key = "for_type", .title = "kept for", .text_only = true});
    c.push_back({.key = "kept_gpus", .title = "kept GPUs", .text_only = true, .digits = 1});
    c.push_back({.key = "preempt", .title = "preempt", .text_only = true});
  }
  if (any([](const SimQuestion& q) { return q.policy.checkpoint_ms != 0; }))
    c.push_back({.key = "checkpoint", .title = "checkpoint s", .text_only = true, .digits = 0});
  if (any([](const SimQuestion& q) { return q.depth_given; })) c.push_back({.key = "depth", .text_only = true});
  return c;
}

// The cells under those columns; without a question they are those of the records.
std::vector<Cell> policy_cells(const std::vector<Column>& columns, const SimQuestion* q) {
  std::vector<Cell> row{q ? q->text : std::string("as recorded")};
  for (std::size_t i = 1; i < columns.size(); ++i) {
    const std::string& key = columns[i].key;
    if (q == nullptr) {
      row.push_back(key == "order" ? Cell(std::string("as recorded")) : Cell());
    } else if (key == "gpus_asked") {
      row.push_back(whole_or_real(static_cast<double>(q->policy.gpu_milli) / 1000));
    } else if (key == "order") {
      using Order = SimPolicy::Order;
      row.emplace_back(std::string(q->policy.order == Order::fifo   ? "fifo"
                                   : q->policy.order == Order::easy ? "easy"
                                                                    : "conservative"));
    } else if (key == "for_type") {
      row.push_back(q->favoured_type.empty() ? Cell() : Cell(q->favoured_type));
    } else if (key == "kept_gpus") {
      row.push_back(cell_if(q->policy.reserved_milli != 0, static_cast<double>(q->policy.reserved_milli) / 1000));
    } else if (key == "preempt") {
      row.emplace_back(std::string(q->policy.preempt ? "on" : "off"));
    } else if (key == "checkpoint") {
      row.push_back(cell_if(q->policy.checkpoint_ms != 0, static_cast<double>(q->policy.checkpoint_ms) / 1000));
    } else {
      row.push_back(cell_if(q->depth_given, static_cast<double>(q->policy.depth)));
    }
  }
  return row;
}

void append(std::vector<Column>& to, std::vector<Column> more) {
  for (Column& c : more) to.push_back(std::move(c));
}

void add_row(Table& t, const std::string& cluster, const std::vector<Cell>& policy, const std::string& type,
             std::vector<std::int64_t>& waits) {
  const Spread s = spread_of(waits, 1000);
  std::vector<Cell> row{cluster};
  row.insert(row.end(), policy.begin(), policy.end());
  row.emplace_back(type);
  row.push_back(cell_of_count(s.n));
  for (const double Spread::*q : {&Spread::mean, &Spread::p50, &Spread::p90, &Spread::p99, &Spread::max})
    row.push_back(cell_if(s.n != 0, s.*q));
  t.rows.push_back(std::move(row));
}

}  // namespace

Result<std::vector<Section>> jobs_what_if(const std::vector<JobTable>& clusters,
                                          const std::vector<SimQuestion>& questions,
                                          const std::function<void(std::uint64_t, std::uint64_t)>& progress,
                                          Notes& notes) {
  Section runs{.key = "clusters[].what_if", .title = "What if (simulated)", .table = {}};
  const std::vector<Column> policy = policy_columns(questions);
  runs.table.columns = {{.key = "cluster"}};
  append(runs.table.columns, policy);
  append(runs.table.columns, {{.key = "jobs"},
                              {.key = "mean_queue_s", .title = "mean wait s", .digits = 1},
                              {.key = "mean_slowdown", .title = "mean slowdown", .digits = 2},
                              {.key = "span_s", .title = "span s", .digits = 0},
                              {.key = "gpu_used_pct", .title = "% of GPUs used", .digits = 1},
                              {.key = "longest_queue", .title = "longest queue"},
                              {.key = "preemptions"},
                              {.key = "lost_gpu_s", .title = "lost GPU s", .digits = 0},
                              {.key = "too_large", .title = "too large"}});
  Section waits{.key = "clusters[].what_if_queue", .title = "What if: waiting by type (s)", .table = {}};
  waits.table.columns = {{.key = "cluster"}};
  append(waits.table.columns, policy);
  append(waits.table.columns, {{.key = "type"},
                               {.key = "jobs"},
                               {.key = "mean_s", .title = "mean", .digits = 1},
                               {.key = "p50_s", .title = "median", .digits = 1},
                               {.key = "p90_s", .title = "p90", .digits = 1},
                               {.key = "p99_s", .title = "p99", .digits = 1},
                               {.key = "max_s", .title = "max", .digits = 1}});
  for (const JobTable& t : clusters) {
    std::vector<SimJob> jobs;
    std::vector<std::uint32_t> row_of;
    std::uint64_t unusable = 0;
    bool limits = false;
    for (std::size_t r = 0; r < t.size(); ++r) {
      if (t.gpu_milli[r] == 0) continue;
      const std::int64_t run = duration_of(t, r, DurationKind::run), submit = t.submit_ms[r];
      if (run == kNoTime || run < 0 || submit == kNoTime) {
        ++unusable;
        continue;
      }
      // A limit that the job outlived is none to plan by.
      const std::int64_t limit = std::int64_t{t.limit_s[r]} * 1000;
      jobs.push_back({submit, run, limit >= run ? limit : 0, t.gpu_milli[r], false});
      limits |= limit > run;
      row_of.push_back(static_cast<std::uint32_t>(r));
    }
    notes.add("not-simulated", Severity::warning, unusable, t.cluster, "GPU jobs without a submission or a duration");
    if (jobs.empty()) continue;
    ByName<std::uint64_t> types(t.names.size());
    std::vector<std::uint32_t> type_of(jobs.size());
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      ++types[t.type[row_of[i]]];
      type_of[i] = types.place(t.type[row_of[i]]);
    }
    const auto shown = [&](std::size_t type) {
      const std::string_view v = t.names.view(types.name(type));
      return v.empty() ? std::string("(none)") : std::string(v);
    };
    const auto describe = [&](const SimQuestion* q, const std::vector<std::int64_t>& waited) {
      std::vector<std::int64_t> all;
      std::vector<std::vector<std::int64_t>> by(types.size());
      for (std::size_t i = 0; i < waited.size(); ++i)
        if (waited[i] >= 0) {
          all.push_back(waited[i]);
          by[type_of[i]].push_back(waited[i]);
        }
      const std::vector<Cell> cells = policy_cells(policy, q);
      add_row(waits.table, t.cluster, cells, "ALL", all);
      for (std::size_t k = 0; types.size() > 1 && types.size() <= kMostTypes && k < types.size(); ++k)
        add_row(waits.table, t.cluster, cells, shown(k), by[k]);
    };
    std::vector<std::int64_t> recorded(jobs.size(), -1);
    for (std::size_t i = 0; i < jobs.size(); ++i)
      if (const std::int64_t q = t.queue_ms[row_of[i]]; q != kNoTime) recorded[i] = q;
    describe(nullptr, recorded);
    for (const SimQuestion& q : questions) {
      bool any = q.favoured_type.empty();
      std::size_t favoured = 0;
      while (favoured < types.size() && shown(favoured) != q.favoured_type) ++favoured;
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        jobs[i].favoured = !q.favoured_type.empty() && type_of[i] == favoured;
        any |= jobs[i].favoured;
      }
      if (!any)
        return fail("no GPU job of type " + q.favoured_type, "--what-if, " + t.cluster,
                    "reserve=TYPE:GPUS names a type");
      SimPolicy terms = q.policy;
      if (terms.order == SimPolicy::Order::conservative && !q.depth_given && (limits || terms.reserved_milli > 0)) {
        terms.depth = SimPolicy::kDepthAnew;
        notes.add("conservative-depth", Severity::info, 1, t.cluster + ": " + q.text,
                  fmt::format("a pass looks at {} waiting jobs: with time limits or a reservation all is planned anew "
                              "at each event; depth=JOBS says otherwise",
                              terms.depth));
      }
      const SimResult r = simulate(jobs, terms, progress);
      std::vector<std::int64_t> waited(jobs.size(), -1);
      double slowdown = 0, wait = 0;
      std::uint64_t n = 0;
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        if (r.end_ms[i] == SimResult::kNever) continue;
        // From submission to end, less what it worked: stops and what was done again are waiting, too.
        waited[i] = r.end_ms[i] - jobs[i].submit_ms - jobs[i].run_ms;
        const auto bound = static_cast<double>(std::max<std::int64_t>(jobs[i].run_ms, 10'000));
        slowdown += std::max(1.0, static_cast<double>(waited[i] + jobs[i].run_ms) / bound);
        wait += static_cast<double>(waited[i]) / 1000;
        ++n;
      }
      const auto count = static_cast<double>(std::max<std::uint64_t>(n, 1));
      const auto span = static_cast<double>(r.last_ms - r.first_ms);
      std::vector<Cell> row{t.cluster};
      for (Cell& c : policy_cells(policy, &q)) row.push_back(std::move(c));
      row.push_back(cell_of_count(n));
      row.push_back(cell_if(n != 0, wait / count));
      row.push_back(cell_if(n != 0, slowdown / count));
      row.push_back(whole_or_real(span / 1000));
      row.push_back(cell_if(span > 0, 100 * r.work_ms / (static_cast<double>(q.policy.gpu_milli) / 1000) / span));
      row.push_back(cell_of_count(r.longest_queue));
      row.push_back(cell_of_count(r.preemptions));
      row.push_back(whole_or_real(r.lost_ms / 1000));
      row.push_back(cell_of_count(r.too_large));
      runs.table.rows.push_back(std::move(row));
      notes.add("too-large", Severity::warning, r.too_large, t.cluster + ": " + q.text,
                "jobs that ask for more GPUs than they may have are not simulated");
      describe(&q, waited);
    }
  }
  std::vector<Section> out;
  out.push_back(std::move(runs));
  out.push_back(std::move(waits));
  return out;
}

}  // namespace orrery
