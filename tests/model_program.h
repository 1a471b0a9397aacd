// A training program of a transformer as a profiler would see one rank of it, written with what every GPU task of it
// computes. Only the operators, shapes, autograd numbers and launches; durations mean nothing. For tests.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "costs/work.h"
#include "trace_builder.h"

namespace orrery::testing {

struct Program {
  std::int64_t seq = 64, mbs = 2, hidden = 256, ffn = 768, heads = 8, kv_heads = 8, head_dim = 32, vocab = 2048;
  std::int64_t tp = 2, layers = 2, micro_batches = 2;
  bool sequence_parallel = false, gated = false, flash = true, fused_wgrad = true;
  bool hugging_face = false;  // plain PyTorch: batch first, q, k, v, gate and up apart, AddmmBackward and MmBackward
  bool shapes = true, sequences = true, whole_microseconds = false;
  std::string recompute = "none";
};

struct Expected {
  OpId task;
  Work work;
};

class ProgramTrace {
 public:
  explicit ProgramTrace(const Program& p) : p_(p) {
    head_.vocab = qkv_.qkv = attn_.attn = ffn_.ffn = 1;
    head_.tp = qkv_.tp = attn_.tp = ffn_.tp = -1;
    hidden_.hidden = 1;
    tokens_.seq = tokens_.mbs = 1;
    kv_ = attn_;
    if (p.kv_heads != p.heads) {
      kv_ = {};
      kv_.factor = static_cast<double>(p.kv_heads);
      kv_.head_dim = 1;
      kv_.tp = -1;
    }
    outside_ = tokens_;
    if (p.sequence_parallel && p.tp > 1) outside_.split = -1;
    for (std::int64_t m = 0; m < p.micro_batches; ++m) micro_batch();
    optimizer();
  }

  std::vector<Expected> expected;

  RankTrace finish() {
    RankTrace t = b_.finish();
    if (p_.whole_microseconds) {
      for (std::size_t i = 0; i < t.ops.size(); ++i) {
        t.ops.start[i] = t.ops.start[i] / 1000 * 1000;
        t.ops.dur[i] = t.ops.dur[i] / 1000 * 1000;
      }
    }
    return t;
  }

 private:
  using Body = std::function<void()>;
  using Shape = std::vector<std::int64_t>;

  static std::string text(const std::vector<Shape>& shapes) {
    std::string s = "[";
    for (const Shape& x : shapes) {
      s += s.size() > 1 ? ", [" : "[";
      for (std::size_t i = 0; i < x.size(); ++i) s += (i > 0 ? ", " : "") + std::to_string(x[i]);
      s += "]";
    }
    return s + "]";
  }

  void op(std::string_view name, const std::vector<Shape>& shapes, std::int64_t sequence, const Body& body) {
    const OpId id = b_.on(thread_).op(name, at_, 1);
    OpArgs& a = b_.t.op_args;
    a.sequence.push_back(p_.sequences ? sequence : -1);
    a.fwd_thread.push_back(0);
    a.input_dims.push_back(p_.shapes && !shapes.empty() ? b_.t.strings.intern(text(shapes)) : StrId{0});
    a.input_types.push_back(StrId{0});
    a.concrete_inputs.push_back(StrId{0});
    a.comm.push_back(kNone);
    b_.t.ops.extra[raw(id)] = static_cast<std::uint32_t>(a.size() - 1);
    at_ += 2.6;
    body();
    at_ += 1.7;
    b_.t.ops.dur[raw(id)] = us(at_) - b_.t.ops.start[raw(id)];
    at_ += 1.3;
  }

  void launch(std::string_view name, const Work& work, std::uint32_t grid = 7777) {
    const std::int64_t corr = ++corr_;
    b_.on(thread_).L("cudaLaunchKernel", at_, 3.4, corr);
    const OpId id = b_.kernel(name, 7, at_ + 20, 3, corr);
    KernelArgs& k = b_.t.kernel_args;
    k.grid_blocks.push_back(grid);
    k.block_threads.push_back(128);
    k.shared_bytes.push_back(0);
    k.registers.push_back(0);
    k.occupancy_pct.push_back(0);
    k.blocks_per_sm.push_back(0);
    k.comm.push_back(kNone);
    b_.t.ops.extra[raw(id)] = static_cast<std::uint32_t>(k.size() - 1);
    expected.push_back({id, work});
    at_ += 4.2;
  }
  void elementwise(const Work& work, double elements) {
    launch("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16> >(int)", work,
           static_cast<std::uint32_t>(std::ceil(elements / 512)));
  }

  static Term times(Term a, const Term& b) {
    a.factor *= b.factor;
    const auto add = [](std::int8_t& x, std::int8_t y) { x = static_cast<std::int8_t>(x + y); };
    add(a.seq, b.seq), add(a.mbs, b.mbs), add(a.hidden, b.hidden), add(a.ffn, b.ffn), add(a.attn, b.attn);
    add(a.qkv, b.qkv), add(a.heads, b.heads), add(a.head_dim, b.head_dim), add(a.vocab, b.vocab), add(a.tp, b.tp);
    add(a.split, b.split);
    return a;
  }
  static Work gemm(const Term& m, const Term& n, const Term& k) {
    Work w;
    w.kind = WorkKind::gemm;
    w.m = m, w.n = n, w.k = k;
    return w;
  }
  static Work memory(const Term& m) {
    Work w;
    w.kind = WorkKind::memory;
    w.m = m;
    return w;
  }

  std::int64_t rows() const { return p_.seq * p_.mbs; }
  std::int64_t share() const { return p_.sequence_parallel ? p_.tp : 1; }
  Shape activation(std::int64_t width, bool outside) const {
    const std::int64_t s = outside ? p_.seq / share() : p_.seq;
    return p_.hugging_face ? Shape{p_.mbs, s, width} : Shape{s, p_.mbs, width};
  }

  // `body` is a node's backward work; it runs on the autograd thread under the node's number.
  void remember(std::string_view node, std::int64_t sequence, Body body) {
    if (quiet_) return;
    tape_.push_back([this, node = std::string(node), sequence, body = std::move(body)] {
      op("autograd::engine::evaluate_function: " + node, {}, sequence, [&] { op(node, {}, sequence, body); });
    });
  }
  void play(std::vector<Body>& tape) {
    const std::vector<Body> nodes = std::move(tape);
    tape.clear();
    for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) (*it)();
  }
  std::int64_t next() { return quiet_ ? -1 : sequence_++; }

  void linear(std::int64_t in, std::int64_t out, const Term& tin, const Term& tout, bool column = true) {
    const std::int64_t n = next(), m = rows();
    const Work forward = gemm(tokens_, tout, tin), dgrad = gemm(tokens_, tin, tout), wgrad = gemm(tout, tin, tokens_);
    if (p_.hugging_face) {
      op("aten::linear", {activation(in, false), {out, in}, {}}, -1, [&] {
        op("aten::mm", {{m, in}, {in, out}}, n, [&] { launch("sm90_xmma_gemm_bf16_tn", forward); });
      });
      remember("MmBackward0", n, [=, this] {
        op("aten::mm", {{m, out}, {out, in}}, -1, [&] { launch("sm90_xmma_gemm_bf16_nn", dgrad); });
        op("aten::mm", {{out, m}, {m, in}}, -1, [&] { launch("sm90_xmma_gemm_bf16_nt", wgrad); });
      });
      return;
    }
    op("LinearWithGradAccumulationAndAsyncCommunication", {activation(in, column), {out, in}, {}}, n, [&] {
      op("aten::matmul", {{m, in}, {in, out}}, -1, [&] {
        op("aten::mm", {{m, in}, {in, out}}, -1, [&] { launch("ampere_bf16_s16816gemm_bf16_tn", forward); });
      });
    });
    remember("LinearWithGradAccumulationAndAsyncCommunicationBackward", n, [=, this] {
      op("aten::mm", {{m, out}, {out, in}}, -1, [&] { launch("ampere_bf16_s16816gemm_bf16_nn", dgrad); });
      if (p_.fused_wgrad)
        launch("ampere_bf16_s16816gemm_fp32_nt", wgrad);
      else
        op("aten::mm", {{out, m}, {m, in}}, -1, [&] { launch("ampere_bf16_s16816gemm_bf16_nt", wgrad); });
    });
  }

  void norm() {
    const std::int64_t n = next();
    const Work w = memory(times(outside_, hidden_));
    op("aten::native_layer_norm", {activation(p_.hidden, true), {}, {p_.hidden}}, n, [&] { launch("layer_norm", w); });
    remember("NativeLayerNormBackward0", n, [=, this] {
      op("aten::native_layer_norm_backward", {}, -1, [&] { launch("layer_norm_grad_input_kernel", w); });
    });
    remember("torch::autograd::AccumulateGrad", -1, [=, this] {
      op("aten::add_", {{p_.hidden}, {p_.hidden}, {}}, -1,
         [&] { elementwise(memory(hidden_), static_cast<double>(p_.hidden)); });
    });
  }

  void residual() {
    const std::int64_t n = next();
    const Work w = memory(times(outside_, hidden_));
    const double elements = static_cast<double>(rows() / share() * p_.hidden);
    op("aten::native_dropout", {activation(p_.hidden, true), {}, {}}, n,
       [&] { launch("fused_dropout_kernel_vec", w); });
    remember("NativeDropoutBackward0", n,
             [=, this] { op("aten::native_dropout_backward", {}, -1, [&] { elementwise(w, elements); }); });
    op("aten::add", {activation(p_.hidden, true), activation(p_.hidden, true), {}}, next(),
       [&] { elementwise(w, elements); });
  }

  void attention() {
    const std::int64_t h = p_.heads / p_.tp, kvh = p_.kv_heads / p_.tp, d = p_.head_dim, s = p_.seq, b = p_.mbs;
    Work w;
    w.batch.mbs = w.batch.heads = 1;
    w.batch.tp = -1;
    Term seq, dim;
    seq.seq = dim.head_dim = 1;
    if (p_.flash) {
      const std::int64_t n = next();
      w.kind = WorkKind::attention;
      w.m = w.n = seq;
      w.k = dim;
      const Shape q{b, s, h, d}, k{b, s, kvh, d}, qh{b, h, s, d}, kh{b, kvh, s, d};
      if (p_.hugging_face)
        op("aten::scaled_dot_product_attention", {qh, kh, kh}, -1, [&] {
          op("aten::_scaled_dot_product_flash_attention", {qh, kh, kh}, n,
             [&] { launch("void pytorch_flash::flash_fwd_kernel<>", w); });
        });
      else
        op("FlashAttnFunc", {q, k, k}, n, [&] { launch("void flash_fwd_kernel<>", w); });
      Work back = w;
      back.kind = WorkKind::attention_backward;
      remember(p_.hugging_face ? "ScaledDotProductFlashAttentionBackward0" : "FlashAttnFuncBackward", n, [=, this] {
        op("flash_attn::_flash_attn_backward", {q, q, k, k}, -1, [&] {
          launch("void flash_bwd_dot_do_o_kernel<>", memory(times(tokens_, attn_)));
          launch("void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<>", back);
        });
      });
      return;
    }
    w.kind = WorkKind::gemm;
    auto product = [&](const Term& m, const Term& n, const Term& k) {
      Work x = w;
      x.m = m, x.n = n, x.k = k;
      return x;
    };
    Term scores = w.batch;
    scores.seq = 2;
    const Shape ss{b * h, s, s}, sd{b * h, s, d}, ds{b * h, d, s};
    const std::int64_t n1 = next(), n2 = next(), n3 = next();
    const Work qk = product(seq, seq, dim), pv = product(seq, dim, seq), dk = product(dim, seq, seq);
    op("aten::baddbmm", {ss, sd, ds, {}, {}}, n1, [&] { launch("ampere_bf16_s16816gemm_bf16_tn", qk); });
    op("ScaledUpperTriangMaskedSoftmax", {ss, {}}, n2,
       [&] { launch("scaled_masked_softmax_forward", memory(scores)); });
    op("aten::bmm", {ss, sd}, n3, [&] { launch("ampere_bf16_s16816gemm_bf16_nn", pv); });
    remember("BaddbmmBackward0", n1, [=, this] {
      op("aten::bmm", {ss, sd}, -1, [&] { launch("ampere_bf16_s16816gemm_bf16_nn", pv); });
      op("aten::bmm", {ds, ss}, -1, [&] { launch("ampere_bf16_s16816gemm_bf16_nt", dk); });
    });
    remember("ScaledUpperTriangMaskedSoftmaxBackward", n2,
             [=, this] { launch("scaled_masked_softmax_backward", memory(scores)); });
    remember("BmmBackward0", n3, [=, this] {
      op("aten::bmm", {sd, ds}, -1, [&] { launch("ampere_bf16_s16816gemm_bf16_nt", qk); });
      op("aten::bmm", {ss, sd}, -1, [&] { launch("ampere_bf16_s16816gemm_bf16_tn", pv); });
    });
  }

  void layer() {
    const std::int64_t a = p_.heads * p_.head_dim / p_.tp, kv = p_.kv_heads * p_.head_dim / p_.tp, f = p_.ffn / p_.tp;
    Term gates = ffn_;
    gates.factor = 2;
    norm();
    if (p_.hugging_face) {
      linear(p_.hidden, a, hidden_, attn_);
      linear(p_.hidden, kv, hidden_, kv_);
      linear(p_.hidden, kv, hidden_, kv_);
    } else {
      linear(p_.hidden, a + 2 * kv, hidden_, qkv_);
      op("aten::add", {{p_.seq, p_.mbs, a + 2 * kv}, {a + 2 * kv}, {}}, next(),
         [&] { elementwise(memory(times(tokens_, qkv_)), static_cast<double>(rows() * (a + 2 * kv))); });
    }
    if (p_.recompute == "selective" && !quiet_)
      checkpoint([this] { attention(); });
    else
      attention();
    linear(a, p_.hidden, attn_, hidden_, false);
    residual();
    norm();
    const bool apart = p_.gated && p_.hugging_face;
    const std::int64_t up = p_.gated && !apart ? 2 * f : f, n = next();
    const Term tup = p_.gated && !apart ? gates : ffn_;
    if (apart) linear(p_.hidden, f, hidden_, ffn_);
    linear(p_.hidden, up, hidden_, tup);
    const Work w = memory(times(tokens_, tup));
    op(p_.gated ? "SwiGLUFunction" : "GeLUFunction", {activation(up, false), {up}}, n,
       [&] { launch("triton_poi_fused_act_0", w); });
    remember(p_.gated ? "SwiGLUFunctionBackward" : "GeLUFunctionBackward", n,
             [=, this] { launch("triton_poi_fused_act_backward_1", w); });
    linear(f, p_.hidden, ffn_, hidden_, false);
    residual();
  }

  // Runs now without autograd, and again ahead of its backward pass.
  void checkpoint(Body body) {
    const std::int64_t n = next();
    op("CheckpointFunction", {}, n, [&] {
      quiet_ = true;
      body();
      quiet_ = false;
    });
    remember("CheckpointFunctionBackward", n, [this, body] {
      std::vector<Body> outer = std::move(tape_);
      tape_.clear();
      body();
      play(tape_);
      tape_ = std::move(outer);
    });
  }

  void micro_batch() {
    thread_ = 1;
    const std::int64_t n = next(), v = p_.vocab / p_.tp;
    const Work rows_of_table = memory(times(tokens_, hidden_));
    op("aten::embedding", {{v, p_.hidden}, {p_.mbs, p_.seq}}, n, [&] {
      op("aten::index_select", {{v, p_.hidden}, {p_.mbs, p_.seq}}, -1,
         [&] { launch("indexSelectLargeIndex", rows_of_table); });
    });
    for (std::int64_t l = 0; l < p_.layers; ++l) {
      if (p_.recompute == "full")
        checkpoint([this] { layer(); });
      else
        layer();
    }
    norm();
    linear(p_.hidden, v, hidden_, head_);
    const std::int64_t m = next();
    const Work loss = memory(times(tokens_, head_));
    const double logits = static_cast<double>(rows() * v);
    op("_VocabParallelCrossEntropy", {activation(v, false), {p_.seq, p_.mbs}}, m, [&] {
      op("aten::exp", {activation(v, false)}, -1, [&] { elementwise(loss, logits); });
      op("aten::lt", {}, -1, [&] { elementwise(memory(tokens_), static_cast<double>(rows())); });
    });
    remember("_VocabParallelCrossEntropyBackward", m, [=, this] {
      op("aten::mul_", {activation(v, false), activation(1, false)}, -1, [&] { elementwise(loss, logits); });
    });
    thread_ = 2;
    play(tape_);
  }

  void optimizer() {
    thread_ = 1;
    Work w = memory({});
    w.parameters = true;
    launch("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float> >", w);
  }

  Program p_;
  TraceBuilder b_;
  std::vector<Body> tape_;
  bool quiet_ = false;  // no autograd
  double at_ = 100;
  std::int64_t thread_ = 1, corr_ = 0, sequence_ = 40;
  Term hidden_, qkv_, attn_, kv_, ffn_, head_, tokens_, outside_;
};

}  // namespace orrery::testing
