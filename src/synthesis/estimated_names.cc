#include "synthesis/estimated_names.h"

#include <algorithm>

namespace orrery::synth {

OperatorNames names_of(Part part) {
  constexpr std::string_view kLinear = "LinearWithGradAccumulationAndAsyncCommunication",
                             kLinearBackward = "LinearWithGradAccumulationAndAsyncCommunicationBackward";
  switch (part) {
    case Part::embedding:
      return {"aten::embedding", "EmbeddingBackward0", "",
              "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, "
              "-2, true>()",
              "void at::native::(anonymous namespace)::compute_grad_weight<c10::BFloat16, long>(long const*, "
              "c10::BFloat16 const*, long const*, long, long)"};
    case Part::norm:
      return {"aten::layer_norm", "NativeLayerNormBackward0", "aten::native_layer_norm",
              "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float, "
              "c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)",
              "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<c10::BFloat16, "
              "float>(c10::BFloat16 const*, c10::BFloat16 const*, float const*, float const*)"};
    case Part::qkv:
    case Part::projection:
    case Part::mlp_up:
    case Part::mlp_down:
    case Part::shared_experts:
    case Part::head:
      return {kLinear, kLinearBackward, "aten::mm", "", ""};
    case Part::adapters:
      return {"aten::linear", "MmBackward0", "aten::mm", "triton_poi_fused_add_lora_1",
              "triton_poi_fused_add_lora_backward_2"};
    case Part::router:
      return {"RouterGatingLinearFunction", "RouterGatingLinearFunctionBackward", "aten::mm",
              "triton_red_fused_softmax_topk_0", "triton_red_fused_softmax_topk_backward_1"};
    case Part::experts:
      return {"GroupedGemm", "GroupedGemmBackward", "", "", ""};
    case Part::rotary:
      return {"FusedRoPEFunc", "FusedRoPEFuncBackward", "", "fused_rope_forward_kernel", "fused_rope_backward_kernel"};
    case Part::scores:
      return {"aten::baddbmm", "BaddbmmBackward0", "aten::bmm", "", ""};
    case Part::context:
      return {"aten::bmm", "BmmBackward0", "aten::bmm", "", ""};
    case Part::softmax:
      return {"ScaledUpperTriangMaskedSoftmax", "ScaledUpperTriangMaskedSoftmaxBackward", "",
              "void (anonymous namespace)::scaled_upper_triang_masked_softmax_warp_forward<c10::BFloat16, "
              "c10::BFloat16, float, 11>(c10::BFloat16*, c10::BFloat16 const*, float, int, int, int)",
              "void (anonymous namespace)::scaled_upper_triang_masked_softmax_warp_backward<c10::BFloat16, "
              "c10::BFloat16, float, 11>(c10::BFloat16*, c10::BFloat16*, c10::BFloat16 const*, float, int, int, int)"};
    case Part::attention:
      return {"FlashAttnFunc", "FlashAttnFuncBackward", "flash_attn::_flash_attn_forward",
              "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t>, "
              "false, true, false, false, true, false>(Flash_fwd_params)",
              "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128, 8, 2, 4, 2, "
              "false, false, cutlass::bfloat16_t>, false, true, false, false, true, true>(Flash_bwd_params)"};
    case Part::activation:
      return {"SwiGLUFunction", "SwiGLUFunctionBackward", "", "triton_poi_fused_mul_silu_split_1",
              "triton_poi_fused_mul_silu_split_backward_2"};
    case Part::dispatch:
      return {"_moe_permute_mask_map", "_moe_permute_mask_mapBackward", "", "_permute_kernel", "_unpermute_kernel"};
    case Part::residual:
      return {"aten::add", "AddBackward0", "",
              "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
              "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)",
              "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
              "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"};
    case Part::loss:
      return {"_VocabParallelCrossEntropy", "_VocabParallelCrossEntropyBackward", "",
              "triton_red_fused_exp_log_max_sum_0", "triton_poi_fused_exp_mul_sub_1"};
    case Part::quantize:
      return {"transformer_engine::cast_to_fp8", "CastToFp8Backward", "",
              "void transformer_engine::cast_transpose_kernel<c10::BFloat16>()",
              "void transformer_engine::cast_transpose_kernel<c10::BFloat16>()"};
    case Part::dequantize:
      return {"bitsandbytes::dequantize_4bit", "MatMul4BitBackward", "",
              "void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>(float*, unsigned char*, float*)",
              "void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>(float*, unsigned char*, float*)"};
    case Part::gradients:
      return {"aten::zero_", "AccumulateGrad", "",
              "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
              "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
              "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
              "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"};
    case Part::optimizer:
      return {"aten::_fused_adam_", "", "",
              "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float, int>, float, float, "
              "float, int, int, float>(long, int volatile*, TensorListMetadata<4>, AdamFunctor<float, float, int>)",
              ""};
    default:
      return {"aten::copy_", "CopyBackwards", "", "direct_copy_kernel", "direct_copy_kernel"};
  }
}

std::string_view product_kernel(const GpuFacts& gpu, std::string_view layout, bool grouped) {
  if (grouped)
    return layout == "nt" ? "void cutlass::Kernel<cutlass::gemm::kernel::GemmGrouped<cutlass::gemm::threadblock::"
                            "MmaMultistage<cutlass::gemm::GemmShape<128, 128, 64>, 4>, true> >(Params)"
                          : "void cutlass::Kernel<cutlass::gemm::kernel::GemmGrouped<cutlass::gemm::threadblock::"
                            "MmaMultistage<cutlass::gemm::GemmShape<128, 128, 64>, 4>, false> >(Params)";
  const Architecture a = architecture_of(gpu);
  const bool hopper = a == Architecture::hopper || a == Architecture::blackwell;
  if (layout == "tn")
    return hopper ? "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_"
                    "off_kernel__5x_cublas"
                  : "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x4_tn";
  if (layout == "nn")
    return hopper ? "sm90_xmma_gemm_bf16bf16_bf16f32_f32_nn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_"
                    "off_kernel__5x_cublas"
                  : "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x4_nn";
  return hopper ? "sm90_xmma_gemm_bf16f32_bf16f32_f32_nt_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_"
                  "kernel__5x_cublas"
                : "ampere_bf16_s16816gemm_fp32_128x128_ldg8_f2f_stages_64x4_nt";
}

std::string_view linear_of(Part part) {
  if (part == Part::qkv || part == Part::mlp_up) return "ColumnParallelLinear";
  return part == Part::projection || part == Part::mlp_down ? "RowParallelLinear" : "";
}

std::string_view module_of(Part part) {
  switch (part) {
    case Part::qkv:
    case Part::rotary:
    case Part::scores:
    case Part::softmax:
    case Part::context:
    case Part::attention:
    case Part::projection:
    case Part::context_comm:
      return "SelfAttention";
    case Part::mlp_up:
    case Part::activation:
    case Part::mlp_down:
    case Part::shared_experts:
      return "ParallelMLP";
    case Part::router:
    case Part::dispatch:
    case Part::experts:
    case Part::expert_comm:
      return "MoELayer";
    default:
      return "";
  }
}

std::string driver_name(const GpuFacts& gpu) {
  std::string name = gpu.name;
  std::size_t longest = 0;
  for (const std::string& n : gpu.device_names)
    if (n.size() > longest) name = n, longest = n.size();
  return name.starts_with("NVIDIA") || name.starts_with("AMD") ? name : "NVIDIA " + name;
}

}  // namespace orrery::synth
