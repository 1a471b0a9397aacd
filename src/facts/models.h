// Models: their shapes, as the makers publish them. One file a model, facts/models/NAME.toml, each with its source.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace orrery {

struct ModelFacts {
  std::string name;
  std::int64_t layers = 0, hidden = 0;
  std::int64_t ffn = 0;  // of a dense layer's MLP; of an expert see below
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t vocab = 0;        // rows of the embedding
  std::int64_t max_context = 0;  // 0 = not known
  bool tied_embeddings = false;
  bool gated_mlp = true;           // gate and up projection, then down; else up and down
  bool clamped_gate = false;       // gate and up are clamped before they are multiplied
  bool rms_norm = true;            // else LayerNorm, with biases
  bool learned_positions = false;  // an embedding of max_context rows; else rotary or none
  bool linear_bias = false;        // of all linear layers of a decoder layer
  bool qkv_bias = false;           // of the query, key and value projection alone
  // Mixture of experts; experts 0 = dense.
  std::int64_t experts = 0, experts_per_token = 0, expert_ffn = 0;
  std::int64_t shared_ffn = 0;    // width of all shared experts together
  std::int64_t dense_layers = 0;  // the first ones, without experts
  // Multi-head latent attention (DeepSeek-V2); kv_lora_rank 0 = none. head_dim is that of the part without position.
  std::int64_t q_lora_rank = 0, kv_lora_rank = 0, rope_head_dim = 0, value_head_dim = 0;
  std::int64_t expert_every = 1;  // of the layers after the dense ones, the last of so many has experts (Llama 4: 2)
  // What an operator list needs and a first estimate may leave out (it then says so).
  std::int64_t layer_norms = 2;           // of one layer, of the hidden width (Falcon-7B, GPT-J, Phi: 1; Gemma 2: 4)
  bool qk_norm = false;                   // of queries and keys, of the head width
  std::int64_t sliding_window = 0;        // tokens that a windowed layer attends to; 0 = none is windowed
  std::int64_t full_attention_every = 0;  // of windowed models, one layer of so many attends to all; 0 = none does
  double published_parameters = 0;        // 0 = not published
  std::string source, sure;               // where the shape was read; seen, derived, remembered ...
  // Why this shape does not express the model; "" = it does. model_named_or_read refuses such a model with the reason.
  std::string unsupported = {};
  std::vector<std::string> aliases = {};
};

// Experts in this layer, or a dense MLP?
bool has_experts(const ModelFacts& m, std::int64_t layer);

// Of one decoder layer, norms and biases included.
double attention_parameters(const ModelFacts& m);
double mlp_parameters(const ModelFacts& m, std::int64_t layer);         // all experts and the router
double active_mlp_parameters(const ModelFacts& m, std::int64_t layer);  // those that a token passes
double norm_parameters(const ModelFacts& m);                            // of one layer
// Of the whole model. A tied head counts once.
double parameters(const ModelFacts& m);
double active_parameters(const ModelFacts& m);

}  // namespace orrery
