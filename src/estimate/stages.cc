#include "estimate/stages.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace orrery {
namespace {

// Gradients are reduced once so many parameters have theirs, as the frameworks do by default: Megatron-LM max(40
// million, 1 million a replica); DeepSpeed reduce_bucket_size 500 million; FSDP wraps every layer; DDP 25 MiB.
double bucket_parameters(const EstimateJob& job) {
  if (job.zero == 3) return 0;
  if (job.bucket > 0) return static_cast<double>(job.bucket);
  switch (job.framework) {
    case Framework::megatron:
      return std::max(40e6, 1e6 * static_cast<double>(job.replicas()));
    case Framework::deepspeed:
      return 500e6;
    case Framework::fsdp:
      return 0;
    case Framework::ddp:
      return 25.0 * 1024 * 1024 / gradient_bytes(job);
  }
  return 0;
}

double adapter_parameters(const EstimateJob& job) {
  const ModelFacts& m = job.model;
  const double r = static_cast<double>(job.lora_rank), h = static_cast<double>(m.hidden),
               ffn = static_cast<double>(m.ffn);
  const double q = static_cast<double>(m.heads * m.head_dim), kv = static_cast<double>(2 * m.kv_heads * m.head_dim);
  const double mlp = (m.gated_mlp ? 3 : 2) * (h + ffn);
  return r * (h + q + kv + q + h + mlp) / static_cast<double>(job.tp);
}

// Bytes that an update moves for one parameter, and its kernels.
struct Update {
  double bytes;
  int kernels;
};
Update update_of(const EstimateJob& job, double layers, const Weights* of_cpu) {
  // fp32 gradient, weight and both moments read; weight, moments and the two-byte weight written. Fused kernels take
  // some hundred tensors a launch; PyTorch's eager "foreach" update reads and writes in a dozen passes.
  const bool foreach_loop = (job.framework == Framework::fsdp && !job.compile) || job.framework == Framework::ddp;
  const bool adamw = job.optimizer == Optimizer::adamw, master = master_weights(job);
  const double each = master ? 4 : bytes_of_activations(job), share = each / 4;
  const int few = static_cast<int>(4 + layers / 4);
  // On a CPU PyTorch's update goes tensor by tensor (torch/optim/optimizer.py, _default_to_fused_or_foreach). Modules
  // have queries, keys and values, gate and up apart: four tensors for three.
  if (of_cpu != nullptr && adamw && foreach_loop) return {84 * share, static_cast<int>(12 * of_cpu->tensors * 4 / 3)};
  if (foreach_loop && adamw && !job.optimizer_in_backward)
    return {84 * share, static_cast<int>(12 * std::max(1.0, layers / 8))};
  if (adamw && master) return {34, few};
  // Gradient read, weight and moments read and written, and the two-byte copy of a master weight.
  const bool copy = master && job.framework != Framework::fsdp && job.framework != Framework::ddp;
  return {3 * each + 2 * moment_bytes(job) + (copy ? 2 : 0), few};
}

Block memory_block(const EstimateJob& job, const JobCosts& costs, Part part, double bytes, int kernels) {
  if (bytes <= 0) return {};
  Operation o;
  o.part = part;
  // Tensor by tensor and pass by pass the update is nothing but element-wise.
  const bool fused = part == Part::optimizer && !costs.serial;
  const Precision elements = bytes_of_activations(job) < 4 && !master_weights(job) ? Precision::bf16 : Precision::fp32;
  const MemoryKernel kind = fused ? MemoryKernel::optimizer : MemoryKernel::elementwise;
  o.compute_ns = costs.factors.optimizer * kernels * costs.operators.memory(bytes / kernels, kind, elements).ns;
  o.host_ns = kernels * (costs.launch_ns + (job.framework == Framework::megatron ? 0 : costs.operator_ns));
  if (costs.serial) o.compute_ns += std::exchange(o.host_ns, 0);
  return block_of(o);
}

}  // namespace

std::int64_t layers_of_part(const EstimateJob& job, std::int64_t part) {
  const std::int64_t parts = job.pp * job.chunks, layers = job.model.layers;
  if (layers % parts != 0 && parts > 2 && (layers + 2) % parts == 0)  // embedding and head count as one each
    return (layers + 2) / parts - (part == 0) - (part == parts - 1);
  return layers / parts + (part < layers % parts ? 1 : 0);
}
std::int64_t first_layer_of_part(const EstimateJob& job, std::int64_t part) {
  std::int64_t first = 0;
  for (std::int64_t k = 0; k < part; ++k) first += layers_of_part(job, k);
  return first;
}

namespace {
// Weight matrices of a layer that hooks and optimizers see: queries, keys and values are one here.
double linear_layers(const ModelFacts& m) { return m.gated_mlp ? 5 : 4; }
}  // namespace

Weights layer_weights(const EstimateJob& job, std::int64_t layer) {
  const ModelFacts& m = job.model;
  const double tp = static_cast<double>(job.tp);
  Weights w;
  const double mlp = mlp_parameters(m, layer);
  const bool experts = m.experts > 0 && layer >= m.dense_layers;
  const double routed =
      experts ? static_cast<double>(m.experts) * (m.gated_mlp ? 3 : 2) * static_cast<double>(m.hidden * m.expert_ffn)
              : 0;
  w.experts = routed / static_cast<double>(job.ep);
  w.all = (attention_parameters(m) + (mlp - routed)) / tp + norm_parameters(m) + w.experts;
  w.modules = linear_layers(m) + 2;
  switch (job.method) {
    case Method::full:
      w.learn = job.trains_layers() ? w.all : norm_parameters(m);
      w.learn_experts = job.trains_layers() ? w.experts : 0;
      w.tensors = linear_layers(m) + 2;
      break;
    case Method::lora:
    case Method::qlora:
      w.learn = adapter_parameters(job);
      w.all += w.learn;
      w.tensors = 2 * linear_layers(m);
      w.modules += w.tensors;
      break;
    case Method::prompt:
      break;
  }
  return w;
}

Weights embedding_weights(const EstimateJob& job) {
  const ModelFacts& m = job.model;
  const double table = static_cast<double>(m.vocab * m.hidden) / static_cast<double>(job.tp);
  const double positions = m.learned_positions ? static_cast<double>(m.max_context * m.hidden) : 0;
  Weights w;
  w.all = table + positions;
  if (job.trains_tables()) w.learn = w.all, w.tensors = 1;
  if (job.lora_embeddings) w.all *= 2;  // PEFT trains a copy
  if (job.method == Method::prompt) {
    w.learn = static_cast<double>(job.prompt_tokens * m.hidden), w.tensors = 1;
    w.all += w.learn;
  }
  return w;
}

Weights head_weights(const EstimateJob& job) {
  const ModelFacts& m = job.model;
  Weights w;
  const bool own = !m.tied_embeddings || job.pp > 1;
  w.all = static_cast<double>(m.hidden) * (m.rms_norm ? 1 : 2) +
          (own ? static_cast<double>(m.vocab * m.hidden) / static_cast<double>(job.tp) : 0);
  if (job.trains_tables()) w.learn = w.all, w.tensors = own ? 2 : 1;
  if (job.lora_embeddings) w.all *= 2;
  return w;
}

std::vector<StageWork> stages_of(const EstimateJob& job, const JobCosts& costs) {
  const bool split = job.schedule == ScheduleKind::zero_bubble;
  const std::int64_t dense =
      job.model.experts > 0 ? std::min(job.model.dense_layers, job.model.layers) : job.model.layers;
  // Two kinds of layers at most: their blocks once.
  struct Kind {
    Block forward, backward, weight;
    Weights weights;
  };
  const auto kind_of = [&](std::int64_t layer) {
    const LayerWork w = layer_work(job, costs, layer, split);
    return Kind{block_of(w.forward), block_of(w.backward), block_of(w.weight), layer_weights(job, layer)};
  };
  const Kind plain = dense > 0 ? kind_of(0) : Kind{};
  const Kind expert = dense < job.model.layers ? kind_of(job.model.layers - 1) : Kind{};
  const LayerWork embedding = embedding_work(job, costs), head = head_work(job, costs);

  std::vector<StageWork> stages(static_cast<std::size_t>(job.pp));
  for (std::int64_t s = 0; s < job.pp; ++s) {
    StageWork& stage = stages[static_cast<std::size_t>(s)];
    for (std::int64_t c = 0; c < job.chunks; ++c) {
      const std::int64_t part = c * job.pp + s, first = first_layer_of_part(job, part),
                         count = layers_of_part(job, part);
      Chunk chunk;
      for (std::int64_t l = first; l < first + count; ++l) {
        const Kind& k = l < dense ? plain : expert;
        if (chunk.bundles.empty() || chunk.bundles.back().weights.all >= bucket_parameters(job))
          chunk.bundles.push_back({});
        Bundle& b = chunk.bundles.back();
        if (b.layers++ == 0) b.first_layer = l;
        b.forward = then(b.forward, k.forward);
        b.backward = then(k.backward, b.backward);
        b.weight = then(k.weight, b.weight);
        b.weights += k.weights;
      }
      stage.layers += static_cast<double>(count);
      if (chunk.bundles.empty()) chunk.bundles.push_back({});
      if (part == 0) {
        Bundle& b = chunk.bundles.front();
        b.embedding = true;
        b.forward = then(block_of(embedding.forward), b.forward);
        b.backward = then(b.backward, block_of(embedding.backward));
        b.weights += embedding_weights(job);
      }
      if (part == job.pp * job.chunks - 1) {
        Bundle& b = chunk.bundles.back();
        b.head = true;
        b.forward = then(b.forward, block_of(head.forward));
        b.backward = then(block_of(head.backward), b.backward);
        b.weights += head_weights(job);
      }
      for (const Bundle& b : chunk.bundles) {
        chunk.forward = then(chunk.forward, b.forward);
        chunk.weights += b.weights;
      }
      for (auto b = chunk.bundles.rbegin(); b != chunk.bundles.rend(); ++b) {
        chunk.backward = then(chunk.backward, b->backward);
        chunk.weight = then(chunk.weight, b->weight);
      }
      stage.weights += chunk.weights;
      stage.chunks.push_back(std::move(chunk));
    }
    const double learn = stage.weights.learn, shards = static_cast<double>(job.shards()),
                 expert_shards =
                     job.zero_group > 0 ? 1 : std::max<double>(1, static_cast<double>(job.expert_replicas()));
    const double mine =
        job.zero > 0 ? (learn - stage.weights.learn_experts) / shards + stage.weights.learn_experts / expert_shards
                     : learn;
    const Update u = update_of(job, stage.layers, costs.serial ? &stage.weights : nullptr);
    if (job.optimizer_in_backward) {
      for (Chunk& c : stage.chunks)
        for (Bundle& b : c.bundles)
          b.update = memory_block(job, costs, Part::optimizer, u.bytes * b.weights.learn * mine / std::max(1.0, learn),
                                  static_cast<int>(b.weights.tensors));
      continue;  // no norm of all gradients
    }
    if (job.framework == Framework::megatron) stage.clear = memory_block(job, costs, Part::gradients, 4 * learn, 1);
    stage.norm = memory_block(job, costs, Part::gradients, 12 * mine, 3);
    if (job.offload == Offload::none)
      stage.optimizer = memory_block(job, costs, Part::optimizer, u.bytes * mine, u.kernels);
  }
  return stages;
}

}  // namespace orrery
