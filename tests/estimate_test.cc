// Estimates against what can be worked out by hand, and against slower ways to the same answer.
#include "estimate/estimate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "estimate/plan.h"
#include "facts/library.h"
#include "replay/replay.h"

namespace orrery {
namespace {

EstimateJob llama(const std::string& model = "llama-2-7b", const std::string& platform = "dgx-a100-80g") {
  EstimateJob job;
  job.model = *model_named_or_read(model);
  job.platform = *platform_named_or_read(platform);
  job.seq_length = 2048;
  return job;
}
Estimate of(const EstimateJob& job) {
  EXPECT_TRUE(check(job)) << (check(job) ? "" : check(job).error().line());
  EstimateScratch scratch;
  return estimate(job, costs_of(job), scratch);
}

// A job of which only the passes count: equal stages, links that take no time, a host that takes none.
JobCosts only_passes(const EstimateJob& job) {
  JobCosts c = costs_of(job);
  c.launch_ns = c.operator_ns = 0;
  for (Level* l : {&c.network.intra, &c.network.inter}) {
    l->gb_per_s = 1e12, l->p2p_ns = l->small_hop_ns = l->large_hop_ns = 1e-3;
  }
  c.network.small_ns = c.network.large_ns = 1e-3;
  return c;
}
std::vector<StageWork> equal_stages(const EstimateJob& job, double forward, double backward) {
  std::vector<StageWork> stages(static_cast<std::size_t>(job.pp));
  for (StageWork& s : stages)
    for (std::int64_t c = 0; c < job.chunks; ++c) {
      Operation f, b;
      f.compute_ns = forward / static_cast<double>(job.chunks);
      b.compute_ns = backward / static_cast<double>(job.chunks);
      Chunk chunk;
      Bundle bundle;
      bundle.forward = block_of(f), bundle.backward = block_of(b);
      chunk.forward = bundle.forward, chunk.backward = bundle.backward;
      chunk.bundles.push_back(bundle);
      s.chunks.push_back(chunk);
    }
  return stages;
}
double step_ns(const EstimateJob& job, const JobCosts& costs, const std::vector<StageWork>& stages,
               std::int64_t micro_batches) {
  StepGraph step;
  EXPECT_TRUE(write_step(job, costs, stages, micro_batches, true, step));
  EXPECT_TRUE(check(step.graph)) << check(step.graph).error().line();
  Replay r;
  replay(step.graph, r);
  Ns end = 0;
  for (const NodeId n : step.last) end = std::max(end, r.end[raw(n)]);
  return static_cast<double>(end);
}

TEST(Estimate, TheBubbleIsThatOfTheSchedule) {
  constexpr double kForward = 50e6, kBackward = 100e6;
  EstimateJob job = llama();
  job.framework = Framework::deepspeed;  // no wait of the host between passes
  for (const std::int64_t stages : {1, 2, 4, 8})
    for (const std::int64_t m : {1, 4, 16}) {
      job.pp = stages, job.chunks = 1;
      const double passes = static_cast<double>(m + stages - 1) * (kForward + kBackward);
      const double got = step_ns(job, only_passes(job), equal_stages(job, kForward, kBackward), m);
      EXPECT_NEAR(got, passes, 3e6) << stages << " stages, " << m << " micro-batches";  // the step's own host work
    }
  // Interleaved, v chunks: the bubble is 1 / v of it (Narayanan et al., SC 2021, section 2.2).
  job.pp = 4, job.chunks = 2, job.schedule = ScheduleKind::interleaved;
  const double interleaved = step_ns(job, only_passes(job), equal_stages(job, kForward, kBackward), 16);
  EXPECT_NEAR(interleaved, (16 + 3.0 / 2) * (kForward + kBackward), 3e6);
}

TEST(Estimate, MicroBatchesThatAreNotSimulatedAreAddedExactly) {
  for (const auto& [pp, chunks, zero] :
       std::vector<std::tuple<int, int, int>>{{1, 1, 0}, {4, 1, 1}, {8, 1, 0}, {4, 2, 1}}) {
    EstimateJob job = llama();
    job.pp = pp, job.chunks = chunks, job.zero = zero, job.dp = 2;
    job.schedule = chunks > 1 ? ScheduleKind::interleaved : ScheduleKind::one_f_one_b;
    job.num_microbatches = 64;
    const JobCosts costs = costs_of(job);
    const double whole = step_ns(job, costs, stages_of(job, costs), 64);
    EXPECT_NEAR(of(job).iteration_ns / whole, 1, 1e-3) << pp << " stages, " << chunks << " chunks";
  }
}

TEST(Estimate, OneGpuIsItsOperatorsOneAfterTheOther) {
  EstimateJob job = llama();
  job.micro_batch_size = 2;
  const JobCosts costs = costs_of(job);
  const auto stages = stages_of(job, costs);
  const Estimate e = of(job);
  const StageWork& s = stages.front();
  const double work = s.chunks[0].forward.stream_ns + s.chunks[0].backward.stream_ns + s.clear.stream_ns +
                      s.norm.stream_ns + s.optimizer.stream_ns;
  EXPECT_GT(e.iteration_ns, work);
  EXPECT_LT(e.iteration_ns, 1.02 * work);
  // 6 N tokens and the attention, head and 32 layers of the 7B shape, worked out by hand.
  const double tokens = 2 * 2048, n = 6'738'415'616.0 - 32'000.0 * 4096;
  EXPECT_NEAR(e.model_flops, tokens * (6 * n + 12.0 * 32 * 4096 * 2048), 1e6);
  // The products alone: each parameter of a product 6 times, the attention causal with its 2.5 backward.
  EXPECT_NEAR(e.hardware_flops / e.model_flops, 1, 0.06);
  // The classes are the whole step.
  const FourClasses& c = e.classes;
  EXPECT_NEAR(c.exposed_compute + c.overlapped + c.exposed_comm + c.other, e.iteration_ns, 1e3);
  EXPECT_EQ(c.exposed_comm, 0);
}

TEST(Estimate, MemoryOfZeroIsThatOfThePaper) {
  // Rajbhandari et al. 2020, figure 1: a 7.5B model on 64 ranks: 120, 31.4, 16.6 and 1.9 GB.
  EstimateJob job = llama();
  job.framework = Framework::deepspeed;
  job.dp = 64;
  job.num_microbatches = 2;  // gradients stay from one to the next
  job.recompute = Recompute::full;
  const double n = parameters(job.model);
  const auto state = [&](int zero) {
    job.zero = zero;
    const MemoryParts m = of(job).memory;
    return (m.weights + m.gradients + m.optimizer) * 1024 * 1024 * 1024;
  };
  EXPECT_NEAR(state(0), 16 * n, 1e-3 * n);
  EXPECT_NEAR(state(1), (4 + 12.0 / 64) * n, 1e-3 * n);
  EXPECT_NEAR(state(2), (2 + 14.0 / 64) * n, 1e-3 * n);
  EXPECT_NEAR(state(3), 16.0 / 64 * n, 1e-3 * n);
}

TEST(Estimate, WhatCostsMoreCostsMore) {
  EstimateJob job = llama();
  job.dp = 8, job.zero = 1, job.num_microbatches = 4;
  const double base = of(job).iteration_ns;
  const auto with = [&](auto change) {
    EstimateJob other = job;
    change(other);
    return of(other).iteration_ns / base;
  };
  EXPECT_GT(with([](EstimateJob& j) { j.seq_length = 4096; }), 1.9);
  EXPECT_GT(with([](EstimateJob& j) { j.recompute = Recompute::full; }), 1.2);
  EXPECT_LT(with([](EstimateJob& j) { j.recompute = Recompute::full; }), 1.4);
  EXPECT_GT(with([](EstimateJob& j) { j.attention = AttentionKind::unfused; }), 1.1);
  EXPECT_GT(with([](EstimateJob& j) { j.framework = Framework::deepspeed; }), 1.02);
  EXPECT_GT(with([](EstimateJob& j) { j.precision = Precision::fp32; }), 3);
  EXPECT_GE(with([](EstimateJob& j) { j.overlap_gradients = false; }), 1);
  EXPECT_GT(
      with([](EstimateJob& j) { j.offload = Offload::optimizer, j.zero = 2, j.framework = Framework::deepspeed; }),
      1.1);
  EXPECT_GT(with([](EstimateJob& j) { j.platform.nvlink_gb_per_s = 0, j.zero = 3, j.framework = Framework::fsdp; }),
            1.2);
}

TEST(Estimate, ImpossibleJobsSayWhichOption) {
  const auto refused = [](auto change) {
    EstimateJob job = llama();
    change(job);
    const auto ok = check(job);
    return ok ? std::string() : ok.error().line();
  };
  EXPECT_NE(refused([](EstimateJob& j) { j.tp = 3; }).find("--tp"), std::string::npos);
  EXPECT_NE(refused([](EstimateJob& j) { j.pp = 64; }).find("--pp"), std::string::npos);
  EXPECT_NE(refused([](EstimateJob& j) { j.ep = 2, j.dp = 2; }).find("no experts"), std::string::npos);
  EXPECT_NE(refused([](EstimateJob& j) { j.zero = 3, j.pp = 2; }).find("--zero"), std::string::npos);
  EXPECT_NE(refused([](EstimateJob& j) { j.pp = 2, j.chunks = 2, j.num_microbatches = 3; }).find("micro-batches"),
            std::string::npos);
  EXPECT_NE(refused([](EstimateJob& j) { j.sequence_parallel = true; }).find("--tp"), std::string::npos);
  EXPECT_NE(refused([](EstimateJob& j) { j.precision = Precision::fp8; }).find("no fp8"), std::string::npos);
  EXPECT_NE(refused([](EstimateJob& j) { j.method = Method::lora; }).find("finetune"), std::string::npos);
  EXPECT_NE(refused([](EstimateJob& j) { j.offload = Offload::all; }).find("--zero 3"), std::string::npos);
}

TEST(Estimate, TheLargestMicroBatchFitsAndTheNextDoesNot) {
  EstimateJob job = llama();
  job.dp = 8, job.zero = 3, job.framework = Framework::deepspeed;
  const JobCosts costs = costs_of(job);
  job.micro_batch_size = largest_micro_batch(job, costs);
  ASSERT_GE(job.micro_batch_size, 1);
  EXPECT_TRUE(of(job).fits);
  ++job.micro_batch_size;
  EXPECT_FALSE(of(job).fits);
}

TEST(Plan, RanksWhatFitsAndIsTheEstimate) {
  EstimateJob job = llama("llama-2-13b");
  PlanSpace space;
  space.gpus = 16, space.global_batch = 64;
  EstimateJob whole = job;
  whole.dp = space.gpus;
  const Plan p = plan(job, costs_of(whole), space);
  ASSERT_GT(p.evaluated, 50u);
  ASSERT_TRUE(p.candidates.front().fits);
  for (std::size_t k = 1; k < p.candidates.size(); ++k) {
    const PlanCandidate &a = p.candidates[k - 1], &b = p.candidates[k];
    EXPECT_GE(a.fits, b.fits);
    if (a.fits == b.fits) {
      EXPECT_LE(a.iteration_ns, b.iteration_ns);
    }
    EXPECT_EQ(b.job.world(), 16);
    EXPECT_EQ(b.job.global_batch(), 64);
  }
  const PlanCandidate& best = p.candidates.front();
  EXPECT_NEAR(of(best.job).iteration_ns, best.iteration_ns, 1);
}

double host_of_experts(const EstimateJob& job) {
  double ns = 0;
  for (const Operation& o : layer_work(job, costs_of(job), job.model.layers - 1).forward)
    if (o.part == Part::experts || o.part == Part::quantize) ns += o.host_ns;
  return ns;
}

// Quantised, every expert of a rank costs the host what a linear layer does; else a launch more.
TEST(Experts, HostLoopsOverQuantisedOnes) {
  EstimateJob job = llama("qwen3-30b-a3b", "dgx-h100");
  job.framework = Framework::megatron, job.precision = Precision::fp8, job.dp = 16, job.ep = 8;
  const double sixteen = host_of_experts(job);
  job.ep = 16;
  const double eight = host_of_experts(job);
  EXPECT_NEAR(sixteen / eight, 2, 0.1);
  job.precision = Precision::bf16;
  EXPECT_LT(host_of_experts(job), eight / 2);
}

// Megatron-LM adds an expert's bias to what it made of its tokens in fp32: 28 bytes an element of two, forward.
TEST(Experts, BiasesAreAddedInPassesOfTheirOwn) {
  EstimateJob job = llama("gpt-oss-120b", "dgx-h100");
  job.dp = job.ep = 8;
  const auto bytes = [&](Framework f) {
    job.framework = f;
    double sum = 0;
    for (const Operation& o : layer_work(job, costs_of(job), 0).forward)
      if (o.part == Part::experts) sum += o.bytes;
    return sum;
  };
  EXPECT_DOUBLE_EQ(bytes(Framework::megatron), 28.0 * 2048 * 4 * 2880);
  EXPECT_DOUBLE_EQ(bytes(Framework::deepspeed), 0);
}

// 47 billion parameters do not fit a GPU with all experts on it: plans must spread them.
TEST(Plan, SpreadsExperts) {
  EstimateJob job = llama("mixtral-8x7b");
  PlanSpace space;
  space.gpus = 16, space.global_batch = 64, space.max_tp = space.max_pp = 1;
  EstimateJob whole = job;
  whole.dp = space.gpus;
  const Plan p = plan(job, costs_of(whole), space);
  ASSERT_FALSE(p.candidates.empty());
  ASSERT_TRUE(p.candidates.front().fits);
  std::set<std::int64_t> tried;
  for (const PlanCandidate& c : p.candidates) {
    tried.insert(c.job.ep);
    EXPECT_EQ(job.model.experts % c.job.ep, 0);
  }
  EXPECT_GT(p.candidates.front().job.ep, 1);
  EXPECT_GT(tried.size(), 1u);
  space.vary_ep = false;
  for (const PlanCandidate& c : plan(job, costs_of(whole), space).candidates) EXPECT_EQ(c.job.ep, 1);
}

}  // namespace
}  // namespace orrery
