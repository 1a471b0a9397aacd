#include "whatif/job_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/median.h"
#include "whatif/collective_edits.h"
#include "whatif/platform.h"
#include "whatif/recompute.h"
#include "whatif/zero_bubble.h"

namespace orrery {
namespace {

std::string key_of(const Work& w) {
  std::string key{static_cast<char>(w.kind), w.parameters ? '1' : '0', w.experts ? '1' : '0'};
  for (const Term* t : {&w.m, &w.n, &w.k, &w.batch}) {
    key += std::to_string(t->factor) + ":";
    for (const std::int8_t e :
         {t->seq, t->mbs, t->hidden, t->ffn, t->attn, t->qkv, t->heads, t->head_dim, t->vocab, t->tp, t->split})
      key += static_cast<char>('a' + e);
  }
  return key;
}

WorkSize size_of(const Work& w, const Dims& d, int bytes) {
  return {w.kind, w.m.value(d), w.n.value(d), w.k.value(d), w.batch.value(d), bytes};
}

// A weight's gradient: a product over the tokens.
bool is_weight_gradient(const Work& w) {
  return w.kind == WorkKind::gemm && !w.parameters && !w.experts && w.k.seq > 0 && w.m.seq == 0 && w.n.seq == 0 &&
         w.batch == Term{};
}

bool is_expert_gradient(const Work& w) {
  return w.kind == WorkKind::gemm && w.experts && w.k.seq > 0 && w.m.seq == 0 && w.n.seq == 0;
}

bool knows_dimensions(const Dims& d) {
  return d.hidden > 0 && (d.ffn > 0 || d.expert_width > 0 || d.router > 0) && d.heads > 0 && d.head_dim > 0 &&
         d.vocab > 0;
}

// The schedule whose order of passes all ranks have.
bool recognise_schedule(const Anatomy& anatomy, const GraphBuild& build, const GivenLayout& given, JobShape& shape) {
  const JobLayout& l = shape.layout;
  const std::int64_t stride = l.stage_stride();
  const std::int32_t passes = anatomy.ranks.front().passes;
  for (const RankAnatomy& a : anatomy.ranks)
    if (a.passes != passes) return false;
  const auto stages = static_cast<std::int32_t>(l.pp);
  // sends and receives that go on beside passes are kernels of their own
  bool batched = false;
  for (const CommRow& row : build.communication.rows) batched = batched || row.parts > 1;
  // ranks whose order of passes is not that of the schedule, and those with another number of exchanges in a step
  const auto unlike = [&](const Schedule& schedule) {
    std::pair<std::uint32_t, std::uint32_t> count{0, 0};
    for (std::uint32_t r = 0; r < anatomy.ranks.size(); ++r) {
      const auto stage = static_cast<std::size_t>(build.graph.ranks[r].rank / stride % l.pp);
      std::vector<std::uint8_t> order;
      std::ptrdiff_t exchanges = 0;
      for (const Slot& slot : schedule.stage[stage])
        if (slot.is_pass)
          order.push_back(slot.pass == Pass::forward ? 0 : 1);
        else
          ++exchanges;
      count.first += order != anatomy.ranks[r].order;
      count.second +=
          exchanges != std::count_if(anatomy.ranks[r].pieces.begin(), anatomy.ranks[r].pieces.end(),
                                     [](const Piece& p) { return p.kind == PieceKind::exchange && p.step == 0; });
    }
    return count;
  };
  for (std::int32_t chunks = 1; chunks <= passes; ++chunks) {
    if (passes % chunks != 0 || (chunks > 1 && l.pp == 1)) continue;
    if (given.chunks && chunks != *given.chunks) continue;
    if (given.num_microbatches && passes / chunks != *given.num_microbatches) continue;
    const auto kind = chunks == 1 ? ScheduleKind::one_f_one_b : ScheduleKind::interleaved;
    for (const bool all_forward_first : {true, false}) {
      const auto schedule = make_schedule(kind, stages, chunks, passes / chunks, false, all_forward_first);
      if (!schedule) break;
      const auto plain = unlike(*schedule);
      if (plain.first != 0) continue;
      shape.schedule = kind;
      shape.chunks = chunks;
      shape.layout.num_microbatches = passes / chunks;
      shape.all_forward_first = all_forward_first;
      if (chunks == 1) return true;
      const auto beside = unlike(*make_schedule(kind, stages, chunks, passes / chunks, true, all_forward_first));
      shape.overlap = beside.second != plain.second ? beside.second < plain.second : !batched;
      return true;
    }
  }
  return false;
}

}  // namespace

namespace {

// What is said is the tokenizer's or that of the tables, which Megatron-LM makes a multiple of 128 for every rank.
void settle_vocabulary(double said, std::int64_t tp, ModelShape& shape) {
  const double padded = padded_vocabulary(said, static_cast<double>(tp));
  std::erase_if(shape.doubts, [](const std::string& d) { return d.starts_with("vocabulary:"); });
  double& told = shape.dims.vocab;
  if (told == said || told == padded) return;
  if (told > 0)
    shape.doubts.push_back("vocabulary: said to be " + std::to_string(std::llround(said)) + ", the traces tell " +
                           std::to_string(std::llround(told)));
  if (told == 0 && padded != said)
    shape.doubts.push_back("vocabulary: " + std::to_string(std::llround(said)) + ", taken as padded to " +
                           std::to_string(std::llround(padded)));
  told = told == 0 ? padded : said;
}

// Why no schedule fits, with what there is to say by hand.
Error no_schedule(const Anatomy& anatomy, const GraphBuild& build, const JobLayout& l, const GivenLayout& given) {
  const auto rank = [&](std::size_t r) { return "rank " + std::to_string(build.graph.ranks[r].rank); };
  for (std::size_t r = 1; r < anatomy.ranks.size(); ++r)
    if (anatomy.ranks[r].passes != anatomy.ranks[0].passes)
      return {"the micro-batches cannot be told: " + rank(0) + " has " + std::to_string(anatomy.ranks[0].passes) +
                  " forward passes a step, " + rank(r) + " " + std::to_string(anatomy.ranks[r].passes),
              "", "are all files of one run? Steps without ProfilerStep markers are told by the optimizer's kernels"};
  const std::string passes = std::to_string(anatomy.ranks[0].passes) + " forward passes a step on " +
                             std::to_string(l.pp) + (l.pp == 1 ? " stage" : " stages");
  if (given.schedule || given.num_microbatches)
    return {"--layout says a schedule or micro-batches that the traces contradict: " + passes, "",
            "leave schedule and num-microbatches out, or correct them"};
  return {"the schedule cannot be told: " + passes + ", in no order of 1F1B or interleaved 1F1B", "",
          "correct pp by --layout pp=N; other schedules cannot be a base"};
}

// One weight for embedding and head, or two? Of several stages, the first and the last sum the gradients of one; a lone
// stage holds as many parameters as its gradients: those reduced, failing that those zeroed. -1 = not told.
std::int8_t recognise_tied_embedding(const TraceSet& traces, const GraphBuild& build, const JobModel& job) {
  const JobLayout& l = job.base.layout;
  const Dims& d = job.base.dims;
  const Communication& c = build.communication;
  const ExecGraph& g = build.graph;
  if (!knows_dimensions(d)) return -1;
  if (l.pp > 1) {
    const double table = d.vocab * d.hidden / d.tp;
    bool collectives = l.tp == 1 && l.dp == 1;
    for (const CommRow& row : c.rows) {
      if (row.op != CommOp::all_reduce || row.group == kNone || row.bytes <= 0) continue;
      const GroupRole role = l.role[row.group];
      if (role == GroupRole::embedding) return 1;
      const auto bytes = static_cast<double>(row.bytes);
      const bool fits = bytes == 2 * table || bytes == 4 * table;
      if (fits && role != GroupRole::data && role != GroupRole::tensor) return 1;
      collectives = true;
    }
    return collectives ? 0 : -1;  // nothing at all was recorded of them
  }
  const auto layers = static_cast<double>(l.layers);
  const double one = stage_parameters(d, layers, true, false, job.base.gated_mlp, job.base.positions);
  const double two = stage_parameters(d, layers, true, true, job.base.gated_mlp, job.base.positions);
  // a gradient has four bytes, or two
  const auto tells = [&](double bytes) -> std::int8_t {
    for (const double each : {4.0, 2.0}) {
      const double n = bytes / each, off_one = std::abs(n / one - 1), off_two = std::abs(n / two - 1);
      if (std::min(off_one, off_two) < 0.02) return off_one < off_two ? 1 : 0;
    }
    return -1;
  };
  std::map<std::pair<std::uint32_t, std::int32_t>, double> reduced;  // by rank and step
  double zeroed = 0;
  for (std::uint32_t r = 0; r < job.program.pieces.size(); ++r)
    for (std::uint32_t k = 0; k < job.program.pieces[r].size(); ++k) {
      const Piece& piece = job.program.anatomy.ranks[r].pieces[k];
      const PieceItems& items = job.program.pieces[r][k];
      for (std::uint32_t i = items.first; piece.step >= 0 && i < items.first + items.count; ++i) {
        const Item& item = job.program.items[i];
        if (item.comm != kNone && !item.transfer) {
          const CommRow& row = c.rows[item.comm];
          if (row.bytes > 0 && row.group != kNone && l.role[row.group] == GroupRole::data &&
              (row.op == CommOp::all_reduce || row.op == CommOp::reduce_scatter))
            reduced[{r, piece.step}] += static_cast<double>(row.bytes);
        }
        const RankTrace& t = traces.ranks[g.ranks[r].trace];
        const std::uint32_t op = raw(g.source[item.node]);
        if (g.kind[item.node] == NodeKind::memset && piece.kind == PieceKind::step_begin && op < t.ops.size() &&
            t.ops.extra[op] != kNone)
          zeroed = std::max(zeroed, static_cast<double>(t.copy_args.bytes[t.ops.extra[op]]));
      }
    }
  for (const auto& [of, bytes] : reduced)
    if (const std::int8_t told = tells(bytes); told >= 0) return told;
  return tells(zeroed);
}

// Parameters of a rank's layers, and of its embedding or head, from what its replicas reduce: where no shapes tell.
void count_parameters(const Program& program, const GraphBuild& build, JobModel& job) {
  const Communication& c = build.communication;
  JobShape& base = job.base;
  constexpr double kGradientBytes = 4;
  const JobLayout& l = base.layout;
  const double layers = static_cast<double>(l.layers) / static_cast<double>(l.pp);
  const std::int64_t stride = l.stage_stride();
  std::vector<double> of_stage(static_cast<std::size_t>(l.pp), 0);
  double table = 0, slope = 0, slopes = 0;
  for (std::uint32_t r = 0; r < build.graph.ranks.size(); ++r) {
    const auto stage = static_cast<std::size_t>(build.graph.ranks[r].rank / stride % l.pp);
    const RankAnatomy& a = program.anatomy.ranks[r];
    double sum = 0;
    std::vector<std::pair<double, double>> closed;  // layers done, parameters reduced
    for (std::uint32_t k = 0; k < a.pieces.size(); ++k) {
      if (a.pieces[k].step != 0) continue;
      const PieceItems& items = program.pieces[r][k];
      for (std::uint32_t i = 0; i < items.count; ++i) {
        const Item& item = program.items[items.first + i];
        if (item.comm == kNone || item.transfer) continue;
        const CommRow& row = c.rows[item.comm];
        if (row.group == kNone || row.bytes <= 0) continue;
        if (l.role[row.group] == GroupRole::embedding)
          table = std::max(table, static_cast<double>(row.bytes) / kGradientBytes);
        if (l.role[row.group] != GroupRole::data || (row.op != CommOp::all_reduce && row.op != CommOp::reduce_scatter))
          continue;
        sum += static_cast<double>(row.bytes) / kGradientBytes;
        if (a.pieces[k].kind == PieceKind::bucket) closed.emplace_back(a.pieces[k].layer, sum);
      }
    }
    of_stage[stage] = std::max(of_stage[stage], sum);
    if (closed.size() < 3) continue;  // the last takes what is left
    const auto &from = closed.front(), &to = closed[closed.size() - 2];
    if (to.first <= from.first) continue;
    slope += (to.second - from.second) / (to.first - from.first);
    ++slopes;
  }
  const double first = of_stage.front(), last = of_stage.back();
  if (first <= 0 || last <= 0 || layers < 1) return;
  double layer = l.pp > 2 && of_stage[1] > 0 ? of_stage[1] / layers
                 : l.pp > 1 && table > 0     ? (last - table) / layers
                 : slopes > 0                ? slope / slopes
                                             : std::min(first, last) / layers;
  layer = std::clamp(layer, 0.0, std::min(first, last) / layers);
  if (layer <= 0) return;
  base.layer_parameters = layer;
  base.first_parameters = first - layers * layer;
  base.last_parameters = l.pp > 1 ? last - layers * layer : 0;
  job.shape.doubts.push_back("parameters of a layer: " + std::to_string(std::llround(layer)) +
                             " a rank, from the gradients that replicas reduce");
}

// Layers launch the same kernels in the same order, so what most of them compute at one place all do. Coarse times let
// a launch seem to lie in the operator before or behind its own, now and then; then this kernel alone is taken wrong.
void align_layers(const TraceSet& traces, const ExecGraph& g, JobModel& job) {
  struct Place {
    std::map<std::uint32_t, std::uint32_t> votes;  // row of samples -> layers
    std::uint32_t layers = 0;
  };
  std::map<std::vector<std::uint32_t>, std::vector<Place>> alike;  // kernels of a layer -> by their order
  std::unordered_map<std::string_view, std::uint32_t> names;
  std::vector<std::vector<std::uint32_t>> known(traces.ranks.size());  // by trace and name: row of names
  std::vector<std::uint32_t> key, nodes;
  const auto list = [&](std::uint32_t r, std::uint32_t k) {
    const Piece& piece = job.program.anatomy.ranks[r].pieces[k];
    key.assign(1, static_cast<std::uint32_t>(piece.kind));
    nodes.clear();
    const std::uint32_t trace = g.ranks[r].trace;
    const RankTrace& t = traces.ranks[trace];
    if (known[trace].empty()) known[trace].assign(t.strings.size(), kNone);
    const PieceItems& items = job.program.pieces[r][k];
    for (std::uint32_t i = items.first; i < items.first + items.count; ++i) {
      const std::uint32_t n = job.program.items[i].node;
      if (g.kind[n] != NodeKind::kernel) continue;
      std::uint32_t& name = known[trace][raw(t.ops.name[raw(g.source[n])])];
      if (name == kNone)
        name = names.try_emplace(t.name_of(g.source[n]), static_cast<std::uint32_t>(names.size())).first->second;
      key.push_back(name);
      nodes.push_back(n);
    }
  };
  const auto each_layer = [&](const auto& f) {
    for (std::uint32_t r = 0; r < job.program.pieces.size(); ++r)
      for (std::uint32_t k = 0; k < job.program.pieces[r].size(); ++k) {
        const PieceKind kind = job.program.anatomy.ranks[r].pieces[k].kind;
        if (kind != PieceKind::forward_layer && kind != PieceKind::backward_layer) continue;
        list(r, k);
        f();
      }
  };
  each_layer([&] {
    std::vector<Place>& places = alike[key];
    places.resize(nodes.size());
    for (std::size_t i = 0; i < nodes.size(); ++i) ++places[i].votes[job.sample_of[nodes[i]]], ++places[i].layers;
  });
  each_layer([&] {
    const std::vector<Place>& places = alike.at(key);
    for (std::size_t i = 0; i < nodes.size(); ++i)
      for (const auto& [sample, votes] : places[i].votes)
        if (sample != kNone && 10 * votes > 9 * places[i].layers) job.sample_of[nodes[i]] = sample;
  });
}

}  // namespace

double padded_vocabulary(double vocab, double tp) { return std::ceil(vocab / (128 * tp)) * 128 * tp; }

double padded_vocabulary(const JobShape& base, double vocab, double tp) {
  if (tp == base.dims.tp || vocab <= 0 || std::fmod(vocab, 128 * base.dims.tp) != 0) return vocab;
  return padded_vocabulary(vocab, tp);
}

Status check_dimensions(const JobModel& job, const JobShape& next) {
  const Dims &a = job.base.dims, &b = next.dims;
  struct Needed {
    double before, after;
    const char *what, *key;
  };
  const bool width = a.hidden != b.hidden || a.ffn != b.ffn || a.heads != b.heads || a.kv_heads != b.kv_heads ||
                     a.head_dim != b.head_dim || a.vocab != b.vocab || a.tp != b.tp;
  const bool tokens = a.seq != b.seq || a.mbs != b.mbs;
  const bool any = width || tokens || a.sequence_parallel != b.sequence_parallel;
  std::string missing, keys;
  for (const Needed& n :
       {Needed{a.seq, b.seq, "sequence length", "seq-length"},
        Needed{a.mbs, b.mbs, "micro-batch size", "micro-batch-size"},
        Needed{a.hidden, b.hidden, "hidden size", "hidden"}, Needed{a.ffn, b.ffn, "MLP width", "ffn"},
        Needed{a.heads, b.heads, "heads", "heads"}, Needed{a.head_dim, b.head_dim, "head dimension", "head-dim"},
        Needed{a.vocab, b.vocab, "vocabulary", "vocab"}}) {
    if (!any || n.before > 0) continue;
    if (job.base.expert_tp > 0 && std::string_view(n.key) == "ffn") continue;  // experts are all there is
    missing += (missing.empty() ? "" : ", ") + std::string(n.what);
    keys += (keys.empty() ? "" : ",") + std::string(n.key) + "=N";
  }
  if (missing.empty()) return {};
  return fail("the traces do not tell the model's " + missing + " (no shapes were recorded)", "",
              "say --layout " + keys);
}

Result<JobModel> learn_job(const TraceSet& traces, const GraphBuild& build, const JobLayout& layout,
                           const GivenLayout& given, const Overlap& overlap) {
  JobModel job;
  const ExecGraph& g = build.graph;
  if (layout.cp > 1)
    return fail("context parallelism (" + std::to_string(layout.cp) + " ranks share a sequence) is not modelled");
  if (layout.pp > 1)
    for (const CommRow& row : build.communication.rows)
      if (row.launched && row.parts == 0 && is_point_to_point(row.op))
        return fail(
            "stages exchange, but the traces do not say what with whom: rank " + std::to_string(g.ranks[row.rank].rank),
            "", "record NCCL metadata (record_param_comms of a recent PyTorch)");
  Dims said = given.dims;
  said.vocab = 0;
  const bool usual_head = said.head_dim == 0 && said.hidden > 0 && said.heads > 0;
  auto shape = recognise_model(traces, layout.tp, layout.dp, said);
  if (shape && usual_head && shape->dims.head_dim == 0) {
    said.head_dim = said.hidden / said.heads;
    shape = recognise_model(traces, layout.tp, layout.dp, said);
    if (shape) shape->doubts.push_back("head dimension: taken as hidden / heads");
  }
  if (!shape) return tl::unexpected(shape.error());
  job.shape = std::move(*shape);
  const bool sure_of_ranks = std::none_of(layout.doubts.begin(), layout.doubts.end(),
                                          [](const std::string& d) { return d.starts_with("tensor parallel"); });
  if (!job.shape.contradictions.empty() && sure_of_ranks)
    return fail(job.shape.contradictions.front(), "", "leave it out of --layout, which says what the traces do not");
  if (given.recompute && !job.shape.recompute.empty() && *given.recompute != job.shape.recompute)
    job.shape.doubts.push_back("recompute: said to be " + *given.recompute + ", the order of the operators tells " +
                               job.shape.recompute);
  if (given.dims.vocab > 0) settle_vocabulary(given.dims.vocab, layout.tp, job.shape);
  if (given.sequence_parallel) job.shape.dims.sequence_parallel = *given.sequence_parallel && layout.tp > 1;
  if (given.recompute) job.shape.recompute = *given.recompute;
  std::vector<TaskWork> works;
  for (const RankTrace& t : traces.ranks) works.push_back(recognise_work(t, job.shape));
  const auto work_of = [&](std::uint32_t n) -> const Work* {
    const TaskWork& w = works[g.ranks[g.rank[n]].trace];
    const std::uint32_t op = raw(g.source[n]);
    if (op >= w.of_op.size() || w.of_op[op] == kNone) return nullptr;
    return &w.kinds[w.of_op[op]];
  };
  job.parameter.assign(g.size(), 0);
  std::vector<std::uint8_t> packs(g.size(), 0);
  std::unordered_map<std::string, std::uint32_t> kinds, names;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> rows;
  std::vector<std::vector<double>> times;
  job.sample_of.assign(g.size(), kNone);
  std::vector<std::vector<std::uint32_t>> kind_row(works.size()), name_row(works.size());
  double known = 0, all = 0;
  for (std::uint32_t n = 0; n < g.size(); ++n) {
    const NodeKind kind = g.kind[n];
    if (kind != NodeKind::kernel && kind != NodeKind::memcpy && kind != NodeKind::memset) continue;
    const std::uint32_t trace = g.ranks[g.rank[n]].trace;
    const RankTrace& t = traces.ranks[trace];
    const Work* w = work_of(n);
    if (kind == NodeKind::kernel) all += static_cast<double>(g.duration[n]);
    if (w == nullptr) continue;
    if (kind == NodeKind::kernel && w->kind != WorkKind::unknown) known += static_cast<double>(g.duration[n]);
    job.parameter[n] = w->parameters;
    packs[n] = w->parameters;
    if (w->kind == WorkKind::unknown || w->kind == WorkKind::fixed || w->parameters) continue;
    auto& kr = kind_row[trace];
    if (kr.empty()) kr.assign(works[trace].kinds.size(), kNone);
    std::uint32_t& kind_id = kr[works[trace].of_op[raw(g.source[n])]];
    if (kind_id == kNone)
      kind_id = kinds.try_emplace(key_of(*w), static_cast<std::uint32_t>(kinds.size())).first->second;
    auto& nr = name_row[trace];
    if (nr.empty()) nr.assign(t.strings.size(), kNone);
    std::uint32_t& name_id = nr[raw(t.ops.name[raw(g.source[n])])];
    if (name_id == kNone) {
      const auto [it, fresh] =
          names.try_emplace(std::string(t.name_of(g.source[n])), static_cast<std::uint32_t>(names.size()));
      name_id = it->second;
      if (fresh) job.names.push_back(it->first);
    }
    const auto [it, fresh] = rows.try_emplace({name_id, kind_id}, static_cast<std::uint32_t>(job.samples.size()));
    if (fresh) {
      KernelSample s;
      s.name = name_id;
      s.role = kind_id;
      job.samples.push_back(s);
      job.work.push_back(*w);
      job.split_work.push_back(under_sequence_parallelism(*w, t.name_of(g.source[n])));
      times.emplace_back();
    }
    job.sample_of[n] = it->second;
    double alone = static_cast<double>(g.duration[n]);
    const std::uint32_t op = raw(g.source[n]);
    if (trace < overlap.of_trace.size() && op < overlap.of_trace[trace].size()) {
      const Overlap::Row& o = overlap.of_trace[trace][op];
      alone *= 1 - static_cast<double>(o.cost * o.share);
    }
    times[it->second].push_back(alone);
  }
  job.unknown_pct = all > 0 ? 100 * (1 - known / all) : 0;

  job.base.layout = layout;
  job.base.dims = job.shape.dims;
  job.base.dims.tp = static_cast<double>(layout.tp);
  job.base.dims.dp = static_cast<double>(layout.dp);
  if (job.shape.experts) {
    job.base.expert_tp = layout.tp;
    // experts that all replicas have go with what else these have
    double& width = job.base.dims.expert_width;
    if (layout.ep == 1) job.base.dims.router += std::exchange(width, 0.0);
  }
  job.base.gated_mlp = job.shape.gated_mlp;
  job.base.positions = static_cast<double>(job.shape.positions);
  if (job.shape.recompute == "full") job.base.recompute = Recompute::full;
  if (job.shape.recompute == "selective") job.base.recompute = Recompute::selective;
  auto program = learn_program(traces, build, layout, &packs);
  if (!program) return tl::unexpected(program.error());
  job.program = std::move(*program);
  align_layers(traces, g, job);
  if (Status s = check_sharding(build, layout, job.program); !s) return tl::unexpected(s.error());
  if (!recognise_schedule(job.program.anatomy, build, given, job.base))
    return tl::unexpected(no_schedule(job.program.anatomy, build, layout, given));
  job.base.layout.layers =
      job.program.anatomy.ranks.front().layers * job.base.chunks * static_cast<std::int64_t>(layout.pp);
  if (given.layers && *given.layers != job.base.layout.layers)
    return fail("--layout says layers=" + std::to_string(*given.layers) + ", the passes of the traces have " +
                std::to_string(job.base.layout.layers));
  if (job.shape.tied_embedding < 0) job.shape.tied_embedding = recognise_tied_embedding(traces, build, job);
  job.base.tied_embedding = job.shape.tied_embedding != 0;
  if (!knows_dimensions(job.base.dims)) count_parameters(job.program, build, job);

  const int bytes = job.shape.dtype_bytes > 0 ? static_cast<int>(job.shape.dtype_bytes) : 2;
  for (std::size_t s = 0; s < job.samples.size(); ++s) {
    KernelSample& sample = job.samples[s];
    sample.size = size_of(job.work[s], job.base.dims, bytes);
    auto& t = times[s];
    sample.count = static_cast<double>(t.size());
    sample.ns = median(t);
    double sum = 0;
    for (const double x : t) sum += std::abs(x / sample.ns - 1);
    sample.spread = 1.25 * sum / sample.count;
  }
  const GpuFacts* gpu = gpu_of(traces);
  job.weight.assign(g.size(), 0);
  for (std::uint32_t n = 0; n < g.size(); ++n)
    job.weight[n] = job.sample_of[n] != kNone &&
                    (is_weight_gradient(job.work[job.sample_of[n]]) || is_expert_gradient(job.work[job.sample_of[n]]));
  mark_weight_gradients(job.program, traces, build, job.weight);
  if (gpu == nullptr)
    job.shape.doubts.push_back(
        "GPU: not named in the traces, or not known: neither its speed nor links that the traces did not use are "
        "known");
  job.costs = KernelCosts::learn(job.samples, gpu);
  if (gpu != nullptr) job.capacity_gib = gpu->memory_gib;
  for (const RankTrace& t : traces.ranks) {
    for (const Device& d : t.devices)
      if (d.memory_bytes > 0) job.capacity_gib = static_cast<double>(d.memory_bytes) / (1 << 30);
    const MeasuredMemory m = measured_memory(t);
    if (m.peak_allocated > job.memory.peak_allocated) job.memory = m;
  }
  job.net = learn_network(traces, build, job.base.layout);
  job.slow.assign(g.ranks.size(), 1);
  for (const Straggler& s : find_stragglers(traces, build))
    if (s.kind == StragglerKind::compute) job.slow[s.rank] = s.slower;
  // Beside the ranks of its own stage: others have other work under the same names, as the products of the head.
  const std::int64_t stride = layout.stage_stride();
  std::map<std::int64_t, std::vector<std::uint32_t>> stages;
  for (std::uint32_t r = 0; r < g.ranks.size(); ++r) stages[g.ranks[r].rank / stride % layout.pp].push_back(r);
  for (const auto& [stage, ranks] : stages) {
    std::vector<double> slow;
    for (const std::uint32_t r : ranks) slow.push_back(job.slow[r]);
    std::sort(slow.begin(), slow.end());
    for (const std::uint32_t r : ranks) job.slow[r] /= slow[(slow.size() - 1) / 2];
  }
  return job;
}

namespace {

// Which kernel completes which gradient is not told either: all of a layer's backward kernels bring it on alike.
void spread_parameters(const JobModel& job, const GraphBuild& build, Rates& rates) {
  const Anatomy& anatomy = job.program.anatomy;
  const auto each = [&](const auto& f) {
    for (std::uint32_t n = 0; n < build.graph.size(); ++n) {
      if (build.graph.kind[n] != NodeKind::kernel || anatomy.piece[n] == kNone || job.parameter[n] != 0) continue;
      const std::uint32_t rank = build.graph.rank[n], piece = anatomy.piece[n];
      if (anatomy.ranks[rank].pieces[piece].kind == PieceKind::backward_layer) f(rank, piece, n);
    }
  };
  std::vector<std::vector<double>> kernels(anatomy.ranks.size());
  for (std::size_t r = 0; r < kernels.size(); ++r) kernels[r].assign(anatomy.ranks[r].pieces.size(), 0);
  each([&](std::uint32_t r, std::uint32_t piece, std::uint32_t) { ++kernels[r][piece]; });
  each([&](std::uint32_t r, std::uint32_t piece, std::uint32_t n) {
    rates.ready[n] = rates.ready_before[n] = static_cast<float>(job.base.layer_parameters / kernels[r][piece]);
  });
}

}  // namespace

namespace {

// The gradient of a weight that embedding and head share on one stage is complete with the embedding's part of it.
bool waits_for_embedding(const Work& w, const JobShape& shape) {
  return shape.layout.pp == 1 && shape.tied_embedding && (w.m.vocab != 0 || w.n.vocab != 0);
}

}  // namespace

Rates rates_for(const JobModel& job, const GraphBuild& build, const JobShape& next, const CostTable* table,
                RatesError& error) {
  Rates rates;
  const ExecGraph& g = build.graph;
  const int bytes = job.shape.dtype_bytes > 0 ? static_cast<int>(job.shape.dtype_bytes) : 2;
  std::vector<double> factor(job.samples.size(), 1), relative(job.samples.size(), 0), total(job.samples.size(), 0);
  std::vector<std::uint8_t> by_facts(job.samples.size(), 0);
  std::vector<float> ready(job.samples.size(), 0), ready_before(job.samples.size(), 0);
  std::vector<std::uint8_t> expert(job.samples.size(), 0);
  for (std::size_t s = 0; s < job.samples.size(); ++s) {
    const bool split = next.dims.sequence_parallel && !job.base.dims.sequence_parallel;
    const WorkSize now = size_of(split ? job.split_work[s] : job.work[s], next.dims, bytes);
    if (is_weight_gradient(job.work[s])) {
      if (!waits_for_embedding(job.work[s], next)) ready[s] = static_cast<float>(now.m * now.n);
      if (!waits_for_embedding(job.work[s], job.base))
        ready_before[s] = static_cast<float>(job.samples[s].size.m * job.samples[s].size.n);
    }
    if (is_expert_gradient(job.work[s])) {
      expert[s] = job.base.layout.ep > 1;
      ready[s] = static_cast<float>(now.m * now.n * now.batch);
      ready_before[s] = static_cast<float>(job.samples[s].size.m * job.samples[s].size.n * job.samples[s].size.batch);
    }
    if (table != nullptr) {
      if (const CostRow* row = table->lookup(job.names[job.samples[s].name], shape_text(now)); row != nullptr) {
        factor[s] = job.samples[s].ns > 0 ? row->ns / job.samples[s].ns : 1;
        ++error.from_table;
        continue;
      }
    }
    if (now == job.samples[s].size) continue;
    // Measured alone, whatever the kernel: by how much one size takes longer than the other, else what it takes.
    if (const CostRow* row = table != nullptr ? table->lookup(now) : nullptr; row != nullptr && job.samples[s].ns > 0) {
      const CostRow* base = table->lookup(job.samples[s].size);
      factor[s] = row->ns / (base != nullptr ? base->ns : job.samples[s].ns);
      ++error.from_table;
      continue;
    }
    const KernelCosts::Estimate e = job.costs.rescale(job.samples[s], now);
    if (e.ns <= 0 || job.samples[s].ns <= 0) continue;
    factor[s] = e.ns / job.samples[s].ns;
    relative[s] = e.relative_error;
    by_facts[s] = e.from_facts;
    error.from_facts += e.from_facts;
  }
  rates.factor.assign(g.size(), 1);
  rates.ready.assign(g.size(), 0);
  rates.ready_before.assign(g.size(), 0);
  rates.expert.assign(job.base.expert_tp > 0 ? g.size() : 0, 0);
  double all = 0;
  for (std::uint32_t n = 0; n < g.size(); ++n) {
    const std::uint32_t s = job.sample_of[n];
    if (s == kNone) continue;
    rates.factor[n] = static_cast<float>(factor[s]);
    rates.ready[n] = ready[s];
    rates.ready_before[n] = ready_before[s];
    if (!rates.expert.empty()) rates.expert[n] = expert[s];
    total[s] += static_cast<double>(g.duration[n]) * factor[s];
    all += static_cast<double>(g.duration[n]) * factor[s];
  }
  double squares[2] = {0, 0};
  for (std::size_t s = 0; s < job.samples.size(); ++s) squares[by_facts[s]] += std::pow(total[s] * relative[s], 2);
  error.rescaled = all > 0 ? std::sqrt(squares[0]) / all : 0;
  error.by_facts = all > 0 ? std::sqrt(squares[1]) / all : 0;
  if (job.base.layer_parameters > 0) spread_parameters(job, build, rates);
  rates.parameter = job.parameter;
  rates.slow = job.slow;
  return rates;
}

Result<Rebuilt> rebuild_as(const TraceSet& traces, const GraphBuild& build, const JobModel& job, const JobShape& next,
                           const CostTable* table, const RebuildOptions& options, RatesError& error) {
  if (job.shape.experts && (job.shape.local_experts == 0 || job.shape.expert_width == 0 || job.shape.routed == 0))
    return fail("the traces do not tell the number, the width or the tokens of the job's experts", "",
                "record input shapes (record_shapes=True)");
  const Rates rates = rates_for(job, build, next, table, error);
  const bool collectives = collectives_differ(job, next), recomputes = next.recompute != job.base.recompute;
  if (!collectives && !recomputes) return rebuild(traces, build, job.program, job.base, next, rates, job.net, options);
  std::vector<std::string> modelled;
  Program program = job.program;
  if (collectives) {
    auto edited = edit_collectives(traces, build, job, next, modelled);
    if (!edited) return tl::unexpected(edited.error());
    program = std::move(*edited);
  }
  if (recomputes) {
    const auto done = change_recompute(program, traces, build, job.base, job.base.recompute, next.recompute);
    if (!done) return tl::unexpected(done.error());
  }
  auto made = rebuild(traces, build, program, job.base, next, rates, job.net, options);
  if (made) made->modelled.insert(made->modelled.end(), modelled.begin(), modelled.end());
  return made;
}

Overlap overlap_for(const Rebuilt& rebuilt, const Overlap& traced, const TraceSet& traces) {
  Overlap out;
  for (const auto& parts : rebuilt.parts) {
    auto& rows = out.of_trace.emplace_back();
    for (const std::uint32_t part : parts) {
      const std::size_t from = rows.size();
      rows.resize(from + traces.ranks[part].ops.size());
      if (part >= traced.of_trace.size()) continue;
      const auto& told = traced.of_trace[part];
      std::copy_n(told.begin(), std::min(told.size(), rows.size() - from),
                  rows.begin() + static_cast<std::ptrdiff_t>(from));
    }
  }
  return out;
}

}  // namespace orrery
