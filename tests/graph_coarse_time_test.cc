// Old traces have whole microseconds: calls that follow each other begin "together". What waited for what must not
// change.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "graph/build.h"
#include "importers/importers.h"

namespace orrery {
namespace {

Ns floor_us(Ns t) { return t / 1000 * 1000; }

using Edges = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

Edges edges_of(const ExecGraph& g, EdgeKind kind) {
  Edges edges;
  for (std::uint32_t i = 0; i < g.size(); ++i) {
    for (std::uint32_t e = g.first_pred[i]; e < g.first_pred[i + 1]; ++e) {
      if (g.pred_kind[e] == kind) edges.emplace_back(raw(g.source[raw(g.pred[e])]), raw(g.source[i]));
    }
  }
  std::sort(edges.begin(), edges.end());
  return edges;
}

TEST(GraphCoarseTime, WholeMicrosecondsKeepTheEdges) {
  auto traces = import_traces({std::string(ORRERY_SOURCE_DIR) + "/samples/gpt-tp2-pp2-dp2"});
  ASSERT_TRUE(traces) << traces.error().line();
  const auto fine = build_graph(*traces);
  ASSERT_TRUE(fine);
  for (RankTrace& t : traces->ranks) {
    t.window_start = floor_us(t.window_start);
    t.window_end = floor_us(t.window_end);
    for (std::size_t i = 0; i < t.ops.size(); ++i) {
      const Ns end = floor_us(t.ops.end(i));
      t.ops.start[i] = floor_us(t.ops.start[i]);
      t.ops.dur[i] = end - t.ops.start[i];
    }
  }
  const auto coarse = build_graph(*traces);
  ASSERT_TRUE(coarse);
  const Edges event = edges_of(fine->graph, EdgeKind::event);
  EXPECT_GT(event.size(), 100u);
  EXPECT_EQ(event, edges_of(coarse->graph, EdgeKind::event));
  EXPECT_EQ(edges_of(fine->graph, EdgeKind::sync), edges_of(coarse->graph, EdgeKind::sync));
}

}  // namespace
}  // namespace orrery
