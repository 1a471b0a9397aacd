// Jobs with collectives that the traced one has not, against the made-up job that has them: its maker is the truth.
#include "whatif/collective_edits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "job_builder.h"
#include "synthesis/synthetic_job.h"
#include "whatif/job_model.h"

namespace orrery {
namespace {

using Change = std::function<void(SyntheticJob&)>;

// So large that its kernels are what it waits for.
SyntheticJob job_of(std::int64_t tp, std::int64_t pp, std::int64_t dp) {
  SyntheticJob job;
  job.tp = tp, job.pp = pp, job.dp = dp;
  job.steps = 1;
  job.noise = 0;
  return job;
}

double iteration_ms(const ExecGraph& g, const Replay& r) {
  Ns longest = 0;
  for (const Step& s : g.steps) longest = std::max(longest, r.end[raw(s.end_node)] - r.end[raw(s.begin_node)]);
  return static_cast<double>(longest) / 1e6;
}

double truth_ms(const SyntheticJob& job) {
  const auto run = run_job(job);
  EXPECT_TRUE(run.has_value());
  return iteration_ms(run->graph, run->replay);
}

// What the maker does not do, and Megatron-LM does.
constexpr CollectiveOptions kMaker = {false, false, false, 1};

struct Learnt {
  TraceSet traces;
  GraphBuild build;
  JobModel model;
  double base_ms = 0;

  explicit Learnt(const SyntheticJob& job) {
    auto run = run_job(job);
    EXPECT_TRUE(run.has_value());
    traces = std::move(run->traces);
    auto built = build_graph(traces);
    EXPECT_TRUE(built.has_value());
    build = std::move(*built);
    auto layout = recognise_layout(traces, build);
    EXPECT_TRUE(layout.has_value());
    layout->gpus_per_node = job.gpus_per_node;
    auto learnt = learn_job(traces, build, *layout, {}, {});
    EXPECT_TRUE(learnt.has_value()) << learnt.error().line();
    model = std::move(*learnt);
    model.base.tied_embedding = false;  // the maker has no group for it
    Replay r;
    replay(build.graph, r);
    base_ms = iteration_ms(build.graph, r);
  }

  JobShape shape(std::int64_t tp, std::int64_t pp, std::int64_t dp) const {
    JobShape s = model.base;
    s.layout.tp = tp, s.layout.pp = pp, s.layout.dp = dp;
    s.layout.world = tp * pp * dp;
    s.dims.tp = static_cast<double>(tp), s.dims.dp = static_cast<double>(dp);
    return s;
  }
  JobShape same() const { return model.base; }
};

struct Predicted {
  double ms = 0;
  Rebuilt job;
  std::vector<std::string> modelled;

  // Collectives of one rank: by name and bytes.
  std::size_t count(std::string_view op, std::int64_t bytes, std::uint32_t rank = 0) const {
    const Communication& c = job.build.communication;
    return static_cast<std::size_t>(std::count_if(c.rows.begin(), c.rows.end(), [&](const CommRow& row) {
      return row.rank == rank && c.op_names[row.op_name] == op && row.bytes == bytes;
    }));
  }
};

Predicted put_together(const Learnt& base, const Program& program, const JobShape& next) {
  Predicted out;
  RatesError error;
  const Rates rates = rates_for(base.model, base.build, next, nullptr, error);
  auto made = rebuild(base.traces, base.build, program, base.model.base, next, rates, base.model.net);
  EXPECT_TRUE(made.has_value()) << made.error().line();
  if (!made) return out;
  out.job = std::move(*made);
  const Status sound = check(out.job.build.graph);
  EXPECT_TRUE(sound.has_value()) << sound.error().line();
  Replay r;
  replay(out.job.build.graph, r);
  out.ms = iteration_ms(out.job.build.graph, r);
  return out;
}

Predicted predict(const Learnt& base, const JobShape& next, const CollectiveOptions& options = kMaker) {
  EXPECT_TRUE(collectives_differ(base.model, next));
  std::vector<std::string> modelled;
  auto program = edit_collectives(base.traces, base.build, base.model, next, modelled, options);
  EXPECT_TRUE(program.has_value()) << program.error().line();
  if (!program) return {};
  Predicted out = put_together(base, *program, next);
  out.modelled = std::move(modelled);
  return out;
}

double error_pct(double predicted, double truth) { return 100 * (predicted / truth - 1); }

// ---- where there were none ----

TEST(CollectiveEdits, DataParallelismWhereThereWasNone) {
  const Learnt base(job_of(1, 1, 1));
  const Predicted two = predict(base, base.shape(1, 1, 2));
  EXPECT_NEAR(error_pct(two.ms, truth_ms(job_of(1, 1, 2))), 0, 1);
  EXPECT_GT(two.ms, base.base_ms);
  ASSERT_EQ(two.modelled.size(), 1u);
  EXPECT_NE(two.modelled[0].find("no collective"), std::string::npos);
  // The head's and each layer's gradients fill a bucket of 40 million: 65,536,000 and 12 * 2048 * 2048 weights; the
  // embedding's, with what has no product (norms: 4 * 2048 a layer), are left.
  EXPECT_EQ(two.count("allreduce", 4LL * 65'536'000), 1u);
  EXPECT_EQ(two.count("allreduce", 4LL * 12 * 2048 * 2048), 4u);
  EXPECT_EQ(two.count("allreduce", 4LL * (65'536'000 + 4 * 4 * 2048)), 1u);
}

TEST(CollectiveEdits, GradientsAreScaledBeforeTheyAreReduced) {
  const Learnt base(job_of(1, 1, 1));
  CollectiveOptions options = kMaker;
  const double plain = predict(base, base.shape(1, 1, 2), options).ms;
  options.scale_gradients = true;
  // reads and writes what their zeroing writes: twice that, which is 4 bytes of 4 layers' 12 * 2048 * 2048 weights
  // here. Some of it hides behind the reductions of the bucket before.
  const double scaled = predict(base, base.shape(1, 1, 2), options).ms;
  const double zeroing_ms = 4 * (4 * 12 * 2048.0 * 2048) / (3.35e9 * 0.8);
  EXPECT_LT(scaled - plain, 2.1 * zeroing_ms);
  EXPECT_GT(scaled - plain, 1.2 * zeroing_ms);
}

TEST(CollectiveEdits, PipelineWhereThereWasNone) {
  for (const double noise : {0.0, 1.0}) {
    SyntheticJob job = job_of(1, 1, 1);
    job.noise = noise;
    const Learnt base(job);
    for (const std::int64_t pp : {2, 4}) {
      job.pp = pp;
      EXPECT_NEAR(error_pct(predict(base, base.shape(1, pp, 1)).ms, truth_ms(job)), 0, 1.5) << pp << " " << noise;
    }
  }
}

TEST(CollectiveEdits, HostMayWaitForExchanges) {
  SyntheticJob job = job_of(2, 1, 1);
  const Learnt base(job);
  CollectiveOptions options = kMaker;
  options.exchange_sync = true;
  job.pp = 2;
  job.p2p_sync = true;
  EXPECT_NEAR(error_pct(predict(base, base.shape(2, 2, 1), options).ms, truth_ms(job)), 0, 3);
}

TEST(CollectiveEdits, SharedEmbeddingIsSummedByTheEnds) {
  const Learnt base(job_of(2, 1, 2));
  JobShape next = base.shape(2, 4, 2);
  const auto sums = [&](bool tied, std::uint32_t rank) {
    next.tied_embedding = tied;
    return predict(base, next).count("allreduce", 4LL * 32'000 * 2048 / 2, rank);
  };
  const std::uint32_t last = 3 * 2 * 2;
  EXPECT_EQ(sums(true, 0), sums(false, 0) + 1);
  EXPECT_EQ(sums(true, last), sums(false, last) + 1);
  EXPECT_EQ(sums(true, 4), 0u);
}

TEST(CollectiveEdits, TensorParallelismWhereThereWasNone) {
  const Learnt base(job_of(1, 1, 1));
  const Predicted two = predict(base, base.shape(2, 1, 1));
  EXPECT_NEAR(error_pct(two.ms, truth_ms(job_of(2, 1, 1))), 0, 3);
  // of each micro-batch: 2 forward and 2 backward a layer, the embedding's, the head's input gradient
  const std::int64_t activation = 2LL * 2048 * 2048;
  EXPECT_EQ(two.count("allreduce", activation), 4u * (4 * 4 + 2));
  EXPECT_EQ(two.count("allreduce", 4 * 2048), 4u);  // of the loss, as the maker has them
  const Predicted megatron = predict(base, base.shape(2, 1, 1), {});
  EXPECT_EQ(megatron.count("allreduce", 4 * 2048), 3u * 4);
  EXPECT_EQ(megatron.count("broadcast", 8 * 2048), 4u);
}

TEST(CollectiveEdits, AllAtOnce) {
  const Learnt base(job_of(1, 1, 1));
  EXPECT_NEAR(error_pct(predict(base, base.shape(2, 2, 2)).ms, truth_ms(job_of(2, 2, 2))), 0, 4);
}

// ---- to none ----

TEST(CollectiveEdits, ToOne) {
  const Learnt base(job_of(2, 2, 2));
  EXPECT_NEAR(error_pct(predict(base, base.shape(2, 2, 1)).ms, truth_ms(job_of(2, 2, 1))), 0, 0.5);
  EXPECT_NEAR(error_pct(predict(base, base.shape(2, 1, 2)).ms, truth_ms(job_of(2, 1, 2))), 0, 1.5);
  EXPECT_NEAR(error_pct(predict(base, base.shape(1, 2, 2)).ms, truth_ms(job_of(1, 2, 2))), 0, 3.5);  // products grow
  const Predicted alone = predict(base, base.shape(1, 1, 1));
  EXPECT_NEAR(error_pct(alone.ms, truth_ms(job_of(1, 1, 1))), 0, 3);
  EXPECT_TRUE(alone.job.build.communication.rows.empty());
}

// ---- sharded optimizer ----

TEST(CollectiveEdits, DistributedOptimizer) {
  SyntheticJob plain = job_of(2, 2, 2), sharded = plain;
  sharded.distributed_optimizer = true;
  {
    const Learnt base(plain);
    JobShape next = base.same();
    next.layout.distributed_optimizer = true;
    EXPECT_NEAR(error_pct(predict(base, next).ms, truth_ms(sharded)), 0, 0.5);
  }
  const Learnt base(sharded);
  ASSERT_TRUE(base.model.base.layout.distributed_optimizer);
  JobShape next = base.same();
  next.layout.distributed_optimizer = false;
  const Predicted off = predict(base, next);
  EXPECT_NEAR(error_pct(off.ms, truth_ms(plain)), 0, 0.5);
  for (const CommRow& row : off.job.build.communication.rows) EXPECT_NE(row.op, CommOp::all_gather);
  // where there were no replicas
  const Learnt alone(job_of(2, 2, 1));
  next = alone.shape(2, 2, 2);
  next.layout.distributed_optimizer = true;
  EXPECT_NEAR(error_pct(predict(alone, next).ms, truth_ms(sharded)), 0, 1);
  // to one replica
  EXPECT_NEAR(error_pct(predict(base, base.shape(2, 2, 1)).ms, truth_ms(job_of(2, 2, 1))), 0, 0.5);
}

TEST(CollectiveEdits, GradientsReducedAfterBackward) {
  SyntheticJob job = job_of(2, 2, 2);
  job.overlap_gradients = false;
  const Learnt base(job);
  EXPECT_NEAR(error_pct(predict(base, base.shape(2, 2, 1)).ms, truth_ms(job_of(2, 2, 1))), 0, 0.5);
  JobShape next = base.same();
  next.layout.distributed_optimizer = true;
  SyntheticJob sharded = job;
  sharded.distributed_optimizer = true;
  EXPECT_NEAR(error_pct(predict(base, next).ms, truth_ms(sharded)), 0, 0.5);
  // another degree needs no other collectives
  next = base.shape(2, 2, 4);
  EXPECT_FALSE(collectives_differ(base.model, next));
  job.dp = 4;
  EXPECT_NEAR(error_pct(put_together(base, base.model.program, next).ms, truth_ms(job)), 0, 2);
}

// ---- sequence parallelism ----

TEST(CollectiveEdits, SequenceParallelism) {
  const Learnt base(job_of(2, 2, 1));
  JobShape next = base.same();
  next.dims.sequence_parallel = true;
  const Predicted on = predict(base, next);
  // of each micro-batch, first stage of 2 layers: forward 2 sums and 2 gathers, backward 2 sums, 2 gathers of inputs
  // and 2 of gradients; the embedding's sum, and the gather of its gradients
  const std::int64_t activation = 2LL * 2048 * 2048;
  EXPECT_EQ(on.count("allreduce", activation), 0u);
  EXPECT_EQ(on.count("_reduce_scatter_base", activation), 4u * (2 * 4 + 1));
  EXPECT_EQ(on.count("_allgather_base", activation), 4u * (2 * 6 + 1));
  // exchanges carry a rank's share
  EXPECT_GT(on.count("send", activation / 2) + on.count("sendrecv", activation), 0u);
  EXPECT_EQ(on.count("send", activation), 0u);
}

TEST(CollectiveEdits, WorkOnWholeActivationsIsSplit) {
  Work w;
  w.kind = WorkKind::memory;
  w.m.seq = w.m.mbs = w.m.hidden = 1;
  EXPECT_EQ(under_sequence_parallelism(w, "layer_norm").m.split, -1);
  EXPECT_EQ(under_sequence_parallelism(w, "indexSelectLargeIndex").m.split, 0);  // the table's rows, before the sum
  w.m.hidden = 0, w.m.ffn = 1, w.m.tp = -1;
  EXPECT_EQ(under_sequence_parallelism(w, "gelu").m.split, 0);
  w.kind = WorkKind::gemm;
  EXPECT_EQ(under_sequence_parallelism(w, "gemm"), w);
}

// ---- there and back ----

TEST(CollectiveEdits, ThereAndBack) {
  SyntheticJob job = job_of(2, 2, 2);
  job.distributed_optimizer = true;
  const Learnt base(job);
  const auto through = [&](JobShape by) {
    std::vector<std::string> modelled;
    auto there = edit_collectives(base.traces, base.build, base.model, by, modelled, kMaker);
    EXPECT_TRUE(there.has_value());
    JobModel changed = base.model;
    changed.program = std::move(*there);
    changed.base = by;
    auto back = edit_collectives(base.traces, base.build, changed, base.same(), modelled, kMaker);
    EXPECT_TRUE(back.has_value());
    return error_pct(put_together(base, *back, base.same()).ms, base.base_ms);
  };
  EXPECT_NEAR(through(base.shape(2, 2, 1)), 0, 1);
  EXPECT_NEAR(through(base.shape(2, 1, 2)), 0, 1);
  EXPECT_NEAR(through(base.shape(1, 2, 2)), 0, 1.5);
  JobShape by = base.same();
  by.dims.sequence_parallel = true;
  EXPECT_NEAR(through(by), 0, 0.2);
  by = base.same();
  by.layout.distributed_optimizer = false;
  EXPECT_NEAR(through(by), 0, 0.2);
}

// ---- what is refused ----

TEST(CollectiveEdits, ShardedParametersAreRefused) {
  Learnt base(job_of(2, 1, 2));
  EXPECT_TRUE(check_sharding(base.build, base.model.base.layout, base.model.program).has_value());
  // the sums of the layers become gathers over the replicas
  JobLayout layout = base.model.base.layout;
  for (CommRow& row : base.build.communication.rows)
    if (row.group != kNone && layout.role[row.group] == GroupRole::tensor) row.op = CommOp::all_gather;
  for (GroupRole& role : layout.role)
    if (role == GroupRole::tensor) role = GroupRole::data;
  const Status refused = check_sharding(base.build, layout, base.model.program);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().line().find("FSDP"), std::string::npos);
}

TEST(CollectiveEdits, UnknownNetworkIsRefused) {
  Learnt base(job_of(1, 1, 1));
  base.model.net = {};
  std::vector<std::string> modelled;
  const auto none = edit_collectives(base.traces, base.build, base.model, base.shape(1, 1, 2), modelled);
  ASSERT_FALSE(none.has_value());
  EXPECT_NE(none.error().line().find("--network"), std::string::npos);
}

}  // namespace
}  // namespace orrery
