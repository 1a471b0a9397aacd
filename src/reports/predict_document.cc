// Everything `orrery predict` answers: the iteration as it is and as it would be, with an interval, the classes of
// time, every rank, and why (the critical path before and after).
//
// Interval (90%): the replay's own error on the run as it was, and for each edit a share of the time that it changed,
// the more the less the trace tells of it (AppliedEdit::doubt), and of edits of the layout a share of the whole;
// independent, so squares add up. Never under 0.5% of the prediction.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "reports/reports.h"
#include "whatif/target.h"

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

// The best first; those that could not be put together are counted.
Section candidates_section(const SearchResult& found, double capacity, Notes& notes) {
  Section s{.key = "candidates", .title = "Layouts, the fastest that fit first", .table = {}};
  s.text_rows = 24;
  s.table.columns = {{.key = "layout.tp", .title = "tp"},
                     {.key = "layout.pp", .title = "pp"},
                     {.key = "layout.dp", .title = "dp"},
                     {.key = "layout.micro_batch_size", .title = "micro-batch size"},
                     {.key = "layout.num_microbatches", .title = "micro-batches"},
                     {.key = "layout.schedule", .title = "schedule"},
                     {.key = "iteration_ms"},
                     {.key = "interval_ms", .json_only = true},
                     {.key = "interval_half_ms", .title = "+- ms"},
                     {.key = "memory_gib_per_gpu.weights", .json_only = true},
                     {.key = "memory_gib_per_gpu.gradients", .json_only = true},
                     {.key = "memory_gib_per_gpu.optimizer", .json_only = true},
                     {.key = "memory_gib_per_gpu.activations", .json_only = true},
                     {.key = "memory_gib_per_gpu.workspace", .json_only = true},
                     {.key = "memory_gib_per_gpu.total", .title = "GiB a GPU"},
                     {.key = "memory_gib_per_gpu.capacity", .json_only = true},
                     {.key = "fits"}};
  for (const Candidate& c : found.candidates) {
    if (!c.why_not.empty()) {
      notes.add("candidate-left-out", Severity::info, 1, c.why_not, "a layout that could not be put together");
      continue;
    }
    const JobLayout& l = c.shape.layout;
    s.table.rows.push_back(
        {l.tp, l.pp, l.dp, static_cast<std::int64_t>(c.shape.dims.mbs), l.num_microbatches, schedule_text(c.shape),
         c.iteration_ms, std::vector<double>{c.iteration_ms - c.half_ms, c.iteration_ms + c.half_ms}, c.half_ms,
         c.memory.weights, c.memory.gradients, c.memory.optimizer, c.memory.activations, c.memory.workspace,
         c.memory.total, capacity > 0 ? Cell{capacity} : Cell{}, capacity > 0 ? Cell{c.fits} : Cell{}});
  }
  if (found.left_out > 0)
    notes.add("candidates-left-out", Severity::warning, found.left_out, "",
              "more layouts than are tried: give max-tp, max-pp or max-dp");
  return s;
}

// The configuration before and after side by side.
Section layout_for_people(const Section& layout) {
  Section s{.key = "layout", .title = "Configuration", .table = {}};
  s.table.columns = {
      {.key = "of the job", .text_only = true}, {.key = "base", .text_only = true}, {.key = "new", .text_only = true}};
  const auto& columns = layout.table.columns;
  const auto find = [&](const std::string& key) -> Cell {
    for (std::size_t c = 0; c < columns.size(); ++c)
      if (columns[c].key == key) return layout.table.rows.front()[c];
    return {};
  };
  for (const Column& c : columns) {
    if (!c.key.starts_with("base.")) continue;
    std::string name = c.key.substr(5);
    const Cell before = find(c.key), after = find("new." + name);
    if ((name == "cp" || name == "ep") && before == Cell{std::int64_t{1}} && after == before) continue;
    std::replace(name.begin(), name.end(), '_', ' ');
    s.table.rows.push_back({name, before, after});
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

  Section applied{.key = "edits", .title = "Edits", .table = {}};
  applied.table.columns = {
      {.key = "name"}, {.key = "value"}, {.key = "nodes_changed"}, {.key = "edges_changed"}, {.key = "assumes"}};
  double doubt = 0, floor = 0;
  for (const AppliedEdit& e : edits) {
    applied.table.rows.push_back({e.edit.name, e.edit.value, static_cast<std::int64_t>(e.changed.nodes),
                                  static_cast<std::int64_t>(e.changed.edges), e.assumes});
    if (e.changed.nodes != 0 || e.changed.edges != 0) {  // what changed nothing is not in doubt
      doubt += e.doubt * e.doubt;
      floor += e.floor * e.floor;
    }
    if (e.changed.nodes == 0 && e.changed.edges == 0)
      d.notes.add("edit-without-effect", Severity::info, 1,
                  e.edit.name + (e.edit.value.empty() ? "" : " " + e.edit.value),
                  "the edit changes nothing in this job");
  }

  Section baseline{.key = "baseline", .title = "Baseline (as replayed)", .single = true, .table = {}};
  Section result{.key = "predicted", .title = "Predicted", .single = true, .table = {}};
  const auto add = [](Section& s, Column column, Cell cell) {
    s.table.columns.push_back(std::move(column));
    if (s.table.rows.empty()) s.table.rows.emplace_back();
    s.table.rows.front().push_back(std::move(cell));
  };
  const double own = std::abs(replayed.iteration - measured.iteration);
  const double moved = std::abs(predicted.iteration - replayed.iteration);
  const double half =
      std::max(0.005 * predicted.iteration,
               std::sqrt(own * own + doubt * moved * moved + floor * predicted.iteration * predicted.iteration +
                         (moved > 0 ? unknown * unknown : 0)));
  add(baseline, {.key = "iteration_ms"}, replayed.iteration);
  add(baseline, {.key = "iteration_measured_ms"}, measured.iteration);
  for (std::size_t c = 0; c < kClasses.size(); ++c)
    add(baseline, {.key = std::string("breakdown.") + kClasses[c]}, replayed.classes[c]);
  add(result, {.key = "iteration_ms"}, predicted.iteration);
  add(result, {.key = "speedup", .text_only = true},
      predicted.iteration > 0 ? Cell{replayed.iteration / predicted.iteration} : Cell{});
  add(result, {.key = "interval_ms", .json_only = true},
      std::vector<double>{std::max(0.0, predicted.iteration - half), predicted.iteration + half});
  add(result, {.key = "interval_half_ms", .title = "+- ms (90 %)"}, half);
  for (std::size_t c = 0; c < kClasses.size(); ++c)
    add(result, {.key = std::string("breakdown.") + kClasses[c]}, predicted.classes[c]);
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
  std::map<std::int64_t, double> was;
  for (const auto& [rank, ms] : replayed.rank) was[base.graph.ranks[rank].rank] = ms;
  for (const auto& [rank, ms] : predicted.rank) {
    const auto it = was.find(changed.graph.ranks[rank].rank);
    ranks.table.rows.push_back({changed.graph.ranks[rank].rank, ms, it == was.end() ? Cell{} : Cell{it->second}});
  }
  std::sort(ranks.table.rows.begin(), ranks.table.rows.end(),
            [](const auto& a, const auto& b) { return std::get<std::int64_t>(a[0]) < std::get<std::int64_t>(b[0]); });

  Section layout{.key = "layout", .title = "", .single = true, .table = {}};
  const auto add_layout = [&](const std::string& side, const JobLayout& l, bool with_confidence) {
    add(layout, {.key = side + ".tp"}, l.tp);
    add(layout, {.key = side + ".pp"}, l.pp);
    add(layout, {.key = side + ".dp"}, l.dp);
    add(layout, {.key = side + ".cp"}, l.cp);
    add(layout, {.key = side + ".ep"}, l.ep);
    add(layout, {.key = side + ".num_microbatches"}, l.num_microbatches > 0 ? Cell{l.num_microbatches} : Cell{});
    add(layout, {.key = side + ".layers"}, l.layers > 0 ? Cell{l.layers} : Cell{});
    add(layout, {.key = side + ".distributed_optimizer"}, l.distributed_optimizer);
    if (with_confidence) add(layout, {.key = side + ".confidence", .digits = 2}, l.confidence);
  };
  const auto add_shape = [&](const std::string& side, const JobShape* shape) {
    if (shape == nullptr) return;
    const Dims& m = shape->dims;
    for (const auto& [key, value] : std::initializer_list<std::pair<const char*, double>>{{"hidden", m.hidden},
                                                                                          {"ffn", m.ffn},
                                                                                          {"heads", m.heads},
                                                                                          {"kv_heads", m.kv_heads},
                                                                                          {"head_dim", m.head_dim},
                                                                                          {"seq_length", m.seq},
                                                                                          {"micro_batch_size", m.mbs},
                                                                                          {"vocab", m.vocab}})
      add(layout, {.key = side + "." + key}, value > 0 ? Cell{static_cast<std::int64_t>(std::llround(value))} : Cell{});
    add(layout, {.key = side + ".schedule"}, schedule_text(*shape));
    add(layout, {.key = side + ".recompute"}, std::string(name_of(shape->recompute)));
    add(layout, {.key = side + ".sequence_parallel"}, m.sequence_parallel);
    add(layout, {.key = side + ".gpus_per_node"}, shape->layout.gpus_per_node);
  };
  if (options.layout != nullptr) {
    add_layout("base", *options.layout, true);
    add_shape("base", options.shape);
    add_layout("new", options.new_layout != nullptr ? *options.new_layout : *options.layout, false);
    add_shape("new", options.new_shape != nullptr ? options.new_shape : options.shape);
    for (const std::string& why : options.layout->doubts)
      d.notes.add("layout-inferred", Severity::info, 1, why, "the traces do not say it: told from what they do");
  }

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

  d.sections.push_back(std::move(applied));
  if (options.layout != nullptr) d.sections.push_back(layout_for_people(layout));
  d.sections.push_back(std::move(layout));
  d.sections.push_back(std::move(baseline));
  d.sections.push_back(std::move(result));
  if (options.memory != nullptr) d.sections.push_back(std::move(memory));
  d.sections.push_back(std::move(top));
  if (options.search != nullptr)
    d.sections.push_back(candidates_section(*options.search, options.capacity_gib, d.notes));
  d.sections.push_back(std::move(ranks));
  d.sections.push_back(std::move(explain));
  return d;
}

}  // namespace orrery
