#include "bench/run_estimate.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/byte_source.h"
#include "bench/launch.h"
#include "bench/order.h"
#include "costs/operator_table.h"
#include "costs/operators.h"
#include "facts/library.h"
#include "serving/step_costs.h"

namespace orrery {
namespace {

constexpr double kGib = 1 << 30;
constexpr std::size_t kLargestTable = std::size_t{64} << 20;

double d(std::int64_t x) { return static_cast<double>(x); }

Framework framework_of(const BenchRun& run) {
  switch (run.framework) {
    case BenchFramework::deepspeed:
      return Framework::deepspeed;
    case BenchFramework::megatron:
      return Framework::megatron;
    case BenchFramework::fsdp:
      return run.gpus > 1 ? Framework::fsdp : Framework::ddp;  // of one rank there is nothing to shard
    default:
      return Framework::ddp;
  }
}

// A loop in Python round an eager model: a batch of prompts together, then one token of each after the other.
EngineFacts eager_loop(const BenchRun& run) {
  EngineFacts e;
  e.name = "a loop in PyTorch";
  e.scheduling = "static";
  e.kv_growth = "reserved";
  e.kernels = run.techniques.has("F") ? "separate" : "unfused";
  e.max_num_seqs = run.batch;
  e.max_batched_tokens = run.batch * run.seq_length;
  e.gpu_memory_utilization = 1;
  return e;
}

// With what to do about it.
std::string said(const Error& e) { return e.advice.empty() ? e.what : e.what + " (" + e.advice + ")"; }

std::string why_unknown(const BenchRun& run) {
  if (run.task == BenchTask::operators) return "operators are measured, not estimated";
  if (run.framework == BenchFramework::trainer) return "the example trainer is none of the frameworks";
  if (run.framework == BenchFramework::command) return "what a command does is not known";
  return "";
}

Result<std::string> read_table(const std::string& path) {
  auto text = read_at_most(path, kLargestTable + 1);
  if (text && text->size() > kLargestTable) return fail("larger than any table of operators", path, "64 MiB at most");
  return text;
}

}  // namespace

double tokens_of_step(const BenchRun& run, std::int64_t batch) {
  return d(batch) * d(run.gpus) * d(run.task == BenchTask::inference ? run.output_tokens : run.seq_length);
}

std::optional<double> tokens_per_s(const BenchRun& run, const RunRow& row) {
  if (row.step_ms.count == 0 || !(row.step_ms.median > 0)) return std::nullopt;
  return tokens_of_step(run, std::max<std::int64_t>(1, row.batch)) / (row.step_ms.median / 1e3);
}

EstimateJob job_of(const BenchRun& run, const PlatformFacts& platform, std::int64_t lora_rank,
                   std::int64_t prompt_tokens) {
  EstimateJob job;
  job.model = run.model;
  job.platform = platform;
  job.finetune = run.task == BenchTask::finetune;
  job.dp = run.gpus;
  job.micro_batch_size = std::max<std::int64_t>(1, run.batch);
  job.seq_length = run.seq_length;
  job.framework = framework_of(run);
  job.dropout = false;
  const Techniques& t = run.techniques;
  // The Megatron worker has the distributed optimizer: its state is sharded.
  job.zero = job.framework == Framework::fsdp ? 3 : job.framework == Framework::megatron ? 1 : 0;
  if (t.has("Z2") || t.has("Z2O")) job.zero = 2;
  if (t.has("Z3") || t.has("Z3O")) job.zero = 3;
  if (t.has("Z2O")) job.offload = Offload::optimizer;
  if (t.has("Z3O")) job.offload = Offload::all;
  if (t.has("R")) job.recompute = Recompute::full;
  job.attention = t.has("F") ? AttentionKind::flash : AttentionKind::unfused;
  if (t.has("Q") || t.has("QL")) job.quantize = Quantize::nf4;
  if (t.has("L")) job.method = Method::lora;
  if (t.has("QL")) job.method = Method::qlora;
  if (t.has("P")) job.method = Method::prompt;
  job.lora_rank = lora_rank;
  job.prompt_tokens = prompt_tokens;
  (void)read_precision(run.precision, job.precision);  // one of those that the config knows
  return job;
}

Result<RunEstimator> RunEstimator::of(const BenchConfig& config) {
  RunEstimator e;
  e.lora_rank_ = config.lora_rank;
  e.prompt_tokens_ = config.prompt_tokens;
  e.largest_batch_ = config.largest_batch;
  e.runs_ = config.calibrate_runs;
  e.cpu_ = config.compare_cpu;
  if (config.platform.empty()) return e;
  OwnFacts own;
  if (!config.facts.empty()) {
    auto read = read_facts_directory(config.facts);
    if (!read) return tl::unexpected(read.error());
    own = std::move(*read);
  }
  auto platform = platform_named_or_read(config.platform, own);
  if (!platform) {
    Error why = platform.error();
    if (why.where == "--platform") why.where = config.path + ": platform";  // there is no such option here
    return tl::unexpected(std::move(why));
  }
  e.platform_ = std::move(*platform);
  for (const std::string& path : config.calibrate) {
    const auto text = read_table(path);
    if (!text) return tl::unexpected(text.error());
    auto table = parse_operator_table(*text, path);
    if (!table) return tl::unexpected(table.error());
    if (const Status ok = e.tables_.add(std::move(*table), path); !ok) return tl::unexpected(ok.error());
  }
  return e;
}

Result<JobCosts> RunEstimator::costs(const EstimateJob& job) const {
  JobCosts costs = costs_of(job);
  if (!tables_.empty())
    if (const auto applied = tables_.apply(job, costs); !applied) return tl::unexpected(applied.error());
  return costs;
}

Status RunEstimator::fit(const std::vector<RunRow>& rows) {
  factors_.reset();
  fitted_.clear();
  if (runs_ == 0 || !platform_) return {};
  std::vector<OrderedRun> measured;
  std::vector<CalibrationStep> samples;
  std::set<std::string> seen;
  for (auto r = rows.rbegin(); r != rows.rend(); ++r) {  // the newest of each
    if (r->kind != RunKind::run || r->state != RunState::done || r->step_ms.count == 0) continue;
    if (!seen.insert(r->run).second) continue;
    const auto run = run_of_spec(r->spec);
    if (!run || run->batch == 0 || !why_unknown(*run).empty() || run->task == BenchTask::inference) continue;
    CalibrationStep s;
    s.job = job_of(*run, *platform_, lora_rank_, prompt_tokens_);
    if (!check(s.job)) continue;
    s.ns = 1e6 * (cpu_ && r->cpu_ms ? *r->cpu_ms : r->step_ms.median);
    s.name = r->run;
    measured.push_back({levels_of(*run), 1});
    samples.push_back(std::move(s));
  }
  std::vector<CalibrationStep> chosen;
  std::vector<JobCosts> before;
  for (const std::size_t i : by_information(measured)) {
    if (static_cast<std::int64_t>(chosen.size()) == runs_) break;
    auto of = costs(samples[i].job);
    if (!of) return tl::unexpected(of.error());
    before.push_back(std::move(*of));
    fitted_.insert(samples[i].name);
    chosen.push_back(std::move(samples[i]));
  }
  if (chosen.empty()) return {};
  const auto factors = fit_steps(chosen, before);
  if (!factors) return tl::unexpected(factors.error());
  factors_ = *factors;
  return {};
}

RunEstimate RunEstimator::training(const BenchRun& run) {
  RunEstimate out;
  EstimateJob job = job_of(run, *platform_, lora_rank_, prompt_tokens_);
  if (const Status ok = check(job); !ok) {
    out.unknown = said(ok.error());
    return out;
  }
  auto by_tables = costs(job);
  if (!by_tables) {
    out.unknown = said(by_tables.error());
    return out;
  }
  if (factors_) factors_->apply(*by_tables);
  if (run.batch == 0)
    job.micro_batch_size = std::clamp<std::int64_t>(largest_micro_batch(job, *by_tables), 1, largest_batch_);
  const Estimate e = estimate(job, *by_tables, scratch_);
  out.batch = job.micro_batch_size;
  out.step_ms = e.iteration_ns / 1e6;
  out.memory_gib = e.memory.total;
  out.capacity_gib = e.capacity_gib;
  out.fits = e.capacity_gib <= 0 || e.fits;
  return out;
}

RunEstimate RunEstimator::generation(const BenchRun& given) const {
  RunEstimate out;
  ServeJob job;
  job.model = given.model;
  job.platform = *platform_;
  if (given.techniques.has("Q")) job.weights = WeightFormat::int4;
  (void)read_precision(given.precision, job.precision);
  BenchRun run = given;
  const double length = d(run.seq_length + run.output_tokens);
  const double weights = weight_bytes(job) * parameters(run.model), cache = kv_bytes_per_token(job);
  out.capacity_gib = platform_->gpu.memory_gib;
  // Logits of the last tokens alone; of a layer the widest tensors of the prompts.
  const double wide = 2 * d(run.seq_length) * d(3 * run.model.ffn + 4 * run.model.hidden);
  const double scores =
      run.techniques.has("F") ? 0 : 3 * 2 * d(run.model.heads) * d(run.seq_length) * d(run.seq_length);
  const double each = cache * length + wide + scores;
  if (run.batch == 0) {
    const double room = out.capacity_gib > 0 ? (out.capacity_gib * kGib - weights) / each : d(largest_batch_);
    run.batch = std::clamp<std::int64_t>(static_cast<std::int64_t>(room), 1, largest_batch_);
  }
  job.engine = eager_loop(run);
  if (const Status ok = check(job); !ok) {
    out.unknown = said(ok.error());
    return out;
  }
  const StepCosts costs(job);
  const double prompts = d(run.batch), p = d(run.seq_length);
  double ns = costs
                  .step({.prefill_sequences = run.batch,
                         .prefill_tokens = run.batch * run.seq_length,
                         .prefill_pairs = prompts * p * (p + 1) / 2,
                         .finishing = run.batch})
                  .total();
  // A token takes longer with each before it, evenly: the mean of the first and the last, so many times.
  const auto token = [&](double context) {
    return costs.step({.decode_sequences = run.batch, .decode_context = prompts * context}).total();
  };
  ns += d(run.output_tokens - 1) * (token(p) + token(length)) / 2;
  out.batch = run.batch;
  out.step_ms = ns / 1e6;
  out.memory_gib = (weights + prompts * each) / kGib;
  out.fits = out.capacity_gib <= 0 || out.memory_gib <= out.capacity_gib;
  return out;
}

RunEstimate RunEstimator::estimate_of(const BenchRun& run) {
  RunEstimate none;
  none.unknown = platform_ ? why_unknown(run) : "no platform is named";
  if (!none.unknown.empty()) return none;
  return run.task == BenchTask::inference ? generation(run) : training(run);
}

}  // namespace orrery
