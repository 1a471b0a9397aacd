// Made-up jobs: what their traces claim must hold in them, and the truth that comes with them must be true.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/byte_source.h"
#include "graph/build.h"
#include "importers/importers.h"
#include "synthesis/synthetic_job.h"
#include "writers/kineto_writer.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

SyntheticJob small_job() {
  SyntheticJob j;
  j.layers = 2;
  j.hidden = 512;
  j.heads = 8;
  j.seq_length = 512;
  j.vocab = 8'192;
  j.num_microbatches = 4;
  j.steps = 1;
  return j;
}

SyntheticJob one_gpu() {
  SyntheticJob j = small_job();
  j.layers = j.tp = j.pp = j.dp = j.num_microbatches = 1;
  return j;
}

SyntheticRun run_of(const SyntheticJob& job) {
  auto run = run_job(job);
  EXPECT_TRUE(run) << (run ? "" : run.error().line());
  return run ? std::move(*run) : SyntheticRun{};
}

// By correlation id, the row of the call or of the GPU task.
std::map<std::int64_t, std::uint32_t> rows(const RankTrace& t, bool tasks) {
  std::map<std::int64_t, std::uint32_t> out;
  for (std::uint32_t i = 0; i < t.ops.size(); ++i)
    if (tasks ? is_gpu_task(t.ops.kind[i]) : t.ops.kind[i] == OpKind::runtime) out[t.ops.corr[i]] = i;
  return out;
}

std::size_t count(const RankTrace& t, OpKind kind) {
  return static_cast<std::size_t>(std::count(t.ops.kind.begin(), t.ops.kind.end(), kind));
}

std::vector<SyntheticJob> variants() {
  std::vector<SyntheticJob> out;
  const auto add = [&](auto change) {
    SyntheticJob j = small_job();
    change(j);
    out.push_back(j);
  };
  add([](SyntheticJob&) {});
  add([](SyntheticJob& j) { j.tp = j.pp = j.dp = 1; });
  add([](SyntheticJob& j) { j.pp = 4, j.layers = 4, j.tp = 1, j.dp = 1; });
  add([](SyntheticJob& j) { j.pp = 4, j.layers = 4, j.tp = 1, j.num_microbatches = 2; });
  add([](SyntheticJob& j) { j.p2p_sync = j.cuda_sync = j.item_pageable = true, j.modules = j.shapes = false; });
  add([](SyntheticJob& j) { j.steps = 2, j.noise = 0, j.queue_depth = 128, j.host_factor = 0.1; });
  add([](SyntheticJob& j) { j.gpus_per_node = 4, j.clock_step = 2'000'000, j.clock_grain = 100, j.gpu = "A100"; });
  return out;
}

TEST(Synthesis, GraphsAreSound) {
  for (const SyntheticJob& job : variants()) {
    const SyntheticRun run = run_of(job);
    const Status ok = check(run.graph);
    EXPECT_TRUE(ok) << (ok ? "" : ok.error().line());
    EXPECT_EQ(run.graph.ranks.size(), static_cast<std::size_t>(job.tp * job.pp * job.dp));
    EXPECT_EQ(run.graph.steps.size(), run.graph.ranks.size() * static_cast<std::size_t>(job.steps));
  }
}

TEST(Synthesis, OneLayerOnOneGpuLaunchesWhatItShould) {
  const SyntheticRun run = run_of(one_gpu());
  ASSERT_EQ(run.traces.ranks.size(), 1u);
  const RankTrace& t = run.traces.ranks[0];
  // 12 * 512^2 + 2 * 8192 * 512 = 11.5 million parameters: one launch for each multi-tensor operation.
  // forward: embedding 1; layer: 2 norms, 4 GEMMs, attention, GELU, 2 fused additions; loss: norm, GEMM, exp, sum, log
  // backward: loss 1, its GEMM twice, its norm 2 and the accumulation 1; layer: 2 fused additions, 4 GEMMs twice,
  //   GELU 1, attention 2, norms 2 x (2 + 1); embedding 1
  // optimizer: L2 norm, pow, scale, Adam, copy
  EXPECT_EQ(count(t, OpKind::kernel), (1u + 10 + 5) + (1 + 2 + 3 + 2 + 8 + 1 + 2 + 6 + 1) + 5);
  EXPECT_EQ(count(t, OpKind::memcpy), 2u);  // tokens in, gradient norm out
  EXPECT_EQ(count(t, OpKind::memset), 1u);  // gradients
  EXPECT_TRUE(run.truth[0].event_edges.empty());
  EXPECT_TRUE(run.truth[0].transfers.empty());
  ASSERT_EQ(run.truth[0].syncs.size(), 2u);  // cudaStreamSynchronize of .item(), cudaDeviceSynchronize
}

TEST(Synthesis, ScheduleIsOneForwardOneBackward) {
  const SyntheticRun run = run_of(small_job());
  const auto schedule = [&](std::size_t rank) {
    std::string s;
    const RankTrace& t = run.traces.ranks[rank];
    for (std::uint32_t i = 0; i < t.ops.size(); ++i) {
      if (t.ops.kind[i] != OpKind::user_annotation) continue;
      if (t.name_of(OpId{i}) == "forward_step") s += 'F';
      if (t.name_of(OpId{i}) == "backward_step") s += 'B';
    }
    return s;
  };
  EXPECT_EQ(schedule(0), "FFBFBFBB");  // first stage: one forward pass ahead
  EXPECT_EQ(schedule(7), "FBFBFBFB");  // last stage
}

TEST(Synthesis, ThreadsNestAndStreamsDoNotOverlap) {
  for (const SyntheticJob& job : variants()) {
    const SyntheticRun run = run_of(job);
    for (const RankTrace& t : run.traces.ranks) {
      std::map<std::uint32_t, std::vector<Ns>> open;  // by lane: ends
      for (std::uint32_t i = 0; i < t.ops.size(); ++i) {
        const OpKind k = t.ops.kind[i];
        if (k == OpKind::gpu_annotation || k == OpKind::sync) continue;
        ASSERT_GE(t.ops.dur[i], 0);
        std::vector<Ns>& ends = open[raw(t.ops.lane[i])];
        while (!ends.empty() && ends.back() <= t.ops.start[i]) ends.pop_back();
        if (is_gpu_task(k)) {
          ASSERT_TRUE(ends.empty()) << t.name_of(OpId{i}) << " overlaps";
        } else if (!ends.empty()) {
          ASSERT_LE(t.ops.end(i), ends.back()) << t.name_of(OpId{i}) << " outlives its parent";
        }
        ends.push_back(t.ops.end(i));
      }
    }
  }
}

TEST(Synthesis, ClassesAddUpToTheStep) {
  const SyntheticRun run = run_of({});
  for (const TrueRank& rank : run.truth) {
    ASSERT_EQ(rank.steps.size(), 2u);
    for (const TrueStep& s : rank.steps) {
      EXPECT_EQ(s.exposed_compute + s.overlapped + s.exposed_comm + s.other, s.duration);
      EXPECT_GT(s.exposed_compute, 0);
      EXPECT_GT(s.overlapped, 0);  // gradients are reduced, and inputs' gradients summed, beside the backward pass
      EXPECT_GT(s.exposed_comm, 0);
      EXPECT_GT(s.memory, 0);
    }
  }
}

TEST(Synthesis, TrueEdgesHoldInTheTrace) {
  for (const SyntheticJob& job : variants()) {
    const SyntheticRun run = run_of(job);
    for (std::size_t r = 0; r < run.truth.size(); ++r) {
      const RankTrace& t = run.traces.ranks[r];
      const auto calls = rows(t, false), tasks = rows(t, true);
      const auto name = [&](std::int64_t call) { return std::string(t.name_of(OpId{calls.at(call)})); };
      for (const TrueEventEdge& e : run.truth[r].event_edges) {
        EXPECT_EQ(name(e.wait), "cudaStreamWaitEvent");
        EXPECT_EQ(name(e.record), "cudaEventRecord");
        EXPECT_LT(e.record, e.wait);
        if (e.to_task == 0) continue;
        for (const std::int64_t from : e.from_tasks)
          EXPECT_LE(t.ops.end(tasks.at(from)), t.ops.start[tasks.at(e.to_task)]);
      }
      for (const TrueSync& s : run.truth[r].syncs)
        for (const std::int64_t task : s.tasks) EXPECT_LE(t.ops.end(tasks.at(task)), t.ops.end(calls.at(s.call)));
    }
  }
}

// What a profiler with cuda_sync events would have said must be what the truth says.
TEST(Synthesis, SyncEventsAgreeWithTheTruth) {
  SyntheticJob job = small_job();
  EXPECT_EQ(count(run_of(job).traces.ranks[0], OpKind::sync), 0u);
  job.cuda_sync = true;
  const SyntheticRun run = run_of(job);
  const RankTrace& t = run.traces.ranks[0];
  std::map<std::int64_t, std::int64_t> record_of;
  for (const TrueEventEdge& e : run.truth[0].event_edges) record_of[e.wait] = e.record;
  std::size_t waits = 0, blocking = 0;
  for (std::uint32_t i = 0; i < t.ops.size(); ++i) {
    if (t.ops.kind[i] != OpKind::sync) continue;
    const std::uint32_t row = t.ops.extra[i];
    if (t.sync_args.kind[row] == SyncKind::stream_wait_event) {
      EXPECT_EQ(t.sync_args.wait_record_corr[row], record_of.at(t.ops.corr[i]));
      ++waits;
    } else {
      ++blocking;
    }
  }
  EXPECT_EQ(waits, run.truth[0].event_edges.size());
  EXPECT_EQ(blocking, run.truth[0].syncs.size());
}

TEST(Synthesis, MembersOfACollectiveEndTogether) {
  SyntheticJob job = small_job();
  job.noise = 0;
  const SyntheticRun run = run_of(job);
  struct Call {
    std::set<Ns> ends;
    Ns last_start = 0;
    std::set<Ns> transfers;
    std::int64_t members = 0, size = 0;
  };
  std::map<std::tuple<std::string, std::string, std::int64_t>, Call> calls;
  for (std::size_t r = 0; r < run.truth.size(); ++r) {
    const RankTrace& t = run.traces.ranks[r];
    std::map<std::int64_t, Ns> transfer;
    for (const TrueTransfer& x : run.truth[r].transfers) transfer[x.kernel] = x.transfer;
    for (std::uint32_t i = 0; i < t.ops.size(); ++i) {
      if (t.ops.kind[i] != OpKind::kernel) continue;
      const std::uint32_t c = t.kernel_args.comm[t.ops.extra[i]];
      if (c == kNone) continue;
      const auto text = [&](StrId s) { return std::string(t.strings.view(s)); };
      Call& call = calls[{text(t.comm_args.group_desc[c]), text(t.comm_args.group_ranks[c]), t.comm_args.seq[c]}];
      call.ends.insert(t.ops.end(i));
      call.last_start = std::max(call.last_start, t.ops.start[i]);
      call.transfers.insert(transfer.at(t.ops.corr[i]));
      call.size = t.comm_args.group_size[c];
      ++call.members;
    }
  }
  EXPECT_GT(calls.size(), 20u);
  for (const auto& [key, call] : calls) {
    EXPECT_EQ(call.members, call.size) << std::get<0>(key);
    EXPECT_EQ(call.ends.size(), 1u) << std::get<0>(key) << " " << std::get<2>(key);
    EXPECT_EQ(call.transfers.size(), 1u);
    EXPECT_EQ(*call.ends.begin(), call.last_start + *call.transfers.begin());
  }
}

TEST(Synthesis, SameSeedSameBytes) {
  const auto a = synthesize(small_job()), b = synthesize(small_job());
  ASSERT_TRUE(a && b);
  for (std::size_t r = 0; r < a->size(); ++r) EXPECT_EQ((*a)[r].json, (*b)[r].json);
  SyntheticJob other = small_job();
  other.seed = 2;
  EXPECT_NE((*synthesize(other))[0].json, (*a)[0].json);
}

// A factor changes what it names and leaves the noise of the rest alone.
TEST(Synthesis, FactorsChangeWhatTheyName) {
  const auto step = [](const SyntheticRun& run) { return run.truth[0].steps[0].duration; };
  const auto durations = [](const SyntheticRun& run, bool gemm) {
    std::vector<Ns> out;
    const RankTrace& t = run.traces.ranks[0];
    for (std::uint32_t i = 0; i < t.ops.size(); ++i)
      if (t.ops.kind[i] == OpKind::kernel && t.kernel_args.comm[t.ops.extra[i]] == kNone &&
          t.name_of(OpId{i}).find("nccl") == std::string_view::npos &&
          (t.name_of(OpId{i}).find("gemm") != std::string_view::npos) == gemm)
        out.push_back(t.ops.dur[i]);
    return out;
  };
  const SyntheticRun base = run_of(small_job());
  SyntheticJob job = small_job();
  job.gemm_factor = 3;
  const SyntheticRun gemm = run_of(job);
  EXPECT_EQ(durations(gemm, false), durations(base, false));
  const auto slow = durations(gemm, true), fast = durations(base, true);
  ASSERT_EQ(slow.size(), fast.size());
  for (std::size_t i = 0; i < slow.size(); ++i) EXPECT_LE(std::abs(slow[i] - 3 * fast[i]), 3);

  job = small_job();
  job.host_factor = 3;
  const SyntheticRun host = run_of(job);
  EXPECT_EQ(durations(host, true), durations(base, true));
  EXPECT_GT(step(host), step(base) * 3 / 2);  // this small job is bound by its host

  job = small_job();
  job.kernel_factor = 20;  // now by its kernels
  const SyntheticRun kernels = run_of(job);
  EXPECT_GT(step(kernels), step(base) * 3 / 2);
  // One slow rank holds up all, who wait for it in their collectives.
  job.straggler = 5;
  job.straggler_factor = 2;
  const SyntheticRun straggler = run_of(job);
  EXPECT_GT(step(straggler), step(kernels) * 5 / 4);
  const auto waiting = [](const TrueRank& r) {
    Ns sum = 0;
    for (const TrueTransfer& x : r.transfers) sum += x.waiting;
    return sum;
  };
  for (std::size_t r = 0; r < 8; ++r)
    if (r != 5) {
      EXPECT_GT(waiting(straggler.truth[r]), waiting(straggler.truth[5])) << r;
    }
}

TEST(Synthesis, FullLaunchQueueBlocksTheHost) {
  SyntheticJob job = one_gpu();
  job.num_microbatches = 4;
  job.kernel_factor = 20;
  const auto longest_launch = [](const SyntheticRun& run) {
    Ns longest = 0;
    const RankTrace& t = run.traces.ranks[0];
    for (std::uint32_t i = 0; i < t.ops.size(); ++i)
      if (t.name_of(OpId{i}) == "cudaLaunchKernel") longest = std::max(longest, t.ops.dur[i]);
    return longest;
  };
  EXPECT_LT(longest_launch(run_of(job)), 20'000);
  job.queue_depth = 16;
  EXPECT_GT(longest_launch(run_of(job)), 20'000);
}

TEST(Synthesis, RefusesImpossibleJobs) {
  const auto error = [](auto change) {
    SyntheticJob j = small_job();
    change(j);
    const auto run = run_job(j);
    return run ? std::string("accepted") : run.error().line();
  };
  EXPECT_NE(error([](SyntheticJob& j) { j.layers = 3; }).find("layers 3 does not divide by pp 2"), std::string::npos);
  EXPECT_NE(error([](SyntheticJob& j) { j.tp = 3; }).find("does not divide by tp 3"), std::string::npos);
  EXPECT_NE(error([](SyntheticJob& j) { j.steps = 0; }).find("steps is 0"), std::string::npos);
  EXPECT_NE(error([](SyntheticJob& j) { j.gpu = "B300"; }).find("unknown GPU B300"), std::string::npos);
  EXPECT_NE(error([](SyntheticJob& j) { j.host_factor = -1; }).find("factor"), std::string::npos);
}

TEST(Synthesis, JsonHasKinetosShape) {
  SyntheticJob job = small_job();
  job.layers = 2;
  const auto ranks = synthesize(job);
  ASSERT_TRUE(ranks);
  const std::string& text = (*ranks)[6].json;
  EXPECT_GT(text.find("\"baseTimeNanoseconds\""), text.find("\"traceEvents\""));  // as PyTorch writes it
  const Json j = Json::parse(text);
  EXPECT_EQ(j["distributedInfo"]["rank"], 6);
  EXPECT_EQ(j["distributedInfo"]["world_size"], 8);
  const Json& groups = j["distributedInfo"]["pg_config"];
  ASSERT_EQ(groups.size(), 5u);
  EXPECT_EQ(groups[1]["pg_desc"], "DATA_PARALLEL_GROUP");
  EXPECT_EQ(groups[1]["ranks"], Json({4, 6}));
  std::map<std::string, std::size_t> seen;
  std::map<std::int64_t, int> flow_ends;
  for (const Json& e : j["traceEvents"]) {
    ++seen[e.value("ph", "") + ":" + e.value("cat", e["name"].get<std::string>())];
    if (e.value("cat", "") == "ac2g") flow_ends[e["id"]] += e["ph"] == "s" ? 1 : 16;
  }
  for (const char* what :
       {"X:cpu_op", "X:user_annotation", "X:python_function", "X:cuda_runtime", "X:cuda_driver", "X:kernel",
        "X:gpu_memcpy", "X:gpu_memset", "X:gpu_user_annotation", "s:fwdbwd", "f:fwdbwd", "M:thread_name"})
    EXPECT_GT(seen[what], 0u) << what;
  EXPECT_EQ(seen["X:cuda_sync"], 0u);
  EXPECT_EQ(flow_ends.size(), seen["X:kernel"] + seen["X:gpu_memcpy"] + seen["X:gpu_memset"]);
  for (const auto& [id, ends] : flow_ends) EXPECT_EQ(ends, 17) << id;  // one start, one finish
}

// Reading the text back gives the rows that it was written from.
TEST(Synthesis, ImportsAsWritten) {
  SyntheticJob job = small_job();
  job.cuda_sync = true;
  const SyntheticRun run = run_of(job);
  for (const std::size_t r : {0u, 5u}) {
    const RankTrace& a = run.traces.ranks[r];
    const auto imported = import_kineto_bytes(to_kineto_json(a), "made-up.json");
    ASSERT_TRUE(imported) << imported.error().line();
    const RankTrace& b = *imported;
    EXPECT_EQ(b.rank, static_cast<std::int64_t>(r));
    EXPECT_EQ(b.world_size, 8);
    EXPECT_EQ(b.groups.size(), a.groups.size());
    EXPECT_EQ(b.devices.size(), a.devices.size());
    EXPECT_FALSE(b.notes.lost_data());
    using Row = std::tuple<int, std::string, Ns, Ns, std::int64_t, std::int64_t, std::int64_t, std::string>;
    const auto table = [](const RankTrace& t) {
      std::multiset<Row> out;
      for (std::uint32_t i = 0; i < t.ops.size(); ++i) {
        const OpKind k = t.ops.kind[i];
        if (k == OpKind::other) continue;
        const std::uint32_t x = t.ops.extra[i];
        std::int64_t number = -1;  // rows without arguments have no entry
        std::string words;
        std::uint32_t comm = kNone;
        if ((k == OpKind::cpu_op || k == OpKind::user_annotation) && x != kNone) {
          number = t.op_args.sequence[x];
          words = t.strings.view(t.op_args.input_dims[x]);
          comm = t.op_args.comm[x];
        }
        if (k == OpKind::kernel) {
          number = t.kernel_args.grid_blocks[x];
          comm = t.kernel_args.comm[x];
        }
        if (k == OpKind::memcpy || k == OpKind::memset) number = t.copy_args.bytes[x];
        if (k == OpKind::sync) number = t.sync_args.wait_record_corr[x];
        if (k == OpKind::python) number = t.python_args.parent[x];
        if (comm != kNone) {
          words += t.strings.view(t.comm_args.collective[comm]);
          words += t.strings.view(t.comm_args.group_ranks[comm]);
          words += std::to_string(t.comm_args.seq[comm]) + "/" + std::to_string(t.comm_args.in_elems[comm]) + "/" +
                   std::to_string(t.comm_args.dst_rank[comm]);
        }
        out.insert({static_cast<int>(k), std::string(t.name_of(OpId{i})), t.ops.start[i], t.ops.dur[i], t.ops.corr[i],
                    t.ops.ext[i], number, words});
      }
      return out;
    };
    const auto want = table(a), got = table(b);
    EXPECT_EQ(want.size(), got.size());
    const auto differing = std::mismatch(want.begin(), want.end(), got.begin(), got.end());
    if (differing.first != want.end() && differing.second != got.end()) {
      EXPECT_EQ(*differing.first, *differing.second);
    }
    EXPECT_EQ(b.flows.size(), a.flows.size());
  }
}

// ---- what the graph builder makes of it ----

struct Rebuilt {
  TraceSet traces;
  GraphBuild build;
};
Rebuilt rebuilt(const std::vector<SyntheticRank>& ranks) {
  Rebuilt out;
  for (const SyntheticRank& r : ranks) {
    auto t = import_kineto_bytes(r.json, "rank-" + std::to_string(r.rank) + ".json");
    EXPECT_TRUE(t) << (t ? "" : t.error().line());
    if (t) out.traces.ranks.push_back(std::move(*t));
  }
  auto build = build_graph(out.traces);
  EXPECT_TRUE(build) << (build ? "" : build.error().line());
  if (build) out.build = std::move(*build);
  return out;
}

using Edges = std::set<std::pair<std::int64_t, std::int64_t>>;  // correlation ids

Edges edges_of(const Rebuilt& r, std::uint32_t rank, EdgeKind kind) {
  Edges out;
  const ExecGraph& g = r.build.graph;
  const RankTrace& t = r.traces.ranks[rank];
  const auto correlation = [&](std::uint32_t node) { return t.ops.corr[raw(g.source[node])]; };
  for (std::uint32_t i = 0; i < g.size(); ++i)
    for (std::uint32_t e = g.first_pred[i]; e < g.first_pred[i + 1]; ++e)
      if (g.rank[i] == rank && g.pred_kind[e] == kind && g.pred[e] != kNoNode && g.rank[raw(g.pred[e])] == rank)
        out.insert({correlation(raw(g.pred[e])), correlation(i)});
  return out;
}

// Waits and blocking calls that the traces only hint at are found, and none is made up. A true edge may be missing
// where a later task of the same stream is waited for as well.
TEST(Synthesis, GraphHasTheTrueEdges) {
  for (const bool cuda_sync : {false, true}) {
    SyntheticJob job;
    job.steps = 1;
    job.p2p_sync = cuda_sync;
    job.cuda_sync = cuda_sync;
    const auto ranks = synthesize(job);
    ASSERT_TRUE(ranks);
    const Rebuilt r = rebuilt(*ranks);
    ASSERT_EQ(r.traces.ranks.size(), 8u);
    for (std::uint32_t k = 0; k < 8; ++k) {
      const RankTrace& t = r.traces.ranks[k];
      const auto tasks = rows(t, true);
      const auto stream = [&](std::int64_t task) { return raw(t.ops.lane[tasks.at(task)]); };
      Edges truth, needed, syncs;
      std::map<std::pair<std::uint32_t, std::int64_t>, std::int64_t> last;  // by stream and waiting task
      for (const TrueEventEdge& e : (*ranks)[k].truth.event_edges)
        for (const std::int64_t from : e.from_tasks) {
          if (e.to_task == 0 || stream(from) == stream(e.to_task)) continue;
          truth.insert({from, e.to_task});
          std::int64_t& newest = last[{stream(from), e.to_task}];
          newest = std::max(newest, from);
        }
      for (const auto& [where, from] : last) needed.insert({from, where.second});
      for (const TrueSync& s : (*ranks)[k].truth.syncs)
        for (const std::int64_t task : s.tasks) syncs.insert({task, s.call});
      const Edges found = edges_of(r, k, EdgeKind::event);
      EXPECT_TRUE(std::includes(truth.begin(), truth.end(), found.begin(), found.end())) << "rank " << k;
      EXPECT_TRUE(std::includes(found.begin(), found.end(), needed.begin(), needed.end())) << "rank " << k;
      EXPECT_EQ(edges_of(r, k, EdgeKind::sync), syncs) << "rank " << k;
    }
  }
}

// An undisturbed replay does not test a graph; one with other durations does, against the job really run with them.
TEST(Synthesis, PerturbedReplayMeetsThePerturbedTruth) {
  SyntheticJob job;
  job.tp = job.pp = job.dp = 1;
  const auto base = synthesize(job);
  ASSERT_TRUE(base);
  const Rebuilt r = rebuilt(*base);
  const auto step_of = [&](auto scale) {
    ExecGraph g = r.build.graph;
    for (std::uint32_t i = 0; i < g.size(); ++i)
      g.duration[i] = static_cast<Ns>(static_cast<double>(g.duration[i]) * scale(g, i));
    Replay run;
    replay(g, run);
    return static_cast<double>(run.end[raw(g.steps[1].end_node)] - run.end[raw(g.steps[1].begin_node)]);
  };
  const auto truth_of = [&](const SyntheticJob& j) {
    return static_cast<double>(run_of(j).truth[0].steps[1].duration);
  };
  const auto expect_within = [](double got, double want, double pct, const char* what) {
    EXPECT_LE(std::abs(got / want - 1), pct / 100) << what << ": " << got << " for " << want;
  };
  const double same = step_of([](const ExecGraph&, std::uint32_t) { return 1.0; });
  expect_within(same, truth_of(job), 0.1, "as it was");
  SyntheticJob changed = job;
  changed.host_factor = 4;
  expect_within(step_of([](const ExecGraph& g, std::uint32_t i) { return g.kind[i] == NodeKind::host ? 4.0 : 1.0; }),
                truth_of(changed), 1, "host x4");
  EXPECT_GT(truth_of(changed), 1.2 * same);
  changed = job;
  changed.gemm_factor = 0.25;
  const auto gemm = [&](const ExecGraph& g, std::uint32_t i) {
    return g.kind[i] == NodeKind::kernel &&
                   r.traces.ranks[0].name_of(g.source[i]).find("gemm") != std::string_view::npos
               ? 0.25
               : 1.0;
  };
  expect_within(step_of(gemm), truth_of(changed), 1, "GEMMs x0.25");
  EXPECT_LT(truth_of(changed), 0.9 * same);
}

TEST(Synthesis, SampleIsWhatTheGeneratorMakes) {
  SyntheticJob job;  // as samples/gpt-tp2-pp2-dp2/README.md says
  job.nccl_internal = false;
  job.clock_grain = 200;
  const auto ranks = synthesize(job);
  ASSERT_TRUE(ranks);
  ASSERT_EQ(ranks->size(), 8u);
  std::uintmax_t size = 0;
  for (const SyntheticRank& r : *ranks) {
    const std::string file = ORRERY_SOURCE_DIR "/samples/gpt-tp2-pp2-dp2/rank-" + std::to_string(r.rank) + ".json.gz";
    size += std::filesystem::file_size(file);
    auto source = open_file(file);
    ASSERT_TRUE(source) << source.error().line();
    auto plain = decompressed(std::move(*source), file);
    ASSERT_TRUE(plain) << plain.error().line();
    std::string text(r.json.size() + 1'000, '\0');
    std::size_t n = 0;
    for (;;) {
      const auto got = (*plain)->read(text.data() + n, text.size() - n);
      ASSERT_TRUE(got);
      n += *got;
      if (*got == 0 || n == text.size()) break;
    }
    text.resize(n);
    EXPECT_TRUE(text == r.json) << file << " is not what make_sample writes: make the sample again";
  }
  EXPECT_LT(size, 620'000u);
}

}  // namespace
}  // namespace orrery
