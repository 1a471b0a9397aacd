// Jobs put together anew from the pieces of a made-up job, against the made-up job that is like it: its maker is the
// truth.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "job_builder.h"
#include "made_job.h"
#include "synthesis/synthetic_job.h"
#include "whatif/job_model.h"
#include "whatif/search.h"
#include "whatif/target.h"

namespace orrery {
namespace {

using testing::Joined;
using testing::run_of;
using testing::truth_ms;

SyntheticJob small() {
  SyntheticJob job;  // tp 2, pp 2, dp 2
  job.layers = 4;
  job.hidden = 1024;
  job.heads = 8;
  job.seq_length = 1024;
  job.vocab = 32'000;
  job.steps = 1;
  job.noise = 0;
  return job;
}

struct Traced {
  Joined joined;
  Overlap overlap;
  JobModel job;

  explicit Traced(const SyntheticJob& made) : joined(std::move(run_of(made).traces)) {
    auto layout = recognise_layout(joined.traces, joined.build);
    EXPECT_TRUE(layout.has_value()) << layout.error().line();
    overlap = overlap_of(joined.graph(), learn_contention(joined.traces, joined.build), joined.run);
    auto learnt = learn_job(joined.traces, joined.build, *layout, {}, overlap);
    EXPECT_TRUE(learnt.has_value()) << learnt.error().line();
    job = std::move(*learnt);
  }
  double base_ms() const { return iteration_ms(joined.graph(), joined.run); }
  Result<Rebuilt> as(const std::map<std::string, std::string>& asked, RebuildOptions options = {}) const {
    const auto shape = target_shape(job, asked);
    if (!shape) return tl::unexpected(shape.error());
    RatesError error;
    return rebuild_as(joined.traces, joined.build, job, *shape, nullptr, options, error);
  }
  double ms(const std::map<std::string, std::string>& asked) const {
    auto made = as(asked);
    EXPECT_TRUE(made.has_value()) << made.error().line();
    if (!made) return 0;
    const Status sound = check(made->build.graph);
    EXPECT_TRUE(sound.has_value()) << sound.error().line();
    Replay r;
    replay_with_contention(made->build.graph, overlap_for(*made, overlap, joined.traces), r);
    return iteration_ms(made->build.graph, r);
  }
};

TEST(Rebuild, TheSameShapeIsTheSameJob) {
  for (const bool noisy : {false, true}) {
    SyntheticJob made = small();
    made.noise = noisy ? 1 : 0;
    made.steps = 2;
    const Traced t(made);
    auto again = t.as({});
    ASSERT_TRUE(again.has_value()) << again.error().line();
    const ExecGraph &a = t.joined.graph(), &b = again->build.graph;
    EXPECT_EQ(b.ranks.size(), a.ranks.size());
    EXPECT_EQ(b.steps.size(), a.steps.size());
    EXPECT_EQ(again->build.communication.meetings.size(), t.joined.build.communication.meetings.size());
    EXPECT_NEAR(static_cast<double>(b.size()), static_cast<double>(a.size()), 0.002 * static_cast<double>(a.size()));
    Replay r;
    replay(b, r);
    EXPECT_NEAR(iteration_ms(b, r), t.base_ms(), 0.002 * t.base_ms());
  }
}

struct Case {
  std::string name;
  std::map<std::string, std::string> asked;
  std::function<void(SyntheticJob&)> change;
  double bound;  // share of the truth
};

TEST(Rebuild, AgreesWithTheMakerOfTheJob) {
  const std::vector<Case> cases = {
      {"layers", {{"--layers", "8"}}, [](SyntheticJob& j) { j.layers = 8; }, 0.01},
      {"micro-batches", {{"--num-microbatches", "8"}}, [](SyntheticJob& j) { j.num_microbatches = 8; }, 0.01},
      {"fewer micro-batches", {{"--num-microbatches", "2"}}, [](SyntheticJob& j) { j.num_microbatches = 2; }, 0.01},
      {"pipeline", {{"--pp", "4"}}, [](SyntheticJob& j) { j.pp = 4; }, 0.03},
      {"data", {{"--dp", "4"}}, [](SyntheticJob& j) { j.dp = 4; }, 0.03},
      {"both", {{"--pp", "4"}, {"--dp", "4"}}, [](SyntheticJob& j) { j.pp = 4, j.dp = 4; }, 0.04},
      {"tensor", {{"--tp", "4"}}, [](SyntheticJob& j) { j.tp = 4; }, 0.06},
      {"width",
       {{"--hidden", "2048"}, {"--ffn", "8192"}, {"--heads", "16"}},
       [](SyntheticJob& j) { j.hidden = 2048, j.heads = 16; },
       0.06},
      {"sequence", {{"--seq-length", "2048"}}, [](SyntheticJob& j) { j.seq_length = 2048; }, 0.06},
      {"micro-batch size", {{"--micro-batch-size", "2"}}, [](SyntheticJob& j) { j.micro_batch_size = 2; }, 0.06}};
  const Traced t(small());
  for (const Case& c : cases) {
    SyntheticJob target = small();
    c.change(target);
    const double truth = truth_ms(target);
    EXPECT_NEAR(t.ms(c.asked), truth, c.bound * truth) << c.name << ", base " << t.base_ms();
  }
}

// As much work as the changed job has, and without noise its time.
TEST(Rebuild, MicroBatches) {
  struct Change {
    std::int64_t pp, from, to;
  };
  for (const Change& m : std::vector<Change>{{1, 4, 8},
                                             {1, 8, 3},
                                             {1, 1, 2},
                                             {1, 3, 1},
                                             {2, 4, 8},
                                             {2, 8, 3},
                                             {2, 2, 4},
                                             {2, 4, 1},
                                             {4, 8, 16},
                                             {4, 4, 8},
                                             {4, 8, 3}}) {
    SCOPED_TRACE("pp " + std::to_string(m.pp) + ": " + std::to_string(m.from) + " -> " + std::to_string(m.to));
    SyntheticJob made = small();
    made.layers = 8;
    made.pp = m.pp;
    made.num_microbatches = m.from;
    const Traced t(made);
    EXPECT_EQ(t.job.base.layout.num_microbatches, m.from);
    auto done = t.as({{"--num-microbatches", std::to_string(m.to)}});
    ASSERT_TRUE(done.has_value()) << done.error().line();
    Replay r;
    replay(done->build.graph, r);
    made.num_microbatches = m.to;
    const Joined truth(std::move(run_of(made).traces));
    // of one pass alone the host work of hooks on gradients cannot be told from the pass's own
    EXPECT_NEAR(iteration_ms(done->build.graph, r), truth_ms(made), (m.from == 1 ? 0.005 : 0.003) * truth_ms(made));
    EXPECT_EQ(done->build.communication.meetings.size(), truth.build.communication.meetings.size());
    const auto kernels = [](const ExecGraph& x) { return std::count(x.kind.begin(), x.kind.end(), NodeKind::kernel); };
    EXPECT_EQ(kernels(done->build.graph), kernels(truth.graph()));
  }
}

TEST(Rebuild, RanksAndGroupsAreThoseOfTheNewLayout) {
  const Traced t(small());
  const auto made = t.as({{"--pp", "4"}, {"--dp", "4"}});
  ASSERT_TRUE(made.has_value()) << made.error().line();
  const GraphBuild& b = made->build;
  // two traced replicas of four stages, two tensor-parallel ranks each; rank = t + 2 * (d + 4 * s)
  std::set<std::int64_t> ranks, expected;
  for (const GraphRank& r : b.graph.ranks) ranks.insert(r.rank);
  for (int s = 0; s < 4; ++s)
    for (int d = 0; d < 2; ++d)
      for (int k = 0; k < 2; ++k) expected.insert(k + 2 * (d + 4 * s));
  EXPECT_EQ(ranks, expected);
  for (const CommGroup& g : b.communication.groups) {
    const bool tensor = g.label.find("TENSOR") != std::string::npos;
    const bool data = g.label.find("DATA_PARALLEL") != std::string::npos;
    if (tensor || data) {
      EXPECT_EQ(g.size, data ? 4 : 2) << g.label;
    }
    EXPECT_EQ(static_cast<std::int64_t>(g.ranks.size()), g.size) << g.label;
  }
  // every send has met its receive, between neighbours
  std::size_t exchanges = 0;
  for (const Meeting& m : b.communication.meetings) {
    if (m.op != CommOp::send) continue;
    ++exchanges;
    ASSERT_EQ(m.members, 2u);
    const auto rank = [&](std::uint32_t k) {
      return b.graph.ranks[b.communication.rows[b.communication.members[m.first + k].row].rank].rank;
    };
    EXPECT_EQ(std::abs(rank(0) - rank(1)), 8);
  }
  // 3 borders, 4 micro-batches, both ways, 4 pipelines
  EXPECT_EQ(exchanges, 3u * 4 * 2 * 4);
}

TEST(Rebuild, WhatCannotBeIsRefused) {
  const Traced t(small());
  const auto refused = [&](const std::map<std::string, std::string>& asked, const std::string& says) {
    const auto shape = target_shape(t.job, asked);
    ASSERT_FALSE(shape.has_value()) << says;
    EXPECT_NE(shape.error().line().find(says), std::string::npos) << shape.error().line();
  };
  refused({{"--layers", "5"}}, "5 layers are not divisible by 2 stages");
  refused({{"--tp", "3"}}, "8 heads are not divisible by 3 tensor-parallel ranks");
  refused({{"--schedule", "interleaved:2"}, {"--num-microbatches", "3"}}, "3 micro-batches are not divisible by 2");
  refused({{"--global-batch-size", "7"}}, "7 sequences are not divisible by 2 replicas");
  refused({{"--global-batch-size", "8"}, {"--num-microbatches", "3"}}, "contradicts");
  // the final configuration counts, not the way to it
  EXPECT_TRUE(target_shape(t.job, {{"--layers", "6"}, {"--pp", "3"}}).has_value());
}

TEST(Rebuild, SearchRanksWhatIsFeasible) {
  const Traced t(small());
  const auto space = parse_search("gpus=8,max-tp=4,chunks=1");
  ASSERT_TRUE(space.has_value()) << space.error().line();
  const auto found = search(t.joined.traces, t.joined.build, t.joined.build, t.job, t.job.base, *space, nullptr,
                            t.overlap, t.base_ms(), 1, nullptr);
  ASSERT_TRUE(found.has_value()) << found.error().line();
  // tp 1, 2, 4; pp divides 4 layers; dp divides the batch of 8
  std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>> layouts;
  double before = 0;
  for (const Candidate& c : found->candidates) {
    const JobLayout& l = c.shape.layout;
    EXPECT_EQ(l.tp * l.pp * l.dp, 8);
    EXPECT_EQ(l.num_microbatches * l.dp, 8);
    EXPECT_EQ(c.why_not, "");
    EXPECT_GE(c.iteration_ms, before);
    EXPECT_GT(c.half_ms, 0);
    before = c.iteration_ms;
    layouts.insert({l.tp, l.pp, l.dp});
  }
  EXPECT_EQ(layouts.size(), found->candidates.size());
  EXPECT_TRUE(layouts.contains({2, 2, 2}));
  for (const Candidate& c : found->candidates) {
    if (c.shape.layout.tp != 2 || c.shape.layout.pp != 2) continue;
    EXPECT_NEAR(c.iteration_ms, t.base_ms(), 0.01 * t.base_ms());
  }
}

TEST(Rebuild, ACostTableWins) {
  const Traced t(small());
  std::string longest;
  double most = 0;
  for (const KernelSample& s : t.job.samples)
    if (s.ns * s.count > most) most = s.ns * s.count, longest = t.job.names[s.name];
  const auto table = parse_cost_table("kernel,shape,time_us\n\"" + longest + "\",,1\n", "table");
  ASSERT_TRUE(table.has_value()) << table.error().line();
  RatesError error;
  const Rates rates = rates_for(t.job, t.joined.build, t.job.base, &*table, error);
  EXPECT_GT(error.from_table, 0u);
  for (std::uint32_t n = 0; n < t.joined.graph().size(); ++n) {
    const std::uint32_t s = t.job.sample_of[n];
    if (s == kNone || t.job.names[t.job.samples[s].name] != longest) continue;
    EXPECT_NEAR(static_cast<double>(t.joined.graph().duration[n]) * static_cast<double>(rates.factor[n]), 1000, 100);
  }
}

}  // namespace
}  // namespace orrery
