// Everything `orrery predict` answers: the iteration as it is and as it would be, with an interval, the classes of
// time, every rank, and why (the critical path before and after).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "reports/predict_parts.h"

namespace orrery {
namespace {

struct Side {
  double iteration = 0;                  // ms
  std::array<double, 5> classes{};       // ms a step, mean over ranks and steps
  std::map<std::uint32_t, double> rank;  // row of ranks -> ms a step
};

std::vector<StepTimes> step_times(const ExecGraph& g, const Replay& r, const StepRows& rows) {
  std::vector<StepTimes> times(rows.size());
  const DeviceTasks tasks = device_tasks(g);
  DeviceRuns device;
  for (std::uint32_t k = 0; k < g.ranks.size(); ++k) {
    look_at_device(g, r, tasks, k, device);
    add_step_times(g, r, device, rows, times);
  }
  return times;
}

Side look_at(const ExecGraph& g, const std::vector<StepTimes>& times, bool measured) {
  Side side;
  std::map<std::int64_t, double> longest;
  std::map<std::uint32_t, int> steps;
  for (const StepTimes& t : times) {
    const Step& s = g.steps[t.step];
    const double ms = to_ms(measured ? t.measured : t.replayed);
    longest[s.number] = std::max(longest[s.number], ms);
    side.rank[s.rank] += ms;
    ++steps[s.rank];
    const ClassTimes& c = measured ? t.measured_classes : t.replayed_classes;
    const std::array<Ns, 5> parts{c.exposed_compute, c.overlapped, c.exposed_comm, c.other, c.memory};
    for (std::size_t p = 0; p < parts.size(); ++p)
      side.classes[p] += to_ms(parts[p]) / static_cast<double>(times.size());
  }
  for (const auto& [number, ms] : longest) side.iteration += ms / static_cast<double>(longest.size());
  for (auto& [rank, ms] : side.rank) ms /= steps[rank];
  return side;
}

constexpr std::array<const char*, 5> kClasses = {"exposed_compute_ms", "overlapped_ms", "exposed_comm_ms", "other_ms",
                                                 "memory_ms"};

// Sums of the critical path by kind and name, ms a step.
std::map<std::pair<std::string, std::string>, double> path_sums(const TraceSet& traces, const ExecGraph& g,
                                                                const Replay& r, const StepRows& rows) {
  std::map<std::pair<std::string, std::string>, double> out;
  const auto paths = critical_paths(g, r, rows);
  const Section s = critical_path_section(traces, g, paths);
  for (const auto& row : s.table.rows)  // kind, rank, name, ms, pct
    out[{std::get<std::string>(row[0]), diff_name(std::get<std::string>(row[2]))}] +=
        std::get<double>(row[3]) / static_cast<double>(paths.size());
  return out;
}

// Communication of which waiting and transfer cannot be told apart, ms a step and rank.
double unknown_waiting(const GraphBuild& build) {
  const Communication& c = build.communication;
  double sum = 0;
  for (const CommRow& row : c.rows)
    if (row.transfer < 0 && row.launched) sum += to_ms(row.end - row.start);
  for (const Meeting& m : c.meetings) {
    if (m.missing == 0) continue;
    for (std::uint32_t k = 0; k < m.members; ++k) {
      const CommRow& row = c.rows[c.members[m.first + k].row];
      sum += to_ms(row.end - row.start) / m.members;
    }
  }
  return build.graph.steps.empty() ? 0 : sum / static_cast<double>(build.graph.steps.size());
}

Cell cell_of(const std::optional<std::int64_t>& x) { return x ? Cell{*x} : Cell{}; }
Cell cell_of(const std::optional<double>& x) { return x ? Cell{*x} : Cell{}; }

void add_throughput(Section& s, const Throughput& t) {
  add_column(s, {.key = "gpus"}, cell_of(t.gpus));
  add_column(s, {.key = "global_batch_size"}, cell_of(t.global_batch));
  add_column(s, {.key = "tokens_per_s"}, cell_of(t.tokens_per_s));
  add_column(s, {.key = "tokens_per_gpu_s"},
             t.tokens_per_s ? Cell{*t.tokens_per_s / static_cast<double>(*t.gpus)} : Cell{});
}

// What is asked for first, before and after.
Section summary_for_people(const Side& before, double measured, const Side& after, double half, const Throughput& was,
                           const Throughput& now) {
  Section s{.key = "summary", .title = "Predicted", .table = {}};
  s.table.columns = {{.key = "of a step", .text_only = true},
                     {.key = "base, replayed", .text_only = true},
                     {.key = "predicted", .text_only = true},
                     {.key = "change %", .text_only = true, .digits = 2}};
  const auto row = [&](const std::string& name, const Cell& a, const Cell& b) {
    const auto value = [](const Cell& c) {
      if (const auto* i = std::get_if<std::int64_t>(&c)) return static_cast<double>(*i);
      const auto* x = std::get_if<double>(&c);
      return x != nullptr ? *x : 0.0;
    };
    const double x = value(a), y = value(b);
    s.table.rows.push_back({name, a, b, x > 0 && y > 0 ? Cell{100 * (y / x - 1)} : Cell{std::string()}});
  };
  row("iteration ms", before.iteration, after.iteration);
  row("+- ms (90 %)", std::string(), half);
  row("measured ms", measured, std::string());
  row("GPUs", cell_of(was.gpus), cell_of(now.gpus));
  row("global batch size (sequences)", cell_of(was.global_batch), cell_of(now.global_batch));
  const auto rounded = [](const std::optional<double>& x) {
    return x ? Cell{static_cast<std::int64_t>(std::llround(*x))} : Cell{};
  };
  row("tokens/s", rounded(was.tokens_per_s), rounded(now.tokens_per_s));
  for (std::size_t c = 0; c < kClasses.size(); ++c) {
    std::string name = kClasses[c];
    std::replace(name.begin(), name.end(), '_', ' ');
    row(name, before.classes[c], after.classes[c]);
  }
  return s;
}

}  // namespace

Result<Document> predict_document(const TraceSet& traces, const GraphBuild& base, const Replay& before,
                                  const GraphBuild& changed, const Replay& after, const std::vector<AppliedEdit>& edits,
                                  const PredictReportOptions& options) {
  const auto rows = select_steps(base.graph, options.steps);
  if (!rows) return tl::unexpected(rows.error());
  const std::vector<StepTimes> times = step_times(base.graph, before, *rows);
  const Side measured = look_at(base.graph, times, true), replayed = look_at(base.graph, times, false);
  const auto new_rows = select_steps(changed.graph, options.steps);
  if (!new_rows) return tl::unexpected(new_rows.error());
  const Side predicted = look_at(changed.graph, step_times(changed.graph, after, *new_rows), false);

  Document d;
  d.command = "predict";
  d.notes = traces.notes;
  for (const RankTrace& t : traces.ranks) d.notes.merge(t.notes);
  d.notes.merge(base.notes);
  note_unexplained_idle(base.graph, base.quality, d.notes);
  const double unknown = unknown_waiting(base);
  if (unknown > 0.005 * measured.iteration)
    d.notes.add(
        "waiting-unknown", Severity::warning, 1, std::to_string(std::llround(unknown * 1000)) + " us a step and rank",
        "communication whose partners have no trace here keeps its measured waiting, whatever changes: give all "
        "ranks of the job; the interval is widened by it");

  Section applied{.key = "edits", .title = "", .table = {}};
  applied.table.columns = {
      {.key = "name"}, {.key = "value"}, {.key = "nodes_changed"}, {.key = "edges_changed"}, {.key = "assumes"}};
  for (const AppliedEdit& e : edits) {
    applied.table.rows.push_back({e.edit.name, e.edit.value, static_cast<std::int64_t>(e.changed.nodes),
                                  static_cast<std::int64_t>(e.changed.edges), e.assumes});
    if (e.changed.nodes == 0 && e.changed.edges == 0)
      d.notes.add("edit-without-effect", Severity::info, 1,
                  e.edit.name + (e.edit.value.empty() ? "" : " " + e.edit.value),
                  "the edit changes nothing in this job");
  }

  Section baseline{.key = "baseline", .title = "", .single = true, .table = {}};
  Section result{.key = "predicted", .title = "", .single = true, .table = {}};
  const Doubt interval = interval_of(edits, measured.iteration, replayed.iteration, predicted.iteration, unknown);
  const double half = interval.total();
  const auto add = add_column;
  add(baseline, {.key = "iteration_ms"}, replayed.iteration);
  add(baseline, {.key = "iteration_measured_ms"}, measured.iteration);
  add(result, {.key = "iteration_ms"}, predicted.iteration);
  add(result, {.key = "interval_ms"},
      std::vector<double>{std::max(0.0, predicted.iteration - half), predicted.iteration + half});
  add(result, {.key = "interval_half_ms"}, half);
  const Throughput was = throughput_of(options.layout, options.shape, replayed.iteration);
  const Throughput now =
      throughput_of(options.new_layout != nullptr ? options.new_layout : options.layout,
                    options.new_shape != nullptr ? options.new_shape : options.shape, predicted.iteration);
  add_throughput(baseline, was);
  add_throughput(result, now);
  for (std::size_t c = 0; c < kClasses.size(); ++c) {
    add(baseline, {.key = std::string("breakdown.") + kClasses[c]}, replayed.classes[c]);
    add(result, {.key = std::string("breakdown.") + kClasses[c]}, predicted.classes[c]);
  }
  Section memory{.key = "predicted.memory_gib_per_gpu",
                 .title = "Memory of a GPU of the fullest stage (GiB)",
                 .single = true,
                 .table = {}};
  if (options.memory != nullptr) {
    const MemoryParts& m = *options.memory;
    add(memory, {.key = "weights"}, m.weights);
    add(memory, {.key = "gradients"}, m.gradients);
    add(memory, {.key = "optimizer"}, m.optimizer);
    add(memory, {.key = "activations"}, m.activations);
    add(memory, {.key = "workspace"}, m.workspace);
    add(memory, {.key = "total"}, m.total);
    add(memory, {.key = "capacity"}, options.capacity_gib > 0 ? Cell{options.capacity_gib} : Cell{});
    const bool known = options.capacity_gib > 0;
    const bool fits = m.total <= options.capacity_gib;
    add(result, {.key = "fits"}, known ? Cell{fits} : Cell{});
    if (known && !fits)
      d.notes.add("does-not-fit", Severity::warning, 1,
                  fmt::format("{:.1f} GiB of {:.1f}", m.total, options.capacity_gib),
                  "a GPU does not have the memory for this configuration; the time is what it would take if it had");
  } else {
    add(result, {.key = "memory_gib_per_gpu", .json_only = true}, Cell{});
    add(result, {.key = "fits", .json_only = true}, Cell{});
  }

  Section ranks{.key = "predicted.per_rank", .title = "By rank (ms a step)", .table = {}};
  ranks.text_rows = 16;
  ranks.table.columns = {{.key = "rank"}, {.key = "iteration_ms"}, {.key = "baseline_ms"}};
  std::map<std::int64_t, double> earlier;
  for (const auto& [rank, ms] : replayed.rank) earlier[base.graph.ranks[rank].rank] = ms;
  for (const auto& [rank, ms] : predicted.rank) {
    const auto it = earlier.find(changed.graph.ranks[rank].rank);
    ranks.table.rows.push_back({changed.graph.ranks[rank].rank, ms, it == earlier.end() ? Cell{} : Cell{it->second}});
  }
  std::sort(ranks.table.rows.begin(), ranks.table.rows.end(),
            [](const auto& a, const auto& b) { return std::get<std::int64_t>(a[0]) < std::get<std::int64_t>(b[0]); });

  Section layout = layout_section(options);
  if (options.layout != nullptr)
    for (const std::string& why : options.layout->doubts)
      d.notes.add("layout-inferred", Severity::info, 1, why, "the traces do not say it: told from what they do");

  Section top{.key = "", .title = "", .single = true, .table = {}};
  add(top, {.key = "speedup"}, predicted.iteration > 0 ? Cell{replayed.iteration / predicted.iteration} : Cell{});

  Section explain{.key = "explain", .title = "Why: the critical path before and after (ms a step)", .table = {}};
  explain.text_rows = options.explain ? 0 : 12;
  explain.table.columns = {
      {.key = "kind"}, {.key = "name"}, {.key = "before_ms"}, {.key = "after_ms"}, {.key = "delta_ms"}};
  const auto sums = path_sums(traces, base.graph, before, *rows);
  const auto later =
      path_sums(options.new_traces != nullptr ? *options.new_traces : traces, changed.graph, after, *new_rows);
  std::map<std::pair<std::string, std::string>, std::array<double, 2>> both;
  for (const auto& [key, ms] : sums) both[key][0] = ms;
  for (const auto& [key, ms] : later) both[key][1] = ms;
  std::vector<std::pair<std::pair<std::string, std::string>, std::array<double, 2>>> order(both.begin(), both.end());
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::abs(a.second[1] - a.second[0]) > std::abs(b.second[1] - b.second[0]);
  });
  for (const auto& [key, ms] : order)
    explain.table.rows.push_back({key.first, key.second, ms[0], ms[1], ms[1] - ms[0]});

  if (options.search != nullptr) {
    d.sections.push_back(candidates_section(*options.search, options.capacity_gib, d.notes));
    d.sections.push_back(winner_for_people(*options.search));
  }
  Section summary = summary_for_people(replayed, measured.iteration, predicted, half, was, now);
  if (options.memory != nullptr) {
    const MemoryParts& m = *options.memory;
    summary.table.rows.push_back({"GiB a GPU", std::string(), m.total, std::string()});
    if (options.capacity_gib > 0)
      summary.table.rows.push_back({"fits", std::string(), m.total <= options.capacity_gib, std::string()});
  }
  d.sections.push_back(std::move(summary));
  Section causes = interval_section(interval), causes_for_people = causes;  // programs find it beside the prediction
  causes.title.clear();
  causes_for_people.key = "interval";
  for (Column& c : causes_for_people.table.columns) c.text_only = true;
  d.sections.push_back(std::move(causes_for_people));
  d.sections.push_back(edits_for_people(edits));
  d.sections.push_back(std::move(applied));
  if (options.stragglers != nullptr) d.sections.push_back(*options.stragglers);
  if (options.layout != nullptr) d.sections.push_back(layout_for_people(layout));
  d.sections.push_back(std::move(layout));
  d.sections.push_back(std::move(baseline));
  d.sections.push_back(std::move(result));
  d.sections.push_back(std::move(causes));
  if (options.memory != nullptr) d.sections.push_back(std::move(memory));
  d.sections.push_back(std::move(top));
  d.sections.push_back(std::move(ranks));
  d.sections.push_back(std::move(explain));
  return d;
}

}  // namespace orrery
