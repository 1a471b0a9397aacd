// Serving engines: what each schedules and when, its limits, what its host work costs. One file an engine,
// facts/engines/NAME.toml, each number with its source.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace orrery {

struct EngineFacts {
  std::string name;
  // Which requests a step works on.
  //   chunked        one token of every running sequence, then pieces of prompts, up to max_batched_tokens
  //   prefill-first  whole prompts of waiting requests alone while there are any that fit, else one token of each
  //                  running sequence
  //   static         a batch is taken when the last one has ended: prompts together, then tokens together
  std::string scheduling = "chunked";
  // paged: a request takes KV blocks as it grows, and one is preempted when there are none left.
  // reserved: it waits until there are blocks for all that it may become.
  std::string kv_growth = "paged";
  std::string preemption = "recompute";  // or "swap": its blocks wait in the host's memory
  std::string multi_gpu = "tensor";      // what a number of GPUs alone means; or "layers": one after the other
  // fused: element-wise chains are one kernel (a compiler's); separate: one hand-written kernel each; unfused: one
  // kernel an operator, attention by two products and a softmax.
  std::string kernels = "separate";
  std::int64_t block_size = 16;  // tokens of a KV block
  std::int64_t max_num_seqs = 256, max_batched_tokens = 8192;
  bool step_covers_context = false;  // max_batched_tokens is at least the model's context
  double gpu_memory_utilization = 0.9;
  double reserved_gib = 0;         // a GPU: CUDA context, workspaces and graphs, beside weights and activations
  bool prefix_caching = false;     // blocks of earlier prompts are found again
  bool custom_all_reduce = false;  // kernels of its own over NVLink for small messages
  bool custom_all_reduce_on_amd = true;
  std::int64_t cuda_graph_batch = 0;  // the largest batch that is captured for decoding; 0 = every kernel is launched
  bool cuda_graph_prefill = false;    // steps with prompts as well, between attentions
  bool overlap_host = false;          // the host prepares the next step while the GPU runs this one
  // Host of a step, and of each sequence in it: scheduling, inputs, sampling, outputs. In the way of the GPU unless
  // overlap_host.
  double step_us = 0, sequence_us = 0;
  double exposed_us = 0;        // of it, what the GPU waits for though they overlap
  double parallel_step_us = 0;  // more where several processes share a model
  double request_us = 0;        // of a new request: tokenising, queues between processes; not in the GPU's way
  // Products with one row by kernels of the engine's compiler: of the memory's bandwidth. 0 = as the laws say.
  double matvec_share = 0;
  // A multiprocessor of products with one row, for kernels that keep few loads under way: bytes of weights a clock,
  // beside the memory's own time (the cubes of both add up). 0 = as the laws say.
  double matvec_bytes_per_clock = 0;
  bool shared_quantised_kv = true;  // grouped heads read keys and values of fewer bits once; false: once for each head
  bool shared_kv_on_amd = true;     // the same of any cache on AMD's GPUs
  bool expert_sync = false;         // the host reads the chosen experts back before each of their products
  double int8_unpack_ops = 0;       // instructions of an ordinary core to widen an int8 weight; 0 = hidden
  std::string source = {}, sure = {};
  std::string note = {};
  std::vector<std::string> aliases = {};
};

}  // namespace orrery
