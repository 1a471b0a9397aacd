#include "supervisor/decide.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "supervisor/failure.h"

namespace orrery {
namespace {

constexpr std::int64_t kMostLaunchFailures = 10;  // in a row, of a scheduler that does not take the job
constexpr double kNodesAgain_s = 10;              // how often nodes are asked for while there are too few
constexpr double kHeldAgain_s = 10;               // ... and an attempt is made while an earlier one holds checkpoints
constexpr std::size_t kManyExcuses = 2;           // more than one in so many nodes bad: the test is not believed

constexpr std::size_t kRecentSaves = 64;  // among which one may be told of twice

Ns ns(double seconds) { return static_cast<Ns>(std::llround(seconds * 1e9)); }

class Decider {
 public:
  Decider(GuardState state, const GuardEvent& event) : s_(std::move(state)), e_(event) {
    s_.now = std::max(s_.now, e_.at);
  }

  Decision run() {
    if (about_this_attempt()) dispatch();
    d_.next = std::move(s_);
    return std::move(d_);
  }

 private:
  // What is told of an attempt that is over no longer matters.
  bool about_this_attempt() const { return e_.attempt == 0 || e_.attempt == s_.attempt; }
  AttemptRecord& record() { return s_.attempts.back(); }
  bool live() const { return s_.phase == GuardPhase::running || s_.phase == GuardPhase::saving; }

  void dispatch() {
    if (s_.phase == GuardPhase::nothing && e_.kind != EventKind::begin) return;
    switch (e_.kind) {
      case EventKind::begin:
        return begin();
      case EventKind::resumed:
        return resumed();
      case EventKind::started:
        return started();
      case EventKind::not_started:
        return not_started();
      case EventKind::progress:
        return progress();
      case EventKind::finding:
        return finding();
      case EventKind::lost:
        return lost();
      case EventKind::bad_loss:
        return bad_loss();
      case EventKind::no_progress:
        return no_progress();
      case EventKind::straggler:
        return straggler();
      case EventKind::preemption:
        return to_be_ended("Preemption", "preemption");
      case EventKind::time_limit_near:
        return to_be_ended("Time Limit", "time limit");
      case EventKind::ended:
        return ended();
      case EventKind::stacks:
        return stacks();
      case EventKind::fenced:
        return fenced();
      case EventKind::nodes:
        return nodes();
      case EventKind::checkpoints:
        return checkpoints();
      case EventKind::saved:
        return saved();
      case EventKind::stop_asked:
        return stop_asked();
      case EventKind::tick:
        return tick();
      case EventKind::queued:
        return queued();
      case EventKind::trouble:
        return say("notice", e_.text);
      case EventKind::suspended:
        return suspended();
    }
  }

  void say(std::string kind, std::string text) {
    d_.kind = std::move(kind);
    d_.text = std::move(text);
  }
  void because(const std::string& line) {
    if (!line.empty()) d_.evidence.push_back(line);
  }
  void because(const Failure& f) {
    for (const std::string& line : f.evidence) because(line);
  }
  void act(Action a) { d_.actions.push_back(std::move(a)); }
  void act_pending() {
    for (Action& a : pending(s_)) act(std::move(a));
  }
  void go(GuardPhase phase, Ns until = 0) {
    s_.phase = phase;
    s_.until = until;
  }

  // ---- beginning ----

  void begin() {
    if (s_.phase != GuardPhase::nothing || !e_.policy) return;
    s_.policy = *e_.policy;
    s_.token_base = e_.text;
    s_.began = e_.at;
    say("begin", "a new job");
    make_ready();
  }

  void resumed() {
    if (e_.policy) s_.policy = *e_.policy;
    s_.stopping = false;  // whoever starts guard wants the job to go on, also where it was being stopped
    if (s_.phase != GuardPhase::stopped) {
      say("resume", fmt::format("taken up again: {}", name_of(s_.phase)));
      // Whether those before it have been done is not known.
      for (const ExcludedNode& n : s_.excluded)
        if (!n.drained) act(drain_action(n));
      return act_pending();
    }
    if (s_.outcome == GuardOutcome::done) return;
    // A person has looked at it and wants it to go on.
    s_.outcome = GuardOutcome::open;
    s_.failure.reset();
    s_.without_gain = s_.rollbacks_here = s_.launch_failures = s_.failure_restarts = 0;
    s_.waiting_nodes = s_.held_since = 0;
    s_.last_reason.clear();
    s_.tried_elsewhere = false;
    s_.restart_times.clear();
    s_.excluded.clear();
    s_.avoid.clear();
    say("resume",
        fmt::format("started again by a person{}{}: budgets begin anew", e_.text.empty() ? "" : " ", e_.text));
    make_ready();
  }

  // Nodes first, where they are ours to count, then a checkpoint.
  void make_ready() {
    if (s_.policy.needed_nodes > 0 || !s_.avoid.empty()) {
      s_.testing = false;
      go(GuardPhase::checking);
      return act_pending();
    }
    choose();
  }

  void choose() {
    go(GuardPhase::choosing);
    if (s_.policy.knows_checkpoints) return act_pending();
    start("", {0, 0}, false);
  }

  void start(const std::string& checkpoint, std::pair<std::int64_t, std::int64_t> skip, bool rollback) {
    ++s_.attempt;
    s_.token = fmt::format("{}-{}", s_.token_base, s_.attempt);
    s_.handle.clear();
    s_.step = -1;
    s_.failure.reset();
    s_.finding.reset();
    s_.told.clear();
    AttemptRecord r;
    r.number = s_.attempt;
    r.asked = s_.now;
    r.checkpoint = checkpoint;
    std::tie(r.skip_from, r.skip_to) = skip;
    r.rollback = rollback;
    s_.attempts.push_back(std::move(r));
    go(GuardPhase::starting);
    if (d_.kind.empty() || d_.kind == "begin")
      say("start", fmt::format("attempt {}{}", s_.attempt, checkpoint.empty() ? "" : " from " + checkpoint));
    if (skip.second > skip.first)
      d_.text += fmt::format(", without the batches of iterations {} to {}", skip.first, skip.second);
    act(start_action(s_, ActionKind::start));
  }

 public:
  static Action start_action(const GuardState& s, ActionKind kind) {
    const AttemptRecord& r = s.attempts.back();
    Action a;
    a.kind = kind;
    a.attempt = s.attempt;
    a.token = s.token;
    a.checkpoint = r.checkpoint;
    a.skip_from = r.skip_from;
    a.skip_to = r.skip_to;
    a.rollback = r.rollback;
    for (const ExcludedNode& n : s.excluded) a.exclude.push_back(n.node);
    for (const std::string& n : s.avoid) a.exclude.push_back(n);
    return a;
  }

 private:
  void started() {
    if (live()) return begun();
    if (s_.phase != GuardPhase::starting) return;
    s_.handle = e_.handle;
    s_.launch_failures = 0;
    s_.waiting_nodes = 0;
    s_.avoid.clear();
    record().started = e_.first ? 0 : e_.at;
    if (record().rollback) s_.rollback.begun = true;
    if (e_.state) record().nodes = e_.state->nodes;
    go(GuardPhase::running);
    if (!s_.stopping) return;
    s_.failure = failure_now(FailureKind::interrupted, s_.stop_text, "stopped by a person");
    ask_to_save();
  }

  // What had been started has come out of its queue.
  void begun() {
    AttemptRecord& r = record();
    const Ns latest = r.first_progress != 0 ? std::min(r.first_progress, e_.at) : e_.at;
    r.started = std::max(r.asked, latest);
    if (e_.state && !e_.state->nodes.empty()) r.nodes = e_.state->nodes;
  }

  void not_started() {
    if (s_.phase != GuardPhase::starting) return;
    s_.attempts.pop_back();  // it never was; its number is not used again
    because(e_.text);
    if (s_.stopping) return stop(GuardOutcome::by_operator, s_.stop_text);
    if (e_.fatal) return stop(GuardOutcome::failed, "cannot be started: " + e_.text);
    if (++s_.launch_failures == 1) s_.waiting_nodes = s_.now;
    // Without nodes that were left out there may be too few: they are waited for as others are.
    const bool may_come_back =
        std::any_of(s_.excluded.begin(), s_.excluded.end(), [](const ExcludedNode& n) { return n.drained; }) &&
        s_.now - s_.waiting_nodes < ns(s_.policy.wait_nodes_s);
    if (s_.launch_failures > kMostLaunchFailures && !may_come_back)
      return stop(GuardOutcome::failed, fmt::format("could not be started {} times in a row", s_.launch_failures));
    const double wait = backoff(s_.launch_failures);
    say("wait", fmt::format("not started; again in {:g} s", wait));
    for (const ExcludedNode& n : s_.excluded)
      because(fmt::format(
          "{} is left out: {}{}", n.node, n.why,
          n.drained ? "; taken again once it is resumed (scontrol update nodename=" + n.node + " state=resume)" : ""));
    go(GuardPhase::waiting, s_.now + ns(wait));
    act_pending();
  }

  // ---- while it runs ----

  void progress() {
    if (s_.attempts.empty() || !(live() || s_.phase == GuardPhase::fencing || s_.phase == GuardPhase::dumping)) return;
    AttemptRecord& r = record();
    s_.held_since = 0;
    if (r.started == 0) r.started = e_.at;
    if (r.first_progress == 0) {
      r.first_progress = e_.at;
      r.first_step = e_.step;
    }
    r.last_progress = e_.at;
    r.last_step = std::max(r.last_step, e_.step);
    s_.step = std::max(s_.step, e_.step);
    s_.best_step = std::max(s_.best_step, e_.step);
  }

  void queued() {
    if (live() && tell_once("queued " + e_.text)) say("notice", "it waits in the queue: " + e_.text);
  }

  void suspended() {
    if (!live() || e_.first == record().is_suspended()) return;
    if (!e_.first) {
      end_suspension();
      return say("notice", "the scheduler lets it go on");
    }
    auto& all = record().suspended;
    all.emplace_back(all.empty() ? e_.at : std::max(e_.at, all.back().second), 0);
    say("notice", "the scheduler has suspended it: nothing of it can move until it is resumed");
  }

  void end_suspension() {
    if (record().is_suspended()) record().suspended.back().second = std::max(e_.at, record().suspended.back().first);
  }

  bool tell_once(const std::string& what) {
    if (std::find(s_.told.begin(), s_.told.end(), what) != s_.told.end()) return false;
    s_.told.push_back(what);
    return true;
  }

  void finding() {
    s_.finding = e_.finding;
    if (!e_.finding || !live() || e_.finding->verdict != "failed") return;
    if (!tell_once("finding " + e_.finding->reason)) return;
    say("notice", "the logs tell of trouble: " + e_.finding->reason);
    because(describe(*e_.finding));
  }

  // A dry run only says what would be done, once for what has the same key.
  bool only_said(const std::string& key, const std::string& what) {
    if (!s_.policy.dry_run) return false;
    if (tell_once("dry-run " + key)) say("dry-run", "would now: " + what);
    return true;
  }

  Failure failure_now(FailureKind kind, std::string reason, std::string cause) const {
    Failure f;
    f.kind = kind;
    f.reason = std::move(reason);
    f.cause = std::move(cause);
    f.step = s_.step;
    f.at = s_.now;
    return f;
  }

  void fence(Failure f) {
    s_.failure = std::move(f);
    if (record().noticed == 0) record().noticed = s_.now;
    go(GuardPhase::fencing);
    act_pending();
  }

  void lost() {
    if (!live()) return;
    std::string key = "lost";
    for (const NodeReport& n : e_.nodes) key += " " + n.node;
    if (only_said(key, "kill it, a node of it is lost: " + e_.text)) return because(e_.text);
    Failure f = failure_now(FailureKind::infrastructure, "Node Failure", "Node Failure");
    for (const NodeReport& n : e_.nodes) f.lost.push_back(n.node);
    if (!f.lost.empty()) f.node = f.lost.front();
    f.exclude = !f.lost.empty();
    f.evidence.push_back(e_.text);
    say("kill", "a node is lost and nothing moves: the rest of the attempt is ended");
    because(f);
    fence(std::move(f));
  }

  void bad_loss() {
    if (s_.phase != GuardPhase::running) return;
    if (s_.policy.bad_loss == OnBadLoss::report) {
      if (tell_once("loss")) say("notice", e_.text);
      return;
    }
    if (!s_.policy.knows_checkpoints) {  // nowhere to go back to: ended, it would be worse off
      if (tell_once("loss")) say("notice", e_.text + "; left alone: no directory of checkpoints is known");
      return;
    }
    if (only_said("loss", "go back to an earlier checkpoint: " + e_.text)) return;
    Failure f = failure_now(FailureKind::numbers, std::isfinite(e_.loss) ? "Loss spike" : "Loss not finite", "loss");
    f.bad_step = e_.step;
    f.evidence.push_back(e_.text);
    say("kill", "the numbers went bad: ended without saving");
    because(f);
    fence(std::move(f));
  }

  void no_progress() {
    if (s_.phase != GuardPhase::running) return;
    if (e_.first) {  // it may be moving all the same
      if (tell_once("no steps")) say("notice", "whether it makes progress cannot be told");
      return because(e_.text);
    }
    if (only_said(fmt::format("hang {}", s_.step), "take stacks, kill it and start it again: " + e_.text))
      return because(e_.text);
    Failure f = failure_now(FailureKind::hang, "Hang", "hang");
    if (s_.finding && s_.finding->verdict == "failed" && s_.finding->ended) {
      // Some of it failed, and the rest waits for that for ever.
      AttemptState end;
      end.exit_status = 1;
      f = classify(s_, end);
      f.evidence.erase(f.evidence.begin());
    }
    f.evidence.push_back(e_.text);
    say("kill", "no progress: stacks are taken, then it is ended");
    because(f);
    s_.failure = std::move(f);
    record().noticed = s_.now;
    go(GuardPhase::dumping, s_.now + ns(2 * s_.policy.dump_s));
    act_pending();
  }

  void stacks() {
    if (s_.phase != GuardPhase::dumping) return;
    if (s_.failure) s_.failure->evidence.push_back(e_.text);
    say("fence", "ended by force");
    because(e_.text);
    go(GuardPhase::fencing);
    act_pending();
  }

  void straggler() {
    if (s_.phase != GuardPhase::running || !tell_once("straggler " + e_.node + std::to_string(e_.rank))) return;
    because(e_.text);
    const bool can = s_.policy.straggler == OnStraggler::replace && !e_.node.empty() && !is_out(e_.node);
    if (!can) return say("notice", "a straggler, reported only");
    if (only_said("replace " + e_.node, "replace " + e_.node)) return;
    Failure f = failure_now(FailureKind::straggler, "Straggler", "straggler");
    f.node = e_.node;
    f.exclude = true;
    f.evidence.push_back(e_.text);
    s_.failure = std::move(f);
    record().noticed = s_.now;
    say("save", fmt::format("{} is slow and will be replaced: asked to save and end", e_.node));
    ask_to_save();
  }

  void ask_to_save() {
    go(GuardPhase::saving, s_.now + ns(s_.policy.save_wait_s));
    act_pending();
  }

  void to_be_ended(const std::string& reason, const std::string& cause) {
    if (s_.phase != GuardPhase::running) return;
    if (only_said(reason, "ask it to save: " + e_.text)) return;
    Failure f = failure_now(FailureKind::interrupted, reason, cause);
    f.evidence.push_back(e_.text);
    s_.failure = std::move(f);
    record().noticed = s_.now;
    say("save", reason + ": asked to save and end");
    because(e_.text);
    ask_to_save();
  }

  void stop_asked() {
    const bool again = s_.stopping;
    s_.stopping = true;
    s_.stop_text = e_.text;
    switch (s_.phase) {
      case GuardPhase::nothing:
      case GuardPhase::stopped:
        return;
      case GuardPhase::choosing:
      case GuardPhase::checking:
      case GuardPhase::waiting:
        return stop(GuardOutcome::by_operator, e_.text);
      case GuardPhase::starting:
      case GuardPhase::dumping:
      case GuardPhase::fencing:
        return;
      case GuardPhase::running:
      case GuardPhase::saving:
        break;
    }
    if (again) {
      say("fence", e_.text + " again: ended at once");
      if (!s_.failure) s_.failure = failure_now(FailureKind::interrupted, e_.text, "stopped by a person");
      return fence(*s_.failure);
    }
    if (s_.phase == GuardPhase::saving) return;
    say("save", e_.text + ": asked to save and end");
    s_.failure = failure_now(FailureKind::interrupted, e_.text, "stopped by a person");
    record().noticed = s_.now;
    ask_to_save();
  }

  void tick() {
    if (s_.until == 0 || s_.now < s_.until) return;
    if (s_.phase == GuardPhase::waiting) return make_ready();
    if (s_.phase == GuardPhase::saving) {
      say("fence", fmt::format("not ended {:g} s after it was asked to: ended by force", s_.policy.save_wait_s));
      go(GuardPhase::fencing);
      return act_pending();
    }
    if (s_.phase == GuardPhase::dumping) {
      go(GuardPhase::fencing);
      act_pending();
    }
  }

  // ---- the end of an attempt ----

  void ended() {
    if (s_.attempts.empty() || !e_.state) return;
    AttemptRecord& r = record();
    if (r.ended == 0) r.ended = e_.at;
    if (r.noticed == 0) r.noticed = e_.at;
    end_suspension();
    if (!e_.state->nodes.empty()) r.nodes = e_.state->nodes;
    if (!live() && s_.phase != GuardPhase::dumping) return;
    // While it saved because Slurm had told it to: it was a person who ended it.
    const bool asked = s_.failure && !s_.stopping && s_.failure->kind == FailureKind::interrupted;
    const bool by_person = e_.state->reason == EndReason::cancelled && asked;
    // What looked like a preemption was a node that is gone.
    const bool lost = asked && !e_.state->lost.empty() && e_.state->exit_status != 0;
    if (!s_.failure || by_person || lost) s_.failure = classify(s_, *e_.state);
    // What was asked to save and end may have come to its end by itself just before.
    if (s_.phase == GuardPhase::saving && e_.state->exit_status == 0 && s_.finding &&
        s_.finding->verdict == "healthy" && s_.finding->ended && !s_.finding->sigterm)
      s_.failure = classify(s_, *e_.state);
    go(GuardPhase::fencing);
    act_pending();
  }

  void fenced() {
    if (s_.phase != GuardPhase::fencing) return;
    AttemptRecord& r = record();
    r.fenced = e_.at;
    if (r.ended == 0) r.ended = e_.at;
    if (!s_.failure) s_.failure = failure_now(FailureKind::infrastructure, "gone", "killed");
    r.failure = *s_.failure;
    const Failure f = *s_.failure;
    because(f);
    if (f.kind == FailureKind::none) return stop(GuardOutcome::done, "the job is done");
    if (s_.stopping) return stop(GuardOutcome::by_operator, s_.stop_text);
    if (s_.policy.dry_run)
      return stop(GuardOutcome::failed, "dry run: " + what_it_was(f) + "; nothing is started again");
    after(f);
  }

  static std::string what_it_was(const Failure& f) {
    std::string text = f.reason;
    if (f.step >= 0) text += fmt::format(" after iteration {}", f.step);
    if (!f.node.empty()) text += " on " + f.node;
    return text;
  }

  // The command as such can be started.
  bool has_run_before() const {
    return s_.best_step >= 0 || std::any_of(s_.attempts.begin(), s_.attempts.end(), [](const AttemptRecord& a) {
             return a.failure.kind != FailureKind::launch;
           });
  }

  void after(const Failure& f) {
    if (f.kind == FailureKind::program)
      return stop(GuardOutcome::failed, what_it_was(f) + ": a person has to act, a restart would fail again");
    if (f.kind == FailureKind::held) return wait_for_the_dead(f);
    if (f.kind == FailureKind::launch && !has_run_before()) return stop(GuardOutcome::failed, "cannot be started");
    if (f.kind == FailureKind::unknown && (s_.policy.unknown == OnUnknown::stop || s_.best_step < 0))
      return stop(GuardOutcome::failed, what_it_was(f) + (s_.best_step < 0 ? " before any training, and" : ", and") +
                                            " nothing explains it: not started again blindly");
    const bool own_fault = f.kind != FailureKind::interrupted && f.kind != FailureKind::straggler;
    // Of what cannot be started nothing is known but that; budgets end it.
    const bool same =
        own_fault && f.kind != FailureKind::launch && f.reason == s_.last_reason && f.step == s_.last_step_failed;
    if (own_fault) {
      s_.last_reason = f.reason;
      s_.last_step_failed = f.step;
    }
    if (!same) s_.tried_elsewhere = s_.tried_elsewhere && !own_fault;
    count_gain();
    if (!within_budget(own_fault)) return;
    if (f.kind == FailureKind::numbers) return go_back(f);
    if (same) {
      if (s_.policy.same_failure == OnSameFailure::stop || s_.tried_elsewhere || record().nodes.empty())
        return stop(GuardOutcome::failed,
                    fmt::format("{}, as the attempt before: the same failure at the same step is not the machine's",
                                what_it_was(f)));
      s_.tried_elsewhere = true;
      s_.avoid = record().nodes;
    }
    leave_out(f);
    const bool nodes_may_be_bad =
        f.kind == FailureKind::infrastructure || f.kind == FailureKind::hang || f.kind == FailureKind::launch;
    if (nodes_may_be_bad && s_.policy.check_nodes) {
      say("check", what_it_was(f) + ": nodes are tested");
      s_.testing = true;
      go(GuardPhase::checking);
      return act_pending();
    }
    restart();
  }

  // A node that stood still was taken for dead, and its processes have come back or not gone yet: they end when they
  // hear that their attempt is over.
  void wait_for_the_dead(const Failure& f) {
    if (s_.held_since == 0) s_.held_since = s_.now;
    if (s_.now - s_.held_since >= ns(s_.policy.wait_nodes_s))
      return stop(GuardOutcome::failed, what_it_was(f) + ": a process of it lives on some node; end it there");
    ++s_.restarts;
    say("wait", fmt::format("{}: again in {:g} s", what_it_was(f), kHeldAgain_s));
    go(GuardPhase::waiting, s_.now + ns(kHeldAgain_s));
    act_pending();
  }

  void count_gain() {
    const std::int64_t now = s_.policy.knows_checkpoints ? s_.saved_step : s_.best_step;
    s_.without_gain = now > s_.gained_step ? 0 : s_.without_gain + 1;
    s_.gained_step = std::max(now, s_.gained_step);
  }

  // False: it stopped.
  bool within_budget(bool own_fault) {
    const GuardPolicy& p = s_.policy;
    if (s_.without_gain > p.most_without_progress) {
      stop(GuardOutcome::failed,
           fmt::format("{} restarts in a row gained nothing: {} {}", s_.without_gain,
                       p.knows_checkpoints ? "no newer checkpoint than of iteration" : "none got beyond iteration",
                       s_.gained_step));
      return false;
    }
    if (!own_fault) return true;
    const Ns since = s_.now - ns(p.window_s);
    std::erase_if(s_.restart_times, [&](Ns t) { return t < since; });
    const auto in_window = static_cast<std::int64_t>(s_.restart_times.size());
    if (in_window >= p.most_in_window || s_.failure_restarts >= p.most_restarts) {
      stop(GuardOutcome::failed, in_window >= p.most_in_window
                                     ? fmt::format("{} restarts within {:g} s", in_window, p.window_s)
                                     : fmt::format("{} restarts", s_.failure_restarts));
      return false;
    }
    s_.restart_times.push_back(s_.now);
    ++s_.failure_restarts;
    return true;
  }

  void go_back(const Failure& f) {
    if (!s_.policy.knows_checkpoints)
      return stop(GuardOutcome::failed, what_it_was(f) + ", and no directory of checkpoints is known to go back in");
    if (s_.policy.bad_loss == OnBadLoss::report)
      return stop(GuardOutcome::failed, what_it_was(f) + ": going back is not allowed");
    const std::int64_t bad = f.bad_step >= 0 ? f.bad_step : f.step + 1;
    s_.rollbacks_here = s_.rollbacks_here > 0 && bad <= s_.rollback.to + 1 ? s_.rollbacks_here + 1 : 1;
    if (s_.rollbacks_here > s_.policy.most_rollbacks)
      return stop(GuardOutcome::failed,
                  fmt::format("{}: went back {} times and it came again", what_it_was(f), s_.rollbacks_here - 1));
    s_.rollback = {};
    s_.rollback.active = true;
    s_.rollback.from = -1;  // chosen when the checkpoints are known
    s_.rollback.to = bad + s_.policy.skip_extra;
    s_.rollback.bad = bad;
    restart();
  }

  bool is_out(const std::string& node) const {
    return std::any_of(s_.excluded.begin(), s_.excluded.end(), [&](const ExcludedNode& x) { return x.node == node; });
  }

  Action drain_action(const ExcludedNode& n) const {
    Action a;
    a.kind = ActionKind::drain;
    a.node = n.node;
    a.text = fmt::format("orrery guard: {}, attempt {}", n.why, s_.attempt);
    return a;
  }

  void exclude(const std::string& node, const std::string& why) {
    if (node.empty() || is_out(node)) return;
    s_.excluded.push_back({node, why, false});
    act(drain_action(s_.excluded.back()));
    because(fmt::format("{} is left out: {}", node, why));
  }

  void leave_out(const Failure& f) {
    if (!f.exclude) return;
    for (const std::string& n : f.lost) exclude(n, f.reason);
    exclude(f.node, f.reason);
  }

  double backoff(std::int64_t failures) const {
    const GuardPolicy& p = s_.policy;
    const double factor = std::pow(p.backoff_factor, static_cast<double>(std::min<std::int64_t>(failures, 60)));
    return std::min(p.backoff_most_s, p.backoff_first_s * factor);
  }

  void restart() {
    ++s_.restarts;
    const double wait = backoff(s_.without_gain);
    const std::string what = s_.failure ? what_it_was(*s_.failure) : "";
    say(s_.rollback.active && s_.rollback.from < 0 ? "rollback" : "restart",
        fmt::format("{}{}in {:g} s", what, what.empty() ? "" : ": again ", wait));
    go(GuardPhase::waiting, s_.now + ns(wait));
    act_pending();
  }

  // ---- before a start ----

  // True: it was word of a node that is left out.
  bool left_out_node() {
    if (e_.nodes.size() != 1) return false;
    const NodeReport& n = e_.nodes.front();
    const auto at =
        std::find_if(s_.excluded.begin(), s_.excluded.end(), [&](const ExcludedNode& x) { return x.node == n.node; });
    if (n.verdict == "drained") {
      if (at != s_.excluded.end()) at->drained = true;
      return true;
    }
    if (n.verdict != "resumed") return false;
    if (at == s_.excluded.end()) return true;
    say("notice", n.node + " was given back: it may be used again");
    s_.excluded.erase(at);
    if (s_.phase == GuardPhase::waiting) {
      s_.until = std::min(s_.until, s_.now + ns(s_.policy.backoff_first_s));
      act_pending();
    }
    return true;
  }

  void nodes() {
    if (left_out_node() || s_.phase != GuardPhase::checking) return;
    because(e_.text);
    std::size_t bad = 0, usable = 0, other = 0;
    for (const NodeReport& n : e_.nodes) bad += n.verdict == "bad" ? 1 : 0;
    const bool believed = bad * kManyExcuses <= e_.nodes.size();
    if (s_.testing && !believed)
      because(fmt::format("{} of {} nodes fail the test: not believed, none is left out for it", bad, e_.nodes.size()));
    for (const NodeReport& n : e_.nodes) {
      const bool slow = n.verdict == "slow" && s_.policy.straggler == OnStraggler::replace;
      if (s_.testing && (n.verdict == "bad" || slow) && believed) exclude(n.node, n.verdict + " in the test of nodes");
      if (n.verdict != "good" && n.verdict != "unusable") because(n.node + ": " + n.verdict + " " + n.why);
      const bool out =
          std::any_of(s_.excluded.begin(), s_.excluded.end(), [&](const ExcludedNode& x) { return x.node == n.node; });
      if (n.verdict == "unusable" || out) continue;
      ++usable;
      other += std::find(s_.avoid.begin(), s_.avoid.end(), n.node) == s_.avoid.end() ? 1 : 0;
    }
    if (s_.testing) {
      s_.testing = false;
      return restart();
    }
    const auto needed = std::max({static_cast<std::size_t>(s_.policy.needed_nodes), s_.avoid.size(), std::size_t{1}});
    if (!s_.avoid.empty() && other < needed) {
      s_.avoid.clear();
      return stop(GuardOutcome::failed,
                  fmt::format("{}, as the attempt before, and no other nodes to try: the same failure at the same step "
                              "is not the machine's",
                              s_.last_reason));
    }
    if (usable >= needed) {
      s_.waiting_nodes = 0;
      return choose();
    }
    if (s_.waiting_nodes == 0) {
      s_.waiting_nodes = s_.now;
      say("wait", fmt::format("{} usable nodes, {} needed: waiting for more", usable, needed));
    }
    if (s_.now - s_.waiting_nodes >= ns(s_.policy.wait_nodes_s))
      return stop(GuardOutcome::failed, fmt::format("{} usable nodes, {} needed", usable, needed));
    go(GuardPhase::waiting, s_.now + ns(kNodesAgain_s));
    act_pending();
  }

  void checkpoints() {
    if (s_.phase != GuardPhase::choosing) return;
    because(e_.text);
    if (e_.fatal) return stop(GuardOutcome::failed, "no checkpoint to go on from: " + e_.text);
    s_.checkpoints = e_.checkpoints;
    const std::string newest = s_.checkpoints.empty() ? "" : s_.checkpoints.front().id;
    if (!s_.checkpoints.empty()) s_.saved_step = std::max(s_.saved_step, s_.checkpoints.front().step);
    RollbackPlan& back = s_.rollback;
    if (!back.active) return start(newest, {0, 0}, false);
    if (back.begun) {  // is it behind us?
      for (const KnownCheckpoint& c : s_.checkpoints)
        if (c.step >= back.to) {
          back.active = false;
          return start(newest, {0, 0}, false);
        }
    }
    // An earlier one each time that it did not help.
    const std::int64_t limit = back.from >= 0 ? back.from : most_step(s_);
    std::int64_t behind = back.from >= 0 ? 0 : std::max<std::int64_t>(s_.rollbacks_here - 1, 0);
    const KnownCheckpoint* chosen = nullptr;
    for (const KnownCheckpoint& c : s_.checkpoints) {
      if (c.step > limit) continue;
      chosen = &c;
      if (behind-- == 0) break;
    }
    if (chosen == nullptr && (s_.saved_step >= 0 && back.from != 0))
      return stop(GuardOutcome::failed,
                  fmt::format("every checkpoint is of after iteration {}, where the numbers were good last", limit));
    back.checkpoint = chosen != nullptr ? chosen->id : "";
    back.from = chosen != nullptr ? chosen->step : 0;
    s_.gained_step = s_.saved_step = std::min(s_.saved_step, back.from);
    s_.best_step = std::min(s_.best_step, back.from);
    // Batches that an earlier rollback left out stay out.
    std::pair<std::int64_t, std::int64_t> skip{back.from, back.to};
    for (const auto& [from, to] : s_.skips)
      if (to > back.from) skip = {std::min(skip.first, std::max(from, back.from)), std::max(skip.second, to)};
    back.to = skip.second;
    s_.skips.push_back(skip);
    say("rollback", fmt::format("attempt {} goes back to {}", s_.attempt + 1,
                                back.checkpoint.empty() ? "the beginning" : back.checkpoint));
    start(back.checkpoint, skip, true);
  }

 public:
  // The last step of which a checkpoint is believed healthy.
  static std::int64_t most_step(const GuardState& s) { return s.rollback.bad - 1 - s.policy.rollback_margin; }

 private:
  void saved() {
    const auto recent = s_.saves.end() - static_cast<std::ptrdiff_t>(std::min(s_.saves.size(), kRecentSaves));
    const auto it = std::find_if(recent, s_.saves.end(), [&](const SaveRecord& r) {
      return r.attempt == e_.attempt && r.step == e_.step && (r.id.empty() || e_.text.empty() || r.id == e_.text);
    });
    if (it == s_.saves.end()) {
      s_.saves.push_back({e_.attempt, e_.step, e_.text, e_.seconds, e_.at});
    } else {
      if (!e_.text.empty()) it->id = e_.text;
      if (e_.seconds >= 0) it->cost_s = e_.seconds;
    }
    if (!e_.text.empty()) s_.saved_step = std::max(s_.saved_step, e_.step);
  }

  void stop(GuardOutcome outcome, const std::string& text) {
    s_.outcome = outcome;
    s_.outcome_text = text;
    go(GuardPhase::stopped);
    say(outcome == GuardOutcome::done ? "done" : "stop", text);
    Action a;
    a.kind = ActionKind::stop;
    a.text = text;
    act(std::move(a));
  }

  GuardState s_;
  const GuardEvent& e_;
  Decision d_;
};

}  // namespace

Decision decide(GuardState state, const GuardEvent& event) { return Decider(std::move(state), event).run(); }

std::vector<Action> pending(const GuardState& s) {
  Action a;
  a.attempt = s.attempt;
  switch (s.phase) {
    case GuardPhase::nothing:
    case GuardPhase::running:
      return {};
    case GuardPhase::choosing: {
      a.kind = ActionKind::list_checkpoints;
      const bool back = s.rollback.active && s.rollback.from < 0;
      a.step = back                ? Decider::most_step(s)
               : s.rollback.active ? s.rollback.from
                                   : std::numeric_limits<std::int64_t>::max();
      a.number = back ? static_cast<int>(std::max<std::int64_t>(s.rollbacks_here, 1)) : 1;
      break;
    }
    case GuardPhase::starting:
      a = Decider::start_action(s, ActionKind::find);
      break;
    case GuardPhase::saving:
      a.kind = ActionKind::signal;
      a.number = s.policy.stop_signal;
      break;
    case GuardPhase::dumping:
      a.kind = ActionKind::stacks;
      break;
    case GuardPhase::fencing:
      a.kind = ActionKind::fence;
      break;
    case GuardPhase::checking:
      a.kind = s.testing ? ActionKind::check_nodes : ActionKind::list_nodes;
      break;
    case GuardPhase::waiting:
      a.kind = ActionKind::wait;
      a.until = s.until;
      break;
    case GuardPhase::stopped:
      a.kind = ActionKind::stop;
      a.text = s.outcome_text;
      break;
  }
  return {a};
}

}  // namespace orrery
