// The coordinator's trials: which are next, beginning them, and what came of them.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "base/output.h"
#include "base/text_match.h"
#include "trials/coordinator_state.h"
#include "trials/measured.h"
#include "trials/suite_counts.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTimeLimit = "time limit";
constexpr const char* kNoRoomYet = "no room yet";

double changed_at(const std::string& path) {
  struct stat s {};
  return ::stat(path.c_str(), &s) == 0
             ? static_cast<double>(s.st_mtim.tv_sec) + 1e-9 * static_cast<double>(s.st_mtim.tv_nsec)
             : 0;
}

// Sizes and times of change of files, one a line: what tells whether they are still what they were.
std::string looks_of(const std::vector<std::string>& files) {
  std::string all;
  for (const std::string& f : files) {
    struct stat s {};
    if (::stat(f.c_str(), &s) != 0) return {};
    all += fmt::format("{} {}.{:09}\n", s.st_size, s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
  }
  return all;
}

bool overlap(const StoredSetback& b, std::int64_t checkpoint, const std::string& dataset, ItemRange range) {
  return b.checkpoint == checkpoint && b.dataset == dataset && b.first < range.second &&
         range.first < b.first + b.items;
}

}  // namespace

std::string Coordinator::trial_directory(std::int64_t trial) const {
  return fmt::format("{}/jobs/trial-{:06}", state_, trial);
}

// The outputs that the command is asked to write, unless the configuration says where else they appear.
std::string Coordinator::dumped_rule() const {
  if (!config_.inference.dumped.empty()) return config_.inference.dumped;
  const auto asks = [](const std::string& w) { return has_any(w, {"{work}", "{output}", "{output...}"}); };
  const auto& argv = config_.inference.argv;
  return std::any_of(argv.begin(), argv.end(), asks) ? "{output}" : "";
}

// Where several files may match nobody knows before the trial's end whether all are there.
bool Coordinator::seen_early(const StoredPiece& p) const {
  const std::string rule = dumped_rule();
  if (rule.empty() || rule == "{output}") return !rule.empty();
  const EvalDataset* d = dataset(p.dataset);  // none: it was taken out of the configuration
  const auto said = [&](const std::string& text) { return text == d->name ? std::string() : text; };
  std::string own = rule;  // with what the dataset says; names and directories are no patterns
  for (const auto& [name, value] :
       {std::pair<std::string, std::string>("{results}", d == nullptr ? "" : said(d->results)),
        {"{task}", d == nullptr ? "" : said(d->task)}})
    for (std::size_t at = 0; (at = own.find(name, at)) != std::string::npos; at += value.size())
      own.replace(at, name.size(), value);
  return !may_be_several(own, config_.inference.dumped_directories);
}

CommandWords Coordinator::words_of(const StoredTrial& t, const std::vector<const StoredPiece*>& pieces) const {
  const StoredCheckpoint* c = checkpoint(t.checkpoint);
  const std::string directory = trial_directory(t.id);
  CommandWords w;
  w.checkpoint = c->path;
  w.checkpoint_name = c->name;
  w.model_name = c->model;
  w.outputs = directory + "/outputs";
  w.work = directory + "/work.json";
  w.samples = directory + "/samples.json";
  for (const StoredPiece* p : pieces) {
    const EvalDataset* d = dataset(p->dataset);
    w.pieces.push_back({p->dataset,
                        d == nullptr ? p->dataset : d->task,
                        d == nullptr ? p->dataset : d->results,
                        p->first,
                        p->items,
                        fmt::format("{}/{}-{}-{}.out", w.outputs, p->dataset, p->first, p->items),
                        {}});
  }
  return w;
}

std::vector<StoredPiece*> Coordinator::pieces_of(std::int64_t trial, const char* state) {
  std::vector<StoredPiece*> mine;
  for (StoredPiece& p : pieces_)
    if (p.trial == trial && p.state == state) mine.push_back(&p);
  return mine;
}

std::vector<ItemRange> Coordinator::taken(std::int64_t checkpoint, const std::string& dataset) const {
  std::vector<ItemRange> ranges;
  for (const StoredPiece* p : rows(checkpoint, dataset).pieces)
    if (p->state != "released") ranges.emplace_back(p->first, p->first + p->items);
  return ranges;
}

Status Coordinator::give_up(const StoredCheckpoint& c, const std::string& dataset, ItemRange range,
                            const std::string& why) {
  StoredPiece p;
  p.checkpoint = c.id;
  p.dataset = dataset;
  p.first = range.first;
  p.items = range.second - range.first;
  p.state = "failed";
  p.why = why;
  if (auto ok = store_.add(p); !ok) return ok;
  add_piece(std::move(p));
  return {};
}

Status Coordinator::give_up_if_over(const StoredSetback& b, bool for_good) {
  const ItemRange range{b.first, b.first + b.items};
  const auto tries = [&](bool counted) {
    return std::count_if(setbacks_.begin(), setbacks_.end(), [&](const StoredSetback& o) {
      return overlap(o, b.checkpoint, b.dataset, range) && o.counts == counted;
    });
  };
  const bool over = for_good || tries(true) > config_.trial.retries || tries(false) > kMostLost;
  if (!over || dataset(b.dataset) == nullptr) return {};
  return give_up(*checkpoint(b.checkpoint), b.dataset, range, reason_text(b.kind, b.why));
}

// Everything that nobody has taken. What went wrong before gets a trial of its own, so that it spoils no other.
void Coordinator::plan() {
  units_.clear();
  unit_datasets_.clear();
  planned_.clear();
  replan_ = false;
  if (!hopeless_.empty()) return;
  std::vector<EvalUnit> fresh;
  std::vector<std::string> fresh_names;
  std::vector<std::pair<EvalUnit, std::string>> alone;
  bool guessed = false;
  double start_s = config_.trial.start_s;
  for (std::size_t k = 0; k < checkpoints_.size(); ++k) {
    const StoredCheckpoint& c = checkpoints_[k];
    if (c.state != "ready") continue;
    for (const EvalDataset& d : config_.datasets) {
      EvalUnit u;
      u.checkpoint = static_cast<std::int32_t>(k);
      u.item_s = d.item_s;
      double metric_s = d.metric_s;
      const MeasuredTimes times = measured(c.model, d.name);
      const bool metric_known = !std::isnan(times.metric_item_s);
      const bool item_known = !std::isnan(times.item_s);
      if (item_known) u.item_s = times.item_s;
      start_s = std::max(start_s, config_.trial.start_s + times.item_fixed_s);
      if (metric_known) metric_s = believed_metric(times, static_cast<double>(d.items), config_.trial.least_s).seconds;
      guessed = guessed || std::isnan(u.item_s);
      if (std::isnan(u.item_s)) u.item_s = config_.prior.item_s;
      if (std::isnan(metric_s)) metric_s = config_.prior.metric_s;
      if (config_.scored_by_trials()) metric_s = 0;
      u.dataset = static_cast<std::int32_t>(&d - config_.datasets.data());
      u.split = config_.may_split(d);
      u.metric_by_item = by_item(d);
      for (const ItemRange& range : free_items(d.items, taken(c.id, d.name))) {
        const double share = static_cast<double>(range.second - range.first) / static_cast<double>(d.items);
        u.first = range.first;
        u.items = range.second - range.first;
        u.prepare_s = item_known ? 0 : d.prepare_s * share;  // measured times have it in them
        u.metric_s = by_item(d) ? metric_s * share : metric_s;
        if (metric_known && by_item(d) && !config_.scored_by_trials()) {
          const auto m = believed_metric(times, static_cast<double>(u.items), config_.trial.least_s);
          u.metric_s = m.seconds;
          u.metric_fixed_s = m.fixed_s;
          u.metric_least_items = m.least_items;
        }
        const bool setback = std::any_of(setbacks_.begin(), setbacks_.end(),
                                         [&](const StoredSetback& b) { return overlap(b, c.id, d.name, range); });
        if (setback) {
          alone.emplace_back(u, d.name);
        } else {
          fresh.push_back(u);
          fresh_names.push_back(d.name);
        }
      }
    }
  }
  TrialShape shape;
  shape.gpus = static_cast<std::int64_t>(runner_.places().size());
  shape.start_s = start_s;
  shape.least_s = config_.trial.least_s;
  shape.limit_s = config_.trial.limit_s;
  shape.several = config_.inference.several;
  shape.once = config_.scored_by_trials();
  shape.error = guessed ? std::max(kErrorOfGuesses, config_.simulate.prior_error) : config_.simulate.prior_error;
  const std::vector<EvalTrial> trials = plan_trials(fresh, shape);
  units_ = std::move(fresh);
  unit_datasets_ = std::move(fresh_names);
  for (const auto& [u, name] : alone) {
    // What ran into the limit is tried in halves, whatever is believed of its time.
    std::int64_t parts = 1;
    if (u.split) {
      const ItemRange range{u.first, u.first + u.items};
      for (const StoredSetback& b : setbacks_)
        if (b.kind == kTimeLimit && overlap(b, checkpoints_[static_cast<std::size_t>(u.checkpoint)].id, name, range))
          parts = std::min<std::int64_t>(2 * parts, u.items);
    }
    std::vector<EvalTrial> own;
    for (std::int64_t i = 0; i < parts; ++i)
      own.push_back(
          {u.checkpoint, {{0, u.first + u.items * i / parts, u.items * (i + 1) / parts - u.items * i / parts}}});
    keep_below_limit({u}, shape, own);
    for (EvalTrial& t : own) {
      for (TrialPiece& p : t.pieces) p.unit = units_.size();
      planned_.push_back(std::move(t));
    }
    units_.push_back(u);
    unit_datasets_.push_back(name);
  }
  planned_.insert(planned_.end(), trials.begin(), trials.end());
}

// Trials whose words the kernel takes: halves of one that it does not. What is too long alone is given up.
Status Coordinator::keep_words_short() {
  for (std::size_t i = 0; i < planned_.size(); ++i) {
    const EvalTrial trial = planned_[i];
    const StoredCheckpoint& c = checkpoints_[static_cast<std::size_t>(trial.checkpoint)];
    StoredTrial t;
    t.checkpoint = c.id;
    std::vector<StoredPiece> pieces;
    for (const TrialPiece& p : trial.pieces) {
      StoredPiece piece;
      piece.dataset = unit_datasets_[p.unit];
      piece.first = p.first;
      piece.items = p.items;
      pieces.push_back(std::move(piece));
    }
    std::vector<const StoredPiece*> mine;
    for (const StoredPiece& p : pieces) mine.push_back(&p);
    const auto argv = fill_words(config_.inference.argv, words_of(t, mine));
    if (!argv) return tl::unexpected(argv.error());
    const std::string why = too_long(*argv);
    if (why.empty()) continue;
    EvalTrial first{trial.checkpoint, {}}, second{trial.checkpoint, {}};
    if (trial.pieces.size() > 1) {
      const auto half = trial.pieces.begin() + static_cast<std::ptrdiff_t>(trial.pieces.size() / 2);
      first.pieces.assign(trial.pieces.begin(), half);
      second.pieces.assign(half, trial.pieces.end());
    } else {
      TrialPiece p = trial.pieces.front();
      const std::string& name = unit_datasets_[p.unit];
      const EvalDataset* d = dataset(name);
      if (d == nullptr || !config_.may_split(*d) || p.items < 2) {
        if (auto ok = give_up(c, name, {p.first, p.first + p.items}, why); !ok) return ok;
        planned_.erase(planned_.begin() + static_cast<std::ptrdiff_t>(i--));
        continue;
      }
      TrialPiece rest{p.unit, p.first + p.items / 2, p.items - p.items / 2};
      p.items /= 2;
      first.pieces = {p};
      second.pieces = {rest};
    }
    planned_[i] = std::move(first);
    planned_.insert(planned_.begin() + static_cast<std::ptrdiff_t>(i + 1), std::move(second));
    --i;  // and again
  }
  return {};
}

Status Coordinator::dispatch() {
  if (replan_) {
    plan();
    if (auto ok = keep_words_short(); !ok) return ok;
  }
  // A checkpoint that waits for room comes last: what holds the room must end first.
  std::stable_partition(planned_.begin(), planned_.end(), [&](const EvalTrial& t) {
    return waits_for_room_.count(checkpoints_[static_cast<std::size_t>(t.checkpoint)].id) == 0;
  });
  if (refused_trials_.waits()) return {};
  std::vector<JobPlace> free = runner_.places();
  const std::vector<JobPlace> all = free;
  for (const StoredTrial& t : trials_) {
    if (t.state != "started") continue;
    const auto it =
        std::find_if(free.begin(), free.end(), [&](const JobPlace& p) { return p.node == t.node && p.gpu == t.gpu; });
    if (it != free.end()) free.erase(it);
  }
  std::vector<std::pair<const EvalTrial*, JobPlace>> now;
  std::vector<std::size_t> begun;
  for (std::size_t i = 0; i < planned_.size() && !free.empty(); ++i) {
    const EvalTrial& trial = planned_[i];
    const StoredCheckpoint& c = checkpoints_[static_cast<std::size_t>(trial.checkpoint)];
    // Elsewhere than it went wrong: another node, else another GPU; where there is no elsewhere, anywhere.
    std::set<std::string> nodes;
    std::set<std::pair<std::string, std::int64_t>> gpus;
    for (const StoredSetback& b : setbacks_)
      for (const TrialPiece& p : trial.pieces)
        if (overlap(b, c.id, unit_datasets_[p.unit], {p.first, p.first + p.items})) {
          nodes.insert(b.node);
          gpus.emplace(b.node, b.gpu);
        }
    const auto other_node = [&](const JobPlace& p) { return nodes.count(p.node) == 0; };
    const auto other_gpu = [&](const JobPlace& p) { return gpus.count({p.node, p.gpu}) == 0; };
    auto at = free.begin();
    if (std::any_of(all.begin(), all.end(), other_node)) {
      at = std::find_if(free.begin(), free.end(), other_node);
    } else if (std::any_of(all.begin(), all.end(), other_gpu)) {
      at = std::find_if(free.begin(), free.end(), other_gpu);
    }
    if (at == free.end()) continue;
    now.emplace_back(&trial, *at);
    free.erase(at);
    begun.push_back(i);
  }
  if (now.empty()) return {};
  if (auto ok = begin_trials(now); !ok) return ok;
  for (std::size_t k = begun.size(); k > 0; --k)
    planned_.erase(planned_.begin() + static_cast<std::ptrdiff_t>(begun[k - 1]));
  return {};
}

Status Coordinator::begin_trials(const std::vector<std::pair<const EvalTrial*, JobPlace>>& now) {
  std::vector<JobStart> starts;
  std::vector<std::size_t> rows;
  for (const auto& [trial, place] : now) {
    const StoredCheckpoint& c = checkpoints_[static_cast<std::size_t>(trial->checkpoint)];
    StoredTrial t;
    t.checkpoint = c.id;
    t.node = place.node;
    t.gpu = place.gpu;
    t.begun = unix_seconds();
    std::vector<StoredPiece> pieces;
    JobStart start;
    for (const TrialPiece& p : trial->pieces) {
      StoredPiece piece;
      piece.checkpoint = c.id;
      piece.dataset = unit_datasets_[p.unit];
      piece.first = p.first;
      piece.items = p.items;
      for (const StoredSetback& b : setbacks_)
        if (!b.node.empty() && overlap(b, c.id, piece.dataset, {p.first, p.first + p.items}))
          start.avoid.push_back(b.node);
      pieces.push_back(std::move(piece));
    }
    if (auto ok = store_.add(t, pieces); !ok) return ok;
    const std::string directory = trial_directory(t.id);
    std::error_code error;
    fs::create_directories(directory + "/outputs", error);
    if (error) return fail("cannot be made: " + error.message(), directory);
    std::vector<const StoredPiece*> mine;
    for (const StoredPiece& p : pieces) mine.push_back(&p);
    const CommandWords words = words_of(t, mine);
    if (auto ok = write_file(words.work, work_text(words.pieces)); !ok) return ok;
    const auto names_samples = [](const std::string& w) { return has(w, "{samples_file}"); };
    if (std::any_of(config_.inference.argv.begin(), config_.inference.argv.end(), names_samples))
      if (auto ok = write_file(words.samples, samples_text(words.pieces)); !ok) return ok;
    JobSpec spec;
    const auto argv = fill_words(config_.inference.argv, words);
    if (!argv) return tl::unexpected(argv.error());
    spec.argv = *argv;
    spec.directory = fs::absolute(config_.directory).lexically_normal().string();
    spec.limit_s = config_.trial.limit_s;
    spec.loads = true;
    spec.source = c.path;
    spec.fingerprint = c.fingerprint;
    spec.copy = runner_.copy_terms(t.node);
    spec.storage_when_full = config_.cluster.storage_when_full;
    if (auto ok = write_job(directory, spec); !ok) return ok;
    start.directory = directory;
    start.place = place;
    starts.push_back(std::move(start));
    rows.push_back(trials_.size());
    trials_.push_back(std::move(t));
    for (StoredPiece& p : pieces) add_piece(std::move(p));
  }
  const auto handles = runner_.start(starts);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    StoredTrial& t = trials_[rows[i]];
    t.state = "started";
    // Refused: nobody will begin it. But a request may have got through.
    const bool refused = !handles[i] && revoke_job(trial_directory(t.id));
    t.handle = handles[i].value_or("");
    if (!refused) {
      if (auto ok = store_.update(t); !ok) return ok;
      continue;
    }
    t.kind = "not begun";
    t.why = handles[i].error().line();
    if (auto ok = end_trial(t, nullptr); !ok) return ok;
  }
  return count_refused(handles, refused_trials_);
}

bool Coordinator::anything_runs() const {
  const auto runs = [](const auto& rows) {
    return std::any_of(rows.begin(), rows.end(),
                       [](const auto& r) { return r.state == "started" || r.state == "intended"; });
  };
  return runs(trials_) || runs(metrics_);
}

// What is refused is asked for again, ever more seldom: a limit of jobs, a process table that is full may pass. Where
// nothing was ever begun, or nothing runs and it was refused for long, that is for a person.
Status Coordinator::count_refused(const std::vector<Result<std::string>>& handles, Refused& refused) {
  if (handles.empty()) return {};
  if (std::any_of(handles.begin(), handles.end(), [](const auto& h) { return h.has_value(); })) {
    refused = {};
    any_begun_ = true;
    return {};
  }
  const double now = unix_seconds();
  if (refused.times++ == 0) refused.since = now;
  const bool for_good = any_begun_ ? now - refused.since >= kRefusedFor : refused.times >= kSameFailures;
  if (for_good && !anything_runs()) return tl::unexpected(handles.front().error());
  refused.pause_s = std::min(60.0, refused.times == 1 ? 5 * hooks_.poll_s : 2 * refused.pause_s);
  refused.until = now + refused.pause_s;
  refused.why = handles.front().error().line();
  notes_.add("starts-refused", Severity::info, 1, refused.why, "they were asked for again, until they were taken");
  return {};
}

Status Coordinator::watch_trials() {
  for (std::size_t i = 0; i < trials_.size(); ++i) {
    StoredTrial& t = trials_[i];
    if (t.state != "started") continue;
    const std::string directory = trial_directory(t.id);
    auto result = read_result(directory);
    if (!result && runner_.gone(directory, t.handle)) {
      look_afresh(directory);
      result = read_result(directory);  // it may have come just before
      if (auto ok = end_trial(t, result ? &*result : nullptr); !ok) return ok;
      continue;
    }
    if (result) {
      if (auto ok = end_trial(t, &*result); !ok) return ok;
      continue;
    }
    std::vector<StoredPiece*> changed;
    if (auto ok = look_for_outputs(t, {}, changed); !ok) return ok;
    for (const StoredPiece* p : changed)
      if (auto ok = store_.update(*p); !ok) return ok;
  }
  return {};
}

// Pieces whose outputs are there. Files under the name that the command was given appear whole; others count when the
// trial ended well, or when their size has stayed for two seconds while it goes on, unless several may match.
Status Coordinator::look_for_outputs(StoredTrial& t, const std::optional<JobResult>& result,
                                     std::vector<StoredPiece*>& changed) {
  const std::string rule = dumped_rule();
  for (StoredPiece* p : pieces_of(t.id, "assigned")) {
    const CommandWords words = words_of(t, {p});
    if (rule.empty()) {
      if (!result || !result->good()) continue;
      p->output = words.outputs;
      p->ended = result->ended;
    } else {
      const auto pattern = fill_pattern(rule, words);
      if (!pattern) return tl::unexpected(pattern.error());
      const std::vector<std::string> files = files_like(*pattern);
      if (files.empty()) continue;
      const bool whole = rule == "{output}" || (result && result->good());
      if (!whole && !seen_early(*p)) continue;
      std::error_code gone;
      std::uintmax_t size = 0;
      for (const std::string& f : files) size += fs::file_size(f, gone);
      // Opened under its name, and what is written is still in the command's memory.
      if (size == 0 && !(result && result->good())) continue;
      if (!whole) {
        auto& [seen, since] = sizes_.try_emplace(*pattern, 0, 0.0).first->second;
        if (seen != size || since == 0) {
          seen = size;
          since = unix_seconds();
        }
        if (result || unix_seconds() - since < 2) continue;
      }
      if (auto why = outputs_short_of(config_.inference.suite, files, p->items); !why.empty()) {
        if (t.why.empty()) t.why = std::move(why);
        continue;
      }
      p->output.clear();
      for (const std::string& f : files) {
        p->output += (p->output.empty() ? "" : "\n") + f;
        p->ended = std::max(p->ended, changed_at(f));
      }
      p->seen = looks_of(files);
    }
    p->state = "dumped";
    changed.push_back(p);
    kinds_.clear();
    kinds_[""] = 1;  // something has worked
  }
  return {};
}

// At the trial's end: outputs that were taken as dumped while it went on, and are others by now, had not been moved
// into place. What was scored of them is void; they count as they are now where the trial ended well, else not at all.
void Coordinator::look_again_at_outputs(const StoredTrial& t, bool good, std::vector<StoredPiece*>& changed,
                                        std::vector<StoredMetric>& voided) {
  for (StoredPiece* p : pieces_of(t.id, "dumped")) {
    if (p->seen.empty()) continue;  // they are a directory's, as it was at the end
    const std::vector<std::string> files = lines_of(p->output);
    std::string now = looks_of(files);
    if (now == p->seen) continue;
    void_metrics(*p, voided);
    notes_.add("outputs-changed", Severity::warning, 1,
               fmt::format("{} of {}: {}", p->dataset, checkpoint(p->checkpoint)->name, files.front()),
               "they were still written when they had their name: what was scored of them is void, and they are scored "
               "anew or inferred again. Write another name and move it into place");
    if (good && !now.empty() && outputs_short_of(config_.inference.suite, files, p->items).empty()) {
      p->seen = std::move(now);
      for (const std::string& f : files) p->ended = std::max(p->ended, changed_at(f));
      if (std::find(changed.begin(), changed.end(), p) == changed.end()) changed.push_back(p);
    } else {
      p->state = "assigned";
      p->output.clear();
      p->seen.clear();
      p->ended = 0;
    }
  }
}

double Coordinator::waited_for_room(std::int64_t checkpoint) {
  return unix_seconds() - waits_for_room_.try_emplace(checkpoint, unix_seconds()).first->second;
}

// When a job that left no result was last heard of: it may have ended long before anybody looked.
double Coordinator::last_seen(const std::string& directory, double begun) const {
  if (begun >= opened_) return unix_seconds();
  double seen = begun;
  std::error_code error;
  for (fs::recursive_directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    seen = std::max(seen, changed_at(it->path().string()));
  return std::min(seen, unix_seconds());
}

Status Coordinator::end_trial(StoredTrial& t, const JobResult* result) {
  std::vector<StoredPiece*> changed;
  std::vector<StoredMetric> voided;
  look_afresh(trial_directory(t.id) + "/outputs");
  if (auto ok = look_for_outputs(t, result ? std::optional(*result) : std::nullopt, changed); !ok) return ok;
  look_again_at_outputs(t, result != nullptr && result->good(), changed, voided);
  t.ended = result ? result->ended : last_seen(trial_directory(t.id), t.begun);
  if (!runner_.local()) t.node = runner_.node_of(trial_directory(t.id));
  if (result) {
    t.loaded = result->started;
    t.load_s = result->load_s;
    t.load_from = result->load_from;
    if (!result->load_note.empty())
      notes_.add("memory-full", Severity::warning, 1, result->load_note,
                 "the model was read from storage instead: shared_memory_gb, or another directory");
  }
  const std::vector<StoredPiece*> left = pieces_of(t.id, "assigned");
  bool counts = true, again = true;
  if (!t.kind.empty()) {  // not begun, or stopped on purpose
    counts = false;
  } else if (result == nullptr) {
    t.kind = "lost";
    t.why = "its process or its node is gone";
    counts = false;
  } else if (result->stopped) {
    t.kind = "lost";
    t.why = kToldToStop;
    counts = false;
  } else if (result->no_room_yet && waited_for_room(t.checkpoint) < config_.trial.limit_s) {
    t.kind = kNoRoomYet;
    t.why = result->error;
    counts = false;
  } else if (!result->error.empty()) {
    t.kind = result->cannot_start ? "cannot start" : result->no_model ? "no model" : "no result";
    t.why = result->error;
    again = !result->cannot_start;
  } else if (result->timed_out) {
    t.kind = kTimeLimit;
    t.why = fmt::format("it ran longer than {:g} s", config_.trial.limit_s);
  } else if (!result->exit.good()) {
    const std::string log = trial_directory(t.id) + "/out.log";
    const FailureCause cause = hooks_.cause ? hooks_.cause(log) : FailureCause{};
    t.kind = cause.reason.empty() ? describe(result->exit) : cause.reason;
    t.why = fmt::format("{} (log: {})", cause.line.empty() ? "it said nothing" : cause.line, log);
    again = cause.again;
  } else if (!left.empty()) {
    t.kind = "no outputs";
    if (t.why.empty()) t.why = "it ended well without outputs of " + left.front()->dataset;
  }
  t.state = t.kind.empty()                                                                         ? "ended"
            : result == nullptr || t.kind == "lost" || t.kind == "stopped" || t.kind == kNoRoomYet ? "lost"
                                                                                                   : "failed";
  if (result != nullptr && !result->load_from.empty()) waits_for_room_.erase(t.checkpoint);
  if (t.kind.empty() && result != nullptr)
    if (auto ok = remember_times(t, *result); !ok) return ok;

  const StoredCheckpoint* c = checkpoint(t.checkpoint);
  if (t.kind == "no model" && is_absent(c->path))
    if (auto ok = mark(*checkpoint(t.checkpoint), "vanished", "it is no longer in storage"); !ok) return ok;

  // The first piece without outputs is the suspect, where outputs appear one by one; else any of them may be.
  std::vector<StoredSetback> setbacks;
  const bool one_by_one = std::all_of(left.begin(), left.end(), [&](const StoredPiece* p) { return seen_early(*p); });
  for (std::size_t i = 0; i < left.size(); ++i) {
    left[i]->state = "released";
    changed.push_back(left[i]);
    if (t.kind == "not begun" || t.kind == "stopped" || t.kind == kNoRoomYet) continue;
    if (one_by_one && i > 0) continue;
    const bool sure = one_by_one || left.size() == 1;
    setbacks.push_back({t.checkpoint, left[i]->first, left[i]->items, t.gpu, t.id, counts && sure, left[i]->dataset,
                        t.node, t.kind, t.why});
  }
  std::vector<StoredPiece> rows;
  for (const StoredPiece* p : changed) rows.push_back(*p);
  if (auto ok = store_.settle(t, rows, setbacks, voided); !ok) return ok;
  setbacks_.insert(setbacks_.end(), setbacks.begin(), setbacks.end());
  replan_ = replan_ || !left.empty();

  const bool for_good = !again && (one_by_one || left.size() == 1);
  for (const StoredSetback& b : setbacks)
    if (auto ok = give_up_if_over(b, for_good); !ok) return ok;
  // The same failure over and over and never anything good: the command or the model is at fault, not the trials.
  if (!t.kind.empty() && counts && kinds_.count("") == 0) {
    const int same = ++kinds_[t.kind];
    if (t.kind == "cannot start" || (!again && same >= kSameFailures)) hopeless_ = reason_text(t.kind, t.why);
    if (result != nullptr && result->no_room && !config_.cluster.storage_when_full && !is_absent(c->path))
      hopeless_ = t.why;
    if (!hopeless_.empty()) replan_ = true;
  }
  return {};
}

// What a trial that ended well says of times: between the outputs where they appear one by one, else in proportion.
Status Coordinator::remember_times(const StoredTrial& t, const JobResult& r) {
  const StoredCheckpoint* c = checkpoint(t.checkpoint);
  std::vector<const StoredPiece*> mine;
  for (const StoredPiece& p : pieces_)
    if (p.trial == t.id && p.state == "dumped") mine.push_back(&p);
  if (mine.empty() || c == nullptr) return {};
  std::sort(mine.begin(), mine.end(), [](const StoredPiece* a, const StoredPiece* b) { return a->ended < b->ended; });
  const auto keep = [&](const StoredPiece& p, double seconds) {
    return remember(c->model, p.dataset, "item", p.items, seconds);
  };
  // The command may say when it has begun with the items: a file "started" beside its outputs.
  const double said = changed_at(trial_directory(t.id) + "/outputs/started");
  const double begin = said > r.started ? said : std::min(r.started + config_.trial.start_s, mine.front()->ended);
  if (!dumped_rule().empty()) {
    double from = begin;
    for (const StoredPiece* p : mine) {
      // Where the start is only believed, the first piece says little.
      if (said > r.started || p != mine.front() || mine.size() == 1)
        if (auto ok = keep(*p, p->ended - from); !ok) return ok;
      from = p->ended;
    }
    return {};
  }
  double believed = 0;
  const auto item_s = [&](const StoredPiece& p) {
    if (const MeasuredTimes times = measured(c->model, p.dataset); !std::isnan(times.item_s)) return times.item_s;
    const EvalDataset* d = dataset(p.dataset);
    return d == nullptr || std::isnan(d->item_s) ? config_.prior.item_s : d->item_s;
  };
  for (const StoredPiece* p : mine) believed += item_s(*p) * static_cast<double>(p->items);
  const double took = std::max(0.0, r.ended - begin);
  std::vector<double> seconds;  // by what was believed before
  for (const StoredPiece* p : mine)
    seconds.push_back(believed > 0 ? took * item_s(*p) * static_cast<double>(p->items) / believed
                                   : took / static_cast<double>(mine.size()));
  for (std::size_t i = 0; i < mine.size(); ++i)
    if (auto ok = keep(*mine[i], seconds[i]); !ok) return ok;
  return {};
}

}  // namespace orrery
