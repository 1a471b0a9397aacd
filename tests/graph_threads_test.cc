// CPU threads: gaps, nesting, hand-offs from thread to thread; steps; several ranks.
#include <gtest/gtest.h>

#include "trace_builder.h"

namespace orrery {
namespace {

using testing::Built;
using testing::one_rank;
using testing::TraceBuilder;
using testing::us;

TEST(GraphThreads, GapsOfTheHostAreKept) {  // 43
  TraceBuilder b;
  b.op("a", 0, 10);
  b.op("b", 50, 10);
  Built g(std::move(b));
  EXPECT_EQ(g.into("a>"), "root window");
  EXPECT_EQ(g.into("b>"), "thread a<");
  EXPECT_DOUBLE_EQ(g.duration("b>"), 40);
  EXPECT_DOUBLE_EQ(g.end("b<"), 60);
  EXPECT_DOUBLE_EQ(g.step_us(), 60);
  EXPECT_DOUBLE_EQ(g.scale(NodeKind::host, 2).end("b<"), 120);
}

TEST(GraphThreads, ParentAndChildrenCountOnce) {
  TraceBuilder b;
  b.op("parent", 0, 30);
  b.op("child", 5, 10);
  b.op("grandchild", 8, 2);
  b.op("second", 20, 4);
  Built g(std::move(b));
  EXPECT_EQ(g.into("parent<"), "thread second<");
  EXPECT_DOUBLE_EQ(g.duration("parent<"), 6);
  EXPECT_DOUBLE_EQ(g.duration("child<"), 5);
  EXPECT_DOUBLE_EQ(g.end("parent<"), 30);
  EXPECT_DOUBLE_EQ(g.scale(NodeKind::host, 3).end("parent<"), 90);
}

TEST(GraphThreads, ChildThatEndsAfterItsParent) {  // 26
  TraceBuilder b;
  b.op("C", 0, 80);
  b.op("D", 10, 10);
  b.op("E", 19.85, 7.75);  // begins in D, ends after it
  Built g(std::move(b));
  EXPECT_EQ(g.into("D<"), "thread E>");
  EXPECT_EQ(g.into("E<"), "thread D<");
  EXPECT_EQ(g.into("C<"), "thread E<");
  EXPECT_DOUBLE_EQ(g.end("D<"), 20);
  EXPECT_DOUBLE_EQ(g.end("E<"), 27.6);
  EXPECT_DOUBLE_EQ(g.end("C<"), 80);
  for (std::uint32_t n = 0; n < g.graph().size(); ++n) EXPECT_GE(g.graph().duration[n], 0);
}

TEST(GraphThreads, ThreadsStartWhereTheyWereSeenToStart) {
  TraceBuilder b;
  b.on(1).op("a", 0, 10);
  b.on(2).op("b", 7, 10);
  Built g(std::move(b));
  EXPECT_EQ(g.into("b>"), "root window");
  EXPECT_DOUBLE_EQ(g.end("b<"), 17);
  EXPECT_DOUBLE_EQ(g.scale(NodeKind::host, 2).end("b<"), 27);  // the start of a thread is no work
}

TEST(GraphThreads, ThreadThatOnlyPollsIsLeftOut) {
  TraceBuilder b;
  b.op("work", 0, 1000);
  b.on(99);
  for (int i = 0; i < 20; ++i) b.L("cudaEventQuery", 10 + 100 * i, 2, 1000 + i);  // the last at 1,910
  Built g(std::move(b));
  EXPECT_EQ(g.noted("poll-threads"), 1u);
  EXPECT_EQ(g.find("cudaEventQuery>"), kNoNode);
  EXPECT_DOUBLE_EQ(g.step_us(), 1000);
}

TEST(GraphThreads, ThreadThatPollsAndWorksStays) {
  TraceBuilder b;
  b.L("cudaEventQuery", 0, 2, 1);
  b.L("cudaLaunchKernel", 10, 4, 2);
  b.kernel("k", 7, 16, 5, 2);
  Built g(std::move(b));
  EXPECT_EQ(g.noted("poll-threads"), 0u);
  EXPECT_EQ(g.into("k"), "launch cudaLaunchKernel>");
}

// ---- hand-offs ----

// Backward runs on thread 2 while thread 1 waits in "backward". A thread sees a wake-up after 5 us.
//   1  forward(0..100) backward(110 .............. 500) optimizer(520..600)
//   2                        op1(125..200) op2(210..480)
TraceBuilder forward_backward(double host = 1) {
  TraceBuilder b;
  double at = 0;
  b.on(1).op("forward", at, 100 * host);
  const double begin = at = 110 * host;
  const OpId backward = b.op("backward", begin, 0);
  at += 5 + 10 * host;  // woken, then 10 us until its first row
  b.on(2).op("op1", at, 75 * host);
  at += 85 * host;
  b.op("op2", at, 270 * host);
  at += 270 * host + 5 + 15 * host;
  b.t.ops.dur[raw(backward)] = us(at) - us(begin);
  at += 20 * host;
  b.on(1).op("optimizer", at, 80 * host);
  return b;
}

TEST(GraphThreads, BackwardOnAnotherThread) {
  Built g(forward_backward());
  EXPECT_EQ(g.into("op1>"), "handoff backward>");
  EXPECT_EQ(g.into("backward<"), "handoff op2<, thread backward>");
  EXPECT_DOUBLE_EQ(g.duration("backward<"), 15);  // the rest of it was the wait
  EXPECT_DOUBLE_EQ(g.duration("op1>"), 10);
  EXPECT_DOUBLE_EQ(g.lag("op2<", "backward<"), 5);
  EXPECT_DOUBLE_EQ(g.step_us(), 600);
  // All host time x2: 1,200 us of it less the two wake-ups, which stay 5 us. Were the hole work, it would double too
  // and thread 2 run on beside it.
  EXPECT_DOUBLE_EQ(g.scale(NodeKind::host, 2).step_us(), 1190);
  EXPECT_DOUBLE_EQ(g.start("optimizer<"), 1190 - 160);
  Built truth(forward_backward(2));
  EXPECT_DOUBLE_EQ(truth.step_us(), 1190);

  // Only backward's own operators slower: the optimizer moves with them.
  Built slow(forward_backward());
  EXPECT_DOUBLE_EQ(slow.scale("op2<", 3).step_us(), 600 + 540);
  EXPECT_DOUBLE_EQ(slow.end("op2<"), 480 + 540);

  Built without(forward_backward(), {.without_edges = 1u << static_cast<unsigned>(EdgeKind::handoff)});
  EXPECT_DOUBLE_EQ(without.duration("backward<"), 390);
  EXPECT_DOUBLE_EQ(without.scale("op2<", 3).end("optimizer<"), 600);
}

TEST(GraphThreads, EveryStepHandsOverAgain) {
  TraceBuilder b;
  for (int i = 0; i < 4; ++i) {
    const double at = 1000 * i;
    const std::string n = std::to_string(i);
    b.on(1).op("forward" + n, at, 100);
    b.op("backward" + n, at + 110, 400);
    b.on(2).op("autograd" + n, at + 130, 360);
  }
  Built g(std::move(b));
  for (int i = 0; i < 4; ++i) {
    const std::string n = std::to_string(i);
    EXPECT_EQ(
        g.into("autograd" + n + ">"),
        i == 0 ? "handoff backward0>" : "handoff backward" + n + ">, thread autograd" + std::to_string(i - 1) + "<");
    EXPECT_EQ(g.into("backward" + n + "<"), "handoff autograd" + n + "<, thread backward" + n + ">");
  }
  EXPECT_DOUBLE_EQ(g.step_us(), 3510);
}

TEST(GraphThreads, HoleThatAnotherThreadDoesNotFillIsWork) {
  TraceBuilder b;
  b.on(1).op("load", 0, 10'000);       // the host reads data
  b.on(2).op("unrelated", 5000, 100);  // in the middle of it, far from both ends
  Built g(std::move(b));
  EXPECT_EQ(g.into("load<"), "thread load>");
  EXPECT_DOUBLE_EQ(g.duration("load<"), 10'000);
  EXPECT_EQ(g.edges(EdgeKind::handoff), 0u);
}

TEST(GraphThreads, ThreadThatRunsThroughTheHoleIsNoHandOff) {
  TraceBuilder b;
  b.on(1).op("a", 0, 10);
  b.on(1).op("b", 200, 10);
  b.on(2);
  for (int i = 0; i < 60; ++i) b.op("busy", 5 * i, 4);  // works before, in and after the hole alike
  Built g(std::move(b));
  EXPECT_EQ(g.edges(EdgeKind::handoff), 0u);
  EXPECT_DOUBLE_EQ(g.duration("b>"), 190);
}

TEST(GraphThreads, SyncOfTheHostIsNoHandOff) {
  TraceBuilder b;
  b.on(1).L("l", 0, 4, 1);
  b.kernel("k", 7, 6, 300, 1);
  b.L("cudaDeviceSynchronize", 10, 306, 2);
  b.on(2).op("other", 20, 280);
  Built g(std::move(b));
  EXPECT_EQ(g.into("cudaDeviceSynchronize<"), "sync k, thread cudaDeviceSynchronize>");
  EXPECT_EQ(g.into("other>"), "root window");
}

// ---- steps ----

TEST(GraphSteps, MarkersAreTheSteps) {
  TraceBuilder b;
  b.step(12, 100, 90);
  b.step(11, 0, 95);
  b.range("ProfilerStep", 0, 5);                              // no number
  b.range("ProfilerStep#x", 0, 5);                            // none either
  b.range("ProfilerStep#13 of 20", 0, 5);                     // nor this
  b.op("ProfilerStep#99", 0, 5);                              // an operator of that name
  b.X("ProfilerStep#12", "gpu_user_annotation", 7, 150, 90);  // the mirror on the device misses work
  Built g(std::move(b));
  ASSERT_EQ(g.graph().steps.size(), 2u);
  EXPECT_EQ(g.graph().steps[0].number, 11);
  EXPECT_EQ(g.graph().steps[1].number, 12);
  EXPECT_EQ(g.graph().steps[1].end - g.graph().steps[1].begin, us(90));
  EXPECT_DOUBLE_EQ(g.step_us(0), 95);
  EXPECT_DOUBLE_EQ(g.step_us(1), 90);
}

TEST(GraphSteps, StepMarkedOnTwoThreadsIsTheLongest) {
  TraceBuilder b;
  b.on(1).step(1, 0, 100);
  b.on(2).step(1, 10, 50);
  Built g(std::move(b));
  ASSERT_EQ(g.graph().steps.size(), 1u);
  EXPECT_DOUBLE_EQ(g.step_us(), 100);
}

TEST(GraphSteps, WithoutMarkersTheWholeTraceIsStepZero) {
  TraceBuilder b;
  b.op("a", 0, 10);
  b.L("l", 4, 4, 1);
  b.kernel("k", 7, 10, 100, 1);
  b.X("mirror", "gpu_user_annotation", 7, 5, 500);  // not work
  Built g(std::move(b));
  ASSERT_EQ(g.graph().steps.size(), 1u);
  EXPECT_EQ(g.graph().steps[0].number, 0);
  EXPECT_EQ(g.graph().steps[0].end - g.graph().steps[0].begin, us(110));
  EXPECT_DOUBLE_EQ(g.step_us(), 110);
  EXPECT_DOUBLE_EQ(g.scale("k", 2).step_us(), 210);
  EXPECT_DOUBLE_EQ(g.scale("a>", 1).scale(NodeKind::host, 100).step_us(), 1000);  // now the thread ends last
}

TEST(GraphSteps, GpuOnlyTraceIsOneStep) {
  TraceBuilder b;
  b.kernel("k1", 7, 5, 10, 1);
  b.kernel("k2", 7, 16, 10, 2);
  Built g(std::move(b));
  ASSERT_EQ(g.graph().steps.size(), 1u);
  EXPECT_DOUBLE_EQ(g.step_us(), 21);
  EXPECT_DOUBLE_EQ(g.scale("k1", 2).step_us(), 31);
}

TEST(GraphSteps, NothingToDoIsAnError) {
  TraceBuilder b;
  b.X("mirror", "gpu_user_annotation", 7, 5, 500);
  const auto built = build_graph(one_rank(std::move(b)));
  ASSERT_FALSE(built.has_value());
  EXPECT_EQ(
      built.error().line(),
      "rank-0.json: no CPU or GPU work in the trace (record with ProfilerActivity.CPU and ProfilerActivity.CUDA)");
  EXPECT_FALSE(build_graph(TraceSet{}).has_value());
}

// The importer lets through any start and end that fit int64. Where all times of a graph together do not, sums would
// overflow: such a trace is refused in one line.
TEST(GraphSteps, TimesThatNoGraphCanHoldAreAnError) {
  TraceBuilder b;
  b.op("early", 0, 10);
  b.op("late", 20, 10);
  b.t.ops.start[0] = INT64_MIN + 1;
  b.t.ops.start[1] = INT64_MAX - us(20);
  const auto built = build_graph(one_rank(std::move(b)));
  ASSERT_FALSE(built.has_value());
  EXPECT_NE(built.error().line().find("rank-0.json"), std::string::npos);
}

TEST(GraphSteps, IdleTimeOfTheDeviceIsThatInsideSteps) {
  TraceBuilder b;
  b.step(1, 0, 100);
  b.step(2, 200, 100);
  b.launched("k0", 0, 4, 7, 6, 4);       // idle 10..60 in step 1, explained by its launch
  b.launched("k1", 54, 4, 7, 60, 20);    // 80..100 in step 1, 100..200 in none, 200..240 in step 2
  b.launched("k2", 234, 4, 7, 240, 40);  // after it nothing runs: no idle time is seen
  Built g(std::move(b));
  EXPECT_EQ(g.quality().idle_ns, us(50 + 20 + 40));
  EXPECT_EQ(g.quality().unexplained_idle_ns, 0);
}

// ---- several ranks ----

TraceBuilder small_rank(std::int64_t rank, double kernel) {
  TraceBuilder b(rank);
  b.step(1, 0, 50 + kernel);
  b.launched("k", 10, 4, 7 + rank, 16, kernel);
  b.L("cudaDeviceSynchronize", 16, kernel + 10, 5);
  return b;
}

TEST(GraphRanks, AreIndependent) {
  TraceSet set;
  set.ranks.push_back(small_rank(0, 100).finish());
  set.ranks.push_back(small_rank(1, 200).finish());
  Built g(std::move(set));
  ASSERT_EQ(g.graph().ranks.size(), 2u);
  ASSERT_EQ(g.graph().steps.size(), 2u);
  EXPECT_EQ(g.graph().steps[1].rank, 1u);
  EXPECT_DOUBLE_EQ(g.step_us(0), 150);
  EXPECT_DOUBLE_EQ(g.step_us(1), 250);
  EXPECT_EQ(g.into("k", 1), "launch cudaLaunchKernel>");
  for (std::uint32_t n = 0; n < g.graph().size(); ++n) {
    for (std::uint32_t e = g.graph().first_pred[n]; e < g.graph().first_pred[n + 1]; ++e) {
      if (g.graph().pred[e] == kNoNode) continue;
      ASSERT_EQ(g.graph().rank[raw(g.graph().pred[e])], g.graph().rank[n]);
    }
  }
  // rank 0's kernel x3 changes rank 0 alone
  g.build.graph.duration[raw(g.node("k", 0))] *= 3;
  g.again();
  EXPECT_DOUBLE_EQ(g.step_us(0), 350);
  EXPECT_DOUBLE_EQ(g.step_us(1), 250);
}

TEST(GraphRanks, OneGraphOfManyIsThatOfEach) {
  for (const unsigned threads : {1u, 2u}) {
    TraceSet set;
    for (int r = 0; r < 5; ++r) set.ranks.push_back(small_rank(r, 100 + 10 * r).finish());
    Built all(std::move(set), {.threads = threads});
    ASSERT_EQ(all.build.quality.size(), 5u);
    for (std::uint32_t r = 0; r < 5; ++r) {
      Built one(small_rank(r, 100 + 10 * r));
      EXPECT_EQ(all.quality(r).edges, one.quality().edges);
      EXPECT_DOUBLE_EQ(all.step_us(r), one.step_us());
      EXPECT_DOUBLE_EQ(all.start("k", r), one.start("k"));
      EXPECT_EQ(all.graph().ranks[r].rank, r);
      EXPECT_EQ(all.graph().ranks[r].trace, r);
    }
  }
}

TEST(GraphRanks, BuilderCanBeUsedAgain) {
  GraphBuilder builder;
  GraphBuild out;
  const TraceSet big = one_rank(small_rank(0, 500)), small = one_rank(small_rank(3, 100));
  ASSERT_TRUE(builder.build(big, {}, out).has_value());
  ASSERT_TRUE(builder.build(small, {}, out).has_value());
  const GraphBuild fresh = *build_graph(small);
  EXPECT_EQ(out.graph.duration, fresh.graph.duration);
  EXPECT_EQ(out.graph.pred_lag, fresh.graph.pred_lag);
  EXPECT_EQ(out.graph.pred, fresh.graph.pred);
  EXPECT_EQ(out.graph.steps.size(), 1u);
  EXPECT_EQ(out.quality.size(), 1u);
  EXPECT_TRUE(check(out.graph).has_value());
}

}  // namespace
}  // namespace orrery
