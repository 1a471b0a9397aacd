#include "cli/serve_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/estimate_options.h"
#include "cli/read_options.h"
#include "facts/library.h"

namespace orrery {
namespace {

constexpr Choice<Precision> kPrecisions[] = {{"bf16", Precision::bf16},
                                             {"fp16", Precision::fp16},
                                             {"fp32", Precision::fp32},
                                             {"float16", Precision::fp16},
                                             {"bfloat16", Precision::bf16}};
// --precision of fewer bits is that of the weights.
WeightFormat narrow(const std::string& precision) {
  return precision == "fp8" ? WeightFormat::fp8 : precision == "int8" ? WeightFormat::int8 : WeightFormat::int4;
}
constexpr Choice<WeightFormat> kFormats[] = {{"none", WeightFormat::same}, {"fp8", WeightFormat::fp8},
                                             {"int8", WeightFormat::int8}, {"int4", WeightFormat::int4},
                                             {"awq", WeightFormat::int4},  {"gptq", WeightFormat::int4}};
constexpr Choice<double> kCaches[] = {{"auto", 0}, {"bf16", 2}, {"fp16", 2}, {"fp8", 1}, {"int8", 1}};
constexpr Choice<Routing> kRoutings[] = {{"round-robin", Routing::round_robin},
                                         {"least-loaded", Routing::least_loaded}};

Status text_choice(const Args& args, std::string_view option, std::initializer_list<std::string_view> values,
                   std::string& out) {
  if (!args.has(option)) return {};
  const std::string text = args.value(option);
  std::string all;
  for (const std::string_view v : values) {
    if (v == text) {
      out = text;
      return {};
    }
    all += (all.empty() ? "" : ", ") + std::string(v);
  }
  return fail("not known: " + text, std::string(option), "one of " + all);
}

Status precision_of(const Args& args, Precision& out) {
  const Status ok = choose(args, "--precision", kPrecisions, out);
  if (ok) return ok;
  return fail(ok.error().what, ok.error().where, ok.error().advice + ", fp8, int8, int4");
}

// KEY=NUMBER,...
Status read_keys(const std::string& text, const std::string& option,
                 std::initializer_list<std::pair<std::string_view, double*>> keys) {
  for (std::size_t i = 0; i <= text.size();) {
    const std::size_t end = std::min(text.find(',', i), text.size());
    const std::string item = text.substr(i, end - i);
    i = end + 1;
    const std::size_t equals = item.find('=');
    double* place = nullptr;
    std::string all;
    for (const auto& [name, value] : keys) {
      if (item.substr(0, equals) == name) place = value;
      all += (all.empty() ? "" : ", ") + std::string(name);
    }
    double x = 0;
    if (place == nullptr || equals == std::string::npos || read_double(item.substr(equals + 1), x) != NumberState::ok ||
        x < 0 || x > 1e12)
      return fail("not KEY=NUMBER: " + item, option, "keys are " + all);
    *place = x;
  }
  return {};
}

// Tensor parallel over all GPUs unless the engine puts layers side by side; replicas take what is left.
Status read_layout(const Args& args, ServeJob& job) {
  std::int64_t gpus = 0, replicas = 0;
  if (const Status ok = all_of({whole(args, "--gpus", gpus), whole(args, "--tp", job.tp), whole(args, "--pp", job.pp),
                                whole(args, "--expert-parallel", job.ep), whole(args, "--replicas", replicas),
                                whole(args, "--prefill-replicas", job.prefill_replicas)});
      !ok)
    return ok;
  const bool stated = args.has("--tp") || args.has("--pp");
  job.replicas = std::max<std::int64_t>(1, replicas);
  if (gpus == 0) return {};
  if (!stated) {
    if (gpus % job.replicas != 0)
      return fail(fmt::format("{} GPUs cannot be dealt to {} replicas", gpus, job.replicas), "--gpus");
    (job.engine.multi_gpu == "layers" ? job.pp : job.tp) = gpus / job.replicas;
    return {};
  }
  const std::int64_t each = job.tp * job.pp;
  if (gpus % each != 0) return fail(fmt::format("{} GPUs cannot be divided by tp * pp = {}", gpus, each), "--gpus");
  if (replicas > 0 && gpus != each * replicas)
    return fail(fmt::format("{} GPUs are not tp * pp * replicas = {}", gpus, each * replicas), "--gpus");
  job.replicas = gpus / each;
  return {};
}

}  // namespace

std::vector<OptionSpec> workload_options() {
  return {
      {"--requests", "N", "so many requests (default: 1000; of --lengths the first so many)", Takes::word},
      {"--rate", "R|inf", "requests a second (default: inf, all at once; of a file with times: its own)", Takes::word},
      {"--arrivals", "poisson|even|burst:CV",
       "times between requests: exponential (default), all alike, or gamma distributed with so many times the "
       "deviation of an exponential",
       Takes::word},
      {"--input-tokens", "DIST",
       "tokens of a prompt: N, uniform:A,B, lognormal:MEAN[,SIGMA[,LEAST[,MOST]]] or exponential:MEAN[,LEAST[,MOST]] "
       "(default: 512)",
       Takes::word},
      {"--output-tokens", "DIST", "tokens of an answer, likewise (default: 128)", Takes::word},
      {"--shared-prefix", "N", "tokens that all prompts begin with (default: 0)", Takes::word},
      {"--identical-prompts", "on|off",
       "all prompts are the same text as far as they go: their tokens choose the same experts, and --prefix-caching "
       "finds "
       "them again",
       Takes::word},
      {"--lengths", "FILE",
       "requests of a file: times, inputs, outputs as BurstGPT, Azure's and Mooncake's traces have them, or columns of "
       "those names (docs/formats/workloads.md)",
       Takes::file},
      {"--seed", "N", "of everything that is drawn (default: 1)", Takes::word},
  };
}

std::vector<OptionSpec> serve_options() {
  return {
      {"--engine", "NAME|FILE", "vllm (default), vllm-v0, tgi, lightllm ... (`--engine list`), or a file of one",
       Takes::file},
      {"--replicas", "N", "instances behind a router (default: what --gpus leaves)", Takes::word},
      {"--routing", "round-robin|least-loaded", "which instance gets a request (default: round-robin)", Takes::word},
      {"--prefill-replicas", "N", "of them, so many prefill alone and hand keys and values over to the others",
       Takes::word},
      {"--max-num-seqs", "N", "sequences of a step at most", Takes::word},
      {"--max-batched-tokens", "N", "tokens of a step at most", Takes::word},
      {"--gpu-memory-utilization", "X", "of a GPU's memory that the engine takes", Takes::word},
      {"--max-model-len", "N", "answers end there, longer prompts are refused (default: the model's context)",
       Takes::word},
      {"--block-size", "N", "tokens of a block of the KV cache", Takes::word},
      {"--kv-tokens", "N",
       "tokens that the KV cache of an instance holds, no more than fit beside the weights (default: what the "
       "memory leaves)",
       Takes::word},
      {"--kv-cache-dtype", "auto|fp8|int8", "of keys and values in the cache (default: as the activations)",
       Takes::word},
      {"--chunked-prefill", "on|off", "pieces of prompts beside tokens, or whole prompts first", Takes::word},
      {"--prefix-caching", "on|off", "blocks of prompts that begin alike are computed once", Takes::word},
      {"--preemption", "recompute|swap", "what becomes of a sequence for which there are no blocks", Takes::word},
      {"--cuda-graphs", "on|off", "steps are launched as captured graphs (default: as the engine does)", Takes::word},
      {"--group-size", "N", "weights that share a scale, --quantize int4 (default: 128)", Takes::word},
      {"--speculate", "tokens=N,...",
       "drafted tokens a step; acceptance=P of each given the one before it (0.7), draft=SHARE: what a draft costs of "
       "a step (0.05)",
       Takes::word},
      {"--slo", "KEY=MS,...",
       "ttft_ms, tpot_ms, latency_ms; share=X of the requests (0.9): how many keep it, and the highest rate that does",
       Takes::word},
      {"--price", "X", "of a GPU for an hour: cost per million tokens", Takes::word},
  };
}

namespace {

// The same text: each prompt begins as the longest does. Its last token is computed in any case.
void set_alike(Workload& w) {
  w.alike = true;
  std::int64_t most = 0;
  for (const Request& r : w.requests) most = std::max(most, r.input - 1);
  w.prefixes.resize(static_cast<std::size_t>(most / w.prefix_piece));
  for (std::size_t k = 0; k < w.prefixes.size(); ++k) w.prefixes[k] = k + 1;
  for (Request& r : w.requests) {
    r.first_prefix = 0;
    r.prefixes = static_cast<std::uint32_t>((r.input - 1) / w.prefix_piece);
  }
}

}  // namespace

Result<DescribedWorkload> described_workload(const Args& args, Notes& notes) {
  DescribedWorkload d;
  WorkloadAsked asked;
  std::int64_t seed = 1;
  bool alike = false;
  if (const Status ok = all_of({choose(args, "--identical-prompts", kSwitch, alike),
                                whole(args, "--requests", asked.requests, 10'000'000),
                                whole(args, "--shared-prefix", asked.shared_prefix, 1 << 24, 0),
                                whole(args, "--seed", seed, 1'000'000'000'000'000, 0)});
      !ok)
    return tl::unexpected(ok.error());
  if (args.has("--rate") && args.value("--rate") != "inf")
    if (const Status ok = real(args, "--rate", asked.rate, 1e-6, 1e7); !ok) return tl::unexpected(ok.error());
  if (const std::string text = args.value("--arrivals"); !text.empty()) {
    constexpr std::string_view kBurst = "burst:";
    if (text == "even") {
      asked.cv = 0;
    } else if (text.starts_with(kBurst)) {
      if (read_double(text.substr(kBurst.size()), asked.cv) != NumberState::ok || asked.cv <= 0 || asked.cv > 100)
        return fail("not burst:CV with a CV above 0 and up to 100: " + text, "--arrivals");
    } else if (text != "poisson") {
      return fail("not known: " + text, "--arrivals", "poisson, even or burst:CV");
    }
  }
  asked.input.mean = 512;
  for (const auto& [option, place] : {std::pair{"--input-tokens", &asked.input}, {"--output-tokens", &asked.output}}) {
    if (!args.has(option)) continue;
    auto read = read_length_distribution(args.value(option), option);
    if (!read) return tl::unexpected(read.error());
    *place = *read;
  }
  asked.seed = d.seed = static_cast<std::uint64_t>(seed);
  d.rate = asked.rate, d.cv = asked.cv;
  if (!args.has("--lengths")) {
    d.workload = made_workload(asked);
    if (alike) set_alike(d.workload);
    return d;
  }
  for (const char* option : {"--input-tokens", "--output-tokens", "--shared-prefix"})
    if (args.has(option)) return fail("the file says it", option, "leave it out, or --lengths");
  auto read = read_workload(args.value("--lengths"), notes);
  if (!read) return tl::unexpected(read.error());
  d.workload = std::move(*read);
  if (args.has("--requests")) {
    if (d.workload.requests.size() < static_cast<std::size_t>(asked.requests))
      return fail(fmt::format("{} requests, {} are asked for", d.workload.requests.size(), asked.requests),
                  args.value("--lengths"), "fewer --requests");
    d.workload.requests.resize(static_cast<std::size_t>(asked.requests));
  }
  if (alike) set_alike(d.workload);
  if (args.has("--rate") || !d.workload.timed) set_arrivals(d.workload, asked.rate, asked.cv, asked.seed);
  return d;
}

Result<ServiceLevel> read_level(const Args& args) {
  ServiceLevel l;
  if (!args.has("--slo")) return l;
  if (const Status ok = read_keys(
          args.value("--slo"), "--slo",
          {{"ttft_ms", &l.ttft_ms}, {"tpot_ms", &l.tpot_ms}, {"latency_ms", &l.latency_ms}, {"share", &l.share}});
      !ok)
    return tl::unexpected(ok.error());
  if (!l.asked() || l.share <= 0 || l.share > 1)
    return fail("no level: " + args.value("--slo"), "--slo", "ttft_ms=, tpot_ms= or latency_ms=, share= up to 1");
  return l;
}

Result<DescribedService> described_service(const Args& args) {
  DescribedService d;
  ServeJob& job = d.job;
  OwnFacts own;
  if (const auto ok = read_model_and_platform(args, "serve", own, job.model, job.platform, d.assumptions); !ok)
    return tl::unexpected(ok.error());
  auto engine = engine_named_or_read(args.has("--engine") ? args.value("--engine") : "vllm", own);
  if (!engine) return tl::unexpected(engine.error());
  job.engine = std::move(*engine);
  EngineFacts& e = job.engine;
  job.prefix_caching = e.prefix_caching;
  if (!e.note.empty()) d.assumptions.push_back(e.note);
  const bool half = job.platform.gpu.bf16_tflops <= 0;
  if (half) job.precision = architecture_of(job.platform.gpu) == Architecture::cpu ? Precision::fp32 : Precision::fp16;

  const std::string precision = args.value("--precision");
  const bool is_narrow = precision == "fp8" || precision == "int8" || precision == "int4";
  if (is_narrow) job.weights = narrow(precision);
  bool nvlink = true, chunked = e.scheduling == "chunked";
  double drafts = 0;
  if (const Status ok =
          all_of({whole(args, "--gpus-per-node", job.platform.gpus_per_node),
                  read_layout(args, job),
                  is_narrow ? Status{} : precision_of(args, job.precision),
                  choose(args, "--quantize", kFormats, job.weights),
                  whole(args, "--group-size", job.group, 1 << 20),
                  choose(args, "--kv-cache-dtype", kCaches, job.kv_bytes),
                  choose(args, "--prefix-caching", kSwitch, job.prefix_caching),
                  choose(args, "--cuda-graphs", kSwitch, job.cuda_graphs),
                  choose(args, "--chunked-prefill", kSwitch, chunked),
                  text_choice(args, "--preemption", {"recompute", "swap"}, e.preemption),
                  whole(args, "--max-num-seqs", e.max_num_seqs, 1'000'000),
                  whole(args, "--max-batched-tokens", e.max_batched_tokens),
                  whole(args, "--block-size", e.block_size, 65'536),
                  whole(args, "--kv-tokens", job.kv_tokens, 1'000'000'000'000),
                  whole(args, "--max-model-len", job.max_model_len),
                  real(args, "--gpu-memory-utilization", e.gpu_memory_utilization, 0.01, 1),
                  choose(args, "--routing", kRoutings, d.options.routing),
                  choose(args, "--nvlink", kSwitch, nvlink),
                  choose(args, "--p2p", kSwitch, job.platform.p2p),
                  real(args, "--price", d.price_per_gpu_hour, 0, 1e6),
                  args.has("--speculate")
                      ? read_keys(args.value("--speculate"), "--speculate",
                                  {{"tokens", &drafts}, {"acceptance", &job.acceptance}, {"draft", &job.draft_share}})
                      : Status{}});
      !ok)
    return tl::unexpected(ok.error());
  if (job.max_model_len == 0) job.max_model_len = job.model.max_context;
  if (e.step_covers_context && !args.has("--max-batched-tokens"))
    e.max_batched_tokens = std::max(e.max_batched_tokens, job.max_model_len);
  if (args.has("--chunked-prefill")) e.scheduling = chunked ? "chunked" : "prefill-first";
  if (!nvlink) job.platform.nvlink_gb_per_s = 0, job.platform.nvlink_sharp = false;
  if (args.has("--gpus-per-node"))
    job.platform.nvlink_domain = std::min(job.platform.nvlink_domain, job.platform.gpus_per_node);
  if (drafts > 64 || drafts != static_cast<double>(static_cast<std::int64_t>(drafts)) || job.acceptance > 1 ||
      job.draft_share > 10)
    return fail("tokens is a whole number up to 64, acceptance is up to 1, draft up to 10", "--speculate");
  if (args.has("--speculate") && drafts < 1) return fail("no tokens", "--speculate", "for example tokens=4");
  job.draft_tokens = static_cast<std::int64_t>(drafts);
  auto level = read_level(args);
  if (!level) return tl::unexpected(level.error());
  d.level = *level;
  if (const auto ok = check(job); !ok) return tl::unexpected(ok.error());
  return d;
}

}  // namespace orrery
