#include "estimate/job_memory.h"

#include <algorithm>

namespace orrery {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kContextGiB = 0.5;        // CUDA context and kernels of the libraries (costs/memory.cc)
constexpr double kCommunicatorGiB = 0.25;  // NCCL's buffers
constexpr double kCublasGiB = 32.0 / 1024;
// A process on a CPU beyond what it has before there is a model: kernels made at run time, threads, what the allocator
// keeps. The interpreter and PyTorch's libraries (0.2 to 0.6 GiB, as they were built) are not in it.
constexpr double kCpuProcessGiB = 0.15;
constexpr double kChunks = 8;  // of a chunked loss (torchtune's CEWithChunkedOutputLoss)
// DeepSpeed's stage3_max_live_parameters and sub_group_size: how many gathered weights stay, how many are updated at a
// time.
constexpr double kLiveParameters = 1e9, kSubGroup = 1e9;
constexpr double kDeepSpeedBucket = 500e6;

bool on_cpu(const EstimateJob& job) { return architecture_of(job.platform.gpu) == Architecture::cpu; }
double context_gib(const EstimateJob& job) { return on_cpu(job) ? kCpuProcessGiB : kContextGiB; }

bool eager(const EstimateJob& job) { return job.framework != Framework::megatron; }

// As costs/memory.h states a job.
MemoryJob memory_job(const EstimateJob& job) {
  const ModelFacts& m = job.model;
  MemoryJob q;
  Dims& d = q.dims;
  d.seq = static_cast<double>(job.positions()) / static_cast<double>(job.cp);
  d.mbs = static_cast<double>(job.micro_batch_size);
  d.hidden = static_cast<double>(m.hidden);
  const bool experts = m.experts > 0;
  d.ffn = static_cast<double>(experts ? m.expert_ffn * m.experts_per_token + m.shared_ffn : m.ffn);
  d.heads = static_cast<double>(m.heads);
  d.kv_heads = static_cast<double>(m.kv_heads);
  d.head_dim = static_cast<double>(m.head_dim + (m.kv_lora_rank > 0 ? m.rope_head_dim : 0));
  d.vocab = static_cast<double>(m.vocab);
  d.tp = static_cast<double>(job.tp);
  d.dp = static_cast<double>(job.replicas());
  d.sequence_parallel = job.sequence_parallel;
  q.layers = static_cast<double>(m.layers);
  q.pp = static_cast<double>(job.pp);
  q.chunks = static_cast<double>(job.chunks);
  q.micro_batches = static_cast<double>(job.num_microbatches);
  q.zero_bubble = job.schedule == ScheduleKind::zero_bubble;
  q.gated_mlp = m.gated_mlp;
  q.biases = !m.rms_norm;
  q.tied_embedding = m.tied_embeddings;
  q.flash_attention = job.attention == AttentionKind::flash;
  q.dropout = job.dropout;
  q.recompute = job.recompute;
  q.activation_bytes = bytes_of_activations(job);
  return q;
}

// What autograd keeps of one layer of an eager model, with or without the core of the attention, bytes: RMSNorm in fp32
// keeps its input and the normalised rows as fp32 and both as two bytes; attention its input, q, k, v and output; the
// MLP both halves, the gate's output and their product. Compiled, norms keep their input alone and the product is
// computed again.
double eager_layer(const EstimateJob& job, bool core = true) {
  const MemoryJob q = memory_job(job);
  const Dims& d = q.dims;
  const double e = q.activation_bytes, tokens = d.seq * d.mbs, t = d.tp;
  const double norms = job.compile ? 2 * 2 * e : 2 * (2 * 4 + 2 * e);
  const double attn = d.heads * d.head_dim, kv = (d.kv_heads > 0 ? d.kv_heads : d.heads) * d.head_dim;
  const double mlp = (job.model.gated_mlp ? (job.compile ? 3 : 4) : 2) * e * d.ffn;
  // Adapters read the input of their layer, which is kept anyway; dropped out it is another tensor and its mask.
  const bool lora = job.method == Method::lora || job.method == Method::qlora;
  const double inputs = (job.model.gated_mlp ? 4 : 3) * d.hidden + d.ffn;
  const double adapters = lora && job.lora_dropout ? (e + 1) * inputs : 0;
  double bytes =
      tokens * (norms * d.hidden / (job.sequence_parallel ? t : 1) + (e * (2 * attn + 2 * kv) + mlp + adapters) / t);
  if (core && job.attention == AttentionKind::unfused)  // scores, softmax in fp32, its cast
    bytes += (2 * e + 4) * d.heads * d.seq * tokens / t;
  return bytes;
}
// Bytes of one logit that are there at once. Eager: forward the logits, their shifted copy, the fp32 copy and its
// log-softmax; backward the log-softmax and the gradients of the loss and of the logits, all in fp32 (in two bytes
// without it, and the gradient of the shifted copy). Compiled: the logits as fp32, their gradient as fp32 and as two
// bytes. In chunks: the logits in two bytes, which their gradients replace one chunk after the other (uncompiled the
// log-softmax in fp32, too), and of one chunk the fp32 copy and both gradients.
double logit_bytes(const EstimateJob& job) {
  const double e = bytes_of_activations(job);
  if (job.chunked_loss) return e + (job.compile ? 0 : 4) + (8 + e) / kChunks;
  if (job.compile) return 8 + e;
  return job.fp32_loss ? 2 * e + 8 : 4 * e;
}
double eager_logits(const EstimateJob& job) {
  const MemoryJob q = memory_job(job);
  return logit_bytes(job) * q.dims.seq * q.dims.mbs * q.dims.vocab / q.dims.tp;
}
// What PyTorch's allocator keeps beside: blocks of two-byte logits cannot be joined into those of fp32 ones, so that
// the backward pass reserves one more of these (the allocator splits segments, it never joins them).
double stranded_logits(const EstimateJob& job) {
  if (job.compile || job.chunked_loss || !job.fp32_loss) return 0;
  const MemoryJob q = memory_job(job);
  return 4 * q.dims.seq * q.dims.mbs * q.dims.vocab / q.dims.tp;
}

// Bytes of one weight that learns: as it is computed with and kept, of its gradient, of the optimizer.
struct Learning {
  double weight, gradient, optimizer;
};
Learning learning_of(const EstimateJob& job) {
  const double e = bytes_of_activations(job);
  const bool master = master_weights(job);
  // FSDP's shard and DDP's weights are fp32 themselves; the others keep a copy.
  const bool own = master && (job.framework == Framework::fsdp || job.framework == Framework::ddp);
  Learning l;
  l.weight = own ? 4 : e;
  l.gradient = job.framework == Framework::deepspeed ? e : own || job.framework == Framework::megatron ? 4 : e;
  l.optimizer = moment_bytes(job) + (master && !own ? 4 : 0);
  return l;
}

// What an update needs beside the state. DeepSpeed 1 and 2: the gradients of the shard as one flat tensor and as fp32
// (stage_1_and_2.py, step); 3: fp32 gradients of a sub-group. PyTorch's eager AdamW works on all tensors at once
// ("foreach") and makes the root of the second moments for all of them.
double step_bytes(const EstimateJob& job, double mine) {
  if (job.framework == Framework::deepspeed && job.offload == Offload::none) {
    if (job.zero == 3) return 4 * std::min(kSubGroup, mine);
    return job.zero > 0 ? (4 + bytes_of_activations(job)) * mine : 0;
  }
  const bool foreach_loop = (job.framework == Framework::fsdp && !job.compile) || job.framework == Framework::ddp;
  if (foreach_loop && job.optimizer == Optimizer::adamw && !job.optimizer_in_backward && job.offload == Offload::none)
    return (master_weights(job) ? 4 : bytes_of_activations(job)) * mine;
  return 0;
}

// Weights gathered for the passes, and gradients before they are reduced, as the backward pass begins and ends. FSDP:
// the head, two layers; DeepSpeed: up to stage3_max_live_parameters, and the head, which is larger than what is left.
struct Gathered {
  double begin = 0, end = 0;
};
Gathered gathered_bytes(const EstimateJob& job, const StageWork& stage) {
  if (job.zero != 3 || (job.shards() < 2 && job.offload != Offload::all)) return {};
  const Weights table = embedding_weights(job), head = head_weights(job);
  const Weights layer = layer_weights(job, job.model.layers - 1);
  const double gradient = learning_of(job).gradient, e = bytes_of_activations(job);
  const double reduced = gradient * std::max(head.learn, layer.learn), last = gradient * (table.learn + layer.learn);
  if (job.framework == Framework::deepspeed) {
    const double live = e * std::min(kLiveParameters, stage.weights.all);
    return {live + e * head.all + reduced, live + last};
  }
  const double layers = 2 * weight_bytes(job) * layer.all;
  return {layers + e * head.all + reduced, layers + last};
}

struct Moment {  // of a step: what is there, bytes
  double gradients = 0, activations = 0, workspace = 0;
  double sum() const { return gradients + activations + workspace; }
};

// DeepSpeed's buckets of gradients: one is filled while one is reduced, both whole whatever learns.
double deepspeed_buckets(const EstimateJob& job) {
  if (job.framework != Framework::deepspeed || job.zero == 0 || job.zero == 3) return 0;
  return 2 * bytes_of_activations(job) * (job.bucket > 0 ? static_cast<double>(job.bucket) : kDeepSpeedBucket);
}
// AutoGPTQ's weights, widened, which the backward pass of a layer still needs.
double widened_bytes(const EstimateJob& job, const StageWork& stage) {
  if (job.quantize != Quantize::gptq) return 0;
  const Weights layer = layer_weights(job, job.model.layers - 1);
  const double layers = job.recompute == Recompute::full ? 1 : stage.layers;
  return bytes_of_activations(job) * (layer.all - layer.learn) * layers;
}

struct StageMemory {
  MemoryParts parts;
  double stranded = 0;   // bytes: reserved, and of no use
  double allocated = 0;  // GiB
  double paged = 0;      // bytes of the optimizer in unified memory
  double updating = 0;   // GiB of all else while weights are updated
  double host = 0;       // bytes in the host's memory
};

StageMemory of_stage(const EstimateJob& job, const StageWork& stage, std::int64_t s) {
  const Weights& w = stage.weights;
  const double shards = static_cast<double>(job.shards()),
               expert_shards = job.zero_group > 0 ? 1 : std::max<double>(1, static_cast<double>(job.expert_replicas()));
  const auto shared = [&](double all, double experts, bool divided) {
    return divided ? (all - experts) / shards + experts / expert_shards : all;
  };
  const Learning each = learning_of(job);
  const double e = bytes_of_activations(job);
  const Weights embedding = embedding_weights(job), head = head_weights(job);
  // PEFT's copies of embedding and head have the model's precision, not that of its adapters.
  double narrow = 0;
  if (job.lora_embeddings && job.framework == Framework::ddp)
    narrow = (s == 0 ? embedding.learn : 0) + (s + 1 == job.pp ? head.learn : 0);
  StageMemory out;
  MemoryParts& m = out.parts;
  // Weights: what learns, what is frozen and quantised, what is frozen and is not.
  const auto sharded = [&](double n) { return job.zero == 3 ? n / shards : n; };
  double weights = each.weight * shared(w.learn, w.learn_experts, job.zero == 3);
  const double frozen = std::max(0.0, w.all - w.learn);
  if (job.quantize == Quantize::none) {
    weights += e * shared(frozen, w.experts - w.learn_experts, job.zero == 3);
  } else {
    const double wide =  // never quantised
        (s == 0 ? embedding.all - embedding.learn : 0) + (s + 1 == job.pp ? head.all - head.learn : 0);
    weights += sharded(weight_bytes(job) * (frozen - wide) + e * wide);
  }
  if (job.offload == Offload::all) weights = 0;
  weights -= (each.weight - e) * narrow;
  m.weights = weights / kGiB;

  const double mine = shared(w.learn, w.learn_experts, job.zero >= 1);
  double gradients = each.gradient * shared(w.learn, w.learn_experts, job.zero >= 2);
  if (job.offload != Offload::none && job.zero >= 2) gradients = 0;
  gradients -= (each.gradient - e) * narrow;
  const double largest = std::max({embedding.learn, head.learn, layer_weights(job, job.model.layers - 1).all / 4});
  if (job.optimizer_in_backward) gradients = std::min(gradients, each.gradient * std::min(w.learn, largest));
  const bool on_gpu = job.offload == Offload::none && !job.paged();
  m.optimizer = on_gpu ? (each.optimizer * mine - (each.optimizer - 2 * e) * narrow) / kGiB : 0;

  // Three moments: the backward pass begins, ends, the update. PyTorch's gradients come with the backward pass where
  // nothing is added up over micro-batches; Megatron-LM's buffer is always there.
  Moment begin, end, step;
  const MemoryJob q = memory_job(job);
  const Gathered gathered = gathered_bytes(job, stage);
  const double buckets = deepspeed_buckets(job) + widened_bytes(job, stage), passes = gathered.begin + buckets;
  if (eager(job)) {
    const double layer = eager_layer(job);
    const double held = micro_batches_held(q, s) * stage.layers,
                 kept = job.offload_activations ? 0 : kept_of_layer(job);
    double recomputed = job.recompute == Recompute::full ? layer : 0;
    if (job.recompute == Recompute::selective) recomputed = layer - eager_layer(job, false);
    if (job.offload_activations) recomputed = layer + kept_of_layer(job);  // one is used, one on its way
    const double logits = s + 1 == job.pp ? eager_logits(job) : 0;
    if (s + 1 == job.pp && !on_cpu(job)) out.stranded = stranded_logits(job);
    begin.gradients = job.num_microbatches > 1 ? gradients : 0;
    // The logits are gone when the first layer is computed again.
    begin.activations = held * kept + (logits > recomputed ? logits - recomputed : 0);
    begin.workspace = recomputed + passes;
    end.gradients = step.gradients = gradients;
    end.workspace = layer + gathered.end + buckets;
    step.workspace = step_bytes(job, mine) - (narrow > 0 ? (4 - e) * narrow : 0);
  } else {
    const MemoryParts megatron = memory_of_stage(q, s);
    begin.gradients = gradients;
    begin.activations = megatron.activations * kGiB;
    begin.workspace = (megatron.workspace - kContextGiB - kCublasGiB) * kGiB + passes;
    begin.workspace -= kGiB * kCommunicatorGiB * ((q.dims.tp > 1) + (q.dims.dp > 1) + (q.pp > 1));
  }
  const Moment* most = &begin;
  for (const Moment* at : {&end, &step})
    if (at->sum() > most->sum()) most = at;
  if (most != &begin) out.stranded = std::max(0.0, out.stranded - (most->sum() - begin.sum()));
  const int communicators = on_cpu(job) ? 0 : (job.tp > 1) + (job.replicas() > 1) + (job.pp > 1) + (job.ep > 1);
  const double fixed = context_gib(job) + (on_cpu(job) ? 0 : kCublasGiB) + kCommunicatorGiB * communicators;
  m.gradients = most->gradients / kGiB;
  m.activations = most->activations / kGiB;
  m.workspace = (most->workspace + out.stranded) / kGiB + fixed;
  m.total = m.weights + m.gradients + m.optimizer + m.activations + m.workspace;
  out.allocated = m.total - out.stranded / kGiB - context_gib(job) - kCommunicatorGiB * communicators;
  // ZeRO-Offload (Ren et al. 2021, section 3): gradients and the optimizer's state; with the weights, those as well.
  if (job.offload != Offload::none) out.host += (each.gradient + each.optimizer) * mine;
  if (job.offload == Offload::all) out.host += e * shared(w.all, w.experts, true);
  if (job.offload_activations) out.host += micro_batches_held(q, s) * stage.layers * kept_of_layer(job);
  out.paged = job.paged() ? each.optimizer * mine : 0;
  const Moment& update = job.optimizer_in_backward ? end : step;
  out.updating = m.total - (most->sum() - update.sum()) / kGiB;
  return out;
}

}  // namespace

double kept_of_layer(const EstimateJob& job) {
  if (job.recompute != Recompute::full) return eager_layer(job, job.recompute == Recompute::none);
  const MemoryJob q = memory_job(job);
  return q.activation_bytes * q.dims.seq * q.dims.mbs * q.dims.hidden / (job.sequence_parallel ? q.dims.tp : 1);
}

JobMemory memory_of(const EstimateJob& job, const std::vector<StageWork>& stages) {
  JobMemory memory;
  const double n = static_cast<double>(stages.size()), capacity = job.platform.gpu.memory_gib * kGiB;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const StageMemory stage = of_stage(job, stages[s], static_cast<std::int64_t>(s));
    const MemoryParts& m = stage.parts;
    if (m.total > memory.most.total) memory.most = m, memory.allocated = stage.allocated;
    const double out =
        stage.updating * kGiB + stage.paged > capacity ? stage.paged : m.total * kGiB + stage.paged - capacity;
    memory.host = std::max(memory.host,
                           stage.host / kGiB * static_cast<double>(std::min(job.platform.gpus_per_node, job.world())));
    memory.paged_out = std::max(memory.paged_out, std::clamp(out, 0.0, stage.paged));
    memory.mean.weights += m.weights / n;
    memory.mean.gradients += m.gradients / n;
    memory.mean.optimizer += m.optimizer / n;
    memory.mean.activations += m.activations / n;
    memory.mean.workspace += m.workspace / n;
    memory.mean.total += m.total / n;
  }
  return memory;
}

bool fits(const EstimateJob& job, const JobMemory& memory) {
  const double gpu = job.platform.gpu.memory_gib, host = job.platform.host.memory_gib;
  return (gpu <= 0 || memory.most.total <= gpu) && (host <= 0 || memory.host <= host);
}

std::string what_would_fit(const EstimateJob& job, const MemoryParts& m) {
  std::string s;
  const auto offer = [&](const std::string& what) { s += (s.empty() ? "" : ", ") + what; };
  const double state = m.weights + m.gradients + m.optimizer;
  if (m.activations + m.workspace > state) {
    if (job.recompute != Recompute::full) offer("--recompute full");
    if (job.attention == AttentionKind::unfused) offer("--attention flash");
    if (job.micro_batch_size > 1) offer("--micro-batch-size max");
    if (job.tp > 1 && !job.sequence_parallel) offer("--sequence-parallel on");
  }
  if (job.replicas() > 1 && job.zero < 3 && job.pp == 1) offer("--zero 3");
  if (job.replicas() > 1 && job.zero == 0 && job.pp > 1) offer("--zero 1");
  if (job.finetune && job.method == Method::full) offer("--method lora");
  if (job.method == Method::lora) offer("--method qlora");
  if (job.offload == Offload::none && m.optimizer > 0.2 * m.total) offer("--offload optimizer");
  if (job.finetune && m.optimizer > 0.2 * m.total && eager(job)) offer("--optimizer adamw8bit");
  if (job.tp < job.platform.gpus_per_node) offer("a larger --tp");
  if (job.pp < job.model.layers) offer("a larger --pp");
  return s;
}

}  // namespace orrery
