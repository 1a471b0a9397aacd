// Edits of passes on made-up jobs: interleaved schedules with sends and receives beside the passes, recomputation,
// zero bubble. Their maker is the truth where it can make the target; else the times are counted by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "job_builder.h"
#include "synthesis/synthetic_job.h"
#include "whatif/job_model.h"
#include "whatif/recompute.h"
#include "whatif/zero_bubble.h"

namespace orrery {
namespace {

SyntheticJob small() {
  SyntheticJob job;
  job.layers = 8;
  job.tp = job.dp = 1;
  job.pp = 2;
  job.noise = 0;
  return job;
}

// Mean over the steps of the longest rank's, us.
double iteration(const ExecGraph& g, const Replay& r) {
  std::map<std::int64_t, Ns> longest;
  for (const Step& s : g.steps)
    longest[s.number] = std::max(longest[s.number], r.end[raw(s.end_node)] - r.end[raw(s.begin_node)]);
  double sum = 0;
  for (const auto& [number, t] : longest) sum += static_cast<double>(t);
  return sum / static_cast<double>(longest.size()) / 1000;
}

double truth_of(const SyntheticJob& job) {
  const auto run = run_job(job);
  EXPECT_TRUE(run.has_value()) << run.error().line();
  return run ? iteration(run->graph, run->replay) : 0;
}

struct Job {
  TraceSet traces;
  GraphBuild build;
  JobModel model;

  explicit Job(const SyntheticJob& job) {
    auto run = run_job(job);
    EXPECT_TRUE(run.has_value()) << run.error().line();
    traces = std::move(run->traces);
    GraphBuilder builder;
    EXPECT_TRUE(builder.build(traces, {}, build).has_value());
    const auto layout = recognise_layout(traces, build);
    EXPECT_TRUE(layout.has_value()) << layout.error().line();
    auto learnt = learn_job(traces, build, *layout, {}, {});
    EXPECT_TRUE(learnt.has_value()) << learnt.error().line();
    model = std::move(*learnt);
  }

  Status recompute(Recompute from, Recompute to) {
    const auto done = change_recompute(model.program, traces, build, model.base, from, to);
    if (!done) return tl::unexpected(done.error());
    return {};
  }

  Rebuilt rebuilt(const JobShape& next) const {
    RatesError error;
    auto out = rebuild(traces, build, model.program, model.base, next, rates_for(model, build, next, nullptr, error),
                       model.net);
    EXPECT_TRUE(out.has_value()) << out.error().line();
    if (!out) return {};
    const Status sound = check(out->build.graph);
    EXPECT_TRUE(sound.has_value()) << sound.error().line();
    return std::move(*out);
  }
  double predicted(const JobShape& next) const {
    const Rebuilt out = rebuilt(next);
    Replay r;
    replay(out.build.graph, r);
    return iteration(out.build.graph, r);
  }

  // Time of kernels of one rank whose name has `part`, us.
  double kernels(const ExecGraph& g, const TraceSet& names, std::int64_t rank, std::string_view part) const {
    double sum = 0;
    for (std::uint32_t n = 0; n < g.size(); ++n) {
      const GraphRank& k = g.ranks[g.rank[n]];
      if (g.kind[n] == NodeKind::kernel && k.rank == rank &&
          names.ranks[k.trace].name_of(g.source[n]).find(part) != std::string_view::npos)
        sum += static_cast<double>(g.duration[n]) / 1000;
    }
    return sum;
  }
};

double error_pct(double predicted, double truth) { return 100 * (predicted / truth - 1); }

JobShape scheduled(const JobShape& base, std::string_view schedule) {
  const auto next = with_schedule(base, schedule);
  EXPECT_TRUE(next.has_value()) << next.error().line();
  return next ? *next : base;
}

// ---- interleaved ----

TEST(RebuildPasses, InterleavesAndBack) {
  for (const std::int64_t pp : {2, 4}) {
    SyntheticJob plain = small(), chunks = plain;
    plain.pp = chunks.pp = pp;
    plain.num_microbatches = chunks.num_microbatches = 8;
    plain.layers = chunks.layers = 4 * pp;
    plain.steps = chunks.steps = 1;
    chunks.chunks = 2;
    const double truth = truth_of(plain), interleaved_truth = truth_of(chunks);
    EXPECT_LT(interleaved_truth, 0.97 * truth) << "the change is too small to show anything";
    const Job a(plain), b(chunks);
    EXPECT_NEAR(error_pct(a.predicted(scheduled(a.model.base, "interleaved:2")), interleaved_truth), 0, 0.5) << pp;
    EXPECT_NEAR(error_pct(b.predicted(scheduled(b.model.base, "1f1b")), truth), 0, 0.5) << pp;
  }
}

TEST(RebuildPasses, InterleavedBaseStaysAsItWas) {
  for (const bool sync_rows : {true, false}) {
    SyntheticJob job = small();
    job.layers = 16;
    job.pp = 4;
    job.chunks = 2;
    job.num_microbatches = 8;
    job.steps = 1;
    job.cuda_sync = sync_rows;
    const Job base(job);
    EXPECT_EQ(base.model.base.chunks, 2);
    EXPECT_TRUE(base.model.base.overlap);
    EXPECT_EQ(base.model.base.layout.num_microbatches, 8);
    EXPECT_EQ(base.model.base.layout.layers, 16);
    EXPECT_NEAR(error_pct(base.predicted(base.model.base), truth_of(job)), 0, 0.02);
  }
}

TEST(RebuildPasses, SchedulesByName) {
  JobShape job;
  EXPECT_TRUE(with_schedule(job, "interleaved:3")->overlap);
  EXPECT_EQ(with_schedule(job, "interleaved:3")->chunks, 3);
  EXPECT_EQ(with_schedule(job, "interleaved:1")->schedule, ScheduleKind::one_f_one_b);
  job.schedule = ScheduleKind::interleaved;
  job.chunks = 2;  // sends and receives not beside its passes
  EXPECT_FALSE(with_schedule(job, "interleaved:4")->overlap);
  EXPECT_EQ(with_schedule(job, "zero-bubble")->chunks, 1);
  for (const char* wrong : {"", "interleaved", "interleaved:", "interleaved:0", "interleaved:2x", "zero"})
    EXPECT_FALSE(with_schedule(job, wrong).has_value()) << wrong;
}

// Other stages: peers share streams in another way, so the order of sends and receives matters.
TEST(RebuildPasses, InterleavedToMoreStages) {
  SyntheticJob job = small();
  job.num_microbatches = 8;
  job.chunks = 2;
  job.steps = 1;
  job.layers = 16;
  const Job base(job);
  JobShape next = base.model.base;
  next.layout.pp = 4;
  next.layout.world = 4;
  job.pp = 4;
  // a server of two GPUs is all that the traces know, so transfers between servers are part of the prediction
  EXPECT_NEAR(error_pct(base.predicted(next), truth_of(job)), 0, 5);
}

TEST(RebuildPasses, OverlappedTransfersMeetOncePerEnd) {
  SyntheticJob job = small();
  job.steps = 1;
  const Job base(job);
  const Rebuilt out = base.rebuilt(scheduled(base.model.base, "interleaved:2"));
  // Of a step 4 micro-batches: over the 3 borders between 4 parts, forward and backward.
  std::size_t transfers = 0;
  for (const Meeting& m : out.build.communication.meetings) {
    if (m.op != CommOp::send) continue;
    ++transfers;
    ASSERT_EQ(m.members, 2u);
    const CommRow& send = out.build.communication.rows[out.build.communication.members[m.first].row];
    const CommRow& receive = out.build.communication.rows[out.build.communication.members[m.first + 1].row];
    EXPECT_EQ(send.op, CommOp::send);
    EXPECT_EQ(receive.op, CommOp::recv);
    EXPECT_NE(send.rank, receive.rank);
  }
  EXPECT_EQ(transfers, 4u * 3u * 2u);
}

// ---- recomputation ----

TEST(RebuildPasses, RecomputesFromAllToAll) {
  std::map<Recompute, double> truth;
  SyntheticJob job = small();
  job.tp = 2;
  job.steps = 1;
  const auto all = {Recompute::none, Recompute::selective, Recompute::full};
  for (const Recompute r : all) {
    job.recompute = static_cast<SyntheticJob::Recompute>(r);
    truth[r] = truth_of(job);
  }
  EXPECT_LT(1.01 * truth[Recompute::none], truth[Recompute::selective]);
  EXPECT_LT(1.1 * truth[Recompute::selective], truth[Recompute::full]);
  for (const Recompute from : all)
    for (const Recompute to : all) {
      job.recompute = static_cast<SyntheticJob::Recompute>(from);
      Job base(job);
      EXPECT_EQ(recompute_of(base.model.shape.recompute).value(), from);
      const Status done = base.recompute(from, to);
      ASSERT_TRUE(done.has_value()) << done.error().line();
      EXPECT_NEAR(error_pct(base.predicted(base.model.base), truth[to]), 0, 0.4)
          << static_cast<int>(from) << " to " << static_cast<int>(to);
    }
}

TEST(RebuildPasses, FullRecomputationRunsEachLayerTwice) {
  Job base(small());
  const double flash = base.kernels(base.build.graph, base.traces, 0, "flash_fwd");
  const double gelu = base.kernels(base.build.graph, base.traces, 0, "mul_tanh_1");
  ASSERT_TRUE(base.recompute(Recompute::none, Recompute::full).has_value());
  const Rebuilt full = base.rebuilt(base.model.base);
  EXPECT_NEAR(base.kernels(full.build.graph, full.traces, 0, "flash_fwd"), 2 * flash, 0.1);
  EXPECT_NEAR(base.kernels(full.build.graph, full.traces, 0, "mul_tanh_1"), 2 * gelu, 0.1);

  Job other(small());
  ASSERT_TRUE(other.recompute(Recompute::none, Recompute::selective).has_value());
  const Rebuilt selective = other.rebuilt(other.model.base);
  EXPECT_NEAR(other.kernels(selective.build.graph, selective.traces, 0, "flash_fwd"), 2 * flash, 0.1);
  EXPECT_NEAR(other.kernels(selective.build.graph, selective.traces, 0, "mul_tanh_1"), gelu, 0.1);
}

TEST(RebuildPasses, RecomputationIsRefusedWhereNothingTellsOfIt) {
  EXPECT_FALSE(recompute_of("").has_value());
  EXPECT_FALSE(recompute_of("some").has_value());
  Job base(small());
  EXPECT_FALSE(base.recompute(Recompute::full, Recompute::none).has_value());
}

// ---- zero bubble ----

// Stages alike but for a small head: with f, b and w the time of forward, of the gradients of the inputs and of those
// of the weights, the bubble of 1F1B is (p - 1)(f + b + w), of ZB-H1 (p - 1)(f + b - w) (Qi et al., table 1).
TEST(RebuildPasses, ZeroBubbleShortensTheBubble) {
  SyntheticJob job = small();
  job.pp = 4;
  job.vocab = 64;
  job.num_microbatches = 8;
  job.steps = 1;
  const Job base(job);
  const JobShape next = scheduled(base.model.base, "zero-bubble");
  // Weight gradients of a micro-batch on one stage: only they have this layout of operands.
  const double w = base.kernels(base.build.graph, base.traces, 0, "_nt_") / 8;
  const double before = base.predicted(base.model.base), after = base.predicted(next);
  EXPECT_NEAR(before - after, 3 * 2 * w, 0.1 * 3 * 2 * w);

  // the same work, in another order
  const Rebuilt one = base.rebuilt(base.model.base), two = base.rebuilt(next);
  EXPECT_EQ(one.build.graph.size(), two.build.graph.size());
  EXPECT_NEAR(base.kernels(two.build.graph, two.traces, 3, ""), base.kernels(one.build.graph, one.traces, 3, ""), 0.1);
}

TEST(RebuildPasses, ZeroBubbleReducesGradientsAfterTheLastWeights) {
  SyntheticJob job = small();
  job.dp = 2;
  job.steps = 1;
  const Job base(job);
  const JobShape next = scheduled(base.model.base, "zero-bubble");
  const Rebuilt out = base.rebuilt(next);
  const ExecGraph& g = out.build.graph;
  Replay r;
  replay(g, r);
  // every bucket comes after the gradients of weights of all micro-batches but those still to be computed in the last
  for (std::uint32_t rank = 0; rank < g.ranks.size(); ++rank) {
    Ns last_backward = 0, reduced = INT64_MAX;
    for (std::uint32_t n = 0; n < g.size(); ++n) {
      if (g.rank[n] != rank) continue;
      const std::string_view name = out.traces.ranks[g.ranks[rank].trace].name_of(g.source[n]);
      if (g.kind[n] == NodeKind::kernel && name.find("flash_bwd_dq") != std::string_view::npos)
        last_backward = std::max(last_backward, r.end[n]);
    }
    for (const CommRow& row : out.build.communication.rows)
      if (row.rank == rank && row.group != kNone && row.bytes > 1'000'000 &&
          out.build.communication.groups[row.group].label == "DATA_PARALLEL_GROUP")
        reduced = std::min(reduced, r.start[row.node]);
    EXPECT_GT(reduced, last_backward) << rank;
  }
}

TEST(RebuildPasses, ZeroBubbleNeedsToKnowTheWeights) {
  SyntheticJob job = small();
  job.steps = 1;
  Job base(job);
  const JobShape next = scheduled(base.model.base, "zero-bubble");
  mark_weight_gradients(base.model.program, base.traces, base.build,
                        std::vector<std::uint8_t>(base.build.graph.size(), 0));
  RatesError error;
  const auto out = rebuild(base.traces, base.build, base.model.program, base.model.base, next,
                           rates_for(base.model, base.build, next, nullptr, error), base.model.net);
  ASSERT_FALSE(out.has_value());
  EXPECT_NE(out.error().line().find("gradients of weights"), std::string::npos);
}

}  // namespace
}  // namespace orrery
