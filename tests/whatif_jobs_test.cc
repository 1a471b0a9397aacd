// Predictions from the traces of one made-up job against the made-up job that has the change: its maker is the truth.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "job_builder.h"
#include "synthesis/synthetic_job.h"
#include "whatif/edits.h"
#include "whatif/layout.h"

namespace orrery {
namespace {

using testing::Joined;

SyntheticJob small() {
  SyntheticJob job;  // tp 2, pp 2, dp 2
  job.layers = 2;
  job.hidden = 512;
  job.seq_length = 512;
  job.noise = 0;
  return job;
}

SyntheticRun run_of(const SyntheticJob& job) {
  auto run = run_job(job);
  EXPECT_TRUE(run.has_value()) << run.error().line();
  return std::move(*run);
}

double step_us(const ExecGraph& g, const Replay& r, const Step& s) {
  const auto ns = g.size() == 0 ? 0 : r.end[raw(s.end_node)] - r.end[raw(s.begin_node)];
  return static_cast<double>(ns) / 1000;
}

// Mean over the steps of the longest rank's, us: what `orrery predict` calls the iteration.
double iteration(const ExecGraph& g, const Replay& r) {
  std::map<std::int64_t, double> longest;
  for (const Step& s : g.steps) longest[s.number] = std::max(longest[s.number], step_us(g, r, s));
  double sum = 0;
  for (const auto& [number, t] : longest) sum += t;
  return sum / static_cast<double>(longest.size());
}
double iteration(const Joined& g) { return iteration(g.graph(), g.run); }

// The iteration that the maker says, from its own step marks.
double truth_of(const SyntheticJob& job) {
  const SyntheticRun run = run_of(job);
  std::map<std::int64_t, Ns> longest;
  for (const TrueRank& rank : run.truth)
    for (const TrueStep& s : rank.steps) longest[s.number] = std::max(longest[s.number], s.duration);
  double sum = 0;
  for (const auto& [number, t] : longest) sum += static_cast<double>(t);
  return sum / static_cast<double>(longest.size()) / 1000;
}

Joined job_of(const SyntheticJob& job) { return Joined(std::move(run_of(job).traces)); }

// Errors in percent of the truth.
double error_pct(double predicted, double truth) { return 100 * (predicted / truth - 1); }

void apply(Joined& g, const std::string& name, const std::string& value = "") {
  Scenario scenario{g.traces, g.build};
  const auto done = apply_edit(scenario, {name, value});
  ASSERT_TRUE(done.has_value()) << done.error().line();
  const Status sound = check(g.graph());
  ASSERT_TRUE(sound.has_value()) << sound.error().line();
  replay(g.graph(), g.run);
}

// ---- durations ----

// Without noise the learnt lags are the true ones, so only the rounding of durations is left: 1 ns a node.
constexpr double kRounding = 0.01;  // percent

TEST(WhatIfJobs, Kernels) {
  for (const double f : {0.5, 2.0}) {
    SyntheticJob job = small();
    job.hidden = job.seq_length = 2048;  // so large that kernels are what it waits for
    Joined gemms = job_of(job), all = job_of(job);
    const double before = iteration(gemms);
    apply(gemms, "--kernel", "gemm=" + std::to_string(f) + "x");
    for (std::uint32_t r = 0; r < all.graph().ranks.size(); ++r) scale_compute(all.build.graph, r, f);
    all.again();
    SyntheticJob changed = job;
    changed.gemm_factor = f;
    const double truth = truth_of(changed);
    EXPECT_NEAR(error_pct(iteration(gemms), truth), 0, kRounding) << f;
    EXPECT_GT(std::abs(error_pct(before, truth)), 1) << "the change is too small to show anything";
    changed = job;
    changed.kernel_factor = f;
    EXPECT_NEAR(error_pct(iteration(all), truth_of(changed)), 0, kRounding) << f;
  }
}

TEST(WhatIfJobs, Transfers) {
  for (const double f : {0.1, 0.5, 4.0}) {
    SyntheticJob job = small();
    Joined g = job_of(job);
    apply(g, "--kernel", "^nccl=" + std::to_string(f));
    job.transfer_factor = f;
    EXPECT_NEAR(error_pct(iteration(g), truth_of(job)), 0, kRounding) << f;
  }
}

TEST(WhatIfJobs, NoTransfersIsABound) {
  SyntheticJob job = small();
  Joined g = job_of(job);
  apply(g, "--perfect-overlap");
  job.transfer_factor = 0.001;  // the least that the maker takes
  const double truth = truth_of(job);
  EXPECT_LE(iteration(g), truth * (1 + kRounding / 100));
  EXPECT_NEAR(error_pct(iteration(g), truth), 0, 0.5);
}

// Host work of a thread that was just woken is learnt as part of the wake: it stays. 15% of what the edit moves is what
// its row in the table of edits gives as doubt.
TEST(WhatIfJobs, HostWork) {
  for (const double f : {0.25, 0.5, 2.0}) {
    SyntheticJob job = small();
    Joined g = job_of(job);
    const double before = iteration(g);
    apply(g, "--host", std::to_string(f) + "x");
    job.host_factor = f;
    const double truth = truth_of(job);
    EXPECT_LT(std::abs(iteration(g) - truth), 0.15 * std::abs(truth - before)) << f;
  }
}

TEST(WhatIfJobs, EditsCompose) {
  SyntheticJob job = small();
  Joined g = job_of(job);
  apply(g, "--kernel", "gemm=0.5x");
  apply(g, "--kernel", "^nccl=2x");
  job.gemm_factor = 0.5;
  job.transfer_factor = 2;
  EXPECT_NEAR(error_pct(iteration(g), truth_of(job)), 0, kRounding);
}

// ---- stragglers ----

TEST(WhatIfJobs, StragglerIsFoundAndTakenOut) {
  for (const std::int64_t rank : {0, 3, 5}) {
    SyntheticJob job = small();
    const double nominal = truth_of(job);
    job.straggler = rank;
    Joined g = job_of(job);
    const auto found = find_stragglers(g.traces, g.build);
    ASSERT_EQ(found.size(), 1u) << rank;
    EXPECT_EQ(g.graph().ranks[found[0].rank].rank, rank);
    EXPECT_EQ(found[0].kind, StragglerKind::compute);
    EXPECT_NEAR(found[0].slower, 1.2, 0.001);
    EXPECT_GT(error_pct(iteration(g), nominal), 0.5);
    apply(g, "--without-stragglers");
    EXPECT_NEAR(error_pct(iteration(g), nominal), 0, kRounding) << rank;
  }
}

// Stages of a pipeline have different work, and noise is no straggler.
TEST(WhatIfJobs, NoStragglerWhereThereIsNone) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    SyntheticJob job = small();
    job.noise = 1;
    job.seed = seed;
    Joined g = job_of(job);
    EXPECT_TRUE(find_stragglers(g.traces, g.build).empty()) << seed;
    const double before = iteration(g);
    apply(g, "--without-stragglers");
    EXPECT_EQ(iteration(g), before);
  }
}

TEST(WhatIfJobs, StragglerAmongNoise) {
  SyntheticJob job = small();
  job.noise = 1;
  const double nominal = truth_of(job);
  job.straggler = 6;
  Joined g = job_of(job);
  const auto found = find_stragglers(g.traces, g.build);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(g.graph().ranks[found[0].rank].rank, 6);
  EXPECT_NEAR(found[0].slower, 1.2, 0.02);  // kernels vary by 1.2%
  apply(g, "--without-stragglers");
  EXPECT_NEAR(error_pct(iteration(g), nominal), 0, 0.5);  // the least interval of a prediction
}

// ---- data parallelism ----

struct DpChange {
  double before = 0, after = 0;
  std::uint64_t changed = 0;
};
DpChange with_dp(const SyntheticJob& job, std::int64_t dp) {
  Joined g = job_of(job);
  auto layout = recognise_layout(g.traces, g.build);
  EXPECT_TRUE(layout.has_value());
  EXPECT_EQ(layout->tp, job.tp);
  EXPECT_EQ(layout->pp, job.pp);
  EXPECT_EQ(layout->dp, job.dp);
  // a job that fits into a server does not tell how large that is
  EXPECT_EQ(layout->confidence, job.tp * job.pp * job.dp < 8 ? 0.7 : 1);
  DpChange c{.before = iteration(g)};
  const auto done = change_dp(g.traces, g.build, *layout, dp);
  if (!done) {
    ADD_FAILURE() << done.error().line();
    return c;
  }
  EXPECT_EQ(layout->dp, dp);
  EXPECT_EQ(layout->world, job.tp * job.pp * dp);
  c.changed = done->nodes + done->edges;
  replay(g.graph(), g.run);
  c.after = iteration(g);
  return c;
}

TEST(WhatIfJobs, SameDataParallelism) {
  for (const std::int64_t dp : {1, 2, 4}) {
    SyntheticJob job = small();
    job.dp = dp;
    const DpChange c = with_dp(job, dp);
    EXPECT_EQ(c.before, c.after);
    EXPECT_EQ(c.changed, 0u);
  }
}

// On links that the trace has seen. The maker's law and the model's have the same term for bytes and differ in what is
// fixed: the maker's latency grows with the members (9 us and 4 a hop between servers, 3 and 1.5 inside), the model's
// is one of any group. So each all-reduce may be wrong by the maker's latency of the larger group.
TEST(WhatIfJobs, DataParallelismOnLinksThatTheTraceHas) {
  struct Case {
    std::int64_t from, to, gpus_per_node;
    double fixed, hop;  // us
  };
  for (const Case& k :
       std::vector<Case>{{2, 4, 2, 9, 4}, {4, 2, 2, 9, 4}, {2, 8, 2, 9, 4}, {2, 4, 8, 3, 1.5}, {4, 2, 8, 3, 1.5}}) {
    SyntheticJob job = small();
    job.dp = k.from;
    job.gpus_per_node = k.gpus_per_node;
    const DpChange c = with_dp(job, k.to);
    const SyntheticRun run = run_of(job);
    double reduces = 0;  // of one rank in a step
    for (const TrueTransfer& t : run.truth[0].transfers) reduces += t.group == "DATA_PARALLEL_GROUP";
    reduces /= static_cast<double>(job.steps);
    ASSERT_GT(reduces, 0);
    job.dp = k.to;
    const double truth = truth_of(job), hops = static_cast<double>(std::max(k.from, k.to) - 1);
    const std::string where = std::to_string(k.from) + " -> " + std::to_string(k.to);
    EXPECT_LE(std::abs(c.after - truth), reduces * (k.fixed + k.hop * hops)) << where;
    EXPECT_EQ(c.after > c.before, k.to > k.from) << where;
  }
}

// Without replicas the collectives take no time; the calls that launch them stay, which is all that it may be over.
TEST(WhatIfJobs, NoReplicas) {
  SyntheticJob job = small();
  const DpChange c = with_dp(job, 1);
  job.dp = 1;
  const double truth = truth_of(job);
  EXPECT_GE(c.after, truth);
  EXPECT_LT(c.after, c.before);
  EXPECT_LT(error_pct(c.after, truth), 2);
}

TEST(WhatIfJobs, NoDataParallelismToChange) {
  SyntheticJob job = small();
  job.dp = 1;
  Joined g = job_of(job);
  auto layout = recognise_layout(g.traces, g.build);
  ASSERT_TRUE(layout.has_value());
  EXPECT_FALSE(change_dp(g.traces, g.build, *layout, 2).has_value());
  EXPECT_FALSE(change_dp(g.traces, g.build, *layout, 0).has_value());
}

}  // namespace
}  // namespace orrery
