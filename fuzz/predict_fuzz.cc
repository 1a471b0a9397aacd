// libFuzzer target of predictions: a small made-up job whose traces are damaged (rows dropped, moved, renamed, given
// to other lanes; ranks missing; collectives and shapes that say something else) so that the pieces of its ranks
// disagree must give an error or an answer for any change of its shape: a graph that holds, a replay, a document.
// The bytes: which job, what is said of it, what is asked of it, then damages of eight bytes each.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "graph/build.h"
#include "replay/replay.h"
#include "reports/reports.h"
#include "synthesis/synthetic_job.h"
#include "whatif/edits.h"
#include "whatif/given_layout.h"
#include "whatif/job_model.h"
#include "whatif/search.h"
#include "whatif/target.h"
#include "writers/json.h"

namespace {

using namespace orrery;

void require(bool ok) {
  if (!ok) std::abort();
}

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }
  std::uint32_t byte() { return at_ == end_ ? 0 : *at_++; }
  std::uint32_t two() {
    const std::uint32_t low = byte();
    return low | byte() << 8;
  }

 private:
  const std::uint8_t *at_, *end_;
};

// ---- the jobs ----

std::vector<SyntheticJob> described_jobs() {
  SyntheticJob small;
  small.layers = 2;
  small.hidden = 64;
  small.heads = 2;
  small.seq_length = 64;
  small.vocab = 256;
  small.tp = small.pp = small.dp = 1;
  small.num_microbatches = 2;
  small.steps = 1;
  small.modules = false;
  small.nccl_internal = false;
  std::vector<SyntheticJob> jobs(8, small);
  jobs[1].pp = 2, jobs[1].layers = 4;
  jobs[2].tp = 2, jobs[2].num_microbatches = 1, jobs[2].p2p_sync = true;
  jobs[3].dp = 2, jobs[3].steps = 2, jobs[3].distributed_optimizer = true;
  jobs[4].pp = 2;  // one layer a stage
  jobs[5].pp = 2, jobs[5].layers = 4, jobs[5].chunks = 2;
  jobs[6].recompute = SyntheticJob::Recompute::full, jobs[6].layers = 3;
  jobs[7].tp = jobs[7].pp = jobs[7].dp = 2, jobs[7].layers = 4, jobs[7].overlap_gradients = false;
  return jobs;
}

const TraceSet& job_of(std::uint32_t choice) {
  static const std::vector<SyntheticJob> described = described_jobs();
  static std::array<TraceSet, 8> made;
  TraceSet& set = made[choice % made.size()];
  if (set.ranks.empty()) {
    auto run = run_job(described[choice % made.size()]);
    require(run.has_value());
    set = std::move(run->traces);
  }
  return set;
}

RankTrace copy_of(const RankTrace& t) {
  RankTrace to;
  to.file = t.file;
  to.rank = t.rank;
  to.world_size = t.world_size;
  to.host = t.host;
  to.base_ns = t.base_ns;
  to.devices = t.devices;
  to.groups = t.groups;
  for (std::uint32_t i = 0; i < t.strings.size(); ++i) to.strings.intern(t.strings.view(StrId{i}));
  to.ops = t.ops;
  to.op_args = t.op_args;
  to.python_args = t.python_args;
  to.kernel_args = t.kernel_args;
  to.copy_args = t.copy_args;
  to.comm_args = t.comm_args;
  to.sync_args = t.sync_args;
  to.lanes = t.lanes;
  to.flows = t.flows;
  to.memory = t.memory;
  return to;
}

// ---- damages ----

constexpr std::string_view kNames[] = {"allreduce",
                                       "_allgather_base",
                                       "_reduce_scatter_base",
                                       "send",
                                       "recv",
                                       "broadcast",
                                       "",
                                       "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
                                       "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
                                       "ProfilerStep#4",
                                       "cudaLaunchKernel",
                                       "cudaDeviceSynchronize",
                                       "autograd::engine::evaluate_function: AddmmBackward0",
                                       "multi_tensor_apply_kernel_adam",
                                       "aten::mm",
                                       "aten::embedding",
                                       "CheckpointFunctionBackward",
                                       "flash_fwd_kernel"};
constexpr std::string_view kLabels[] = {"TENSOR_MODEL_PARALLEL_GROUP",
                                        "DATA_PARALLEL_GROUP",
                                        "PIPELINE_MODEL_PARALLEL_GROUP",
                                        "EMBEDDING_GROUP",
                                        "MODEL_PARALLEL_GROUP",
                                        "default_pg",
                                        "undefined",
                                        ""};
constexpr std::string_view kMembers[] = {"[0, 1]", "[0, 2]", "[0, 1, 2, 3]", "[1, 0]", "[0, 1, ...]", "[5]", "[]", ""};
constexpr std::string_view kShapes[] = {"[[64, 1, 64], [64, 192]]",
                                        "[[0, 0], [0, 0]]",
                                        "[[9223372036854775807, 2], [2, 9223372036854775807]]",
                                        "[[-1, 3]]",
                                        "[[1, 2, 64, 32], [1, 2, 64, 32], [1, 2, 64, 32]]",
                                        "[[[[",
                                        "[]",
                                        ""};

template <class... Columns>
void erase_rows(std::size_t from, std::size_t to, Columns&... columns) {
  (columns.erase(columns.begin() + static_cast<std::ptrdiff_t>(from),
                 columns.begin() + static_cast<std::ptrdiff_t>(to)),
   ...);
}
void drop(OpTable& o, std::size_t from, std::size_t to) {
  erase_rows(from, to, o.start, o.dur, o.name, o.lane, o.kind, o.corr, o.ext, o.extra);
}
void repeat(OpTable& o, std::size_t row, Ns later, std::int64_t corr) {
  o.start.push_back(o.start[row] + later);
  o.dur.push_back(o.dur[row]);
  o.name.push_back(o.name[row]);
  o.lane.push_back(o.lane[row]);
  o.kind.push_back(o.kind[row]);
  o.corr.push_back(o.corr[row] == 0 ? 0 : o.corr[row] + corr);
  o.ext.push_back(o.ext[row]);
  o.extra.push_back(o.extra[row]);
}

template <class T>
T& one_of(std::vector<T>& column, std::uint32_t which) {
  return column[which % column.size()];
}
template <std::size_t N>
std::string_view one_of(const std::string_view (&names)[N], std::uint32_t which) {
  return names[which % N];
}

// Eight bytes: what, rank, row (2), rows, how, how much (2).
void damage(TraceSet& set, Bytes& bytes) {
  const std::uint32_t what = bytes.byte(), who = bytes.byte(), where = bytes.two(), many = bytes.byte(),
                      how = bytes.byte(), much = bytes.two();
  if (set.ranks.empty()) return;
  RankTrace& t = one_of(set.ranks, who);
  OpTable& o = t.ops;
  if (o.size() == 0) return;
  const std::size_t from = (where * std::size_t{7919} + much) % o.size(), to = std::min(o.size(), from + 1 + many);
  const StrId name = o.name[from], other = one_of(o.name, much);
  CommArgs& c = t.comm_args;
  const std::uint32_t call = where;
  switch (what % 20) {
    case 0:
      drop(o, from, to);
      break;
    case 1:
      std::swap(o.name[from], one_of(o.name, much));
      break;
    case 2:
      for (std::size_t i = from; i < to; ++i)
        o.name[i] = (how & 1) != 0 ? t.strings.intern(one_of(kNames, how)) : other;
      break;
    case 3:
      for (std::size_t i = from; i < to; ++i) o.start[i] += static_cast<std::int16_t>(much) * (Ns{1} << how % 24);
      break;
    case 4:
      for (std::size_t i = from; i < to; ++i) o.dur[i] = much * (Ns{1} << how % 24);
      break;
    case 5:
      if (c.size() != 0) one_of(c.collective, call) = t.strings.intern(one_of(kNames, how));
      break;
    case 6:
      if (c.size() == 0) break;
      one_of(c.group_desc, call) = t.strings.intern(one_of(kLabels, how));
      if ((many & 1) != 0) one_of(c.group_ranks, call) = t.strings.intern(one_of(kMembers, much));
      if ((many & 2) != 0) one_of(c.group_size, call) = much % 9;
      if ((many & 4) != 0) one_of(c.group_name, call) = one_of(c.group_name, much);
      break;
    case 7:
      if (c.size() == 0) break;
      one_of(c.in_elems, call) = one_of(c.out_elems, call) =
          std::array<std::int64_t, 4>{-1, 0, much, INT64_MAX / 16}[how % 4];
      break;
    case 8:
      if (c.size() == 0) break;
      one_of(c.seq, call) = (how & 1) != 0 ? -1 : much;
      one_of(c.src_rank, call) = static_cast<std::int32_t>(many % 6) - 1;
      one_of(c.dst_rank, call) = static_cast<std::int32_t>(how % 6) - 1;
      break;
    case 9:
      set.ranks.erase(set.ranks.begin() + who % std::ssize(set.ranks));
      break;
    case 10:
      if (std::none_of(set.ranks.begin(), set.ranks.end(),
                       [&](const RankTrace& x) { return x.rank == static_cast<std::int64_t>(how % 12); }))
        t.rank = how % 12;
      if ((many & 1) != 0)
        for (RankTrace& x : set.ranks) x.world_size = (many & 2) != 0 ? much % 20 : 0;
      std::sort(set.ranks.begin(), set.ranks.end(),
                [](const RankTrace& x, const RankTrace& y) { return x.rank < y.rank; });
      break;
    case 11:
      for (std::size_t i = from; i < to; ++i) o.lane[i] = LaneId{how % static_cast<std::uint32_t>(t.lanes.size())};
      break;
    case 12:
      if (t.op_args.size() != 0)
        one_of(t.op_args.input_dims, where) =
            (how & 1) != 0 ? t.strings.intern(one_of(kShapes, much)) : one_of(t.op_args.input_dims, much);
      break;
    case 13: {
      // a kind that the row's table fits
      const OpKind kind = how % 2 != 0 ? OpKind::runtime : OpKind::other;
      for (std::size_t i = from; i < to; ++i) o.kind[i] = kind, o.extra[i] = kNone;
      break;
    }
    case 14:
      for (std::size_t i = from; i < to; ++i) o.corr[i] = (how & 1) != 0 ? 0 : one_of(o.corr, much);
      break;
    case 15:  // all of one name
      for (std::size_t i = o.size(); i-- > 0;)
        if (o.name[i] == name) drop(o, i, i + 1);
      break;
    case 16: {  // a stretch once more, behind the window or beside itself
      const Ns later = (how & 1) != 0 ? t.window_end - t.window_start : Ns{much} * 1000;
      const std::size_t until = (how & 2) != 0 ? o.size() : to;
      if (o.size() + until - from > 30'000) break;
      for (std::size_t i = from; i < until; ++i) repeat(o, i, later, 1'000'000);
      break;
    }
    case 17:
      if ((how & 1) != 0) t.devices.clear();
      if ((how & 2) != 0) t.groups.clear();
      if ((how & 4) != 0) std::fill(t.kernel_args.comm.begin(), t.kernel_args.comm.end(), kNone);
      if ((how & 8) != 0) std::fill(t.op_args.input_dims.begin(), t.op_args.input_dims.end(), StrId{0});
      if ((how & 16) != 0) t.host = std::string(1, static_cast<char>('a' + how % 3));
      break;
    case 18:  // one name for another, everywhere
      for (std::size_t i = 0; i < o.size(); ++i)
        if (o.name[i] == name) o.name[i] = (how & 1) != 0 ? t.strings.intern(one_of(kNames, how)) : other;
      break;
    case 19:  // the end of the recording
      drop(o, from, o.size());
      break;
  }
}

bool set_window(RankTrace& t) {
  if (t.ops.size() == 0) return false;
  constexpr Ns kFarthest = Ns{1} << 61, kLongest = Ns{1} << 49;
  t.window_start = INT64_MAX;
  t.window_end = INT64_MIN;
  for (std::size_t i = 0; i < t.ops.size(); ++i) {
    t.window_start = std::min(t.window_start, t.ops.start[i]);
    t.window_end = std::max(t.window_end, t.ops.end(i));
  }
  return t.window_start > -kFarthest && t.window_end < kFarthest && t.window_end - t.window_start < kLongest;
}

// ---- what is asked ----

constexpr std::string_view kNumbers[] = {"1", "2", "3", "4", "6", "8", "16", "32", "64", "100", "1024", "100000000"};
constexpr std::string_view kSchedules[] = {"1f1b", "interleaved:2", "zero-bubble", "interleaved:4"};
constexpr std::string_view kRecompute[] = {"none", "selective", "full"};
constexpr std::string_view kSwitch[] = {"on", "off"};
constexpr std::string_view kSaid[] = {"tp=1,pp=2,dp=1",
                                      "tp=2,pp=1,dp=1",
                                      "tp=1,pp=1,dp=2",
                                      "pp=2,num-microbatches=2",
                                      "schedule=interleaved:2",
                                      "layers=2",
                                      "hidden=64,ffn=256,heads=2,seq=64,micro-batch-size=1,vocab=256",
                                      "recompute=none,sequence-parallel=on,distributed-optimizer=on,gpus-per-node=1"};
const std::vector<Edit>& other_edits() {
  static const std::vector<Edit> edits = {{"--host", "0.5x"},        {"--launch", "2x"},
                                          {"--cuda-graphs", ""},     {"--delay", "rank=0,ms=1"},
                                          {"--network", "2x"},       {"--kernel", "gemm=2"},
                                          {"--perfect-overlap", ""}, {"--without-stragglers", ""},
                                          {"--fuse", "a,gemm"},      {"--network", "intra=5,latency_us=3"}};
  return edits;
}

std::map<std::string, std::string> asked(Bytes& bytes) {
  std::map<std::string, std::string> out;
  for (std::uint32_t n = bytes.byte() % 5; n > 0; --n) {
    const std::string& name = shape_edits()[bytes.byte() % shape_edits().size()];
    const std::uint32_t value = bytes.byte();
    std::string_view text = one_of(kNumbers, value);
    if (name == "--schedule") text = one_of(kSchedules, value);
    if (name == "--recompute") text = one_of(kRecompute, value);
    if (name == "--sequence-parallel" || name == "--distributed-optimizer") text = one_of(kSwitch, value);
    out[name] = text;
  }
  return out;
}

// ---- what must hold ----

void require_graph(const TraceSet& traces, const GraphBuild& build) {
  const ExecGraph& g = build.graph;
  if (const Status sound = check(g); !sound) {
    std::fprintf(stderr, "%s\n", sound.error().line().c_str());
    require(false);
  }
  for (std::uint32_t n = 0; n < g.size(); ++n) {
    require(g.rank[n] < g.ranks.size());
    const GraphRank& r = g.ranks[g.rank[n]];
    require(r.trace < traces.ranks.size());
    require(g.source[n] == kNoOp || raw(g.source[n]) < traces.ranks[r.trace].ops.size());
    require(g.kind[n] == NodeKind::rendezvous || (g.lane[n] >= r.first_lane && g.lane[n] < r.first_lane + r.lanes));
  }
  for (const Step& s : g.steps)
    require(s.rank < g.ranks.size() && raw(s.begin_node) < g.size() && raw(s.end_node) < g.size());
  const Communication& c = build.communication;
  for (const CommRow& row : c.rows) {
    require(row.node < g.size() && row.last < g.size() && row.rank < g.ranks.size());
    require(row.group == kNone || row.group < c.groups.size());
    require(row.first_part + row.parts <= c.parts.size());
  }
  for (const Meeting& m : c.meetings) {
    require(m.first + m.members <= c.members.size());
    for (std::uint32_t k = 0; k < m.members; ++k) require(c.members[m.first + k].row < c.rows.size());
  }
}

void predict(const TraceSet& set, const GraphBuild& build, const Replay& before, const Result<JobLayout>& layout,
             JobModel* job, const Overlap& overlap, Bytes& bytes, const RebuildOptions& limits) {
  const std::map<std::string, std::string> wanted = asked(bytes);
  const std::uint32_t more = bytes.byte();
  GraphBuild changed = build;
  Overlap now = overlap;
  JobShape next;
  TraceSet traces;
  std::vector<AppliedEdit> applied;
  const TraceSet* names = &set;
  if (job != nullptr) {
    auto shape = target_shape(*job, wanted);
    if (!shape || !check_dimensions(*job, *shape)) return;
    next = *shape;
    RatesError error;
    auto made = rebuild_as(set, build, *job, next, nullptr, limits, error);
    if (!made) {
      require(!made.error().what.empty());
      return;
    }
    require_graph(made->traces, made->build);
    now = overlap_for(*made, overlap, set);
    applied = describe_shape_edits(*job, next, wanted, error, {1, 1});
    changed = std::move(made->build);
    traces = std::move(made->traces);
    names = &traces;
  } else if (layout) {
    JobLayout wider = *layout;
    if (!change_dp(set, changed, wider, 1 + more % 64)) return;
    require_graph(set, changed);
  }
  if ((more & 1) != 0) {
    Scenario scenario{*names, changed};
    if (auto done = apply_edit(scenario, other_edits()[more / 2 % other_edits().size()]))
      applied.push_back(std::move(*done));
  }
  if (!check_times(changed.graph)) return;
  Replay after;
  replay_with_contention(changed.graph, now, after);
  for (std::uint32_t n = 0; n < changed.graph.size(); ++n)
    require(after.end[n] == after.start[n] + changed.graph.duration[n]);
  PredictReportOptions report;
  if (layout) report.layout = report.new_layout = &*layout;
  MemoryParts memory;
  if (job != nullptr) {
    report.layout = &job->base.layout;
    report.new_layout = &next.layout;
    report.shape = &job->base;
    report.new_shape = &next;
    report.new_traces = names;
    memory = with_activations_scaled(memory_of_job(memory_job(*job, next)), job->activation_scale);
    report.memory = &memory;
  }
  const auto document = predict_document(set, build, before, changed, after, applied, report);
  require(document.has_value());
  require(!to_json(*document).empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  Bytes head(data, std::min<std::size_t>(size, 32)),
      rest(data + std::min<std::size_t>(size, 32), size - std::min<std::size_t>(size, 32));
  TraceSet set;
  const std::uint32_t choice = head.byte(), say = head.byte(), options = head.byte();
  for (const RankTrace& t : job_of(choice).ranks) set.ranks.push_back(copy_of(t));
  for (RankTrace& t : set.ranks) set_window(t);
  for (int n = 0; n < 24 && rest.left() >= 8; ++n) damage(set, rest);
  for (RankTrace& t : set.ranks)
    if (!set_window(t)) return 0;
  if (set.ranks.empty()) return 0;
  GraphOptions how;
  how.threads = 1;
  const auto build = build_graph(set, how);
  if (!build) return 0;
  Replay before;
  replay(build->graph, before);
  const Overlap overlap = overlap_of(build->graph, learn_contention(set, *build), before);
  GivenLayout said;
  if ((say & 1) != 0) said = *parse_layout(one_of(kSaid, say >> 1));
  const auto layout = recognise_layout(set, *build, said);
  Result<JobModel> job =
      layout ? learn_job(set, *build, *layout, said, overlap) : Result<JobModel>(tl::unexpected(layout.error()));
  if (!job) require(!job.error().what.empty());
  RebuildOptions limits;
  limits.max_nodes = 200'000;
  if ((options & 1) != 0) limits.names = false;
  predict(set, *build, before, layout, job ? &*job : nullptr, overlap, head, limits);
  if (job) predict(set, *build, before, layout, &*job, overlap, head, limits);
  if (job && (options & 2) != 0) {
    SearchSpace space;
    space.gpus = 1 + options / 4 % 16;
    space.most = 3;
    space.most_nodes = limits.max_nodes;
    const auto found = search(set, *build, *build, *job, job->base, space, nullptr, overlap,
                              iteration_ms(build->graph, before), 1, {});
    if (!found) require(!found.error().what.empty());
  }
  return 0;
}
