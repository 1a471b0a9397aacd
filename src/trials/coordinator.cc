// What the coordinator does in turn: looks for checkpoints, at jobs, begins others.
#include "trials/coordinator.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/json_text.h"
#include "base/output.h"
#include "trials/coordinator_state.h"
#include "trials/measured.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

constexpr double kScanEvery = 0.5;  // seconds

// One coordinator a state. The lock goes with the process; it holds between hosts where the file system has locks.
class StateLock {
 public:
  static Result<StateLock> take(const std::string& state) {
    StateLock lock;
    const std::string path = state + "/lock";
    lock.fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock.fd_ < 0) return fail(std::string("cannot be opened: ") + std::strerror(errno), path);
    struct flock whole {};
    whole.l_type = F_WRLCK;
    int locked = 0;
    // A process that its owner had just forked when it was killed has the lock until it becomes another program.
    for (int i = 0; (locked = ::fcntl(lock.fd_, F_OFD_SETLK, &whole)) != 0 && i < 500 && lock.owner_is_dead(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (locked != 0) {
      if (errno != EAGAIN && errno != EACCES)
        return fail(std::string("cannot be locked: ") + std::strerror(errno), path);
      char who[256] = "";
      // Whoever has it writes its name a moment later.
      for (int i = 0; i < 50 && ::pread(lock.fd_, who, sizeof who - 1, 0) <= 0; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (who[0] == '\0') std::strcpy(who, "it has not said who it is");
      return fail(fmt::format("another coordinator works here ({})", std::string(who, std::strcspn(who, "\n"))), state,
                  "wait for it, or stop it");
    }
    const std::string who = fmt::format("process {} on {}\n", ::getpid(), own_host());
    if (::ftruncate(lock.fd_, 0) == 0) (void)!::pwrite(lock.fd_, who.data(), who.size(), 0);
    return lock;
  }
  StateLock(StateLock&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  StateLock& operator=(StateLock&&) = delete;
  ~StateLock() {
    if (fd_ >= 0) ::close(fd_);
  }

 private:
  StateLock() = default;
  static std::string own_host() {
    char host[256] = "";
    ::gethostname(host, sizeof host - 1);
    return host;
  }
  // As far as this host can tell. Leaves errno as it is.
  bool owner_is_dead() const {
    const int error = errno;
    char who[256] = "";
    const ssize_t n = ::pread(fd_, who, sizeof who - 1, 0);
    long pid = 0;
    char host[256] = "";
    const bool dead = n > 0 && std::sscanf(who, "process %ld on %255s", &pid, host) == 2 && own_host() == host &&
                      ::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH;
    errno = error;
    return dead;
  }
  int fd_ = -1;
};

}  // namespace

std::string reason_text(const std::string& kind, const std::string& why) {
  if (why.empty() || kind == why) return kind;
  return why.rfind(kind + ":", 0) == 0 ? why : kind + ": " + why;
}

void name_another(Note& note, const std::string& who) {
  constexpr std::uint64_t kNamed = 20;  // the tables have all
  if (++note.count <= kNamed) note.first += (note.count == 2 ? "; also " : ", ") + who;
  if (note.count == kNamed + 1) note.first += " ...";
}

void look_afresh(const std::string& directory) {
  std::error_code ignored;
  for (fs::directory_iterator it(directory, ignored), end; !ignored && it != end; it.increment(ignored)) continue;
}

std::string state_directory(const EvalConfig& config) {
  return fs::absolute(fs::path(config.directory) / config.state).lexically_normal().string();
}

Result<std::map<std::pair<std::string, std::string>, MeasuredTimes>> measured_times(const EvalConfig& config) {
  std::map<std::pair<std::string, std::string>, MeasuredTimes> out;
  auto store = RunStore::look(state_directory(config) + "/evals.db");
  if (!store) return tl::unexpected(store.error());
  if (!*store) return out;
  const auto priors = (**store).priors();
  if (!priors) return tl::unexpected(priors.error());
  for (const auto& [key, moments] : *priors) out[key] = times_of(moments);
  return out;
}

MeasuredTimes Coordinator::measured(const std::string& model, const std::string& dataset) const {
  const auto it = priors_.find({model, dataset});
  return it == priors_.end() ? MeasuredTimes{} : times_of(it->second);
}

Status Coordinator::remember(const std::string& model, const std::string& dataset, const std::string& kind,
                             std::int64_t items, double seconds) {
  auto& moments = priors_[{model, dataset}];
  for (const auto& [what, value] : moments_of(kind, static_cast<double>(items), std::max(1e-9, seconds))) {
    StoredPrior& mean = moments[what];
    mean.value += (value - mean.value) * weight_of_newest(mean.count);
    ++mean.count;
    if (auto ok = store_.measured(model, dataset, what, value); !ok) return ok;
  }
  return {};
}

const EvalDataset* Coordinator::dataset(const std::string& name) const {
  for (const EvalDataset& d : config_.datasets)
    if (d.name == name) return &d;
  return nullptr;
}

const Coordinator::Rows& Coordinator::rows(std::int64_t checkpoint, const std::string& dataset) const {
  static const Rows none;
  const auto it = rows_.find({checkpoint, dataset});
  return it == rows_.end() ? none : it->second;
}

void Coordinator::add_piece(StoredPiece p) {
  pieces_.push_back(std::move(p));
  rows_[{pieces_.back().checkpoint, pieces_.back().dataset}].pieces.push_back(&pieces_.back());
}

void Coordinator::index_rows() {
  rows_.clear();
  for (const StoredPiece& p : pieces_) rows_[{p.checkpoint, p.dataset}].pieces.push_back(&p);
  for (std::size_t i = 0; i < metrics_.size(); ++i)
    rows_[{metrics_[i].checkpoint, metrics_[i].dataset}].metrics.push_back(i);
}

const StoredCheckpoint* Coordinator::checkpoint(std::int64_t id) const {
  for (const StoredCheckpoint& c : checkpoints_)
    if (c.id == id) return &c;
  return nullptr;
}
StoredCheckpoint* Coordinator::checkpoint(std::int64_t id) {
  return const_cast<StoredCheckpoint*>(std::as_const(*this).checkpoint(id));
}

// Outputs and scores are of the commands that made them. Where nothing has come of a command, it may be mended.
Status Coordinator::agree_on_commands() {
  const auto under_way = [](const auto& r) { return r.state == "started" || r.state == "intended"; };
  const bool metrics = std::any_of(metrics_.begin(), metrics_.end(),
                                   [&](const StoredMetric& m) { return m.state == "ended" || under_way(m); });
  const bool outputs = metrics || std::any_of(trials_.begin(), trials_.end(), under_way) ||
                       std::any_of(pieces_.begin(), pieces_.end(), [](const auto& p) { return p.state == "dumped"; });
  const auto text = [](const std::vector<std::string>& argv, std::initializer_list<std::string> rules) {
    nlohmann::json all = argv;
    for (const std::string& r : rules)
      if (!r.empty()) all.push_back(r);
    return all.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  };
  const auto agree = [&](const std::string& key, const std::string& value, bool fixed) {
    return fixed ? store_.agree(key, value,
                                "what is done here was made by the old one: name another state, [evals] state")
                 : store_.agree_anew(key, value);
  };
  if (auto ok = agree("[inference] command", text(config_.inference.argv, {config_.inference.dumped}), outputs); !ok)
    return ok;
  const EvalCommand& m = config_.metric;
  if (auto ok = agree("[metric] command", text(m.argv, {m.scores_file, m.scores_at}), metrics); !ok) return ok;
  for (const EvalDataset& d : config_.datasets) {
    const auto mine = [&](const auto& r) {
      return r.dataset == d.name && r.state != "released" && r.state != "failed";
    };
    const bool done = std::any_of(pieces_.begin(), pieces_.end(), mine);
    if (auto ok = agree("task of dataset " + d.name, text({d.task, d.results}, {}), done); !ok) return ok;
  }
  return {};
}

Status Coordinator::open() {
  for (const EvalDataset& d : config_.datasets)
    if (auto ok = store_.agree("dataset " + d.name,
                               fmt::format("{} items{}", d.items, by_item(d) ? ", scored one by one" : ""),
                               "name another state for other datasets: [evals] state");
        !ok)
      return ok;
  const auto read = [](auto&& rows, auto& to) -> Status {
    if (!rows) return tl::unexpected(rows.error());
    to.assign(std::make_move_iterator(rows->begin()), std::make_move_iterator(rows->end()));
    return {};
  };
  if (auto ok = read(store_.checkpoints(), checkpoints_); !ok) return ok;
  if (auto ok = read(store_.trials(), trials_); !ok) return ok;
  if (auto ok = read(store_.pieces(), pieces_); !ok) return ok;
  if (auto ok = read(store_.metrics(), metrics_); !ok) return ok;
  if (auto ok = agree_on_commands(); !ok) return ok;
  auto scores = store_.scores();
  if (!scores) return tl::unexpected(scores.error());
  scores_ = std::move(*scores);
  auto priors = store_.priors();
  if (!priors) return tl::unexpected(priors.error());
  priors_ = std::move(*priors);

  // What a predecessor gave up gets another chance: whoever starts again may have mended the cause.
  for (StoredPiece& p : pieces_) {
    if (p.state != "failed") continue;
    p.state = "released";
    if (auto ok = store_.update(p); !ok) return ok;
  }
  std::erase_if(metrics_, [](const StoredMetric& m) {
    return m.state != "ended" && m.state != "started" && m.state != "intended";
  });
  index_rows();
  // What has worked for a predecessor has worked.
  if (std::any_of(pieces_.begin(), pieces_.end(), [](const StoredPiece& p) { return p.state == "dumped"; }))
    kinds_[""] = 1;
  if (std::any_of(metrics_.begin(), metrics_.end(), [](const StoredMetric& m) { return m.state == "ended"; }))
    metric_kinds_[""] = 1;

  // What a predecessor meant to begin and may have begun: whoever claims the job first has it.
  for (StoredTrial& t : trials_) {
    if (t.state != "intended") continue;
    std::error_code ignored;
    fs::create_directories(trial_directory(t.id), ignored);
    if (revoke_job(trial_directory(t.id))) {
      t.kind = "not begun";
      t.why = "the coordinator ended before it began";
      if (auto ok = end_trial(t, nullptr); !ok) return ok;
    } else {
      t.state = "started";
      if (auto ok = store_.update(t); !ok) return ok;
    }
  }
  for (StoredMetric& m : metrics_) {
    if (m.state != "intended") continue;
    std::error_code ignored;
    fs::create_directories(metric_directory(m.id), ignored);
    if (config_.metric.argv.empty() || revoke_job(metric_directory(m.id))) {
      m.state = "lost";
      m.kind = "not begun";
    } else {
      m.state = "started";
    }
    if (auto ok = store_.update(m); !ok) return ok;
  }
  if (runner_.local()) {
    std::set<std::string> nodes;
    for (const JobPlace& p : runner_.places()) nodes.insert(p.node);
    for (const std::string& n : nodes)
      if (const std::size_t gone = sweep_copies(runner_.copy_terms(n), 0); gone > 0)
        notes_.add("copies-left-behind", Severity::info, gone, runner_.copy_terms(n).directory,
                   "copies of checkpoints that no process used any more were taken away");
  }
  return {};
}

Status Coordinator::mark(StoredCheckpoint& c, const std::string& state, const std::string& why) {
  c.state = state;
  c.why = why;
  replan_ = true;
  return store_.update(c);
}

bool Coordinator::has_free_items(const StoredCheckpoint& c) const {
  return std::any_of(config_.datasets.begin(), config_.datasets.end(),
                     [&](const EvalDataset& d) { return !free_items(d.items, taken(c.id, d.name)).empty(); });
}

std::string Coordinator::checkpoints_directory(const EvalModel& model) const {
  return fs::absolute(fs::path(config_.directory) / model.checkpoints).lexically_normal().string();
}

// Models of which nothing was ever found, since the directory that they name is not there.
std::vector<const EvalModel*> Coordinator::without_directory() const {
  std::vector<const EvalModel*> all;
  for (const EvalModel& m : config_.models)
    if (std::none_of(checkpoints_.begin(), checkpoints_.end(), [&](const auto& c) { return c.model == m.name; }) &&
        is_absent(checkpoints_directory(m)))
      all.push_back(&m);
  return all;
}

Status Coordinator::scan_model(const EvalModel& model) {
  const std::string directory = checkpoints_directory(model);
  const auto names = checkpoints_in(directory, model.only);
  if (!names) {
    // Not for one answer that storage does not give in mid-run: it is looked for again.
    if (looked_in_.count(model.name) == 0) return tl::unexpected(names.error());
    unreadable_[model.name] = names.error().line();
    return {};
  }
  looked_in_.insert(model.name);
  unreadable_.erase(model.name);
  const double now = unix_seconds();
  std::set<std::string> there(names->begin(), names->end());
  for (StoredCheckpoint& c : checkpoints_)
    if (c.model == model.name && c.state == "ready" && there.count(c.name) == 0 && c.path == directory + "/" + c.name &&
        is_absent(c.path)) {
      // A node that has a copy can go on; what is done needs it no more.
      const bool copied = std::any_of(holds_.begin(), holds_.end(),
                                      [&](const auto& h) { return h.first.first == c.id && h.second.held(); });
      if (has_free_items(c) && !copied)
        if (auto ok = mark(c, "vanished", "it is no longer in " + directory); !ok) return ok;
    }
  for (auto it = waiting_.begin(); it != waiting_.end();)
    it = it->first.first == model.name && there.count(it->first.second) == 0 ? waiting_.erase(it) : std::next(it);
  for (const std::string& name : *names) {
    const std::string path = directory + "/" + name;
    Seen& seen = waiting_[{model.name, name}];
    // Neither the store nor the words of commands could say it.
    if (std::string ignored; repair_json_characters(name, ignored).invalid_utf8 > 0) {
      seen.why = "its name is not UTF-8";
      seen.given_up = true;
      continue;
    }
    const auto files = look_at_checkpoint(path);
    if (!files) {
      seen.why = files.error().what;
      if (seen.since == 0) seen.since = now;
      seen.given_up = now - seen.since > std::max(model.settle_s, 1.0);
      continue;
    }
    StoredCheckpoint* known = nullptr;
    for (StoredCheckpoint& c : checkpoints_) {
      if (c.model != model.name || c.name != name) continue;
      if (c.fingerprint == files->fingerprint) {
        known = &c;
      } else if (c.state == "ready") {
        if (auto ok = mark(c, "altered", "it was altered after it was found"); !ok) return ok;
      }
    }
    if (known != nullptr) {
      waiting_.erase({model.name, name});
      if (known->path != path) {  // as it was, elsewhere
        known->path = path;
        replan_ = true;
        if (auto ok = store_.update(*known); !ok) return ok;
      }
      if (known->state != "ready")  // it is back as it was
        if (auto ok = mark(*known, "ready", ""); !ok) return ok;
      continue;
    }
    if (seen.fingerprint != files->fingerprint) {
      // Written long ago counts as having been looked at then.
      seen = {files->fingerprint, std::max(0.0, std::min(now, static_cast<double>(files->settled_ns) * 1e-9)), "",
              false};
    }
    const bool settled = now - seen.since >= model.settle_s;
    const Completeness complete = is_complete(path, *files, model);
    seen.why = complete.complete ? "still being written" : complete.why;
    seen.given_up = settled && !complete.complete && now - seen.since >= std::max(2 * model.settle_s, 1.0);
    if (!settled || !complete.complete) continue;
    StoredCheckpoint c{0, model.name, name, path, files->fingerprint, files->bytes, "ready", ""};
    if (auto ok = store_.add(c); !ok) return ok;
    checkpoints_.push_back(std::move(c));
    waiting_.erase({model.name, name});
    replan_ = true;
  }
  return {};
}

Status Coordinator::scan() {
  const double now = unix_seconds();
  if (now - last_scan_ < kScanEvery) return {};
  last_scan_ = now;
  for (const EvalModel& m : config_.models)
    if (auto ok = scan_model(m); !ok) return ok;
  keep_copies();
  return {};
}

// Copies stay while there are items for them, also between trials, and go when there are none.
void Coordinator::keep_copies() {
  if (!runner_.local()) return;
  std::set<std::string> nodes;
  for (const JobPlace& p : runner_.places()) nodes.insert(p.node);
  for (const StoredCheckpoint& c : checkpoints_) {
    const bool going = std::any_of(pieces_.begin(), pieces_.end(),
                                   [&](const StoredPiece& p) { return p.checkpoint == c.id && p.state == "assigned"; });
    const bool left = c.state == "ready" && hopeless_.empty() && has_free_items(c);
    for (const std::string& n : nodes) {
      CopyLock& hold = holds_[{c.id, n}];
      if (left || going) {
        if (!hold.held()) hold = hold_copy(runner_.copy_terms(n), c.path, c.fingerprint);
      } else if (hold.held()) {
        hold = {};
        drop_copy(runner_.copy_terms(n), c.path, c.fingerprint);
      }
    }
  }
}

void Coordinator::let_copies_go() {
  holds_.clear();
  if (!runner_.local()) return;
  std::set<std::string> nodes;
  for (const JobPlace& p : runner_.places()) nodes.insert(p.node);
  for (const std::string& n : nodes) {
    for (const StoredCheckpoint& c : checkpoints_) drop_copy(runner_.copy_terms(n), c.path, c.fingerprint);
    sweep_copies(runner_.copy_terms(n), 0);
  }
}

Result<bool> Coordinator::round() {
  for (auto step : {&Coordinator::scan, &Coordinator::watch_trials, &Coordinator::watch_metrics,
                    &Coordinator::want_metrics, &Coordinator::begin_metrics, &Coordinator::dispatch})
    if (auto ok = (this->*step)(); !ok) return tl::unexpected(ok.error());
  // What was refused is planned or wanted again.
  const bool wanted = refused_metrics_.waits() ||
                      std::any_of(metrics_.begin(), metrics_.end(), [](const auto& m) { return m.state == "wanted"; });
  if (!planned_.empty() || replan_ || wanted || anything_runs()) return true;
  // Whatever appears, no trial is begun any more, or no metric.
  if (!hopeless_.empty()) return false;
  if (hooks_.watch && metrics_hopeless_.empty()) return true;
  return std::any_of(waiting_.begin(), waiting_.end(), [](const auto& w) { return !w.second.given_up; });
}

// All of them before anything is written: what cannot be written down must not leave the others holding GPUs.
Status Coordinator::interrupt() {
  std::vector<std::pair<std::string, std::string>> jobs;  // directory, handle
  for (const StoredTrial& t : trials_)
    if (t.state == "started") jobs.emplace_back(trial_directory(t.id), t.handle);
  for (const StoredMetric& m : metrics_)
    if (m.state == "started") jobs.emplace_back(metric_directory(m.id), m.handle);
  for (const auto& [directory, handle] : jobs) runner_.ask_to_stop(directory, handle);
  const double until = unix_seconds() + kStopping;
  for (const auto& [directory, handle] : jobs) runner_.stop(directory, handle, std::max(0.0, until - unix_seconds()));
  Status first;
  const auto settle = [&](auto& rows, const auto& directory_of, const auto& end) {
    for (auto& row : rows) {
      if (row.state != "started") continue;
      const auto result = read_result(directory_of(row.id));
      if (!result || !result->good()) row.kind = "stopped";
      if (auto ok = end(row, result ? &*result : nullptr); !ok && first) first = ok;
    }
  };
  settle(
      trials_, [&](auto id) { return trial_directory(id); },
      [&](StoredTrial& t, const JobResult* r) { return end_trial(t, r); });
  settle(
      metrics_, [&](auto id) { return metric_directory(id); },
      [&](StoredMetric& m, const JobResult* r) { return end_metric(m, r); });
  return first;
}

EvalProgress Coordinator::progress() const {
  EvalProgress p;
  if (const auto none = without_directory(); !none.empty()) p.absent = checkpoints_directory(*none.front());
  // Where nothing was ever begun the run ends soon, and says so.
  if (any_begun_) p.refused = !refused_trials_.why.empty() ? refused_trials_.why : refused_metrics_.why;
  for (const StoredCheckpoint& c : checkpoints_)
    for (const EvalDataset& d : config_.datasets) {
      ++p.datasets;
      if (is_scored(rows(c.id, d.name), d)) {
        ++p.scored;
        continue;
      }
      const std::string state = standing(c, d).state;
      p.failed += state == "failed" || state == "vanished" || state == "altered" ? 1 : 0;
    }
  for (const StoredTrial& t : trials_) p.trials += t.state == "started" ? 1 : 0;
  for (const StoredMetric& m : metrics_) p.metrics += m.state == "started" ? 1 : 0;
  return p;
}

EvalOutcome Coordinator::outcome() const {
  EvalOutcome o;
  o.checkpoints = checkpoints_;
  o.trials = trials_;
  o.pieces.assign(pieces_.begin(), pieces_.end());
  o.metrics = metrics_;
  for (const auto& [key, moments] : priors_) o.measured[key] = times_of(moments);
  o.notes = notes_;
  o.complete = true;
  const auto add = [&](const std::string& name, Severity severity, const std::string& who, const std::string& why,
                       std::string_view advice) {
    const auto it =
        std::find_if(o.notes.rows.begin(), o.notes.rows.end(), [&](const Note& n) { return n.name == name; });
    if (it != o.notes.rows.end()) return name_another(*it, who);
    o.notes.add(name, severity, 1, who + ": " + why, advice);
  };
  for (const StoredCheckpoint& c : checkpoints_) {
    bool whole = true;
    for (const EvalDataset& d : config_.datasets) {
      o.datasets.push_back(standing(c, d));
      whole = whole && o.datasets.back().state == "scored";
    }
    o.complete = o.complete && whole;
    if (c.state == "altered" && whole) {
      add("checkpoint-replaced", Severity::info, c.name, c.why,
          "the newest has the name; the scores of the old one stay, under MODEL/NAME#NUMBER");
    } else if (c.state != "ready") {
      add("checkpoint-" + c.state, Severity::data_loss, c.name, c.why,
          "what was scored before stays; the rest of it is not evaluated unless it comes back as it was");
    }
  }
  for (const auto& [model, why] : unreadable_) {
    o.complete = false;
    o.notes.add("checkpoints-unreadable", Severity::data_loss, 1, model + ": " + why,
                "checkpoints that appeared there since are not evaluated: run again when it can be read");
  }
  for (const auto& [key, seen] : waiting_) {
    o.complete = false;
    o.incomplete.push_back({0, key.first, key.second, "", "", 0, "incomplete", seen.why});
    add("checkpoint-incomplete", Severity::data_loss, key.second, seen.why,
        "it was not evaluated: run again when it is complete");
  }
  const auto none = without_directory();
  for (const EvalModel* m : none) {
    o.complete = false;
    add("no-checkpoint", Severity::warning, checkpoints_directory(*m), "there is no such directory",
        "`checkpoints` names it; --watch waits until it is there");
  }
  if (checkpoints_.empty() && waiting_.empty() && none.empty()) {
    o.complete = false;
    o.notes.add("no-checkpoint", Severity::warning, 1, config_.models.front().checkpoints,
                "there was nothing to evaluate; --watch waits for what appears");
  }
  return o;
}

Result<EvalOutcome> coordinate(const EvalConfig& config, TrialRunner& runner, const EvalHooks& hooks) {
  if (auto ok = check_runnable(config); !ok) return tl::unexpected(ok.error());
  if (auto ok = check_words(config); !ok) return tl::unexpected(ok.error());
  const std::string state = state_directory(config);
  std::error_code error;
  fs::create_directories(state + "/jobs", error);
  if (error) return fail("cannot be made: " + error.message(), state, "[evals] state names a directory");
  const auto lock = StateLock::take(state);
  if (!lock) return tl::unexpected(lock.error());
  auto store = RunStore::open(state + "/evals.db");
  if (!store) return tl::unexpected(store.error());
  const auto token = store->token();
  if (!token) return tl::unexpected(token.error());
  runner.name_jobs(*token);
  Coordinator coordinator(config, runner, hooks, std::move(*store), state);
  if (auto ok = coordinator.open(); !ok) return tl::unexpected(ok.error());
  bool stopped = false;
  Status trouble;
  for (;;) {
    const auto more = coordinator.round();
    if (!more) {
      trouble = tl::unexpected(more.error());
      break;
    }
    if (hooks.progress) hooks.progress(coordinator.progress());
    stopped = hooks.stop && hooks.stop();
    if (!*more || stopped) break;
    std::this_thread::sleep_for(std::chrono::duration<double>(hooks.poll_s));
  }
  // One way out, whatever happened: no job and no copy stays.
  if (stopped || !trouble)
    if (auto ok = coordinator.interrupt(); !ok && trouble) trouble = ok;
  EvalOutcome outcome = coordinator.outcome();
  outcome.stopped = stopped;
  coordinator.let_copies_go();
  std::set<std::string> nodes;
  for (const StoredTrial& t : outcome.trials)
    if (!t.node.empty()) nodes.insert(t.node);
  runner.end({nodes.begin(), nodes.end()});
  if (!trouble) return tl::unexpected(trouble.error());
  return outcome;
}

}  // namespace orrery
