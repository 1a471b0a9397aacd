#include "estimate/job_memory.h"

#include <algorithm>

namespace orrery {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kContextGiB = 0.5;        // CUDA context and kernels of the libraries (costs/memory.cc)
constexpr double kCommunicatorGiB = 0.25;  // NCCL's buffers
constexpr double kCublasGiB = 32.0 / 1024;
// bitsandbytes' nf4 with double quantisation: four bits, a byte a block of 64, its scales (Dettmers et al. 2023: 0.127
// bits a parameter). int8: a byte and a scale a row.
constexpr double kNf4Bytes = 0.516, kInt8Bytes = 1.0;

bool eager(const EstimateJob& job) { return job.framework != Framework::megatron; }

// As costs/memory.h states a job.
MemoryJob memory_job(const EstimateJob& job) {
  const ModelFacts& m = job.model;
  MemoryJob q;
  Dims& d = q.dims;
  d.seq = static_cast<double>(job.seq_length) / static_cast<double>(job.cp);
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

// What autograd keeps of one layer of an eager model, bytes: RMSNorm in fp32 keeps its input and the normalised rows as
// fp32 and both as two bytes; attention its input, q, k, v and output; the MLP both halves, the gate's output and their
// product. Compiled, norms keep their input alone and the product is computed again.
double eager_layer(const EstimateJob& job) {
  const MemoryJob q = memory_job(job);
  const Dims& d = q.dims;
  const double e = q.activation_bytes, tokens = d.seq * d.mbs, t = d.tp;
  const double norms = job.compile ? 2 * 2 * e : 2 * (2 * 4 + 2 * e);
  const double attn = d.heads * d.head_dim, kv = (d.kv_heads > 0 ? d.kv_heads : d.heads) * d.head_dim;
  const double mlp = (job.model.gated_mlp ? (job.compile ? 3 : 4) : 2) * e * d.ffn;
  const double adapters = job.method == Method::lora || job.method == Method::qlora ? 2 * e * (d.hidden + d.ffn) : 0;
  double bytes =
      tokens * (norms * d.hidden / (job.sequence_parallel ? t : 1) + (e * (2 * attn + 2 * kv) + mlp + adapters) / t);
  if (job.attention == AttentionKind::unfused)  // scores, softmax in fp32, its cast
    bytes += (2 * e + 4) * d.heads * d.seq * tokens / t;
  return bytes;
}
// Of the logits: themselves, the shifted copy, fp32, log-softmax; compiled: themselves and their gradient.
double eager_logits(const EstimateJob& job) {
  const MemoryJob q = memory_job(job);
  const double each = job.compile ? 2 * q.activation_bytes + 4 : 2 * q.activation_bytes + 8;
  return each * q.dims.seq * q.dims.mbs * q.dims.vocab / q.dims.tp;
}

MemoryParts of_stage(const EstimateJob& job, const StageWork& stage, std::int64_t s) {
  const Weights& w = stage.weights;
  const double shards = static_cast<double>(job.shards()),
               expert_shards = job.zero_group > 0 ? 1 : std::max<double>(1, static_cast<double>(job.expert_replicas()));
  const auto shared = [&](double all, double experts, bool divided) {
    return divided ? (all - experts) / shards + experts / expert_shards : all;
  };
  const bool frozen = job.method != Method::full;
  const double tables = embedding_weights(job).all + head_weights(job).all;
  MemoryParts m;
  // Weights that are computed with. Under FSDP the shard is fp32 where all of it learns: it is the master copy.
  const bool fsdp_master = job.framework == Framework::fsdp && !frozen;
  double each = bytes_of_activations(job);
  if (fsdp_master) each = 4;
  double weights = each * shared(w.all, w.experts, job.zero == 3);
  if (job.quantize != Quantize::none) {
    const double stored = job.quantize == Quantize::nf4 ? kNf4Bytes : kInt8Bytes;
    const double kept = std::min(w.all, (s == 0 || s + 1 == job.pp ? tables : 0) + w.learn);  // not quantised
    weights = (stored * (w.all - kept) + each * kept) / (job.zero == 3 ? shards : 1);
  }
  if (job.offload == Offload::all) weights = 0;
  m.weights = weights / kGiB;

  const double gradient = job.framework == Framework::deepspeed ? 2 : 4;
  m.gradients = gradient * shared(w.learn, w.learn_experts, job.zero >= 2) / kGiB;
  if (job.offload != Offload::none && job.zero >= 2) m.gradients = 0;
  const double state = fsdp_master ? 8 : 12;
  m.optimizer = job.offload == Offload::none ? state * shared(w.learn, w.learn_experts, job.zero >= 1) / kGiB : 0;

  const MemoryJob q = memory_job(job);
  double recomputed = 0;
  if (eager(job)) {
    const double layer = eager_layer(job), e = q.activation_bytes;
    const double input = e * q.dims.seq * q.dims.mbs * q.dims.hidden / (job.sequence_parallel ? q.dims.tp : 1);
    const double held = micro_batches_held(q, s);
    double kept = layer;
    if (job.recompute == Recompute::full) kept = input, recomputed = layer;
    double bytes = held * stage.layers * kept;
    const double logits = s + 1 == job.pp ? eager_logits(job) : 0;
    // The logits are gone when the first layer is computed again.
    bytes += logits > recomputed ? logits - recomputed : 0;
    m.activations = bytes / kGiB;
  } else {
    const MemoryParts megatron = memory_of_stage(q, s);
    m.activations = megatron.activations;
    recomputed = (megatron.workspace - kContextGiB - kCublasGiB) * kGiB;
    recomputed -= kGiB * kCommunicatorGiB * ((q.dims.tp > 1) + (q.dims.dp > 1) + (q.pp > 1));
  }
  double workspace = recomputed;
  if (job.zero == 3) {  // two layers' weights gathered, one layer's gradients before they are reduced
    double largest = 0;
    for (const Chunk& c : stage.chunks)
      for (const Bundle& b : c.bundles) largest = std::max(largest, b.weights.all);
    workspace += largest * (2 * bytes_of_activations(job) + gradient);
  }
  if (job.framework == Framework::deepspeed && job.zero > 0 && job.zero < 3 && !frozen)
    workspace += 2 * 2 * std::min(500e6, w.learn);  // buckets: one is filled, one is reduced
  const int communicators = (job.tp > 1) + (job.replicas() > 1) + (job.pp > 1) + (job.ep > 1);
  m.workspace = workspace / kGiB + kContextGiB + kCublasGiB + kCommunicatorGiB * communicators;
  m.total = m.weights + m.gradients + m.optimizer + m.activations + m.workspace;
  return m;
}

}  // namespace

JobMemory memory_of(const EstimateJob& job, const std::vector<StageWork>& stages) {
  JobMemory memory;
  const double n = static_cast<double>(stages.size());
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const MemoryParts m = of_stage(job, stages[s], static_cast<std::int64_t>(s));
    if (m.total > memory.most.total) memory.most = m;
    memory.mean.weights += m.weights / n;
    memory.mean.gradients += m.gradients / n;
    memory.mean.optimizer += m.optimizer / n;
    memory.mean.activations += m.activations / n;
    memory.mean.workspace += m.workspace / n;
    memory.mean.total += m.total / n;
  }
  return memory;
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
  if (job.tp < job.platform.gpus_per_node) offer("a larger --tp");
  if (job.pp < job.model.layers) offer("a larger --pp");
  return s;
}

}  // namespace orrery
