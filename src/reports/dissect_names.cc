// What names say: phases, modules and classes of kernels. Lists of the words that frameworks use; first match wins.
#include <algorithm>
#include <cctype>

#include "base/text_match.h"
#include "reports/dissect.h"
#include "whatif/optimizer.h"

namespace orrery {
namespace {

// The number behind `word` in `text`; -1 = none.
std::int64_t number_after(std::string_view text, std::string_view word) {
  auto at = text.find(word);
  if (at == std::string_view::npos) return -1;
  at += word.size();
  std::int64_t n = -1;
  for (; at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) != 0 && n < 1'000'000'000; ++at)
    n = std::max<std::int64_t>(n, 0) * 10 + (text[at] - '0');
  return n;
}

}  // namespace

std::string_view name_of(Phase p) {
  constexpr std::string_view kNames[kPhases] = {"forward",       "prefill",   "decode",      "prefill and decode",
                                                "backward",      "recompute", "optimizer",   "data",
                                                "communication", "host",      "unattributed"};
  return kNames[static_cast<std::size_t>(p)];
}

std::string_view name_of(KernelClass c) {
  constexpr std::string_view kNames[] = {"gemm",      "attention", "elementwise", "norm",          "softmax",
                                         "embedding", "optimizer", "memory",      "communication", "other"};
  return kNames[static_cast<std::size_t>(c)];
}

KernelClass class_of_kernel(std::string_view name) {
  std::string low = lower(name);
  for (auto at = low.find("fbgemm"); at != std::string::npos; at = low.find("fbgemm", at)) low.replace(at, 6, "fb");
  const bool fused = has(name, "triton_");  // of torch.compile; the rest of the name lists what was fused
  if (!fused) {
    if (has(low, "kv_indices")) return KernelClass::other;
    if (has_any(low, {"reshape_and_cache", "store_kvcache", "copy_kv"})) return KernelClass::memory;
    if (has(low, "quantize_with")) return KernelClass::elementwise;
    if (has_any(name, {"flash_attn", "paged_attention", "unified_attention", "mla_", "PagedAttention", "BatchDecode",
                       "BatchPrefill", "BatchMLA", "reduce_segments"}) ||
        is_attention_kernel(name))
      return KernelClass::attention;
    if (is_optimizer_kernel(name)) return KernelClass::optimizer;
    if ((is_gemm_kernel(name) && !has(name, "fbgemm")) || is_split_reduction(name) ||
        has_any(low, {"gemm",        "matmul",
                      "bmm_",        "dgrad",
                      "wgrad",       "fprop",
                      "conv2d",      "conv3d",
                      "convolv",     "_conv",
                      "winograd",    "scudnn",
                      "884cudnn",    "1688cudnn",
                      "16816cudnn",  "cudnn_infer",
                      "cudnn_train", "nchwtonhwc",
                      "nhwctonchw",  "igemm",
                      "miopensp3",   "batched_transpose_conv"}))
      return KernelClass::gemm;
  }
  if (has_any(low, {"layer_norm", "layernorm", "rms_norm", "rmsnorm", "batch_norm", "batchnorm", "bn_fw", "bn_bw",
                    "ln_fwd", "ln_bwd", "groupnorm", "group_norm", "gammabeta", "cucomputegradinput",
                    "cuapplylayernorm", "miopenbatchnorm"}))
    return KernelClass::norm;
  if (has(low, "softmax") && !has(low, "topk")) return KernelClass::softmax;
  if (has_any(low, {"embedding", "indexselect", "index_select", "compute_grad_weight", "sum_and_scatter", "tbe_"}) &&
      !has_any(low, {"rotary"}))
    return KernelClass::embedding;
  if (has_any(low, {"direct_copy_kernel", "catarray", "memcpy", "memset", "fillfunctor", "fill_kernel", "fillbuffer",
                    "copybuffer", "_copy_tensor", "transpose", "bfloat16tofloat32_copy", "copy_kernel", "gather_kernel",
                    "reshape_and_cache", "store_kvcache", "copy_kv", "destindex_copy"}) &&
      !fused)
    return KernelClass::memory;
  if (fused && has_any(low, {"embedding"})) return KernelClass::embedding;
  if (has_any(low, {"elementwise", "triton_poi", "act_and_mul", "silu", "gelu", "rotary", "rope", "dropout", "quant",
                    "cast_", "swiglu", "sigmoid", "tanh", "pointwise", "masked_fill"}))
    return KernelClass::elementwise;
  return KernelClass::other;
}

bool is_neutral_range(std::string_view n) {
  for (const std::string_view start :
       {"ProfilerStep#", "nccl:", "gloo:", "mpi:", "ucc:", "## Call CompiledFxGraph", "TorchDynamo", "Pregraph",
        "AOTDispatcher", "PyTorch Profiler", "[param|", "## Request wait"})
    if (n.substr(0, start.size()) == start) return true;
  return false;
}

std::optional<Phase> phase_of_range(std::string_view name) {
  if (is_neutral_range(name)) return {};
  const std::string low = lower(name);
  if (const std::int64_t context = number_after(low, "context_"), made = number_after(low, "generation_");
      context >= 0 && made >= 0)
    return context > 0 && made > 0 ? Phase::mixed : context > 0 ? Phase::prefill : Phase::decode;
  if (has(low, "step[")) {
    if (has(low, "mixed")) return Phase::mixed;
    if (has_any(low, {"extend", "prefill"})) return Phase::prefill;
    if (has(low, "decode")) return Phase::decode;
  }
  if (has_any(low, {"optimizer", "zero_grad", "clip_grad", "finalize_model_grads", "optim_step", "all_params_to_gpu"}))
    return Phase::optimizer;
  if (has_any(low,
              {"dataloader", "data_loader", "copy_batch", "load_batch", "wait_for_batch", "get_batch", "next_batch",
               "sparse_data_dist", "all2all_data", "data_loading", "load_data", "batch-generator", "batch_generator"}))
    return Phase::data;
  if (has_any(low, {"feed_forward", "feedforward", "feed-forward"})) return {};
  const bool back = has_any(low, {"backward", "bwd"}) || ends(low, "(b)") || ends(low, "(w)");
  const bool fore = has_any(low, {"forward", "fwd"}) || ends(low, "(f)");
  if (back != fore) return back ? Phase::backward : Phase::forward;
  if (low == "prefill" || low == "decode") return low == "prefill" ? Phase::prefill : Phase::decode;
  return {};
}

std::string name_of_range(std::string_view n) {
  const auto strip = [&] {
    while (!n.empty() && (n.front() == '#' || n.front() == ' ')) n.remove_prefix(1);
    while (!n.empty() && (n.back() == '#' || n.back() == ' ')) n.remove_suffix(1);
  };
  strip();
  for (const std::string_view pass : {"(F)", "(B)", "(W)", "(f)", "(b)", "(w)"})
    if (ends(n, pass)) n.remove_suffix(3);
  strip();
  return std::string(n);
}

std::string_view module_of_name(std::string_view name) {
  const std::string low = lower(name);
  struct Rule {
    std::string_view module;
    std::initializer_list<std::string_view> words;
  };
  static const Rule kRules[] = {
      {"rotary", {"rotary", "rope_", "_rope", "rope("}},
      {"kv cache", {"reshape_and_cache", "store_kvcache", "kv_cache", "kvcache", "copy_kv", "kv_ind"}},
      {"sampling", {"sampler", "sampling", "sample_token"}},
      {"lm head", {"lm_head", "lmhead", "lmoutput", "logitsprocessor", "parallellmhead"}},
      {"loss", {"crossentropy", "cross_entropy", "nll_loss", "nllloss", "log_softmax", "logsoftmax"}},
      {"router",
       {"grouped_topk", "topkgating", "topk_softmax", "topk_forward", "router", "routing", "bitmatrix", "moe_align",
        "topkgate", "gatethreadblock", "topk_gating", "moe_sum_gate"}},
      {"experts",
       {"fused_moe", "fusedmoe", "experts", "moe_forward", "grouped_gemm", "matmul_ogs", "grouped_mm",
        "moe::dev::finalize", "finalize_matmul_scatter", "moe_sum", "moe_kernel"}},
      {"norm",
       {"layer_norm", "layernorm", "rms_norm", "rmsnorm", "batchnorm", "batch_norm", "groupnorm", "group_norm",
        "ln_fwd", "ln_bwd", "gammabeta"}},
      {"qkv", {"qkvparallel", "qkv_proj", "linear_qkv", "query_key_value", "c_attn"}},
      {"output projection", {"o_proj", "out_proj", "linear_proj"}},
      {"mlp up", {"gate_up_proj", "linear_fc1", "up_proj", "gate_proj", "dense_h_to_4h", "c_fc"}},
      {"mlp down", {"down_proj", "linear_fc2", "dense_4h_to_h"}},
      {"attention",
       {"flash_attn", "flashattn", "flash::", "flash_fwd", "flash_bwd", "attention", "attn_fwd", "attn_bwd", "fmha",
        "sdpa", "scaled_dot_product", "scaleddotproduct", "bwd_kernel_dk_dv", "bwd_kernel_dq", "_mla", "mla_", "::mla",
        "reduce_segments"}},
      {"softmax", {"softmax"}},
      {"embedding", {"embedding"}},
      {"activation", {"silu", "gelu", "swiglu", "geglu", "act_and_mul", "activation", "relu", "sigmoid"}},
      {"dropout", {"dropout"}},
      {"quantisation", {"_quant", "quant_", "quantize", "cast_to_fp8", "to_fp8", "quantfp8"}},
      {"pooling", {"pool"}},
      {"convolution", {"conv1d", "conv2d", "conv3d", "convolution"}},
  };
  // The compiler names a kernel after all that it took in, a scalar of the loss included.
  const bool compiled = has(low, "triton_") && !has(low, "log_softmax");
  for (const Rule& r : kRules)
    if (has_any(low, r.words) && !(compiled && r.module == "loss")) return r.module;
  return {};
}

}  // namespace orrery
