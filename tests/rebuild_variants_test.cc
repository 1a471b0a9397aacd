// Jobs put together anew whose runtime and pipeline differ from Megatron-LM's defaults, against their maker: sends
// apart, buckets of other sizes, small launch queues, coarse times, losses read by the host.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

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
using Asked = std::map<std::string, std::string>;

SyntheticJob small() {
  SyntheticJob job;
  job.layers = 4;
  job.hidden = 1024;
  job.heads = 8;
  job.seq_length = 1024;
  job.vocab = 32'000;
  job.tp = 1, job.pp = 2, job.dp = 2;
  job.steps = 1;
  job.noise = 0;
  job.modules = false;
  job.clear_all = job.rails = true;
  return job;
}

struct Traced {
  Joined joined;
  Overlap overlap;
  Result<JobModel> job;

  explicit Traced(const SyntheticJob& made) : joined(std::move(run_of(made).traces)), job(fail("not learnt")) {
    overlap = overlap_of(joined.graph(), learn_contention(joined.traces, joined.build), joined.run);
    auto layout = recognise_layout(joined.traces, joined.build);
    EXPECT_TRUE(layout.has_value()) << layout.error().line();
    job = learn_job(joined.traces, joined.build, *layout, {}, overlap);
    EXPECT_TRUE(job.has_value()) << job.error().line();
  }
  double ms(const Asked& asked) const {
    if (!job) return 0;
    const auto shape = target_shape(*job, asked);
    EXPECT_TRUE(shape.has_value()) << shape.error().line();
    RatesError error;
    auto made = rebuild_as(joined.traces, joined.build, *job, *shape, nullptr, {}, error);
    EXPECT_TRUE(made.has_value()) << made.error().line();
    if (!made) return 0;
    const Status sound = check(made->build.graph);
    EXPECT_TRUE(sound.has_value()) << sound.error().line();
    Replay r;
    replay_with_contention(made->build.graph, overlap_for(*made, overlap, joined.traces), r);
    return iteration_ms(made->build.graph, r);
  }
};

void agrees(const SyntheticJob& base, const Asked& asked, const SyntheticJob& target, double bound,
            const std::string& what) {
  const double truth = truth_ms(target);
  EXPECT_NEAR(Traced(base).ms(asked), truth, bound * truth) << what;
}

TEST(RebuildVariants, EveryKnobKeepsTheJob) {
  const std::pair<const char*, void (*)(SyntheticJob&)> knobs[] = {
      {"sends apart", [](SyntheticJob& j) { j.p2p_batched = false; }},
      {"waits for sends", [](SyntheticJob& j) { j.p2p_sync = true; }},
      {"barrier", [](SyntheticJob& j) { j.step_barrier = true; }},
      {"losses read", [](SyntheticJob& j) { j.nan_check = true; }},
      {"large buckets", [](SyntheticJob& j) { j.bucket_parameters = 40'000'000, j.scale_gradients = true; }},
      {"small buckets", [](SyntheticJob& j) { j.bucket_parameters = 3'000'000, j.scale_gradients = true; }},
      {"reduced at the end", [](SyntheticJob& j) { j.overlap_gradients = false, j.distributed_optimizer = true; }},
      {"old", [](SyntheticJob& j) { j.old_nccl = j.legacy = true, j.clock_grain = 1'000; }},
      {"bare", [](SyntheticJob& j) { j.annotations = j.nccl_internal = false, j.cuda_sync = true; }},
      {"one micro-batch", [](SyntheticJob& j) { j.num_microbatches = 1, j.scale_gradients = true; }},
      {"noise",
       [](SyntheticJob& j) { j.noise = 1, j.host_sigma = 0.3, j.kernel_sigma = 0.05, j.transfer_sigma = 0.1; }},
  };
  for (const auto& [what, knob] : knobs) {
    SyntheticJob base = small();
    knob(base);
    // of one micro-batch a bucket's place counts: after the layer's last gradient, not that of its last product
    agrees(base, {}, base, base.noise > 0 || base.num_microbatches == 1 ? 0.015 : 0.005, what);
    SyntheticJob longer = base;
    longer.layers = 8;
    agrees(base, {{"--layers", "8"}}, longer, base.noise > 0 ? 0.03 : 0.015, what);
  }
}

// Stages that are modelled on one of the other parity would both receive first.
TEST(RebuildVariants, SendsApartKeepOneOrderBetweenNewStages) {
  SyntheticJob base = small();
  base.layers = 8, base.pp = 4, base.dp = 1, base.p2p_batched = false;
  SyntheticJob target = base;
  target.pp = 8;
  agrees(base, {{"--pp", "8"}}, target, 0.02, "deeper");
}

// One table or two: the gradients that a lone stage reduces or clears tell.
TEST(RebuildVariants, UntiedEmbeddingsHaveNoSumOfTheirOwn) {
  for (const std::int64_t dp : {1, 2}) {
    SyntheticJob base = small();
    base.pp = 1, base.dp = dp;
    SyntheticJob target = base;
    target.pp = 2, target.p2p_sync = true;
    agrees(base, {{"--pp", "2"}}, target, 0.04, dp == 1 ? "cleared" : "reduced");
    Traced t(base);
    ASSERT_TRUE(t.job.has_value());
    EXPECT_FALSE(t.job->base.tied_embedding);
  }
}

TEST(RebuildVariants, InterleavedStagesOfAJobWithoutAny) {
  SyntheticJob base = small();
  base.pp = 1, base.dp = 1, base.tp = 2;
  SyntheticJob target = base;
  target.pp = 2, target.chunks = 2;
  agrees(base, {{"--pp", "2"}, {"--schedule", "interleaved:2"}}, target, 0.05, "interleaved");
}

// What is put in has rows of other pieces and ranks.
TEST(RebuildVariants, RecomputationAndNewCollectivesTogether) {
  SyntheticJob base = small();
  base.recompute = SyntheticJob::Recompute::full;
  SyntheticJob target = base;
  target.recompute = SyntheticJob::Recompute::none;
  target.tp = 2, target.broadcast_batch = true, target.loss_sums = 3;
  agrees(base, {{"--tp", "2"}, {"--recompute", "none"}}, target, 0.08, "less recomputed");
}

TEST(RebuildVariants, ALaunchQueueSmallerThanUsual) {
  SyntheticJob base = small();
  base.hidden = 2'048, base.heads = 16, base.num_microbatches = 16, base.queue_depth = 128, base.host_factor = 0.5;
  Traced t(base);
  ASSERT_TRUE(t.job.has_value());
  EXPECT_EQ(t.job->program.queue_depth, 128u);
}

// Whole microseconds: a launch may seem to lie in the operator beside its own. All replicas fill the same buckets.
TEST(RebuildVariants, CoarseTimesDoNotPartReplicas) {
  SyntheticJob base = small();
  base.hidden = 2'048, base.heads = 16, base.num_microbatches = 2, base.steps = 2;
  base.legacy = true, base.clock_grain = 1'000, base.p2p_batched = false;
  base.noise = 1, base.host_sigma = 0.3, base.kernel_sigma = 0.05, base.transfer_sigma = 0.1;
  for (const std::uint64_t seed : {3, 5, 8}) {
    base.seed = seed;
    agrees(base, {}, base, 0.01, "seed " + std::to_string(seed));
  }
}

TEST(RebuildVariants, WithoutReplicasNothingIsScaled) {
  SyntheticJob base = small();
  base.overlap_gradients = false, base.scale_gradients = true, base.bucket_parameters = 40'000'000;
  SyntheticJob target = base;
  target.dp = 1;
  agrees(base, {{"--dp", "1"}}, target, 0.02, "one replica");
}

// The GPUs that a job sees may be a part of the server's.
TEST(RebuildVariants, AJobOfOneServerDoesNotTellItsSize) {
  SyntheticJob base = small();
  const Traced t(base);  // four ranks, four GPUs
  ASSERT_TRUE(t.job.has_value());
  EXPECT_EQ(t.job->base.layout.gpus_per_node, 8);
}

}  // namespace
}  // namespace orrery
