// What `orrery evals run` answers.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "reports/evals.h"

namespace orrery {
namespace {

std::string trial_name(std::int64_t id) { return fmt::format("t{}", id); }

const StoredCheckpoint* checkpoint_of(const EvalOutcome& o, std::int64_t id) {
  for (const StoredCheckpoint& c : o.checkpoints)
    if (c.id == id) return &c;
  return nullptr;
}

// Of states of one checkpoint the newest (that lies there: an older one may have come back) has its name, others, and
// what was altered, get their number. A name that two models have is made its own.
std::map<std::int64_t, std::string> names_of(const EvalOutcome& o) {
  std::map<std::string, std::set<std::string>> models;                            // by name
  std::map<std::pair<std::string, std::string>, const StoredCheckpoint*> newest;  // by model and name
  for (const StoredCheckpoint& c : o.checkpoints) {
    models[c.name].insert(c.model);
    if (c.state == "altered") continue;
    const StoredCheckpoint*& last = newest[{c.model, c.name}];
    if (last == nullptr || c.state == "ready" || last->state != "ready") last = &c;
  }
  std::map<std::int64_t, std::string> names;
  for (const StoredCheckpoint& c : o.checkpoints)
    names[c.id] = newest[{c.model, c.name}] != &c ? fmt::format("{}/{}#{}", c.model, c.name, c.id)
                  : models[c.name].size() > 1     ? c.model + "/" + c.name
                                                  : c.name;
  return names;
}

// Four decimals, of small ones four digits.
std::string score_text(double value) {
  const double size = std::fabs(value);
  if (!std::isfinite(value)) return "n/a";
  if ((size > 0 && size < 1e-7) || size >= 1e15) return fmt::format("{:.4g}", value);
  const int decimals = size == 0 ? 4 : std::max(4, 3 - static_cast<int>(std::floor(std::log10(size))));
  return fmt::format("{:.{}f}", size == 0 ? 0 : value, decimals);
}

struct Clock {
  double begin = 0, end = 0, busy_s = 0;
};

// From the first start on; `busy_s`: of it the time in which something was under way, so that a run that was continued
// the next day does not count the night. Short pauses between jobs are part of it.
Clock clock_of(const EvalOutcome& o) {
  constexpr double kPause = 5;  // seconds
  std::vector<std::pair<double, double>> spans;
  for (const StoredTrial& t : o.trials)
    if (t.begun > 0) spans.emplace_back(t.begun, std::max(t.begun, t.ended));
  for (const StoredMetric& m : o.metrics)
    if (m.begun > 0) spans.emplace_back(m.begun, std::max(m.begun, m.ended));
  std::sort(spans.begin(), spans.end());
  Clock c;
  for (const auto& [begin, end] : spans) {
    if (c.begin == 0) c.begin = c.end = begin;
    if (end <= c.end) continue;
    c.busy_s += end - (begin - c.end < kPause ? c.end : begin);
    c.end = end;
  }
  return c;
}

Section scores_section(const EvalOutcome& o, const std::map<std::int64_t, std::string>& names) {
  Section s{.key = "results", .title = "Scores", .table = {}};
  s.table.columns = {{.key = "model"},
                     {.key = "checkpoint"},
                     {.key = "dataset"},
                     {.key = "score"},
                     {.key = "value", .json_only = true},
                     {.key = "value_text", .title = "value", .text_only = true},
                     {.key = "items"},
                     {.key = "state"},
                     // Whole below the table: here it would be cut.
                     {.key = "why", .json_only = true}};
  for (const ScoredDataset& d : o.datasets) {
    const StoredCheckpoint* c = checkpoint_of(o, d.checkpoint);
    const auto row = [&](const Cell& score, const Cell& value, const Cell& text) {
      s.table.rows.push_back({c->model, names.at(c->id), d.dataset, score, value, text, d.scored_items, d.state,
                              d.why.empty() ? Cell{} : Cell{d.why}});
    };
    if (d.scores.empty()) row({}, {}, {});
    for (const auto& [name, value] : d.scores) row(name, value, score_text(value));
  }
  return s;
}

void add_trials(const EvalOutcome& o, const std::map<std::int64_t, std::string>& names, const Clock& clock,
                Document& d) {
  Section rows{.key = "trials", .title = "", .table = {}};
  for (const char* key : {"id", "name", "checkpoint", "node", "gpu", "start_s", "loaded_s", "end_s", "state", "kind",
                          "why", "load_from", "load_s"})
    rows.table.columns.push_back({.key = key, .json_only = true});
  Section datasets{.key = "trials[].datasets", .title = "", .table = {}, .values = true};
  datasets.table.columns = {{.key = "name", .json_only = true}, {.key = "dataset", .json_only = true}};
  Section pieces{.key = "trials[].pieces", .title = "", .table = {}};
  for (const char* key : {"name", "dataset", "first", "items", "state", "end_s"})
    pieces.table.columns.push_back({.key = key, .json_only = true});
  const auto at = [&](double t) { return t > 0 ? Cell{t - clock.begin} : Cell{}; };
  for (const StoredTrial& t : o.trials)
    rows.table.rows.push_back({trial_name(t.id), trial_name(t.id), names.at(t.checkpoint), t.node, t.gpu, at(t.begun),
                               at(t.loaded), at(t.ended), t.state, t.kind, t.why, t.load_from, t.load_s});
  for (const StoredPiece& p : o.pieces) {
    if (p.trial == 0) continue;
    datasets.table.rows.push_back({trial_name(p.trial), p.dataset});
    pieces.table.rows.push_back({trial_name(p.trial), p.dataset, p.first, p.items, p.state, at(p.ended)});
  }
  Section metrics{.key = "metrics", .title = "", .table = {}};
  for (const char* key : {"checkpoint", "dataset", "first", "items", "state", "kind", "why", "start_s", "end_s"})
    metrics.table.columns.push_back({.key = key, .json_only = true});
  for (const StoredMetric& m : o.metrics)
    metrics.table.rows.push_back(
        {names.at(m.checkpoint), m.dataset, m.first, m.items, m.state, m.kind, m.why, at(m.begun), at(m.ended)});
  d.sections.push_back(std::move(rows));
  d.sections.push_back(std::move(datasets));
  d.sections.push_back(std::move(pieces));
  d.sections.push_back(std::move(metrics));
}

// The same evaluation by other schedules, from the times that were measured: a model's answer, not a measurement.
void add_yardsticks(const EvalConfig& config, const EvalOutcome& o, Section& top) {
  MeasuredByName measured;
  for (const auto& [key, times] : o.measured) {
    measured[key].metric_item_s = times.metric_item_s;
    measured[key].metric_fixed_s = times.metric_fixed_s;
  }
  std::map<std::int64_t, double> begin;  // of each trial: its items; plans add the start themselves
  for (const StoredTrial& t : o.trials) begin[t.id] = (t.loaded > 0 ? t.loaded : t.begun) + config.trial.start_s;
  for (const StoredPiece& p : o.pieces)
    if (p.state == "dumped") begin[p.trial] = std::min(begin[p.trial], p.ended);
  std::vector<StoredPiece> pieces(o.pieces);
  std::sort(pieces.begin(), pieces.end(), [](const StoredPiece& a, const StoredPiece& b) { return a.ended < b.ended; });
  std::map<std::pair<std::string, std::string>, std::pair<double, std::int64_t>> item_s;
  for (const StoredPiece& p : pieces) {
    const StoredCheckpoint* c = checkpoint_of(o, p.checkpoint);
    if (p.state != "dumped" || c == nullptr) continue;
    auto& [seconds, items] = item_s[{c->model, p.dataset}];
    seconds += std::max(0.0, p.ended - begin[p.trial]);
    items += p.items;
    begin[p.trial] = std::max(begin[p.trial], p.ended);
  }
  for (const auto& [key, sum] : item_s)
    measured[key].item_s = sum.first / static_cast<double>(std::max<std::int64_t>(1, sum.second));
  EvalConfig known = config;  // of the one checkpoint that there is
  const StoredCheckpoint& only = o.checkpoints.front();
  std::erase_if(known.models, [&](const EvalModel& m) { return m.name != only.model; });
  if (known.models.empty()) return;  // the configuration no longer has it
  known.models.front().size_gb = static_cast<double>(only.bytes) / 1e9;
  if (config.cluster.load_bytes_per_s > 0) known.cluster.link_gbit_per_s = config.cluster.load_bytes_per_s * 8 / 1e9;
  const PlannedEvals plan = plan_evals(known, draw_units(known, 1, measured));
  auto& row = top.table.rows.front();
  row[1] = plan.baseline_s;
  row[2] = plan.size_partitioner_s;
  row[3] = plan.bound_s;
}

// One note for each cause, with the whole reason of its first dataset and the names of the others.
void add_failures(const EvalOutcome& o, const std::map<std::int64_t, std::string>& names, Document& d) {
  std::map<std::string, std::size_t> note_of;  // by state and kind
  for (const ScoredDataset& s : o.datasets) {
    if (s.state != "failed" && (s.state != "not tried" || o.stopped)) continue;
    const std::string kind = s.state + s.why.substr(0, s.why.find(':'));
    const auto [it, fresh] = note_of.try_emplace(kind, d.notes.rows.size());
    const std::string of = fmt::format("{} of {}", s.dataset, names.at(s.checkpoint));
    if (fresh) {
      const bool failed = s.state == "failed";
      d.notes.rows.push_back({failed ? "dataset-failed" : "dataset-not-tried", Severity::data_loss, 1,
                              of + ": " + s.why,
                              failed ? "it has no score; when the cause is mended, run again: what is done stays"
                                     : "the same failure came again and again, and nothing had worked"});
      continue;
    }
    name_another(d.notes.rows[it->second], of);
  }
}

Section checkpoints_section(const EvalOutcome& o, const std::map<std::int64_t, std::string>& names) {
  Section s{.key = "checkpoints", .title = "", .table = {}};
  for (const char* key : {"model", "checkpoint", "path", "bytes", "state", "why"})
    s.table.columns.push_back({.key = key, .json_only = true});
  for (const StoredCheckpoint& c : o.checkpoints)
    s.table.rows.push_back({c.model, names.at(c.id), c.path, static_cast<std::int64_t>(c.bytes), c.state, c.why});
  for (const StoredCheckpoint& c : o.incomplete)
    s.table.rows.push_back({c.model, c.name, Cell{}, Cell{}, c.state, c.why});
  return s;
}

}  // namespace

std::vector<Chart> evals_charts(const EvalConfig& config, const EvalOutcome& o) {
  const Clock clock = clock_of(o);
  Chart c{.kind = Chart::Kind::spans, .title = "As it went: " + config.name};
  c.caption = fmt::format("{} trials, {} metrics, {:.1f} s in which something ran", o.trials.size(), o.metrics.size(),
                          clock.busy_s);
  c.x_title = "s";
  c.labels = {"start and load", "inference", "inference, next dataset", "failed", "metric"};
  const auto names = names_of(o);
  std::map<std::pair<std::string, std::int64_t>, std::size_t> rows;
  for (const StoredTrial& t : o.trials) rows[{t.node, t.gpu}] = 0;
  for (auto& [place, row] : rows) {
    row = c.rows.size();
    c.rows.push_back(fmt::format("{} GPU {}", place.first.empty() ? "node" : place.first, place.second));
  }
  const auto at = [&](double t) { return std::max(0.0, t - clock.begin); };
  for (const StoredTrial& t : o.trials) {
    if (t.begun <= 0) continue;
    const std::size_t row = rows.at({t.node, t.gpu});
    double from = std::max(t.begun, t.loaded);
    if (from > t.begun) c.spans.push_back({row, at(t.begun), at(from), 0, trial_name(t.id) + " loads"});
    std::vector<StoredPiece> mine;
    for (const StoredPiece& p : o.pieces)
      if (p.trial == t.id && p.state == "dumped") mine.push_back(p);
    std::sort(mine.begin(), mine.end(), [](const StoredPiece& a, const StoredPiece& b) { return a.ended < b.ended; });
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const double end = std::max(from, mine[i].ended);
      c.spans.push_back(
          {row, at(from), at(end), 1 + i % 2, fmt::format("{} of {}", mine[i].dataset, names.at(t.checkpoint))});
      from = end;
    }
    if (t.state != "ended" && t.ended > from)
      c.spans.push_back({row, at(from), at(t.ended), 3, trial_name(t.id) + ": " + t.kind});
  }
  std::vector<double> lanes;
  const std::size_t first = c.rows.size();
  std::vector<StoredMetric> metrics(o.metrics);
  std::sort(metrics.begin(), metrics.end(),
            [](const StoredMetric& a, const StoredMetric& b) { return a.begun < b.begun; });
  for (const StoredMetric& m : metrics) {
    if (m.begun <= 0) continue;
    auto lane = std::find_if(lanes.begin(), lanes.end(), [&](double end) { return end <= m.begun; });
    if (lane == lanes.end()) {
      lanes.push_back(0);
      lane = lanes.end() - 1;
      c.rows.push_back(fmt::format("metric job {}", lanes.size()));
    }
    *lane = std::max(m.begun, m.ended);
    c.spans.push_back({first + static_cast<std::size_t>(lane - lanes.begin()), at(m.begun), at(*lane), 4, m.dataset});
  }
  return {c};
}

Document evals_run_document(const EvalConfig& config, const EvalOutcome& o) {
  Document d;
  d.command = "evals";
  const Clock clock = clock_of(o);
  const auto names = names_of(o);
  Section top{.key = "", .title = "", .single = true, .table = {}};
  for (const char* key : {"makespan_s", "baseline_s", "size_partitioner_s", "lower_bound_s", "scored", "datasets"})
    top.table.columns.push_back({.key = key, .json_only = true});
  const auto scored =
      std::count_if(o.datasets.begin(), o.datasets.end(), [](const ScoredDataset& s) { return s.state == "scored"; });
  top.table.rows.push_back(
      {clock.busy_s, {}, {}, {}, static_cast<std::int64_t>(scored), static_cast<std::int64_t>(o.datasets.size())});
  if (o.checkpoints.size() == 1) add_yardsticks(config, o, top);
  d.sections.push_back(std::move(top));
  d.sections.push_back(scores_section(o, names));
  Section scores{.key = "scores{}{}{}", .title = "", .table = {}, .values = true};
  for (const char* key : {"checkpoint", "dataset", "score", "value"})
    scores.table.columns.push_back({.key = key, .json_only = true});
  for (const ScoredDataset& s : o.datasets)
    if (s.state == "scored")
      for (const auto& [name, value] : s.scores)
        scores.table.rows.push_back({names.at(s.checkpoint), s.dataset, name, value});
  d.sections.push_back(std::move(scores));
  d.sections.push_back(checkpoints_section(o, names));
  add_trials(o, names, clock, d);
  d.notes = o.notes;
  add_failures(o, names, d);
  for (const ScoredDataset& s : o.datasets) {
    const std::string of = s.dataset + " of " + names.at(s.checkpoint);
    if (s.state == "scored" && s.parts > 1)
      d.notes.add("scores-of-pieces", Severity::info, 1, fmt::format("{}, {} pieces", of, s.parts),
                  "scored by themselves: their scores are means weighted by items, standard errors (by their names) "
                  "those of such means; sums and counts are no means, and not what stands here");
    if (!s.left_out.empty())
      d.notes.add("value-left-out", Severity::warning, 1, of + ": " + s.left_out, "the other scores stand");
  }
  if (o.stopped && scored < static_cast<std::int64_t>(o.datasets.size()))
    d.notes.add("stopped", Severity::data_loss, 1,
                fmt::format("{} of {} datasets are scored", scored, o.datasets.size()),
                "it was told to stop; run again to go on");
  const auto retried = std::count_if(o.trials.begin(), o.trials.end(),
                                     [](const StoredTrial& t) { return t.state == "failed" || t.state == "lost"; });
  const auto first = std::find_if(o.trials.begin(), o.trials.end(),
                                  [](const StoredTrial& t) { return t.state == "failed" || t.state == "lost"; });
  if (retried > 0)
    d.notes.add("trials-failed", Severity::info, static_cast<std::uint64_t>(retried),
                fmt::format("{} on {} GPU {}: {}", trial_name(first->id), first->node, first->gpu,
                            reason_text(first->kind, first->why)),
                "what they had not done was done by others, or has a row above");
  return d;
}

}  // namespace orrery
