#include "cli/estimate_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>

#include "cli/read_options.h"
#include "facts/library.h"

namespace orrery {
namespace {

constexpr Choice<Framework> kFrameworks[] = {{"megatron", Framework::megatron},
                                             {"deepspeed", Framework::deepspeed},
                                             {"fsdp", Framework::fsdp},
                                             {"ddp", Framework::ddp}};
constexpr Choice<Offload> kOffloads[] = {
    {"none", Offload::none}, {"optimizer", Offload::optimizer}, {"all", Offload::all}};
constexpr Choice<Recompute> kRecomputes[] = {
    {"none", Recompute::none}, {"selective", Recompute::selective}, {"full", Recompute::full}};
constexpr Choice<Quantize> kQuantizes[] = {
    {"none", Quantize::none}, {"int8", Quantize::int8}, {"nf4", Quantize::nf4}, {"gptq", Quantize::gptq}};
constexpr Choice<Optimizer> kOptimizers[] = {{"adamw", Optimizer::adamw},
                                             {"adamw8bit", Optimizer::adamw8bit},
                                             {"paged-adamw8bit", Optimizer::paged_adamw8bit},
                                             {"lion", Optimizer::lion},
                                             {"sgd", Optimizer::sgd}};
constexpr Choice<Method> kMethods[] = {
    {"full", Method::full}, {"lora", Method::lora}, {"qlora", Method::qlora}, {"prompt", Method::prompt}};
constexpr Choice<Precision> kPrecisions[] = {{"fp32", Precision::fp32},  {"tf32", Precision::tf32},
                                             {"bf16", Precision::bf16},  {"fp16", Precision::fp16},
                                             {"fp8", Precision::fp8},    {"fp8-block", Precision::fp8_block},
                                             {"nvfp4", Precision::nvfp4}};
constexpr Choice<double> kReduced[] = {{"fp32", 4}, {"bf16", 2}, {"fp16", 2}};

// --shape layers=24,hidden=2048,...: what differs from the named model, or all of a model without a name.
Status change_shape(const std::string& text, ModelFacts& m) {
  struct Key {
    std::string_view name;
    std::int64_t* value;
  };
  bool head_dim = false, kv_heads = false, ffn = false, heads = false, hidden = false;
  std::int64_t gated = m.gated_mlp, tied = m.tied_embeddings, rms = m.rms_norm, learned = m.learned_positions,
               bias = m.linear_bias;
  const Key keys[] = {{"layers", &m.layers},
                      {"hidden", &m.hidden},
                      {"ffn", &m.ffn},
                      {"heads", &m.heads},
                      {"kv-heads", &m.kv_heads},
                      {"head-dim", &m.head_dim},
                      {"vocab", &m.vocab},
                      {"context", &m.max_context},
                      {"experts", &m.experts},
                      {"experts-per-token", &m.experts_per_token},
                      {"expert-ffn", &m.expert_ffn},
                      {"shared-ffn", &m.shared_ffn},
                      {"dense-layers", &m.dense_layers},
                      {"gated", &gated},
                      {"tied", &tied},
                      {"rms-norm", &rms},
                      {"learned-positions", &learned},
                      {"bias", &bias}};
  std::vector<std::string> seen;
  for (std::size_t i = 0; i <= text.size();) {
    const std::size_t end = std::min(text.find(',', i), text.size());
    const std::string item = text.substr(i, end - i);
    i = end + 1;
    const std::size_t equals = item.find('=');
    const std::string name = item.substr(0, equals), value = equals == std::string::npos ? "" : item.substr(equals + 1);
    const auto key = std::find_if(std::begin(keys), std::end(keys), [&](const Key& k) { return k.name == name; });
    std::int64_t n = 0;
    const auto [at, error] = std::from_chars(value.data(), value.data() + value.size(), n);
    if (key == std::end(keys)) {
      std::string all;
      for (const Key& k : keys) all += (all.empty() ? "" : ", ") + std::string(k.name);
      return fail("not known: " + item, "--shape", "KEY=N of " + all);
    }
    if (value.empty() || error != std::errc{} || at != value.data() + value.size() || n < 0 || n > 100'000'000)
      return fail("not KEY=N with N from 0 to 100000000: " + item, "--shape");
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) return fail(name + " is given twice", "--shape");
    seen.push_back(name);
    *key->value = n;
    head_dim |= name == "head-dim", kv_heads |= name == "kv-heads", ffn |= name == "ffn";
    heads |= name == "heads", hidden |= name == "hidden";
  }
  m.gated_mlp = gated != 0, m.tied_embeddings = tied != 0, m.rms_norm = rms != 0;
  m.learned_positions = learned != 0, m.linear_bias = bias != 0;
  if (m.layers < 1 || m.hidden < 1 || m.heads < 1) return fail("layers, hidden and heads are needed", "--shape");
  if ((hidden || heads) && !head_dim) {
    if (m.hidden % m.heads != 0)
      return fail(fmt::format("a width of {} cannot be divided by {} heads", m.hidden, m.heads), "--shape",
                  "give head-dim");
    m.head_dim = m.hidden / m.heads;
  }
  if (heads && !kv_heads) m.kv_heads = m.heads;
  if (hidden && !ffn && m.experts == 0) m.ffn = 4 * m.hidden;
  if (m.heads % std::max<std::int64_t>(1, m.kv_heads) != 0)
    return fail("heads are not a multiple of kv-heads", "--shape");
  return {};
}

// A GPT as Megatron-LM trains it; --shape fills in the rest.
ModelFacts plain_gpt() {
  ModelFacts m;
  m.name = "gpt";
  m.vocab = 51'200;
  m.max_context = 2'048;
  m.tied_embeddings = true;
  m.gated_mlp = false;
  m.rms_norm = false;
  m.learned_positions = true;
  m.linear_bias = true;
  return m;
}

Status read_attention(const Args& args, EstimateJob& job) {
  constexpr Choice<AttentionKernel> kKernels[] = {
      {"unfused", AttentionKernel::unfused}, {"flash", AttentionKernel::flash2},
      {"flash1", AttentionKernel::flash1},   {"flash2", AttentionKernel::flash2},
      {"flash3", AttentionKernel::flash3},   {"cudnn", AttentionKernel::cudnn},
      {"triton", AttentionKernel::triton},   {"xformers", AttentionKernel::xformers}};
  AttentionKernel kernel = AttentionKernel::flash2;
  if (const auto ok = choose(args, "--attention", kKernels, kernel); !ok) return ok;
  if (kernel == AttentionKernel::unfused) job.attention = AttentionKind::unfused;
  const std::string text = args.value("--attention");
  if (!text.empty() && text != "flash" && text != "unfused") job.attention_kernel = kernel;
  return {};
}

Status read_schedule(const std::string& text, EstimateJob& job) {
  if (text.empty() || text == "1f1b") return {};
  if (text == "zero-bubble") {
    job.schedule = ScheduleKind::zero_bubble;
    return {};
  }
  constexpr std::string_view kInterleaved = "interleaved:";
  std::int64_t n = 0;
  if (text.starts_with(kInterleaved)) {
    const auto [end, error] = std::from_chars(text.data() + kInterleaved.size(), text.data() + text.size(), n);
    if (error == std::errc{} && end == text.data() + text.size() && n >= 1 && n < 1'000) {
      job.chunks = n;
      if (n > 1) job.schedule = ScheduleKind::interleaved;
      return {};
    }
  }
  return fail("not known: " + text, "--schedule", "1f1b, interleaved:V or zero-bubble");
}

}  // namespace

std::vector<OptionSpec> job_options() {
  return {
      {"--model", "NAME|FILE", "a model (`--model list`), a file of one (docs/formats/facts.md), or gpt with --shape",
       Takes::file},
      {"--shape", "KEY=N,...", "change the model: layers, hidden, ffn, heads, kv-heads, head-dim, vocab, experts ...",
       Takes::word},
      {"--platform", "NAME|FILE", "servers and their GPUs (`--platform list`), or a file of one", Takes::file},
      {"--facts", "DIR", "a directory of facts of your own", Takes::directory},
      {"--gpus", "N", "GPUs in all (default: as many as the layout needs)", Takes::word},
      {"--gpus-per-node", "N", "GPUs of a server", Takes::word},
      {"--tp", "N", "tensor parallelism", Takes::word},
      {"--pp", "N", "pipeline stages", Takes::word},
      {"--dp", "N", "data parallelism (default: what --gpus leaves)", Takes::word},
      {"--sequence-parallel", "on|off", "activations outside of tensor-parallel regions split by sequence",
       Takes::word},
      {"--context-parallel", "N", "ranks that share a sequence", Takes::word},
      {"--expert-parallel", "N", "ranks that share the experts, of those of data parallelism", Takes::word},
      {"--schedule", "NAME", "1f1b, interleaved:V (V chunks a stage) or zero-bubble", Takes::word},
      {"--micro-batch-size", "N|max", "sequences of a micro-batch; max: the most that fits", Takes::word},
      {"--num-microbatches", "N", "micro-batches of each pipeline in a step (default: 4 a stage, 1 without stages)",
       Takes::word},
      {"--global-batch-size", "N", "sequences of a step: the micro-batches follow", Takes::word},
      {"--seq-length", "N", "tokens of a sequence (default: 2048)", Takes::word},
      {"--framework", "NAME", "megatron (default; fused kernels), deepspeed, fsdp or ddp (eager operators)",
       Takes::word},
      {"--zero", "0|1|2|3", "ZeRO: optimizer, gradients, weights sharded (default: 0; fsdp: 3)", Takes::word},
      {"--zero-group", "N", "ranks that share a copy of what is sharded (default: all)", Takes::word},
      {"--offload", "none|optimizer|all", "what lies in the host's memory", Takes::word},
      {"--recompute", "none|selective|full", "what of a layer's forward pass runs again", Takes::word},
      {"--attention", "unfused|flash|...",
       "how the attention is computed (default: flash, as the framework has it; also flash1, flash2, flash3, "
       "cudnn, triton, xformers)",
       Takes::word},
      {"--quantize", "none|int8|nf4|gptq",
       "weights kept in fewer bits, which then do not learn; serve: none, fp8, int8, int4, awq or gptq", Takes::word},
      {"--method", "full|lora|qlora|prompt", "what learns in fine-tuning", Takes::word},
      {"--lora-rank", "N", "rank of the adapters (default: 8)", Takes::word},
      {"--lora-dropout", "on|off", "dropout before the adapters (default: off)", Takes::word},
      {"--lora-embeddings", "on|off", "embedding and head learn beside the adapters (default: off)", Takes::word},
      {"--prompt-tokens", "N", "tokens that --method prompt learns (default: 32)", Takes::word},
      {"--optimizer", "NAME", "adamw (default), adamw8bit, paged-adamw8bit, lion or sgd", Takes::word},
      {"--master-weights", "on|off", "what learns is kept in fp32, too (default: on)", Takes::word},
      {"--optimizer-in-backward", "on|off", "weights updated as their gradients come (default: off)", Takes::word},
      {"--fp32-loss", "on|off", "logits go to fp32 before the loss (default: on)", Takes::word},
      {"--chunked-loss", "on|off", "logits and their loss in eight chunks (default: off)", Takes::word},
      {"--offload-activations", "on|off", "what the backward pass needs waits in the host's memory (default: off)",
       Takes::word},
      {"--precision", "NAME", "fp32, tf32, bf16 (default), fp16, fp8, fp8-block or nvfp4", Takes::word},
      {"--reduce-precision", "fp32|bf16", "gradients on the network (default: as the framework does)", Takes::word},
      {"--bucket-size", "N", "parameters whose gradients are reduced together (default: as the framework does)",
       Takes::word},
      {"--compile", "on|off", "element-wise chains as one kernel", Takes::word},
      {"--dropout", "on|off", "(default: on for models with LayerNorm)", Takes::word},
      {"--overlap-grad-reduce", "on|off", "gradients reduced beside the backward pass (default: on)", Takes::word},
      {"--overlap-param-gather", "on|off", "sharded weights gathered beside the forward pass (default: on)",
       Takes::word},
      {"--tp-comm-overlap", "on|off", "tensor-parallel transfers beside their products (default: off)", Takes::word},
      {"--nvlink", "on|off", "use NVLink where the server has it", Takes::word},
      {"--p2p", "on|off", "GPUs reach each other over PCIe", Takes::word},
  };
}

Status read_model_and_platform(const Args& args, const std::string& what, OwnFacts& own, ModelFacts& model_out,
                               PlatformFacts& platform_out, std::vector<std::string>& assumptions) {
  if (args.has("--facts")) {
    auto read = read_facts_directory(args.value("--facts"));
    if (!read) return tl::unexpected(read.error());
    own = std::move(*read);
  }
  const auto list = [&](const char* option) { return "see `orrery estimate " + what + " " + option + " list`"; };
  if (!args.has("--model")) return fail("no model", "--model", list("--model"));
  if (!args.has("--platform")) return fail("no platform", "--platform", list("--platform"));
  if (args.value("--model") == "gpt" && args.has("--shape")) {
    model_out = plain_gpt();
  } else {
    auto model = model_named_or_read(args.value("--model"), own);
    if (!model) return tl::unexpected(model.error());
    model_out = std::move(*model);
  }
  if (args.has("--shape"))
    if (const auto ok = change_shape(args.value("--shape"), model_out); !ok) return tl::unexpected(ok.error());
  auto platform = platform_named_or_read(args.value("--platform"), own);
  if (!platform) return tl::unexpected(platform.error());
  platform_out = std::move(*platform);
  if (!platform_out.note.empty()) assumptions.push_back(platform_out.note);
  return {};
}

Result<DescribedJob> described_job(const Args& args, bool finetune) {
  DescribedJob d;
  EstimateJob& job = d.job;
  job.finetune = finetune;
  OwnFacts own;
  if (const auto ok = read_model_and_platform(args, "train", own, job.model, job.platform, d.assumptions); !ok)
    return tl::unexpected(ok.error());

  std::int64_t gpus = 0, global = 0, zero_group = 0;
  bool master = true, nvlink = true, p2p = job.platform.p2p, dp_given = args.has("--dp"), dropout = !job.model.rms_norm;
  const auto all = [](std::initializer_list<Status> steps) -> Status {
    for (const Status& s : steps)
      if (!s) return s;
    return {};
  };
  if (const Status ok = all({whole(args, "--gpus", gpus),
                             whole(args, "--gpus-per-node", job.platform.gpus_per_node),
                             whole(args, "--tp", job.tp),
                             whole(args, "--pp", job.pp),
                             whole(args, "--dp", job.dp),
                             whole(args, "--context-parallel", job.cp),
                             whole(args, "--expert-parallel", job.ep),
                             whole(args, "--num-microbatches", job.num_microbatches),
                             whole(args, "--global-batch-size", global),
                             whole(args, "--seq-length", job.seq_length),
                             whole(args, "--zero-group", zero_group),
                             whole(args, "--lora-rank", job.lora_rank),
                             whole(args, "--prompt-tokens", job.prompt_tokens),
                             whole(args, "--bucket-size", job.bucket, 100'000'000'000),
                             choose(args, "--lora-dropout", kSwitch, job.lora_dropout),
                             choose(args, "--lora-embeddings", kSwitch, job.lora_embeddings),
                             choose(args, "--optimizer", kOptimizers, job.optimizer),
                             choose(args, "--master-weights", kSwitch, master),
                             choose(args, "--optimizer-in-backward", kSwitch, job.optimizer_in_backward),
                             choose(args, "--fp32-loss", kSwitch, job.fp32_loss),
                             choose(args, "--chunked-loss", kSwitch, job.chunked_loss),
                             choose(args, "--offload-activations", kSwitch, job.offload_activations),
                             choose(args, "--sequence-parallel", kSwitch, job.sequence_parallel),
                             choose(args, "--framework", kFrameworks, job.framework),
                             choose(args, "--offload", kOffloads, job.offload),
                             choose(args, "--recompute", kRecomputes, job.recompute),
                             read_attention(args, job),
                             choose(args, "--quantize", kQuantizes, job.quantize),
                             choose(args, "--method", kMethods, job.method),
                             choose(args, "--precision", kPrecisions, job.precision),
                             choose(args, "--reduce-precision", kReduced, job.reduce_bytes),
                             choose(args, "--compile", kSwitch, job.compile),
                             choose(args, "--dropout", kSwitch, dropout),
                             choose(args, "--overlap-grad-reduce", kSwitch, job.overlap_gradients),
                             choose(args, "--overlap-param-gather", kSwitch, job.overlap_parameters),
                             choose(args, "--tp-comm-overlap", kSwitch, job.overlap_tensor),
                             choose(args, "--nvlink", kSwitch, nvlink),
                             choose(args, "--p2p", kSwitch, p2p),
                             read_schedule(args.value("--schedule"), job)});
      !ok)
    return tl::unexpected(ok.error());
  if (args.value("--micro-batch-size") == "max")
    d.largest_micro_batch = true;
  else if (const auto ok = whole(args, "--micro-batch-size", job.micro_batch_size); !ok)
    return tl::unexpected(ok.error());
  if (args.has("--master-weights")) job.master_weights = master;
  job.dropout = dropout;
  job.zero_group = zero_group;
  job.platform.p2p = p2p;
  if (!nvlink) job.platform.nvlink_gb_per_s = 0, job.platform.nvlink_sharp = false;
  if (args.has("--gpus-per-node") && !args.has("--nvlink-domain"))
    job.platform.nvlink_domain = std::min(job.platform.nvlink_domain, job.platform.gpus_per_node);
  job.zero = job.framework == Framework::fsdp ? 3 : 0;
  if (args.has("--zero")) {
    const std::string text = args.value("--zero");
    if (text.size() != 1 || text[0] < '0' || text[0] > '3') return fail("not 0, 1, 2 or 3: " + text, "--zero");
    job.zero = text[0] - '0';
  }
  const bool adapters = job.method == Method::lora || job.method == Method::qlora;
  for (const char* option : {"--lora-rank", "--lora-dropout", "--lora-embeddings"})
    if (args.has(option) && !adapters) return fail("is of --method lora or qlora", option, "leave it out");
  if (args.has("--prompt-tokens") && job.method != Method::prompt)
    return fail("is of --method prompt", "--prompt-tokens", "leave it out");
  if (job.method == Method::qlora && !args.has("--quantize")) job.quantize = Quantize::nf4;

  const std::int64_t share = job.tp * job.pp * job.cp;
  if (gpus > 0) {
    if (gpus % share != 0)
      return fail(fmt::format("{} GPUs cannot be divided by tp * pp * cp = {}", gpus, share), "--gpus");
    if (dp_given && gpus != share * job.dp)
      return fail(fmt::format("{} GPUs are not tp * pp * cp * dp = {}", gpus, share * job.dp), "--gpus");
    job.dp = gpus / share;
  }
  if (global > 0) {
    if (args.has("--num-microbatches"))
      return fail("both the batch and the micro-batches are given", "--global-batch-size", "give one");
    if (!d.largest_micro_batch) {
      const std::int64_t each = job.dp * job.micro_batch_size;
      if (global % each != 0)
        return fail(fmt::format("{} sequences cannot be divided by dp * micro-batch size = {}", global, each),
                    "--global-batch-size");
      job.num_microbatches = global / each;
    }
  } else if (!args.has("--num-microbatches") && job.pp > 1) {
    job.num_microbatches = 4 * job.pp;
  }
  if (const auto ok = check(job); !ok) return tl::unexpected(ok.error());
  return d;
}

}  // namespace orrery
