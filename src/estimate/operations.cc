#include "estimate/operations.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "estimate/operation_writer.h"

namespace orrery {
namespace {

using estimating::Fusion;
using estimating::Traffic;
using estimating::Writer;

struct Heads {  // of one rank
  double query, key_value, dim, value_dim;
};
Heads heads_of(const EstimateJob& job) {
  const ModelFacts& m = job.model;
  const double tp = static_cast<double>(job.tp);
  Heads h;
  h.query = static_cast<double>(m.heads) / tp;
  h.key_value = std::max(1.0, static_cast<double>(m.kv_heads) / tp);
  h.dim = static_cast<double>(m.head_dim + (m.kv_lora_rank > 0 ? m.rope_head_dim : 0));
  h.value_dim = m.kv_lora_rank > 0 ? static_cast<double>(m.value_head_dim) : h.dim;
  return h;
}

// One projection of the attention's input: [tokens, in] x [in, out / share].
struct Projection {
  double in, out;
  bool split;  // by columns over tensor-parallel ranks
};
std::vector<Projection> input_projections(const EstimateJob& job) {
  const ModelFacts& m = job.model;
  const Heads h = heads_of(job);
  const double hidden = static_cast<double>(m.hidden);
  if (m.kv_lora_rank == 0) return {{hidden, (h.query + 2 * h.key_value) * h.dim, true}};
  const double q = static_cast<double>(m.q_lora_rank), kv = static_cast<double>(m.kv_lora_rank);
  const double rope = static_cast<double>(m.rope_head_dim), nope = static_cast<double>(m.head_dim);
  std::vector<Projection> p;
  if (q > 0) {
    p.push_back({hidden, q, false});
    p.push_back({q, h.query * h.dim, true});
  } else {
    p.push_back({hidden, h.query * h.dim, true});
  }
  p.push_back({hidden, kv + rope, false});
  p.push_back({kv, h.query * (nope + h.value_dim), true});
  return p;
}

// What the frameworks of each GPU ship with: Transformer Engine's cuDNN kernels where there are such, else
// FlashAttention-2.
AttentionKernel attention_kernel(const EstimateJob& job) {
  if (job.attention_kernel) return *job.attention_kernel;
  const bool recent = architecture_of(job.platform.gpu) == Architecture::hopper ||
                      architecture_of(job.platform.gpu) == Architecture::blackwell;
  return recent && job.framework == Framework::megatron ? AttentionKernel::cudnn : AttentionKernel::flash2;
}

void attention_core(Writer& w, bool backward) {
  const EstimateJob& job = w.job();
  const Heads h = heads_of(job);
  const double b = static_cast<double>(job.micro_batch_size), s = static_cast<double>(job.positions()),
               cp = static_cast<double>(job.cp), queries = s / cp, batch = b * h.query;
  if (job.attention == AttentionKind::flash) {
    AttentionWork a;
    a.batch = b, a.heads = h.query, a.kv_heads = h.key_value, a.head_dim = h.dim, a.value_head_dim = h.value_dim;
    a.queries = queries, a.keys = s, a.backward = backward;
    a.precision = bytes_of(job.precision) < 2 ? Precision::bf16 : job.precision;
    a.kernel = attention_kernel(job);
    if (cp > 1) a.keys = s / 2, a.causal = false;  // every rank has early and late queries
    const double flops = 2 * batch * queries * s / 2 * (h.dim + h.value_dim) * (backward ? 2.5 : 1);
    w.attention(a, flops);
    if (cp > 1) {  // keys and values come round the ring while the attention goes on; backward their gradients, too
      const double bytes = w.element() * b * s * h.key_value * (h.dim + h.value_dim) * (backward ? 2 : 1);
      w.beside(Part::context_comm, Pattern::gather_or_scatter, bytes, Group::context);
      // Each step's part is added to the others in fp32: outputs forward; gradients of queries, keys and values
      // backward.
      const double width = backward ? h.query * h.dim + 2 * h.key_value * h.dim : h.query * h.value_dim;
      w.memory(Part::attention, 12 * cp * b * queries * width, static_cast<int>(2 * job.cp));
    }
    return;
  }
  const double square = batch * queries * s;
  const Fusion& f = w.fusion();
  // Megatron-LM's dropout draws from a state of its own: two are read, two written.
  if (job.dropout && job.framework == Framework::megatron && !backward) w.calls(4);
  constexpr Traffic kDrop{5, 1};
  if (!backward) {
    w.gemm(Part::scores, GemmLayout::nt, queries, s, h.dim, batch);
    w.traffic(Part::softmax, square, f.softmax);
    if (job.dropout) w.traffic(Part::softmax, square, kDrop);
    w.gemm(Part::context, GemmLayout::nn, queries, h.value_dim, s, batch);
  } else {
    w.gemm(Part::context, GemmLayout::nt, queries, s, h.value_dim, batch);
    w.gemm(Part::context, GemmLayout::tn, s, h.value_dim, queries, batch);
    if (job.dropout) w.traffic(Part::softmax, square, kDrop);
    w.traffic(Part::softmax, square, f.softmax_back);
    w.gemm(Part::scores, GemmLayout::nn, queries, h.dim, s, batch);
    w.gemm(Part::scores, GemmLayout::tn, s, h.dim, queries, batch);
  }
}

// Before the products that are split by columns the rows of all tensor-parallel ranks are gathered, after those split
// by rows they are summed; sequence parallel they are scattered again.
double message(const Writer& w) { return w.element() * w.tokens() * w.hidden(); }
void gather_rows(Writer& w) {
  if (w.job().sequence_parallel && w.job().tp > 1)
    w.collective(Part::tensor_comm, Pattern::gather_or_scatter, message(w), Group::tensor);
}
void sum_rows(Writer& w) {
  if (w.job().tp < 2) return;
  if (w.job().sequence_parallel)
    w.collective(Part::tensor_comm, Pattern::gather_or_scatter, message(w), Group::tensor,
                 TransferKind::reduce_scatter);
  else
    w.collective(Part::tensor_comm, Pattern::all_reduce, message(w), Group::tensor);
}
// Of the input of the product written last, for the gradient of its weights.
void gather_beside(Writer& w) {
  if (w.job().sequence_parallel && w.job().tp > 1)
    w.beside(Part::tensor_comm, Pattern::gather_or_scatter, message(w), Group::tensor);
}
// Beside what was written last.
void sum_beside(Writer& w) {
  if (w.job().tp < 2) return;
  if (w.job().sequence_parallel)
    w.beside(Part::tensor_comm, Pattern::gather_or_scatter, message(w), Group::tensor, TransferKind::reduce_scatter);
  else
    w.beside(Part::tensor_comm, Pattern::all_reduce, message(w), Group::tensor);
}

// A collective and a product that are cut up and run beside each other (Transformer Engine's userbuffers).
void overlap_last_two(Writer& w, std::vector<Operation>& out) {
  if (!w.job().overlap_tensor || out.size() < 2) return;
  Operation &a = out[out.size() - 2], &b = out.back();
  if ((a.compute_ns > 0) == (b.compute_ns > 0)) return;
  Operation& kernel = a.compute_ns > 0 ? a : b;
  Operation& transfer = a.compute_ns > 0 ? b : a;
  kernel.comm_ns += transfer.comm_ns;
  kernel.comm_part = transfer.comm_part;
  kernel.transfer = transfer.transfer;
  kernel.host_ns += transfer.host_ns;
  kernel.doubt_ns += transfer.doubt_ns;
  if (&kernel != &a) a = b;
  out.pop_back();
}

struct Mlp {
  double up, down;  // columns of the first product, rows of the second; of one rank
};
Mlp mlp_of(const EstimateJob& job, double width) {
  const double ffn = width / static_cast<double>(job.tp);
  return {(job.model.gated_mlp ? 2 : 1) * ffn, ffn};
}

void activation(Writer& w, double tokens, const Mlp& m, bool backward) {
  const Fusion& f = w.fusion();
  const Traffic& t = w.job().model.gated_mlp ? (backward ? f.gate_back : f.gate) : (backward ? f.gelu_back : f.gelu);
  w.traffic(Part::activation, tokens * m.down, t);
  // Megatron-LM clamps halves and joins them again in operators of their own (weighted_bias_quick_geglu_impl); backward
  // the same, of their gradients and inputs.
  if (w.job().model.clamped_gate && w.job().framework == Framework::megatron)
    w.traffic(Part::activation, tokens * m.down, backward ? Traffic{20, 3} : Traffic{16, 3});
}

void add_residual(Writer& w) {
  w.traffic(Part::residual, w.rows() * w.hidden(), {w.job().dropout ? 9.0 : 6.0, w.job().dropout ? 2 : 1});
}

// ---- mixture of experts ----
// Tokens are shared evenly, as balanced routers leave them. Experts are whole on a rank (expert tensor parallelism 1),
// expert parallelism goes over neighbouring ranks, those of tensor parallelism first.

struct Routed {
  double tokens;        // that a rank's experts get, of all ranks
  double experts_here;  // of one rank
  double up, down;      // of one expert
  double message;       // bytes that a rank sends
};
Routed routed_of(const Writer& w) {
  const EstimateJob& job = w.job();
  const ModelFacts& m = job.model;
  Routed r;
  r.tokens = w.rows() * static_cast<double>(m.experts_per_token);
  r.experts_here = static_cast<double>(m.experts) / static_cast<double>(job.ep);
  r.down = static_cast<double>(m.expert_ffn);
  r.up = (m.gated_mlp ? 2 : 1) * r.down;
  r.message = w.element() * w.rows() * static_cast<double>(m.experts_per_token) * w.hidden();
  return r;
}
void exchange_tokens(Writer& w, const Routed& r) {
  // By expert on this rank, and on the other by expert again.
  w.traffic(Part::dispatch, w.rows() * w.hidden() * static_cast<double>(w.job().model.experts_per_token), {8, 6});
  w.collective(Part::expert_comm, Pattern::all_to_all, r.message, Group::expert);
}
enum class Product : std::uint8_t { forward, input, weight };
// Grouped products: one expert's tokens each.
void expert_products(Writer& w, const Routed& r, Product which) {
  const double each = r.tokens / r.experts_here, h = w.hidden();
  const auto run = [&](double n, double k) {
    if (which == Product::forward) w.linear(Part::experts, each, n, k, r.experts_here);
    if (which == Product::input) w.linear_input(Part::experts, each, n, k, r.experts_here);
    if (which == Product::weight) w.linear_weight(Part::experts, each, n, k, r.experts_here);
  };
  const bool forward = which == Product::forward;
  if (forward)
    run(r.up, h);
  else
    run(h, r.down);
  if (which != Product::weight) activation(w, r.tokens, {r.up, r.down}, !forward);
  if (forward)
    run(h, r.down);
  else
    run(r.up, h);
}

// Biases of experts are added to outputs after they are weighted, expert by expert, in fp32 (Megatron-LM's
// TEGroupedMLP._apply_bias): product, sum, concatenation, cast; backward the sums over tokens and over columns.
void expert_biases(Writer& w, const Routed& r, bool backward) {
  if (!w.job().model.linear_bias || w.job().framework != Framework::megatron) return;
  const int each = static_cast<int>(r.experts_here);
  w.traffic(Part::experts, r.tokens * w.hidden(), backward ? Traffic{36, 5 * each + 2} : Traffic{28, 2 * each + 2});
}

void mlp_forward(Writer& w, std::vector<Operation>& out, std::int64_t layer) {
  const EstimateJob& job = w.job();
  const ModelFacts& m = job.model;
  const double h = w.hidden();
  if (m.experts == 0 || layer < m.dense_layers) {
    const Mlp mlp = mlp_of(job, static_cast<double>(m.ffn));
    gather_rows(w);
    w.linear(Part::mlp_up, w.tokens(), mlp.up, h, 1, w.side_by_side());
    overlap_last_two(w, out);
    activation(w, w.tokens(), mlp, false);
    w.linear(Part::mlp_down, w.tokens(), h, mlp.down);
    sum_rows(w);
    overlap_last_two(w, out);
    return;
  }
  const Routed r = routed_of(w);
  w.gemm(Part::router, GemmLayout::nt, w.rows(), static_cast<double>(m.experts), h);
  w.memory(Part::router, 16 * w.rows() * static_cast<double>(m.experts), 6);  // softmax, the highest, their order
  out.back().host_waits = true;                                               // how many tokens each expert gets
  exchange_tokens(w, r);
  expert_products(w, r, Product::forward);
  expert_biases(w, r, false);
  exchange_tokens(w, r);
  if (m.shared_ffn > 0) {
    const Mlp shared = mlp_of(job, static_cast<double>(m.shared_ffn));
    gather_rows(w);
    w.linear(Part::shared_experts, w.tokens(), shared.up, h);
    activation(w, w.tokens(), shared, false);
    w.linear(Part::shared_experts, w.tokens(), h, shared.down);
    sum_rows(w);
  }
}

void mlp_backward(Writer& w, Writer& weights, std::vector<Operation>& out, std::int64_t layer) {
  const EstimateJob& job = w.job();
  const ModelFacts& m = job.model;
  const double h = w.hidden();
  const auto dense = [&](Part up, Part down, double width) {
    const Mlp mlp = mlp_of(job, width);
    gather_rows(w);
    w.linear_input(down, w.tokens(), h, mlp.down);
    overlap_last_two(w, out);
    weights.linear_weight(down, w.tokens(), h, mlp.down);
    activation(w, w.tokens(), mlp, true);
    w.linear_input(up, w.tokens(), mlp.up, h, 1, w.side_by_side());
    gather_beside(w);
    weights.linear_weight(up, w.tokens(), mlp.up, h, 1, w.side_by_side());
    sum_beside(w);
  };
  if (m.experts == 0 || layer < m.dense_layers) return dense(Part::mlp_up, Part::mlp_down, static_cast<double>(m.ffn));
  const Routed r = routed_of(w);
  exchange_tokens(w, r);
  expert_biases(w, r, true);
  expert_products(w, r, Product::input);
  expert_products(weights, r, Product::weight);
  exchange_tokens(w, r);
  w.gemm(Part::router, GemmLayout::nn, w.rows(), h, static_cast<double>(m.experts));
  weights.gemm(Part::router, GemmLayout::tn, static_cast<double>(m.experts), h, w.rows());
  w.memory(Part::router, 16 * w.rows() * static_cast<double>(m.experts), 6);
  if (m.shared_ffn > 0) dense(Part::shared_experts, Part::shared_experts, static_cast<double>(m.shared_ffn));
}

void attention_forward(Writer& w, std::vector<Operation>& out) {
  const EstimateJob& job = w.job();
  const Heads h = heads_of(job);
  gather_rows(w);
  for (const Projection& p : input_projections(job)) w.linear(Part::qkv, w.tokens(), p.out, p.in);
  overlap_last_two(w, out);
  if (!job.model.learned_positions)
    w.traffic(Part::rotary, w.tokens() * (h.query + h.key_value) * h.dim, w.fusion().rotary);
  attention_core(w, false);
  w.linear(Part::projection, w.tokens(), w.hidden(), h.query * h.value_dim);
  sum_rows(w);
  overlap_last_two(w, out);
}

void attention_backward(Writer& w, Writer& weights, std::vector<Operation>& out) {
  const EstimateJob& job = w.job();
  const Heads h = heads_of(job);
  gather_rows(w);
  w.linear_input(Part::projection, w.tokens(), w.hidden(), h.query * h.value_dim);
  overlap_last_two(w, out);
  weights.linear_weight(Part::projection, w.tokens(), w.hidden(), h.query * h.value_dim);
  attention_core(w, true);
  if (!job.model.learned_positions)
    w.traffic(Part::rotary, w.tokens() * (h.query + h.key_value) * h.dim, w.fusion().rotary);
  std::vector<Projection> inputs = input_projections(job);
  std::reverse(inputs.begin(), inputs.end());
  for (const Projection& p : inputs) w.linear_input(Part::qkv, w.tokens(), p.out, p.in);
  gather_beside(w);
  for (const Projection& p : inputs) weights.linear_weight(Part::qkv, w.tokens(), p.out, p.in);
  sum_beside(w);
}

// PyTorch has a kernel of its own for LayerNorm; RMSNorm is made of operators unless something fuses them.
void norm(Writer& w, bool backward) {
  constexpr Traffic kLayerNorm{4, 1}, kLayerNormBack{8, 2};
  const bool layer_norm = !w.job().model.rms_norm;
  w.traffic(
      Part::norm, w.rows() * w.hidden(),
      backward ? (layer_norm ? kLayerNormBack : w.fusion().norm_back) : (layer_norm ? kLayerNorm : w.fusion().norm));
}

// On a CPU the operators of a list are issued and computed by the same threads.
void join_host(const JobCosts& costs, std::vector<Operation>& list) {
  if (!costs.serial) return;
  for (Operation& o : list) {
    (o.compute_ns > 0 || o.comm_ns <= 0 ? o.compute_ns : o.comm_ns) += o.host_ns;
    o.host_ns = 0;
    o.host_waits = false;
  }
}
LayerWork joined(const JobCosts& costs, LayerWork work) {
  for (auto* list : {&work.forward, &work.backward, &work.weight}) join_host(costs, *list);
  return work;
}

}  // namespace

std::string_view name_of(Part p) {
  switch (p) {
    case Part::embedding:
      return "embedding";
    case Part::norm:
      return "norm";
    case Part::qkv:
      return "qkv projection";
    case Part::rotary:
      return "rotary";
    case Part::scores:
      return "attention scores";
    case Part::softmax:
      return "softmax";
    case Part::context:
      return "attention context";
    case Part::attention:
      return "attention";
    case Part::projection:
      return "output projection";
    case Part::mlp_up:
      return "mlp up";
    case Part::activation:
      return "activation";
    case Part::mlp_down:
      return "mlp down";
    case Part::router:
      return "router";
    case Part::dispatch:
      return "dispatch";
    case Part::experts:
      return "experts";
    case Part::shared_experts:
      return "shared experts";
    case Part::residual:
      return "residual";
    case Part::head:
      return "lm head";
    case Part::loss:
      return "loss";
    case Part::quantize:
      return "quantize";
    case Part::dequantize:
      return "dequantize";
    case Part::adapters:
      return "adapters";
    case Part::gradients:
      return "gradients";
    case Part::optimizer:
      return "optimizer";
    case Part::tensor_comm:
      return "tensor-parallel communication";
    case Part::context_comm:
      return "context-parallel communication";
    case Part::expert_comm:
      return "expert-parallel communication";
    case Part::data_comm:
      return "data-parallel communication";
    case Part::pipeline_comm:
      return "pipeline communication";
    case Part::copies:
      return "host-device copies";
  }
  return "";
}

bool is_communication(Part p) { return p >= Part::tensor_comm && p <= Part::pipeline_comm; }

LayerWork layer_work(const EstimateJob& job, const JobCosts& costs, std::int64_t layer, bool split_backward) {
  LayerWork work;
  Writer forward(job, costs, work.forward, false);
  norm(forward, false);
  attention_forward(forward, work.forward);
  add_residual(forward);
  norm(forward, false);
  mlp_forward(forward, work.forward, layer);
  add_residual(forward);

  Writer backward(job, costs, work.backward, true);
  Writer weights(job, costs, split_backward ? work.weight : work.backward, true);
  if (job.recompute == Recompute::full) {
    // A checkpoint keeps the random states (of the CPU, the GPU and, Megatron-LM, the tensor-parallel tracker), sets
    // them to run the layer again, and puts back those that it found; then it calls the autograd engine.
    const double states = job.framework == Framework::megatron ? 3 : 2;
    forward.calls(states);
    work.backward = work.forward;
    backward.calls(3 * states + 2);
  }
  add_residual(backward);
  mlp_backward(backward, weights, work.backward, layer);
  norm(backward, true);
  if (job.recompute == Recompute::selective && job.attention == AttentionKind::unfused) attention_core(backward, false);
  attention_backward(backward, weights, work.backward);
  norm(backward, true);
  add_residual(backward);
  for (int i = 0; i < 2 && job.method == Method::full; ++i) weights.gradient_hooks(weights.hidden());  // of the norms
  return joined(costs, std::move(work));
}

LayerWork embedding_work(const EstimateJob& job, const JobCosts& costs) {
  LayerWork work;
  Writer forward(job, costs, work.forward, false);
  const double elements = forward.tokens() * forward.hidden();
  forward.traffic(Part::embedding, elements, {4, 1});
  sum_rows(forward);
  if (job.model.learned_positions) forward.traffic(Part::embedding, forward.rows() * forward.hidden(), {6, 1});
  if (job.dropout) forward.traffic(Part::embedding, forward.rows() * forward.hidden(), {5, 1});
  if (job.method == Method::prompt) {  // the rows of the prompt, and theirs of the gradient
    forward.memory(Part::embedding, 4 * elements, 1);
    Writer(job, costs, work.backward, true)
        .memory(Part::embedding, 4 * static_cast<double>(job.prompt_tokens * job.micro_batch_size) * forward.hidden());
  }
  if (!job.trains_tables()) return joined(costs, std::move(work));  // nothing before the first layer learns
  Writer backward(job, costs, work.backward, true);
  gather_rows(backward);
  // Gradients are added to a table that is cleared first; megatron adds to its buffer.
  backward.traffic(Part::embedding, elements, {8, 3});
  if (job.framework != Framework::megatron)
    backward.memory(Part::embedding, 2 * static_cast<double>(job.model.vocab) * backward.hidden() / backward.tp());
  return joined(costs, std::move(work));
}

LayerWork head_work(const EstimateJob& job, const JobCosts& costs) {
  LayerWork work;
  const double columns = static_cast<double>(job.model.vocab) / static_cast<double>(job.tp);
  Writer forward(job, costs, work.forward, false);
  const double logits = forward.tokens() * columns;
  // In two bytes: shifted copy, log-softmax, loss; the gradients of all three.
  const bool narrow_loss = !job.fp32_loss && forward.eager();
  norm(forward, false);
  gather_rows(forward);
  forward.gemm(Part::head, GemmLayout::nt, forward.tokens(), columns, forward.hidden());
  forward.traffic(Part::loss, logits, narrow_loss ? Traffic{8, 3} : forward.fusion().loss);
  for (int i = 0; i < 3 && job.tp > 1; ++i)  // the maximum, the target's logit, the sum
    forward.collective(Part::tensor_comm, Pattern::all_reduce, 4 * forward.tokens(), Group::tensor);
  Writer backward(job, costs, work.backward, true);
  backward.traffic(Part::loss, logits, narrow_loss ? Traffic{14, 4} : backward.fusion().loss_back);
  backward.gemm(Part::head, GemmLayout::nn, backward.tokens(), backward.hidden(), columns);
  if (job.trains_tables()) backward.full_weight_gradient(Part::head, backward.tokens(), columns, backward.hidden());
  sum_beside(backward);
  norm(backward, true);
  return joined(costs, std::move(work));
}

Placement placement_of(const EstimateJob& job, Group g) {
  // Where NVLink joins pairs alone, the server's GPUs meet over the host.
  const bool joined = job.platform.nvlink_gb_per_s > 0 && !job.platform.nvlink_in_pairs;
  const std::int64_t server =
      std::max<std::int64_t>(1, joined ? job.platform.nvlink_domain : job.platform.gpus_per_node);
  const auto spread = [&](std::int64_t members, std::int64_t stride) {
    return Placement{members, std::clamp<std::int64_t>(server / std::max<std::int64_t>(1, stride), 1, members)};
  };
  switch (g) {
    case Group::tensor:
      return spread(job.tp, 1);
    case Group::context:
      return spread(job.cp, job.tp);
    case Group::expert:
      return spread(job.ep, 1);
    case Group::data:
      return spread(job.replicas(), job.tp);
    case Group::shard:
      return spread(job.shards(), job.tp);
    case Group::copies:  // of a shard: one rank of every shard group
      return spread(job.replicas() / job.shards(), job.tp * job.shards());
    case Group::expert_data:
      return spread(std::max<std::int64_t>(1, job.expert_replicas()), job.ep);
    case Group::pipeline:
      return spread(2, job.tp * job.replicas());
  }
  return {};
}

}  // namespace orrery
