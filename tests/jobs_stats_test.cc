// The tables of a datacenter: by hand, and beside a slow engine that sorts everything.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "cluster/job_stats.h"
#include "importers/jobs.h"

namespace orrery {
namespace {

JobTable read(const std::string& text) {
  auto t = import_jobs_bytes(text, "made.csv");
  EXPECT_TRUE(t) << (t ? "" : t.error().line());
  return t ? std::move(*t) : JobTable{};
}

TEST(Spread, QuartilesAndWhiskersByHand) {
  std::vector<std::int64_t> v{7, 1, 3, 100, 5};  // 1 3 5 7 100
  const Spread s = spread_of(v);
  EXPECT_EQ(s.n, 5u);
  EXPECT_DOUBLE_EQ(s.p25, 3);
  EXPECT_DOUBLE_EQ(s.p50, 5);
  EXPECT_DOUBLE_EQ(s.p75, 7);
  EXPECT_DOUBLE_EQ(s.p90, 7 + 0.6 * 93) << "between the fourth and the fifth";
  EXPECT_DOUBLE_EQ(s.low, 1);
  EXPECT_DOUBLE_EQ(s.high, 7) << "100 lies beyond 7 + 1.5 * 4";
  EXPECT_DOUBLE_EQ(s.mean, 23.2);
  std::vector<std::int64_t> none;
  EXPECT_EQ(spread_of(none).n, 0u);
  std::vector<std::int64_t> one{4};
  EXPECT_DOUBLE_EQ(spread_of(one).p99, 4);
}

TEST(JobStats, CountsAndSharesByHand) {
  const JobTable t = read(
      "job_id,user,type,state,gpus,duration,queue,submit_time\n"
      "1,a,Eval,COMPLETED,1,10,0,2024-01-01 00:00:00\n"
      "2,a,Eval,FAILED,2,1,3,2024-01-01 00:00:00\n"
      "3,b,Pretrain,FAILED,8,100,5000,2024-01-01 00:00:01\n"
      "4,b,CPU,COMPLETED,0,7,1,2024-01-01 00:00:03\n"
      "5,c,Other,PENDING,4,,,2024-01-01 00:00:03\n");
  const JobStats s = job_stats(t, DurationKind::file);
  EXPECT_EQ(s.jobs, 5u);
  EXPECT_EQ(s.gpu_jobs, 4u);
  EXPECT_EQ(s.cpu_jobs, 1u);
  EXPECT_EQ(s.without_duration, 1u);
  EXPECT_DOUBLE_EQ(gpu_seconds(s.gpu_time), 10 + 2 + 800);
  ASSERT_EQ(s.types.size(), 3u);
  EXPECT_EQ(s.types[0].name, "Pretrain");
  EXPECT_DOUBLE_EQ(gpu_seconds(s.types[1].time), 12);
  EXPECT_EQ(s.by_type[0].name, "ALL");
  EXPECT_EQ(s.by_type[0].duration_counts[0], 1u) << "1 s";
  EXPECT_EQ(s.by_type[0].duration_counts[3], 1u) << "8 s";
  EXPECT_EQ(s.by_type[0].duration_counts[4], 2u) << "16 s";
  EXPECT_EQ(s.by_type[0].duration_counts[7], 3u);
  EXPECT_EQ(s.by_type[0].queue_counts[0], 1u);
  EXPECT_EQ(s.by_type[0].queue_counts[2], 2u);
  EXPECT_EQ(s.by_type[0].queue_counts[12], 2u);
  EXPECT_EQ(s.by_type[0].queue_counts[13], 3u);
  EXPECT_EQ(s.by_gpus[2].count, 1u);
  EXPECT_DOUBLE_EQ(gpu_seconds(s.by_gpus[8].time), 800);
  EXPECT_DOUBLE_EQ(s.same_second_pct, 80) << "0, 0 and 3, 3";
  EXPECT_DOUBLE_EQ(s.cpu_duration_s.p50, 7);
  ASSERT_EQ(s.sizes.size(), 4u);
  EXPECT_EQ(s.sizes[3].from, 5);
  EXPECT_EQ(s.sizes[3].over_hour, 1u);
}

TEST(JobStats, NamesOfJobsAsTypes) {
  std::string text = "type,gpus,duration\n";
  for (int i = 0; i < 1500; ++i) text += "job" + std::to_string(i) + ",1," + std::to_string(i + 1) + "\n";
  const JobStats s = job_stats(read(text), DurationKind::file);
  EXPECT_EQ(s.types.size(), 1500u);
  EXPECT_EQ(s.types[0].name, "job1499");
  EXPECT_EQ(s.by_type.size(), 1 + kMostTypes) << "ALL, and those with most GPU time";
  EXPECT_EQ(s.by_type[1].name, "job1499");
  EXPECT_EQ(s.by_type[0].duration_s.n, 1500u);
}

TEST(JobStats, PartsOfAGpu) {
  const JobTable t = read("gpus,duration\n0.5,10\n0.25,10\n1.5,10\n");
  const JobStats s = job_stats(t, DurationKind::file);
  EXPECT_EQ(s.gpu_jobs, 3u);
  EXPECT_DOUBLE_EQ(gpu_seconds(s.gpu_time), 22.5);
  EXPECT_EQ(s.by_gpus[1].count, 2u);
  EXPECT_EQ(s.by_gpus[2].count, 1u);
  EXPECT_EQ(s.sizes[0].to, 0) << "under one GPU";
  EXPECT_EQ(s.sizes[0].count, 2u);
}

double sorted_quantile(std::vector<double> v, double p) {
  std::sort(v.begin(), v.end());
  const double x = p * static_cast<double>(v.size() - 1);
  const auto i = static_cast<std::size_t>(x);
  const std::size_t j = std::min(i + 1, v.size() - 1);
  return v[i] + (v[j] - v[i]) * (x - static_cast<double>(i));
}

// Random tables; every count and quantile as sorting and counting give it.
TEST(JobStats, AsTheSlowEngineHasThem) {
  std::mt19937 random(11);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 20; ++round) {
    struct Row {
      std::string type, state, user;
      int gpus;
      double duration, queue;
    };
    std::vector<Row> rows;
    std::string text = "job_id,type,state,user,gpus,duration,queue\n";
    const int n = 1 + below(400);
    for (int i = 0; i < n; ++i) {
      Row r{"T" + std::to_string(below(4)),
            below(2) ? "COMPLETED" : "FAILED",
            "u" + std::to_string(below(30)),
            below(20),
            static_cast<double>(below(1 << (1 + below(16)))),
            below(3) == 0 ? 0.5 : below(5000)};
      text += std::to_string(i) + "," + r.type + "," + r.state + "," + r.user + "," + std::to_string(r.gpus) + "," +
              std::to_string(r.duration) + "," + std::to_string(r.queue) + "\n";
      rows.push_back(r);
    }
    const JobStats s = job_stats(read(text), DurationKind::file);
    std::map<std::string, std::vector<Row>> types;
    double time = 0;
    for (const Row& r : rows)
      if (r.gpus > 0) {
        types[r.type].push_back(r);
        types["ALL"].push_back(r);
        time += r.gpus * r.duration;
      }
    EXPECT_DOUBLE_EQ(gpu_seconds(s.gpu_time), time);
    if (types.empty()) continue;
    ASSERT_EQ(s.by_type.size(), types.size());
    for (const TypeStats& t : s.by_type) {
      const std::vector<Row>& slow = types[t.name];
      std::vector<double> durations, queues, gpus;
      for (const Row& r : slow) durations.push_back(r.duration), queues.push_back(r.queue), gpus.push_back(r.gpus);
      for (std::size_t k = 0; k < kDurationSteps; ++k)
        EXPECT_EQ(t.duration_counts[k],
                  static_cast<std::uint64_t>(std::count_if(durations.begin(), durations.end(),
                                                           [&](double d) { return d <= double(1 << k); })));
      for (std::size_t k = 0; k < kQueueSteps; ++k)
        EXPECT_EQ(t.queue_counts[k], static_cast<std::uint64_t>(std::count_if(
                                         queues.begin(), queues.end(), [&](double d) { return d <= double(1 << k); })));
      EXPECT_NEAR(t.duration_s.p90, sorted_quantile(durations, .9), 1e-6);
      EXPECT_NEAR(t.duration_s.p99, sorted_quantile(durations, .99), 1e-6);
      EXPECT_NEAR(t.queue_s.p50, sorted_quantile(queues, .5), 1e-6);
      EXPECT_NEAR(t.gpus.p25, sorted_quantile(gpus, .25), 1e-6);
      EXPECT_NEAR(t.gpus.p5, sorted_quantile(gpus, .05), 1e-6);
    }
  }
}

}  // namespace
}  // namespace orrery
