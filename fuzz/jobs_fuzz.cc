// libFuzzer target of the readers of job records: every schema, as CSV and as JSON. Any bytes must give a table whose
// columns agree, with answers that add up and queues that end, or an error of one line.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "cluster/failures.h"
#include "cluster/job_stats.h"
#include "cluster/patterns.h"
#include "cluster/scheduler.h"
#include "importers/jobs.h"

namespace {

void require(bool good) {
  if (!good) std::abort();
}

// Every policy serves the same work and leaves nobody waiting who fits.
void run_queues(const orrery::JobTable& t) {
  using namespace orrery;
  std::vector<SimJob> jobs;
  for (std::size_t r = 0; r < t.size(); ++r) {
    const std::int64_t run = duration_of(t, r, DurationKind::run);
    if (t.gpu_milli[r] == 0 || run == kNoTime || run < 0 || t.submit_ms[r] == kNoTime) continue;
    jobs.push_back({t.submit_ms[r], run, std::int64_t{t.limit_s[r]} * 1000, t.gpu_milli[r], r % 3 == 0});
  }
  for (const auto order : {SimPolicy::Order::fifo, SimPolicy::Order::easy, SimPolicy::Order::conservative})
    for (const auto& [reserved, preempt] : {std::pair{8'000, false}, {8'000, true}, {0, false}}) {
      SimPolicy p;
      p.order = order;
      p.gpu_milli = 16'000;
      p.reserved_milli = reserved;
      p.preempt = preempt;
      const SimResult r = simulate(jobs, p);
      std::uint64_t never = 0;
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        never += r.end_ms[i] == SimResult::kNever;
        require(r.end_ms[i] == SimResult::kNever || r.end_ms[i] >= jobs[i].submit_ms + jobs[i].run_ms);
      }
      require(never == r.too_large);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto jobs = import_jobs_bytes(text, "fuzz");
  if (!jobs) {
    require(!jobs.error().what.empty() && jobs.error().line().find('\n') == std::string::npos);
    return 0;
  }
  const JobTable& t = *jobs;
  const std::size_t n = t.size();
  require(t.submit_ms.size() == n && t.start_ms.size() == n && t.end_ms.size() == n);
  require(t.duration_ms.size() == n && t.queue_ms.size() == n && t.cpu_milli.size() == n && t.nodes.size() == n);
  require(t.user.size() == n && t.group.size() == n && t.type.size() == n && t.state.size() == n);
  require(t.reason.size() == n && t.limit_s.size() == n && t.id_end.size() == n);
  require(n == 0 ? t.ids.empty() && !t.notes.rows.empty() : t.id_end.back() == t.ids.size());
  for (std::size_t r = 0; r < n; ++r) {
    require(t.gpu_milli[r] >= 0 && t.cpu_milli[r] >= 0 && t.nodes[r] >= 0);
    require(t.queue_ms[r] == kNoTime || t.queue_ms[r] >= 0);
    require(t.duration_ms[r] == kNoTime || t.duration_ms[r] >= 0);
  }
  run_queues(t);
  (void)patterns(t);
  (void)failure_stats(t, {}, {});
  for (const DurationKind kind : {DurationKind::file, DurationKind::run, DurationKind::total}) {
    const JobStats s = job_stats(t, kind);
    require(s.jobs == n && s.gpu_jobs + s.cpu_jobs == n);
    std::uint64_t types = 0, states = 0, sizes = 0;
    for (const Share& x : s.types) types += x.count;
    for (const Share& x : s.states) states += x.count;
    for (const SizeClass& x : s.sizes) sizes += x.count;
    require(types == s.gpu_jobs && states == s.gpu_jobs && sizes == s.gpu_jobs);
    require(s.by_type[0].duration_counts.back() <= s.gpu_jobs);
  }
  return 0;
}
