// Predictions that cannot be made, or hardly: too large, too long, from traces that are not whole.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "job_builder.h"
#include "synthesis/synthetic_job.h"
#include "whatif/job_model.h"
#include "whatif/search.h"
#include "whatif/target.h"
#include "whatif/whatif.h"

namespace orrery {
namespace {

using testing::Joined;

SyntheticJob small() {
  SyntheticJob job;
  job.layers = 4;
  job.hidden = 256;
  job.heads = 4;
  job.seq_length = 128;
  job.vocab = 1'024;
  job.tp = job.pp = job.dp = 1;
  job.num_microbatches = 2;
  job.steps = 1;
  job.noise = 0;
  return job;
}

TraceSet traces_of(const SyntheticJob& job) {
  auto run = run_job(job);
  EXPECT_TRUE(run.has_value()) << run.error().line();
  return std::move(run->traces);
}

struct Traced {
  Joined joined;
  JobModel job;

  explicit Traced(TraceSet set) : joined(std::move(set)) {
    auto layout = recognise_layout(joined.traces, joined.build);
    EXPECT_TRUE(layout.has_value()) << layout.error().line();
    auto learnt = learn_job(joined.traces, joined.build, *layout, {}, {});
    EXPECT_TRUE(learnt.has_value()) << learnt.error().line();
    job = std::move(*learnt);
  }
  Result<Rebuilt> as(const std::map<std::string, std::string>& asked, const RebuildOptions& options = {}) const {
    const auto shape = target_shape(job, asked);
    if (!shape) return tl::unexpected(shape.error());
    RatesError error;
    return rebuild_as(joined.traces, joined.build, job, *shape, nullptr, options, error);
  }
};

TEST(PredictLimits, TooManyEventsAreRefusedBeforeTheyAreMade) {
  const Traced t(traces_of(small()));
  const auto none = t.as({{"--layers", "10000"}, {"--num-microbatches", "100000"}});
  ASSERT_FALSE(none.has_value());
  EXPECT_NE(none.error().what.find("too large"), std::string::npos) << none.error().line();
  EXPECT_FALSE(t.as({}, {.max_nodes = 100}).has_value());
  // what is told beforehand is what it takes
  const auto twice = t.as({{"--num-microbatches", "64"}});
  ASSERT_TRUE(twice.has_value()) << twice.error().line();
  const std::uint64_t nodes = twice->build.graph.size();
  EXPECT_TRUE(t.as({{"--num-microbatches", "64"}}, {.max_nodes = nodes * 5 / 4}).has_value());
  EXPECT_FALSE(t.as({{"--num-microbatches", "64"}}, {.max_nodes = nodes * 3 / 4}).has_value());
}

TEST(PredictLimits, DegreesWhoseProductIsBeyondCounting) {
  const Traced t(traces_of(small()));
  const auto none = target_shape(t.job, {{"--tp", "100000000"}, {"--pp", "100000000"}, {"--dp", "100000000"}});
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().what, "more than a million ranks");
}

TEST(PredictLimits, TimesBeyondACentury) {
  ExecGraph g;
  EXPECT_TRUE(check_times(g).has_value());
  g.duration = {Ns{1} << 61};
  EXPECT_TRUE(check_times(g).has_value());
  g.duration = {Ns{1} << 61, Ns{1} << 61};
  EXPECT_FALSE(check_times(g).has_value());
  g.duration = {INT64_MIN};  // as rounding leaves what is beyond int64
  EXPECT_FALSE(check_times(g).has_value());
}

TEST(PredictLimits, MadeCollectivesAreNamedInEveryPipeline) {
  SyntheticJob made = small();
  made.tp = 2;
  const Traced t(traces_of(made));
  const auto next = t.as({{"--dp", "2"}});
  ASSERT_TRUE(next.has_value()) << next.error().line();
  const ExecGraph& g = next->build.graph;
  for (std::uint32_t n = 0; n < g.size(); ++n) {
    const RankTrace& trace = next->traces.ranks[g.ranks[g.rank[n]].trace];
    ASSERT_TRUE(g.source[n] != kNoOp && raw(g.source[n]) < trace.ops.size()) << n;
    if (g.kind[n] == NodeKind::host) {
      ASSERT_NE(trace.ops.kind[raw(g.source[n])], OpKind::kernel) << n << " " << trace.name_of(g.source[n]);
    }
  }
}

// Gradients of weights stay those after collectives were put in or taken out.
TEST(PredictLimits, ZeroBubbleOfAnotherLayout) {
  SyntheticJob made = small();
  made.tp = 2;
  const Traced t(traces_of(made));
  const auto weights = [&](const std::map<std::string, std::string>& asked) {
    const auto next = t.as(asked);
    EXPECT_TRUE(next.has_value()) << next.error().line();
    EXPECT_TRUE(!next || check(next->build.graph).has_value());
    return next ? next->build.graph.size() : 0;
  };
  EXPECT_GT(weights({{"--schedule", "zero-bubble"}, {"--tp", "1"}}), 0u);
  EXPECT_GT(weights({{"--schedule", "zero-bubble"}, {"--dp", "2"}}), 0u);
  EXPECT_GT(weights({{"--schedule", "zero-bubble"}, {"--pp", "2"}, {"--recompute", "full"}}), 0u);
}

TEST(PredictLimits, OneRankOfAReplicaIsMissing) {
  SyntheticJob made = small();
  made.tp = made.dp = 2;
  TraceSet set = traces_of(made);
  set.ranks.erase(set.ranks.begin() + 3);
  const Traced t(std::move(set));
  const auto same = t.as({});
  ASSERT_TRUE(same.has_value()) << same.error().line();
  EXPECT_EQ(same->build.graph.ranks.size(), 4u);
  EXPECT_TRUE(t.as({{"--dp", "4"}, {"--layers", "8"}}).has_value());
}

TEST(PredictLimits, SearchedNumbersAreTriedOnce) {
  const auto space = parse_search("gpus=8,chunks=1:1:2:1,micro-batch-size=2:2");
  ASSERT_TRUE(space.has_value());
  EXPECT_EQ(space->chunks, (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(space->micro_batch_sizes, std::vector<std::int64_t>{2});
  EXPECT_FALSE(parse_search("gpus=8,gpus=16").has_value());
  std::string many = "gpus=8,micro-batch-size=1";
  for (int i = 2; i < 100; ++i) many += ":" + std::to_string(i);
  EXPECT_FALSE(parse_search(many).has_value());
}

}  // namespace
}  // namespace orrery
