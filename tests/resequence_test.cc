// Slices of two small ranks in another sequence.
//
// Slice i of four, at 1,000 i us (rank 1's kernel is 20 us longer):
//            0      6             56 57             100
//   rank 0   calls  k-------------> ar--------------->   waits 20, transfers 23
//   rank 1          k---------------->76 77 ar------->
#include "whatif/resequence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "job_builder.h"
#include "reference/event_engine.h"

namespace orrery {
namespace {

using testing::all_reduce;
using testing::job;
using testing::Joined;
using testing::RankBuilder;
using testing::to_us;
using testing::us;
using Sequences = std::vector<std::vector<std::uint32_t>>;

RankBuilder rank_of(std::int64_t rank) {
  RankBuilder b(rank, "a", 2);
  const double own = rank == 1 ? 20 : 0;
  b.step(1, 0, 3500);
  for (int i = 0; i < 4; ++i) {
    const double t = 1000.0 * i + 5;
    b.task("k", t, t + 6, t + 56 + own);
    b.meet("ar", t + 10, t + 57 + own, t + 100, all_reduce());
  }
  return b;
}

struct Sliced : Joined {
  Slices slices;
  Sliced() : Joined(job(rank_of(0), rank_of(1))) {
    slices.count = {4, 4};
    for (std::uint32_t n = 0; n < graph().size(); ++n) {
      const bool host = graph().kind[n] == NodeKind::host;
      const Ns at = graph().observed_start[n] + (host ? graph().duration[n] : 0) - graph().ranks[0].origin;
      slices.of_node.push_back(static_cast<std::uint32_t>(std::min<Ns>(3, at / us(1000))));
    }
  }
  std::uint64_t unlike = 0;
  Status again_as(const Sequences& s) {
    const Status done = resequence(build, slices, s, unlike);
    replay(graph(), run);
    return done;
  }
  // Replayed ends of a rank's collectives, us, ascending.
  std::vector<double> ends_of_ar(std::uint32_t rank) const {
    std::vector<double> all;
    for (const CommRow& c : comm().rows)
      if (c.rank == rank) all.push_back(to_us(run.end[c.last]) - to_us(graph().ranks[0].origin));
    std::sort(all.begin(), all.end());
    return all;
  }
};

// Structure, rows and meetings agree with each other.
void expect_sound(const Joined& g) {
  const Status sound = check(g.graph());
  ASSERT_TRUE(sound.has_value()) << sound.error().line();
  const Communication& c = g.comm();
  std::set<std::uint32_t> nodes;
  for (const CommRow& row : c.rows) {
    ASSERT_LT(row.node, row.last);
    for (const std::uint32_t n : {row.node, row.last}) {
      EXPECT_EQ(g.graph().kind[n], NodeKind::comm);
      EXPECT_EQ(g.graph().rank[n], row.rank);
      EXPECT_TRUE(nodes.insert(n).second) << "two rows of one node";
    }
  }
  for (const Meeting& m : c.meetings) {
    ASSERT_NE(m.node, kNoNode);
    EXPECT_EQ(g.graph().kind[raw(m.node)], NodeKind::rendezvous);
    ASSERT_EQ(m.members, 2u);
    std::set<std::uint32_t> ranks;
    for (std::uint32_t k = 0; k < m.members; ++k) {
      const CommRow& row = c.rows[c.members[m.first + k].row];
      ranks.insert(row.rank);
      const ExecGraph& x = g.graph();
      const auto waits_for = [&](std::uint32_t n, std::uint32_t p) {
        return std::find(x.pred.begin() + x.first_pred[n], x.pred.begin() + x.first_pred[n + 1], NodeId{p}) !=
               x.pred.begin() + x.first_pred[n + 1];
      };
      EXPECT_TRUE(waits_for(raw(m.node), row.node));
      EXPECT_TRUE(waits_for(row.last, raw(m.node)));
    }
    EXPECT_EQ(ranks.size(), 2u);
  }
}

TEST(Resequence, TheSameSequenceChangesNothing) {
  Sliced g;
  const Replay before = g.run;
  const ExecGraph was = g.graph();
  const double step = g.step_us();
  ASSERT_TRUE(g.again_as({{0, 1, 2, 3}, {0, 1, 2, 3}}).has_value());
  expect_sound(g);
  EXPECT_EQ(g.unlike, 0u);
  EXPECT_EQ(g.graph().size(), was.size());
  EXPECT_EQ(g.graph().edges(), was.edges());
  EXPECT_EQ(g.comm().rows.size(), 8u);
  EXPECT_EQ(g.comm().meetings.size(), 4u);
  EXPECT_EQ(g.step_us(), step);
  // every node when it was, in any order
  const auto times = [](const ExecGraph& x, const Replay& r) {
    std::multiset<std::tuple<std::uint32_t, std::uint32_t, NodeKind, Ns, Ns>> all;
    for (std::uint32_t n = 0; n < x.size(); ++n) all.insert({x.rank[n], x.lane[n], x.kind[n], r.start[n], r.end[n]});
    return all;
  };
  EXPECT_TRUE(times(g.graph(), g.run) == times(was, before));
}

TEST(Resequence, ASliceAgain) {
  Sliced g;
  const auto nodes = g.graph().size();
  EXPECT_EQ(g.ends_of_ar(0), (std::vector<double>{105, 1105, 2105, 3105}));
  ASSERT_TRUE(g.again_as({{0, 1, 2, 2, 2, 3}, {0, 1, 2, 2, 2, 3}}).has_value());
  expect_sound(g);
  EXPECT_EQ(g.unlike, 0u);
  const std::size_t slice = 2 * (4 + 1 + 2) + 1;  // a rank: four boundaries, k, ar twice; their meeting
  EXPECT_EQ(g.graph().size(), nodes + 2 * slice);
  EXPECT_EQ(g.ends_of_ar(0), (std::vector<double>{105, 1105, 2105, 3105, 4105, 5105}));
  EXPECT_EQ(g.ends_of_ar(1), g.ends_of_ar(0));
  EXPECT_EQ(g.comm().meetings.size(), 6u);
  EXPECT_DOUBLE_EQ(g.step_us(), 5500);
  EXPECT_DOUBLE_EQ(g.step_us(1), 5500);
}

TEST(Resequence, ASliceLeftOut) {
  Sliced g;
  ASSERT_TRUE(g.again_as({{0, 1, 3}, {0, 1, 3}}).has_value());
  expect_sound(g);
  EXPECT_EQ(g.unlike, 0u);
  EXPECT_EQ(g.ends_of_ar(0), (std::vector<double>{105, 1105, 2105}));
  EXPECT_EQ(g.comm().meetings.size(), 3u);
  EXPECT_DOUBLE_EQ(g.step_us(), 2500);
}

// What is changed afterwards is felt by every copy, and by the partner.
TEST(Resequence, CopiesAreNodesOfTheirOwn) {
  Sliced g;
  ASSERT_TRUE(g.again_as({{0, 1, 2, 2, 3}, {0, 1, 2, 2, 3}}).has_value());
  for (std::uint32_t n = 0; n < g.graph().size(); ++n)
    if (g.graph().kind[n] == NodeKind::kernel && g.graph().rank[n] == 1) g.build.graph.duration[n] += us(100);
  g.again();
  EXPECT_EQ(g.ends_of_ar(0), (std::vector<double>{205, 1205, 2205, 3205, 4205}));
  ReferenceRun reference;  // assumes no order
  run_by_events(g.graph(), reference);
  EXPECT_EQ(reference.ran, g.graph().size());
  EXPECT_TRUE(reference.end == g.run.end);
}

// Order on threads and streams follows the sequence, meetings the place in it.
TEST(Resequence, AnotherOrder) {
  Sliced g;
  ASSERT_TRUE(g.again_as({{0, 2, 1, 3}, {0, 2, 1, 3}}).has_value());
  expect_sound(g);
  EXPECT_EQ(g.ends_of_ar(0), (std::vector<double>{105, 1105, 2105, 3105}));
  EXPECT_EQ(g.ends_of_ar(1), g.ends_of_ar(0));
  EXPECT_DOUBLE_EQ(g.step_us(), 3500);
}

TEST(Resequence, SlicesAreToldByTheHost) {
  const Sliced g;
  std::vector<Cut> cuts;
  for (const double t : {1000.0, 2000.0, 3000.0}) cuts.push_back({g.graph().ranks[0].origin + us(t)});
  const Slices s = slice(g.build, {cuts, cuts});
  EXPECT_EQ(s.count, g.slices.count);
  EXPECT_TRUE(s.of_node == g.slices.of_node);
  EXPECT_TRUE(s.runs.empty());
}

}  // namespace
}  // namespace orrery
