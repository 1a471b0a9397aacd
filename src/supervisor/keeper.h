// The process between the supervisor and a job on this machine: starts the command, waits for it and writes down how it
// ended. It lives on when the supervisor is killed, so that another one can know. The files of attempt N in the state
// directory (all with rights 0600):
//
//   attempt-N.spec   what to start, as JSON
//   attempt-N.lock   locked while the keeper lives; its process id and start time
//   attempt-N.job    of the command: process id, start time in ticks, boot id, Unix time in ns, machine; synced
//   attempt-N.exit.partial   room for the next
//   attempt-N.exit   "exit 0", "signal 9", "signal 9 out-of-memory", "failed WHY"; appears whole, synced
//   attempt-N.void   the keeper must not start it any more: a supervisor has found that it had not
#pragma once
#include <optional>
#include <string>

#include "base/ids.h"
#include "processes/child.h"
#include "supervisor/job_runner.h"

namespace orrery {

struct AttemptFiles {
  AttemptFiles(const std::string& directory, std::int64_t number);
  std::string spec, lock, job, exit, void_mark;
};

struct KeptJob {
  Child child;
  Ns started = 0;
  bool this_boot = false;  // else: all of it went with the machine
  std::string machine;
};

struct KeptExit {
  std::optional<int> status, signal;
  bool out_of_memory = false;  // killed while the kernel killed some process for want of memory
  std::string failed;          // why it could not be started
};

Status write_spec(const AttemptFiles& files, const AttemptSpec& spec);
Result<AttemptSpec> read_spec(const AttemptFiles& files);
std::optional<KeptJob> read_job(const AttemptFiles& files);
std::optional<KeptExit> read_exit(const AttemptFiles& files);
std::string machine_name();
bool keeper_lives(const AttemptFiles& files);
Child keeper_of(const AttemptFiles& files);  // process 0 = not known

// Marks the attempt so that no keeper starts it, unless one has or is about to. True: it will never run.
Result<bool> void_attempt(const AttemptFiles& files);

// What the keeper does, in a process of its own: returns when the command has ended and nothing of what it started
// lives, also in sessions of its own. The exit status of the keeper.
int run_keeper(const std::string& directory, std::int64_t number);

}  // namespace orrery
