// Stragglers
//   rank  host  kind     slower %  cost ms  cost %  stage  of
//      6  n/a   compute     72.50  401.200   18.1      3  stage
//
// Slow stages (compared with the other stages: one row for each of their ranks, `of` says "stage") and slow ranks of a
// stage (compared with its other ranks, "rank"); src/whatif/pipeline_steps.h says how they are told. Cost: what the
// iteration would be shorter by if the passes of the whole stage, or of the rank, took the ideal time of their type.
//
// Slowdown: the steps without launch delays (lags between operations on a rank), over the same with every operation at
// the ideal time of its type. By step, and by part: only that part of the job is as measured, the rest ideal. A part
// can be below 1: faster than the ideal, which is a mean over all. With launch delays: the steps as replayed over the
// ideal without delays.
#include "reports/pipeline_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/median.h"
#include "whatif/pipeline_steps.h"

namespace orrery {
namespace {

double mean(const std::vector<Ns>& v) {
  double sum = 0;
  for (const Ns t : v) sum += static_cast<double>(t);
  return v.empty() ? 0 : sum / static_cast<double>(v.size());
}
double middle(const std::vector<Ns>& v) { return v.empty() ? 0 : static_cast<double>(median(v)); }
double ratio(double a, double b) { return b > 0 ? a / b : 0; }

void add_cell(Section& s, Column column, Cell cell) {
  s.table.columns.push_back(std::move(column));
  if (s.table.rows.empty()) s.table.rows.emplace_back();
  s.table.rows.front().push_back(std::move(cell));
}

Section* find_section(Document& d, std::string_view key) {
  for (Section& s : d.sections)
    if (s.key == key) return &s;
  return nullptr;
}

// Runs the job with rows for which `ideal` holds at their ideal time.
class Trial {
 public:
  Trial(const PipelineView& view, const StepRows& rows, bool launch_delays)
      : view_(view), rows_(rows), ideal_(ideal_times(view.trace, view.run.program, view.settled)) {
    built_.build.graph = view.built.build.graph;
    built_.node_of_row = view.built.node_of_row;
    if (!launch_delays) drop_launch_delays(built_.build.graph);
  }
  std::vector<Ns> operator()(const std::function<bool(const PipelineRow&)>& ideal) {
    program_.rows = view_.run.program.rows;
    make_ideal(ideal_, ideal, program_);
    refresh_durations(program_, built_);
    replay(built_.build.graph, replay_);
    return iterations(built_.build.graph, &replay_, rows_);
  }

 private:
  const PipelineView& view_;
  const StepRows& rows_;
  std::vector<Ns> ideal_;
  PipelineBuild built_;
  PipelineProgram program_;
  Replay replay_;
};

}  // namespace

Section pipeline_stragglers_section(const PipelineView& v, const StepRows& rows) {
  Section s{.key = "stragglers", .title = "", .table = {}};
  s.table.columns = {{.key = "rank"},
                     {.key = "host"},
                     {.key = "kind"},
                     {.key = "slower_pct", .title = "slower %", .digits = 2},
                     {.key = "cost_ms", .title = "cost ms"},
                     {.key = "cost_pct", .title = "cost %", .digits = 2},
                     {.key = "stage"},
                     {.key = "of"}};
  const std::vector<SlowPart> slow = find_slow_parts(v.trace, v.run.program, v.settled);
  if (slow.empty()) return s;
  s.title = "Stragglers (cost: what the iteration would be shorter by without the slow stage, or rank)";
  s.text_rows = 16;
  const double with = mean(iterations(v.built.build.graph, &v.replay, rows));
  Trial without(v, rows, true);
  for (const SlowPart& part : slow) {
    const double saved = with - mean(without([&](const PipelineRow& r) {
                           return is_pass(v.trace.types[r.type].kind) &&
                                  (part.rank == kNone ? v.trace.ranks[r.rank].pp == part.stage : r.rank == part.rank);
                         }));
    for (std::uint32_t k = 0; k < v.trace.ranks.size(); ++k) {
      if (part.rank == kNone ? v.trace.ranks[k].pp != part.stage : k != part.rank) continue;
      s.table.rows.push_back({v.trace.ranks[k].rank, Cell{}, std::string("compute"), 100 * (part.slower - 1),
                              saved / 1e6, percent(saved, with), std::int64_t{part.stage},
                              std::string(part.rank == kNone ? "stage" : "rank")});
    }
  }
  return s;
}

namespace {

void add_slowdowns(const PipelineView& v, const StepRows& rows, Document& d) {
  const PipelineTrace& t = v.trace;
  const std::vector<Ns> replayed = iterations(v.built.build.graph, &v.replay, rows);
  Trial trial(v, rows, false);
  const std::vector<Ns> base = trial([](const PipelineRow&) { return false; });
  const std::vector<Ns> ideal = trial([](const PipelineRow&) { return true; });

  Section all{.key = "slowdown", .title = "Slowdown by stragglers", .single = true, .table = {}};
  add_cell(all, {.key = "iteration_ms"}, mean(replayed) / 1e6);
  add_cell(all, {.key = "no_launch_delay_ms"}, mean(base) / 1e6);
  add_cell(all, {.key = "no_straggler_ms"}, mean(ideal) / 1e6);
  add_cell(all, {.key = "slowdown", .digits = 4}, ratio(mean(base), mean(ideal)));
  add_cell(all, {.key = "slowdown_with_launch_delays", .digits = 4}, ratio(mean(replayed), mean(ideal)));

  Section by_step{.key = "slowdown_by_step", .title = "Slowdown by step", .table = {}};
  by_step.text_rows = 4;
  by_step.table.columns = {
      {.key = "step"}, {.key = "no_launch_delay_ms"}, {.key = "no_straggler_ms"}, {.key = "slowdown", .digits = 4}};
  const ExecGraph& g = v.built.build.graph;
  std::size_t at = 0;
  for (std::size_t k = 0; k < rows.size(); ++k) {
    if (k > 0 && g.steps[rows[k]].number == g.steps[rows[k - 1]].number) continue;
    by_step.table.rows.push_back({g.steps[rows[k]].number, to_ms(base[at]), to_ms(ideal[at]),
                                  ratio(static_cast<double>(base[at]), static_cast<double>(ideal[at]))});
    ++at;
  }

  const auto by_part = [&](const char* key, const char* title, const char* column) {
    Section s{.key = key, .title = title, .table = {}};
    s.table.columns = {{.key = column}, {.key = "slowdown", .digits = 4}};
    return s;
  };
  const auto only = [&](const std::function<bool(const PipelineRow&)>& measured) {
    return ratio(mean(trial([&](const PipelineRow& r) { return !measured(r); })), mean(ideal));
  };
  Section stages = by_part("slowdown_by_stage", "Slowdown by stage (all others ideal)", "stage");
  std::set<std::int32_t> pp, dp;
  for (const PipelineRank& r : t.ranks) pp.insert(r.pp), dp.insert(r.dp);
  for (const std::int32_t p : pp)
    stages.table.rows.push_back({std::int64_t{p}, only([&](const PipelineRow& r) { return t.ranks[r.rank].pp == p; })});
  Section groups = by_part("slowdown_by_dp_rank", "Slowdown by data-parallel rank (all others ideal)", "dp_rank");
  groups.text_rows = 16;
  if (dp.size() < 2) dp.clear();
  for (const std::int32_t k : dp)
    groups.table.rows.push_back({std::int64_t{k}, only([&](const PipelineRow& r) { return t.ranks[r.rank].dp == k; })});
  Section types = by_part("slowdown_by_operation", "Slowdown by operation (all others ideal)", "operation");
  types.table.columns.push_back({.key = "ideal_ms"});
  types.table.columns.push_back({.key = "mean_ms"});
  const std::vector<Ns> times = ideal_times(t, v.run.program, v.settled);
  for (std::uint32_t k = 0; k < t.types.size(); ++k) {
    std::vector<Ns> lengths;
    for (const PipelineRow& r : v.run.program.rows)
      if (r.type == k) lengths.push_back(r.duration);
    types.table.rows.push_back({t.types[k].name, only([&](const PipelineRow& r) { return r.type == k; }),
                                to_ms(times[k]), mean(lengths) / 1e6});
  }
  std::stable_sort(types.table.rows.begin(), types.table.rows.end(),
                   [](const auto& a, const auto& b) { return std::get<double>(a[1]) > std::get<double>(b[1]); });
  d.sections.push_back(std::move(all));
  d.sections.push_back(std::move(by_step));
  d.sections.push_back(std::move(stages));
  if (!dp.empty()) d.sections.push_back(std::move(groups));
  d.sections.push_back(std::move(types));
}

}  // namespace

std::vector<Ns> iterations(const ExecGraph& g, const Replay* r, const StepRows& rows) {
  std::vector<Ns> out;
  for (std::size_t k = 0; k < rows.size();) {
    const std::int64_t number = g.steps[rows[k]].number;
    Ns longest = 0;
    for (; k < rows.size() && g.steps[rows[k]].number == number; ++k) {
      const Step& s = g.steps[rows[k]];
      const Window w = r == nullptr ? Window{s.begin, s.end} : replayed_window(*r, s);
      longest = std::max(longest, w.end - w.begin);
    }
    out.push_back(longest);
  }
  return out;
}

std::vector<std::int64_t> settled_steps(const ExecGraph& g, Notes& notes) {
  const auto rows = select_steps(g, {});
  if (!rows) return {};
  const std::vector<Ns> lengths = iterations(g, nullptr, *rows);
  if (lengths.size() < 3) return {};
  const Ns usual = median(lengths);
  std::size_t first = 0;
  while (first < lengths.size() && lengths[first] > usual + usual / 2) ++first;
  if (first == 0) return {};
  std::vector<std::int64_t> numbers;
  for (const std::uint32_t row : *rows)
    if (numbers.empty() || numbers.back() != g.steps[row].number) numbers.push_back(g.steps[row].number);
  notes.add(
      "warm-up", Severity::info, first,
      fmt::format("step {}: {:.1f} ms, the median is {:.1f} ms", numbers.front(), to_ms(lengths.front()), to_ms(usual)),
      "the first steps that take over half as long again as the median are left out; --steps can name them");
  numbers.erase(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(first));
  return numbers;
}

Status describe_pipeline(const PipelineView& v, const std::vector<std::int64_t>& steps, Document& d) {
  const ExecGraph& g = v.built.build.graph;
  const auto rows = select_steps(g, steps);
  if (!rows) return tl::unexpected(rows.error());
  if (Section* s = find_section(d, "summary")) {
    add_cell(*s, {.key = "iteration_measured_median_ms"}, middle(iterations(g, nullptr, *rows)) / 1e6);
    add_cell(*s, {.key = "iteration_replayed_median_ms"}, middle(iterations(g, &v.replay, *rows)) / 1e6);
  }
  if (Section* s = find_section(d, "ranks")) {
    for (const char* key : {"pp", "dp", "tp"}) s->table.columns.push_back({.key = key});
    for (std::size_t k = 0; k < s->table.rows.size() && k < v.trace.ranks.size(); ++k)
      for (const std::int32_t n : {v.trace.ranks[k].pp, v.trace.ranks[k].dp, v.trace.ranks[k].tp})
        s->table.rows[k].emplace_back(std::int64_t{n});
  }
  if (Section* s = find_section(d, "stragglers")) *s = pipeline_stragglers_section(v, *rows);
  add_slowdowns(v, *rows, d);
  return {};
}

Status add_medians(const ExecGraph& base, const Replay& before, const ExecGraph& changed, const Replay& after,
                   const std::vector<std::int64_t>& steps, Document& d) {
  const auto rows = select_steps(base, steps);
  if (!rows) return tl::unexpected(rows.error());
  if (Section* s = find_section(d, "baseline")) {
    add_cell(*s, {.key = "iteration_median_ms"}, middle(iterations(base, &before, *rows)) / 1e6);
    add_cell(*s, {.key = "iteration_measured_median_ms"}, middle(iterations(base, nullptr, *rows)) / 1e6);
  }
  const double was = middle(iterations(base, &before, *rows)) / 1e6;
  const double now = middle(iterations(changed, &after, *rows)) / 1e6;
  if (Section* s = find_section(d, "predicted")) add_cell(*s, {.key = "iteration_median_ms"}, now);
  if (Section* s = find_section(d, "summary"))
    s->table.rows.push_back({"median iteration ms", was, now, was > 0 ? Cell{100 * (now / was - 1)} : Cell{}});
  return {};
}

}  // namespace orrery
