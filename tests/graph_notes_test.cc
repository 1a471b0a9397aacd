// What the graph says it could not tell: counted, with the first example.
#include <gtest/gtest.h>

#include "trace_builder.h"

namespace orrery {
namespace {

using namespace orrery::testing;

const Note* note(const Built& g, std::string_view name) {
  for (const Note& n : g.build.notes.rows)
    if (n.name == name) return &n;
  return nullptr;
}

TEST(GraphNotes, AWaitThatNothingTells) {
  TraceBuilder b;
  b.L("l1", 0, 2, 1);
  b.kernel("k1", 20, 6, 10, 1);
  b.L("l2", 2, 2, 2);
  b.kernel("k2", 28, 8, 12, 2);
  b.bare_wait(5, 1, 3);
  b.L("l3", 40, 2, 4);
  b.kernel("k3", 7, 46, 5, 4);
  const Built g(std::move(b));
  ASSERT_NE(note(g, "waits-unresolved"), nullptr);
  EXPECT_EQ(note(g, "waits-unresolved")->first, "cudaStreamWaitEvent at ts 5 us");
}

TEST(GraphNotes, ALaunchToldByItsFlow) {
  TraceBuilder b;
  b.L("launch", 0, 4, 0);
  b.kernel("k", 7, 6, 3, 0);
  b.flow(FlowKind::ac2g, 5, 0, b.thread_lane(1), 6, b.stream_lane(7));
  const Built g(std::move(b));
  ASSERT_NE(note(g, "launch-by-flow"), nullptr);
  EXPECT_EQ(note(g, "launch-by-flow")->first, "k at ts 6 us");
}

// 1,400 launches a microsecond apart, kernels of 100 us: at the last call's end 14 have started, 1,385 are ahead.
TEST(GraphNotes, AQueueDeeperThanCudas) {
  TraceBuilder b;
  for (int i = 0; i < 1400; ++i) {
    b.L("l", i, 1, i + 1);
    b.kernel("k" + std::to_string(i), 7, 5 + 100.0 * i, 100, i + 1);
  }
  const Built g(std::move(b));
  ASSERT_NE(note(g, "queue-depth-unknown"), nullptr);
  EXPECT_EQ(note(g, "queue-depth-unknown")->first, "1385 ahead of k1399 at ts 139905 us");
}

// Times are those of the file: the base time is taken off again. Long names are cut.
TEST(GraphNotes, ExamplesAreTimedAsInTheFile) {
  TraceBuilder b;
  b.t.base_ns = 1'000'000;
  const OpId row = b.kernel(std::string(200, 'k'), 7, 1'005, 1);
  EXPECT_EQ(b.finish().example_of(row), std::string(80, 'k') + "... at ts 5 us");
}

}  // namespace
}  // namespace orrery
