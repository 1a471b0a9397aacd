// Traces of a training job that never ran: a small GPT under tensor, pipeline and data parallelism. The job is an
// execution graph, replayed once; what the profiler would have written of it is told from the replay, so the true
// dependencies are known. The sample in samples/ and many tests are made by it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "data/trace.h"
#include "graph/exec_graph.h"
#include "replay/replay.h"

namespace orrery {

struct SyntheticJob {
  // The model: a GPT decoder, bf16, vocabulary split over tensor-parallel ranks.
  std::int64_t layers = 4, hidden = 2048, heads = 16, seq_length = 2048, vocab = 32'000;
  std::int64_t micro_batch_size = 1;
  enum class Recompute : std::uint8_t { none, selective, full } recompute = Recompute::none;  // selective: attention
  std::int64_t ffn = 0, head_dim = 0, kv_heads = 0;  // 0: 4 hidden, hidden / heads, heads
  bool swiglu = false;                               // a gated MLP, both projections in one product
  bool bias = true, dropout = true;
  bool fused_pointwise = true;     // what follows a linear layer is one compiled kernel; else operators with shapes
  bool unfused_attention = false;  // baddbmm, a softmax kernel, bmm
  bool fuse_wgrad = true;          // weights' gradients go to fp32 within their product; else added by a kernel
  bool tied_embedding = false;     // one weight for embedding and head, its gradients summed by both stages
  bool sequence_parallel = false;
  // Experts in every layer instead of an MLP: a router, tokens to the experts and back (all to all), a grouped product.
  std::int64_t experts = 0, experts_per_token = 2, expert_ffn = 0;  // 0 experts: none; expert_ffn 0: ffn
  bool shared_expert = false;                                       // an MLP of width ffn beside them
  bool grouped_gemm = true;  // the products of all experts of a rank are one kernel; else one each
  double routing_skew = 0;   // standard deviation of the tokens that a rank's experts get, of their mean
  // The layout. Rank order: tp fastest, then dp, then pp. 1F1B; with several chunks a stage interleaved, sends and
  // receives beside the passes.
  std::int64_t tp = 2, pp = 2, dp = 2, num_microbatches = 4, chunks = 1, gpus_per_node = 8;
  std::int64_t ep = 1;      // ranks that share the experts of a layer, of those of dp; each expert is split over tp
  bool group_names = true;  // process groups have descriptions
  bool overlap_gradients = true;       // reduced while the backward pass goes on; else after it, on the main thread
  bool distributed_optimizer = false;  // gradients reduce-scattered, parameters gathered after the update
  std::int64_t bucket_parameters = 0;  // gradients are reduced once so many are complete; 0 = one bucket a layer
  bool p2p_batched = true;    // 1F1B: a send and a receive as one kernel; else each as its own (then no p2p_sync)
  bool step_barrier = false;  // all ranks meet at the end of a step, the host waits for it
  // The run.
  std::int64_t steps = 2, first_step = 4;
  std::uint64_t seed = 1;
  std::string gpu = "H100";                                                // H100 or A100
  double noise = 1;                                                        // scales every standard deviation; 0 = none
  double host_sigma = 0.10, kernel_sigma = 0.012, transfer_sigma = 0.025;  // standard deviations, of 1
  // What is changed against the nominal job: factors of times.
  double host_factor = 1;       // all host work
  double kernel_factor = 1;     // all kernels that compute, copies and memsets
  double gemm_factor = 1;       // of these, those with gemm in their name
  double transfer_factor = 1;   // collectives and point-to-point, after the last member has come
  std::int64_t straggler = -1;  // this rank's kernels take straggler_factor times as long; -1 = none
  double straggler_factor = 1.2;
  // How the framework waits.
  bool item_pageable =
      false;               // gradient norm .item(): the copy call itself blocks; else copy, then cudaStreamSynchronize
  bool step_sync = true;   // cudaDeviceSynchronize at the end of a step
  bool p2p_sync = false;   // cudaDeviceSynchronize after each batch of sends and receives
  bool nan_check = false;  // the host reads every micro-batch's loss
  // What Megatron-LM does beside the passes.
  bool broadcast_batch = false;  // under tensor parallelism one rank loads a micro-batch and sends it to the others
  bool clear_all = false;        // the gradients of embedding and head are cleared too, with those of the layers
  bool rails = false;  // between servers: a collective has the links of all its members there, a pair of stages its own
  bool scale_gradients = false;      // a kernel for each bucket before it is reduced
  int loss_sums = 1;                 // over the split vocabulary
  std::int64_t queue_depth = 1'024;  // tasks of a stream that fit before a launch call blocks
  // What the profiler was told to record.
  bool cuda_sync = false;     // cuda_sync events, with streams and event ids
  bool modules = true;        // nn.Module and python frames
  bool shapes = true;         // input shapes and types
  bool nccl_internal = true;  // NCCL's own record and wait calls around its launches
  bool annotations = true;    // of passes and the optimizer; steps always
  bool old_nccl = false;      // names of kernels before NCCL 2.20
  bool legacy =
      false;          // PyTorch 1.x: External ids of calls and tasks are correlation ids, no groups, no GPU annotations
  Ns clock_step = 0;  // the clock of node n is n * clock_step ahead
  Ns clock_grain = 1;  // recorded times are multiples of it
};

// cudaStreamWaitEvent: `to_task` may not start before `from_tasks` have ended. All are correlation ids of one rank.
struct TrueEventEdge {
  std::int64_t wait = 0, record = 0;
  std::vector<std::int64_t> from_tasks;  // empty: nothing had been enqueued
  std::int64_t to_task = 0;              // first task of the waiting stream after the wait; 0 = none in the trace
  bool nccl_internal = false;            // to or from the stream that only NCCL itself uses
};

// A host call that returned only when these tasks had ended.
struct TrueSync {
  std::int64_t call = 0;
  std::vector<std::int64_t> tasks;
};

// A collective or point-to-point kernel of one rank.
struct TrueTransfer {
  std::int64_t kernel = 0;  // correlation id
  std::string group;        // description of its process group
  Ns waiting = 0;           // until the last member came
  Ns transfer = 0;          // from then on
};

// Classes over one rank's ProfilerStep, as unions of intervals; the first four add up to `duration`.
struct TrueStep {
  std::int64_t number = 0;
  Ns begin = 0, duration = 0;
  Ns exposed_compute = 0, overlapped = 0, exposed_comm = 0, other = 0;
  Ns memory = 0;
};

struct TrueRank {
  std::vector<TrueStep> steps;
  std::vector<TrueEventEdge> event_edges;
  std::vector<TrueSync> syncs;
  std::vector<TrueTransfer> transfers;
};

// The job as tables. Ranks are rows of all three; trace times carry the node's clock error, graph and replay times do
// not. Every NCCL kernel is two graph nodes of the same source: one without duration that leads to the rendezvous
// (at_begin = 1), one that depends on it and lasts as long as the transfer.
struct SyntheticRun {
  TraceSet traces;
  ExecGraph graph;
  Replay replay;
  std::vector<TrueRank> truth;
};

// Errors: a size that is not positive, or does not divide as the layout needs; an unknown GPU; a layout whose launch
// queue would deadlock.
Result<SyntheticRun> run_job(const SyntheticJob& job);

struct SyntheticRank {
  std::int64_t rank = 0;
  std::string json;  // what the profiler would have written
  TrueRank truth;
};
Result<std::vector<SyntheticRank>> synthesize(const SyntheticJob& job);

}  // namespace orrery
