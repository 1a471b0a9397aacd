// orrery dissect: where the time goes. Traces -> graph (who met whom) -> reports; nothing is replayed.
#include <algorithm>

#include "base/closest.h"
#include "cli/options.h"
#include "cli/run.h"
#include "reports/reports.h"

namespace orrery {

Result<int> run_dissect(const Args& args) {
  auto options = understand(*find_command("dissect"), args);
  if (!options) return tl::unexpected(options.error());
  const std::string by = args.value("--by");
  const std::vector<std::string_view> levels{"phase", "module", "layer", "operator", "kernel", "collective"};
  if (args.has("--by") && std::find(levels.begin(), levels.end(), by) == levels.end()) {
    const std::string_view near = closest(by, levels);
    return fail("not a level: " + by, "--by",
                near.empty() ? "phase, module, layer, operator, kernel or collective"
                             : "did you mean " + std::string(near) + "?");
  }
  Progress progress(options->show_progress);
  options->keep_rows = true;
  options->host_kernels = args.has("--host-kernels");
  const auto run = read_job(args.positional, *options, progress);
  if (!run) return tl::unexpected(run.error());
  if (run->pipeline)
    return fail("steps of pipelines have neither operators nor kernels to dissect", args.positional.front(),
                "`orrery replay` says where their time goes");
  progress.stage("dissecting");
  auto document =
      dissect_document(run->traces, run->build, {.steps = options->steps, .by = by, .threads = options->threads});
  if (!document) return tl::unexpected(document.error());
  document->inputs = args.positional;
  progress.finish();
  return emit(*document, *options);
}

}  // namespace orrery
