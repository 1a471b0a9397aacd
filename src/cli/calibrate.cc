#include "cli/calibrate.h"

#include "cli/run.h"
#include "estimate/calibrate.h"
#include "reports/calibration.h"
#include "whatif/given_layout.h"

namespace orrery {

OptionSpec calibrate_option() {
  return {"--calibrate", "TRACE",
          "take the speed of kernels, host and links from the traces of a job on such GPUs: a file, a directory or a "
          "pattern (may be repeated for the files of one run)",
          Takes::file, true};
}

Status calibrate_by(const Args& args, const RunOptions& options, const EstimateJob& job, JobCosts& costs,
                    std::vector<Section>& sections) {
  if (!args.has("--calibrate")) return {};
  Progress progress(options.show_progress);
  RunOptions reading = options;
  reading.keep_rows = true;
  auto run = run_again(args.options.find("--calibrate")->second, reading, progress);
  if (!run) return tl::unexpected(run.error());
  if (run->pipeline)
    return fail("the traces have steps of pipelines, no kernels", "--calibrate", "give traces of PyTorch's profiler");
  progress.stage("taking the traced job apart");
  const Overlap overlap = overlap_of(run->build.graph, learn_contention(run->traces, run->build), run->replay);
  const auto layout = recognise_layout(run->traces, run->build, GivenLayout{});
  if (!layout) return fail(layout.error().what, "--calibrate", layout.error().advice);
  const auto learned = learn_job(run->traces, run->build, *layout, GivenLayout{}, overlap);
  if (!learned) return fail(learned.error().what, "--calibrate", learned.error().advice);
  const auto facts = calibrate(run->traces, run->build, *learned, job, costs);
  if (!facts) return tl::unexpected(facts.error());
  sections.push_back(calibration_section(*facts));
  return {};
}

}  // namespace orrery
