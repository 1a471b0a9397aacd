#include "serving/memory.h"

#include <algorithm>

namespace orrery {
namespace {

constexpr double kGib = 1 << 30;
double d(std::int64_t x) { return static_cast<double>(x); }

// Of a GPU of a stage.
double stage_weights(const ServeJob& job, std::int64_t stage) {
  const ModelFacts& m = job.model;
  const double tp = d(job.tp), element = std::max(2.0, bytes_of(job.precision));
  double bytes = 0;
  const std::int64_t end = m.layers * (stage + 1) / job.pp;
  for (std::int64_t layer = m.layers * stage / job.pp; layer < end; ++layer) {
    // Replicas that share the experts hold a part each.
    const double sharing = has_experts(m, layer) && job.ep > job.tp ? d(job.ep) : tp;
    bytes += weight_bytes(job) * (attention_parameters(m) / tp + mlp_parameters(m, layer) / sharing) +
             element * norm_parameters(m);
  }
  const double table = element * d(m.vocab) * d(m.hidden) / tp;
  const bool first = stage == 0, last = stage + 1 == job.pp;
  if (first) bytes += table;
  if (last && !(m.tied_embeddings && first)) bytes += table;
  if (first && m.learned_positions) bytes += element * d(m.max_context) * d(m.hidden);
  return bytes;
}

// The most that a step holds: logits of all sequences in two and in four bytes, twice more while they are sampled; or a
// layer's widest tensors.
double step_bytes(const ServeJob& job) {
  const ModelFacts& m = job.model;
  const double tokens = std::min(d(job.engine.max_batched_tokens), 65'536.0), tp = d(job.tp), element = 2;
  const double logits = (element + 3 * 4) * std::min(d(job.engine.max_num_seqs), tokens) * d(m.vocab);
  const double width = m.experts > 0 ? d(m.experts_per_token) * (3 * d(m.expert_ffn) / tp + d(m.hidden))
                                     : (m.gated_mlp ? 3 : 2) * d(m.ffn) / tp;
  return std::max(logits, element * tokens * (width + 4 * d(m.hidden)));
}

}  // namespace

ServeMemory memory_of(const ServeJob& job) {
  ServeMemory out;
  double weights = 0;
  for (std::int64_t stage = 0; stage < job.pp; ++stage) weights = std::max(weights, stage_weights(job, stage));
  weights *= 1 + (job.draft_tokens > 0 ? job.draft_share : 0);
  out.weights = weights / kGib;
  out.activations = step_bytes(job) / kGib;
  out.reserved = job.engine.reserved_gib;
  out.capacity = job.platform.gpu.memory_gib;
  const double usable = out.capacity * job.engine.gpu_memory_utilization;
  const double left = std::max(0.0, usable - out.weights - out.activations - out.reserved);
  // Of a token on one GPU: its stage's layers, its share of the heads (latent caches are whole on each).
  const double most_layers = d((job.model.layers + job.pp - 1) / job.pp) / d(job.model.layers);
  const double share = job.model.kv_lora_rank > 0 ? 1 : 1 / d(job.tp);
  const double per_token = kv_bytes_per_token(job) * most_layers * share;
  const double per_block = per_token * d(job.engine.block_size);
  out.kv_blocks = job.kv_tokens > 0 ? (job.kv_tokens + job.engine.block_size - 1) / job.engine.block_size
                                    : static_cast<std::int64_t>(left * kGib / per_block);
  out.kv_cache = d(out.kv_blocks) * per_block / kGib;
  out.kv_too_large = job.kv_tokens > 0 && out.weights + out.kv_cache > out.capacity;
  out.fits = out.kv_blocks > 0;
  return out;
}

}  // namespace orrery
