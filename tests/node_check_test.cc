// Verdicts on nodes, against clusters whose faults are known.
#include "supervisor/node_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "supervisor/guard_nodes.h"

namespace orrery {
namespace {

struct Cluster {
  std::size_t nodes = 0;
  std::set<std::size_t> dead{}, slow{};
  std::set<std::pair<std::size_t, std::size_t>> cut{}, thin{};  // links
  std::vector<std::vector<NodeGroup>> rounds{};

  GroupOutcome outcome(const NodeGroup& group) const {
    GroupOutcome o{true, 10};
    for (const std::size_t a : group) {
      if (dead.count(a) > 0) o.passed = false;
      if (slow.count(a) > 0) o.gb_per_s = 2;
      for (const std::size_t b : group) {
        if (cut.count({a, b}) > 0) o.passed = false;
        if (thin.count({a, b}) > 0) o.gb_per_s = 2;
      }
    }
    return o;
  }

  // One letter a node: Good, Bad, Slow, Link.
  std::string verdicts() {
    rounds.clear();
    const auto check = check_nodes(nodes, [&](const std::vector<NodeGroup>& groups) {
      std::set<std::size_t> used;
      std::vector<GroupOutcome> outcomes;
      for (const NodeGroup& g : groups) {
        for (const std::size_t n : g) EXPECT_TRUE(n < nodes && used.insert(n).second) << "in two groups at once";
        outcomes.push_back(outcome(g));
      }
      rounds.push_back(groups);
      return Result<std::vector<GroupOutcome>>(outcomes);
    });
    std::string all;
    for (const NodeVerdict v : check->verdicts) all += "GBSL"[static_cast<std::size_t>(v)];
    return all;
  }
};

TEST(NodeCheck, AllGoodIsOneRoundOfPairsAndATrio) {
  Cluster c{.nodes = 7};
  EXPECT_EQ(c.verdicts(), "GGGGGGG");
  ASSERT_EQ(c.rounds.size(), 1u);
  EXPECT_EQ(c.rounds[0], (std::vector<NodeGroup>{{0, 1}, {2, 3}, {4, 5, 6}}));
}

TEST(NodeCheck, OneDeadNodeIsFoundAndItsMatesCleared) {
  for (std::size_t nodes = 3; nodes < 12; ++nodes)
    for (std::size_t dead = 0; dead < nodes; ++dead) {
      Cluster c{.nodes = nodes, .dead = {dead}};
      std::string expected(nodes, 'G');
      expected[dead] = 'B';
      EXPECT_EQ(c.verdicts(), expected) << nodes << " " << dead;
    }
}

TEST(NodeCheck, BothOfAPairAndAWholeTrio) {
  EXPECT_EQ((Cluster{.nodes = 6, .dead = {2, 3}}.verdicts()), "GGBBGG");
  EXPECT_EQ((Cluster{.nodes = 5, .dead = {2, 3, 4}}.verdicts()), "GGBBB");
}

TEST(NodeCheck, MoreSuspectsThanGoodNodesTakeTurns) {
  Cluster c{.nodes = 10, .dead = {0, 2, 4, 6}};
  EXPECT_EQ(c.verdicts(), "BGBGBGBGGG");
  EXPECT_EQ(c.rounds.size(), 5u);  // eight suspects beside two good nodes
}

TEST(NodeCheck, NoPairPassesAtFirst) {
  EXPECT_EQ((Cluster{.nodes = 8, .dead = {0, 3, 4, 7}}.verdicts()), "BGGBBGGB");  // neighbours of other pairs pass
  EXPECT_EQ((Cluster{.nodes = 3, .dead = {1}}.verdicts()), "GBG");
}

TEST(NodeCheck, NoGoodNodeAtAll) {
  Cluster c{.nodes = 4, .dead = {0, 1, 2, 3}};
  EXPECT_EQ(c.verdicts(), "BBBB");
  EXPECT_EQ(c.rounds.size(), 3u);
  EXPECT_EQ(c.rounds.back().size(), 4u) << "each alone";
}

TEST(NodeCheck, TwoNodesAreToldApartAlone) {
  EXPECT_EQ((Cluster{.nodes = 2, .dead = {1}}.verdicts()), "GB");
  EXPECT_EQ((Cluster{.nodes = 2, .cut = {{0, 1}}}.verdicts()), "LL");
  EXPECT_EQ((Cluster{.nodes = 1}.verdicts()), "G");
  EXPECT_EQ((Cluster{.nodes = 1, .dead = {0}}.verdicts()), "B");
}

TEST(NodeCheck, ALinkIsNoNode) {
  EXPECT_EQ((Cluster{.nodes = 6, .cut = {{2, 3}}}.verdicts()), "GGLLGG");
  EXPECT_EQ((Cluster{.nodes = 6, .thin = {{2, 3}}}.verdicts()), "GGLLGG");
}

TEST(NodeCheck, SlowNodesAreNotDead) {
  EXPECT_EQ((Cluster{.nodes = 6, .slow = {3}}.verdicts()), "GGGSGG");
  EXPECT_EQ((Cluster{.nodes = 8, .dead = {0}, .slow = {5}}.verdicts()), "BGGGGSGG");
  EXPECT_EQ((Cluster{.nodes = 8, .dead = {4}, .slow = {5}}.verdicts()), "GGGGBSGG");
  EXPECT_EQ((Cluster{.nodes = 4, .slow = {0}}.verdicts()), "SGGG");
}

// Something else used the machine for a moment.
TEST(NodeCheck, WhatIsSlowButOnceIsChance) {
  int round = 0;
  std::vector<NodeGroup> third;
  const auto check = check_nodes(6, [&](const std::vector<NodeGroup>& groups) {
    if (++round == 3) third = groups;
    std::vector<GroupOutcome> outcomes;
    for (const NodeGroup& g : groups) outcomes.push_back({true, round == 1 && g == NodeGroup{2, 3} ? 1.0 : 10.0});
    return Result<std::vector<GroupOutcome>>(outcomes);
  });
  EXPECT_EQ(std::count(check->verdicts.begin(), check->verdicts.end(), NodeVerdict::good), 6);
  EXPECT_EQ(third, (std::vector<NodeGroup>{{2, 3}})) << "the same pairing again";
}

// Its mate of round 1 is dead, so only one test of it tells how quick it is.
TEST(NodeCheck, OneTestIsNotEnoughToBeSlow) {
  int tests_of_1 = 0;
  const auto check = check_nodes(6, [&](const std::vector<NodeGroup>& groups) {
    std::vector<GroupOutcome> outcomes;
    for (const NodeGroup& g : groups) {
      const bool with_0 = g[0] == 0 || g[1] == 0, with_1 = g[0] == 1 || g[1] == 1;
      tests_of_1 += with_1 ? 1 : 0;
      outcomes.push_back({!with_0, with_1 && tests_of_1 == 2 ? 1.0 : 10.0});
    }
    return Result<std::vector<GroupOutcome>>(outcomes);
  });
  EXPECT_EQ(check->verdicts[0], NodeVerdict::bad);
  EXPECT_EQ(check->verdicts[1], NodeVerdict::good) << "slow once, well beside another";
}

TEST(NodeCheck, WithoutRatesNobodyIsSlow) {
  const auto check = check_nodes(4, [](const std::vector<NodeGroup>& groups) {
    return Result<std::vector<GroupOutcome>>(std::vector<GroupOutcome>(groups.size(), {true, 0}));
  });
  EXPECT_EQ(std::count(check->verdicts.begin(), check->verdicts.end(), NodeVerdict::good), 4);
}

TEST(NodeCheck, ABackEndThatCannotRunBlamesNoNode) {
  const auto check = check_nodes(
      4, [](const std::vector<NodeGroup>&) -> Result<std::vector<GroupOutcome>> { return fail("no such program"); });
  ASSERT_FALSE(check);
  EXPECT_EQ(check.error().what, "no such program");
}

// srun was refused node 6 and 7, which others had: their members never came.
TEST(NodeCheck, WhoNeverCameIsUntested) {
  const auto check = check_nodes(8, [&](const std::vector<NodeGroup>& groups) {
    std::vector<GroupOutcome> outcomes;
    for (const NodeGroup& g : groups) {
      const bool absent = std::any_of(g.begin(), g.end(), [](std::size_t n) { return n >= 6; });
      const bool dead = std::find(g.begin(), g.end(), 0u) != g.end();
      outcomes.push_back({.passed = !absent && !dead, .gb_per_s = 10, .why = absent ? "busy" : "", .absent = absent});
    }
    return Result<std::vector<GroupOutcome>>(outcomes);
  });
  EXPECT_EQ(check->untested, (std::vector<bool>{false, false, false, false, false, false, true, true}));
  EXPECT_EQ(report_of("n0", *check, 0).verdict, "bad");
  EXPECT_EQ(report_of("n1", *check, 1).verdict, "good");
  EXPECT_EQ(report_of("n6", *check, 6).verdict, "untested");
  EXPECT_EQ(report_of("n6", *check, 6).why, "busy");
}

}  // namespace
}  // namespace orrery
