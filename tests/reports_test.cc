// Times that reports take from runs written by hand, checked against numbers that a reader can redo, and against
// counting every nanosecond.
#include <gtest/gtest.h>

#include <random>

#include "reference/report_helpers.h"

namespace orrery {
namespace {

// ---- sets of instants ----

TEST(Intervals, TouchingStretchesAreOneAndEmptyOnesNone) {
  Intervals s;
  append(s, 0, 10);
  append(s, 10, 20);
  append(s, 15, 15);
  append(s, 30, 30);
  append(s, 40, 50);
  EXPECT_EQ(s, (Intervals{{0, 20}, {40, 50}}));
  EXPECT_EQ(covered(s, 5, 45), 20);
  EXPECT_EQ(covered(s, 20, 40), 0);
  Intervals out{{1, 2}};
  unite(s, {{19, 41}}, out);
  EXPECT_EQ(out, (Intervals{{0, 50}}));
  intersect(s, {{5, 10}, {12, 60}}, out);
  EXPECT_EQ(out, (Intervals{{5, 10}, {12, 20}, {40, 50}}));
  Intervals any{{5, 7}, {9, 9}, {0, 2}, {20, 30}, {1, 6}};
  unite_all(any);
  EXPECT_EQ(any, (Intervals{{0, 7}, {20, 30}}));
}

// ---- classes ----

// Every nanosecond counted: random tasks on three streams, in and out of order, some without length, some over the
// edge.
TEST(Breakdown, ClassesAreWhatCountingEveryNanosecondSays) {
  std::mt19937_64 random(5);
  const auto pick = [&](Ns low, Ns high) { return std::uniform_int_distribution<Ns>(low, high)(random); };
  for (int k = 0; k < 300; ++k) {
    const Ns begin = 100, end = begin + pick(0, 300);
    HandRun run;
    std::vector<std::uint8_t> seen(1000, 0);
    for (Ns n = pick(0, 40); n > 0; --n) {
      const Ns start = pick(0, 450), dur = pick(0, 4) == 0 ? 0 : pick(1, 60);
      constexpr NodeKind kKinds[] = {NodeKind::kernel, NodeKind::comm, NodeKind::memcpy, NodeKind::memset,
                                     NodeKind::stall};
      const auto kind = static_cast<std::size_t>(pick(0, 4));
      run.m.task(kKinds[kind], static_cast<std::uint32_t>(pick(1, 3)), start, dur);
      constexpr std::uint8_t kBits[] = {1, 2, 4, 4, 0};
      for (Ns t = start; t < start + dur; ++t) seen[static_cast<std::size_t>(t)] |= kBits[kind];
    }
    run.m.step(0, begin, end);
    Ns count[8] = {};
    for (Ns t = begin; t < end; ++t) ++count[seen[static_cast<std::size_t>(t)]];
    expect_classes(run.classes(), count[1] + count[5], count[3] + count[7], count[2] + count[6], count[0] + count[4],
                   count[4]);
    const StepTimes t = run.times().at(0);
    EXPECT_EQ(t.replayed_classes.idle(), count[0]);
  }
}

// https://github.com/google/perfetto/issues/4280: B starts before A ends on the same stream; both count, once.
TEST(Breakdown, OverlapOnOneStream) {
  HandRun run;
  run.m.task(NodeKind::kernel, 1, 3000, 3776);
  run.m.task(NodeKind::kernel, 1, 5000, 2000);
  run.m.step(0, 0, 10000);
  expect_classes(run.classes(), 4000, 0, 0, 6000, 0);
}

// https://github.com/AMD-AGI/TraceLens/pull/610: a memset of no length at the end of a kernel.
TEST(Breakdown, ZeroLengthTasks) {
  HandRun run;
  run.m.task(NodeKind::kernel, 1, 0, 10);
  run.m.task(NodeKind::memset, 1, 10, 0);
  run.m.task(NodeKind::kernel, 2, 5, 0);
  run.m.step(0, 0, 20);
  expect_classes(run.classes(), 10, 0, 0, 10, 0);
  HandRun empty;
  empty.m.step(0, 7, 7);
  expect_classes(empty.classes(), 0, 0, 0, 0, 0);
}

// https://github.com/facebookresearch/HolisticTraceAnalysis/issues/122: nothing communicates: n/a, not NaN.
TEST(Breakdown, NoCommunicationIsNotAvailable) {
  HandRun run;
  run.m.task(NodeKind::kernel, 1, 0, 10);
  run.m.step(0, 0, 20);
  expect_classes(run.classes(), 10, 0, 0, 10, 0);
  const Json j = json_of(summary_section(run.m.g, run.times()));
  EXPECT_TRUE(j["class_mean_abs_error_pct"]["exposed_comm_ms"].is_null());
  EXPECT_TRUE(j["class_mean_abs_error_pct"]["overlapped_ms"].is_null());
  EXPECT_EQ(j["class_mean_abs_error_pct"]["exposed_compute_ms"], 0.0);
}

// https://github.com/facebookresearch/HolisticTraceAnalysis/pull/162: an all-reduce that the host waits for overlaps
// nothing.
TEST(Breakdown, WaitingIsNotComputing) {
  HandRun run;
  const NodeId reduce = run.m.task(NodeKind::comm, 1, 0, 100);
  run.m.host(0, 0, {{reduce, EdgeKind::sync, 0}});
  run.m.step(0, 0, 100);
  expect_classes(run.classes(), 0, 0, 100, 0, 0);
}

// https://github.com/GindaChen/nsys-ai/issues/574 and 599: two full streams are 100 %; a copy alone is not idle.
TEST(Breakdown, UnionsNotSums) {
  HandRun run;
  run.m.task(NodeKind::kernel, 1, 0, 100);
  run.m.task(NodeKind::kernel, 2, 0, 100);
  run.m.task(NodeKind::memcpy, 3, 50, 80);
  run.m.step(0, 0, 200);
  expect_classes(run.classes(), 100, 0, 0, 100, 30);
  each_device(run.m.g, run.m.observe(), [](const DeviceRuns& d) { EXPECT_EQ(covered(d.measured.busy, 0, 200), 130); });
}

// https://github.com/AMD-AGI/TraceLens/issues/728: tasks of a graph launch have no launch of their own and are busy
// too.
TEST(Breakdown, TasksOfOneGraphLaunch) {
  HandRun run;
  NodeId last = run.m.task(NodeKind::kernel, 1, 10, 10);
  for (int k = 0; k < 8; ++k) last = run.m.add(NodeKind::kernel, 1, 10, {{last, EdgeKind::graph, 0}});
  run.m.step(0, 0, 100);
  expect_classes(run.classes(), 90, 0, 0, 10, 0);
}

TEST(Breakdown, TasksAreClippedToTheStepAndStallsAreNotWork) {
  HandRun run;
  run.m.task(NodeKind::kernel, 1, -50, 60);  // until 10
  run.m.task(NodeKind::comm, 2, 5, 20);      // 5..25
  run.m.task(NodeKind::stall, 1, 30, 40);
  run.m.task(NodeKind::kernel, 1, 90, 50);  // from 90
  run.m.step(3, 0, 100);
  expect_classes(run.classes(), 5 + 10, 5, 15, 65, 0);
}

// Rank 1 is longest in step 10 (measured 300) and rank 0 in step 11 (200): the iteration takes 250. The replay of rank
// 1's step 10 is 330 (10 % long), rank 0's step 11 is 190 (5 % short), the others are right: mean 3.75 %, and 260.
TEST(Breakdown, IterationIsTheMeanOfTheLongestRanks) {
  HandRun run(2);
  const Ns ms = 1'000'000;
  run.m.step(10, 0, 200 * ms, 0);
  run.m.step(11, 300 * ms, 500 * ms, 0);
  run.m.step(10, 0, 300 * ms, 1);
  run.m.step(11, 300 * ms, 400 * ms, 1);
  run.m.observe();
  const auto move_end = [&](std::size_t row, Ns by) {
    run.m.g.pred_lag[run.m.g.first_pred[raw(run.m.g.steps[row].end_node)]] += by;
  };
  move_end(2, 30 * ms);
  move_end(1, -10 * ms);
  const Json j = json_of(summary_section(run.m.g, run.times()));
  EXPECT_DOUBLE_EQ(j["iteration_measured_ms"], 250);
  EXPECT_DOUBLE_EQ(j["iteration_replayed_ms"], (330 + 190) / 2.0);
  EXPECT_DOUBLE_EQ(j["mean_abs_error_pct"], 3.75);
  EXPECT_DOUBLE_EQ(j["max_abs_error_pct"], 10);

  const Json steps = json_of(steps_section(run.m.g, run.times()));
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps[0]["step"], 10);
  EXPECT_EQ(steps[0]["rank"], 0);
  EXPECT_EQ(steps[1]["step"], 10);
  EXPECT_EQ(steps[1]["rank"], 1);
  EXPECT_DOUBLE_EQ(steps[1]["error_pct"], 10);
  EXPECT_DOUBLE_EQ(steps[2]["error_pct"], -5);
  EXPECT_DOUBLE_EQ(steps[1]["replayed"]["other_ms"], 330);
  EXPECT_TRUE(steps[0]["makespan_error_pct"].is_null());
}

// A kernel measured 100 long is replayed 10 later and so 10 less of it lies in the step: 10 of 100 + 300 on two ranks.
TEST(Breakdown, ClassErrorIsRelativeToTheClass) {
  HandRun run(2);
  const NodeId k = run.m.task(NodeKind::kernel, 1, 50, 100, kNoOp, 0);
  run.m.task(NodeKind::kernel, 1, 0, 300, kNoOp, 1);
  run.m.step(0, 0, 150, 0);
  run.m.step(0, 0, 300, 1);
  run.m.observe();
  run.m.g.pred_lag[run.m.g.first_pred[raw(k)]] += 10;
  const Json j = json_of(summary_section(run.m.g, run.times()));
  EXPECT_DOUBLE_EQ(j["class_mean_abs_error_pct"]["exposed_compute_ms"], 2.5);
  EXPECT_DOUBLE_EQ(j["class_mean_abs_error_pct"]["other_ms"], 20);  // 10 of 50 + 0
  EXPECT_DOUBLE_EQ(j["makespan_mean_abs_error_pct"], 0);
}

// The kernels of a step are those launched in it: one of them runs after the step's end, the first was launched before
// it and the last after it.
TEST(Breakdown, MakespanFollowsTheLaunches) {
  HandRun run;
  const NodeId before = run.m.host(0, 0, {root(-5)});
  run.m.add(NodeKind::kernel, 1, 20, {{before, EdgeKind::launch, 6}});  // 1..21
  const NodeId launch = run.m.host(0, 0, {root(10)});
  const NodeId first = run.m.add(NodeKind::kernel, 1, 30, {{launch, EdgeKind::launch, 40}});          // 50..80
  run.m.add(NodeKind::kernel, 2, 30, {{first, EdgeKind::event, 10}, {launch, EdgeKind::launch, 0}});  // 90..120
  const NodeId late = run.m.host(0, 0, {root(70)});
  run.m.add(NodeKind::kernel, 2, 30, {{late, EdgeKind::launch, 200}});
  run.m.step(0, 0, 70);
  run.m.observe();
  run.m.g.pred_lag[run.m.g.first_pred[raw(first) + 1]] = 17;  // replayed 97..127
  const StepTimes t = run.times().at(0);
  EXPECT_EQ(t.measured_makespan, 70);
  EXPECT_EQ(t.replayed_makespan, 77);
}

// A collective that met its peers: it arrives at 10, waits until 40 and transfers until 60: 50 of communication, one
// task.
TEST(Breakdown, ACollectiveInTwoNodesIsOneTask) {
  HandRun run;
  const OpId source{3};
  const NodeId arrival = run.m.add(NodeKind::comm, 1, 0, {root(10)}, source, true);
  const NodeId meeting = run.m.add(NodeKind::rendezvous, 0, 0, {{arrival, EdgeKind::collective, 0}, root(40)});
  run.m.add(NodeKind::comm, 1, 20, {{meeting, EdgeKind::collective, 0}}, source);
  run.m.step(0, 0, 100);
  expect_classes(run.classes(), 0, 0, 50, 50, 0);
  EXPECT_EQ(run.times().at(0).measured_makespan, 50);
  const DeviceTasks tasks = device_tasks(run.m.g);
  ASSERT_EQ(tasks.rows.size(), 1u);
  EXPECT_EQ(observed_time(run.m.g, tasks.rows[0]), 50);
}

// Joined ranks have their nodes mixed: tasks are still found rank by rank, in the order of each stream.
TEST(Breakdown, NodesOfRanksMayBeMixed) {
  HandRun run(2);
  for (Ns k = 0; k < 10; ++k) {
    run.m.task(NodeKind::kernel, 1, k * 10, 5, kNoOp, 1);
    run.m.task(NodeKind::comm, 2, k * 10, 2, kNoOp, 0);
  }
  run.m.step(0, 0, 100, 0);
  run.m.step(0, 0, 100, 1);
  run.m.observe();
  const auto times = run.times();
  expect_classes(times[0].measured_classes, 0, 0, 20, 80, 0);
  expect_classes(times[1].measured_classes, 50, 0, 0, 50, 0);
  EXPECT_EQ(times[0].measured_makespan, 92);
  EXPECT_EQ(times[1].measured_makespan, 95);
}

// ---- which steps ----

TEST(Steps, UnknownNumbersAreRefusedWithTheListOfKnownOnes) {
  GraphMaker m(2);
  for (std::int64_t n : {12, 10, 11}) m.step(n, n * 100, n * 100 + 50, 1);
  for (std::int64_t n : {10, 11, 12}) m.step(n, n * 100, n * 100 + 50, 0);
  EXPECT_EQ(*select_steps(m.g, {}), (StepRows{3, 1, 4, 2, 5, 0}));
  EXPECT_EQ(*select_steps(m.g, {12, 10}), (StepRows{3, 1, 5, 0}));
  const auto missing = select_steps(m.g, {10, 13});
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().line(), "--steps: no step 13 in the input (the steps are 10 to 12)");
  EXPECT_EQ(select_steps(ExecGraph{}, {1}).error().line(), "--steps: no step 1 in the input (the steps are none)");
}

// ---- idle ----

IdleTimes idle_of(GraphMaker& m) {
  Replay r;
  replay(m.g, r);
  return idle_of(m.g, r).at(0);
}

// Step 0..200. Kernel 1 (launched at 10, latency 6) runs 16..46; a stream lag of 2, kernel 2 runs 48..78. The host
// synchronises: back at 81 (3 later), works until 100, launches; kernel 3 runs 106..126, then nothing.
// Pauses: 0..16 host 10, launch 6; 46..48 dependency 2; 78..106 sync 3, host 19, launch 6; 126..200 the host's own end.
TEST(Idle, EachPauseIsTracedToWhatEndedIt) {
  GraphMaker m;
  m.step(0, 0, 200);
  const NodeId launch = m.host(0, 10, {root()});
  const NodeId k1 = m.add(NodeKind::kernel, 1, 30, {{launch, EdgeKind::launch, 6}});
  const NodeId launch2 = m.host(0, 5, {{launch, EdgeKind::thread, 0}});
  const NodeId k2 = m.add(NodeKind::kernel, 1, 30, {{launch2, EdgeKind::launch, 6}, {k1, EdgeKind::stream, 2}});
  const NodeId sync = m.host(0, 0, {{launch2, EdgeKind::thread, 0}, {k2, EdgeKind::sync, 3}});
  const NodeId launch3 = m.host(0, 19, {{sync, EdgeKind::thread, 0}});
  m.add(NodeKind::kernel, 2, 20, {{launch3, EdgeKind::launch, 6}});
  const NodeId end = m.host(0, 100, {{launch3, EdgeKind::thread, 0}});
  m.g.steps[0].end_node = end;  // 200
  const IdleTimes t = idle_of(m);
  EXPECT_EQ(of(t, IdleCause::host_late), 10 + 19 + 74);
  EXPECT_EQ(of(t, IdleCause::launch), 6 + 6);
  EXPECT_EQ(of(t, IdleCause::sync), 3);
  EXPECT_EQ(of(t, IdleCause::dependency), 2);
  EXPECT_EQ(of(t, IdleCause::unexplained), 0);
  EXPECT_EQ(of(t, IdleCause::peer_late), 0);
  EXPECT_EQ(t.host_late_after_sync, 19);
  EXPECT_EQ(t.idle, 120);
}

// The worker is woken (4) by the main thread, which worked until 30: of the pause 20..50, 10 are the main thread's
// work, 4 the wake-up, 10 the worker's work and 6 the launch.
TEST(Idle, AThreadThatWokeAnotherIsLateForIt) {
  GraphMaker m;
  m.step(0, 0, 60);
  m.task(NodeKind::kernel, 2, 0, 20);
  const NodeId main_thread = m.host(0, 30, {root()});
  const NodeId woken = m.host(1, 0, {root(), {main_thread, EdgeKind::handoff, 4}});
  const NodeId launch = m.host(1, 10, {{woken, EdgeKind::thread, 0}});
  m.add(NodeKind::kernel, 2, 10, {{launch, EdgeKind::launch, 6}});
  const IdleTimes t = idle_of(m);
  EXPECT_EQ(of(t, IdleCause::host_late), 20);
  EXPECT_EQ(of(t, IdleCause::sync), 4);
  EXPECT_EQ(of(t, IdleCause::launch), 6);
  EXPECT_EQ(t.idle, 30);
}

TEST(Idle, StallsAndTimeBeforeAnythingKnownAreUnexplained) {
  GraphMaker m;
  m.step(0, 0, 100);
  const NodeId k1 = m.task(NodeKind::kernel, 2, 15, 25);                            // 15..40
  const NodeId stall = m.add(NodeKind::stall, 2, 20, {{k1, EdgeKind::stream, 1}});  // 41..61
  m.add(NodeKind::kernel, 2, 39, {{stall, EdgeKind::stall, 0}});                    // 61..100
  const IdleTimes t = idle_of(m);
  EXPECT_EQ(of(t, IdleCause::unexplained), 15 + 20);
  EXPECT_EQ(of(t, IdleCause::dependency), 1);
  EXPECT_EQ(t.idle, 36);
}

// Rank 0's kernel 2 waits for a rendezvous that rank 1 reaches at 70: the whole pause 20..70 is rank 1's.
TEST(Idle, AnotherRankIsAPeer) {
  GraphMaker m(2);
  m.step(0, 0, 100, 0);
  const NodeId k = m.task(NodeKind::kernel, 1, 0, 20, kNoOp, 0);
  const NodeId peer = m.host(0, 70, {root()}, kNoOp, false, 1);
  const NodeId meet = m.add(NodeKind::rendezvous, 0, 0, {{k, EdgeKind::collective, 0}, {peer, EdgeKind::collective, 0}},
                            kNoOp, false, 1);
  m.add(NodeKind::comm, 1, 30, {{meet, EdgeKind::collective, 0}}, kNoOp, false, 0);
  const IdleTimes t = idle_of(m);
  EXPECT_EQ(of(t, IdleCause::peer_late), 50);
  EXPECT_EQ(t.idle, 50);
}

TEST(Idle, CausesAddUpToTheIdleTimeOfTheBreakdown) {
  std::mt19937_64 random(11);
  for (int k = 0; k < 300; ++k) {
    GraphMaker m = random_job(random, 10 + k);
    Replay r;
    replay(m.g, r);
    const IdleTimes t = idle_of(m.g, r).at(0);
    Ns idle = 0, sum = 0;
    for (const StepTimes& s : times_of(m.g, r)) idle += s.replayed_classes.idle();
    for (Ns x : t.by_cause) sum += x;
    ASSERT_EQ(t.idle, idle) << "job " << k;
    ASSERT_EQ(sum, idle) << "job " << k;
    ASSERT_LE(t.host_late_after_sync, of(t, IdleCause::host_late));
  }
}

TEST(Idle, WithoutADeviceThereIsNoIdleTime) {
  GraphMaker m;
  m.step(0, 0, 100);
  const IdleTimes t = idle_of(m);
  EXPECT_FALSE(t.has_device);
  EXPECT_TRUE(json_of(idle_section(m.g, {t}, {}))[0]["idle_ms"].is_null());
}

// ---- GPU busy ----

Json busy_of(const ExecGraph& g, const Replay& r, const StepRows& rows) {
  std::vector<RankBusy> busy;
  each_device(g, r, [&](const DeviceRuns& d) { busy.push_back(gpu_busy(g, r, d, rows)); });
  return json_of(gpu_busy_section(g, std::move(busy)));
}

// Step 0..2.5 ms: two bins and a half; the kernel 0.5..1.25 overlaps itself on another stream, the last one runs over
// the end. Then a step of 1 ms, half of it busy: the two make 1.35 of 3.5 ms.
TEST(GpuBusy, ShareOfEachMillisecond) {
  GraphMaker m;
  m.task(NodeKind::kernel, 1, 500'000, 750'000);
  m.task(NodeKind::memcpy, 2, 500'000, 750'000);
  m.task(NodeKind::comm, 1, 2'400'000, 900'000);
  m.task(NodeKind::kernel, 1, 4'200'000, 500'000);
  m.step(1, 0, 2'500'000);
  m.step(2, 4'000'000, 5'000'000);
  const Replay r = m.observe();
  const Json j = busy_of(m.g, r, *select_steps(m.g, {}));
  ASSERT_EQ(j.size(), 1u);
  EXPECT_EQ(j[0]["rank"], 0);
  EXPECT_EQ(j[0]["measured"], (Json{0.5, 0.25, 0.2, 0.5}));
  EXPECT_EQ(j[0]["replayed"], j[0]["measured"]);
  EXPECT_NEAR(j[0]["measured_pct"].get<double>(), 135 / 3.5, 1e-5);
  const Json second = busy_of(m.g, r, *select_steps(m.g, {2}));
  EXPECT_EQ(second[0]["measured"], (Json{0.5}));
}

}  // namespace
}  // namespace orrery
