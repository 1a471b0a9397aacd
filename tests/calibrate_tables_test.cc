// Estimates of jobs on a CPU: tables chosen, steps fitted to, and what a CPU does not have.
#include "estimate/calibrate_tables.h"

#include <gtest/gtest.h>

#include <cmath>

#include "facts/library.h"
#include "serving/job.h"

namespace orrery {
namespace {

PlatformFacts made_platform(int threads = 1, std::int64_t processes = 2) {
  PlatformFacts p;
  p.name = "made";
  p.gpu.name = "made CPU", p.gpu.arch = "CPU", p.gpu.sms = threads;
  p.gpu.fp32_tflops = 0.1, p.gpu.bf16_tflops = 0.2;
  p.gpu.memory_gb_per_s = 20, p.gpu.memory_gib = 16;
  p.gpus_per_node = processes, p.nvlink_domain = 1;
  p.pcie_gb_per_s = 10;
  return p;
}
EstimateJob small_llama(std::int64_t batch, std::int64_t length, std::int64_t processes = 1) {
  EstimateJob job;
  ModelFacts& m = job.model;
  m.name = "small";
  m.layers = 4, m.hidden = 256, m.ffn = 688, m.heads = m.kv_heads = 8, m.head_dim = 32, m.vocab = 4'000;
  job.platform = made_platform();
  job.framework = Framework::ddp;
  job.precision = Precision::fp32;
  job.attention = AttentionKind::unfused;
  job.micro_batch_size = batch, job.seq_length = length, job.dp = processes;
  EXPECT_TRUE(check(job));
  return job;
}
double step_of(const EstimateJob& job, const JobCosts& costs) {
  EstimateScratch scratch;
  return estimate(job, costs, scratch).iteration_ns;
}

OperatorTable table_of(double rate, std::int64_t ranks, std::int64_t threads = 1) {
  OperatorTable t;
  t.machine = "made CPU";
  for (const double m : {64.0, 256.0, 1'024.0})
    for (const double n : {64.0, 256.0, 1'024.0})
      for (const double k : {64.0, 256.0, 1'024.0}) {
        OperatorRow r;
        r.size = {1, m, n, k}, r.ranks = ranks, r.threads = threads;
        r.flops = 2 * m * n * k, r.ns = 200 + r.flops / rate, r.spread = 0.01;
        t.rows.push_back(r);
      }
  return t;
}

TEST(CpuEstimate, WhatIssuesAlsoComputes) {
  const EstimateJob job = small_llama(2, 128);
  JobCosts costs = costs_of(job);
  EXPECT_TRUE(costs.serial);
  EXPECT_EQ(costs.launch_ns, 0);
  EstimateScratch scratch;
  const Estimate e = estimate(job, costs, scratch);
  // No launch latency and no idle device: all but the step's own host work is on the one lane.
  EXPECT_GE(e.classes.other, costs.step_ns);
  EXPECT_LT(e.classes.other, costs.step_ns + 30'000);  // and the look at the gradients' norm
  EXPECT_NEAR(e.classes.exposed_compute + e.classes.other, e.iteration_ns, 1);
  // Dispatch adds to the step, operator by operator.
  costs.operator_ns += 10'000;
  const double more = step_of(job, costs) - e.iteration_ns;
  EXPECT_GT(more, 10'000 * 100);
  costs.operator_ns += 10'000;
  EXPECT_NEAR(step_of(job, costs) - e.iteration_ns, 2 * more, 1e-6 * more);
}

// What PyTorch does on a CPU without bf16 instructions: its own loops, slower than fp32 and hardly known beforehand.
TEST(CpuEstimate, SixteenBitsWithoutAUnitAreEmulated) {
  EstimateJob job = small_llama(2, 128);
  const double fp32 = step_of(job, costs_of(job));
  const auto doubt = [](const EstimateJob& j) {
    EstimateScratch scratch;
    return estimate(j, costs_of(j), scratch).relative_error;
  };
  const double fp32_doubt = doubt(job);
  for (const Precision p : {Precision::bf16, Precision::fp16}) {
    job.precision = p;
    job.platform.gpu.bf16_tflops = job.platform.gpu.fp16_tflops = 0.2;
    EXPECT_FALSE(costs_of(job).emulated);
    EXPECT_LT(step_of(job, costs_of(job)), fp32);
    job.platform.gpu.bf16_tflops = job.platform.gpu.fp16_tflops = 0;
    ASSERT_TRUE(check(job)) << check(job).error().line();
    EXPECT_TRUE(costs_of(job).emulated);
    EXPECT_GT(step_of(job, costs_of(job)), 3 * fp32);
    EXPECT_GT(doubt(job), 3 * fp32_doubt);
  }
  job.platform.gpu.arch = "volta";
  job.precision = Precision::bf16;
  EXPECT_FALSE(check(job)) << "of GPUs nothing is known";
  ServeJob serve;
  serve.model = job.model, serve.platform = made_platform();
  EXPECT_TRUE(check(serve)) << check(serve).error().line();
  serve.platform.gpu.bf16_tflops = 0;
  EXPECT_FALSE(check(serve));
  serve.precision = Precision::fp32;
  EXPECT_TRUE(check(serve)) << check(serve).error().line();
}

TEST(CpuEstimate, MemoryIsThatOfAProcess) {
  const EstimateJob job = small_llama(2, 128);
  EstimateScratch scratch;
  const Estimate e = estimate(job, costs_of(job), scratch);
  const double weights = parameters(job.model) * 4 / (1 << 30);
  EXPECT_NEAR(e.memory.weights, weights, 0.01 * weights);
  EXPECT_NEAR(e.memory.optimizer, 2 * weights, 0.02 * weights);
  EXPECT_LT(e.memory.total, 4 * weights + 0.25 + 0.2);  // no CUDA context, no cuBLAS, no NCCL
  EstimateJob two = job;
  two.dp = 2;
  EXPECT_NEAR(estimate(two, costs_of(two), scratch).memory.total, e.memory.total, 1e-3);
}

TEST(TableCalibration, RowsOfAsManyRanksAsShareTheMachine) {
  TableCalibration tables;
  ASSERT_TRUE(tables.add(table_of(90, 1), "one.csv"));
  ASSERT_TRUE(tables.add(table_of(45, 2), "two.csv"));
  const auto rate = [&](std::int64_t processes, std::string& assumed) {
    const EstimateJob job = small_llama(1, 64, processes);
    JobCosts costs = costs_of(job);
    const auto applied = tables.apply(job, costs);
    EXPECT_TRUE(applied) << applied.error().line();
    assumed = applied->assumed;
    GemmWork w;
    w.m = 256, w.n = 1'024, w.k = 256, w.precision = Precision::fp32;
    return 2 * 256 * 1'024 * 256 / costs.operators.gemm(w).ns;
  };
  std::string assumed;
  EXPECT_NEAR(rate(1, assumed), 90, 3);
  EXPECT_EQ(assumed, "");
  EXPECT_NEAR(rate(2, assumed), 45, 2);
  EXPECT_EQ(assumed, "");
  TableCalibration one;
  ASSERT_TRUE(one.add(table_of(90, 1), "one.csv"));
  const EstimateJob two = small_llama(1, 64, 2);
  JobCosts costs = costs_of(two);
  const auto applied = one.apply(two, costs);
  ASSERT_TRUE(applied);
  EXPECT_NE(applied->assumed.find("measured in 1 process at once, 2 share"), std::string::npos) << applied->assumed;
  ASSERT_FALSE(applied->facts.empty());
  EXPECT_EQ(applied->facts[0].fact, "matrix products, fp32");
  EXPECT_EQ(applied->facts[0].events, 27u);
  EXPECT_NEAR(applied->facts[0].after, 0.09, 0.005);
}

TEST(TableCalibration, AnotherDeviceIsRefused) {
  TableCalibration tables;
  ASSERT_TRUE(tables.add(table_of(90, 1, 4), "four.csv"));
  EstimateJob job = small_llama(1, 64);
  JobCosts costs = costs_of(job);
  auto applied = tables.apply(job, costs);
  ASSERT_FALSE(applied);
  EXPECT_NE(applied.error().line().find("four.csv: the table is of 4 threads, the platform's processes have 1"),
            std::string::npos)
      << applied.error().line();
  job.platform = *platform_named_or_read("dgx-h100");
  costs = costs_of(job);
  applied = tables.apply(job, costs);
  ASSERT_FALSE(applied);
  EXPECT_NE(applied.error().line().find("of a CPU"), std::string::npos);
  OperatorTable a100;
  a100.device = "cuda", a100.machine = "NVIDIA A100-SXM4-80GB";
  a100.rows.push_back(table_of(90, 1).rows[0]);
  EXPECT_FALSE(tables.add(a100, "a100.csv"));  // beside a CPU's
  TableCalibration gpu;
  ASSERT_TRUE(gpu.add(a100, "a100.csv"));
  applied = gpu.apply(job, costs);
  ASSERT_FALSE(applied);
  EXPECT_NE(applied.error().line().find("A100"), std::string::npos);
}

// Jobs whose steps a hidden set of factors makes: three of them tell what the others take.
TEST(FitSteps, ThreeStepsTellTheOthers) {
  StepFactors hidden;
  hidden.gemm = 1.25, hidden.memory = 1.8, hidden.optimizer = 0.7, hidden.dispatch = 2, hidden.network = 4;
  std::vector<CalibrationStep> samples;
  std::vector<JobCosts> costs;
  for (const std::int64_t processes : {1, 2})
    for (const std::int64_t batch : {1, 4})
      for (const std::int64_t length : {64, 256})
        for (const bool recomputes : {false, true}) {
          CalibrationStep s;
          s.job = small_llama(batch, length, processes);
          if (recomputes) s.job.recompute = Recompute::full;
          costs.push_back(costs_of(s.job));
          JobCosts slow = costs.back();
          hidden.apply(slow);
          s.ns = step_of(s.job, slow);
          s.held_out = samples.size() != 0 && samples.size() != 7 && samples.size() != 12;
          samples.push_back(s);
        }
  const auto f = fit_steps(samples, costs);
  ASSERT_TRUE(f) << f.error().line();
  double off = 0, before = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    JobCosts now = costs[i];
    f->apply(now);
    const double error = std::abs(step_of(samples[i].job, now) / samples[i].ns - 1);
    if (!samples[i].held_out) {
      EXPECT_LT(error, 0.05);
    }
    off += error, before += std::abs(step_of(samples[i].job, costs[i]) / samples[i].ns - 1);
  }
  EXPECT_LT(off / static_cast<double>(samples.size()), 0.08);
  EXPECT_GT(before / static_cast<double>(samples.size()), 0.2);
}

// Loops that are slow by how operands lie: recomputation repeats the forward pass, adapters leave out the weights'
// gradients, so that what fits one kind of step is wrong for the others unless layouts are told apart.
TEST(FitSteps, EmulatedProductsByLayout) {
  StepFactors hidden;
  hidden.emulated = {2, 0.5, 1.5}, hidden.knows_emulated = true;
  std::vector<CalibrationStep> samples;
  std::vector<JobCosts> costs;
  for (const std::int64_t batch : {2, 4})
    for (const bool recomputes : {false, true})
      for (const Method method : {Method::full, Method::lora}) {
        CalibrationStep s;
        s.job = small_llama(batch, 128);
        s.job.platform.gpu.bf16_tflops = 0;
        s.job.precision = Precision::bf16;
        s.job.method = method, s.job.finetune = true;
        if (recomputes) s.job.recompute = Recompute::full;
        costs.push_back(costs_of(s.job));
        JobCosts slow = costs.back();
        hidden.apply(slow);
        s.ns = step_of(s.job, slow);
        s.held_out = samples.size() > 2;
        samples.push_back(s);
      }
  const auto f = fit_steps(samples, costs);
  ASSERT_TRUE(f) << f.error().line();
  EXPECT_GT(f->emulated[0], 1.4);
  EXPECT_LT(f->emulated[1], 0.7);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    JobCosts now = costs[i];
    f->apply(now);
    EXPECT_NEAR(step_of(samples[i].job, now) / samples[i].ns, 1, 0.05) << i;
  }
  // Of other precisions those factors say nothing.
  EstimateJob fp32 = small_llama(2, 128);
  StepFactors alone;
  alone.emulated = f->emulated, alone.knows_emulated = true;
  JobCosts now = costs_of(fp32);
  alone.apply(now);
  EXPECT_EQ(step_of(fp32, now), step_of(fp32, costs_of(fp32)));
}

TEST(FitSteps, StepsThatAreAsTheLawsSayMoveNothing) {
  CalibrationStep s;
  s.job = small_llama(2, 128);
  const JobCosts costs = costs_of(s.job);
  s.ns = step_of(s.job, costs);
  const auto f = fit_steps({s}, {costs});
  ASSERT_TRUE(f);
  for (const double x : {f->gemm, f->memory, f->optimizer, f->dispatch}) EXPECT_NEAR(x, 1, 1e-6);
  EXPECT_EQ(f->network, 1);  // one process: nothing tells
  s.held_out = true;
  EXPECT_FALSE(fit_steps({s}, {costs}));
}

}  // namespace
}  // namespace orrery
