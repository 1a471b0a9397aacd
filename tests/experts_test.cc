// Jobs with experts: their layout told with and without descriptions of groups, put together as they were, and as other
// jobs against the made-up job that is like them: its maker is the truth.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "job_builder.h"
#include "made_job.h"
#include "synthesis/synthetic_job.h"
#include "whatif/expert_layout.h"
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
  job.seq_length = 2048;
  job.vocab = 32'000;
  job.tp = 1, job.pp = 2, job.dp = 4, job.ep = 2;
  job.experts = 4;
  job.expert_ffn = 2048;
  job.swiglu = true;
  job.bias = job.dropout = false;
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
    if (!layout) return;
    job = learn_job(joined.traces, joined.build, *layout, {}, overlap);
    EXPECT_TRUE(job.has_value()) << job.error().line();
  }
  Result<Rebuilt> as(const Asked& asked) const {
    if (!job) return tl::unexpected(job.error());
    const auto shape = target_shape(*job, asked);
    if (!shape) return tl::unexpected(shape.error());
    if (Status s = check_dimensions(*job, *shape); !s) return tl::unexpected(s.error());
    RatesError error;
    return rebuild_as(joined.traces, joined.build, *job, *shape, nullptr, {}, error);
  }
  double ms(const Asked& asked) const {
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

struct Case {
  std::string name;
  Asked asked;
  std::function<void(SyntheticJob&)> change;
  double bound;  // share of the truth
};

void agrees(const SyntheticJob& base, const std::vector<Case>& cases, const std::string& what) {
  const Traced t(base);
  for (const Case& c : cases) {
    SyntheticJob target = base;
    c.change(target);
    const double truth = truth_ms(target), told = t.ms(c.asked);
    std::printf("%-24s %-20s truth %8.3f told %8.3f  %+.2f %%\n", what.c_str(), c.name.c_str(), truth, told,
                100 * (told / truth - 1));
    EXPECT_NEAR(told, truth, c.bound * truth) << what << ": " << c.name;
    EXPECT_GT(std::abs(truth / iteration_ms(t.joined.graph(), t.joined.run) - 1), 1e-4) << c.name << " changes nothing";
  }
}

// What every base is held to.
std::vector<Case> usual_cases() {
  return {
      {"layers", {{"--layers", "8"}}, [](SyntheticJob& j) { j.layers = 8; }, 0.015},
      {"micro-batches", {{"--num-microbatches", "8"}}, [](SyntheticJob& j) { j.num_microbatches = 8; }, 0.015},
      {"stages", {{"--pp", "4"}}, [](SyntheticJob& j) { j.pp = 4; }, 0.03},
      {"one stage", {{"--pp", "1"}}, [](SyntheticJob& j) { j.pp = 1; }, 0.04},
      {"more replicas", {{"--dp", "8"}}, [](SyntheticJob& j) { j.dp = 8; }, 0.03},
      {"fewer replicas", {{"--dp", "2"}}, [](SyntheticJob& j) { j.dp = 2; }, 0.03},
      {"sequence", {{"--seq-length", "4096"}}, [](SyntheticJob& j) { j.seq_length = 4096; }, 0.06},
      {"micro-batch size", {{"--micro-batch-size", "2"}}, [](SyntheticJob& j) { j.micro_batch_size = 2; }, 0.06},
  };
}

TEST(Experts, LayoutFromDescriptions) {
  SyntheticJob made = small();
  for (const std::int64_t ep : {1, 2, 4}) {
    made.ep = ep;
    const Joined job(std::move(run_of(made).traces));
    const auto l = recognise_layout(job.traces, job.build);
    ASSERT_TRUE(l.has_value()) << l.error().line();
    EXPECT_EQ(l->tp, 1);
    EXPECT_EQ(l->pp, 2);
    EXPECT_EQ(l->dp, 4);
    EXPECT_EQ(l->ep, ep);
    EXPECT_EQ(l->cp, 1);
    EXPECT_EQ(l->expert_replicas(), 4 / ep);
    EXPECT_EQ(l->confidence, 1) << l->doubts.front();
  }
}

TEST(Experts, LayoutFromWhatGroupsCarry) {
  SyntheticJob made = small();
  made.group_names = false;
  const Joined job(std::move(run_of(made).traces));
  const auto l = recognise_layout(job.traces, job.build);
  ASSERT_TRUE(l.has_value()) << l.error().line();
  EXPECT_EQ(l->tp, 1);
  EXPECT_EQ(l->pp, 2);
  EXPECT_EQ(l->dp, 4);
  EXPECT_EQ(l->ep, 2);
  EXPECT_LT(l->confidence, 1);
  const Communication& c = job.build.communication;
  std::map<GroupRole, std::int64_t> size;
  for (std::size_t k = 0; k < c.groups.size(); ++k) size[l->role[k]] = c.groups[k].size;
  EXPECT_EQ(size[GroupRole::expert], 2);
  EXPECT_EQ(size[GroupRole::expert_data], 2);
  EXPECT_EQ(size[GroupRole::data], 4);
}

TEST(Experts, ByHand) {
  SyntheticJob made = small();
  const Joined job(std::move(run_of(made).traces));
  const auto with = [&](const std::string& text) {
    const auto given = parse_layout(text);
    EXPECT_TRUE(given.has_value()) << given.error().line();
    return recognise_layout(job.traces, job.build, *given);
  };
  EXPECT_TRUE(with("ep=2").has_value());
  const auto wrong = with("ep=4");
  ASSERT_FALSE(wrong.has_value());
  EXPECT_NE(wrong.error().what.find("ep=4"), std::string::npos) << wrong.error().line();
  EXPECT_FALSE(with("cp=2").has_value());
  made.group_names = false;
  const Joined bare(std::move(run_of(made).traces));
  for (const auto& [text, good] :
       std::initializer_list<std::pair<const char*, bool>>{{"ep=2", true}, {"ep=4", false}}) {
    const auto l = recognise_layout(bare.traces, bare.build, *parse_layout(text));
    EXPECT_EQ(l.has_value(), good) << text;
    if (l) {
      EXPECT_EQ(l->ep, 2);
    }
  }
  made.experts = 0, made.ep = 1;  // no tokens go anywhere
  const Joined dense(std::move(run_of(made).traces));
  EXPECT_FALSE(recognise_layout(dense.traces, dense.build, *parse_layout("ep=2")).has_value());
}

// Four replicas whose gradients are reduced over contexts, too: two of each, says the list of groups.
TEST(Experts, ContextsAreNeitherStagesNorReplicas) {
  SyntheticJob made = small();
  made.experts = 0, made.ep = 1;
  TraceSet traces = std::move(run_of(made).traces);
  for (RankTrace& t : traces.ranks) {
    const StrId both = t.strings.intern("DATA_PARALLEL_GROUP_WITH_CP");
    for (StrId& desc : t.comm_args.group_desc)
      if (t.strings.view(desc) == "DATA_PARALLEL_GROUP") desc = both;
    for (ProcessGroup& g : t.groups)
      if (g.desc == "DATA_PARALLEL_GROUP") g.desc = "DATA_PARALLEL_GROUP_WITH_CP";
    ProcessGroup pair;
    pair.name = "77", pair.desc = "CONTEXT_PARALLEL_GROUP", pair.size = 2;
    const auto first = static_cast<std::int32_t>(t.rank / 2 * 2);
    pair.ranks = {first, first + 1};
    t.groups.push_back(pair);
  }
  const Joined job(std::move(traces));
  const auto l = recognise_layout(job.traces, job.build);
  ASSERT_TRUE(l.has_value()) << l.error().line();
  EXPECT_EQ(l->cp, 2);
  EXPECT_EQ(l->dp, 2);
  EXPECT_EQ(l->pp, 2);
  EXPECT_EQ(l->tp, 1);
  EXPECT_EQ(l->placement(GroupRole::data).members, 4) << "contexts hold the same weights";
  EXPECT_EQ(l->stage_of(3), 0);
  EXPECT_EQ(l->stage_of(4), 1);
  const auto model = learn_job(job.traces, job.build, *l, {}, {});
  ASSERT_FALSE(model.has_value());
  EXPECT_NE(model.error().what.find("context parallelism"), std::string::npos) << model.error().line();
}

TEST(Experts, LabelsOfOthers) {
  EXPECT_EQ(expert_role_of_label("EXPERT_MODEL_PARALLEL_GROUP"), GroupRole::expert);
  EXPECT_EQ(expert_role_of_label("EXPERT_TENSOR_PARALLEL_GROUP"), GroupRole::expert_tensor);
  EXPECT_EQ(expert_role_of_label("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP"), GroupRole::expert_model);
  EXPECT_EQ(expert_role_of_label("EXPERT_DATA_PARALLEL_GROUP"), GroupRole::expert_data);
  EXPECT_EQ(expert_role_of_label("INTRA_PARTIAL_EXPERT_DATA_PARALLEL_GROUP"), GroupRole::expert_data);
  EXPECT_EQ(expert_role_of_label("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP"), GroupRole::expert_stages);
  EXPECT_EQ(expert_role_of_label("MESH_EP"), GroupRole::expert);
  EXPECT_EQ(expert_role_of_label("EP_SIZE_4"), GroupRole::expert);
  EXPECT_EQ(expert_role_of_label("MESH_EFSDP"), GroupRole::expert_data);
  EXPECT_EQ(expert_role_of_label("CONTEXT_PARALLEL_GROUP"), GroupRole::context);
  EXPECT_EQ(expert_role_of_label("DATA_PARALLEL_GROUP_WITH_CP"), std::nullopt);
  EXPECT_EQ(expert_role_of_label("TENSOR_AND_DATA_PARALLEL_GROUP"), GroupRole::other);
  EXPECT_EQ(expert_role_of_label("DATA_PARALLEL_GROUP"), std::nullopt);
  EXPECT_EQ(expert_role_of_label("TENSOR_MODEL_PARALLEL_GROUP"), std::nullopt);
}

// Template arguments: <low latency, ranks of remote memory, ...> between servers of 8, <ranks, ...> inside one.
TEST(Experts, DeepEpSaysForHowManyRanksItIsCompiled) {
  EXPECT_EQ(ranks_of_deep_ep("void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*, float*)"), 64);
  EXPECT_EQ(ranks_of_deep_ep("void deep_ep::internode::notify_dispatch<false, 2>(int const*)"), 16);
  EXPECT_EQ(ranks_of_deep_ep("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(int4*)"), 0);
  EXPECT_EQ(ranks_of_deep_ep("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)"), 8);
  EXPECT_EQ(ranks_of_deep_ep("void deep_ep::intranode::notify_dispatch<4>(int const*)"), 4);
  EXPECT_EQ(ranks_of_deep_ep("void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*)"), 0);
  EXPECT_EQ(ranks_of_deep_ep("void cutlass::Kernel<8>()"), 0);
}

TEST(Experts, TheSameShapeIsTheSameJob) {
  for (const bool noisy : {false, true})
    for (const std::int64_t ep : {2, 4}) {
      SyntheticJob made = small();
      made.ep = ep;
      made.noise = noisy ? 1 : 0;
      made.routing_skew = noisy ? 0.1 : 0;
      made.clock_step = noisy ? 3'000'000 : 0;
      made.gpus_per_node = 4;
      made.steps = 2;
      const Traced t(made);
      auto again = t.as({});
      ASSERT_TRUE(again.has_value()) << again.error().line();
      const ExecGraph &a = t.joined.graph(), &b = again->build.graph;
      EXPECT_NEAR(static_cast<double>(b.size()), static_cast<double>(a.size()), 0.002 * static_cast<double>(a.size()));
      EXPECT_EQ(again->build.communication.meetings.size(), t.joined.build.communication.meetings.size());
      Replay r;
      replay(b, r);
      EXPECT_NEAR(iteration_ms(b, r), iteration_ms(a, t.joined.run), 0.002 * iteration_ms(a, t.joined.run));
    }
}

TEST(Experts, AgreesWithTheMakerOfTheJob) { agrees(small(), usual_cases(), "described"); }

TEST(Experts, WithoutDescriptionsOfGroups) {
  SyntheticJob base = small();
  base.group_names = false;
  agrees(base, usual_cases(), "bare");
}

TEST(Experts, OneProductForEachExpert) {
  SyntheticJob base = small();
  base.grouped_gemm = false;
  base.shared_expert = true;
  base.fused_pointwise = false;
  agrees(base, usual_cases(), "apart, shared");
}

TEST(Experts, UnderTensorParallelism) {
  SyntheticJob base = small();
  base.tp = 2;
  base.sequence_parallel = true;
  agrees(base, usual_cases(), "tp 2");
}

TEST(Experts, NoisyClocksAndUnevenRouting) {
  SyntheticJob base = small();
  base.noise = 1;
  base.routing_skew = 0.1;
  base.clock_step = 3'000'000;
  base.gpus_per_node = 4;
  base.steps = 2;
  std::vector<Case> cases = usual_cases();
  for (Case& c : cases) c.bound += 0.02;
  agrees(base, cases, "noisy");
}

TEST(Experts, ReplicasOfExpertsThatHadNone) {
  SyntheticJob base = small();
  base.ep = 4;
  base.bucket_parameters = 40'000'000;
  agrees(base,
         {{"replicas", {{"--dp", "8"}}, [](SyntheticJob& j) { j.dp = 8; }, 0.05},
          {"layers", {{"--layers", "8"}}, [](SyntheticJob& j) { j.layers = 8; }, 0.02}},
         "ep = dp");
}

TEST(Experts, ShardedOptimizerAndBuckets) {
  SyntheticJob base = small();
  base.distributed_optimizer = true;
  base.bucket_parameters = 20'000'000;
  agrees(base, usual_cases(), "sharded");
}

TEST(Experts, Recomputation) {
  SyntheticJob base = small();
  agrees(base,
         {{"recompute",
           {{"--recompute", "full"}},
           [](SyntheticJob& j) { j.recompute = SyntheticJob::Recompute::full; },
           0.04},
          {"hidden",
           {{"--hidden", "2048"}, {"--heads", "16"}},
           [](SyntheticJob& j) { j.hidden = 2048, j.heads = 16; },
           0.06}},
         "other");
}

TEST(Experts, WhatIsNotModelledIsRefused) {
  const Traced t(small());
  for (const Asked& asked : {Asked{{"--tp", "2"}}, Asked{{"--ffn", "8192"}}, Asked{{"--sequence-parallel", "on"}},
                             Asked{{"--dp", "1"}}, Asked{{"--dp", "3"}}}) {
    const auto made = t.as(asked);
    ASSERT_FALSE(made.has_value()) << asked.begin()->first;
    EXPECT_NE(made.error().line().find(asked.begin()->first), std::string::npos) << made.error().line();
  }
  SyntheticJob blind = small();
  blind.shapes = false;
  const Traced b(blind);
  EXPECT_FALSE(b.as({{"--layers", "8"}}).has_value()) << "how many tokens experts work on is not told";
}

// Under sequence parallelism a rank has the gradients of norms for its own tokens only: each layer's are summed over
// the tensor ranks, and those behind the last layer on the last stage.
TEST(NormGradients, SumsFollowLayersAndStages) {
  SyntheticJob made = small();
  made.experts = 0, made.ep = 1;
  made.tp = 2, made.dp = 1, made.sequence_parallel = true;
  const Traced t(made);
  const auto largest = [](const GraphBuild& build, const JobLayout& layout, const JobShape& shape) {
    std::map<std::int64_t, std::int64_t> bytes;  // by stage: all-reduces of tensor ranks larger than a token's numbers
    const Communication& c = build.communication;
    for (const CommRow& row : c.rows) {
      if (row.op != CommOp::all_reduce || row.group == kNone ||
          c.groups[row.group].label != "TENSOR_MODEL_PARALLEL_GROUP")
        continue;
      if (row.bytes <= 4 * static_cast<std::int64_t>(shape.dims.seq)) continue;
      std::int64_t& b = bytes[layout.stage_of(build.graph.ranks[row.rank].rank)];
      b = std::max(b, row.bytes);
    }
    return bytes;
  };
  // four vectors of the hidden size a layer, two behind the last; four bytes each
  const std::int64_t vector = 4 * 1024;
  using Bytes = std::map<std::int64_t, std::int64_t>;
  EXPECT_EQ(largest(t.joined.build, t.job->base.layout, t.job->base), (Bytes{{0, 8 * vector}, {1, 10 * vector}}));
  for (const auto& [asked, expected] : std::initializer_list<std::pair<Asked, Bytes>>{
           {{{"--layers", "8"}}, {{0, 16 * vector}, {1, 18 * vector}}},
           {{{"--pp", "4"}}, {{0, 4 * vector}, {1, 4 * vector}, {2, 4 * vector}, {3, 6 * vector}}},
           {{{"--hidden", "2048"}, {"--head-dim", "256"}}, {{0, 16 * vector}, {1, 20 * vector}}}}) {
    const auto made_anew = t.as(asked);
    ASSERT_TRUE(made_anew.has_value()) << made_anew.error().line();
    const JobShape shape = *target_shape(*t.job, asked);
    EXPECT_EQ(largest(made_anew->build, shape.layout, shape), expected) << asked.begin()->first;
  }
}

}  // namespace
}  // namespace orrery
