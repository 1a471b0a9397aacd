// Whole jobs whose true dependencies are known: eight ranks under tensor, pipeline and data parallelism, made up with
// rendezvous between them and joined again from their traces.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "graph/build.h"
#include "job_builder.h"
#include "reference/event_engine.h"
#include "synthesis/synthetic_job.h"

namespace orrery {
namespace {

using testing::Joined;
using testing::to_us;
using testing::us;

SyntheticJob small() {
  SyntheticJob job;  // tp 2, pp 2, dp 2
  job.layers = 2;
  job.hidden = 512;
  job.seq_length = 512;
  return job;
}

SyntheticRun run_of(const SyntheticJob& job) {
  auto run = run_job(job);
  EXPECT_TRUE(run.has_value()) << run.error().line();
  return std::move(*run);
}

// Replayed start and end of every GPU task: by rank and row of its trace.
struct Times {
  Ns start = INT64_MAX, end = INT64_MIN;
  bool operator==(const Times&) const = default;
};
using ByTask = std::map<std::pair<std::int64_t, std::uint32_t>, Times>;
ByTask tasks_of(const ExecGraph& g, const Replay& r) {
  ByTask all;
  for (std::uint32_t n = 0; n < g.size(); ++n) {
    if (g.kind[n] == NodeKind::host || g.kind[n] == NodeKind::rendezvous || g.kind[n] == NodeKind::stall) continue;
    Times& t = all[{g.ranks[g.rank[n]].rank, raw(g.source[n])}];  // arrival and transfer are one task
    t.start = std::min(t.start, r.start[n]);
    t.end = std::max(t.end, r.end[n]);
  }
  return all;
}
ByTask tasks_of(const Joined& g) { return tasks_of(g.graph(), g.run); }

// Distances between two runs, us, ascending.
std::vector<double> distances(const ByTask& a, const ByTask& b) {
  EXPECT_EQ(a.size(), b.size());
  std::vector<double> all;
  for (const auto& [key, t] : a) {
    const auto other = b.find(key);
    if (other == b.end()) {
      ADD_FAILURE() << "rank " << key.first << " row " << key.second << " is not there";
      continue;
    }
    all.push_back(std::max(std::abs(to_us(t.start - other->second.start)), std::abs(to_us(t.end - other->second.end))));
  }
  std::sort(all.begin(), all.end());
  return all;
}

double worst(const std::vector<double>& sorted) { return sorted.back(); }

// Without noise the learnt lags are the true ones: every task of every rank where it was, to the nanosecond.
TEST(JoinedJobs, ExactWithoutNoise) {
  SyntheticJob job = small();
  job.noise = 0;
  SyntheticRun run = run_of(job);
  const Joined g(std::move(run.traces));
  EXPECT_TRUE(tasks_of(g) == tasks_of(run.graph, run.replay));
  EXPECT_EQ(g.comm().expected, 480u);
  EXPECT_EQ(g.comm().matched, 480u);
  EXPECT_EQ(g.comm().clocks.size(), 1u);
  for (const char* note : {"collectives-unmatched", "members-without-trace", "sequence-numbers-disagree",
                           "sequences-disagree", "rendezvous-cycle", "collectives-contradicted"})
    EXPECT_EQ(g.noted(note), 0u) << note;
  // waiting and transfer of every kernel
  std::size_t compared = 0;
  for (const CommRow& c : g.comm().rows) {
    const std::int64_t kernel = g.traces.ranks[c.rank].ops.corr[raw(g.graph().source[c.node])];
    for (const TrueTransfer& t : run.truth[c.rank].transfers) {
      if (t.kernel != kernel) continue;
      EXPECT_EQ(c.transfer, t.transfer) << t.group;
      EXPECT_EQ(c.end - c.start - c.transfer, t.waiting) << t.group;
      EXPECT_EQ(g.comm().groups[c.group].label, t.group);
      ++compared;
    }
  }
  EXPECT_EQ(compared, g.comm().rows.size());
}

// With noise one constant stands for each kind of lag. Standard deviations: 0.2 us of a launch, 1 us of a thread's
// wake, 1.2 us of a transfer of 100 us (on each member its own). They do not add up along the run, because what waits
// forgets: nearly all tasks are within three of these, the worst within six, a step's two ends together within 0.1%.
TEST(JoinedJobs, CloseWithNoise) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    SyntheticJob job = small();
    job.seed = seed;
    SyntheticRun run = run_of(job);
    const Joined g(std::move(run.traces));
    const auto d = distances(tasks_of(g), tasks_of(run.graph, run.replay));
    EXPECT_EQ(g.comm().matched, g.comm().expected);
    EXPECT_LT(d[d.size() / 2], 0.5) << seed;
    EXPECT_LT(d[d.size() * 99 / 100], 3) << seed;
    EXPECT_LT(worst(d), 8) << seed;
    for (std::size_t s = 0; s < g.graph().steps.size(); ++s)  // of 5,700 us
      EXPECT_NEAR(g.step_us(s), to_us(g.graph().steps[s].end - g.graph().steps[s].begin), 5.7) << seed;
  }
}

// A slow, obvious engine that assumes no order gives the same times, and has run every node.
TEST(JoinedJobs, ReferenceEngineAgrees) {
  SyntheticJob job = small();
  job.gpus_per_node = 4;
  const Joined g(std::move(run_of(job).traces));
  ReferenceRun reference;
  run_by_events(g.graph(), reference);
  EXPECT_EQ(reference.ran, g.graph().size());
  EXPECT_TRUE(reference.start == g.run.start);
  EXPECT_TRUE(reference.end == g.run.end);
  for (std::uint32_t n = 0; n < g.graph().size(); ++n)
    for (std::uint32_t e = g.graph().first_pred[n]; e < g.graph().first_pred[n + 1]; ++e)
      ASSERT_TRUE(g.graph().pred[e] == kNoNode || raw(g.graph().pred[e]) < n);
}

TEST(JoinedJobs, OrderOfRanksChangesNothing) {
  const Joined g(std::move(run_of(small()).traces));
  for (const std::uint64_t seed : {1, 2, 3}) {
    TraceSet set = std::move(run_of(small()).traces);
    std::mt19937_64 random(seed);
    std::shuffle(set.ranks.begin(), set.ranks.end(), random);
    const Joined h(std::move(set));
    EXPECT_TRUE(tasks_of(h) == tasks_of(g));
    EXPECT_EQ(h.comm().meetings.size(), g.comm().meetings.size());
    EXPECT_EQ(h.comm().groups.size(), g.comm().groups.size());
    EXPECT_EQ(h.comm().matched, g.comm().matched);
  }
}

TEST(JoinedJobs, ThreadsChangeNothing) {
  GraphOptions one, four;
  one.threads = 1;
  four.threads = 4;
  const Joined g(std::move(run_of(small()).traces), one), h(std::move(run_of(small()).traces), four);
  EXPECT_TRUE(g.graph().pred == h.graph().pred && g.graph().pred_lag == h.graph().pred_lag);
  EXPECT_TRUE(g.run.start == h.run.start && g.run.end == h.run.end);
  ASSERT_EQ(g.build.notes.rows.size(), h.build.notes.rows.size());
  for (std::size_t k = 0; k < g.build.notes.rows.size(); ++k) {
    EXPECT_EQ(g.build.notes.rows[k].name, h.build.notes.rows[k].name);
    EXPECT_EQ(g.build.notes.rows[k].first, h.build.notes.rows[k].first);
  }
}

// Two nodes, whose clocks differ by 3 ms: found to the nanosecond where all ends are told exactly.
TEST(JoinedJobs, ClocksOfTwoNodes) {
  const auto with_clock = [](Ns step, double noise) {
    SyntheticJob job = small();
    job.gpus_per_node = 4;
    job.clock_step = step;
    job.noise = noise;
    return Joined(std::move(run_of(job).traces));
  };
  const Joined g = with_clock(0, 0), h = with_clock(us(3000), 0);
  ASSERT_EQ(h.comm().clocks.size(), 2u);
  EXPECT_EQ(h.comm().clocks[1].offset, us(3000));
  EXPECT_EQ(h.comm().clocks[1].drift_ppm, 0);
  EXPECT_EQ(g.comm().clocks[1].offset, 0);
  EXPECT_TRUE(tasks_of(h) == tasks_of(g));

  const Joined i = with_clock(us(-3e6), 1), j = with_clock(0, 1);
  EXPECT_NEAR(to_us(i.comm().clocks[1].offset), -3e6, 20);
  EXPECT_EQ(i.comm().clocks[1].offset - j.comm().clocks[1].offset, us(-3e6));
  EXPECT_TRUE(tasks_of(i) == tasks_of(j));
}

TEST(JoinedJobs, OneRankWithoutTrace) {
  const SyntheticRun whole = run_of(small());
  for (std::size_t gone = 0; gone < 8; ++gone) {
    SyntheticRun run = run_of(small());
    run.traces.ranks.erase(run.traces.ranks.begin() + static_cast<std::ptrdiff_t>(gone));
    const Joined g(std::move(run.traces));
    EXPECT_GT(g.noted("members-without-trace"), 0u) << gone;
    EXPECT_GT(g.noted("waiting-inside-transfer"), 0u) << gone;  // with whom it alone spoke
    EXPECT_EQ(g.noted("collectives-unmatched"), 0u) << gone;
    EXPECT_EQ(g.comm().matched, g.comm().expected);
    ASSERT_EQ(g.graph().steps.size(), 14u);
    for (std::size_t s = 0; s < g.graph().steps.size(); ++s)
      EXPECT_NEAR(g.step_us(s), to_us(g.graph().steps[s].end - g.graph().steps[s].begin), 30) << gone;
  }
}

// What a change does to all ranks, against the job that really had it.
struct Change {
  const char* what;
  SyntheticJob job;
  bool (*touches)(const Joined& g, std::uint32_t node);
  double factor;
};
std::vector<Change> changes() {
  SyntheticJob job = small();
  job.noise = 0;
  job.kernel_factor = 8;  // long enough kernels that ranks wait for each other
  std::vector<Change> all;
  const auto computes = [](const Joined& g, std::uint32_t n) {
    return g.graph().kind[n] == NodeKind::kernel || g.graph().kind[n] == NodeKind::memcpy ||
           g.graph().kind[n] == NodeKind::memset;
  };
  all.push_back({"straggler", job,
                 [](const Joined& g, std::uint32_t n) {
                   return g.graph().rank[n] == 5 && g.graph().kind[n] != NodeKind::comm &&
                          g.graph().kind[n] != NodeKind::host && g.graph().lane[n] != kNone;
                 },
                 1.5});
  all.back().job.straggler = 5;
  all.back().job.straggler_factor = 1.5;
  all.push_back(
      {"transfers", job, [](const Joined& g, std::uint32_t n) { return g.graph().kind[n] == NodeKind::comm; }, 4});
  all.back().job.transfer_factor = 4;
  all.push_back({"host", job, [](const Joined& g, std::uint32_t n) { return g.graph().kind[n] == NodeKind::host; }, 2});
  all.back().job.host_factor = 2;
  all.push_back({"kernels", job, computes, 0.5});
  all.back().job.kernel_factor = 4;
  return all;
}

TEST(JoinedJobs, ChangesReachTheOtherRanks) {
  SyntheticJob job = small();
  job.noise = 0;
  job.kernel_factor = 8;
  for (const Change& c : changes()) {
    Joined g(std::move(run_of(job).traces));
    GraphOptions options;
    options.without_edges = 1u << static_cast<unsigned>(EdgeKind::collective);
    Joined apart(std::move(run_of(job).traces), options);
    for (Joined* x : {&g, &apart}) {
      for (std::uint32_t n = 0; n < x->graph().size(); ++n)
        if (c.touches(*x, n))
          x->build.graph.duration[n] =
              static_cast<Ns>(static_cast<double>(x->build.graph.duration[n]) * c.factor + 0.5);
      x->again();
    }
    const SyntheticRun truth = run_of(c.job);
    double off = 0, off_apart = 0;
    for (std::size_t s = 0; s < g.graph().steps.size(); ++s) {
      const double real = to_us(truth.graph.steps[s].end - truth.graph.steps[s].begin);
      off = std::max(off, std::abs(g.step_us(s) / real - 1) * 100);
      off_apart = std::max(off_apart, std::abs(apart.step_us(s) / real - 1) * 100);
    }
    EXPECT_LT(off, 0.01) << c.what;
    EXPECT_GT(off_apart, 3) << c.what << ": the change shows nothing of the others";
  }
}

}  // namespace
}  // namespace orrery
