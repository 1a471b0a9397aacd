#include "estimate/job.h"

#include <fmt/format.h>

namespace orrery {
namespace {

constexpr std::int64_t kMostRanksMeasured = 64;  // together, by `orrery bench ops`

}  // namespace

std::string_view name_of(Framework f) {
  switch (f) {
    case Framework::megatron:
      return "megatron";
    case Framework::deepspeed:
      return "deepspeed";
    case Framework::fsdp:
      return "fsdp";
    case Framework::ddp:
      return "ddp";
  }
  return "";
}
std::string_view name_of(Offload o) {
  switch (o) {
    case Offload::none:
      return "none";
    case Offload::optimizer:
      return "optimizer";
    case Offload::all:
      return "all";
  }
  return "";
}
std::string_view name_of(Quantize q) {
  switch (q) {
    case Quantize::none:
      return "none";
    case Quantize::int8:
      return "int8";
    case Quantize::nf4:
      return "nf4";
    case Quantize::gptq:
      return "gptq";
  }
  return "";
}
std::string_view name_of(Optimizer o) {
  switch (o) {
    case Optimizer::adamw:
      return "adamw";
    case Optimizer::adamw8bit:
      return "adamw8bit";
    case Optimizer::paged_adamw8bit:
      return "paged-adamw8bit";
    case Optimizer::lion:
      return "lion";
    case Optimizer::sgd:
      return "sgd";
  }
  return "";
}
std::string_view name_of(Method m) {
  switch (m) {
    case Method::full:
      return "full";
    case Method::lora:
      return "lora";
    case Method::qlora:
      return "qlora";
    case Method::prompt:
      return "prompt";
  }
  return "";
}
std::string_view name_of(AttentionKind a) { return a == AttentionKind::flash ? "flash" : "unfused"; }

bool is_emulated(const EstimateJob& job) { return cpu_emulates(job.platform.gpu, job.precision); }

double bytes_of_activations(const EstimateJob& job) {
  return job.precision == Precision::fp32 || job.precision == Precision::tf32 ? 4 : 2;
}
double weight_bytes(const EstimateJob& job) {
  // nf4 with double quantisation: four bits, a byte a block of 64, its scales (Dettmers et al. 2023: 0.127 bits a
  // parameter). GPTQ, groups of 128: four bits, a two-byte scale and a four-bit zero a group.
  if (job.quantize == Quantize::nf4) return 0.516;
  if (job.quantize == Quantize::gptq) return 0.5 + 2.5 / 128;
  if (job.quantize == Quantize::int8) return 1;
  return bytes_of_activations(job);
}
double gradient_bytes(const EstimateJob& job) {
  if (job.reduce_bytes > 0) return job.reduce_bytes;
  // Megatron-LM: fp32 with bf16, fp16 with fp16; DeepSpeed and FSDP: the precision of the weights.
  if (job.framework == Framework::megatron && job.precision != Precision::fp16) return 4;
  if (job.framework == Framework::ddp && master_weights(job)) return 4;
  return bytes_of_activations(job);
}
bool master_weights(const EstimateJob& job) {
  if (bytes_of_activations(job) >= 4) return false;  // they are fp32 as they are
  return job.master_weights.value_or(true);
}
double moment_bytes(const EstimateJob& job) {
  const double each = master_weights(job) ? 4 : bytes_of_activations(job);
  switch (job.optimizer) {
    case Optimizer::adamw:
      return 2 * each;
    case Optimizer::lion:
      return each;
    case Optimizer::sgd:
      return 0;
    case Optimizer::adamw8bit:
    case Optimizer::paged_adamw8bit:
      return 2 * (1 + 4.0 / 256);  // an fp32 scale a block of 256
  }
  return 0;
}

namespace {

Status divides(std::int64_t what, std::int64_t by, std::string_view name, std::string_view option) {
  if (what % by == 0) return {};
  return fail(fmt::format("{} {} cannot be divided by {}", what, name, by), std::string(option),
              fmt::format("choose a divisor of {}", what));
}

}  // namespace

Status check(const EstimateJob& job) {
  const ModelFacts& m = job.model;
  for (const auto& [value, option] :
       std::initializer_list<std::pair<std::int64_t, const char*>>{{job.tp, "--tp"},
                                                                   {job.pp, "--pp"},
                                                                   {job.dp, "--dp"},
                                                                   {job.cp, "--context-parallel"},
                                                                   {job.ep, "--expert-parallel"},
                                                                   {job.chunks, "--schedule"},
                                                                   {job.micro_batch_size, "--micro-batch-size"},
                                                                   {job.num_microbatches, "--num-microbatches"},
                                                                   {job.seq_length, "--seq-length"}})
    if (value < 1) return fail(fmt::format("must be at least 1, not {}", value), option);
  if (const auto ok = divides(m.heads, job.tp, "attention heads", "--tp"); !ok) return ok;
  if (m.ffn > 0)
    if (const auto ok = divides(m.ffn, job.tp, "columns of the feed-forward layers", "--tp"); !ok) return ok;
  constexpr std::int64_t kMostStages = 256, kMostPasses = 262'144;  // of a filled pipeline: stages squared, by chunks
  if (job.pp > kMostStages)
    return fail(fmt::format("{} stages are more than are simulated", job.pp), "--pp",
                fmt::format("at most {}", kMostStages));
  if (job.pp * job.pp * job.chunks > kMostPasses)
    return fail(fmt::format("{} stages of {} chunks are more than are simulated", job.pp, job.chunks), "--schedule",
                "fewer chunks");
  if (m.experts > 0 && m.expert_ffn <= 0) return fail("experts without their width", "--shape", "add expert-ffn=N");
  if (m.experts > 0 && m.experts_per_token <= 0)
    return fail("experts, and none of them for a token", "--shape", "add experts-per-token=N");
  if (m.layers > 10'000) return fail(fmt::format("{} layers are more than 10000", m.layers), "--shape");
  if (m.experts > 0 && job.tp > 1 && !job.sequence_parallel)
    return fail("experts beside tensor parallelism need the tokens split", "--sequence-parallel",
                "add --sequence-parallel on");
  // The embedding and the head may stand for a layer each (Megatron-LM's account-for-embedding-in-pipeline-split).
  if (job.pp * job.chunks > m.layers + (job.pp * job.chunks > 2 ? 2 : 0))
    return fail(fmt::format("{} layers are too few for {} stages{}", m.layers, job.pp,
                            job.chunks > 1 ? fmt::format(" of {} chunks", job.chunks) : ""),
                "--pp", fmt::format("at most {}", m.layers));
  if (job.chunks > 1 && job.pp == 1) return fail("one stage has nothing to interleave", "--schedule", "add --pp");
  if (job.chunks > 1 && job.num_microbatches % job.pp != 0)
    return fail(
        fmt::format("interleaved: {} micro-batches are not a multiple of {} stages", job.num_microbatches, job.pp),
        "--num-microbatches");
  if (const auto ok = divides(job.seq_length, job.cp * (job.sequence_parallel ? job.tp : 1), "tokens of a sequence",
                              job.cp > 1 ? "--context-parallel" : "--sequence-parallel");
      !ok)
    return ok;
  if (job.sequence_parallel && job.tp == 1)
    return fail("sequence parallelism splits over the tensor-parallel ranks, of which there is one",
                "--sequence-parallel", "add --tp");
  if (job.ep > 1 && m.experts == 0) return fail(m.name + " has no experts", "--expert-parallel");
  if (job.ep > 1) {
    if (const auto ok = divides(m.experts, job.ep, "experts", "--expert-parallel"); !ok) return ok;
    if (const auto ok = divides(job.replicas() * job.tp, job.ep, "ranks of a stage", "--expert-parallel"); !ok)
      return ok;
  }
  if (job.zero < 0 || job.zero > 3) return fail(fmt::format("there is no stage {}", job.zero), "--zero", "0 to 3");
  if (job.zero >= 2 && job.pp > 1)
    return fail("ZeRO 2 and 3 reduce gradients in every micro-batch, which pipelines do not allow", "--zero",
                "use --zero 1, or --pp 1");
  if (job.zero == 3 && job.tp > 1 && job.framework == Framework::megatron)
    return fail("Megatron-LM shards weights over tensor-parallel ranks already", "--zero",
                "use --zero 1, or --framework deepspeed or fsdp");
  if (job.zero_group > 0) {
    if (job.zero == 0) return fail("a group that shards needs ZeRO", "--zero-group", "add --zero 1, 2 or 3");
    if (const auto ok = divides(job.replicas(), job.zero_group, "data-parallel ranks", "--zero-group"); !ok) return ok;
  }
  if (job.offload != Offload::none && job.pp > 1) return fail("pipelines are not offloaded", "--offload", "use --pp 1");
  if (job.offload == Offload::all && job.zero != 3)
    return fail("weights are offloaded by ZeRO 3 alone", "--offload", "add --zero 3, or --offload optimizer");
  if (job.offload != Offload::none && job.platform.pcie_gb_per_s <= 0)
    return fail("the speed of the link to the host is not known for " + job.platform.name, "--offload");
  if (job.offload != Offload::none && job.platform.host.memory_gb_per_s <= 0)
    return fail("the memory bandwidth of the host is not known for " + job.platform.name, "--offload",
                "state a host in a platform file");
  if (job.framework == Framework::ddp && job.zero > 0)
    return fail("DistributedDataParallel shards nothing", "--zero", "use --framework fsdp or deepspeed");
  if (job.optimizer_in_backward && job.num_microbatches > 1)
    return fail("a gradient that is used at once cannot be added up over micro-batches", "--optimizer-in-backward",
                "use --num-microbatches 1");
  if (job.optimizer_in_backward && (job.framework != Framework::fsdp || job.pp > 1))
    return fail("updates in the backward pass are hooks of PyTorch's own loop", "--optimizer-in-backward",
                "use --framework fsdp, --pp 1");
  if (job.optimizer_in_backward && job.offload != Offload::none)
    return fail("an optimizer on the host steps after the backward pass", "--optimizer-in-backward",
                "or --offload none");
  if (job.paged() && (job.framework == Framework::megatron || job.offload != Offload::none))
    return fail("paged moments are bitsandbytes' own way to the host, of PyTorch's optimizers", "--optimizer",
                "use --framework fsdp, ddp or deepspeed, --offload none");
  if ((job.framework == Framework::deepspeed || job.framework == Framework::megatron) && job.master_weights == false)
    return fail("DeepSpeed and Megatron-LM keep fp32 weights with every optimizer", "--master-weights",
                "use --framework fsdp or ddp");
  if (job.offload_activations && (job.framework == Framework::megatron || job.pp > 1))
    return fail("activations are offloaded by PyTorch's hooks", "--offload-activations",
                "use --framework fsdp, ddp or deepspeed, --pp 1");
  if (job.offload_activations && job.platform.pcie_gb_per_s <= 0)
    return fail("the speed of the link to the host is not known for " + job.platform.name, "--offload-activations");
  if (!job.fp32_loss && (job.framework == Framework::megatron || job.framework == Framework::ddp))
    return fail("Megatron-LM and autocast take the loss in fp32", "--fp32-loss", "use --framework deepspeed or fsdp");
  if (job.lora_embeddings && job.method != Method::lora && job.method != Method::qlora)
    return fail("there are no adapters beside which embedding and head could learn", "--lora-embeddings",
                "add --method lora");
  if (job.method == Method::qlora && job.quantize == Quantize::none)
    return fail("QLoRA is LoRA over quantised weights", "--quantize", "use nf4, gptq or int8");
  if (job.method != Method::full && !job.finetune)
    return fail(fmt::format("{} is a method of fine-tuning", name_of(job.method)), "--method", "estimate finetune");
  if (job.schedule == ScheduleKind::zero_bubble && job.method != Method::full)
    return fail("zero-bubble schedules need gradients of all weights", "--schedule");
  if ((job.precision == Precision::fp8 || job.precision == Precision::fp8_block) && job.platform.gpu.fp8_tflops <= 0)
    return fail(fmt::format("{} has no fp8", job.platform.gpu.name), "--precision", "use bf16 or fp16");
  if (job.precision == Precision::nvfp4 && !has_fp4(architecture_of(job.platform.gpu)))
    return fail(fmt::format("{} has no fp4", job.platform.gpu.name), "--precision", "use bf16 or fp8");
  if (job.precision == Precision::bf16 && job.platform.gpu.bf16_tflops <= 0 && !is_emulated(job))
    return fail(fmt::format("{} has no bf16", job.platform.gpu.name), "--precision", "use fp16");
  const std::int64_t joined = job.platform.nvlink_gb_per_s > 0
                                  ? std::max(job.platform.nvlink_domain, job.platform.gpus_per_node)
                                  : job.platform.gpus_per_node;
  if (job.world() > joined && job.platform.nic_gb_per_s <= 0 && architecture_of(job.platform.gpu) == Architecture::cpu)
    return fail(
        fmt::format("{} ranks are asked for, the facts of {} are of {}", job.world(), job.platform.name, joined),
        "--gpus",
        job.world() > kMostRanksMeasured
            ? ""
            : fmt::format("measure so many together: orrery bench ops --ranks {} --platform-file FILE.toml",
                          job.world()));
  if (job.world() > joined && job.platform.nic_gb_per_s <= 0)
    return fail(fmt::format("{} GPUs need {} servers, and the network of {} is not known", job.world(),
                            (job.world() + joined - 1) / joined, job.platform.name),
                "--gpus", "state nic_gb_per_s in a platform file");
  return {};
}

}  // namespace orrery
