// Slurm by its own commands (sbatch, squeue, sacct, scontrol, scancel): arguments as arrays, never through a shell.
// Errors of all functions: what the command said; a controller that does not answer, after `patience_s` of trying. That
// is never taken for "no such job".
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace orrery::slurm {

enum class JobId : std::int64_t {};  // as in squeue's %A; 0 = none

struct Terms {
  double timeout_s = 60;    // of one command; Slurm's own give up after 9 to 18 s when nobody answers
  double patience_s = 300;  // how long a command is repeated while the controller does not answer
  double settle_s = 10;     // how long to wait for accounting, which lags, and for nodes between two states
};

enum class State : std::uint8_t {
  unknown,  // nobody knows this job: it never was, or ended longer than MinJobAge ago and nothing keeps accounts
  pending,
  running,  // also configuring, suspended, resizing, stopped: it has nodes
  completing,
  completed,
  failed,
  cancelled,
  timeout,
  node_fail,
  preempted,
  out_of_memory,
  boot_fail,
  deadline
};
std::string_view name_of(State state);  // "NODE_FAIL"
State state_of(std::string_view text);  // Slurm's long names, with what may follow: "CANCELLED by 0"
inline bool is_over(State s) { return s >= State::completed; }

struct Job {
  JobId id{};
  State state = State::unknown;
  std::string state_text;  // Slurm's word
  std::string reason;      // why it waits or ended: "Resources", "BeginTime"; "" = none
  std::string name;
  std::vector<std::string> nodes;
  int restarts = 0;  // times it was requeued; -1 = not told
  int exit_status = 0, signal = 0;
  std::int64_t start_s = 0, end_s = 0;  // Unix time; 0 = not yet
  // As job() tells: when its time limit, or the grace time of a preemption, ends while it runs; 0 = not known.
  std::int64_t limit_s = 0;
  std::int64_t preempted_s = 0;  // when Slurm gave notice of preemption, as job() tells; 0 = it did not
};

// Its processes are stopped, by Slurm or by SIGSTOP to the whole job.
inline bool is_suspended(const Job& job) { return job.state_text == "SUSPENDED" || job.state_text == "STOPPED"; }

// Asks squeue, then sacct where accounts are kept, then scontrol for what squeue does not tell. A job that nobody knows
// has state `unknown`.
Result<Job> job(JobId id, const Terms& terms = {});

// In the order of `ids`, in one question to the controller (and one to sacct for those it has forgotten). Without
// restarts and, for jobs that the controller still knows, exit status.
Result<std::vector<Job>> jobs(const std::vector<JobId>& ids, const Terms& terms = {});

// All jobs of this user with that name that the controller knows, else accounts; whatever their state, ascending ids.
Result<std::vector<Job>> jobs_named(const std::string& name, const Terms& terms = {});

struct Batch {
  std::string token = {};                 // the job's name, which no other job has: a submission is found again by it
  std::vector<std::string> options = {};  // of sbatch, one a word: "--nodes=4", "--signal=B:USR1@60"
  std::vector<std::string> argv = {};     // the program that runs on the first node, with its arguments
  std::string script = {};                // file to write: made with mode 0700
  std::string output = {};                // "" = /dev/null; %j is the job's id
  std::string directory = {};             // "" = this process's own
  std::string comment = {};
};
// Never twice: a job with this token is found instead, also after an answer that was lost. Errors: what sbatch refused;
// a token or an option that Slurm would read differently.
Result<JobId> submit(const Batch& batch, const Terms& terms = {});
// The script's text: sh runs `argv` as it stands, whatever characters it has. No zero bytes.
std::string script_of(const std::vector<std::string>& argv);

struct Step {
  std::string id;  // "12.0", "12.batch"
  std::string name;
  std::vector<std::string> nodes;
};
Result<std::vector<Step>> steps(JobId id, const Terms& terms = {});  // that run

Status cancel(JobId id, const Terms& terms = {});  // also of a job that is over
// To all steps and the batch script, or to the script alone. `signal`: "USR1".
Status signal_job(JobId id, const std::string& signal, bool script_alone, const Terms& terms = {});
Status requeue(JobId id, const Terms& terms = {});
// scontrol update jobid=ID KEY=VALUE...: {"ReqNodeList", ""}, {"ExcNodeList", "node3"}, {"StartTime", "now"}
Status update_job(JobId id, const std::vector<std::pair<std::string, std::string>>& settings, const Terms& terms = {});

struct Node {
  std::string name;
  std::string state;  // "idle", "mixed", "allocated", "down"
  bool drained = false, responding = true, completing = false;
  std::string reason;   // "" = none
  std::string address;  // and
  int port = 0;         // of its slurmd
  std::vector<std::string> partitions;
  // New jobs may come to it, now or when those of others have ended.
  bool usable() const { return !drained && responding && state != "down" && state != "error" && state != "unknown"; }
};
// Of these, or of all. Errors: a name that Slurm does not know.
Result<std::vector<Node>> nodes(const std::vector<std::string>& names = {}, const Terms& terms = {});
Status drain(const std::vector<std::string>& names, const std::string& reason, const Terms& terms = {});
// Without waiting for its slurmd to answer: jobs there end as NODE_FAIL or are requeued.
Status set_down(const std::vector<std::string>& names, const std::string& reason, const Terms& terms = {});
// Repeated while a node is between two states, for `settle_s`.
// Nodes that are usable already are left as they are.
Status resume(const std::vector<std::string>& names, const Terms& terms = {});

}  // namespace orrery::slurm
