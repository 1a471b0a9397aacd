// Kernels and collectives that slow each other down, on a job whose every duration is written by hand.
#include "whatif/contention.h"

#include <gtest/gtest.h>

#include "job_builder.h"

namespace orrery {
namespace {

using testing::all_reduce;
using testing::job;
using testing::Joined;
using testing::RankBuilder;
using testing::to_us;
using testing::us;

enum class Slot { apart, beside, late };  // late: rank 1 arrives late, rank 0's kernel is beside its waiting alone

// One ms of a rank.
//   apart    all-reduce 100 ------- 280                     kernel 500 --- 600
//   beside   all-reduce 100 -------------- 300    kernel 110 --- 235
//   late     rank 0     100 ---(arrival of rank 1: 250)------- 430    kernel 110 --- 235
// So a kernel takes 100 us alone and 125 beside a collective; a transfer 180 alone and 200 with 5/8 of it beside one.
void add(RankBuilder& b, std::int64_t rank, double at, Slot slot, const char* kernel, const char* collective) {
  const bool late = slot == Slot::late;
  const double begin = late && rank == 1 ? 250 : 100, end = late ? 430 : slot == Slot::beside ? 300 : 280;
  const bool together = slot == Slot::beside || (late && rank == 0);
  b.free_meet(collective, at + begin, at + end, all_reduce());
  if (together)
    b.task(kernel, at + 104, at + 110, at + 235);
  else
    b.task(kernel, at + 494, at + 500, at + 600);
  b.task("short", at + 700, at + 706, at + 716);
}

Joined slowed_down(int beside = 6) {
  RankBuilder ranks[] = {RankBuilder(0), RankBuilder(1)};
  for (std::int64_t r = 0; r < 2; ++r) {
    RankBuilder& b = ranks[r];
    const int slots = 4 + 3 + beside + 1;
    b.step(1, 0, 1000.0 * slots);
    double at = 0;
    for (int i = 0; i < 4; ++i, at += 1000) add(b, r, at, Slot::apart, "k", "ar");
    for (int i = 0; i < 3; ++i, at += 1000) add(b, r, at, Slot::late, "k", "ar");
    for (int i = 0; i < beside; ++i, at += 1000) add(b, r, at, Slot::beside, "k", "ar");
    add(b, r, at, Slot::beside, "last kernel", "last ar");
  }
  return Joined(job(std::move(ranks[0]), std::move(ranks[1])));
}

Overlap overlap(const Joined& g) { return overlap_of(g.graph(), learn_contention(g.traces, g.build), g.run); }

// Replayed duration, us.
double took(const Joined& g, std::string_view name, std::uint32_t rank) {
  return to_us(g.run.end[raw(g.node(name, rank))] - g.run.start[raw(g.node(name, rank))]);
}

TEST(Contention, IsLearnt) {
  const Joined g = slowed_down();
  const Contention c = learn_contention(g.traces, g.build);
  EXPECT_EQ(c.long_compute.samples, 2u * 6 + 3) << "beside a transfer on both ranks, beside waiting on one";
  EXPECT_NEAR(c.long_compute.cost, 0.2, 1e-6);
  EXPECT_NEAR(c.long_compute.factor(), 1.25, 1e-6);
  EXPECT_NEAR(c.transfer.cost, (1 - 180.0 / 200) / (125.0 / 200), 1e-6);
  EXPECT_EQ(c.transfer.samples, 2u * 7);
  EXPECT_EQ(c.short_compute.cost, 0) << "never beside";
}

TEST(Contention, NotFromAFew) {
  const Joined g = slowed_down(2);
  const Contention c = learn_contention(g.traces, g.build);
  EXPECT_EQ(c.long_compute.samples, 2u * 2 + 3);
  EXPECT_EQ(c.long_compute.cost, 0);
  EXPECT_EQ(c.transfer.cost, 0);
  EXPECT_TRUE(overlap(g).of_trace.empty());
}

TEST(Contention, NotFromKernelsOfSeveralShapes) {
  RankBuilder ranks[] = {RankBuilder(0), RankBuilder(1)};
  for (std::int64_t r = 0; r < 2; ++r) {
    RankBuilder& b = ranks[r];
    b.step(1, 0, 20000);
    for (int i = 0; i < 20; ++i) {
      add(b, r, 1000 * i, i < 10 ? Slot::apart : Slot::beside, "k", "ar");
      b.task("k", 1000 * i + 800, 1000 * i + 806, 1000 * i + 850);  // the same name takes 44 us elsewhere
    }
  }
  const Joined g(job(std::move(ranks[0]), std::move(ranks[1])));
  const Contention c = learn_contention(g.traces, g.build);
  EXPECT_EQ(c.long_compute.samples, 0u);
  EXPECT_EQ(c.transfer.samples, 20u);
}

// 2 us alone and 3 us beside, in whole microseconds: rounding may make that of next to nothing.
TEST(Contention, NotFromRounding) {
  RankBuilder ranks[] = {RankBuilder(0), RankBuilder(1)};
  for (std::int64_t r = 0; r < 2; ++r) {
    RankBuilder& b = ranks[r];
    b.step(1, 0, 20000);
    for (int i = 0; i < 20; ++i) {
      const double at = 1000 * i, begin = i < 10 ? 800 : 250;
      add(b, r, at, i < 10 ? Slot::apart : Slot::beside, "k", "ar");
      b.task("tiny", at + begin - 6, at + begin, at + begin + (i < 10 ? 2 : 3));
    }
  }
  const Joined g(job(std::move(ranks[0]), std::move(ranks[1])));
  EXPECT_EQ(learn_contention(g.traces, g.build).short_compute.samples, 0u);
}

TEST(Contention, UnchangedJobStaysAsMeasured) {
  Joined g = slowed_down();
  const std::vector<Ns> durations = g.graph().duration;
  Replay again;
  EXPECT_EQ(replay_with_contention(g.build.graph, overlap(g), again), 0);
  EXPECT_EQ(g.graph().duration, durations);
  EXPECT_EQ(again.end, g.run.end);
}

// The last kernel is launched 400 us later: both are alone.
TEST(Contention, EndsWhereTheyAreMovedApart) {
  Joined g = slowed_down();
  const Overlap before = overlap(g);
  for (std::uint32_t r = 0; r < 2; ++r) {
    EXPECT_DOUBLE_EQ(took(g, "last kernel", r), 125);
    const NodeId kernel = g.node("last kernel", r);
    for (std::uint32_t e = g.graph().first_pred[raw(kernel)]; e < g.graph().first_pred[raw(kernel) + 1]; ++e)
      if (g.graph().pred_kind[e] == EdgeKind::launch) g.build.graph.duration[raw(g.graph().pred[e])] += us(400);
  }
  EXPECT_EQ(replay_with_contention(g.build.graph, before, g.run), 1);
  for (std::uint32_t r = 0; r < 2; ++r) {
    EXPECT_DOUBLE_EQ(took(g, "last kernel", r), 100);
    EXPECT_DOUBLE_EQ(took(g, "k", r), 100);
    EXPECT_DOUBLE_EQ(g.starts("last ar", r), 13'100);
    EXPECT_DOUBLE_EQ(g.ends("last ar", r), 13'280);
  }
}

// The last kernel is twice as long: it is beside all of the collective but its first 10 us, and each makes the other
// longer. Transfer: t = 180 + 0.16 (t - 10); kernel: 200 + 0.2 (t - 10).
TEST(Contention, SettlesWhereEachLengthensTheOther) {
  Joined g = slowed_down();
  const Overlap before = overlap(g);
  for (std::uint32_t r = 0; r < 2; ++r) g.build.graph.duration[raw(g.node("last kernel", r))] = us(250);
  const int rounds = replay_with_contention(g.build.graph, before, g.run);
  EXPECT_GT(rounds, 1);
  const double t = (180 - 0.16 * 10) / (1 - 0.16);
  for (std::uint32_t r = 0; r < 2; ++r) {
    EXPECT_NEAR(g.ends("last ar", r), 13'100 + t, 0.1);
    EXPECT_NEAR(took(g, "last kernel", r), 200 + 0.2 * (t - 10), 0.1);
  }
}

}  // namespace
}  // namespace orrery
