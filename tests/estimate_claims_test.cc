// What "Dissecting the Runtime Performance of the Training, Fine-tuning, and Inference of Large Language Models" (arXiv
// 2311.03687) found on three servers, against what is estimated for them. Rankings and ratios; the study's numbers are
// not at hand. Where the estimate says otherwise the test states what it says, and docs/model.md why.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "estimate/estimate.h"
#include "facts/library.h"

namespace orrery {
namespace {

const std::vector<std::string> kServers = {"a800-8x", "rtx4090-8x", "rtx3090-8x", "rtx3090-8x-nolink"};
const std::vector<std::string> kCards = {"rtx4090-8x", "rtx3090-8x", "rtx3090-8x-nolink"};
constexpr std::int64_t kLargest = 0;  // micro-batch

// The study's harness: DeepSpeed round a Hugging Face model, bf16, attention unfused unless F is on, 512 tokens.
EstimateJob study(const std::string& server, const std::string& model, int zero, std::int64_t batch) {
  EstimateJob job;
  job.model = *model_named_or_read(model);
  job.platform = *platform_named_or_read(server);
  job.framework = Framework::deepspeed;
  job.attention = AttentionKind::unfused;
  job.dp = 8;
  job.zero = zero;
  job.seq_length = 512;
  job.micro_batch_size = batch;
  return job;
}
EstimateJob tuned(EstimateJob job, Method method) {
  job.finetune = true;
  job.method = method;
  job.lora_rank = 64;
  if (method == Method::qlora) job.quantize = Quantize::nf4;
  return job;
}
struct Answer {
  Estimate e;
  double tokens_per_s = 0, gib = 0;
  std::int64_t batch = 0;
  double phase(StepPhase p) const { return e.phases[static_cast<std::size_t>(p)].gpu_ns; }
  double part(std::initializer_list<Part> parts) const {  // forward and backward
    double ns = 0;
    for (const auto& t : e.parts)
      for (const Part p : parts)
        if (t.part == p && (t.phase == StepPhase::forward || t.phase == StepPhase::backward)) ns += t.gpu_ns;
    return ns;
  }
  double passes() const { return phase(StepPhase::forward) + phase(StepPhase::backward); }
};
Answer of(EstimateJob job) {
  const JobCosts costs = costs_of(job);
  if (job.micro_batch_size == kLargest)
    job.micro_batch_size = std::max<std::int64_t>(1, largest_micro_batch(job, costs));
  EXPECT_TRUE(check(job)) << (check(job) ? "" : check(job).error().line());
  EstimateScratch scratch;
  Answer a;
  a.e = estimate(job, costs, scratch);
  a.tokens_per_s = static_cast<double>(job.global_batch() * job.seq_length) / (a.e.iteration_ns / 1e9);
  a.gib = a.e.memory.total;
  a.batch = job.micro_batch_size;
  return a;
}
// Of eight GPUs against eight times one; kLargest: each with what fills the memory of eight.
double scaling(const std::string& server, std::int64_t batch) {
  EstimateJob job = study(server, "llama-2-7b", 3, batch);
  job.recompute = Recompute::full;
  const Answer eight = of(job);
  job.micro_batch_size = eight.batch;
  job.dp = 1;
  return eight.tokens_per_s / 8 / of(job).tokens_per_s;
}

TEST(EstimateClaims, C01DataParallelScaling) {
  for (const std::int64_t batch : {std::int64_t{4}, std::int64_t{16}, kLargest})
    EXPECT_GT(scaling("a800-8x", batch), 0.95);  // near linear
  // The study's batch is not known, and the cards' scaling is that of their batch: transfers hide behind a large one.
  EXPECT_LT(scaling("rtx3090-8x", 4), 0.859);
  EXPECT_GT(scaling("rtx3090-8x", kLargest), 0.859);
  EXPECT_LT(scaling("rtx4090-8x", 16), 0.908);
  EXPECT_GT(scaling("rtx4090-8x", kLargest), 0.908);
}

TEST(EstimateClaims, C02NvlinkOnThe3090IsWorthATenth) {
  const auto gain = [](std::int64_t batch) {
    return scaling("rtx3090-8x", batch) / scaling("rtx3090-8x-nolink", batch);
  };
  EXPECT_GT(gain(8), 1.1);
  EXPECT_LT(gain(kLargest), 1.1);
  EXPECT_GE(gain(kLargest), 1);
}

TEST(EstimateClaims, C03Zero2SavesMemoryAtNoCost) {
  for (const std::string& server : kServers) {
    const Answer plain = of(study(server, "llama-2-7b", 0, 4)), two = of(study(server, "llama-2-7b", 2, 4));
    EXPECT_LT(two.gib, 0.6 * plain.gib) << server;
    EXPECT_GT(two.tokens_per_s, 0.95 * plain.tokens_per_s) << server;
  }
}

TEST(EstimateClaims, C04Zero3IsForLargeModels) {
  for (const std::string& server : kServers) {  // where ZeRO-2 fits, its gathers cost throughput
    const Answer two = of(study(server, "llama-2-7b", 2, 1)), three = of(study(server, "llama-2-7b", 3, 1));
    const bool nvlink = server == "a800-8x";  // hides most of them
    EXPECT_LT(three.tokens_per_s, (nvlink ? 0.97 : 0.8) * two.tokens_per_s) << server;
    EXPECT_LT(three.gib, two.gib) << server;
  }
  EstimateJob job = study("a800-8x", "llama-2-70b", 2, 1);
  job.offload = Offload::optimizer;
  EXPECT_FALSE(of(job).e.fits);
  job.zero = 3, job.offload = Offload::all;
  const Estimate sharded = of(job).e;
  EXPECT_LT(sharded.memory.total, sharded.capacity_gib);
  EXPECT_GT(sharded.host_memory_gib, sharded.host_capacity_gib);  // 16 bytes of 70 billion parameters in 512 GiB
  for (const std::string& server : kCards) {                      // 7B in 24 GB: with ZeRO-3 alone
    EXPECT_FALSE(of(study(server, "llama-2-7b", 2, 1)).e.fits) << server;
    EXPECT_TRUE(of(study(server, "llama-2-7b", 3, 1)).e.fits) << server;
  }
}

TEST(EstimateClaims, C05OffloadIsSlowAndIsWhatFits) {
  for (const char* model : {"llama-2-7b", "llama-2-13b"}) {
    EstimateJob job = study("a800-8x", model, 2, 1);
    const Answer on_gpu = of(job);
    job.offload = Offload::optimizer;
    const Answer off = of(job);
    EXPECT_GT(on_gpu.tokens_per_s, 2 * off.tokens_per_s) << model;
    EXPECT_LT(off.gib, 0.75 * on_gpu.gib) << model;
    EXPECT_EQ(off.e.binds, Binds::host) << model;  // Adam on its cores
  }
  for (const std::string& server : kCards) {
    EstimateJob job = study(server, "llama-2-13b", 3, 1);
    const Answer on_gpu = of(job);
    job.offload = Offload::all;
    const Answer off = of(job);
    EXPECT_FALSE(on_gpu.e.fits) << server;
    EXPECT_LT(off.e.memory.total, off.e.capacity_gib) << server;
    EXPECT_EQ(off.e.fits, server == "rtx4090-8x") << server;  // 194 GiB in 512 of the host; the 3090's have 128
    EXPECT_LT(off.tokens_per_s, 0.9 * on_gpu.tokens_per_s) << server;  // links bind already
  }
}

TEST(EstimateClaims, C06RecomputationForMemory) {
  EstimateJob job = study("a800-8x", "llama-2-7b", 2, 8);
  const Answer plain = of(job);
  job.recompute = Recompute::full;
  const Answer again = of(job);
  EXPECT_LT(again.gib, 0.6 * plain.gib);
  EXPECT_LT(again.tokens_per_s, 0.85 * plain.tokens_per_s);
  for (const std::string& server : kCards) {  // the larger batch pays for it where links or the memory are short
    job = study(server, "llama-2-7b", 3, kLargest);
    const Answer small = of(job);
    job.recompute = Recompute::full;
    const Answer large = of(job);
    EXPECT_GT(large.batch, 4 * small.batch) << server;
    EXPECT_GT(large.tokens_per_s, 2 * small.tokens_per_s) << server;
  }
}

TEST(EstimateClaims, C07FlashAttentionIsFasterAndSmaller) {
  for (const std::string& server : kServers)
    for (const int zero : {2, 3}) {
      EstimateJob job = study(server, "llama-2-7b", zero, 8);
      const Answer plain = of(job);
      job.attention = AttentionKind::flash;
      const Answer flash = of(job);
      EXPECT_GE(flash.tokens_per_s, plain.tokens_per_s) << server;
      EXPECT_LT(flash.gib, plain.gib) << server;
      EXPECT_LT(flash.passes(), plain.passes()) << server;
    }
}

TEST(EstimateClaims, C08QuantisedWeightsAreFasterAndSmaller) {
  for (const std::string& server : kServers) {
    EstimateJob job = study(server, "llama-2-7b", 2, 1);
    const Answer plain = of(job);
    job.quantize = Quantize::nf4;  // the layers do not learn any more, which is why
    const Answer small = of(job);
    EXPECT_GT(small.tokens_per_s, 1.5 * plain.tokens_per_s) << server;
    EXPECT_LT(small.e.memory.weights, 0.4 * plain.e.memory.weights) << server;
  }
}

TEST(EstimateClaims, C09DeepSpeedAboveMegatron) {
  for (const std::string& server : kServers) {
    EstimateJob speed = study(server, "llama-2-7b", server == "a800-8x" ? 2 : 3, kLargest);
    speed.attention = AttentionKind::flash;
    if (server != "a800-8x") speed.recompute = Recompute::full;
    EstimateJob megatron = speed;
    megatron.framework = Framework::megatron, megatron.zero = 0, megatron.recompute = Recompute::none;
    megatron.tp = 8, megatron.dp = 1;
    const Answer a = of(speed), b = of(megatron);
    EXPECT_GT(a.tokens_per_s, 1.1 * b.tokens_per_s) << server;
    speed.micro_batch_size = megatron.micro_batch_size = 2;
    if (server == "a800-8x") {
      EXPECT_LT(of(megatron).gib, of(speed).gib);
      EXPECT_GT(b.batch, a.batch);
    }
  }
}

TEST(EstimateClaims, C10LayersProductsMlp) {
  for (const std::string& server : kServers)
    for (const char* model : {"llama-2-7b", "llama-2-13b", "llama-2-70b"}) {
      const Answer a = of(study(server, model, 0, 4));
      const double rest = a.part({Part::embedding, Part::head, Part::loss});
      EXPECT_LT(rest, 0.15 * a.passes()) << server << model;
      const double mlp = a.part({Part::mlp_up, Part::activation, Part::mlp_down});
      const double attention =
          a.part({Part::qkv, Part::rotary, Part::scores, Part::softmax, Part::context, Part::projection});
      EXPECT_GT(mlp, attention) << server << model;
      const double products =
          a.part({Part::qkv, Part::scores, Part::context, Part::projection, Part::mlp_up, Part::mlp_down, Part::head});
      EXPECT_GT(products, 0.6 * a.passes()) << server << model;
    }
}

TEST(EstimateClaims, C11OptimizerAtSmallBatch) {
  // Of what the GPU does: the links of the cards take longer than all of it.
  for (const std::string& server : kServers) {
    const auto share = [&](std::int64_t batch) {
      const Answer a = of(study(server, "llama-2-7b", 0, batch));
      const double update = a.phase(StepPhase::optimizer);
      return update / (update + a.passes());
    };
    EXPECT_GT(share(2), server == "a800-8x" ? 0.33 : 0.25) << server;
    EXPECT_LT(share(32), 0.1) << server;
  }
}

TEST(EstimateClaims, C12BackwardIsTwoForwardsThreeWithRecomputation) {
  for (const std::string& server : kServers) {
    EstimateJob job = study(server, "llama-2-7b", 0, 8);
    const Answer plain = of(job);
    EXPECT_NEAR(plain.phase(StepPhase::backward) / plain.phase(StepPhase::forward), 2, 0.3) << server;
    job.recompute = Recompute::full;
    const Answer again = of(job);
    EXPECT_NEAR(again.phase(StepPhase::backward) / again.phase(StepPhase::forward), 3, 0.3) << server;
  }
}

TEST(EstimateClaims, C13LoraAgainstQlora) {
  for (const std::string& server : kServers) {
    const Answer lora = of(tuned(study(server, "llama-2-7b", 2, 1), Method::lora));
    const Answer qlora = of(tuned(study(server, "llama-2-7b", 2, 1), Method::qlora));
    EXPECT_NEAR(qlora.gib / lora.gib, 0.5, 0.1) << server;  // about half
    // The study has LoRA twice as fast. Widening the weights twice takes a tenth of a step here: one pass of memory.
    EXPECT_GT(lora.tokens_per_s / qlora.tokens_per_s, 1.05) << server;
    EXPECT_LT(lora.tokens_per_s / qlora.tokens_per_s, 1.3) << server;
  }
}

TEST(EstimateClaims, C14LargerModelsTuned) {
  // 0.8 of the speed where hosts bind (40 layers and 32), half of it where products do: the study's 0.7 is between.
  const auto slower = [](std::int64_t batch) {
    const auto lora = [&](const std::string& model) {
      return of(tuned(study("a800-8x", model, 3, batch), Method::lora)).tokens_per_s;
    };
    return lora("llama-2-13b") / lora("llama-2-7b");
  };
  EXPECT_NEAR(slower(1), 32.0 / 40, 0.05);
  EXPECT_LT(slower(8), 0.6);
  for (const std::string& server : kCards) {
    EstimateJob job = tuned(study(server, "llama-2-70b", 2, 1), Method::qlora);
    job.recompute = Recompute::full;
    EXPECT_FALSE(of(job).e.fits) << server;  // without ZeRO-3
    job.zero = 3;
    const Answer all = of(job);
    EXPECT_TRUE(all.e.fits) << server;
    EXPECT_GT(all.tokens_per_s, 100) << server;
    EXPECT_LT(all.tokens_per_s, 1000) << server;
    job.method = Method::lora, job.quantize = Quantize::none, job.recompute = Recompute::none;
    EXPECT_FALSE(of(job).e.fits) << server;
  }
}

}  // namespace
}  // namespace orrery
