#include "costs/operators.h"

#include <algorithm>

namespace orrery {

double bytes_of(Precision p) {
  switch (p) {
    case Precision::fp32:
    case Precision::tf32:
      return 4;
    case Precision::fp16:
    case Precision::bf16:
      return 2;
    case Precision::fp8:
    case Precision::int8:
      return 1;
  }
  return 2;
}

std::string_view name_of(Precision p) {
  switch (p) {
    case Precision::fp32:
      return "fp32";
    case Precision::tf32:
      return "tf32";
    case Precision::fp16:
      return "fp16";
    case Precision::bf16:
      return "bf16";
    case Precision::fp8:
      return "fp8";
    case Precision::int8:
      return "int8";
  }
  return "";
}

double peak_tflops(const GpuFacts& gpu, Precision p) {
  const double half = gpu.bf16_tflops > 0 ? gpu.bf16_tflops : gpu.fp16_tflops;
  switch (p) {
    case Precision::fp32:
      return gpu.fp32_tflops > 0 ? gpu.fp32_tflops : half / 16;
    case Precision::tf32:
      return gpu.tf32_tflops > 0 ? gpu.tf32_tflops : half / 2;
    case Precision::fp16:
      return gpu.fp16_tflops > 0 ? gpu.fp16_tflops : half;
    case Precision::bf16:
      return half;
    case Precision::fp8:
      return gpu.fp8_tflops > 0 ? gpu.fp8_tflops : half;
    case Precision::int8:
      return gpu.int8_tops > 0 ? gpu.int8_tops : half;
  }
  return half;
}

namespace {

constexpr double kOverheadNs = 3'000, kGemmEfficiency = 0.75, kAttentionEfficiency = 0.5, kMemoryEfficiency = 0.85;

OperatorTime roofline(double compute_ns, double memory_ns, double error) {
  const double most = std::max(compute_ns, memory_ns);
  const Bound bound = most < kOverheadNs ? Bound::latency : compute_ns > memory_ns ? Bound::compute : Bound::memory;
  return {kOverheadNs + most, error, bound};
}

}  // namespace

OperatorCosts::OperatorCosts(const GpuFacts& gpu) : gpu_(gpu) {}

OperatorTime OperatorCosts::gemm(const GemmWork& w) const {
  const double element = bytes_of(w.precision), out = w.output_bytes > 0 ? w.output_bytes : std::max(2.0, element);
  const double flops = 2 * w.batch * w.m * w.n * w.k;
  const double bytes = w.batch * (element * (w.m * w.k + w.k * w.n) + out * w.m * w.n);
  return roofline(flops / (peak_tflops(gpu_, w.precision) * 1e3 * kGemmEfficiency),
                  bytes / (gpu_.memory_gb_per_s * kMemoryEfficiency), 0.2);
}

OperatorTime OperatorCosts::attention(const AttentionWork& w) const {
  const double value = w.value_head_dim > 0 ? w.value_head_dim : w.head_dim;
  const double pairs = w.queries * w.keys * (w.causal && w.queries > 1 ? 0.5 : 1);
  const double flops = 2 * w.batch * w.heads * pairs * (w.head_dim + value) * (w.backward ? 2.5 : 1);
  const double element = bytes_of(w.precision);
  const double bytes = element * w.batch *
                       (2 * w.heads * w.queries * w.head_dim + w.kv_heads * w.keys * (w.head_dim + value)) *
                       (w.backward ? 2.5 : 1);
  return roofline(flops / (peak_tflops(gpu_, w.precision) * 1e3 * kAttentionEfficiency),
                  bytes / (gpu_.memory_gb_per_s * kMemoryEfficiency), 0.25);
}

OperatorTime OperatorCosts::memory(double bytes) const {
  return roofline(0, bytes / (gpu_.memory_gb_per_s * kMemoryEfficiency), 0.2);
}

}  // namespace orrery
