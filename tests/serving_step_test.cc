// What a step of an engine takes, its cache, its figures.
#include <cmath>

#include "replay/replay.h"
#include "serving/calibrate.h"
#include "serving/kv_cache.h"
#include "serving/reduce_law.h"
#include "serving_helpers.h"

namespace orrery::test {
namespace {

StepShape decode_of(std::int64_t n, double context) {
  StepShape s;
  s.decode_sequences = n, s.decode_context = context * static_cast<double>(n);
  return s;
}
StepShape prompt_of(std::int64_t n, std::int64_t tokens) {
  StepShape s;
  s.prefill_sequences = s.finishing = n, s.prefill_tokens = n * tokens;
  s.prefill_pairs = static_cast<double>(n * tokens * (tokens + 1)) / 2;
  return s;
}

double replayed_ns(const std::vector<Operation>& operations) {
  const ExecGraph g = StepCosts::graph_of(operations);
  const auto ok = check(g);
  EXPECT_TRUE(ok) << (ok ? "" : ok.error().line());
  Replay r;
  replay(g, r);
  Ns end = 0;
  for (std::uint32_t k = 0; k < g.size(); ++k)
    if (g.lane[k] == 1) end = std::max(end, r.end[k]);
  return static_cast<double>(end);
}

TEST(ServingSteps, TheirTimeIsThatOfTheReplayedGraph) {
  struct Case {
    const char* model;
    const char* engine;
    std::int64_t tp, pp, drafts;
    WeightFormat weights;
    bool graphs;
  };
  for (const Case& c : {Case{"llama-3.1-8b", "vllm", 1, 1, 0, WeightFormat::same, true},
                        Case{"llama-3.1-8b", "vllm-v0", 2, 1, 0, WeightFormat::int4, false},
                        Case{"mixtral-8x7b", "llama.cpp", 1, 2, 0, WeightFormat::same, true},
                        Case{"mixtral-8x7b", "tgi", 4, 1, 0, WeightFormat::fp8, true},
                        Case{"gemma-2-9b", "vllm", 1, 1, 3, WeightFormat::same, true},
                        Case{"deepseek-v2", "sglang", 8, 1, 0, WeightFormat::same, false},
                        Case{"opt-6.7b", "deepspeed-mii", 1, 1, 0, WeightFormat::int8, true}}) {
    ServeJob job = real_job(c.model, "8xH100", c.engine);
    job.tp = c.tp, job.pp = c.pp, job.draft_tokens = c.drafts, job.draft_share = 0;
    job.weights = c.weights, job.cuda_graphs = c.graphs;
    const StepCosts costs(job);
    for (StepShape s : {decode_of(1, 100), decode_of(40, 700), prompt_of(1, 5), prompt_of(3, 333)}) {
      for (const bool mixed : {false, true}) {
        if (mixed) s.decode_sequences += 7, s.decode_context += 5'000;
        const StepTime t = costs.step(s);
        ASSERT_EQ(t.stage_ns.size(), static_cast<std::size_t>(c.pp));
        for (std::int64_t stage = 0; stage < c.pp; ++stage) {
          const double replayed = replayed_ns(costs.operations(s, stage));
          EXPECT_NEAR(t.stage_ns[static_cast<std::size_t>(stage)], replayed, 1e-4 * replayed + 1'000)
              << c.model << " " << c.engine << " stage " << stage;
        }
      }
    }
  }
}

TEST(ServingSteps, OneSequenceReadsTheWeights) {
  const ServeJob job = real_job("llama-2-7b", "1xA100-SXM4-80GB", "gpt-fast");
  const StepTime t = StepCosts(job).step(decode_of(1, 100));
  const double weights = 2 * (parameters(job.model) - 32'000.0 * 4'096);  // one row of the embedding alone
  EXPECT_GT(t.stage_ns[0], weights / 2'039);
  EXPECT_LT(t.stage_ns[0], 1.6 * weights / 2'039);
}

TEST(ServingSteps, WeightsOfFewerBitsAreReadQuicker) {
  ServeJob job = real_job("llama-2-70b", "1xH200", "vllm");
  const auto ns = [&](WeightFormat f) {
    job.weights = f;
    return StepCosts(job).step(decode_of(1, 100)).stage_ns[0];
  };
  EXPECT_LT(ns(WeightFormat::int8), 0.65 * ns(WeightFormat::same));
  EXPECT_LT(ns(WeightFormat::int4), 0.75 * ns(WeightFormat::int8));
  EXPECT_LT(ns(WeightFormat::fp8), 0.75 * ns(WeightFormat::same));
}

TEST(ServingSteps, TheCacheIsReadInItsOwnBytes) {
  ServeJob job = real_job("llama-2-7b", "1xH100", "vllm");
  const double wide = StepCosts(job).step(decode_of(64, 3'000)).stage_ns[0];
  EXPECT_DOUBLE_EQ(kv_bytes_per_token(job), 2 * 32 * 32 * 128 * 2);
  job.kv_bytes = 1;
  EXPECT_DOUBLE_EQ(kv_bytes_per_token(job), 2 * 32 * 32 * 128);
  EXPECT_LT(StepCosts(job).step(decode_of(64, 3'000)).stage_ns[0], 0.7 * wide);
}

TEST(ServingSteps, ASlidingWindowLimitsWhatIsRead) {
  ServeJob job = real_job("mistral-7b", "1xH100", "vllm");
  job.model.sliding_window = 1'024, job.model.full_attention_every = 0;
  const StepCosts costs(job);
  EXPECT_NEAR(costs.step(decode_of(64, 2'000)).stage_ns[0], costs.step(decode_of(64, 20'000)).stage_ns[0], 1);
}

TEST(ServingSteps, FewTokensTouchFewExperts) {
  ServeJob job = real_job("mixtral-8x7b", "1xB200", "vllm");
  const StepCosts costs(job);
  const auto experts = [&](const StepCosts& c, std::int64_t n) {
    return c.parts(decode_of(n, 10)).part_ns[static_cast<std::size_t>(Part::experts)];
  };
  const double one = experts(costs, 1), all = experts(costs, 64);
  EXPECT_NEAR(all / one, 4, 0.8);  // two of eight
  StepCosts alike(job);
  alike.set_alike(true);
  EXPECT_LT(experts(alike, 64), 1.6 * one);
}

TEST(ServingSteps, HostWorkStandsInTheWayOrBeside) {
  ServeJob job = real_job("llama-3.1-8b", "1xH100", "vllm-v0");
  const StepTime t = StepCosts(job).step(decode_of(50, 200));
  const double host = 1e3 * (1'180 + 50 * 100) * job.platform.host.operator_us / 14.5;
  EXPECT_NEAR(t.before_ns + t.after_ns, host, 1);
  job.engine.overlap_host = true;
  job.engine.exposed_us = 0;
  const StepTime beside = StepCosts(job).step(decode_of(50, 200));
  EXPECT_NEAR(beside.total(), std::max(host, beside.stage_ns[0]), 1);
}

TEST(ServingSteps, LaunchesWithoutGraphsBindSmallSteps) {
  ServeJob job = real_job("llama-3.2-1b", "1xH100", "vllm");
  const double captured = StepCosts(job).step(decode_of(1, 100)).stage_ns[0];
  job.cuda_graphs = false;
  EXPECT_GT(StepCosts(job).step(decode_of(1, 100)).stage_ns[0], 1.5 * captured);
}

TEST(ServingReduce, SmallMessagesAreLatencyAndEnginesOwnKernelsShortenIt) {
  const auto p = *platform_named_or_read("dgx-h100");
  const NetworkModel net = network_of(p, 8);
  const Placement eight{8, 8};
  const double nccl = all_reduce_ns(p, net, 8'192, eight, false), own = all_reduce_ns(p, net, 8'192, eight, true);
  EXPECT_NEAR(nccl, 16'000, 2'500);  // AIConfigurator: 16.0 us
  EXPECT_NEAR(own, 5'200, 1'000);    // 5.26 us
  EXPECT_NEAR(all_reduce_ns(p, net, 8 << 20, eight, true), 61'400, 12'000);
  EXPECT_EQ(all_reduce_ns(p, net, 8'192, {1, 1}, true), 0);
  const auto cards = *platform_named_or_read("rtx4090-8x");
  const NetworkModel host = network_of(cards, 8);
  EXPECT_EQ(all_reduce_ns(cards, host, 8'192, eight, true), all_reduce_ns(cards, host, 8'192, eight, false));
  double before = 0;
  for (double bytes = 256; bytes < 1e9; bytes *= 2) {
    const double ns = all_reduce_ns(p, net, bytes, eight, true);
    EXPECT_GE(ns, before);
    before = ns;
  }
}

TEST(ServingMemory, WhatTheWeightsLeaveIsTheCache) {
  ServeJob job = real_job("llama-3.1-8b", "rtx4090-1x", "vllm");
  const ServeMemory m = memory_of(job);
  EXPECT_NEAR(m.weights, 14.96, 0.05);
  EXPECT_NEAR(static_cast<double>(m.kv_blocks * 16), 41'408,
              0.1 * 41'408);  // a published run (LLMServingSim, RTX 4090)
  EXPECT_NEAR(m.weights + m.activations + m.reserved + m.kv_cache, 0.9 * m.capacity, 0.01);
  job.tp = 2;
  EXPECT_GT(memory_of(job).kv_blocks, 3 * m.kv_blocks);
  job.kv_tokens = 1'000;
  EXPECT_EQ(memory_of(job).kv_blocks, 63);
  EXPECT_FALSE(memory_of(real_job("llama-2-70b", "rtx4090-1x", "vllm")).fits);
}

TEST(ServingMemory, ReplicasThatShareExpertsHoldAPartEach) {
  ServeJob job = real_job("qwen3-30b-a3b", "2xRTX-PRO-6000", "vllm");
  job.replicas = 2;
  const double whole = memory_of(job).weights;
  job.ep = 2;
  EXPECT_LT(memory_of(job).weights, 0.56 * whole);
}

TEST(KvCaches, TheLeastRecentlyUsedPrefixGoesFirst) {
  KvCache c(4, 1);
  const std::uint64_t a[] = {1, 2}, b[] = {7};
  c.take(3);
  c.keep(a);
  c.keep(b);
  EXPECT_EQ(c.used(), 3);
  c.drop(a);
  c.drop(b);
  EXPECT_EQ(c.used(), 0);
  EXPECT_EQ(c.available(), 4);
  EXPECT_EQ(c.match(a), 2u);
  c.take(2);  // one is free, one evicted: the end of the first prefix
  EXPECT_EQ(c.match(a), 1u);
  EXPECT_EQ(c.match(b), 1u);
  c.use(std::span(a).first(1));
  EXPECT_EQ(c.used(), 3);
  EXPECT_EQ(c.available(), 1);
  c.take(1);
  EXPECT_EQ(c.match(a), 1u);  // in use
  EXPECT_EQ(c.match(b), 0u);
}

TEST(ServingFiguresOf, ByHand) {
  std::vector<RequestRecord> r(3);
  r[0] = {.arrival = 0, .first_token = 100 * kMs, .end = 500 * kMs, .input = 10, .output = 5};
  r[1] = {.arrival = 100 * kMs, .first_token = 400 * kMs, .end = 400 * kMs, .input = 20, .output = 1};
  r[2] = {.arrival = 200 * kMs, .input = 7, .output = 7};  // failed
  const ServingFigures f = figures_of(r, {});
  EXPECT_EQ(f.completed, 2);
  EXPECT_EQ(f.failed, 1);
  EXPECT_DOUBLE_EQ(f.seconds, 0.5);
  EXPECT_DOUBLE_EQ(f.requests_per_s, 4);
  EXPECT_DOUBLE_EQ(f.output_tokens_per_s, 12);
  EXPECT_DOUBLE_EQ(f.tokens_per_s, 72);
  EXPECT_DOUBLE_EQ(f.latency.mean, 400);
  EXPECT_DOUBLE_EQ(f.latency.p50, 400);
  EXPECT_DOUBLE_EQ(f.ttft.max, 300);
  EXPECT_DOUBLE_EQ(f.tpot.mean, 100);
  EXPECT_DOUBLE_EQ(f.tpot.count, 1);
  ASSERT_FALSE(f.cdf.empty());
  EXPECT_DOUBLE_EQ(f.cdf.back().first, 500);
  EXPECT_DOUBLE_EQ(f.cdf.back().second, 1);
  EXPECT_DOUBLE_EQ(share_within(r, {.ttft_ms = 150}), 1.0 / 3);
  EXPECT_DOUBLE_EQ(share_within(r, {.tpot_ms = 100}), 1.0 / 2);  // the second has no such time
  EXPECT_TRUE(std::isnan(share_within({r[1]}, {.tpot_ms = 100})));
  EXPECT_DOUBLE_EQ(share_within(r, {.latency_ms = 350}), 1.0 / 3);
}

TEST(ServingFiguresOf, HistogramsKeepQuantilesWithinAPercent) {
  LogHistogram h;
  std::vector<double> all;
  for (int k = 1; k <= 10'000; ++k) {
    h.add(1e4 * k, 1);
    all.push_back(1e-2 * k);
  }
  const Quantiles exact = quantiles_of(all), of = quantiles_of(h);
  EXPECT_NEAR(of.p50, exact.p50, 0.01 * exact.p50);
  EXPECT_NEAR(of.p99, exact.p99, 0.01 * exact.p99);
  EXPECT_DOUBLE_EQ(of.max, exact.max);
  EXPECT_NEAR(of.mean, exact.mean, 1e-9);
}

TEST(ServingRate, TheHighestThatKeepsTheLevel) {
  const ServeJob job = clockwork();  // 10 ms a step, 64 at a time: some 6,400 tokens a second
  const StepCosts costs(job);
  WorkloadAsked a;
  a.requests = 800, a.input.mean = 8, a.output.mean = 10;
  const Workload w = made_workload(a);
  const RateFound found = highest_rate(costs, blocks_of(10'000), w, 1, 1, {}, {.latency_ms = 200, .share = 0.9});
  EXPECT_TRUE(found.bounded);
  EXPECT_GT(found.rate, 300);
  EXPECT_LT(found.rate, 640);  // all at once
  EXPECT_GE(found.share, 0.9);
  EXPECT_EQ(highest_rate(costs, blocks_of(10'000), w, 1, 1, {}, {.latency_ms = 50}).rate, 0);
  EXPECT_FALSE(highest_rate(costs, blocks_of(10'000), w, 1, 1, {}, {.latency_ms = 1e6}).bounded);
}

// What a product of few rows needs is its weights: half of them, and a short kernel.
TEST(ServingSteps, Fp8DecodesQuickerThanBf16) {
  for (const char* platform : {"dgx-h100", "mi300x-8x"}) {
    const auto step = [&](WeightFormat weights, std::int64_t rows) {
      ServeJob job = real_job("llama-3.1-70b", platform, "vllm");
      job.tp = 8;
      job.weights = weights;
      StepShape s;
      s.decode_sequences = rows, s.decode_context = 600.0 * static_cast<double>(rows);
      return StepCosts(job).step(s).total();
    };
    for (const std::int64_t rows : {1, 8, 64}) {
      const double wide = step(WeightFormat::same, rows), narrow = step(WeightFormat::fp8, rows);
      EXPECT_LT(narrow, wide) << platform << rows;
      EXPECT_GE(narrow, wide / 2) << platform << rows;
    }
  }
}

// 100 requests are over before a queue shows at any rate: what the engine does at its limit is still the most.
TEST(ServingRate, ShortRunsTellNoRateAboveTheirCapacity) {
  const ServeJob job = clockwork();
  const StepCosts costs(job);
  WorkloadAsked a;
  a.requests = 100, a.input.mean = 8, a.output.mean = 10;
  Workload w = made_workload(a);
  const Simulation at_once = simulate(costs, blocks_of(10'000), w);
  const RateFound found = highest_rate(costs, blocks_of(10'000), w, 1, 1, {}, {.latency_ms = 190, .share = 0.95});
  EXPECT_LE(found.rate, figures_of(at_once.requests, at_once.itl).requests_per_s);
  EXPECT_GT(found.rate, 0);
}

TEST(ServingCalibration, AServerOfKnownSpeedIsFoundAgain) {
  ServeJob job = real_job("llama-3.1-8b", "1xH100", "vllm-v0");
  StepCosts truth(job);
  truth.scale(1.7, 1.7);
  WorkloadAsked a;
  a.requests = 100, a.rate = 4, a.output.mean = 100;
  MeasuredRun run;
  run.requests = simulate(truth, memory_of(job), made_workload(a)).requests;
  for (RequestRecord& r : run.requests) r.first_token += 3 * kMs, r.end += 3 * kMs;  // a slower way to the server
  StepCosts costs(job);
  const double request_us = job.engine.request_us;
  const auto facts = calibrate_service(run, job, costs, {});
  ASSERT_TRUE(facts) << facts.error().line();
  EXPECT_NEAR((*facts)[0].after, 1.7, 0.03);
  EXPECT_NEAR(job.engine.request_us, request_us + 3'000, 1'500);  // steps take 20 ms
}

TEST(ServingCalibration, ResultsThatAreNoneAreRefused) {
  for (const char* text : {"", "{}", "[]", "{\"requests\": 3}", "{\"requests\": [{}]}", "{\"requests\": []}",
                           "{\"requests\": [{\"s\": 0, \"input_tokens\": 3, \"output_tokens\": 2}]}",
                           "{\"requests\": [{\"s\": -1, \"input_tokens\": 3, \"output_tokens\": 2}]}"}) {
    const auto run = parse_measured_run(text, "f");
    ASSERT_FALSE(run) << text;
    EXPECT_EQ(run.error().line().find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace orrery::test
