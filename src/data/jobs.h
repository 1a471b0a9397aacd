// The jobs of a datacenter: one row a job, columns side by side.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/string_pool.h"
#include "data/notes.h"

namespace orrery {

inline constexpr std::int64_t kNoTime = std::numeric_limits<std::int64_t>::min();

// How a job ended, from whatever word a scheduler has for it.
enum class Outcome : std::uint8_t { completed, failed, cancelled, preempted, timeout, node_fail, active, other };

// COMPLETED, Pass, Succeeded, Terminated ...; Outcome::other for words that are not known.
Outcome outcome_of(std::string_view state);

// What a job's duration is. A file's own column may count the waiting (Kalos) or not.
enum class DurationKind : std::uint8_t {
  file,   // the file's column; where it has none, end - start
  run,    // end - start: at work
  total,  // end - submit: waiting included
};

struct JobTable {
  std::string cluster;  // shown; unique among tables
  std::string schema;   // "acme", "sacct", ...
  std::string file;     // as given; the first, of several

  StringPool names;  // of all columns below that are StrId
  // Milliseconds since 1970-01-01 UTC (since the trace's begin where relative_times); kNoTime = unknown.
  std::vector<std::int64_t> submit_ms, start_ms, end_ms;
  // As the file's columns have them; kNoTime = it has none. queue is start - submit where it has none.
  std::vector<std::int64_t> duration_ms, queue_ms;
  std::vector<std::int32_t> gpu_milli;  // GPUs of the job, thousandths: 500 = half a GPU
  std::vector<std::int32_t> cpu_milli;  // cores
  std::vector<std::int32_t> nodes;
  std::vector<std::int32_t> limit_s;  // time limit; 0 = unknown
  std::vector<StrId> user, group, type, state, reason;
  // Ids as text, one after the other: that of row r ends at id_end[r].
  std::string ids;
  std::vector<std::uint32_t> id_end;

  std::int32_t utc_offset_s = 0;  // of the file's times: for hours of the day
  bool relative_times = false;    // seconds since the begin of the trace
  std::uint64_t span_runs = 0;    // rows whose duration is end - start and not end - submit
  std::uint64_t span_totals = 0;  // the other way round
  std::uint64_t duplicates = 0;   // rows equal to another in all that is kept
  Notes notes;

  std::size_t size() const { return gpu_milli.size(); }
  std::string_view id(std::size_t row) const {
    const std::size_t from = row == 0 ? 0 : id_end[row - 1];
    return std::string_view(ids).substr(from, id_end[row] - from);
  }
  bool duration_counts_waiting() const { return span_totals > span_runs; }
};

// The duration of a row in the sense of `kind`; kNoTime where it is not known (still waiting).
std::int64_t duration_of(const JobTable& jobs, std::size_t row, DurationKind kind);

// Rows equal to an earlier one in all that is kept; of those the first whose like is in another part, parts beginning
// at `parts`.
struct RepeatedRows {
  std::uint64_t count = 0;
  std::size_t first = 0;
};
RepeatedRows repeated_rows(const JobTable& jobs, const std::vector<std::size_t>& parts);

// Appends the rows of `more`. `into.cluster` stays.
void append_jobs(JobTable& into, const JobTable& more);

}  // namespace orrery
