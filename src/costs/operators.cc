#include "costs/operators.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "costs/measured_operators.h"

namespace orrery {
namespace {

struct PrecisionRow {
  Precision precision;
  std::string_view name, other;
  double bytes;
};
// Scales: one float for 128 elements of fp8 by blocks, one byte for 16 of nvfp4.
constexpr std::array<PrecisionRow, 8> kPrecisions = {{
    {Precision::fp32, "fp32", "float32", 4},
    {Precision::tf32, "tf32", "tfloat32", 4},
    {Precision::fp16, "fp16", "float16", 2},
    {Precision::bf16, "bf16", "bfloat16", 2},
    {Precision::fp8, "fp8", "float8", 1},
    {Precision::int8, "int8", "i8", 1},
    {Precision::fp8_block, "fp8-block", "fp8_block", 1 + 4.0 / 128},
    {Precision::nvfp4, "nvfp4", "fp4", 0.5 + 1.0 / 16},
}};

const PrecisionRow& row_of(Precision p) { return kPrecisions[static_cast<std::size_t>(p)]; }

bool quantised(Precision p) {
  return p == Precision::fp8 || p == Precision::int8 || p == Precision::fp8_block || p == Precision::nvfp4;
}

Bound bound_of(double overhead, double compute, double memory) {
  const double most = std::max(compute, memory);
  return most < overhead ? Bound::latency : compute > memory ? Bound::compute : Bound::memory;
}

// GPUs of the tables that the numbers were fitted on; what others add to the error: matrix products of a GPU that was
// left out are 8 % off where its generation was not, 9 to 20 % where that was as well (docs/model.md).
constexpr std::array<std::string_view, 9> kFitted = {"A100-SXM4", "A40",  "H100-SXM5", "H200",        "B200",
                                                     "GB200",     "L40S", "MI210",     "RTX-PRO-6000"};
constexpr double kSameGeneration = 0.1, kOtherGeneration = 0.2;

double doubt_of(const GpuFacts& gpu, Architecture a) {
  for (const std::string_view name : kFitted)
    if (gpu.name.find(name) != std::string::npos) return 0;
  const bool known = a == Architecture::ampere || a == Architecture::ampere_ga102 || a == Architecture::hopper ||
                     a == Architecture::blackwell || a == Architecture::ada || a == Architecture::blackwell_gb202;
  return known ? kSameGeneration : kOtherGeneration;
}

// Cards that live on their slot's 75 W do not hold their boost clock (NeuSight's L4 and T4).
constexpr double kSlotWatts = 75, kOfSlotCard = 0.7;

// PCIe's packets and protocol leave 0.8 of the nominal rate to a large copy of pinned memory (NVIDIA bandwidthTest:
// 12.5 of 15.8, 25 of 31.5, 52 of 63 GB/s); pageable memory is first copied by one host thread, at 6 to 8 GB/s.
constexpr double kOfPcie = 0.8, kPageableGbPerS = 7, kCopyNs = 9'000, kPageableNs = 14'000;
// Clocks fall where power runs out. Of Ada's cards the L40S shows it, 362 TFLOP/s at 350 W, whose products of some
// milliseconds come to two thirds of what short ones have; one with less than that for a watt has power enough (RTX
// 4090: 165 at 450 W, for its tensor cores add in fp32 at half the rate).
constexpr double kLimitedTflopsPerWatt = 362.0 / 350 * 2 / 3;
bool has_power_enough(const GpuFacts& gpu, Architecture a) {
  return a == Architecture::ada && gpu.tdp_w > 0 && gpu.bf16_tflops / gpu.tdp_w < kLimitedTflopsPerWatt;
}

// Server cards with GDDR6 (A40, L40S: what was fitted) keep the check bits of their ECC in the memory itself, a
// sixteenth of what crosses its bus; GeForce cards have none. llama.cpp's 7B in fp16 reads 0.91 of an RTX 4090's and
// 0.82 of an RTX 3090's bandwidth, 0.77 of an RTX 6000 Ada's (github.com/XiongjieDai/GPU-Benchmarks-on-LLM-Inference).
constexpr double kWithoutInlineEcc = 16.0 / 15;
bool is_geforce(const GpuFacts& gpu, Architecture a) {
  return (a == Architecture::ada && gpu.name.find("RTX-40") != std::string::npos) ||
         (a == Architecture::ampere_ga102 && gpu.name.find("RTX-30") != std::string::npos);
}

// CPUAdam of DeepSpeed streams at about this share of the host's memory bandwidth.
constexpr double kOfHostMemory = 0.6;

}  // namespace

double bytes_of(Precision p) { return row_of(p).bytes; }
std::string_view name_of(Precision p) { return row_of(p).name; }

bool read_precision(std::string_view text, Precision& out) {
  for (const PrecisionRow& r : kPrecisions) {
    if (text != r.name && text != r.other) continue;
    out = r.precision;
    return true;
  }
  return false;
}

std::string_view name_of(Bound b) {
  switch (b) {
    case Bound::compute:
      return "compute";
    case Bound::memory:
      return "memory";
    case Bound::latency:
      return "latency";
  }
  return "";
}

double peak_flop_per_ns(const GpuFacts& gpu, Precision p) {
  const double units = gpu.bf16_tflops > 0 ? gpu.bf16_tflops : gpu.fp16_tflops;
  const double bf16 = units > 0 ? units : gpu.fp32_tflops;  // no tensor cores
  const double half = p == Precision::fp16 && gpu.fp16_tflops > 0 ? gpu.fp16_tflops : bf16;
  const double fp8 = gpu.fp8_tflops > 0 ? gpu.fp8_tflops : half;
  double tflops = half;
  switch (p) {
    case Precision::fp32:
      tflops = gpu.fp32_tflops > 0 ? gpu.fp32_tflops : half / 16;
      break;
    case Precision::tf32:
      tflops = gpu.tf32_tflops > 0 ? gpu.tf32_tflops : gpu.fp32_tflops > 0 ? gpu.fp32_tflops : half / 2;
      break;
    case Precision::fp16:
    case Precision::bf16:
      break;
    case Precision::fp8:
    case Precision::fp8_block:
      tflops = fp8;
      break;
    case Precision::int8:
      tflops = gpu.int8_tops > 0 ? gpu.int8_tops : half;
      break;
    case Precision::nvfp4:  // twice fp8 from Blackwell on
      tflops = fp8 * (has_fp4(architecture_of(gpu)) ? 2 : 1);
      break;
  }
  const double sustained = gpu.tdp_w > 0 && gpu.tdp_w <= kSlotWatts ? kOfSlotCard : 1;
  return std::max(tflops, 1e-3) * 1e3 * sustained;
}

bool cpu_emulates(const GpuFacts& gpu, Precision p) {
  if (architecture_of(gpu) != Architecture::cpu) return false;
  return (p == Precision::bf16 && gpu.bf16_tflops <= 0) || (p == Precision::fp16 && gpu.fp16_tflops <= 0);
}

OperatorCosts::OperatorCosts(const GpuFacts& gpu)
    : gpu_(gpu), architecture_(architecture_of(gpu)), doubt_(doubt_of(gpu, architecture_)) {
  for (std::size_t i = 0; i < gemm_.size(); ++i) gemm_[i] = &gemm_fit(architecture_, static_cast<Precision>(i));
  if (architecture_ == Architecture::cpu)
    measured_ = std::make_shared<const MeasuredOperators>(MeasuredOperators::of_cpu(gpu));
}

OperatorTime OperatorCosts::gemm(const GemmWork& w) const {
  const GemmFitRow& row = *gemm_[static_cast<std::size_t>(w.precision)];
  const double element = bytes_of(w.precision);
  GemmOnGpu on;
  on.peak = peak_flop_per_ns(gpu_, w.precision);
  on.multiprocessors = std::max(1, gpu_.sms);
  on.bandwidth = gpu_.memory_gb_per_s * (is_geforce(gpu_, architecture_) ? kWithoutInlineEcc : 1);
  on.cache_bytes = gpu_.l2_mib * 1e6;
  on.a_bytes = element;
  on.b_bytes = w.weight_bytes > 0 ? w.weight_bytes : element;
  on.out_bytes = w.output_bytes > 0 ? w.output_bytes : std::max(2.0, element);
  const bool quantise = w.quantise && quantised(w.precision);
  GemmFit fit = row.fit;
  if (has_power_enough(gpu_, architecture_)) fit.power = 0;
  const GemmParts t = gemm_parts(fit, on, {w.m, w.n, w.k, w.batch, w.warm, quantise});
  const OperatorTime law{t.ns, std::hypot(row.error, doubt_), bound_of(t.overhead_ns, t.compute_ns, t.memory_ns)};
  if (measured_ == nullptr) return law;
  return measured_->gemm(w, law).value_or(law);
}

OperatorTime OperatorCosts::attention(const AttentionWork& w) const {
  if (w.kernel == AttentionKernel::unfused) return unfused(w);
  if (measured_ != nullptr)
    if (const auto t = measured_->attention(w)) return *t;
  const double element = bytes_of(w.precision);
  AttentionShape s;
  s.batch = w.batch;
  s.heads = w.heads;
  s.kv_heads = w.shared_kv ? std::max(1.0, w.kv_heads) : w.heads;
  s.head_dim = w.head_dim;
  s.value_head_dim = w.value_head_dim > 0 ? w.value_head_dim : w.head_dim;
  s.queries = w.queries;
  s.keys = w.keys;
  s.causal = w.causal;
  s.element = element;
  s.kv_element = w.kv_bytes > 0 ? w.kv_bytes : element;
  const AttentionOnGpu on{peak_flop_per_ns(gpu_, w.precision), static_cast<double>(std::max(1, gpu_.sms)),
                          gpu_.memory_gb_per_s, gpu_.l2_mib * 1e6};
  if (w.queries <= 1 && !w.backward) {
    const DecodeFitRow& row = decode_fit(architecture_, w.kv_heads < w.heads && w.shared_kv);
    AttentionOnGpu reads = on;
    if (is_geforce(gpu_, architecture_)) reads.bandwidth *= std::min(kWithoutInlineEcc, 1 / row.fit.memory_share);
    const AttentionParts t = decode_parts(row.fit, reads, s, w.warm);
    return {t.ns, std::hypot(row.error, doubt_), bound_of(t.overhead_ns, t.compute_ns, t.memory_ns)};
  }
  const AttentionFitRow& row = attention_fit(architecture_, w.kernel);
  AttentionParts t = attention_parts(w.backward ? row.backward : row.forward, on, s, w.backward);
  if (w.append_kv) {
    const double bytes =
        2 * element * w.batch * w.queries * (s.heads * s.head_dim + s.kv_heads * (s.head_dim + s.value_head_dim));
    const double append =
        row.append_ns + cached_ns(bytes, row.append_share, row.forward.cache_part, row.forward.cache_speed, on);
    t.ns += append;
    t.overhead_ns += append;
  }
  return {t.ns, std::hypot(row.error, doubt_), bound_of(t.overhead_ns, t.compute_ns, t.memory_ns)};
}

OperatorTime OperatorCosts::unfused(const AttentionWork& w) const {
  const double value = w.value_head_dim > 0 ? w.value_head_dim : w.head_dim, element = bytes_of(w.precision);
  const double batch = w.batch * w.heads;
  // Backward: for both products the gradients of both operands, that is the same shapes again, twice.
  const double times = w.backward ? 2 : 1;
  const OperatorTime scores = gemm({w.queries, w.keys, w.head_dim, batch, w.precision});
  const OperatorTime context = gemm({w.queries, value, w.keys, batch, w.precision});
  const UnfusedFit& fit = unfused_fit();
  const double passes = w.backward ? fit.backward_passes : fit.forward_passes + (w.causal ? fit.mask_passes : 0);
  const double copies = (w.backward ? fit.backward_copies : fit.forward_copies) * w.queries * w.head_dim;
  const OperatorTime softmax =
      memory(element * batch * (passes * w.queries * w.keys + copies), MemoryKernel::elementwise, w.precision);
  return {times * (scores.ns + context.ns) + softmax.ns, std::hypot(fit.error, doubt_), Bound::memory};
}

OperatorTime OperatorCosts::memory(double bytes, MemoryKernel kind, Precision p) const {
  if (measured_ != nullptr)
    if (const auto t = measured_->memory(bytes, kind, p)) return *t;
  const MemoryFitRow& row = memory_fit(kind);
  const double ns = bytes / (gpu_.memory_gb_per_s * row.share);
  return {row.overhead_ns + ns, row.error, bound_of(row.overhead_ns, 0, ns)};
}

OperatorTime OperatorCosts::dequantise(double elements, double from_bytes) const {
  return memory(elements * (from_bytes + 2));
}

OperatorTime host_copy(double bytes, double pcie_gb_per_s, bool pinned) {
  const double link = bytes / (pcie_gb_per_s * kOfPcie);
  const double ns = pinned ? link : std::max(link, bytes / kPageableGbPerS);
  const double overhead = pinned ? kCopyNs : kPageableNs;
  return {overhead + ns, pinned ? 0.1 : 0.3, bound_of(overhead, 0, ns)};
}

OperatorTime host_adam(double parameters, double host_gb_per_s) {
  constexpr double kBytes = 4 * 4 + 3 * 4 + 2;
  return {parameters * kBytes / (host_gb_per_s * kOfHostMemory), 0.3, Bound::memory};
}

}  // namespace orrery
