// What a table of jobs says, in one pass: counts and GPU time by type, state, user and size; durations and waiting.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/spread.h"
#include "data/jobs.h"

namespace orrery {

// GPU time: thousandths of a GPU times milliseconds. The largest table of the largest jobs fits.
__extension__ using GpuTime = __int128;
double gpu_seconds(GpuTime t);

inline constexpr std::string_view kNameless = "(none)";  // users, types, states without a name

struct Share {
  std::string name;
  std::uint64_t count = 0;
  GpuTime time = 0;
};

inline constexpr std::size_t kDurationSteps = 22;  // thresholds 2^0 to 2^21 s
inline constexpr std::size_t kQueueSteps = 23;     // 2^0 to 2^22 s

// Types described one by one, those with most GPU time; a column of names of jobs may have one for each.
inline constexpr std::size_t kMostTypes = 1000;

struct TypeStats {
  std::string name;  // "ALL": every GPU job
  Spread duration_s, queue_s, gpus;
  std::array<std::uint64_t, kDurationSteps> duration_counts{};  // jobs at or below the threshold
  std::array<std::uint64_t, kQueueSteps> queue_counts{};
};

struct SizeClass {
  std::int64_t from = 0, to = 0;  // GPUs: 1-1, 2-2, 3-4, 5-8, ...; jobs of less than one GPU are 0-0
  std::uint64_t count = 0, stated = 0, failed = 0, queued = 0, over_hour = 0;  // stated: have a state
  GpuTime time = 0;
  double queue_sum_s = 0;
};

struct TypeState {
  std::string type, state;
  std::uint64_t count = 0;
  GpuTime time = 0;
};

struct JobStats {
  std::string cluster;
  std::uint64_t jobs = 0, gpu_jobs = 0, cpu_jobs = 0;
  GpuTime gpu_time = 0;
  std::uint64_t without_duration = 0;               // GPU jobs that have none (they wait): in no GPU time
  std::vector<Share> types, states, users, groups;  // of GPU jobs, most GPU time first
  std::vector<Share> all_states, all_users;         // of all jobs, most jobs first
  std::vector<TypeState> type_states;               // of those in by_type
  std::vector<TypeStats> by_type;                   // ALL first, then as in `types`
  std::vector<SizeClass> sizes;                     // those that occur
  std::vector<Share> by_gpus;                       // [g]: GPU jobs of g GPUs (parts of a GPU rounded up); [0] unused
  // Of all jobs, and of CPU jobs.
  Spread all_duration_s, all_queue_s, all_gpus, all_cpus, all_nodes, cpu_duration_s, cpu_queue_s, gpu_time_s;
  double same_second_pct = 0;  // jobs whose second of submission another has
  double interarrival_cv = 0;  // standard deviation over mean of the gaps between submissions
  double top5_users_pct = 0;   // jobs of the five users with most jobs
};

JobStats job_stats(const JobTable& jobs, DurationKind kind);

}  // namespace orrery
