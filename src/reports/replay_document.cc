// Everything `orrery replay` answers, in the order that people read: is it right (summary, steps), what was read
// (ranks), how far to trust it (quality), then why it took so long.
#include <tbb/enumerable_thread_specific.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <thread>

#include "reports/reports.h"

namespace orrery {
Result<Document> replay_document(const TraceSet& traces, const GraphBuild& build, const Replay& r,
                                 const ReplayReportOptions& options) {
  const ExecGraph& g = build.graph;
  const auto rows = select_steps(g, options.steps);
  if (!rows) return tl::unexpected(rows.error());

  const DeviceTasks tasks = device_tasks(g);
  std::vector<StepTimes> steps(rows->size());
  std::vector<IdleTimes> idle(g.ranks.size());
  std::vector<RankBusy> busy(g.ranks.size());
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  tbb::task_arena arena(static_cast<int>(options.threads == 0 ? cores : std::min(options.threads, cores)));
  arena.execute([&] {
    tbb::enumerable_thread_specific<DeviceRuns> devices;
    tbb::parallel_for(std::uint32_t{0}, static_cast<std::uint32_t>(g.ranks.size()), [&](std::uint32_t k) {
      DeviceRuns& device = devices.local();
      look_at_device(g, r, tasks, k, device);
      add_step_times(g, r, device, *rows, steps);  // each rank has steps of its own
      idle[k] = idle_times(g, r, device, *rows);
      busy[k] = gpu_busy(g, r, device, *rows);
    });
  });
  const auto paths = critical_paths(g, r, *rows);

  Document d;
  d.command = "replay";
  d.notes = traces.notes;
  for (const RankTrace& t : traces.ranks) d.notes.merge(t.notes);
  d.notes.merge(build.notes);
  note_unexplained_idle(g, build.quality, d.notes);
  d.sections.push_back(summary_section(g, steps));
  d.sections.push_back(steps_section(g, steps));
  d.sections.push_back(ranks_section(traces, g, build.communication));
  d.sections.push_back(quality_section(build.quality, build.communication));
  d.sections.push_back(idle_section(g, idle, steps));
  d.sections.push_back(stragglers_section(traces, build, r, *rows));
  d.sections.push_back(critical_path_section(traces, g, paths));
  d.sections.push_back(collectives_section(build.communication));
  d.sections.push_back(communication_section(g, build.communication, *rows));
  d.sections.push_back(gpu_busy_section(g, std::move(busy)));
  if (options.critical_path_hops) d.sections.push_back(critical_path_hops_section(traces, g, r, paths));
  return d;
}

}  // namespace orrery
