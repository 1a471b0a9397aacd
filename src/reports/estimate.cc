// The cost of a job without a trace: time with its interval, rates, memory, and where the time goes by phase and
// module.
#include "reports/estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "data/rate_digits.h"
#include "reports/names.h"

namespace orrery {
namespace {

constexpr double kMs = 1e6;

void add(Section& s, Column column, Cell value) {
  s.table.columns.push_back(std::move(column));
  if (s.table.rows.empty()) s.table.rows.emplace_back();
  s.table.rows.front().push_back(std::move(value));
}

std::string_view phase_name(StepPhase p) {
  switch (p) {
    case StepPhase::forward:
      return "forward";
    case StepPhase::backward:
      return "backward";
    case StepPhase::weight:
      return "weight gradients";
    case StepPhase::optimizer:
      return "optimizer";
  }
  return "";
}

Section answer(const EstimateJob& job, const Estimate& e) {
  Section s{.key = "", .title = "Estimate", .single = true, .table = {}};
  const double ms = e.iteration_ns / kMs, half = kHalfOf90 * e.relative_error * ms, seconds = e.iteration_ns / 1e9;
  const double world = static_cast<double>(job.world());
  const double tokens = static_cast<double>(job.global_batch() * job.seq_length) / seconds;
  const double peak = peak_flop_per_ns(job.platform.gpu, job.precision) / 1e3;
  const double model = e.model_flops / seconds / world / 1e12;
  add(s, {.key = "iteration_ms"}, ms);
  add(s, {.key = "interval_ms", .json_only = true}, std::vector<double>{std::max(0.0, ms - half), ms + half});
  add(s, {.key = "interval_half_ms", .title = "+- ms (90 %)"}, half);
  add(s, {.key = "tokens_per_s", .digits = tokens >= 10 ? 0 : rate_digits(tokens)}, tokens);
  add(s, {.key = "tokens_per_gpu_s", .digits = 1}, tokens / world);
  add(s, {.key = "tflops_per_gpu", .digits = rate_digits(model)}, model);
  const double hardware = e.hardware_flops / seconds / 1e12;
  add(s, {.key = "hardware_tflops_per_gpu", .title = "hardware TFLOP/s", .digits = rate_digits(hardware)}, hardware);
  add(s, {.key = "mfu_pct", .digits = 1}, peak > 0 ? Cell{100 * model / peak} : Cell{});
  add(s, {.key = "binds"}, std::string(name_of(e.binds)));
  add(s, {.key = "fits"}, e.capacity_gib > 0 ? Cell{e.fits} : Cell{});
  return s;
}

Section memory_section(const Estimate& e, bool mean) {
  Section s{
      .key = "memory_gib_per_gpu", .title = "Memory of a GPU of the fullest stage (GiB)", .single = true, .table = {}};
  const MemoryParts& m = mean ? e.mean_memory : e.memory;
  if (mean) s.key = "memory_gib_mean", s.title = "";
  add(s, {.key = "weights"}, m.weights);
  add(s, {.key = "gradients"}, m.gradients);
  add(s, {.key = "optimizer"}, m.optimizer);
  add(s, {.key = "activations"}, m.activations);
  add(s, {.key = "workspace"}, m.workspace);
  add(s, {.key = "total"}, m.total);
  if (!mean) add(s, {.key = "allocated", .title = "of it tensors"}, e.allocated_gib);
  add(s, {.key = "capacity"}, e.capacity_gib > 0 ? Cell{e.capacity_gib} : Cell{});
  return s;
}

Section breakdown(const Estimate& e) {
  Section s{.key = "breakdown", .title = "Classes (ms a step, mean over stages)", .single = true, .table = {}};
  add(s, {.key = "exposed_compute_ms"}, e.classes.exposed_compute / kMs);
  add(s, {.key = "overlapped_ms"}, e.classes.overlapped / kMs);
  add(s, {.key = "exposed_comm_ms"}, e.classes.exposed_comm / kMs);
  add(s, {.key = "other_ms"}, e.classes.other / kMs);
  add(s, {.key = "memory_ms"}, e.classes.memory / kMs);
  add(s, {.key = "bubble_ms", .title = "of it pipeline waits"}, e.bubble_ns / kMs);
  return s;
}

Section phases(const Estimate& e) {
  Section s{.key = "phases", .title = "Phases (ms a step, mean over stages)", .table = {}};
  s.table.columns = {{.key = "name"}, {.key = "cpu_ms"}, {.key = "gpu_ms"}, {.key = "pct", .digits = 1}};
  double busy = 0;
  const auto row = [&](const std::string& name, Cell cpu, double gpu) {
    s.table.rows.push_back(
        {name, std::move(cpu), gpu / kMs, e.iteration_ns > 0 ? Cell{100 * gpu / e.iteration_ns} : Cell{}});
    busy += gpu;
  };
  for (std::size_t k = 0; k < kStepPhases; ++k)
    if (e.phases[k].gpu_ns > 0 || e.phases[k].host_ns > 0)
      row(std::string(phase_name(static_cast<StepPhase>(k))), e.phases[k].host_ns / kMs, e.phases[k].gpu_ns);
  row("waiting", Cell{}, std::max(0.0, e.iteration_ns - busy));
  return s;
}

Section modules(const Estimate& e) {
  Section s{.key = "modules", .title = "Modules (ms a step, mean over stages; transfers may be hidden)", .table = {}};
  s.table.columns = {{.key = "name"}, {.key = "phase"}, {.key = "gpu_ms"}, {.key = "pct", .digits = 1}};
  std::vector<Estimate::PartTime> rows = e.parts;
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.gpu_ns > b.gpu_ns; });
  for (const auto& p : rows)
    s.table.rows.push_back({std::string(name_of(p.part)), std::string(phase_name(p.phase)), p.gpu_ns / kMs,
                            100 * p.gpu_ns / e.iteration_ns});
  s.text_rows = 20;
  return s;
}

Section layout(const EstimateJob& job) {
  Section s{.key = "layout", .title = "", .single = true, .table = {}};
  add(s, {.key = "model"}, job.model.name);
  add(s, {.key = "platform"}, job.platform.name);
  add(s, {.key = "gpus"}, job.world());
  add(s, {.key = "tp"}, job.tp);
  add(s, {.key = "pp"}, job.pp);
  add(s, {.key = "dp"}, job.dp);
  add(s, {.key = "cp", .json_only = job.cp == 1}, job.cp);
  add(s, {.key = "ep", .json_only = job.ep == 1}, job.ep);
  add(s, {.key = "micro_batch_size"}, job.micro_batch_size);
  add(s, {.key = "num_microbatches"}, job.num_microbatches);
  add(s, {.key = "seq_length"}, job.seq_length);
  add(s, {.key = "global_batch_size", .json_only = true}, job.global_batch());
  add(s, {.key = "schedule", .json_only = job.pp == 1},
      job.chunks > 1 ? fmt::format("interleaved:{}", job.chunks) : std::string(name_of(job.schedule)));
  add(s, {.key = "sequence_parallel", .json_only = true}, job.sequence_parallel);
  add(s, {.key = "framework"}, std::string(name_of(job.framework)));
  add(s, {.key = "zero"}, static_cast<std::int64_t>(job.zero));
  add(s, {.key = "offload", .json_only = job.offload == Offload::none}, std::string(name_of(job.offload)));
  add(s, {.key = "recompute"}, std::string(name_of(job.recompute)));
  add(s, {.key = "attention"}, std::string(name_of(job.attention)));
  add(s, {.key = "method", .json_only = !job.finetune}, std::string(name_of(job.method)));
  add(s, {.key = "optimizer", .json_only = job.optimizer == Optimizer::adamw}, std::string(name_of(job.optimizer)));
  add(s, {.key = "quantize", .json_only = job.quantize == Quantize::none}, std::string(name_of(job.quantize)));
  add(s, {.key = "precision"}, std::string(name_of(job.precision)));
  add(s, {.key = "compile", .json_only = true}, job.compile);
  return s;
}

// What the answer stands on beside the laws, the weightiest first.
std::vector<std::string> carried_by(const EstimateJob& job, const Estimate& e) {
  std::vector<std::string> a;
  const HostFacts& host = job.platform.host;
  if (e.binds == Binds::host || host.name.empty())
    a.push_back(fmt::format("host: {} us a launch, {} us an eager operator{}", host.launch_us, host.operator_us,
                            host.name.empty() ? "; its make is not known" : " (" + host.name + ")"));
  if (architecture_of(job.platform.gpu) == Architecture::hopper)
    a.push_back("products keep 0.87 of their rate in short runs: the power limit, assumed from A100");
  if (is_emulated(job))
    a.push_back(fmt::format(
        "{} has no unit for {}: products are PyTorch's loops, 4 to 44 times as long as in fp32 and hardly known "
        "before steps are measured (--calibrate)",
        job.platform.gpu.name, name_of(job.precision)));
  if (job.model.experts > 0) a.push_back("tokens are spread evenly over the experts");
  if (job.world() > 1) a.push_back("ranks of a stage are alike; hosts go at the pace of the slowest of a server");
  if (job.world() > job.platform.gpus_per_node)
    a.push_back(fmt::format("network: {} GB/s a GPU each way, nobody else on it", job.platform.nic_gb_per_s));
  if (job.offload != Offload::none)
    a.push_back(
        fmt::format("host memory: {} GB/s, PCIe {} GB/s a GPU", host.memory_gb_per_s, job.platform.pcie_gb_per_s));
  if (job.attention == AttentionKind::flash && !job.attention_kernel)
    a.push_back("attention: the kernel that the framework takes on such a GPU (--attention names another)");
  if (job.platform.gpu.sure.find("remembered") != std::string::npos ||
      job.platform.gpu.sure.find("inferred") != std::string::npos)
    a.push_back(fmt::format("facts of {}: {}", job.platform.gpu.name, job.platform.gpu.sure));
  return a;
}

}  // namespace

Document estimate_document(const EstimateJob& job, const Estimate& e, const std::vector<ScalingPoint>& scaling,
                           const std::vector<std::string>& assumptions) {
  Document d;
  d.command = "estimate";
  if (e.capacity_gib > 0 && e.memory.total > e.capacity_gib)
    d.notes.add("does-not-fit", Severity::warning, 1,
                fmt::format("{:.1f} GiB of {:.1f}", e.memory.total, e.capacity_gib),
                "the time is what it would take if it did; would help: " + what_would_fit(job, e.memory));
  if (e.host_capacity_gib > 0 && e.host_memory_gib > e.host_capacity_gib)
    d.notes.add("host-memory-does-not-fit", Severity::warning, 1,
                fmt::format("{:.0f} GiB of {:.0f} of a server", e.host_memory_gib, e.host_capacity_gib),
                "the time is what it would take if it did; would help: more servers, or less that is offloaded");
  if (job.model.max_context > 0 && job.positions() > job.model.max_context)
    d.notes.add("beyond-the-context", Severity::warning, 1,
                fmt::format("{} tokens, {} of {}", job.positions(), job.model.max_context, job.model.name),
                job.model.learned_positions ? "the model has no positions for the rest: its table is taken to be longer"
                                            : "the model was made for shorter sequences; it is estimated all the same");
  d.sections.push_back(layout(job));
  d.sections.push_back(upright(d.sections.back(), "Job"));
  d.sections.push_back(answer(job, e));
  d.sections.push_back(memory_section(e, false));
  d.sections.push_back(memory_section(e, true));
  if (e.host_memory_gib > 0) {
    Section host{
        .key = "host_memory_gib_per_server", .title = "Memory of a server's host (GiB)", .single = true, .table = {}};
    add(host, {.key = "needed"}, e.host_memory_gib);
    add(host, {.key = "capacity"}, e.host_capacity_gib > 0 ? Cell{e.host_capacity_gib} : Cell{});
    d.sections.push_back(std::move(host));
  }
  d.sections.push_back(breakdown(e));
  d.sections.push_back(phases(e));
  d.sections.push_back(modules(e));
  if (!scaling.empty()) {
    Section s{.key = "scaling", .title = "Scaling (data parallel)", .table = {}};
    s.table.columns = {{.key = "gpus"}, {.key = "tokens_per_s", .digits = 0}, {.key = "efficiency_pct", .digits = 1}};
    for (const ScalingPoint& p : scaling) s.table.rows.push_back({p.gpus, p.tokens_per_s, 100 * p.efficiency});
    d.sections.push_back(std::move(s));
  }
  Section a{.key = "assumptions", .title = "What carries it", .table = {}};
  a.table.columns = {{.key = "assumption"}};
  for (const std::string& text : assumptions) a.table.rows.push_back({text});
  for (std::string& text : carried_by(job, e)) a.table.rows.push_back({std::move(text)});
  d.sections.push_back(std::move(a));
  return d;
}

}  // namespace orrery
