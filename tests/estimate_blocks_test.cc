// Chains of operators as one block against the same chain node by node.
#include <gtest/gtest.h>

#include <random>

#include "estimate/block.h"
#include "replay/replay.h"

namespace orrery {
namespace {

// A host that issues from time `a` on, a stream free at `b`: every operator its own nodes.
double end_node_by_node(const std::vector<Operation>& chain, double a, double b) {
  ExecGraph g;
  const auto node = [&](double ns) {
    g.duration.push_back(static_cast<Ns>(ns));
    g.observed_start.push_back(0);
    g.lane.push_back(0);
    g.kind.push_back(NodeKind::kernel);
    g.at_begin.push_back(0);
    g.rank.push_back(0);
    g.source.push_back(kNoOp);
    return NodeId{g.size() - 1};
  };
  const auto edge = [&](NodeId from, double lag) {
    g.pred.push_back(from);
    g.pred_kind.push_back(from == kNoNode ? EdgeKind::root : EdgeKind::stream);
    g.pred_lag.push_back(static_cast<Ns>(lag));
  };
  const auto close = [&] { g.first_pred.push_back(g.edges()); };
  g.ranks.push_back({});
  NodeId host = node(a);
  edge(kNoNode, 0), close();
  NodeId stream = node(b);
  edge(kNoNode, 0), close();
  for (const Operation& o : chain) {
    const NodeId issued = node(o.host_ns);
    edge(host, 0), close();
    const NodeId run = node(o.stream_ns());
    edge(stream, 0), edge(issued, kLaunchLatencyNs), close();
    host = issued, stream = run;
  }
  Replay r;
  replay(g, r);
  return static_cast<double>(r.end[raw(stream)]);
}

std::vector<Operation> some_chain(std::mt19937& random, int n) {
  std::uniform_int_distribution<int> host(0, 20'000), gpu(0, 40'000), which(0, 3);
  std::vector<Operation> chain;
  for (int i = 0; i < n; ++i) {
    Operation o;
    o.host_ns = host(random);
    if (which(random) != 0) o.compute_ns = gpu(random);
    if (which(random) == 0) o.comm_ns = gpu(random);
    chain.push_back(o);
  }
  return chain;
}

TEST(EstimateBlocks, AChainEndsWhereItsOperatorsDo) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> at(0, 500'000);
  for (int round = 0; round < 200; ++round) {
    const auto chain = some_chain(random, 1 + round % 37);
    const Block b = block_of(chain);
    const double host = at(random), stream = at(random);
    const double end = std::max(stream + b.stream_ns, host + b.late_ns);
    EXPECT_DOUBLE_EQ(end, end_node_by_node(chain, host, stream)) << round;
  }
}

TEST(EstimateBlocks, CompositionIsThatOfTheChains) {
  std::mt19937 random(8);
  for (int round = 0; round < 100; ++round) {
    auto first = some_chain(random, 9);
    const auto second = some_chain(random, 11);
    const Block composed = then(block_of(first), block_of(second));
    first.insert(first.end(), second.begin(), second.end());
    const Block whole = block_of(first);
    EXPECT_DOUBLE_EQ(composed.late_ns, whole.late_ns);
    EXPECT_DOUBLE_EQ(composed.host_ns, whole.host_ns);
    EXPECT_DOUBLE_EQ(composed.stream_ns, whole.stream_ns);
    EXPECT_NEAR(composed.compute_ns + composed.overlapped_ns + composed.comm_ns, composed.stream_ns, 1e-6);
  }
}

TEST(EstimateBlocks, ATransferBesideAKernelIsHiddenAsFarAsItLasts) {
  Operation o;
  o.compute_ns = 100, o.comm_ns = 30;
  Block b = block_of(o);
  EXPECT_EQ(b.stream_ns, 100);
  EXPECT_EQ(b.overlapped_ns, 30);
  EXPECT_EQ(b.compute_ns, 70);
  EXPECT_EQ(b.comm_ns, 0);
  o.comm_ns = 130;
  b = block_of(o);
  EXPECT_EQ(b.stream_ns, 130);
  EXPECT_EQ(b.overlapped_ns, 100);
  EXPECT_EQ(b.compute_ns, 0);
  EXPECT_EQ(b.comm_ns, 30);
}

}  // namespace
}  // namespace orrery
