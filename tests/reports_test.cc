// Reports on runs written by hand, checked against numbers that a reader can redo, and against counting every
// nanosecond.
#include "reports/reports.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "importers/importers.h"
#include "reference/graph_maker.h"
#include "synthesis/synthetic_job.h"
#include "writers/json.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

// ---- helpers ----

// The section as the JSON writer would nest it.
Json json_of(const Section& s) {
  Document d;
  d.sections.push_back(s);
  return Json::parse(to_json(d))[s.key];
}

// Every rank's device, then what `see` wants of it.
template <class See>
void each_device(const ExecGraph& g, const Replay& r, See see) {
  const DeviceTasks tasks = device_tasks(g);
  DeviceRuns device;
  for (std::uint32_t k = 0; k < g.ranks.size(); ++k) {
    look_at_device(g, r, tasks, k, device);
    see(device);
  }
}
std::vector<StepTimes> times_of(const ExecGraph& g, const Replay& r) {
  const StepRows rows = *select_steps(g, {});
  std::vector<StepTimes> times(rows.size());
  each_device(g, r, [&](const DeviceRuns& d) { add_step_times(g, r, d, rows, times); });
  return times;
}
std::vector<IdleTimes> idle_of(const ExecGraph& g, const Replay& r) {
  std::vector<IdleTimes> times;
  each_device(g, r, [&](const DeviceRuns& d) { times.push_back(idle_times(g, r, d, *select_steps(g, {}))); });
  return times;
}
Json busy_of(const ExecGraph& g, const Replay& r, const StepRows& rows) {
  std::vector<RankBusy> busy;
  each_device(g, r, [&](const DeviceRuns& d) { busy.push_back(gpu_busy(g, r, d, rows)); });
  return json_of(gpu_busy_section(g, std::move(busy)));
}
std::vector<OpId> owners_of(const ExecGraph& g) {
  std::vector<OpId> out(g.size(), kNoOp);
  HostOwner owner(g);
  for (std::uint32_t i = 0; i < g.size(); ++i)
    if (g.kind[i] == NodeKind::host) out[i] = owner.next(i);
  return out;
}

struct HandRun {  // measured = replayed unless a test changes one
  GraphMaker m;
  explicit HandRun(std::uint32_t ranks = 1, std::uint32_t lanes = 4) : m(ranks, lanes) {}
  std::vector<StepTimes> times() {
    Replay r;
    replay(m.g, r);
    return times_of(m.g, r);
  }
  ClassTimes classes() {
    m.observe();
    return times().at(0).measured_classes;
  }
};

void expect_classes(const ClassTimes& t, Ns exposed_compute, Ns overlapped, Ns exposed_comm, Ns other, Ns memory) {
  EXPECT_EQ(t.exposed_compute, exposed_compute);
  EXPECT_EQ(t.overlapped, overlapped);
  EXPECT_EQ(t.exposed_comm, exposed_comm);
  EXPECT_EQ(t.other, other);
  EXPECT_EQ(t.memory, memory);
}

Ns of(const IdleTimes& t, IdleCause c) { return t.by_cause[static_cast<std::size_t>(c)]; }

// One rank's trace: rows in the order added; OpId k is the k-th.
struct TraceMaker {
  RankTrace t;
  explicit TraceMaker(std::int64_t rank = 0) {
    t.rank = rank;
    t.file = "rank-" + std::to_string(rank) + ".json";
    for (int lane = 0; lane < 4; ++lane) {
      t.lanes.kind.push_back(lane == 0 ? LaneKind::thread : LaneKind::stream);
      t.lanes.pid.push_back(0);
      t.lanes.tid.push_back(lane);
      t.lanes.pid_text.push_back(StrId{0});
      t.lanes.tid_text.push_back(StrId{0});
      t.lanes.name.push_back(StrId{0});
    }
  }
  OpId add(OpKind kind, std::string_view name, std::uint32_t lane = 0, Ns start = 0, Ns dur = 0,
           std::uint32_t extra = kNone) {
    t.ops.start.push_back(start);
    t.ops.dur.push_back(dur);
    t.ops.name.push_back(t.strings.intern(name));
    t.ops.lane.push_back(LaneId{lane});
    t.ops.kind.push_back(kind);
    t.ops.corr.push_back(0);
    t.ops.ext.push_back(0);
    t.ops.extra.push_back(extra);
    ++t.events;
    return OpId{static_cast<std::uint32_t>(t.ops.size() - 1)};
  }
  std::uint32_t comm(std::string_view op, std::string_view dtype, std::int64_t in, std::int64_t out,
                     std::string_view name, std::string_view desc, std::string_view ranks) {
    CommArgs& c = t.comm_args;
    c.collective.push_back(t.strings.intern(op));
    c.dtype.push_back(t.strings.intern(dtype));
    c.in_elems.push_back(in);
    c.out_elems.push_back(out);
    c.group_size.push_back(0);
    c.group_name.push_back(t.strings.intern(name));
    c.group_desc.push_back(t.strings.intern(desc));
    c.group_ranks.push_back(t.strings.intern(ranks));
    c.seq.push_back(-1);
    c.src_rank.push_back(-1);
    c.dst_rank.push_back(-1);
    c.in_split.push_back(StrId{0});
    c.out_split.push_back(StrId{0});
    return static_cast<std::uint32_t>(c.size() - 1);
  }
  OpId comm_kernel(std::string_view name, std::uint32_t comm_row) {
    KernelArgs& k = t.kernel_args;
    k.grid_blocks.push_back(1);
    k.block_threads.push_back(1);
    k.shared_bytes.push_back(0);
    k.registers.push_back(0);
    k.occupancy_pct.push_back(0);
    k.blocks_per_sm.push_back(0);
    k.comm.push_back(comm_row);
    return add(OpKind::kernel, name, 1, 0, 0, static_cast<std::uint32_t>(k.size() - 1));
  }
};

// A random job as the builder makes them: one host thread (lane 0) and a worker thread (lane 1) that hand over to each
// other, launches on two streams (lanes 2 and 3), event waits, blocking synchronisations, stalls; one step round it all
// and one over a part.
GraphMaker random_job(std::mt19937_64& random, int calls) {
  const auto pick = [&](Ns low, Ns high) { return std::uniform_int_distribution<Ns>(low, high)(random); };
  GraphMaker m;
  m.g.ranks[0].origin = 5000;
  NodeId thread[2], stream[2] = {kNoNode, kNoNode};
  thread[0] = m.host(0, pick(0, 20), {root()});
  thread[1] = m.host(1, pick(0, 20), {root(pick(0, 50))});
  Step whole, part;
  whole.begin_node = thread[0];
  part.number = 1;
  int on = 0;
  for (int c = 0; c < calls; ++c) {
    if (c == calls / 3) part.begin_node = thread[0];
    if (c == 2 * calls / 3) part.end_node = thread[0];
    const NodeId begin = m.host(static_cast<std::uint32_t>(on), pick(0, 30), {{thread[on], EdgeKind::thread, 0}});
    thread[on] = begin;
    const int what = static_cast<int>(pick(0, 9));
    const int s = static_cast<int>(pick(0, 1));
    if (what < 7) {
      std::vector<Pred> preds{{begin, EdgeKind::launch, 6}};
      if (stream[s] != kNoNode) preds.push_back({stream[s], EdgeKind::stream, pick(0, 9) == 0 ? -2 : 1});
      if (stream[1 - s] != kNoNode && pick(0, 3) == 0) preds.push_back({stream[1 - s], EdgeKind::event, 2});
      const auto lane = static_cast<std::uint32_t>(2 + s);
      if (pick(0, 19) == 0)
        preds.push_back({m.add(NodeKind::stall, lane, pick(5, 50), {preds.back()}), EdgeKind::stall, 0});
      constexpr NodeKind kKinds[] = {NodeKind::kernel, NodeKind::kernel, NodeKind::comm, NodeKind::memcpy,
                                     NodeKind::memset};
      stream[s] = m.add(kKinds[pick(0, 4)], lane, pick(0, 4) == 0 ? 0 : pick(1, 60), preds);
      thread[on] = m.host(static_cast<std::uint32_t>(on), pick(0, 5), {{begin, EdgeKind::thread, 0}});
    } else if (what == 7 && stream[s] != kNoNode) {
      thread[on] =
          m.host(static_cast<std::uint32_t>(on), 0, {{begin, EdgeKind::thread, 0}, {stream[s], EdgeKind::sync, 3}});
    } else if (what == 8) {
      const int other = 1 - on;
      thread[other] = m.host(static_cast<std::uint32_t>(other), 0,
                             {{thread[other], EdgeKind::thread, 0}, {begin, EdgeKind::handoff, 4}});
      on = other;
    }
  }
  whole.end_node = m.host(0, 5, {{thread[0], EdgeKind::thread, 0}, {thread[1], EdgeKind::handoff, 4}});
  m.g.steps = {whole};
  if (raw(part.begin_node) < raw(part.end_node)) m.g.steps.push_back(part);
  const Replay r = m.observe();
  for (Step& s : m.g.steps) {
    s.begin = r.end[raw(s.begin_node)];
    s.end = r.end[raw(s.end_node)];
  }
  return m;
}

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

// The job of the sample, made up with rendezvous between its ranks: its maker sums the classes by itself while it
// plays.
TEST(Breakdown, ClassesOfAMadeUpJobAreItsTruth) {
  SyntheticJob job;
  job.layers = 2;
  job.hidden = 256;
  job.seq_length = 256;
  const auto made = run_job(job);
  ASSERT_TRUE(made.has_value()) << made.error().line();
  const ExecGraph& g = made->graph;
  ASSERT_TRUE(check(g).has_value()) << check(g).error().line();
  const auto rows = *select_steps(g, {});
  ASSERT_EQ(rows.size(), 16u);  // 8 ranks, 2 steps
  Ns idle = 0;
  for (const StepTimes& t : times_of(g, made->replay)) {
    const Step& step = g.steps[t.step];
    const auto& steps = made->truth[step.rank].steps;
    const auto truth =
        std::find_if(steps.begin(), steps.end(), [&](const TrueStep& x) { return x.number == step.number; });
    ASSERT_NE(truth, steps.end());
    EXPECT_EQ(t.replayed, truth->duration);
    expect_classes(t.replayed_classes, truth->exposed_compute, truth->overlapped, truth->exposed_comm, truth->other,
                   truth->memory);
    EXPECT_GT(truth->exposed_comm, 0);
    idle += t.replayed_classes.idle();
  }
  // Ranks wait for each other inside kernels: the device is busy then, and every pause has a cause on its own rank.
  Ns causes = 0, unexplained = 0;
  for (const IdleTimes& t : idle_of(g, made->replay)) {
    for (Ns x : t.by_cause) causes += x;
    unexplained += of(t, IdleCause::unexplained);
  }
  EXPECT_EQ(causes, idle);
  EXPECT_EQ(unexplained, 0);
  for (const CriticalPath& p : critical_paths(g, made->replay, rows)) {
    Ns sum = 0;
    for (const Hop& h : p.hops) sum += h.wait + h.run;
    EXPECT_EQ(sum, p.length);
  }
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

// ---- critical path ----

TEST(CriticalPath, AddsUpToTheStep) {
  std::mt19937_64 random(12);
  for (int k = 0; k < 300; ++k) {
    GraphMaker m = random_job(random, 10 + k);
    Replay r;
    replay(m.g, r);
    const auto rows = *select_steps(m.g, {});
    const auto paths = critical_paths(m.g, r, rows);
    ASSERT_EQ(paths.size(), m.g.steps.size());
    double total = 0;
    for (const CriticalPath& p : paths) {
      Ns sum = 0;
      for (const Hop& h : p.hops) {
        ASSERT_GE(h.wait, 0);
        ASSERT_GE(h.run, 0);
        sum += h.wait + h.run;
      }
      const Window w = replayed_window(r, m.g.steps[p.step]);
      ASSERT_EQ(sum, w.end - w.begin) << "job " << k;
      ASSERT_EQ(p.length, sum);
      for (std::size_t i = 1; i < p.hops.size(); ++i) ASSERT_EQ(p.hops[i].node, r.released_by[raw(p.hops[i - 1].node)]);
      const auto nodes = nodes_of(p);
      ASSERT_TRUE(std::is_sorted(nodes.begin(), nodes.end()));
      total += to_ms(sum);
    }
    const Json j = json_of(critical_path_section({}, m.g, paths));
    double ms = 0, pct = 0;
    for (const Json& row : j) {
      ms += row["ms"].get<double>();
      pct += row["pct"].get<double>();
    }
    ASSERT_NEAR(ms, total, 1e-9 * static_cast<double>(j.size() + 1));
    ASSERT_NEAR(pct, total > 0 ? 100 : 0, 1e-3);
  }
}

// Rank 1 is longer. Its step 0..100: host work in aten::mm until 20 (8 of it before the call), launch 6, kernel 60
// until 86, return 4, host 10 after all operators.
TEST(CriticalPath, NamesWhatTheStepWasMadeOf) {
  TraceMaker a(0), b(1);
  const OpId mm = b.add(OpKind::cpu_op, "aten::mm"), call = b.add(OpKind::runtime, "cudaLaunchKernel");
  const OpId gemm = b.add(OpKind::kernel, "gemm<128>");
  GraphMaker m(2);
  m.step(4, 0, 70, 0);
  const NodeId begin = m.host(0, 0, {root()}, kNoOp, false, 1);
  const NodeId mm_begin = m.host(0, 8, {{begin, EdgeKind::thread, 0}}, mm, true, 1);
  const NodeId call_begin = m.host(0, 12, {{mm_begin, EdgeKind::thread, 0}}, call, true, 1);
  const NodeId call_end = m.host(0, 5, {{call_begin, EdgeKind::thread, 0}}, call, false, 1);
  const NodeId mm_end = m.host(0, 1, {{call_end, EdgeKind::thread, 0}}, mm, false, 1);
  const NodeId kernel = m.add(NodeKind::kernel, 2, 60, {{call_begin, EdgeKind::launch, 6}}, gemm, false, 1);
  const NodeId sync = m.host(0, 0, {{mm_end, EdgeKind::thread, 0}, {kernel, EdgeKind::sync, 4}}, kNoOp, false, 1);
  const NodeId end = m.host(0, 10, {{sync, EdgeKind::thread, 0}}, kNoOp, false, 1);
  Step s;
  s.number = 4;
  s.rank = 1;
  s.end = 100;
  s.begin_node = begin;
  s.end_node = end;
  m.g.steps.push_back(s);
  const Replay r = m.observe();
  TraceSet traces;
  traces.ranks.push_back(std::move(a.t));
  traces.ranks.push_back(std::move(b.t));

  const auto owner = owners_of(m.g);
  EXPECT_EQ(owner[raw(mm_begin)], kNoOp);
  EXPECT_EQ(owner[raw(call_begin)], mm);
  EXPECT_EQ(owner[raw(call_end)], call);
  EXPECT_EQ(owner[raw(mm_end)], mm);
  EXPECT_EQ(owner[raw(kernel)], kNoOp);

  const auto paths = critical_paths(m.g, r, *select_steps(m.g, {}));
  ASSERT_EQ(paths.size(), 1u);
  EXPECT_EQ(nodes_of(paths[0]), (std::vector<NodeId>{mm_begin, call_begin, kernel, sync, end}));
  const Json j = json_of(critical_path_section(traces, m.g, paths));
  const auto row = [&](std::size_t k) {
    return j[k]["kind"].get<std::string>() + " " + j[k]["name"].get<std::string>() + " " +
           std::to_string(std::lround(j[k]["ms"].get<double>() * 1e6));
  };
  ASSERT_EQ(j.size(), 5u);
  EXPECT_EQ(row(0), "kernel gemm<128> 60");
  EXPECT_EQ(row(1), "host between operators 18");
  EXPECT_EQ(row(2), "host aten::mm 12");
  EXPECT_EQ(row(3), "launch launch latency 6");
  EXPECT_EQ(row(4), "sync return from a synchronisation 4");
  EXPECT_EQ(j[0]["rank"], 1);
  EXPECT_DOUBLE_EQ(j[0]["pct"], 60);
  EXPECT_EQ(critical_path_hops_section(traces, m.g, r, paths).table.rows.size(), 5u);
}

// A child that ends after its parent (https://github.com/AMD-AGI/TraceLens/pull/603) closes itself, not the parent.
TEST(CriticalPath, OwnersSurviveAChildThatOutlivesItsParent) {
  GraphMaker m;
  const OpId parent{0}, child{1};
  NodeId n = m.host(0, 1, {root()}, parent, true);
  n = m.host(0, 1, {{n, EdgeKind::thread, 0}}, child, true);
  const NodeId parent_end = n = m.host(0, 1, {{n, EdgeKind::thread, 0}}, parent, false);
  const NodeId child_end = n = m.host(0, 1, {{n, EdgeKind::thread, 0}}, child, false);
  const NodeId after = m.host(0, 1, {{n, EdgeKind::thread, 0}}, parent, true);
  const auto owner = owners_of(m.g);
  EXPECT_EQ(owner[raw(parent_end)], child);
  EXPECT_EQ(owner[raw(child_end)], child);
  EXPECT_EQ(owner[raw(after)], kNoOp);
}

// ---- GPU busy ----

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

// ---- collectives ----

TEST(Collectives, GroupedByGroupOperationAndSize) {
  TraceMaker a(0), b(1);
  GraphMaker m(2);
  for (TraceMaker* t : {&a, &b}) {
    const auto rank = static_cast<std::uint32_t>(t->t.rank);
    const auto row = t->comm("allreduce", "BFloat16", 1000, 1000, "3", "TENSOR_PARALLEL", "[0, 1]");
    const OpId k = t->comm_kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", row);
    m.task(NodeKind::comm, 1, 0, 100, k, rank);
    m.task(NodeKind::comm, 1, 200, 300, k, rank);
    const auto gather = t->comm("_allgather_base", "Float", 10, 20, "7", "undefined", "[0, 1]");
    m.task(NodeKind::comm, 1, 600, 40, t->comm_kernel("ncclDevKernel_AllGather_RING_LL(x)", gather), rank);
    const auto ranks = t->comm("broadcast", "unheard-of", 4, 4, "", "", "[0,  1]");
    m.task(NodeKind::comm, 1, 700, 30, t->comm_kernel("ncclDevKernel_Broadcast(x)", ranks), rank);
  }
  // Without metadata on the kernel: from the operator that encloses the launch, else from the kernel's name.
  const auto p2p = a.comm("send", "Half", 50, 0, "9", "PIPELINE", "[0, 1]");
  a.t.op_args.sequence.push_back(-1);
  a.t.op_args.comm.push_back(p2p);
  a.add(OpKind::cpu_op, "record_param_comms", 0, 100, 50, 0);
  const OpId inside = a.add(OpKind::runtime, "cudaLaunchKernelExC", 0, 120, 5);
  const OpId outside = a.add(OpKind::runtime, "cudaLaunchKernelExC", 0, 150, 5);
  const OpId sendrecv = a.comm_kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", kNone);
  const NodeId in = m.host(0, 0, {root(120)}, inside, true), out = m.host(0, 0, {root(150)}, outside, true);
  m.add(NodeKind::comm, 2, 20, {{in, EdgeKind::launch, 5}}, sendrecv);
  m.add(NodeKind::comm, 2, 10, {{out, EdgeKind::launch, 5}}, sendrecv);
  TraceSet traces;
  traces.ranks.push_back(std::move(a.t));
  traces.ranks.push_back(std::move(b.t));

  const Json j = json_of(collectives_section(traces, m.g, device_tasks(m.g)));
  ASSERT_EQ(j.size(), 5u);
  EXPECT_EQ(j[0]["group"], "TENSOR_PARALLEL");
  EXPECT_EQ(j[0]["op"], "allreduce");
  EXPECT_EQ(j[0]["bytes"], 2000);
  EXPECT_EQ(j[0]["count"], 2);
  EXPECT_EQ(j[0]["kernels"], 4);
  EXPECT_DOUBLE_EQ(j[0]["measured_ms"], 200e-6);
  EXPECT_TRUE(j[0]["transfer_ms"].is_null());
  EXPECT_TRUE(j[0]["skew_ms"].is_null());
  EXPECT_TRUE(j[0]["bus_gb_per_s"].is_null());
  EXPECT_EQ(j[1]["group"], "7");
  EXPECT_EQ(j[1]["bytes"], 80);
  EXPECT_EQ(j[2]["group"], "ranks:0,1");
  EXPECT_TRUE(j[2]["bytes"].is_null());
  EXPECT_EQ(j[3]["group"], "PIPELINE");
  EXPECT_EQ(j[3]["op"], "send");
  EXPECT_EQ(j[3]["bytes"], 100);
  EXPECT_TRUE(j[4]["group"].is_null());
  EXPECT_EQ(j[4]["op"], "sendrecv");
}

// Two process groups share a description: each is counted, by its busiest member.
TEST(Collectives, CountAddsUpOverProcessGroups) {
  GraphMaker m(4);
  TraceSet traces;
  for (std::uint32_t r = 0; r < 4; ++r) {
    TraceMaker t(r);
    const auto row = t.comm("allreduce", "Float", 1, 1, r < 2 ? "1" : "2", "TP", r < 2 ? "[0, 1]" : "[2, 3]");
    const OpId k = t.comm_kernel("nccl", row);
    for (std::uint32_t n = 0; n < (r == 1 ? 3u : 5u); ++n) m.task(NodeKind::comm, 1, n * 10, 5, k, r);
    traces.ranks.push_back(std::move(t.t));
  }
  const Json j = json_of(collectives_section(traces, m.g, device_tasks(m.g)));
  ASSERT_EQ(j.size(), 1u);
  EXPECT_EQ(j[0]["count"], 10);
  EXPECT_EQ(j[0]["kernels"], 18);
}

// ---- quality ----

TEST(Quality, SharesOfNothingAreNull) {
  const Json empty = json_of(quality_section({}));
  EXPECT_TRUE(empty["explained_idle_pct"].is_null());
  EXPECT_TRUE(empty["matched_collectives_pct"].is_null());
  EXPECT_EQ(empty["edges"]["handoff"], 0);
  RankQuality a, b;
  a.idle_ns = 100;
  a.unexplained_idle_ns = 10;
  b.idle_ns = 300;
  a.edges[static_cast<std::size_t>(EdgeKind::launch)] = 3;
  b.edges[static_cast<std::size_t>(EdgeKind::launch)] = 4;
  b.dropped[static_cast<std::size_t>(EdgeKind::event)] = 2;
  const Json j = json_of(quality_section({a, b}));
  EXPECT_DOUBLE_EQ(j["explained_idle_pct"], 97.5);
  EXPECT_EQ(j["edges"]["launch"], 7);
  EXPECT_EQ(j["dropped_edges"]["event"], 2);
}

// ---- diff ----

TEST(Diff, NamesMeetWhereOnlyAddressesDiffer) {
  EXPECT_EQ(diff_name("<function f at 0x7f12ab00>"), "<function f at 0x*>");
  EXPECT_EQ(diff_name("ProfilerStep#12"), "ProfilerStep#*");
  EXPECT_EQ(diff_name("void at::native::elementwise_kernel<128, 4>(int, f)"),
            "void at::native::elementwise_kernel<128, 4>(int, f)");
  EXPECT_EQ(diff_name("## Call CompiledFxGraph fg6y4ssd3vkuuw3nmdfjgmqxvbqnrw2mbkcbfzqcvizlzchbvcsi ##"),
            "## Call CompiledFxGraph * ##");
  EXPECT_EQ(diff_name("triton_poi_fused_add_0"), "triton_poi_fused_add_0");
  EXPECT_EQ(diff_name("a_0x12 0x 0xg"), "a_0x12 0x 0xg");
  EXPECT_EQ(diff_name(""), "");
}

struct DiffCase {
  TraceSet traces;
  GraphBuild build;
  Replay run;
  // Two kernels of `gemm` ns after another on a stream that waits for the launch, and one copy.
  DiffCase(Ns gemm, bool copy) {
    TraceMaker t;
    const OpId mm = t.add(OpKind::cpu_op, "aten::mm"), k = t.add(OpKind::kernel, "gemm"),
               c = t.add(OpKind::memcpy, "DtoH");
    GraphMaker m;
    const NodeId begin = m.host(0, 10, {root()}, mm, true);
    m.host(0, 5, {{begin, EdgeKind::thread, 0}}, mm, false);
    const NodeId k1 = m.add(NodeKind::kernel, 2, gemm, {{begin, EdgeKind::launch, 5}}, k);
    const NodeId k2 = m.add(NodeKind::kernel, 2, gemm, {{k1, EdgeKind::stream, 2}}, k);
    if (copy) m.add(NodeKind::memcpy, 2, 7, {{k2, EdgeKind::stream, 1}}, c);
    m.step(0, 0, 500);
    run = m.observe();
    build.graph = std::move(m.g);
    build.quality.resize(1);
    traces.ranks.push_back(std::move(t.t));
  }
  DiffSide side() const { return {traces, build, run}; }
};

TEST(Diff, WhatChangedAndByHowMuch) {
  const DiffCase a(100, true), b(160, false);
  const Json j = Json::parse(to_json(diff_document(a.side(), b.side())));
  const Json gemm = {{"name", "gemm"},     {"a_ms", 200e-6}, {"b_ms", 320e-6},
                     {"delta_ms", 120e-6}, {"a_count", 2},   {"b_count", 2}};
  const Json copy = {{"name", "DtoH"},    {"a_ms", 7e-6}, {"b_ms", 0.0},
                     {"delta_ms", -7e-6}, {"a_count", 1}, {"b_count", 0}};
  EXPECT_EQ(j["kernels"], (Json{gemm, copy}));
  EXPECT_EQ(j["a"]["gpu_tasks"], 3);
  EXPECT_EQ(j["b"]["gpu_tasks"], 2);
  EXPECT_EQ(j["operators"][0]["name"], "(between operators)");
  EXPECT_EQ(j["operators"][1]["name"], "aten::mm");
  EXPECT_DOUBLE_EQ(j["operators"][1]["a_ms"], 5e-6);
  EXPECT_EQ(j["operators"][1]["a_count"], 1);
  ASSERT_EQ(j["edges"][0]["name"], "stream");
  EXPECT_DOUBLE_EQ(j["edges"][0]["a_ms"], 3e-6);  // 2 before the second kernel, 1 before the copy
  EXPECT_EQ(j["edges"][0]["b_count"], 1);
  EXPECT_EQ(j["classes"][0]["name"], "exposed_compute");
  EXPECT_EQ(j["notes"].size(), 0u);
}

TEST(Diff, ARunAgainstItselfIsAllZero) {
  const DiffCase a(100, true);
  const Json j = Json::parse(to_json(diff_document(a.side(), a.side())));
  for (const char* section : {"kernels", "operators", "classes", "edges"}) {
    EXPECT_FALSE(j[section].empty()) << section;
    for (const Json& row : j[section]) {
      EXPECT_EQ(row["delta_ms"], 0.0);
      EXPECT_EQ(row["a_count"], row["b_count"]);
    }
  }
}

// ---- the whole document ----

TEST(ReplayDocument, HasTheKeysOfTheContract) {
  const DiffCase c(100, true);
  const auto d = replay_document(c.traces, c.build, c.run, {});
  ASSERT_TRUE(d.has_value());
  const Json j = Json::parse(to_json(*d));
  const auto expect_keys = [](const Json& object, std::initializer_list<const char*> keys) {
    for (const char* k : keys) EXPECT_TRUE(object.contains(k)) << k << " is missing in " << object.dump();
  };
  expect_keys(j, {"orrery", "command", "inputs", "notes", "ranks", "steps", "summary", "quality", "idle", "stragglers",
                  "collectives", "communication", "critical_path", "gpu_busy"});
  EXPECT_EQ(j["command"], "replay");
  expect_keys(j["ranks"][0], {"rank", "file", "host", "events", "gpu_tasks", "cpu_tasks", "device", "clock_offset_ns",
                              "clock_drift_ppm"});
  expect_keys(j["steps"][0], {"step", "rank", "measured_ms", "replayed_ms", "error_pct", "measured", "replayed"});
  for (const Json* four :
       {&j["steps"][0]["measured"], &j["steps"][0]["replayed"], &j["summary"]["class_mean_abs_error_pct"]})
    expect_keys(*four, {"exposed_compute_ms", "overlapped_ms", "exposed_comm_ms", "other_ms", "memory_ms"});
  expect_keys(j["summary"],
              {"iteration_measured_ms", "iteration_replayed_ms", "mean_abs_error_pct", "max_abs_error_pct"});
  expect_keys(j["quality"], {"explained_idle_pct", "matched_collectives_pct", "edges", "dropped_edges"});
  expect_keys(j["idle"][0],
              {"rank", "host_late_ms", "launch_ms", "sync_ms", "peer_late_ms", "dependency_ms", "unexplained_ms"});
  expect_keys(j["critical_path"][0], {"kind", "rank", "name", "ms", "pct"});
  expect_keys(j["gpu_busy"][0], {"rank", "measured", "replayed"});
  EXPECT_EQ(j["stragglers"], Json::array());
  EXPECT_EQ(j["collectives"], Json::array());
  EXPECT_EQ(j["communication"], Json::array());
  EXPECT_EQ(j["ranks"][0]["gpu_tasks"], 2);  // rows of the trace: one kernel, one copy
}

TEST(ReplayDocument, RefusesAStepThatDoesNotExist) {
  const DiffCase c(100, true);
  const auto d = replay_document(c.traces, c.build, c.run, {.steps = {3}});
  ASSERT_FALSE(d.has_value());
  EXPECT_EQ(d.error().line(), "--steps: no step 3 in the input (the steps are 0)");
}

// ---- simulated jobs with known truth ----

// The whole way from files to the document, against what the simulator itself summed up.
void expect_truth(const std::string& set) {
  const std::string dir = std::string(ORRERY_SOURCE_DIR) + "/../shared/data/oracle/" + set + "/base";
  std::ifstream file(dir + "/truth.json");
  if (!file) GTEST_SKIP() << dir << " is absent";
  const Json truth = Json::parse(file);
  const auto traces = import_traces({dir});
  ASSERT_TRUE(traces.has_value()) << traces.error().line();
  const auto build = build_graph(*traces);
  ASSERT_TRUE(build.has_value()) << build.error().line();
  const ExecGraph& g = build->graph;
  const Status sound = check(g);
  ASSERT_TRUE(sound.has_value()) << sound.error().line();
  Replay r;
  replay(g, r);
  const auto document = replay_document(*traces, *build, r);
  ASSERT_TRUE(document.has_value());
  const Json j = Json::parse(to_json(*document));

  EXPECT_NEAR(j["summary"]["iteration_measured_ms"], truth["iteration_ms"], 0.001);
  const Json& first = truth["steps"][0];
  std::size_t compared = 0;
  for (const Json& row : j["steps"]) {
    if (row["step"] != first) continue;
    const Json& t = truth["breakdown"][std::to_string(row["rank"].get<int>())];
    const Json& m = row["measured"];
    EXPECT_NEAR(row["measured_ms"], t["step_ms"], 0.0002);
    EXPECT_NEAR(m["exposed_compute_ms"], t["exposed_compute_ms"], 0.0002);
    EXPECT_NEAR(m["overlapped_ms"], t["overlapped_ms"], 0.0002);
    EXPECT_NEAR(m["exposed_comm_ms"], t["exposed_comm_ms"], 0.0002);
    EXPECT_NEAR(m["memory_ms"], t["exposed_memory_ms"], 0.0002);
    EXPECT_NEAR(m["other_ms"].get<double>() - m["memory_ms"].get<double>(), t["idle_ms"], 0.0003);
    ++compared;
  }
  EXPECT_EQ(compared, truth["world_size"].get<std::size_t>());

  for (const Json& row : j["gpu_busy"]) {  // the first step's values come first
    const auto t = truth["gpu_busy"].find(std::to_string(row["rank"].get<int>()));
    if (t == truth["gpu_busy"].end()) continue;
    ASSERT_GE(row["measured"].size(), t->size());
    for (std::size_t k = 0; k + 1 < t->size(); ++k)
      ASSERT_NEAR(row["measured"][k], (*t)[k], 0.0002) << "rank " << row["rank"] << ", ms " << k;
    EXPECT_NEAR(row["measured"][t->size() - 1], t->back(), 0.02);  // of a few microseconds, in whole nanoseconds here
  }

  for (const Json& row : j["idle"]) {
    double sum = 0;
    for (const char* cause :
         {"host_late_ms", "launch_ms", "sync_ms", "peer_late_ms", "dependency_ms", "unexplained_ms"})
      sum += row[cause].get<double>();
    EXPECT_NEAR(sum, row["idle_ms"], 1e-5);
  }
  double path = 0, steps = 0;
  for (const Json& row : j["critical_path"]) path += row["ms"].get<double>();
  steps = j["summary"]["iteration_replayed_ms"].get<double>() * static_cast<double>(truth["steps"].size());
  EXPECT_NEAR(path, steps, 1e-3);
}
// Real traces: class times over each rank's own GPU span, computed by another program (in floating point).
TEST(RealTraces, ClassTimesMatchAnotherProgram) {
  const std::string dir = std::string(ORRERY_SOURCE_DIR) + "/../shared/data/traces/";
  std::ifstream file(dir + "GPU_BREAKDOWN.tsv");
  if (!file) GTEST_SKIP() << dir << " is absent";
  struct Row {
    std::string set;
    std::int64_t rank, computes, comms, copies;
    double span, compute, comm, memory, overlap, exposed_comm, idle;  // us
  };
  std::map<std::string, std::vector<Row>> sets;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream in(line);
    Row r;
    in >> r.set >> r.rank >> r.computes >> r.comms >> r.copies >> r.span >> r.compute >> r.comm >> r.memory >>
        r.overlap >> r.exposed_comm >> r.idle;
    sets[r.set].push_back(r);
  }
  ASSERT_FALSE(sets.empty());
  for (const auto& [set, rows] : sets) {
    const auto traces = import_traces({dir + set});
    ASSERT_TRUE(traces.has_value()) << traces.error().line();
    const auto build = build_graph(*traces);
    ASSERT_TRUE(build.has_value()) << build.error().line();
    const ExecGraph& g = build->graph;
    const DeviceTasks tasks = device_tasks(g);
    Replay r;
    replay(g, r);
    DeviceRuns device;
    const DeviceTime& d = device.measured;
    for (const Row& want : rows) {
      const auto k = static_cast<std::size_t>(
          std::find_if(g.ranks.begin(), g.ranks.end(), [&](const GraphRank& x) { return x.rank == want.rank; }) -
          g.ranks.begin());
      ASSERT_LT(k, g.ranks.size()) << set << " rank " << want.rank;
      look_at_device(g, r, tasks, static_cast<std::uint32_t>(k), device);
      ASSERT_FALSE(d.busy.empty());
      const Ns begin = d.busy.front().begin, end = d.busy.back().end;
      const ClassTimes c = class_times(d, begin, end);
      const auto us = [](Ns t) { return static_cast<double>(t) / 1e3; };
      const std::string where = set + " rank " + std::to_string(want.rank);
      EXPECT_NEAR(us(end - begin), want.span, 0.1) << where;
      EXPECT_NEAR(us(c.exposed_compute + c.overlapped), want.compute, 0.1) << where;
      EXPECT_NEAR(us(c.exposed_comm + c.overlapped), want.comm, 0.1) << where;
      EXPECT_NEAR(us(c.overlapped), want.overlap, 0.1) << where;
      EXPECT_NEAR(us(c.exposed_comm), want.exposed_comm, 0.1) << where;
      EXPECT_NEAR(us(covered(d.memory, begin, end)), want.memory, 0.1) << where;
      EXPECT_NEAR(us(c.idle()), want.idle, 0.1) << where;
    }
  }
}

TEST(SimulatedJob, SmallMatchesItsTruth) { expect_truth("gpt-small"); }
TEST(SimulatedJob, SkewedMatchesItsTruth) { expect_truth("gpt-skewed"); }

}  // namespace
}  // namespace orrery
