#include "synthesis/estimated_stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "synthesis/estimated_names.h"

namespace orrery::synth {
namespace {

// The copy of a few bytes to the host, and the return of the call that waits for it.
constexpr Ns kReadBack = 1'300, kReturn = 1'000;
constexpr Ns kTail = 300;
// What is round a launch within its operator: gap, call, ends of one operator and of one within it.
constexpr Ns kRoundLaunch = kCallGap + kLaunchCall + 2 * kTail;
// Of an operator's host time what may be taken for calls that the estimate has no time for.
constexpr double kMostRepaid = 0.5;
constexpr double kBarrierNs = 5'000;

Ns whole_ns(double ns) { return std::max<Ns>(0, std::llround(ns)); }

std::string dims(std::initializer_list<double> extents) {
  std::string s = "[";
  for (const double x : extents) s += fmt::format("{}{}", s.size() > 1 ? ", " : "", std::llround(x));
  return s + "]";
}

bool shares_stream(GroupKind k) {
  return k == GroupKind::data || k == GroupKind::data_context || k == GroupKind::shard || k == GroupKind::copies ||
         k == GroupKind::expert_data;
}

bool over_stages(GroupKind k) {
  return k == GroupKind::world || k == GroupKind::model || k == GroupKind::embedding || k == GroupKind::pipeline;
}

}  // namespace

JobOperators::JobOperators(const EstimateJob& job, const JobCosts& costs) {
  const bool split = job.schedule == ScheduleKind::zero_bubble;
  dense_layers = job.model.experts > 0 ? std::min(job.model.dense_layers, job.model.layers) : job.model.layers;
  if (dense_layers > 0) dense = layer_work(job, costs, 0, split);
  if (dense_layers < job.model.layers) expert = layer_work(job, costs, job.model.layers - 1, split);
  embedding = embedding_work(job, costs);
  head = head_work(job, costs);
}

StageRecorder::StageRecorder(const EstimatedStep& step, std::uint32_t stage, Recorder& rec)
    : step_(step),
      job_(step.job),
      stage_(stage),
      rank_(static_cast<std::int64_t>(stage) * step.job.tp * step.job.replicas()),
      rec_(rec),
      comm_{rec, kGpus[0], 0, false, 0, 0} {  // transfers take what the estimate says
  const std::int64_t pid = 4'000 + rank_;
  main_ = rec.add_thread(pid, fmt::format("thread {} (python3)", pid));
  autograd_ = rec.add_thread(pid + 620, fmt::format("thread {} (pt_autograd_0)", pid + 620));
  comm_.compute = compute_ = rec.add_stream(7);
  copies_ = rec.add_stream(11);
  data_ = rec.add_stream(15);
  rec.set_lags({static_cast<Ns>(kLaunchLatencyNs) + kLaunchCall + 2 * kTail, 0, 0, kReturn});
  if (job_.pp > 1) {
    const bool batched = job_.chunks == 1 && job_.schedule == ScheduleKind::one_f_one_b;
    for (int d = 0; d < (batched ? 1 : kDirections); ++d) {
      Communicator c;
      c.info = *group_of(job_, GroupKind::pipeline, rank_);
      c.stream = rec.add_stream(40 + 4 * d);
      peers_.push_back(std::move(c));
    }
  }
  tapes_.resize(static_cast<std::size_t>(job_.chunks));
  awaited_.resize(step.graph.graph.size());
  const ExecGraph& g = step.graph.graph;
  for (const Act& a : step.graph.program) {
    if (a.stage != stage || a.kind != ActKind::transfer) continue;
    for (std::uint32_t e = g.first_pred[raw(a.node)]; e < g.first_pred[raw(a.node) + 1]; ++e)
      if (g.pred_kind[e] == EdgeKind::event) awaited_[raw(g.pred[e])] = 1;
  }
}

void StageRecorder::record(std::int64_t number) {
  number_ = number;
  done_.clear();
  posted_.clear();
  batch_.clear();
  last_chain_ = kNoNode;
  for (const Act& a : step_.graph.program)
    if (a.stage == stage_) act(a);
  end_step();
}

void StageRecorder::act(const Act& a) {
  switch (a.kind) {
    case ActKind::step:
      return begin_step(a.ns);
    case ActKind::pass:
      return begin_pass(a);
    case ActKind::hook:
      return hook(a.ns);
    case ActKind::chain:
      return chain(a);
    case ActKind::transfer:
      return transfer(a);
    case ActKind::post:
      end_pass();
      return post(a);
    case ActKind::settle:
      return settle();
    case ActKind::arrive: {
      end_pass();
      const std::uint32_t mark = rec_.mark();
      wait_for_result(comm_, main_, posted_[a.carried]);
      owed_ += static_cast<double>(rec_.host_since(mark));
      return;
    }
    case ActKind::drain:
      rec_.synchronize_stream(main_, compute_);
      return spend(a.ns - kReturn, OpKind::cpu_op, "batch_p2p_sync");
    case ActKind::passes_end:
      return end_pass();
    case ActKind::tie: {
      const std::uint32_t mark = rec_.mark();
      wait_for_result(comm_, main_, communicate(a.shape, a.ns, nullptr));
      owed_ += static_cast<double>(rec_.host_since(mark));
      return;
    }
    case ActKind::norm:
      return norm(a);
    case ActKind::host_update:
      rec_.synchronize_stream(main_, copies_);
      return spend(a.ns - kReturn, OpKind::cpu_op, "DeepSpeedCPUAdam.step");
  }
}

// ---- the step and its passes ----

void StageRecorder::begin_step(double ns) {
  const OpId op = rec_.open(main_, OpKind::user_annotation, fmt::format("ProfilerStep#{}", number_),
                            main_.last == kNoNode ? 0 : 1'000);
  rec_.mark_step(number_, op);
  spend(ns - kReturn - (job_.pp > 1 ? kBarrierNs : 0), OpKind::user_annotation,
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__");
}

// Stages meet at the end of a step, as the estimate has them begin together.
void StageRecorder::end_step() {
  end_pass();
  if (job_.pp > 1) {
    const Given given{whole_ns(kBarrierNs), nullptr};
    wait_for_result(comm_, main_,
                    collective(comm_, main_, group(GroupKind::world), Collective::barrier, 1, Dtype::f32, &given));
  }
  rec_.synchronize_device(main_);
  rec_.close(main_, 0);
  owed_ = 0;
}

void StageRecorder::spend(double ns, OpKind kind, std::string_view name) {
  rec_.open(*thread_, kind, name, 0);
  rec_.close(*thread_, whole_ns(ns));
}

// Less what was spent before on what the estimate has no time for, as the launch of a gather.
void StageRecorder::hook(double ns) {
  const double paid = std::min(owed_, ns);
  owed_ -= paid;
  spend(ns - paid, OpKind::cpu_op, "FullyShardedDataParallel._pre_hook");
}

void StageRecorder::begin_pass(const Act& a) {
  end_pass();
  const bool forward = a.phase == StepPhase::forward;
  rec_.open(main_, OpKind::user_annotation,
            forward                          ? "forward_step"
            : a.phase == StepPhase::backward ? "backward_step"
                                             : "weight_gradients",
            whole_ns(a.ns - (forward ? 0 : kWakeLag)));
  pass_ = {a.phase, true};
  chunk_.reset();
  tape_.clear();
  if (forward) return;
  rec_.wake(main_, autograd_, kWakeLag);
  thread_ = &autograd_;
  owed_ += kWakeBackLag;
}

void StageRecorder::end_pass() {
  if (!pass_.open) return;
  if (thread_ == &autograd_ && autograd_.last != kNoNode) rec_.wake(autograd_, main_, kWakeBackLag);
  thread_ = &main_;
  if (pass_.phase == StepPhase::forward && chunk_) tapes_[*chunk_].push_back(std::move(tape_));
  tape_.clear();
  rec_.close(main_, 0);
  pass_.open = false;
}

// ---- operators ----

void StageRecorder::chain(const Act& a) {
  const StageWork& work = step_.stages[stage_];
  const bool in_backward = updates_in_backward(a.block);
  const bool of_step = in_backward || a.block == &work.clear || a.block == &work.norm || a.block == &work.optimizer;
  if (a.phase == StepPhase::optimizer && !in_backward) end_pass();
  wait_before(a.node);
  slower_ = a.block->compute_ns > 0 ? 1 + a.slowed_ns / a.block->compute_ns : 1;
  if (of_step) {
    whole(a);
  } else {
    for (std::size_t c = 0; c < work.chunks.size(); ++c) {
      const Chunk& chunk = work.chunks[c];
      const auto is = [&](const auto& x) {
        return a.block == &x.forward || a.block == &x.backward || a.block == &x.weight;
      };
      const auto begin = [&] {
        if (chunk_) return;
        chunk_ = c;
        if (a.phase != StepPhase::backward || tapes_[c].empty()) return;
        tape_ = std::move(tapes_[c].front());
        tapes_[c].erase(tapes_[c].begin());
      };
      if (is(chunk)) {
        begin();
        if (a.phase == StepPhase::forward)
          for (const Bundle& b : chunk.bundles) bundle(b, a.phase);
        else
          for (auto b = chunk.bundles.rbegin(); b != chunk.bundles.rend(); ++b) bundle(*b, a.phase);
        continue;
      }
      for (const Bundle& b : chunk.bundles)
        if (is(b)) begin(), bundle(b, a.phase);
    }
  }
  last_chain_ = a.tail;
  if (awaited_[raw(a.tail)] == 0) return;
  const std::uint32_t mark = rec_.mark();
  done_[raw(a.tail)] = rec_.record(*thread_, compute_);
  owed_ += static_cast<double>(rec_.host_since(mark));
}

bool StageRecorder::updates_in_backward(const Block* block) const {
  for (const Chunk& c : step_.stages[stage_].chunks)
    for (const Bundle& b : c.bundles)
      if (block == &b.update) return true;
  return false;
}

// The compute stream waits for what ran beside it.
void StageRecorder::wait_before(NodeId node) {
  const ExecGraph& g = step_.graph.graph;
  const std::uint32_t mark = rec_.mark();
  for (std::uint32_t e = g.first_pred[raw(node)]; e < g.first_pred[raw(node) + 1]; ++e) {
    if (g.pred_kind[e] != EdgeKind::event) continue;
    const auto done = done_.find(raw(g.pred[e]));
    if (done != done_.end()) wait_for_result(comm_, *thread_, done->second);
  }
  owed_ += static_cast<double>(rec_.host_since(mark));
}

void StageRecorder::bundle(const Bundle& b, StepPhase phase) {
  const JobOperators& o = step_.operators;
  if (phase == StepPhase::forward) {
    if (b.embedding) operations(o.embedding.forward, false, "Embedding_0");
    for (std::int64_t l = b.first_layer; l < b.first_layer + b.layers; ++l) layer(l, phase);
    if (b.head) operations(o.head.forward, false, "OutputLayer_0");
    return;
  }
  const bool backward = phase == StepPhase::backward;
  if (b.head && backward) operations(o.head.backward, true, "");
  for (std::int64_t l = b.first_layer + b.layers; l-- > b.first_layer;) layer(l, phase);
  if (b.embedding && backward) operations(o.embedding.backward, true, "");
}

void StageRecorder::layer(std::int64_t l, StepPhase phase) {
  const LayerWork& w = step_.operators.layer(l);
  if (phase == StepPhase::forward)
    operations(w.forward, false, fmt::format("TransformerLayer_{}", l));
  else
    operations(phase == StepPhase::backward ? w.backward : w.weight, true, "");
}

// `owner`: the module; "" = none is shown. Backward, operators of one part that follow each other are those of one
// node of the autograd graph.
void StageRecorder::operations(const std::vector<Operation>& list, bool backward, std::string_view owner) {
  const auto open_module = [&](std::string_view name) {
    rec_.open(*thread_, OpKind::python, fmt::format("nn.Module: {}", name), 0);
  };
  if (!owner.empty()) open_module(owner);
  std::string_view inside, linear;  // modules that are open in it
  const auto close = [&](std::string_view& module) {
    if (!module.empty()) rec_.close(*thread_, 0);
    module = "";
  };
  for (std::size_t i = 0; i < list.size();) {
    const Part part = list[i].part;
    if (!owner.empty() && !is_communication(part)) {
      const std::string_view number = owner.substr(owner.rfind('_') + 1);
      const std::string_view own = job_.framework == Framework::megatron ? linear_of(part) : "";
      if (own != linear) close(linear);
      if (module_of(part) != inside) {
        close(inside);
        inside = module_of(part);
        if (!inside.empty()) open_module(fmt::format("{}_{}", inside, number));
      }
      if (own != linear) {
        linear = own;
        open_module(fmt::format("{}_{}", own, number));
      }
    }
    std::size_t end = i + 1;
    while (backward && end < list.size() && list[end].part == part) ++end;
    const bool node = backward && !is_communication(part);
    if (node) {
      const std::string_view name = names_of(part).backward;
      rec_.open(*thread_, OpKind::cpu_op, fmt::format("autograd::engine::evaluate_function: {}", name), 0);
      const OpId outer = thread_->open.back().op;
      rec_.open(*thread_, OpKind::cpu_op, name, 0);
      const OpId inner = thread_->open.back().op;
      const auto entry = std::find_if(tape_.rbegin(), tape_.rend(), [&](const TapeEntry& e) { return e.part == part; });
      if (entry != tape_.rend()) {
        rec_.set_sequence(outer, entry->sequence, 1);
        rec_.set_sequence(inner, entry->sequence, 1);
        rec_.link_backward(entry->op, inner);
        tape_.erase(std::next(entry).base());
      }
    }
    for (std::size_t k = i; k < end; ++k) operation(list[k], backward, k == 0);
    if (node) rec_.close(*thread_, 0), rec_.close(*thread_, 0);
    i = end;
  }
  close(linear);
  close(inside);
  if (!owner.empty()) rec_.close(*thread_, 0);
}

TaskSpec StageRecorder::task(std::string_view name, double ns) const {
  TaskSpec t;
  t.name = name;
  t.duration = std::max<Ns>(1, whole_ns(ns));
  return t;
}

void StageRecorder::operation(const Operation& o, bool backward, bool first) {
  if (o.compute_ns <= 0 && o.comm_ns <= 0) return spend(o.host_ns, OpKind::cpu_op, "cudart::getRNGState");
  const std::uint32_t mark = rec_.mark();
  Event done;
  if (o.comm_ns > 0) done = communicate(o.transfer, o.comm_ns, nullptr);
  if (o.compute_ns > 0) {
    // what a ring of ranks adds up is no attention
    const bool sums = o.part == Part::attention && o.flops <= 0;
    const OperatorNames names = names_of(sums ? Part::residual : o.part);
    const bool product = o.k > 0, grouped = product && o.part == Part::experts;
    const double tokens = job_.tokens(), rows = job_.sequence_parallel ? tokens / static_cast<double>(job_.tp) : tokens;
    const auto of_tokens = [&](double x) {
      return x == tokens || x == rows ||
             (grouped && x * o.batch == rows * static_cast<double>(job_.model.experts_per_token));
    };
    const std::string_view layout = !backward ? "tn" : of_tokens(o.k) && !of_tokens(o.m) ? "nt" : "nn";
    const bool batched = o.part == Part::scores || o.part == Part::context;
    TaskSpec kernel = task(product    ? product_kernel(job_.platform.gpu, batched && !backward ? "tn" : layout, grouped)
                           : backward ? names.backward_kernel
                                      : names.kernel,
                           slower_ * o.compute_ns);
    kernel.blocks = product ? blocks_of(std::llround(std::ceil(o.m / 128) * std::ceil(o.n / 128) * o.batch), 1)
                            : blocks_of(std::llround(o.bytes), 8'192);
    const std::string_view inner = product && !grouped ? (batched ? names.inner : "aten::mm")
                                   : product           ? ""
                                                       : names.inner;
    const Ns lead = std::max<Ns>(500, whole_ns(o.host_ns) - kRoundLaunch);
    int opened = 0;
    if (!backward) {
      rec_.open(*thread_, OpKind::cpu_op, names.op, inner.empty() ? lead : 500);
      const OpId op = shaped(o, thread_->open.back().op, false);
      ++opened;
      if (first || o.part != Part::embedding) {
        rec_.set_sequence(op, sequence_, 0);
        tape_.push_back({o.part, op, sequence_++});
      }
    }
    if (!inner.empty()) {
      rec_.open(*thread_, OpKind::cpu_op, inner, backward ? lead : std::max<Ns>(500, lead - 500));
      ++opened;
      const OpId op = thread_->open.back().op;
      if (batched)
        rec_.set_shapes(op, fmt::format("[{}, {}]", dims({o.batch, o.m, o.k}), dims({o.batch, o.k, o.n})),
                        "[\"c10::BFloat16\", \"c10::BFloat16\"]");
      else if (product)
        rec_.set_shapes(op, fmt::format("[{}, {}]", dims({o.m, o.k}), dims({o.k, o.n})),
                        "[\"c10::BFloat16\", \"c10::BFloat16\"]");
    } else if (backward && !grouped) {
      rec_.open(*thread_, OpKind::cpu_op, names.op, lead);
      ++opened;
    }
    rec_.launch(*thread_, compute_, kernel, "cudaLaunchKernel");
    while (opened-- > 0) rec_.close(*thread_, kTail);
  }
  if (o.comm_ns > 0) wait_for_result(comm_, *thread_, done);
  const double paid = std::min(owed_, kMostRepaid * o.host_ns);
  owed_ -= paid;
  rec_.scale_host_since(mark, whole_ns(o.host_ns - paid));
  if (o.host_waits) read_back(kReturnNs);
}

// Shapes of the forward operator, as the profiler records them.
OpId StageRecorder::shaped(const Operation& o, OpId op, bool backward) {
  const double cp = static_cast<double>(job_.cp), tp = static_cast<double>(job_.tp),
               batch = static_cast<double>(job_.micro_batch_size);
  const double whole = static_cast<double>(job_.seq_length) / cp, seq = job_.sequence_parallel ? whole / tp : whole;
  const ModelFacts& m = job_.model;
  const double hidden = static_cast<double>(m.hidden);
  constexpr std::string_view kOne = "[\"c10::BFloat16\"]", kTwo = "[\"c10::BFloat16\", \"c10::BFloat16\"]",
                             kThree = "[\"c10::BFloat16\", \"c10::BFloat16\", \"c10::BFloat16\"]";
  if (backward) return op;
  if (o.part == Part::attention && o.flops <= 0) return op;
  switch (o.part) {
    case Part::norm:
      rec_.set_shapes(op, fmt::format("[{}, [{}]]", dims({seq, batch, hidden}), m.hidden), kTwo);
      break;
    case Part::embedding:
      rec_.set_shapes(op,
                      fmt::format("[{}, {}]", dims({static_cast<double>(m.vocab) / tp, hidden}), dims({batch, whole})),
                      "[\"c10::BFloat16\", \"long int\"]");
      break;
    case Part::attention: {
      const double dim = static_cast<double>(m.head_dim + (m.kv_lora_rank > 0 ? m.rope_head_dim : 0));
      const std::string q = dims({batch, whole, static_cast<double>(m.heads) / tp, dim}),
                        kv = dims({batch, whole, std::max(1.0, static_cast<double>(m.kv_heads) / tp), dim});
      rec_.set_shapes(op, fmt::format("[{}, {}, {}]", q, kv, kv), kThree);
      break;
    }
    case Part::residual: {
      const std::string all = dims({seq, batch, hidden});
      rec_.set_shapes(op, fmt::format("[{}, {}, []]", all, all), kTwo);
      break;
    }
    case Part::scores:
    case Part::context:
      rec_.set_shapes(op,
                      o.part == Part::scores
                          ? fmt::format("[{}, {}, {}, [], []]", dims({o.batch, o.m, o.n}), dims({o.batch, o.m, o.k}),
                                        dims({o.batch, o.k, o.n}))
                          : fmt::format("[{}, {}]", dims({o.batch, o.m, o.k}), dims({o.batch, o.k, o.n})),
                      kThree);
      break;
    case Part::softmax:
      rec_.set_shapes(op,
                      fmt::format("[{}, []]", dims({batch * static_cast<double>(m.heads) / tp, whole,
                                                    static_cast<double>(job_.seq_length)})),
                      kOne);
      break;
    case Part::experts:
      if (o.k > 0)
        rec_.set_shapes(
            op,
            fmt::format("[{}, {}, [{}]]", dims({o.m * o.batch, o.k}), dims({o.batch, o.k, o.n}), std::llround(o.batch)),
            kTwo);
      break;
    default:
      if (o.k > 0) rec_.set_shapes(op, fmt::format("[{}, {}]", dims({o.m, o.k}), dims({o.n, o.k})), kTwo);
  }
  return op;
}

// What the estimate has as one piece of work: clearing, the norm, the update.
void StageRecorder::whole(const Act& a) {
  const StageWork& work = step_.stages[stage_];
  const OperatorNames zero = names_of(Part::gradients), update = names_of(Part::optimizer);
  const bool clears = a.block == &work.clear, updates = a.block == &work.optimizer || updates_in_backward(a.block);
  const std::string_view name = clears    ? zero.op
                                : updates ? "Optimizer.step#FusedAdam.step"
                                          : "aten::linalg_vector_norm";
  const std::string_view kernel =
      clears ? zero.kernel
      : updates
          ? update.kernel
          : std::string_view(
                "void multi_tensor_apply_kernel<TensorListMetadata<1>, L2NormFunctor<float>, float*, float*, bool, "
                "int>(long, int volatile*, TensorListMetadata<1>, L2NormFunctor<float>, float*, float*, bool, int)");
  const std::uint32_t mark = rec_.mark();
  rec_.open(*thread_, updates ? OpKind::user_annotation : OpKind::cpu_op, name,
            std::max<Ns>(500, whole_ns(a.block->issue_ns) - kRoundLaunch));
  rec_.launch(*thread_, compute_, task(kernel, a.block->stream_ns), "cudaLaunchKernel");
  rec_.close(*thread_, kTail);
  rec_.scale_host_since(mark, whole_ns(a.block->issue_ns));
}

// The host reads a number from the compute stream; `ns` from its last kernel's end until the host goes on.
void StageRecorder::read_back(double ns) {
  rec_.open(*thread_, OpKind::cpu_op, "aten::item", kOpLead);
  rec_.open(*thread_, OpKind::cpu_op, "aten::_local_scalar_dense", kOpLead);
  TaskSpec t = task("Memcpy DtoH (Device -> Pinned)", kReadBack);
  t.kind = OpKind::memcpy;
  t.bytes = 4;
  rec_.launch(*thread_, compute_, t, "cudaMemcpyAsync");
  rec_.synchronize_stream(*thread_, compute_);
  rec_.close(*thread_, 0);
  rec_.close(*thread_, std::max<Ns>(0, whole_ns(ns) - kReadBack - kReturn));
}

// ---- transfers ----

Communicator& StageRecorder::group(GroupKind kind) {
  const auto found = groups_.find(kind);
  if (found != groups_.end()) return found->second;
  Communicator c;
  c.info = *group_of(job_, kind, rank_);
  const auto number = static_cast<std::int64_t>(kind);
  c.id = over_stages(kind) ? 100 + number : 1'000 + number * job_.pp + stage_;
  c.stream = shares_stream(kind) ? data_ : rec_.add_stream(60 + 4 * number);
  return groups_.emplace(kind, std::move(c)).first->second;
}

Event StageRecorder::communicate(const TransferShape& shape, double ns, const Event* after) {
  Communicator& g = group(kind_of(job_, shape.group));
  const Collective kind = shape.kind == TransferKind::all_reduce       ? Collective::all_reduce
                          : shape.kind == TransferKind::reduce_scatter ? Collective::reduce_scatter
                          : shape.kind == TransferKind::all_to_all     ? Collective::all_to_all
                                                                       : Collective::all_gather;
  const bool gradients = (shares_stream(kind_of(job_, shape.group)) || shape.group == Group::pipeline) &&
                         shape.kind != TransferKind::all_gather;
  const Dtype dtype = gradients && gradient_bytes(job_) == 4 ? Dtype::f32 : Dtype::bf16;
  const Given given{std::max<Ns>(1, whole_ns(ns)), after};
  return collective(comm_, *thread_, g, kind,
                    std::max<std::int64_t>(1, std::llround(shape.bytes / static_cast<double>(size_of(dtype)))), dtype,
                    &given);
}

// `all`: for what the compute stream has so far.
Event StageRecorder::after_of(NodeId node, bool& all) const {
  const ExecGraph& g = step_.graph.graph;
  Event after;
  all = false;
  for (std::uint32_t e = g.first_pred[raw(node)]; e < g.first_pred[raw(node) + 1]; ++e) {
    if (g.pred_kind[e] != EdgeKind::event) continue;
    all = all || g.pred[e] == last_chain_;
    const auto done = done_.find(raw(g.pred[e]));
    if (done == done_.end()) continue;
    const std::vector<TaskRef> tasks = std::move(after.tasks);
    after = done->second;
    after.tasks.insert(after.tasks.end(), tasks.begin(), tasks.end());
  }
  return after;
}

void StageRecorder::transfer(const Act& a) {
  const std::uint32_t mark = rec_.mark();
  bool all = false;
  const Event after = after_of(a.node, all);
  if (a.shape.kind == TransferKind::to_device || a.shape.kind == TransferKind::to_host) {
    const bool to_host = a.shape.kind == TransferKind::to_host;
    rec_.open(*thread_, OpKind::cpu_op, "aten::copy_", kOpLead);
    if (all)
      rec_.wait(*thread_, copies_, rec_.record(*thread_, compute_));
    else if (!after.tasks.empty())
      rec_.wait(*thread_, copies_, after);
    TaskSpec t = task(to_host ? "Memcpy DtoH (Device -> Pinned)" : "Memcpy HtoD (Pinned -> Device)", a.ns);
    t.kind = OpKind::memcpy;
    t.bytes = std::llround(a.shape.bytes);
    rec_.launch(*thread_, copies_, t, "cudaMemcpyAsync");
    done_[raw(a.node)] = rec_.record(*thread_, copies_);
    rec_.close(*thread_, kTail);
  } else {
    done_[raw(a.node)] = communicate(a.shape, a.ns, all ? nullptr : &after);
  }
  owed_ += static_cast<double>(rec_.host_since(mark));
}

// Sends and receives of 1F1B are one kernel for each peer, as Megatron-LM batches them; beside passes each is its own.
void StageRecorder::post(const Act& a) {
  if (peers_.size() == 1) {
    batch_.push_back(a);
    return;
  }
  const bool next = direction_of(a.transfer) == orrery::Direction::next;
  const Direction d = a.transfer.send ? (next ? send_next : send_previous) : (next ? receive_next : receive_previous);
  Exchange x;
  x.peer = rank_ + (a.transfer.peer_stage - static_cast<std::int64_t>(stage_)) * job_.tp * job_.replicas();
  x.send = a.transfer.send;
  x.receive = !a.transfer.send;
  const double share = job_.sequence_parallel ? static_cast<double>(job_.tp) : 1;
  x.elements = std::llround(job_.tokens() * static_cast<double>(job_.model.hidden) / share);
  x.key = {5'000'000 + number_, static_cast<std::int64_t>(a.carried)};
  x.duration = std::max<Ns>(1, whole_ns(a.ns));
  const std::uint32_t mark = rec_.mark();
  posted_[a.carried] = send_or_receive(comm_, main_, peers_[d], x);
  rec_.scale_host_since(mark, whole_ns(a.host_ns));
  batch_.push_back(a);
}

void StageRecorder::settle() {
  const std::uint32_t mark = rec_.mark();
  double host_ns = 0;
  for (const Act& a : batch_) host_ns += a.host_ns;
  if (peers_.size() > 1) {
    for (const Act& a : batch_) wait_for_result(comm_, main_, posted_[a.carried]);
  } else {
    std::vector<Event> done;
    while (!batch_.empty()) {
      const std::int32_t peer = batch_.front().transfer.peer_stage;
      Exchange x;
      std::uint32_t name = batch_.front().carried;
      x.peer = rank_ + (peer - static_cast<std::int64_t>(stage_)) * job_.tp * job_.replicas();
      for (const Act& a : batch_) {
        if (a.transfer.peer_stage != peer) continue;
        (a.transfer.send ? x.send : x.receive) = true;
        name = std::min(name, a.carried);
        x.duration = std::max<Ns>(1, whole_ns(a.ns));
      }
      std::erase_if(batch_, [&](const Act& a) { return a.transfer.peer_stage == peer; });
      const double share = job_.sequence_parallel ? static_cast<double>(job_.tp) : 1;
      x.elements = std::llround(job_.tokens() * static_cast<double>(job_.model.hidden) / share);
      x.key = {5'000'000 + number_, static_cast<std::int64_t>(name)};
      done.push_back(send_receive(comm_, main_, peers_.front(), x));
    }
    for (const Event& e : done) wait_for_result(comm_, main_, e);
    rec_.scale_host_since(mark, whole_ns(host_ns));
  }
  batch_.clear();
}

void StageRecorder::norm(const Act& a) {
  end_pass();
  const std::uint32_t mark = rec_.mark();
  if (a.ns > 0) {
    const Given given{whole_ns(a.ns), nullptr};
    Communicator& all = group(job_.zero > 0 ? GroupKind::world : GroupKind::model);
    wait_for_result(comm_, main_, collective(comm_, main_, all, Collective::all_reduce, 1, Dtype::f32, &given));
  }
  owed_ += static_cast<double>(rec_.host_since(mark));
  read_back(kSyncHostNs);
}

}  // namespace orrery::synth
