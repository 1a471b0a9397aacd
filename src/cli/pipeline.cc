// The main path: traces -> graph -> replay -> reports -> writers. run.cc has the first half of it.
#include "cli/options.h"
#include "cli/run.h"
#include "reports/pipeline_steps.h"
#include "reports/reports.h"

namespace orrery {

Result<int> run_replay(const Args& args) {
  const auto options = understand(*find_command("replay"), args);
  if (!options) return tl::unexpected(options.error());
  Progress progress(options->show_progress);
  const auto run = run_again(args.positional, *options, progress);
  if (!run) return tl::unexpected(run.error());

  progress.stage("writing reports");
  const std::vector<std::int64_t> steps = chosen_steps(*run, *options);
  auto document = replay_document(
      run->traces, run->build, run->replay,
      {.steps = steps, .critical_path_hops = !options->csv_directory.empty(), .threads = options->threads});
  if (!document) return tl::unexpected(document.error());
  if (run->pipeline) {
    const PipelineJob& job = *run->pipeline;
    if (auto ok = describe_pipeline({job.trace, job.run, job.built, run->replay, job.settled_steps}, steps, *document);
        !ok)
      return tl::unexpected(ok.error());
  }
  document->inputs = args.positional;
  if (!options->export_path.empty()) {
    progress.stage("writing " + options->export_path);
    if (auto ok = export_run(*run, *options); !ok) return tl::unexpected(ok.error());
  }
  progress.finish();
  return emit(*document, *options);
}

Result<int> run_diff(const Args& args) {
  const auto options = understand(*find_command("diff"), args);
  if (!options) return tl::unexpected(options.error());
  Progress progress(options->show_progress);
  const auto a = run_again({args.positional[0]}, *options, progress);
  if (!a) return tl::unexpected(a.error());
  const auto b = run_again({args.positional[1]}, *options, progress);
  if (!b) return tl::unexpected(b.error());

  progress.stage("comparing");
  Document document = diff_document({a->traces, a->build, a->replay}, {b->traces, b->build, b->replay});
  document.inputs = args.positional;
  progress.finish();
  return emit(document, *options);
}

}  // namespace orrery
