// What is round the passes of a made-up GPT job: exchanges, the schedule, the optimizer, the step; its process groups.
#include <fmt/format.h>

#include <algorithm>

#include "synthesis/gpt_rank.h"

namespace orrery::synth {

// ---- the step ------------------------------------------------------------------------------------------------------

void GptRank::exchange(bool with_next, bool send, bool receive) {
  if (with_next ? last_stage() : first_stage()) return;
  if (!job_.p2p_batched) return exchange_apart(with_next, send, receive);
  const std::int64_t across = job_.tp * job_.dp;
  Exchange x;
  x.peer = with_next ? rank_ + across : rank_ - across;
  x.send = send;
  x.receive = receive;
  x.elements = rows_ * job_.hidden;
  x.key = {1'000'000 + std::min(rank_, x.peer), ++exchanges_[with_next ? 1 : 0]};
  wait_for_result(comm_, main_, send_receive(comm_, main_, pipeline_, x));
  if (job_.p2p_sync) rec_.synchronize_device(main_);
}

// Each as a kernel of its own, in Megatron-LM's order: of two neighbours one sends while the other receives.
void GptRank::exchange_apart(bool with_next, bool send, bool receive) {
  const std::int64_t across = job_.tp * job_.dp;
  std::vector<Event> done;
  const auto one = [&](bool sends) {
    Exchange x;
    x.peer = with_next ? rank_ + across : rank_ - across;
    x.send = sends;
    x.receive = !sends;
    x.elements = tokens_ * job_.hidden;
    // of two stages one direction uses the default group, else the streams are the peers'
    const bool second = job_.pp == 2 ? sends != (stage_ % 2 == 0) : !with_next;
    const bool forward = sends == with_next;
    x.key = {3'000'000 + 2 * std::min(rank_, x.peer) + (forward ? 1 : 0),
             ++exchanges_apart_[with_next ? 1 : 0][forward ? 1 : 0]};
    done.push_back(send_or_receive(comm_, main_, peers_[second ? 1 : 0], x));
  };
  const bool send_first = stage_ % 2 == 0;
  if (send && send_first) one(true);
  if (receive) one(false);
  if (send && !send_first) one(true);
  for (const Event& e : done) wait_for_result(comm_, main_, e);
}

// Several chunks: the input or output of a pass of this rank, from or to the part of the model beside it. Nothing at
// the ends of the model.
Event GptRank::transfer(bool send, bool forward, const Place& p) {
  const std::int64_t towards = send == forward ? 1 : -1;  // the next part or the one before
  const std::int64_t part = p.chunk * job_.pp + stage_, other = part + towards;
  if (other < 0 || other >= job_.pp * job_.chunks) return {};
  const std::int64_t peer = rank_ + (other % job_.pp - stage_) * job_.tp * job_.dp;
  // of two stages one direction uses the default group, else the streams are the peers'
  const bool second = job_.pp == 2 ? send != (stage_ % 2 == 0) : towards < 0;
  Exchange x;
  x.peer = peer;
  x.send = send;
  x.receive = !send;
  x.elements = rows_ * job_.hidden;
  x.key = {2'000'000 + 2 * (send ? part : other) + (forward ? 1 : 0),
           (step_ * job_.num_microbatches + p.micro_batch) * job_.tp * job_.dp + rank_ % (job_.tp * job_.dp)};
  return send_or_receive(comm_, main_, peers_[second ? 1 : 0], x);
}

// Interleaved 1F1B as Megatron-LM runs it with overlap of point-to-point: sends and receives are launched beside the
// passes, what a pass works on is waited for before it.
void GptRank::interleaved() {
  const std::int64_t all = job_.num_microbatches * job_.chunks;
  const std::int64_t warmup =
      job_.num_microbatches == job_.pp ? all : std::min(all, (job_.pp - stage_ - 1) * 2 + (job_.chunks - 1) * job_.pp);
  Event input[2];  // of the next backward and the next forward
  const auto place = [&](bool forward, std::int64_t k) {
    const std::int64_t chunk = k / job_.pp % job_.chunks;
    return Place{k / (job_.pp * job_.chunks) * job_.pp + k % job_.pp, forward ? chunk : job_.chunks - 1 - chunk};
  };
  const auto ask = [&](bool forward, std::int64_t k) {
    if (k < all) input[forward ? 1 : 0] = transfer(false, forward, place(forward, k));
  };
  const auto run = [&](bool is_forward, std::int64_t k) {
    const Place p = place(is_forward, k);
    if (!input[is_forward ? 1 : 0].tasks.empty()) wait_for_result(comm_, main_, input[is_forward ? 1 : 0]);
    if (is_forward)
      forward(p.chunk);
    else
      backward(p.chunk, p.micro_batch == job_.num_microbatches - 1);
    // Megatron-LM's order of one call: to the previous stage, from it, to the next, from it
    if (is_forward) ask(true, k + 1);
    transfer(true, is_forward, p);
    if (!is_forward) ask(false, k + 1);
  };
  ask(true, 0);
  for (std::int64_t k = 0; k < warmup; ++k) run(true, k);
  ask(false, 0);
  for (std::int64_t k = warmup; k < all; ++k) {
    run(true, k);
    run(false, k - warmup);
  }
  for (std::int64_t k = all - warmup; k < all; ++k) run(false, k);
}

// Non-interleaved 1F1B: as many forward passes first as there are stages behind, then one of each, then the rest.
void GptRank::schedule() {
  if (job_.chunks > 1) return interleaved();
  const std::int64_t n = job_.num_microbatches, warmup = std::min(job_.pp - 1 - stage_, n), steady = n - warmup;
  constexpr bool kPrevious = false, kNext = true;
  for (std::int64_t i = 0; i < warmup; ++i) {
    exchange(kPrevious, false, true);
    forward(0);
    exchange(kNext, true, false);
  }
  if (steady > 0) exchange(kPrevious, false, true);
  for (std::int64_t i = 0; i < steady; ++i) {
    forward(0);
    exchange(kNext, true, true);
    backward(0, warmup == 0 && i == steady - 1);
    exchange(kPrevious, true, i < steady - 1);
  }
  for (std::int64_t i = 0; i < warmup; ++i) {
    exchange(kNext, false, true);
    backward(0, i == warmup - 1);
    exchange(kPrevious, true, false);
  }
}

void GptRank::optimizer() {
  const bool sharded = job_.distributed_optimizer && job_.dp > 1;
  const std::int64_t parameters = stage_parameters() / (sharded ? job_.dp : 1) +
                                  job_.layers / job_.pp * expert_parameters() / (sharded ? job_.dp / job_.ep : 1);
  const std::int64_t chunks = parameters / 60'000'000 + 1;
  const auto multi_tensor = [&](std::string_view name, std::int64_t bytes_each) {
    for (std::int64_t c = 0; c < chunks; ++c)
      rec_.launch(main_, compute_, kernel(name, streaming(gpu_, bytes_each * (parameters / chunks)), 512, 56),
                  "cudaLaunchKernel");
  };
  const Scope range = annotation("Optimizer.step#FusedAdam.step", 9'000);
  multi_tensor(
      "void multi_tensor_apply_kernel<TensorListMetadata<1>, L2NormFunctor<float>, float*, float*, bool, int>(long, "
      "int "
      "volatile*, TensorListMetadata<1>, L2NormFunctor<float>, float*, float*, bool, int)",
      4);
  rec_.kernel_op(
      main_, "aten::pow", compute_,
      kernel("void at::native::vectorized_elementwise_kernel<4, at::native::pow_tensor_scalar_kernel_impl<float, "
             "float>(at::TensorIteratorBase&, float)::{lambda(float)#1}, at::detail::Array<char*, 2> >(int)",
             streaming(gpu_, 8), 128));
  if (sharded) {
    wait_for_result(comm_, main_, all_reduce(comm_, main_, world_, 1, Dtype::f32));
  } else if (model_.size() > 1) {
    wait_for_result(comm_, main_, all_reduce(comm_, main_, model_, 1, Dtype::f32));
  }
  if (job_.experts > 0) {  // experts are other ranks' share of the norm
    Communicator& all = sharded ? world_ : expert_stages_;
    if (all.size() > 1) wait_for_result(comm_, main_, all_reduce(comm_, main_, all, 1, Dtype::f32));
  }
  {
    const Scope item = op(main_, "aten::item");
    const Scope scalar = op(main_, "aten::_local_scalar_dense");
    TaskSpec t;
    t.kind = OpKind::memcpy;
    t.name = job_.item_pageable ? "Memcpy DtoH (Device -> Pageable)" : "Memcpy DtoH (Device -> Pinned)";
    t.bytes = 4;
    t.duration = 1'300;
    rec_.launch(main_, compute_, t, "cudaMemcpyAsync", job_.item_pageable);
    rec_.synchronize_stream(main_, compute_);
  }
  multi_tensor(
      "void multi_tensor_apply_kernel<TensorListMetadata<2>, ScaleFunctor<float, float>, float>(long, int volatile*, "
      "TensorListMetadata<2>, ScaleFunctor<float, float>, float)",
      8);
  multi_tensor(
      "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float, int>, float, float, float, int, "
      "int, float>(long, int volatile*, TensorListMetadata<4>, AdamFunctor<float, float, int>)",
      28);
  multi_tensor(
      "void multi_tensor_apply_kernel<TensorListMetadata<2>, ScaleFunctor<float, c10::BFloat16>, float>(long, int "
      "volatile*, TensorListMetadata<2>, ScaleFunctor<float, c10::BFloat16>, float)",
      6);
  if (!sharded) return;
  std::vector<Event> gathered;
  for (const std::int64_t bucket : buckets_)
    gathered.push_back(collective(comm_, main_, data_, Collective::all_gather, bucket, Dtype::bf16));
  for (const std::int64_t bucket : expert_buckets_)
    gathered.push_back(collective(comm_, main_, expert_data_, Collective::all_gather, bucket, Dtype::bf16));
  for (const Event& done : gathered) wait_for_result(comm_, main_, done);
}

// Every rank has gradients of norms for its own tokens only.
void GptRank::sum_norm_gradients() {
  if (!split_) return;
  const std::int64_t n = (4 * job_.layers / job_.pp + (last_stage() ? 2 : 0)) * job_.hidden;
  wait_for_result(comm_, main_, all_reduce(comm_, main_, tensor_, n, Dtype::f32));
}

void GptRank::step(std::int64_t number) {
  step_ = number;
  const Scope range = annotation(fmt::format("ProfilerStep#{}", number), main_.last == kNoNode ? 0 : 28'000);
  rec_.mark_step(number, last_op());
  {
    const Scope zero = op(main_, "aten::zero_", 30'000);
    TaskSpec t;
    t.kind = OpKind::memset;
    t.name = "Memset (Device)";
    t.bytes = 4 * (job_.fused_pointwise ? job_.layers / job_.pp * layer_parameters() : stage_parameters());
    t.bytes += 4 * job_.layers / job_.pp * expert_parameters();
    if (job_.clear_all && job_.fused_pointwise)
      t.bytes += 4 * ((first_stage() ? 1 : 0) + (last_stage() ? 1 : 0)) * job_.vocab * job_.hidden / job_.tp;
    t.duration = streaming(gpu_, t.bytes).duration;
    rec_.launch(main_, compute_, t, "cudaMemsetAsync");
  }
  schedule();
  {
    const Scope finalize = annotation("finalize_model_grads", 8'000);
    for (const std::int64_t bucket : job_.overlap_gradients ? std::vector<std::int64_t>{} : buckets_)
      gradients_ready_.push_back(reduce_gradients(main_, bucket));
    for (const std::int64_t bucket : job_.overlap_gradients ? std::vector<std::int64_t>{} : expert_buckets_)
      gradients_ready_.push_back(collective(
          comm_, main_, expert_data_, job_.distributed_optimizer ? Collective::reduce_scatter : Collective::all_reduce,
          bucket, Dtype::f32));
    for (const Event& done : gradients_ready_) wait_for_result(comm_, main_, done);
    gradients_ready_.clear();
    sum_norm_gradients();
    if (job_.tied_embedding && table_.size() > 1)
      wait_for_result(comm_, main_, all_reduce(comm_, main_, table_, job_.vocab * job_.hidden / job_.tp, Dtype::f32));
  }
  optimizer();
  buckets_.clear();
  expert_buckets_.clear();
  if (job_.step_barrier) {
    if (world_.size() > 1)
      wait_for_result(comm_, main_, collective(comm_, main_, world_, Collective::barrier, 1, Dtype::f32));
    rec_.synchronize_stream(main_, compute_);
  }
  if (job_.step_sync) rec_.synchronize_device(main_);
}

std::vector<ProcessGroup> process_groups(const SyntheticJob& job) {
  std::vector<ProcessGroup> groups;
  const auto add = [&](std::string_view desc, std::vector<std::int32_t> ranks) {
    ProcessGroup g;
    g.name = fmt::format("{}", groups.size());
    g.desc = desc;
    g.backend = "cuda:nccl";
    g.size = static_cast<std::int64_t>(ranks.size());
    g.ranks = std::move(ranks);
    groups.push_back(std::move(g));
  };
  const auto rank_of = [&](std::int64_t t, std::int64_t d, std::int64_t p) {
    return static_cast<std::int32_t>(t + job.tp * (d + job.dp * p));
  };
  std::vector<std::int32_t> all;
  for (std::int64_t r = 0; r < job.tp * job.dp * job.pp; ++r) all.push_back(static_cast<std::int32_t>(r));
  add("default_pg", all);
  for (std::int64_t p = 0; p < job.pp; ++p)
    for (std::int64_t t = 0; t < job.tp; ++t) {
      std::vector<std::int32_t> ranks;
      for (std::int64_t d = 0; d < job.dp; ++d) ranks.push_back(rank_of(t, d, p));
      add("DATA_PARALLEL_GROUP", std::move(ranks));
    }
  for (std::int64_t d = 0; d < job.dp; ++d) {
    std::vector<std::int32_t> ranks;
    for (std::int64_t p = 0; p < job.pp; ++p)
      for (std::int64_t t = 0; t < job.tp; ++t) ranks.push_back(rank_of(t, d, p));
    add("MODEL_PARALLEL_GROUP", std::move(ranks));
  }
  for (std::int64_t p = 0; p < job.pp; ++p)
    for (std::int64_t d = 0; d < job.dp; ++d) {
      std::vector<std::int32_t> ranks;
      for (std::int64_t t = 0; t < job.tp; ++t) ranks.push_back(rank_of(t, d, p));
      add("TENSOR_MODEL_PARALLEL_GROUP", std::move(ranks));
    }
  for (std::int64_t d = 0; d < job.dp; ++d)
    for (std::int64_t t = 0; t < job.tp; ++t) {
      std::vector<std::int32_t> ranks;
      for (std::int64_t p = 0; p < job.pp; ++p) ranks.push_back(rank_of(t, d, p));
      add("PIPELINE_MODEL_PARALLEL_GROUP", std::move(ranks));
    }
  for (std::int64_t d = 0; d < job.dp && job.tied_embedding && job.pp > 1; ++d)
    for (std::int64_t t = 0; t < job.tp; ++t) add("EMBEDDING_GROUP", {rank_of(t, d, 0), rank_of(t, d, job.pp - 1)});
  if (job.experts == 0) return groups;
  const std::int64_t replicas = job.dp / job.ep;
  const auto expert_rank = [&](std::int64_t t, std::int64_t e, std::int64_t d, std::int64_t p) {
    return rank_of(t, e + job.ep * d, p);
  };
  const auto each = [&](std::int64_t n, const auto& f) {
    for (std::int64_t i = 0; i < n; ++i) f(i);
  };
  for (std::int64_t p = 0; p < job.pp; ++p)
    for (std::int64_t d = 0; d < replicas; ++d)
      for (std::int64_t t = 0; t < job.tp; ++t) {
        std::vector<std::int32_t> ranks;
        each(job.ep, [&](std::int64_t e) { ranks.push_back(expert_rank(t, e, d, p)); });
        add("EXPERT_MODEL_PARALLEL_GROUP", std::move(ranks));
      }
  for (std::int64_t p = 0; p < job.pp; ++p)
    for (std::int64_t d = 0; d < job.dp; ++d) {
      std::vector<std::int32_t> ranks;
      each(job.tp, [&](std::int64_t t) { ranks.push_back(rank_of(t, d, p)); });
      add("EXPERT_TENSOR_PARALLEL_GROUP", std::move(ranks));
    }
  for (std::int64_t d = 0; d < replicas; ++d) {
    std::vector<std::int32_t> ranks;
    each(job.pp, [&](std::int64_t p) {
      each(job.ep,
           [&](std::int64_t e) { each(job.tp, [&](std::int64_t t) { ranks.push_back(expert_rank(t, e, d, p)); }); });
    });
    add("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", std::move(ranks));
  }
  for (std::int64_t p = 0; p < job.pp; ++p)
    for (std::int64_t e = 0; e < job.ep; ++e)
      for (std::int64_t t = 0; t < job.tp; ++t) {
        std::vector<std::int32_t> ranks;
        each(replicas, [&](std::int64_t d) { ranks.push_back(expert_rank(t, e, d, p)); });
        add("EXPERT_DATA_PARALLEL_GROUP", std::move(ranks));
      }
  return groups;
}

void record_rank(const SyntheticJob& job, const Gpu& gpu, const std::vector<ProcessGroup>& groups, std::int64_t rank,
                 Recorder& rec) {
  GptRank(job, gpu, groups, rank, rec).run();
}

}  // namespace orrery::synth
