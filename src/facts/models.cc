#include "facts/models.h"

namespace orrery {
namespace {

double d(std::int64_t x) { return static_cast<double>(x); }

// A linear layer of the decoder, with its bias.
double linear(double in, double out, bool bias) { return in * out + (bias ? out : 0); }

// DeepSeek-V2 (arXiv 2405.04434), section 2.1: low-rank queries, keys and values, a part of the keys shared by all
// heads for the positions; norms of the two compressed vectors.
double latent_attention(const ModelFacts& m) {
  const double hidden = d(m.hidden), heads = d(m.heads), head = d(m.head_dim), rope = d(m.rope_head_dim);
  const double q_lora = d(m.q_lora_rank), kv_lora = d(m.kv_lora_rank), value = d(m.value_head_dim);
  const double queries =
      m.q_lora_rank > 0 ? hidden * q_lora + q_lora + q_lora * heads * (head + rope) : hidden * heads * (head + rope);
  return queries + hidden * (kv_lora + rope) + kv_lora + kv_lora * heads * (head + value) + heads * value * hidden;
}

double mlp(const ModelFacts& m, std::int64_t ffn) {
  return linear(d(m.hidden), d(ffn), m.linear_bias) * (m.gated_mlp ? 2 : 1) +
         linear(d(ffn), d(m.hidden), m.linear_bias);
}

double norm(const ModelFacts& m) { return d(m.hidden) * (m.rms_norm ? 1 : 2); }

double mlp_with(const ModelFacts& m, std::int64_t layer, std::int64_t experts) {
  if (!has_experts(m, layer)) return mlp(m, m.ffn);
  const double shared = m.shared_ffn > 0 ? mlp(m, m.shared_ffn) : 0;
  return d(experts) * mlp(m, m.expert_ffn) + shared + linear(d(m.hidden), d(m.experts), m.linear_bias);
}

double outside_layers(const ModelFacts& m) {
  const double embedding = d(m.vocab) * d(m.hidden);
  return embedding * (m.tied_embeddings ? 1 : 2) + (m.learned_positions ? d(m.max_context) * d(m.hidden) : 0) + norm(m);
}

double whole(const ModelFacts& m, std::int64_t experts) {
  double sum = outside_layers(m) + d(m.layers) * (attention_parameters(m) + norm_parameters(m));
  for (std::int64_t layer = 0; layer < m.layers; ++layer) sum += mlp_with(m, layer, experts);
  return sum;
}

}  // namespace

bool has_experts(const ModelFacts& m, std::int64_t layer) {
  return m.experts > 0 && layer >= m.dense_layers && (layer - m.dense_layers + 1) % m.expert_every == 0;
}

double attention_parameters(const ModelFacts& m) {
  if (m.kv_lora_rank > 0) return latent_attention(m);
  const double hidden = d(m.hidden), q = d(m.heads * m.head_dim), kv = d(m.kv_heads * m.head_dim);
  const bool bias = m.linear_bias || m.qkv_bias;
  return linear(hidden, q, bias) + 2 * linear(hidden, kv, bias) + linear(q, hidden, m.linear_bias) +
         (m.qk_norm ? 2 * d(m.head_dim) : 0);
}

double mlp_parameters(const ModelFacts& m, std::int64_t layer) { return mlp_with(m, layer, m.experts); }

double active_mlp_parameters(const ModelFacts& m, std::int64_t layer) {
  return mlp_with(m, layer, m.experts_per_token);
}

double norm_parameters(const ModelFacts& m) { return d(m.layer_norms) * norm(m); }

double parameters(const ModelFacts& m) { return whole(m, m.experts); }
double active_parameters(const ModelFacts& m) { return whole(m, m.experts_per_token); }

}  // namespace orrery
