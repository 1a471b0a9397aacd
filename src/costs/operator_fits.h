// The numbers of the laws of operators: a few an architecture and a kind of kernel. See operator_fits.cc.
#pragma once
#include <cstdint>
#include <string_view>

#include "costs/attention_law.h"
#include "costs/gemm_law.h"
#include "facts/gpus.h"

namespace orrery {

// fp8: one scale a tensor; fp8_block: one a block (of 128 weights, 128 x 128 activations and the like).
enum class Precision : std::uint8_t { fp32, tf32, fp16, bf16, fp8, int8, fp8_block, nvfp4 };
inline constexpr std::size_t kPrecisionCount = 8;

enum class Architecture : std::uint8_t {
  volta,
  turing,
  ampere,        // GA100
  ampere_ga102,  // A40, A6000, RTX 30
  ada,
  hopper,
  blackwell,
  blackwell_gb202,  // RTX 50, RTX PRO
  cdna2,
  cdna3,
  other,
  cpu  // no GPU: a process and its threads
};
Architecture architecture_of(const GpuFacts& gpu);
bool has_fp4(Architecture a);

// flash1..3: FlashAttention's versions; triton: its version in that language; trtllm: the kernel of TensorRT-LLM.
enum class AttentionKernel : std::uint8_t { flash2, flash1, flash3, cudnn, triton, xformers, trtllm, unfused };

// What a kernel that only moves data does, for how near to the memory's bandwidth it comes.
enum class MemoryKernel : std::uint8_t {
  elementwise,
  norm,
  softmax,
  rotary,
  embedding,
  optimizer,
  copy,
  activation,  // with an exponential; on a GPU as elementwise
  loss         // the same
};

struct GemmFitRow {
  Architecture architecture;
  Precision precision;
  GemmFit fit;
  double error;  // one standard deviation, relative
  std::string_view source;
};
struct AttentionFitRow {
  Architecture architecture;
  AttentionKernel kernel;
  AttentionFit forward, backward;
  double append_ns, append_share;
  double error;
  std::string_view source;
};
struct DecodeFitRow {
  Architecture architecture;
  bool grouped;
  DecodeFit fit;
  double error;
  std::string_view source;
};
struct MemoryFitRow {
  MemoryKernel kernel;
  double overhead_ns, share, error;
};
struct UnfusedFit {
  double forward_passes, mask_passes, backward_passes;  // over the scores
  double forward_copies, backward_copies;               // of one operand
  double error;
};

// Of the architecture, else of the one most like it, else of all.
const GemmFitRow& gemm_fit(Architecture a, Precision p);
const AttentionFitRow& attention_fit(Architecture a, AttentionKernel k);
const DecodeFitRow& decode_fit(Architecture a, bool grouped);
const MemoryFitRow& memory_fit(MemoryKernel k);
const UnfusedFit& unfused_fit();

}  // namespace orrery
