#include "reports/bench_tables.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

namespace orrery {
namespace {

constexpr std::size_t kMostFailures = 10;  // reasons that people are shown

Cell cell(const std::optional<double>& x) { return known_cell(x.has_value(), x.value_or(0)); }
Cell positive(double x) { return known_cell(x > 0, x); }

std::string letters(const BenchRun& r) {
  const std::string text = r.techniques_text();
  return text.empty() ? "none" : text;
}

std::string framework(const BenchRun& r) {
  return r.framework == BenchFramework::command ? r.command : std::string(name_of(r.framework));
}

// The batch that was measured; of the largest the one that was found.
Cell batch_of(const BenchEntry& e) {
  const std::int64_t b = e.row && e.row->batch > 0 ? e.row->batch : e.run.batch;
  return b > 0 ? Cell(b) : Cell(std::string("max"));
}

}  // namespace

Cell known_cell(bool known, double x) {
  Cell c;
  if (known) c = x;
  return c;
}

std::string bench_series(const BenchRun& r) {
  const std::string length = r.task == BenchTask::inference ? fmt::format("{}+{}", r.seq_length, r.output_tokens)
                                                            : std::to_string(r.seq_length);
  return fmt::format("{} {} {} {} s{} g{}", name_of(r.task), r.model.name, framework(r), r.precision, length, r.gpus);
}

namespace {

Section bench_runs(const BenchFacts& facts, bool plan) {
  Section s{.key = "runs", .title = plan ? "Runs" : "Runs (ms of a step; tokens/s by its median)", .table = {}};
  s.table.columns = {
      {.key = "place", .title = "#", .json_only = !plan},
      {.key = "id", .json_only = true},
      {.key = "task"},
      {.key = "model"},
      {.key = "techniques"},
      {.key = "batch"},
      {.key = "seq_length", .title = "length"},
      {.key = "gpus"},
      {.key = "precision"},
      {.key = "framework"},
      {.key = "state"},
      {.key = "step_ms.mean", .title = "mean", .json_only = plan, .digits = 2},
      {.key = "step_ms.median", .title = "median", .json_only = plan, .digits = 2},
      {.key = "step_ms.sd", .title = "sd", .json_only = plan, .digits = 2},
      {.key = "tokens_per_s", .title = "tokens/s", .json_only = plan, .digits = 1},
      {.key = "memory_gib", .title = "GiB", .json_only = plan, .digits = 2},
      {.key = "estimated_step_ms", .title = "est. ms", .json_only = !facts.has_platform, .digits = 2},
      {.key = "error_pct",
       .title = "error %",
       .json_only = plan || !facts.has_platform || facts.compare_cpu,
       .digits = 1},
      {.key = "cpu_ms", .title = "CPU ms", .json_only = plan || !facts.compare_cpu, .digits = 2},
      {.key = "error_cpu_pct",
       .title = "error of it %",
       .json_only = plan || !facts.has_platform || !facts.compare_cpu,
       .digits = 1},
      {.key = "fitted", .title = "fitted", .json_only = plan || facts.fitted == 0},
      {.key = "estimated_memory_gib", .title = "est. GiB", .json_only = !facts.has_platform, .digits = 2},
      {.key = "estimated_s", .title = "takes s", .json_only = !plan, .digits = 0},
      {.key = "reason"},
      {.key = "category", .json_only = true},
      {.key = "root_cause", .json_only = true},
      {.key = "advice", .json_only = true},
      {.key = "prefill_ms", .json_only = true},
      {.key = "decode_ms", .json_only = true},
      {.key = "device_memory_gib", .json_only = true},
      {.key = "device_allocated_gib", .json_only = true},
      {.key = "host_memory_gib", .json_only = true},
      {.key = "host_base_gib", .json_only = true},
      {.key = "device_power_w", .json_only = true},
      {.key = "host_power_w", .json_only = true},
      {.key = "device_mhz", .json_only = true},
      {.key = "host_mhz", .json_only = true},
      {.key = "load", .json_only = true},
      {.key = "steps", .json_only = true},
      {.key = "attempts", .json_only = true},
      {.key = "seconds", .json_only = true},
      {.key = "startup_s", .json_only = true},
      {.key = "overhead_s", .json_only = true},
      {.key = "environment", .json_only = true},
      {.key = "directory", .json_only = true}};
  for (const BenchEntry& e : facts.entries) {
    const RunRow none;
    const RunRow& r = e.row ? *e.row : none;
    const bool measured = r.step_ms.count > 0;
    const bool estimated = e.estimate.unknown.empty();
    const bool trains = e.run.task != BenchTask::operators;  // or generates: it has a batch, a length, a precision
    s.table.rows.push_back({e.place > 0 ? Cell(e.place) : Cell(),
                            e.run.id(),
                            std::string(name_of(e.run.task)),
                            e.run.model.name.empty() ? Cell() : Cell(e.run.model.name),
                            trains ? Cell(letters(e.run)) : Cell(),
                            trains ? batch_of(e) : Cell(),
                            trains ? Cell(e.run.seq_length) : Cell(),
                            e.run.gpus,
                            trains ? Cell(e.run.precision) : Cell(),
                            framework(e.run),
                            e.state,
                            known_cell(measured, r.step_ms.mean),
                            known_cell(measured, r.step_ms.median),
                            known_cell(measured, r.step_ms.sd),
                            cell(e.tokens_per_s()),
                            cell(e.memory_gib()),
                            known_cell(estimated && e.estimate.step_ms > 0, e.estimate.step_ms),
                            cell(e.error_pct()),
                            cell(r.cpu_ms),
                            cell(e.cpu_error_pct()),
                            e.fitted,
                            known_cell(estimated && e.estimate.memory_gib > 0, e.estimate.memory_gib),
                            positive(e.seconds),
                            e.reason,
                            r.category,
                            r.root_cause,
                            r.advice,
                            cell(r.prefill_ms),
                            cell(r.decode_ms),
                            cell(r.device_memory_gib),
                            cell(r.device_allocated_gib),
                            cell(r.host_memory_gib),
                            cell(r.host_base_gib),
                            cell(r.device_power_w),
                            cell(r.host_power_w),
                            cell(r.device_mhz),
                            cell(r.host_mhz),
                            cell(r.load),
                            r.step_ms.count,
                            e.attempts,
                            positive(r.seconds),
                            cell(r.startup_s),
                            known_cell(e.row.has_value(), r.overhead_s),
                            r.environment > 0 ? Cell(r.environment) : Cell(),
                            r.directory.empty() ? Cell() : Cell(r.directory)});
  }
  if (plan)  // those that run first, in their order
    std::stable_sort(s.table.rows.begin(), s.table.rows.end(), [](const auto& a, const auto& b) {
      const auto place = [](const Cell& c) {
        const auto* n = std::get_if<std::int64_t>(&c);
        return n ? *n : std::int64_t{1} << 62;
      };
      return place(a[0]) < place(b[0]);
    });
  return s;
}

// Refused before anything was measured.
bool by_a_rule(const BenchEntry& e) { return !e.row && e.state == name_of(PlanState::refused); }

}  // namespace

void add_bench_runs(Document& d, const BenchFacts& facts, bool plan) {
  Section all = bench_runs(facts, plan);
  BenchFacts shown;
  shown.has_platform = facts.has_platform, shown.compare_cpu = facts.compare_cpu, shown.fitted = facts.fitted;
  std::map<std::string, std::pair<std::int64_t, std::string>> rules;
  for (const BenchEntry& e : facts.entries) {
    if (by_a_rule(e)) {
      auto& [n, first] = rules[e.reason];
      if (n++ == 0) first = e.run.id();
    } else {
      shown.entries.push_back(e);
    }
  }
  if (rules.empty()) {
    d.sections.push_back(std::move(all));
    return;
  }
  Section people = bench_runs(shown, plan);
  people.key = "shown_runs";
  for (auto& row : people.table.rows)
    for (std::size_t i = row.size(); i-- > 0;)
      if (people.table.columns[i].json_only) row.erase(row.begin() + static_cast<std::ptrdiff_t>(i));
  std::erase_if(people.table.columns, [](const Column& c) { return c.json_only; });
  for (Column& c : people.table.columns) c.text_only = true;
  all.title.clear();
  d.sections.push_back(std::move(all));
  d.sections.push_back(std::move(people));
  Section refused{.key = "refused", .title = "Refused by rules", .table = {}};
  refused.table.columns = {{.key = "reason"}, {.key = "runs"}, {.key = "first"}};
  for (const auto& [reason, r] : rules) refused.table.rows.push_back({reason, r.first, r.second});
  d.sections.push_back(std::move(refused));
}

Section bench_states(const BenchFacts& facts) {
  std::map<std::string, std::int64_t> counts;
  for (const BenchEntry& e : facts.entries) ++counts[e.state];
  Section s{.key = "states", .title = "Every run of the matrix", .table = {}};
  s.table.columns = {{.key = "state"}, {.key = "runs"}};
  for (const auto& [state, n] : counts) s.table.rows.push_back({state, n});
  return s;
}

void add_bench_failures(Document& d, const BenchConfig& config, const BenchFacts& facts) {
  struct Failure {
    std::int64_t runs = 0;
    const BenchEntry* first = nullptr;
  };
  std::map<std::pair<std::string, std::string>, Failure> by_reason;  // and state
  for (const BenchEntry& e : facts.entries) {
    if (!e.row || e.done() || e.reason.empty()) continue;
    Failure& f = by_reason[{e.state, e.reason}];
    if (f.runs++ == 0) f.first = &e;
  }
  if (by_reason.empty()) return;
  Section all{.key = "failures", .title = "", .table = {}};
  all.table.columns = {{.key = "state"},      {.key = "reason"}, {.key = "runs"},
                       {.key = "root_cause"}, {.key = "first"},  {.key = "logs"}};
  std::vector<Section> people;
  for (const auto& [why, f] : by_reason) {
    const RunRow& r = *f.first->row;
    const std::string logs = logs_of(config.store, r);
    all.table.rows.push_back({why.first, why.second, f.runs, r.root_cause, f.first->run.id(), logs});
    if (people.size() == kMostFailures) continue;
    Section s{.key = "shown_failure", .title = "What did not end well: " + why.first, .single = true, .table = {}};
    s.table.rows.emplace_back();
    const auto line = [&](const char* name, Cell value) {
      s.table.columns.push_back({.key = name, .text_only = true});
      s.table.rows.front().push_back(std::move(value));
    };
    line("reason", why.second);
    if (f.runs > 1) line("runs", f.runs);
    line(f.runs > 1 ? "the first" : "run", f.first->run.id());
    if (!r.root_cause.empty()) line("detail", r.root_cause);
    if (!r.advice.empty()) line("advice", r.advice);
    line("logs", logs);
    people.push_back(std::move(s));
  }
  d.sections.push_back(std::move(all));
  for (Section& s : people) d.sections.push_back(std::move(s));
  if (by_reason.size() > kMostFailures)
    d.notes.add("more-failures", Severity::info, by_reason.size() - kMostFailures, "",
                "further reasons why runs did not end well: \"failures\" of --json or --csv has them all");
}

Section bench_throughput(const BenchFacts& facts) {
  Section s{.key = "throughput", .title = "Throughput and memory by technique and batch", .table = {}};
  s.table.columns = {{.key = "series", .title = "task, model, framework, precision, length, GPUs"},
                     {.key = "techniques"},
                     {.key = "batch"},
                     {.key = "tokens_per_s", .title = "tokens/s", .digits = 1},
                     {.key = "times_none", .title = "x none", .digits = 2},
                     {.key = "memory_gib", .title = "GiB", .digits = 2},
                     {.key = "memory_times_none", .title = "x none", .digits = 2},
                     {.key = "watts", .title = "W", .digits = 0}};
  // Beside the same without techniques.
  std::map<std::string, const BenchEntry*> plain;
  const auto place = [](const BenchEntry& e) { return bench_series(e.run) + " b" + std::to_string(e.run.batch); };
  for (const BenchEntry& e : facts.entries)
    if (e.done() && e.run.techniques.letters.empty()) plain[place(e)] = &e;
  for (const BenchEntry& e : facts.entries) {
    if (e.run.task == BenchTask::operators) continue;
    const auto tokens = e.tokens_per_s();
    std::optional<double> faster, fuller;
    if (const auto p = plain.find(place(e)); p != plain.end() && tokens) {
      const auto base = p->second->tokens_per_s();
      const auto memory = e.memory_gib(), base_memory = p->second->memory_gib();
      if (base && *base > 0) faster = *tokens / *base;
      if (memory && base_memory && *base_memory > 0) fuller = *memory / *base_memory;
    }
    if (!tokens && (!e.row || e.row->state != RunState::out_of_memory)) continue;
    s.table.rows.push_back({bench_series(e.run), letters(e.run), batch_of(e),
                            tokens ? Cell(*tokens) : Cell(std::string("out of memory")), cell(faster),
                            cell(e.memory_gib()), cell(fuller),
                            cell(e.row->device_power_w ? e.row->device_power_w : e.row->host_power_w)});
  }
  return s;
}

Section bench_scaling(const BenchFacts& facts) {
  Section s{.key = "scaling", .title = "Scaling", .table = {}};
  s.table.columns = {
      {.key = "series", .title = "task, model, framework, precision, length"},
      {.key = "techniques"},
      {.key = "batch"},
      {.key = "gpus"},
      {.key = "tokens_per_s", .title = "tokens/s", .digits = 1},
      {.key = "efficiency_pct", .title = "efficiency %", .digits = 1},
      {.key = "estimated_efficiency_pct", .title = "estimated", .json_only = !facts.has_platform, .digits = 1}};
  std::map<std::string, std::vector<const BenchEntry*>> series;
  for (const BenchEntry& e : facts.entries) {
    if (!e.tokens_per_s() || e.run.batch == 0) continue;
    BenchRun one = e.run;
    one.gpus = 1;
    series[one.id()].push_back(&e);
  }
  for (auto& [id, list] : series) {
    if (list.size() < 2) continue;
    std::stable_sort(list.begin(), list.end(),
                     [](const BenchEntry* a, const BenchEntry* b) { return a->run.gpus < b->run.gpus; });
    const BenchEntry& first = *list.front();
    const auto each = [](const BenchEntry& e, double tokens) { return tokens / static_cast<double>(e.run.gpus); };
    for (const BenchEntry* e : list) {
      std::string name = bench_series(e->run);
      name.resize(name.rfind(' '));
      std::optional<double> estimated;
      if (e->estimate.unknown.empty() && first.estimate.unknown.empty() && e->estimate.step_ms > 0)
        estimated = 100 * first.estimate.step_ms / e->estimate.step_ms;
      s.table.rows.push_back({name, letters(e->run), batch_of(*e), e->run.gpus, *e->tokens_per_s(),
                              100 * each(*e, *e->tokens_per_s()) / each(first, *first.tokens_per_s()),
                              cell(estimated)});
    }
  }
  return s;
}

Section bench_shares(const BenchFacts& facts, const std::string& level) {
  const bool phases = level == "phase", modules = level == "module";
  Section s{.key = phases    ? "phases"
                   : modules ? "modules"
                             : "classes",
            .title = phases    ? "Stages of a step (of its trace, which the profiler slows)"
                     : modules ? "Modules"
                               : "Operators",
            .table = {}};
  if (!phases && !modules) s.key = "trace_operators", s.text_rows = 30;
  s.table.columns = {{.key = "run"}, {.key = "name", .title = level}};
  if (modules) s.table.columns.push_back({.key = "phase"});
  std::unordered_set<std::int64_t> on_gpu;  // runs whose traces have work of a GPU
  for (const auto& [id, share] : facts.shares)
    if (share.gpu_ms > 0) on_gpu.insert(id);
  s.table.columns.push_back({.key = "cpu_ms", .title = "CPU ms", .digits = 2});
  s.table.columns.push_back({.key = "gpu_ms", .title = "GPU ms", .json_only = on_gpu.empty(), .digits = 2});
  s.table.columns.push_back({.key = "pct", .title = "% of the step", .digits = 1});
  if (modules) s.text_rows = 40;
  std::unordered_map<std::int64_t, std::string> names;
  for (const BenchEntry& e : facts.entries)
    if (e.row) names[e.row->id] = e.run.id();
  for (const auto& [id, share] : facts.shares) {
    const auto name = names.find(id);
    if (share.level != level || name == names.end()) continue;
    std::vector<Cell> row{name->second, share.name};
    if (modules) row.emplace_back(share.phase);
    row.insert(row.end(), {share.cpu_ms, known_cell(on_gpu.count(id) > 0, share.gpu_ms), share.pct});
    s.table.rows.push_back(std::move(row));
  }
  return s;
}

Section bench_operators(const BenchFacts& facts) {
  Section s{.key = "operators", .title = "Operators", .table = {}};
  s.table.columns = {{.key = "run", .json_only = true},
                     {.key = "operation"},
                     {.key = "shape"},
                     {.key = "us", .title = "us", .digits = 2},
                     {.key = "tflops", .title = "TFLOP/s", .digits = 3},
                     {.key = "gb_per_s", .title = "GB/s", .digits = 2}};
  s.text_rows = 60;
  std::unordered_map<std::int64_t, std::string> names;
  for (const BenchEntry& e : facts.entries)
    if (e.row) names[e.row->id] = e.run.id();
  for (const auto& [id, o] : facts.operators)
    if (const auto name = names.find(id); name != names.end())
      s.table.rows.push_back({name->second, o.operation, o.shape, cell(o.us), cell(o.tflops), cell(o.gb_per_s)});
  return s;
}

Section bench_noise(const BenchFacts& facts) {
  const NoiseCheck n = noise_of(facts.rows);
  Section s{.key = "noise", .title = "", .single = true, .table = {}};
  s.table.columns = {{.key = "reference"}, {.key = "repetitions"}, {.key = "noise_pct"},
                     {.key = "drift_pct"}, {.key = "drifts"},      {.key = "median_ms"}};
  if (n.series.size() < 2) return s;
  s.title = "The reference, run again";
  std::vector<double> medians;
  for (const RunRow& r : n.series) medians.push_back(r.step_ms.median);
  for (Column& c : s.table.columns) c.digits = 2;
  s.table.rows.push_back({n.series.front().run, static_cast<std::int64_t>(n.series.size() - 1), 100 * n.noise,
                          100 * n.drift, n.drifts, medians});
  return s;
}

Section bench_environments(const BenchFacts& facts) {
  Section s{.key = "environments", .title = "Environments", .table = {}};
  s.table.columns = {{.key = "environment", .title = "#"},
                     {.key = "runs"},
                     {.key = "host"},
                     {.key = "cpu"},
                     {.key = "cores"},
                     {.key = "gpus"},
                     {.key = "driver"},
                     {.key = "torch"},
                     {.key = "python"},
                     {.key = "orrery"},
                     {.key = "commit"},
                     {.key = "json", .json_only = true}};
  std::map<std::int64_t, std::int64_t> runs;
  for (const RunRow& r : facts.rows) ++runs[r.environment];
  for (const auto& [id, text] : facts.environments) {
    const auto j = nlohmann::json::parse(text, nullptr, false);
    if (!j.is_object()) continue;
    const auto of = [](const nlohmann::json& from, const char* key) -> Cell {
      if (!from.is_object()) return {};
      const auto it = from.find(key);
      if (it == from.end() || it->is_null()) return {};
      if (it->is_string()) return it->get<std::string>();
      if (it->is_number_integer()) return it->get<std::int64_t>();
      return it->dump();
    };
    const nlohmann::json worker = j.value("worker", nlohmann::json());
    std::string gpus;
    if (j.contains("gpus") && j["gpus"].is_array() && !j["gpus"].empty())
      gpus = fmt::format("{} x {}", j["gpus"].size(), j["gpus"][0].is_string() ? j["gpus"][0].get<std::string>() : "?");
    s.table.rows.push_back({id, runs[id], of(j, "host"), of(j, "cpu"), of(j, "cores"),
                            gpus.empty() ? Cell() : Cell(gpus), of(j, "driver"), of(worker, "torch"),
                            of(worker, "python"), of(j, "orrery"), of(j, "commit"), text});
  }
  return s;
}

Section bench_compared(const BenchFacts& facts, bool operators) {
  Section s{.key = "compared", .title = "Against the older store (ms of a step)", .table = {}};
  s.table.columns = {{.key = "run"}};
  if (operators) {
    s.key = "compared_operators", s.title = "Operators against the older store (us)", s.text_rows = 60;
    s.table.columns.insert(s.table.columns.end(), {{.key = "operation"}, {.key = "shape"}});
  }
  const double unit = operators ? 1e3 : 1;
  s.table.columns.insert(s.table.columns.end(), {{.key = "change"},
                                                 {.key = operators ? "old_us" : "old_ms", .title = "old", .digits = 2},
                                                 {.key = operators ? "new_us" : "new_ms", .title = "new", .digits = 2},
                                                 {.key = "change_pct", .title = "change %", .digits = 1},
                                                 {.key = "allowed_pct", .title = "noise %", .digits = 1}});
  const auto weight = [](Change c) {
    return c == Change::slower || c == Change::fails_now ? 0 : c == Change::same ? 2 : 1;
  };
  std::vector<ComparedRun> rows;
  std::copy_if(facts.compared.begin(), facts.compared.end(), std::back_inserter(rows),
               [&](const ComparedRun& c) { return c.operation.empty() != operators; });
  std::stable_sort(rows.begin(), rows.end(), [&](const ComparedRun& a, const ComparedRun& b) {
    if (weight(a.change) != weight(b.change)) return weight(a.change) < weight(b.change);
    return a.change_pct > b.change_pct;
  });
  for (const ComparedRun& c : rows) {
    const bool both = c.old_ms && c.new_ms;
    std::vector<Cell> row{c.run};
    if (operators) row.insert(row.end(), {c.operation, c.shape});
    row.insert(row.end(),
               {std::string(name_of(c.change)), known_cell(c.old_ms.has_value(), unit * c.old_ms.value_or(0)),
                known_cell(c.new_ms.has_value(), unit * c.new_ms.value_or(0)), known_cell(both, c.change_pct),
                known_cell(both, c.allowed_pct)});
    s.table.rows.push_back(std::move(row));
  }
  return s;
}

}  // namespace orrery
