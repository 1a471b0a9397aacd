#include "estimate/step_graph.h"

#include <algorithm>
#include <cmath>

#include "costs/collective.h"
#include "estimate/job_memory.h"
#include "estimate/operation_writer.h"

namespace orrery {
namespace {

constexpr double kMicro = 1'000;
// The gradients' norm, one number, over all ranks that hold parts of the model.
constexpr double kNormNs = 30 * kMicro;
// How many gathers may be ahead of the layer that computes (FSDP's limit; DeepSpeed's is a number of parameters).
constexpr std::size_t kGathersAhead = 2;

Ns whole(double ns) { return static_cast<Ns>(std::llround(std::max(0.0, ns))); }

class Writer {
 public:
  Writer(const EstimateJob& job, const JobCosts& costs, const std::vector<StageWork>& work, Schedule schedule,
         bool with_program, StepGraph& out)
      : job_(job),
        costs_(costs),
        work_(work),
        schedule_(std::move(schedule)),
        with_program_(with_program),
        out_(out),
        g_(out.graph) {
    const double each = bytes_of_activations(job) * job.tokens() * static_cast<double>(job.model.hidden);
    if (work.size() > 1)
      p2p_ns_ = transfer(Pattern::point_to_point, job.sequence_parallel ? each / static_cast<double>(job.tp) : each,
                         Group::pipeline);
    if (job.paged()) paged_ = memory_of(job, work).paged_out;
    stages_.resize(work.size());
    const std::size_t carried = work.size() * 2 * static_cast<std::size_t>(schedule_.chunks) *
                                static_cast<std::size_t>(schedule_.micro_batches);
    if (work.size() > 1) carried_.resize(carried);
  }

  void run() {
    g_.clear();
    out_.pieces.clear();
    out_.program.clear();
    out_.last.assign(work_.size(), kNoNode);
    for (std::uint32_t s = 0; s < stages_.size(); ++s) {
      GraphRank r;
      r.rank = static_cast<std::int64_t>(s) * job_.tp * job_.replicas();
      r.first_lane = s * kLanes;
      r.lanes = kLanes;
      g_.ranks.push_back(r);
      begin(s);
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (std::uint32_t s = 0; s < stages_.size(); ++s)
        while (advance(s)) moved = true;
    }
    finish();
  }

 private:
  enum Lane : std::uint32_t { host, compute, data, pipeline, copy, kLanes };
  struct Wait {
    NodeId node;
    EdgeKind kind = EdgeKind::event;
    Ns lag = 0;
  };
  struct Queued {
    NodeId node;
    double left_ns, taken;
  };
  struct Stage {
    std::size_t slot = 0;
    bool arrived = false;  // at the exchange in `slot`
    NodeId start = kNoNode;
    NodeId last[kLanes] = {kNoNode, kNoNode, kNoNode, kNoNode, kNoNode};
    std::vector<Wait> waits;            // of the next block
    std::vector<NodeId> before;         // compute lane before each of the last bundles: what gathers may not overtake
    NodeId ahead = kNoNode;             // compute lane before the last bundle: what activations may not overtake
    std::vector<NodeId> weights_ready;  // by bundle over all chunks: gathered for the first forward pass
    std::vector<Queued> queued;         // on the data lane, in its order
    std::size_t moved = 0;              // of them, that are over
  };
  struct Carried {  // between two stages
    NodeId sender = kNoNode, receiver = kNoNode, done = kNoNode;
  };

  // ---- nodes ----

  NodeId node(std::uint32_t s, Lane lane, NodeKind kind, double ns) {
    const NodeId id{g_.size()};
    g_.duration.push_back(whole(ns));
    g_.observed_start.push_back(0);
    g_.lane.push_back(s * kLanes + lane);
    g_.kind.push_back(kind);
    g_.at_begin.push_back(0);
    g_.rank.push_back(s);
    g_.source.push_back(kNoOp);
    return id;
  }
  void edge(NodeId from, EdgeKind kind, double lag = 0) {
    if (from == kNoNode) return;
    g_.pred.push_back(from);
    g_.pred_kind.push_back(kind);
    g_.pred_lag.push_back(whole(lag));
  }
  void close() {  // of the node added last
    if (g_.pred.size() == g_.first_pred.back()) {
      g_.pred.push_back(kNoNode);
      g_.pred_kind.push_back(EdgeKind::root);
      g_.pred_lag.push_back(0);
    }
    g_.first_pred.push_back(g_.edges());
  }

  Act& act(ActKind kind, std::uint32_t s, StepPhase phase, double ns = 0) {
    if (!with_program_) return unwritten_;
    Act& a = out_.program.emplace_back();
    a.kind = kind, a.stage = s, a.phase = phase, a.ns = ns;
    return a;
  }
  void block(std::uint32_t s, const Block& b, StepPhase phase) {
    if (b.empty()) return;
    Stage& st = stages_[s];
    const NodeId issued_from = st.last[host];
    const NodeId free_from = st.last[compute];
    NodeId issue = node(s, host, NodeKind::host, b.host_ns);
    edge(issued_from, EdgeKind::thread);
    close();
    if (b.back_ns >= 0 && (free_from != kNoNode || !st.waits.empty())) {
      const NodeId waited = node(s, host, NodeKind::host, 0);
      edge(issue, EdgeKind::thread);
      edge(free_from, EdgeKind::sync, b.back_ns);
      for (const Wait& w : st.waits) edge(w.node, EdgeKind::sync, static_cast<double>(w.lag) + b.back_ns);
      close();
      issue = waited;
    }
    const double slowed = slowed_by_transfers(st, b);
    const NodeId run = node(s, compute, NodeKind::kernel, b.through_ns + slowed);
    edge(free_from, EdgeKind::stream);
    for (const Wait& w : st.waits) edge(w.node, w.kind, static_cast<double>(w.lag));
    close();
    const NodeId tail = node(s, compute, NodeKind::kernel, 0);
    edge(run, EdgeKind::stream);
    edge(issued_from, EdgeKind::launch, b.late_ns + slowed * std::min(1.0, b.through_ns / b.late_ns));
    close();
    st.waits.clear();
    st.last[host] = issue;
    st.last[compute] = tail;
    out_.pieces.push_back({s, kNoNode, tail, &b, Part::data_comm, phase, false, slowed});
    Act& a = act(ActKind::chain, s, phase);
    a.node = run, a.tail = tail, a.block = &b, a.slowed_ns = slowed;
  }
  // Kernels have fewer multiprocessors while NCCL's run beside them. What does, is told from the order of things: a
  // transfer that a block waits for is over, others go on beside it for as long as they take.
  double slowed_by_transfers(Stage& st, const Block& b) {
    for (const Wait& w : st.waits)
      for (std::size_t k = st.moved; k < st.queued.size(); ++k)
        if (st.queued[k].node == w.node) st.moved = k + 1;
    double slowed = 0;
    for (double rest = b.compute_ns; rest > 0 && st.moved < st.queued.size();) {
      Queued& q = st.queued[st.moved];
      const double beside = std::min(rest / (1 - q.taken), q.left_ns);
      slowed += beside * q.taken;
      rest -= beside * (1 - q.taken);
      q.left_ns -= beside;
      if (q.left_ns <= 0) ++st.moved;
    }
    return slowed;
  }
  // On a lane of its own, behind what the lane had and `after`.
  NodeId beside(std::uint32_t s, double ns, NodeId after, const TransferShape& shape, StepPhase phase) {
    Stage& st = stages_[s];
    const bool copies = shape.kind == TransferKind::to_device || shape.kind == TransferKind::to_host;
    const Lane lane = copies ? copy : data;
    const NodeId n = node(s, lane, copies ? NodeKind::memcpy : NodeKind::comm, ns);
    edge(st.last[lane], EdgeKind::stream);
    edge(after, EdgeKind::event);
    close();
    st.last[lane] = n;
    if (!copies) {
      const Placement at = placement_of(job_, shape.group);
      st.queued.push_back({n, ns, at.members_in_server > 1 ? costs_.taken_within : costs_.taken_between});
    }
    out_.pieces.push_back({s, kNoNode, n, nullptr, copies ? Part::copies : Part::data_comm, phase});
    Act& a = act(ActKind::transfer, s, phase, ns);
    a.node = n, a.shape = shape;
    return n;
  }
  NodeId host_work(std::uint32_t s, double ns, NodeId after = kNoNode) {
    const NodeId n = node(s, host, NodeKind::host, ns);
    edge(stages_[s].last[host], EdgeKind::thread);
    edge(after, EdgeKind::sync);
    close();
    return stages_[s].last[host] = n;
  }

  // ---- data parallelism and sharding ----

  bool gathers() const { return job_.zero == 3 && (job_.shards() > 1 || job_.offload == Offload::all); }
  double transfer(Pattern p, double bytes, Group g) const {
    return std::max(0.0, transfer_ns(costs_.network, p, bytes, placement_of(job_, g)));
  }
  double copy_ns(double bytes) const { return host_copy(bytes, job_.platform.pcie_gb_per_s, true).ns; }
  NodeId copied(std::uint32_t s, double bytes, NodeId after, TransferKind kind, StepPhase phase, double part = 1) {
    return beside(s, copy_ns(bytes) * part, after, {kind, Group::data, bytes * part}, phase);
  }
  // `after` where there is nothing to do.
  NodeId collective(std::uint32_t s, const TransferShape& shape, NodeId after, StepPhase phase) {
    if (shape.bytes <= 0) return after;
    const double ns =
        transfer(shape.kind == TransferKind::all_reduce ? Pattern::all_reduce : Pattern::gather_or_scatter, shape.bytes,
                 shape.group);
    return ns > 0 ? beside(s, ns, after, shape, phase) : after;
  }
  // Weights of a bundle: from the host where they lie there, then from the other ranks.
  NodeId gather(std::uint32_t s, const Weights& w, NodeId after, StepPhase phase) {
    const double bytes = weight_bytes(job_) * (w.all - w.experts), expert = weight_bytes(job_) * w.experts;
    if (job_.offload == Offload::all) {
      const double mine = bytes / static_cast<double>(job_.shards()) +
                          expert / std::max(1.0, static_cast<double>(job_.shards() / job_.ep));
      after = copied(s, mine, after, TransferKind::to_device, phase);
    }
    after = collective(s, {TransferKind::all_gather, Group::shard, bytes}, after, phase);
    return collective(s, {TransferKind::all_gather, Group::expert_data, expert}, after, phase);
  }
  void reduce(std::uint32_t s, const Weights& w, NodeId after) {
    if (w.learn <= 0) return;
    const double bytes = gradient_bytes(job_) * (w.learn - w.learn_experts),
                 expert = gradient_bytes(job_) * w.learn_experts;
    const TransferKind kind = job_.zero > 0 ? TransferKind::reduce_scatter : TransferKind::all_reduce;
    after = collective(s, {kind, job_.zero > 0 ? Group::shard : Group::data, bytes}, after, StepPhase::backward);
    after = collective(s, {kind, Group::expert_data, expert}, after, StepPhase::backward);
    if (job_.zero > 0 && job_.shards() < job_.replicas())  // copies of the shard, in other groups
      after = collective(s, {TransferKind::all_reduce, Group::copies, bytes / static_cast<double>(job_.shards())},
                         after, StepPhase::backward);
    if (job_.offload != Offload::none)
      copied(s, gradient_bytes(job_) * w.learn / static_cast<double>(job_.shards()), after, TransferKind::to_host,
             StepPhase::backward);
  }
  // DeepSpeed's stage 2 and all of stage 3 keep only the shard of the gradients: reduced in every micro-batch.
  bool reduces_each() const { return job_.zero == 3 || (job_.zero == 2 && job_.framework == Framework::deepspeed); }
  // What is not reduced in a backward pass is reduced after the last one; what must be in every pass can only wait.
  bool reduces_in_pass(bool last) const { return replicated() && (reduces_each() || (job_.overlap_gradients && last)); }
  void reduce_beside(std::uint32_t s, const Weights& w) {
    reduce(s, w, stages_[s].last[compute]);
    if (job_.overlap_gradients) return;
    for (const Lane lane : {data, copy})
      if (stages_[s].last[lane] != kNoNode) stages_[s].waits.push_back({stages_[s].last[lane]});
  }
  bool replicated() const { return job_.replicas() > 1 || job_.offload != Offload::none; }

  // ---- passes ----

  void begin(std::uint32_t s) {
    Stage& st = stages_[s];
    st.start = node(s, host, NodeKind::host, costs_.step_ns);
    close();
    st.last[host] = st.start;
    act(ActKind::step, s, StepPhase::forward, costs_.step_ns);
    block(s, work_[s].clear, StepPhase::forward);
    if (job_.zero == 1 || job_.zero == 2) {
      if (!job_.overlap_parameters || job_.replicas() < 2) return;
      for (const Chunk& c : work_[s].chunks)
        for (const Bundle& b : c.bundles) {
          const TransferShape shape{TransferKind::all_gather, Group::shard, weight_bytes(job_) * b.weights.learn};
          st.weights_ready.push_back(beside(s, transfer(Pattern::gather_or_scatter, shape.bytes, shape.group), st.start,
                                            shape, StepPhase::forward));
        }
    }
  }

  void forward(std::uint32_t s, const Slot& slot) {
    Stage& st = stages_[s];
    const auto chunk = static_cast<std::size_t>(slot.chunk);
    const Chunk& c = work_[s].chunks[chunk];
    const bool first = slot.micro_batch == 0 && !st.weights_ready.empty();
    if (!gathers() && !first && !job_.offload_activations) return block(s, c.forward, StepPhase::forward);
    std::size_t before = 0;
    for (std::size_t k = 0; k < chunk; ++k) before += work_[s].chunks[k].bundles.size();
    for (std::size_t k = 0; k < c.bundles.size(); ++k) {
      if (first) st.waits.push_back({st.weights_ready[before + k]});
      if (gathers()) {
        hook(s, c.bundles[k].weights, StepPhase::forward);
        stages_[s].waits.push_back({gathered(s, c.bundles[k].weights, StepPhase::forward)});
        st.before.push_back(st.last[compute]);
      }
      block(s, c.bundles[k].forward, StepPhase::forward);
      if (job_.offload_activations)
        copied(s, kept_bytes(s, chunk), st.last[compute], TransferKind::to_host, StepPhase::forward);
    }
  }
  // Of one bundle's activations: a layer's input where it is recomputed, else what all of its operators keep.
  double kept_bytes(std::uint32_t s, std::size_t chunk) const {
    return kept_of_layer(job_) * work_[s].layers / static_cast<double>(work_[s].chunks[chunk].bundles.size()) /
           static_cast<double>(job_.chunks);
  }
  void hook(std::uint32_t s, const Weights& w, StepPhase phase) {
    // FSDP's hooks are round a layer, DeepSpeed's round each of its modules, again where it is recomputed.
    double visits = 1;
    if (job_.framework == Framework::deepspeed)
      visits = w.modules * (phase == StepPhase::backward && job_.recompute == Recompute::full ? 2 : 1);
    host_work(s, visits * estimating::kHookHostNs);
    act(ActKind::hook, s, phase, visits * estimating::kHookHostNs);
  }
  // The gather of a bundle's weights, which its block waits for.
  NodeId gathered(std::uint32_t s, const Weights& w, StepPhase phase) {
    const Stage& st = stages_[s];
    const NodeId limit =
        st.before.size() >= kGathersAhead ? st.before[st.before.size() - kGathersAhead] : st.last[host];
    return gather(s, w, limit, phase);
  }

  void backward(std::uint32_t s, const Slot& slot, bool weights_too) {
    const Chunk& c = work_[s].chunks[static_cast<std::size_t>(slot.chunk)];
    const bool last = slot.micro_batch == schedule_.micro_batches - 1;
    const bool reduces = weights_too && reduces_in_pass(last);
    if (!gathers() && !reduces && !job_.optimizer_in_backward && !job_.offload_activations)
      return block(s, c.backward, StepPhase::backward);
    NodeId ready = kNoNode;  // gathered for the bundle that is next
    if (gathers()) {
      hook(s, c.bundles.back().weights, StepPhase::backward);
      ready = gathered(s, c.bundles.back().weights, StepPhase::backward);
    }
    for (std::size_t k = c.bundles.size(); k-- > 0;) {
      const Bundle& b = c.bundles[k];
      if (gathers()) {
        stages_[s].waits.push_back({ready});
        stages_[s].before.push_back(stages_[s].last[compute]);
        // Of the one after it before this one's gradients are reduced, on the same stream (FSDP's BACKWARD_PRE).
        if (k > 0) {
          hook(s, c.bundles[k - 1].weights, StepPhase::backward);
          ready = gathered(s, c.bundles[k - 1].weights, StepPhase::backward);
        }
      }
      if (job_.offload_activations) {  // ahead of the layer that needs it, behind the one before
        const auto chunk = static_cast<std::size_t>(slot.chunk);
        stages_[s].waits.push_back(
            {copied(s, kept_bytes(s, chunk), stages_[s].ahead, TransferKind::to_device, StepPhase::backward)});
        stages_[s].ahead = stages_[s].last[compute];
      }
      block(s, b.backward, StepPhase::backward);
      if (reduces) reduce_beside(s, b.weights);
      if (job_.optimizer_in_backward) {
        if (reduces) stages_[s].waits.push_back({stages_[s].last[data]});
        paged(s, b.weights.learn);
        block(s, b.update, StepPhase::optimizer);
      }
    }
  }
  // Moments in unified memory: those of the next weights come as their update begins, for there is no room before
  // (bitsandbytes' prefetch_state is called by the update), while others go on links that do both at once.
  void paged(std::uint32_t s, double learn) {
    if (paged_ <= 0 || learn <= 0) return;
    const NodeId come = copied(s, paged_ * learn / std::max(1.0, work_[s].weights.learn), stages_[s].last[compute],
                               TransferKind::to_device, StepPhase::optimizer);
    stages_[s].waits.push_back({come});
  }
  void weight(std::uint32_t s, const Slot& slot) {
    const Chunk& c = work_[s].chunks[static_cast<std::size_t>(slot.chunk)];
    const bool last = slot.micro_batch == schedule_.micro_batches - 1;
    if (!reduces_in_pass(last)) return block(s, c.weight, StepPhase::weight);
    for (std::size_t k = c.bundles.size(); k-- > 0;) {
      block(s, c.bundles[k].weight, StepPhase::weight);
      reduce_beside(s, c.bundles[k].weights);
    }
  }

  // ---- between stages ----

  Carried& carried(const Transfer& t, std::uint32_t stage) { return carried_[name_of_carried(t, stage)]; }
  std::uint32_t name_of_carried(const Transfer& t, std::uint32_t stage) const {
    const std::size_t sender = t.send ? stage : static_cast<std::size_t>(t.peer_stage);
    const auto chunks = static_cast<std::size_t>(schedule_.chunks),
               m = static_cast<std::size_t>(schedule_.micro_batches);
    return static_cast<std::uint32_t>(
        ((sender * 2 + (t.forward ? 1 : 0)) * chunks + static_cast<std::size_t>(t.chunk)) * m +
        static_cast<std::size_t>(t.micro_batch));
  }
  void exchange_piece(std::uint32_t s, NodeId from, NodeId to, bool sends = false) {
    out_.pieces.push_back({s, from, to, nullptr, Part::pipeline_comm, StepPhase::forward, sends});
  }

  bool advance(std::uint32_t s) {
    Stage& st = stages_[s];
    const std::vector<Slot>& slots = schedule_.stage[s];
    if (st.slot == slots.size()) return false;
    const Slot& slot = slots[st.slot];
    if (slot.is_pass) {
      if (schedule_.overlap) {
        if (const auto input = input_of(schedule_, static_cast<std::int32_t>(s), slot)) {
          Carried& c = carried(*input, s);
          if (c.sender == kNoNode) return false;
          arrive(s, c);
          exchange_piece(static_cast<std::uint32_t>(input->peer_stage), c.sender, c.done, true);
          act(ActKind::arrive, s, StepPhase::forward).carried = name_of_carried(*input, s);
        }
      }
      host_work(s, costs_.pass_ns);
      act(ActKind::pass, s, phase_of(slot.pass), costs_.pass_ns);
      if (slot.pass == Pass::forward) forward(s, slot);
      if (slot.pass == Pass::backward) backward(s, slot, schedule_.kind != ScheduleKind::zero_bubble);
      if (slot.pass == Pass::weight) weight(s, slot);
      ++st.slot;
      return true;
    }
    return exchange(s, slot);
  }
  static StepPhase phase_of(Pass p) {
    return p == Pass::forward ? StepPhase::forward : p == Pass::backward ? StepPhase::backward : StepPhase::weight;
  }
  void post(std::uint32_t s, const Slot& slot) {
    for (const Transfer& t : slot.transfers) {
      (t.send ? carried(t, s).sender : carried(t, s).receiver) = at(stages_[s]);
      Act& a = act(ActKind::post, s, StepPhase::forward, p2p_ns_);
      a.transfer = t, a.carried = name_of_carried(t, s), a.host_ns = issue_ns();
    }
  }
  // What was sent beside the passes is waited for by the pass that needs it.
  void arrive(std::uint32_t s, Carried& c) {
    c.done = node(s, pipeline, NodeKind::comm, p2p_ns_);
    edge(stages_[s].last[pipeline], EdgeKind::stream);
    edge(c.sender, EdgeKind::collective);
    close();
    stages_[s].last[pipeline] = c.done;
    stages_[s].waits.push_back({c.done});
    exchange_piece(s, c.receiver, c.done);
  }
  // Sends and receives are issued one by one, each like a collective.
  double issue_ns() const { return estimating::kCollectiveHost * (costs_.launch_ns + costs_.operator_ns); }
  bool exchange(std::uint32_t s, const Slot& slot) {
    Stage& st = stages_[s];
    if (!st.arrived) host_work(s, static_cast<double>(slot.transfers.size()) * issue_ns());
    if (schedule_.overlap) {
      post(s, slot);
      ++st.slot;
      return true;
    }
    if (!st.arrived) {
      post(s, slot);
      st.arrived = true;
    }
    for (const Transfer& t : slot.transfers) {
      const Carried& c = carried(t, s);
      if (c.sender == kNoNode || c.receiver == kNoNode) return false;
    }
    const NodeId here = at(st);
    for (const Transfer& t : slot.transfers) {
      Carried& c = carried(t, s);
      if (c.done == kNoNode) {
        c.done = node(s, pipeline, NodeKind::comm, p2p_ns_);
        edge(c.sender, EdgeKind::collective);
        edge(c.receiver, EdgeKind::collective);
        close();
      }
      st.waits.push_back({c.done});
      exchange_piece(s, here, c.done);
    }
    act(ActKind::settle, s, StepPhase::forward);
    // Megatron-LM's batch_p2p_sync: the host waits for the device after each batch of sends and receives.
    if (job_.framework == Framework::megatron) {
      act(ActKind::drain, s, StepPhase::forward, kSyncHostNs);
      const NodeId n = node(s, host, NodeKind::host, kSyncHostNs);
      edge(st.last[host], EdgeKind::thread);
      for (const Wait& w : st.waits) edge(w.node, EdgeKind::sync);
      edge(st.last[compute], EdgeKind::sync);
      close();
      st.last[host] = n;
    }
    st.arrived = false;
    ++st.slot;
    return true;
  }
  static NodeId at(const Stage& st) { return st.last[compute] != kNoNode ? st.last[compute] : st.start; }

  // ---- after the passes ----

  void finish() {
    const auto n = static_cast<std::uint32_t>(stages_.size());
    for (std::uint32_t s = 0; s < n; ++s) {
      act(ActKind::passes_end, s, StepPhase::optimizer);
      finish_gradients(s);
    }
    if (n > 1 && job_.model.tied_embeddings && job_.trains_tables()) tie();
    std::vector<NodeId> norms;
    for (std::uint32_t s = 0; s < n; ++s) {
      block(s, work_[s].norm, StepPhase::optimizer);
      norms.push_back(at(stages_[s]));
    }
    NodeId agreed = kNoNode;  // the norm of all gradients, which every host reads
    if (n > 1 || job_.tp > 1 || job_.zero > 0) {
      agreed = node(0, pipeline, NodeKind::comm, kNormNs);
      for (const NodeId m : norms) edge(m, EdgeKind::collective);
      close();
      const Part part = n > 1 ? Part::pipeline_comm : job_.zero > 0 ? Part::data_comm : Part::tensor_comm;
      for (std::uint32_t s = 0; s < n; ++s)
        out_.pieces.push_back({s, norms[s], agreed, nullptr, part, StepPhase::optimizer});
    }
    for (std::uint32_t s = 0; s < n; ++s) {
      host_work(s, kSyncHostNs, agreed != kNoNode ? agreed : at(stages_[s]));
      act(ActKind::norm, s, StepPhase::optimizer, agreed != kNoNode ? kNormNs : 0);
      update(s);
    }
    for (std::uint32_t s = 0; s < n; ++s) {
      Stage& st = stages_[s];
      const NodeId end = node(s, host, NodeKind::host, 0);
      edge(st.last[host], EdgeKind::thread);
      edge(st.last[compute], EdgeKind::sync);
      edge(st.last[data], EdgeKind::sync);
      edge(st.last[copy], EdgeKind::sync);
      close();
      out_.last[s] = end;
      Step step;
      step.rank = s;
      step.begin_node = st.start;
      step.end_node = end;
      g_.steps.push_back(step);
    }
  }
  void finish_gradients(std::uint32_t s) {
    Stage& st = stages_[s];
    if (replicated() && !job_.overlap_gradients && !reduces_each())
      for (const Chunk& c : work_[s].chunks) reduce(s, c.weights, at(st));
    if (st.last[data] != kNoNode) st.waits.push_back({st.last[data]});
    if (st.last[copy] != kNoNode) st.waits.push_back({st.last[copy]});
  }
  void tie() {  // gradients of the embedding, of the first and the last stage
    const auto last = static_cast<std::uint32_t>(stages_.size() - 1);
    const double bytes =
        gradient_bytes(job_) * static_cast<double>(job_.model.vocab * job_.model.hidden) / static_cast<double>(job_.tp);
    const NodeId a = at(stages_[0]), b = at(stages_[last]);
    const double ns = transfer(Pattern::all_reduce, bytes, Group::pipeline);
    const NodeId n = node(0, pipeline, NodeKind::comm, ns);
    edge(a, EdgeKind::collective);
    edge(b, EdgeKind::collective);
    close();
    for (const std::uint32_t s : {0u, last}) {
      stages_[s].waits.push_back({n});
      exchange_piece(s, at(stages_[s]), n);
      act(ActKind::tie, s, StepPhase::optimizer, ns).shape = {TransferKind::all_reduce, Group::pipeline, bytes};
    }
  }
  void update(std::uint32_t s) {
    const Weights& w = work_[s].weights;
    const double learn = w.learn / (job_.zero > 0 ? static_cast<double>(job_.shards()) : 1);
    if (job_.offload != Offload::none && learn > 0) {
      // All processes of a server update at the same time.
      const double share =
          job_.platform.host.memory_gb_per_s / static_cast<double>(std::min(job_.platform.gpus_per_node, job_.world()));
      // With all in two bytes fewer of them are moved.
      const double bytes = master_weights(job_) ? 1 : bytes_of_activations(job_) * 7 / 30;
      const double ns = bytes * host_adam(learn, share).ns;
      const NodeId n = host_work(s, ns, stages_[s].last[copy]);
      act(ActKind::host_update, s, StepPhase::optimizer, ns).node = n;
      if (job_.offload == Offload::optimizer)  // while the update goes on, but for its last tile
        copied(s, 2 * learn, n, TransferKind::to_device, StepPhase::optimizer, 1.0 / 8);
    } else {
      if (!job_.optimizer_in_backward) paged(s, w.learn);
      block(s, work_[s].optimizer, StepPhase::optimizer);
    }
    if ((job_.zero == 1 || job_.zero == 2) && job_.replicas() > 1 && !job_.overlap_parameters) {
      const double bytes = weight_bytes(job_) * w.learn;
      const NodeId after = job_.offload != Offload::none ? stages_[s].last[copy] : at(stages_[s]);
      beside(s, transfer(Pattern::gather_or_scatter, bytes, Group::shard), after,
             {TransferKind::all_gather, Group::shard, bytes}, StepPhase::optimizer);
    }
  }

  const EstimateJob& job_;
  const JobCosts& costs_;
  const std::vector<StageWork>& work_;
  Schedule schedule_;
  bool with_program_;
  Act unwritten_;  // where no program is asked for
  double p2p_ns_ = 0;
  StepGraph& out_;
  ExecGraph& g_;
  std::vector<Stage> stages_;
  std::vector<Carried> carried_;
  double paged_ = 0;  // bytes of moments that come from the host and go there in a step
};

}  // namespace

Status write_step(const EstimateJob& job, const JobCosts& costs, const std::vector<StageWork>& stages,
                  std::int64_t micro_batches, bool with_program, StepGraph& out) {
  const bool overlap = job.chunks > 1;
  auto schedule = make_schedule(job.chunks > 1 ? ScheduleKind::interleaved : job.schedule,
                                static_cast<std::int32_t>(job.pp), static_cast<std::int32_t>(job.chunks),
                                static_cast<std::int32_t>(micro_batches), overlap && job.pp > 1, false);
  if (!schedule) return tl::unexpected(schedule.error());
  Writer(job, costs, stages, std::move(*schedule), with_program, out).run();
  return {};
}

}  // namespace orrery
