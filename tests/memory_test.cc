// Memory of a GPU against the papers' formulas and against sums done by hand.
#include "costs/memory.h"

#include <gtest/gtest.h>

#include "whatif/measured_memory.h"

namespace orrery {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

MemoryJob gpt(double layers, double hidden, double heads, double pp, double micro_batches) {
  MemoryJob j;
  j.dims.seq = 2048;
  j.dims.mbs = 1;
  j.dims.hidden = hidden;
  j.dims.heads = heads;
  j.dims.vocab = 51'200;
  j.dims.tp = 8;
  j.layers = layers;
  j.positions = 2048;
  j.pp = pp;
  j.micro_batches = micro_batches;
  return j;
}

// Narayanan et al., SC 2021, Table 1: 12 l h^2 (1 + 13 / (12 h) + (V + s) / (12 l h)).
TEST(Memory, ParametersOfMegatron) {
  EXPECT_NEAR(parameters(gpt(24, 2304, 24, 1, 1)) / 1e9, 1.65, 0.05);
  EXPECT_NEAR(parameters(gpt(96, 16'384, 128, 8, 1)) / 1e9, 310.1, 0.1);
  EXPECT_NEAR(parameters(gpt(128, 25'600, 160, 64, 1)) / 1e9, 1008, 0.1);
  // To the last one: layer 12 h^2 + 13 h, embeddings and final norm.
  const double h = 4096;
  EXPECT_DOUBLE_EQ(parameters(gpt(36, h, 32, 4, 1)), 36 * (12 * h * h + 13 * h) + (51'200 + 2048) * h + 2 * h);
}

TEST(Memory, ParametersOfGatedModelsWithGroupedQueries) {  // Llama 2 7B, Llama 3 70B, Qwen 2.5 0.5B (tied)
  MemoryJob j;
  j.gated_mlp = true;
  j.biases = j.tied_embedding = false;
  j.layers = 32;
  j.dims = {.hidden = 4096, .ffn = 11'008, .heads = 32, .vocab = 32'000};
  EXPECT_DOUBLE_EQ(parameters(j), 6'738'415'616);
  j.layers = 80;
  j.dims = {.hidden = 8192, .ffn = 28'672, .heads = 64, .kv_heads = 8, .vocab = 128'256};
  EXPECT_DOUBLE_EQ(parameters(j), 70'553'706'496);
  j.layers = 24;
  j.tied_embedding = true;
  j.dims = {.hidden = 896, .ffn = 4864, .heads = 14, .kv_heads = 2, .head_dim = 64, .vocab = 151'936};
  EXPECT_NEAR(parameters(j) / 1e9, 0.494, 0.001);
}

TEST(Memory, ParametersOfStages) {
  MemoryJob j = gpt(8, 1024, 16, 4, 8);
  j.dims.tp = 1;
  const double layers = 2 * (12.0 * 1024 * 1024 + 13 * 1024), embedding = 51'200.0 * 1024;
  EXPECT_DOUBLE_EQ(parameters(j, 0), layers + embedding + 2048 * 1024);
  EXPECT_DOUBLE_EQ(parameters(j, 1), layers);
  EXPECT_DOUBLE_EQ(parameters(j, 3), layers + embedding + 2 * 1024);  // its copy of the tied embedding
  // Tensor parallelism leaves norms and the biases of outputs whole: 6 h of a layer.
  j.dims.tp = 2;
  EXPECT_DOUBLE_EQ(parameters(j, 1), (layers - 2 * 6 * 1024) / 2 + 2 * 6 * 1024);
}

// Korthikanti et al. 2022: bytes of a layer, without what belongs to no layer (told by the difference of two depths).
double layer_gib(MemoryJob j) {
  const double one = memory_of_stage(j, 0).activations;
  j.layers *= 2;
  return memory_of_stage(j, 0).activations - one;
}
TEST(Memory, ActivationsOfALayer) {
  MemoryJob j = gpt(1, 12'288, 96, 1, 1);
  const double sbh = 2048.0 * 12'288, squares = 5.0 * 96 * 2048 / 12'288, t = 8;
  EXPECT_NEAR(layer_gib(j) * kGiB, sbh * (10 + 24 / t + squares / t), 1);  // equation 2
  j.recompute = Recompute::selective;
  EXPECT_NEAR(layer_gib(j) * kGiB, sbh * (10 + 24 / t), 1);
  j.dims.sequence_parallel = true;
  EXPECT_NEAR(layer_gib(j) * kGiB, sbh * 34 / t, 1);  // equation 6
  j.recompute = Recompute::none;
  EXPECT_NEAR(layer_gib(j) * kGiB, sbh * (34 + squares * 1) / t, 1);  // equation 4
  j.recompute = Recompute::full;
  EXPECT_NEAR(layer_gib(j) * kGiB, sbh * 2 / t, 1);
  j.dims.sequence_parallel = false;
  EXPECT_NEAR(layer_gib(j) * kGiB, sbh * 2, 1);
  j.dims.tp = 1;
  j.recompute = Recompute::none;
  EXPECT_NEAR(layer_gib(j) * kGiB, sbh * (34 + squares), 1);  // equation 1
  j.flash_attention = true;                                   // instead of squares a float of each head and query
  EXPECT_NEAR(layer_gib(j) * kGiB, sbh * 34 + 4.0 * 96 * 2048, 1);
  j.dropout = false;
  EXPECT_NEAR(layer_gib(j) * kGiB, sbh * 32 + 4.0 * 96 * 2048, 1);
}

TEST(Memory, ActivationsOfALlamaLayer) {  // gated, a quarter of the heads for keys and values, flash attention
  MemoryJob j = gpt(1, 4096, 32, 1, 1);
  j.dims.tp = 1;
  j.dims.ffn = 14'336;
  j.dims.kv_heads = 8;
  j.gated_mlp = j.flash_attention = true;
  j.dropout = false;
  // Norm inputs and outputs 4 h, Q and projection input 2 h, K and V h / 2, gate, up and their product.
  EXPECT_NEAR(layer_gib(j) * kGiB, 2048 * (2 * (6.5 * 4096 + 3 * 14'336) + 4 * 32), 1);
}

TEST(Memory, MicroBatchesHeld) {
  MemoryJob j = gpt(16, 1024, 16, 8, 64);
  EXPECT_EQ(micro_batches_held(j, 0), 8);
  EXPECT_EQ(micro_batches_held(j, 7), 1);
  j.chunks = 2;
  EXPECT_DOUBLE_EQ(micro_batches_held(j, 0), 8 * (1 + 7.0 / 16));  // section 4.2.3
  j.micro_batches = 8;                                             // all forwards first
  EXPECT_EQ(micro_batches_held(j, 7), 8);
  j.chunks = 1;
  j.micro_batches = 3;
  EXPECT_EQ(micro_batches_held(j, 0), 3);
}

// The paper's figures 1 and 7, 22 billion and 1 trillion parameters: GiB of a GPU, and relative to no technique.
TEST(Memory, PublishedFigures) {
  MemoryJob small = gpt(48, 6144, 64, 1, 1), large = gpt(128, 25'600, 160, 64, 512);
  small.dims.mbs = 4;
  // 18 bytes a parameter; embeddings are not in the figure.
  const MemoryParts all = memory_of_job(small);
  EXPECT_NEAR(all.weights + all.gradients + all.optimizer, 45.56, 0.03 * 45.56);
  EXPECT_NEAR(all.activations, 59.25, 0.01 * 59.25);
  const double none = memory_of_stage(large, 0).activations;
  EXPECT_NEAR(none, 131.25, 0.03 * 131.25);
  for (MemoryJob* j : {&small, &large}) {
    j->dims.sequence_parallel = true;
    j->recompute = Recompute::selective;
  }
  EXPECT_NEAR(memory_of_stage(small, 0).activations, 9.5625, 0.03 * 9.5625);
  EXPECT_NEAR(memory_of_stage(large, 0).activations / none, 0.2027, 0.005);
}

TEST(Memory, StatesAndTheirShares) {
  MemoryJob j = gpt(8, 1024, 16, 1, 1);
  j.dims.dp = 4;
  const MemoryParts whole = memory_of_job(j);
  EXPECT_DOUBLE_EQ(whole.weights * kGiB, 2 * parameters(j, 0));
  EXPECT_DOUBLE_EQ(whole.gradients * kGiB, 4 * parameters(j, 0));
  EXPECT_DOUBLE_EQ(whole.optimizer * kGiB, 12 * parameters(j, 0));
  EXPECT_DOUBLE_EQ(whole.total,
                   whole.weights + whole.gradients + whole.optimizer + whole.activations + whole.workspace);
  j.distributed_optimizer = true;
  EXPECT_DOUBLE_EQ(memory_of_job(j).optimizer, whole.optimizer / 4);
  EXPECT_EQ(memory_of_job(j).gradients, whole.gradients);
}

TEST(Memory, TheFullestStageCounts) {
  MemoryJob j = gpt(16, 4096, 32, 4, 16);
  EXPECT_EQ(memory_of_job(j).total, memory_of_stage(j, 0).total);
  // A large vocabulary with few activations: the logits of the last stage.
  j.recompute = Recompute::full;
  j.dims.vocab = 512'000;
  EXPECT_EQ(memory_of_job(j).total, memory_of_stage(j, 3).total);
  // A layer that is recomputed is there while its backward pass runs.
  MemoryJob kept = j;
  kept.recompute = Recompute::none;
  EXPECT_GT(memory_of_stage(j, 1).workspace, memory_of_stage(kept, 1).workspace);
  EXPECT_LT(memory_of_stage(j, 1).total, memory_of_stage(kept, 1).total);
}

TEST(Memory, WeightPassesHoldWhatTheyNeed) {
  MemoryJob j = gpt(16, 4096, 32, 4, 16);
  MemoryJob split = j;
  split.zero_bubble = true;
  EXPECT_EQ(memory_of_stage(split, 0).activations, memory_of_stage(j, 0).activations);
  EXPECT_GT(memory_of_stage(split, 3).activations, memory_of_stage(j, 3).activations);
  EXPECT_EQ(memory_of_job(split).total, memory_of_job(j).total);  // "the peak memory of 1F1B"
}

// ---- what traces tell ----

void event(RankTrace& t, std::int32_t type, std::int32_t device, double bytes, double total, double reserved) {
  MemoryTable& m = t.memory;
  m.ts.push_back(0);
  m.lane.push_back(LaneId{0});
  m.bytes.push_back(static_cast<std::int64_t>(bytes * kGiB));
  m.total_allocated.push_back(total < 0 ? -1 : static_cast<std::int64_t>(total * kGiB));
  m.total_reserved.push_back(reserved < 0 ? -1 : static_cast<std::int64_t>(reserved * kGiB));
  m.device_type.push_back(type);
  m.device.push_back(device);
}

TEST(MeasuredMemory, PeakOfTheGpu) {
  RankTrace t;
  EXPECT_EQ(peak_allocated_gib(t), 0);
  event(t, 0, -1, 1, 64, -1);  // of the CPU
  EXPECT_EQ(peak_allocated_gib(t), 0);
  event(t, 1, 0, 2, 12, 20);
  event(t, 1, 0, -6, 10, 20);  // 16 before it
  event(t, 1, 0, -1, 9, 18);
  event(t, 1, 1, 1, 11, 30);  // another GPU, with less
  event(t, 1, 0, 5, -1, -1);  // without totals
  const MeasuredMemory m = measured_memory(t);
  EXPECT_EQ(m.peak_allocated, 16);
  EXPECT_EQ(m.least_allocated, 9);
  EXPECT_EQ(m.peak_reserved, 20);
}

TEST(MeasuredMemory, ScalesActivationsAlone) {
  const MemoryParts modelled{.weights = 2, .gradients = 3, .activations = 5, .workspace = 1, .total = 11};
  EXPECT_DOUBLE_EQ(activation_scale({.peak_allocated = 16, .least_allocated = 9}, modelled), 1.4);
  EXPECT_EQ(activation_scale({}, modelled), 1);
  EXPECT_EQ(activation_scale({.peak_allocated = 90, .least_allocated = 9}, modelled), 1);  // no measure of these
  EXPECT_EQ(activation_scale({.peak_allocated = 10, .least_allocated = 9}, modelled), 1);  // a part of a step
  EXPECT_EQ(activation_scale({.peak_allocated = 10, .least_allocated = 9}, MemoryParts{}), 1);
  const MemoryParts scaled = with_activations_scaled(modelled, 1.4);
  EXPECT_DOUBLE_EQ(scaled.activations, 7);
  EXPECT_DOUBLE_EQ(scaled.total, 13);
  EXPECT_EQ(scaled.weights, 2);
}

}  // namespace
}  // namespace orrery
