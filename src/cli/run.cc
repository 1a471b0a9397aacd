#include "cli/run.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <mutex>

#include "graph/host_kernels.h"
#include "importers/importers.h"
#include "reports/pipeline_steps.h"
#include "reports/reports.h"
#include "writers/chrome_trace.h"

namespace orrery {
namespace {

Result<Run> run_pipeline(PipelineTrace trace, const RunOptions& options, Progress& progress) {
  Run run;
  for (const PipelineRank& r : trace.ranks) {
    std::error_code error;
    if (!options.export_path.empty() && std::filesystem::equivalent(options.export_path, r.file, error) && !error)
      return fail("--export would overwrite a trace that is read", options.export_path, "name another file");
  }
  progress.stage("replaying");
  PipelineJob job{std::move(trace), {}, {}, {}};
  job.run = learn_pipeline(job.trace);
  run.traces = pipeline_rows(job.trace);
  run.traces.notes = job.trace.notes;
  if (Status s = assemble_pipeline(job.trace, job.run.model, job.run.program, job.built); !s)
    return tl::unexpected(s.error());
  Notes warm_up;
  job.settled_steps = settled_steps(job.built.build.graph, warm_up);
  if (options.steps.empty()) run.traces.notes.merge(warm_up);
  for (const PipelineIdle& i : job.run.idle) {
    const std::vector<std::int64_t>& of = job.settled_steps;
    if (!of.empty() && std::find(of.begin(), of.end(), job.trace.steps[i.step].number) == of.end()) continue;
    job.built.build.quality[i.rank].idle_ns += i.idle;
    job.built.build.quality[i.rank].unexplained_idle_ns += i.unexplained;
  }
  run.build = job.built.build;
  replay(run.build.graph, run.replay);
  run.pipeline = std::move(job);
  return run;
}

}  // namespace

std::vector<std::int64_t> chosen_steps(const Run& run, const RunOptions& options) {
  return options.steps.empty() && run.pipeline ? run.pipeline->settled_steps : options.steps;
}

// Each rank's graph is built as soon as its rows are there, and of the rows only the names stay, unless the run is to
// be exported: hundreds of ranks need not be in memory as rows at once.
Result<Run> read_job(const std::vector<std::string>& paths, const RunOptions& options, Progress& progress) {
  progress.stage("reading " + paths.front());
  auto steps = import_pipeline(paths, options.import);
  if (!steps) return tl::unexpected(steps.error());
  if (steps->has_value()) return run_pipeline(std::move(**steps), options, progress);
  Run run;
  GraphBuilder builder;
  const GraphOptions graph{.threads = options.threads};
  ImportOptions import = options.import;
  import.progress = [&](std::uint64_t done, std::uint64_t total) { progress.update(done, total); };
  builder.reserve(import.workers());
  std::mutex mutex;
  std::deque<RankGraph> drafts;  // by RankTrace::place; a deque keeps what it holds in place
  import.on_trace = [&](RankTrace& trace, unsigned worker) -> Status {
    if (options.host_kernels) (void)host_as_device(trace);
    RankGraph* draft = nullptr;
    {
      const std::lock_guard lock(mutex);
      if (drafts.size() <= trace.place) drafts.resize(trace.place + 1);
      draft = &drafts[trace.place];
    }
    if (Status s = builder.draft(trace, graph, worker, *draft); !s) return s;
    if (options.export_path.empty() && !options.keep_rows) trace.keep_names();
    return {};
  };
  auto traces = import_traces(paths, import);
  if (!traces) return tl::unexpected(traces.error());
  run.traces = std::move(*traces);
  for (const RankTrace& t : run.traces.ranks) {
    std::error_code error;
    if (!options.export_path.empty() && std::filesystem::equivalent(options.export_path, t.file, error) && !error)
      return fail("--export would overwrite a trace that is read", options.export_path, "name another file");
  }

  progress.stage("joining the ranks");
  std::vector<RankGraph> ranks;
  for (const RankTrace& t : run.traces.ranks) ranks.push_back(std::move(drafts[t.place]));
  if (Status s = builder.join(run.traces, graph, ranks, run.build); !s) return tl::unexpected(s.error());
  return run;
}

Result<Run> run_again(const std::vector<std::string>& paths, const RunOptions& options, Progress& progress) {
  auto run = read_job(paths, options, progress);
  if (!run || run->pipeline) return run;
  progress.stage("replaying");
  replay(run->build.graph, run->replay);
  return run;
}

Status export_run(const Run& run, const RunOptions& options) {
  const auto rows = select_steps(run.build.graph, chosen_steps(run, options));
  if (!rows) return tl::unexpected(rows.error());
  std::vector<NodeId> path;
  for (const CriticalPath& p : critical_paths(run.build.graph, run.replay, *rows)) {
    for (const NodeId n : nodes_of(p)) path.push_back(n);
  }
  return write_chrome_trace(options.export_path, run.traces, run.build.graph, run.replay, path);
}

}  // namespace orrery
