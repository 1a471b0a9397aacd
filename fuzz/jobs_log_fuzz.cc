// libFuzzer target of logs of runs and trials, and of files of reasons. Any bytes must give an answer that adds up, or
// an error of one line.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "cluster/progress.h"
#include "importers/jobs_log.h"
#include "importers/jobs_reasons.h"

namespace {

using namespace orrery;

void require(bool good) {
  if (!good) std::abort();
}

template <class T>
bool good(const Result<T>& r) {
  if (r) return true;
  require(!r.error().what.empty() && r.error().line().find('\n') == std::string::npos);
  return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  SourcePtr source = open_memory(text);
  if (const auto log = import_progress_log(*source, "fuzz"); good(log)) {
    require(!log->points.empty());
    const RunProgress p = run_progress({*log, *log});
    require(p.steps_done == 2 * log->points.size() && !p.curve.empty() && std::isfinite(p.ettr_pct()));
    for (const Rollback& r : p.rollbacks) require(r.lost_steps > 1 && r.lost_s >= 0 && r.down_s >= 0);
  }
  source = open_memory(text);
  if (const auto trial = import_trial_log(*source, "fuzz", {}); good(trial))
    require(trial->load_ms >= 0 && trial->inference_ms >= 0 && trial->metric_ms >= 0);
  source = open_memory(text);
  (void)good(import_reasons(*source, "fuzz"));
  return 0;
}
