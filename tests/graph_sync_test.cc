// Calls that block the host: what they waited for, and the wait cut out of the host's time.
#include <gtest/gtest.h>

#include "trace_builder.h"

namespace orrery {
namespace {

using testing::Built;
using testing::TraceBuilder;

// A call that blocks returns 10 us after the task that it waits for: 2 us of that are the host's (calls that did not
// wait tell so; 2 us where there is none), 8 us are the way from the device to the host, which no edit of the host
// changes.

// A kernel of 100 us and a host that waits for it with `call`, then works for 20 us and launches another.
//   thread   l1     call ............]  op (20)  l2
//   7          k1(6..106)                           k2
struct Blocking {
  const char* call;
  std::int64_t stream = 7;  // of the kernel
  SyncKind kind = SyncKind::unknown;
  std::int64_t sync_stream = -1, wait_stream = -1, record_corr = -1;
};
TraceBuilder blocking(const Blocking& c) {
  TraceBuilder b;
  b.L("l1", 0, 4, 1);
  b.kernel("k1", c.stream, 6, 100, 1);
  b.record(5, 1, 2);
  b.L(c.call, 8, 108, 3);
  if (c.kind != SyncKind::unknown) b.sync_row(c.kind, 8, 108, 3, c.sync_stream, c.wait_stream, c.record_corr);
  b.op("work", 116, 20);
  b.L("l2", 140, 4, 4);
  b.kernel("k2", c.stream, 146, 10, 4);
  return b;
}

TEST(GraphSync, TheWaitIsCutOutOfTheHostsTime) {
  const std::vector<Blocking> calls = {
      {"cudaStreamSynchronize"},
      {"cudaStreamSynchronize", 7, SyncKind::stream_sync, 7},
      {"hipStreamSynchronize"},
      {"cudaDeviceSynchronize"},
      {"cudaDeviceSynchronize", 7, SyncKind::context_sync},
      {"cuCtxSynchronize"},
      {"hipDeviceSynchronize"},
      {"cudaEventSynchronize"},
      {"cudaEventSynchronize", 7, SyncKind::event_sync, -1, 7, 2},
      {"cudaFree"},
      {"hipFree"},
  };
  for (const Blocking& c : calls) {
    SCOPED_TRACE(::testing::Message() << c.call << (c.kind == SyncKind::unknown ? "" : " with a cuda_sync row"));
    const std::string end = std::string(c.call) + "<", begin = std::string(c.call) + ">";
    Built g(blocking(c));
    EXPECT_EQ(g.into(end), "sync k1, thread " + begin);
    EXPECT_DOUBLE_EQ(g.duration(end), 2);
    EXPECT_DOUBLE_EQ(g.lag("k1", end), 8);
    EXPECT_DOUBLE_EQ(g.end(end), 116);
    EXPECT_DOUBLE_EQ(g.start("k2"), 146);

    // kernel x3: the wait grows. k1 6..306, the call ends at 316, 24 us of host, then 6 us to k2.
    g.scale("k1", 3);
    EXPECT_DOUBLE_EQ(g.end(end), 316);
    EXPECT_DOUBLE_EQ(g.start("k2"), 346);

    // host x2: k1 starts as before, the call ends at 106 + 8 + 2 * 2, then 2 * 24 us of host
    Built slow(blocking(c));
    slow.scale(NodeKind::host, 2);
    EXPECT_DOUBLE_EQ(slow.end(end), 118);
    EXPECT_DOUBLE_EQ(slow.start("k2"), 118 + 48 + 6);

    // host x20: the kernel is long done when the call begins at 160, which is then no more than 2 * 20 us of host time
    Built slower(blocking(c));
    slower.scale(NodeKind::host, 20);
    EXPECT_DOUBLE_EQ(slower.end(end), 160 + 40);

    // Without these edges the wait is taken for work, and a longer kernel delays nobody.
    Built without(blocking(c), {.without_edges = 1u << static_cast<unsigned>(EdgeKind::sync)});
    EXPECT_DOUBLE_EQ(without.duration(end), 108);
    EXPECT_DOUBLE_EQ(without.scale("k1", 3).end(end), 116);
  }
}

TEST(GraphSync, CallsThatDoNotBlock) {
  for (const char* call : {"cudaEventQuery", "cudaStreamQuery", "cudaFreeAsync", "hipFreeAsync", "cudaMemcpyAsync",
                           "cudaMalloc", "cudaEventCreateWithFlags", "cudaStreamIsCapturing"}) {
    SCOPED_TRACE(call);
    Built g(blocking({call}));
    EXPECT_EQ(g.edges(EdgeKind::sync), 0u);
    EXPECT_DOUBLE_EQ(g.scale("k1", 3).end(std::string(call) + "<"), 116);
  }
}

TEST(GraphSync, OwnTimeIsThatOfCallsThatDidNotWait) {
  TraceBuilder b;
  b.L("l1", 0, 4, 1);
  b.kernel("k1", 7, 6, 10, 1);
  for (int i = 0; i < 5; ++i) b.L("cudaStreamSynchronize", 40 + 10 * i, 5, 10 + i);  // 5 us each: nothing to wait for
  b.L("l2", 100, 4, 2);
  b.kernel("k2", 7, 106, 100, 2);
  b.L("cudaDeviceSynchronize", 110, 108, 3);
  b.op("end", 218, 1);
  Built g(std::move(b));
  EXPECT_DOUBLE_EQ(g.duration("cudaDeviceSynchronize<"), 5);
  EXPECT_DOUBLE_EQ(g.lag("k2", "cudaDeviceSynchronize<"), 7);
  EXPECT_DOUBLE_EQ(g.end("cudaDeviceSynchronize<"), 218);
}

// Two streams at work; a stream's synchronisation waits for one of them only.
//   20        a(6..56)
//   28             c(12..412)
TraceBuilder two_streams(const char* call, double end) {
  TraceBuilder b;
  b.L("l1", 0, 4, 1);
  b.kernel("a", 20, 6, 50, 1);
  b.L("l2", 6, 4, 2);
  b.kernel("c", 28, 12, 400, 2);
  b.L(call, 12, end - 12, 3);
  b.op("work", end, 10);
  return b;
}

TEST(GraphSync, StreamSyncWithARowWaitsForThatStream) {
  TraceBuilder b = two_streams("cudaStreamSynchronize", 66);
  b.sync_row(SyncKind::stream_sync, 12, 54, 3, 20);
  Built g(std::move(b));
  EXPECT_EQ(g.into("cudaStreamSynchronize<"), "sync a, thread cudaStreamSynchronize>");
  EXPECT_DOUBLE_EQ(g.scale("c", 3).end("cudaStreamSynchronize<"), 66);
}

TEST(GraphSync, StreamSyncWithoutARowIsToldByTheTimes) {
  // The thread's last launch was on stream 28, which agrees with a return at 422 ...
  Built last(two_streams("cudaStreamSynchronize", 422));
  EXPECT_EQ(last.into("cudaStreamSynchronize<"), "sync c, thread cudaStreamSynchronize>");
  // ... and is contradicted by one at 66, with 28 still at work
  Built other(two_streams("cudaStreamSynchronize", 66));
  EXPECT_EQ(other.into("cudaStreamSynchronize<"), "sync a, thread cudaStreamSynchronize>");
}

TEST(GraphSync, DeviceSyncWaitsForAllStreams) {
  Built g(two_streams("cudaDeviceSynchronize", 422));
  EXPECT_EQ(g.into("cudaDeviceSynchronize<"), "sync a, sync c, thread cudaDeviceSynchronize>");
  EXPECT_DOUBLE_EQ(g.end("cudaDeviceSynchronize<"), 422);
  EXPECT_DOUBLE_EQ(g.scale("a", 20).end("cudaDeviceSynchronize<"), 6 + 1000 + 10);
}

TEST(GraphSync, EventSyncWaitsForWhatWasRecorded) {
  TraceBuilder b;
  b.L("l1", 0, 2, 1);
  b.kernel("k1", 7, 6, 50, 1);
  b.record(3, 1, 2);
  b.L("l2", 5, 2, 3);
  b.kernel("k2", 7, 57, 300, 3);  // queued before the call, but after the record
  b.L("cudaEventSynchronize", 8, 58, 4);
  b.sync_row(SyncKind::event_sync, 8, 58, 4, -1, 7, 2);
  b.op("work", 66, 10);
  Built g(std::move(b));
  EXPECT_EQ(g.into("cudaEventSynchronize<"), "sync k1, thread cudaEventSynchronize>");
  EXPECT_DOUBLE_EQ(g.scale("k2", 3).end("cudaEventSynchronize<"), 66);
}

TEST(GraphSync, EventSyncOnWhatWasRecordedBeforeTheWindowIsNoWait) {
  TraceBuilder b;
  b.L("l1", 0, 2, 101);
  b.kernel("k1", 7, 6, 50, 101);
  b.L("cudaEventSynchronize", 8, 3, 102);
  b.sync_row(SyncKind::event_sync, 8, 3, 102, -1, 7, 55);
  Built g(std::move(b));
  EXPECT_EQ(g.edges(EdgeKind::sync), 0u);
  EXPECT_DOUBLE_EQ(g.duration("cudaEventSynchronize<"), 3);
}

TEST(GraphSync, TargetThatEndsAfterTheCallIsDroppedAndCounted) {
  TraceBuilder b;
  b.L("l1", 0, 2, 1);
  b.kernel("k1", 7, 6, 50, 1);
  b.L("cudaDeviceSynchronize", 8, 10, 2);  // returns at 18 with k1 at work: not what it seems
  b.op("work", 18, 10);
  Built g(std::move(b));
  EXPECT_EQ(g.edges(EdgeKind::sync), 0u);
  EXPECT_EQ(g.dropped(EdgeKind::sync), 1u);
  EXPECT_DOUBLE_EQ(g.duration("cudaDeviceSynchronize<"), 10);
}

TEST(GraphSync, WorkQueuedAfterTheCallIsNoTarget) {
  TraceBuilder b;
  b.on(1).L("l1", 0, 2, 1);
  b.kernel("k1", 7, 6, 50, 1);
  b.on(2).L("l2", 20, 2, 2);  // another thread, while the first waits
  b.kernel("k2", 28, 26, 20, 2);
  b.on(1).L("cudaDeviceSynchronize", 8, 58, 3);
  Built g(std::move(b));
  EXPECT_EQ(g.into("cudaDeviceSynchronize<"), "sync k1, thread cudaDeviceSynchronize>");
}

TEST(GraphSync, SyncWaitsForWorkFromBeforeTheWindow) {
  TraceBuilder b;
  b.kernel("old", 7, 0, 50, 1);
  b.L("cudaDeviceSynchronize", 8, 52, 3);
  Built g(std::move(b));
  EXPECT_EQ(g.into("cudaDeviceSynchronize<"), "sync old, thread cudaDeviceSynchronize>");
  EXPECT_DOUBLE_EQ(g.end("cudaDeviceSynchronize<"), 60);
}

// What a stream still waits for by an event is a target too: nothing runs on it yet, but it is not empty.
TEST(GraphSync, StreamThatWaitsForAnEventIsNotEmpty) {
  TraceBuilder b;
  b.L("l1", 0, 2, 1);
  b.kernel("k1", 7, 6, 50, 1);
  b.record(3, 1, 2);
  b.wait(5, 1, 3, 99, 7, 2);
  b.L("cudaStreamSynchronize", 8, 58, 4);
  b.sync_row(SyncKind::stream_sync, 8, 58, 4, 99);
  Built g(std::move(b));
  EXPECT_EQ(g.into("cudaStreamSynchronize<"), "sync k1, thread cudaStreamSynchronize>");
}

TEST(GraphSync, CopyOfPageableMemoryBlocks) {
  auto trace = [](const char* api, const char* what, double call_end) {
    TraceBuilder b;
    b.L("l1", 0, 4, 1);
    b.kernel("k1", 7, 6, 100, 1);
    b.L(api, 8, call_end - 8, 2);
    b.X(what, "gpu_memcpy", 7, 107, 5, 2);
    b.op("work", call_end, 20);
    return b;
  };
  // .item(): returns 10 us after its copy
  for (const auto& [api, what] : {std::pair{"cudaMemcpyAsync", "Memcpy DtoH (Device -> Pageable)"},
                                  {"hipMemcpyAsync", "Memcpy DtoH (Device -> Pageable)"},
                                  {"cudaMemcpy", "Memcpy DtoH (Device -> Pinned)"}}) {
    SCOPED_TRACE(api);
    Built g(trace(api, what, 122));
    EXPECT_EQ(g.into(std::string(api) + "<"), "sync " + std::string(what) + ", thread " + std::string(api) + ">");
    EXPECT_DOUBLE_EQ(g.end("work<"), 142);
    EXPECT_DOUBLE_EQ(g.scale("k1", 3).end("work<"), 342);
  }
  // pinned memory: the call returns at once; one that ended after its copy by chance has not waited either
  for (const double end : {12.0, 122.0}) {
    Built g(trace("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pinned)", end));
    EXPECT_EQ(g.edges(EdgeKind::sync), 0u);
  }
  // a call that returns before its copy ends has not waited, whatever the memory
  Built early(trace("cudaMemcpyAsync", "Memcpy HtoD (Pageable -> Device)", 12));
  EXPECT_EQ(early.edges(EdgeKind::sync), 0u);
}

// A blocking copy that takes long has loaded nothing: it waited for the device. It leaves from the begin of its call,
// which it ends.
TEST(GraphSync, LongCopyThatBlocksIsLaunchedFromItsBegin) {
  TraceBuilder b;
  b.L("l1", 0, 4, 1);
  b.kernel("k1", 7, 6, 400, 1);
  b.L("cudaMemcpyAsync", 8, 404, 2);  // back 3 us after its copy
  b.X("Memcpy DtoH (Device -> Pageable)", "gpu_memcpy", 7, 407, 2, 2);
  b.op("work", 412, 20);
  Built g(std::move(b));
  EXPECT_EQ(g.noted("cycle-cut"), 0u);
  EXPECT_EQ(g.into("Memcpy DtoH (Device -> Pageable)"), "launch cudaMemcpyAsync>, stream k1");
  EXPECT_EQ(g.into("cudaMemcpyAsync<"), "sync Memcpy DtoH (Device -> Pageable), thread cudaMemcpyAsync>");
  EXPECT_DOUBLE_EQ(g.end("work<"), 432);
}

TEST(GraphSync, FreeThatDidNotWait) {
  TraceBuilder b;
  b.L("l1", 0, 4, 1);
  b.kernel("k1", 7, 6, 100, 1);
  b.L("cudaFree", 8, 12, 2);  // back while k1 runs
  Built g(std::move(b));
  EXPECT_EQ(g.edges(EdgeKind::sync), 0u);
  EXPECT_DOUBLE_EQ(g.duration("cudaFree<"), 12);
}

}  // namespace
}  // namespace orrery
