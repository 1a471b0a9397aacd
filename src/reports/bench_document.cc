// orrery bench plan: the runs in their order, what each should take.
//     #  task      model  techniques  batch  ...  state    est. ms  est. GiB  takes s
// run, report: what each took, beside the estimate; then the study's tables.
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "reports/bench.h"
#include "reports/bench_tables.h"

namespace orrery {
namespace {

Document begin(const BenchConfig& config) {
  Document d;
  d.command = "bench";
  d.inputs = {config.path};
  return d;
}

void add_figures(Document& d, const std::string& title, std::initializer_list<std::pair<Column, Cell>> figures) {
  Section s{.key = "", .title = title, .single = true, .table = {}};
  s.table.rows.emplace_back();
  for (const auto& [column, value] : figures) {
    s.table.columns.push_back(column);
    s.table.rows.front().push_back(value);
  }
  d.sections.push_back(std::move(s));
}

void add_if_any(Document& d, Section s) {
  if (!s.table.rows.empty()) d.sections.push_back(std::move(s));
}

struct Errors {
  std::int64_t n = 0;
  double sum = 0, most = 0;
  void add(std::optional<double> pct) {
    if (!pct) return;
    ++n;
    sum += std::abs(*pct);
    most = std::max(most, std::abs(*pct));
  }
  Cell mean() const { return known_cell(n > 0, sum / static_cast<double>(n)); }
};

// Runs that stand there without an estimate beside them.
void note_what_is_not_estimated(Document& d, const BenchFacts& facts) {
  if (!facts.has_platform) return;
  for (const BenchEntry& e : facts.entries)
    if (e.done() && !e.estimate.unknown.empty())
      d.notes.add("not-estimated", Severity::info, 1, e.run.id() + ": " + e.estimate.unknown,
                  "measured, with nothing to compare");
}

// Keys that environments tell differently. What one does not tell (a run without a worker, another framework's) is no
// difference.
std::string what_differs(const std::vector<std::pair<std::int64_t, std::string>>& environments) {
  std::map<std::string, std::set<std::string>> said;
  for (const auto& [id, text] : environments) {
    const auto j = nlohmann::json::parse(environment_alone(text), nullptr, false);
    if (!j.is_object()) continue;
    for (const auto& [key, value] : j.items()) {
      if (value.is_object()) {
        for (const auto& [part, of] : value.items())
          if (!of.is_null()) said[key + "." + part].insert(of.dump());
      } else if (!value.is_null()) {
        said[key].insert(value.dump());
      }
    }
  }
  std::string keys;
  for (const auto& [key, values] : said)
    if (values.size() > 1) keys += (keys.empty() ? "" : ", ") + key;
  return keys;
}

void note_what_was_measured_otherwise(Document& d, const BenchFacts& facts) {
  for (const BenchEntry& e : facts.entries)
    if (e.otherwise)
      d.notes.add("measured-otherwise", Severity::info, 1, e.run.id(),
                  "the store's results are of another specification (steps, a command's words): they do not count");
}

void note_what_is_over_the_budget(Document& d, const BenchFacts& facts) {
  for (const BenchEntry& e : facts.entries)
    if (e.state == name_of(PlanState::over_budget))
      d.notes.add("over-budget", Severity::info, 1, e.run.id(), "a larger budget_s, or --time-budget");
}

// Of a search that ended for want of batches to try.
void note_what_may_be_larger(Document& d, const BenchFacts& facts) {
  for (const BenchEntry& e : facts.entries)
    if (e.run.batch == 0 && e.done() && ended_at_its_limit(*e.row, facts.rows))
      d.notes.add("largest-batch", Severity::info, 1, fmt::format("{}: {}", e.run.id(), e.row->batch),
                  "the search ended at largest_batch, not for want of memory: more may fit");
}

void note_what_was_dropped(Document& d, const BenchFacts& facts) {
  for (const BenchEntry& e : facts.entries)
    if (e.row && !e.row->dropped.empty())
      d.notes.add("dropped-lines", Severity::warning, 1, e.run.id() + ": " + e.row->dropped,
                  "runs whose reports have steps below 1 us (no step time), or numbers that cannot be");
}

// One slow step of a few turns a mean, and many of them a median.
void note_what_is_noisy(Document& d, const BenchFacts& facts) {
  for (const BenchEntry& e : facts.entries)
    if (e.noisy())
      d.notes.add("noisy-steps", Severity::warning, 1,
                  fmt::format("{}: median {:.2f} ms, sd {:.2f}", e.run.id(), e.row->step_ms.median, e.row->step_ms.sd),
                  "steps vary by more than 20 % of their median: something else runs, or more steps are needed");
}

}  // namespace

Document bench_plan_document(const BenchConfig& config, const RunPlan& plan, const BenchFacts& facts) {
  Document d = begin(config);
  const auto count = [&](PlanState s) {
    return static_cast<std::int64_t>(
        std::count_if(plan.runs.begin(), plan.runs.end(), [&](const PlannedRun& p) { return p.state == s; }));
  };
  add_figures(d, "The plan",
              {{{.key = "planned", .title = "runs to do"}, count(PlanState::planned)},
               {{.key = "measured"}, count(PlanState::measured)},
               {{.key = "estimated_s", .title = "take s", .digits = 0}, plan.seconds},
               {{.key = "store"}, config.store}});
  add_bench_runs(d, facts, true);
  d.sections.push_back(bench_states(facts));
  for (const BenchEntry& e : facts.entries) {
    if (e.place > 0 && !e.estimate.unknown.empty())
      d.notes.add("not-estimated", Severity::info, 1, e.run.id() + ": " + e.estimate.unknown,
                  "taken to last as long as others of its command or task did, a minute where none has run");
    if (e.state == name_of(PlanState::does_not_fit))
      d.notes.add("does-not-fit", Severity::info, 1, e.run.id() + ": " + e.reason, "--unfit runs them all the same");
  }
  note_what_is_over_the_budget(d, facts);
  note_what_was_measured_otherwise(d, facts);
  d.notes.merge(facts.tables);
  if (plan.doubles > 0)
    d.notes.add("named-twice", Severity::info, static_cast<std::uint64_t>(plan.doubles), "",
                "runs that several matrices name are measured once");
  return d;
}

Document bench_run_document(const BenchConfig& config, const SweepResult& result, const BenchFacts& facts) {
  Document d = begin(config);
  const double total = result.seconds;
  add_figures(d, "The sweep",
              {{{.key = "ran"}, static_cast<std::int64_t>(result.ran)},
               {{.key = "failed"}, static_cast<std::int64_t>(result.failed)},
               {{.key = "stopped", .json_only = !result.stopped}, result.stopped},
               {{.key = "measured_s", .title = "took s", .digits = 1}, total},
               {{.key = "overhead_pct", .title = "own overhead %", .digits = 3},
                known_cell(total > 0, 100 * result.overhead_s / total)},
               {{.key = "reading_s", .title = "reading logs and traces s", .digits = 1}, result.after_s},
               {{.key = "store"}, config.store}});
  add_bench_runs(d, facts, false);
  add_bench_failures(d, config, facts);
  d.sections.push_back(bench_states(facts));
  d.notes.merge(result.notes);
  note_what_is_over_the_budget(d, facts);
  note_what_may_be_larger(d, facts);
  note_what_was_measured_otherwise(d, facts);
  note_what_is_not_estimated(d, facts);
  d.notes.merge(facts.tables);
  note_what_is_noisy(d, facts);
  note_what_was_dropped(d, facts);
  return d;
}

Document bench_report_document(const BenchConfig& config, const BenchFacts& facts) {
  Document d = begin(config);
  Errors wall, cpu, memory;
  std::int64_t done = 0;
  double overhead = 0, seconds = 0;
  for (const BenchEntry& e : facts.entries) {
    done += e.done() ? 1 : 0;
    if (!e.fitted) {  // those that it was fitted to say nothing of how good it is
      wall.add(e.error_pct());
      cpu.add(e.cpu_error_pct());
    }
    if (e.done() && e.estimate.unknown.empty() && e.memory_gib() && *e.memory_gib() > 0)
      memory.add(100 * (e.estimate.memory_gib / *e.memory_gib() - 1));
  }
  for (const RunRow& r : facts.rows) {
    overhead += r.overhead_s;
    seconds += r.seconds;
  }
  add_figures(
      d, "The matrix",
      {{{.key = "name"}, config.name},
       {{.key = "runs_in_all", .title = "runs"}, static_cast<std::int64_t>(facts.entries.size())},
       {{.key = "done"}, done},
       {{.key = "mean_abs_error_pct", .title = "mean error of the estimate %", .json_only = wall.n == 0, .digits = 1},
        wall.mean()},
       {{.key = "mean_abs_error_cpu_pct", .title = "... of processor time %", .json_only = cpu.n == 0, .digits = 1},
        cpu.mean()},
       {{.key = "mean_abs_memory_error_pct", .title = "... of memory %", .json_only = memory.n == 0, .digits = 1},
        memory.mean()},
       {{.key = "overhead_pct", .title = "own overhead %", .digits = 3},
        known_cell(seconds > 0, 100 * overhead / seconds)}});
  if (!facts.compared.empty()) d.sections.push_back(bench_compared(facts, false));
  add_if_any(d, bench_compared(facts, true));
  add_bench_runs(d, facts, false);
  add_bench_failures(d, config, facts);
  d.sections.push_back(bench_states(facts));
  add_if_any(d, bench_throughput(facts));
  add_if_any(d, bench_scaling(facts));
  add_if_any(d, bench_shares(facts, "phase"));
  add_if_any(d, bench_shares(facts, "module"));
  add_if_any(d, bench_shares(facts, "operator"));
  add_if_any(d, bench_operators(facts));
  add_if_any(d, bench_noise(facts));
  add_if_any(d, bench_environments(facts));
  if (const std::string differs = what_differs(facts.environments); !differs.empty())
    d.notes.add("several-environments", Severity::warning, facts.environments.size(), differs,
                "runs of one store were measured with different machines or versions: \"environments\" says which");
  for (const ComparedRun& c : facts.compared)
    if (c.is_gone())
      d.notes.add("gone", Severity::warning, 1, c.run + (c.operation.empty() ? "" : " " + c.operation + " " + c.shape),
                  "measured in the older store and not in this one: what became of them is not known");
  note_what_may_be_larger(d, facts);
  note_what_was_measured_otherwise(d, facts);
  note_what_is_not_estimated(d, facts);
  d.notes.merge(facts.tables);
  note_what_is_noisy(d, facts);
  note_what_was_dropped(d, facts);
  const NoiseCheck noise = noise_of(facts.rows);
  if (noise.drifts)
    d.notes.add("drift", Severity::warning, 1,
                fmt::format("{} took {:.2f} ms at first, {:.2f} ms at last", noise.series.front().run,
                            noise.series.front().step_ms.median, noise.series.back().step_ms.median),
                "the machine changed while it was measured: clocks, heat or other work on it");
  for (const BenchEntry& e : facts.entries) {
    if (e.row && e.row->traced < 0)
      d.notes.add("unread-trace", Severity::warning, 1, e.run.id(), "`orrery dissect` on its folder says why");
    if (!e.row && e.state == name_of(PlanState::planned))
      d.notes.add("not-measured", Severity::info, 1, e.run.id(), "orrery bench run goes on with them");
    if (e.done() && !e.row->device_power_w && !e.row->host_power_w)
      d.notes.add("power-not-readable", Severity::info, 1, e.run.id(),
                  "neither the GPU's driver nor the processor's counters (powercap) could be read");
  }
  return d;
}

}  // namespace orrery
