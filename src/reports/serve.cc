// A served model without a trace: rates with their intervals, latencies, what the cache held, where the time goes.
#include "reports/serve.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "reports/names.h"

namespace orrery {
namespace {

constexpr std::size_t kTimelinePoints = 200;

void add(Section& s, Column column, Cell value) {
  s.table.columns.push_back(std::move(column));
  if (s.table.rows.empty()) s.table.rows.emplace_back();
  s.table.rows.front().push_back(std::move(value));
}

std::string_view name_in_serving(Part p) { return p == Part::loss ? "sampling" : name_of(p); }

Section quantiles_section(const std::string& key, const Quantiles& q) {
  Section s{.key = key, .title = "", .single = true, .table = {}};
  const auto value = [&](double x) { return q.count > 0 ? Cell{x} : Cell{}; };
  add(s, {.key = "mean"}, value(q.mean));
  add(s, {.key = "p50"}, value(q.p50));
  add(s, {.key = "p90"}, value(q.p90));
  add(s, {.key = "p95"}, value(q.p95));
  add(s, {.key = "p99"}, value(q.p99));
  add(s, {.key = "max"}, value(q.max));
  return s;
}

bool is_amd(const GpuFacts& gpu) { return gpu.arch.find("CDNA") != std::string::npos; }

// What the run goes at the pace of.
std::string binds_of(const StepCosts& costs, const Simulation& s, double rate) {
  const ServedTime& t = s.time;
  if (t.total <= 0) return "nothing";
  const double busy = t.total - t.idle;
  if (rate > 0 && t.idle > 0.3 * t.total) return "arrivals";
  if (t.host > 0.4 * busy) return "host";
  if (t.comm > 0.4 * busy) return "links";
  if (t.kv_blocked > 0.3 * t.total) return "kv cache";
  if (t.sequences_blocked > 0.3 * t.total) return "max_num_seqs";
  const ServeJob& job = costs.job();
  const double peak = peak_flop_per_ns(job.platform.gpu, job.precision) * static_cast<double>(job.tp);
  const double flops_share = t.flops * static_cast<double>(job.tp) / std::max(1.0, peak * (t.gpu - t.comm));
  return flops_share > 0.3 ? "compute" : "memory bandwidth";
}

Section answer_section(const StepCosts& costs, const ServeMemory& memory, const ServeAnswer& a) {
  const ServingFigures& f = a.figures;
  Section s{.key = "", .title = "Serving", .single = true, .table = {}};
  add(s, {.key = "requests_per_s"}, f.requests_per_s);
  add(s, {.key = "tokens_per_s", .digits = 1}, f.tokens_per_s);
  add(s, {.key = "output_tokens_per_s", .digits = 1}, f.output_tokens_per_s);
  add(s, {.key = "total_s"}, f.seconds);
  add(s, {.key = "completed", .json_only = f.failed == 0}, f.completed);
  add(s, {.key = "refused", .json_only = f.failed == 0}, f.failed);
  const double instances = static_cast<double>(costs.job().replicas);
  add(s, {.key = "kv_cache_gib"}, memory.kv_cache * static_cast<double>(costs.job().tp * costs.job().pp) * instances);
  add(s, {.key = "max_batch"}, a.simulation.max_batch);
  add(s, {.key = "preemptions"}, a.simulation.preemptions);
  add(s, {.key = "binds"}, binds_of(costs, a.simulation, a.rate));
  if (a.price_per_gpu_hour > 0) {
    const double per_s = a.price_per_gpu_hour * static_cast<double>(costs.job().gpus()) / 3'600;
    add(s, {.key = "cost_per_million_tokens"}, f.tokens_per_s > 0 ? Cell{1e6 * per_s / f.tokens_per_s} : Cell{});
    add(s, {.key = "cost_per_million_output_tokens"},
        f.output_tokens_per_s > 0 ? Cell{1e6 * per_s / f.output_tokens_per_s} : Cell{});
  } else {
    add(s, {.key = "cost_per_million_tokens", .json_only = true}, Cell{});
  }
  return s;
}

// All kernels and the host slower, all quicker.
void add_intervals(const ServeAnswer& a, std::vector<Section>& sections) {
  Section s{.key = "interval", .title = "", .single = true, .table = {}};
  Section people{.key = "interval", .title = "90 % interval", .table = {}};
  people.table.columns = {{.key = "of", .text_only = true},
                          {.key = "from", .text_only = true, .digits = 1},
                          {.key = "to", .text_only = true, .digits = 1}};
  const auto row = [&](const char* key, double x, double y) {
    add(s, {.key = key}, std::vector<double>{std::min(x, y), std::max(x, y)});
    people.table.rows.push_back({std::string(key), std::min(x, y), std::max(x, y)});
  };
  row("output_tokens_per_s", a.quicker.output_tokens_per_s, a.slower.output_tokens_per_s);
  const auto means = [&](const char* key, const Quantiles& x, const Quantiles& y) {
    if (x.count > 0 && y.count > 0)
      row(key, x.mean, y.mean);
    else
      add(s, {.key = key}, Cell{});
  };
  means("latency_mean_ms", a.quicker.latency, a.slower.latency);
  means("ttft_mean_ms", a.quicker.ttft, a.slower.ttft);
  means("tpot_mean_ms", a.quicker.tpot, a.slower.tpot);
  sections.push_back(std::move(s));
  sections.push_back(std::move(people));
}

Section time_section(const Simulation& run) {
  Section s{.key = "time", .title = "Where the instances' time goes (%)", .single = true, .table = {}};
  const ServedTime& t = run.time;
  const auto pct = [&](double ns) { return t.total > 0 ? Cell{100 * ns / t.total} : Cell{}; };
  add(s, {.key = "prefill_pct", .digits = 1}, pct(t.prefill));
  add(s, {.key = "decode_pct", .digits = 1}, pct(t.decode));
  add(s, {.key = "host_pct", .digits = 1}, pct(t.host));
  add(s, {.key = "swap_pct", .json_only = t.swap <= 0, .digits = 1}, pct(t.swap));
  add(s, {.key = "idle_pct", .digits = 1}, pct(t.idle));
  add(s, {.key = "transfers_pct", .title = "of it transfers", .digits = 1}, pct(t.comm));
  add(s, {.key = "waiting_for_kv_pct", .title = "somebody waits for blocks", .digits = 1}, pct(t.kv_blocked));
  add(s, {.key = "waiting_for_a_place_pct", .title = "for a place", .digits = 1}, pct(t.sequences_blocked));
  add(s, {.key = "steps"}, run.steps);
  add(s, {.key = "prefix_hit_pct", .json_only = run.cached_tokens == 0, .digits = 1},
      run.cached_tokens + run.prefill_tokens > 0 ? Cell{100.0 * static_cast<double>(run.cached_tokens) /
                                                        static_cast<double>(run.cached_tokens + run.prefill_tokens)}
                                                 : Cell{});
  add(s, {.key = "accepted_drafts_pct", .json_only = run.drafted == 0, .digits = 1},
      run.drafted > 0 ? Cell{100.0 * static_cast<double>(run.accepted) / static_cast<double>(run.drafted)} : Cell{});
  return s;
}

Section memory_section(const ServeMemory& m) {
  Section s{.key = "memory_gib_per_gpu", .title = "Memory of a GPU (GiB)", .single = true, .table = {}};
  add(s, {.key = "weights"}, m.weights);
  add(s, {.key = "activations"}, m.activations);
  add(s, {.key = "reserved"}, m.reserved);
  add(s, {.key = "kv_cache"}, m.kv_cache);
  add(s, {.key = "capacity"}, m.capacity);
  add(s, {.key = "kv_blocks"}, m.kv_blocks);
  return s;
}

Section modules_section(const std::string& key, const std::string& title, const Block& parts) {
  Section s{.key = key, .title = title, .table = {}};
  s.table.columns = {{.key = "name"}, {.key = "gpu_ms"}, {.key = "pct", .digits = 1}};
  double all = 0;
  std::vector<std::pair<double, Part>> rows;
  for (std::size_t k = 0; k < kParts; ++k) {
    all += parts.part_ns[k];
    if (parts.part_ns[k] > 0) rows.emplace_back(parts.part_ns[k], static_cast<Part>(k));
  }
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (const auto& [ns, part] : rows)
    s.table.rows.push_back({std::string(name_in_serving(part)), ns / 1e6, 100 * ns / all});
  return s;
}

// A prompt of the mean length, and a step of the mean batch at the mean length, as the run had them.
void add_modules(const StepCosts& costs, const ServeAnswer& a, std::vector<Section>& sections) {
  const ServingFigures& f = a.figures;
  if (f.completed == 0) return;
  const double n = static_cast<double>(f.completed);
  const double input = static_cast<double>(f.input_tokens) / n, output = static_cast<double>(f.output_tokens) / n;
  StepShape prefill;
  prefill.prefill_sequences = prefill.finishing = 1;
  prefill.prefill_tokens = std::max<std::int64_t>(1, std::llround(input));
  prefill.prefill_pairs =
      attention_pairs(static_cast<double>(prefill.prefill_tokens), static_cast<double>(prefill.prefill_tokens), true);
  sections.push_back(modules_section("prefill_modules",
                                     fmt::format("A prompt of {} tokens (ms of the GPU)", prefill.prefill_tokens),
                                     costs.parts(prefill)));
  StepShape decode;
  const double latency = f.latency.mean - f.ttft.mean;
  const double together = f.seconds > 0 ? n * latency / 1e3 / f.seconds : 1;
  decode.decode_sequences = std::clamp<std::int64_t>(std::llround(together / static_cast<double>(costs.job().replicas)),
                                                     1, std::max<std::int64_t>(1, a.simulation.max_batch));
  const double context = input + output / 2;
  decode.decode_context = context * static_cast<double>(decode.decode_sequences);
  sections.push_back(modules_section(
      "decode_modules",
      fmt::format("A token of {} sequences of {:.0f} tokens (ms of the GPU)", decode.decode_sequences, context),
      costs.parts(decode)));
}

Section job_section(const StepCosts& costs) {
  const ServeJob& job = costs.job();
  const EngineFacts& e = job.engine;
  Section s{.key = "job", .title = "", .single = true, .table = {}};
  add(s, {.key = "model"}, job.model.name);
  add(s, {.key = "platform"}, job.platform.name);
  add(s, {.key = "engine"}, e.name);
  add(s, {.key = "gpus"}, job.gpus());
  add(s, {.key = "tp"}, job.tp);
  add(s, {.key = "pp"}, job.pp);
  add(s, {.key = "ep", .json_only = job.ep == 1}, job.ep);
  add(s, {.key = "replicas"}, job.replicas);
  add(s, {.key = "prefill_replicas", .json_only = job.prefill_replicas == 0}, job.prefill_replicas);
  add(s, {.key = "precision"}, std::string(name_of(job.precision)));
  add(s, {.key = "quantize"}, std::string(name_of(job.weights)));
  add(s, {.key = "scheduling"}, e.scheduling);
  add(s, {.key = "block_size"}, e.block_size);
  add(s, {.key = "max_num_seqs"}, e.max_num_seqs);
  add(s, {.key = "max_batched_tokens"}, e.max_batched_tokens);
  add(s, {.key = "gpu_memory_utilization"}, e.gpu_memory_utilization);
  add(s, {.key = "prefix_caching"}, job.prefix_caching);
  add(s, {.key = "cuda_graphs"}, job.cuda_graphs && e.cuda_graph_batch > 0);
  return s;
}

Section timeline_section(const Simulation& run) {
  Section s{.key = "timeline", .title = "", .table = {}};
  s.table.columns = {{.key = "s"}, {.key = "running"}, {.key = "waiting"}, {.key = "kv_used_pct", .digits = 1}};
  const std::size_t n = run.timeline.size(),
                    every = std::max<std::size_t>(1, (n + kTimelinePoints - 1) / kTimelinePoints);
  for (std::size_t k = 0; k < n; k += every) {
    const TimelinePoint& p = run.timeline[k];
    s.table.rows.push_back({p.ns / 1e9, p.running, p.waiting, 100 * p.kv_used});
  }
  return s;
}

Section level_section(const ServeAnswer& a) {
  Section s{.key = "slo", .title = a.level.asked() ? "Service level" : "", .single = true, .table = {}};
  if (!a.level.asked()) return s;
  const ServiceLevel& l = a.level;
  if (l.ttft_ms > 0) add(s, {.key = "ttft_ms"}, l.ttft_ms);
  if (l.tpot_ms > 0) add(s, {.key = "tpot_ms"}, l.tpot_ms);
  if (l.latency_ms > 0) add(s, {.key = "latency_ms"}, l.latency_ms);
  add(s, {.key = "wanted_pct", .digits = 1}, 100 * l.share);
  const double kept = share_within(a.simulation.requests, l);
  add(s, {.key = "kept_pct", .title = "kept by, as asked (%)", .digits = 1}, 100 * kept);
  add(s, {.key = "goodput_requests_per_s"},
      kept * a.figures.requests_per_s * static_cast<double>(a.simulation.requests.size()) /
          std::max(1.0, static_cast<double>(a.figures.completed)));
  add(s, {.key = "highest_requests_per_s", .title = "highest rate that keeps it"},
      a.highest.bounded && a.highest.known ? Cell{a.highest.rate} : Cell{});
  add(s, {.key = "bounded", .json_only = a.highest.bounded}, a.highest.bounded);
  return s;
}

std::vector<std::string> carried_by(const StepCosts& costs, const ServeAnswer& a) {
  const ServeJob& job = costs.job();
  const EngineFacts& e = job.engine;
  std::vector<std::string> out;
  out.push_back(fmt::format(
      "engine {}: {} us a step and {} us a sequence of its host, {} (facts: {})", e.name, e.step_us, e.sequence_us,
      e.overlap_host ? fmt::format("beside the GPU but for {} us", e.exposed_us) : std::string("while the GPU waits"),
      e.sure));
  if (job.model.experts > 0) out.push_back("tokens choose experts evenly and independently of each other");
  if (job.kv_tokens > 0) out.push_back(fmt::format("a cache of {} tokens an instance, as stated", job.kv_tokens));
  if (job.weights == WeightFormat::fp8)
    out.push_back(e.kernels == "fused"
                      ? "activations are brought to fp8 in the kernel before each product"
                      : "activations are brought to fp8 by one short kernel a product, a node where steps are graphs");
  if (job.draft_tokens > 0)
    out.push_back(
        fmt::format("each of {} drafted tokens is accepted with a chance of {} after the one before it; a "
                    "draft costs {} of a step of the model",
                    job.draft_tokens, job.acceptance, job.draft_share));
  if (job.replicas > 1) out.push_back("the router's own time, and the network to it, are not counted");
  if (a.simulation.transferred_bytes > 0)
    out.push_back(fmt::format("{:.1f} GB of keys and values go from prefill to decode; transfers do not share links",
                              a.simulation.transferred_bytes / 1e9));
  if (job.tp > 1 && job.platform.nvlink_gb_per_s <= 0)
    out.push_back(job.platform.p2p ? "GPUs reach each other over PCIe" : "GPUs reach each other through host memory");
  if (job.platform.gpu.sure.find("remembered") != std::string::npos)
    out.push_back(fmt::format("facts of {}: {}", job.platform.gpu.name, job.platform.gpu.sure));
  return out;
}

}  // namespace

void add_serving_figures(const ServingFigures& f, std::vector<Section>& sections) {
  Section people{.key = "latencies", .title = "Latencies (ms)", .table = {}};
  people.table.columns = {{.key = "of", .text_only = true},
                          {.key = "mean", .text_only = true, .digits = 1},
                          {.key = "p50", .text_only = true, .digits = 1},
                          {.key = "p90", .text_only = true, .digits = 1},
                          {.key = "p95", .text_only = true, .digits = 1},
                          {.key = "p99", .text_only = true, .digits = 1},
                          {.key = "max", .text_only = true, .digits = 1}};
  const auto row = [&](const char* of, const Quantiles& q) {
    if (q.count > 0) people.table.rows.push_back({std::string(of), q.mean, q.p50, q.p90, q.p95, q.p99, q.max});
  };
  row("request", f.latency);
  row("first token (TTFT)", f.ttft);
  row("per token after it (TPOT)", f.tpot);
  row("between tokens (ITL)", f.itl);
  sections.push_back(std::move(people));
  sections.push_back(quantiles_section("latency_ms", f.latency));
  sections.push_back(quantiles_section("ttft_ms", f.ttft));
  sections.push_back(quantiles_section("tpot_ms", f.tpot));
  sections.push_back(quantiles_section("itl_ms", f.itl));
  Section cdf{.key = "cdf", .title = "", .table = {}, .values = true};
  cdf.table.columns = {{.key = "ms_and_fraction"}};
  for (const auto& [ms, share] : f.cdf) cdf.table.rows.push_back({std::vector<double>{ms, share}});
  sections.push_back(std::move(cdf));
}

Section service_calibration_section(const std::vector<ServiceFactor>& facts) {
  Section s{.key = "calibration", .title = "Calibrated by a measured run", .table = {}};
  s.table.columns = {{.key = "fact"}, {.key = "unit"}, {.key = "before"}, {.key = "after"}, {.key = "events"}};
  for (const ServiceFactor& f : facts)
    s.table.rows.push_back({f.fact, f.unit, f.before, f.after, static_cast<std::int64_t>(f.events)});
  return s;
}

Section engines_section(const std::vector<EngineFacts>& engines) {
  Section s{.key = "engines", .title = "Engines", .table = {}};
  s.table.columns = {{.key = "name"},
                     {.key = "scheduling"},
                     {.key = "kv_growth"},
                     {.key = "block_size"},
                     {.key = "max_num_seqs"},
                     {.key = "max_batched_tokens"},
                     {.key = "gpu_memory_utilization", .title = "memory", .digits = 2},
                     {.key = "cuda_graph_batch", .title = "captured up to"},
                     {.key = "step_us", .title = "us a step", .digits = 0},
                     {.key = "sequence_us", .title = "us a sequence", .digits = 0},
                     {.key = "overlap_host", .title = "beside the GPU"},
                     {.key = "source", .json_only = true},
                     {.key = "sure", .json_only = true}};
  for (const EngineFacts& e : engines)
    s.table.rows.push_back({e.name, e.scheduling, e.kv_growth, e.block_size, e.max_num_seqs, e.max_batched_tokens,
                            e.gpu_memory_utilization, e.cuda_graph_batch, e.step_us, e.sequence_us, e.overlap_host,
                            e.source, e.sure});
  return s;
}

Document serve_document(const StepCosts& costs, const ServeMemory& memory, const ServeAnswer& a,
                        const std::vector<std::string>& assumptions) {
  Document d;
  d.command = "estimate";
  if (a.simulation.refused > 0)
    d.notes.add(
        "request-too-long", Severity::warning, static_cast<std::uint64_t>(a.simulation.refused), {},
        "a prompt longer than the model's context, or a request than all blocks of an instance: refused, and in no "
        "rate or latency");
  if (a.simulation.cut > 0)
    d.notes.add("answer-cut", Severity::info, static_cast<std::uint64_t>(a.simulation.cut), {},
                "answers end where the model's context does (--max-model-len)");
  if (const GpuFacts& gpu = costs.job().platform.gpu; is_amd(gpu))
    d.notes.add("laws-of-another-card", Severity::warning, 1, gpu.name,
                "no table of this maker's later cards is among the sources: products go by a law fitted to an MI210, "
                "in fp8 at twice bf16's rate at best; compare quantisations with care");
  if (a.highest.at_capacity)
    d.notes.add("highest-rate-is-capacity", Severity::info, 1, {},
                "so few requests are over before a queue forms: the highest rate is that at which all of them at once "
                "are answered; more --requests tell more");
  if (!a.highest.known)
    d.notes.add("level-unknown", Severity::warning, 1, {},
                "answers of one token have no time per token after the first: tpot_ms says nothing about them");
  d.sections.push_back(job_section(costs));
  d.sections.push_back(upright(d.sections.back(), "Job"));
  d.sections.push_back(answer_section(costs, memory, a));
  add_serving_figures(a.figures, d.sections);
  add_intervals(a, d.sections);
  d.sections.push_back(time_section(a.simulation));
  d.sections.push_back(memory_section(memory));
  d.sections.push_back(level_section(a));
  add_modules(costs, a, d.sections);
  d.sections.push_back(timeline_section(a.simulation));
  Section carries{.key = "assumptions", .title = "What carries it", .table = {}};
  carries.table.columns = {{.key = "assumption"}};
  for (const std::string& text : assumptions) carries.table.rows.push_back({text});
  for (std::string& text : carried_by(costs, a)) carries.table.rows.push_back({std::move(text)});
  d.sections.push_back(std::move(carries));
  return d;
}

}  // namespace orrery
