// Where the time of runs written by hand goes: every attribution can be redone by a reader.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "dissect_helpers.h"

namespace orrery::testing {
namespace {

const char* const kBackward = "autograd::engine::evaluate_function: ";

// One training step of 1,000 us: a norm and a linear layer forward on thread 1, both backward on thread 2, the
// reduction of a gradient on stream 20, the optimizer.
DissectBuilder training_step() {
  DissectBuilder b;
  b.step(3, 0, 1000);
  b.thread(1);
  b.module("Model_0", 10, 200);
  b.module("RMSNorm_0", 20, 60);
  b.says("aten::mul", 30, 20, {.sequence = 7});
  b.run("vectorized_elementwise_kernel", 35, 40, 60);
  b.module("MLP_0", 100, 100);
  b.module("Linear_0", 105, 40);
  b.says("aten::linear", 110, 20, {.sequence = 8});
  b.says("aten::addmm", 111, 15, {.dims = "[[32], [16, 64], [64, 32], [], []]"});
  b.run("ampere_bf16_gemm_up", 115, 120, 220);
  b.module("Linear_1", 150, 40);
  b.says("aten::linear", 155, 20, {.sequence = 9});
  b.run("ampere_bf16_gemm_down", 160, 220, 300);
  b.range("loss.backward", 300, 400);
  b.thread(2);
  b.says(std::string(kBackward) + "AddmmBackward0", 310, 100, {.sequence = 8});
  b.says("AddmmBackward0", 311, 90, {.sequence = 8});
  b.run("ampere_bf16_gemm_dgrad", 320, 330, 430);
  b.says(std::string(kBackward) + "MulBackward0", 420, 60, {.sequence = 7});
  b.says("MulBackward0", 421, 50, {.sequence = 7});
  b.run("vectorized_elementwise_kernel_back", 430, 440, 460);
  b.says(std::string(kBackward) + "torch::autograd::AccumulateGrad", 490, 20, {});
  b.run("vectorized_elementwise_kernel_add", 495, 500, 510);
  b.thread(1);
  b.run("ncclDevKernel_AllReduce_Sum_f32", 445, 450, 650, 20);
  b.range("Optimizer.step#Adam.step", 720, 100);
  b.run("multi_tensor_apply_kernel_adam", 730, 740, 840);
  return b;
}

TEST(Dissect, TrainingStepByPhase) {
  const Taken x(training_step(), 0, 1000);
  EXPECT_TRUE(x.d.training);
  EXPECT_EQ(x.phase("vectorized_elementwise_kernel"), "forward");
  EXPECT_EQ(x.phase("ampere_bf16_gemm_down"), "forward");
  EXPECT_EQ(x.phase("ampere_bf16_gemm_dgrad"), "backward");
  EXPECT_EQ(x.phase("vectorized_elementwise_kernel_back"), "backward");
  EXPECT_EQ(x.phase("ncclDevKernel_AllReduce_Sum_f32"), "communication");
  EXPECT_EQ(x.phase("multi_tensor_apply_kernel_adam"), "optimizer");
  x.expect_whole();
}

TEST(Dissect, BackwardKernelsGoWithTheirForwardModule) {
  const Taken x(training_step(), 0, 1000);
  EXPECT_EQ(x.module("vectorized_elementwise_kernel"), "norm");
  EXPECT_EQ(x.module("ampere_bf16_gemm_up"), "mlp up");
  EXPECT_EQ(x.module("ampere_bf16_gemm_down"), "mlp down");
  // MulBackward0 says nothing of a norm; its sequence number does
  EXPECT_EQ(x.module("vectorized_elementwise_kernel_back"), "norm");
  EXPECT_EQ(x.module("ampere_bf16_gemm_dgrad"), "mlp up");
  EXPECT_EQ(x.module("vectorized_elementwise_kernel_add"), "gradient accumulation");
  EXPECT_EQ(x.module("multi_tensor_apply_kernel_adam"), "optimizer");
}

TEST(Dissect, WhatOverlapsCountsOnce) {
  const Taken x(training_step(), 0, 1000);
  // the reduction of 450 to 650 lies under kernels from 450 to 460 and from 500 to 510
  EXPECT_EQ(x.own("ncclDevKernel_AllReduce_Sum_f32"), 180);
  EXPECT_EQ(x.own("vectorized_elementwise_kernel_back"), 20);
  EXPECT_EQ(x.own("vectorized_elementwise_kernel_add"), 10);
  // 20 + 100 + 80 + 100 + 20 + 10 + 180 + 100 = 610 of 1,000
  EXPECT_EQ(to_us(x.d.idle), 390);

  DissectBuilder b;
  b.run("first", 0, 10, 40, 7);
  b.run("second", 1, 20, 60, 8);
  b.X("Memcpy DtoD", "gpu_memcpy", 9, 30, 50);
  b.run("ncclDevKernel_AllGather", 2, 55, 90, 10);
  const Taken y(std::move(b), 20, 80);
  EXPECT_EQ(y.own("first"), 20);   // 20 to 40: it began first
  EXPECT_EQ(y.own("second"), 20);  // 40 to 60
  EXPECT_EQ(y.own("Memcpy DtoD"), 0);
  EXPECT_EQ(y.own("ncclDevKernel_AllGather"), 20);  // 60 to 80
  EXPECT_EQ(y.task("first").step, kNone);           // it began ahead of the step
  EXPECT_EQ(y.task("second").step, 0u);
  y.expect_whole();
}

TEST(Dissect, HostTimeOfTheStepIsWhatItsThreadsAreIn) {
  const Taken x(training_step(), 0, 1000);
  // operators of 30 to 50, 110 to 130 and 155 to 175 with the Python between them
  EXPECT_EQ(x.host(Phase::forward), 145);
  // 300 to 700: the main thread waits in the range round it
  EXPECT_EQ(x.host(Phase::backward), 400);
  EXPECT_EQ(x.host(Phase::optimizer), 100);
  EXPECT_EQ(x.host(Phase::host), 1000 - 145 - 400 - 100);
}

TEST(Dissect, OperatorsOfAnotherThreadComeBeforeARangeThatWaits) {
  DissectBuilder b = training_step();
  b.thread(2);
  b.says("c10d::allreduce_", 520, 60, {});  // beside the range loss.backward of 300 to 700 on thread 1
  const Taken x(std::move(b), 0, 1000);
  EXPECT_EQ(x.host(Phase::communication), 60);
  EXPECT_EQ(x.host(Phase::backward), 340);
  x.expect_whole();
}

TEST(Dissect, VisitsAndSteps) {
  DissectBuilder b;
  for (int step = 0; step < 2; ++step) {
    const double at = 1000 * step;
    b.module("Model_0", at, 500);
    for (int layer = 0; layer < 3; ++layer) {
      const double t = at + 10 + 100 * layer;
      b.module("RMSNorm_" + std::to_string(layer), t, 40);
      b.says("aten::pow", t + 1, 10, {.sequence = 1});
      b.run("pow", t + 2, t + 5, t + 10);
      b.says("aten::mean", t + 12, 10, {.sequence = 2});
      b.run("mean", t + 13, t + 15, t + 20);
      b.module("SiLU_" + std::to_string(layer), t + 50, 40);
      b.says("aten::silu", t + 51, 10, {.sequence = 3});
      b.run("silu", t + 52, t + 55, t + 60);
    }
  }
  const Taken x(std::move(b), {{us(0), us(1000)}, {us(1000), us(2000)}});
  std::set<std::uint32_t> norms;
  for (const DissectedTask& t : x.d.tasks)
    if (x.d.modules[t.module] == "norm") norms.insert(t.visit);
  EXPECT_EQ(norms.size(), 6u);  // three a step, of two kernels each
  EXPECT_EQ(x.d.tasks.front().step, 0u);
  EXPECT_EQ(x.d.tasks.back().step, 1u);
}

TEST(Dissect, LayersByFramesAndTheirBackward) {
  DissectBuilder b;
  b.module("Model_0", 0, 900);
  for (int layer = 0; layer < 3; ++layer) {
    const double t = 10 + 100 * layer;
    b.module("DecoderLayer_" + std::to_string(5 + layer), t, 90);
    b.module("LayerNorm_" + std::to_string(layer), t + 1, 40);
    b.says("aten::layer_norm", t + 2, 30, {.sequence = 10 + layer});
    b.run("norm" + std::to_string(layer), t + 3, t + 5, t + 15);
  }
  b.thread(2);
  for (int layer = 2; layer >= 0; --layer) {
    const double t = 400 + 100 * (2 - layer);
    b.says(std::string(kBackward) + "NativeLayerNormBackward0", t, 50, {.sequence = 10 + layer});
    b.run("back" + std::to_string(layer), t + 3, t + 5, t + 15);
  }
  const Taken x(std::move(b), 0, 1000);
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(x.task("norm" + std::to_string(layer)).layer, layer);
    EXPECT_EQ(x.task("back" + std::to_string(layer)).layer, layer);
  }
}

TEST(Dissect, BetweenBackwardAndOptimizerIsTheOptimizers) {
  DissectBuilder b = training_step();
  b.run("clip", 710, 715, 720);     // after the last backward node, before the optimizer's range
  b.run("logging", 850, 860, 870);  // after it: nothing tells
  const Taken x(std::move(b), 0, 1000);
  EXPECT_EQ(x.phase("clip"), "optimizer");
  EXPECT_EQ(x.phase("logging"), "host");
  x.expect_whole();
}

TEST(Dissect, RecomputationIsToldFromBackward) {
  DissectBuilder b;
  b.thread(1);
  b.says("CheckpointFunction", 10, 50, {.sequence = 4});
  b.run("forward", 20, 25, 35);
  b.thread(2);
  b.says(std::string(kBackward) + "CheckpointFunctionBackward", 100, 200, {.sequence = 4});
  b.says("CheckpointFunctionBackward", 101, 190, {.sequence = 4});
  b.says("aten::mm", 110, 10, {.sequence = 1});
  b.run("again", 112, 115, 125);
  b.says(std::string(kBackward) + "MmBackward0", 150, 50, {.sequence = 1});
  b.run("back", 160, 165, 175);
  const Taken x(std::move(b), 0, 300);
  EXPECT_EQ(x.phase("forward"), "forward");
  EXPECT_EQ(x.phase("again"), "recompute");
  EXPECT_EQ(x.phase("back"), "backward");
}

// One autograd node for the whole backward pass: the sizes of its products are those of forward layers.
TEST(Dissect, CompiledBackwardProductsByTheirSizes) {
  DissectBuilder b;
  b.thread(1);
  b.says("flash_attn::_flash_attn_forward", 0, 10, {});
  b.run("flash_fwd_kernel", 1, 2, 8);
  const auto forward = [&](const std::string& module, const char* dims, const char* kernel, double at) {
    b.module(module, at, 20);
    b.says("aten::mm", at + 1, 10, {.sequence = 5, .dims = dims});
    b.run(kernel, at + 2, at + 5, at + 15);
  };
  b.module("MLP_0", 20, 60);
  forward("Linear_0", "[[16, 64], [64, 256]]", "gemm_up", 22);
  forward("Linear_1", "[[16, 256], [256, 64]]", "gemm_down", 44);
  b.thread(2);
  b.says(std::string(kBackward) + "CompiledFunctionBackward", 100, 400, {.sequence = 5});
  b.says("CompiledFunctionBackward", 101, 390, {.sequence = 5});
  double at = 110;
  const auto product = [&](const char* dims, const char* kernel) {
    b.says("aten::mm", at, 10, {.dims = dims});
    b.run(kernel, at + 1, at + 4, at + 10);
    at += 20;
  };
  product("[[64, 16], [16, 256]]", "gemm_1");  // gradient of the weight of either
  product("[[16, 64], [64, 256]]", "gemm_2");  // of the input of the one that goes 256 -> 64
  product("[[256, 16], [16, 64]]", "gemm_3");
  product("[[16, 256], [256, 64]]", "gemm_4");  // of the input of 64 -> 256
  product("[[16, 7], [7, 9]]", "gemm_5");       // of no layer that was seen
  const Taken x(std::move(b), 0, 600);
  EXPECT_EQ(x.module("gemm_up"), "mlp up");
  EXPECT_EQ(x.module("gemm_down"), "mlp down");
  EXPECT_EQ(x.module("gemm_1"), "mlp down");  // as the product next to it
  EXPECT_EQ(x.module("gemm_2"), "mlp down");
  EXPECT_EQ(x.module("gemm_3"), "mlp up");
  EXPECT_EQ(x.module("gemm_4"), "mlp up");
  EXPECT_EQ(x.module("gemm_5"), "linear");
}

TEST(Dissect, RangesOfTheMainThreadCoverBackwardThreads) {
  DissectBuilder b;
  b.step(0, 0, 500);
  b.range("attn(B)", 100, 100);
  b.range("metrics:update", 300, 100);
  b.thread(2);
  b.says(std::string(kBackward) + "CustomBackward", 110, 50, {});
  b.run("custom_kernel_1", 120, 125, 135);
  const Taken x(std::move(b), 0, 500);
  EXPECT_EQ(x.phase("custom_kernel_1"), "backward");
  EXPECT_EQ(x.module("custom_kernel_1"), "attn");
}

// ---- inference ----

DissectBuilder attention_of(const char* dims, const char* inputs) {
  DissectBuilder b;
  b.says("aten::embedding", 0, 10, {.dims = "[[100, 8], [1, 4]]"});
  b.run("indexSelectLargeIndex", 1, 5, 10);
  b.says("aten::scaled_dot_product_attention", 20, 20, {.dims = dims, .inputs = inputs});
  b.run("flash_fwd_kernel", 25, 30, 50);
  b.says("aten::mm", 60, 10, {.dims = "[[4, 8], [8, 100]]"});
  b.run("gemm_head", 62, 65, 80);
  return b;
}

TEST(Dissect, PrefillAndDecodeByTheQueries) {
  const char* causal = R"(["", "", "", "", "0.0", "True", "None"])";
  const Taken prefill(attention_of("[[1, 2, 4, 8], [1, 2, 4, 8], [1, 2, 4, 8], [], [], [], []]", causal), 0, 100);
  EXPECT_EQ(prefill.phase("flash_fwd_kernel"), "prefill");
  EXPECT_EQ(prefill.phase("gemm_head"), "prefill");
  EXPECT_EQ(prefill.host(Phase::prefill), 70);
  const Taken decode(attention_of("[[1, 2, 1, 8], [1, 2, 9, 8], [1, 2, 9, 8], [], [], [], []]", ""), 0, 100);
  EXPECT_EQ(decode.phase("indexSelectLargeIndex"), "decode");
  EXPECT_EQ(decode.phase("gemm_head"), "decode");
  // an encoder is neither
  const Taken encoder(attention_of("[[1, 2, 4, 8], [1, 2, 4, 8], [1, 2, 4, 8], [], [], [], []]",
                                   R"(["", "", "", "", "0.0", "False", "None"])"),
                      0, 100);
  EXPECT_EQ(encoder.phase("flash_fwd_kernel"), "forward");
}

// Operators only say "forward": a range round them that says which pass it is knows more.
TEST(Dissect, HostTimeOfOperatorsIsThatOfThePassRoundThem) {
  DissectBuilder b;
  b.range("prefill", 0, 40);
  b.says("aten::mm", 5, 10, {.dims = "[[4, 8], [8, 100]]"});
  b.range("decode", 50, 40);
  b.says("aten::mm", 55, 10, {.dims = "[[4, 8], [8, 100]]"});
  const Taken x(std::move(b), 0, 100);
  EXPECT_EQ(x.host(Phase::prefill), 40);
  EXPECT_EQ(x.host(Phase::decode), 40);
  EXPECT_EQ(x.host(Phase::forward), 0);
  EXPECT_EQ(x.host(Phase::host), 20);
}

TEST(Dissect, GraphLaunchesAreToldByTheirKernels) {
  DissectBuilder b;
  b.L("cudaGraphLaunch", 0, 5, 77);
  double at = 10;
  const auto kernel = [&](std::string_view name) {
    b.kernel(name, 7, at, 5, 77);
    at += 6;
  };
  kernel("embedding_kernel");
  for (int layer = 0; layer < 4; ++layer) {
    for (const char* name : {"rms_norm_kernel", "nvjet_gemm_1", "rotary_embedding_kernel", "reshape_and_cache_kernel",
                             "paged_attention_v2_kernel", "nvjet_gemm_2", "fused_add_rms_norm_kernel", "nvjet_gemm_3",
                             "silu_and_mul_kernel", "nvjet_gemm_4"})
      kernel(name);
  }
  kernel("rms_norm_kernel");
  kernel("nvjet_gemm_head");
  const Taken x(std::move(b), 0, 1000);
  EXPECT_EQ(x.module("nvjet_gemm_1"), "qkv");
  EXPECT_EQ(x.module("rotary_embedding_kernel"), "rotary");
  EXPECT_EQ(x.module("reshape_and_cache_kernel"), "kv cache");
  EXPECT_EQ(x.module("paged_attention_v2_kernel"), "attention");
  EXPECT_EQ(x.module("nvjet_gemm_2"), "output projection");
  EXPECT_EQ(x.module("nvjet_gemm_3"), "mlp up");
  EXPECT_EQ(x.module("nvjet_gemm_4"), "mlp down");
  EXPECT_EQ(x.module("nvjet_gemm_head"), "lm head");
  EXPECT_EQ(x.module("embedding_kernel"), "embedding");
  int last = -1;
  for (const DissectedTask& t : x.d.tasks) {
    EXPECT_EQ(t.phase, Phase::decode);
    last = std::max(last, t.layer);
  }
  EXPECT_EQ(last, 3);
  EXPECT_EQ(x.task("embedding_kernel").layer, -1);
}

TEST(Dissect, ExpertsBetweenRoutingAndTheNextNorm) {
  std::vector<SequenceItem> items;
  const std::vector<const char*> names{"rms_norm",  "gemm_a",       "flash_fwd",    "gemm_b",
                                       "rms_norm",  "gemm_shared",  "silu_and_mul", "gemm_shared2",
                                       "gemm_gate", "grouped_topk", "gemm_e1",      "silu_and_mul",
                                       "gemm_e2",   "rms_norm",     "gemm_c",       "flash_fwd"};
  for (const char* name : names) items.push_back({class_of_kernel(name), false, name, module_of_name(name)});
  const auto modules = modules_of_sequence(items);
  const auto of = [&](std::string_view name) {
    for (std::size_t i = 0; i < names.size(); ++i)
      if (names[i] == name) return std::string(modules[i]);
    return std::string("?");
  };
  EXPECT_EQ(of("gemm_a"), "qkv");
  EXPECT_EQ(of("gemm_b"), "output projection");
  EXPECT_EQ(of("gemm_shared"), "mlp up");
  EXPECT_EQ(of("gemm_shared2"), "mlp down");
  EXPECT_EQ(of("gemm_gate"), "router");
  EXPECT_EQ(of("gemm_e1"), "experts");
  EXPECT_EQ(of("gemm_e2"), "experts");
  EXPECT_EQ(of("gemm_c"), "qkv");
  // without attention nothing is said
  items.resize(2);
  for (const std::string_view m : modules_of_sequence(items)) EXPECT_EQ(m, "");
}

TEST(Dissect, RepetitionIsTheLongestStretch) {
  const auto find = [](const std::string& s) {
    std::vector<std::uint32_t> keys(s.begin(), s.end());
    const Repetition r = find_repetition(keys);
    return std::to_string(r.begin) + "/" + std::to_string(r.period) + "/" + std::to_string(r.count);
  };
  EXPECT_EQ(find("xyabcdabcdabcdz"), "2/4/3");
  EXPECT_EQ(find("abcdefg"), "0/0/0");
  EXPECT_EQ(find(""), "0/0/0");
  EXPECT_EQ(find("aaaaaaaa"), "0/0/0");  // runs of one kernel are no layers
  EXPECT_EQ(find("abcabc"), "0/3/2");
}

// ---- costs ----

TEST(Dissect, WorkFollowsFromRecordedShapes) {
  DissectBuilder b;
  b.says("aten::mm", 0, 5, {.dims = "[[128, 64], [64, 32]]", .types = R"(["c10::BFloat16", "c10::BFloat16"])"});
  b.run("ampere_gemm", 1, 10, 20);
  b.says("aten::addmm", 30, 5,
         {.dims = "[[32], [128, 64], [64, 32], [], []]",
          .types = "[\n \"float\",\n \"float\", \"float\", \"Scalar\", \"Scalar\"]"});
  b.run("ampere_gemm_2", 31, 40, 50);
  b.says("aten::scaled_dot_product_attention", 60, 5,
         {.dims = "[[2, 4, 16, 8], [2, 4, 16, 8], [2, 4, 16, 8], [], [], [], []]",
          .types = R"(["c10::Half", "c10::Half", "c10::Half", "", "Scalar", "Scalar", "Scalar"])",
          .inputs = R"(["", "", "", "", "0.0", "True", "None"])"});
  b.run("flash_fwd", 61, 70, 80);
  b.says("aten::add", 90, 5, {.dims = "[[10, 10], [10], []]", .types = R"(["float", "float", "Scalar"])"});
  b.run("vectorized_elementwise_kernel", 91, 100, 110);
  b.says(
      "aten::convolution", 120, 9,
      {.dims = "[[2, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], [], [], []]",
       .types = R"(["float", "float", "", "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", "Scalar"])",
       .inputs = R"(["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"])"});
  b.says("aten::cudnn_convolution", 121, 5, {.dims = "[[2, 3, 8, 8], [4, 3, 3, 3]]"});
  b.run("implicit_gemm_fprop", 122, 130, 140);
  b.says("aten::mm", 150, 5, {});
  b.run("ampere_gemm_3", 151, 160, 170);
  b.says("aten::unknown", 180, 5, {.dims = "[[128, 64]]", .types = R"(["float"])"});
  b.run("vectorized_elementwise_kernel_2", 181, 190, 200);
  const Taken x(std::move(b), 0, 300);
  EXPECT_EQ(x.task("ampere_gemm").cost.flops, 2.0 * 128 * 64 * 32);
  EXPECT_EQ(x.task("ampere_gemm").cost.bytes, 2.0 * (128 * 64 + 64 * 32 + 128 * 32));
  EXPECT_EQ(x.task("ampere_gemm_2").cost.bytes, 4.0 * (128 * 64 + 64 * 32 + 128 * 32));
  // 8 sequences times heads, 16 x 16 x 8, two products, half of it
  EXPECT_EQ(x.task("flash_fwd").cost.flops, 0.5 * 2 * 2 * 8 * 16 * 16 * 8);
  EXPECT_EQ(x.task("vectorized_elementwise_kernel").cost.bytes, 4.0 * (100 + 10 + 100));
  // (8 + 2 - 3) / 2 + 1 = 4 wide and high
  EXPECT_EQ(x.task("implicit_gemm_fprop").cost.flops, 2.0 * 2 * 4 * 4 * 4 * 3 * 3 * 3);
  EXPECT_EQ(x.task("ampere_gemm_3").cost.flops, 0);
  EXPECT_EQ(x.task("vectorized_elementwise_kernel_2").cost.bytes, 0);  // who knows what it writes
}

// ---- names ----

TEST(Dissect, NamesOfKernels) {
  const auto of = [](std::string_view name) { return std::string(name_of(class_of_kernel(name))); };
  EXPECT_EQ(of("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x4_tn"), "gemm");
  EXPECT_EQ(of("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT"), "gemm");
  EXPECT_EQ(of("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV"), "gemm");
  EXPECT_EQ(of("cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1"), "gemm");
  EXPECT_EQ(of("void cudnn::bn_fw_tr_1C11_kernel_NCHW"), "norm");
  EXPECT_EQ(of("void flash_fwd_kernel<Flash_fwd_kernel_traits<128>>"), "attention");
  EXPECT_EQ(of("void paged_attention_ll4mi_QKV_mfma16_kernel<(vllm::Fp8KVCacheDataType)0>"), "attention");
  EXPECT_EQ(of("void vllm::reshape_and_cache_flash_kernel<a, b>"), "memory");
  EXPECT_EQ(of("void fbgemm_gpu::permute_2D_data_kernel<true>"), "other");  // no matrix product
  EXPECT_EQ(of("void multi_tensor_apply_kernel<AdamFunctor>"), "optimizer");
  EXPECT_EQ(of("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<long>>"), "memory");
  EXPECT_EQ(of("void at::native::vectorized_elementwise_kernel<4, {lambda(float)#1}>"), "elementwise");
  EXPECT_EQ(of("void (anonymous namespace)::cunn_SoftMaxForward<8>"), "softmax");
  EXPECT_EQ(of("triton_red_fused__fused_rms_norm_add_3"), "norm");
  EXPECT_EQ(of("void at::native::reduce_kernel<512>"), "other");
}

TEST(Dissect, NamesOfRanges) {
  const auto of = [](std::string_view name) {
    const auto p = phase_of_range(name);
    return p ? std::string(name_of(*p)) : std::string("-");
  };
  EXPECT_EQ(of("## forward ##"), "forward");
  EXPECT_EQ(of("attn(F)"), "forward");
  EXPECT_EQ(of("mlp(W)"), "backward");
  EXPECT_EQ(of("forward_backward"), "-");
  EXPECT_EQ(of("feed_forward"), "-");
  EXPECT_EQ(of("Optimizer.step#AdamW.step"), "optimizer");
  EXPECT_EQ(of("Optimizer.zero_grad#SGD.zero_grad"), "optimizer");
  EXPECT_EQ(of("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"), "data");
  EXPECT_EQ(of("execute_context_1(888_788544)_generation_0(0)"), "prefill");
  EXPECT_EQ(of("execute_32_context_0(sq0)_generation_32(sq32)"), "decode");
  EXPECT_EQ(of("execute_context_2(7)_generation_3(3)"), "prefill and decode");
  EXPECT_EQ(of("step[DECODE bs=32]"), "decode");
  EXPECT_EQ(of("ProfilerStep#7"), "-");
  EXPECT_EQ(of("nccl:all_reduce"), "-");
  EXPECT_EQ(name_of_range("## forward:bottom_mlp ##"), "forward:bottom_mlp");
  EXPECT_EQ(name_of_range("attn(F)"), "attn");
  EXPECT_EQ(module_of_name("triton_poi_fused_mul_nll_loss_forward_pow_relu_5"), "activation");
  EXPECT_EQ(module_of_name("aten::add"), "");
}

// ---- what nothing tells ----

TEST(Dissect, WhatNothingTellsIsUnattributed) {
  DissectBuilder b;
  b.kernel("mystery", 7, 10, 20);
  b.kernel("ampere_gemm", 7, 40, 20);
  const Taken x(std::move(b), 0, 100);
  EXPECT_EQ(x.phase("mystery"), "unattributed");
  EXPECT_EQ(x.module("mystery"), "unattributed");
  EXPECT_EQ(x.module("ampere_gemm"), "unattributed");
  x.expect_whole();
}

TEST(Dissect, TasksWithoutALaunchGoWithTheirLike) {
  DissectBuilder b;
  const auto pass = [&](double at, bool launched) {
    const auto put = [&](const char* module, const char* op, const char* kernel, double t) {
      if (!launched) {
        b.kernel(kernel, 7, t, 5);
        return;
      }
      b.module(module, t - 5, 10);
      b.says(op, t - 4, 6, {.sequence = 1});
      b.run(kernel, t - 3, t, t + 5);
    };
    put("RMSNorm_0", "aten::mul", "mul", at);
    put("SiLU_0", "aten::silu", "silu", at + 20);
    put("Rotary_0", "aten::mul", "mul", at + 40);
    put("LayerNorm_1", "aten::native_layer_norm", "last", at + 60);
  };
  pass(10, false);
  pass(110, true);
  pass(210, true);
  const Taken x(std::move(b), 0, 300);
  std::vector<std::string> modules;
  for (const DissectedTask& t : x.d.tasks)
    if (t.call == kNone) modules.push_back(x.d.modules[t.module]);
  // the same kernel for norm and rotary: its neighbours tell which
  EXPECT_EQ(modules, (std::vector<std::string>{"norm", "activation", "rotary", "norm"}));
  EXPECT_EQ(x.d.tasks.front().phase, Phase::forward);
}

// ---- everything adds up ----

TEST(Dissect, RandomRunsAddUpToTheirSteps) {
  std::mt19937_64 random(11);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  const char* const kKernels[] = {"ampere_gemm", "ncclDevKernel_AllReduce", "vectorized_elementwise_kernel",
                                  "flash_fwd_kernel", "multi_tensor_apply_kernel"};
  const char* const kRanges[] = {"forward", "backward", "optimizer", "get_batch", "anything", "nccl:all_reduce"};
  for (int round = 0; round < 200; ++round) {
    DissectBuilder b;
    for (int i = pick(0, 30); i > 0; --i) b.thread(pick(1, 3)).range(kRanges[pick(0, 5)], pick(0, 900), pick(0, 300));
    for (int i = pick(0, 30); i > 0; --i)
      b.thread(pick(1, 3))
          .says(pick(0, 1) == 0 ? "aten::mm" : std::string(kBackward) + "MmBackward0", pick(0, 900), pick(0, 100),
                {.sequence = pick(-1, 5)});
    for (int i = pick(0, 10); i > 0; --i)
      b.thread(pick(1, 3)).L("cudaStreamSynchronize", pick(0, 900), pick(0, 100), 5000 + i);
    for (int i = pick(1, 60); i > 0; --i) {
      const int at = pick(0, 1000);
      b.thread(pick(1, 3)).run(kKernels[pick(0, 4)], at, at + pick(0, 50), at + 50 + pick(0, 60), pick(7, 9));
    }
    std::vector<Interval> steps;
    for (int at = pick(0, 100); at < 1100; at += pick(1, 300)) {
      const int end = at + pick(1, 200);
      steps.push_back({us(at), us(end)});
      at = end;
    }
    const Taken x(std::move(b), steps);
    SCOPED_TRACE(round);
    x.expect_whole();
  }
}

TEST(Dissect, AnEmptyStepIsIdle) {
  DissectBuilder b;
  b.run("kernel", 0, 10, 20);
  const Taken x(std::move(b), 500, 600);
  EXPECT_EQ(to_us(x.d.idle), 100);
  EXPECT_EQ(to_us(x.d.outside), 10);
  x.expect_whole();
}

}  // namespace
}  // namespace orrery::testing
