#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "synthesis/gpt.h"
#include "synthesis/synthetic_job.h"
#include "writers/kineto_writer.h"

namespace orrery {
namespace {

using namespace synth;

constexpr Ns kBaseTime = 1'735'700'000'000'000'000;  // baseTimeNanoseconds, on every rank
constexpr Ns kBegin = kBaseTime + 4'321'987'654'321'000;

const Gpu* find_gpu(std::string_view key) {
  for (const Gpu& g : kGpus)
    if (g.key == key) return &g;
  return nullptr;
}

Status check_job(const SyntheticJob& j) {
  const struct {
    const char* name;
    std::int64_t value;
  } sizes[] = {{"layers", j.layers},
               {"hidden", j.hidden},
               {"heads", j.heads},
               {"seq_length", j.seq_length},
               {"vocab", j.vocab},
               {"micro_batch_size", j.micro_batch_size},
               {"tp", j.tp},
               {"pp", j.pp},
               {"dp", j.dp},
               {"num_microbatches", j.num_microbatches},
               {"chunks", j.chunks},
               {"gpus_per_node", j.gpus_per_node},
               {"ep", j.ep},
               {"experts per token", j.experts_per_token},
               {"steps", j.steps},
               {"queue_depth", j.queue_depth},
               {"clock_grain", j.clock_grain}};
  for (const auto& s : sizes)
    if (s.value < 1 || s.value > 1 << 24)
      return fail(fmt::format("{} is {}", s.name, s.value), "synthetic job",
                  "it must be a positive number of sane size");
  const struct {
    const char* name;
    std::int64_t value, by;
    const char* by_name;
  } divides[] = {{"layers", j.layers, j.pp, "pp"},
                 {"layers of a stage", j.layers / j.pp, j.chunks, "chunks"},
                 {"num_microbatches", j.num_microbatches, j.chunks > 1 ? j.pp : 1, "pp"},
                 {"heads", j.heads, j.tp, "tp"},
                 {"vocab", j.vocab, j.tp, "tp"},
                 {"hidden", j.head_dim > 0 ? j.heads : j.hidden, j.heads, "heads"},
                 {"ffn", j.ffn, j.tp, "tp"},
                 {"kv_heads", j.kv_heads, j.tp, "tp"},
                 {"heads", j.heads, std::max<std::int64_t>(j.kv_heads, 1), "kv_heads"},
                 {"seq_length", j.seq_length, j.sequence_parallel ? j.tp : 1, "tp"},
                 {"experts", j.experts, j.ep, "ep"},
                 {"dp", j.dp, j.ep, "ep"},
                 {"expert_ffn", j.expert_ffn, j.tp, "tp"}};
  for (const auto& d : divides)
    if (d.value % d.by != 0)
      return fail(fmt::format("{} {} does not divide by {} {}", d.name, d.value, d.by_name, d.by), "synthetic job");
  if (j.experts < 0 || (j.experts == 0 && j.ep > 1) || (j.experts > 0 && j.experts_per_token > j.experts))
    return fail(fmt::format("{} experts", j.experts), "synthetic job");
  if (j.experts > 0 && j.tp > 1 && !j.sequence_parallel)
    return fail("experts under tensor parallelism without sequence parallelism", "synthetic job");
  if (j.tp * j.pp * j.dp > 1'024)
    return fail(fmt::format("{} ranks", j.tp * j.pp * j.dp), "synthetic job", "1,024 at most");
  for (const double f : {j.host_factor, j.kernel_factor, j.gemm_factor, j.transfer_factor, j.straggler_factor})
    if (!(f >= 0.001 && f <= 1'000)) return fail(fmt::format("a factor is {}", f), "synthetic job", "0.001 to 1000");
  if (!(j.noise >= 0 && j.noise <= 2)) return fail(fmt::format("noise is {}", j.noise), "synthetic job", "0 to 2");
  for (const double sigma : {j.host_sigma, j.kernel_sigma, j.transfer_sigma, j.routing_skew})
    if (!(sigma >= 0 && sigma <= 0.5))
      return fail(fmt::format("a standard deviation is {}", sigma), "synthetic job", "0 to 0.5");
  if (j.bucket_parameters < 0)
    return fail(fmt::format("bucket_parameters is {}", j.bucket_parameters), "synthetic job");
  if (find_gpu(j.gpu) == nullptr) return fail("unknown GPU " + j.gpu, "synthetic job", "H100 or A100");
  return {};
}

void describe(const SyntheticJob& job, const Gpu& gpu, std::int64_t rank, RankTrace& t) {
  t.rank = rank;
  t.world_size = job.tp * job.pp * job.dp;
  t.file = t.trace_name = fmt::format("rank-{}.json", rank);
  t.base_ns = kBaseTime;
  for (std::int64_t d = 0; d < std::min(job.gpus_per_node, t.world_size); ++d)
    t.devices.push_back({d, std::string(gpu.name), gpu.memory_bytes, gpu.sms, gpu.compute_major, gpu.compute_minor});
}

// Length of the union of intervals that are sorted by start, within [from, to].
struct Union {
  Ns reach, length = 0;
  explicit Union(Ns from) : reach(from) {}
  void add(Ns start, Ns end) {
    if (end <= reach) return;
    length += end - std::max(start, reach);
    reach = end;
  }
};

TrueStep classes_of(const RankTrace& t, const ExecGraph& g, std::uint32_t rank, const Step& step) {
  struct Span {
    Ns start, end;
    NodeKind kind;
  };
  std::vector<Span> spans;
  for (std::uint32_t i = 0; i < g.size(); ++i) {
    const bool task = g.kind[i] == NodeKind::kernel || g.kind[i] == NodeKind::comm || g.kind[i] == NodeKind::memcpy ||
                      g.kind[i] == NodeKind::memset;
    if (g.rank[i] != rank || !task) continue;
    if (g.kind[i] == NodeKind::comm && g.at_begin[i]) continue;  // its other node has the whole interval
    const std::uint32_t op = raw(g.source[i]);
    const Ns start = std::max(t.ops.start[op], step.begin), end = std::min(t.ops.end(op), step.end);
    if (start < end) spans.push_back({start, end, g.kind[i]});
  }
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.start < b.start; });
  Union compute(step.begin), comm(step.begin), both(step.begin), memory(step.begin);
  for (const Span& s : spans) {
    if (s.kind == NodeKind::kernel || s.kind == NodeKind::comm) both.add(s.start, s.end);
    (s.kind == NodeKind::kernel ? compute : s.kind == NodeKind::comm ? comm : memory).add(s.start, s.end);
  }
  TrueStep out;
  out.number = step.number;
  out.begin = step.begin;
  out.duration = step.end - step.begin;
  out.exposed_compute = both.length - comm.length;
  out.exposed_comm = both.length - compute.length;
  out.overlapped = compute.length + comm.length - both.length;
  out.other = out.duration - both.length;
  out.memory = memory.length;
  return out;
}

}  // namespace

Result<SyntheticRun> run_job(const SyntheticJob& job) {
  if (Status s = check_job(job); !s) return tl::unexpected(s.error());
  const Gpu& gpu = *find_gpu(job.gpu);
  const std::int64_t world = job.tp * job.pp * job.dp;

  // Every rank's program, as one graph.
  GraphDraft draft;
  const std::vector<ProcessGroup> groups = process_groups(job);
  std::vector<Recorder> recorders;
  recorders.reserve(static_cast<std::size_t>(world));
  for (std::int64_t r = 0; r < world; ++r) {
    recorders.emplace_back(job, r, draft);
    describe(job, gpu, r, recorders.back().trace());
    record_rank(job, gpu, groups, r, recorders.back());
  }

  std::vector<std::uint32_t> first_lane;
  std::uint32_t lanes = 0;
  for (const Recorder& rec : recorders) {
    first_lane.push_back(lanes);
    lanes += rec.lanes();
  }
  auto ordered = draft.in_order(first_lane);
  if (!ordered) return tl::unexpected(ordered.error());
  SyntheticRun run;
  run.graph = std::move(ordered->graph);
  ExecGraph& g = run.graph;
  Noise start{mix(job.seed + 77), 0};
  for (std::uint32_t r = 0; r < recorders.size(); ++r) {
    GraphRank row;
    row.rank = r;
    row.trace = r;
    row.first_lane = first_lane[r];
    row.lanes = recorders[r].lanes();
    row.origin = kBegin + (job.noise > 0 ? start.vary(60'000, 500'000) : 60'000);  // ranks do not begin together
    g.ranks.push_back(row);
  }

  // Run it; what the profiler saw follows.
  replay(g, run.replay);
  g.observed_start = run.replay.start;
  for (std::uint32_t r = 0; r < recorders.size(); ++r) {
    Recorder& rec = recorders[r];
    const Ns clock_error = static_cast<std::int64_t>(r) / job.gpus_per_node * job.clock_step;
    rec.finish(run.replay, ordered->new_number, clock_error);
    for (const Recorder::StepNodes& s : rec.step_nodes()) {
      Step step;
      step.number = s.number;
      step.rank = r;
      step.begin_node = ordered->new_number[raw(s.begin)];
      step.end_node = ordered->new_number[raw(s.end)];
      step.begin = run.replay.end[raw(step.begin_node)] + clock_error;
      step.end = run.replay.end[raw(step.end_node)] + clock_error;
      rec.truth().steps.push_back(classes_of(rec.trace(), g, r, step));
      step.begin -= clock_error;
      step.end -= clock_error;
      g.steps.push_back(step);
    }
    run.traces.ranks.push_back(std::move(rec.trace()));
    run.truth.push_back(std::move(rec.truth()));
  }
  return run;
}

Result<std::vector<SyntheticRank>> synthesize(const SyntheticJob& job) {
  auto run = run_job(job);
  if (!run) return tl::unexpected(run.error());
  std::vector<SyntheticRank> out;
  for (std::size_t r = 0; r < run->truth.size(); ++r)
    out.push_back({run->traces.ranks[r].rank, to_kineto_json(run->traces.ranks[r]), std::move(run->truth[r])});
  return out;
}

}  // namespace orrery
