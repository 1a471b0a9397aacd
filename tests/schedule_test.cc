// Pipeline schedules: by hand where small, by properties where not: every send is received, nothing deadlocks, and the
// time is what the papers' formulas say.
#include "whatif/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <tuple>

namespace orrery {
namespace {

Schedule made(ScheduleKind kind, int stages, int chunks, int micro_batches) {
  auto s = make_schedule(kind, stages, chunks, micro_batches);
  if (!s) {
    ADD_FAILURE() << s.error().line();
    return {};
  }
  return std::move(*s);
}

// "F0" a pass, with more chunks "F0.1"; "(>0 <1)" a batch: > to and < from the neighbour, + activations, - gradients.
std::string text(const Schedule& job, std::size_t stage) {
  std::string all;
  for (const Slot& slot : job.stage[stage]) {
    if (!all.empty()) all += ' ';
    const auto unit = [&](std::int32_t mb, std::int32_t chunk) {
      return std::to_string(mb) + (job.chunks > 1 ? "." + std::to_string(chunk) : "");
    };
    if (slot.is_pass) {
      all += "FBW"[static_cast<int>(slot.pass)] + unit(slot.micro_batch, slot.chunk);
      continue;
    }
    std::string batch;
    for (const Transfer& t : slot.transfers) {
      if (!batch.empty()) batch += ' ';
      batch += std::string(t.send ? ">" : "<") + std::to_string(t.peer_stage) + (t.forward ? "+" : "-") +
               unit(t.micro_batch, t.chunk);
    }
    all += "(" + batch + ")";
  }
  return all;
}

struct Times {
  double forward, backward, weight;
};

// Runs the stages with transfers that take no time: a transfer is done when both ends have issued their batch, and a
// stage goes on when its batch is done (rendezvous; else a send never waits). The last end, or -1 for a deadlock.
double makespan(const Schedule& job, Times t, bool rendezvous = true) {
  using Name = std::tuple<std::size_t, bool, int, int>;  // sender, forward, chunk, micro-batch
  const std::size_t p = job.stage.size();
  std::vector<double> now(p, 0);
  std::vector<std::size_t> at(p, 0);
  std::vector<char> issued(p, 0);
  std::map<Name, double> sent, received;
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t s = 0; s < p; ++s) {
      while (at[s] < job.stage[s].size()) {
        const Slot& slot = job.stage[s][at[s]];
        if (slot.is_pass) {
          now[s] += slot.pass == Pass::forward ? t.forward : slot.pass == Pass::backward ? t.backward : t.weight;
        } else {
          double done = now[s];
          bool all = true;
          for (const Transfer& x : slot.transfers) {
            const auto peer = static_cast<std::size_t>(x.peer_stage);
            const Name name{x.send ? s : peer, x.forward, x.chunk, x.micro_batch};
            auto& mine = x.send ? sent : received;
            auto& theirs = x.send ? received : sent;
            if (!issued[s] && !mine.emplace(name, now[s]).second) ADD_FAILURE() << "sent or received twice";
            if (x.send && !rendezvous) continue;
            const auto other = theirs.find(name);
            if (other == theirs.end())
              all = false;
            else
              done = std::max(done, other->second);
          }
          moved = moved || !issued[s];
          issued[s] = 1;
          if (!all) break;
          issued[s] = 0;
          now[s] = done;
        }
        ++at[s];
        moved = true;
      }
    }
  }
  for (std::size_t s = 0; s < p; ++s)
    if (at[s] < job.stage[s].size()) return -1;
  EXPECT_EQ(sent.size(), received.size());
  for (const auto& [name, when] : sent) EXPECT_TRUE(received.contains(name));
  return *std::max_element(now.begin(), now.end());
}

// Micro-batches times chunks whose activations a stage holds, at most.
int most_held(const Schedule& job, std::size_t stage) {
  int held = 0, most = 0;
  const Pass frees = job.kind == ScheduleKind::zero_bubble ? Pass::weight : Pass::backward;
  for (const Slot& slot : job.stage[stage]) {
    if (!slot.is_pass) continue;
    if (slot.pass == Pass::forward) most = std::max(most, ++held);
    if (slot.pass == frees) --held;
  }
  EXPECT_EQ(held, 0);
  return most;
}

TEST(Schedule, OneForwardOneBackward) {
  const Schedule job = made(ScheduleKind::one_f_one_b, 2, 1, 3);
  EXPECT_EQ(text(job, 0), "F0 (>1+0) F1 (>1+1 <1-0) B0 F2 (>1+2 <1-1) B1 (<1-2) B2");
  EXPECT_EQ(text(job, 1), "(<0+0) F0 B0 (>0-0 <0+1) F1 B1 (>0-1 <0+2) F2 B2 (>0-2)");
  // Fewer micro-batches than stages: the first stage only warms up and cools down.
  EXPECT_EQ(text(made(ScheduleKind::one_f_one_b, 3, 1, 1), 0), "F0 (>1+0) (<1-0) B0");
  EXPECT_EQ(text(made(ScheduleKind::one_f_one_b, 3, 1, 1), 1), "(<0+0) F0 (>2+0) (<2-0) B0 (>0-0)");
}

TEST(Schedule, Interleaved) {
  // Four micro-batches on two stages of two chunks: two of chunk 0, two of chunk 1, and again. Warm-up of the first
  // stage: (2 - 0 - 1) * 2 + (2 - 1) * 2 = 4, of the last 2.
  const Schedule job = made(ScheduleKind::interleaved, 2, 2, 4);
  EXPECT_EQ(text(job, 0),
            "F0.0 (>1+0.0) F1.0 (<1+0.0 >1+1.0) F0.1 (<1+1.0 >1+0.1) F1.1 (>1+1.1 <1-0.1) "
            "F2.0 B0.1 (>1-0.1 >1+2.0 <1-1.1) F3.0 B1.1 (>1-1.1 <1+2.0 >1+3.0 <1-0.0) "
            "F2.1 B0.0 (<1+3.0 >1+2.1 <1-1.0) F3.1 B1.0 (>1+3.1 <1-2.1) "
            "B2.1 (>1-2.1 <1-3.1) B3.1 (>1-3.1 <1-2.0) B2.0 (<1-3.0) B3.0");
  // As many micro-batches as stages: all forwards before all backwards.
  EXPECT_EQ(text(made(ScheduleKind::interleaved, 2, 2, 2), 1),
            "(<0+0.0) F0.0 (<0+1.0 >0+0.0) F1.0 (<0+0.1 >0+1.0) F0.1 (<0+1.1) F1.1 "
            "B0.1 (>0-0.1) B1.1 (>0-1.1 <0-0.1) B0.0 (>0-0.0 <0-1.1) B1.0 (>0-1.0)");
}

TEST(Schedule, ZeroBubble) {
  const Schedule job = made(ScheduleKind::zero_bubble, 2, 1, 3);
  EXPECT_EQ(text(job, 0), "F0 (>1+0) F1 (>1+1 <1-0) B0 W0 F2 (>1+2 <1-1) B1 W1 (<1-2) B2 W2");
  EXPECT_EQ(text(job, 1), "(<0+0) F0 B0 (>0-0 <0+1) W0 F1 B1 (>0-1 <0+2) F2 B2 (>0-2) W1 W2");
}

TEST(Schedule, OneStageHasNoTransfers) {
  for (const Schedule& job : {made(ScheduleKind::one_f_one_b, 1, 1, 3), made(ScheduleKind::interleaved, 1, 3, 3),
                              made(ScheduleKind::zero_bubble, 1, 1, 3)})
    for (const Slot& slot : job.stage[0]) EXPECT_TRUE(slot.is_pass);
  EXPECT_EQ(text(made(ScheduleKind::one_f_one_b, 1, 1, 2), 0), "F0 B0 F1 B1");
}

// makespan() itself sees that each send is received once, and the other way round.
TEST(Schedule, TimesAreThoseOfThePapers) {
  const Times t{3, 5, 2};
  for (const int p : {1, 2, 3, 4, 7, 16})
    for (const int m : {1, 2, 3, 4, 8, 16, 21, 64}) {
      SCOPED_TRACE(std::to_string(p) + " stages, " + std::to_string(m) + " micro-batches");
      const Schedule plain = made(ScheduleKind::one_f_one_b, p, 1, m);
      for (const bool rendezvous : {true, false})
        EXPECT_EQ(makespan(plain, t, rendezvous), (m + p - 1) * (t.forward + t.backward));
      for (int s = 0; s < p; ++s) EXPECT_EQ(most_held(plain, s), std::min(m, p - s));

      const Schedule split = made(ScheduleKind::zero_bubble, p, 1, m);
      EXPECT_GT(makespan(split, t), 0);
      for (int s = 0; s < p; ++s) EXPECT_LE(most_held(split, s), std::min(m, p));
      if (m >= p)
        for (const Times& e : {Times{1, 1, 1}, Times{2, 2, 1}, Times{3, 3, 2}}) {
          const double bubble = (p - 1) * (e.forward + e.backward - e.weight);
          EXPECT_EQ(makespan(split, e), m * (e.forward + e.backward + e.weight) + bubble);
        }

      if (m % p != 0) continue;
      for (const int v : {1, 2, 3, 5}) {
        const Schedule job = made(ScheduleKind::interleaved, p, v, m);
        EXPECT_EQ(makespan(job, t), (m * v + p - 1) * (t.forward + t.backward)) << v << " chunks";
      }
    }
}

// Runs the stages with transfers that take no time and go on beside the passes: a stage only waits for what a pass
// works on. Both ends have issued a transfer before it is done; those of one stream, as torch and Megatron-LM share
// streams (a stage and each of its peers, of two stages one for each direction), come one after the other. -1 = a
// deadlock.
double makespan_beside(const Schedule& job, Times t) {
  using Name = std::tuple<int, bool, int, int>;  // sender, forward, chunk, micro-batch
  struct Issued {
    Name name;
    double at;
  };
  const int p = job.stages;
  std::vector<double> now(job.stage.size(), 0);
  std::vector<std::size_t> at(job.stage.size(), 0);
  std::vector<std::array<std::vector<Issued>, 2>> stream(job.stage.size());
  std::vector<std::array<std::size_t, 2>> head(job.stage.size(), {0, 0});
  std::map<Name, double> done;
  std::map<Name, int> sends, receives;
  for (bool moved = true; moved;) {
    moved = false;
    for (int s = 0; s < p; ++s) {
      const auto row = static_cast<std::size_t>(s);
      while (at[row] < job.stage[row].size()) {
        const Slot& slot = job.stage[row][at[row]];
        if (const auto input = input_of(job, s, slot)) {
          const auto ready = done.find({input->peer_stage, input->forward, input->chunk, input->micro_batch});
          if (ready == done.end()) break;
          now[row] = std::max(now[row], ready->second);
        }
        if (slot.is_pass) now[row] += slot.pass == Pass::forward ? t.forward : t.backward;
        for (const Transfer& x : slot.transfers) {
          const Name name{x.send ? s : x.peer_stage, x.forward, x.chunk, x.micro_batch};
          ++(x.send ? sends : receives)[name];
          const bool second = p == 2 ? !x.send : direction_of(x) == Direction::previous;
          stream[row][second ? 1 : 0].push_back({name, now[row]});
        }
        ++at[row];
        moved = true;
      }
    }
    // transfers that both ends have come to
    std::map<Name, std::vector<std::pair<std::size_t, std::size_t>>> next;
    for (std::size_t s = 0; s < stream.size(); ++s)
      for (std::size_t k = 0; k < 2; ++k)
        if (head[s][k] < stream[s][k].size()) next[stream[s][k][head[s][k]].name].emplace_back(s, k);
    for (const auto& [name, ends] : next) {
      if (ends.size() < 2) continue;
      double when = 0;
      for (const auto& [s, k] : ends) when = std::max(when, stream[s][k][head[s][k]++].at);
      done[name] = when;
      moved = true;
    }
  }
  for (std::size_t s = 0; s < job.stage.size(); ++s)
    if (at[s] < job.stage[s].size() || head[s][0] < stream[s][0].size() || head[s][1] < stream[s][1].size()) return -1;
  EXPECT_EQ(sends, receives);
  for (const auto& [name, times] : sends) EXPECT_EQ(times, 1);
  return *std::max_element(now.begin(), now.end());
}

TEST(Schedule, InterleavedWithTransfersBeside) {
  const auto job = make_schedule(ScheduleKind::interleaved, 2, 2, 4, true);
  ASSERT_TRUE(job.has_value());
  EXPECT_TRUE(job->overlap);
  // What a forward hands over goes before the backward behind it, and what that needs was asked for after the last one.
  EXPECT_EQ(text(*job, 0),
            "F0.0 (>1+0.0) F1.0 (<1+0.0 >1+1.0) F0.1 (<1+1.0 >1+0.1) F1.1 (>1+1.1 <1-0.1) "
            "F2.0 (>1+2.0) B0.1 (>1-0.1 <1-1.1) F3.0 (<1+2.0 >1+3.0) B1.1 (>1-1.1 <1-0.0) "
            "F2.1 (<1+3.0 >1+2.1) B0.0 (<1-1.0) F3.1 (>1+3.1) B1.0 (<1-2.1) "
            "B2.1 (>1-2.1 <1-3.1) B3.1 (>1-3.1 <1-2.0) B2.0 (<1-3.0) B3.0");
  EXPECT_FALSE(make_schedule(ScheduleKind::one_f_one_b, 2, 1, 4, true).has_value());
}

TEST(Schedule, TransfersBesideNeverWaitForEachOther) {
  const Times t{3, 5, 0};
  for (const int p : {2, 3, 4, 7, 8})
    for (const int groups : {1, 2, 3, 5})
      for (const int v : {2, 3, 5})
        for (const bool all_forward_first : {true, false}) {
          const int m = groups * p;
          const auto job = make_schedule(ScheduleKind::interleaved, p, v, m, true, all_forward_first);
          ASSERT_TRUE(job.has_value());
          EXPECT_EQ(makespan_beside(*job, t), (m * v + p - 1) * (t.forward + t.backward))
              << p << " stages, " << m << " micro-batches, " << v << " chunks";
        }
}

// Later versions of Megatron-LM begin with backwards as soon as they can, also with as many micro-batches as stages.
TEST(Schedule, WarmUpOfAsManyMicroBatchesAsStages) {
  const auto passes = [](bool all_forward_first) {
    std::string order;
    const auto job = make_schedule(ScheduleKind::interleaved, 2, 2, 2, false, all_forward_first);
    for (const Slot& slot : job->stage[1])
      if (slot.is_pass) order += "FBW"[static_cast<int>(slot.pass)];
    return order;
  };
  EXPECT_EQ(passes(true), "FFFFBBBB");
  EXPECT_EQ(passes(false), "FFFBFBBB");
}

// The activations of p (1 + (p - 1) / (p v)) micro-batches on the first stage (Korthikanti et al. 2022, section 4.2.3).
TEST(Schedule, InterleavedHoldsMore) {
  for (const int p : {2, 4, 8})
    for (const int v : {2, 4}) EXPECT_EQ(most_held(made(ScheduleKind::interleaved, p, v, 4 * p), 0), p * v + p - 1);
}

TEST(Schedule, EveryPassOnce) {
  for (const Schedule& job : {made(ScheduleKind::one_f_one_b, 4, 1, 6), made(ScheduleKind::interleaved, 4, 3, 8),
                              made(ScheduleKind::zero_bubble, 4, 1, 6)})
    for (const auto& stage : job.stage) {
      std::map<std::tuple<Pass, int, int>, int> seen;
      for (const Slot& slot : stage)
        if (slot.is_pass) ++seen[{slot.pass, slot.micro_batch, slot.chunk}];
      const int passes = job.kind == ScheduleKind::zero_bubble ? 3 : 2;
      EXPECT_EQ(seen.size(), passes * job.chunks * job.micro_batches);
      for (const auto& [pass, times] : seen) EXPECT_EQ(times, 1);
    }
}

TEST(Schedule, RefusesWhatMegatronRefuses) {
  const auto refused = [](ScheduleKind kind, int p, int v, int m) {
    const auto s = make_schedule(kind, p, v, m);
    return s ? std::string() : s.error().line();
  };
  EXPECT_EQ(refused(ScheduleKind::interleaved, 4, 2, 6),
            "interleaved: 6 micro-batches are not a multiple of 4 stages (choose a multiple, or 1f1b)");
  EXPECT_NE(refused(ScheduleKind::one_f_one_b, 4, 2, 8), "");
  EXPECT_NE(refused(ScheduleKind::zero_bubble, 4, 2, 8), "");
  EXPECT_NE(refused(ScheduleKind::one_f_one_b, 0, 1, 8), "");
  EXPECT_NE(refused(ScheduleKind::one_f_one_b, 4, 1, 0), "");
  EXPECT_NE(refused(ScheduleKind::interleaved, 2'000'000'000, 2'000'000'000, 2'000'000'000), "");
  EXPECT_EQ(refused(ScheduleKind::interleaved, 4, 1, 6), "");  // one chunk is 1F1B
}

TEST(Schedule, DirectionsOfTransfers) {
  EXPECT_EQ(direction_of({.send = true, .forward = true, .peer_stage = 1, .micro_batch = 0, .chunk = 0}),
            Direction::next);
  EXPECT_EQ(direction_of({.send = false, .forward = true, .peer_stage = 1, .micro_batch = 0, .chunk = 0}),
            Direction::previous);
  EXPECT_EQ(direction_of({.send = true, .forward = false, .peer_stage = 1, .micro_batch = 0, .chunk = 0}),
            Direction::previous);
  EXPECT_EQ(direction_of({.send = false, .forward = false, .peer_stage = 1, .micro_batch = 0, .chunk = 0}),
            Direction::next);
}

}  // namespace
}  // namespace orrery
