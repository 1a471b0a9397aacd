// When jobs come and when GPUs work: by hour of the day and of the week, and by day.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "data/jobs.h"

namespace orrery {

struct HourRow {
  std::uint64_t gpu_jobs = 0, cpu_jobs = 0;  // submitted in it
  double gpus = 0;                           // at work in it, on average over the span
};

struct Patterns {
  std::string cluster;
  std::int32_t utc_offset_s = 0;
  bool relative = false;            // hours count from the begin of the trace
  std::array<HourRow, 24> hours{};  // of the day
  std::array<HourRow, 168> week{};  // Monday 0:00 first
  std::int64_t first_day = 0;       // days since 1970-01-01, local
  std::vector<HourRow> days;
};

Patterns patterns(const JobTable& jobs);

}  // namespace orrery
