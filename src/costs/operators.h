// How long an operator takes on a GPU, from the GPU's facts alone: what `estimate` is made of. The laws are those of
// gemm_law.h and attention_law.h, their numbers those of operator_fits.h (an architecture and a kind of kernel each).
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "costs/attention_law.h"
#include "costs/gemm_law.h"
#include "costs/operator_fits.h"
#include "facts/gpus.h"

namespace orrery {

double bytes_of(Precision p);  // of an element, with its share of scales
std::string_view name_of(Precision p);
bool read_precision(std::string_view text, Precision& out);  // by name_of, also "float16", "bfloat16", "float32"

// FLOP a ns with dense operands; what the GPU has no unit for runs at the next wider precision that it has.
double peak_flop_per_ns(const GpuFacts& gpu, Precision p);
// Whether it is a CPU that multiplies 16 bits (bf16, fp16) by conversions to fp32, which its costs are then those of.
bool cpu_emulates(const GpuFacts& gpu, Precision p);

// batch times [m, k] x [k, n].
struct GemmWork {
  double m = 1, n = 1, k = 1, batch = 1;
  Precision precision = Precision::bf16;
  double output_bytes = 0;  // of an element; 0 = as the precision, at least two
  double weight_bytes =
      0;                  // of an element of [k, n] kept in fewer bits and widened in the kernel; 0 = as the precision
  bool warm = false;      // operands were used a moment ago: micro-benchmarks that repeat one product
  bool quantise = false;  // fp8, int8, nvfp4: with the kernel that brings the activations to that precision
};

struct AttentionWork {
  double batch = 1;  // sequences
  double heads = 1, kv_heads = 1, head_dim = 128;
  double value_head_dim = 0;     // 0 = head_dim
  double queries = 1, keys = 1;  // of a sequence; decoding: one query
  bool causal = true, backward = false;
  Precision precision = Precision::bf16;
  AttentionKernel kernel = AttentionKernel::flash2;
  double kv_bytes = 0;     // of an element of keys and values; 0 = as the precision
  bool append_kv = false;  // with the kernel before it that rotates and writes into a cache of pages (serving)
  bool shared_kv = true;   // grouped heads read their keys once; false: once for each head
  bool warm = false;
};

enum class Bound : std::uint8_t { compute, memory, latency };
std::string_view name_of(Bound b);

struct OperatorTime {
  double ns = 0;
  double relative_error = 0;  // one standard deviation
  Bound bound = Bound::compute;
};

class MeasuredOperators;

// The numbers of its GPU are looked up once; each question then takes some 100 ns. A CPU ("arch" of its facts) has laws
// of its own (measured_operators.h); with a table of what was measured on a device those come before all else.
class OperatorCosts {
 public:
  explicit OperatorCosts(const GpuFacts& gpu);
  void use(std::shared_ptr<const MeasuredOperators> measured) { measured_ = std::move(measured); }
  OperatorTime gemm(const GemmWork& w) const;
  // Fused attention; AttentionKernel::unfused: two products and the passes over the scores between them.
  OperatorTime attention(const AttentionWork& w) const;
  // A kernel bound by the GPU's memory: bytes read and written, of elements of that precision (which matters where it
  // was measured). 0 bytes: what an empty kernel takes.
  OperatorTime memory(double bytes, MemoryKernel kind = MemoryKernel::elementwise, Precision p = Precision::bf16) const;
  // Widens `elements` kept in `from_bytes` each (nf4: 0.5 and its scales, 0.5625) to two bytes, in a kernel of its own.
  OperatorTime dequantise(double elements, double from_bytes) const;
  Architecture architecture() const { return architecture_; }

 private:
  OperatorTime unfused(const AttentionWork& w) const;

  GpuFacts gpu_;
  Architecture architecture_;
  double doubt_ = 0;  // of a GPU whose like was not fitted, relative
  std::array<const GemmFitRow*, kPrecisionCount> gemm_{};
  std::shared_ptr<const MeasuredOperators> measured_;
};

// Copies between host and GPU, one way. Pageable memory is copied by the host into pinned buffers first.
// pcie_gb_per_s: nominal, each way.
OperatorTime host_copy(double bytes, double pcie_gb_per_s, bool pinned);
// Adam on the host's cores over fp32 master weights, bound by the host's memory: reads gradient, weight and both
// moments, writes the latter three and a 2-byte weight (DeepSpeed's CPUAdam).
OperatorTime host_adam(double parameters, double host_gb_per_s);

}  // namespace orrery
