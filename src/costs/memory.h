// Memory of one GPU in training, by part: from shapes and the layout alone. Mixed precision with Adam, as in
// Megatron-LM.
//
// Activations: Korthikanti et al. 2022, Reducing Activation Recomputation in Large Transformer Models, equations 1 to
// 6, written term by term so that any width of the feed-forward, gated ones, grouped queries and flash attention
// follow. Not modelled: experts, context parallelism, FP8, offloading, sharded parameters (FSDP), fragmentation.
#pragma once
#include <cstdint>
#include <string_view>

#include "costs/work.h"

namespace orrery {

enum class Recompute : std::uint8_t {
  none,
  selective,  // the core of the attention: what grows with the square of the sequence
  full        // whole layers: only their inputs are kept
};

std::string_view name_of(Recompute r);

struct MemoryJob {
  // tp, dp and sequence_parallel count, and all sizes of the model; `layers` is not read. kv_heads 0 = heads,
  // head_dim 0 = hidden / heads, ffn 0 = 4 hidden.
  Dims dims;
  double layers = 0;     // of the whole model
  double positions = 0;  // rows of a learned position embedding; 0 = none, or rotary
  double pp = 1;
  double chunks = 1;         // of each stage; more than one = interleaved
  double micro_batches = 1;  // of one pipeline, a step
  bool zero_bubble = false;  // ZB-H1: what weight passes still need is held, too
  bool gated_mlp = false;
  bool biases = true;  // of linear layers and norms
  bool tied_embedding = true;
  bool flash_attention = false;
  bool distributed_optimizer = false;  // its state is divided by dp
  bool dropout = true;
  Recompute recompute = Recompute::none;
  double weight_bytes = 2, gradient_bytes = 4;  // of one parameter
  double optimizer_bytes = 12;                  // fp32 master weight and the two moments of Adam
  double activation_bytes = 2;                  // of one element
};

struct MemoryParts {  // GiB
  double weights = 0, gradients = 0, optimizer = 0;
  double activations = 0;  // kept from a forward pass for its backward pass, logits of the loss included
  double workspace = 0;    // a layer that is recomputed or the logits in bf16; buffers of libraries, the CUDA context
  double total = 0;
};

// Of the whole model; a tied head counts once.
double parameters(const MemoryJob& job);
// On one GPU of a stage (from 0): its share of the layers and of tensor parallelism. The last of several stages holds
// its own copy of a tied embedding.
double parameters(const MemoryJob& job, std::int64_t stage);

// Layers times micro-batches whose activations a stage holds at most, over the layers of the stage.
double micro_batches_held(const MemoryJob& job, std::int64_t stage);

MemoryParts memory_of_stage(const MemoryJob& job, std::int64_t stage);
// The stage that needs most.
MemoryParts memory_of_job(const MemoryJob& job);

}  // namespace orrery
