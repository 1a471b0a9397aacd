// How long an operator takes on a GPU, from the GPU's facts alone: what `estimate` is made of.
#pragma once
#include <cstdint>
#include <string_view>

#include "facts/gpus.h"

namespace orrery {

enum class Precision : std::uint8_t { fp32, tf32, fp16, bf16, fp8, int8 };
double bytes_of(Precision p);  // of an element
std::string_view name_of(Precision p);
// Of matrix products, dense; 0 = not known.
double peak_tflops(const GpuFacts& gpu, Precision p);

// batch times [m, k] x [k, n].
struct GemmWork {
  double m = 1, n = 1, k = 1, batch = 1;
  Precision precision = Precision::bf16;
  double output_bytes = 0;  // of an element; 0 = as the precision (two bytes for fp8 and int8)
};

struct AttentionWork {
  double batch = 1;  // sequences
  double heads = 1, kv_heads = 1, head_dim = 128;
  double value_head_dim = 0;     // 0 = head_dim
  double queries = 1, keys = 1;  // of a sequence; decoding: one query
  bool causal = true, backward = false;
  Precision precision = Precision::bf16;
};

enum class Bound : std::uint8_t { compute, memory, latency };

struct OperatorTime {
  double ns = 0;
  double relative_error = 0;  // one standard deviation
  Bound bound = Bound::compute;
};

class OperatorCosts {
 public:
  explicit OperatorCosts(const GpuFacts& gpu);
  OperatorTime gemm(const GemmWork& w) const;
  // Fused (FlashAttention and its like). Unfused attention is two gemm() and a softmax of memory().
  OperatorTime attention(const AttentionWork& w) const;
  // Any kernel bound by the GPU's memory: bytes read and written. 0 bytes: what an empty kernel takes.
  OperatorTime memory(double bytes) const;

 private:
  GpuFacts gpu_;
};

}  // namespace orrery
