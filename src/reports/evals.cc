#include "reports/evals.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace orrery {
namespace {

constexpr std::size_t kMostColumns = 64;

// "mmlu", or "mmlu[100:200]" of some of its items.
std::string piece_name(const BelievedUnits& believed, const EvalUnit& unit, const TrialPiece& piece) {
  const std::string& name = believed.datasets[static_cast<std::size_t>(unit.dataset)];
  return piece.items == unit.items ? name : fmt::format("{}[{}:{}]", name, piece.first, piece.first + piece.items);
}

std::string trial_name(std::size_t t) { return fmt::format("t{}", t + 1); }

void add_trials(const EvalConfig& config, const BelievedUnits& believed, const std::vector<EvalTrial>& trials,
                const EvalTimeline& timeline, const char* state, Document& d) {
  Section rows{.key = "trials", .title = "Trials", .table = {}};
  rows.text_rows = 40;
  rows.table.columns = {{.key = "id"},
                        {.key = "name", .json_only = true},
                        {.key = "model"},
                        {.key = "node"},
                        {.key = "gpu"},
                        {.key = "start_s", .digits = 1},
                        {.key = "loaded_s", .digits = 1},
                        {.key = "end_s", .digits = 1},
                        {.key = "state", .json_only = true},
                        {.key = "what", .text_only = true}};
  // The names of datasets as a list, then the pieces, on the rows above (writers/json.h).
  Section datasets{.key = "trials[].datasets", .title = "", .table = {}, .values = true};
  datasets.table.columns = {{.key = "name", .json_only = true}, {.key = "dataset", .json_only = true}};
  Section pieces{.key = "trials[].pieces", .title = "", .table = {}};
  pieces.table.columns = {{.key = "name", .json_only = true},
                          {.key = "dataset", .json_only = true},
                          {.key = "first", .json_only = true},
                          {.key = "items", .json_only = true},
                          {.key = "end_s", .json_only = true}};
  for (std::size_t t = 0; t < trials.size(); ++t) {
    const TrialSpan& span = timeline.trials[t];
    std::string what;
    for (std::size_t p = 0; p < trials[t].pieces.size(); ++p) {
      const TrialPiece& piece = trials[t].pieces[p];
      const EvalUnit& unit = believed.units[piece.unit];
      const std::string& name = believed.datasets[static_cast<std::size_t>(unit.dataset)];
      what += (what.empty() ? "" : " ") + piece_name(believed, unit, piece);
      datasets.table.rows.push_back({trial_name(t), name});
      pieces.table.rows.push_back({trial_name(t), name, piece.first, piece.items, span.piece_end_s[p]});
    }
    rows.table.rows.push_back({trial_name(t), trial_name(t),
                               config.models[static_cast<std::size_t>(trials[t].checkpoint)].name,
                               static_cast<std::int64_t>(span.node), static_cast<std::int64_t>(span.gpu), span.start_s,
                               span.loaded_s, span.end_s, std::string(state), what});
  }
  Section metrics{.key = "metrics", .title = "", .table = {}};
  metrics.table.columns = {{.key = "dataset", .json_only = true},
                           {.key = "items", .json_only = true},
                           {.key = "start_s", .json_only = true},
                           {.key = "end_s", .json_only = true}};
  for (const MetricSpan& m : timeline.metrics)
    metrics.table.rows.push_back(
        {believed.datasets[static_cast<std::size_t>(believed.units[m.unit].dataset)], m.items, m.start_s, m.end_s});
  d.sections.push_back(std::move(rows));
  d.sections.push_back(std::move(datasets));
  d.sections.push_back(std::move(pieces));
  d.sections.push_back(std::move(metrics));
}

// One line a GPU, a mark for what it does in the middle of each stretch; below them how many metric jobs run.
Section gantt_section(const EvalConfig& config, std::int64_t nodes, const std::vector<EvalTrial>& trials,
                      const EvalTimeline& timeline, double start_s, unsigned width) {
  Section s{.key = "gantt", .title = "Schedule (. loads, s starts, # and = infer, metric jobs by number)", .table = {}};
  s.table.columns = {{.key = "lane", .text_only = true},
                     {.key = "time", .title = fmt::format("0 s to {:.0f} s", timeline.makespan_s), .text_only = true}};
  const auto gpus = static_cast<std::size_t>(nodes * config.cluster.gpus_per_node);
  const std::size_t label =
      std::max(fmt::format("node {} gpu {}", nodes - 1, config.cluster.gpus_per_node - 1).size(), std::size_t{11});
  const std::size_t columns = std::clamp<std::size_t>(width > label + 4 ? width - label - 4 : 0, 16, kMostColumns);
  const double each = timeline.makespan_s / static_cast<double>(columns);
  std::vector<std::string> lanes(gpus, std::string(columns, ' '));
  const auto paint = [&](std::string& lane, double from, double to, char mark) {
    for (std::size_t c = 0; c < columns; ++c) {
      const double middle = each * (static_cast<double>(c) + 0.5);
      if (middle >= from && middle < to) lane[c] = mark;
    }
  };
  for (std::size_t t = 0; t < trials.size(); ++t) {
    const TrialSpan& span = timeline.trials[t];
    std::string& lane = lanes[static_cast<std::size_t>(span.node * config.cluster.gpus_per_node + span.gpu)];
    paint(lane, span.start_s, span.loaded_s, '.');
    double from = span.loaded_s + start_s;
    paint(lane, span.loaded_s, from, 's');
    for (std::size_t p = 0; p < span.piece_end_s.size(); ++p) {
      paint(lane, from, span.piece_end_s[p], p % 2 == 0 ? '#' : '=');
      from = span.piece_end_s[p];
    }
  }
  for (std::size_t g = 0; g < gpus; ++g)
    s.table.rows.push_back({fmt::format("node {} gpu {}", g / static_cast<std::size_t>(config.cluster.gpus_per_node),
                                        g % static_cast<std::size_t>(config.cluster.gpus_per_node)),
                            lanes[g]});
  std::string jobs(columns, ' ');
  for (std::size_t c = 0; c < columns; ++c) {
    const double middle = each * (static_cast<double>(c) + 0.5);
    const auto n = std::count_if(timeline.metrics.begin(), timeline.metrics.end(),
                                 [&](const MetricSpan& m) { return middle >= m.start_s && middle < m.end_s; });
    if (n > 0) jobs[c] = n > 9 ? '+' : static_cast<char>('0' + n);
  }
  s.table.rows.push_back({std::string("metric jobs"), jobs});
  s.text_rows = 65;
  return s;
}

void add_notes(const EvalConfig& config, const BelievedUnits& believed, Document& d) {
  if (believed.defaulted > 0)
    d.notes.add("no-prior", Severity::warning, static_cast<std::uint64_t>(believed.defaulted),
                config.scored_by_trials() ? fmt::format("{:g} s an item are taken", config.prior.item_s)
                                          : fmt::format("{:g} s an item, {:g} s of metric are taken",
                                                        config.prior.item_s, config.prior.metric_s),
                "the times of these datasets are not known; a run measures them");
  for (const EvalModel& m : config.models)
    if (std::isnan(m.size_gb))
      d.notes.add("no-size", Severity::warning, 1, m.name, "loads take no time here: size_gb says how large it is");
}

double mean_of(const std::vector<SimulatedRun>& runs, double SimulatedRun::*value) {
  double sum = 0;
  for (const SimulatedRun& r : runs) sum += r.*value;
  return sum / static_cast<double>(runs.size());
}

struct Spread5 {
  double mean = 0, least = 0, p25 = 0, median = 0, p75 = 0, most = 0;
};
template <class Of>
Spread5 spread_of(const std::vector<SimulatedRun>& runs, Of&& of) {
  std::vector<double> v;
  for (const SimulatedRun& r : runs) v.push_back(of(r));
  std::sort(v.begin(), v.end());
  const auto at = [&](double q) {
    return v[static_cast<std::size_t>(std::lround(q * static_cast<double>(v.size() - 1)))];
  };
  return {std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size()),
          v.front(),
          at(0.25),
          at(0.5),
          at(0.75),
          v.back()};
}

Section summary(double makespan, double baseline, double size, double bound) {
  Section s{.key = "", .title = "Makespan", .single = true, .table = {}};
  s.table.columns = {{.key = "makespan_s", .title = "makespan s", .digits = 1},
                     {.key = "baseline_s", .title = "one trial a dataset s", .digits = 1},
                     {.key = "size_partitioner_s", .title = "size partitioner s", .digits = 1},
                     {.key = "lower_bound_s", .title = "lower bound s", .digits = 1},
                     {.key = "gain", .title = "gain over one trial a dataset", .digits = 2},
                     {.key = "over_bound_pct", .title = "over the bound %", .digits = 1}};
  s.table.rows.push_back({makespan, baseline, size, bound, makespan > 0 ? Cell{baseline / makespan} : Cell{},
                          bound > 0 ? Cell{100 * (makespan / bound - 1)} : Cell{}});
  return s;
}

// What the makespan hangs on, and what no schedule is shorter than when CPU jobs and judges are counted.
void add_binding(const EvalConfig& config, const PlannedEvals& plan, Document& d) {
  const MakespanTerms& t = plan.terms;
  const std::int64_t gpus = plan.nodes * config.cluster.gpus_per_node;
  const std::int64_t jobs = plan.nodes * config.cluster.cpu_jobs_per_node;
  std::vector<std::pair<double, std::string>> all = {
      {t.gpus_s, fmt::format("{} GPUs", gpus)},
      {t.longest_s, "the longest dataset that cannot be split"},
      {t.cpu_jobs_s, fmt::format("CPU jobs, {} at once{}", jobs, config.cluster.metrics_on_gpus ? " beside GPUs" : "")},
      {t.load_s, "the load"}};
  if (t.judge >= 0) {
    const EvalJudge& j = config.judges[static_cast<std::size_t>(t.judge)];
    all.emplace_back(t.judge_s, fmt::format("judge {}, {} at once", j.name, j.at_once));
  }
  const auto most =
      std::max_element(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  Section& s = d.sections.front();
  s.table.columns.push_back({.key = "lower_bound_with_cpus_s", .title = "lower bound with CPU jobs s", .digits = 1});
  s.table.columns.push_back({.key = "binds"});
  const std::vector<Cell> more{t.bound_with_cpus_s(), most->second};
  auto& row = s.table.rows.front();
  row.insert(row.end(), more.begin(), more.end());
  if (plan.timeline.makespan_s > plan.baseline_s)
    d.notes.add("worse-than-one-trial-a-dataset", Severity::warning, 1,
                fmt::format("{:.0f} s beside {:.0f} s: metrics take {:.0f} s, {} at once", plan.timeline.makespan_s,
                            plan.baseline_s, t.cpu_jobs_s, jobs),
                "one trial a dataset computes metrics on the places of its GPUs: allow more metrics at once, "
                "cpu_jobs_per_node, or on those places, metrics_on_gpus = true");
  for (const auto& [name, seconds] : plan.over_limit)
    d.notes.add("longer-than-limit", Severity::warning, 1,
                fmt::format("{}: {:.0f} s, limit_s = {:g}", name, seconds, config.trial.limit_s),
                "the shortest trial of these datasets is believed to last longer than a trial may: [trial] limit_s");
}

Section no_scores() {  // of plans: an object without members
  Section s{.key = "scores", .title = "", .single = true, .table = {}};
  s.table.rows.emplace_back();
  return s;
}

}  // namespace

Document evals_plan_document(const EvalConfig& config, const PlannedEvals& plan, unsigned width) {
  Document d;
  d.command = "evals";
  d.sections.push_back(summary(plan.timeline.makespan_s, plan.baseline_s, plan.size_partitioner_s, plan.bound_s));
  add_trials(config, plan.believed, plan.trials, plan.timeline, "planned", d);
  d.sections.push_back(gantt_section(config, plan.nodes, plan.trials, plan.timeline,
                                     config.trial.start_s + plan.believed.start_s, width));
  d.sections.push_back(no_scores());
  add_notes(config, plan.believed, d);
  add_binding(config, plan, d);
  return d;
}

Document evals_simulate_document(const EvalConfig& config, const std::vector<SimulatedRuns>& clusters, unsigned width) {
  Document d;
  d.command = "evals";
  const SimulatedRuns& first = clusters.front();
  Section top =
      summary(mean_of(first.runs, &SimulatedRun::makespan_s), mean_of(first.runs, &SimulatedRun::baseline_s),
              mean_of(first.runs, &SimulatedRun::size_partitioner_s), mean_of(first.runs, &SimulatedRun::bound_s));
  top.title = "";
  d.sections.push_back(std::move(top));
  Section means{
      .key = "clusters", .title = fmt::format("Makespan, mean of {} draws (s)", first.runs.size()), .table = {}};
  means.table.columns = {{.key = "nodes"},
                         {.key = "gpus"},
                         {.key = "makespan_s", .title = "makespan", .digits = 0},
                         {.key = "lower_bound_s", .title = "lower bound", .digits = 0},
                         {.key = "baseline_s", .title = "one trial a dataset", .digits = 0},
                         {.key = "loads_once_s", .title = "... a load a node", .digits = 0},
                         {.key = "metrics_on_cpu_s", .title = "... metrics off GPUs", .digits = 0},
                         {.key = "size_partitioner_s", .title = "size partitioner", .digits = 0},
                         {.key = "gain_mean", .title = "gain", .digits = 2},
                         {.key = "over_bound_pct_mean", .title = "over the bound %", .digits = 1}};
  Section spread{.key = "distribution", .title = "Over the draws", .table = {}};
  spread.table.columns = {{.key = "nodes"},
                          {.key = "what"},
                          {.key = "mean", .digits = 2},
                          {.key = "least", .digits = 2},
                          {.key = "p25", .digits = 2},
                          {.key = "median", .digits = 2},
                          {.key = "p75", .digits = 2},
                          {.key = "most", .digits = 2}};
  Section runs{.key = "runs", .title = "", .table = {}};
  runs.table.columns = {{.key = "nodes", .json_only = true},          {.key = "seed", .json_only = true},
                        {.key = "makespan_s", .json_only = true},     {.key = "lower_bound_s", .json_only = true},
                        {.key = "baseline_s", .json_only = true},     {.key = "size_partitioner_s", .json_only = true},
                        {.key = "gain", .json_only = true},           {.key = "over_bound_pct", .json_only = true},
                        {.key = "loads_once_s", .json_only = true},   {.key = "metrics_on_cpu_s", .json_only = true},
                        {.key = "inference_gpu_s", .json_only = true}};
  for (const SimulatedRuns& c : clusters) {
    const auto mean = [&](double SimulatedRun::*value) { return mean_of(c.runs, value); };
    const auto gain = [](const SimulatedRun& r) { return r.baseline_s / r.makespan_s; };
    const auto over = [](const SimulatedRun& r) { return 100 * (r.makespan_s / r.bound_s - 1); };
    const std::pair<const char*, Spread5> rows[] = {
        {"gain over one trial a dataset", spread_of(c.runs, gain)},
        {"gain over the size partitioner",
         spread_of(c.runs, [](const SimulatedRun& r) { return r.size_partitioner_s / r.makespan_s; })},
        {"over the bound %", spread_of(c.runs, over)},
        {"makespan s", spread_of(c.runs, [](const SimulatedRun& r) { return r.makespan_s; })}};
    means.table.rows.push_back({c.nodes, c.gpus, mean(&SimulatedRun::makespan_s), mean(&SimulatedRun::bound_s),
                                mean(&SimulatedRun::baseline_s), mean(&SimulatedRun::loads_once_s),
                                mean(&SimulatedRun::metrics_on_cpu_s), mean(&SimulatedRun::size_partitioner_s),
                                rows[0].second.mean, rows[2].second.mean});
    for (const auto& [what, s] : rows)
      spread.table.rows.push_back({c.nodes, std::string(what), s.mean, s.least, s.p25, s.median, s.p75, s.most});
    for (const SimulatedRun& r : c.runs)
      runs.table.rows.push_back({c.nodes, static_cast<std::int64_t>(r.seed), r.makespan_s, r.bound_s, r.baseline_s,
                                 r.size_partitioner_s, gain(r), over(r), r.loads_once_s, r.metrics_on_cpu_s, r.gpu_s});
  }
  d.sections.push_back(std::move(means));
  d.sections.push_back(std::move(spread));
  d.sections.push_back(std::move(runs));
  add_trials(config, first.first_units, first.first_trials, first.first, "simulated", d);
  for (Section& s : d.sections)
    if (s.key == "trials") s.title = "";  // of one draw: for tools
  Section gantt = gantt_section(config, first.nodes, first.first_trials, first.first, config.trial.start_s, width);
  gantt.title = "First draw: " + gantt.title;
  d.sections.push_back(std::move(gantt));
  d.sections.push_back(no_scores());
  add_notes(config, first.first_units, d);
  return d;
}

Chart evals_gantt(const EvalConfig& config, std::int64_t nodes, const BelievedUnits& believed,
                  const std::vector<EvalTrial>& trials, const EvalTimeline& timeline) {
  Chart c{.kind = Chart::Kind::spans, .title = "Schedule"};
  c.caption = fmt::format("{} trials, {:.0f} s", trials.size(), timeline.makespan_s);
  c.x_title = "s";
  c.labels = {"load", "start", "inference", "inference, next dataset", "metric"};
  const std::int64_t per_node = config.cluster.gpus_per_node;
  for (std::int64_t n = 0; n < nodes; ++n)
    for (std::int64_t g = 0; g < per_node; ++g) c.rows.push_back(fmt::format("node {} gpu {}", n, g));
  for (std::size_t t = 0; t < trials.size(); ++t) {
    const TrialSpan& span = timeline.trials[t];
    const auto row = static_cast<std::size_t>(span.node * per_node + span.gpu);
    double from = span.loaded_s + config.trial.start_s + believed.start_s;
    if (span.loaded_s > span.start_s) c.spans.push_back({row, span.start_s, span.loaded_s, 0, "load"});
    c.spans.push_back({row, span.loaded_s, from, 1, trial_name(t) + " starts"});
    for (std::size_t p = 0; p < span.piece_end_s.size(); ++p) {
      const TrialPiece& piece = trials[t].pieces[p];
      c.spans.push_back(
          {row, from, span.piece_end_s[p], 2 + p % 2, piece_name(believed, believed.units[piece.unit], piece)});
      from = span.piece_end_s[p];
    }
  }
  std::int32_t lanes = 0;
  for (const MetricSpan& m : timeline.metrics) lanes = std::max(lanes, m.lane + 1);
  const std::size_t first = c.rows.size();
  for (std::int32_t i = 0; i < lanes; ++i) c.rows.push_back(fmt::format("metric job {}", i + 1));
  for (const MetricSpan& m : timeline.metrics)
    c.spans.push_back({first + static_cast<std::size_t>(m.lane), m.start_s, m.end_s, 4,
                       believed.datasets[static_cast<std::size_t>(believed.units[m.unit].dataset)]});
  return c;
}

std::vector<Chart> evals_charts(const EvalConfig& config, const PlannedEvals& plan) {
  Chart bars{.kind = Chart::Kind::bars, .title = "Makespan"};
  bars.x_title = "s";
  bars.labels = {"this plan", "one trial a dataset", "size partitioner", "lower bound"};
  bars.series = {{"makespan", {}, {plan.timeline.makespan_s, plan.baseline_s, plan.size_partitioner_s, plan.bound_s}}};
  return {evals_gantt(config, plan.nodes, plan.believed, plan.trials, plan.timeline), bars};
}

std::vector<Chart> evals_charts(const EvalConfig& config, const std::vector<SimulatedRuns>& clusters) {
  std::vector<Chart> charts;
  Chart gains{.kind = Chart::Kind::boxes, .title = "Gain over one trial a dataset, over the draws"};
  gains.x_title = "times (quartiles, least and most)";
  for (const SimulatedRuns& c : clusters) {
    const Spread5 s = spread_of(c.runs, [](const SimulatedRun& r) { return r.baseline_s / r.makespan_s; });
    gains.boxes.push_back({fmt::format("{} nodes", c.nodes), s.least, s.p25, s.median, s.p75, s.most});
  }
  charts.push_back(std::move(gains));
  for (const SimulatedRuns& c : clusters) {
    Chart g = evals_gantt(config, c.nodes, c.first_units, c.first_trials, c.first);
    g.title = fmt::format("First draw, {} nodes", c.nodes);
    charts.push_back(std::move(g));
    Chart b = evals_gantt(config, c.nodes, c.first_units, one_trial_a_unit(c.first_units.units), c.first_baseline);
    b.title = fmt::format("One trial a dataset, {} nodes", c.nodes);
    charts.push_back(std::move(b));
  }
  return charts;
}

}  // namespace orrery
