// Which layout and schedule is fastest: all that are feasible, each put together and replayed.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "costs/memory.h"
#include "whatif/job_model.h"

namespace orrery {

struct SearchSpace {
  std::int64_t gpus = 0;
  std::int64_t max_tp = 0, max_pp = 0, max_dp = 0;  // 0 = a server's GPUs for tp, else no limit
  std::int64_t tp = 0, pp = 0, dp = 0;              // 0 = varied
  std::int64_t global_batch = 0;                    // sequences of a step; 0 = the job's
  std::vector<std::int64_t> micro_batch_sizes;      // empty = the job's
  std::vector<std::int32_t> chunks;                 // of interleaved schedules; 1 = 1F1B. Empty: 1, 2, 4
  std::int64_t most = 2'000;                        // candidates
  std::uint64_t most_nodes = kMostNodes;            // of the graphs of all that are put together at one time
};
// "gpus=64,max-tp=8,max-pp=16,max-dp=64,global-batch-size=512,micro-batch-size=1:2:4,chunks=1:2". Errors: a key or
// value that is none; no gpus.
Result<SearchSpace> parse_search(const std::string& text);

struct TimeShares {  // of a step, mean over the ranks of one pipeline, %; they add up to 100
  double compute = 0;
  double communication = 0;  // transfers that nothing hides
  double bubble = 0;         // what the schedule leaves empty: (pp - 1) / (chunks * micro-batches + pp - 1), at most
  double other = 0;          // host, and waiting for others
};

struct Candidate {
  JobShape shape;
  TimeShares shares;
  double iteration_ms = 0, half_ms = 0;  // 90% interval
  MemoryParts memory;
  bool fits = true;
  std::string why_not;  // could not be put together
  std::string repeat;   // the command that predicts it alone; left to the caller
};

// What to look at first: "memory" where it does not fit, else the largest of communication, bubble and the rest ("host
// and waiting") from a tenth of the step on, else "compute".
std::string_view binds(const Candidate& c);

struct SearchResult {
  std::vector<Candidate> candidates;  // what fits first, then by time
  std::uint64_t left_out = 0;         // beyond SearchSpace::most
};

// `from` gives what the space does not vary. One pipeline of each candidate is put together from `edited` (the nodes of
// `build` with other durations) and replayed, in the ratio that the whole traced job, which takes `iteration_ms`, has
// to one of its own. `table` may be null. `progress(done, all)` is called from several threads. Errors: no feasible
// layout.
Result<SearchResult> search(const TraceSet& traces, const GraphBuild& build, const GraphBuild& edited,
                            const JobModel& job, const JobShape& from, const SearchSpace& space, const CostTable* table,
                            const Overlap& overlap, double iteration_ms, unsigned threads,
                            const std::function<void(std::uint64_t, std::uint64_t)>& progress);

// Mean over the steps of the longest rank's, ms.
double iteration_ms(const ExecGraph& g, const Replay& r);

}  // namespace orrery
