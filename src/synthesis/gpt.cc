// The passes of a made-up GPT job: forward layer by layer, backward from the tape.
#include <fmt/format.h>

#include <algorithm>

#include "synthesis/gpt_rank.h"

namespace orrery::synth {

GptRank::GptRank(const SyntheticJob& job, const Gpu& gpu, const std::vector<ProcessGroup>& groups, std::int64_t rank,
                 Recorder& rec)
    : job_(job),
      gpu_(gpu),
      rec_(rec),
      rank_(rank),
      stage_(rank / (job.tp * job.dp)),
      tokens_(job.micro_batch_size * job.seq_length),
      ffn_(job.ffn > 0 ? job.ffn : 4 * job.hidden),
      expert_ffn_(job.expert_ffn > 0 ? job.expert_ffn : ffn_),
      head_dim_(job.head_dim > 0 ? job.head_dim : job.hidden / job.heads),
      attn_(job.heads * head_dim_),
      kv_(job.kv_heads > 0 ? job.kv_heads * head_dim_ : attn_),
      split_(job.sequence_parallel && job.tp > 1),
      rows_(split_ ? tokens_ / job.tp : tokens_),
      comm_{rec,         gpu,
            0,           job.nccl_internal,
            job.seed,    static_cast<std::int64_t>(1e6 * job.transfer_sigma * job.noise),
            job.old_nccl} {
  comm_.group_names = job.group_names;
  if (job.rails) comm_.own_node = rank / job.gpus_per_node, comm_.gpus_per_node = job.gpus_per_node;
  const std::int64_t pid = 4'000 + rank;
  main_ = rec.add_thread(pid, fmt::format("thread {} (python3)", pid));
  autograd_ = rec.add_thread(pid + 620, fmt::format("thread {} (pt_autograd_0)", pid + 620));
  comm_.compute = compute_ = rec.add_stream(7);
  std::int64_t id = 0, number = 20;
  for (const ProcessGroup& g : groups) {
    ++id;
    if (std::find(g.ranks.begin(), g.ranks.end(), static_cast<std::int32_t>(rank)) == g.ranks.end()) continue;
    if (!job.legacy) rec.trace().groups.push_back(g);
    if (!job.legacy && !job.group_names) rec.trace().groups.back().desc.clear();
    Communicator* c = g.desc == "TENSOR_MODEL_PARALLEL_GROUP"                   ? &tensor_
                      : g.desc == "PIPELINE_MODEL_PARALLEL_GROUP"               ? &pipeline_
                      : g.desc == "DATA_PARALLEL_GROUP"                         ? &data_
                      : g.desc == "MODEL_PARALLEL_GROUP"                        ? &model_
                      : g.desc == "EMBEDDING_GROUP"                             ? &table_
                      : g.desc == "EXPERT_MODEL_PARALLEL_GROUP"                 ? &expert_
                      : g.desc == "EXPERT_TENSOR_PARALLEL_GROUP"                ? &expert_tensor_
                      : g.desc == "EXPERT_DATA_PARALLEL_GROUP"                  ? &expert_data_
                      : g.desc == "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP" ? &expert_stages_
                      : uses_world(job) && g.desc == "default_pg"               ? &world_
                                                                                : nullptr;
    if (c == nullptr) continue;
    c->info = g;
    c->id = id;
    for (const std::int32_t r : g.ranks) c->one_node = c->one_node && r / job.gpus_per_node == rank / job.gpus_per_node;
    c->in_server = std::count_if(g.ranks.begin(), g.ranks.end(),
                                 [&](std::int32_t r) { return r / job.gpus_per_node == rank / job.gpus_per_node; });
    if (job.rails) c->rails = c->in_server;
    if (c->size() == 1) continue;  // nothing is ever launched on it
    c->stream = rec.add_stream(number);
    c->internal = rec.add_stream(number + 1);
    rec.mark_internal(c->internal);
    number += 4;
  }
  if ((job_.chunks == 1 && job_.p2p_batched) || job_.pp == 1) return;
  for (int i = 0; i < 2; ++i) {
    Communicator peer = pipeline_;
    if (i == 1 && job_.pp == 2) peer.info = groups.front();
    peer.stream = rec.add_stream(number);
    peer.internal = rec.add_stream(number + 1);
    rec.mark_internal(peer.internal);
    number += 4;
    peers_.push_back(std::move(peer));
  }
}

void GptRank::run() {
  tapes_.resize(static_cast<std::size_t>(job_.chunks));
  for (std::int64_t s = 0; s < job_.steps; ++s) step(job_.first_step + s);
}

Scope GptRank::python(std::string_view name) {
  if (!job_.modules) return {};
  rec_.open(*thread_, OpKind::python, name, kPythonLead);
  return {rec_, *thread_, kPythonTail};
}

Scope GptRank::module(std::string_view name) { return python(fmt::format("nn.Module: {}", name)); }

Scope GptRank::op(HostThread& t, std::string_view name, Ns lead, Ns tail) {
  rec_.open(t, OpKind::cpu_op, name, lead);
  return {rec_, t, tail};
}

Scope GptRank::annotation(std::string_view name, Ns lead) {
  if (!job_.annotations && !name.starts_with("ProfilerStep")) return {};
  rec_.open(main_, OpKind::user_annotation, name, lead);
  return {rec_, main_, 1'500};
}

TaskSpec GptRank::kernel(std::string_view name, const Cost& cost, std::uint32_t threads, std::uint16_t registers) {
  TaskSpec t;
  t.name = name;
  t.duration = cost.duration;
  t.blocks = cost.blocks;
  t.threads = threads;
  t.registers = registers;
  return t;
}

TaskSpec GptRank::gemm_kernel(std::int64_t m, std::int64_t n, std::int64_t k, std::string_view layout) {
  const bool accumulates = layout == "nt" && job_.fuse_wgrad;  // weight gradients are kept in fp32
  std::string_view name;
  if (gpu_.compute_major >= 9) {
    name = layout == "tn"   ? "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute"
                              "_segment_k_off_kernel__5x_cublas"
           : layout == "nn" ? "sm90_xmma_gemm_bf16bf16_bf16f32_f32_nn_n_tilesize128x128x64_warpgroupsize1x1x1_execute"
                              "_segment_k_off_kernel__5x_cublas"
           : accumulates    ? "sm90_xmma_gemm_bf16f32_bf16f32_f32_nt_n_tilesize128x128x64_warpgroupsize1x1x1_execute"
                              "_segment_k_off_kernel__5x_cublas"
                            : "sm90_xmma_gemm_bf16bf16_bf16f32_f32_nt_n_tilesize128x128x64_warpgroupsize1x1x1_execute"
                              "_segment_k_off_kernel__5x_cublas";
  } else {
    name = layout == "tn"   ? "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x4_tn"
           : layout == "nn" ? "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x4_nn"
           : accumulates    ? "ampere_bf16_s16816gemm_fp32_128x128_ldg8_f2f_stages_64x4_nt"
                            : "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x4_nt";
  }
  Cost cost = gemm(gpu_, m, n, k);
  if (accumulates) cost.duration += streaming(gpu_, 8 * m * n).duration / 2;
  TaskSpec t = kernel(name, cost, gpu_.compute_major >= 9 ? 384 : 256, 168);
  t.shared_bytes = 213'000;
  return t;
}

// ---- forward -------------------------------------------------------------------------------------------------------

void GptRank::layer_norm(std::int64_t bucket) {
  const Scope m = module(fmt::format("FusedLayerNorm_{}", modules_++));
  const Scope outer = op(*thread_, "aten::layer_norm");
  const Scope inner = op(*thread_, "aten::native_layer_norm", 2'800);
  const OpId id = last_op();
  rec_.set_shapes(id, fmt::format("[{}, [{}]]", activation(rows_, job_.hidden), job_.hidden),
                  fmt::format("[{}, {}]", kBf16, kBf16));
  rec_.launch(*thread_, compute_,
              kernel("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, "
                     "float, c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, "
                     "c10::BFloat16*)",
                     streaming(gpu_, 4 * rows_ * job_.hidden), 128),
              "cudaLaunchKernel");
  tape().push_back({TapeEntry::Kind::layer_norm, id, next_sequence(id), 0, 0, 0, false, bucket});
}

void GptRank::linear(std::string_view module_name, std::int64_t n, std::int64_t k, bool by_column) {
  const Scope m = module(fmt::format("{}_{}", module_name, modules_++));
  {
    const Scope outer = op(*thread_, kLinear, 11'000, 2'500);
    const OpId id = last_op();
    const bool gathers = split_ && by_column;
    rec_.set_shapes(id,
                    fmt::format("[{}, {}]",
                                job_.fused_pointwise ? shape(gathers ? rows_ : tokens_, k)
                                                     : activation(gathers ? rows_ : tokens_, k),
                                shape(n, k)),
                    fmt::format("[{}, {}]", kBf16, kBf16));
    tape().push_back({TapeEntry::Kind::linear, id, next_sequence(id), tokens_, n, k, by_column && job_.tp > 1});
    if (gathers) wait_for_result(comm_, *thread_, gather(*thread_, tokens_ * k));
    const Scope inner = op(*thread_, "aten::mm", 6'000);
    rec_.set_shapes(last_op(), fmt::format("[{}, {}]", shape(tokens_, k), shape(k, n)),
                    fmt::format("[{}, {}]", kBf16, kBf16));
    rec_.launch(*thread_, compute_, gemm_kernel(tokens_, n, k, "tn"), "cudaLaunchKernel");
  }
  if (by_column || job_.tp == 1) return;
  const Scope reduce =
      op(*thread_, split_ ? "_ReduceScatterToSequenceParallelRegion" : "_ReduceFromModelParallelRegion", 8'000);
  const OpId id = last_op();
  tape().push_back({TapeEntry::Kind::reduce, id, next_sequence(id)});
  wait_for_result(
      comm_, *thread_,
      split_ ? scatter(*thread_, tokens_ * n) : all_reduce(comm_, *thread_, tensor_, tokens_ * n, Dtype::bf16));
}

void GptRank::self_attention() {
  if (job_.recompute == SyntheticJob::Recompute::selective && thread_ == &main_) return checkpoint(-1);
  core_attention();
}

void GptRank::core_attention() {
  if (job_.unfused_attention) return unfused_attention();
  const std::int64_t heads = job_.heads / job_.tp, head_dim = head_dim_;
  const Scope m = module(fmt::format("FlashSelfAttention_{}", modules_++));
  const Scope outer = op(*thread_, "FlashAttnFunc", 4'000);
  const OpId id = last_op();
  const std::string one = fmt::format("[{}, {}, {}, {}]", job_.micro_batch_size, job_.seq_length, heads, head_dim);
  const std::string shared =
      fmt::format("[{}, {}, {}, {}]", job_.micro_batch_size, job_.seq_length, kv_ / head_dim_ / job_.tp, head_dim);
  rec_.set_shapes(id, fmt::format("[{}, {}, {}]", one, shared, shared),
                  fmt::format("[{}, {}, {}]", kBf16, kBf16, kBf16));
  tape().push_back({TapeEntry::Kind::attention, id, next_sequence(id)});
  rec_.kernel_op(*thread_, "flash_attn::_flash_attn_forward", compute_,
                 kernel("void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, "
                        "cutlass::bfloat16_t>, false, true, false, false, true, false>(Flash_fwd_params)",
                        attention(gpu_, job_.micro_batch_size, job_.seq_length, heads, head_dim), 128, 255));
}

// One [seq, dim] x [dim, seq] product a head, the softmax of its rows, one [seq, seq] x [seq, dim].
void GptRank::unfused_attention() {
  const std::int64_t s = job_.seq_length, dim = head_dim_, batch = job_.micro_batch_size * job_.heads / job_.tp;
  const Scope m = module(fmt::format("DotProductAttention_{}", modules_++));
  const auto dims = [](std::int64_t a, std::int64_t b, std::int64_t c) { return fmt::format("[{}, {}, {}]", a, b, c); };
  const auto product = [&](std::string_view name, std::int64_t rows, std::int64_t columns, std::int64_t depth,
                           std::string_view layout) {
    const std::string pair = dims(batch, rows, depth) + ", " + dims(batch, depth, columns);
    Cost cost = gemm(gpu_, rows * batch, columns, depth);
    return Operator{std::string(name),
                    name == "aten::baddbmm" ? fmt::format("[{}, {}, [], []]", dims(batch, rows, columns), pair)
                                            : fmt::format("[{}]", pair),
                    gemm_kernel(128, 128, 64, layout).name,
                    cost,
                    256,
                    {}};
  };
  const std::int64_t scores = batch * s * s;
  const std::string square = dims(batch, s, s);
  eager(product("aten::baddbmm", s, s, dim, "tn"), "BaddbmmBackward0",
        {product("aten::bmm", s, dim, s, "nn"), product("aten::bmm", dim, s, s, "nt")});
  const auto softmax = [&](std::string_view kernel, std::int64_t bytes) {
    return Operator{{}, {}, kernel, streaming(gpu_, bytes * scores), 128, {}};
  };
  Operator forward = softmax(
      "void (anonymous namespace)::scaled_upper_triang_masked_softmax_warp_forward<c10::BFloat16, "
      "c10::BFloat16, float, 11>(c10::BFloat16*, c10::BFloat16 const*, float, int, int, int)",
      4);
  forward.name = "ScaledUpperTriangMaskedSoftmax", forward.dims = fmt::format("[{}, []]", square);
  eager(
      forward, "ScaledUpperTriangMaskedSoftmaxBackward",
      {softmax("void (anonymous namespace)::scaled_upper_triang_masked_softmax_warp_backward<c10::BFloat16, "
               "c10::BFloat16, float, 11>(c10::BFloat16*, c10::BFloat16*, c10::BFloat16 const*, float, int, int, int)",
               6)});
  if (job_.dropout) dropout(fmt::format("[{}, {}, {}, {}]", job_.micro_batch_size, job_.heads / job_.tp, s, s), scores);
  eager(product("aten::bmm", s, dim, s, "nn"), "BmmBackward0",
        {product("aten::bmm", s, s, dim, "tn"), product("aten::bmm", s, dim, s, "nt")});
  const std::int64_t n = tokens_ * attn_ / job_.tp;
  constexpr std::string_view copy =
      "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_"
      "cuda(at::TensorIteratorBase&)::{lambda()#3}> >(int, at::native::gpu_kernel_impl_nocast)";
  eager(elementwise("aten::contiguous", copy,
                    fmt::format("[[{}, {}, {}, {}]]", s, job_.micro_batch_size, job_.heads / job_.tp, dim), n, 4),
        "CloneBackward0", {});
}

GptRank::Operator GptRank::elementwise(std::string_view name, std::string_view kernel, std::string dims,
                                       std::int64_t elements, std::int64_t bytes_each) const {
  Operator o{std::string(name), std::move(dims), kernel, streaming(gpu_, bytes_each * elements), 128, {}};
  o.cost.blocks = blocks_of(elements, 512);
  return o;
}

// A bias' gradient.
GptRank::Operator GptRank::column_sum(std::int64_t rows, std::int64_t width) const {
  Operator o{"aten::sum",
             fmt::format("[{}, [], [], []]", shape(rows, width)),
             "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, at::native::func_wrapper_t<"
             "c10::BFloat16, at::native::sum_functor<c10::BFloat16, float, c10::BFloat16> >, unsigned int, "
             "c10::BFloat16, 4> >()",
             streaming(gpu_, 2 * rows * width),
             512,
             {}};
  o.cost.blocks = blocks_of(width, 32);
  return o;
}

OpId GptRank::run_operator(HostThread& t, const Operator& o) {
  const Scope outer = op(t, o.name);
  const OpId id = t.open.back().op;
  if (!o.dims.empty()) rec_.set_shapes(id, o.dims, fmt::format("[{}]", kBf16));
  if (o.inner.empty()) {
    rec_.launch(t, compute_, kernel(o.kernel, o.cost, o.threads), "cudaLaunchKernel");
  } else {
    rec_.kernel_op(t, o.inner, compute_, kernel(o.kernel, o.cost, o.threads));
  }
  return id;
}

void GptRank::eager(const Operator& forward, std::string_view backward, std::vector<Operator> plan, std::int64_t bias) {
  const OpId id = run_operator(*thread_, forward);
  TapeEntry e{TapeEntry::Kind::planned, id, next_sequence(id)};
  e.backward = backward;
  e.plan = std::move(plan);
  e.bias = bias;
  tape().push_back(std::move(e));
}

constexpr std::string_view kAdd =
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)";

// Of a column-parallel layer, or behind the sum over the ranks.
void GptRank::add_bias(std::int64_t width) {
  const std::int64_t rows = width == job_.hidden ? rows_ : tokens_;
  eager(elementwise("aten::add", kAdd, fmt::format("[{}, [{}], []]", activation(rows, width), width), rows * width, 4),
        "AddBackward0", {column_sum(rows, width)}, width);
}

void GptRank::dropout(const std::string& dims, std::int64_t elements) {
  Operator forward = elementwise(
      "aten::dropout",
      "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<c10::BFloat16, float, unsigned int, 1, 4, "
      "bool>(at::cuda::detail::TensorInfo<c10::BFloat16 const, unsigned int>, unsigned int, float)",
      fmt::format("[{}, [], []]", dims), elements, 5);
  forward.inner = "aten::native_dropout";
  eager(forward, "NativeDropoutBackward0",
        {elementwise("aten::native_dropout_backward",
                     "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::"
                     "masked_scale_kernel<bool, c10::BFloat16>, std::array<char*, 3ul> >(int)",
                     {}, elements, 5)});
}

void GptRank::fused_add() {
  if (!job_.fused_pointwise) {
    const std::string whole = activation(rows_, job_.hidden);
    if (job_.bias) add_bias(job_.hidden);
    if (job_.dropout) dropout(whole, rows_ * job_.hidden);
    return eager(elementwise("aten::add", kAdd, fmt::format("[{}, {}, []]", whole, whole), rows_ * job_.hidden, 6),
                 "AddBackward0", {elementwise("aten::add", kAdd, {}, rows_ * job_.hidden, 6)});
  }
  if (!job_.dropout)
    return eager(
        {"triton_poi_fused_add_0", {}, "triton_poi_fused_add_0", streaming(gpu_, 6 * rows_ * job_.hidden), 128, {}},
        "CompiledFunctionBackward", {});
  const OpId id = rec_.kernel_op(
      *thread_, "triton_poi_fused_add_native_dropout_0", compute_,
      kernel("triton_poi_fused_add_native_dropout_0", streaming(gpu_, 7 * rows_ * job_.hidden), 128), "cuLaunchKernel");
  tape().push_back({TapeEntry::Kind::fused_add, id, next_sequence(id)});
}

void GptRank::gelu() {
  const std::int64_t n = ffn_ / job_.tp;
  if (job_.swiglu || !job_.fused_pointwise) {
    const std::int64_t wide = job_.swiglu ? 2 * n : n;
    const std::string in = activation(tokens_, wide);
    Operator forward{job_.swiglu ? job_.bias ? "BiasSwiGLUFunction" : "SwiGLUFunction" : "GeLUFunction",
                     job_.bias ? fmt::format("[{}, [{}]]", in, wide) : fmt::format("[{}]", in),
                     job_.swiglu ? "triton_poi_fused_mul_silu_split_1" : "triton_poi_fused_add_mul_tanh_1",
                     streaming(gpu_, 2 * tokens_ * (wide + n)),
                     128,
                     {}};
    std::vector<Operator> plan{
        {{},
         {},
         job_.swiglu ? "triton_poi_fused_cat_mul_silu_backward_4" : "triton_poi_fused_add_mul_tanh_backward_3",
         streaming(gpu_, 2 * tokens_ * (2 * wide + n)),
         128,
         {}}};
    forward.cost.blocks = blocks_of(tokens_ * n, 512);
    plan.front().cost.blocks = blocks_of(tokens_ * wide, 512);
    if (job_.bias) plan.push_back(column_sum(tokens_, wide));
    return eager(
        forward,
        job_.swiglu ? job_.bias ? "BiasSwiGLUFunctionBackward" : "SwiGLUFunctionBackward" : "GeLUFunctionBackward",
        std::move(plan), job_.bias ? wide : 0);
  }
  const OpId id = rec_.kernel_op(*thread_, "GeLUFunction", compute_,
                                 kernel("triton_poi_fused_add_mul_tanh_1", streaming(gpu_, 4 * tokens_ * n), 128),
                                 "cuLaunchKernel");
  tape().push_back({TapeEntry::Kind::gelu, id, next_sequence(id), tokens_, n});
}

void GptRank::layer(std::int64_t l) {
  const std::int64_t h = job_.hidden, tp = job_.tp;
  const Scope m = module(fmt::format("TransformerLayer_{}", l));
  layer_norm(layer_parameters());  // the layer's last gradients in the backward pass
  {
    const Scope attention_module = module(fmt::format("SelfAttention_{}", l));
    linear("ColumnParallelLinear", (attn_ + 2 * kv_) / tp, h, true);
    if (!job_.fused_pointwise && job_.bias) add_bias((attn_ + 2 * kv_) / tp);
    self_attention();
    linear("RowParallelLinear", h, attn_ / tp, false);
  }
  fused_add();
  layer_norm();
  if (job_.experts > 0) experts(l);
  if (job_.experts == 0 || job_.shared_expert) {
    const Scope mlp = module(fmt::format("MLP_{}", l));
    linear("ColumnParallelLinear", (job_.swiglu ? 2 : 1) * ffn_ / tp, h, true);
    gelu();
    linear("RowParallelLinear", h, ffn_ / tp, false);
  }
  fused_add();
}

void GptRank::embedding() {
  {
    const Scope to = op(*thread_, "aten::_to_copy", 9'000);
    const Scope copy = op(*thread_, "aten::copy_", 3'000);
    TaskSpec t;
    t.kind = OpKind::memcpy;
    t.name = "Memcpy HtoD (Pinned -> Device)";
    t.bytes = 16 * tokens_;
    t.duration = 1'200 + t.bytes / 20;
    rec_.launch(*thread_, compute_, t, "cudaMemcpyAsync");
  }
  const Scope m = module("LanguageModelEmbedding_0");
  const Scope outer = op(*thread_, "aten::embedding");
  const OpId id = last_op();
  rec_.set_shapes(
      id,
      fmt::format("[{}, {}]", shape(job_.vocab / job_.tp, job_.hidden), shape(job_.micro_batch_size, job_.seq_length)),
      fmt::format("[{}, \"long int\"]", kBf16));
  tape().push_back(
      {TapeEntry::Kind::embedding, id, next_sequence(id), 0, 0, 0, false, job_.vocab * job_.hidden / job_.tp});
  rec_.kernel_op(
      *thread_, "aten::index_select", compute_,
      kernel("void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, "
             "2, -2, true>(at::cuda::detail::TensorInfo<c10::BFloat16, unsigned int>)",
             streaming(gpu_, 4 * tokens_ * job_.hidden), 128));
  if (job_.tp > 1)
    wait_for_result(comm_, *thread_,
                    split_ ? scatter(*thread_, tokens_ * job_.hidden)
                           : all_reduce(comm_, *thread_, tensor_, tokens_ * job_.hidden, Dtype::bf16));
}

void GptRank::loss() {
  const std::int64_t n = job_.vocab / job_.tp;
  layer_norm(job_.tied_embedding && job_.pp == 1 ? 0 : n * job_.hidden);
  linear("ColumnParallelLinear", n, job_.hidden, true);
  const Scope outer = op(*thread_, "_VocabParallelCrossEntropy", 9'000);
  const OpId id = last_op();
  tape().push_back({TapeEntry::Kind::loss, id, next_sequence(id), tokens_, n});
  rec_.kernel_op(
      *thread_, "aten::exp", compute_,
      kernel("void at::native::vectorized_elementwise_kernel<4, at::native::exp_kernel_cuda(at::TensorIteratorBase&)"
             "::{lambda()#1}, at::detail::Array<char*, 2> >(int)",
             streaming(gpu_, 6 * tokens_ * n), 128));
  rec_.kernel_op(
      *thread_, "aten::sum", compute_,
      kernel("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, "
             "at::native::sum_functor<float, float, float> >, unsigned int, float, 4> >()",
             streaming(gpu_, 4 * tokens_ * n), 512));
  for (int i = 0; i < job_.loss_sums && job_.tp > 1; ++i)
    wait_for_result(comm_, *thread_, all_reduce(comm_, *thread_, tensor_, tokens_, Dtype::f32));
  rec_.kernel_op(
      *thread_, "aten::log", compute_,
      kernel("void at::native::vectorized_elementwise_kernel<4, at::native::log_kernel_cuda(at::TensorIteratorBase&)"
             "::{lambda()#1}, at::detail::Array<char*, 2> >(int)",
             streaming(gpu_, 8 * tokens_), 128));
}

// loss.isnan(), asked by the host.
void GptRank::read_loss() {
  rec_.kernel_op(main_, "aten::isnan", compute_,
                 kernel("void at::native::vectorized_elementwise_kernel<4, at::native::CompareNEFunctor<float>, "
                        "at::detail::Array<char*, 3> >(int)",
                        streaming(gpu_, 8), 128));
  const Scope item = op(main_, "aten::is_nonzero");
  const Scope scalar = op(main_, "aten::_local_scalar_dense");
  TaskSpec t;
  t.kind = OpKind::memcpy;
  t.name = job_.item_pageable ? "Memcpy DtoH (Device -> Pageable)" : "Memcpy DtoH (Device -> Pinned)";
  t.bytes = 1;
  t.duration = 1'300;
  rec_.launch(main_, compute_, t, "cudaMemcpyAsync", job_.item_pageable);
  rec_.synchronize_stream(main_, compute_);
}

// Forward work without an autograd graph: one node of it stands for all.
void GptRank::checkpoint(std::int64_t l) {
  const Scope outer = op(main_, "CheckpointFunction", 6'000);
  const OpId id = last_op();
  const std::size_t before = tape().size();
  l < 0 ? core_attention() : layer(l);
  tape().erase(tape().begin() + static_cast<std::ptrdiff_t>(before), tape().end());
  tape().push_back({TapeEntry::Kind::checkpoint, id, next_sequence(id), l});
}

void GptRank::forward(std::int64_t chunk) {
  const Scope range = annotation("forward_step");
  chunk_ = chunk;
  tapes_[static_cast<std::size_t>(chunk)].emplace_back();
  modules_ = 0;
  if (job_.broadcast_batch && job_.tp > 1 &&
      ((first_stage() && chunk == 0) || (last_stage() && chunk == job_.chunks - 1)))
    wait_for_result(comm_, main_, collective(comm_, main_, tensor_, Collective::broadcast, 2 * tokens_, Dtype::i64));
  if (first_stage() && chunk == 0) embedding();
  const std::int64_t per_part = job_.layers / job_.pp / job_.chunks;
  for (std::int64_t l = 0; l < per_part; ++l)
    job_.recompute == SyntheticJob::Recompute::full ? checkpoint(l) : layer(l);
  if (last_stage() && chunk == job_.chunks - 1) {
    loss();
    if (job_.nan_check) read_loss();
  }
}

// ---- backward ------------------------------------------------------------------------------------------------------

std::string_view backward_name(TapeEntry::Kind kind) {
  switch (kind) {
    case TapeEntry::Kind::fused_add:
      return "CompiledFunctionBackward";
    case TapeEntry::Kind::reduce:
      return "_ReduceFromModelParallelRegionBackward";
    case TapeEntry::Kind::linear:
      return "LinearWithGradAccumulationAndAsyncCommunicationBackward";
    case TapeEntry::Kind::gelu:
      return "GeLUFunctionBackward";
    case TapeEntry::Kind::attention:
      return "FlashAttnFuncBackward";
    case TapeEntry::Kind::layer_norm:
      return "NativeLayerNormBackward0";
    case TapeEntry::Kind::embedding:
      return "EmbeddingBackward0";
    case TapeEntry::Kind::loss:
      return "_VocabParallelCrossEntropyBackward";
    case TapeEntry::Kind::checkpoint:
      return "CheckpointFunctionBackward";
    case TapeEntry::Kind::all_to_all:
      return "_AllToAllBackward";
    case TapeEntry::Kind::spread:
      return "_GatherFromSequenceParallelRegionBackward";
    case TapeEntry::Kind::joined:
      return "_ReduceScatterToSequenceParallelRegionBackward";
    case TapeEntry::Kind::grouped:
    case TapeEntry::Kind::planned:
      break;  // says its name itself
  }
  return "";
}

void GptRank::accumulate_gradient(std::int64_t elements) {
  const Scope outer =
      op(autograd_, "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 3'000, 2'500);
  const Scope inner = op(autograd_, "torch::autograd::AccumulateGrad", 2'300);
  rec_.kernel_op(
      autograd_, "aten::add_", compute_,
      kernel("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
             "at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)",
             streaming(gpu_, 10 * elements), 128));
}

// An unfused gradient of a weight: of the product's type, added to the fp32 one.
void GptRank::accumulate_weight(std::int64_t n, std::int64_t k) {
  const Scope outer =
      op(autograd_, "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 3'000, 2'500);
  const Scope inner = op(autograd_, "torch::autograd::AccumulateGrad", 2'300);
  run_operator(autograd_, elementwise("aten::add_",
                                      "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<"
                                      "float>, std::array<char*, 3ul> >(int)",
                                      fmt::format("[{}, {}, []]", shape(n, k), shape(n, k)), n * k, 10));
}

void GptRank::backward_linear(const TapeEntry& e) {
  // What was gathered was not kept; meanwhile the output's gradient is used.
  Event gathered;
  if (split_ && e.reduce_input_gradient) gathered = gather(autograd_, e.m * e.k);
  {
    const Scope mm = op(autograd_, "aten::mm", 16'000);
    rec_.set_shapes(autograd_.open.back().op, fmt::format("[{}, {}]", shape(e.m, e.n), shape(e.n, e.k)),
                    fmt::format("[{}, {}]", kBf16, kBf16));
    rec_.launch(autograd_, compute_, gemm_kernel(e.m, e.k, e.n, "nn"), "cudaLaunchKernel");
  }
  // The input's gradient is summed over the ranks while the weight's is computed.
  Event reduced;
  if (!gathered.tasks.empty()) wait_for_result(comm_, autograd_, gathered);
  if (e.reduce_input_gradient)
    reduced = split_ ? scatter(autograd_, e.m * e.k) : all_reduce(comm_, autograd_, tensor_, e.m * e.k, Dtype::bf16);
  if (job_.fuse_wgrad) {
    rec_.launch(autograd_, compute_, gemm_kernel(e.n, e.k, e.m, "nt"), "cudaLaunchKernel");
  } else {
    const Scope mm = op(autograd_, "aten::mm", 6'000);
    rec_.set_shapes(autograd_.open.back().op, fmt::format("[{}, {}]", shape(e.n, e.m), shape(e.m, e.k)),
                    fmt::format("[{}, {}]", kBf16, kBf16));
    rec_.launch(autograd_, compute_, gemm_kernel(e.n, e.k, e.m, "nt"), "cudaLaunchKernel");
  }
  if (e.reduce_input_gradient) wait_for_result(comm_, autograd_, reduced);
}

void GptRank::backward_work(const TapeEntry& e) {
  const std::int64_t th = rows_ * job_.hidden;
  switch (e.kind) {
    case TapeEntry::Kind::reduce:  // the identity, where whole
      if (split_) wait_for_result(comm_, autograd_, gather(autograd_, tokens_ * job_.hidden));
      break;
    case TapeEntry::Kind::planned:
      for (const Operator& o : e.plan) {
        if (o.name.empty())
          rec_.launch(autograd_, compute_, kernel(o.kernel, o.cost, o.threads), "cudaLaunchKernel");
        else
          run_operator(autograd_, o);
      }
      break;
    case TapeEntry::Kind::linear:
      backward_linear(e);
      break;
    case TapeEntry::Kind::all_to_all:
    case TapeEntry::Kind::spread:
    case TapeEntry::Kind::joined:
    case TapeEntry::Kind::grouped:
      experts_backward(e);
      break;
    case TapeEntry::Kind::fused_add:
      rec_.kernel_op(autograd_, "triton_poi_fused_native_dropout_backward_2", compute_,
                     kernel("triton_poi_fused_native_dropout_backward_2", streaming(gpu_, 5 * th), 128),
                     "cuLaunchKernel");
      break;
    case TapeEntry::Kind::gelu:
      rec_.launch(autograd_, compute_,
                  kernel("triton_poi_fused_add_mul_tanh_backward_3", streaming(gpu_, 6 * e.m * e.n), 128),
                  "cuLaunchKernel");
      break;
    case TapeEntry::Kind::attention: {
      const std::int64_t heads = job_.heads / job_.tp;
      Cost cost = attention(gpu_, job_.micro_batch_size, job_.seq_length, heads, head_dim_);
      cost.duration = cost.duration * 5 / 2;
      const Scope inner = op(autograd_, "flash_attn::_flash_attn_backward", 6'000);
      rec_.launch(
          autograd_, compute_,
          kernel("void flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<128, 64, 128, 8, 2, 4, 2, false, false, "
                 "cutlass::bfloat16_t> >(Flash_bwd_params)",
                 streaming(gpu_, 4 * tokens_ * attn_ / job_.tp)),
          "cudaLaunchKernel");
      rec_.launch(
          autograd_, compute_,
          kernel("void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128, 8, 2, 4, 2, "
                 "false, false, cutlass::bfloat16_t>, false, true, false, false, true, true>(Flash_bwd_params)",
                 cost, 256, 255),
          "cudaLaunchKernel");
      break;
    }
    case TapeEntry::Kind::layer_norm: {
      const Scope inner = op(autograd_, "aten::native_layer_norm_backward");
      rec_.launch(
          autograd_, compute_,
          kernel("void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<c10::BFloat16, "
                 "float>(c10::BFloat16 const*, c10::BFloat16 const*, float const*, float const*)",
                 streaming(gpu_, 6 * th), 128),
          "cudaLaunchKernel");
      rec_.launch(
          autograd_, compute_,
          kernel(
              "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel_32x32<c10::BFloat16, float>(long, "
              "long, c10::BFloat16 const*, c10::BFloat16 const*, float const*, float const*)",
              streaming(gpu_, 4 * th), 512),
          "cudaLaunchKernel");
      break;
    }
    case TapeEntry::Kind::embedding:
      if (split_) wait_for_result(comm_, autograd_, gather(autograd_, tokens_ * job_.hidden));
      rec_.kernel_op(
          autograd_, "aten::embedding_dense_backward", compute_,
          kernel("void at::native::(anonymous namespace)::compute_grad_weight<c10::BFloat16, long>(long const*, "
                 "c10::BFloat16 const*, long const*, long, long)",
                 streaming(gpu_, 8 * tokens_ * job_.hidden)));
      break;
    case TapeEntry::Kind::checkpoint:
      again(e.m);
      break;
    case TapeEntry::Kind::loss:
      rec_.kernel_op(
          autograd_, "aten::mul_", compute_,
          kernel("void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, "
                 "at::native::binary_internal::MulFunctor<float> >, at::detail::Array<char*, 3> >(int)",
                 streaming(gpu_, 6 * e.m * e.n), 128));
      break;
  }
}

// The forward work of a checkpoint on the autograd thread, then the backward pass of that.
void GptRank::again(std::int64_t l) {
  auto& tapes = tapes_[static_cast<std::size_t>(chunk_)];
  tapes.emplace_back();
  thread_ = &autograd_;
  l < 0 ? core_attention() : layer(l);
  thread_ = &main_;
  const std::vector<TapeEntry> tape = std::move(tapes.back());
  tapes.pop_back();
  for (auto e = tape.rbegin(); e != tape.rend(); ++e) backward_node(*e, last_pass_);
}

void GptRank::backward_node(const TapeEntry& e, bool last) {
  // the embedding completes a table that the head shares
  const bool shared = job_.tied_embedding && job_.pp == 1 && e.n == job_.vocab / job_.tp;
  const std::string_view name = e.backward.empty() ? backward_name(e.kind) : e.backward;
  {
    const Scope outer = op(autograd_, fmt::format("autograd::engine::evaluate_function: {}", name), 3'400, 1'600);
    rec_.set_sequence(autograd_.open.back().op, e.sequence, 1);
    const Scope inner = op(autograd_, name, 2'600);
    const OpId id = autograd_.open.back().op;
    rec_.set_sequence(id, e.sequence, 1);
    rec_.link_backward(e.op, id);
    backward_work(e);
  }
  if (e.kind == TapeEntry::Kind::layer_norm) accumulate_gradient(2 * job_.hidden);
  if (e.kind == TapeEntry::Kind::linear && !job_.fuse_wgrad) accumulate_weight(e.n, e.k);
  if (e.bias > 0) accumulate_gradient(e.bias);
  if (!last || job_.dp == 1) return;
  if (e.kind == TapeEntry::Kind::grouped && own_experts() && expert_data_.size() > 1) {
    gathered_of_experts_ += job_.experts / job_.ep * e.n * e.k;
    const std::int64_t full = job_.bucket_parameters > 0 ? job_.bucket_parameters : expert_parameters();
    if (gathered_of_experts_ >= full) close_expert_bucket(std::exchange(gathered_of_experts_, 0));
  }
  if (job_.bucket_parameters > 0) {
    if (e.kind == TapeEntry::Kind::linear && !shared) gathered_ += e.n * e.k;
    if (e.kind == TapeEntry::Kind::grouped && !own_experts()) gathered_ += job_.experts * e.n * e.k;
    if (e.kind == TapeEntry::Kind::embedding) gathered_ += e.bucket;
    if (gathered_ >= job_.bucket_parameters) close_bucket(std::exchange(gathered_, 0));
  } else if (e.bucket > 0) {
    close_bucket(e.bucket);
  }
}

void GptRank::close_bucket(std::int64_t parameters) {
  buckets_.push_back(parameters);
  if (job_.overlap_gradients) gradients_ready_.push_back(reduce_gradients(autograd_, parameters));
}

Event GptRank::reduce_gradients(HostThread& t, std::int64_t elements) {
  if (job_.scale_gradients) {
    const OpId scale = rec_.kernel_op(
        t, "aten::mul_", compute_,
        kernel("void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, float, float, "
               "at::native::binary_internal::MulFunctor<float> >, at::detail::Array<char*, 2> >(int)",
               streaming(gpu_, 8 * elements), 128));
    rec_.set_shapes(scale, fmt::format("[[{}], []]", elements), "[\"float\", \"double\"]");
  }
  const auto kind = job_.distributed_optimizer ? Collective::reduce_scatter : Collective::all_reduce;
  return collective(comm_, t, data_, kind, elements, Dtype::f32);
}

void GptRank::backward(std::int64_t chunk, bool last) {
  chunk_ = chunk;
  last_pass_ = last;
  const Scope range = annotation("backward_step");
  const Scope frame = python("torch/autograd/__init__.py(165): backward");
  rec_.wake(main_, autograd_, kWakeLag);
  auto& tapes = tapes_[static_cast<std::size_t>(chunk)];
  const std::vector<TapeEntry> tape = std::move(tapes.front());
  tapes.erase(tapes.begin());
  for (auto e = tape.rbegin(); e != tape.rend(); ++e) backward_node(*e, last);
  if (gathered_of_experts_ > 0) close_expert_bucket(std::exchange(gathered_of_experts_, 0));
  if (gathered_ > 0) close_bucket(std::exchange(gathered_, 0));
  rec_.wake(autograd_, main_, kWakeBackLag);
}

}  // namespace orrery::synth
