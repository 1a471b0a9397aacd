// Where jobs run: processes of this machine, or Slurm. A job is a directory (trials/job.h); a runner has its process
// started and says whether it may still write a result.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "trials/config.h"
#include "trials/node_copy.h"

namespace orrery {

struct JobPlace {
  std::string node;       // "" = the runner chooses
  std::int64_t gpu = -1;  // -1: a job on CPUs
};
struct JobStart {
  std::string directory;
  JobPlace place;
  std::vector<std::string> avoid;  // nodes, where there are others
};

class TrialRunner {
 public:
  virtual ~TrialRunner() = default;
  // GPUs on which trials can run at the same time: one place each.
  virtual std::vector<JobPlace> places() const = 0;
  virtual CopyTerms copy_terms(const std::string& node) const = 0;  // of this machine's memory
  // Of the state, before anything is started: what jobs are named by where others may have jobs.
  virtual void name_jobs(const std::string& token) { (void)token; }
  virtual bool local() const = 0;  // copies are in this machine's memory
  // One a job: its handle, which `gone` and `stop` take, also in another process; or why it was not started.
  virtual std::vector<Result<std::string>> start(const std::vector<JobStart>& jobs) = 0;
  // No process of the job is there and none will come. Of a job whose handle was lost ("") its owner tells.
  virtual bool gone(const std::string& directory, const std::string& handle) = 0;
  // Has it stop, without waiting for that; stop() waits, and after `wait_s` kills what can be killed.
  virtual void ask_to_stop(const std::string& directory, const std::string& handle) = 0;
  virtual void stop(const std::string& directory, const std::string& handle, double wait_s) = 0;
  virtual std::string node_of(const std::string& directory) const = 0;      // where it runs or ran; "" = not known
  virtual void end(const std::vector<std::string>& nodes) { (void)nodes; }  // all is done: clean up those that worked
};

// `program` is this tool. Nodes beyond the first are made up: each has places and copies of its own.
std::unique_ptr<TrialRunner> local_runner(const EvalConfig& config, const std::string& program);

// Slurm's arrays. `program` and the state must be seen by all nodes.
std::unique_ptr<TrialRunner> slurm_runner(const EvalConfig& config, const std::string& program);

// Steps of the Slurm allocation in which this process runs.
std::unique_ptr<TrialRunner> step_runner(const EvalConfig& config, const std::string& program);

}  // namespace orrery
