// The same jobs under another cluster or policy: a simulation of one queue (two, with a reservation) over a pool of
// GPUs.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"

namespace orrery {

// Times in milliseconds, GPUs in thousandths.
struct SimJob {
  std::int64_t submit_ms = 0, run_ms = 0;
  std::int64_t limit_ms = 0;   // what the scheduler expects; 0 = knows the run exactly
  std::int64_t gpu_milli = 0;  // over 0
  bool favoured = false;       // of the class that GPUs are reserved for
};

struct SimPolicy {
  enum class Order : std::uint8_t {
    fifo,         // in order of submission: who does not fit holds up all behind
    easy,         // the first who does not fit gets a reservation; who does not delay it may go ahead
    conservative  // everyone who waits has a reservation (anew at each event), up to `depth`
  } order = Order::fifo;
  std::int64_t gpu_milli = 0;       // of the cluster
  std::int64_t reserved_milli = 0;  // of them for favoured jobs alone. Favoured jobs may use the others, too
  bool preempt = false;  // others may use what is reserved while it is free, and are stopped when it is needed
  std::int64_t checkpoint_ms = 0;  // a stopped job goes on from its last checkpoint; 0 = from its beginning
  std::size_t depth = 1000;        // waiting jobs that a pass looks at, of each class
  // Conservative passes that must plan anew at each event look at this many unless told otherwise.
  static constexpr std::size_t kDepthAnew = 100;
};

struct SimResult {
  static constexpr std::int64_t kNever = -1;
  std::vector<std::int64_t> first_start_ms, end_ms;  // by job; kNever: larger than what it may use
  std::vector<std::uint32_t> stops;                  // by job: how often it was stopped for another
  std::int64_t first_ms = 0, last_ms = 0;            // first submission, last end
  std::uint64_t too_large = 0, preemptions = 0, passes = 0;
  double work_ms = 0, lost_ms = 0;  // GPU time (GPUs times ms) that was of use; that was done again
  std::size_t longest_queue = 0;
};

// Favoured jobs come first, then by submission (as given, where equal). With reserved GPUs each class holds up its own
// members alone. Every job of `jobs` is in the result at its index. Deterministic.
SimResult simulate(const std::vector<SimJob>& jobs, const SimPolicy& policy,
                   const std::function<void(std::uint64_t done, std::uint64_t all)>& progress = {});

// "gpus=2048,policy=easy,reserve=Pretrain:1024,preempt=on,checkpoint=1800,depth=100" -> a policy and the name of the
// favoured type. Errors: what is not known, with the nearest.
struct SimQuestion {
  std::string text;
  SimPolicy policy;
  bool depth_given = false;
  std::string favoured_type;
};
Result<SimQuestion> read_sim_question(const std::string& text);

}  // namespace orrery
