// Writes the operators of passes one after the other, with their times.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "estimate/operations.h"

namespace orrery::estimating {

// Autograd runs in C++: what an operator costs there of what it costs forward, through Python.
inline constexpr double kBackwardHost = 0.6;
// In operators and their launches, as a public trace of Megatron-LM on two GPUs shows: its linear layers are autograd
// functions in Python (185 to 222 us forward where aten::mm takes 48 to 55; 545 backward, for two products), other
// operators wrapped likewise but simpler (assumed); a collective through c10d takes three to five products' time (150
// us; on a newer host 86 to 112 beside 22). torch.compile's code calls kernels directly.
inline constexpr double kLinearForward = 4, kLinearBackward = 5, kPythonAutograd = 1.6, kCollectiveHost = 4;
inline constexpr double kCompiledHost = 0.25;
// Hooks in Python round a layer (FSDP) or a module or a gradient (DeepSpeed).
inline constexpr double kHookHostNs = 150'000;
// Bytes that memory-bound kernels move for an element of two bytes, as the frameworks are written.
// Fused: Megatron-LM's and torch.compile's kernels; eager: Hugging Face's modules, one kernel an operator.
struct Traffic {
  double bytes = 0;  // of all kernels together, for an element
  int kernels = 1;
};
struct Fusion {
  Traffic norm, norm_back, rotary, gate, gate_back, gelu, gelu_back, loss, loss_back, softmax, softmax_back;
};
inline constexpr Fusion kFused{
    .norm = {4, 1},
    .norm_back = {8, 2},
    .rotary = {4, 1},
    .gate = {6, 1},
    .gate_back = {10, 1},
    .gelu = {4, 1},
    .gelu_back = {6, 1},
    .loss = {38, 7},  // to fp32, maximum, difference, exponentials, their sum, quotient (megatron/core/tensor_parallel)
    .loss_back = {14, 3},  // in fp32, then to two bytes
    .softmax = {4, 1},
    .softmax_back = {6, 1},
};
// RMSNorm in fp32: cast, square, mean, scale, cast, weight. Rotary: negate and concatenate, two products, a sum.
inline constexpr Fusion kEager{
    .norm = {36, 7},
    .norm_back = {52, 10},
    .rotary = {20, 5},
    .gate = {10, 2},
    .gate_back = {20, 4},
    .gelu = {4, 1},
    .gelu_back = {6, 1},
    .loss = {22, 5},  // to fp32, without the last position, log-softmax, the target's
    .loss_back = {30, 5},
    .softmax = {20, 4},  // scale and mask, softmax in fp32, cast
    .softmax_back = {24, 4},
};
// torch.compile: the norm is one kernel, the loss reads the logits twice.
inline constexpr Fusion kCompiled = [] {
  Fusion f = kFused;
  f.loss = {6, 2}, f.loss_back = {4, 1};
  f.softmax = {8, 2}, f.softmax_back = {10, 2};
  return f;
}();

inline const Fusion& fusion_of(const EstimateJob& job) {
  if (job.compile) return kCompiled;
  return job.framework == Framework::megatron ? kFused : kEager;
}

// Writes operators one after the other.
class Writer {
 public:
  Writer(const EstimateJob& job, const JobCosts& costs, std::vector<Operation>& out, bool backward)
      : job_(job),
        costs_(costs),
        fusion_(fusion_of(job)),
        element_(bytes_of_activations(job)),
        out_(&out),
        backward_(backward) {
    tokens_ = job.tokens();
    rows_ = job.sequence_parallel ? tokens_ / tp() : tokens_;
  }

  double tp() const { return static_cast<double>(job_.tp); }
  double tokens() const { return tokens_; }
  double rows() const { return rows_; }
  double hidden() const { return static_cast<double>(job_.model.hidden); }
  bool trains_all() const { return job_.trains_layers(); }
  bool eager() const { return job_.framework != Framework::megatron && !job_.compile; }
  // Matrices of the gated MLP's first product: eager modules have two.
  int side_by_side() const { return eager() && job_.model.gated_mlp ? 2 : 1; }
  bool adapters() const { return job_.method == Method::lora || job_.method == Method::qlora; }
  const Fusion& fusion() const { return fusion_; }
  double element() const { return element_; }
  const EstimateJob& job() const { return job_; }

  Operation& add(Part part, const OperatorTime& t, int kernels, double flops = 0, double count = 1) {
    Operation o;
    o.part = part;
    o.compute_ns = count * t.ns;
    o.flops = flops;
    o.host_ns = host(kernels);
    o.doubt_ns = count * t.ns * t.relative_error;
    out_->push_back(o);
    return out_->back();
  }
  void gemm(Part part, GemmLayout layout, double m, double n, double k, double batch = 1, double output_bytes = 0) {
    if (m <= 0 || n <= 0 || k <= 0) return;
    GemmWork w;
    w.m = m, w.n = n, w.k = k, w.batch = batch;
    w.precision = job_.precision;
    w.output_bytes = output_bytes;
    OperatorTime t = costs_.operators.gemm(w);
    if (t.bound == Bound::compute) t.ns /= costs_.sustained;
    if (costs_.emulated) t.relative_error = std::hypot(t.relative_error, costs_.emulation_doubt);
    Operation& o = add(part, t, launches(part, batch), 2 * batch * m * n * k, costs_.factors.gemm * emulated(layout));
    o.m = m, o.n = n, o.k = k, o.batch = batch;
  }
  void attention(const AttentionWork& w, double flops) {
    // Emulated, forward is a product of each kind.
    const double products = (emulated(GemmLayout::nt) + emulated(GemmLayout::nn)) / 2;
    add(Part::attention, costs_.operators.attention(w), w.backward ? 3 : 1, flops,
        products * (w.backward ? costs_.factors.attention_backward : costs_.factors.attention));
  }
  // Kernels bound by memory that move so many bytes together.
  void memory(Part part, double bytes, int kernels = 1) {
    const double factor = part == Part::loss ? costs_.factors.loss : costs_.factors.memory;
    const Precision elements = element_ < 4 ? Precision::bf16 : Precision::fp32;
    add(part, costs_.operators.memory(bytes / kernels, kernel_of(part), elements), kernels, 0, kernels * factor).bytes =
        bytes;
  }
  void traffic(Part part, double elements, const Traffic& t) {
    memory(part, elements * t.bytes * element_ / 2, t.kernels);
  }
  void collective(Part part, Pattern pattern, double bytes, Group group, TransferKind kind = TransferKind::none) {
    const double ns = transfer(pattern, bytes, group);
    if (ns <= 0) return;
    Operation o;
    o.part = o.comm_part = part;
    o.comm_ns = ns;
    o.host_ns = collective_host();
    o.doubt_ns = 0.1 * ns;
    o.transfer = {kind != TransferKind::none ? kind : kind_of(pattern), group, bytes};
    out_->push_back(o);
  }
  // The collective runs beside the operator written last.
  void beside(Part part, Pattern pattern, double bytes, Group group, TransferKind kind = TransferKind::none) {
    const double ns = transfer(pattern, bytes, group);
    if (ns <= 0) return;
    if (out_->empty()) return collective(part, pattern, bytes, group, kind);
    Operation& o = out_->back();
    o.comm_part = part;
    o.comm_ns += ns;
    o.host_ns += collective_host();
    o.transfer = {kind != TransferKind::none ? kind : kind_of(pattern), group, o.transfer.bytes + bytes};
  }
  double transfer(Pattern pattern, double bytes, Group group) const {
    return transfer_ns(costs_.network, pattern, bytes, placement_of(job_, group));
  }

  // Calls on the host alone, each like an operator: random states that are read and written back ...
  void calls(double operators) {
    if (job_.compile) return;
    Operation o;
    o.part = Part::residual;
    o.host_ns = operators * (costs_.launch_ns + costs_.operator_ns);
    out_->push_back(o);
  }

  // A linear layer [rows, k] x [k, n], its weights already this rank's share, in so many matrices side by side.
  void linear(Part part, double m, double n, double k, double batch = 1, int matrices = 1) {
    for (int i = 0; i < matrices; ++i) {
      const double columns = n / matrices;
      dequantized(columns * k * batch);
      if (bytes_of(job_.precision) < 2) cast(batch * m * k, launches(part, batch));
      autocast(part, columns * k * batch);
      gemm(part, GemmLayout::nt, m, columns, k, batch);
      in_python(kLinearForward * loops(part, batch));
      if (adapters()) adapter(m, columns, k, batch);
    }
  }
  // Gradient of its input ...
  void linear_input(Part part, double m, double n, double k, double batch = 1, int matrices = 1) {
    for (int i = 0; i < matrices; ++i) {
      const double columns = n / matrices;
      if (job_.quantize != Quantize::gptq) dequantized(columns * k * batch);  // gptq: autograd keeps them
      if (bytes_of(job_.precision) < 2) cast(batch * m * columns, launches(part, batch));
      gemm(part, GemmLayout::nn, m, k, columns, batch);
      in_python(kLinearBackward * loops(part, batch));
      if (adapters()) adapter_input(m, columns, k, batch);
      if (i > 0) memory(Part::gradients, 3 * element_ * m * k * batch, 1);  // the matrices' gradients are added
    }
  }
  // ... and of its weights.
  void linear_weight(Part part, double m, double n, double k, double batch = 1, int matrices = 1) {
    for (int i = 0; i < matrices; ++i) {
      const double columns = n / matrices;
      if (trains_all()) full_weight_gradient(part, m, columns, k, batch);
      if (!adapters()) continue;
      const double r = static_cast<double>(job_.lora_rank);
      gemm(Part::adapters, GemmLayout::tn, r, k, m, batch);
      gradient_hooks(r * k * batch);
      gemm(Part::adapters, GemmLayout::tn, columns, r, m, batch);
      gradient_hooks(r * columns * batch);
      adapter_weight_casts();
    }
  }
  void full_weight_gradient(Part part, double m, double n, double k, double batch = 1) {
    const bool fused = job_.framework == Framework::megatron;
    gemm(part, GemmLayout::tn, n, k, m, batch, fused ? 4 : 2);
    in_python(kLinearBackward * loops(part, batch));
    if (fused)  // read again, to be added to
      out_->back().compute_ns +=
          costs_.factors.gemm * (costs_.operators.memory(4 * n * k * batch).ns - costs_.operators.memory(0).ns);
    else if (job_.num_microbatches > 1)
      memory(Part::gradients, 6 * n * k * batch, 1);
    autocast(part, n * k * batch);
    gradient_hooks(n * k * batch);
    if (job_.model.linear_bias) memory(Part::gradients, element_ * m * n * batch, 1);
  }
  // DeepSpeed's stages 2 and 3 see to every gradient in every micro-batch, whatever the number of GPUs: copied into a
  // bucket, divided, reduced, copied out, added up (stage_1_and_2.py: reduce_ipg_grads, average_tensor,
  // copy_grads_in_partition). The adding up is counted with the product.
  void gradient_hooks(double weights) {
    if (job_.framework != Framework::deepspeed || job_.zero < 2) return;
    memory(Part::gradients, 6 * element_ * weights, 3);
    out_->back().host_ns += kHookHostNs + costs_.launch_ns + costs_.operator_ns;  // and the call of NCCL
  }

 private:
  double emulated(GemmLayout layout) const {
    return costs_.emulated ? costs_.factors.emulated[static_cast<std::size_t>(layout)] : 1;
  }
  // Grouped products of experts: one call a product in Transformer Engine's loop over cuBLAS.
  static int launches(Part part, double batch) { return part == Part::experts ? static_cast<int>(batch) : 1; }
  // Quantised, each expert's weights and tokens are objects of their own in Transformer Engine's GroupedLinear
  // (module/grouped_linear.py): what Linear does once is done for every expert.
  double loops(Part part, double batch) const {
    return part == Part::experts && bytes_of(job_.precision) < 2 ? batch : 1;
  }
  static TransferKind kind_of(Pattern p) {
    if (p == Pattern::all_reduce) return TransferKind::all_reduce;
    return p == Pattern::all_to_all ? TransferKind::all_to_all : TransferKind::all_gather;
  }
  double collective_host() const { return kCollectiveHost * (costs_.launch_ns + costs_.operator_ns); }
  // What was written last is part of a linear layer of Megatron-LM.
  void in_python(double operators) {
    if (job_.framework != Framework::megatron || job_.compile) return;
    out_->back().host_ns += (operators - kPythonAutograd) * costs_.operator_ns + (operators - 1) * costs_.launch_ns;
  }
  double host(int kernels) const {
    if (job_.compile) return kernels * costs_.launch_ns + kCompiledHost * costs_.operator_ns;
    if (job_.framework == Framework::megatron) return kernels * costs_.launch_ns + kPythonAutograd * costs_.operator_ns;
    return kernels * (costs_.launch_ns + (backward_ ? kBackwardHost : 1) * costs_.operator_ns);
  }
  // LoRA beside a linear layer. NeMo scales, adds and casts in passes of its own; PEFT and torchtune drop out (where
  // asked to), multiply twice, scale and add; compiled, the last two are one kernel.
  void adapter(double m, double n, double k, double batch) {
    const double r = static_cast<double>(job_.lora_rank), in = m * k * batch, out = m * n * batch;
    adapter_casts(in);
    adapter_weight_casts();
    gemm(Part::adapters, GemmLayout::nt, m, r, k, batch);
    gemm(Part::adapters, GemmLayout::nt, m, n, r, batch);
    if (eager()) {
      memory(Part::adapters, 2 * element_ * out, 1);
      memory(Part::adapters, 3 * element_ * out, 1);
    } else {
      memory(Part::adapters, 3 * element_ * out, job_.compile ? 1 : 2);
      if (!job_.compile) memory(Part::adapters, 3 * element_ * in, 2);
    }
  }
  void adapter_input(double m, double n, double k, double batch) {
    const double r = static_cast<double>(job_.lora_rank), in = m * k * batch, out = m * n * batch;
    if (job_.framework != Framework::megatron) memory(Part::adapters, 2 * element_ * out, 1);  // scaled
    gemm(Part::adapters, GemmLayout::nn, m, r, n, batch);
    gemm(Part::adapters, GemmLayout::nn, m, k, r, batch);
    adapter_casts(in);
    memory(Part::adapters, 3 * element_ * in, 1);  // added to the layer's own
  }
  // Under autocast PEFT's adapters are fp32: their input is cast to that, dropped out and cast back.
  bool wide_adapters() const { return job_.framework == Framework::ddp && eager() && master_weights(job_); }
  void adapter_casts(double in) {
    const double wide = 4;
    if (wide_adapters()) memory(Part::adapters, (element_ + wide) * in, 1);
    if (job_.lora_dropout) memory(Part::adapters, (2 * (wide_adapters() ? wide : element_) + 1) * in, 1);
    if (wide_adapters()) memory(Part::adapters, (element_ + wide) * in, 1);
  }
  void adapter_weight_casts() {  // of both of its matrices; too small to count but for their launches
    if (!wide_adapters()) return;
    for (int i = 0; i < 2; ++i) memory(Part::adapters, 6 * static_cast<double>(job_.lora_rank) * hidden(), 1);
  }
  // Autocast: fp32 weights are cast before their product, in each pass; their gradients after it.
  void autocast(Part part, double weights) {
    if (job_.framework == Framework::ddp && trains_all() && master_weights(job_)) memory(part, 6 * weights, 1);
  }
  // Frozen weights of four bits or one byte become two bytes before each product. AutoGPTQ does it with operators of
  // PyTorch (qlinear_cuda_old.py, more than 128 rows): shifted to int32 (half a byte and four), cast to int8 (4 + 1),
  // masked (1 + 1), less the zeros (1 + 1), times the scales (1 + 2). A thread of such a kernel has four elements
  // whatever their size (Loops.cuh), so that bytes move like pairs of them: 22.5 bytes a weight. Zeros are some small
  // kernels more.
  void dequantized(double weights) {
    if (job_.quantize == Quantize::none) return;
    if (job_.quantize != Quantize::gptq) {
      add(Part::dequantize, costs_.operators.dequantise(weights, weight_bytes(job_)), 2);
      return;
    }
    memory(Part::dequantize, 22.5 * weights, 5);
    memory(Part::dequantize, 22.5 * weights / 128, 6);
  }
  // Activations to eight or four bits, and their transpose for the gradients of the weights.
  void cast(double elements, int kernels) {
    memory(Part::quantize, (element_ + 2 * bytes_of(job_.precision)) * elements, kernels);
  }
  static MemoryKernel kernel_of(Part p) {
    switch (p) {
      case Part::norm:
        return MemoryKernel::norm;
      case Part::softmax:
        return MemoryKernel::softmax;
      case Part::rotary:
        return MemoryKernel::rotary;
      case Part::embedding:
        return MemoryKernel::embedding;
      case Part::optimizer:
        return MemoryKernel::optimizer;
      case Part::activation:
        return MemoryKernel::activation;
      case Part::loss:
        return MemoryKernel::loss;
      default:
        return MemoryKernel::elementwise;
    }
  }

  const EstimateJob& job_;
  const JobCosts& costs_;
  const Fusion& fusion_;
  double element_, tokens_ = 0, rows_ = 0;
  std::vector<Operation>* out_;
  bool backward_;
};

}  // namespace orrery::estimating
