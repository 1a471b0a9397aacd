// What a worker says: the JSON lines of docs/formats/bench.md, among whatever else it prints.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "bench/matrix.h"
#include "bench/result_store.h"

namespace orrery {

struct WorkerReport {
  std::vector<MeasuredStep> steps;  // after the warm-up
  std::vector<double> prefill_ms, decode_ms;
  std::int64_t warm_steps = 0;                                          // seen
  std::string environment;                                              // JSON object; "" = not told
  std::string missing;                                                  // package
  std::string refused;                                                  // reason
  std::optional<double> device_peak_bytes{}, device_allocated_bytes{};  // the largest rank
  std::optional<double> device_used_bytes{};                            // ... with what is not the allocator's
  std::optional<double> host_peak_bytes{};                              // sum over the ranks that told
  double host_base_bytes = 0;                                           // ... of it before there was a model
  std::optional<double> power_w{};
  std::string trace_directory;  // where it says that its traces are; "" = it does not
  bool on_host = false;         // its environment says that it computes on the CPU
  std::int64_t bad_lines = 0;   // that have the key and are not as they should be
  std::string first_bad;
  std::int64_t seen_steps() const { return warm_steps + static_cast<std::int64_t>(steps.size()); }
};

// Any text; lines without a brace and "orrery_bench" are the worker's own. What stands before the brace is a
// launcher's.
WorkerReport read_worker_lines(std::string_view text);

// `pattern` has one group: a step's milliseconds. The first `warm` steps are the warm-up.
WorkerReport read_by_pattern(std::string_view text, const std::string& pattern, std::int64_t warm);

struct LoggedStep {  // of a log that `orrery diagnose` understands
  std::int64_t step = -1;
  double seconds = -1;  // below 0 = not said
};
WorkerReport read_logged_steps(const std::vector<LoggedStep>& logged, std::int64_t warm);

// Of a run whose steps are fewer than were asked for: how many lines of its output reported one, and how they should.
std::string who_reported(const WorkerReport& report, std::string_view output, BenchCommand::Reports reports,
                         const std::string& step_ms);

// The last line that says something: not a report of this tool's, and more than marks. "" = none.
std::string last_words(std::string_view text);

}  // namespace orrery
