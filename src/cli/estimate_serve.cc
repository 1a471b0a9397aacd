#include "cli/estimate_serve.h"

#include <fmt/format.h>

#include "base/progress.h"
#include "cli/serve_options.h"
#include "reports/serve.h"
#include "serving/calibrate.h"

namespace orrery {
namespace {

constexpr double k90 = 1.645;  // half of a 90 % interval, in standard deviations

std::string what_would_fit(const ServeJob& job) {
  std::string out = "more --tp or --pp";
  if (job.weights == WeightFormat::same) out += ", --quantize int8 or int4";
  return out + ", GPUs of more memory";
}

}  // namespace

Result<int> run_estimate_serve(const Args& args, const RunOptions& options) {
  Notes notes;
  auto service = described_service(args);
  if (!service) return tl::unexpected(service.error());
  auto asked = described_workload(args, notes);
  if (!asked) return tl::unexpected(asked.error());
  const ServeJob& job = service->job;
  const ServeMemory memory = memory_of(job);
  if (!memory.fits)
    return fail(fmt::format("{:.1f} GiB of weights, {:.1f} of a step and {:.1f} beside them leave no room for keys and "
                            "values in {:.1f} GiB of a GPU",
                            memory.weights, memory.activations, memory.reserved,
                            memory.capacity * job.engine.gpu_memory_utilization),
                "estimate serve", what_would_fit(job));
  if (memory.kv_too_large)
    return fail(fmt::format("{} tokens are {:.1f} GiB of keys and values: beside {:.1f} GiB of weights they do not fit "
                            "into {:.1f} GiB of a GPU",
                            job.kv_tokens, memory.kv_cache, memory.weights, memory.capacity),
                "--kv-tokens", "fewer, or leave it out: the cache takes what the memory leaves");
  Progress progress(options.show_progress);
  progress.stage("serving");
  StepCosts costs(job);
  costs.set_alike(asked->workload.alike);
  std::vector<Section> calibration;
  double factor = 1;
  if (const auto it = args.options.find("--calibrate"); it != args.options.end()) {
    if (it->second.size() > 1) return fail("is given twice", "--calibrate", "one result of loadgen");
    const auto run = read_measured_run(it->second.front());
    if (!run) return tl::unexpected(run.error());
    const auto facts = calibrate_service(*run, service->job, costs, service->options);
    if (!facts) return tl::unexpected(facts.error());
    factor = facts->front().after;
    calibration.push_back(service_calibration_section(*facts));
  }
  const auto costs_at = [&](double by) {
    StepCosts c(job);
    c.set_alike(asked->workload.alike);
    c.scale(factor * by, factor * by);
    return c;
  };
  costs = costs_at(1);
  service->options.seed = asked->seed;
  ServeAnswer answer;
  answer.level = service->level;
  answer.rate = asked->rate > 0 || !asked->workload.timed ? asked->rate : 1;
  answer.price_per_gpu_hour = service->price_per_gpu_hour;
  answer.simulation = simulate(costs, memory, asked->workload, service->options);
  answer.figures = figures_of(answer.simulation.requests, answer.simulation.itl);
  const ServedTime& t = answer.simulation.time;
  answer.relative_error = t.gpu + t.host > 0 ? t.doubt / (t.gpu + t.host) : 0;
  // Laws err alike over a run: all steps are slower, or all are quicker.
  for (const bool slower : {false, true}) {
    const double by = std::max(0.05, 1 + (slower ? k90 : -k90) * answer.relative_error);
    const StepCosts other = costs_at(by);
    const Simulation run = simulate(other, memory, asked->workload, service->options);
    (slower ? answer.slower : answer.quicker) = figures_of(run.requests, run.itl);
  }
  if (answer.level.asked()) {
    progress.stage("looking for the highest rate");
    answer.highest =
        highest_rate(costs, memory, asked->workload, asked->cv, asked->seed, service->options, answer.level);
  }
  std::vector<std::string> assumptions = std::move(service->assumptions);
  for (std::string& text : asked->assumptions) assumptions.push_back(std::move(text));
  Document d = serve_document(costs, memory, answer, assumptions);
  d.notes.merge(notes);
  for (Section& s : calibration) d.sections.push_back(std::move(s));
  progress.finish();
  const auto status = emit(d, options);
  if (!status) return status;
  return answer.simulation.refused > 0 ? kIncomplete : *status;
}

}  // namespace orrery
