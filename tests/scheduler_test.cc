// The simulation of queues: by hand, beside a slow engine that looks at every second, and what must hold for any queue.
#include "cluster/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "importers/jobs.h"

namespace orrery {
namespace {

using Order = SimPolicy::Order;

SimJob job(std::int64_t submit_s, std::int64_t run_s, std::int64_t gpus, std::int64_t limit_s = 0,
           bool favoured = false) {
  return {submit_s * 1000, run_s * 1000, limit_s * 1000, gpus * 1000, favoured};
}

SimPolicy policy(Order order, std::int64_t gpus, std::int64_t reserved = 0) {
  SimPolicy p;
  p.order = order;
  p.gpu_milli = gpus * 1000;
  p.reserved_milli = reserved * 1000;
  return p;
}

std::vector<std::int64_t> starts(const std::vector<SimJob>& jobs, const SimPolicy& p) {
  std::vector<std::int64_t> s = simulate(jobs, p).first_start_ms;
  for (std::int64_t& x : s)
    if (x != SimResult::kNever) x /= 1000;
  return s;
}

using Times = std::vector<std::int64_t>;

// Four GPUs. A: 2 for 10 s. B wants 4: waits for A. C: 2 for 5 s. D: 2 for 20 s.
TEST(Scheduler, FifoEasyAndConservativeByHand) {
  const std::vector<SimJob> jobs{job(0, 10, 2), job(1, 5, 4), job(2, 5, 2), job(3, 20, 2)};
  EXPECT_EQ(starts(jobs, policy(Order::fifo, 4)), (Times{0, 10, 15, 15}));
  // C ends at 7, before A does; D would hold up B
  EXPECT_EQ(starts(jobs, policy(Order::easy, 4)), (Times{0, 10, 2, 15}));
  EXPECT_EQ(starts(jobs, policy(Order::conservative, 4)), (Times{0, 10, 2, 15}));
}

// EASY delays whoever has no reservation; conservative does not. Four GPUs; A: 3 for 10 s. B wants 2, C wants 4 for 5
// s, D one GPU for 30 s.
TEST(Scheduler, OnlyTheFirstIsSafeWithEasy) {
  const std::vector<SimJob> jobs{job(0, 10, 3), job(1, 10, 2), job(1, 5, 4), job(2, 30, 1)};
  // B at 10, beside it room for D: D goes ahead at once and C waits for it until 32
  EXPECT_EQ(starts(jobs, policy(Order::easy, 4)), (Times{0, 10, 32, 2}));
  // C has 20 to 25: D would run into it
  EXPECT_EQ(starts(jobs, policy(Order::conservative, 4)), (Times{0, 10, 20, 25}));
}

TEST(Scheduler, LimitsAreWhatIsPlannedBy) {
  // A says 100 s and runs 10: C, 50 s, goes ahead of B, who then waits for it though A is gone
  const std::vector<SimJob> jobs{job(0, 10, 2, 100), job(1, 5, 4, 10), job(2, 40, 2, 50)};
  EXPECT_EQ(starts(jobs, policy(Order::easy, 4)), (Times{0, 42, 2}));
}

TEST(Scheduler, ReservedGpusAreKeptFree) {
  // two of four GPUs are for favoured jobs
  const std::vector<SimJob> jobs{job(0, 10, 2), job(0, 10, 2), job(1, 10, 2, 0, true), job(2, 10, 4, 0, true),
                                 job(3, 1, 3)};
  const SimResult r = simulate(jobs, policy(Order::easy, 4, 2));
  EXPECT_EQ(r.too_large, 1u) << "three GPUs are more than the others may have";
  EXPECT_EQ(r.first_start_ms[0], 0);
  EXPECT_EQ(r.first_start_ms[2], 1'000) << "from the reservation, at once";
  EXPECT_EQ(r.first_start_ms[3], 11'000) << "all four, once the first and the favoured one are gone";
  EXPECT_EQ(r.first_start_ms[1], 21'000) << "would have held it up";
  EXPECT_EQ(r.first_start_ms[4], SimResult::kNever);
}

TEST(Scheduler, PreemptionTakesTheLatestAndCheckpointsKeep) {
  SimPolicy p = policy(Order::fifo, 4, 2);
  p.preempt = true;
  const std::vector<SimJob> jobs{job(0, 20, 2), job(5, 20, 2), job(12, 10, 2, 0, true)};
  const SimResult r = simulate(jobs, p);
  EXPECT_EQ(r.first_start_ms, (Times{0, 5'000, 12'000}));
  EXPECT_EQ(r.stops, (std::vector<std::uint32_t>{0, 1, 0})) << "the one that started last";
  EXPECT_EQ(r.end_ms, (Times{20'000, 40'000, 22'000})) << "again from its beginning at 20";
  EXPECT_DOUBLE_EQ(r.lost_ms, 2 * 7000.0);
  p.checkpoint_ms = 5'000;
  const SimResult kept = simulate(jobs, p);
  EXPECT_EQ(kept.end_ms[1], 35'000) << "five of seven seconds are kept";
  EXPECT_DOUBLE_EQ(kept.lost_ms, 2 * 2000.0);
}

// ---- the slow engine: every second, every GPU of a plan counted second by second

struct Slow {
  std::vector<SimJob> jobs;
  SimPolicy policy;
  std::vector<std::int64_t> start;

  explicit Slow(const std::vector<SimJob>& j, const SimPolicy& p) : jobs(j), policy(p), start(j.size(), -1) {
    const std::int64_t total = p.gpu_milli / 1000, reserved = p.reserved_milli / 1000;
    const auto favoured = [&](std::size_t i) { return reserved > 0 && jobs[i].favoured; };
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < jobs.size(); ++i) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      if (favoured(a) != favoured(b)) return favoured(a);
      return jobs[a].submit_ms < jobs[b].submit_ms;
    });
    constexpr std::int64_t kEnd = 900;
    for (std::int64_t now = 0; now < kEnd; ++now) {
      // used[t - now] and of it by others, as planned
      std::vector<std::int64_t> used(kEnd * 2), others(kEnd * 2);
      const auto take = [&](std::size_t i, std::int64_t from, std::int64_t length) {
        for (std::int64_t t = from; t < std::min<std::int64_t>(from + length, kEnd * 2 + now); ++t) {
          used[static_cast<std::size_t>(t - now)] += jobs[i].gpu_milli / 1000;
          if (!favoured(i)) others[static_cast<std::size_t>(t - now)] += jobs[i].gpu_milli / 1000;
        }
      };
      const auto expected = [&](std::size_t i) {
        return jobs[i].limit_ms > 0 ? jobs[i].limit_ms / 1000 : std::max<std::int64_t>(1, jobs[i].run_ms / 1000);
      };
      const auto fits = [&](std::size_t i, std::int64_t from) {
        for (std::int64_t t = from; t < std::min<std::int64_t>(from + expected(i), kEnd * 2 + now); ++t) {
          const auto k = static_cast<std::size_t>(t - now);
          if (used[k] + jobs[i].gpu_milli / 1000 > total) return false;
          if (!favoured(i) && others[k] + jobs[i].gpu_milli / 1000 > total - reserved) return false;
        }
        return true;
      };
      for (const std::size_t i : order)
        if (start[i] >= 0 && now < start[i] + jobs[i].run_ms / 1000)
          take(i, now, std::max<std::int64_t>(1, start[i] + expected(i) - now));
      bool blocked[2] = {false, false};
      for (const std::size_t i : order) {
        const std::int64_t most = favoured(i) ? total : total - reserved;
        if (start[i] >= 0 || jobs[i].submit_ms / 1000 > now || jobs[i].gpu_milli / 1000 > most) continue;
        bool& held = blocked[favoured(i) ? 0 : 1];
        if (held && policy.order == Order::fifo) continue;
        if (fits(i, now)) {
          start[i] = now;
          take(i, now, expected(i));
          continue;
        }
        if (policy.order != Order::fifo && (!held || policy.order == Order::conservative)) {
          std::int64_t at = now + 1;
          while (!fits(i, at)) ++at;
          take(i, at, expected(i));
        }
        held = true;
      }
    }
  }
};

// No more GPUs than there are at any time; everybody runs once; work is what was asked for.
void expect_sound(const std::vector<SimJob>& jobs, const SimPolicy& p, const SimResult& r) {
  std::map<std::int64_t, std::int64_t> change;
  double work = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (r.end_ms[i] == SimResult::kNever) continue;
    EXPECT_GE(r.first_start_ms[i], jobs[i].submit_ms);
    EXPECT_GE(r.end_ms[i], r.first_start_ms[i] + jobs[i].run_ms);
    work += static_cast<double>(jobs[i].gpu_milli) / 1000 * static_cast<double>(jobs[i].run_ms);
    if (r.stops[i] != 0) continue;
    EXPECT_EQ(r.end_ms[i], r.first_start_ms[i] + jobs[i].run_ms);
    change[r.first_start_ms[i]] += jobs[i].gpu_milli;
    change[r.end_ms[i]] -= jobs[i].gpu_milli;
  }
  EXPECT_DOUBLE_EQ(r.work_ms, work);
  std::int64_t used = 0;
  for (const auto& [at, by] : change) {
    used += by;
    EXPECT_LE(used, p.gpu_milli) << at;
  }
}

TEST(Scheduler, AsTheSlowEngineStartsThem) {
  std::mt19937 random(5);
  const auto below = [&](unsigned n) { return static_cast<std::int64_t>(random() % n); };
  int compared = 0;
  for (int round = 0; round < 60; ++round) {
    std::vector<SimJob> jobs;
    const std::int64_t n = 3 + below(14);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t run = 1 + below(25);
      jobs.push_back(job(below(40), run, 1 + below(8), below(2) ? run + below(20) : 0, below(4) == 0));
    }
    for (const Order order : {Order::fifo, Order::easy, Order::conservative})
      for (const std::int64_t reserved : {0, 3}) {
        const SimPolicy p = policy(order, 8, reserved);
        const Slow slow(jobs, p);
        EXPECT_EQ(starts(jobs, p), slow.start)
            << "round " << round << " order " << static_cast<int>(order) << " reserved " << reserved;
        expect_sound(jobs, p, simulate(jobs, p));
        compared += static_cast<int>(n);
      }
  }
  EXPECT_GT(compared, 2000);
}

// A plan that is kept from event to event is the one that would be made anew: two classes of which one has no jobs
// plan anew at each.
TEST(Scheduler, AKeptPlanIsTheOneMadeAnew) {
  std::mt19937 random(11);
  const auto below = [&](unsigned n) { return static_cast<std::int64_t>(random() % n); };
  std::size_t waited = 0;
  for (int round = 0; round < 120; ++round) {
    std::vector<SimJob> jobs;
    const bool limits = round % 3 == 1, short_limits = round % 3 == 2;
    for (std::int64_t i = 0; i < 150; ++i) {
      const std::int64_t run = below(12) == 0 ? 0 : 1 + below(60);
      const std::int64_t limit = limits && below(4) == 0 ? run + below(40) : short_limits ? run / 2 : 0;
      jobs.push_back(job(below(500), run, 1 + below(8), limit));
    }
    SimPolicy kept = policy(Order::conservative, 10);
    kept.depth = static_cast<std::size_t>(round % 4 == 0 ? 1 : round % 4 == 1 ? 7 : 1000);
    SimPolicy anew = kept;
    anew.reserved_milli = 1;
    anew.preempt = true;
    const SimResult a = simulate(jobs, kept), b = simulate(jobs, anew);
    EXPECT_EQ(a.first_start_ms, b.first_start_ms) << "round " << round;
    EXPECT_EQ(b.preemptions, 0u);
    expect_sound(jobs, kept, a);
    for (std::size_t i = 0; i < jobs.size(); ++i) waited += a.first_start_ms[i] > jobs[i].submit_ms;
  }
  EXPECT_GT(waited, 5000u);
}

TEST(Scheduler, PreemptionIsSound) {
  std::mt19937 random(9);
  const auto below = [&](unsigned n) { return static_cast<std::int64_t>(random() % n); };
  std::uint64_t stops = 0;
  for (int round = 0; round < 100; ++round) {
    std::vector<SimJob> jobs;
    for (std::int64_t i = 0; i < 60; ++i)
      jobs.push_back(job(below(200), 1 + below(60), 1 + below(8), 0, below(3) == 0));
    SimPolicy p = policy(Order::easy, 12, 6);
    p.preempt = true;
    p.checkpoint_ms = below(2) ? 0 : 7'000;
    const SimResult r = simulate(jobs, p);
    expect_sound(jobs, p, r);
    stops += r.preemptions;
    EXPECT_EQ(r.too_large, 0u);
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      EXPECT_NE(r.end_ms[i], SimResult::kNever);
      EXPECT_TRUE(!jobs[i].favoured || r.stops[i] == 0);
    }
  }
  EXPECT_GT(stops, 50u);
}

TEST(Scheduler, MoreGpusThanAskedForMeansNoWaiting) {
  std::mt19937 random(3);
  std::vector<SimJob> jobs;
  std::int64_t all = 0;
  for (int i = 0; i < 200; ++i) {
    jobs.push_back(job(static_cast<std::int64_t>(random() % 100), 1 + static_cast<std::int64_t>(random() % 50),
                       1 + static_cast<std::int64_t>(random() % 8)));
    all += jobs.back().gpu_milli / 1000;
  }
  for (const Order order : {Order::fifo, Order::easy, Order::conservative}) {
    const SimResult r = simulate(jobs, policy(order, all));
    for (std::size_t i = 0; i < jobs.size(); ++i) EXPECT_EQ(r.first_start_ms[i], jobs[i].submit_ms);
  }
}

TEST(Scheduler, QuestionsAsPeopleWriteThem) {
  const auto q =
      read_sim_question("gpus=2048,policy=conservative,reserve=Pre:train:1024,preempt=on,checkpoint=1800,depth=50");
  ASSERT_TRUE(q);
  EXPECT_EQ(q->policy.gpu_milli, 2'048'000);
  EXPECT_EQ(q->favoured_type, "Pre:train");
  EXPECT_EQ(q->policy.reserved_milli, 1'024'000);
  EXPECT_EQ(q->policy.checkpoint_ms, 1'800'000);
  for (const char* bad : {"", "policy=easy", "gpus=0", "gpus=8,policy=lifo", "gpus=8,reserve=x", "gpus=8,reserve=x:9",
                          "gpus=8,preempt=on", "gpus=8,colour=red", "gpus"})
    EXPECT_FALSE(read_sim_question(bad)) << bad;
}

// Sixteen jobs as a Slurm 22.05 of four nodes with eight GPUs each ran them (sched/backfill, whole nodes for the first
// twelve); times are seconds after the first submission. Slurm looks every two seconds and stops with some delay.
TEST(Scheduler, AsSlurmRanThem) {
  struct Recorded {
    std::int64_t submit, start, run, gpus, limit;
  };
  const std::vector<Recorded> recorded{
      {0, 0, 50, 16, 300},  {0, 118, 12, 32, 120}, {0, 0, 10, 8, 60},     {0, 12, 15, 16, 60}, {0, 130, 20, 16, 300},
      {8, 28, 8, 8, 60},    {8, 28, 8, 8, 60},     {8, 151, 15, 24, 120}, {28, 38, 5, 8, 60},  {28, 38, 30, 8, 180},
      {28, 52, 10, 16, 60}, {28, 166, 6, 32, 60},  {28, 44, 0, 2, 60},    {28, 44, 1, 1, 60},  {28, 44, 74, 1, 60}};
  std::vector<SimJob> jobs;
  for (const Recorded& r : recorded) jobs.push_back(job(r.submit, r.run, r.gpus, r.limit));
  // Slurm's backfill gives everyone who waits a reservation.
  const Times s = starts(jobs, policy(Order::conservative, 32));
  for (std::size_t i = 0; i < recorded.size(); ++i)
    EXPECT_LE(std::abs(s[i] - recorded[i].start), 9)
        << "job " << i + 1 << ": " << s[i] << ", not " << recorded[i].start;
}

}  // namespace
}  // namespace orrery
