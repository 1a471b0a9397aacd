#include "supervisor/guard_run.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "base/output.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "supervisor/decide.h"
#include "supervisor/good_checkpoints.h"
#include "supervisor/guard_account.h"
#include "supervisor/guard_nodes.h"
#include "supervisor/heartbeats.h"
#include "supervisor/journal.h"
#include "supervisor/secrets.h"
#include "supervisor/step_clock.h"
#include "supervisor/tries.h"

namespace orrery {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kCheckpoints_s = 1;  // between looks for completed checkpoints
constexpr double kQueued_s = 5;       // in the queue for one reason, until it is told
constexpr double kResumed_s = 5;      // between looks for nodes that were given back
constexpr int kAppendTries = 600;     // of a journal, a second each
constexpr int kListTries = 5;         // storage that does not answer
constexpr double kMostGap_s = 1;      // of looks, beyond five pauses: then the supervisor itself stood still
constexpr std::size_t kRememberedSteps = 512;

std::string random_token() {
  std::random_device device;
  std::string token = "og";
  for (int i = 0; i < 4; ++i) token += fmt::format("{:08x}", device());
  return token;
}

std::string absolute(const std::string& path) {
  if (path.empty() || path.front() == '/') return path;
  char here[4096];
  if (::getcwd(here, sizeof here) == nullptr) return path;
  return std::string(here) + "/" + path;
}

// Tells one command line from another.
std::string command_sum(const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& w : words) all += w + '\0';
  return fmt::format("{:08x}", ckpt::crc32c(all.data(), all.size()));
}

// Of whoever guarded it last: a person may have mended the command of a job that was stopped.
std::string last_command(const std::vector<JournalEntry>& entries) {
  for (auto e = entries.rbegin(); e != entries.rend(); ++e)
    if ((e->event.kind == EventKind::begin || e->event.kind == EventKind::resumed) && !e->event.handle.empty())
      return e->event.handle;
  return "";
}

GuardEvent event(EventKind kind, std::string text = {}) {
  GuardEvent e;
  e.kind = kind;
  e.text = std::move(text);
  return e;
}

// All that is written down, shown and sent is made of events.
void clean(GuardEvent& e) {
  if (e.kind == EventKind::begin || e.kind == EventKind::saved) return;  // a name of ours, an id
  e.text = without_secrets(e.text);
  if (e.finding) e.finding->text = without_secrets(e.finding->text);
  if (e.state) e.state->detail = without_secrets(e.state->detail);
  for (NodeReport& n : e.nodes) n.why = without_secrets(n.why);
}

// The attempt at hand, seen from outside.
struct Seen {
  std::int64_t attempt = 0;
  std::unique_ptr<AttemptLogs> logs;
  bool logs_done = false;
  std::optional<Clock::time_point> ending_since;
  Clock::time_point last_progress_event{};
  std::int64_t step_told = -1, step_seen = -1;
  Ns step_at = 0;  // when it was done
  StepClock times;
  Ns beat_at = 0;           // of the rank that is furthest, by its own clock
  bool waits = false;       // as its runner says
  std::string unreadable;   // of its logs: why
  bool beats = false;       // heartbeats were heard
  std::set<EventKind> end;  // that its runner foresees, told
  // Nothing can be seen to move then: that is no hang.
  bool rests() const { return waits || (!unreadable.empty() && !beats); }
  double loss = 0;
  std::vector<std::pair<std::int64_t, double>> step_seconds;  // recent ones: what a save cost
  std::vector<std::int64_t> saves;                            // that its logs tell of, not counted yet
  SavesBegun saves_begun;
  bool finding_failed = false;
  std::vector<std::string> nodes;  // it runs on
  std::string queued_for;          // why it is in a queue; "" = it is not
  std::set<std::string> queued_told;
  Clock::time_point queued_since{};
  bool begun = false;  // its command runs, it waits in no queue
};

class Supervisor {
 public:
  Supervisor(const GuardOptions& options, JobRunner& runner, SharedRules rules, const GuardHooks& hooks, Notes& notes)
      : o_(options),
        runner_(runner),
        rules_(std::move(rules)),
        hooks_(hooks),
        notes_(notes),
        directory_(absolute(options.state)),
        watch_(options.watch),
        wall_(std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count()),
        steady_(Clock::now()) {}

  Result<GuardState> run();

 private:
  // Unix time that never jumps: the clock of the machine may be set while the supervisor runs, or between two.
  Ns now() const { return wall_ + std::chrono::nanoseconds(Clock::now() - steady_).count(); }

  double watched_s() const { return static_cast<double>(watched_) * 1e-9; }
  double clock_s() const { return std::chrono::duration<double>(Clock::now() - steady_).count(); }

  void hear(GuardEvent e);
  void perform(const Action& a);
  void start(const Action& a);
  void find_started(const Action& a);
  AttemptSpec spec_of(const Action& a) const;
  void tell_state(GuardEvent& started) const;
  void tell_begun(const AttemptState& state);
  void drain(const Action& a);
  void try_again();
  double margin_s(const AttemptState& state) const;
  void list_checkpoints(const Action& a);
  void check_nodes();
  void list_nodes();
  void tell_of_node(const std::string& node, const std::string& what);
  void look_for_resumed_nodes();
  void tell_why_queued(const AttemptState& state);
  void tell_suspended(bool is);
  std::vector<std::string> usable_nodes(std::vector<NodeReport>& reports, std::string& told);

  void look();    // once around
  void attend();  // the attempt runs, or is about to end
  void begin_seeing();
  void take_logs(LogNews news);
  void flush_progress(bool always);
  Ns when_done() const;
  void count_saves(bool all);
  double cost_of_save(std::int64_t step) const;
  void look_for_checkpoints();
  void tell_of_lost_save(bool over);
  void end_of_attempt(const AttemptState& state);
  void fence();
  void trouble(const std::string& what, const Error& error);
  void warn(const std::string& line) const {
    if (hooks_.warned) hooks_.warned(line);
  }

  const GuardOptions& o_;
  JobRunner& runner_;
  SharedRules rules_;
  const GuardHooks& hooks_;
  Notes& notes_;
  std::string directory_;
  GuardState s_;
  std::optional<Journal> journal_;
  std::optional<Heartbeats> heartbeats_;
  Watch watch_;
  Ns wall_;
  Ns ahead_ = 0;  // of the machine's clock, which was set back since the supervisor before
  Clock::time_point steady_;
  Ns watched_ = 0;  // time in which the supervisor looked and something could be seen: the clock of `watch_`
  std::optional<Clock::time_point> looked_at_;
  Seen seen_;
  std::optional<Action> finding_start_;  // the runner does not know yet whether it was started
  std::optional<Action> signalling_;     // the request to save has reached nobody yet
  DrainsOwed drains_;
  LastingTrouble troubles_;
  std::set<std::string> checkpoints_seen_;
  Clock::time_point checkpoints_at_{}, resumed_at_{};
  int stops_heard_ = 0;
  std::int64_t fencing_ = 0;  // the attempt that is being ended, since when, and that it takes long was told
  Clock::time_point fencing_since_{};
  bool fencing_told_ = false;
  std::optional<Error> broken_;  // the journal cannot be written: nothing more is done
};

void Supervisor::trouble(const std::string& what, const Error& error) {
  notes_.add("supervisor-trouble", Severity::warning, 1, without_secrets(what + ": " + error.line()),
             "it was tried again");
  if (!journal_ || broken_) return;
  if (const auto lasts_s = troubles_.met(what, clock_s()))
    hear(event(EventKind::trouble,
               fmt::format("tried again and again for {:.0f} s, in vain: {}: {}", *lasts_s, what, error.line())));
}

// ---- written down first, then done ----

void Supervisor::hear(GuardEvent e) {
  if (broken_) return;
  if (e.at == 0) e.at = now();
  clean(e);
  Decision d = decide(std::move(s_), e);
  s_ = std::move(d.next);
  // A full disk: the job goes on meanwhile, and nothing is done for what is not written.
  for (int i = 0;; ++i) {
    const Status ok = journal_->append(e, d);
    if (ok && i > 0) warn("its journal can be written again");
    if (ok) break;
    if (i >= kAppendTries || (hooks_.stops_asked && hooks_.stops_asked() > stops_heard_)) {
      broken_ = ok.error();
      return;
    }
    if (i == 0) {
      notes_.add("supervisor-trouble", Severity::warning, 1, without_secrets("journal: " + ok.error().line()),
                 "it was tried again");
      warn(fmt::format("its journal cannot be written, nothing is decided until it can, for {} s (the job goes on): {}",
                       kAppendTries, ok.error().line()));
    }
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  if (hooks_.told) hooks_.told(e, d, s_);
  for (const Action& a : d.actions) perform(a);
}

void Supervisor::perform(const Action& a) {
  if (broken_) return;
  switch (a.kind) {
    case ActionKind::start:
      return start(a);
    case ActionKind::find:
      return find_started(a);
    case ActionKind::check_nodes:
      return check_nodes();
    case ActionKind::list_nodes:
      return list_nodes();
    case ActionKind::list_checkpoints:
      return list_checkpoints(a);
    case ActionKind::drain:
      return drain(a);
    case ActionKind::stacks: {
      const auto text = runner_.stacks(s_.handle, s_.policy.dump_s);
      GuardEvent e = event(EventKind::stacks);
      e.attempt = s_.attempt;
      if (text) {
        const std::string path = fmt::format("{}/attempt-{}.stacks", directory_, s_.attempt);
        const Status ok = write_file(path, *text);
        ::chmod(path.c_str(), 0600);
        e.text = ok ? "stacks: " + path : "stacks were not kept: " + ok.error().line();
      } else {
        e.text = "no stacks: " + text.error().line();
      }
      return hear(std::move(e));
    }
    case ActionKind::signal:
      signalling_.reset();
      if (const Status ok = runner_.signal(s_.handle, a.number); !ok) {
        trouble("asking it to save", ok.error());
        signalling_ = a;
      }
      return;
    case ActionKind::fence:
    case ActionKind::wait:
    case ActionKind::notify:
    case ActionKind::stop:
      return;  // look() goes on with them
  }
}

void Supervisor::drain(const Action& a) {
  if (const Status ok = runner_.drain(a.node, a.text); !ok) {
    trouble("drain " + a.node, ok.error());
    drains_.failed(a, clock_s());
    return;
  }
  drains_.done(a.node);
  const auto nodes = runner_.nodes();
  if (!nodes) return;
  // Where the runner keeps no such list, nobody could give it back.
  for (const NodeState& n : *nodes)
    if (n.name == a.node && !n.usable) tell_of_node(a.node, "drained");
}

// What could not be done when it was decided.
void Supervisor::try_again() {
  if (s_.phase == GuardPhase::saving && signalling_) perform(Action(*signalling_));
  for (const Action& a : drains_.due(clock_s())) {
    const bool out = std::any_of(s_.excluded.begin(), s_.excluded.end(),
                                 [&](const ExcludedNode& n) { return n.node == a.node && !n.drained; });
    if (out) {
      drain(a);
    } else {
      drains_.done(a.node);
    }
  }
}

AttemptSpec Supervisor::spec_of(const Action& a) const {
  AttemptSpec spec;
  spec.number = static_cast<int>(a.attempt);
  spec.token = a.token;
  spec.directory = o_.directory.empty() ? absolute(".") : absolute(o_.directory);
  spec.out = fmt::format("{}/attempt-{}.out", directory_, a.attempt);
  spec.err = fmt::format("{}/attempt-{}.err", directory_, a.attempt);
  spec.exclude = a.exclude;
  for (const std::string& n : o_.nodes) {
    const bool out = std::find(a.exclude.begin(), a.exclude.end(), n) != a.exclude.end();
    const bool enough =
        s_.policy.needed_nodes > 0 && static_cast<std::int64_t>(spec.nodes.size()) >= s_.policy.needed_nodes;
    if (!out && !enough) spec.nodes.push_back(n);
  }
  std::string nodes;
  for (const std::string& n : spec.nodes) nodes += (nodes.empty() ? "" : ",") + n;
  const std::string heartbeat = absolute(o_.heartbeat), socket = absolute(o_.socket);
  const Placeholders values{{"checkpoint", a.checkpoint},
                            {"skip_from", std::to_string(a.skip_from)},
                            {"skip_to", std::to_string(a.skip_to)},
                            {"attempt", std::to_string(a.attempt)},
                            {"state", directory_},
                            {"heartbeat", heartbeat},
                            {"nodes", nodes}};
  const auto add = [&](const std::vector<std::string>& words) {
    for (const std::string& w : words) spec.argv.push_back(replaced(w, values));
  };
  add(o_.command);
  if (a.attempt > 1) add(o_.on_restart);
  if (a.rollback) add(o_.on_rollback);
  for (const std::string& line : o_.environment) {
    const std::size_t at = line.find('=');
    spec.environment.emplace_back(line.substr(0, at), replaced(line.substr(at + 1), values));
  }
  const std::vector<std::pair<std::string, std::string>> ours{
      {"ORRERY_GUARD_TOKEN", a.token},
      {"ORRERY_GUARD_ATTEMPT", std::to_string(a.attempt)},
      {"ORRERY_GUARD_STATE", directory_},
      {"ORRERY_GUARD_CHECKPOINT", a.checkpoint},
      {"ORRERY_GUARD_SKIP", a.skip_to > a.skip_from ? fmt::format("{}:{}", a.skip_from, a.skip_to) : ""},
      {"ORRERY_GUARD_NODES", nodes},
      {"ORRERY_GUARD_HEARTBEAT", heartbeat},
      {"ORRERY_GUARD_SOCKET", socket}};
  spec.environment.insert(spec.environment.end(), ours.begin(), ours.end());
  return spec;
}

void Supervisor::tell_state(GuardEvent& started) const {
  const auto state = runner_.poll(started.handle);
  if (!state) return;
  started.state = *state;
  started.first = state->phase == AttemptPhase::pending && state->started == 0;
  const Ns at = now();
  if (state->started != 0) started.at = std::clamp(state->started + ahead_, std::min(s_.attempts.back().asked, at), at);
}

// Of what had to wait, once it does no longer: when it began, and where.
void Supervisor::tell_begun(const AttemptState& state) {
  if (seen_.begun || (state.phase == AttemptPhase::pending && state.started == 0)) return;
  seen_.begun = true;
  const AttemptRecord& r = s_.attempts.back();
  if (r.started != 0 && (!r.nodes.empty() || state.nodes.empty())) return;
  const bool ran = state.phase != AttemptPhase::ended || state.started != 0 || state.exit_status || state.signal;
  if (!ran) return;  // it was ended in its queue
  GuardEvent e = event(EventKind::started);
  e.attempt = s_.attempt;
  e.handle = s_.handle;
  e.state = state;
  const Ns at = now();
  e.at = state.started != 0 ? std::clamp(state.started + ahead_, std::min(r.asked, at), at)
         : r.started != 0   ? r.started
                            : at;
  hear(std::move(e));
  if (seen_.step_seen < 0) seen_.times = StepClock(s_.attempts.back().started, false);
}

// Where the whole limit is not longer than the margin: half of it, so that something is trained before.
double Supervisor::margin_s(const AttemptState& state) const {
  const Ns began = state.started != 0 ? state.started + ahead_ : s_.attempts.back().started;
  const double whole = began == 0 ? 0 : static_cast<double>(now() - began) * 1e-9 + *state.time_left;
  return began == 0 || whole > o_.time_limit_margin_s ? o_.time_limit_margin_s : whole / 2;
}

void Supervisor::start(const Action& a) {
  GuardEvent e = event(EventKind::not_started);
  e.attempt = a.attempt;
  // Everything of the attempts before is dead: nobody writes there.
  if (a.rollback && !a.checkpoint.empty() && !o_.checkpoints.empty()) {
    const auto gone = ckpt::withdraw_after(o_.checkpoints, a.checkpoint);
    if (!gone) {
      e.text = "what came after " + a.checkpoint + " cannot be withdrawn: " + gone.error().line();
      return hear(std::move(e));
    }
  }
  const AttemptSpec spec = spec_of(a);
  const auto handle = runner_.start(spec);
  if (handle) {
    e.kind = EventKind::started;
    e.handle = *handle;
    tell_state(e);
  } else {
    e.text = handle.error().line();
    e.fatal = s_.attempt == 1 && runner_.is_final(handle.error(), spec);  // later it has been possible before
  }
  hear(std::move(e));
}

void Supervisor::tell_of_node(const std::string& node, const std::string& what) {
  GuardEvent e = event(EventKind::nodes);
  e.nodes.push_back({node, what, ""});
  hear(std::move(e));
}

// Nodes that were drained for this job, and that a person has given back.
void Supervisor::look_for_resumed_nodes() {
  const bool any = std::any_of(s_.excluded.begin(), s_.excluded.end(), [](const ExcludedNode& n) { return n.drained; });
  if (!any || Clock::now() - resumed_at_ < std::chrono::duration<double>(kResumed_s)) return;
  resumed_at_ = Clock::now();
  const auto nodes = runner_.nodes();
  if (!nodes) return;
  for (const NodeState& n : *nodes) {
    const bool ours = std::any_of(s_.excluded.begin(), s_.excluded.end(),
                                  [&](const ExcludedNode& x) { return x.node == n.name && x.drained; });
    if (ours && n.usable) tell_of_node(n.name, "resumed");
  }
}

void Supervisor::find_started(const Action& a) {
  finding_start_.reset();
  const auto found = runner_.find(spec_of(a));
  if (!found) {
    trouble("was attempt " + std::to_string(a.attempt) + " started?", found.error());
    finding_start_ = a;
    return;
  }
  GuardEvent e = event(*found ? EventKind::started : EventKind::not_started);
  e.attempt = a.attempt;
  if (*found) {
    e.handle = **found;
    tell_state(e);
  } else {
    e.text = "the supervisor was ended before it could start it";
  }
  hear(std::move(e));
}

// ---- checkpoints ----

void Supervisor::list_checkpoints(const Action& a) {
  GuardEvent e = event(EventKind::checkpoints);
  for (int i = 0; i < kListTries; ++i) {
    std::string told;
    auto good = good_checkpoints(o_.checkpoints, o_.verify, a, s_.saved_step >= 0, told);
    e.fatal = !good;
    e.text = good ? told : good.error().line();
    if (good) {
      e.checkpoints = std::move(*good);
      break;
    }
    if (i + 1 < kListTries) std::this_thread::sleep_for(std::chrono::duration<double>(std::min(1.0, o_.poll_s * 5)));
  }
  for (const KnownCheckpoint& c : e.checkpoints) checkpoints_seen_.insert(c.id);
  hear(std::move(e));
}

// Beyond a usual step, of the one in which it was saved; below 0 = not known.
double Supervisor::cost_of_save(std::int64_t step) const {
  const double usual = watch_.usual_step_s();
  for (const auto& [at, seconds] : seen_.step_seconds)
    if (at == step && usual > 0) return std::max(0.0, seconds - usual);
  return -1;
}

// Saves that the logs tell of, once their step was logged, too.
void Supervisor::count_saves(bool all) {
  while (!seen_.saves.empty() && (all || seen_.saves.front() <= watch_.last_step())) {
    GuardEvent e = event(EventKind::saved);
    e.attempt = s_.attempt;
    e.step = seen_.saves.front();
    e.seconds = cost_of_save(e.step);
    seen_.saves.erase(seen_.saves.begin());
    hear(std::move(e));
  }
}

void Supervisor::look_for_checkpoints() {
  if (o_.checkpoints.empty() || Clock::now() - checkpoints_at_ < std::chrono::duration<double>(kCheckpoints_s)) return;
  checkpoints_at_ = Clock::now();
  const auto all = ckpt::list(o_.checkpoints);
  if (!all) return trouble("checkpoints", all.error());
  std::int64_t newest = -1;
  for (const auto& c : *all) newest = std::max(newest, c.problem.empty() ? c.step : -1);
  seen_.saves_begun.complete(newest);
  for (auto c = all->rbegin(); c != all->rend(); ++c) {
    if (!c->problem.empty() || !checkpoints_seen_.insert(c->id).second) continue;
    GuardEvent e = event(EventKind::saved, c->id);
    e.attempt = s_.attempt;
    e.step = c->step;
    e.seconds = cost_of_save(c->step);
    hear(std::move(e));
  }
}

void Supervisor::tell_of_lost_save(bool over) {
  const std::string text = seen_.saves_begun.lost(watched_s(), over);
  if (!text.empty()) hear(event(EventKind::trouble, text));
}

// ---- nodes ----

std::vector<std::string> Supervisor::usable_nodes(std::vector<NodeReport>& reports, std::string& told) {
  std::vector<std::string> usable;
  const auto all = runner_.nodes();
  if (!all) {
    trouble("nodes", all.error());
    told = "nodes are not known: " + all.error().line();
    return usable;
  }
  for (const NodeState& n : *all) {
    const bool out =
        std::any_of(s_.excluded.begin(), s_.excluded.end(), [&](const ExcludedNode& x) { return x.node == n.name; });
    if (n.usable && !out) {
      usable.push_back(n.name);
    } else {
      reports.push_back({n.name, "unusable", out ? "left out" : n.why});
    }
  }
  return usable;
}

void Supervisor::list_nodes() {
  GuardEvent e = event(EventKind::nodes);
  for (const std::string& n : usable_nodes(e.nodes, e.text)) e.nodes.push_back({n, "good", ""});
  hear(std::move(e));
}

void Supervisor::check_nodes() {
  GuardEvent e = event(EventKind::nodes);
  const std::vector<std::string> nodes = usable_nodes(e.nodes, e.text);
  std::vector<std::string> ran = seen_.attempt == s_.attempt ? seen_.nodes : std::vector<std::string>();
  if (ran.empty() && !s_.attempts.empty()) ran = s_.attempts.back().nodes;
  NodesTested tested = test_nodes(o_, runner_, nodes, ran);
  if (e.text.empty()) e.text = std::move(tested.text);
  e.nodes.insert(e.nodes.end(), tested.reports.begin(), tested.reports.end());
  hear(std::move(e));
}

// ---- seeing ----

void Supervisor::begin_seeing() {
  seen_ = {};
  seen_.attempt = s_.attempt;
  const std::string stem = fmt::format("{}/attempt-{}", directory_, s_.attempt);
  seen_.logs = std::make_unique<AttemptLogs>(rules_, std::vector<std::string>{stem + ".out", stem + ".err"});
  const AttemptRecord& r = s_.attempts.back();
  watch_.begin_attempt(watched_, r.skip_from, r.skip_to, base_of(s_, r));
  const Ns began = r.started != 0 ? r.started : r.asked;  // it may wait in a queue still
  if (heartbeats_) heartbeats_->begin_attempt(began - ahead_);
  // Longer ago than between two looks: nobody was there.
  seen_.times = StepClock(began, static_cast<double>(now() - began) * 1e-9 > kMostGap_s + 5 * o_.poll_s);
}

// The step at hand, which was not seen when the look before was: now, but for the first one that is seen, which may
// have been done while nobody looked. Then its heartbeat tells, or when its logs were written last.
Ns Supervisor::when_done() const {
  const Ns at = now();
  const AttemptRecord& r = s_.attempts.back();
  if (seen_.step_seen >= 0) return at;
  Ns told = seen_.beat_at != 0 ? seen_.beat_at + ahead_ : 0;
  for (const char* name : {"out", "err"}) {
    struct stat file {};
    if (seen_.beat_at != 0 || ::stat(fmt::format("{}/attempt-{}.{}", directory_, s_.attempt, name).c_str(), &file) != 0)
      continue;
    told = std::max(told, Ns{file.st_mtim.tv_sec} * 1'000'000'000 + file.st_mtim.tv_nsec + ahead_);
  }
  return std::clamp(told, std::min(at, std::max(r.started, r.last_progress)), at);
}

void Supervisor::take_logs(LogNews news) {
  if (news.unreadable != seen_.unreadable) {
    seen_.unreadable = news.unreadable;
    if (news.unreadable.empty()) {
      warn("the job's logs can be read again");
    } else {
      const Error error{"cannot be read: " + news.unreadable, directory_, ""};
      trouble("logs", error);
      warn("the job's logs cannot be read, and no hang is seen in them until they can: " + error.line());
    }
  }
  for (const StepSample& sample : news.steps) {
    watch_.step(watched_, sample);
    seen_.times.logged(sample.seconds);
    if (sample.loss) seen_.loss = *sample.loss;
    if (sample.step >= 0 && sample.seconds >= 0) {
      if (seen_.step_seconds.size() >= kRememberedSteps)
        seen_.step_seconds.erase(seen_.step_seconds.begin(), seen_.step_seconds.begin() + kRememberedSteps / 2);
      seen_.step_seconds.emplace_back(sample.step, sample.seconds);
    }
  }
  seen_.saves.insert(seen_.saves.end(), news.saves.begin(), news.saves.end());
  for (const std::int64_t step : news.saves) seen_.saves_begun.begun(watched_s(), step, true);
  count_saves(false);
  if (news.grew) watch_.output(watched_);
  if (news.saving) watch_.saving(watched_);
  if (!news.finding) return;
  Finding& f = *news.finding;
  if (f.node.empty() && f.rank >= 0) f.node = watch_.node_of(f.rank);
  const bool failed = f.verdict == "failed" || (f.verdict == "unknown" && f.ended);
  if (failed) {
    watch_.failed(watched_, f.ended);
  } else {
    watch_.survived();
  }
  if (f.verdict == "healthy" && !s_.finding) return;  // nothing new
  flush_progress(true);
  GuardEvent e = event(EventKind::finding);
  e.attempt = s_.attempt;
  e.finding = std::move(f);
  hear(std::move(e));
}

void Supervisor::flush_progress(bool always) {
  const std::int64_t step = watch_.last_step();
  if (step != seen_.step_seen) seen_.step_at = when_done();
  if (step < 0 || step < watch_.first_step()) seen_.times.none_seen(now());
  seen_.step_seen = step;
  if (step < 0 || step == seen_.step_told || step < watch_.first_step()) return;
  const bool first = seen_.step_told < 0;
  const bool due = Clock::now() - seen_.last_progress_event >= std::chrono::duration<double>(o_.progress_s);
  if (!always && !first && !due) return;
  if (first && watch_.first_step() < step) {
    GuardEvent e = event(EventKind::progress);
    e.attempt = s_.attempt;
    e.step = watch_.first_step();
    e.first = true;
    e.at = seen_.times.first_at(e.step, step, seen_.step_at);
    hear(std::move(e));
  }
  seen_.step_told = step;
  seen_.last_progress_event = Clock::now();
  GuardEvent e = event(EventKind::progress);
  e.attempt = s_.attempt;
  e.step = step;
  e.loss = seen_.loss;
  e.seconds = watch_.usual_step_s();
  e.first = first;
  e.at = seen_.step_at;
  hear(std::move(e));
}

void Supervisor::end_of_attempt(const AttemptState& state) {
  if (!seen_.logs_done) take_logs(seen_.logs->finish());
  seen_.logs_done = true;
  count_saves(true);
  checkpoints_at_ = {};
  look_for_checkpoints();
  flush_progress(true);
  if (state.exit_status == 0) tell_of_lost_save(true);
  // One loss that is not a number before it fails may be of what it fails for.
  const bool believed = state.exit_status == 0 || (s_.finding && s_.finding->restart == "auto-rollback");
  if (s_.phase == GuardPhase::running)
    for (GuardEvent& e : watch_.at_end(watched_)) {
      if (!believed && !std::isfinite(e.loss)) continue;
      e.at = 0;
      e.attempt = s_.attempt;
      hear(std::move(e));
    }
  GuardEvent e = event(EventKind::ended);
  e.attempt = s_.attempt;
  e.state = state;
  hear(std::move(e));
}

// Each reason for which it has waited for a while.
void Supervisor::tell_why_queued(const AttemptState& state) {
  const std::string why = state.phase == AttemptPhase::pending ? state.detail : "";
  if (why != seen_.queued_for) {
    seen_.queued_for = why;
    seen_.queued_since = Clock::now();
  }
  if (why.empty() || Clock::now() - seen_.queued_since < std::chrono::duration<double>(kQueued_s)) return;
  if (!seen_.queued_told.insert(why).second) return;
  GuardEvent e = event(EventKind::queued, why);
  e.attempt = s_.attempt;
  hear(std::move(e));
}

void Supervisor::tell_suspended(bool is) {
  if (s_.attempts.back().is_suspended() == is) return;
  flush_progress(true);
  GuardEvent e = event(EventKind::suspended);
  e.attempt = s_.attempt;
  e.first = is;
  hear(std::move(e));
}

void Supervisor::attend() {
  if (seen_.attempt != s_.attempt || !seen_.logs) begin_seeing();
  const std::int64_t attempt = s_.attempt;
  const auto here = [&] {
    return !broken_ && s_.attempt == attempt && (s_.phase == GuardPhase::running || s_.phase == GuardPhase::saving);
  };
  const auto state = runner_.poll(s_.handle);
  if (state) tell_begun(*state);
  if (!here()) return;
  if (!seen_.logs_done) take_logs(seen_.logs->look());
  if (heartbeats_) {
    const std::vector<Beat> beats = heartbeats_->read();
    std::int64_t furthest = -1;
    for (const Beat& b : beats) {
      if (b.step >= furthest) seen_.beat_at = b.step > furthest ? b.time : std::max(seen_.beat_at, Ns{b.time});
      furthest = std::max(furthest, b.step);
    }
    seen_.beats = seen_.beats || !beats.empty();
    for (const Beat& b : beats)
      if (b.phase == "save") seen_.saves_begun.begun(watched_s(), b.step, false);
    watch_.beats(watched_, beats);
  }
  look_for_checkpoints();
  flush_progress(false);
  tell_of_lost_save(false);
  if (!here()) return;
  if (!state) {
    trouble("state of the attempt", state.error());
  } else {
    seen_.waits = state->waits;
    if (state->phase == AttemptPhase::running) tell_suspended(state->waits);
    if (!state->nodes.empty()) seen_.nodes = state->nodes;
    const bool ending = state->phase == AttemptPhase::ending;
    if (ending && !seen_.ending_since) seen_.ending_since = Clock::now();
    // What its launcher left behind may still have something to say of why.
    const bool settled = ending && Clock::now() - *seen_.ending_since >= std::chrono::duration<double>(o_.settle_s);
    // Asked to save and end while it is still in a queue: nobody is there to save.
    const bool never_ran = s_.phase == GuardPhase::saving && state->phase == AttemptPhase::pending;
    if (state->phase == AttemptPhase::ended || settled || never_ran) return end_of_attempt(*state);
    watch_.nodes_lost(watched_, state->lost);
    tell_why_queued(*state);
    const auto tell = [&](EventKind kind, std::string text, double seconds) {
      if (!seen_.end.insert(kind).second) return;
      flush_progress(true);
      GuardEvent e = event(kind, std::move(text));
      e.attempt = s_.attempt;
      e.seconds = seconds;
      hear(std::move(e));
    };
    if (s_.phase == GuardPhase::running && state->reason == EndReason::preempted)
      tell(EventKind::preemption, "the scheduler will end it: " + state->detail, 0);
    if (here() && s_.phase == GuardPhase::running && !ending && state->time_left &&
        *state->time_left < margin_s(*state))
      tell(EventKind::time_limit_near, fmt::format("{:.0f} s until its time limit", *state->time_left),
           *state->time_left);
    if (ending) return;  // nothing moves after the command's end: that is no hang
  }
  if (!here()) return;
  for (GuardEvent& e : watch_.look(watched_)) {
    if (!here()) return;
    flush_progress(true);
    e.at = 0;
    e.attempt = s_.attempt;
    hear(std::move(e));
  }
}

void Supervisor::fence() {
  if (std::exchange(fencing_, s_.attempt) != s_.attempt) {
    fencing_since_ = Clock::now();
    fencing_told_ = false;
  }
  const auto dead = runner_.fence(s_.handle);
  if (!dead) return trouble("ending attempt " + std::to_string(s_.attempt), dead.error());
  if (!*dead) {
    const double since = std::chrono::duration<double>(Clock::now() - fencing_since_).count();
    if (since < LastingTrouble::kLasting_s || std::exchange(fencing_told_, true)) return;
    const std::string left = runner_.left(s_.handle);
    return hear(
        event(EventKind::trouble,
              fmt::format("not all of attempt {} has been seen dead in {:.0f} s, and nothing is started before{}{}",
                          s_.attempt, since, left.empty() ? "" : ": ", left)));
  }
  if (seen_.attempt == s_.attempt && seen_.logs && !seen_.logs_done) {
    take_logs(seen_.logs->finish());
    seen_.logs_done = true;
  }
  checkpoints_at_ = {};
  look_for_checkpoints();
  if (seen_.attempt == s_.attempt) flush_progress(true);
  GuardEvent e = event(EventKind::fenced);
  e.attempt = s_.attempt;
  hear(std::move(e));
}

void Supervisor::look() {
  const auto at = Clock::now();
  if (looked_at_) {
    const double gap = std::chrono::duration<double>(at - *looked_at_).count();
    const bool rests = seen_.attempt == s_.attempt && seen_.rests();
    if (!rests) watched_ += static_cast<Ns>(1e9 * std::min(gap, kMostGap_s + 5 * o_.poll_s));
  }
  looked_at_ = at;
  const int stops = hooks_.stops_asked ? hooks_.stops_asked() : 0;
  for (; stops_heard_ < stops && !broken_ && s_.phase != GuardPhase::stopped; ++stops_heard_) {
    if (s_.phase == GuardPhase::running && seen_.attempt == s_.attempt) flush_progress(true);
    hear(event(EventKind::stop_asked, "told to end"));
  }
  switch (s_.phase) {
    case GuardPhase::starting:
      if (finding_start_) find_started(*finding_start_);
      break;
    case GuardPhase::running:
    case GuardPhase::saving:
      attend();
      break;
    case GuardPhase::fencing:
      fence();
      break;
    case GuardPhase::waiting:
      look_for_resumed_nodes();
      break;
    default:
      break;
  }
  try_again();
  if (s_.until != 0 && now() >= s_.until && s_.phase != GuardPhase::stopped) hear(event(EventKind::tick));
  if (hooks_.looked) hooks_.looked(s_);
}

Result<GuardState> Supervisor::run() {
  const auto lock = StateLock::take(directory_);
  if (!lock) return tl::unexpected(lock.error());
  const auto known = read_journal(journal_path(directory_));
  if (!known) return tl::unexpected(known.error());
  if (known->torn)
    notes_.add(
        "journal-torn", Severity::info, 1, journal_path(directory_),
        "the last line was being written when the supervisor before was ended: dropped, nothing was done for it");
  s_ = replay(known->entries);
  ahead_ = std::max<Ns>(0, s_.now - now());
  wall_ += ahead_;
  const std::string command = command_sum(o_.command);
  const std::string before = last_command(known->entries);
  const bool other = !before.empty() && before != command;
  if (s_.outcome == GuardOutcome::done) {
    if (!other) return s_;
    return fail("another job was guarded here, and it is done", directory_, "this one needs another --state");
  }
  if (other && s_.phase != GuardPhase::stopped && s_.phase != GuardPhase::nothing)
    return fail("the job that is guarded here has another command, and it is not over", directory_,
                "take it up with that command, or name another --state");
  auto journal = Journal::open(journal_path(directory_), *known);
  if (!journal) return tl::unexpected(journal.error());
  journal_.emplace(std::move(*journal));
  if (!o_.heartbeat.empty() || !o_.socket.empty()) {
    auto heartbeats = Heartbeats::open(absolute(o_.heartbeat), absolute(o_.socket));
    if (!heartbeats) return tl::unexpected(heartbeats.error());
    heartbeats_.emplace(std::move(*heartbeats));
  }
  for (const SaveRecord& r : s_.saves) checkpoints_seen_.insert(r.id);
  for (const KnownCheckpoint& c : s_.checkpoints) checkpoints_seen_.insert(c.id);
  GuardEvent first = known->entries.empty() ? event(EventKind::begin, random_token()) : event(EventKind::resumed);
  first.policy = o_.policy;
  first.policy->knows_checkpoints = !o_.checkpoints.empty();
  first.handle = command;
  if (first.kind == EventKind::begin) first.node = o_.name;
  if (first.kind == EventKind::resumed && other) first.text = "with another command";
  hear(std::move(first));
  while (!broken_ && s_.phase != GuardPhase::stopped) {
    look();
    if (s_.phase != GuardPhase::stopped) std::this_thread::sleep_for(std::chrono::duration<double>(o_.poll_s));
  }
  if (broken_) return tl::unexpected(*broken_);
  for (const Action& a : drains_.all()) (void)runner_.drain(a.node, a.text);
  return s_;
}

}  // namespace

std::string journal_path(const std::string& directory) { return directory + "/journal.jsonl"; }

Result<GuardState> run_guard(const GuardOptions& options, JobRunner& runner, const SharedRules& rules,
                             const GuardHooks& hooks, Notes& notes) {
  return Supervisor(options, runner, rules, hooks, notes).run();
}

}  // namespace orrery
