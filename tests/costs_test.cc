// How long transfers take: by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "costs/collective.h"
#include "facts/gpus.h"
#include "whatif/layout.h"

namespace orrery {
namespace {

// 100 GB/s inside a server, 10 of each card between servers: bytes a ns. No fixed cost, no loss of several cards.
NetworkModel network() {
  NetworkModel net;
  net.intra = {
      .gb_per_s = 100, .p2p_share = 0.8, .p2p_ns = 5'000, .small_hop_ns = 500, .large_hop_ns = 2'000, .seen = true};
  net.inter = {
      .gb_per_s = 10, .p2p_share = 0.8, .p2p_ns = 20'000, .small_hop_ns = 4'000, .large_hop_ns = 10'000, .seen = true};
  net.small_ns = 6'000;
  net.large_ns = 9'000;
  net.small_share = 0.25;
  net.fixed_cost = 0;
  net.rail_loss = 0;
  return net;
}

TEST(Costs, InsideAServer) {
  const NetworkModel net = network();
  // 2 * 3/4 of 8 MB over 100 bytes a ns; six steps of a ring
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::all_reduce, 8e6, {4, 4}), 9'000 + 6 * 2'000 + 120'000);
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::gather_or_scatter, 8e6, {4, 4}), 9'000 + 3 * 2'000 + 60'000);
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::broadcast, 8e6, {4, 4}), 9'000 + 3 * 2'000 + 80'000);
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::point_to_point, 8e6, {2, 2}), 5'000 + 100'000);
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::all_to_all, 8e6, {4, 4}), 5'000 + 75'000);
  // the small protocol: less latency, a quarter of the bandwidth
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::all_reduce, 0, {4, 4}), 6'000 + 6 * 500);
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::all_reduce, 100e3, {2, 2}), 6'000 + 2 * 500 + 4'000);
  const TransferParts parts = transfer_parts(net, Pattern::all_reduce, 100e3, {2, 2});
  EXPECT_DOUBLE_EQ(parts.latency_ns, 7'000);
  EXPECT_DOUBLE_EQ(parts.bytes_ns, 4'000);
}

TEST(Costs, BetweenServers) {
  const NetworkModel net = network();
  // one member a server: 2 * 3/4 of 8 MB over its 10 bytes a ns; two a server: 20. A tree has fewer steps than a ring.
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::all_reduce, 8e6, {4, 1}), 9'000 + 4 * 10'000 + 1'200'000);
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::all_reduce, 8e6, {4, 2}), 9'000 + 2 * 2'000 + 2 * 10'000 + 600'000);
  // others go round a ring: two steps inside servers, one between
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::gather_or_scatter, 8e6, {4, 2}), 9'000 + 2 * 2'000 + 10'000 + 300'000);
  // 16 members a server would be 160: never more than inside
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::gather_or_scatter, 800e6, {32, 16}),
                   9'000 + 30 * 2'000 + 10'000 + 800e6 * 31 / 32 / 100);
  // a send uses one card, however many there are; in an exchange of all with all every GPU its own
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::point_to_point, 8e6, {2, 1}), 20'000 + 1'000'000);
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::all_to_all, 8e6, {16, 8}), 20'000 + 500'000);
}

TEST(Costs, SmallGroupsPayTheFixedCost) {
  NetworkModel net = network();
  net.large_ns = net.intra.large_hop_ns = 0;
  net.fixed_cost = 0.5;  // bus bandwidth of two: 1 of 1.5; of eight: 1.75 of 2.25
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::all_reduce, 1e9, {2, 2}), 1.5e7);
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::all_reduce, 1e9, {8, 8}), 2.25e7);
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::gather_or_scatter, 1e9, {8, 8}), 2.25e7 / 2);
}

TEST(Costs, SeveralCardsLoseALittle) {
  NetworkModel net = network();
  net.rail_loss = 0.1;
  const double one = transfer_parts(net, Pattern::all_reduce, 8e6, {2, 1}).bytes_ns;
  EXPECT_DOUBLE_EQ(one, 8e5);
  EXPECT_NEAR(transfer_parts(net, Pattern::all_reduce, 8e6, {4, 2}).bytes_ns, 1.2e6 / std::pow(2, 0.9), 1);
}

TEST(Costs, SwitchesThatAdd) {
  NetworkModel net = network();
  net.switch_share = 0.7;  // 70 bytes of message a ns, where a ring of eight has 57
  const double ring = 9'000 + 14 * 2'000 + 1e9 * 1.75 / 100;
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::all_reduce, 1e9, {8, 8}), 9'000 + 2 * 2'000 + 1e9 / 70);
  EXPECT_LT(transfer_ns(net, Pattern::all_reduce, 1e9, {8, 8}), ring);
  // not for a few, not over servers, not to gather
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::all_reduce, 1e9, {4, 4}), 9'000 + 6 * 2'000 + 1e9 * 1.5 / 100);
  EXPECT_DOUBLE_EQ(transfer_ns(net, Pattern::gather_or_scatter, 1e9, {8, 8}), 9'000 + 7 * 2'000 + 1e9 * 0.875 / 100);
  EXPECT_GT(transfer_ns(net, Pattern::all_reduce, 1e9, {16, 8}), ring);
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
  EXPECT_EQ(transfer_error(net, Pattern::all_reduce, {4, 4}, {4, 1}, 8e6, 8e6), 1);
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
  EXPECT_DOUBLE_EQ(net.intra.gb_per_s, 0.88 * 450);
  EXPECT_DOUBLE_EQ(net.inter.gb_per_s, 0.86 * 50);
  EXPECT_FALSE(net.intra.seen);
  EXPECT_FALSE(net.inter.seen);
  // published: 365 to 370 GB/s of bus bandwidth in rings of six to eight, 414 to 473 where switches add
  const double six = 1e9 * 2 * 5 / 6 / transfer_ns(net, Pattern::gather_or_scatter, 2e9, {6, 6});
  EXPECT_NEAR(six, 365, 0.1 * 365);
  EXPECT_NEAR(1.75e9 / transfer_ns(net, Pattern::all_reduce, 1e9, {8, 8}), 473, 0.05 * 473);

  NetworkModel seen = network();  // what the trace tells stays
  complete(seen, find_gpu("NVIDIA H100 80GB HBM3"));
  EXPECT_DOUBLE_EQ(seen.intra.gb_per_s, 100);
  EXPECT_DOUBLE_EQ(seen.inter.gb_per_s, 10);

  NetworkModel part;
  part.intra.gb_per_s = 100;
  complete(part, nullptr);
  EXPECT_EQ(part.inter.gb_per_s, 0) << "a GPU that is not known tells nothing";
  EXPECT_EQ(transfer_ns(part, Pattern::all_reduce, 1e6, {2, 1}), -1);
}

// ---- learnt ----

// What transfers over `net` would take, of many sizes.
std::vector<TransferSample> measured(const NetworkModel& net, Pattern pattern, Placement where, double from,
                                     double to) {
  std::vector<TransferSample> out;
  for (double bytes = from; bytes <= to; bytes *= 4)
    out.push_back({pattern, where, bytes, transfer_ns(net, pattern, bytes, where), 0.01, 50});
  return out;
}

TEST(LearntNetwork, FindsWhatItWasMadeFrom) {
  NetworkModel truth = network();
  truth.fixed_cost = 0.4;
  std::vector<TransferSample> samples;
  for (const Placement& where : {Placement{2, 2}, Placement{4, 4}, Placement{8, 8}, Placement{16, 8}, Placement{4, 1}})
    for (const TransferSample& s : measured(truth, Pattern::all_reduce, where, 64, 1e9)) samples.push_back(s);
  const NetworkModel net = fit_network(samples, nullptr);
  EXPECT_TRUE(net.intra.seen);
  EXPECT_TRUE(net.inter.seen);
  for (const TransferSample& s : samples)
    EXPECT_NEAR(transfer_ns(net, s.pattern, s.bytes, s.where) / s.ns, 1, 0.06) << s.where.members << " " << s.bytes;
  // sizes and groups that it has not seen
  for (const Placement& where : {Placement{6, 6}, Placement{32, 8}, Placement{8, 2}})
    for (const double bytes : {3e3, 3e7, 5e9})
      EXPECT_NEAR(
          transfer_ns(net, Pattern::all_reduce, bytes, where) / transfer_ns(truth, Pattern::all_reduce, bytes, where),
          1, 0.08)
          << where.members << " " << bytes;
}

TEST(LearntNetwork, TheLatencyOfLargeMessagesIsAnIntercept) {
  std::vector<TransferSample> samples = {{Pattern::all_reduce, {2, 2}, 8, 10'000, 0.01, 50}};
  for (const double mb : {4.0, 8.0, 16.0, 32.0})
    samples.push_back({Pattern::all_reduce, {2, 2}, mb * 1e6, 30'000 + mb * 20'000, 0.01, 50});
  const NetworkModel net = fit_network(samples, nullptr);
  EXPECT_NEAR(transfer_parts(net, Pattern::all_reduce, 8e6, {2, 2}).latency_ns, 30'000, 3'000);
  EXPECT_NEAR(transfer_ns(net, Pattern::all_reduce, 8, {2, 2}), 10'000, 500);
}

TEST(LearntNetwork, OneSlowTransferIsNoLaw) {
  NetworkModel truth = network();
  std::vector<TransferSample> samples;
  for (const Placement& where : {Placement{2, 2}, Placement{4, 4}})
    for (const TransferSample& s : measured(truth, Pattern::all_reduce, where, 1e6, 1e9)) samples.push_back(s);
  const NetworkModel sound = fit_network(samples, nullptr);
  samples[3].ns *= 5;
  const NetworkModel net = fit_network(samples, nullptr);
  EXPECT_NEAR(transfer_ns(net, Pattern::all_reduce, 1e8, {2, 2}) / transfer_ns(sound, Pattern::all_reduce, 1e8, {2, 2}),
              1, 0.05);
}

TEST(LearntNetwork, NothingMeasuredIsFactsAlone) {
  const NetworkModel net = fit_network({}, find_gpu("NVIDIA A100-SXM4-80GB"));
  EXPECT_DOUBLE_EQ(net.intra.gb_per_s, 0.88 * 300);
  EXPECT_DOUBLE_EQ(net.inter.gb_per_s, 0.86 * 25);
  EXPECT_EQ(net.switch_share, 0);
  const NetworkModel none = fit_network({}, nullptr);
  EXPECT_EQ(transfer_ns(none, Pattern::all_reduce, 1e6, {2, 2}), -1);
  // small messages tell nothing of a bandwidth
  const NetworkModel small = fit_network({{Pattern::all_reduce, {16, 8}, 4, 24'000, 0.01, 10}}, nullptr);
  EXPECT_FALSE(small.inter.seen);
  EXPECT_EQ(transfer_ns(small, Pattern::all_reduce, 1e6, {16, 8}), -1);
}

TEST(LearntNetwork, ErrorsAreWideWhereFactsStandIn) {
  const GpuFacts* gpu = find_gpu("NVIDIA A100-SXM4-80GB");
  NetworkModel truth;
  complete(truth, gpu);
  std::vector<TransferSample> samples = measured(truth, Pattern::all_reduce, {4, 4}, 64, 1e9);
  const NetworkModel inside = fit_network(samples, gpu);
  for (const TransferSample& s : measured(truth, Pattern::all_reduce, {4, 1}, 64, 1e9)) samples.push_back(s);
  const NetworkModel both = fit_network(samples, gpu);
  const auto error = [](const NetworkModel& net, Placement from, Placement to, double bytes) {
    return transfer_error(net, Pattern::all_reduce, from, to, bytes, bytes);
  };
  EXPECT_EQ(error(inside, {4, 4}, {4, 4}, 1e8), 0) << "the same transfer";
  EXPECT_EQ(error(inside, {4, 4}, {1, 1}, 1e8), 0) << "none at all";
  EXPECT_LT(transfer_error(inside, Pattern::all_reduce, {4, 4}, {4, 4}, 1e8, 2e8), 0.02);
  EXPECT_LT(error(inside, {4, 4}, {8, 8}, 1e8), 0.07);
  EXPECT_GT(error(inside, {4, 4}, {4, 1}, 1e8), 0.15) << "from facts";
  EXPECT_LT(error(both, {4, 4}, {4, 1}, 1e8), 0.08) << "seen";
  EXPECT_LT(error(both, {4, 1}, {8, 1}, 1e8), error(both, {4, 1}, {8, 8}, 1e8) + 0.05);
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
  EXPECT_EQ(find_gpu("NVIDIA GeForce GTX 1080 Ti"), nullptr);
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
