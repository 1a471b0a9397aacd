// Fine-tuning: what is kept for each weight, and what each technique takes away or adds.
#include <gtest/gtest.h>

#include "estimate/estimate.h"
#include "estimate/job_memory.h"
#include "facts/library.h"

namespace orrery {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

EstimateJob one_gpu(Framework framework, const std::string& model = "llama-3.1-8b") {
  EstimateJob job;
  job.model = *model_named_or_read(model);
  job.platform = *platform_named_or_read("dgx-a100-80g");
  job.finetune = true;
  job.framework = framework;
  job.recompute = Recompute::full;
  job.micro_batch_size = 2;
  return job;
}
EstimateJob lora(Framework framework) {
  EstimateJob job = one_gpu(framework);
  job.method = Method::lora;
  return job;
}
Estimate of(const EstimateJob& job) {
  EXPECT_TRUE(check(job)) << (check(job) ? "" : check(job).error().line());
  EstimateScratch scratch;
  return estimate(job, costs_of(job), scratch);
}
double parameters_of(const EstimateJob& job) {
  double n = 0;
  for (const StageWork& s : stages_of(job, costs_of(job))) n += s.weights.all;
  return n;
}
std::string refused(const EstimateJob& job) {
  const Status s = check(job);
  return s ? "" : s.error().line();
}

TEST(EstimateFinetune, BytesOfAParameter) {
  EstimateJob job = one_gpu(Framework::fsdp);
  job.num_microbatches = 2;  // gradients stay
  const double n = parameters_of(job) / kGiB;
  EXPECT_NEAR(n * kGiB, 8.03e9, 0.01e9);
  Estimate e = of(job);  // fp32 weights, gradients and moments
  EXPECT_NEAR(e.memory.weights, 4 * n, 1e-6);
  EXPECT_NEAR(e.memory.gradients, 4 * n, 1e-6);
  EXPECT_NEAR(e.memory.optimizer, 8 * n, 1e-6);
  job.master_weights = false;  // all in bf16
  e = of(job);
  EXPECT_NEAR(e.memory.weights, 2 * n, 1e-6);
  EXPECT_NEAR(e.memory.gradients, 2 * n, 1e-6);
  EXPECT_NEAR(e.memory.optimizer, 4 * n, 1e-6);
  job.optimizer = Optimizer::lion;
  EXPECT_NEAR(of(job).memory.optimizer, 2 * n, 1e-6);
  job.optimizer = Optimizer::sgd;
  EXPECT_EQ(of(job).memory.optimizer, 0);
  job.optimizer = Optimizer::adamw8bit;  // two bytes and two fp32 scales a block of 256
  EXPECT_NEAR(of(job).memory.optimizer, (2 + 8.0 / 256) * n, 1e-6);
}

TEST(EstimateFinetune, DeepSpeedsUpdateHoldsTwentyTwoBytes) {
  // Weight 2, master copy and moments 12, gradient 2, flat 2 and as fp32 4.
  EstimateJob job = one_gpu(Framework::deepspeed, "qwen-1.8b");
  job.zero = 2, job.num_microbatches = 8, job.micro_batch_size = 1, job.seq_length = 256;
  const Estimate e = of(job);
  EXPECT_NEAR(e.memory.total - 0.5, 22 * 1.8368e9 / kGiB, 0.2);
  // On so many GPUs all but the weights is shared.
  EstimateJob many = job;
  many.dp = 8;
  EXPECT_LT(of(many).memory.total, e.memory.total / 2);
}

TEST(EstimateFinetune, GradientsThatGoAtOnce) {
  EstimateJob job = one_gpu(Framework::fsdp);
  job.master_weights = false, job.compile = true, job.chunked_loss = true;
  const Estimate plain = of(job);
  job.optimizer_in_backward = true;
  const Estimate hooked = of(job);
  EXPECT_LT(hooked.memory.total, plain.memory.total - 8);  // of 15 GiB
  EXPECT_NEAR(hooked.iteration_ns / plain.iteration_ns, 1, 0.05);
  job.num_microbatches = 2;
  EXPECT_NE(refused(job).find("--optimizer-in-backward"), std::string::npos);
}

TEST(EstimateFinetune, PagedMomentsTravelWhereTheyDoNotFit) {
  EstimateJob job = one_gpu(Framework::fsdp);
  job.master_weights = false, job.compile = true, job.chunked_loss = true, job.optimizer_in_backward = true;
  job.optimizer = Optimizer::adamw8bit;
  const Estimate fixed = of(job);
  job.optimizer = Optimizer::paged_adamw8bit;
  const Estimate paged = of(job);
  EXPECT_EQ(paged.memory.optimizer, 0);
  EXPECT_NEAR(paged.iteration_ns, fixed.iteration_ns, 1e-3 * fixed.iteration_ns);  // 80 GB hold them
  job.platform = *platform_named_or_read("rtx4090-1x");
  const Estimate small = of(job);
  EXPECT_TRUE(small.fits);
  EXPECT_GT(small.classes.memory, 16e9 / 32e9 * 1e9);  // 16 GB over a link of 32 GB/s at most
  job.optimizer = Optimizer::adamw8bit;
  EXPECT_FALSE(of(job).fits);
  EXPECT_GT(small.iteration_ns, of(job).iteration_ns);
}

TEST(EstimateFinetune, ChunkedLossHoldsNoSecondCopy) {
  EstimateJob job = lora(Framework::fsdp);
  job.compile = true;
  const double logits = 2.0 * 2048 * 128'256;
  const double whole = of(job).allocated_gib;
  job.chunked_loss = true;
  // fp32, its gradient and that in two bytes against two bytes and an eighth of all three.
  EXPECT_NEAR((whole - of(job).allocated_gib) * kGiB, logits * (10 - 2 - 10.0 / 8), 0.02 * kGiB);
}

TEST(EstimateFinetune, OffloadedActivationsCostCopies) {
  EstimateJob job = lora(Framework::fsdp);
  job.compile = true, job.chunked_loss = true;
  const Estimate kept = of(job);
  job.offload_activations = true;
  const Estimate away = of(job);
  const double inputs = 32.0 * 2 * 2048 * 4096 * 2 / kGiB;
  EXPECT_LT(away.memory.total, kept.memory.total);
  EXPECT_GT(away.memory.total, kept.memory.total - inputs - 0.01);
  EXPECT_GT(away.classes.memory, 0);
  job.framework = Framework::megatron, job.chunked_loss = false;
  EXPECT_NE(refused(job).find("--offload-activations"), std::string::npos);
}

TEST(EstimateFinetune, WhatIsFrozenHasNoGradients) {
  const EstimateJob job = lora(Framework::ddp);
  const Estimate e = of(job);
  const double adapters = stages_of(job, costs_of(job))[0].weights.learn / kGiB;
  EXPECT_LT(adapters * kGiB, 0.05e9);
  EXPECT_NEAR(e.memory.weights, (2 * (parameters_of(job) / kGiB - adapters) + 4 * adapters), 1e-6);
  EXPECT_LE(e.memory.gradients, 4 * adapters + 1e-9);
  EXPECT_NEAR(e.memory.optimizer, 8 * adapters, 1e-6);

  EstimateJob more = job;  // copies of embedding and head in two bytes, moments, too
  more.lora_embeddings = true;
  const double tables = 2.0 * 128'256 * 4096 / kGiB;
  EXPECT_NEAR(of(more).memory.weights - e.memory.weights, 2 * tables, 0.01);
  EXPECT_NEAR(of(more).memory.optimizer - e.memory.optimizer, 4 * tables, 0.01);
  more.method = Method::full;
  EXPECT_NE(refused(more).find("--lora-embeddings"), std::string::npos);
}

TEST(EstimateFinetune, PromptsNeedAllActivationsAndNothingElse) {
  EstimateJob prompt = one_gpu(Framework::deepspeed);
  prompt.method = Method::prompt, prompt.recompute = Recompute::none;
  EstimateJob full = prompt;
  full.method = Method::full;
  const StageWork stage = stages_of(prompt, costs_of(prompt))[0];
  EXPECT_EQ(stage.weights.learn, 32.0 * 4096);  // one row a token
  const Estimate p = of(prompt), f = of(full);
  EXPECT_LT(p.memory.optimizer, 0.01);
  EXPECT_GE(p.memory.activations, f.memory.activations);  // through all layers, of 32 more tokens
  // Both of the activations' products, none of the weights'.
  EXPECT_NEAR(p.phases[1].gpu_ns / p.phases[0].gpu_ns, 1.1, 0.25);
  EXPECT_GT(f.phases[1].gpu_ns / f.phases[0].gpu_ns, 1.7);
}

TEST(EstimateFinetune, GptqWidensForwardAndKeepsForBackward) {
  EstimateJob job = lora(Framework::deepspeed);
  job.method = Method::qlora, job.quantize = Quantize::nf4, job.zero = 2, job.seq_length = 256;
  const auto widening = [](const Estimate& e, StepPhase phase) {
    double ns = 0;
    for (const auto& t : e.parts)
      if (t.part == Part::dequantize && t.phase == phase) ns += t.gpu_ns;
    return ns;
  };
  const Estimate nf4 = of(job);
  // Forward; again, and for the gradients.
  EXPECT_NEAR(widening(nf4, StepPhase::backward), 2 * widening(nf4, StepPhase::forward), 1);
  job.quantize = Quantize::gptq;
  const Estimate gptq = of(job);
  EXPECT_NEAR(widening(gptq, StepPhase::backward), widening(gptq, StepPhase::forward), 1);
  EXPECT_GT(widening(gptq, StepPhase::forward), 4 * widening(nf4, StepPhase::forward));
  // A layer's weights in two bytes: 218 million.
  EXPECT_NEAR(gptq.memory.workspace - nf4.memory.workspace, 2 * 218e6 / kGiB, 0.02);
}

TEST(EstimateFinetune, CombinationsThatCannotBe) {
  EstimateJob job = one_gpu(Framework::ddp);
  job.zero = 2;
  EXPECT_NE(refused(job).find("--zero"), std::string::npos);
  job = one_gpu(Framework::deepspeed);
  job.master_weights = false;
  EXPECT_NE(refused(job).find("--master-weights"), std::string::npos);
  job = one_gpu(Framework::fsdp);
  job.optimizer = Optimizer::paged_adamw8bit, job.zero = 3, job.offload = Offload::all;
  EXPECT_NE(refused(job).find("--optimizer"), std::string::npos);
  job = one_gpu(Framework::megatron);
  job.fp32_loss = false;
  EXPECT_NE(refused(job).find("--fp32-loss"), std::string::npos);
}

TEST(EstimateFinetune, PairsByNvlinkAreNotAServer) {
  EstimateJob job = one_gpu(Framework::deepspeed, "llama-2-7b");
  job.dp = 8, job.zero = 2;
  const auto time = [&](const char* platform) {
    job.platform = *platform_named_or_read(platform);
    return of(job).iteration_ns;
  };
  const double pairs = time("rtx3090-8x"), none = time("rtx3090-8x-nolink");
  EXPECT_LT(pairs, none);
  EXPECT_GT(pairs, none / 2);  // every second hop still goes through the host
}

}  // namespace
}  // namespace orrery
