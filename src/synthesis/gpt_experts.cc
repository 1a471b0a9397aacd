// Layers with experts of a made-up GPT job, in the manner of Megatron-LM's all-to-all dispatcher: a router, tokens
// copied for each expert that they go to, sent, worked on by the rank's experts, sent back and added up.
#include <fmt/format.h>

#include <utility>

#include "synthesis/gpt_rank.h"

namespace orrery::synth {

std::int64_t GptRank::tokens_for_experts() {
  const std::int64_t mean = rows_ * job_.experts_per_token;
  // ranks that share an expert get the same
  Noise noise{mix(job_.seed ^ mix(static_cast<std::uint64_t>(rank_ / job_.tp * 1'000'003 + routed_++))), 0};
  const std::int64_t n = noise.vary(mean, static_cast<std::int64_t>(1e6 * job_.routing_skew));
  return std::max<std::int64_t>(n, 1) * job_.tp;
}

// An operator that copies or adds up rows of the hidden state.
void GptRank::pass_tokens(std::string_view name, std::string_view kernel, std::int64_t rows) {
  const std::string dims = fmt::format("[{}]", shape(rows, job_.hidden));
  const Cost cost = streaming(gpu_, 4 * rows * job_.hidden);
  eager({std::string(name), dims, kernel, cost, 128, {}}, fmt::format("{}Backward", name),
        {{{}, {}, kernel, cost, 128, {}}});
}

void GptRank::router() {
  const Scope m = module(fmt::format("TopKRouter_{}", modules_++));
  const auto forward = [&] {
    const Scope outer = op(*thread_, "RouterGatingLinearFunction", 9'000, 2'500);
    const OpId id = last_op();
    rec_.set_shapes(id, fmt::format("[{}, {}]", shape(rows_, job_.hidden), shape(job_.experts, job_.hidden)),
                    fmt::format("[{}, {}]", kBf16, kBf16));
    tape().push_back({TapeEntry::Kind::linear, id, next_sequence(id), rows_, job_.experts, job_.hidden});
    const Scope inner = op(*thread_, "aten::mm", 6'000);
    rec_.set_shapes(last_op(), fmt::format("[{}, {}]", shape(rows_, job_.hidden), shape(job_.hidden, job_.experts)),
                    fmt::format("[{}, {}]", kBf16, kBf16));
    rec_.launch(*thread_, compute_, gemm_kernel(rows_, job_.experts, job_.hidden, "tn"), "cudaLaunchKernel");
  };
  forward();
  const std::string scores = fmt::format("[{}]", shape(rows_, job_.experts));
  eager({"aten::topk",
         scores,
         "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(at::cuda::detail::TensorInfo<float, "
         "unsigned int>, unsigned int, unsigned int)",
         streaming(gpu_, 4 * rows_ * job_.experts),
         64,
         {}},
        "TopkBackward0",
        {{{},
          {},
          "void at::native::_scatter_gather_elementwise_kernel<128, 4>(int)",
          streaming(gpu_, 4 * rows_ * job_.experts),
          128,
          {}}});
}

// All to all over the ranks that share the layer's experts; back the same way.
void GptRank::exchange_tokens(std::int64_t elements) {
  const Scope outer = op(*thread_, "_AllToAll", 6'000);
  const OpId id = last_op();
  tape().push_back({TapeEntry::Kind::all_to_all, id, next_sequence(id), elements});
  if (expert_.size() > 1)
    wait_for_result(comm_, *thread_,
                    collective(comm_, *thread_, expert_, Collective::all_to_all, elements, Dtype::bf16));
}

// Ranks that share an expert all work on all of its tokens.
void GptRank::share_tokens(std::int64_t elements, bool spread) {
  if (expert_tensor_.size() < 2) return;
  const Scope outer =
      op(*thread_, spread ? "_GatherFromSequenceParallelRegion" : "_ReduceScatterToSequenceParallelRegion", 8'000);
  const OpId id = last_op();
  tape().push_back({spread ? TapeEntry::Kind::spread : TapeEntry::Kind::joined, id, next_sequence(id), elements});
  wait_for_result(comm_, *thread_,
                  collective(comm_, *thread_, expert_tensor_,
                             spread ? Collective::all_gather : Collective::reduce_scatter, elements, Dtype::bf16));
}

// [rows, k] x [k, n], or of the weights [n, rows] x [rows, k]; the rows dealt evenly to the experts.
void GptRank::launch_grouped(HostThread& t, std::int64_t rows, std::int64_t n, std::int64_t k, bool of_weight) {
  const std::int64_t count = job_.experts / job_.ep, each = (rows + count - 1) / count;
  const std::int64_t a = of_weight ? n : each, b = of_weight ? k : n, c = of_weight ? each : k;
  if (!job_.grouped_gemm) {
    for (std::int64_t e = 0; e < count; ++e)
      rec_.launch(t, compute_, gemm_kernel(a, b, c, of_weight ? "nt" : "tn"), "cudaLaunchKernel");
    return;
  }
  Cost cost = grouped_gemm(gpu_, count, a, b, c);
  if (of_weight && job_.fuse_wgrad) cost.duration += streaming(gpu_, 8 * count * n * k).duration / 2;
  TaskSpec task =
      kernel(of_weight ? "void cutlass::Kernel<cutlass::gemm::kernel::GemmGrouped<cutlass::gemm::threadblock::"
                         "MmaMultistage<cutlass::gemm::GemmShape<128, 128, 64>, 4>, true> >(Params)"
                       : "void cutlass::Kernel<cutlass::gemm::kernel::GemmGrouped<cutlass::gemm::threadblock::"
                         "MmaMultistage<cutlass::gemm::GemmShape<128, 128, 64>, 4>, false> >(Params)",
             cost, 384, 168);
  rec_.launch(t, compute_, task, "cudaLaunchKernel");
}

void GptRank::grouped_linear(std::int64_t rows, std::int64_t n, std::int64_t k) {
  const std::int64_t count = job_.experts / job_.ep;
  const Scope m = module(fmt::format("TEGroupedLinear_{}", modules_++));
  const Scope outer = op(*thread_, job_.grouped_gemm ? "GroupedGemm" : "_GroupedLinear", 12'000, 2'500);
  const OpId id = last_op();
  std::string weights;
  if (job_.grouped_gemm) {
    weights = fmt::format("[{}, {}, {}], [{}]", count, k, n, count);
  } else {
    for (std::int64_t e = 0; e < count; ++e) weights += (e == 0 ? "" : ", ") + shape(n, k);
  }
  rec_.set_shapes(id, fmt::format("[{}, {}]", shape(rows, k), weights), fmt::format("[{}, {}]", kBf16, kBf16));
  TapeEntry e{TapeEntry::Kind::grouped, id, next_sequence(id), rows, n, k};
  e.backward = job_.grouped_gemm ? "GroupedGemmBackward" : "_GroupedLinearBackward";
  tape().push_back(std::move(e));
  launch_grouped(*thread_, rows, n, k, false);
}

void GptRank::experts(std::int64_t l) {
  const Scope m = module(fmt::format("MoELayer_{}", l));
  const std::int64_t h = job_.hidden, sent = rows_ * job_.experts_per_token, width = expert_ffn_ / job_.tp;
  constexpr std::string_view kPermute = "_permute_kernel", kSort = "_sort_chunks_by_map_kernel";
  router();
  pass_tokens("_moe_permute_mask_map", kPermute, sent);
  exchange_tokens(sent * h);
  const std::int64_t got = tokens_for_experts();
  share_tokens(sent * job_.tp * h, true);
  pass_tokens("_moe_chunk_sort", kSort, got);
  {
    const Scope mlp = module(fmt::format("TEGroupedMLP_{}", l));
    const std::int64_t wide = (job_.swiglu ? 2 : 1) * width;
    grouped_linear(got, wide, h);
    eager(
        {job_.swiglu ? "WeightedSwiGLUFunction" : "WeightedGeLUFunction",
         fmt::format("[{}]", shape(got, wide)),
         "triton_poi_fused_mul_experts_1",
         streaming(gpu_, 2 * got * (wide + width)),
         128,
         {}},
        job_.swiglu ? "WeightedSwiGLUFunctionBackward" : "WeightedGeLUFunctionBackward",
        {{{}, {}, "triton_poi_fused_mul_experts_backward_2", streaming(gpu_, 2 * got * (2 * wide + width)), 128, {}}});
    grouped_linear(got, h, width);
  }
  pass_tokens("_moe_chunk_sort", kSort, got);
  share_tokens(sent * job_.tp * h, false);
  exchange_tokens(sent * h);
  pass_tokens("_moe_unpermute_mask_map", "_unpermute_kernel", sent);
}

void GptRank::experts_backward(const TapeEntry& e) {
  const auto run = [&](Communicator& group, Collective kind) {
    if (group.size() > 1)
      wait_for_result(comm_, autograd_, collective(comm_, autograd_, group, kind, e.m, Dtype::bf16));
  };
  switch (e.kind) {
    case TapeEntry::Kind::all_to_all:
      return run(expert_, Collective::all_to_all);
    case TapeEntry::Kind::spread:
      return run(expert_tensor_, Collective::reduce_scatter);
    case TapeEntry::Kind::joined:
      return run(expert_tensor_, Collective::all_gather);
    default:
      launch_grouped(autograd_, e.m, e.k, e.n, false);
      launch_grouped(autograd_, e.m, e.n, e.k, true);
  }
}

void GptRank::close_expert_bucket(std::int64_t parameters) {
  expert_buckets_.push_back(parameters);
  if (!job_.overlap_gradients) return;
  gradients_ready_.push_back(collective(
      comm_, autograd_, expert_data_, job_.distributed_optimizer ? Collective::reduce_scatter : Collective::all_reduce,
      parameters, Dtype::f32));
}

}  // namespace orrery::synth
