// How long transfers take: by hand.
#include <gtest/gtest.h>

#include "costs/collective.h"
#include "facts/gpus.h"
#include "whatif/layout.h"

namespace orrery {
namespace {

// 100 GB/s inside a server, 10 of each GPU between servers: bytes a ns.
NetworkModel network() {
  return {.intra = {.gb_per_s = 100, .p2p_gb_per_s = 80, .latency_ns = 5'000, .seen = true},
          .inter = {.gb_per_s = 10, .p2p_gb_per_s = 8, .latency_ns = 20'000, .seen = true}};
}

TEST(Costs, InsideAServer) {
  const NetworkModel net = network();
  // 2 * 3/4 of 8 MB over 100 bytes a ns
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::all_reduce, 8e6, {4, 4}), 5'000 + 120'000);
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::gather_or_scatter, 8e6, {4, 4}), 5'000 + 60'000);
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::point_to_point, 8e6, {2, 2}), 5'000 + 100'000);
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::all_reduce, 0, {4, 4}), 5'000);
}

TEST(Costs, BetweenServers) {
  const NetworkModel net = network();
  // one member a server: 2 * 3/4 of 8 MB over its 10 bytes a ns; two a server: 20
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::all_reduce, 8e6, {4, 1}), 20'000 + 1'200'000);
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::all_reduce, 8e6, {4, 2}), 20'000 + 600'000);
  // 16 members a server would be 160: never more than inside
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::gather_or_scatter, 8e6, {32, 16}), 20'000 + 8e6 * 31 / 32 / 100);
  // a send uses one card, however many there are
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::point_to_point, 8e6, {2, 1}), 20'000 + 1'000'000);
}

TEST(Costs, AloneTakesNothing) {
  for (const Pattern p : {Pattern::all_reduce, Pattern::gather_or_scatter, Pattern::point_to_point})
    EXPECT_EQ(transfer_ns(network(), p, 8e6, {1, 1}), 0);
}

TEST(Costs, AnUnknownLevelIsSaid) {
  NetworkModel net = network();
  net.inter = {};
  EXPECT_EQ(transfer_ns(net, Pattern::all_reduce, 8e6, {4, 1}), -1);
  EXPECT_EQ(transfer_ns(net, Pattern::point_to_point, 8e6, {2, 1}), -1);
  EXPECT_GT(transfer_ns(net, Pattern::all_reduce, 8e6, {4, 4}), 0);
}

TEST(Costs, MoreBytesOrMembersAreNeverFaster) {
  const NetworkModel net = network();
  for (const Pattern p : {Pattern::all_reduce, Pattern::gather_or_scatter, Pattern::point_to_point}) {
    double last = 0;
    for (double bytes = 1; bytes < 1e10; bytes *= 10) {
      const double t = transfer_ns(net, p, bytes, {8, 8});
      EXPECT_GT(t, last);
      EXPECT_GE(transfer_ns(net, p, bytes, {8, 2}), t) << "servers are no faster than the inside of one";
      EXPECT_GE(transfer_ns(net, p, bytes, {16, 16}), t);
      last = t;
    }
  }
}

TEST(Costs, LevelsThatWereNotSeenComeFromFacts) {
  NetworkModel net;
  complete(net, find_gpu("NVIDIA H100 80GB HBM3"));
  EXPECT_DOUBLE_EQ(net.intra.gb_per_s, 0.72 * 450);
  EXPECT_DOUBLE_EQ(net.inter.gb_per_s, 0.88 * 50);
  EXPECT_DOUBLE_EQ(net.intra.p2p_gb_per_s, 0.88 * 0.72 * 450);
  EXPECT_DOUBLE_EQ(net.inter.p2p_gb_per_s, 0.88 * 0.88 * 50);
  EXPECT_DOUBLE_EQ(net.intra.latency_ns, 8'000);
  EXPECT_DOUBLE_EQ(net.inter.latency_ns, 20'000);
  EXPECT_FALSE(net.intra.seen);
  EXPECT_FALSE(net.inter.seen);

  NetworkModel seen = network();  // what the trace tells stays
  complete(seen, find_gpu("NVIDIA H100 80GB HBM3"));
  EXPECT_DOUBLE_EQ(seen.intra.gb_per_s, 100);
  EXPECT_DOUBLE_EQ(seen.inter.gb_per_s, 10);
  EXPECT_DOUBLE_EQ(seen.inter.p2p_gb_per_s, 8);
  EXPECT_DOUBLE_EQ(seen.inter.latency_ns, 20'000);

  NetworkModel part;  // latency between servers from that inside
  part.intra.gb_per_s = 100;
  part.intra.latency_ns = 4'000;
  complete(part, nullptr);
  EXPECT_DOUBLE_EQ(part.inter.latency_ns, 10'000);
  EXPECT_DOUBLE_EQ(part.intra.p2p_gb_per_s, 88);
  EXPECT_EQ(part.inter.gb_per_s, 0) << "a GPU that is not known tells nothing";
  EXPECT_EQ(transfer_ns(part, Pattern::all_reduce, 1e6, {2, 1}), -1);
}

TEST(Gpus, NamesOfTheDriver) {
  EXPECT_EQ(find_gpu("NVIDIA H100 PCIe")->nvlink_gb_per_s, 300);
  EXPECT_EQ(find_gpu("NVIDIA H100 80GB HBM3")->nvlink_gb_per_s, 450);
  EXPECT_EQ(find_gpu("NVIDIA H800")->nvlink_gb_per_s, 200);
  EXPECT_EQ(find_gpu("NVIDIA A100-SXM4-80GB")->memory_gb_per_s, 2039);
  EXPECT_EQ(find_gpu("NVIDIA A100-SXM4-40GB")->memory_gb_per_s, 1555);
  EXPECT_EQ(find_gpu("Tesla V100-SXM2-16GB")->sms, 80);
  EXPECT_EQ(find_gpu("AMD Instinct MI300X")->sms, 304);
  EXPECT_EQ(find_gpu("NVIDIA A100-SXM4-40GB")->memory_gib, 40);
  EXPECT_EQ(find_gpu("NVIDIA A100 80GB PCIe")->memory_gib, 80);
  EXPECT_LT(find_gpu("Tesla V100-SXM2-16GB")->memory_gib, 16);
  EXPECT_GT(find_gpu("Tesla V100-SXM2-32GB")->memory_gib, 31);
  EXPECT_EQ(find_gpu("NVIDIA GeForce RTX 4090"), nullptr);
  EXPECT_EQ(find_gpu(""), nullptr);
  for (const char* name : {"B200", "H200", "H100", "A100", "V100", "MI300X"}) {
    const GpuFacts* gpu = find_gpu(name);
    ASSERT_NE(gpu, nullptr) << name;
    EXPECT_FALSE(gpu->source.empty()) << name;
    EXPECT_GT(gpu->memory_gib, 0) << name;
  }
}

// ---- where groups lie ----

JobLayout layout(std::int64_t tp, std::int64_t pp, std::int64_t dp, std::int64_t gpus_per_node) {
  JobLayout l;
  l.world = tp * pp * dp;
  l.tp = tp;
  l.pp = pp;
  l.dp = dp;
  l.gpus_per_node = gpus_per_node;
  return l;
}

// tp fastest, then dp, then pp: a data-parallel group has every tp-th rank.
TEST(Placements, PipelineOutermost) {
  JobLayout l = layout(2, 2, 8, 8);
  const auto expect = [&](GroupRole r, std::int64_t members, std::int64_t in_server) {
    EXPECT_EQ(l.placement(r).members, members) << name_of(r);
    EXPECT_EQ(l.placement(r).members_in_server, in_server) << name_of(r);
  };
  expect(GroupRole::tensor, 2, 2);
  expect(GroupRole::data, 8, 4);       // 0 2 4 6 | 8 ...
  expect(GroupRole::pipeline, 2, 1);   // 0 | 16
  expect(GroupRole::embedding, 2, 1);  // first stage and last
  expect(GroupRole::model, 4, 2);      // 0 1 | 16 17
  expect(GroupRole::world, 32, 8);
  l = layout(2, 2, 2, 8);  // all in one
  for (const GroupRole r : {GroupRole::tensor, GroupRole::data, GroupRole::pipeline, GroupRole::embedding,
                            GroupRole::model, GroupRole::world})
    EXPECT_TRUE(l.placement(r).one_server()) << name_of(r);
  l = layout(8, 1, 1, 4);  // wider than a server
  expect(GroupRole::tensor, 8, 4);
  EXPECT_FALSE(l.placement(GroupRole::tensor).one_server());
}

// tp, pp, dp: a model is in one piece, its replicas lie tp * pp apart.
TEST(Placements, DataOutermost) {
  JobLayout l = layout(2, 2, 8, 8);
  l.pipeline_outermost = false;
  EXPECT_EQ(l.placement(GroupRole::data).members_in_server, 2);  // 0 4 | 8 12 | ...
  EXPECT_TRUE(l.placement(GroupRole::pipeline).one_server());    // 0 2
  EXPECT_TRUE(l.placement(GroupRole::model).one_server());       // 0 1 2 3
}

}  // namespace
}  // namespace orrery
