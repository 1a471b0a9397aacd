// A training or fine-tuning job as it is asked for: model, platform, layout, techniques. What `estimate`, `plan` and
// `synth` start from.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "costs/memory.h"
#include "costs/operators.h"
#include "facts/models.h"
#include "facts/platforms.h"
#include "whatif/schedule.h"

namespace orrery {

enum class Framework : std::uint8_t {
  megatron,   // Megatron-LM: fused kernels, gradients in fp32
  deepspeed,  // DeepSpeed round a Hugging Face model: eager operators
  fsdp        // PyTorch's FullyShardedDataParallel round an eager model
};
enum class Offload : std::uint8_t { none, optimizer, all };  // all: the weights, too
enum class Quantize : std::uint8_t { none, int8, nf4 };      // of the frozen weights (fine-tuning), or of all
enum class Method : std::uint8_t { full, lora, qlora, prompt };
enum class AttentionKind : std::uint8_t { unfused, flash };

std::string_view name_of(Framework f);
std::string_view name_of(Offload o);
std::string_view name_of(Quantize q);
std::string_view name_of(Method m);
std::string_view name_of(AttentionKind a);

struct EstimateJob {
  ModelFacts model;
  PlatformFacts platform;
  bool finetune = false;

  // Layout. Ranks: tp fastest, then cp, then dp, then pp; expert parallelism lies within dp * cp.
  std::int64_t tp = 1, pp = 1, dp = 1, cp = 1, ep = 1;
  std::int64_t chunks = 1;  // of a stage, interleaved
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  bool sequence_parallel = false;
  std::int64_t micro_batch_size = 1, num_microbatches = 1, seq_length = 2048;

  // Techniques.
  Framework framework = Framework::megatron;
  int zero = 0;                 // ZeRO stage; fsdp: 3
  std::int64_t zero_group = 0;  // ranks that share a copy of the state; 0 = all of dp * cp
  Offload offload = Offload::none;
  Recompute recompute = Recompute::none;
  AttentionKind attention = AttentionKind::flash;
  Quantize quantize = Quantize::none;
  Method method = Method::full;
  std::int64_t lora_rank = 8;
  std::int64_t prompt_tokens = 32;
  Precision precision = Precision::bf16;
  bool compile = false;            // element-wise chains as one kernel, less host work
  bool overlap_gradients = true;   // reduced beside the backward pass; else after it
  bool overlap_parameters = true;  // sharded optimizer: gathered beside the next forward pass; else before it
  bool overlap_tensor = false;     // forward collectives of tensor parallelism cut up beside their products
  bool dropout = false;
  double reduce_bytes = 0;  // of a gradient on the network; 0 = as the framework does

  std::int64_t replicas() const { return dp * cp; }  // ranks that hold the same weights
  std::int64_t world() const { return tp * pp * replicas(); }
  std::int64_t global_batch() const { return dp * micro_batch_size * num_microbatches; }
  std::int64_t shards() const { return zero_group > 0 ? zero_group : replicas(); }
  double tokens() const { return static_cast<double>(micro_batch_size * seq_length) / static_cast<double>(cp); }
};

// Of one element, in memory and on the network.
double weight_bytes(const EstimateJob& job);    // as gathered and computed with; quantised ones as they are stored
double gradient_bytes(const EstimateJob& job);  // as reduced
double bytes_of_activations(const EstimateJob& job);

// Whether such a job can be at all: sizes that divide, techniques that go together. The error says which option is at
// fault and what would do.
Status check(const EstimateJob& job);

}  // namespace orrery
