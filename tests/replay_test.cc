// The replay loop against a slow engine, and what must not change its answer. check() on broken graphs.
#include "replay/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "reference/event_engine.h"
#include "reference/graph_maker.h"

namespace orrery {
namespace {

// Same times as the reference, and what released each node is an edge of it that binds: the first listed of those.
void expect_right(const ExecGraph& g, const Replay& r, const ReferenceRun& reference) {
  ASSERT_EQ(reference.ran, g.size());
  ASSERT_EQ(r.start, reference.start);
  ASSERT_EQ(r.end, reference.end);
  for (std::uint32_t i = 0; i < g.size(); ++i) {
    std::uint32_t binding = kNone;
    for (std::uint32_t e = g.first_pred[i]; e < g.first_pred[i + 1] && binding == kNone; ++e) {
      const Ns from = g.pred[e] == kNoNode ? g.ranks[g.rank[i]].origin : r.end[raw(g.pred[e])];
      if (from + g.pred_lag[e] == r.start[i]) binding = e;
    }
    ASSERT_NE(binding, kNone) << "node " << i << " starts when nothing releases it";
    ASSERT_EQ(r.released_by[i], g.pred[binding]) << "node " << i;
    ASSERT_EQ(r.released_how[i], g.pred_kind[binding]) << "node " << i;
  }
}

// Edge states of all pairs, counted up like digits of a number: 0 = no edge, k = lags[k - 1].
struct AllGraphs {
  std::uint32_t nodes;
  std::vector<Ns> lags, durations;

  std::uint64_t run() const {
    const std::uint32_t pairs = nodes * (nodes - 1) / 2;
    const std::uint64_t shapes = power(lags.size() + 1, pairs), loads = power(durations.size(), nodes);
    Replay r;
    ReferenceRun reference;
    for (std::uint64_t shape = 0; shape < shapes; ++shape) {
      GraphMaker m;
      m.g.ranks[0].origin = 1000;
      std::uint64_t digits = shape;
      for (std::uint32_t i = 0; i < nodes; ++i) {
        std::vector<Pred> preds;
        for (std::uint32_t p = 0; p < i; ++p) {
          const std::uint64_t state = digits % (lags.size() + 1);
          digits /= lags.size() + 1;
          if (state > 0) preds.push_back({NodeId{p}, EdgeKind::stream, lags[state - 1]});
        }
        // Nodes without a predecessor start at different times; now and then a root edge competes with predecessors.
        if (preds.empty() || (shape + i) % 7 == 0) preds.push_back(root((i * 3) % 5));
        m.add(NodeKind::kernel, 0, 0, preds);
      }
      EXPECT_TRUE(check(m.g).has_value());
      for (std::uint64_t load = 0; load < loads; ++load) {
        std::uint64_t rest = load;
        for (std::uint32_t i = 0; i < nodes; ++i, rest /= durations.size())
          m.g.duration[i] = durations[rest % durations.size()];
        replay(m.g, r);
        run_by_events(m.g, reference);
        expect_right(m.g, r, reference);
        if (testing::Test::HasFatalFailure()) return 0;
      }
    }
    return shapes * loads;
  }
  static std::uint64_t power(std::uint64_t base, std::uint64_t exponent) {
    std::uint64_t x = 1;
    for (std::uint64_t i = 0; i < exponent; ++i) x *= base;
    return x;
  }
};

TEST(Replay, AllGraphsOfUpToFourNodes) {
  EXPECT_EQ((AllGraphs{1, {}, {0, 1, 3}}.run()), 3u);
  EXPECT_EQ((AllGraphs{2, {-1, 0, 2}, {0, 1, 3}}.run()), 4u * 9);
  EXPECT_EQ((AllGraphs{3, {-1, 0, 2}, {0, 1, 3}}.run()), 64u * 27);
  EXPECT_EQ((AllGraphs{4, {-1, 0, 2}, {0, 1, 3}}.run()), 4096u * 81);
}

TEST(Replay, AllGraphsOfFiveNodes) {
  EXPECT_EQ((AllGraphs{5, {1}, {0, 1, 3}}.run()), 1024u * 243);
  EXPECT_EQ((AllGraphs{5, {-2, 1}, {0, 3}}.run()), 59049u * 32);
}

TEST(Replay, RandomGraphsMatchTheReference) {
  std::mt19937_64 random(20240610);
  Replay r;
  ReferenceRun reference;
  for (std::uint32_t k = 0; k < 400; ++k) {
    const ExecGraph g = random_graph(1 + k * 5, random);
    ASSERT_TRUE(check(g).has_value()) << check(g).error().line();
    replay(g, r);
    run_by_events(g, reference);
    expect_right(g, r, reference);
    if (HasFatalFailure()) return;
  }
}

// The reference needs no topological order, so numbering itself is put to the test.
TEST(Replay, NumberingOfNodesDoesNotMatter) {
  std::mt19937_64 random(7);
  for (int k = 0; k < 50; ++k) {
    const ExecGraph g = random_graph(300, random);
    Replay r;
    replay(g, r);
    std::vector<std::uint32_t> new_of(g.size()), old_of(g.size());
    std::iota(old_of.begin(), old_of.end(), 0u);
    std::shuffle(old_of.begin(), old_of.end(), random);
    for (std::uint32_t i = 0; i < g.size(); ++i) new_of[old_of[i]] = i;
    GraphMaker m(static_cast<std::uint32_t>(g.ranks.size()));
    m.g.ranks = g.ranks;
    for (std::uint32_t i : old_of) {
      std::vector<Pred> preds;
      for (std::uint32_t e = g.first_pred[i]; e < g.first_pred[i + 1]; ++e)
        preds.push_back(
            {g.pred[e] == kNoNode ? kNoNode : NodeId{new_of[raw(g.pred[e])]}, g.pred_kind[e], g.pred_lag[e]});
      m.add(g.kind[i], 0, g.duration[i], preds, kNoOp, false, g.rank[i]);
    }
    ReferenceRun reference;
    run_by_events(m.g, reference);
    ASSERT_EQ(reference.ran, g.size());
    for (std::uint32_t i = 0; i < g.size(); ++i) ASSERT_EQ(reference.start[new_of[i]], r.start[i]) << "node " << i;
  }
}

TEST(Replay, ShiftOfTheOriginsShiftsEveryTime) {
  std::mt19937_64 random(1);
  ExecGraph g = random_graph(1000, random);
  Replay before, after;
  replay(g, before);
  for (GraphRank& rank : g.ranks) rank.origin += 1'700'000'000'000'000'000;
  replay(g, after);
  for (std::uint32_t i = 0; i < g.size(); ++i) {
    ASSERT_EQ(after.start[i], before.start[i] + 1'700'000'000'000'000'000);
    ASSERT_EQ(after.released_by[i], before.released_by[i]);
  }
}

TEST(Replay, ScaleOfAllTimesScalesEveryTime) {
  std::mt19937_64 random(2);
  ExecGraph g = random_graph(1000, random);
  Replay before, after;
  replay(g, before);
  for (GraphRank& rank : g.ranks) rank.origin *= 3;
  for (Ns& d : g.duration) d *= 3;
  for (Ns& lag : g.pred_lag) lag *= 3;
  replay(g, after);
  for (std::uint32_t i = 0; i < g.size(); ++i) {
    ASSERT_EQ(after.start[i], before.start[i] * 3);
    ASSERT_EQ(after.released_by[i], before.released_by[i]);
  }
}

TEST(Replay, OrderOfPredecessorsChangesNoTime) {
  std::mt19937_64 random(3);
  ExecGraph g = random_graph(2000, random);
  Replay before, after;
  replay(g, before);
  for (std::uint32_t i = 0; i < g.size(); ++i)
    for (std::uint32_t e = g.first_pred[i + 1]; e-- > g.first_pred[i] + 1;) {
      const std::uint32_t other = std::uniform_int_distribution<std::uint32_t>(g.first_pred[i], e)(random);
      std::swap(g.pred[e], g.pred[other]);
      std::swap(g.pred_kind[e], g.pred_kind[other]);
      std::swap(g.pred_lag[e], g.pred_lag[other]);
    }
  replay(g, after);
  EXPECT_EQ(after.start, before.start);
  EXPECT_EQ(after.end, before.end);
}

TEST(Replay, FirstListedOfEqualReleasesIsKept) {
  GraphMaker m;
  const NodeId a = m.host(0, 10, {root()});
  const NodeId b = m.task(NodeKind::kernel, 1, 0, 10);
  const NodeId c = m.add(NodeKind::kernel, 1, 5, {{b, EdgeKind::stream, 0}, {a, EdgeKind::launch, 0}});
  Replay r;
  replay(m.g, r);
  EXPECT_EQ(r.start[raw(c)], 10);
  EXPECT_EQ(r.released_by[raw(c)], b);
  EXPECT_EQ(r.released_how[raw(c)], EdgeKind::stream);
}

// A launch at 10 of a kernel of 30, then a blocking synchronisation called at 15; latency 5, return 2:
// the kernel runs from 15 to 45, the call returns at 47.
TEST(Replay, LaunchAndSynchronise) {
  GraphMaker m;
  const NodeId launch_begin = m.host(0, 10, {root()});
  const NodeId launch_end = m.host(0, 4, {{launch_begin, EdgeKind::thread, 0}});
  const NodeId sync_begin = m.host(0, 1, {{launch_end, EdgeKind::thread, 0}});
  const NodeId kernel = m.add(NodeKind::kernel, 1, 30, {{launch_begin, EdgeKind::launch, 5}});
  const NodeId sync_end = m.host(0, 0, {{sync_begin, EdgeKind::thread, 0}, {kernel, EdgeKind::sync, 2}});
  Replay r;
  replay(m.g, r);
  EXPECT_EQ(r.start[raw(kernel)], 15);
  EXPECT_EQ(r.end[raw(kernel)], 45);
  EXPECT_EQ(r.end[raw(sync_end)], 47);
  EXPECT_EQ(r.released_how[raw(sync_end)], EdgeKind::sync);
}

TEST(Replay, EmptyGraph) {
  Replay r;
  r.start.resize(5);
  replay(ExecGraph{}, r);
  EXPECT_TRUE(r.start.empty());
}

// ---- check ----

ExecGraph sound() {
  GraphMaker m;
  const NodeId a = m.host(0, 10, {root()});
  m.add(NodeKind::kernel, 1, 5, {{a, EdgeKind::launch, 2}});
  m.step(0, 0, 20);
  return std::move(m.g);
}

void expect_error(const ExecGraph& g, const std::string& part) {
  const Status s = check(g);
  ASSERT_FALSE(s.has_value()) << "accepted; expected: " << part;
  EXPECT_NE(s.error().line().find(part), std::string::npos) << s.error().line();
}

TEST(Check, AcceptsASoundGraph) {
  EXPECT_TRUE(check(sound()).has_value());
  EXPECT_TRUE(check(ExecGraph{}).has_value());
}

TEST(Check, NamesTheFirstOffendingNode) {
  ExecGraph g = sound();
  g.duration[1] = -3;
  expect_error(g, "node 1: its duration is -3 ns");
  g.duration[0] = -1;
  expect_error(g, "node 0: its duration is -1 ns");
}

TEST(Check, PredecessorsComeFirst) {
  ExecGraph g = sound();
  g.pred[1] = NodeId{1};
  expect_error(g, "node 1: its predecessor 1 does not come before it");
  g.pred[1] = NodeId{77};
  expect_error(g, "node 1: its predecessor 77");
}

TEST(Check, EveryNodeIsReleased) {
  ExecGraph g = sound();
  g.first_pred[1] = 0;
  expect_error(g, "node 0: it has neither a predecessor nor a root edge");
}

TEST(Check, RootEdgesAndOnlyTheyLackAPredecessor) {
  ExecGraph g = sound();
  g.pred[1] = kNoNode;
  expect_error(g, "node 1: edge 1 of kind launch lacks a predecessor");
  g = sound();
  g.pred_kind[1] = EdgeKind::root;
  expect_error(g, "node 1: edge 1 of kind root has a predecessor");
}

TEST(Check, SizesAgree) {
  ExecGraph g = sound();
  g.at_begin.pop_back();
  expect_error(g, "at_begin has 3 rows, duration has 4");
  g = sound();
  g.pred_lag.pop_back();
  expect_error(g, "edge columns differ");
  g = sound();
  g.first_pred.pop_back();
  expect_error(g, "first_pred has 4 rows for 4 nodes");
  g = sound();
  g.first_pred[2] = 99;
  expect_error(g, "node 1: its predecessor rows run past the last edge");
}

TEST(Check, RowsOfOtherTablesExist) {
  ExecGraph g = sound();
  g.rank[1] = 4;
  expect_error(g, "node 1: there is no rank row 4");
  g = sound();
  g.lane[1] = 4;
  expect_error(g, "node 1: lane 4 is not one of rank 0");
  g = sound();
  g.lane[0] = kNone;
  expect_error(g, "node 0: a host lacks a lane");
  g = sound();
  g.steps[0].end_node = kNoNode;
  expect_error(g, "step row 0 (step 0): a boundary node is missing");
}

TEST(Check, EveryKindHasAName) {
  for (std::size_t k = 0; k < kEdgeKinds; ++k) EXPECT_NE(name_of(static_cast<EdgeKind>(k)), "unknown");
  EXPECT_EQ(name_of(EdgeKind::handoff), "handoff");
  EXPECT_EQ(name_of(NodeKind::comm), "comm");
}

}  // namespace
}  // namespace orrery
