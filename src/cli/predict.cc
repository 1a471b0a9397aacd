// orrery predict: the same job, changed.
#include <charconv>

#include "cli/options.h"
#include "cli/predict_steps.h"
#include "cli/run.h"
#include "reports/reports.h"
#include "whatif/edits.h"
#include "whatif/layout.h"

namespace orrery {
namespace {

// In this order: what is told from the measured run first, what adds to it last.
constexpr std::string_view kOrder[] = {
    "--without-stragglers", "--kernel", "--fuse",           "--network", "--host", "--launch",
    "--cuda-graphs",        "--delay",  "--perfect-overlap"};

}  // namespace

Result<int> run_predict(const Args& given) {
  Args args = given;
  if (const auto it = args.options.find("--microbatches"); it != args.options.end())
    args.options.emplace("--num-microbatches", it->second);
  const auto options = understand(*find_command("predict"), args);
  if (!options) return tl::unexpected(options.error());
  std::vector<Edit> edits;
  for (const std::string_view name : kOrder) {
    const auto it = args.options.find(name);
    if (it == args.options.end()) continue;
    if (it->second.empty()) edits.push_back({std::string(name), ""});
    for (const std::string& value : it->second) edits.push_back({std::string(name), value});
  }
  Progress progress(options->show_progress);
  auto run = run_again(args.positional, *options, progress);
  if (!run) return tl::unexpected(run.error());
  if (run->pipeline) return predict_steps(*run, args, *options, progress);
  if (args.has("--schedule"))
    return fail("cannot be changed yet in traces of kernels", "--schedule",
                "it can where the steps of pipelines were recorded (docs/formats/pipeline-steps.md)");

  progress.stage("changing the job");
  Run changed;
  changed.build = run->build;
  std::vector<AppliedEdit> applied;
  auto layout = recognise_layout(run->traces, run->build);
  if (layout) {
    LayerRuns runs;  // told even where nothing asks for it: the answer names the layout
    if (const auto layers = count_layers(run->traces, run->build, *layout, runs)) layout->layers = *layers;
  }
  JobLayout new_layout = layout ? *layout : JobLayout{};
  const auto number = [&](std::string_view option) -> Result<std::int64_t> {
    const std::string text = args.value(option);
    std::int64_t n = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (error != std::errc{} || end != text.data() + text.size() || n < 1 || n > 1'000'000)
      return fail("not a whole number from 1: " + text, std::string(option));
    return n;
  };
  for (const std::string_view option : {"--layers", "--num-microbatches", "--dp"}) {
    if (!args.has(option)) continue;
    if (!layout) return tl::unexpected(layout.error());
    const auto n = number(option);
    if (!n) return tl::unexpected(n.error());
    AppliedEdit edit{{std::string(option), args.value(option)}, {}, {}};
    Result<Changed> done;
    if (option == "--dp") {
      const NetworkModel net = learn_network(run->traces, run->build, *layout);
      edit.floor = *n == layout->dp ? 0.0 : net.intra.seen && net.inter.seen ? 0.02 : 0.04;
      edit.doubt = 0.15;
      edit.assumes =
          "the replicas of the trace stand for all; rings between servers use every member's own network card; more "
          "ranks are not later on average";
      done = change_dp(run->traces, changed.build, new_layout, *n);
    } else if (option == "--layers") {
      edit.doubt = 0.05;
      edit.assumes =
          "added layers are like those of the trace; optimizer kernels grow with the gradients that are reduced";
      done = change_layers(run->traces, changed.build, new_layout, *n);
      if (done && *n != layout->layers) edit.floor = 0.01;
    } else {
      edit.doubt = 0.02;
      edit.assumes = "added micro-batches are like one in the middle of the step";
      done = change_microbatches(changed.build, new_layout, *n);
      edit.floor = done && done->nodes == 0 ? 0.0 : 0.01;
    }
    if (!done) return tl::unexpected(done.error());
    edit.changed = *done;
    applied.push_back(std::move(edit));
  }
  Scenario scenario{run->traces, changed.build};
  for (const Edit& e : edits) {
    auto done = apply_edit(scenario, e);
    if (!done) return tl::unexpected(done.error());
    applied.push_back(std::move(*done));
  }
  replay(changed.build.graph, changed.replay);

  progress.stage("writing reports");
  auto document = predict_document(run->traces, run->build, run->replay, changed.build, changed.replay, applied,
                                   {.steps = options->steps,
                                    .explain = args.has("--explain"),
                                    .layout = layout ? &*layout : nullptr,
                                    .new_layout = layout ? &new_layout : nullptr});
  if (!document) return tl::unexpected(document.error());
  document->inputs = args.positional;
  if (!layout)
    document->notes.add("layout-unknown", Severity::warning, 1, layout.error().what,
                        "edits of the layout cannot be made on this job");
  if (applied.empty())
    document->notes.add("no-edit", Severity::info, 1, "", "nothing is changed: the prediction is the replay");
  if (!options->export_path.empty()) {
    progress.stage("writing " + options->export_path);
    changed.traces = std::move(run->traces);
    if (auto ok = export_run(changed, *options); !ok) return tl::unexpected(ok.error());
  }
  progress.finish();
  return emit(*document, *options);
}

}  // namespace orrery
