#include "cli/predict_steps.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "reports/pipeline_steps.h"
#include "whatif/pipeline_steps.h"

namespace orrery {
namespace {

constexpr std::string_view kEdits[] = {"--without-stragglers", "--schedule", "--num-microbatches", "--kernel",
                                       "--perfect-overlap"};
// What says how to read and answer, not what to change.
constexpr std::string_view kOther[] = {"--explain", "--steps", "--rank",    "--export", "--csv",         "--recover",
                                       "--json",    "--quiet", "--threads", "--help",   "--microbatches"};

template <class Names>
bool among(const Names& names, std::string_view name) {
  for (const std::string_view n : names)
    if (n == name) return true;
  return false;
}

Result<std::int32_t> micro_batches(const std::string& text) {
  std::int32_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc{} || end != text.data() + text.size() || n < 1 || n > 100'000)
    return fail("not a whole number from 1: " + text, "--num-microbatches");
  return n;
}

// What the run is in another order of its passes, and how sure that is.
struct Order {
  PipelineSchedule to;
  bool schedule = false, micro_batches = false;  // asked for
};

void judge(const Order& order, const PipelineTrace& t, AppliedEdit& edit, bool count) {
  if (count) {
    edit.doubt = {Cause::structure, 0.05};
    edit.floor = {Cause::structure, 0.01};
    edit.assumes = "added micro-batches are like those of the trace, in turn";
    return;
  }
  edit.doubt = {Cause::structure, 0.1};
  edit.floor = {Cause::structure, t.has_transfers ? 0.02 : 0.03};
  edit.assumes = "a chunk takes its share of the stage's pass: smaller pieces are as efficient";
  if (!t.has_transfers) edit.assumes += "; a hop between stages takes what it takes in the trace";
  if (order.to.kind == ScheduleKind::zero_bubble) {
    edit.floor = {Cause::structure, 0.05};
    edit.assumes = "half of a backward pass are the gradients of the weights, unless the trace has them apart";
  }
}

}  // namespace

Result<int> predict_steps(Run& run, const Args& args, const RunOptions& options, Progress& progress) {
  PipelineJob& job = *run.pipeline;
  for (const auto& [name, values] : args.options)
    if (!among(kEdits, name) && !among(kOther, name))
      return fail("cannot be changed where only the steps of pipelines were recorded, no kernels and no sizes", name,
                  "what can: --schedule, --num-microbatches, --without-stragglers, --kernel, --perfect-overlap");

  progress.stage("changing the job");
  PipelineTrace trace = job.trace;
  PipelineProgram program = job.run.program;
  std::vector<AppliedEdit> applied;
  if (args.has("--without-stragglers")) {
    AppliedEdit edit{{"--without-stragglers", ""}, {}, {}};
    edit.changed = make_ideal(
        ideal_times(trace, program, job.settled_steps), [](const PipelineRow&) { return true; }, program);
    edit.doubt = {Cause::stragglers, 0.05};
    edit.assumes =
        "every operation takes the ideal time of its type: of compute the mean over all ranks and steps, of "
        "communication the median";
    applied.push_back(std::move(edit));
  }

  const auto as_is = recognise_schedule(job.trace, job.run.program);
  Order order;
  order.to = as_is.value_or(PipelineSchedule{.micro_batches = job.trace.micro_batches});
  order.schedule = args.has("--schedule");
  order.micro_batches = args.has("--num-microbatches");
  if (order.schedule) {
    const auto to = parse_schedule(args.value("--schedule"));
    if (!to) return tl::unexpected(to.error());
    order.to.kind = to->kind;
    order.to.chunks = to->chunks;
  } else if (order.micro_batches && !as_is) {
    return fail("the order of the measured passes is not known: neither 1F1B nor interleaved nor zero bubble",
                "--num-microbatches", "name one: --schedule 1f1b");
  }
  if (order.micro_batches) {
    const auto n = micro_batches(args.value("--num-microbatches"));
    if (!n) return tl::unexpected(n.error());
    order.to.micro_batches = *n;
  }
  if (order.schedule || order.micro_batches) {
    Changed changed;
    if (!as_is || order.to != *as_is) {
      auto done = reschedule(trace, job.run.model, program, order.to);
      if (!done) return tl::unexpected(done.error());
      trace = std::move(done->trace);
      program = std::move(done->program);
      changed = done->changed;
    }
    for (const bool count : {false, true}) {
      if (count ? !order.micro_batches : !order.schedule) continue;
      const std::string name = count ? "--num-microbatches" : "--schedule";
      AppliedEdit edit{{name, args.value(name)}, {}, {}};
      const bool same = as_is && (count ? order.to.micro_batches == as_is->micro_batches
                                        : order.to.kind == as_is->kind && order.to.chunks == as_is->chunks);
      if (!same) {
        edit.changed = changed;
        judge(order, job.trace, edit, count);
      }
      applied.push_back(std::move(edit));
    }
  }

  PipelineBuild built;
  if (Status s = assemble_pipeline(trace, job.run.model, program, built); !s) return tl::unexpected(s.error());
  Scenario scenario{run.traces, built.build};
  for (const std::string_view name : {"--kernel", "--perfect-overlap"}) {
    const auto it = args.options.find(name);
    if (it == args.options.end()) continue;
    std::vector<std::string> values = it->second;
    if (values.empty()) values.emplace_back();
    for (const std::string& value : values) {
      auto done = apply_edit(scenario, {std::string(name), value});
      if (!done) return tl::unexpected(done.error());
      applied.push_back(std::move(*done));
    }
  }
  Run changed;
  replay(built.build.graph, changed.replay);

  progress.stage("writing reports");
  const auto layout_of = [](const PipelineTrace& t) {
    JobLayout l;
    l.world = std::int64_t{t.stages} * t.dp * t.tp;
    l.pp = t.stages;
    l.dp = t.dp;
    l.tp = t.tp;
    l.num_microbatches = t.micro_batches;
    return l;
  };
  const JobLayout layout = layout_of(job.trace), new_layout = layout_of(trace);
  const std::vector<std::int64_t> steps = chosen_steps(run, options);
  PredictReportOptions report{
      .steps = steps, .explain = args.has("--explain"), .layout = &layout, .new_layout = &new_layout};
  Section stragglers;
  if (args.has("--without-stragglers")) {
    const auto rows = select_steps(run.build.graph, steps);
    if (!rows) return tl::unexpected(rows.error());
    stragglers = pipeline_stragglers_section({job.trace, job.run, job.built, run.replay, job.settled_steps}, *rows);
    report.stragglers = &stragglers;
  }
  auto document = predict_document(run.traces, run.build, run.replay, built.build, changed.replay, applied, report);
  if (!document) return tl::unexpected(document.error());
  if (auto ok = add_medians(run.build.graph, run.replay, built.build.graph, changed.replay, steps, *document); !ok)
    return tl::unexpected(ok.error());
  document->notes.merge(built.build.notes);
  document->inputs = args.positional;
  if (order.schedule && !as_is)
    document->notes.add("order-unknown", Severity::warning, 1, "",
                        "the measured passes are in the order of no known schedule: what else it does is not in the "
                        "prediction");
  if (applied.empty())
    document->notes.add("no-edit", Severity::info, 1, "", "nothing is changed: the prediction is the replay");
  if (!options.export_path.empty()) {
    progress.stage("writing " + options.export_path);
    changed.build = std::move(built.build);
    changed.traces = std::move(run.traces);
    changed.pipeline = std::move(run.pipeline);
    if (auto ok = export_run(changed, options); !ok) return tl::unexpected(ok.error());
  }
  progress.finish();
  return emit(*document, options);
}

}  // namespace orrery
