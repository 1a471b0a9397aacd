#include "estimate/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/median.h"
#include "estimate/operation_writer.h"
#include "estimate/stages.h"
#include "estimate/step_graph.h"
#include "whatif/operators.h"
#include "whatif/platform.h"

namespace orrery {
namespace {

enum Kind : std::size_t { gemm, attention, attention_backward, memory, kKinds };
using Times = std::array<double, kKinds>;  // ns

// The traced job as an estimate is asked of it.
EstimateJob as_traced(const JobModel& learned, const EstimateJob& job) {
  const JobShape& base = learned.base;
  const Dims& d = base.dims;
  EstimateJob t = job;
  ModelFacts& m = t.model;
  m.name = "traced";
  const auto whole = [](double x) { return static_cast<std::int64_t>(x + 0.5); };
  m.layers = base.layout.layers;
  m.hidden = whole(d.hidden);
  m.heads = whole(d.heads);
  m.kv_heads = d.kv_heads > 0 ? whole(d.kv_heads) : m.heads;
  m.head_dim = whole(d.head_dim);
  m.vocab = whole(d.vocab);
  m.gated_mlp = base.gated_mlp;
  m.tied_embeddings = base.tied_embedding;
  m.learned_positions = base.positions > 0;
  m.kv_lora_rank = 0;
  m.max_context = std::max<std::int64_t>(whole(base.positions), whole(d.seq));
  m.ffn = whole(d.ffn);
  m.experts = 0;
  t.tp = base.layout.tp, t.pp = base.layout.pp, t.dp = base.layout.dp, t.cp = 1, t.ep = 1;
  t.chunks = base.chunks;
  t.schedule = base.schedule;
  t.sequence_parallel = d.sequence_parallel;
  t.micro_batch_size = whole(d.mbs), t.num_microbatches = base.layout.num_microbatches, t.seq_length = whole(d.seq);
  t.recompute = base.recompute;
  t.attention = learned.shape.flash_attention ? AttentionKind::flash : AttentionKind::unfused;
  t.method = Method::full;
  t.quantize = Quantize::none;
  t.offload = Offload::none;
  t.zero_group = 0;
  if (t.zero < 2) t.zero = base.layout.distributed_optimizer ? 1 : 0;
  return t;
}

bool dimensions_told(const JobModel& learned) {
  const Dims& d = learned.base.dims;
  return d.hidden > 0 && d.ffn > 0 && d.heads > 0 && d.head_dim > 0 && d.vocab > 0 && d.seq > 0 && d.mbs > 0 &&
         !learned.shape.experts;
}

Kind kind_of(const Operation& o, bool backward) {
  if (o.k > 0) return gemm;
  return o.part == Part::attention && o.flops > 0 ? (backward ? attention_backward : attention) : memory;
}
struct LayerTimes {
  Times ns{}, flops{};
};
LayerTimes times_of(const std::vector<Operation>& list, std::size_t recomputed, bool backward) {
  LayerTimes t;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Kind k = kind_of(list[i], backward && i >= recomputed);
    t.ns[k] += list[i].compute_ns;
    t.flops[k] += list[i].flops;
  }
  return t;
}
double host_of(const std::vector<Operation>& list) {
  double sum = 0;
  for (const Operation& o : list) sum += o.host_ns;
  return sum;
}

// What the pieces of the traced job took.
struct Measured {
  Times layer{}, events{};
  double forward_layers = 0, backward_layers = 0;
  double host = 0, host_events = 0;                                   // of layers
  double pass_host = 0, pass_events = 0;                              // of passes, but for their layers
  double passes = 0, exchanges = 0, transfers = 0, first_passes = 0;  // first_passes: forward, of the first stage
  double step_host = 0, step_events = 0;                              // before the passes
  double loss = 0, loss_events = 0, loss_passes = 0;
  double update = 0, update_events = 0, update_steps = 0;
};

Measured measure(const TraceSet& traces, const GraphBuild& build, const JobModel& learned) {
  Measured m;
  const ExecGraph& g = build.graph;
  const Anatomy& anatomy = learned.program.anatomy;
  const JobLayout& layout = learned.base.layout;
  for (std::size_t r = 0; r < anatomy.ranks.size(); ++r) {
    std::int32_t steps = 0;
    for (const Piece& p : anatomy.ranks[r].pieces) {
      if (p.step < 0) continue;
      steps = std::max(steps, p.step + 1);
      m.forward_layers += p.kind == PieceKind::forward_layer;
      m.backward_layers += p.kind == PieceKind::backward_layer;
      m.exchanges += p.kind == PieceKind::exchange;
    }
    m.update_steps += steps;
    const double of_rank = static_cast<double>(steps * layout.num_microbatches);
    m.passes += 2 * of_rank * static_cast<double>(learned.base.chunks);
    const std::int64_t stage = layout.stage_of(g.ranks[r].rank);
    if (stage == 0) m.first_passes += of_rank;
    // of a micro-batch, both ways; the ends of the model have one neighbour
    const bool chunks = learned.base.chunks > 1;
    const double neighbours = layout.pp == 1 ? 0 : chunks || (stage > 0 && stage < layout.pp - 1) ? 2 : 1;
    m.transfers += 2 * neighbours * of_rank * static_cast<double>(learned.base.chunks);
    if (layout.stage_of(g.ranks[r].rank) == layout.pp - 1) m.loss_passes += of_rank;
  }
  for (std::uint32_t n = 0; n < g.size(); ++n) {
    if (anatomy.piece[n] == kNone) continue;
    const std::uint32_t rank = g.rank[n];
    const Piece& p = anatomy.ranks[rank].pieces[anatomy.piece[n]];
    if (p.step < 0) continue;
    const bool layer = p.kind == PieceKind::forward_layer || p.kind == PieceKind::backward_layer;
    const double ns = static_cast<double>(g.duration[n]);
    if (g.kind[n] == NodeKind::host) {
      if (layer) m.host += ns, ++m.host_events;
      if (p.kind == PieceKind::step_begin) m.step_host += ns, ++m.step_events;
      if (!layer && p.kind != PieceKind::step_begin && p.kind != PieceKind::step_end && p.kind != PieceKind::bucket)
        m.pass_host += ns, ++m.pass_events;
      continue;
    }
    if (g.kind[n] != NodeKind::kernel) continue;
    const std::uint32_t s = learned.sample_of[n];
    WorkKind work = s == kNone ? WorkKind::unknown : learned.work[s].kind;
    if (work == WorkKind::unknown) {
      const std::string_view name = traces.ranks[g.ranks[rank].trace].name_of(g.source[n]);
      if (is_gemm_kernel(name)) work = WorkKind::gemm;
      if (is_attention_kernel(name))
        work = p.kind == PieceKind::backward_layer ? WorkKind::attention_backward : WorkKind::attention;
    }
    const Kind k = work == WorkKind::gemm                 ? gemm
                   : work == WorkKind::attention          ? attention
                   : work == WorkKind::attention_backward ? attention_backward
                                                          : memory;
    if (layer) m.layer[k] += ns, ++m.events[k];
    if (k != memory) continue;
    if (p.kind == PieceKind::step_end) m.update += ns, ++m.update_events;
    if ((p.kind == PieceKind::forward_end || p.kind == PieceKind::backward_begin) &&
        layout.stage_of(g.ranks[rank].rank) == layout.pp - 1)
      m.loss += ns, ++m.loss_events;
  }
  return m;
}

class Calibrator {
 public:
  Calibrator(const EstimateJob& job, JobCosts& c) : costs(c), traced_job(job) {}

  void kernels(const Measured& m) {
    const LayerWork w = layer_work(traced_job, costs, 0);
    const std::size_t recomputed = traced_job.recompute == Recompute::full ? w.forward.size() : 0;
    const LayerTimes forward = times_of(w.forward, 0, false), backward = times_of(w.backward, recomputed, true);
    KernelFactors& f = costs.factors;
    const auto layers = [&](Kind k, double& factor, const char* fact) {
      const double law = m.forward_layers * forward.ns[k] + m.backward_layers * backward.ns[k];
      if (law <= 0 || m.layer[k] <= 0) return;
      factor = m.layer[k] / law;
      const double flops = m.forward_layers * forward.flops[k] + m.backward_layers * backward.flops[k];
      if (k == memory)
        add(fact, "us a layer", law / m.forward_layers / 1e3, m.layer[k] / m.forward_layers / 1e3, m.events[k]);
      else
        add(fact, "TFLOP/s", flops / law / 1e3, flops / m.layer[k] / 1e3, m.events[k]);
    };
    layers(gemm, f.gemm, "matrix products");
    layers(attention, f.attention, "attention, forward");
    layers(attention_backward, f.attention_backward, "attention, backward");
    layers(memory, f.memory, "kernels bound by memory");
  }

  void loss(const Measured& m) {
    const LayerWork w = head_work(traced_job, costs);
    const double law = times_of(w.forward, 0, false).ns[memory] + times_of(w.backward, 0, true).ns[memory];
    if (law <= 0 || m.loss <= 0 || m.loss_passes <= 0) return;
    costs.factors.loss = m.loss / m.loss_passes / law;
    add("loss, without its product", "us a micro-batch", law / 1e3, m.loss / m.loss_passes / 1e3, m.loss_events);
  }

  void update(const Measured& m) {
    const std::vector<StageWork> stages = stages_of(traced_job, costs);
    double law = 0;
    for (const StageWork& s : stages)
      law += (s.norm.stream_ns + s.optimizer.stream_ns) / static_cast<double>(stages.size());
    if (law <= 0 || m.update <= 0 || m.update_steps <= 0) return;
    costs.factors.optimizer = m.update / m.update_steps / law;
    add("optimizer", "us a step", law / 1e3, m.update / m.update_steps / 1e3, m.update_events);
  }

  void host(const TraceSet& traces, const Measured& m) {
    std::vector<double> calls;
    for (const RankTrace& t : traces.ranks)
      for (std::uint32_t i = 0; i < t.ops.kind.size() && i < t.ops.dur.size(); ++i)
        if (t.ops.kind[i] == OpKind::runtime && t.name_of(OpId{i}).find("LaunchKernel") != std::string_view::npos)
          calls.push_back(static_cast<double>(t.ops.dur[i]));
    if (calls.empty()) return;
    const double events = static_cast<double>(calls.size()), launch = median(std::move(calls));
    const double operators = costs.operator_ns;
    JobCosts unit = costs;
    unit.launch_ns = 1, unit.operator_ns = 0;
    const auto total = [&] {
      const LayerWork w = layer_work(traced_job, unit, 0);
      return m.forward_layers * host_of(w.forward) + m.backward_layers * host_of(w.backward);
    };
    const double launches = total();
    unit.launch_ns = 0, unit.operator_ns = 1;
    const double eager = total();
    add("launch call", "us", costs.launch_ns / 1e3, launch / 1e3, events);
    costs.launch_ns = launch;
    if (eager <= 0 || m.host <= 0) return;
    costs.operator_ns = std::max(0.0, (m.host - launches * launch) / eager);
    add("host, an operator round its launches", "us", operators / 1e3, costs.operator_ns / 1e3, m.host_events);
    passes(m);
  }

  // With the host costs of operators as they are now.
  void passes(const Measured& m) {
    const LayerWork embedding = embedding_work(traced_job, costs), head = head_work(traced_job, costs);
    const double known = m.first_passes * (host_of(embedding.forward) + host_of(embedding.backward)) +
                         m.loss_passes * (host_of(head.forward) + host_of(head.backward)) +
                         m.transfers * estimating::kCollectiveHost * (costs.launch_ns + costs.operator_ns) +
                         m.exchanges * (traced_job.framework == Framework::megatron ? kSyncHostNs : 0);
    if (m.passes > 0 && m.pass_host > 0) {
      const double before = costs.pass_ns;
      costs.pass_ns = std::max(0.0, (m.pass_host - known) / m.passes);
      add("host, a pass beside its operators", "us", before / 1e3, costs.pass_ns / 1e3, m.pass_events);
    }
    if (m.update_steps > 0 && m.step_host > 0) {
      const double before = costs.step_ns;
      costs.step_ns = m.step_host / m.update_steps;
      add("host, a step before its passes", "us", before / 1e3, costs.step_ns / 1e3, m.step_events);
    }
  }

  void links(const GraphBuild& build, const JobModel& learned) {
    const NetworkModel& net = learned.net;
    std::array<double, 2> seen{};  // meetings inside a server, between servers
    for (const Meeting& x : build.communication.meetings)
      if (x.missing == 0 && x.transfer > 0)
        ++seen[place_of(build, x, learned.base.layout.gpus_per_node).one_server() ? 0 : 1];
    const NetworkModel before = costs.network;
    if (net.intra.seen) {
      costs.network = net;
      costs.network.inter = before.inter, costs.network.rail_loss = before.rail_loss;
      add("links inside a server", "GB/s", before.intra.gb_per_s, net.intra.gb_per_s, seen[0]);
      add("sends inside a server", "GB/s", before.intra.gb_per_s * before.intra.p2p_share,
          net.intra.gb_per_s * net.intra.p2p_share, seen[0]);
      add("start of a collective", "us", before.small_ns / 1e3, net.small_ns / 1e3, seen[0]);
    }
    if (net.inter.seen) {
      costs.network.inter = net.inter, costs.network.rail_loss = net.rail_loss;
      add("links between servers", "GB/s", before.inter.gb_per_s, net.inter.gb_per_s, seen[1]);
    }
  }

  std::vector<CalibratedFact> facts;

 private:
  void add(const char* fact, const char* unit, double before, double after, double events) {
    facts.push_back({fact, unit, before, after, static_cast<std::uint64_t>(events)});
  }

  JobCosts& costs;
  const EstimateJob& traced_job;
};

}  // namespace

Result<std::vector<CalibratedFact>> calibrate(const TraceSet& traces, const GraphBuild& build, const JobModel& learned,
                                              const EstimateJob& job, JobCosts& costs) {
  if (const GpuFacts* gpu = gpu_of(traces); gpu != nullptr && gpu->name != job.platform.gpu.name)
    return fail(fmt::format("the traces are from {}, the platform has {}", gpu->name, job.platform.gpu.name),
                "--calibrate", "give traces from that GPU, or another --platform");
  const bool told = dimensions_told(learned);
  const EstimateJob traced = told ? as_traced(learned, job) : job;
  if (told)
    if (const Status ok = check(traced); !ok)
      return fail("no estimate can be made of the traced job: " + ok.error().what, "--calibrate", ok.error().advice);
  Calibrator c(traced, costs);
  if (told) {
    const Measured m = measure(traces, build, learned);
    c.kernels(m);
    c.loss(m);
    c.update(m);
    c.host(traces, m);
  }
  c.links(build, learned);
  if (c.facts.empty())
    return fail("the traces tell neither the sizes of their operators nor transfers", "--calibrate",
                "record input shapes (record_shapes=True)");
  return std::move(c.facts);
}

}  // namespace orrery
