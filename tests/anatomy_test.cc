// The pieces of made-up jobs: their maker says how many there are.
#include "whatif/anatomy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "job_builder.h"
#include "synthesis/synthetic_job.h"
#include "whatif/job_model.h"

namespace orrery {
namespace {

using testing::Joined;

SyntheticJob small() {
  SyntheticJob job;  // tp 2, pp 2, dp 2, four micro-batches, two steps
  job.layers = 4;
  job.hidden = 512;
  job.seq_length = 512;
  job.noise = 0;
  return job;
}

Joined job_of(const SyntheticJob& job, bool markers = true) {
  auto run = run_job(job);
  EXPECT_TRUE(run.has_value()) << run.error().line();
  for (RankTrace& t : run->traces.ranks)
    for (std::uint32_t i = 0; !markers && i < t.ops.size(); ++i)
      if (t.name_of(OpId{i}).substr(0, 12) == "ProfilerStep") t.ops.name[i] = t.strings.intern("range");
  return Joined(std::move(run->traces));
}

Result<JobModel> learn(const Joined& g) {
  const auto layout = recognise_layout(g.traces, g.build);
  if (!layout) return tl::unexpected(layout.error());
  return learn_job(g.traces, g.build, *layout, {}, {});
}

std::map<PieceKind, int> count(const RankAnatomy& a, std::int32_t step) {
  std::map<PieceKind, int> n;
  for (const Piece& p : a.pieces)
    if (p.step == step) ++n[p.kind];
  return n;
}

double iteration(const ExecGraph& g, const Replay& r) {
  std::map<std::int64_t, Ns> longest;
  for (const Step& s : g.steps)
    longest[s.number] = std::max(longest[s.number], r.end[raw(s.end_node)] - r.end[raw(s.begin_node)]);
  double sum = 0;
  for (const auto& [number, t] : longest) sum += static_cast<double>(t);
  return sum / static_cast<double>(longest.size());
}

// The job put together anew without a change, in percent of the traced one's iteration.
double unchanged_pct(const Joined& g) {
  const auto job = learn(g);
  if (!job) {
    ADD_FAILURE() << job.error().line();
    return 100;
  }
  RatesError error;
  const auto again = rebuild(g.traces, g.build, job->program, job->base, job->base,
                             rates_for(*job, g.build, job->base, nullptr, error), job->net);
  if (!again) {
    ADD_FAILURE() << again.error().line();
    return 100;
  }
  EXPECT_TRUE(check(again->build.graph).has_value());
  Replay run;
  replay(again->build.graph, run);
  return 100 * (iteration(again->build.graph, run) / iteration(g.graph(), g.run) - 1);
}

struct Shape {
  std::int64_t tp, pp, dp, microbatches;
};

TEST(Anatomy, Pieces) {
  for (const Shape& s : std::vector<Shape>{{2, 2, 2, 4},
                                           {1, 1, 1, 1},
                                           {1, 1, 1, 2},
                                           {2, 1, 1, 1},
                                           {1, 1, 2, 4},
                                           {1, 2, 1, 1},
                                           {1, 4, 1, 2},
                                           {2, 4, 1, 5}}) {
    SCOPED_TRACE(::testing::Message() << "tp " << s.tp << " pp " << s.pp << " dp " << s.dp << " m " << s.microbatches);
    SyntheticJob job = small();
    job.tp = s.tp, job.pp = s.pp, job.dp = s.dp, job.num_microbatches = s.microbatches;
    const Joined g = job_of(job);
    const auto model = learn(g);
    ASSERT_TRUE(model.has_value()) << model.error().line();
    EXPECT_EQ(model->base.layout.layers, job.layers);
    EXPECT_EQ(model->base.layout.num_microbatches, s.microbatches);
    EXPECT_EQ(model->base.chunks, 1);
    const auto passes = static_cast<int>(s.microbatches), layers = static_cast<int>(job.layers / s.pp);
    for (std::size_t r = 0; r < model->program.anatomy.ranks.size(); ++r) {
      const RankAnatomy& a = model->program.anatomy.ranks[r];
      EXPECT_EQ(a.passes, passes);
      EXPECT_EQ(a.layers, layers);
      for (std::int32_t step = 0; step < job.steps; ++step) {
        const auto n = count(a, step);
        const auto of = [&](PieceKind k) { return n.contains(k) ? n.at(k) : 0; };
        EXPECT_EQ(of(PieceKind::step_begin), 1);
        EXPECT_EQ(of(PieceKind::step_end), 1);
        EXPECT_EQ(of(PieceKind::forward_layer), passes * layers);
        EXPECT_EQ(of(PieceKind::backward_layer), passes * layers);
        EXPECT_EQ(of(PieceKind::forward_begin), passes);
        EXPECT_EQ(of(PieceKind::backward_end), passes);
        // one batch a pass and neighbour, but that the two of the steady state go together
        EXPECT_EQ(of(PieceKind::exchange) == 0, s.pp == 1);
        EXPECT_EQ(of(PieceKind::bucket) == 0, s.dp == 1);
      }
    }
  }
}

// Where every pass has one layer nothing repeats itself in it: of two stages it is what both run.
TEST(Anatomy, OneLayerAStage) {
  SyntheticJob job = small();
  job.layers = 2;
  const Joined g = job_of(job);
  const auto model = learn(g);
  ASSERT_TRUE(model.has_value()) << model.error().line();
  EXPECT_EQ(model->base.layout.layers, 2);
  EXPECT_EQ(model->program.anatomy.ranks[0].passes, 4);
  EXPECT_NEAR(unchanged_pct(g), 0, 0.5);
}

// Every node but rendezvous is of one piece of its own rank.
TEST(Anatomy, EveryNodeHasAPiece) {
  const Joined g = job_of(small());
  const auto model = learn(g);
  ASSERT_TRUE(model.has_value());
  const Anatomy& a = model->program.anatomy;
  for (std::uint32_t n = 0; n < g.graph().size(); ++n) {
    if (g.graph().kind[n] == NodeKind::rendezvous) continue;
    ASSERT_LT(a.piece[n], a.ranks[g.graph().rank[n]].pieces.size());
  }
}

TEST(Anatomy, UnchangedJobsStay) {
  for (const Shape& s : std::vector<Shape>{{2, 2, 2, 4}, {1, 1, 1, 1}, {1, 2, 1, 1}, {1, 4, 1, 4}, {2, 1, 1, 2}}) {
    SCOPED_TRACE(::testing::Message() << "tp " << s.tp << " pp " << s.pp << " dp " << s.dp << " m " << s.microbatches);
    SyntheticJob job = small();
    job.tp = s.tp, job.pp = s.pp, job.dp = s.dp, job.num_microbatches = s.microbatches;
    EXPECT_NEAR(unchanged_pct(job_of(job)), 0, 0.5);
  }
}

// Without markers the two steps are one of twice the length, which is taken apart into two all the same.
TEST(Anatomy, StepsWithoutMarkers) {
  for (const std::int64_t pp : {1, 2}) {
    SyntheticJob job = small();
    job.pp = pp;
    const Joined g = job_of(job, false);
    ASSERT_EQ(g.graph().steps.size(), g.graph().ranks.size());
    ASSERT_EQ(g.graph().kind[raw(g.graph().steps[0].begin_node)], NodeKind::rendezvous);
    const auto model = learn(g);
    ASSERT_TRUE(model.has_value()) << model.error().line();
    EXPECT_EQ(model->base.layout.num_microbatches, 4);
    const RankAnatomy& a = model->program.anatomy.ranks[0];
    EXPECT_EQ(count(a, 0)[PieceKind::forward_begin], 4);
    EXPECT_EQ(count(a, 1)[PieceKind::forward_begin], 4);
    EXPECT_EQ(count(a, 2).size(), 0u);
    EXPECT_NEAR(unchanged_pct(g), 0, 0.5);
  }
}

TEST(Anatomy, WholeMicroseconds) {
  SyntheticJob job = small();
  job.clock_grain = 1000;
  const Joined coarse = job_of(job);
  const auto model = learn(coarse);
  ASSERT_TRUE(model.has_value()) << model.error().line();
  EXPECT_EQ(model->base.layout.layers, 4);
  EXPECT_EQ(model->base.layout.num_microbatches, 4);
  EXPECT_NEAR(unchanged_pct(coarse), 0, 1);
}

// Without shapes what replicas reduce tells the parameters, and a change of sizes asks for the dimensions.
TEST(Anatomy, WithoutShapes) {
  SyntheticJob job = small();
  job.shapes = false;
  const Joined g = job_of(job);
  const auto model = learn(g);
  ASSERT_TRUE(model.has_value()) << model.error().line();
  EXPECT_EQ(model->base.dims.hidden, 0);
  // 12 h^2 a layer over two ranks, and the norms and biases that all have
  EXPECT_NEAR(model->base.layer_parameters, 12 * 512 * 512 / 2, 0.05 * 12 * 512 * 512 / 2);
  EXPECT_NEAR(unchanged_pct(g), 0, 2);
  JobShape more = model->base;
  more.layout.num_microbatches = 8;
  EXPECT_TRUE(check_dimensions(*model, more).has_value());
  more.dims.hidden = 1024;
  const Status asked = check_dimensions(*model, more);
  ASSERT_FALSE(asked.has_value());
  EXPECT_NE(asked.error().advice.find("--layout seq-length=N,micro-batch-size=N,hidden=N"), std::string::npos);
}

// Groups without a description still have members: what is said must not contradict those.
TEST(Anatomy, SaidAgainstGroups) {
  auto run = run_job(small());
  ASSERT_TRUE(run.has_value());
  for (RankTrace& t : run->traces.ranks) {
    for (ProcessGroup& group : t.groups) group.desc.clear();
    for (StrId& text : t.comm_args.group_desc) text = t.strings.intern("");
  }
  const Joined g(std::move(run->traces));
  const auto with = [&](const char* text) { return recognise_layout(g.traces, g.build, *parse_layout(text)); };
  const auto right = with("tp=2,pp=2,dp=2");
  ASSERT_TRUE(right.has_value()) << right.error().line();
  EXPECT_EQ(right->tp, 2);
  const auto wrong = with("tp=4,pp=2,dp=1");
  ASSERT_FALSE(wrong.has_value());
  EXPECT_NE(wrong.error().what.find("no 4 neighbours"), std::string::npos) << wrong.error().line();
}

TEST(Anatomy, SaidByHand) {
  const Joined g = job_of(small());
  const auto with = [&](const char* text) {
    const auto given = parse_layout(text);
    const auto layout = recognise_layout(g.traces, g.build, *given);
    if (!layout) return layout.error().line();
    const auto job = learn_job(g.traces, g.build, *layout, *given, {});
    return job ? std::string() : job.error().line();
  };
  EXPECT_EQ(with("tp=2,pp=2,dp=2,layers=4,num-microbatches=4,schedule=1f1b,hidden=512"), "");
  EXPECT_NE(with("num-microbatches=8").find("num-microbatches"), std::string::npos);
  EXPECT_NE(with("layers=8").find("layers=8"), std::string::npos);
  EXPECT_NE(with("schedule=interleaved:2").find("schedule"), std::string::npos);
  EXPECT_NE(with("tp=4").find("tp 4"), std::string::npos);
}

}  // namespace
}  // namespace orrery
