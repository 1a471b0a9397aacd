// The files by which the supervisor and the ranks of an attempt on Slurm speak with each other, in a directory
// attempt-N.slurm (mode 0700) of the state directory, which all nodes see. Lines are short and written in place with
// one write, so that who opens the file reads an old line or the new one, also where a network file system caches
// names.
//
//   job.sh       what sbatch was given
//   claim        id of the job that runs this attempt; appears whole, once: no second one starts
//   orders       from the supervisor to the ranks (Orders)
//   rank-NNNNN   of each rank: how it is (RankReport), written by its keeper twice a second
//   stacks-NNNNN where its processes stand, when asked for
//   notice       the job's script was told by a signal that it will be ended
//   ended        how srun ended: "exit 1", "signal 9"
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace orrery {

struct SlurmFiles {
  SlurmFiles(const std::string& state_directory, std::int64_t attempt);
  std::string rank(std::int64_t rank) const;
  std::string stacks(std::int64_t rank) const;
  std::string directory, script, claim, orders, notice, ended;
};

struct Orders {
  bool revoked = false;      // nothing of this attempt may run any more
  std::int64_t signals = 0;  // how many signals were ordered so far,
  int signal = 0;            // the last of them
  std::int64_t stacks = 0;   // how often stacks were asked for
};
std::string to_line(const Orders& orders);
std::optional<Orders> read_orders(std::string_view line);

struct RankReport {
  enum class State : char {
    runs = 'r',
    exited = 'e',  // value: its status
    killed = 's',  // value: the signal
    failed = 'f',  // it could not be started: why
    revoked = 'x'  // ended because its attempt was revoked, and seen dead
  };
  std::int64_t rank = 0;
  State state = State::runs;
  int value = 0;
  int told = 0;             // a signal of Slurm's that says that it will be ended; 0 = none
  std::int64_t beats = 0;   // grows while the keeper lives
  std::int64_t ended = 0;   // Unix nanoseconds, by the clock of its node
  std::int64_t stacks = 0;  // the last request for stacks that was answered
  std::string node, why;
  bool runs() const { return state == State::runs; }
  bool failed() const {
    return state == State::killed || state == State::failed || (state == State::exited && value != 0);
  }
};
std::string to_line(const RankReport& report);
std::optional<RankReport> read_report(std::string_view line);

// Opens anew each time: that is what makes network file systems look again. "" = not there, or not to be read now.
std::string read_line(const std::string& path);
// In place, in one write, synced if asked for. The file is made with mode 0600.
Status write_line(const std::string& path, const std::string& line, bool sync);

std::vector<RankReport> read_reports(const SlurmFiles& files);  // of all ranks that have begun, by rank

// True: this job has the attempt from now on. False: another one, or an earlier start of it, has had it.
Result<bool> claim_attempt(const SlurmFiles& files, const std::string& job);

// On the first node, in the job's script: starts the ranks by srun with `srun` (words) and waits. Exit status.
int run_slurm_batch(const std::string& state_directory, std::int64_t attempt, const std::vector<std::string>& srun);
// On each node, one a rank: starts the command, keeps it, and ends it when the attempt is revoked. Exit status.
int run_slurm_rank(const std::string& state_directory, std::int64_t attempt);

}  // namespace orrery
