// Rows that reports make of small traces: names, groups, the critical path, differences, the keys of the contract.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "reference/report_helpers.h"
#include "writers/text.h"

namespace orrery {
namespace {

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

// ---- critical path ----

std::vector<OpId> owners_of(const ExecGraph& g) {
  std::vector<OpId> out(g.size(), kNoOp);
  HostOwner owner(g);
  for (std::uint32_t i = 0; i < g.size(); ++i)
    if (g.kind[i] == NodeKind::host) out[i] = owner.next(i);
  return out;
}

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

// ---- collectives ----

// A kernel of `rank` in `group` that took from `start` to `end`, `transfer` of it after the last partner (-1:
// unmatched).
CommRow comm_row(std::uint32_t rank, std::uint32_t group, std::int64_t bytes, Ns start, Ns end, Ns transfer) {
  CommRow c;
  c.rank = rank;
  c.group = group;
  c.op = CommOp::all_reduce;
  c.bytes = bytes;
  c.start = start;
  c.end = end;
  c.transfer = transfer;
  return c;
}

TEST(Collectives, TransferSkewAndBandwidthOfThoseThatMet) {
  Communication c;
  c.op_names = {"allreduce", "sendrecv"};
  c.groups = {{"TP", {0, 1}, 2}};
  c.rows = {comm_row(0, 0, 2000, 0, 100, 40), comm_row(0, 0, 2000, 200, 500, 60), comm_row(1, 0, 2000, 60, 100, 40),
            comm_row(1, 0, 2000, 440, 500, 60), comm_row(1, kNone, -1, 600, 620, -1)};
  c.rows.back().op_name = 1;
  c.rows.back().op = CommOp::exchange;
  c.members = {{0}, {2}, {1}, {3}};
  c.meetings = {{.first = 0, .members = 2, .group = 0, .arrival = 60, .transfer = 40},
                {.first = 2, .members = 2, .group = 0, .arrival = 440, .transfer = 60}};

  const Json j = json_of(collectives_section(c));
  ASSERT_EQ(j.size(), 2u);
  EXPECT_EQ(j[0]["group"], "TP");
  EXPECT_EQ(j[0]["op"], "allreduce");
  EXPECT_EQ(j[0]["bytes"], 2000);
  EXPECT_EQ(j[0]["count"], 2);
  EXPECT_EQ(j[0]["kernels"], 4);
  EXPECT_DOUBLE_EQ(j[0]["transfer_ms"], 50e-6);
  EXPECT_DOUBLE_EQ(j[0]["skew_ms"], 150e-6);     // 60 and 240
  EXPECT_DOUBLE_EQ(j[0]["bus_gb_per_s"], 40.0);  // an all-reduce of two: 2(n-1)/n = 1; 2000 bytes in 50 ns
  EXPECT_DOUBLE_EQ(j[0]["measured_ms"], 125e-6);
  EXPECT_TRUE(j[1]["group"].is_null());
  EXPECT_EQ(j[1]["op"], "sendrecv");
  EXPECT_TRUE(j[1]["bytes"].is_null());
  EXPECT_TRUE(j[1]["transfer_ms"].is_null());
  EXPECT_TRUE(j[1]["skew_ms"].is_null());
  EXPECT_TRUE(j[1]["bus_gb_per_s"].is_null());
}

// Two process groups share a description: each is counted, by its busiest member.
TEST(Collectives, CountAddsUpOverProcessGroups) {
  Communication c;
  c.op_names = {"allreduce"};
  c.groups = {{"TP", {0, 1}, 2}, {"TP", {2, 3}, 2}};
  for (std::uint32_t r = 0; r < 4; ++r)
    for (std::uint32_t n = 0; n < (r == 1 ? 3u : 5u); ++n)
      c.rows.push_back(comm_row(r, r / 2, 4, n * 10, n * 10 + 5, -1));
  const Json j = json_of(collectives_section(c));
  ASSERT_EQ(j.size(), 1u);
  EXPECT_EQ(j[0]["count"], 10);
  EXPECT_EQ(j[0]["kernels"], 18);
}

TEST(Collectives, BusBandwidthIsThatOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(CommOp::all_reduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(CommOp::all_gather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(CommOp::reduce_scatter, 8), 0.875);
  EXPECT_DOUBLE_EQ(bus_factor(CommOp::broadcast, 8), 1);
  EXPECT_DOUBLE_EQ(bus_factor(CommOp::all_reduce, 0), 1);  // size not known
}

// ---- quality ----

TEST(Quality, SharesOfNothingAreNull) {
  const Json empty = json_of(quality_section({}, {}));
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
  const Json j = json_of(quality_section({a, b}, {}));
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
  DiffCase(Ns gemm, bool copy, int steps = 1) {
    TraceMaker t;
    const OpId mm = t.add(OpKind::cpu_op, "aten::mm"), k = t.add(OpKind::kernel, "gemm"),
               c = t.add(OpKind::memcpy, "DtoH");
    GraphMaker m;
    const NodeId begin = m.host(0, 10, {root()}, mm, true);
    m.host(0, 5, {{begin, EdgeKind::thread, 0}}, mm, false);
    const NodeId k1 = m.add(NodeKind::kernel, 2, gemm, {{begin, EdgeKind::launch, 5}}, k);
    const NodeId k2 = m.add(NodeKind::kernel, 2, gemm, {{k1, EdgeKind::stream, 2}}, k);
    if (copy) m.add(NodeKind::memcpy, 2, 7, {{k2, EdgeKind::stream, 1}}, c);
    for (int s = 0; s < steps; ++s) m.step(s, 500 * s, 500 * (s + 1));
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
  const Json gemm = {{"name", "gemm"},
                     {"a_ms", 200e-6},
                     {"b_ms", 320e-6},
                     {"delta_ms", 120e-6},
                     {"a_count", 2},
                     {"b_count", 2},
                     {"a_per_step_ms", 200e-6},
                     {"b_per_step_ms", 320e-6},
                     {"delta_per_step_ms", 120e-6}};
  const Json copy = {{"name", "DtoH"},        {"a_ms", 7e-6},         {"b_ms", 0.0},
                     {"delta_ms", -7e-6},     {"a_count", 1},         {"b_count", 0},
                     {"a_per_step_ms", 7e-6}, {"b_per_step_ms", 0.0}, {"delta_per_step_ms", -7e-6}};
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

// Half the kernels a step, and one copy in two steps: by the sums nothing but the copy changed.
TEST(Diff, RunsOfDifferentNumbersOfStepsMeetPerStep) {
  const DiffCase a(100, false), b(100, true, 2);
  const Document d = diff_document(a.side(), b.side());
  const Json j = Json::parse(to_json(d));
  EXPECT_EQ(j["kernels"][0]["name"], "gemm") << "the largest change per step comes first";
  EXPECT_EQ(j["kernels"][0]["delta_ms"], 0.0);
  EXPECT_DOUBLE_EQ(j["kernels"][0]["a_per_step_ms"], 200e-6);
  EXPECT_DOUBLE_EQ(j["kernels"][0]["b_per_step_ms"], 100e-6);
  EXPECT_DOUBLE_EQ(j["kernels"][0]["delta_per_step_ms"], -100e-6);
  EXPECT_DOUBLE_EQ(j["kernels"][1]["b_per_step_ms"], 3.5e-6);
  ASSERT_EQ(j["notes"].size(), 1u);
  EXPECT_EQ(j["notes"][0]["name"], "different-amounts");
  EXPECT_EQ(j["notes"][0]["first"], "A has 1 step of 1 rank, B 2 steps of 1 rank");
  const std::string text = to_text(d, {});
  EXPECT_NE(text.find("\nKernels (sums: A 1 step of 1 rank, B 2 steps of 1 rank)\n"), std::string::npos) << text;
  const DiffCase c(100, true, 2);
  const std::string same = to_text(diff_document(b.side(), c.side()), {});
  EXPECT_NE(same.find("\nKernels (sums over 2 steps of 1 rank)\n"), std::string::npos) << same;
  EXPECT_EQ(same.find("per step"), std::string::npos) << "nothing new where the sums say it";
  EXPECT_NE(to_text(diff_document(a.side(), a.side()), {}).find("\nKernels\n"), std::string::npos);
}

TEST(Quality, LittleExplainedIdleIsAWarning) {
  GraphMaker m(3, 1);
  for (std::int64_t k = 0; k < 3; ++k) m.g.ranks[static_cast<std::size_t>(k)].rank = 10 + k;
  std::vector<RankQuality> quality(3);
  quality[0].idle_ns = 10'000'000;
  quality[0].unexplained_idle_ns = 1'000'000;  // 90 % is enough
  quality[1].idle_ns = 10'000'000;
  quality[1].unexplained_idle_ns = 1'010'000;
  Notes notes;  // the third was never idle
  note_unexplained_idle(m.g, quality, notes);
  ASSERT_EQ(notes.rows.size(), 1u);
  EXPECT_EQ(notes.rows[0].name, "low-explained-idle");
  EXPECT_EQ(notes.rows[0].severity, Severity::warning);
  EXPECT_EQ(notes.rows[0].count, 1u);
  EXPECT_EQ(notes.rows[0].first, "rank 11: 89.90 % of 10.000 ms");
  EXPECT_NE(notes.rows[0].advice.find("docs/model.md"), std::string::npos);
}

// A device that hardly ever waited says little about the graph, whatever the share.
TEST(Quality, LittleIdleIsNoWarning) {
  const auto warned = [](Ns idle, std::vector<Ns> steps) {
    GraphMaker m(1, 1);
    for (const Ns ns : steps) m.g.steps.push_back({.rank = 0, .begin = 5, .end = 5 + ns});
    std::vector<RankQuality> quality(1);
    quality[0].idle_ns = quality[0].unexplained_idle_ns = idle;
    Notes notes;
    note_unexplained_idle(m.g, quality, notes);
    return !notes.rows.empty();
  };
  EXPECT_FALSE(warned(99'999, {1'000'000}));
  EXPECT_TRUE(warned(100'000, {1'000'000}));
  EXPECT_FALSE(warned(199'999, {10'000'000, 10'000'000})) << "under 1 % of the steps";
  EXPECT_TRUE(warned(200'000, {10'000'000, 10'000'000}));
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

}  // namespace
}  // namespace orrery
