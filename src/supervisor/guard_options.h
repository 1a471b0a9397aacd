// How a job is guarded: every knob, with its default. From a TOML file (docs/guard.md lists the keys), some of them as
// options of the command, too.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "supervisor/guard_types.h"
#include "supervisor/slurm_options.h"
#include "supervisor/watch.h"

namespace orrery {

struct GuardOptions {
  // [job]
  std::string name;                  // "" = the program's
  std::vector<std::string> command;  // with placeholders: {checkpoint} {skip_from} {skip_to} {attempt} {state} {nodes}
  std::vector<std::string> on_restart;   // more arguments from the second attempt on
  std::vector<std::string> on_rollback;  // more arguments where it goes back to an earlier checkpoint
  std::vector<std::string> environment;  // NAME=VALUE
  std::string directory;                 // where it runs; "" = where guard was started
  std::string state = "guard-state";
  std::vector<std::string> nodes;  // local: what {nodes} may name
  double time_limit_s = 0;         // local: of an attempt; 0 = none
  double time_limit_margin_s = 120;
  SlurmOptions slurm;
  double poll_s = 0.2, progress_s = 30, settle_s = 5;
  // [progress], [loss], [straggler]
  std::string heartbeat, socket;
  WatchPolicy watch;
  // [restart], [stop], [nodes], [loss]
  GuardPolicy policy;
  std::vector<std::string> check_command;  // tests nodes; {hosts} as of orrery checknodes --command
  double check_timeout_s = 60;
  // [checkpoints]
  std::string checkpoints;
  bool verify = true;
  // [tell]
  std::string metrics, metrics_file, webhook;
  double webhook_timeout_s = 5;
};

// Errors, with the line: not TOML, an unknown key (the nearest is named), a value of another kind or out of its limits.
Status read_guard_options(std::string_view text, const std::string& where, GuardOptions& options);

// {name} -> value in one argument; braces around anything else stay.
using Placeholders = std::vector<std::pair<std::string, std::string>>;
std::string replaced(const std::string& argument, const Placeholders& values);

// What is needed and makes sense together. Errors: the first that does not.
Status check_options(const GuardOptions& options);

// Of a job on this machine: its program can be found as it will be looked for, in the directory it will run in.
Status check_program(const GuardOptions& options);

}  // namespace orrery
