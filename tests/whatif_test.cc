// Each change to a graph on jobs so small that its nodes and lags can be checked by hand.
#include "whatif/whatif.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "job_builder.h"
#include "whatif/edits.h"
#include "whatif/layout.h"

namespace orrery {
namespace {

using testing::job;
using testing::Joined;
using testing::RankBuilder;
using testing::to_us;
using testing::us;
using Comm = testing::TraceBuilder::Comm;

// The applied edit; the job is run again. A failure of the test where it is refused.
AppliedEdit apply(Joined& g, const std::string& name, const std::string& value = "") {
  Scenario scenario{g.traces, g.build};
  auto done = apply_edit(scenario, {name, value});
  const Status sound = check(g.graph());
  EXPECT_TRUE(sound.has_value()) << sound.error().line();
  replay(g.graph(), g.run);
  if (!done) {
    ADD_FAILURE() << done.error().line();
    return {};
  }
  EXPECT_EQ(done->edit.name, name);
  EXPECT_EQ(done->edit.value, value);
  return std::move(*done);
}

// Why it is refused, with the graph as it was; "" = it is not.
std::string refused(Joined& g, const std::string& name, const std::string& value) {
  const std::vector<Ns> durations = g.graph().duration, lags = g.graph().pred_lag;
  Scenario scenario{g.traces, g.build};
  const auto done = apply_edit(scenario, {name, value});
  if (done) return "";
  EXPECT_TRUE(g.graph().duration == durations && g.graph().pred_lag == lags) << name << " " << value;
  EXPECT_EQ(done.error().line().find('\n'), std::string::npos);
  return done.error().line();
}

//   thread   op 0 .. 100;  call 10-14   call 20-24              (op's last 76 us are host work)
//   stream 7    a 16 ------- 56   b 57 -- 77
Joined one_rank() {
  RankBuilder b(0);
  b.step(1, 0, 200);
  b.op("op", 2, 100);
  b.task("a", 10, 16, 56);
  b.task("b", 20, 57, 77);
  return Joined(job(std::move(b)));
}

TEST(WhatIf, HostTimeOfEveryStretch) {
  Joined g = one_rank();
  EXPECT_DOUBLE_EQ(g.step_us(), 200);
  const AppliedEdit done = apply(g, "--host", "0.5x");
  EXPECT_EQ(done.changed.nodes, 7u);  // op, two calls with two ends each, the end of op, that of the step
  EXPECT_DOUBLE_EQ(g.step_us(), 100);
  EXPECT_DOUBLE_EQ(g.end("op<"), 51);
  EXPECT_DOUBLE_EQ(g.start("a"), 5 + 6) << "the call begins at 5; its launch is the device's";
  EXPECT_DOUBLE_EQ(g.start("b"), 51 + 1);
  EXPECT_DOUBLE_EQ(g.duration("a"), 40);
}

TEST(WhatIf, LaunchCallsAlone) {
  Joined g = one_rank();
  EXPECT_EQ(apply(g, "--launch", "0.25x").changed.nodes, 2u);
  EXPECT_DOUBLE_EQ(g.step_us(), 200 - 2 * 3);  // two calls of 4 us
  EXPECT_DOUBLE_EQ(g.start("a"), 16) << "a kernel waits for the begin of its call";
  EXPECT_DOUBLE_EQ(g.start("b"), 57);
}

TEST(WhatIf, LaunchesForFree) {
  Joined g = one_rank();
  const AppliedEdit done = apply(g, "--cuda-graphs");
  EXPECT_EQ(done.changed.nodes, 2u);
  EXPECT_EQ(done.changed.edges, 2u);
  EXPECT_DOUBLE_EQ(g.lag("cudaLaunchKernel>", "a"), 0);
  EXPECT_DOUBLE_EQ(g.start("a"), 10);
  EXPECT_DOUBLE_EQ(g.start("b"), 51);
  EXPECT_DOUBLE_EQ(g.step_us(), 192);
}

TEST(WhatIf, KernelsByName) {
  Joined g = one_rank();
  EXPECT_EQ(apply(g, "--kernel", "^a$=0.5x").changed.nodes, 1u);
  EXPECT_DOUBLE_EQ(g.duration("a"), 20);
  EXPECT_DOUBLE_EQ(g.duration("b"), 20);
  EXPECT_DOUBLE_EQ(g.start("b"), 37);
  Joined both = one_rank();
  EXPECT_EQ(apply(both, "--kernel", "a|b=2x").changed.nodes, 2u);
  EXPECT_DOUBLE_EQ(both.end("b"), 16 + 80 + 1 + 40);
  Joined same = one_rank();
  EXPECT_EQ(apply(same, "--kernel", ".=1x").changed.nodes, 0u);
  Joined equals = one_rank();  // the last = begins the factor
  EXPECT_NE(refused(equals, "--kernel", "a=b=0.5x"), "");
}

// Neither long names nor patterns that send a backtracking matcher astray take stack or time.
TEST(WhatIf, KernelsWithEndlessNames) {
  RankBuilder b(0);
  b.step(1, 0, 100);
  b.task("gemm" + std::string(200'000, 'a') + "b", 10, 16, 56);
  Joined g(job(std::move(b)));
  EXPECT_NE(refused(g, "--kernel", "(a|c)*d=2x"), "");
  EXPECT_NE(refused(g, "--kernel", "(.*)*(.*)*z=2x"), "");
  EXPECT_EQ(apply(g, "--kernel", "gemm(a|b)*b$=2x").changed.nodes, 1u);
  EXPECT_NE(refused(g, "--kernel", std::string(80'000, 'a') + "=2x"), "");
  EXPECT_NE(refused(g, "--kernel", std::string(20'000, '(') + "=2x"), "");
}

TEST(WhatIf, FusedKernels) {
  Joined g = one_rank();
  const AppliedEdit done = apply(g, "--fuse", "a,b");
  EXPECT_EQ(done.changed.nodes, 2u);  // b, and the call that launches it
  EXPECT_DOUBLE_EQ(g.duration("a"), 40);
  EXPECT_DOUBLE_EQ(g.duration("b"), 0);
  EXPECT_DOUBLE_EQ(g.end("b"), 56);
  EXPECT_DOUBLE_EQ(g.step_us(), 196);
  Joined other = one_rank();
  EXPECT_NE(refused(other, "--fuse", "b,a"), "") << "b is not before a";
}

TEST(WhatIf, AChainIsFusedIntoItsFirst) {
  RankBuilder b(0);
  b.step(1, 0, 300);
  b.task("x", 10, 16, 26);
  b.task("y", 20, 27, 57);
  b.task("y", 30, 58, 68);
  b.task("z", 40, 69, 79);
  Joined g(job(std::move(b)));
  apply(g, "--fuse", "x|y,y");
  EXPECT_DOUBLE_EQ(g.duration("x"), 30) << "the longest of three";
  EXPECT_DOUBLE_EQ(g.start("z"), 16 + 30 + 1);
  EXPECT_DOUBLE_EQ(g.step_us(), 292);
}

// The end of a fused kernel's launch call may stand far from its begin among the nodes of other ranks.
TEST(WhatIf, FusedKernelsOfManyRanks) {
  std::vector<RankBuilder> ranks;
  TraceSet set;
  for (int r = 0; r < 12; ++r) {
    RankBuilder b(r, "a", 12);
    b.step(1, 0, 1000);
    for (int k = 0; k < 10; ++k) {
      b.task("a", 60 * k + 10, 60 * k + 16, 60 * k + 26);
      b.task("b", 60 * k + 20, 60 * k + 27, 60 * k + 37);
    }
    set.ranks.push_back(b.finish());
  }
  Joined g(std::move(set));
  EXPECT_EQ(apply(g, "--fuse", "a,b").changed.nodes, 12u * 10 * 2);
  for (std::size_t s = 0; s < 12; ++s) EXPECT_DOUBLE_EQ(g.step_us(s), 960) << s;
}

// ---- ranks together ----

constexpr std::int64_t kLarge = 1'048'576;  // floats: 4 MiB

Comm reduce(std::int64_t elems, const char* group = "1", const char* ranks = "[0, 1]") {
  return {.collective = "allreduce", .elems = elems, .group = group, .desc = group, .ranks = ranks, .size = 2};
}

// Two ranks: a small all-reduce of 10 us, a large one of 110; rank 1 comes 20 us late to the large one.
TraceSet two_ranks(const std::string& second_host = "a") {
  RankBuilder a(0, "a", 2), b(1, second_host, 2);
  for (RankBuilder* r : {&a, &b}) {
    const double late = r == &b ? 20 : 0;
    r->step(1, 0, 1000);
    r->meet("small", 10, 16, 26, reduce(64));
    r->task("k", 100, 106, 156 + late);
    r->meet("large", 110, 157 + late, 287, reduce(kLarge));
  }
  return job(std::move(a), std::move(b));
}

// A small all-reduce of 10 us, one of 4 MiB for 95 and one of 16 MiB for 335: a line through the large ones has 15 us
// at no bytes.
TraceSet two_ranks_three_sizes() {
  RankBuilder a(0, "a", 2), b(1, "a", 2);
  for (RankBuilder* r : {&a, &b}) {
    r->step(1, 0, 1000);
    r->meet("small", 10, 16, 26, reduce(64));
    r->meet("large", 110, 116, 211, reduce(kLarge));
    r->meet("larger", 310, 316, 651, reduce(4 * kLarge));
  }
  return job(std::move(a), std::move(b));
}

TEST(WhatIf, BandwidthLeavesTheLatency) {
  Joined g(two_ranks_three_sizes());
  const auto samples = transfer_samples(g.build, 0);
  ASSERT_EQ(samples.size(), 3u);
  for (const TransferSample& s : samples) {
    EXPECT_EQ(s.pattern, Pattern::all_reduce);
    EXPECT_EQ(s.where, (Placement{2, 2}));
    EXPECT_EQ(s.count, 1);
  }
  EXPECT_EQ(samples[0].bytes, 256);
  EXPECT_EQ(samples[0].ns, 10'000);
  EXPECT_NEAR(samples[2].bytes, 16 << 20, 1);
  EXPECT_EQ(samples[2].ns, 335'000);
  EXPECT_EQ(apply(g, "--network", "intra=2x").changed.nodes, 6u);
  EXPECT_NEAR(g.ends("small"), 26, 0.1) << "latency alone";
  EXPECT_NEAR(g.ends("large"), 116 + 15 + 40, 1) << "not 10 + 42.5: large messages have a latency of their own";
  EXPECT_NEAR(g.ends("larger"), 316 + 15 + 160, 3);
}

TEST(WhatIf, LateMembersAreStillWaitedFor) {
  Joined g(two_ranks());
  EXPECT_EQ(apply(g, "--network", "intra=2x").changed.nodes, 4u);
  EXPECT_GT(g.ends("large", 0), 177 + 55) << "from the last arrival; half of it and some latency";
  EXPECT_LT(g.ends("large", 0), 177 + 75);
  EXPECT_DOUBLE_EQ(g.ends("large", 1), g.ends("large", 0));
}

TEST(WhatIf, AnotherLatency) {
  Joined g(two_ranks_three_sizes());
  EXPECT_EQ(apply(g, "--network", "latency_us=4").changed.nodes, 6u);
  EXPECT_NEAR(g.ends("small"), 20, 0.1);
  EXPECT_NEAR(g.ends("large"), 116 + 4 + 80, 2);
  Joined none(two_ranks_three_sizes());
  apply(none, "--network", "latency_us=0");
  EXPECT_NEAR(none.ends("small"), 16, 0.1);
  EXPECT_NEAR(none.ends("larger"), 316 + 320, 3);
}

TEST(WhatIf, PartsOfTheNetworkInAnyOrder) {
  for (const char* value : {"intra=2x,latency_us=4", "latency_us=4,intra=2x"}) {
    Joined g(two_ranks_three_sizes());
    apply(g, "--network", value);
    EXPECT_NEAR(g.ends("small"), 20, 0.1) << value;
    EXPECT_NEAR(g.ends("large"), 116 + 4 + 40, 1) << value;
  }
}

TEST(WhatIf, BandwidthInGbPerS) {
  Joined g(two_ranks()), twice(two_ranks());
  const double now = bus_bandwidth(g.comm(), Link::intra);
  EXPECT_NEAR(now, 4.0 * kLarge / 110'000, 1e-9);  // bus factor of two ranks: 1
  EXPECT_EQ(bus_bandwidth(g.comm(), Link::inter), 0);
  apply(g, "--network", "intra=" + std::to_string(2 * now));
  apply(twice, "--network", "intra=2x");
  EXPECT_NEAR(g.ends("large"), twice.ends("large"), 0.002);
  Joined same(two_ranks());
  EXPECT_EQ(apply(same, "--network", "intra=1x").changed.nodes, 0u);
}

TEST(WhatIf, LinksAreToldApart) {
  Joined g(two_ranks("b"));
  ASSERT_EQ(g.comm().meetings.size(), 2u);
  for (const Meeting& m : g.comm().meetings) EXPECT_EQ(link_of(g.comm(), m), Link::inter);
  EXPECT_NE(refused(g, "--network", "intra=50"), "");
  EXPECT_NE(apply(g, "--network", "inter=2x").changed.nodes, 0u);
}

TEST(WhatIf, TransfersTakeNoTime) {
  Joined g(two_ranks());
  EXPECT_EQ(apply(g, "--perfect-overlap").changed.nodes, 4u);
  EXPECT_DOUBLE_EQ(g.ends("small"), 16);
  EXPECT_DOUBLE_EQ(g.ends("large", 0), 177) << "rank 1 is still waited for";
}

TEST(WhatIf, CommunicationByName) {
  Joined g(two_ranks());
  EXPECT_EQ(apply(g, "--kernel", "large=0.5x").changed.nodes, 2u);
  EXPECT_DOUBLE_EQ(g.ends("large"), 177 + 55);
}

TEST(WhatIf, OneRankLate) {
  Joined g(two_ranks());
  EXPECT_EQ(apply(g, "--delay", "rank=1,ms=0.05").changed.nodes, 1u);
  EXPECT_DOUBLE_EQ(g.ends("small", 0), 76);
  EXPECT_DOUBLE_EQ(g.ends("large", 0), 337);
  EXPECT_DOUBLE_EQ(g.step_us(0), 1000) << "the host of rank 0 waits for nothing";
  EXPECT_DOUBLE_EQ(g.step_us(1), 1050);
}

TEST(WhatIf, EditsThatAreRefused) {
  Joined g(two_ranks());
  const std::vector<std::pair<std::string, std::string>> bad = {{"--kernel", ""},
                                                                {"--kernel", "k"},
                                                                {"--kernel", "k="},
                                                                {"--kernel", "=2x"},
                                                                {"--kernel", "k=0x"},
                                                                {"--kernel", "k=-1x"},
                                                                {"--kernel", "k=nan"},
                                                                {"--kernel", "k=infx"},
                                                                {"--kernel", "k=1e6x"},
                                                                {"--kernel", "k=2xx"},
                                                                {"--kernel", "(=2x"},
                                                                {"--kernel", "absent=2x"},
                                                                {"--kernel", "aten::=2x"},
                                                                {"--fuse", "k"},
                                                                {"--fuse", "k,"},
                                                                {"--fuse", ",k"},
                                                                {"--fuse", "k,absent"},
                                                                {"--host", ""},
                                                                {"--host", "fast"},
                                                                {"--launch", "0"},
                                                                {"--network", ""},
                                                                {"--network", "intra"},
                                                                {"--network", "intra=0x"},
                                                                {"--network", "wifi=2x"},
                                                                {"--network", "inter=2x"},
                                                                {"--network", "inter=50"},
                                                                {"--network", "intra=-5"},
                                                                {"--network", "latency_us=5x"},
                                                                {"--network", "intra=2x,intra=2x"},
                                                                {"--delay", ""},
                                                                {"--delay", "rank=0"},
                                                                {"--delay", "ms=5"},
                                                                {"--delay", "rank=9,ms=1"},
                                                                {"--delay", "rank=0,ms=0"},
                                                                {"--delay", "rank=0,ms=nan"},
                                                                {"--delay", "rank=0,ms=1,ms=2"},
                                                                {"--delay", "rank=-1,ms=1"},
                                                                {"--nothing", "1"}};
  for (const auto& [name, value] : bad) EXPECT_NE(refused(g, name, value), "") << name << " " << value;
}

TEST(WhatIf, Factors) {
  EXPECT_DOUBLE_EQ(parse_factor("0.5x").value_or(0), 0.5);
  EXPECT_DOUBLE_EQ(parse_factor("2").value_or(0), 2);
  EXPECT_DOUBLE_EQ(parse_factor("1e-3x").value_or(0), 0.001);
  for (const char* bad : {"", "x", "0", "-1", "1e6", "inf", "nan", "1 x", " 1", "1x2", "0x10"})
    EXPECT_FALSE(parse_factor(bad).has_value()) << bad;
}

// ---- stragglers ----

struct Speed {
  double kernel = 1, host = 1, link = 1;
};

// A rank that computes four times a step, 500 us each; `pairs`: and reduces 4 MiB with its neighbour in 100 us. All
// that the host does is stretched by `host`.
RankBuilder worker(std::int64_t rank, std::int64_t world, Speed s, const std::string& name = "k", bool pairs = false) {
  RankBuilder b(rank, "a", world);
  const std::string group = "pair" + std::to_string(rank / 2);
  const std::string ranks = "[" + std::to_string(rank / 2 * 2) + ", " + std::to_string(rank / 2 * 2 + 1) + "]";
  b.step(1, 0, 12'000 * s.host);
  for (int i = 0; i < 4; ++i) {
    const auto at = [&](double t) { return s.host * (3000 * i + t); };
    b.op("aten::mm", at(100), 40 * s.host);
    b.task(name, at(150), at(150) + 6, at(150) + 6 + 500 * s.kernel);
    b.op("aten::add", at(200), 60 * s.host);
    if (!pairs) continue;
    const double call = at(1500);
    b.meet("ar", call, call + 6, call + 6 + 100 * s.link, reduce(kLarge, group.c_str(), ranks.c_str()));
  }
  return b;
}
Joined workers(const std::vector<Speed>& speeds, bool pairs = false) {
  TraceSet set;
  for (std::size_t r = 0; r < speeds.size(); ++r)
    set.ranks.push_back(
        worker(static_cast<std::int64_t>(r), static_cast<std::int64_t>(speeds.size()), speeds[r], "k", pairs).finish());
  return Joined(std::move(set));
}
std::string names(const std::vector<Straggler>& found) {
  std::string s;
  for (const Straggler& f : found) s += std::to_string(f.rank) + " " + std::string(name_of(f.kind)) + "; ";
  return s;
}
std::string stragglers(const Joined& g) { return names(find_stragglers(g.traces, g.build)); }

TEST(Stragglers, OfEachKind) {
  const Joined compute = workers({{}, {}, {.kernel = 1.2}, {}});
  EXPECT_EQ(stragglers(compute), "2 compute; ");
  EXPECT_NEAR(find_stragglers(compute.traces, compute.build)[0].slower, 1.2, 1e-6);
  EXPECT_EQ(stragglers(workers({{}, {.host = 2}, {}, {}})), "1 host; ");
  EXPECT_EQ(stragglers(workers({{.kernel = 1.5}, {.host = 2}, {}, {}})), "0 compute; 1 host; ");
  EXPECT_EQ(stragglers(workers({{.kernel = 1.2}, {}, {}})), "0 compute; ") << "three are enough";
}

TEST(Stragglers, NotWhereAllAreAlike) {
  EXPECT_EQ(stragglers(workers({{}, {}, {}, {}})), "");
  EXPECT_EQ(stragglers(workers({{}, {}, {.kernel = 1.02}, {}})), "") << "less than 3%";
  EXPECT_EQ(stragglers(workers({{}, {}, {.kernel = 0.8}, {}})), "") << "a fast one";
  EXPECT_EQ(stragglers(workers({{.kernel = 1.1}, {.kernel = 0.9}, {.kernel = 1.05}, {.kernel = 0.95}})), "")
      << "no more than the others differ among each other";
  EXPECT_EQ(stragglers(workers({{.kernel = 3}})), "") << "one rank has no peers";
}

// Stages of a pipeline: twice as long, but of other kernels.
TEST(Stragglers, OtherWorkIsNoStraggler) {
  TraceSet set;
  for (int r = 0; r < 4; ++r)
    set.ranks.push_back(worker(r, 4, {.kernel = r < 2 ? 1.0 : 2.0}, r < 2 ? "k" : "l").finish());
  EXPECT_EQ(stragglers(Joined(std::move(set))), "");
}

TEST(Stragglers, TakenOut) {
  Joined g = workers({{}, {}, {.kernel = 1.2}, {}});
  EXPECT_EQ(apply(g, "--without-stragglers").changed.nodes, 4u);
  for (std::uint32_t r = 0; r < 4; ++r) EXPECT_EQ(g.graph().duration[raw(g.node("k", r))], us(500)) << r;
  Joined none = workers({{}, {}, {}, {}});
  EXPECT_EQ(apply(none, "--without-stragglers").changed.nodes, 0u);
}

// Three pairs, of which one has a slow link: both of its ranks are listed, and the link is mended once.
TEST(Stragglers, ASlowLinkIsMendedOnce) {
  Joined g = workers({{}, {}, {.link = 2}, {.link = 2}, {}, {}}, true);
  EXPECT_EQ(stragglers(g), "2 network; 3 network; ");
  EXPECT_EQ(apply(g, "--without-stragglers").changed.nodes, 8u);
  for (const CommRow& row : g.comm().rows) EXPECT_EQ(g.graph().duration[row.last], us(100)) << row.rank;
}

// One kernel sends to both neighbours: it is one transfer, however many it meets.
TEST(Stragglers, KernelOfTwoMeetings) {
  const auto part = [](const char* what, std::int32_t peer) {
    Comm c{.collective = what, .elems = kLarge, .group = "2", .desc = "pp", .ranks = "[0, 1, 2]", .size = 3};
    (what[0] == 's' ? c.dst : c.src) = peer;
    return c;
  };
  RankBuilder a(0, "a", 3), b(1, "a", 3), c(2, "a", 3);
  a.batch("ncclDevKernel_SendRecv", 50, 56, 156, {part("recv", 1)});
  b.batch("ncclDevKernel_SendRecv", 50, 56, 156, {part("send", 0), part("send", 2)});
  c.batch("ncclDevKernel_SendRecv", 50, 56, 156, {part("recv", 1)});
  Joined g(job(std::move(a), std::move(b), std::move(c)));
  ASSERT_EQ(g.comm().meetings.size(), 2u);
  remove_stragglers(g.build, {{.rank = 1, .kind = StragglerKind::network, .slower = 2}});
  for (std::uint32_t r = 0; r < 3; ++r)
    EXPECT_EQ(g.graph().duration[g.row("ncclDevKernel_SendRecv", r).last], us(50)) << r;
}

}  // namespace
}  // namespace orrery
