// Requests served one by one: continuous batching over paged memory as the engine's facts have it, step after step,
// each as long as step_costs.h says. Instances behind a router; prefill and decode apart if asked.
//
// Steps in which nothing but the contexts' lengths changes are taken together: their time grows evenly in between. That
// is what makes ten thousand requests a matter of a second; a test compares with single steps.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "serving/memory.h"
#include "serving/step_costs.h"
#include "serving/workload.h"

namespace orrery {

// Counts in classes of half a per cent, from 1 ns to some 10^6 s.
class LogHistogram {
 public:
  void add(double value, double count);
  double count() const { return count_; }
  double mean() const { return count_ > 0 ? sum_ / count_ : 0; }
  double quantile(double q) const;  // 0 without counts
  double largest() const { return largest_; }

 private:
  std::vector<double> classes_;
  double count_ = 0, sum_ = 0, largest_ = 0;
};

struct RequestRecord {  // ns; below 0: has not happened
  double arrival = 0, started = -1, first_token = -1, end = -1;
  std::int64_t input = 0, output = 0, cached = 0;  // cached: tokens of the prompt that were found
  std::uint32_t instance = 0, preemptions = 0;
  bool refused = false;  // its prompt is longer than the model's context, or the request than the whole cache
};

struct TimelinePoint {
  double ns = 0;
  std::int64_t running = 0, waiting = 0;
  double kv_used = 0;  // of all blocks
};

// Where an instance's time went, summed over instances.
struct ServedTime {                // ns
  double prefill = 0, decode = 0;  // of steps, the GPU's, by what they held (a mixed step by its tokens' own cost)
  double comm = 0, host = 0;       // of steps: transfers; the engine's host, where the GPU waits for it
  double swap = 0;                 // of blocks, to the host's memory and back
  double idle = 0;                 // nothing to do
  double kv_blocked = 0, sequences_blocked = 0;  // of all: somebody waited for blocks; for a place in the batch
  double total = 0, doubt = 0;
  double flops = 0, gpu = 0;
};

struct Simulation {
  std::vector<RequestRecord> requests;  // as the workload has them
  LogHistogram itl;
  std::vector<TimelinePoint> timeline;  // sums over instances; at most some thousands, evenly thinned
  double kv_peak = 0;
  std::int64_t max_batch = 0, steps = 0, preemptions = 0, refused = 0, cut = 0, kv_blocks = 0;
  std::int64_t prefill_tokens = 0, cached_tokens = 0, drafted = 0, accepted = 0;
  double transferred_bytes = 0;  // prefill and decode apart
  ServedTime time;
  double end = 0;  // of the last request
};

enum class Routing : std::uint8_t { round_robin, least_loaded };

struct ServeOptions {
  Routing routing = Routing::round_robin;
  std::uint64_t seed = 1;                  // of accepted drafts
  std::int64_t most_steps_together = 128;  // 1: one by one
};

// Precondition: check(costs.job()), memory.fits.
Simulation simulate(const StepCosts& costs, const ServeMemory& memory, const Workload& workload,
                    const ServeOptions& options = {});

}  // namespace orrery
