// Ranks together: who waits for whom, what is waiting and what transfer, what a change on one rank does to the others,
// ranks that are not there, and jobs that cannot be one.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "job_builder.h"
#include "replay/replay.h"

namespace orrery {
namespace {

using testing::all_reduce;
using testing::job;
using testing::Joined;
using testing::RankBuilder;
using testing::refusal;
using testing::steady;
using testing::to_us;
using testing::TraceBuilder;
using testing::us;
using Comm = TraceBuilder::Comm;
using Meetings = std::vector<std::string>;

Comm send_to(std::int32_t peer) {
  return {.collective = "send", .elems = 8, .group = "2", .desc = "pp", .ranks = "[0, 1, 2]", .size = 3, .dst = peer};
}
Comm receive_from(std::int32_t peer) {
  return {.collective = "recv", .elems = 8, .group = "2", .desc = "pp", .ranks = "[0, 1, 2]", .size = 3, .src = peer};
}

// Every GPU task and host boundary where it was measured, in the common clock.
void expect_as_measured(const Joined& g) {
  for (std::uint32_t n = 0; n < g.graph().size(); ++n) {
    const Ns replayed = g.graph().kind[n] == NodeKind::host ? g.run.end[n] : g.run.start[n];
    const Ns measured = g.graph().observed_start[n] + (g.graph().kind[n] == NodeKind::host ? g.graph().duration[n] : 0);
    ASSERT_EQ(replayed, measured) << "node " << n << " " << name_of(g.graph().kind[n]);
  }
}

// ---- two ranks ----

//            0    6         56 57          100 101  111
//   rank 0        k--------->   ar----------->  tail      waits 20, transfers 23
//   rank 1        k--------------->76 77 ar-->  tail      waits 0
TraceSet two_ranks() {
  RankBuilder a(0), b(1);
  a.task("k", 0, 6, 56);
  a.meet("ar", 10, 57, 100, all_reduce());
  a.task("tail", 20, 101, 111);
  b.task("k", 0, 6, 76);
  b.meet("ar", 10, 77, 100, all_reduce());
  b.task("tail", 20, 101, 111);
  return job(std::move(a), std::move(b));
}

TEST(Join, CollectiveEndsWhenTheLastHasCome) {
  Joined g(two_ranks());
  EXPECT_EQ(g.meetings(), (Meetings{"ar@0 ar@1"}));
  EXPECT_DOUBLE_EQ(g.transfer("ar", 0), 23);
  EXPECT_DOUBLE_EQ(g.transfer("ar", 1), 23);
  EXPECT_DOUBLE_EQ(g.waited("ar", 0), 20);
  EXPECT_DOUBLE_EQ(g.waited("ar", 1), 0);
  EXPECT_EQ(g.comm().meetings.at(0).arrival, us(77));
  EXPECT_EQ(g.comm().meetings.at(0).transfer, us(23));
  EXPECT_EQ(g.comm().meetings.at(0).missing, 0u);
  expect_as_measured(g);
  EXPECT_DOUBLE_EQ(g.starts("ar", 0), 57);
  EXPECT_DOUBLE_EQ(g.ends("ar", 0), 100);
  EXPECT_DOUBLE_EQ(g.ends("ar", 1), 100);
  EXPECT_DOUBLE_EQ(g.ends("tail", 1), 111);

  g.delay("k", 1, 30);  // rank 1 comes at 107: rank 0 waits 50 of it
  EXPECT_DOUBLE_EQ(g.starts("ar", 0), 57);
  EXPECT_DOUBLE_EQ(g.starts("ar", 1), 107);
  EXPECT_DOUBLE_EQ(g.ends("ar", 0), 130);
  EXPECT_DOUBLE_EQ(g.ends("ar", 1), 130);
  EXPECT_DOUBLE_EQ(g.starts("tail", 0), 131);

  g.delay("k", 0, 60);  // now rank 0 comes last, at 117
  EXPECT_DOUBLE_EQ(g.ends("ar", 0), 140);
  EXPECT_DOUBLE_EQ(g.ends("ar", 1), 140);

  Joined h(two_ranks());
  h.delay("k", 0, 15);  // earlier than the last by 5 still: nothing changes
  EXPECT_DOUBLE_EQ(h.starts("ar", 0), 72);
  EXPECT_DOUBLE_EQ(h.ends("tail", 0), 111);
}

// The graph's shape: arrival -> rendezvous -> transfer, on both.
TEST(Join, KernelsAreCutInTwo) {
  const Joined g(two_ranks());
  const Meeting& m = g.comm().meetings.at(0);
  EXPECT_EQ(g.graph().kind[raw(m.node)], NodeKind::rendezvous);
  EXPECT_EQ(g.graph().lane[raw(m.node)], kNone);
  for (const std::uint32_t rank : {0u, 1u}) {
    const CommRow& c = g.row("ar", rank);
    EXPECT_LT(c.node, raw(m.node));
    EXPECT_LT(raw(m.node), c.last);
    EXPECT_EQ(g.graph().at_begin[c.node], 1);
    EXPECT_EQ(g.graph().at_begin[c.last], 0);
    EXPECT_EQ(g.graph().duration[c.node], 0);
    EXPECT_EQ(g.graph().duration[c.last], us(23));
    EXPECT_EQ(g.graph().source[c.node], g.graph().source[c.last]);
    EXPECT_EQ(g.graph().lane[c.node], g.graph().lane[c.last]);
    EXPECT_EQ(g.edges(EdgeKind::collective, rank), 2u);  // to and from the rendezvous
  }
}

// One rank's slow host holds the other up.
TEST(Join, LateLaunchIsWaitedFor) {
  RankBuilder a(0), b(1);
  a.meet("ar", 0, 6, 60, all_reduce());
  b.op("slow", 0, 30);
  b.meet("ar", 34, 40, 60, all_reduce());
  Joined g(job(std::move(a), std::move(b)));
  expect_as_measured(g);
  EXPECT_DOUBLE_EQ(g.waited("ar", 0), 34);
  g.build.graph.duration[raw(g.node("slow<", 1))] *= 2;
  g.again();
  EXPECT_DOUBLE_EQ(g.starts("ar", 1), 70);
  EXPECT_DOUBLE_EQ(g.ends("ar", 0), 90);
}

// ---- three ranks ----

TEST(Join, ThreeRanksAndTwoGroups) {
  // (0, 1) reduce, then (1, 2): what delays 0 reaches 2 through 1.
  RankBuilder a(0), b(1), c(2);
  const Comm first = {.collective = "allreduce", .elems = 4, .group = "1", .desc = "x", .ranks = "[0, 1]", .size = 2};
  const Comm second = {.collective = "allreduce", .elems = 4, .group = "2", .desc = "y", .ranks = "[1, 2]", .size = 2};
  a.task("k", 0, 6, 50);
  a.meet("x", 10, 51, 61, first);
  b.meet("x", 0, 6, 61, first);
  b.meet("y", 10, 62, 70, second);
  c.meet("y", 0, 6, 70, second);
  c.task("tail", 10, 71, 80);
  Joined g(job(std::move(a), std::move(b), std::move(c)));
  EXPECT_EQ(g.meetings(), (Meetings{"x@0 x@1", "y@1 y@2"}));
  expect_as_measured(g);
  EXPECT_DOUBLE_EQ(g.waited("x", 1), 45);
  EXPECT_DOUBLE_EQ(g.waited("y", 2), 56);
  g.delay("k", 0, 100);
  EXPECT_DOUBLE_EQ(g.ends("x", 1), 161);
  EXPECT_DOUBLE_EQ(g.ends("y", 2), 170);
  EXPECT_DOUBLE_EQ(g.ends("tail", 2), 180);
}

// A pipeline: 0 sends to 1, 1 computes and sends to 2.
//   rank 0   k 6..56   send 57..67
//   rank 1   recv 6..67 (waits 51)  k 68..98  send 99..109
//   rank 2   recv 6..109 (waits 93)  k 110..130
TEST(Join, PipelineOfSendsAndReceives) {
  RankBuilder a(0), b(1), c(2);
  a.task("k", 0, 6, 56);
  a.meet("send", 10, 57, 67, send_to(1));
  b.meet("recv", 0, 6, 67, receive_from(0));
  b.task("k", 10, 68, 98);
  b.meet("send", 20, 99, 109, send_to(2));
  c.meet("recv", 0, 6, 109, receive_from(1));
  c.task("k", 10, 110, 130);
  Joined g(job(std::move(a), std::move(b), std::move(c)));
  EXPECT_EQ(g.meetings(), (Meetings{"send@0 recv@1", "send@1 recv@2"}));
  expect_as_measured(g);
  EXPECT_DOUBLE_EQ(g.waited("recv", 1), 51);
  EXPECT_DOUBLE_EQ(g.waited("recv", 2), 93);
  EXPECT_DOUBLE_EQ(g.transfer("recv", 2), 10);
  g.delay("k", 0, 100);  // goes all the way down
  EXPECT_DOUBLE_EQ(g.ends("recv", 1), 167);
  EXPECT_DOUBLE_EQ(g.ends("recv", 2), 209);
  EXPECT_DOUBLE_EQ(g.ends("k", 2), 230);
  g.delay("k", 1, 7);
  EXPECT_DOUBLE_EQ(g.ends("recv", 1), 167);
  EXPECT_DOUBLE_EQ(g.ends("k", 2), 237);
}

// Rank 1 exchanges with both its neighbours in one kernel: it goes on when both have come.
TEST(Join, OneKernelTwoMeetings) {
  RankBuilder a(0), b(1), c(2);
  const char* x = "ncclDevKernel_SendRecv";
  a.task("k", 0, 6, 79);
  a.batch(x, 30, 80, 100, {send_to(1)});
  b.batch(x, 30, 36, 100, {receive_from(0), send_to(2)});
  b.task("tail", 40, 101, 110);
  c.task("k", 0, 6, 49);
  c.batch(x, 30, 50, 60, {receive_from(1)});
  Joined g(job(std::move(a), std::move(b), std::move(c)));
  EXPECT_EQ(g.comm().meetings.size(), 2u);
  EXPECT_EQ(g.row(x, 1).parts, 2u);
  EXPECT_DOUBLE_EQ(g.transfer(x, 1), 20);  // after the last of its partners
  EXPECT_DOUBLE_EQ(g.waited(x, 1), 44);
  expect_as_measured(g);
  EXPECT_DOUBLE_EQ(g.ends(x, 1), 100);
  g.delay("k", 0, 40);
  EXPECT_DOUBLE_EQ(g.ends(x, 1), 140);
  EXPECT_DOUBLE_EQ(g.ends(x, 2), 60);
  EXPECT_DOUBLE_EQ(g.starts("tail", 1), 141);
  g.delay("k", 2, 200);  // now 2 comes last, at 250, and what they exchange takes 10
  EXPECT_DOUBLE_EQ(g.ends(x, 2), 260);
  EXPECT_GE(g.ends(x, 1), 260);
  EXPECT_LE(g.ends(x, 1), 270);
  EXPECT_DOUBLE_EQ(g.ends(x, 0), 140);
}

// The same of four: a middle rank that exchanges with both sides in every kernel, as pipelines do.
TEST(Join, ExchangesAlongAChain) {
  const char* x = "ncclDevKernel_SendRecv";
  const auto chain = [&](double late) {
    TraceSet set;
    for (int rank = 0; rank < 4; ++rank) {
      RankBuilder b(rank);
      std::vector<Comm> parts;
      if (rank > 0) parts.push_back(receive_from(rank - 1));
      if (rank < 3) parts.push_back(send_to(rank + 1));
      const double comes = 100 + 10 * rank + (rank == 1 ? late : 0);  // 100, 110 + late, 120, 130
      const double first = 100 + 10 * std::max(0, rank - 1), second = 100 + 10 * std::min(3, rank + 1);
      const bool neighbour = rank <= 2;
      const double last = std::max({comes, first, second, neighbour ? 110 + late : 0.0});
      b.task("k", 0, 6, comes - 1);
      b.batch(x, 40, comes, last + 25, parts);
      b.task("tail", 50, last + 26, last + 40);
      set.ranks.push_back(b.finish());
    }
    return set;
  };
  Joined g(chain(0));
  expect_as_measured(g);
  EXPECT_DOUBLE_EQ(g.ends(x, 0), 135);
  EXPECT_DOUBLE_EQ(g.ends(x, 3), 155);
  g.delay("k", 1, 70);  // comes at 180
  const Joined truth(chain(70));
  for (const std::uint32_t rank : {0u, 1u, 2u, 3u})
    EXPECT_DOUBLE_EQ(g.ends("tail", rank), truth.ends("tail", rank)) << rank;
}

// ---- those who need not wait ----

TEST(Join, RootOfABroadcastLeavesEarly) {
  const Comm b0 = {.collective = "broadcast", .elems = 4, .group = "1", .desc = "dp", .ranks = "[0, 1]", .size = 2};
  RankBuilder a(0), b(1);
  a.meet("bc", 0, 6, 20, b0);  // gone at 20
  a.task("tail", 10, 21, 31);
  b.task("k", 0, 6, 49);
  b.meet("bc", 10, 50, 58, b0);
  Joined g(job(std::move(a), std::move(b)));
  ASSERT_EQ(g.comm().meetings.size(), 1u);
  EXPECT_FALSE(g.comm().members.at(0).waits);
  EXPECT_TRUE(g.comm().members.at(1).waits);
  expect_as_measured(g);
  EXPECT_DOUBLE_EQ(g.ends("bc", 0), 20);
  EXPECT_DOUBLE_EQ(g.ends("bc", 1), 58);
  g.delay("k", 1, 100);
  EXPECT_DOUBLE_EQ(g.ends("bc", 0), 20);
  EXPECT_DOUBLE_EQ(g.ends("tail", 0), 31);
  EXPECT_DOUBLE_EQ(g.ends("bc", 1), 158);
}

// ... but the others wait for the root.
TEST(Join, ReceiversOfABroadcastWaitForItsRoot) {
  const Comm b0 = {.collective = "broadcast", .elems = 4, .group = "1", .desc = "dp", .ranks = "[0, 1]", .size = 2};
  RankBuilder a(0), b(1);
  a.task("k", 0, 6, 49);
  a.meet("bc", 10, 50, 60, b0);
  b.meet("bc", 0, 6, 60, b0);
  Joined g(job(std::move(a), std::move(b)));
  expect_as_measured(g);
  EXPECT_DOUBLE_EQ(g.waited("bc", 1), 44);
  g.delay("k", 0, 100);
  EXPECT_DOUBLE_EQ(g.ends("bc", 1), 160);
}

// A small message is buffered: its sender does not wait.
TEST(Join, BufferedSend) {
  RankBuilder a(0), b(1);
  a.meet("send", 0, 6, 16, send_to(1));
  a.task("tail", 10, 17, 27);
  b.task("k", 0, 6, 79);
  b.meet("recv", 10, 80, 88, receive_from(0));
  Joined g(job(std::move(a), std::move(b)));
  ASSERT_EQ(g.comm().meetings.size(), 1u);
  expect_as_measured(g);
  g.delay("k", 1, 50);
  EXPECT_DOUBLE_EQ(g.ends("tail", 0), 27);
  EXPECT_DOUBLE_EQ(g.ends("recv", 1), 138);
}

// In an all-to-all of uneven sizes each member has a transfer of its own.
TEST(Join, UnevenAllToAll) {
  const auto call = [](std::int64_t elems) -> Comm {
    return {.collective = "all_to_allv", .elems = elems, .group = "1", .desc = "ep", .ranks = "[0, 1]", .size = 2};
  };
  RankBuilder a(0), b(1);
  a.meet("a2a", 0, 6, 70, call(10));
  b.task("k", 0, 6, 49);
  b.meet("a2a", 10, 50, 90, call(90));
  Joined g(job(std::move(a), std::move(b)));
  EXPECT_DOUBLE_EQ(g.transfer("a2a", 0), 20);
  EXPECT_DOUBLE_EQ(g.transfer("a2a", 1), 40);
  expect_as_measured(g);
  g.delay("k", 1, 100);
  EXPECT_DOUBLE_EQ(g.ends("a2a", 0), 170);
  EXPECT_DOUBLE_EQ(g.ends("a2a", 1), 190);
}

// ---- ranks that are not there ----

// Four all-reduces of three ranks; the third is held up by one of them by 100 us.
TraceSet three_with_a_late_one(std::vector<std::int64_t> given, std::int64_t late) {
  TraceSet set;
  for (const std::int64_t rank : given) {
    RankBuilder b(rank);
    for (int i = 0; i < 4; ++i) {
      const double at = 1000 + 1000 * i + 10 * static_cast<double>(rank);
      const double last = 1000 + 1000 * i + (i == 2 ? 100 : 0) + 20;
      b.free_meet("ar" + std::to_string(i), i == 2 && rank == late ? last : at, last + 30, all_reduce("[0, 1, 2]", 3));
      b.task("tail" + std::to_string(i), at + 40, last + 31 + (i == 2 ? 0 : at + 46 - last - 31), last + 231, 20);
    }
    set.ranks.push_back(b.finish());
  }
  return set;
}

TEST(Join, MemberWithoutTrace) {
  Joined g(three_with_a_late_one({0, 1}, 2));
  // All end 30 after the absent one came. Least of 30 + 10 (rank 1 came at 1010, the absent one at 1020).
  EXPECT_EQ(g.comm().meetings.size(), 4u);
  EXPECT_EQ(g.noted("members-without-trace"), 4u);
  EXPECT_EQ(g.note("members-without-trace"), "dp");
  EXPECT_EQ(g.noted("collectives-unmatched"), 0u);
  EXPECT_DOUBLE_EQ(g.transfer("ar0", 1), 40);
  EXPECT_DOUBLE_EQ(g.transfer("ar2", 1), 40);  // of the 140 that were measured, 100 are the absent one's
  EXPECT_DOUBLE_EQ(g.waited("ar2", 1), 100);
  EXPECT_EQ(g.comm().meetings.at(2).arrival, us(3110));  // 3150 - 40
  EXPECT_EQ(g.comm().meetings.at(2).missing, 1u);
  expect_as_measured(g);
  EXPECT_DOUBLE_EQ(g.ends("ar2", 0), 3150);
}

// The absent one comes so much after the meeting before it as it did, whatever happens here.
TEST(Join, AbsentMembersKeepTheirPace) {
  Joined g(three_with_a_late_one({0, 1}, 2));
  g.delay("ar1", 0, 50);  // a longer transfer of one member changes no meeting
  EXPECT_DOUBLE_EQ(g.ends("ar2", 1), 3150);
  Joined h(three_with_a_late_one({0, 1}, 2));
  const NodeId late = h.comm().meetings.at(2).node;
  const NodeId before = h.comm().meetings.at(1).node;
  h.build.graph.duration[h.row("ar1", 1).node] += us(500);  // rank 1 comes later to the meeting before by 500
  h.again();
  EXPECT_EQ(h.run.end[raw(before)], us(2510));
  EXPECT_EQ(h.run.end[raw(late)], us(3610));
  EXPECT_DOUBLE_EQ(h.ends("ar2", 0), 3650);
}

TEST(Join, WithAllTracesTheLateOneIsKnown) {
  const Joined g(three_with_a_late_one({0, 1, 2}, 2));
  EXPECT_EQ(g.noted("members-without-trace"), 0u);
  EXPECT_DOUBLE_EQ(g.transfer("ar2", 0), 30);
  EXPECT_DOUBLE_EQ(g.waited("ar2", 0), 120);
  EXPECT_DOUBLE_EQ(g.waited("ar2", 1), 110);
  EXPECT_DOUBLE_EQ(g.waited("ar2", 2), 0);
  expect_as_measured(g);
}

TEST(Join, OneRankAlone) {
  const Joined g(three_with_a_late_one({0}, 2));
  EXPECT_EQ(g.comm().meetings.size(), 0u);
  EXPECT_EQ(g.comm().alone, 4u);
  EXPECT_EQ(g.noted("waiting-inside-transfer"), 4u);
  EXPECT_EQ(g.note("waiting-inside-transfer"), "allreduce in dp");
  EXPECT_EQ(g.noted("collectives-unmatched"), 0u);
  EXPECT_EQ(g.row("ar2").transfer, -1);
  EXPECT_DOUBLE_EQ(g.ends("ar2"), 3150);  // as long as measured
  expect_as_measured(g);
}

// Left apart on purpose.
TEST(Join, WithoutCollectiveEdgesRanksStayApart) {
  GraphOptions apart;
  apart.without_edges = 1u << static_cast<unsigned>(EdgeKind::collective);
  Joined g(two_ranks(), apart);
  EXPECT_EQ(g.comm().meetings.size(), 0u);
  EXPECT_EQ(g.edges(EdgeKind::collective, 0) + g.edges(EdgeKind::collective, 1), 0u);
  expect_as_measured(g);
  g.delay("k", 1, 30);
  EXPECT_DOUBLE_EQ(g.ends("ar", 0), 100);
  EXPECT_DOUBLE_EQ(g.ends("ar", 1), 130);
}

// ---- what cannot be ----

// Two ranks whose streams run two communicators in opposite order: matched, they would wait for each other for ever.
TEST(Join, CircleOfWaitsIsCutAndSaid) {
  const auto of = [](const char* group) -> Comm {
    return {.collective = "allreduce", .elems = 4, .group = group, .desc = group, .ranks = "[0, 1]", .size = 2};
  };
  RankBuilder a(0), b(1);
  a.meet("x", 0, 10, 30, of("gx"));
  a.meet("y", 5, 31, 50, of("gy"));
  b.meet("y", 0, 10, 30, of("gy"));
  b.meet("x", 5, 31, 50, of("gx"));
  const Joined g(job(std::move(a), std::move(b)));
  EXPECT_EQ(g.comm().meetings.size(), 2u);
  EXPECT_EQ(g.noted("rendezvous-cycle"), 1u);
  EXPECT_FALSE(g.note("rendezvous-cycle").empty());
}

// One collective that ended on one rank before the other began is no meeting; the others are.
TEST(Join, ContradictedCollective) {
  RankBuilder a(0), b(1);
  for (int i = 0; i < 6; ++i) {
    const double at = 100 + 1000 * i;
    a.free_meet("ar" + std::to_string(i), at, at + 20, all_reduce());
    b.free_meet("ar" + std::to_string(i), i == 3 ? at + 120 : at, i == 3 ? at + 140 : at + 20, all_reduce());
  }
  const Joined g(job(std::move(a), std::move(b)));
  EXPECT_EQ(g.comm().meetings.size(), 5u);
  EXPECT_EQ(g.noted("collectives-contradicted"), 1u);
  EXPECT_EQ(g.note("collectives-contradicted"), "allreduce in dp, by 100 us");
  EXPECT_EQ(g.comm().expected, 12u);
  EXPECT_EQ(g.comm().matched, 10u);
  EXPECT_DOUBLE_EQ(g.ends("ar3", 0), 3120);
}

TEST(Join, DifferentJobsAreRefused) {
  EXPECT_EQ(refusal(job(steady(0, "a", 2, 0), steady(1, "a", 2, 0))), "");
  EXPECT_EQ(refusal(job(steady(0, "a", 2, 0), steady(1, "a", 0, 0))), "");  // not said
  EXPECT_EQ(refusal(job(steady(0, "a", 2, 0), steady(1, "a", 4, 0))),
            "traces of different jobs: rank 0 is one of 2, rank 1 one of 4 (give the ranks of one job; `orrery diff` "
            "compares two)");
}

TEST(Join, RunsAtDifferentTimesAreRefused) {
  EXPECT_EQ(refusal(job(steady(0, "a", 2, 0), steady(1, "a", 2, 60e6))),
            "traces of different runs: those of rank 0 and rank 1 on one host lie 59 s apart (give the ranks of one "
            "run; `orrery diff` compares two)");
  // on two hosts that is the difference of their clocks
  EXPECT_EQ(refusal(job(steady(0, "a", 2, 0), steady(1, "b", 2, 60e6))), "");
}

// Centuries: no difference of such times fits.
TEST(Join, TimesTooFarApartAreRefused) {
  TraceSet set = job(steady(0, "a", 2, 0), steady(1, "b", 2, 0));
  for (const auto& [rank, by] : {std::pair{0, -(Ns{1} << 61)}, std::pair{1, Ns{1} << 62}}) {
    RankTrace& t = set.ranks[static_cast<std::size_t>(rank)];
    for (Ns& x : t.ops.start) x += by;
    t.window_start += by;
    t.window_end += by;
  }
  EXPECT_EQ(
      refusal(set),
      "traces of different runs: those of rank 0 and rank 1 lie more than 70 years apart (one broken time stamp can "
      "do this: see baseTimeNanoseconds and the events with the smallest ts)");
}

TEST(Join, TwoRunsMixedAreRefused) {
  // started within the same seconds: only the collectives tell
  EXPECT_EQ(
      refusal(job(steady(0, "a", 2, 0), steady(1, "a", 2, 5e6))),
      "traces of different runs: 10 of 10 collectives end on one rank before another has begun them (allreduce in "
      "dp, by 4999980 us) (give the ranks of one run; `orrery diff` compares two)");
}

// ---- clocks ----

constexpr double kMs = 1'000, kSecond = 1'000'000, kDay = 86'400 * kSecond;

// Ranks that reduce together every `period` us for `count` times. Of the last to come the transfer is 200 us; a ring
// completes on each rank a little later still, by 20 us at the median and 190 at worst.
struct Rings {
  int ranks = 2, count = 200;
  double period = 1000, skew = 1;  // factor of 20 .. 190 us
  std::vector<std::string> hosts = {"a", "b"};
  std::vector<double> offset = {0, 0};  // of each rank's clock
  double drift_ppm = 0;                 // of the clocks of all hosts but the first
  std::uint64_t seed = 1;
};
TraceSet rings(const Rings& r) {
  std::mt19937_64 random(r.seed);
  const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  std::vector<RankBuilder> ranks;
  for (int k = 0; k < r.ranks; ++k) {
    ranks.emplace_back(k, r.hosts[static_cast<std::size_t>(k)]);
    ranks.back().t.world_size = r.ranks;
  }
  std::string list = "[0";
  for (int k = 1; k < r.ranks; ++k) list += ", " + std::to_string(k);
  list += "]";
  for (int i = 0; i < r.count; ++i) {
    std::vector<double> start;
    for (int k = 0; k < r.ranks; ++k) start.push_back(1000 + r.period * i + 300 * uniform());
    const double through = *std::max_element(start.begin(), start.end()) + 200;
    for (int k = 0; k < r.ranks; ++k) {
      const auto row = static_cast<std::size_t>(k);
      const double x = uniform();
      const double end = through + r.skew * (x < 0.9 ? 40 * x / 0.9 : 40 + 150 * (x - 0.9) / 0.1);
      const auto clock = [&](double t) {
        return r.offset[row] + t * (1 + (r.hosts[row] == r.hosts[0] ? 0 : r.drift_ppm * 1e-6));
      };
      ranks[row].free_meet("ar" + std::to_string(i), clock(start[row]), clock(end), all_reduce(list.c_str(), r.ranks));
    }
  }
  TraceSet set;
  for (RankBuilder& b : ranks) set.ranks.push_back(b.finish());
  return set;
}

TEST(Clocks, OffsetOfASecondHost) {
  for (const double offset : {3 * kMs, -3 * kSecond, kDay, 0.0}) {
    for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
      const Joined g(rings({.offset = {0, offset}, .seed = seed}));
      ASSERT_EQ(g.comm().clocks.size(), 2u);
      const HostClock& first = g.comm().clocks[0];
      const HostClock& second = g.comm().clocks[1];
      EXPECT_EQ(first.host, "a");
      EXPECT_EQ(first.offset, 0);
      EXPECT_EQ(second.host, "b");
      EXPECT_TRUE(second.known);
      EXPECT_EQ(second.observations, 200u);
      EXPECT_NEAR(to_us(second.offset), offset, 20);
      EXPECT_EQ(second.drift_ppm, 0) << "of noise alone, seed " << seed;
      EXPECT_GT(second.spread, us(5));
      EXPECT_LT(second.spread, us(40));
      EXPECT_EQ(g.comm().meetings.size(), 200u);
      EXPECT_EQ(g.noted("collectives-contradicted"), 0u);
    }
  }
}

TEST(Clocks, FewCollectivesAreEnough) {
  for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
    const Joined g(rings({.count = 5, .offset = {0, kMs}, .seed = seed}));
    EXPECT_NEAR(to_us(g.comm().clocks[1].offset), kMs, 40);  // of noise of up to 190
    EXPECT_EQ(g.comm().clocks[1].drift_ppm, 0);
  }
}

TEST(Clocks, DriftIsFoundWhereItIsOne) {
  for (const double drift : {40.0, -40.0, 150.0}) {
    for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
      const Joined g(rings({.count = 1000, .offset = {0, -7 * kSecond}, .drift_ppm = drift, .seed = seed}));
      const HostClock& clock = g.comm().clocks[1];
      EXPECT_NEAR(clock.drift_ppm, drift, 8) << seed;
      for (const double t : {0.0, 500 * kMs, 1 * kSecond})  // 1,000 collectives, one a ms
        EXPECT_NEAR(to_us(clock.offset_at(us(t))), -7 * kSecond + t * drift * 1e-6, 10) << t << " " << seed;
    }
  }
}

TEST(Clocks, NoDriftOfNoiseAlone) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed)
    for (const int count : {16, 40, 150})
      EXPECT_EQ(Joined(rings({.count = count, .offset = {0, kMs}, .seed = seed})).comm().clocks[1].drift_ppm, 0)
          << count << " collectives, seed " << seed;
}

// Waiting and transfer across hosts, to the exactness of the clocks: 200 us after the last has come, and the skew.
TEST(Clocks, WaitingIsToldAcrossHosts) {
  for (const double offset : {0.0, -3 * kSecond}) {
    const Joined g(rings({.offset = {0, offset}}));
    for (const std::uint32_t rank : {0u, 1u}) {
      std::vector<double> transfers;
      std::size_t waits = 0;
      for (const CommRow& c : g.comm().rows) {
        if (c.rank != rank) continue;
        transfers.push_back(to_us(c.transfer));
        waits += c.end - c.start - c.transfer > us(20);
      }
      std::sort(transfers.begin(), transfers.end());
      EXPECT_NEAR(transfers[100], 220, 15);
      EXPECT_GT(transfers.front(), 200 - 20);
      EXPECT_LT(transfers.back(), 200 + 190 + 20);
      EXPECT_NEAR(static_cast<double>(waits), 90, 25);  // it comes first half of the times, mostly by more than 20 us
    }
  }
}

// Two ranks a host: one clock each.
TEST(Clocks, RanksOfOneHostShareAClock) {
  const Joined g(rings({.ranks = 4, .hosts = {"a", "b", "a", "b"}, .offset = {0, kSecond, 0, kSecond}}));
  ASSERT_EQ(g.comm().clocks.size(), 2u);
  EXPECT_EQ(g.comm().clocks[0].ranks, (std::vector<std::uint32_t>{0, 2}));
  EXPECT_EQ(g.comm().clocks[1].ranks, (std::vector<std::uint32_t>{1, 3}));
  EXPECT_EQ(g.comm().clock_of_rank, (std::vector<std::uint32_t>{0, 1, 0, 1}));
  EXPECT_NEAR(to_us(g.comm().clocks[1].offset), kSecond, 20);
}

// Without a name the place of the device tells the host: rank 5 on device 1 sits beside rank 4 on device 0.
TEST(Clocks, HostToldByThePlaceOfTheDevice) {
  TraceSet set = rings({.ranks = 4, .hosts = {"", "", "", ""}, .offset = {0, 0, kMs, kMs}});
  for (RankTrace& t : set.ranks)
    for (std::size_t l = 0; l < t.lanes.size(); ++l)
      if (t.lanes.kind[l] == LaneKind::stream) t.lanes.pid[l] = t.rank % 2;
  const Joined g(std::move(set));
  ASSERT_EQ(g.comm().clocks.size(), 2u);
  EXPECT_EQ(g.comm().clocks[1].ranks, (std::vector<std::uint32_t>{2, 3}));
  EXPECT_EQ(g.comm().clocks[1].host, "");
  EXPECT_NEAR(to_us(g.comm().clocks[1].offset), kMs, 20);
}

// a - b - c: the third host is tied through the second.
TEST(Clocks, HostsAreTiedOneByOne) {
  RankBuilder a(0, "a"), b(1, "b"), c(2, "c");
  for (int i = 0; i < 20; ++i) {
    const double at = 1000 * i;
    a.free_meet("x" + std::to_string(i), at + 10, at + 40, all_reduce("[0, 1]"));
    b.free_meet("x" + std::to_string(i), kMs + at + 20, kMs + at + 40, all_reduce("[0, 1]"));
    b.free_meet("y" + std::to_string(i), kMs + at + 110, kMs + at + 140, all_reduce("[1, 2]"));
    c.free_meet("y" + std::to_string(i), 5 * kMs + at + 100, 5 * kMs + at + 140, all_reduce("[1, 2]"));
  }
  const Joined g(job(std::move(a), std::move(b), std::move(c)));
  ASSERT_EQ(g.comm().clocks.size(), 3u);
  EXPECT_EQ(g.comm().clocks[1].offset, us(kMs));
  EXPECT_EQ(g.comm().clocks[2].offset, us(5 * kMs));
  EXPECT_DOUBLE_EQ(g.waited("y3", 2), 10);
  expect_as_measured(g);
}

// Nothing ties the third host: its times are taken as they are, and that is said.
TEST(Clocks, HostThatNothingTies) {
  TraceSet set = rings({.offset = {0, kMs}});
  RankBuilder alone(2, "c");
  alone.free_meet("ar", 1000, 1020, all_reduce("[2, 3]"));
  set.ranks.push_back(alone.finish());
  const Joined g(std::move(set));
  EXPECT_EQ(g.noted("clock-unknown"), 1u);
  EXPECT_EQ(g.note("clock-unknown"), "host of rank 2");
  EXPECT_FALSE(g.comm().clocks.at(2).known);
  EXPECT_DOUBLE_EQ(g.ends("ar", 2), 1020);
}

// Sends and receives tie where there are no collectives.
TEST(Clocks, TiedBySendsAndReceives) {
  RankBuilder a(0, "a"), b(1, "b");
  for (int i = 0; i < 10; ++i) {
    const double at = 1000 * i;
    a.free_meet("s" + std::to_string(i), at + 100, at + 150, send_to(1));
    b.free_meet("r" + std::to_string(i), kSecond + at + 20, kSecond + at + 150, receive_from(0));
  }
  const Joined g(job(std::move(a), std::move(b)));
  EXPECT_EQ(g.comm().clocks.at(1).offset, us(kSecond));
  EXPECT_DOUBLE_EQ(g.waited("r4", 1), 80);
  expect_as_measured(g);
}

// A clock that is wrong by any constant changes nothing but its offset.
TEST(Clocks, ConstantErrorChangesNothing) {
  for (const double drift : {0.0, 60.0}) {
    const auto replayed = [&](Ns shift, std::size_t of) {
      TraceSet set = rings(
          {.ranks = 4, .count = 300, .hosts = {"a", "a", "b", "b"}, .offset = {0, 0, kMs, kMs}, .drift_ppm = drift});
      for (std::size_t k = of; k < of + 2; ++k) {
        for (Ns& t : set.ranks[k].ops.start) t += shift;
        set.ranks[k].window_start += shift;
        set.ranks[k].window_end += shift;
      }
      return Joined(std::move(set));
    };
    const Joined g = replayed(0, 2);
    EXPECT_EQ(g.comm().clocks[1].drift_ppm != 0, drift != 0);
    for (const Ns shift : {Ns{1}, Ns{-3'333'333}, us(3 * kSecond), -us(kDay)}) {
      const Joined h = replayed(shift, 2);
      EXPECT_EQ(h.comm().clocks[1].offset, g.comm().clocks[1].offset + shift);
      EXPECT_EQ(h.comm().clocks[1].drift_ppm, g.comm().clocks[1].drift_ppm);
      EXPECT_EQ(h.comm().clocks[1].spread, g.comm().clocks[1].spread);
      EXPECT_TRUE(h.run.start == g.run.start && h.run.end == g.run.end) << shift;
      EXPECT_TRUE(h.graph().observed_start == g.graph().observed_start);
      EXPECT_TRUE(h.graph().duration == g.graph().duration && h.graph().pred_lag == g.graph().pred_lag);

      // the first host's: all times move with it
      const Joined f = replayed(shift, 0);
      EXPECT_EQ(f.comm().clocks[1].offset, g.comm().clocks[1].offset - shift);
      bool same = f.run.end.size() == g.run.end.size();
      for (std::size_t n = 0; same && n < f.run.end.size(); ++n) same = f.run.end[n] == g.run.end[n] + shift;
      EXPECT_TRUE(same) << shift;
    }
  }
}

}  // namespace
}  // namespace orrery
