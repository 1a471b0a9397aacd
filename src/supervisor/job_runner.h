// Where the attempts of a guarded job run: processes of this machine, or a scheduler. The supervisor decides, this
// does.
//
// No call waits long (a few seconds at most): the supervisor asks again. A call may fail for a while (the scheduler
// does not answer): an Error changes nothing, and is no sign that an attempt is dead.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "supervisor/node_check.h"

namespace orrery {

// What to start. Written to the supervisor's journal before start(): after a crash of the supervisor it is all there
// is.
struct AttemptSpec {
  int number = 1;                 // 1, 2, ...: each once in the life of a job
  std::string token;              // letters, digits and '-'; of this attempt alone, in all the world
  std::vector<std::string> argv;  // placeholders are replaced already; never seen by a shell
  std::vector<std::pair<std::string, std::string>> environment;  // added to the supervisor's own; the token among it
  std::string directory;                                         // absolute; where it runs
  std::string out, err;  // absolute; made new (rights 0600) and written as it comes, not kept back till the end
  std::vector<std::string> exclude;  // nodes it must not run on
  std::vector<std::string> nodes;    // on these, where the runner does not choose; empty = the runner's choice
};

enum class AttemptPhase : std::uint8_t {
  pending,  // accepted, not running yet (a queue)
  running,
  ending,  // told to end, or its launcher has; some of it may live
  ended    // its command is over. What it started may live all the same: fence() says
};

// Why the scheduler ended it, where it did.
enum class EndReason : std::uint8_t {
  none,       // by itself
  node_fail,  // a node was lost
  preempted,
  time_limit,
  out_of_memory,  // killed by the kernel or the scheduler
  cancelled,      // by a person
  requeued,       // the scheduler put it into the queue again by itself
  launch_failed   // never got going: no such program, refused, cannot ever be scheduled
};

struct AttemptState {
  AttemptPhase phase = AttemptPhase::pending;
  std::optional<int> exit_status;  // when ended by itself
  std::optional<int> signal;       // when ended by a signal; neither: ended, and nobody knows how
  // Also while it runs: preempted = a notice was given, it will be ended soon.
  EndReason reason = EndReason::none;
  std::string detail;               // in the scheduler's or the system's words; "" = nothing to add
  std::vector<std::string> nodes;   // it runs or ran on; empty = not known yet
  Ns started = 0;                   // Unix time at which its command began; 0 = not known
  std::optional<double> time_left;  // seconds until its time limit; none = there is none
  std::vector<std::string> lost;    // nodes of it that do not answer the runner's own check now
  bool waits = false;               // in the scheduler's queue, or suspended by it: nothing of it can move
};

struct NodeState {
  std::string name;
  bool usable = true;  // idle or running this very job; not drained, not down, not another's
  std::string why;     // where not: the scheduler's words
};

class JobRunner {
 public:
  virtual ~JobRunner() = default;

  virtual std::string_view kind() const = 0;  // "local", "slurm"

  // Starts the attempt; what is returned names it to the other calls, also those of a supervisor that was started
  // later (a job id, a process and when it began), and goes to the journal. Once the command runs, find() tells so.
  // Must not let the scheduler start the attempt a second time by itself. Errors: nothing was started, and nothing
  // will.
  virtual Result<std::string> start(const AttemptSpec& spec) = 0;

  // Of an error of start(): no further try will do better, a person has to change something.
  virtual bool is_final(const Error& error, const AttemptSpec& spec) const {
    (void)error, (void)spec;
    return false;
  }

  // Was the attempt started, by a supervisor that died before it could write down what start() returned? None: it was
  // not, and never will be. Errors: not known (ask again).
  virtual Result<std::optional<std::string>> find(const AttemptSpec& spec) = 0;

  virtual Result<AttemptState> poll(const std::string& handle) = 0;

  // To every process of the attempt (a scheduler: to all steps and the batch script). Of one that is over: nothing.
  virtual Status signal(const std::string& handle, int number) = 0;

  // Ends whatever is left of the attempt, at once, on all nodes. True: all of it has been seen dead, so another attempt
  // may start. False: not yet, ask again. A node that does not answer counts as dead only where the scheduler has taken
  // it out and its processes cannot reach what the job writes, or ended with it: the runner documents which.
  virtual Result<bool> fence(const std::string& handle) = 0;

  // What fence() still waits for, in words: processes, nodes. "" = not known.
  virtual std::string left(const std::string& handle) {
    (void)handle;
    return "";
  }

  // Nodes that the job may be given, now: for exclusion, tests of nodes, spares. Locally: those of the configuration.
  virtual Result<std::vector<NodeState>> nodes() = 0;

  // No job shall be started there until a person says so. Errors: not allowed (the supervisor excludes it all the
  // same).
  virtual Status drain(const std::string& node, const std::string& reason) = 0;

  // Where each process of the attempt stands, as text: stacks where a debugger is there, else what the kernel says.
  // May take `timeout_s` seconds.
  virtual Result<std::string> stacks(const std::string& handle, double timeout_s) = 0;

  // What tests groups of these nodes (node_check.h) where no command for that is given; nothing: it cannot.
  virtual std::optional<RunGroups> tester(const std::vector<std::string>& nodes, double timeout_s) {
    (void)nodes, (void)timeout_s;
    return std::nullopt;
  }
};

std::string_view name_of(EndReason reason);

}  // namespace orrery
