// Everything `orrery replay` answers, in the order that people read: is it right (summary, steps), what was read
// (ranks), how far to trust it (quality), then why it took so long.

#include <algorithm>

#include "base/parallel.h"
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
  const unsigned workers = worker_count(options.threads);
  std::vector<DeviceRuns> devices(std::min<std::size_t>(workers, std::max<std::size_t>(1, g.ranks.size())));
  for_each_row(g.ranks.size(), static_cast<unsigned>(devices.size()), [&](std::size_t row, unsigned worker) {
    const auto k = static_cast<std::uint32_t>(row);
    DeviceRuns& device = devices[worker];
    look_at_device(g, r, tasks, k, device);
    add_step_times(g, r, device, *rows, steps);  // each rank has steps of its own
    idle[k] = idle_times(g, r, device, *rows);
    busy[k] = gpu_busy(g, r, device, *rows);
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
