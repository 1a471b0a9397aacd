#include "synthesis/estimated_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "synthesis/estimated_names.h"
#include "synthesis/estimated_stage.h"

namespace orrery {
namespace {

using namespace synth;

constexpr Ns kBaseTime = 1'735'700'000'000'000'000;
constexpr Ns kBegin = kBaseTime + 4'321'987'654'321'000;
constexpr std::int64_t kFirstStep = 4;
constexpr std::int64_t kFirstProcess = 4'000;
// Operators of one rank: a trace of them has some 3 kB each.
constexpr double kMostOperators = 5e6;

double operators_of(const EstimateJob& job, const JobOperators& o) {
  const LayerWork& w = o.layer(job.model.layers - 1);
  const double layer = static_cast<double>(w.forward.size() + w.backward.size() + w.weight.size());
  return layer * static_cast<double>(job.model.layers) / static_cast<double>(job.pp) *
         static_cast<double>(job.num_microbatches);
}

// What the recorder asks of a job that it knows nothing else of: no noise, shapes and modules, queues without an end.
SyntheticJob recorded_as(const EstimateJob& job) {
  SyntheticJob s;
  s.tp = job.tp, s.pp = job.pp, s.dp = job.replicas();
  s.gpus_per_node = std::max<std::int64_t>(1, job.platform.gpus_per_node);
  s.noise = 0;
  s.nccl_internal = false;
  s.cuda_sync = true;
  s.queue_depth = std::numeric_limits<std::int32_t>::max();
  return s;
}

std::int64_t devices_of(const EstimateJob& job) {
  return std::min(std::max<std::int64_t>(1, job.platform.gpus_per_node), job.world());
}

void describe(const EstimateJob& job, RankTrace& t) {
  const GpuFacts& gpu = job.platform.gpu;
  const auto capability = [&]() -> std::pair<std::int32_t, std::int32_t> {
    switch (architecture_of(gpu)) {
      case Architecture::volta:
        return {7, 0};
      case Architecture::turing:
        return {7, 5};
      case Architecture::ampere:
        return {8, 0};
      case Architecture::ampere_ga102:
        return {8, 6};
      case Architecture::ada:
        return {8, 9};
      case Architecture::hopper:
        return {9, 0};
      case Architecture::blackwell:
        return {10, 0};
      case Architecture::blackwell_gb202:
        return {12, 0};
      default:
        return {9, 0};
    }
  }();
  t.world_size = job.world();
  t.base_ns = kBaseTime;
  for (std::int64_t d = 0; d < devices_of(job); ++d)
    t.devices.push_back({d, driver_name(gpu), static_cast<std::int64_t>(gpu.memory_gib * 1024 * 1024 * 1024), gpu.sms,
                         capability.first, capability.second});
}

void name_rank(const EstimateJob& job, std::int64_t rank, RankTrace& t) {
  t.rank = rank;
  t.file = t.trace_name = fmt::format("rank-{}.json", rank);
  t.groups.clear();
  for (std::size_t k = 0; k < kGroupKinds; ++k)
    if (auto g = group_of(job, static_cast<GroupKind>(k), rank)) t.groups.push_back(std::move(*g));
}

RankTrace copy_of(const RankTrace& from) {
  RankTrace t;
  t.world_size = from.world_size;
  t.base_ns = from.base_ns;
  t.devices = from.devices;
  for (std::uint32_t i = 0; i < from.strings.size(); ++i) t.strings.intern(from.strings.view(StrId{i}));  // same ids
  t.ops = from.ops;
  t.op_args = from.op_args;
  t.python_args = from.python_args;
  t.kernel_args = from.kernel_args;
  t.copy_args = from.copy_args;
  t.comm_args = from.comm_args;
  t.sync_args = from.sync_args;
  t.lanes = from.lanes;
  t.flows = from.flows;
  t.window_start = from.window_start;
  t.window_end = from.window_end;
  return t;
}

}  // namespace

Result<EstimatedRun> record_estimated(const EstimateJob& job, const JobCosts& costs, std::int64_t steps) {
  const JobOperators operators(job, costs);
  if (operators_of(job, operators) * static_cast<double>(steps) > kMostOperators)
    return fail(fmt::format("{} micro-batches of {} layers would make traces of millions of operators",
                            job.num_microbatches, job.model.layers),
                "synth", "ask for fewer micro-batches or steps");
  const std::vector<StageWork> stages = stages_of(job, costs);
  StepGraph graph;
  if (Status s = write_step(job, costs, stages, job.num_microbatches, true, graph); !s)
    return tl::unexpected(s.error());

  const SyntheticJob recorded = recorded_as(job);
  GraphDraft draft;
  std::vector<Recorder> recorders;
  recorders.reserve(stages.size());
  const EstimatedStep step{job, costs, stages, graph, operators};
  std::vector<std::uint32_t> first_lane;
  std::uint32_t lanes = 0;
  for (std::uint32_t s = 0; s < stages.size(); ++s) {
    recorders.emplace_back(recorded, s, draft);
    describe(job, recorders.back().trace());
    StageRecorder stage(step, s, recorders.back());
    for (std::int64_t k = 0; k < steps; ++k) stage.record(kFirstStep + k);
    first_lane.push_back(lanes);
    lanes += recorders.back().lanes();
  }
  auto ordered = draft.in_order(first_lane);
  if (!ordered) return tl::unexpected(ordered.error());
  ExecGraph& g = ordered->graph;
  for (std::uint32_t s = 0; s < recorders.size(); ++s) {
    GraphRank row;
    row.rank = s;
    row.trace = s;
    row.first_lane = first_lane[s];
    row.lanes = recorders[s].lanes();
    row.origin = kBegin;
    g.ranks.push_back(row);
  }
  Replay run;
  replay(g, run);

  EstimatedRun out;
  out.job = job;
  std::vector<Ns> longest(static_cast<std::size_t>(steps), 0);
  for (std::uint32_t s = 0; s < recorders.size(); ++s) {
    Recorder& rec = recorders[s];
    rec.finish(run, ordered->new_number, 0);
    for (const Recorder::StepNodes& n : rec.step_nodes()) {
      const Ns begin = run.end[raw(ordered->new_number[raw(n.begin)])],
               end = run.end[raw(ordered->new_number[raw(n.end)])];
      Ns& most = longest[static_cast<std::size_t>(n.number - kFirstStep)];
      most = std::max(most, end - begin);
    }
    name_rank(job, static_cast<std::int64_t>(s) * job.tp * job.replicas(), rec.trace());
    out.stages.push_back(std::move(rec.trace()));
  }
  for (const Ns t : longest) out.iteration_ns += static_cast<double>(t) / static_cast<double>(steps);
  return out;
}

RankTrace trace_of_rank(const EstimatedRun& run, std::int64_t rank) {
  const EstimateJob& job = run.job;
  const std::int64_t in_stage = job.tp * job.replicas();
  const RankTrace& recorded = run.stages[static_cast<std::size_t>(rank / in_stage)];
  RankTrace t = copy_of(recorded);
  const std::int64_t behind = rank - recorded.rank;
  name_rank(job, rank, t);
  for (std::size_t l = 0; l < t.lanes.size(); ++l) {
    const bool thread = t.lanes.kind[l] == LaneKind::thread;
    t.lanes.pid[l] = thread ? kFirstProcess + rank : rank % devices_of(job);
    if (!thread) continue;
    // the first is the process' own
    t.lanes.tid[l] += recorded.lanes.tid[l] < kFirstProcess + job.world() ? behind : 0;
    t.lanes.name[l] =
        t.strings.intern(fmt::format("thread {} ({})", t.lanes.tid[l], l == 0 ? "python3" : "pt_autograd_0"));
  }
  CommArgs& c = t.comm_args;
  for (std::size_t i = 0; i < c.size(); ++i) {
    for (std::int32_t* peer : {&c.src_rank[i], &c.dst_rank[i]})
      if (*peer >= 0) *peer += static_cast<std::int32_t>(behind);
    const std::string_view name = recorded.strings.view(c.group_name[i]);
    if (name.empty()) continue;
    const auto g = std::find_if(t.groups.begin(), t.groups.end(), [&](const ProcessGroup& x) {
      return kind_of_name(job, x.name) == kind_of_name(job, name);
    });
    if (g == t.groups.end()) continue;
    c.group_name[i] = t.strings.intern(g->name);
    c.group_ranks[i] = t.strings.intern(fmt::format("[{}]", fmt::join(g->ranks, ", ")));
  }
  return t;
}

}  // namespace orrery
