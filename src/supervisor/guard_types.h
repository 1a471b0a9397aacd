// What the supervisor knows, hears and does, as data: decide() (decide.h) turns the first two into the third. Plain
// structs, written to and read from the journal by guard_json.h. docs/guard.md has the table of decisions.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "supervisor/job_runner.h"

namespace orrery {

enum class OnSameFailure : std::uint8_t { stop, other_nodes };
enum class OnUnknown : std::uint8_t { stop, restart };
enum class OnBadLoss : std::uint8_t { report, rollback };
enum class OnStraggler : std::uint8_t { report, replace };

// What decide() may do, and how often.
struct GuardPolicy {
  bool dry_run = false;  // only says what it would do
  std::int64_t most_restarts = 100, most_in_window = 10, most_without_progress = 4;
  double window_s = 3600;
  double backoff_first_s = 1, backoff_factor = 2, backoff_most_s = 300;  // doubles while nothing is gained
  OnSameFailure same_failure = OnSameFailure::other_nodes;
  OnUnknown unknown = OnUnknown::restart;  // a failure that nothing explains, after some training
  OnBadLoss bad_loss = OnBadLoss::rollback;
  OnStraggler straggler = OnStraggler::report;
  std::int64_t rollback_margin = 0;  // a checkpoint must be at least so many steps older than the first bad one
  std::int64_t skip_extra = 0;       // batches left out beyond the first bad step
  std::int64_t most_rollbacks = 3;   // at about the same place
  bool knows_checkpoints = false;    // a directory of them can be listed
  bool check_nodes = true;           // test nodes after a failure that may be theirs
  std::int64_t needed_nodes = 0;     // 0 = the runner's business
  double wait_nodes_s = 3600;        // for enough of them
  double save_wait_s = 300;          // from the signal to save until it is ended by force
  double dump_s = 20;                // for stacks
  int stop_signal = 15;
};

enum class EventKind : std::uint8_t {
  begin,            // a new job: policy, text = begin of tokens, node = its name, handle = its command
  resumed,          // a supervisor took over, where another one died or was stopped: policy, handle = the command, text
  started,          // handle, state; `first`: it waits in a queue, and comes again when it has begun
  not_started,      // the runner knows that the attempt was not started: text says why; `fatal` = it never can be
  progress,         // step (and loss), moved on; `first` of an attempt
  finding,          // the logs say why it fails, or that it did: finding
  lost,             // nodes do not answer and the training stands still
  bad_loss,         // step = first bad one; text
  no_progress,      // nothing moved for seconds, limit; text; `first` = no step was ever seen, it may well move
  straggler,        // rank, node, text
  preemption,       // will be ended soon
  time_limit_near,  // seconds are left
  ended,            // state: how
  stacks,           // text: where they are, or why there are none
  fenced,           // nothing of the attempt is alive
  nodes,            // nodes: what the test of nodes said, or which are usable
  checkpoints,      // checkpoints: the good ones, the newest first; text = why they are not known
  saved,       // step, seconds = training stood still; text = the id of the complete checkpoint, "" = one was begun
  stop_asked,  // by a person or the system: text; the second time: at once
  tick,        // time passes
  queued,      // it waits for the scheduler: text = why, in its words
  trouble,     // what has been tried in vain for a while: text
  suspended    // the scheduler holds it still (`first`), or lets it go on
};

// What diagnose says of the attempt's logs so far, in few words.
struct Finding {
  std::string verdict, reason, category, restart;  // as orrery diagnose says them
  std::string text;                                // the line that tells the cause
  std::string at;                                  // "attempt-2.err:14"
  std::string where, node;                         // "rank4", "node12"; node: also that of the rank, where it is known
  std::int32_t rank = -1;
  double confidence = 0;
  bool ended = false;    // a line says that the job is over
  bool sigterm = false;  // a line says that it was asked to end
};

struct NodeReport {
  std::string node;
  // "good", "bad", "slow", "link", "untested", "unusable"; of one left out: "drained", "resumed"
  std::string verdict;
  std::string why;
};

struct KnownCheckpoint {
  std::string id;
  std::int64_t step = -1;
  std::uint64_t serial = 0;  // grows with every commit
};

struct GuardEvent {
  EventKind kind = EventKind::tick;
  Ns at = 0;                                // Unix time
  std::int64_t attempt = 0;                 // of what it speaks; 0 = of none
  std::int64_t step = -1;                   // iterations done
  double loss = 0, seconds = 0, limit = 0;  // seconds: of a step, of silence, left
  std::int32_t rank = -1;
  bool first = false, fatal = false;
  std::string text, handle, node;
  std::optional<Finding> finding;
  std::optional<AttemptState> state;
  std::optional<GuardPolicy> policy;
  std::vector<NodeReport> nodes;
  std::vector<KnownCheckpoint> checkpoints;
};

enum class ActionKind : std::uint8_t {
  start,        // attempt, token, checkpoint, skip, exclude; rollback: what was committed after it is withdrawn first
  find,         // the same where it may have been started already: only if it was not
  check_nodes,  // -> nodes
  list_nodes,   // which are usable -> nodes
  list_checkpoints,  // the newest good one, and `number` good ones of at most `step` -> checkpoints
  drain,             // node, text
  stacks,            // -> stacks
  signal,            // number
  fence,             // -> fenced
  wait,              // until `until`: a tick then
  notify,            // text
  stop               // text: the supervisor is done
};

struct Action {
  ActionKind kind = ActionKind::notify;
  std::int64_t attempt = 0;
  std::string token, checkpoint, node, text;
  std::int64_t skip_from = 0, skip_to = 0;  // batches [from, to); equal = none
  bool rollback = false;
  int number = 0;
  std::int64_t step = 0;
  Ns until = 0;
  std::vector<std::string> exclude;
};

enum class GuardPhase : std::uint8_t {
  nothing,   // before begin
  choosing,  // a checkpoint, nodes
  starting,
  running,
  saving,   // asked to save and end
  dumping,  // its stacks are taken before it is killed
  fencing,
  checking,  // nodes
  waiting,   // back-off, or nodes
  stopped
};

enum class GuardOutcome : std::uint8_t { open, done, failed, by_operator };

enum class FailureKind : std::uint8_t {
  none,            // it is done
  infrastructure,  // a restart helps
  program,         // framework or script: a person has to act
  hang,
  numbers,      // NaN or a loss that stays high
  interrupted,  // preempted, at its time limit, requeued
  straggler,    // replaced on request
  launch,       // could not be started
  unknown,
  held  // what it writes is still held by a process of an attempt before: one that was taken for dead
};

struct Failure {
  FailureKind kind = FailureKind::none;
  std::string reason = {};  // "NCCL Timeout Error", "exit status 3"
  std::string cause = {};   // what time lost to it is counted under
  std::int64_t step = -1;   // the last step done before
  std::int64_t bad_step = -1;
  Ns at = 0;
  std::string node = {};                   // that the evidence names
  std::vector<std::string> lost = {};      // nodes that are gone
  bool exclude = false;                    // the evidence is of the node itself: do without it
  std::vector<std::string> evidence = {};  // one a line
};

struct ExcludedNode {
  std::string node, why;
  bool drained = false;  // the scheduler keeps others off it as well
};

// What became of each attempt: the account of time (guard_account.h).
struct AttemptRecord {
  std::int64_t number = 0;
  std::string checkpoint;
  std::int64_t skip_from = 0, skip_to = 0;
  bool rollback = false;
  Ns asked = 0, started = 0, first_progress = 0, last_progress = 0, noticed = 0, ended = 0, fenced = 0;
  std::int64_t first_step = -1, last_step = -1;
  std::vector<std::pair<Ns, Ns>> suspended;  // by the scheduler: from, to (0 = it still is); one after the other
  std::vector<std::string> nodes;
  Failure failure;  // kind none and ended > 0: it was the last, and done
  bool is_suspended() const { return !suspended.empty() && suspended.back().second == 0; }
};

struct SaveRecord {
  std::int64_t attempt = 0, step = -1;
  std::string id;
  double cost_s = -1;  // training stood still for it; below 0 = not known
  Ns at = 0;
};

struct RollbackPlan {
  bool active = false;  // until a checkpoint beyond `to` is there
  std::string checkpoint;
  std::int64_t from = -1, to = 0;  // batches left out; from = the checkpoint's step, below 0 = not chosen yet
  std::int64_t bad = -1;           // the first bad step
  bool begun = false;  // an attempt went back: what came after the checkpoint has been withdrawn, what is newer counts
};

struct GuardState {
  GuardPolicy policy;
  GuardPhase phase = GuardPhase::nothing;
  GuardOutcome outcome = GuardOutcome::open;
  std::string outcome_text;
  std::string token_base;                  // of this job: tokens of attempts begin with it
  Ns began = 0, now = 0;                   // first and last event
  std::int64_t attempt = 0, restarts = 0;  // restarts: all; failure_restarts: of those that count
  std::int64_t failure_restarts = 0;
  std::string token, handle;
  std::int64_t step = -1, best_step = -1;
  Ns until = 0;           // of the phase: back-off, saving, dumping
  Ns waiting_nodes = 0;   // since when; 0 = not
  bool stopping = false;  // a person asked
  std::string stop_text;
  bool testing = false;  // checking: nodes are tested, not only listed
  std::optional<Failure> failure;
  std::optional<Finding> finding;  // of the attempt at hand
  std::vector<ExcludedNode> excluded;
  std::vector<std::string> avoid;  // for the next attempt alone: other nodes are tried
  std::vector<KnownCheckpoint> checkpoints;
  std::vector<std::pair<std::int64_t, std::int64_t>> skips;  // of all rollbacks
  RollbackPlan rollback;
  std::int64_t rollbacks_here = 0;  // in a row without getting beyond

  std::int64_t without_gain = 0;  // restarts that gained nothing
  std::int64_t gained_step = -1;  // how far it had come at the last failure
  std::int64_t saved_step = -1;   // of the newest checkpoint that counts
  std::string last_reason;        // of the last failure, and where; "" = none
  std::int64_t last_step_failed = -2;
  bool tried_elsewhere = false;
  std::int64_t launch_failures = 0;
  Ns held_since = 0;  // checkpoints are held by an attempt before; 0 = not
  std::vector<Ns> restart_times;
  std::vector<std::string> told;  // of the attempt at hand: stragglers, findings
  std::vector<AttemptRecord> attempts;
  std::vector<SaveRecord> saves;
};

struct Decision {
  GuardState next;
  std::string kind;  // "restart", "rollback", "stop", ...: "" = nothing was decided
  std::string text;  // for people, one line
  std::vector<std::string> evidence;
  std::vector<Action> actions;  // in order
};

std::string_view name_of(EventKind kind);
std::string_view name_of(ActionKind kind);
std::string_view name_of(GuardPhase phase);
std::string_view name_of(GuardOutcome outcome);
std::string_view name_of(FailureKind kind);

}  // namespace orrery
