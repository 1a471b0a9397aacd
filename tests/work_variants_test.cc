// What models and ways to run them differ by: each told from its traces, and predicted under another configuration as
// the maker of the traces would run that.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "job_builder.h"
#include "synthesis/synthetic_job.h"
#include "whatif/contention.h"
#include "whatif/job_model.h"
#include "whatif/operators.h"
#include "whatif/target.h"

namespace orrery {
namespace {

using testing::Joined;
using Asked = std::map<std::string, std::string>;

SyntheticJob large() {
  SyntheticJob job;  // tp 2, pp 2
  job.layers = 4;
  job.hidden = 4096;
  job.heads = 32;
  job.vocab = 32'768;
  job.dp = 1;
  job.num_microbatches = 2;
  job.noise = 0;
  job.steps = 1;
  job.modules = false;
  job.fused_pointwise = false;
  job.bucket_parameters = 40'000'000;
  return job;
}

double iteration_ms(const ExecGraph& g, const Replay& r) {
  Ns longest = 0;
  for (const Step& s : g.steps) longest = std::max(longest, r.end[raw(s.end_node)] - r.end[raw(s.begin_node)]);
  return static_cast<double>(longest) / 1e6;
}

GivenLayout told_by_hand(const SyntheticJob& job) {
  GivenLayout given;
  Dims& d = given.dims;
  d.seq = static_cast<double>(job.seq_length), d.mbs = static_cast<double>(job.micro_batch_size);
  d.hidden = static_cast<double>(job.hidden), d.ffn = 4 * d.hidden;
  d.heads = static_cast<double>(job.heads), d.head_dim = d.hidden / d.heads;
  d.vocab = static_cast<double>(job.vocab);
  return given;
}

struct Learnt {
  Joined traced;
  Overlap overlap;
  JobModel job;
};

Learnt learn(const SyntheticJob& job) {
  auto run = run_job(job);
  EXPECT_TRUE(run.has_value()) << run.error().line();
  Learnt l{Joined(std::move(run->traces)), {}, {}};
  const GivenLayout given = job.shapes ? GivenLayout{} : told_by_hand(job);
  const auto layout = recognise_layout(l.traced.traces, l.traced.build, given);
  EXPECT_TRUE(layout.has_value()) << layout.error().line();
  l.overlap = overlap_of(l.traced.graph(), learn_contention(l.traced.traces, l.traced.build), l.traced.run);
  auto learnt = learn_job(l.traced.traces, l.traced.build, *layout, given, l.overlap);
  EXPECT_TRUE(learnt.has_value()) << learnt.error().line();
  l.job = std::move(*learnt);
  return l;
}

// Of one rank on average, by operation and size within one percent: gradients of norms are in no bucket of the maker.
std::map<std::string, double> collectives(const Communication& c, const ExecGraph& g) {
  std::map<std::string, double> out;
  for (const CommRow& row : c.rows) {
    if (row.op != CommOp::all_reduce && row.op != CommOp::all_gather && row.op != CommOp::reduce_scatter) continue;
    const double size = std::round(50 * std::log(static_cast<double>(row.bytes)));
    out[std::to_string(static_cast<int>(row.op)) + " of about " + std::to_string(std::exp(size / 50))] +=
        1.0 / static_cast<double>(g.ranks.size());
  }
  return out;
}

// Error of the prediction, percent of what the maker says.
double error_pct(const SyntheticJob& base, Asked asked, const SyntheticJob& target, bool same_collectives = false) {
  const Learnt l = learn(base);
  asked["--gpus-per-node"] = "8";
  const auto next = target_shape(l.job, asked);
  EXPECT_TRUE(next.has_value()) << next.error().line();
  RatesError error;
  auto made = rebuild_as(l.traced.traces, l.traced.build, l.job, *next, nullptr, {}, error);
  EXPECT_TRUE(made.has_value()) << made.error().line();
  const Status sound = check(made->build.graph);
  EXPECT_TRUE(sound.has_value()) << sound.error().line();
  Replay replayed;
  replay_with_contention(made->build.graph, overlap_for(*made, l.overlap, l.traced.traces), replayed);
  auto truth = run_job(target);
  EXPECT_TRUE(truth.has_value()) << truth.error().line();
  const double ms = iteration_ms(truth->graph, truth->replay);
  if (same_collectives) {
    Joined told(std::move(truth->traces));
    EXPECT_EQ(collectives(made->build.communication, made->build.graph),
              collectives(told.build.communication, told.graph()));
  }
  return 100 * (iteration_ms(made->build.graph, replayed) / ms - 1);
}

// ---- recognition ----

struct Variant {
  const char* name;
  std::function<void(SyntheticJob&)> set;
};

class WorkVariants : public ::testing::TestWithParam<Variant> {};

TEST_P(WorkVariants, DimensionsAndAllWorkAreTold) {
  SyntheticJob job = large();
  GetParam().set(job);
  const Learnt l = learn(job);
  const Dims& d = l.job.base.dims;
  const auto is = [](std::int64_t x) { return static_cast<double>(x); };
  EXPECT_EQ(d.seq, is(job.seq_length));
  EXPECT_EQ(d.mbs, is(job.micro_batch_size));
  EXPECT_EQ(d.hidden, is(job.hidden));
  EXPECT_EQ(d.ffn, is(job.ffn > 0 ? job.ffn : 4 * job.hidden));
  EXPECT_EQ(d.heads, is(job.heads));
  EXPECT_EQ(d.kv_heads, is(job.kv_heads > 0 ? job.kv_heads : job.heads));
  EXPECT_EQ(d.head_dim, is(job.head_dim > 0 ? job.head_dim : job.hidden / job.heads));
  EXPECT_EQ(d.vocab, is(job.vocab));
  EXPECT_EQ(d.sequence_parallel, job.sequence_parallel && job.tp > 1);
  EXPECT_EQ(l.job.base.gated_mlp, job.swiglu);
  EXPECT_EQ(l.job.shape.flash_attention, !job.unfused_attention);
  EXPECT_EQ(static_cast<int>(l.job.base.recompute), static_cast<int>(job.recompute));
  EXPECT_EQ(l.job.base.tied_embedding, job.tied_embedding);
  EXPECT_EQ(l.job.base.layout.layers, job.layers);
  EXPECT_LT(l.job.unknown_pct, 0.1);
}

INSTANTIATE_TEST_SUITE_P(
    All, WorkVariants,
    ::testing::Values(
        Variant{"plain", [](SyntheticJob&) {}},
        Variant{"sequence_parallel", [](SyntheticJob& j) { j.sequence_parallel = true; }},
        Variant{"unfused", [](SyntheticJob& j) { j.unfused_attention = true, j.micro_batch_size = 2; }},
        Variant{"swiglu_without_bias", [](SyntheticJob& j) { j.swiglu = true, j.bias = j.dropout = false; }},
        Variant{"own_widths", [](SyntheticJob& j) { j.ffn = 11'008, j.head_dim = 96, j.kv_heads = 8; }},
        Variant{"weights_gradients_added", [](SyntheticJob& j) { j.fuse_wgrad = false, j.tied_embedding = true; }},
        Variant{"selective",
                [](SyntheticJob& j) {
                  j.recompute = SyntheticJob::Recompute::selective;
                  j.unfused_attention = j.sequence_parallel = true;
                }},
        Variant{"full",
                [](SyntheticJob& j) {
                  j.recompute = SyntheticJob::Recompute::full;
                  j.swiglu = j.sequence_parallel = true;
                }},
        Variant{"one_gpu_each", [](SyntheticJob& j) { j.tp = j.pp = 1, j.dp = 2, j.tied_embedding = true; }},
        Variant{"without_shapes",
                [](SyntheticJob& j) { j.shapes = false, j.unfused_attention = j.fused_pointwise = true; }}),
    [](const auto& v) { return std::string(v.param.name); });

// One stage and one replica: no sum and no reduction tells whether there are two tables; the zeroing of gradients does.
TEST(WorkVariantsTest, ZeroedGradientsTellTiedEmbedding) {
  for (const bool tied : {false, true}) {
    SyntheticJob job = large();
    job.tp = job.pp = 1;
    job.tied_embedding = tied;
    EXPECT_EQ(learn(job).job.shape.tied_embedding, tied ? 1 : 0);
  }
}

// ---- predictions ----

TEST(WorkVariantsTest, SequenceParallelOnAndOff) {
  SyntheticJob off = large();
  SyntheticJob on = off;
  on.sequence_parallel = true;
  EXPECT_NEAR(error_pct(on, {{"--sequence-parallel", "off"}}, off), 0, 1.5);
  EXPECT_NEAR(error_pct(off, {{"--sequence-parallel", "on"}}, on), 0, 1.5);
}

// Every transfer of a sequence-parallel job under another size, its own messages included.
TEST(WorkVariantsTest, TransfersUnderSequenceParallelism) {
  SyntheticJob base = large();
  base.sequence_parallel = base.swiglu = true;
  base.recompute = SyntheticJob::Recompute::full;
  base.head_dim = 128;
  base.ffn = 16'384;
  SyntheticJob longer = base;
  longer.micro_batch_size = 2;
  EXPECT_NEAR(error_pct(base, {{"--micro-batch-size", "2"}}, longer, true), 0, 3);
  SyntheticJob wider = base;
  wider.tp = 4;
  EXPECT_NEAR(error_pct(base, {{"--tp", "4"}}, wider, true), 0, 3);
}

// A table that embedding and head share is reduced at the end, with what the last bucket has.
TEST(WorkVariantsTest, SharedTableIsReducedLast) {
  for (const bool tied : {true, false}) {
    SyntheticJob base = large();
    base.tp = base.pp = 1;
    base.dp = 2;
    base.layers = 2;
    base.tied_embedding = tied;
    SyntheticJob more = base;
    more.num_microbatches = 4;
    EXPECT_NEAR(error_pct(base, {{"--num-microbatches", "4"}}, more, true), 0, 1);
  }
}

// Scores as many as an activation of the vocabulary's width: by its grid alone the gradient of their dropout is either.
TEST(WorkVariantsTest, ScoresWithoutShapes) {
  SyntheticJob job = large();
  job.unfused_attention = true;
  job.shapes = false;
  job.tp = 4;
  job.vocab = 65'536;
  const JobModel model = learn(job).job;
  const auto of_scores = [&](std::string_view kernel) {
    for (std::size_t s = 0; s < model.samples.size(); ++s)
      if (model.names[model.samples[s].name].find(kernel) != std::string::npos && model.work[s].m.seq == 2) return true;
    return false;
  };
  EXPECT_TRUE(of_scores("fused_dropout_kernel_vec"));
  EXPECT_TRUE(of_scores("masked_scale_kernel"));
  EXPECT_TRUE(of_scores("softmax_warp_backward"));
}

// A buffer of gradients is one whatever else is as long.
TEST(WorkVariantsTest, ZeroedGradientsAreParameters) {
  SyntheticJob job = large();
  job.fused_pointwise = true;  // layers alone are zeroed: as many floats as q, k and v of all tokens
  job.shapes = false;
  job.tp = 1;
  job.layers = 2;
  job.seq_length = 16'384;
  const Learnt l = learn(job);
  const ExecGraph& g = l.traced.graph();
  for (std::uint32_t n = 0; n < g.size(); ++n)
    if (g.kind[n] == NodeKind::memset) {
      EXPECT_EQ(l.job.parameter[n], 1);
    }
}

TEST(WorkVariantsTest, AttentionKernelsByName) {
  for (const char* name :
       {"flash_fwd_kernel", "fmha_cutlassF_bf16", "attn_fwd.kd", "bwd_kernel_dk_dv", "bwd_kernel_dq"})
    EXPECT_TRUE(is_attention_kernel(name)) << name;
  EXPECT_FALSE(is_attention_kernel("void at::native::vectorized_elementwise_kernel<4, attention_mask>"));
}

}  // namespace
}  // namespace orrery
