#include "estimate/estimate.h"

#include <algorithm>
#include <cmath>

namespace orrery {
namespace {

struct Interval {
  double begin, end;
};

// What one run of a step's graph shows; all of it grows in a straight line with the micro-batches once the pipeline is
// full.
struct Observed {
  double total = 0, flops = 0, doubt = 0, bubble = 0, copies = 0;
  FourClasses classes;
  std::array<std::array<double, kStepPhases>, kParts> parts{};
  std::array<Estimate::PhaseTime, kStepPhases> phases{};
  std::vector<double> busy;

  template <class F>
  void each(Observed& other, F f) {
    f(total, other.total), f(flops, other.flops), f(doubt, other.doubt), f(bubble, other.bubble);
    f(copies, other.copies);
    f(classes.exposed_compute, other.classes.exposed_compute), f(classes.overlapped, other.classes.overlapped);
    f(classes.exposed_comm, other.classes.exposed_comm), f(classes.other, other.classes.other);
    f(classes.memory, other.classes.memory);
    for (std::size_t p = 0; p < kParts; ++p)
      for (std::size_t k = 0; k < kStepPhases; ++k) f(parts[p][k], other.parts[p][k]);
    for (std::size_t k = 0; k < kStepPhases; ++k) {
      f(phases[k].gpu_ns, other.phases[k].gpu_ns);
      f(phases[k].host_ns, other.phases[k].host_ns);
    }
    for (std::size_t s = 0; s < busy.size(); ++s) f(busy[s], other.busy[s]);
  }
};

struct Ran {
  const Block* block;
  double slowed_ns;
};

// Of one stage: the lane of the passes against what runs beside it.
void classify(std::vector<Interval>& transfers, const std::vector<Interval>& lane, const std::vector<Ran>& blocks,
              double total, FourClasses& c) {
  double compute = 0, overlapped = 0, comm = 0;
  for (const Ran& r : blocks) {
    compute += r.block->compute_ns + r.slowed_ns;
    overlapped += r.block->overlapped_ns, comm += r.block->comm_ns;
  }
  std::sort(transfers.begin(), transfers.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  double reached = 0;
  std::size_t k = 0;
  for (const Interval& t : transfers) {
    const double from = std::max(t.begin, reached);
    if (t.end <= from) continue;
    double covered = 0;
    while (k > 0 && lane[k - 1].end > from) --k;
    while (k < lane.size() && lane[k].end <= from) ++k;
    for (std::size_t i = k; i < lane.size() && lane[i].begin < t.end; ++i) {
      const double both = std::min(lane[i].end, t.end) - std::max(lane[i].begin, from);
      const double through = blocks[i].block->through_ns + blocks[i].slowed_ns;
      if (both <= 0 || through <= 0) continue;
      covered += both;
      const double share = both * (blocks[i].block->compute_ns + blocks[i].slowed_ns) / through;
      compute -= share, overlapped += share;
    }
    comm += t.end - from - covered;
    reached = t.end;
  }
  c.exposed_compute += compute;
  c.overlapped += overlapped;
  c.exposed_comm += comm;
  c.other += std::max(0.0, total - compute - overlapped - comm);
}

// Of `intervals`, which follow each other, what none of `others` covers.
double alone(std::vector<Interval> intervals, std::vector<Interval> others) {
  const auto by_begin = [](const Interval& a, const Interval& b) { return a.begin < b.begin; };
  std::sort(intervals.begin(), intervals.end(), by_begin);
  std::sort(others.begin(), others.end(), by_begin);
  double sum = 0, covered = -1;  // covered: by others, up to here
  std::size_t k = 0;
  for (const Interval& i : intervals) {
    double at = i.begin;
    for (; k < others.size() && others[k].begin < i.end; ++k) {
      at = std::max(at, std::min(covered, i.end));
      if (others[k].begin > at) sum += others[k].begin - at;
      covered = std::max(covered, others[k].end);
      at = std::max(at, std::min(covered, i.end));
    }
    sum += std::max(0.0, i.end - std::max(at, covered));
  }
  return sum;
}

Observed observe(const StepGraph& step, const Replay& run) {
  const ExecGraph& g = step.graph;
  const std::size_t stages = g.ranks.size();
  Observed o;
  o.busy.resize(stages);
  std::vector<std::vector<Interval>> transfers(stages), lane(stages), copies(stages);
  std::vector<std::vector<Ran>> blocks(stages);
  const double share = 1 / static_cast<double>(stages);  // of one stage in the mean
  for (const NodeId end : step.last) o.total = std::max(o.total, static_cast<double>(run.end[raw(end)]));
  for (const StepPiece& p : step.pieces) {
    const auto at = raw(p.to);
    const auto phase = static_cast<std::size_t>(p.phase);
    const double end = static_cast<double>(run.end[at]);
    const double start =
        p.block != nullptr ? end - p.block->through_ns - p.slowed_ns : static_cast<double>(run.start[at]);
    if (p.block != nullptr) {
      const Block& b = *p.block;
      lane[p.stage].push_back({start, end});
      blocks[p.stage].push_back({&b, p.slowed_ns});
      o.busy[p.stage] += b.stream_ns + p.slowed_ns;
      o.flops += b.flops * share;
      o.doubt += b.doubt_ns * share;
      o.phases[phase].gpu_ns += (b.stream_ns + p.slowed_ns) * share;
      o.phases[phase].host_ns += b.issue_ns * share;
      for (std::size_t k = 0; k < kParts; ++k) o.parts[k][phase] += b.part_ns[k] * share;
      if (p.slowed_ns > 0) {
        double kernels = 0;
        for (std::size_t k = 0; k < kParts; ++k)
          if (!is_communication(static_cast<Part>(k))) kernels += b.part_ns[k];
        for (std::size_t k = 0; k < kParts; ++k)
          if (!is_communication(static_cast<Part>(k)))
            o.parts[k][phase] += p.slowed_ns * b.part_ns[k] / kernels * share;
      }
      continue;
    }
    const double from = p.from == kNoNode ? start : static_cast<double>(run.end[raw(p.from)]);
    if (p.part == Part::copies) {
      o.copies += (end - start) * share;
      copies[p.stage].push_back({start, end});
      continue;
    }
    transfers[p.stage].push_back({from, end});
    if (p.part == Part::pipeline_comm && !p.sends) o.bubble += std::max(0.0, start - from) * share;
    if (!p.sends) o.parts[static_cast<std::size_t>(p.part)][phase] += (end - start) * share;
  }
  for (std::size_t s = 0; s < stages; ++s) {
    classify(transfers[s], lane[s], blocks[s], o.total, o.classes);
    if (copies[s].empty()) continue;
    std::vector<Interval> other = std::move(transfers[s]);
    other.insert(other.end(), lane[s].begin(), lane[s].end());
    o.classes.memory += alone(std::move(copies[s]), std::move(other)) * share;
  }
  for (double* c : {&o.classes.exposed_compute, &o.classes.overlapped, &o.classes.exposed_comm, &o.classes.other})
    *c *= share;
  return o;
}

bool bound_by_memory(Part p) {
  switch (p) {
    case Part::embedding:
    case Part::norm:
    case Part::rotary:
    case Part::softmax:
    case Part::activation:
    case Part::residual:
    case Part::loss:
    case Part::quantize:
    case Part::dequantize:
    case Part::gradients:
    case Part::optimizer:
      return true;
    default:
      return false;
  }
}

Binds what_binds(const Observed& o) {
  double compute = 0, memory = 0;
  for (std::size_t p = 0; p < kParts; ++p)
    for (const double ns : o.parts[p]) {
      if (is_communication(static_cast<Part>(p)) || static_cast<Part>(p) == Part::copies) continue;
      (bound_by_memory(static_cast<Part>(p)) ? memory : compute) += ns;
    }
  const double links = std::max(0.0, o.classes.exposed_comm - o.bubble);
  const double copies = std::min(o.copies, o.classes.other), host = o.classes.other - copies;
  const std::array<std::pair<double, Binds>, 6> all = {{{compute, Binds::compute},
                                                        {memory, Binds::memory_bandwidth},
                                                        {links, Binds::links},
                                                        {o.bubble, Binds::bubble},
                                                        {host, Binds::host},
                                                        {copies, Binds::copies}}};
  return std::max_element(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; })
      ->second;
}

}  // namespace

std::string_view name_of(Binds b) {
  switch (b) {
    case Binds::compute:
      return "compute";
    case Binds::memory_bandwidth:
      return "memory bandwidth";
    case Binds::links:
      return "links";
    case Binds::bubble:
      return "bubble";
    case Binds::host:
      return "host";
    case Binds::copies:
      return "host-device copies";
  }
  return "";
}

double model_flops(const EstimateJob& job) {
  const ModelFacts& m = job.model;
  const double tokens = static_cast<double>(job.global_batch() * job.seq_length);
  double n = active_parameters(m);
  const double table = static_cast<double>(m.vocab * m.hidden);
  if (!m.tied_embeddings) n -= table;  // looked up, not multiplied
  if (m.learned_positions) n -= static_cast<double>(m.max_context * m.hidden);
  const double head = static_cast<double>(m.head_dim + (m.kv_lora_rank > 0 ? m.rope_head_dim : 0)),
               value = m.kv_lora_rank > 0 ? static_cast<double>(m.value_head_dim) : head;
  const double attention =
      6 * static_cast<double>(m.layers * m.heads) * (head + value) * static_cast<double>(job.seq_length);
  return tokens * (6 * n + attention);
}

Estimate estimate(const EstimateJob& job, const JobCosts& costs, EstimateScratch& scratch) {
  return estimate(job, costs, stages_of(job, costs), scratch);
}

Estimate estimate(const EstimateJob& job, const JobCosts& costs, const std::vector<StageWork>& stages,
                  EstimateScratch& scratch) {
  Estimate e;
  const JobMemory memory = memory_of(job, stages);
  e.memory = memory.most;
  e.mean_memory = memory.mean;
  e.allocated_gib = memory.allocated;
  e.capacity_gib = job.platform.gpu.memory_gib;
  e.host_memory_gib = memory.host;
  e.host_capacity_gib = job.platform.host.memory_gib;
  e.fits = fits(job, memory);
  e.model_flops = model_flops(job);

  const auto run = [&](std::int64_t micro_batches) {
    if (!write_step(job, costs, stages, micro_batches, false, scratch.step)) return Observed{};
    replay(scratch.step.graph, scratch.replay);
    e.nodes += scratch.step.graph.size();
    return observe(scratch.step, scratch.replay);
  };
  // Interleaved: multiples of the stages.
  const std::int64_t full = job.chunks > 1 ? 2 * job.pp : job.pp + 2, more = job.chunks > 1 ? job.pp : 2;
  const std::int64_t m = job.num_microbatches;
  Observed o;
  if (m > full + more) {
    Observed first = run(full);
    o = run(full + more);
    const double steps = static_cast<double>(m - full - more) / static_cast<double>(more);
    o.each(first, [&](double& now, double& before) { now += (now - before) * steps; });
  } else {
    o = run(m);
  }
  e.iteration_ns = o.total;
  e.classes = o.classes;
  e.phases = o.phases;
  e.hardware_flops = o.flops;
  e.bubble_ns = o.bubble;
  e.stage_ns = o.busy;
  e.binds = what_binds(o);
  double busy = 0;
  for (const double b : o.busy) busy += b / static_cast<double>(o.busy.size());
  // Laws of operators err alike over a step; the host's and the pipeline's share is known less well.
  const double operators = busy > 0 ? o.doubt / busy : 0;
  const double idle = o.total > 0 ? std::max(0.0, 1 - busy / o.total) : 0;
  e.relative_error = std::hypot(0.7 * operators, 0.03, 0.15 * idle);
  for (std::size_t p = 0; p < kParts; ++p)
    for (std::size_t k = 0; k < kStepPhases; ++k)
      if (o.parts[p][k] > 0) e.parts.push_back({static_cast<Part>(p), static_cast<StepPhase>(k), o.parts[p][k]});
  return e;
}

std::int64_t largest_micro_batch(EstimateJob job, const JobCosts& costs) {
  const auto room = [&](std::int64_t n) {
    job.micro_batch_size = n;
    return fits(job, memory_of(job, stages_of(job, costs)));
  };
  if (!room(1)) return 0;
  std::int64_t low = 1, high = 2;
  while (high < 65'536 && room(high)) low = high, high *= 2;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (room(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace orrery
