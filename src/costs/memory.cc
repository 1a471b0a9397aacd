#include "costs/memory.h"

#include <algorithm>

namespace orrery {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

// Assumed, for want of a model: what nvidia-smi shows of a process that has only started CUDA and loaded PyTorch's
// kernels is 0.4 to 0.6 GiB on A100 and H100.
constexpr double kContextGiB = 0.5;
// Assumed: NCCL's buffers of one communicator. Each channel has 4 MiB (NCCL_BUFFSIZE) a connection and less for its
// other protocols; some 24 channels of two connections.
constexpr double kCommunicatorGiB = 0.25;
// PyTorch's default CUBLAS_WORKSPACE_CONFIG: 32 MiB on Hopper, 8 MiB before it.
constexpr double kCublasGiB = 32.0 / 1024;

// The job with what was left open filled in.
struct Shape {
  double h, ffn, heads, attn, kv_width, vocab;
  double t, tokens, seq, mbs;
  double outside;  // ranks that share activations outside of the tensor-parallel regions

  explicit Shape(const MemoryJob& job) {
    const Dims& d = job.dims;
    h = d.hidden;
    ffn = d.ffn > 0 ? d.ffn : 4 * d.hidden;
    heads = d.heads;
    const double head_dim = d.head_dim > 0 ? d.head_dim : d.heads > 0 ? d.hidden / d.heads : 0;
    attn = heads * head_dim;
    kv_width = (d.kv_heads > 0 ? d.kv_heads : d.heads) * head_dim;
    vocab = d.vocab;
    t = std::max(1.0, d.tp);
    // A rank has at least one head of keys and values: with fewer heads than ranks they are copied.
    if (d.kv_heads > 0 && d.kv_heads < t) kv_width = t * head_dim;
    seq = d.seq;
    mbs = d.mbs;
    tokens = d.seq * d.mbs;
    outside = d.sequence_parallel ? t : 1;
  }
};

double layers_of_stage(const MemoryJob& job) { return job.layers / std::max(1.0, job.pp); }
bool is_first(std::int64_t stage) { return stage == 0; }
bool is_last(const MemoryJob& job, std::int64_t stage) { return static_cast<double>(stage) >= job.pp - 1; }

// Of one layer, on one of t ranks. Biases of outputs and norms are on all ranks.
double layer_parameters(const MemoryJob& job, const Shape& s, double t) {
  const double up = (job.gated_mlp ? 2 : 1) * s.ffn;
  const double matrices = s.h * (s.attn + 2 * s.kv_width) + s.attn * s.h + s.h * up + s.ffn * s.h;
  const double split_biases = job.biases ? s.attn + 2 * s.kv_width + up : 0;
  const double whole = job.biases ? 2 * s.h + 4 * s.h : 2 * s.h;
  return (matrices + split_biases) / t + whole;
}
double norm_parameters(const MemoryJob& job, const Shape& s) { return job.biases ? 2 * s.h : s.h; }

// Bytes that one layer keeps of one micro-batch, on one GPU.
struct LayerBytes {
  double all = 0;          // nothing recomputed
  double core = 0;         // of these, the core of the attention: all that selective recomputation drops
  double input = 0;        // all that full recomputation keeps
  double weight_pass = 0;  // what the gradients of the weights need: inputs and output gradients of linear layers
};
LayerBytes layer_activations(const MemoryJob& job, const Shape& s) {
  const double bytes = job.activation_bytes, mask = job.dropout ? 1 : 0;
  const double row = s.tokens * s.h;  // elements of a hidden state
  LayerBytes r;
  r.input = bytes * row / s.outside;
  // Inputs of both norms, of the QKV and of the first linear layer; two masks of a byte.
  const double outside = (4 * bytes + 2 * mask) * row / s.outside;
  // Q, K, V and the input of the projection; the inputs of the activation function and of the second linear layer.
  const double projections = bytes * s.tokens * (2 * s.attn + 2 * s.kv_width);
  const double mlp = bytes * s.tokens * s.ffn * (job.gated_mlp ? 3 : 2);
  // Softmax; with dropout also its mask and its output. Flash attention keeps one fp32 number a query instead.
  const double squares = s.heads * s.seq * s.tokens;
  r.core = (job.flash_attention ? 4 * s.heads * s.tokens
            : job.dropout       ? (2 * bytes + 1) * squares
                                : bytes * squares) /
           s.t;
  r.all = outside + (projections + mlp) / s.t + r.core;
  const double up = (job.gated_mlp ? 2 : 1) * s.ffn;
  r.weight_pass = bytes * (2 * row / s.outside + s.tokens * (s.attn + s.ffn) / s.t) +               // inputs
                  bytes * (2 * row / s.outside + s.tokens * (s.attn + 2 * s.kv_width + up) / s.t);  // gradients
  return r;
}

double kept(const LayerBytes& l, Recompute r) {
  switch (r) {
    case Recompute::none:
      return l.all;
    case Recompute::selective:
      return l.all - l.core;
    case Recompute::full:
      return l.input;
  }
  return l.all;
}

}  // namespace

std::string_view name_of(Recompute r) {
  return r == Recompute::full ? "full" : r == Recompute::selective ? "selective" : "none";
}

double parameters(const MemoryJob& job) {
  MemoryJob whole = job;
  whole.dims.tp = whole.pp = 1;
  return parameters(whole, 0);
}

double parameters(const MemoryJob& job, std::int64_t stage) {
  const Shape s(job);
  const double embedding = s.vocab * s.h / s.t;
  double n = layers_of_stage(job) * layer_parameters(job, s, s.t);
  if (is_first(stage)) n += embedding + job.positions * s.h;
  if (is_last(job, stage)) {
    n += norm_parameters(job, s);
    if (!(job.tied_embedding && is_first(stage))) n += embedding;
  }
  return n;
}

double micro_batches_held(const MemoryJob& job, std::int64_t stage) {
  const double p = job.pp, m = job.micro_batches, v = job.chunks, left = std::max(1.0, p - static_cast<double>(stage));
  if (v <= 1) return std::min(m, left);
  // The warm-up of interleaved 1F1B and one more, in chunks (the paper's 1 + (p - 1) / (p v) on the first stage); with
  // as many micro-batches as stages Megatron-LM runs all forwards first.
  const double warm_up = (left - 1) * 2 + (v - 1) * p;
  return m <= p ? m : std::min(m * v, warm_up + 1) / v;
}

MemoryParts memory_of_stage(const MemoryJob& job, std::int64_t stage) {
  const Shape s(job);
  const double n = parameters(job, stage), layers = layers_of_stage(job), bytes = job.activation_bytes;
  const LayerBytes layer = layer_activations(job, s);
  const double held = micro_batches_held(job, stage), row = s.tokens * s.h / s.outside;

  MemoryParts m;
  m.weights = n * job.weight_bytes / kGiB;
  m.gradients = n * job.gradient_bytes / kGiB;
  m.optimizer = n * job.optimizer_bytes / (job.distributed_optimizer ? std::max(1.0, job.dims.dp) : 1) / kGiB;

  double activations = held * layers * kept(layer, job.recompute);
  if (job.zero_bubble) {  // up to `stage` weight passes are put off (whatif/schedule.cc)
    const double put_off = std::min(static_cast<double>(stage), std::max(0.0, job.micro_batches - held));
    activations += put_off * layers * layer.weight_pass;
  }
  if (is_first(stage) && job.dropout) activations += held * row;                           // mask of the embedding's
  if (is_last(job, stage)) activations += 2 * bytes * row + 4 * s.tokens * s.vocab / s.t;  // norm, head, fp32 logits
  m.activations = activations / kGiB;

  // Never at once: the layer that is computed again, and the logits before they are cast to fp32.
  const double recomputed = layer.all - kept(layer, job.recompute);
  const double logits = is_last(job, stage) ? bytes * s.tokens * s.vocab / s.t : 0;
  const int communicators = (s.t > 1) + (job.dims.dp > 1) + (job.pp > 1);
  m.workspace = std::max(recomputed, logits) / kGiB + kContextGiB + kCublasGiB + kCommunicatorGiB * communicators;
  m.total = m.weights + m.gradients + m.optimizer + m.activations + m.workspace;
  return m;
}

MemoryParts memory_of_job(const MemoryJob& job) {
  MemoryParts most;
  for (std::int64_t stage = 0; static_cast<double>(stage) < std::max(1.0, job.pp); ++stage) {
    const MemoryParts m = memory_of_stage(job, stage);
    if (m.total > most.total) most = m;
  }
  return most;
}

}  // namespace orrery
