// What releases a GPU task: its launch and the task ahead on its stream. The numbers of the comments are the public
// reports of which each case is the smallest form.
#include <gtest/gtest.h>

#include "trace_builder.h"

namespace orrery {
namespace {

using testing::Built;
using testing::to_us;
using testing::TraceBuilder;
using testing::us;

// In the traces of this file a kernel starts 6 us after its launch call begins and 1 us after the task ahead of it,
// unless the case is about something else: so the learnt constants are these, and an undisturbed replay is exact.

TEST(GraphDevice, KernelStartsFromTheBeginOfItsLaunch) {
  TraceBuilder b;
  b.L("launch", 10, 20, 1);  // still running when its kernel starts
  b.kernel("k", 7, 16, 5, 1);
  Built g(std::move(b));
  EXPECT_EQ(g.into("k"), "launch launch>");
  EXPECT_DOUBLE_EQ(g.lag("launch>", "k"), 6);
  EXPECT_DOUBLE_EQ(g.start("k"), 6);  // the window starts with the call
  EXPECT_DOUBLE_EQ(g.end("launch<"), 20);
}

TEST(GraphDevice, KernelBeforeItsLaunchIsClampedAndCounted) {  // 19
  TraceBuilder b;
  b.L("cudaLaunchKernel", 10, 5, 1);
  b.kernel("k", 7, 9, 3, 1);
  Built g(std::move(b));
  EXPECT_EQ(g.into("k"), "launch cudaLaunchKernel>");
  EXPECT_GE(g.lag("cudaLaunchKernel>", "k"), 0);
  EXPECT_EQ(g.noted("kernel-before-launch"), 1u);
  EXPECT_EQ(g.noted("cycle-cut"), 0u);
  EXPECT_GE(g.start("k"), 1);  // the window starts at 9, the call begins at 10
}

// A clock fault puts a kernel ahead of its launch and, on its stream, ahead of one that the host waited for before that
// launch: the order of the stream then contradicts the order of the host.
//   thread   l1  sync(.......70)  l2(100)
//   7                 k2(50..51)  k1(60..65)
TEST(GraphDevice, CycleOfAClockFaultIsCutAndSaid) {  // 42
  TraceBuilder b;
  b.L("l1", 0, 4, 1);
  b.kernel("k1", 7, 60, 5, 1);
  b.L("cudaDeviceSynchronize", 20, 50, 2);
  b.L("l2", 100, 4, 3);
  b.kernel("k2", 7, 50, 1, 3);
  b.op("work", 104, 10);
  Built g(std::move(b));  // checks that predecessors come first
  EXPECT_EQ(g.noted("kernel-before-launch"), 1u);
  EXPECT_EQ(g.noted("cycle-cut"), 1u);
  EXPECT_EQ(g.dropped(EdgeKind::launch) + g.dropped(EdgeKind::stream) + g.dropped(EdgeKind::sync) +
                g.dropped(EdgeKind::thread),
            1u);
  EXPECT_LE(g.end("work<"), 114 + 20);
}

TEST(GraphDevice, AnyCallWhoseCorrelationHasGpuWorkIsALaunch) {  // 34
  for (const char* api : {"cudaLaunchKernel", "cuFooLaunch", "hipExtModuleLaunchKernel", "cuLaunchKernelEx"}) {
    TraceBuilder b;
    b.L(api, 0, 4, 1);
    b.kernel("k", 7, 6, 10, 1);
    Built g(std::move(b));
    EXPECT_EQ(g.into("k"), "launch " + std::string(api) + ">");
  }
}

TEST(GraphDevice, UnknownCorrelationsFallBackToTheOrderOfTheStream) {  // 35
  for (const std::int64_t unknown : {0, -1}) {
    TraceBuilder b;
    b.L("cudaLaunchKernel", 0, 4, unknown);
    b.kernel("k1", 7, 6, 10, unknown);
    b.kernel("k2", 7, 17, 10, unknown);
    b.kernel("k3", 7, 28, 10, unknown);
    Built g(std::move(b));
    EXPECT_EQ(g.into("k1"), "root window");
    EXPECT_EQ(g.into("k2"), "stream k1");
    EXPECT_EQ(g.into("k3"), "stream k2");
    EXPECT_EQ(g.noted("launch-unknown"), 3u);
    EXPECT_EQ(g.edges(EdgeKind::launch), 0u);
    EXPECT_DOUBLE_EQ(g.end("k3"), 38);
  }
}

TEST(GraphDevice, FlowsLinkOnlyWhatHasNoCorrelation) {  // 35, 37
  TraceBuilder b;
  b.L("launch1", 0, 4, 0);
  b.L("launch2", 10, 4, 2);
  const LaneId thread = b.thread_lane(1), stream = b.stream_lane(7);
  b.kernel("k1", 7, 6, 3, 0);
  b.kernel("k2", 7, 16, 3, 2);
  b.flow(FlowKind::ac2g, 5, 0, thread, 6, stream);
  b.flow(FlowKind::ac2g, 5, 0, thread, 6, stream);     // twice
  b.flow(FlowKind::ac2g, 6, 0, thread, 16, stream);    // wrong: k2's correlation says launch2
  b.flow(FlowKind::fwdbwd, 5, 10, thread, 6, stream);  // another kind of flow under the same id
  b.half_flow(FlowKind::ac2g, 9, 6, stream, true);     // without a start
  Built g(std::move(b));
  EXPECT_EQ(g.into("k1"), "launch launch1>");
  EXPECT_EQ(g.into("k2"), "launch launch2>, stream k1");
  EXPECT_EQ(g.noted("launch-by-flow"), 1u);
  EXPECT_EQ(g.noted("launch-unknown"), 0u);
}

TEST(GraphDevice, OneCorrelationOfTwoCallsBelongsToTheFirst) {
  TraceBuilder b;
  b.L("launch", 0, 4, 1);
  b.L("again", 20, 4, 1);
  b.kernel("k", 7, 6, 3, 1);
  Built g(std::move(b));
  EXPECT_EQ(g.into("k"), "launch launch>");
}

TEST(GraphDevice, TasksOfAStreamRunInOrder) {
  TraceBuilder b;
  b.L("l1", 0, 4, 1);
  b.L("l2", 4, 4, 2);
  b.kernel("k1", 7, 6, 20, 1);
  b.kernel("k2", 7, 27, 10, 2);
  Built g(std::move(b));
  EXPECT_EQ(g.into("k2"), "launch l2>, stream k1");
  EXPECT_DOUBLE_EQ(g.start("k2"), 27);
  EXPECT_DOUBLE_EQ(g.scale("k1", 3).start("k2"), 67);  // 6 + 3 * 20 + 1
}

TEST(GraphDevice, TwoThreadsLaunchOnOneStream) {  // 42
  TraceBuilder b;
  b.on(1).L("l1", 0, 4, 1);
  b.on(2).L("l2", 2, 4, 2);
  b.kernel("k1", 7, 6, 20, 1);
  b.kernel("k2", 7, 27, 10, 2);
  Built g(std::move(b));
  EXPECT_EQ(g.into("k1"), "launch l1>");
  EXPECT_EQ(g.into("k2"), "launch l2>, stream k1");
}

TEST(GraphDevice, SameStreamNumberOfTwoDevicesIsTwoStreams) {
  TraceBuilder b;
  b.L("l1", 0, 4, 1);
  b.L("l2", 4, 4, 2);
  b.row(OpKind::kernel, "k1", b.stream_lane(7, 0), 6, 20, 1);
  b.row(OpKind::kernel, "k2", b.stream_lane(7, 1), 10, 10, 2);
  Built g(std::move(b));
  EXPECT_EQ(g.into("k1"), "launch l1>");
  EXPECT_EQ(g.into("k2"), "launch l2>");
}

TEST(GraphDevice, DependentLaunchOverlapIsANegativeLag) {  // 21
  TraceBuilder b;
  b.L("l1", -3, 1, 1);
  b.L("l2", -1, 1, 2);
  b.kernel("A", 7, 3, 3.776, 1);
  b.kernel("B", 7, 5, 2, 2);
  Built g(std::move(b));
  EXPECT_EQ(g.into("B"), "launch l2>, stream A");
  EXPECT_DOUBLE_EQ(g.lag("A", "B"), 5 - 6.776);
  EXPECT_DOUBLE_EQ(g.start("B"), 3 + 5);
  EXPECT_DOUBLE_EQ(g.end("B"), 3 + 7);
  EXPECT_EQ(g.noted("stream-overlap"), 0u);
  // Both move together when A starts later or runs longer.
  EXPECT_NEAR(g.scale("A", 2).start("B"), 3 + 5 + 3.776, 1e-9);
}

TEST(GraphDevice, FarOverlapIsNoOrder) {
  TraceBuilder b;
  b.L("l1", -6, 1, 1);
  b.L("l2", 4, 1, 2);
  b.kernel("A", 7, 0, 100, 1);
  b.kernel("B", 7, 10, 20, 2);
  Built g(std::move(b));
  EXPECT_EQ(g.noted("stream-overlap"), 1u);
  EXPECT_EQ(g.into("B"), "launch l2>");
  EXPECT_DOUBLE_EQ(g.start("B"), 16);
  EXPECT_DOUBLE_EQ(g.duration("A"), 100);  // one later start inside it: not taken for a broken duration
}

TEST(GraphDevice, TaskAfterAnOverlapWaitsForBoth) {
  TraceBuilder b;
  b.L("l1", -6, 1, 1);
  b.L("l2", 4, 1, 2);
  b.L("l3", 6, 1, 3);
  b.kernel("A", 7, 0, 100, 1);
  b.kernel("B", 7, 10, 20, 2);  // inside A
  b.kernel("C", 7, 101, 5, 3);  // right after A
  Built g(std::move(b));
  EXPECT_EQ(g.into("C"), "launch l3>, stream A, stream B");
  EXPECT_DOUBLE_EQ(g.start("C"), 107);
  EXPECT_EQ(g.quality().stalls, 0u);
}

TEST(GraphDevice, DurationThatRunsPastLaterTasksIsClipped) {  // 22
  TraceBuilder b;
  for (int i = 0; i < 100; ++i) {
    b.launched("k" + std::to_string(i), 20 * i, 4, 7, 20 * i + 6, i == 40 ? 2'000'000 : 10);
  }
  Built g(std::move(b));
  EXPECT_EQ(g.noted("duration-overrun"), 1u);
  EXPECT_DOUBLE_EQ(g.duration("k40"), 20);      // up to the start of the next
  EXPECT_NEAR(g.start("k41"), 20 * 41 + 6, 1);  // the stream's lag after the clipped end
  EXPECT_DOUBLE_EQ(g.end("k99"), 20 * 99 + 16);
}

TEST(GraphDevice, OverrunIsFoundInALongTrace) {  // 23: 2 s of 60 s must not hide in a share of the span
  TraceBuilder b;
  for (int i = 0; i < 1000; ++i) {
    b.launched("k" + std::to_string(i), 60'000 * i, 4, 7, 60'000 * i + 6, i == 500 ? 2'000'000 : 10);
  }
  Built g(std::move(b));
  EXPECT_EQ(g.noted("duration-overrun"), 1u);
  EXPECT_DOUBLE_EQ(g.duration("k500"), 60'000);
}

TEST(GraphDevice, TasksThatStartTogetherAreNoOverrun) {  // 23: tick collisions of a healthy trace
  TraceBuilder b;
  b.L("l1", 0, 2, 1);
  b.L("l2", 2, 2, 2);
  b.L("l3", 4, 2, 3);
  b.kernel("k1", 7, 10, 1, 1);
  b.kernel("k2", 7, 10, 1, 2);
  b.kernel("k3", 7, 11, 1, 3);
  Built g(std::move(b));
  EXPECT_EQ(g.noted("duration-overrun"), 0u);
  EXPECT_EQ(g.into("k2"), "launch l2>, stream k1");
  EXPECT_DOUBLE_EQ(g.duration("k1"), 1);
}

TEST(GraphDevice, TaskWithoutLengthKeepsItsPlace) {  // 25
  TraceBuilder b;
  b.L("l1", 0, 2, 1);
  b.L("l2", 2, 2, 2);
  b.L("l3", 4, 2, 3);
  b.kernel("k1", 7, 6, 14, 1);
  b.X("Memset (Device)", "gpu_memset", 7, 20, 0, 2);  // at the very end of k1
  b.kernel("k3", 7, 21, 4, 3);
  Built g(std::move(b));
  EXPECT_EQ(g.into("Memset (Device)"), "launch l2>, stream k1");
  EXPECT_EQ(g.into("k3"), "launch l3>, stream Memset (Device)");
  EXPECT_DOUBLE_EQ(g.duration("Memset (Device)"), 0);
}

TEST(GraphDevice, QueuelessCopiesSideBySideAreNotChained) {  // 50: AMD's copies all land on stream 0
  TraceBuilder b;
  b.L("hipMemcpyAsync", 0, 4, 1);
  b.X("CopyHostToDevice", "gpu_memcpy", 0, 6, 100, 1);
  b.L("hipMemcpyWithStream", 40, 4, 2);
  b.X("CopyDeviceToHost", "gpu_memcpy", 0, 46, 100, 2);
  b.L("hipLaunchKernel", 50, 4, 3);
  b.kernel("k", 3, 56, 10, 3);
  Built g(std::move(b));
  EXPECT_EQ(g.into("CopyDeviceToHost"), "launch hipMemcpyWithStream>");
  EXPECT_EQ(g.into("k"), "launch hipLaunchKernel>");
  EXPECT_DOUBLE_EQ(g.scale("CopyHostToDevice", 3).start("CopyDeviceToHost"), 46);
}

TEST(GraphDevice, WorkFromBeforeTheWindowIsTheInitialState) {
  TraceBuilder b;
  b.kernel("old1", 7, 0, 10);
  b.kernel("old2", 7, 11, 10);    // back to back: held by the stream
  b.kernel("old3", 20, 30, 10);   // its own start is all that is known
  b.kernel("old4", 20, 100, 10);  // after a pause: the same
  b.L("l", 5, 4, 9);
  b.kernel("new", 7, 22, 10, 9);
  for (const std::uint32_t row : {0u, 1u, 2u, 3u}) b.t.ops.corr[row] = 100 + row;  // correlations without a call
  Built g(std::move(b));
  EXPECT_EQ(g.into("old1"), "root window");
  EXPECT_EQ(g.into("old2"), "stream old1");
  EXPECT_EQ(g.into("old3"), "root window");
  EXPECT_EQ(g.into("old4"), "root window, stream old3");
  EXPECT_EQ(g.into("new"), "launch l>, stream old2");
  for (const char* k : {"old1", "old2", "old3", "old4", "new"}) {
    const NodeId n = g.node(k);
    EXPECT_EQ(g.run.start[raw(n)], g.graph().observed_start[raw(n)]) << k;
  }
}

TEST(GraphDevice, ConstantLagsAreLearnt) {
  TraceBuilder b;
  double at = 0;
  std::int64_t corr = 0;
  for (int i = 0; i < 50; ++i) {  // bursts of two: the first waits for its launch (8.5 us), the second for it (1.7 us)
    b.L("l", at, 3, ++corr);
    b.kernel("a", 7, at + 8.5, 30, corr);
    b.L("l", at + 3, 3, ++corr);
    b.kernel("b", 7, at + 8.5 + 30 + 1.7, 5, corr);
    b.L("l", at + 6, 3, ++corr);  // a copy is faster from the call: a constant of its own
    b.X("Memcpy DtoD", "gpu_memcpy", 20, at + 6 + 4.25, 2, corr);
    at += 100;
  }
  Built g(std::move(b));
  const LagTable& lags = g.graph().ranks[0].lags;
  EXPECT_EQ(lags.at(EdgeKind::launch, NodeKind::host, NodeKind::kernel), us(8.5));
  EXPECT_EQ(lags.at(EdgeKind::stream, NodeKind::kernel, NodeKind::kernel), us(1.7));
  EXPECT_EQ(lags.at(EdgeKind::launch, NodeKind::host, NodeKind::memcpy), us(4.25));
  for (std::uint32_t n = 0; n < g.graph().size(); ++n) {
    if (g.graph().kind[n] == NodeKind::host) continue;
    ASSERT_EQ(g.run.start[n], g.graph().observed_start[n]);
  }
}

// One lag for each kind of edge, never one for each edge: a kernel that started late once is not late in the replay.
TEST(GraphDevice, LagsAreNoRecording) {
  TraceBuilder b;
  for (int i = 0; i < 20; ++i) {
    const double late = i == 7 ? 15 : 0;
    b.launched("k" + std::to_string(i), 100 * i, 4, 7, 100 * i + 6 + late, 10);
  }
  Built g(std::move(b));
  EXPECT_DOUBLE_EQ(g.start("k7"), 706);
  EXPECT_EQ(g.quality().stalls, 0u);
  EXPECT_EQ(g.quality().unexplained_idle_ns, us(15));
}

TEST(GraphDevice, LongPauseIsAStallThatIsCountedAndCanBeLeftOut) {
  auto trace = [] {
    TraceBuilder b;
    b.step(3, 0, 1200);
    for (int i = 0; i < 10; ++i) {
      const double late = i >= 7 ? 300 : 0;  // the device pauses before k7 with work queued
      b.launched("k" + std::to_string(i), 10 * i, 4, 7, 10 * i + 6 + late, 9);
    }
    return b;
  };
  Built g(trace());
  EXPECT_EQ(g.quality().stalls, 1u);
  EXPECT_EQ(g.quality().stall_ns, us(300));
  EXPECT_EQ(g.quality().unexplained_idle_ns, us(300));
  EXPECT_EQ(g.into("k7"), "stall stall:k7");
  EXPECT_EQ(g.into("stall:k7"), "launch cudaLaunchKernel>, stream k6");
  EXPECT_DOUBLE_EQ(g.start("k7"), 376);
  EXPECT_DOUBLE_EQ(g.start("k8"), 386);

  Built without(trace(), {.without_edges = 1u << static_cast<unsigned>(EdgeKind::stall)});
  EXPECT_EQ(without.quality().stalls, 0u);
  EXPECT_EQ(without.find("stall:k7"), kNoNode);
  EXPECT_DOUBLE_EQ(without.start("k7"), 76);
  EXPECT_EQ(without.quality().unexplained_idle_ns, us(300));

  EXPECT_EQ(Built(trace(), {.stall_threshold = us(301)}).quality().stalls, 0u);
  EXPECT_EQ(Built(trace(), {.stall_threshold = us(299)}).quality().stalls, 1u);
}

// The first launch of a kernel loads its module: the call takes long and the kernel follows its end. That is host time,
// not a pause of the device, and shrinks with the host.
TEST(GraphDevice, LaunchThatLoadsAModuleReleasesAtItsEnd) {
  TraceBuilder b;
  b.launched("k0", 0, 4, 7, 6, 9);
  b.launched("k1", 10, 4, 7, 16, 9);
  b.L("loading", 30, 40'000, 1);
  b.kernel("k2", 7, 40'031, 10, 1);
  b.launched("k3", 40'040, 4, 7, 40'046, 9);
  Built g(std::move(b));
  EXPECT_EQ(g.quality().stalls, 0u);
  EXPECT_NEAR(g.start("k2"), 40'031, 10);
  g.scale(NodeKind::host, 0.5);
  EXPECT_NEAR(g.start("k2"), 20'015, 12);
}

// ---- graph launches: one call, many tasks ----

TEST(GraphDevice, GraphLaunchOwnsManyTasksOnTwoStreams) {
  TraceBuilder b;
  b.L("cudaGraphLaunch", 0, 10, 1);
  b.kernel("a1", 7, 12, 10, 1);
  b.kernel("a2", 7, 23, 10, 1);
  b.kernel("b1", 20, 23, 30, 1);  // forked off a1
  b.kernel("a3", 7, 54, 10, 1);   // joins b1
  b.L("cudaLaunchKernel", 20, 4, 2);
  b.kernel("after", 7, 65, 5, 2);
  Built g(std::move(b));
  EXPECT_EQ(g.into("a1"), "launch cudaGraphLaunch>");
  EXPECT_EQ(g.into("a2"), "graph a1");
  EXPECT_EQ(g.into("b1"), "graph a1, launch cudaGraphLaunch>");
  EXPECT_EQ(g.into("a3"), "graph a2, graph b1");
  EXPECT_EQ(g.into("after"), "event b1, launch cudaLaunchKernel>, stream a3");
  EXPECT_DOUBLE_EQ(g.start("a3"), 54);
  EXPECT_NEAR(g.scale("b1", 2).start("a3"), 84, 0.01);
}

TEST(GraphDevice, GraphLaunchWaitsForTheWholeOfTheLaunchBefore) {
  TraceBuilder b;
  for (int i = 0; i < 3; ++i) {
    const double at = 100 * i;
    const std::string n = std::to_string(i);
    b.L("cudaGraphLaunch", at, 10, i + 1);
    b.kernel("a" + n, 7, at + 12, 20, i + 1);
    b.kernel("b" + n, 20, at + 33, 60, i + 1);
  }
  Built g(std::move(b));
  EXPECT_EQ(g.into("a1"), "event b0, launch cudaGraphLaunch>, stream a0");
  EXPECT_EQ(g.into("b1"), "graph a1, stream b0");
  EXPECT_DOUBLE_EQ(g.end("b2"), 293);
}

TEST(GraphDevice, CommunicationIsToldByItsArgumentsThenByName) {  // 28, 29
  TraceBuilder b;
  const char* const comm_names[] = {"ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                                    "nccldevkernel_allreduce",
                                    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t",
                                    "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
                                    "void dpsk::ep::internode::dispatch<128>(int4*, float*)",
                                    "void vllm::cross_device_reduce_1stage<__half, 8>(vllm::RankData*)",
                                    "mscclKernel_Sum_half_LL",
                                    "nvshmemi_put_kernel"};
  const char* const compute_names[] = {"ampere_bf16_s16816gemm", "triton_red_fused_sum_0", "reduce_kernel<512, 1>", ""};
  double at = 0;
  auto launched = [&](const char* name) {
    at += 20;
    return b.launched(name, at, 4, 7, at + 6, 5);
  };
  for (const char* n : comm_names) launched(n);
  for (const char* n : compute_names) launched(n);
  const OpId generic = launched("GenericKernel");
  b.describe(generic, {.collective = "allreduce"});
  Built g(std::move(b));
  for (const char* n : comm_names) EXPECT_EQ(g.graph().kind[raw(g.node(n))], NodeKind::comm) << n;
  for (const char* n : compute_names) EXPECT_EQ(g.graph().kind[raw(g.node(n))], NodeKind::kernel) << n;
  EXPECT_EQ(g.graph().kind[raw(g.node("GenericKernel"))], NodeKind::comm);
  EXPECT_TRUE(is_communication(g.traces.ranks[0], generic));
  EXPECT_FALSE(is_communication_name("cudaMemcpyAsync"));
}

// ---- depth of the launch queue ----

// Kernels of 50 us on one stream, launched as fast as a queue of 1,024 takes them: launch i returns when kernel i -
// 1,024 starts. A launch takes 4 us of host time. The queue grows by one place in 51 / (51 - 4) launches and is full at
// 1,111.
TraceBuilder queued(int launches, double host, double kernel) {
  TraceBuilder b;
  std::vector<double> starts;
  double at = 0;
  for (int i = 0; i < launches; ++i) {
    const double begin = at;
    if (i >= 1024) at = std::max(at, starts[static_cast<std::size_t>(i - 1024)]);
    at += 4 * host;
    const double free = i == 0 ? 0 : starts.back() + 50 * kernel + 1;
    starts.push_back(std::max(begin + 6, free));
    b.L("l" + std::to_string(i), begin, at - begin, i + 1);
    b.kernel("k" + std::to_string(i), 7, starts.back(), 50 * kernel, i + 1);
  }
  b.op("end", at, 10 * host);
  return b;
}

// When the host is done, as the trace has it.
double truth_end(const Built& g) { return to_us(g.traces.ranks[0].ops.end(g.traces.ranks[0].ops.size() - 1)); }

TEST(GraphDevice, FullLaunchQueueIsAWaitOfTheLaunchCall) {
  Built g(queued(1300, 1, 1));
  EXPECT_EQ(g.into("l1024<"), "queue k0, thread l1024>");
  EXPECT_EQ(g.into("l1299<"), "queue k275, thread l1299>");
  EXPECT_EQ(g.into("l1023<"), "thread l1023>");
  EXPECT_DOUBLE_EQ(g.duration("l1299<"), 4);  // the rest of the call was the wait
  EXPECT_EQ(g.dropped(EdgeKind::queue), 0u);
  EXPECT_EQ(g.noted("queue-depth-unknown"), 0u);
  for (const auto& [host, kernel] : {std::pair{0.5, 1.0}, {2, 1}, {20, 1}, {1, 0.1}, {1, 3}, {0.5, 3}}) {
    Built truth(queued(1300, host, kernel));
    Built changed(queued(1300, 1, 1));
    changed.scale(NodeKind::host, host).scale(NodeKind::kernel, kernel);
    EXPECT_NEAR(changed.end("end<"), truth_end(truth), 0.01) << host << " " << kernel;
    EXPECT_NEAR(changed.start("k1299"), truth.start("k1299"), 0.01) << host << " " << kernel;
  }
}

// 1,100 launches reach a depth of 1,013 and none blocks: that says nothing of the queue's size.
TEST(GraphDevice, DeepQueueThatNeverBlockedIsNotTakenForFull) {
  Built truth(queued(1100, 1, 3));
  Built changed(queued(1100, 1, 1));
  changed.scale(NodeKind::kernel, 3);
  EXPECT_NEAR(changed.end("end<"), truth.end("end<"), 0.01);
}

}  // namespace
}  // namespace orrery
