#include "serving/step_costs.h"

#include <algorithm>
#include <cmath>

#include "estimate/operation_writer.h"
#include "serving/reduce_law.h"

namespace orrery {
namespace {

double d(std::int64_t x) { return static_cast<double>(x); }

// A graph is launched by one call and a node's place in it costs the device next to nothing; pieces of a step that are
// captured between attentions (vLLM's compiled steps with prompts) leave the attentions to be launched: an operator and
// its metadata, as Python calls it.
constexpr double kGraphLaunchNs = 12'000;
// Of an eager operator on the hosts that engines' own work was measured on (A100 servers with two EPYC 7742: its
// facts): Python's work there and on other hosts is taken to go by it.
constexpr double kEngineHostUs = 14.5;
// A sampler's passes over the logits in fp32: cast, scale, softmax, random numbers, their quotient, argmax.
constexpr double kSamplingPasses = 8;
constexpr int kSamplingKernels = 8;

// `block` n times in a row.
Block times(const Block& block, std::int64_t n) {
  Block result, power = block;
  for (; n > 0; n >>= 1) {
    if (n & 1) result = then(result, power);
    if (n > 1) power = then(power, power);
  }
  return result;
}

}  // namespace

// Writes the operators of a part of a step.
class StepCosts::Writer {
 public:
  // `launched`: the host launches each kernel; else they are nodes of a captured graph.
  Writer(const StepCosts& costs, bool launched, std::vector<Operation>& out)
      : c_(costs), job_(costs.job_), m_(costs.job_.model), e_(costs.job_.engine), launched_(launched), out_(&out) {}

  void embedding(double tokens) {
    memory(Part::embedding, MemoryKernel::embedding, 2 * element() * tokens * hidden());
    if (m_.learned_positions) memory(Part::embedding, MemoryKernel::elementwise, 3 * element() * tokens * hidden());
    reduce(tokens);  // of a table that is split by rows
  }

  // Up to the attention: norm, projections, rotary, the new keys and values into the cache.
  void before_attention(double tokens) {
    norm(tokens);
    const double tp = d(job_.tp), dim = d(m_.head_dim);
    const double heads = d(m_.heads) / tp;
    if (m_.kv_lora_rank > 0) {
      const double rank = d(m_.kv_lora_rank), rope = d(m_.rope_head_dim), q_rank = d(m_.q_lora_rank);
      linear(Part::qkv, tokens, q_rank > 0 ? q_rank + rank + rope : rank + rope, hidden());
      if (q_rank > 0) linear(Part::qkv, tokens, heads * (dim + rope), q_rank);
      if (q_rank == 0) linear(Part::qkv, tokens, heads * (dim + rope), hidden());
      memory(Part::norm, MemoryKernel::norm, 2 * element() * tokens * (rank + q_rank));
      gemm(Part::qkv, tokens, rank, dim, heads);  // queries into the space of the compressed keys
      memory(Part::rotary, MemoryKernel::rotary, 2 * element() * tokens * (heads * rope + rank + rope));
      return;
    }
    const double kv = std::max(1.0, d(m_.kv_heads) / tp), width = (heads + 2 * kv) * dim;
    if (unfused()) {
      linear(Part::qkv, tokens, heads * dim, hidden());
      for (int i = 0; i < 2; ++i) linear(Part::qkv, tokens, kv * dim, hidden());
    } else {
      linear(Part::qkv, tokens, width, hidden());
    }
    if ((m_.linear_bias || m_.qkv_bias) && !fused())
      memory(Part::qkv, MemoryKernel::elementwise, 2 * element() * tokens * width);
    if (m_.qk_norm && !fused()) memory(Part::norm, MemoryKernel::norm, 2 * element() * tokens * (heads + kv) * dim, 2);
    if (!m_.learned_positions)
      memory(Part::rotary, MemoryKernel::rotary, 2 * element() * tokens * (heads + kv) * dim, unfused() ? 2 : 1);
    memory(Part::rotary, MemoryKernel::elementwise, 2 * element() * tokens * 2 * kv * dim, unfused() ? 2 : 1);
  }

  // Prompts: as many equal pieces as there are, with the pairs that theirs add up to.
  void prefill_attention(const StepShape& s, bool windowed) {
    if (s.prefill_tokens == 0) return;
    AttentionWork w = attention_of();
    const double n = d(s.prefill_sequences), q = d(s.prefill_tokens) / n;
    double keys = s.prefill_pairs / (n * q) + q / 2;
    if (windowed) keys = std::min(keys, d(m_.sliding_window) + q / 2);
    w.batch = n, w.queries = std::max(q, 2.0), w.keys = std::max(keys, w.queries);
    write_attention(w, 2 * n * w.heads * q * (keys - q / 2) * (w.head_dim + value_dim(w)));
  }
  void decode_attention(const StepShape& s, bool windowed) {
    if (s.decode_sequences == 0) return;
    AttentionWork w = attention_of();
    double keys = s.decode_context / d(s.decode_sequences) + 1;
    if (windowed) keys = std::min(keys, d(m_.sliding_window));
    w.batch = d(s.decode_sequences), w.queries = 1, w.keys = std::max(keys, 1.0);
    write_attention(w, 2 * w.batch * w.heads * w.keys * (w.head_dim + value_dim(w)));
  }

  void after_attention(double tokens, bool experts, double distinct, double others) {
    const double tp = d(job_.tp), heads = d(m_.heads) / tp;
    const double value = m_.kv_lora_rank > 0 ? d(m_.value_head_dim) : d(m_.head_dim);
    if (m_.kv_lora_rank > 0) gemm(Part::projection, tokens, value, d(m_.kv_lora_rank), heads);
    linear(Part::projection, tokens, hidden(), heads * value);
    reduce(tokens);
    if (unfused()) memory(Part::residual, MemoryKernel::elementwise, 3 * element() * tokens * hidden());
    if (m_.layer_norms > 1) norm(tokens);
    for (std::int64_t k = 2; k < m_.layer_norms; ++k) norm(tokens);
    if (experts)
      expert_mlp(tokens, distinct, others);
    else
      mlp(Part::mlp_up, Part::mlp_down, tokens, d(m_.ffn) / tp);
    reduce(tokens);
    if (unfused()) memory(Part::residual, MemoryKernel::elementwise, 3 * element() * tokens * hidden());
  }

  void head(double rows) {
    norm(rows);
    const double vocab = d(m_.vocab) / d(job_.tp);
    gemm(Part::head, rows, vocab, hidden());
    if (job_.tp > 1) {
      const double ns =
          transfer_ns(c_.network_, Pattern::gather_or_scatter, element() * rows * d(m_.vocab), placement());
      communication(ns, TransferKind::all_gather, element() * rows * d(m_.vocab));
    }
    memory(Part::loss, MemoryKernel::softmax, kSamplingPasses * 4 * rows * d(m_.vocab), kSamplingKernels);
  }

  void send(double tokens) {
    const double ns = transfer_ns(c_.network_, Pattern::point_to_point, element() * tokens * hidden() * 2,
                                  {2, job_.tp * job_.pp <= job_.platform.gpus_per_node ? 2 : 1});
    Operation o = operation(Part::pipeline_comm);
    o.comm_part = Part::pipeline_comm;
    o.comm_ns = std::max(0.0, ns);
    o.doubt_ns = 0.2 * o.comm_ns;
    out_->push_back(o);
  }

 private:
  double element() const { return std::max(2.0, bytes_of(job_.precision)); }
  double hidden() const { return d(m_.hidden); }
  bool amd() const {
    const Architecture a = c_.operators_.architecture();
    return a == Architecture::cdna2 || a == Architecture::cdna3;
  }
  bool fused() const { return e_.kernels == "fused"; }
  bool unfused() const { return e_.kernels == "unfused"; }
  Placement placement() const {
    const PlatformFacts& p = job_.platform;
    const bool joined = p.nvlink_gb_per_s > 0 && !p.nvlink_in_pairs;
    return {job_.tp, std::clamp<std::int64_t>(joined ? p.nvlink_domain : p.gpus_per_node, 1, job_.tp)};
  }

  Operation operation(Part part) const {
    Operation o;
    o.part = part;
    if (launched_) o.host_ns = c_.host_factor_ * (c_.launch_ns_ + c_.operator_ns_);
    return o;
  }
  void add(Part part, OperatorTime t, double flops = 0) {
    Operation o = operation(part);
    o.compute_ns = c_.gpu_factor_ * t.ns;
    o.flops = flops;
    o.doubt_ns = o.compute_ns * t.relative_error;
    out_->push_back(o);
  }
  void memory(Part part, MemoryKernel kind, double bytes, int kernels = 1) {
    for (int i = 0; i < kernels; ++i) {
      add(part, c_.operators_.memory(bytes / kernels, kind));
      out_->back().bytes = bytes / kernels;
    }
  }
  // With the residual added. Fused: part of the kernel of a neighbour, one a norm.
  void norm(double rows) {
    const double bytes = (unfused() ? 4 : 8) / 2 * element() * rows * hidden();
    memory(Part::norm, fused() ? MemoryKernel::elementwise : MemoryKernel::norm, bytes, unfused() ? 2 : 1);
  }
  void communication(double ns, TransferKind kind, double bytes, Part part = Part::tensor_comm) {
    if (ns <= 0) return;
    Operation o = operation(part);
    if (c_.operator_ns_ > 0) o.host_ns *= estimating::kCollectiveHost;  // through c10d
    o.comm_part = part;
    o.comm_ns = ns;
    o.doubt_ns = 0.15 * ns;
    o.transfer = {kind, Group::tensor, bytes};
    out_->push_back(o);
  }
  void reduce(double tokens) {
    if (job_.tp < 2) return;
    const double bytes = element() * tokens * hidden();
    const bool custom = e_.custom_all_reduce && (!amd() || e_.custom_all_reduce_on_amd);
    communication(all_reduce_ns(job_.platform, c_.network_, bytes, placement(), custom), TransferKind::all_reduce,
                  bytes);
  }

  void gemm(Part part, double m, double n, double k, double batch = 1) {
    GemmWork w;
    w.m = m, w.n = n, w.k = k, w.batch = batch, w.precision = job_.precision;
    const OperatorTime t = c_.operators_.gemm(w);
    add(part, t, 2 * batch * m * n * k);
    Operation& o = out_->back();
    o.m = m, o.n = n, o.k = k, o.batch = batch;
  }
  // A product with weights in their format; batch: experts.
  void linear(Part part, double m, double n, double k, double batch = 1) {
    GemmWork w;
    w.m = m, w.n = n, w.k = k, w.batch = batch, w.precision = job_.precision;
    double unpack = 0;
    switch (job_.weights) {
      case WeightFormat::same:
        break;
      case WeightFormat::fp8:
        // The law's own kernel for the activations (quantise) is an eager chain, 11 us on Hopper: engines have one
        // short kernel, or do it in the one before.
        if (!fused()) memory(part, MemoryKernel::elementwise, (element() + 1) * batch * m * k);
        w.precision = Precision::fp8;
        break;
      case WeightFormat::int8:
        unpack = e_.int8_unpack_ops;
        [[fallthrough]];
      case WeightFormat::int4:
        w.weight_bytes = weight_bytes(job_);
        break;
    }
    OperatorTime t = c_.operators_.gemm(w);
    if (job_.weights == WeightFormat::fp8 && amd()) {  // whose law in fp8 is another maker's: half of bf16's at best
      GemmWork wide = w;
      wide.precision = job_.precision;
      t.ns = std::max(t.ns, c_.operators_.gemm(wide).ns / 2);
    }
    // Weights come from memory, whatever the law's cards had beside it.
    t.ns = std::max(t.ns, batch * n * k * weight_bytes(job_) / job_.platform.gpu.memory_gb_per_s);
    if (e_.matvec_share > 0 && m <= 1 && job_.weights != WeightFormat::int4)
      t.ns = c_.operators_.memory(0).ns +
             batch * n * k * weight_bytes(job_) / (e_.matvec_share * job_.platform.gpu.memory_gb_per_s);
    if (e_.matvec_bytes_per_clock > 0 && m <= 1) {
      const GpuFacts& gpu = job_.platform.gpu;
      const double rate = e_.matvec_bytes_per_clock * gpu.sms * std::max(gpu.boost_mhz, 1'000.0) / 1e3;
      const double ns = batch * n * k * weight_bytes(job_) / rate;
      t.ns = std::cbrt(t.ns * t.ns * t.ns + ns * ns * ns);
    }
    if (unpack > 0) {  // beside the loads
      const double ns = batch * n * k * unpack / (job_.platform.gpu.fp32_tflops * 1e3 / 2);
      t.ns = std::cbrt(t.ns * t.ns * t.ns + ns * ns * ns);
    }
    add(part, t, 2 * batch * m * n * k);
    Operation& o = out_->back();
    o.m = m, o.n = n, o.k = k, o.batch = batch;
    if (m_.linear_bias && !fused()) memory(part, MemoryKernel::elementwise, 2 * element() * batch * m * n);
  }
  void mlp(Part up, Part down, double tokens, double ffn, double batch = 1) {
    const double gates = m_.gated_mlp ? 2 : 1;
    if (unfused() && m_.gated_mlp) {
      for (int i = 0; i < 2; ++i) linear(up, tokens, ffn, hidden(), batch);
    } else {
      linear(up, tokens, gates * ffn, hidden(), batch);
    }
    memory(Part::activation, MemoryKernel::elementwise, (gates + 1) * element() * batch * tokens * ffn,
           unfused() && m_.gated_mlp ? 2 : 1);
    linear(down, tokens, hidden(), ffn, batch);
  }
  // Tokens choose experts evenly and independently: so many are touched. `distinct` of them are not copies of others.
  // `others`: tokens of the replicas that share the experts; what each has comes together.
  void expert_mlp(double tokens, double distinct, double others) {
    const double experts = d(m_.experts), chosen = d(m_.experts_per_token), ep = d(job_.ep), all = tokens + others;
    gemm(Part::router, tokens, experts, hidden());
    // Softmax and the best of them, places of tokens sorted by expert, the weighted sum.
    memory(Part::router, MemoryKernel::softmax, 8 * tokens * experts, fused() ? 2 : 3);
    exchange(all);
    const double touched = std::max(1.0, experts / ep * (1 - std::pow(1 - chosen / experts, distinct + others)));
    const double rows = all * chosen / ep / touched;
    if (e_.expert_sync)
      for (int i = 0; i < 3; ++i) read_back();
    mlp(Part::experts, Part::experts, rows, d(m_.expert_ffn) / std::max(1.0, d(job_.tp) / ep), touched);
    memory(Part::dispatch, MemoryKernel::elementwise, (chosen + 1) * element() * all * hidden() / ep);
    exchange(all);
    if (m_.shared_ffn > 0) mlp(Part::shared_experts, Part::shared_experts, tokens, d(m_.shared_ffn) / d(job_.tp));
  }

  // All tokens to all replicas that share experts, and their sums back: a gather and a scatter.
  void exchange(double tokens) {
    if (job_.ep <= job_.tp) return;
    const PlatformFacts& p = job_.platform;
    const bool joined = p.nvlink_gb_per_s > 0 && !p.nvlink_in_pairs;
    const Placement where{job_.ep, std::clamp<std::int64_t>(joined ? p.nvlink_domain : p.gpus_per_node, 1, job_.ep)};
    const double bytes = element() * tokens * hidden();
    communication(transfer_ns(c_.network_, Pattern::gather_or_scatter, bytes, where), TransferKind::all_gather, bytes,
                  Part::expert_comm);
  }
  void read_back() {
    Operation o = operation(Part::router);
    o.compute_ns = c_.operators_.memory(0, MemoryKernel::copy).ns;
    o.host_waits = true;
    out_->push_back(o);
  }

  AttentionWork attention_of() const {
    AttentionWork w;
    w.heads = d(m_.heads) / d(job_.tp);
    w.precision = bytes_of(job_.precision) < 2 ? Precision::bf16 : job_.precision;
    w.kv_bytes = job_.kv_bytes;
    if (m_.kv_lora_rank > 0) {
      w.kv_heads = 1, w.head_dim = d(m_.kv_lora_rank + m_.rope_head_dim), w.value_head_dim = d(m_.kv_lora_rank);
    } else {
      w.kv_heads = std::max(1.0, d(m_.kv_heads) / d(job_.tp)), w.head_dim = d(m_.head_dim);
    }
    w.kernel = AttentionKernel::flash2;
    w.shared_kv = (job_.kv_bytes <= 0 || e_.shared_quantised_kv) && (!amd() || e_.shared_kv_on_amd);
    return w;
  }
  static double value_dim(const AttentionWork& w) { return w.value_head_dim > 0 ? w.value_head_dim : w.head_dim; }
  void write_attention(const AttentionWork& w, double flops) {
    if (unfused()) {  // two products with the scores written and read between them
      const double scores = w.batch * w.heads * w.queries * w.keys;
      OperatorTime t = c_.operators_.attention(w);
      add(Part::attention, t, flops);
      memory(Part::softmax, MemoryKernel::softmax, 8 * scores, 3);
    } else {
      add(Part::attention, c_.operators_.attention(w), flops);
    }
    if (!launched_ && w.queries > 1) out_->back().host_ns = c_.host_factor_ * 2 * (c_.launch_ns_ + c_.operator_ns_);
  }

  const StepCosts& c_;
  const ServeJob& job_;
  const ModelFacts& m_;
  const EngineFacts& e_;
  bool launched_;
  std::vector<Operation>* out_;
};

StepCosts::StepCosts(const ServeJob& job)
    : job_(job),
      operators_(job.platform.gpu),
      network_(network_of(job.platform, job.platform.gpus_per_node)),
      launch_ns_(1'000 * job.platform.host.launch_us),
      operator_ns_(1'000 * job.platform.host.operator_us),
      host_speed_(job.platform.host.operator_us / kEngineHostUs) {
  // C++ runtimes launch without PyTorch's operators round the kernels.
  if (job_.engine.kernels == "unfused" || (job_.engine.kernels == "fused" && !job_.engine.cuda_graph_prefill))
    operator_ns_ = 0;
  const ModelFacts& m = job_.model;
  std::int64_t layer = 0;
  for (std::int64_t stage = 0; stage < job_.pp; ++stage) {
    std::array<Kind, 4> kinds{{{false, false}, {true, false}, {false, true}, {true, true}}};
    const std::int64_t end = m.layers * (stage + 1) / job_.pp;
    for (; layer < end; ++layer) {
      const bool windowed =
          m.sliding_window > 0 && (m.full_attention_every == 0 || (layer + 1) % m.full_attention_every != 0);
      ++kinds[(has_experts(m, layer) ? 1u : 0u) + (windowed ? 2u : 0u)].count;
    }
    stages_.push_back(kinds);
  }
}

void StepCosts::scale(double gpu, double host) {
  gpu_factor_ = gpu, host_factor_ = host;
  known_.clear();
  heads_.clear();
}

bool StepCosts::captured(const StepShape& s) const {
  if (!job_.cuda_graphs) return false;
  if (s.prefill_tokens > 0) return job_.engine.cuda_graph_prefill;
  return s.decode_sequences <= job_.engine.cuda_graph_batch;
}

// Drafted tokens are verified together with the last one.
std::int64_t StepCosts::tokens_of(const StepShape& s) const {
  return s.prefill_tokens + s.decode_sequences * (1 + job_.draft_tokens);
}
std::int64_t StepCosts::rows_of(const StepShape& s) const {
  return s.finishing + s.decode_sequences * (1 + job_.draft_tokens);
}

// Tokens that are no copies of others.
double StepCosts::distinct_of(const StepShape& s) const {
  if (!alike_ || s.sequences() < 2) return d(tokens_of(s));
  return std::ceil(d(tokens_of(s)) / d(s.sequences()));
}

void StepCosts::set_alike(bool alike) {
  alike_ = alike;
  known_.clear();
}

const StepCosts::Known& StepCosts::known(const StepShape& s, bool launched) const {
  const std::int64_t tokens = tokens_of(s);
  const double distinct = distinct_of(s);
  const auto [it, added] = known_.try_emplace({tokens, static_cast<std::int64_t>(distinct), s.other_tokens, launched});
  if (!added) return it->second;
  Known& k = it->second;
  std::vector<Operation> out;
  Writer w(*this, launched, out);
  const auto block = [&](auto write) {
    out.clear();
    write();
    return block_of(out);
  };
  k.before = block([&] { w.before_attention(d(tokens)); });
  k.after = block([&] { w.after_attention(d(tokens), false, distinct, d(s.other_tokens)); });
  if (job_.model.experts > 0)
    k.after_experts = block([&] { w.after_attention(d(tokens), true, distinct, d(s.other_tokens)); });
  k.embedding = block([&] { w.embedding(d(tokens)); });
  return k;
}

const Block& StepCosts::head(std::int64_t rows, bool launched) const {
  const auto [it, added] = heads_.try_emplace(2 * rows + (launched ? 1 : 0));
  if (!added) return it->second;
  std::vector<Operation> out;
  if (rows > 0) Writer(*this, launched, out).head(d(rows));
  return it->second = block_of(out);
}

Block StepCosts::stage_block(const StepShape& s, std::int64_t stage) const {
  const bool launched = !captured(s);
  const Known& k = known(s, launched);
  Block all;
  if (!launched) all.host_ns = all.issue_ns = all.late_ns = kGraphLaunchNs * host_factor_;
  if (stage == 0) all = then(all, k.embedding);
  for (const Kind& kind : stages_[static_cast<std::size_t>(stage)]) {
    if (kind.count == 0) continue;
    std::vector<Operation> attention;
    Writer w(*this, launched, attention);
    w.prefill_attention(s, kind.windowed);
    w.decode_attention(s, kind.windowed);
    all = then(all,
               times(then(then(k.before, block_of(attention)), kind.experts ? k.after_experts : k.after), kind.count));
  }
  std::vector<Operation> last;
  if (stage + 1 < job_.pp) {
    Writer(*this, launched, last).send(d(tokens_of(s)));
    all = then(all, block_of(last));
  } else {
    all = then(all, head(rows_of(s), launched));
  }
  return all;
}

std::vector<Operation> StepCosts::operations(const StepShape& s, std::int64_t stage) const {
  const bool launched = !captured(s);
  const double tokens = d(tokens_of(s));
  std::vector<Operation> out;
  Writer w(*this, launched, out);
  if (stage == 0) w.embedding(tokens);
  for (const Kind& kind : stages_[static_cast<std::size_t>(stage)]) {
    for (std::int64_t i = 0; i < kind.count; ++i) {
      w.before_attention(tokens);
      w.prefill_attention(s, kind.windowed);
      w.decode_attention(s, kind.windowed);
      w.after_attention(tokens, kind.experts, distinct_of(s), d(s.other_tokens));
    }
  }
  if (stage + 1 < job_.pp)
    w.send(tokens);
  else if (rows_of(s) > 0)
    w.head(d(rows_of(s)));
  if (!launched && !out.empty()) out.front().host_ns += kGraphLaunchNs * host_factor_;
  return out;
}

ExecGraph StepCosts::graph_of(const std::vector<Operation>& operations) {
  ExecGraph g;
  g.ranks.push_back({});
  g.ranks.back().lanes = 2;
  const auto node = [&](NodeKind kind, std::uint32_t lane, double ns) {
    g.duration.push_back(static_cast<Ns>(std::llround(ns)));
    g.observed_start.push_back(0);
    g.lane.push_back(lane);
    g.kind.push_back(kind);
    g.at_begin.push_back(0);
    g.rank.push_back(0);
    g.source.push_back(OpId{});
    g.first_pred.push_back(g.first_pred.back());
    return static_cast<NodeId>(g.size() - 1);
  };
  const auto edge = [&](NodeId from, EdgeKind kind, double lag) {
    g.pred.push_back(from);
    g.pred_kind.push_back(kind);
    g.pred_lag.push_back(static_cast<Ns>(std::llround(lag)));
    ++g.first_pred.back();
  };
  NodeId host = kNoNode, stream = kNoNode;
  for (const Operation& o : operations) {
    const NodeId call = node(NodeKind::host, 0, o.host_ns);
    edge(host, host == kNoNode ? EdgeKind::root : EdgeKind::thread, 0);
    const bool moves = o.comm_ns > o.compute_ns;
    const NodeId kernel = node(moves ? NodeKind::comm : NodeKind::kernel, 1, o.stream_ns());
    edge(call, EdgeKind::launch, kLaunchLatencyNs);
    if (stream != kNoNode) edge(stream, EdgeKind::stream, 0);
    host = call;
    stream = kernel;
    if (o.host_waits) {
      host = node(NodeKind::host, 0, 0);
      edge(call, EdgeKind::thread, 0);
      edge(kernel, EdgeKind::sync, kReturnNs);
    }
  }
  return g;
}

Block StepCosts::parts(const StepShape& shape) const {
  Block all;
  for (std::int64_t stage = 0; stage < job_.pp; ++stage) all = then(all, stage_block(shape, stage));
  return all;
}

StepTime StepCosts::step(const StepShape& s) const {
  const EngineFacts& e = job_.engine;
  StepTime t;
  double gpu = 0;
  for (std::int64_t stage = 0; stage < job_.pp; ++stage) {
    const Block b = stage_block(s, stage);
    const double ns = std::max(b.late_ns, b.through_ns);
    t.stage_ns.push_back(ns);
    t.comm_ns += b.comm_ns;
    t.doubt_ns += b.doubt_ns;
    t.flops += b.flops;
    gpu += ns;
  }
  if (job_.draft_tokens > 0 && s.decode_sequences > 0) {
    // The drafting model's steps are the model's in small: what they take shrinks as its parameters.
    const double ns = d(job_.draft_tokens) * job_.draft_share * gpu;
    t.stage_ns.front() += ns;
    gpu += ns;
  }
  const double host = host_factor_ * host_speed_ * 1'000 *
                      (e.step_us + e.sequence_us * d(s.sequences()) + (job_.tp * job_.pp > 1 ? e.parallel_step_us : 0));
  t.host_ns = host;
  if (e.overlap_host) {  // the step is as long as the longer of the two
    t.before_ns = host_factor_ * 1'000 * e.exposed_us + std::max(0.0, host - gpu);
  } else {  // about half of it is planning and inputs, the rest tokens and outputs
    t.before_ns = host / 2;
    t.after_ns = host / 2;
  }
  t.doubt_ns += 0.3 * (t.before_ns + t.after_ns);
  return t;
}

}  // namespace orrery
