// The coordinator's metrics: jobs on CPUs over outputs that were dumped, and the scores they give.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "trials/coordinator_state.h"
#include "trials/measured.h"
#include "trials/suite_counts.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOutputsChanged = "outputs changed";

}  // namespace

std::string Coordinator::metric_directory(std::int64_t metric) const {
  return fmt::format("{}/jobs/metric-{:06}", state_, metric);
}

Status Coordinator::want_metrics() {
  for (const StoredCheckpoint& c : checkpoints_)
    for (const EvalDataset& d : config_.datasets) {
      const Rows& mine = rows(c.id, d.name);
      if (is_scored(mine, d)) continue;
      std::vector<ItemRange> dumped;
      for (const StoredPiece* p : mine.pieces)
        if (p->state == "dumped") dumped.emplace_back(p->first, p->first + p->items);
      if (dumped.empty()) continue;
      // What a trial scores by itself is there when it has ended.
      const auto goes_on = [&](const StoredPiece* p) {
        return p->state == "dumped" && std::any_of(trials_.begin(), trials_.end(), [&](const StoredTrial& t) {
                 return t.id == p->trial && t.state == "started";
               });
      };
      if (config_.scored_by_trials() && std::any_of(mine.pieces.begin(), mine.pieces.end(), goes_on)) continue;
      if (by_item(d)) {
        for (const ItemRange& range : dumped)
          if (auto ok = want_metric(c, d, range); !ok) return ok;
      } else if (free_items(d.items, dumped).empty()) {
        if (auto ok = want_metric(c, d, {0, d.items}); !ok) return ok;
      }
    }
  return {};
}

// A try of it, unless one goes on, one went well, or enough did not.
Status Coordinator::want_metric(const StoredCheckpoint& c, const EvalDataset& d, ItemRange range) {
  int failed = 0, lost = 0;
  for (const std::size_t i : rows(c.id, d.name).metrics) {
    const StoredMetric& m = metrics_[i];
    if (m.first != range.first || m.items != range.second - range.first) continue;
    if (m.state == "ended" || m.state == "started" || m.state == "wanted" || m.state == "hopeless") return {};
    failed += m.state == "failed" ? 1 : 0;
    lost += m.state == "lost" && m.kind == "lost" ? 1 : 0;
  }
  if (failed > config_.trial.retries || lost > kMostLost) return {};
  if (!metrics_hopeless_.empty()) return {};
  StoredMetric m;
  m.checkpoint = c.id;
  m.dataset = d.name;
  m.first = range.first;
  m.items = range.second - range.first;
  m.state = "wanted";  // of this process alone: it is written when it begins
  rows_[{c.id, d.name}].metrics.push_back(metrics_.size());
  metrics_.push_back(std::move(m));
  return {};
}

CommandWords Coordinator::words_of(const StoredMetric& m) const {
  std::vector<const StoredPiece*> pieces;
  for (const StoredPiece* p : rows(m.checkpoint, m.dataset).pieces)
    if (p->state == "dumped" && p->first >= m.first && p->first + p->items <= m.first + m.items) pieces.push_back(p);
  std::sort(pieces.begin(), pieces.end(),
            [](const StoredPiece* a, const StoredPiece* b) { return a->first < b->first; });
  StoredTrial t;
  t.checkpoint = m.checkpoint;
  t.id = pieces.empty() ? 0 : pieces.front()->trial;
  CommandWords w = words_of(t, pieces);
  for (std::size_t i = 0; i < pieces.size(); ++i) w.pieces[i].files = lines_of(pieces[i]->output);
  w.scores = metric_directory(m.id) + "/scores.json";
  return w;
}

// Free CPU jobs and places at the judges go to the metrics that are believed to last longest.
Status Coordinator::begin_metrics() {
  if (!metrics_hopeless_.empty() &&
      std::erase_if(metrics_, [](const StoredMetric& m) { return m.state == "wanted"; }) > 0)
    index_rows();
  std::int64_t running = 0;
  std::map<std::string, std::int64_t> asked;
  const auto judge_of = [&](const StoredMetric& m) {
    const EvalDataset* d = dataset(m.dataset);
    return d == nullptr ? std::string() : d->judge;
  };
  std::vector<std::size_t> wanted;
  for (std::size_t i = 0; i < metrics_.size(); ++i) {
    if (metrics_[i].state == "started") {
      ++running;
      ++asked[judge_of(metrics_[i])];
    }
    if (metrics_[i].state == "wanted") wanted.push_back(i);
  }
  if (wanted.empty() || refused_metrics_.waits()) return {};
  const auto lasts = [&](const StoredMetric& m) {
    const StoredCheckpoint* c = checkpoint(m.checkpoint);
    const EvalDataset* d = dataset(m.dataset);
    const MeasuredTimes times = measured(c->model, m.dataset);
    if (!std::isnan(times.metric_item_s))
      return believed_metric(times, static_cast<double>(m.items), config_.trial.least_s).seconds;
    return d == nullptr || d->metric_s != d->metric_s ? config_.prior.metric_s : d->metric_s;
  };
  std::stable_sort(wanted.begin(), wanted.end(),
                   [&](std::size_t a, std::size_t b) { return lasts(metrics_[a]) > lasts(metrics_[b]); });
  std::int64_t most = config_.cluster.nodes * config_.cluster.cpu_jobs_per_node;
  if (config_.cluster.metrics_on_gpus && planned_.empty() && !replan_)
    most += static_cast<std::int64_t>(runner_.places().size()) -
            std::count_if(trials_.begin(), trials_.end(), [](const StoredTrial& t) { return t.state == "started"; });
  std::vector<JobStart> starts;
  std::vector<std::size_t> rows;
  for (const std::size_t i : wanted) {
    const std::string judge = judge_of(metrics_[i]);
    const EvalJudge* limit = judge.empty() ? nullptr : config_.judge(judge);
    if (config_.metric.argv.empty()) {  // the trial scored it
      if (auto ok = begin_metric(metrics_[i]); !ok) return ok;
      JobResult nothing_ran;
      if (auto ok = end_metric(metrics_[i], &nothing_ran); !ok) return ok;
      continue;
    }
    if (running >= most) break;
    if (limit != nullptr && asked[judge] >= limit->at_once) continue;
    if (auto ok = begin_metric(metrics_[i]); !ok) return ok;
    if (metrics_[i].state != "intended") continue;
    ++running;
    ++asked[judge];
    starts.push_back({metric_directory(metrics_[i].id), {}, {}});
    rows.push_back(i);
  }
  if (starts.empty()) return {};
  const auto handles = runner_.start(starts);
  for (std::size_t k = 0; k < rows.size(); ++k) {
    StoredMetric& m = metrics_[rows[k]];
    if (!handles[k] && revoke_job(metric_directory(m.id))) {
      m.state = "lost";
      m.kind = "not begun";
      m.why = handles[k].error().line();
    } else {
      m.state = "started";
      m.handle = handles[k].value_or("");
    }
    if (auto ok = store_.update(m); !ok) return ok;
  }
  return count_refused(handles, refused_metrics_);
}

Status Coordinator::begin_metric(StoredMetric& m) {
  m.state = "intended";
  m.begun = unix_seconds();
  if (auto ok = store_.add(m); !ok) return ok;
  const std::string directory = metric_directory(m.id);
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return fail("cannot be made: " + error.message(), directory);
  if (config_.metric.argv.empty()) return {};
  JobSpec spec;
  const auto argv = fill_words(config_.metric.argv, words_of(m));
  // Of this dataset alone: others go on.
  if (const std::string why = argv ? too_long(*argv) : argv.error().line(); !why.empty()) {
    m.state = "hopeless";
    m.kind = "cannot start";
    m.why = why;
    return store_.update(m);
  }
  spec.argv = *argv;
  spec.directory = fs::absolute(config_.directory).lexically_normal().string();
  spec.limit_s = config_.metric.limit_s;
  spec.source = checkpoint(m.checkpoint)->path;
  spec.environment = {{"CUDA_VISIBLE_DEVICES", ""}};
  return write_job(directory, spec);
}

Status Coordinator::watch_metrics() {
  for (std::size_t i = 0; i < metrics_.size(); ++i) {
    StoredMetric& m = metrics_[i];
    if (m.state != "started") continue;
    const std::string directory = metric_directory(m.id);
    auto result = read_result(directory);
    if (!result) {
      if (!runner_.gone(directory, m.handle)) continue;
      look_afresh(directory);
      result = read_result(directory);
    }
    if (auto ok = end_metric(m, result ? &*result : nullptr); !ok) return ok;
  }
  return {};
}

Result<FoundScores> Coordinator::read_scores(const StoredMetric& m) const {
  const CommandWords words = words_of(m);
  if (words.pieces.empty()) return fail("its outputs are gone", metric_directory(m.id));
  const bool by_trial = config_.scored_by_trials();
  const auto no_scores = [&] {
    return fail("the trial wrote no scores (there is no [metric])",
                fs::path(words.outputs).parent_path().string() + "/out.log",
                "[metric] command = [...] scores outputs, scores_file says where a trial writes scores");
  };
  const auto at = fill_word(config_.metric.scores_at, words);
  if (!at) return tl::unexpected(at.error());
  if (!config_.metric.scores_file.empty()) {
    const auto pattern = fill_pattern(config_.metric.scores_file, words);
    if (!pattern) return tl::unexpected(pattern.error());
    const std::vector<std::string> files = files_like(*pattern);
    if (files.empty() && by_trial) return no_scores();
    std::size_t outputs = 0;
    for (const PieceWords& p : words.pieces) outputs += p.files.size();
    // Where a dataset has several files of outputs, each has one of scores.
    if (outputs > words.pieces.size() && files.size() < outputs)
      return fail(fmt::format("scores of {} of {} files of outputs", files.size(), outputs), *pattern);
    for (const std::string& f : files)
      if (const std::string why = samples_differ(f, words.pieces.front().task, m.items); !why.empty())
        return fail(why, f);
    return scores_of_files(files, *at);
  }
  if (by_trial) return no_scores();
  std::error_code error;
  if (fs::exists(words.scores, error)) return scores_of_files({words.scores}, *at);
  return scores_of_last_line(metric_directory(m.id) + "/out.log");
}

Status Coordinator::end_metric(StoredMetric& m, const JobResult* result) {
  m.ended = result && result->ended > 0 ? result->ended
            : result == nullptr         ? last_seen(metric_directory(m.id), m.begun)
                                        : unix_seconds();
  bool again = true;
  Scores scores;
  if (!m.kind.empty()) {  // stopped on purpose
  } else if (result == nullptr) {
    m.kind = "lost";
    m.why = "its process or its node is gone";
  } else if (result->stopped) {
    m.kind = "lost";
    m.why = kToldToStop;
  } else if (!result->error.empty()) {
    m.kind = result->cannot_start ? "cannot start" : "no result";
    m.why = result->error;
    again = !result->cannot_start;
  } else if (result->timed_out) {
    m.kind = "time limit";
    m.why = fmt::format("the metric ran longer than {:g} s", config_.metric.limit_s);
  } else if (!result->exit.good()) {
    const std::string log = metric_directory(m.id) + "/out.log";
    const FailureCause cause = hooks_.cause ? hooks_.cause(log) : FailureCause{};
    m.kind = cause.reason.empty() ? describe(result->exit) : cause.reason;
    m.why = fmt::format("{} (log: {})", cause.line.empty() ? "it said nothing" : cause.line, log);
    again = cause.again;
  } else if (auto read = read_scores(m); read) {
    scores = std::move(read->scores);
    for (const std::string& name : read->left_out) m.why += (m.why.empty() ? "no number: " : ", ") + name;
  } else {
    m.kind = "no scores";
    m.why = read.error().line();
  }
  const bool not_scored = m.kind == "no scores" && config_.metric.argv.empty();  // by the trial that should have
  m.state = m.kind.empty()                                          ? "ended"
            : m.kind == "lost" || m.kind == "stopped" || not_scored ? "lost"
            : again                                                 ? "failed"
                                                                    : "hopeless";
  if (auto ok = store_.settle(m, scores); !ok) return ok;
  if (not_scored) return infer_again(m);
  if (m.kind.empty()) {
    scores_[m.id] = scores;
    metric_kinds_.clear();
    metric_kinds_[""] = 1;
    const StoredCheckpoint* c = checkpoint(m.checkpoint);
    if (result->started > 0) return remember(c->model, m.dataset, "metric", m.items, result->ended - result->started);
    return {};
  }
  if (m.state == "hopeless" && metric_kinds_.count("") == 0 &&
      (m.kind == "cannot start" || ++metric_kinds_[m.kind] >= kSameFailures))
    metrics_hopeless_ = reason_text(m.kind, m.why);
  return {};
}

// A trial that should have scored and did not is one that failed: what it did of this dataset is done anew.
Status Coordinator::infer_again(const StoredMetric& m) {
  std::map<std::int64_t, std::vector<StoredPiece>> released;  // by trial
  for (StoredPiece& p : pieces_) {
    if (p.checkpoint != m.checkpoint || p.dataset != m.dataset || p.state != "dumped" || p.first < m.first ||
        p.first + p.items > m.first + m.items)
      continue;
    p.state = "released";
    released[p.trial].push_back(p);
  }
  replan_ = true;
  for (StoredTrial& t : trials_) {
    const auto mine = released.find(t.id);
    if (mine == released.end()) continue;
    const bool first = t.kind != m.kind;  // it may have done other datasets as well
    t.state = "failed";
    t.kind = m.kind;
    t.why = m.why;
    std::vector<StoredSetback> setbacks;
    for (const StoredPiece& p : mine->second)
      setbacks.push_back({p.checkpoint, p.first, p.items, t.gpu, t.id, true, p.dataset, t.node, m.kind, m.why});
    if (auto ok = store_.settle(t, mine->second, setbacks); !ok) return ok;
    setbacks_.insert(setbacks_.end(), setbacks.begin(), setbacks.end());
    for (const StoredSetback& b : setbacks)
      if (auto ok = give_up_if_over(b, false); !ok) return ok;
    if (first && metric_kinds_.count("") == 0 && ++metric_kinds_[m.kind] >= kSameFailures)
      hopeless_ = reason_text(m.kind, m.why);
  }
  return {};
}

// Whatever became of metrics over this piece is forgotten, and those that run are stopped: another one may follow.
void Coordinator::void_metrics(const StoredPiece& p, std::vector<StoredMetric>& voided) {
  const auto of_it = [&](const StoredMetric& m) {
    return m.checkpoint == p.checkpoint && m.dataset == p.dataset && m.first < p.first + p.items &&
           p.first < m.first + m.items;
  };
  for (StoredMetric& m : metrics_) {
    if (!of_it(m) || m.state == "wanted" || m.state == "lost") continue;
    // One that nobody has claimed ends as soon as it begins; on Slurm, asked to stop, its whole array would.
    if (m.state == "started" && !revoke_job(metric_directory(m.id))) {
      runner_.ask_to_stop(metric_directory(m.id), m.handle);
      runner_.stop(metric_directory(m.id), m.handle, kStopping);
    }
    // What came of half an output says nothing of the command.
    if (m.state == "failed" || m.state == "hopeless") {
      metrics_hopeless_.clear();
      metric_kinds_.clear();
    }
    if (m.ended == 0) m.ended = unix_seconds();
    m.state = "lost";
    m.kind = kOutputsChanged;
    m.why.clear();
    scores_.erase(m.id);
    voided.push_back(m);
  }
  if (std::erase_if(metrics_, [&](const StoredMetric& m) { return m.state == "wanted" && of_it(m); }) > 0) index_rows();
}

bool Coordinator::is_scored(const Rows& rows, const EvalDataset& d) const {
  std::int64_t items = 0;
  for (const std::size_t i : rows.metrics) items += metrics_[i].state == "ended" ? metrics_[i].items : 0;
  return items == d.items;
}

// How a dataset of a checkpoint stands: its scores, or why it has none.
ScoredDataset Coordinator::standing(const StoredCheckpoint& c, const EvalDataset& d) const {
  ScoredDataset s;
  s.checkpoint = c.id;
  s.dataset = d.name;
  // Over the metrics that have this score; a long double, since values times items may be no double.
  std::map<std::string, std::pair<long double, std::int64_t>> sums;
  std::string metric_why;
  const Rows& mine = rows(c.id, d.name);
  for (const std::size_t i : mine.metrics) {
    const StoredMetric& m = metrics_[i];
    if (m.state != "ended") {
      if (!m.why.empty()) metric_why = reason_text(m.kind, m.why);
      continue;
    }
    s.scored_items += m.items;
    ++s.parts;
    if (!m.why.empty()) s.left_out += (s.left_out.empty() ? "" : "; ") + m.why;
    if (const auto it = scores_.find(m.id); it != scores_.end())
      for (const auto& [name, value] : it->second) {
        const auto n = static_cast<long double>(m.items);
        auto& [sum, parts] = sums[name];
        sum += is_standard_error(name) && m.items < d.items ? n * value * n * value : n * value;
        ++parts;
      }
  }
  if (s.scored_items == d.items) {
    s.state = "scored";
    for (const auto& [name, sum] : sums) {
      // Of some of the items it is no score of the dataset.
      if (sum.second < s.parts) {
        s.left_out +=
            fmt::format("{}{} is there for {} of {} pieces", s.left_out.empty() ? "" : "; ", name, sum.second, s.parts);
        continue;
      }
      const bool error = is_standard_error(name) && s.parts > 1;
      s.scores.emplace_back(
          name, static_cast<double>((error ? std::sqrt(sum.first) : sum.first) / static_cast<long double>(d.items)));
    }
    return s;
  }
  const auto gave_up =
      std::find_if(mine.pieces.begin(), mine.pieces.end(), [](const StoredPiece* p) { return p->state == "failed"; });
  if (gave_up != mine.pieces.end()) {
    s.state = "failed";
    s.why = (*gave_up)->why;
  } else if (!metric_why.empty()) {
    s.state = "failed";
    s.why = metric_why;
  } else if (c.state != "ready") {
    s.state = c.state;
    s.why = c.why;
  } else {
    s.state = "not tried";
    s.why = !hopeless_.empty() ? hopeless_ : metrics_hopeless_;
  }
  return s;
}

}  // namespace orrery
