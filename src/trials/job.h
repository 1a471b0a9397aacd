// What runs on a node: a directory that says what to do, and the process that does it and says how it went. The
// directory outlives both, so that whoever coordinates can be killed and started again.
//
//   job.json     what to do
//   owner        who does it, made once: the process, or "revoked"
//   child        the command's process
//   out.log      what the command said
//   result.json  how it ended, whole or not there
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "processes/child.h"
#include "trials/node_copy.h"

namespace orrery {

struct JobSpec {
  std::vector<std::string> argv{};  // "{model}" becomes where the model is
  std::vector<std::pair<std::string, std::string>> environment{};
  std::string directory{};  // where the command starts; "" = the job's own
  double limit_s = 86'400;
  bool loads = false;  // with a copy in the node's memory
  std::string source{}, fingerprint{};
  CopyTerms copy{};
  bool storage_when_full = true;
};

struct JobResult {
  Exit exit;
  std::string error;  // why nothing was run: "" = it was
  bool cannot_start = false, timed_out = false, stopped = false, no_model = false;
  bool no_room = false;                      // of no_model: memory is full
  bool no_room_yet = false;                  // ... and copies that are in use could still go
  double began = 0, started = 0, ended = 0;  // Unix seconds: the job, its command, its end
  double load_s = 0;
  std::string load_from;  // "memory", "storage"; "" = none
  bool loaded_here = false;
  std::string load_note;  // why from storage
  bool good() const { return error.empty() && !timed_out && !stopped && exit.good(); }
};

Status write_job(const std::string& directory, const JobSpec& spec);
std::optional<JobResult> read_result(const std::string& directory);

struct JobOwner {
  bool revoked = false;
  Child process;
  std::string host;
  std::int64_t job = 0;  // Slurm's; 0 = none
  std::string step;      // of it; "" = none
  std::string element;   // ARRAY_INDEX of an array: the job's number alone may be that of the whole array
};
std::optional<JobOwner> read_owner(const std::string& directory);
// Makes sure that nobody begins this job any more. False: somebody has begun it.
bool revoke_job(const std::string& directory);
// "PID START" as text, and back; what is neither gives a child without a process.
std::string identity(const Child& child);
Child child_of(const std::string& text);
std::optional<Child> read_child(const std::string& directory);

// `path` itself, or the line of that file that this element of a Slurm array is.
std::string job_of_array(const std::string& path);

// The job's own process: claims it, loads, runs the command, writes the result. Exit status 0 when a result was
// written, else 2.
int run_job(const std::string& directory);

}  // namespace orrery
