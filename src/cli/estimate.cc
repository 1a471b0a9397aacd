// orrery estimate train|finetune|serve|ops: a job's cost without a trace.
#include "estimate/estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>

#include "cli/calibrate.h"
#include "cli/estimate_ops.h"
#include "cli/estimate_options.h"
#include "cli/estimate_serve.h"
#include "cli/options.h"
#include "cli/serve_options.h"
#include "facts/library.h"
#include "reports/estimate.h"
#include "reports/reports.h"
#include "reports/serve.h"

namespace orrery {
namespace {

Result<std::vector<std::int64_t>> read_list(const std::string& text, const std::string& option) {
  std::vector<std::int64_t> list;
  for (std::size_t i = 0; i <= text.size();) {
    const std::size_t end = std::min(text.find(',', i), text.size());
    std::int64_t n = 0;
    const auto [at, error] = std::from_chars(text.data() + i, text.data() + end, n);
    if (error != std::errc{} || at != text.data() + end || n < 1 || n > 10'000'000)
      return fail("not a list of whole numbers from 1: " + text, option, "for example " + option + " 1,2,4,8");
    list.push_back(n);
    i = end + 1;
  }
  return list;
}

// More or fewer replicas, each with the same micro-batches. `calibrated`: costs that traces showed; nullptr = of facts.
Result<std::vector<ScalingPoint>> scaling_of(const EstimateJob& job, const JobCosts* calibrated,
                                             const std::vector<std::int64_t>& sizes, EstimateScratch& scratch) {
  std::vector<ScalingPoint> points;
  for (const std::int64_t gpus : sizes) {
    EstimateJob at = job;
    const std::int64_t share = at.tp * at.pp * at.cp;
    if (gpus % share != 0)
      return fail(fmt::format("{} GPUs cannot be divided by tp * pp * cp = {}", gpus, share), "--scaling");
    at.dp = gpus / share;
    if (const auto ok = check(at); !ok) return tl::unexpected(ok.error());
    const Estimate e = estimate(at, calibrated != nullptr ? *calibrated : costs_of(at), scratch);
    ScalingPoint p;
    p.gpus = gpus;
    p.tokens_per_s = static_cast<double>(at.global_batch() * at.seq_length) / (e.iteration_ns / 1e9);
    points.push_back(p);
  }
  for (ScalingPoint& p : points) {
    const double each = points.front().tokens_per_s / static_cast<double>(points.front().gpus);
    p.efficiency = p.tokens_per_s / static_cast<double>(p.gpus) / each;
  }
  return points;
}

Result<int> train(const Args& args, const RunOptions& options, bool finetune) {
  auto described = described_job(args, finetune);
  if (!described) return tl::unexpected(described.error());
  EstimateJob& job = described->job;
  JobCosts costs = costs_of(job);
  Calibration calibration;
  if (const auto ok = calibrate_by(args, options, job, costs, calibration, described->assumptions); !ok)
    return tl::unexpected(ok.error());
  if (described->largest_micro_batch) {
    const std::int64_t most = largest_micro_batch(job, costs);
    job.micro_batch_size = std::max<std::int64_t>(1, most);
    if (args.has("--global-batch-size")) {
      const std::int64_t global = std::stoll(args.value("--global-batch-size"));
      while (job.micro_batch_size > 1 && global % (job.dp * job.micro_batch_size) != 0) --job.micro_batch_size;
      if (global % (job.dp * job.micro_batch_size) != 0)
        return fail(fmt::format("{} sequences cannot be divided by dp = {}", global, job.dp), "--global-batch-size");
      job.num_microbatches = global / (job.dp * job.micro_batch_size);
    }
    described->assumptions.push_back(most > 0 ? fmt::format("the largest micro-batch that fits: {}", most)
                                              : "no micro-batch fits: shown is 1");
  }
  EstimateScratch scratch;
  const Estimate e = estimate(job, costs, scratch);
  std::vector<ScalingPoint> scaling;
  if (args.has("--scaling")) {
    const auto sizes = read_list(args.value("--scaling"), "--scaling");
    if (!sizes) return tl::unexpected(sizes.error());
    auto points = scaling_of(job, args.has("--calibrate") ? &costs : nullptr, *sizes, scratch);
    if (!points) return tl::unexpected(points.error());
    scaling = std::move(*points);
  }
  Document d = estimate_document(job, e, scaling, described->assumptions);
  for (Section& s : calibration.sections) d.sections.push_back(std::move(s));
  note_beyond(calibration.largest, job, costs, calibration.notes);
  d.notes.merge(calibration.notes);
  const auto status = emit(d, options);
  if (!status) return status;
  return e.capacity_gib > 0 && !e.fits ? kIncomplete : *status;
}

// --model list, --platform list
Result<int> list_facts(const Args& args, const RunOptions& options) {
  OwnFacts own;
  if (args.has("--facts")) {
    auto read = read_facts_directory(args.value("--facts"));
    if (!read) return tl::unexpected(read.error());
    own = std::move(*read);
  }
  Document d;
  d.command = "estimate";
  if (args.value("--model") == "list") {
    const auto models = known_models(own);
    if (!models) return tl::unexpected(models.error());
    d.sections.push_back(models_section(*models));
  }
  if (args.value("--platform") == "list") {
    const auto platforms = known_platforms(own);
    if (!platforms) return tl::unexpected(platforms.error());
    d.sections.push_back(platforms_section(*platforms));
  }
  if (args.value("--engine") == "list") {
    const auto engines = known_engines(own);
    if (!engines) return tl::unexpected(engines.error());
    d.sections.push_back(engines_section(*engines));
  }
  return emit(d, options);
}

bool among(const std::vector<OptionSpec>& options, std::string_view name) {
  return std::any_of(options.begin(), options.end(), [&](const OptionSpec& o) { return o.name == name; });
}

// Options of the other kinds of estimate are no options of this one.
Status fits_kind(const Args& args, const std::string& what) {
  constexpr std::string_view kOfOps[] = {"--model",     "--platform", "--facts",         "--precision",
                                         "--attention", "--gpus",     "--gpus-per-node", "--csv",
                                         "--json",      "--quiet",    "--threads",       "--calibrate"};
  constexpr std::string_view kOfServe[] = {
      "--model", "--shape",  "--platform",        "--facts",  "--gpus",     "--gpus-per-node", "--tp",
      "--pp",    "--nvlink", "--expert-parallel", "--p2p",    "--quantize", "--precision",     "--calibrate",
      "--csv",   "--json",   "--quiet",           "--threads"};
  const auto of = [](std::span<const std::string_view> names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const auto& [name, values] : args.options) {
    const bool serves = among(serve_options(), name) || among(workload_options(), name);
    const bool asks = among(ops_options(), name) && !among(job_options(), name);
    const bool fits = what == "ops"     ? of(kOfOps, name) || among(ops_options(), name)
                      : what == "serve" ? of(kOfServe, name) || serves
                                        : !serves && !asks;
    if (!fits) return fail("is not an option of estimate " + what, name, "leave it out");
  }
  return {};
}

}  // namespace

Result<int> run_estimate(const Args& args) {
  const auto options = understand(*find_command("estimate"), args);
  if (!options) return tl::unexpected(options.error());
  if (args.value("--model") == "list" || args.value("--platform") == "list" || args.value("--engine") == "list")
    return list_facts(args, *options);
  const std::string& what = args.positional.front();
  if (what == "train" || what == "finetune" || what == "ops" || what == "serve")
    if (const auto ok = fits_kind(args, what); !ok) return tl::unexpected(ok.error());
  if (what == "ops" && args.has("--calibrate"))
    return fail("calibrates train and finetune", "--calibrate", "leave it out: the laws' own numbers are answered");
  if (what == "train" || what == "finetune") return train(args, *options, what == "finetune");
  if (what == "ops") return run_estimate_ops(args, *options);
  if (what == "serve") return run_estimate_serve(args, *options);
  return fail("not known: " + what, "estimate", "train, finetune, serve or ops");
}

}  // namespace orrery
