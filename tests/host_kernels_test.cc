// A job of the host alone: its operators as kernels.
#include "graph/host_kernels.h"

#include <gtest/gtest.h>

#include "dissect_helpers.h"

namespace orrery {
namespace {

using testing::DissectBuilder;
using testing::Taken;

// One step of 100 us: a linear layer of an MLP, a norm, the layer's backward pass, the update.
DissectBuilder step() {
  DissectBuilder b;
  b.thread(1);
  b.step(0, 0, 100);
  b.module("LlamaMLP_0", 9, 22);
  b.module("Linear_0", 9.5, 21);
  b.says("aten::linear", 10, 20, {.sequence = 5, .dims = "[[4, 8], [16, 8]]"});
  b.says("aten::t", 10.5, 1, {});
  b.says("aten::mm", 12, 16, {.sequence = 5, .dims = "[[4, 8], [8, 16]]"});
  b.says("aten::resolve_conj", 13, 1, {});  // a view: mm stays the innermost that computes
  b.module("RMSNorm_0", 32, 8);
  b.says("aten::mul", 33, 5, {.sequence = 6});
  b.says("autograd::engine::evaluate_function: MmBackward0", 50, 20, {.sequence = 5});
  b.says("MmBackward0", 51, 18, {.sequence = 5});
  b.says("aten::mm", 52, 10, {.dims = "[[8, 4], [4, 16]]"});
  b.range("Optimizer.step#AdamW.step", 80, 15);
  b.says("aten::addcmul_", 82, 6, {});
  return b;
}

TEST(HostKernels, OperatorsThatComputeAreTheKernels) {
  DissectBuilder b = step();
  EXPECT_EQ(host_as_device(b.t), 4u);
  EXPECT_EQ(host_as_device(b.t), 0u) << "it has kernels now";
  const Taken t(std::move(b), 0, 100);
  ASSERT_EQ(t.d.tasks.size(), 4u);
  t.expect_whole();
  const DissectedTask& forward = t.d.tasks[0];
  EXPECT_EQ(forward.kind, KernelClass::gemm);
  EXPECT_EQ(forward.phase, Phase::forward);
  EXPECT_EQ(testing::to_us(forward.exclusive), 16);
  EXPECT_EQ(t.d.modules[forward.module], "mlp up");
  EXPECT_EQ(forward.cost.flops, 2 * 4 * 8 * 16);
  EXPECT_EQ(t.d.modules[t.d.tasks[1].module], "norm");
  const DissectedTask& backward = t.d.tasks[2];
  EXPECT_EQ(backward.phase, Phase::backward);
  EXPECT_EQ(backward.kind, KernelClass::gemm);
  EXPECT_EQ(t.d.tasks[3].phase, Phase::optimizer);
  EXPECT_EQ(testing::to_us(t.d.idle), 100 - 16 - 5 - 10 - 6);
}

TEST(HostKernels, ATraceWithAGpuStaysAsItIs) {
  DissectBuilder b = step();
  b.run("gemm", 12, 20, 30);
  const std::size_t rows = b.t.ops.size();
  EXPECT_EQ(host_as_device(b.t), 0u);
  EXPECT_EQ(b.t.ops.size(), rows);
  RankTrace empty;
  EXPECT_EQ(host_as_device(empty), 0u);
}

}  // namespace
}  // namespace orrery
