// A training or fine-tuning job as it is asked for: model, platform, layout, techniques. What `estimate`, `plan` and
// `synth` start from.
#pragma once
#include <cstdint>
#include <optional>
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
  fsdp,       // PyTorch's FullyShardedDataParallel round an eager model; on one GPU a plain training loop
  ddp         // PyTorch's DistributedDataParallel, or one GPU alone, round an eager model under autocast
};
enum class Offload : std::uint8_t { none, optimizer, all };  // all: the weights, too
enum class Quantize : std::uint8_t {                         // of the frozen weights (fine-tuning), or of all
  none,
  int8,
  nf4,  // bitsandbytes and torchao: one kernel that widens, forward and backward
  gptq  // AutoGPTQ, four bits: widened by PyTorch's operators, kept for the backward pass
};
enum class Optimizer : std::uint8_t {
  adamw,
  adamw8bit,        // bitsandbytes: moments of one byte in blocks
  paged_adamw8bit,  // ... in unified memory, which moves to the host what the GPU cannot hold
  lion,             // one moment
  sgd               // none
};
enum class Method : std::uint8_t { full, lora, qlora, prompt };
enum class AttentionKind : std::uint8_t { unfused, flash };

std::string_view name_of(Framework f);
std::string_view name_of(Offload o);
std::string_view name_of(Quantize q);
std::string_view name_of(Method m);
std::string_view name_of(Optimizer o);
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
  std::optional<AttentionKernel> attention_kernel;  // nullopt: what the framework uses on such a GPU
  Quantize quantize = Quantize::none;
  Method method = Method::full;
  std::int64_t lora_rank = 8;
  bool lora_dropout = false;     // before the adapters
  bool lora_embeddings = false;  // embedding and head learn, too: copies of them (PEFT's modules_to_save)
  std::int64_t prompt_tokens = 32;
  Optimizer optimizer = Optimizer::adamw;
  std::optional<bool> master_weights;  // in fp32; nullopt: what the framework does
  bool optimizer_in_backward = false;  // each weight is updated as soon as its gradient is there, which then goes
  bool fp32_loss = true;               // eager: logits go to fp32; else the loss is taken in their own precision
  bool chunked_loss = false;           // logits to fp32 and to their loss in eight chunks, one after the other
  bool offload_activations = false;    // what is kept of a layer waits in the host's memory
  Precision precision = Precision::bf16;
  bool compile = false;            // element-wise chains as one kernel, less host work
  bool overlap_gradients = true;   // reduced beside the backward pass; else after it
  bool overlap_parameters = true;  // sharded optimizer: gathered beside the next forward pass; else before it
  bool overlap_tensor = false;     // forward collectives of tensor parallelism cut up beside their products
  bool dropout = false;
  double reduce_bytes = 0;  // of a gradient on the network; 0 = as the framework does
  std::int64_t bucket = 0;  // parameters whose gradients are reduced together; 0 = as the framework does

  std::int64_t replicas() const { return dp * cp; }                      // ranks that hold the same weights
  std::int64_t expert_replicas() const { return replicas() * tp / ep; }  // ranks that hold the same experts
  std::int64_t world() const { return tp * pp * replicas(); }
  std::int64_t global_batch() const { return dp * micro_batch_size * num_microbatches; }
  std::int64_t shards() const { return zero_group > 0 ? zero_group : replicas(); }
  // Of a sequence: prompt tuning puts tokens of its own before it.
  std::int64_t positions() const { return seq_length + (method == Method::prompt ? prompt_tokens : 0); }
  double tokens() const { return static_cast<double>(micro_batch_size * positions()) / static_cast<double>(cp); }
  // Quantised weights have no gradients (bitsandbytes' Params4bit and Int8Params): then of a model that learns in full
  // norms, embedding and head learn.
  bool trains_layers() const { return method == Method::full && quantize == Quantize::none; }
  bool trains_tables() const { return method == Method::full || lora_embeddings; }  // embedding and head
  bool paged() const { return optimizer == Optimizer::paged_adamw8bit; }
};

// Of one element, in memory and on the network.
double weight_bytes(const EstimateJob& job);    // as gathered and computed with; quantised ones as they are stored
double gradient_bytes(const EstimateJob& job);  // as reduced
double bytes_of_activations(const EstimateJob& job);

// Whether the device is a CPU that has no unit for the job's precision: the framework multiplies all the same.
bool is_emulated(const EstimateJob& job);

// Whether what learns is kept in fp32, too (or in fp32 alone: FSDP, DDP). Without, weights, gradients and moments all
// have the bytes of the activations. nullopt: on.
bool master_weights(const EstimateJob& job);
// Bytes of optimizer state of one parameter, its fp32 master copy aside.
double moment_bytes(const EstimateJob& job);

// Whether such a job can be at all: sizes that divide, techniques that go together. The error says which option is at
// fault and what would do.
Status check(const EstimateJob& job);

}  // namespace orrery
