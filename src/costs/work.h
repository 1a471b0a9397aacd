// What one GPU task computes, in terms of the job's dimensions: so that its size follows when they change.
#pragma once
#include <cmath>
#include <cstdint>

namespace orrery {

// The dimensions that sizes of work follow from; those of one rank's share where they are divided.
struct Dims {
  double seq = 0, mbs = 0;         // tokens of a sequence, sequences of a micro-batch
  double hidden = 0, ffn = 0;      // of the whole model
  double heads = 0, kv_heads = 0;  // of the whole model
  double head_dim = 0, vocab = 0;  // vocab: as padded to the tensor-parallel ranks
  double tp = 1, dp = 1;           // ranks that share a layer; replicas (for sharded optimizers)
  double layers = 0;               // of one stage
  double router = 0;               // further widths of a layer on each rank, whose gradients go with the others'
  double expert_width = 0;         // of a rank's experts of a layer, all of their products together
  bool sequence_parallel = false;  // activations outside of tensor-parallel regions are split by sequence
};

// factor * seq^a * mbs^b * ...: exponents of the dimensions. `attn` is heads * head_dim, `qkv` is
// (heads + 2 kv_heads) * head_dim, `split` is tp where the job is sequence parallel and 1 where not.
struct Term {
  double factor = 1;
  std::int8_t seq = 0, mbs = 0, hidden = 0, ffn = 0, attn = 0, qkv = 0, heads = 0, head_dim = 0, vocab = 0, tp = 0,
              split = 0;
  double value(const Dims& d) const {
    const auto power = [](double x, int n) { return n == 0 ? 1.0 : std::pow(x, n); };
    return factor * power(d.seq, seq) * power(d.mbs, mbs) * power(d.hidden, hidden) * power(d.ffn, ffn) *
           power(d.heads * d.head_dim, attn) * power((d.heads + 2 * d.kv_heads) * d.head_dim, qkv) *
           power(d.heads, heads) * power(d.head_dim, head_dim) * power(d.vocab, vocab) * power(d.tp, tp) *
           power(d.sequence_parallel ? d.tp : 1, split);
  }
  bool operator==(const Term&) const = default;
};

enum class WorkKind : std::uint8_t {
  unknown,             // keeps its time whatever changes; counted
  fixed,               // known not to depend on the dimensions (scalars, tiny kernels)
  gemm,                // batch times [m, k] x [k, n]
  attention,           // fused attention: batch = sequences * heads, m = queries, n = keys, k = head dim
  attention_backward,  // the same, backward
  memory               // bound by bytes: `m` elements read or written a pass; norms, softmax, dropout, copies ...
};

struct Work {
  WorkKind kind = WorkKind::unknown;
  Term m, n, k, batch;
  bool parameters = false;  // of the optimizer or the gradients: goes with the parameters of the stage, not by terms
  bool experts = false;     // a product of experts, whose gradients are reduced over fewer ranks than others
  bool operator==(const Work&) const = default;
};

}  // namespace orrery
