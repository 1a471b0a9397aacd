// Event records and waits between streams: read from cuda_sync rows, and inferred where there are none.
#include <gtest/gtest.h>

#include "trace_builder.h"

namespace orrery {
namespace {

using testing::Built;
using testing::TraceBuilder;

const GraphOptions kHidden{.hide_sync_events = true};

// A kernel starts 6 us after its launch call begins, and 1 us after the task ahead of it and those that it waits for.

// ---- with cuda_sync rows ----

TEST(GraphEvents, RecordIsOfItsOwnStream) {  // 38: not of the stream of the thread's last launch
  TraceBuilder b;
  b.L("l1", 0, 3, 1);
  b.kernel("k1", 20, 6, 50, 1);
  b.L("l2", 5, 3, 2);
  b.kernel("k2", 28, 11, 100, 2);
  b.record(9, 1, 3);
  b.wait(11, 1, 4, 24, 20, 3);
  b.L("l3", 13, 3, 5);
  b.kernel("k3", 24, 57, 5, 5);
  Built g(std::move(b));
  EXPECT_EQ(g.into("k3"), "event k1, launch l3>");
  EXPECT_EQ(g.into("k1"), "launch l1>");
  EXPECT_EQ(g.into("k2"), "launch l2>");
  EXPECT_EQ(g.quality().event_edges_by_sync, 1u);
  EXPECT_EQ(g.quality().event_edges_inferred, 0u);
  EXPECT_DOUBLE_EQ(g.start("k3"), 57);
  EXPECT_DOUBLE_EQ(g.scale("k2", 3).start("k3"), 57);
  EXPECT_DOUBLE_EQ(g.scale("k1", 3).start("k3"), 157);
}

TEST(GraphEvents, RecordMarksItsPlaceInTheStream) {
  TraceBuilder b;
  b.L("l1", 0, 2, 1);
  b.kernel("k1", 20, 6, 50, 1);
  b.record(3, 1, 2);
  b.L("l2", 5, 2, 3);
  b.kernel("k2", 20, 57, 50, 3);  // after the record: not waited for
  b.wait(8, 1, 4, 24, 20, 2);
  b.L("l3", 10, 2, 5);
  b.kernel("k3", 24, 57, 5, 5);
  b.L("l4", 13, 2, 6);
  b.kernel("k4", 24, 63, 5, 6);  // held by k3
  Built g(std::move(b));
  EXPECT_EQ(g.into("k3"), "event k1, launch l3>");
  EXPECT_EQ(g.into("k4"), "launch l4>, stream k3");
}

TEST(GraphEvents, WaitsAreTransitive) {
  TraceBuilder b;
  b.L("l1", 0, 2, 1);
  b.kernel("k1", 20, 6, 50, 1);
  b.record(3, 1, 2);
  b.wait(5, 1, 3, 99, 20, 2);  // stream 99 runs nothing, as NCCL's own
  b.record(7, 1, 4);
  b.wait(9, 1, 5, 24, 99, 4);
  b.L("l2", 11, 2, 6);
  b.kernel("k2", 24, 57, 5, 6);
  Built g(std::move(b));
  EXPECT_EQ(g.into("k2"), "event k1, launch l2>");
  EXPECT_DOUBLE_EQ(g.scale("k1", 2).start("k2"), 107);
}

TEST(GraphEvents, AllWaitsBeforeOneKernelAreKept) {
  TraceBuilder b;
  b.L("l1", 0, 2, 1);
  b.kernel("k1", 20, 6, 50, 1);
  b.L("l2", 2, 2, 2);
  b.kernel("k2", 28, 8, 60, 2);
  b.record(5, 1, 3);
  b.record(6, 1, 4);
  b.wait(8, 1, 5, 24, 20, 3);
  b.wait(9, 1, 6, 24, 28, 4);
  b.L("l3", 11, 2, 7);
  b.kernel("k3", 24, 69, 5, 7);
  Built g(std::move(b));
  EXPECT_EQ(g.into("k3"), "event k1, event k2, launch l3>");
  EXPECT_DOUBLE_EQ(g.scale("k1", 3).start("k3"), 157);
}

TEST(GraphEvents, EventRecordedAgainMeansTheRecordThatIsNamed) {
  TraceBuilder b;
  b.L("l1", 0, 2, 1);
  b.kernel("k1", 20, 6, 10, 1);
  b.record(3, 1, 2);
  b.L("l2", 5, 2, 3);
  b.kernel("k2", 20, 17, 10, 3);
  b.record(8, 1, 4);  // the same event
  b.wait(10, 1, 5, 24, 20, 4);
  b.L("l3", 12, 2, 6);
  b.kernel("k3", 24, 28, 5, 6);
  Built g(std::move(b));
  EXPECT_EQ(g.into("k3"), "event k2, launch l3>");
}

TEST(GraphEvents, WaitOnARecordOfTheFutureIsIgnored) {  // 39
  TraceBuilder b;
  b.L("l1", 0, 2, 1);
  b.kernel("k1", 20, 6, 50, 1);
  b.record(3, 1, 100);
  b.wait(5, 1, 101, 24, 20, 200);
  b.L("l2", 7, 2, 102);
  b.kernel("k2", 24, 13, 5, 102);
  b.record(20, 1, 200);
  Built g(std::move(b));
  EXPECT_EQ(g.into("k2"), "launch l2>");
  EXPECT_EQ(g.noted("cycle-cut"), 0u);
  EXPECT_EQ(g.edges(EdgeKind::event), 0u);
}

TEST(GraphEvents, WaitOnWhatWasNeverRecordedIsNothing) {
  for (const std::int64_t record : {0, 77}) {  // never recorded; recorded before the window
    TraceBuilder b;
    b.L("l1", 0, 2, 101);
    b.kernel("k1", 20, 6, 50, 101);
    b.wait(5, 1, 102, 24, 20, record);
    b.L("l2", 7, 2, 103);
    b.kernel("k2", 24, 13, 5, 103);
    Built g(std::move(b));
    EXPECT_EQ(g.into("k2"), "launch l2>");
    EXPECT_EQ(g.edges(EdgeKind::event), 0u);
  }
}

TEST(GraphEvents, UnknownRecordIsInferred) {  // 39: -1
  TraceBuilder b;
  b.L("l1", 0, 2, 1);
  b.kernel("k1", 20, 6, 50, 1);
  b.record(3, 1, 2);
  b.wait(5, 1, 3, 24, -1, -1);
  b.L("l2", 7, 2, 4);
  b.kernel("k2", 24, 57, 5, 4);
  Built g(std::move(b));
  EXPECT_EQ(g.into("k2"), "event k1, launch l2>");
  EXPECT_EQ(g.quality().event_edges_inferred, 1u);
}

TEST(GraphEvents, RecordAfterWorkFromBeforeTheWindow) {
  TraceBuilder b;
  b.kernel("old", 20, 0, 50, 1);
  b.record(3, 1, 2);
  b.wait(5, 1, 3, 24, 20, 2);
  b.L("l", 7, 2, 4);
  b.kernel("k", 24, 51, 5, 4);
  Built g(std::move(b));
  EXPECT_EQ(g.into("k"), "event old, launch l>");
}

TEST(GraphEvents, WaitWithoutLaterWorkIsNothing) {
  TraceBuilder b;
  b.L("l1", 0, 2, 1);
  b.kernel("k1", 20, 6, 50, 1);
  b.L("l2", 2, 2, 2);
  b.kernel("k2", 24, 8, 5, 2);
  b.record(5, 1, 3);
  b.wait(7, 1, 4, 24, 20, 3);
  Built g(std::move(b));
  EXPECT_EQ(g.into("k2"), "launch l2>");
  EXPECT_EQ(g.edges(EdgeKind::event), 0u);
}

TEST(GraphEvents, EdgeThatTheTimesContradictIsDroppedAndCounted) {
  TraceBuilder b;
  b.L("l1", 0, 2, 1);
  b.kernel("k1", 20, 6, 50, 1);
  b.record(3, 1, 2);
  b.wait(5, 1, 3, 24, 20, 2);
  b.L("l2", 7, 2, 4);
  b.kernel("k2", 24, 13, 5, 4);  // runs beside k1: it cannot have waited
  Built g(std::move(b));
  EXPECT_EQ(g.into("k2"), "launch l2>");
  EXPECT_EQ(g.dropped(EdgeKind::event), 1u);
  EXPECT_EQ(g.quality().event_edges_by_sync, 0u);
}

TEST(GraphEvents, StreamsOfTwoDevicesWithOneNumberAreTold) {
  TraceBuilder b;
  b.L("l0", 0, 2, 1);
  b.row(OpKind::kernel, "other", b.stream_lane(20, 0), 6, 20, 1);
  b.L("l1", 3, 2, 2);
  b.row(OpKind::kernel, "k1", b.stream_lane(20, 1), 9, 50, 2);
  b.record(6, 1, 3);
  b.t.sync_args.kind.push_back(SyncKind::stream_wait_event);
  b.t.sync_args.stream.push_back(24);
  b.t.sync_args.wait_stream.push_back(20);
  b.t.sync_args.wait_record_corr.push_back(3);
  b.t.sync_args.wait_event.push_back(1);
  b.row(OpKind::sync, "Stream Wait Event", b.stream_lane(24, 1), 8, 1, 4, 0);  // of device 1
  b.L("cudaStreamWaitEvent", 8, 1, 4);
  b.L("l2", 10, 2, 5);
  b.row(OpKind::kernel, "k2", b.stream_lane(24, 1), 60, 5, 5);
  Built g(std::move(b));
  EXPECT_EQ(g.into("k2"), "event k1, launch l2>");
}

// ---- without cuda_sync rows ----

// PyTorch's pattern of calls round one collective on stream 16 (NCCL's own stream is 20): before it, stream 16 waits
// for compute stream 7. With cuda_sync rows, so that hiding them can be told from reading them. Takes 24 us of the
// thread from `ts`; the launch begins 10 us in.
struct Collective {
  double ts;
  std::string name;
  double start, dur;      // of the kernel
  std::int64_t corr;      // of the first call; the end record is corr + 6
  bool annotated = true;  // there is an nccl:* range
  std::int64_t stream = 16;
};
void write(TraceBuilder& b, const Collective& c) {
  b.op("c10d::allreduce_", c.ts, 24);
  b.op("record_param_comms", c.ts + 1, 22);
  b.record(c.ts + 2, 1, c.corr);  // compute is up to here
  b.wait(c.ts + 3, 1, c.corr + 1, c.stream, 7, c.corr);
  if (c.annotated) b.range("nccl:all_reduce", c.ts + 5, 14);
  b.record(c.ts + 6, 1, c.corr + 2);
  b.wait(c.ts + 7, 1, c.corr + 3, c.stream, 20, c.corr + 2);
  b.L("launch_" + c.name, c.ts + 10, 3, c.corr + 4);
  b.kernel(c.name, c.stream, c.start, c.dur, c.corr + 4);
  b.record(c.ts + 14, 1, c.corr + 5);
  b.wait(c.ts + 16, 1, c.corr + 7, 20, c.stream, c.corr + 5);  // the trap: NCCL's own stream waits, not compute
  b.record(c.ts + 20, 1, c.corr + 6);                          // the end of the work, for its wait()
}
// Work.wait(): compute waits for the collective.
void write_wait(TraceBuilder& b, double ts, std::int64_t corr, const Collective& c) {
  b.op("record_param_comms", ts, 4);
  b.wait(ts + 1, 1, corr, 7, c.stream, c.corr + 6);
}

// One all-reduce beside compute, then its wait.
//   thread   l1 [record wait [record wait launch record wait] record] l2            [wait] l3
//   7           k1(6..56)                                             k2(57..97)           k3(158..168)
//   16                        allreduce(57..157)
TraceBuilder one_collective(bool annotated = true) {
  TraceBuilder b;
  b.L("l1", 0, 3, 1);
  b.kernel("k1", 7, 6, 50, 1);
  const Collective c{5, "ncclDevKernel_AllReduce", 57, 100, 10, annotated};
  write(b, c);
  b.L("l2", 35, 3, 30);
  b.kernel("k2", 7, 57, 40, 30);
  write_wait(b, 45, 31, c);
  b.L("l3", 55, 3, 32);
  b.kernel("k3", 7, 158, 10, 32);
  return b;
}

TEST(GraphEvents, OverlapOfACollectiveSurvives) {
  for (const bool annotated : {true, false}) {
    for (const bool hidden : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "annotated " << annotated << " hidden " << hidden);
      Built g(one_collective(annotated), {.hide_sync_events = hidden});
      EXPECT_EQ(g.into("ncclDevKernel_AllReduce"), "event k1, launch launch_ncclDevKernel_AllReduce>");
      EXPECT_EQ(g.into("k2"), "launch l2>, stream k1");
      EXPECT_EQ(g.into("k3"), "event ncclDevKernel_AllReduce, launch l3>, stream k2");
      EXPECT_EQ(g.dropped(EdgeKind::event), 0u);
      EXPECT_DOUBLE_EQ(g.start("k3"), 158);
      // A longer collective delays k3, not k2; a longer k2 is still hidden behind it.
      EXPECT_DOUBLE_EQ(g.scale("ncclDevKernel_AllReduce", 3).start("k2"), 57);
      EXPECT_DOUBLE_EQ(g.start("k3"), 57 + 300 + 1);
      EXPECT_DOUBLE_EQ(g.scale("k2", 3).start("k3"), 358);
    }
  }
}

// Where the collective is short, the trap's edge (compute after communication) is not contradicted by the times: k2
// starts late for other reasons. Then only the place of the call tells that the wait is NCCL's own.
TEST(GraphEvents, TrapWaitDoesNotSerialiseComputeBehindCommunication) {
  for (const bool annotated : {true, false}) {
    SCOPED_TRACE(annotated);
    TraceBuilder b;
    b.L("l1", 0, 3, 1);
    b.kernel("k1", 7, 6, 5, 1);
    const Collective c{5, "ncclDevKernel_AllReduce", 21, 8, 10, annotated};
    write(b, c);
    b.L("l2", 40, 3, 30);
    b.kernel("k2", 7, 46, 40, 30);
    write_wait(b, 50, 31, c);
    b.L("l3", 60, 3, 32);
    b.kernel("k3", 7, 87, 10, 32);
    Built g(std::move(b), kHidden);
    EXPECT_EQ(g.into("ncclDevKernel_AllReduce"), "event k1, launch launch_ncclDevKernel_AllReduce>");
    EXPECT_EQ(g.into("k2"), "launch l2>, stream k1");
    EXPECT_EQ(g.into("k3"), "event ncclDevKernel_AllReduce, launch l3>, stream k2");
  }
}

// Two collectives on two streams are open. Waits come last in, first out.
//   7    k1  k2(57..60)     k3   k4
//   16          first(57..100)
//   18          second(60..90)
TraceBuilder two_open(double k3_start, double k4_start) {
  TraceBuilder b;
  b.L("l1", 0, 3, 1);
  b.kernel("k1", 7, 6, 50, 1);
  write(b, {5, "ncclDevKernel_first", 57, 143, 10});
  write(b, {30, "ncclDevKernel_second", 57, 93, 20, true, 18});
  b.op("record_param_comms", 60, 4);
  b.bare_wait(61, 1, 40);
  b.L("l3", 66, 3, 41);
  b.kernel("k3", 7, k3_start, 5, 41);
  b.op("record_param_comms", 70, 4);
  b.bare_wait(71, 1, 42);
  b.L("l4", 76, 3, 43);
  b.kernel("k4", 7, k4_start, 5, 43);
  return b;
}

TEST(GraphEvents, OpenCollectivesAreWaitedForLastInFirstOut) {
  Built g(two_open(151, 201), kHidden);
  EXPECT_EQ(g.into("k3"), "event ncclDevKernel_second, launch l3>, stream k1");
  EXPECT_EQ(g.into("k4"), "event ncclDevKernel_first, launch l4>, stream k3");
  // first in, first out would be as possible by the times here: second ends before both
  Built late(two_open(201, 207), kHidden);
  EXPECT_EQ(late.into("k3"), "event ncclDevKernel_second, launch l3>, stream k1");
  EXPECT_EQ(late.into("k4"), "event ncclDevKernel_first, launch l4>, stream k3");
}

TEST(GraphEvents, TimesOverrideTheOrderOfOpenCollectives) {
  // second (57..150) still runs when k3 starts: so k3 waits for what ended before
  TraceBuilder b;
  b.L("l1", 0, 3, 1);
  b.kernel("k1", 7, 6, 50, 1);
  write(b, {5, "ncclDevKernel_first", 57, 43, 10});
  write(b, {30, "ncclDevKernel_second", 57, 93, 20, true, 18});
  b.op("record_param_comms", 60, 4);
  b.bare_wait(61, 1, 40);
  b.L("l3", 66, 3, 41);
  b.kernel("k3", 7, 101, 5, 41);
  b.op("record_param_comms", 70, 4);
  b.bare_wait(71, 1, 42);
  b.L("l4", 76, 3, 43);
  b.kernel("k4", 7, 151, 5, 43);
  Built g(std::move(b), kHidden);
  EXPECT_EQ(g.into("k3"), "event ncclDevKernel_first, launch l3>, stream k1");
  EXPECT_EQ(g.into("k4"), "event ncclDevKernel_second, launch l4>, stream k3");
}

// The end of a data-parallel backward: the autograd thread waits for the gradients and launches nothing more; the
// optimizer's launch on the main thread is held by that wait.
TEST(GraphEvents, WaitWithoutALaterLaunchOnItsThreadHoldsTheNextOfAnyThread) {
  TraceBuilder b;
  b.on(2);
  b.L("l1", 0, 3, 1);
  b.kernel("k1", 7, 6, 50, 1);
  const Collective c{5, "ncclDevKernel_AllReduce", 57, 100, 10};
  write(b, c);
  write_wait(b, 40, 31, c);
  b.on(1);
  b.L("l2", 60, 3, 32);
  b.kernel("adam", 7, 158, 10, 32);
  Built g(std::move(b), kHidden);
  EXPECT_EQ(g.into("adam"), "event ncclDevKernel_AllReduce, launch l2>, stream k1");
}

// Batched point-to-point: the send and recv operators launch nothing, one kernel without arguments follows.
TEST(GraphEvents, BatchedSendAndReceive) {
  for (const bool hidden : {false, true}) {
    SCOPED_TRACE(hidden);
    TraceBuilder b;
    b.L("l1", 0, 3, 1);
    b.kernel("k1", 7, 6, 50, 1);
    b.op("c10d::send", 5, 8);
    b.op("record_param_comms", 6, 5);
    b.op("c10d::recv_", 14, 8);
    b.op("record_param_comms", 15, 5);
    b.record(24, 1, 10);
    b.wait(26, 1, 11, 24, 7, 10);
    b.range("nccl:coalesced", 28, 16);
    b.record(29, 1, 12);
    b.wait(31, 1, 13, 24, 28, 12);
    b.L("launch_p2p", 33, 4, 14);
    b.kernel("ncclDevKernel_SendRecv", 24, 57, 80, 14);
    b.record(38, 1, 15);
    b.wait(40, 1, 16, 28, 24, 15);
    b.record(46, 1, 17);
    b.op("record_param_comms", 50, 5);
    b.wait(52, 1, 18, 7, 24, 17);
    b.L("l2", 60, 3, 19);
    b.kernel("k2", 7, 138, 10, 19);
    Built g(std::move(b), {.hide_sync_events = hidden});
    EXPECT_EQ(g.into("ncclDevKernel_SendRecv"), "event k1, launch launch_p2p>");
    EXPECT_EQ(g.into("k2"), "event ncclDevKernel_SendRecv, launch l2>, stream k1");
  }
}

// Old profilers: waits without any records.
TEST(GraphEvents, WaitsWithoutRecords) {
  TraceBuilder b;
  b.L("l1", 0, 3, 1);
  b.kernel("k1", 7, 6, 50, 1);
  b.op("c10d::allreduce_", 5, 24);
  b.op("record_param_comms", 6, 22);
  b.bare_wait(8, 1, 11);
  b.range("nccl:all_reduce", 10, 16);
  b.bare_wait(12, 1, 13);
  b.L("launch_nccl", 15, 3, 14);
  b.kernel("ncclKernel_AllReduce_RING_LL_Sum_float", 16, 57, 100, 14);
  b.bare_wait(20, 1, 17);
  b.L("l2", 35, 3, 30);
  b.kernel("k2", 7, 57, 40, 30);
  b.op("record_param_comms", 45, 4);
  b.bare_wait(46, 1, 31);
  b.L("l3", 55, 3, 32);
  b.kernel("k3", 7, 158, 10, 32);
  Built g(std::move(b));
  EXPECT_EQ(g.into("ncclKernel_AllReduce_RING_LL_Sum_float"), "event k1, launch launch_nccl>");
  EXPECT_EQ(g.into("k2"), "launch l2>, stream k1");
  EXPECT_EQ(g.into("k3"), "event ncclKernel_AllReduce_RING_LL_Sum_float, launch l3>, stream k2");
}

// Two streams of the program: a copy that is prefetched on stream 20, and the compute that needs it.
TEST(GraphEvents, PrefetchOnASideStreamIsToldByTheTimes) {
  for (const bool hidden : {false, true}) {
    SCOPED_TRACE(hidden);
    TraceBuilder b;
    b.L("cudaMemcpyAsync", 0, 3, 1);
    b.X("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", 20, 6, 200, 1);
    b.record(5, 1, 2);
    b.L("l1", 10, 3, 3);
    b.kernel("k1", 7, 16, 30, 3);
    b.wait(20, 1, 4, 7, 20, 2);
    b.L("l2", 25, 3, 5);
    b.kernel("k2", 7, 207, 30, 5);
    Built g(std::move(b), {.hide_sync_events = hidden});
    EXPECT_EQ(g.into("k1"), "launch l1>");
    EXPECT_EQ(g.into("k2"), "event Memcpy HtoD (Pinned -> Device), launch l2>, stream k1");
    EXPECT_DOUBLE_EQ(g.scale("Memcpy HtoD (Pinned -> Device)", 2).start("k2"), 407);
    EXPECT_DOUBLE_EQ(g.start("k1"), 16);
  }
}

TEST(GraphEvents, WaitThatNothingTellsApartIsCounted) {
  TraceBuilder b;
  b.L("l1", 0, 2, 1);
  b.kernel("k1", 20, 6, 10, 1);
  b.L("l2", 2, 2, 2);
  b.kernel("k2", 28, 8, 12, 2);
  b.bare_wait(5, 1, 3);
  b.L("l3", 40, 2, 4);
  b.kernel("k3", 7, 46, 5, 4);  // its launch explains it
  Built g(std::move(b));
  EXPECT_EQ(g.into("k3"), "launch l3>");
  EXPECT_EQ(g.noted("waits-unresolved"), 1u);
}

}  // namespace
}  // namespace orrery
