#include "estimate/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace orrery {
namespace {

std::vector<std::int64_t> divisors(std::int64_t n, std::int64_t most) {
  std::vector<std::int64_t> d;
  for (std::int64_t k = 1; k <= std::min(n, most); ++k)
    if (n % k == 0) d.push_back(k);
  return d;
}

struct Techniques {
  int zero;
  Recompute recompute;
};

std::vector<Techniques> techniques_of(const EstimateJob& job, const PlanSpace& space) {
  std::vector<int> zeros{job.zero};
  if (space.vary_zero) {
    zeros = {0};
    if (job.replicas() > 1) zeros.push_back(1);
    if (job.replicas() > 1 && job.pp == 1 && (job.framework != Framework::megatron || job.tp == 1)) zeros.push_back(3);
  }
  std::vector<Recompute> recomputes{job.recompute};
  if (space.vary_recompute) {
    recomputes = {Recompute::none, Recompute::full};
    if (job.attention == AttentionKind::unfused) recomputes.push_back(Recompute::selective);
  }
  std::vector<Techniques> all;
  for (const int z : zeros)
    for (const Recompute r : recomputes) all.push_back({z, r});
  return all;
}

}  // namespace

std::string layout_text(const EstimateJob& job) {
  std::string s = fmt::format("tp={} pp={} dp={}", job.tp, job.pp, job.dp);
  if (job.cp > 1) s += fmt::format(" cp={}", job.cp);
  if (job.ep > 1) s += fmt::format(" ep={}", job.ep);
  s += fmt::format(" micro-batch={}x{}", job.num_microbatches, job.micro_batch_size);
  if (job.chunks > 1) s += fmt::format(" interleaved:{}", job.chunks);
  return s;
}

std::string techniques_text(const EstimateJob& job) {
  std::string s;
  const auto add = [&](const std::string& what) { s += (s.empty() ? "" : " ") + what; };
  if (job.zero > 0) add(fmt::format("zero={}", job.zero));
  if (job.sequence_parallel) add("sequence-parallel");
  if (job.recompute != Recompute::none) add(fmt::format("recompute={}", name_of(job.recompute)));
  if (job.offload != Offload::none) add(fmt::format("offload={}", name_of(job.offload)));
  if (job.quantize != Quantize::none) add(fmt::format("quantize={}", name_of(job.quantize)));
  return s.empty() ? "none" : s;
}

std::string options_text(const EstimateJob& job) {
  std::string s =
      fmt::format("--tp {} --pp {} --dp {} --micro-batch-size {} --num-microbatches {} --zero {} --recompute {}",
                  job.tp, job.pp, job.dp, job.micro_batch_size, job.num_microbatches, job.zero, name_of(job.recompute));
  if (job.sequence_parallel) s += " --sequence-parallel on";
  if (job.cp > 1) s += fmt::format(" --context-parallel {}", job.cp);
  if (job.ep > 1) s += fmt::format(" --expert-parallel {}", job.ep);
  if (job.chunks > 1) s += fmt::format(" --schedule interleaved:{}", job.chunks);
  return s;
}

Plan plan(const EstimateJob& base, const JobCosts& costs, const PlanSpace& space) {
  Plan p;
  EstimateScratch scratch;
  const std::int64_t joined =
      std::max(base.platform.gpus_per_node, base.platform.nvlink_gb_per_s > 0 ? base.platform.nvlink_domain : 1);
  const std::int64_t most_tp = space.max_tp > 0 ? space.max_tp : std::min(joined, base.model.heads);
  const std::int64_t most_pp = space.max_pp > 0 ? space.max_pp : base.model.layers;
  const auto one = [](std::int64_t n) { return std::vector<std::int64_t>{n}; };

  const auto consider = [&](const EstimateJob& job) {
    if (!check(job)) return;
    PlanCandidate c{job, 0, 0, 0, {}, true, Binds::compute};
    const std::vector<StageWork> stages = stages_of(job, costs);
    const JobMemory memory = memory_of(job, stages);
    c.memory = memory.most;
    const double capacity = job.platform.gpu.memory_gib;
    c.fits = fits(job, memory);
    if (capacity > 0 && c.memory.total > 2 * capacity) {
      ++p.pruned;
      return;
    }
    const Estimate e = estimate(job, costs, stages, scratch);
    ++p.evaluated;
    c.iteration_ns = e.iteration_ns;
    c.relative_error = e.relative_error;
    c.binds = e.binds;
    c.tokens_per_s = static_cast<double>(job.global_batch() * job.seq_length) / (e.iteration_ns / 1e9);
    p.candidates.push_back(std::move(c));
  };

  const auto with_techniques = [&](EstimateJob& job) {
    for (const Techniques& t : techniques_of(job, space)) {
      job.zero = t.zero, job.recompute = t.recompute;
      job.chunks = space.vary_schedule ? 1 : base.chunks;
      job.schedule = space.vary_schedule ? ScheduleKind::one_f_one_b : base.schedule;
      consider(job);
      if (!space.vary_schedule || job.pp == 1 || job.num_microbatches % job.pp != 0) continue;
      for (std::int64_t v = 2; v <= space.max_chunks && job.pp * v <= job.model.layers; v *= 2) {
        if (job.model.layers % (job.pp * v) != 0) continue;
        job.chunks = v, job.schedule = ScheduleKind::interleaved;
        consider(job);
      }
    }
  };

  for (const std::int64_t tp : space.vary_tp ? divisors(space.gpus, most_tp) : one(base.tp)) {
    if (base.model.heads % tp != 0) continue;
    for (const std::int64_t pp : space.vary_pp ? divisors(space.gpus, most_pp) : one(base.pp)) {
      const std::int64_t share = tp * pp * base.cp;
      if (space.gpus % share != 0) continue;
      EstimateJob job = base;
      job.tp = tp, job.pp = pp, job.dp = space.gpus / share;
      job.sequence_parallel = tp > 1 && job.seq_length % (tp * job.cp) == 0;
      if (space.global_batch % job.dp != 0) continue;
      const std::int64_t each = space.global_batch / job.dp;
      const bool spreads = space.vary_ep && job.model.experts > 0;
      for (const std::int64_t ep :
           spreads ? divisors(std::gcd(job.model.experts, job.replicas() * tp), job.model.experts) : one(base.ep)) {
        job.ep = ep;
        for (const std::int64_t mbs :
             space.vary_micro_batch ? divisors(each, space.max_micro_batch) : one(base.micro_batch_size)) {
          if (each % mbs != 0) continue;
          job.micro_batch_size = mbs, job.num_microbatches = each / mbs;
          with_techniques(job);
        }
      }
    }
  }
  std::stable_sort(p.candidates.begin(), p.candidates.end(), [](const PlanCandidate& a, const PlanCandidate& b) {
    if (a.fits != b.fits) return a.fits;
    return a.iteration_ns < b.iteration_ns;
  });
  return p;
}

}  // namespace orrery
