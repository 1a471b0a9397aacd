// The scheduler by hand, against a slow one, and what must hold whatever the load.
#include <cmath>

#include "reference/slow_serving.h"
#include "serving_helpers.h"

namespace orrery::test {
namespace {

Workload random_workload(std::uint64_t seed, std::int64_t n, double rate) {
  WorkloadAsked a;
  a.requests = n, a.rate = rate, a.seed = seed;
  a.input = {.kind = LengthKind::lognormal, .mean = 120, .sigma = 1, .least = 1, .most = 800};
  a.output = {.kind = LengthKind::lognormal, .mean = 60, .sigma = 1, .least = 1, .most = 400};
  return made_workload(a);
}

void near(double got, double want) { EXPECT_NEAR(got, want, 0.02 * std::abs(want) + 0.02 * kMs); }

TEST(Serving, OneRequestTakesOneStepATokenAndOneForItsPrompt) {
  const ServeJob job = clockwork();
  const StepCosts costs(job);
  const Simulation s = simulate(costs, blocks_of(1000), requests_of({{0, 100, 5}}));
  near(s.requests[0].first_token, 10 * kMs);
  near(s.requests[0].end, 50 * kMs);
  EXPECT_EQ(s.steps, 5);
  EXPECT_EQ(s.prefill_tokens, 100);
  near(s.itl.mean(), 10 * kMs);
  EXPECT_EQ(s.itl.count(), 4);
}

TEST(Serving, PromptsLongerThanAStepTakeSeveral) {
  ServeJob job = clockwork();
  job.engine.max_batched_tokens = 40;
  const StepCosts costs(job);
  near(simulate(costs, blocks_of(1000), requests_of({{0, 100, 1}})).requests[0].end, 30 * kMs);
  // The first one's tokens come before the second one's prompt: 39 tokens of it a step.
  const Simulation s = simulate(costs, blocks_of(1000), requests_of({{0, 10, 20}, {5 * kMs, 78, 1}}));
  near(s.requests[1].first_token, 30 * kMs);
  near(s.requests[0].end, 200 * kMs);
}

TEST(Serving, WholePromptsComeFirstAndStopTheOthers) {
  ServeJob job = clockwork();
  job.engine.scheduling = "prefill-first";
  const StepCosts costs(job);
  const Simulation s = simulate(costs, blocks_of(1000), requests_of({{0, 10, 3}, {15 * kMs, 10, 1}}));
  near(s.requests[0].first_token, 10 * kMs);
  near(s.requests[1].end, 30 * kMs);  // waits for the step that had begun
  near(s.requests[0].end, 40 * kMs);  // one step late
}

TEST(Serving, AStaticBatchLetsNobodyIn) {
  ServeJob job = clockwork();
  job.engine.scheduling = "static";
  const StepCosts costs(job);
  const Simulation s = simulate(costs, blocks_of(1000), requests_of({{0, 10, 4}, {5 * kMs, 10, 1}}));
  near(s.requests[0].end, 40 * kMs);
  near(s.requests[1].end, 50 * kMs);
}

TEST(Serving, OnlySoManySequencesAtATime) {
  ServeJob job = clockwork();
  job.engine.max_num_seqs = 2;
  const StepCosts costs(job);
  const Simulation s = simulate(costs, blocks_of(1000), requests_of({{0, 5, 4}, {0, 5, 4}, {0, 5, 4}, {0, 5, 4}}));
  EXPECT_EQ(s.max_batch, 2);
  near(s.end, 80 * kMs);
  EXPECT_GT(s.time.sequences_blocked, 0);
}

TEST(Serving, WithoutBlocksTheLastComesAgain) {
  ServeJob job = clockwork();
  job.engine.block_size = 4;
  const StepCosts costs(job);
  // Four blocks: two prompts of 8 fill them; the first one's next token takes a block of the second, which starts anew
  // when the first has ended, with the token that it had told.
  const Simulation s = simulate(costs, blocks_of(4), requests_of({{0, 8, 5}, {0, 8, 2}}));
  EXPECT_EQ(s.preemptions, 1);
  EXPECT_EQ(s.requests[1].preemptions, 1u);
  EXPECT_EQ(s.prefill_tokens, 8 + 8 + 9);
  near(s.requests[0].end, 50 * kMs);
  near(s.requests[1].first_token, 10 * kMs);
  near(s.requests[1].end, 60 * kMs);
  EXPECT_DOUBLE_EQ(s.kv_peak, 1);
}

TEST(Serving, SwappedSequencesAreNotComputedAgain) {
  ServeJob job = clockwork();
  job.engine.block_size = 4;
  job.engine.preemption = "swap";
  const StepCosts costs(job);
  const Simulation s = simulate(costs, blocks_of(4), requests_of({{0, 8, 5}, {0, 8, 2}}));
  EXPECT_EQ(s.preemptions, 1);
  EXPECT_EQ(s.prefill_tokens, 16);
  EXPECT_GT(s.time.swap, 0);
  near(s.requests[1].end, 60 * kMs);
}

TEST(Serving, AReservedCacheWaitsInsteadOfPreempting) {
  ServeJob job = clockwork();
  job.engine.block_size = 4;
  job.engine.kv_growth = "reserved";
  const StepCosts costs(job);
  const Simulation s = simulate(costs, blocks_of(4), requests_of({{0, 8, 5}, {0, 8, 2}}));
  EXPECT_EQ(s.preemptions, 0);
  near(s.requests[1].first_token, 60 * kMs);
  EXPECT_GT(s.time.kv_blocked, 0);
}

TEST(Serving, PromptsThatBeginAlikeAreComputedOnce) {
  ServeJob job = clockwork();
  job.prefix_caching = true;
  const StepCosts costs(job);
  WorkloadAsked a;
  a.requests = 3, a.shared_prefix = 100, a.rate = 1, a.cv = 0;
  a.input.mean = 120, a.output.mean = 2;
  const Workload w = made_workload(a);
  const Simulation s = simulate(costs, blocks_of(1000), w);
  EXPECT_EQ(s.cached_tokens, 2 * 96);  // six whole blocks of 16
  EXPECT_EQ(s.prefill_tokens, 120 + 2 * 24);
  job.prefix_caching = false;
  EXPECT_EQ(simulate(StepCosts(job), blocks_of(1000), w).prefill_tokens, 360);
}

TEST(Serving, AllOfAPromptMayBeKnownButItsLastBlock) {
  ServeJob job = clockwork();
  job.prefix_caching = true;
  WorkloadAsked a;
  a.requests = 2, a.shared_prefix = 64, a.rate = 1, a.cv = 0;
  a.input.mean = 64, a.output.mean = 1;
  EXPECT_EQ(simulate(StepCosts(job), blocks_of(100), made_workload(a)).cached_tokens, 48);
}

TEST(Serving, AcceptedDraftsComeTogether) {
  ServeJob job = clockwork();
  job.draft_tokens = 3, job.draft_share = 0;
  job.acceptance = 1;
  const Simulation all = simulate(StepCosts(job), blocks_of(1000), requests_of({{0, 10, 9}}));
  near(all.requests[0].end, 30 * kMs);  // 1, then twice 4
  EXPECT_EQ(all.accepted, all.drafted);
  job.acceptance = 0;
  near(simulate(StepCosts(job), blocks_of(1000), requests_of({{0, 10, 9}})).requests[0].end, 90 * kMs);
}

TEST(Serving, TwoReplicasTakeTurnsOrTheEmptierOne) {
  ServeJob job = clockwork();
  job.replicas = 2;
  const StepCosts costs(job);
  const Workload w = requests_of({{0, 10, 50}, {1 * kMs, 10, 1}, {2 * kMs, 10, 1}, {3 * kMs, 10, 1}});
  const Simulation turns = simulate(costs, blocks_of(100), w);
  EXPECT_EQ(turns.requests[0].instance, turns.requests[2].instance);
  EXPECT_NE(turns.requests[0].instance, turns.requests[1].instance);
  const Simulation emptier = simulate(costs, blocks_of(100), w, {.routing = Routing::least_loaded});
  EXPECT_NE(emptier.requests[0].instance, emptier.requests[1].instance);
  EXPECT_EQ(emptier.requests[1].instance, emptier.requests[3].instance);
}

TEST(Serving, PrefillElsewhereHandsKeysAndValuesOver) {
  ServeJob job = clockwork();
  job.replicas = 2, job.prefill_replicas = 1;
  const StepCosts costs(job);
  const Simulation s = simulate(costs, blocks_of(1000), requests_of({{0, 100, 3}, {0, 50, 1}}));
  EXPECT_DOUBLE_EQ(s.transferred_bytes, 100 * kv_bytes_per_token(job));  // the second one has ended
  near(s.requests[0].first_token, 10 * kMs);
  EXPECT_GT(s.requests[0].end, 30 * kMs);
  near(s.requests[0].end, 30 * kMs);
  near(s.requests[1].end, 10 * kMs);
}

TEST(Serving, StagesWorkOnDifferentSequences) {
  ServeJob job = real_job("llama-2-7b", "2xH100", "tensorrt-llm");
  const auto total = [&](std::int64_t pp, std::int64_t requests) {
    job.pp = pp;
    std::vector<Request> all(static_cast<std::size_t>(requests), Request{0, 16, 200});
    return simulate(StepCosts(job), blocks_of(10'000), requests_of(all)).end;
  };
  EXPECT_NEAR(total(2, 1) / total(1, 1), 1, 0.1);  // one sequence passes both
  EXPECT_NEAR(total(2, 2) / total(2, 1), 1, 0.1);  // two fill them
}

TEST(Serving, StagesTakePieceAfterPieceOfAPrompt) {
  ServeJob job = real_job("llama-2-7b", "4xH100", "llama.cpp");
  job.engine.max_batched_tokens = 8;
  const auto first = [&](std::int64_t pp) {
    job.pp = pp;
    return simulate(StepCosts(job), blocks_of(10'000), requests_of({{0, 800, 2}})).requests[0].first_token;
  };
  EXPECT_NEAR(first(4) / first(1), 0.25, 0.06);
}

TEST(Serving, AnswersEndWithTheContext) {
  ServeJob job = clockwork();
  job.max_model_len = 100;
  const Simulation s = simulate(StepCosts(job), blocks_of(1000), requests_of({{0, 90, 50}, {0, 100, 50}, {0, 101, 5}}));
  EXPECT_EQ(s.requests[0].output, 10);
  EXPECT_EQ(s.requests[1].output, 1);
  EXPECT_TRUE(s.requests[2].refused);
  EXPECT_EQ(s.refused, 1);
  EXPECT_EQ(s.cut, 2);
  EXPECT_LT(s.requests[2].end, 0);
}

struct Policy {
  const char* scheduling;
  const char* growth;
};
class AgainstTheSlowEngine : public ::testing::TestWithParam<Policy> {};

TEST_P(AgainstTheSlowEngine, EveryRequest) {
  ServeJob job = real_job("llama-3.1-8b", "1xA100-SXM4-80GB", "vllm");
  job.prefix_caching = false;
  job.engine.scheduling = GetParam().scheduling;
  job.engine.kv_growth = GetParam().growth;
  job.engine.max_num_seqs = 12;
  job.engine.max_batched_tokens = 256;
  const StepCosts costs(job);
  for (const std::uint64_t seed : {1u, 2u, 3u})
    for (const double rate : {0.0, 3.0, 30.0})
      for (const std::int64_t blocks : {80, 150, 1000}) {
        const Workload w = random_workload(seed, 60, rate);
        const std::vector<RequestRecord> slow = serve_slowly(costs, blocks, w);
        const Simulation one = simulate(costs, blocks_of(blocks), w, {.most_steps_together = 1});
        const Simulation many = simulate(costs, blocks_of(blocks), w);
        std::int64_t preemptions = 0;
        for (std::size_t k = 0; k < slow.size(); ++k) {
          const double whole = slow[k].end - slow[k].arrival;
          ASSERT_GT(slow[k].end, 0);
          ASSERT_NEAR(one.requests[k].first_token, slow[k].first_token, 1e3) << k;
          ASSERT_NEAR(one.requests[k].end, slow[k].end, 1e3) << k;
          ASSERT_EQ(one.requests[k].preemptions, slow[k].preemptions) << k;
          // Steps taken together are a little off each; who comes at the very end of one may come one step later.
          ASSERT_NEAR(many.requests[k].end, slow[k].end, 0.005 * whole + 15e6) << k;
          preemptions += slow[k].preemptions;
        }
        const bool paged = std::string(GetParam().growth) == "paged";
        EXPECT_TRUE(preemptions == 0 || (paged && blocks < 1000));
        EXPECT_TRUE(preemptions > 0 || !paged || blocks > 80 || rate == 3.0);
      }
}
INSTANTIATE_TEST_SUITE_P(Policies, AgainstTheSlowEngine,
                         ::testing::Values(Policy{"chunked", "paged"}, Policy{"prefill-first", "paged"},
                                           Policy{"chunked", "reserved"}, Policy{"prefill-first", "reserved"}));

TEST(ServingInvariants, NothingIsLostAndTheCacheNeverOverflows) {
  for (const char* engine : {"vllm", "vllm-v0", "tgi", "lightllm", "sglang", "deepspeed-mii", "llama.cpp"}) {
    for (const int kind : {0, 1, 2, 3}) {
      ServeJob job = real_job("llama-3.1-8b", "4xH100", engine);
      if (kind == 1) job.replicas = 2, job.prefill_replicas = 1;
      if (kind == 2) job.pp = 2, job.engine.preemption = "swap";
      if (kind == 3) job.draft_tokens = 2, job.prefix_caching = true;
      const StepCosts costs(job);
      Workload w = random_workload(7, 200, 40);
      if (kind == 3)
        for (Request& r : w.requests) r.prefixes = static_cast<std::uint32_t>(std::min<std::int64_t>(r.input / 16, 4));
      if (kind == 3) w.prefixes = {1, 2, 3, 4};
      const std::int64_t blocks = 4'000 / job.engine.block_size;
      const Simulation s = simulate(costs, blocks_of(blocks), w);
      std::int64_t prompts = 0;
      for (std::size_t k = 0; k < w.requests.size(); ++k) {
        const RequestRecord& r = s.requests[k];
        ASSERT_FALSE(r.refused);
        ASSERT_GE(r.started, r.arrival) << engine << kind;
        ASSERT_GT(r.first_token, r.started);
        ASSERT_GE(r.end, r.first_token);
        prompts += r.input;
      }
      EXPECT_LE(s.kv_peak, 1) << engine << kind;
      EXPECT_GE(s.prefill_tokens + s.cached_tokens, prompts) << engine << kind;
      EXPECT_TRUE(s.preemptions > 0 || s.prefill_tokens + s.cached_tokens == prompts) << engine << kind;
      EXPECT_LE(s.timeline.size(), 4'000u);
      const Simulation again = simulate(costs, blocks_of(blocks), w);
      for (std::size_t k = 0; k < w.requests.size(); ++k) ASSERT_EQ(s.requests[k].end, again.requests[k].end);
    }
  }
}

TEST(ServingInvariants, SlowerStepsEndLater) {
  const ServeJob job = real_job("llama-3.1-8b", "1xH100", "vllm");
  const Workload w = random_workload(3, 200, 30);
  double before = 0;
  for (const double factor : {0.5, 1.0, 2.0}) {
    StepCosts costs(job);
    costs.scale(factor, factor);
    const ServingFigures f = figures_of(simulate(costs, blocks_of(10'000), w).requests, {});
    EXPECT_GT(f.latency.mean, before);
    before = f.latency.mean;
  }
}

}  // namespace
}  // namespace orrery::test
