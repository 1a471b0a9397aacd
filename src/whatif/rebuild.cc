#include "whatif/rebuild.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <tuple>

#include "whatif/whatif.h"

namespace orrery {
namespace {

constexpr std::uint32_t kPending = 0x80000000u;  // a reference to a transfer that is not placed yet

// Bytes of a message; absurd sizes stay countable.
std::int64_t whole(double bytes) { return bytes < 1e15 ? std::llround(std::max(bytes, -1.0)) : 1'000'000'000'000'000; }

std::string_view name_of_op(CommOp op) {
  switch (op) {
    case CommOp::all_reduce:
      return "allreduce";
    case CommOp::all_gather:
      return "_allgather_base";
    case CommOp::reduce_scatter:
      return "_reduce_scatter_base";
    case CommOp::broadcast:
      return "broadcast";
    default:
      return "send";
  }
}

// A piece of the traced job in its new place.
struct Use {
  std::uint32_t rank = 0, piece = 0;  // of the traced job
  std::int32_t slot = -1;             // exchanges: slot of the stage's schedule; passes: where they begin
  std::int32_t transfer = -1;         // overlapped exchanges: the only one of the slot that it carries
  std::int32_t part = 0;              // of the model
  std::int32_t step = 0;
  bool last_pass = false;      // backward of the part's last micro-batch: gradients are reduced
  bool without_tasks = false;  // its host work alone
  enum class Half : std::uint8_t { both, input, weight } half = Half::both;  // of the gradients
  bool tail = false;                                                         // what follows its last launch alone
  bool head = false;                                                         // what precedes its first launch alone
};

struct Bucketing {
  bool overlapped = false;
  double size = 0;                                               // parameters at which a bucket is full
  std::vector<std::pair<std::uint32_t, std::uint32_t>> samples;  // rank, piece of the traced job
};

// Where a rank is in a piece.
struct Cursor {
  bool active = false;
  const Use* use = nullptr;
  std::uint32_t item = 0, from = 0, to = 0;
  std::uint32_t flush_before = kNone;               // item before which what is left of the gradients is reduced
  std::vector<std::uint32_t> refs;                  // by item: its node, or a pending transfer
  std::vector<std::vector<std::uint32_t>> carries;  // exchanges, by item: transfers of the slot
  std::vector<std::pair<std::uint32_t, std::uint32_t>> transfer_of;  // row of the traced job -> pending transfer
};

struct NewRank {
  std::int64_t t = 0, d = 0, stage = 0, number = 0;
  std::uint32_t column = 0, source = 0;  // of the traced job
  double slow = 1;                       // its GPU, whatever it is given to do
  std::vector<Use> uses;
  std::vector<std::uint32_t> lane;                       // by role
  std::vector<std::vector<std::uint32_t>> order, tasks;  // by role: nodes, and of them the tasks launched
  std::map<std::pair<int, std::uint32_t>, std::int64_t> calls;
  std::size_t use_at = 0;
  Cursor main, inserted;
  std::uint32_t blocked = kNone;
  Use bucket_use;
  double bucket_factor = 1, bucket_parameters = 0, gathered = 0;
  std::map<std::int32_t, double> reduced;  // by part: parameters in buckets so far
  std::uint32_t buckets = 0;
  struct Wait {
    std::uint32_t ref;
    EdgeKind kind;
    Ns lag;
  };
  std::map<std::uint32_t, std::vector<Wait>> waits;               // by role: of whatever comes next on it
  std::map<std::array<std::int64_t, 5>, std::uint32_t> received;  // overlapped: name of the transfer, step -> transfer
};

class Rebuilder {
 public:
  Rebuilder(const TraceSet& t, const GraphBuild& b, const Program& p, const JobShape& from, const JobShape& to,
            const Rates& r, const NetworkModel& n, const RebuildOptions& o)
      : traces(t),
        base(b),
        g(b.graph),
        c(b.communication),
        program(p),
        old(from),
        now(to),
        rates(r),
        net(n),
        options(o) {}

  Status run(Rebuilt& result) {
    out = &result;
    if (Status s = prepare(); !s) return s;
    if (Status s = plan(); !s) return s;
    if (Status s = check_buckets(); !s) return s;
    merge_traces();
    make_ranks();
    if (Status s = emit(); !s) return s;
    finish();
    return check_times(out->build.graph);
  }

 private:
  // ---- the traced job ----

  std::int64_t rank_number(const JobLayout& l, std::int64_t t, std::int64_t d, std::int64_t s) const {
    return l.pipeline_outermost ? t + l.tp * (d + l.dp * s) : t + l.tp * (s + l.pp * d);
  }

  Status prepare() {
    main_role = static_cast<std::uint32_t>(
        std::find(program.roles.begin(), program.roles.end(), LaneRole{LaneRole::Kind::thread, 0, 0}) -
        program.roles.begin());
    std::map<std::int64_t, std::uint32_t> row_of_rank;
    for (std::uint32_t r = 0; r < g.ranks.size(); ++r) row_of_rank[g.ranks[r].rank] = r;
    // columns of the traced job: those whose stages all have a trace
    for (std::int64_t d = 0; d < old.layout.dp; ++d)
      for (std::int64_t t = 0; t < old.layout.tp; ++t) {
        Column column{t, d, {}};
        for (std::int64_t s = 0; s < old.layout.pp; ++s) {
          const auto it = row_of_rank.find(rank_number(old.layout, t, d, s));
          if (it == row_of_rank.end()) break;
          column.rank.push_back(it->second);
        }
        if (std::ssize(column.rank) == old.layout.pp) columns.push_back(std::move(column));
      }
    if (columns.empty())
      return fail("no pipeline of the traced job has all its stages in the traces", "", "give the traces of all ranks");
    keep_whole_replicas();
    auto traced =
        make_schedule(old.schedule, static_cast<std::int32_t>(old.layout.pp), old.chunks,
                      static_cast<std::int32_t>(old.layout.num_microbatches), overlaps(old), old.all_forward_first);
    if (!traced) return tl::unexpected(traced.error());
    // pieces of every pass, by rank: part and micro-batch -> number of the pass
    pass_pieces.resize(g.ranks.size());
    traced_stage.assign(g.ranks.size(), 0);
    ends_step.assign(g.size(), 0);
    for (const Step& s : g.steps) ends_step[raw(s.begin_node)] = ends_step[raw(s.end_node)] = 1;
    for (const Column& column : columns)
      for (std::size_t s = 0; s < column.rank.size(); ++s) {
        const std::uint32_t r = column.rank[s];
        traced_stage[r] = static_cast<std::int64_t>(s);
        const RankAnatomy& a = program.anatomy.ranks[r];
        PassPieces& pp = pass_pieces[r];
        std::int32_t steps = 0;
        for (const Piece& piece : a.pieces) steps = std::max(steps, piece.step + 1);
        base_steps = base_steps == 0 ? steps : std::min(base_steps, steps);
        std::vector<std::pair<std::int32_t, std::int32_t>> forward,
            backward;  // chunk, micro-batch by number of the pass
        for (const Slot& slot : traced->stage[s]) {
          if (!slot.is_pass || slot.pass == Pass::weight) continue;
          (slot.pass == Pass::forward ? forward : backward).emplace_back(slot.chunk, slot.micro_batch);
        }
        if (std::ssize(forward) != a.passes)
          return fail("rank " + std::to_string(g.ranks[r].rank) + " has " + std::to_string(a.passes) +
                          " forward passes a step, not " + std::to_string(forward.size()),
                      "", "--layout num-microbatches=N,schedule=...");
        if (old.chunks > 1) name_exchanges(r, traced->stage[s]);
        for (std::uint32_t k = 0; k < a.pieces.size(); ++k) {
          const Piece& piece = a.pieces[k];
          if (piece.step < 0) continue;
          if (piece.kind == PieceKind::exchange) {
            exchanges.push_back({r, k, mask_of(r, k), static_cast<std::int32_t>(s)});
            continue;
          }
          if (piece.kind == PieceKind::step_begin) pp.begin[piece.step] = k;
          if (piece.kind == PieceKind::step_end) pp.end[piece.step] = k;
          if (piece.pass < 0) continue;
          const bool is_forward = piece.kind == PieceKind::forward_begin || piece.kind == PieceKind::forward_layer ||
                                  piece.kind == PieceKind::forward_end;
          const auto& order = is_forward ? forward : backward;
          const auto [chunk, micro_batch] = order[static_cast<std::size_t>(piece.pass)];
          if (piece.kind == PieceKind::bucket) {
            buckets.samples.emplace_back(r, k);
            continue;
          }
          pp.pass[{piece.step, chunk, micro_batch, piece.kind, piece.layer}] = k;
        }
      }
    buckets.overlapped = !buckets.samples.empty() && now.layout.dp > 1;
    if (buckets.overlapped && !rates.ready_before.empty()) learn_buckets();
    // what each exchange kernel carries
    return {};
  }

  // Bits: sends to the next stage 1, receives from it 2, sends to the previous 4, receives from it 8.
  std::uint8_t mask_of(std::uint32_t r, std::uint32_t piece) const {
    std::uint8_t mask = 0;
    const PieceItems& items = program.pieces[r][piece];
    for (std::uint32_t i = 0; i < items.count; ++i) {
      const Item& item = program.items[items.first + i];
      if (exchanges_by(item)) mask |= mask_of(item);
    }
    return mask;
  }
  // A kernel of sends and receives; a made one carries whatever there is.
  bool exchanges_by(const Item& item) const {
    return (item.comm != kNone && !item.transfer) || invented(item) != nullptr;
  }
  std::uint8_t mask_of(const Item& item) const { return item.comm == kNone ? 15 : mask_of(c.rows[item.comm]); }
  // What a task is made to be that the traced job has nothing of.
  const MadeTask* invented(const Item& item) const {
    if (item.made == kNone || program.made[item.made].replaces) return nullptr;
    return &program.made[item.made];
  }
  std::uint8_t mask_of(const CommRow& row) const {
    const auto named = named_mask.find(static_cast<std::uint32_t>(&row - c.rows.data()));
    if (named != named_mask.end()) return named->second;
    std::uint8_t mask = 0;
    const std::int64_t own = g.ranks[row.rank].rank;
    for (std::uint32_t k = 0; k < row.parts; ++k) {
      const CommPart& part = c.parts[row.first_part + k];
      // the ring of an interleaved pipeline: the last stage's next is the first
      const bool wraps = old.chunks > 1 && std::abs(part.peer - own) > stage_stride(old.layout) && old.layout.pp > 2;
      const bool next = (part.peer > own) != wraps;
      mask |= next ? (part.send ? 1 : 2) : (part.send ? 4 : 8);
    }
    return mask;
  }
  // In a ring of stages the peer does not tell the direction (of two stages it is the same both ways), the schedule
  // does: where a step has as many exchanges as the schedule says, the k-th is the k-th of that.
  void name_exchanges(std::uint32_t r, const std::vector<Slot>& slots) {
    std::vector<const Slot*> exchange;
    for (const Slot& slot : slots)
      if (!slot.is_pass) exchange.push_back(&slot);
    const RankAnatomy& a = program.anatomy.ranks[r];
    std::map<std::int32_t, std::vector<std::uint32_t>> traced;  // by step: pieces
    for (std::uint32_t k = 0; k < a.pieces.size(); ++k)
      if (a.pieces[k].kind == PieceKind::exchange && a.pieces[k].step >= 0) traced[a.pieces[k].step].push_back(k);
    for (const auto& [step, pieces] : traced) {
      if (pieces.size() != exchange.size()) continue;
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        std::vector<std::uint8_t> used(exchange[i]->transfers.size(), 0);
        const PieceItems& items = program.pieces[r][pieces[i]];
        for (std::uint32_t n = items.first; n < items.first + items.count; ++n) {
          const Item& item = program.items[n];
          if (item.comm == kNone || item.transfer) continue;
          const CommRow& row = c.rows[item.comm];
          std::uint8_t mask = 0;
          for (std::uint32_t part = row.first_part; part < row.first_part + row.parts; ++part)
            for (std::size_t k = 0; k < used.size(); ++k) {
              const Transfer& t = exchange[i]->transfers[k];
              if (used[k] != 0 || t.send != c.parts[part].send ||
                  stage_of(old.layout, c.parts[part].peer) != t.peer_stage)
                continue;
              used[k] = 1;
              mask |= bit_of(t);
              break;
            }
          if (mask != 0) named_mask[item.comm] = mask;
        }
      }
    }
  }
  static std::int64_t stage_of(const JobLayout& l, std::int64_t rank) { return rank / stage_stride(l) % l.pp; }

  static bool overlaps(const JobShape& shape) { return shape.overlap && shape.chunks > 1 && shape.layout.pp > 1; }
  static std::int64_t stage_stride(const JobLayout& l) { return l.pipeline_outermost ? l.tp * l.dp : l.tp; }
  static std::uint8_t bit_of(const Transfer& t) {
    return direction_of(t) == Direction::next ? (t.send ? 1 : 2) : (t.send ? 4 : 8);
  }

  // ---- buckets ----

  // When a bucket is full: the least that one was closed with, but for the last of a pass, which takes what is left.
  // Megatron-LM's default (distributed_data_parallel_config: the larger of 40 million parameters and one million a
  // replica) where the traced buckets agree with it.
  void learn_buckets() {
    if (program.bucket_parameters > 0) {
      buckets.size = program.bucket_parameters;
      return;
    }
    double least = 1e30, least_ready = 1e30;
    for (const Column& column : columns)
      for (const std::uint32_t r : column.rank) {
        const RankAnatomy& a = program.anatomy.ranks[r];
        std::map<std::pair<std::int32_t, std::int32_t>, std::uint32_t> last;  // of a step's pass
        for (std::uint32_t k = 0; k < a.pieces.size(); ++k)
          if (a.pieces[k].kind == PieceKind::bucket) last[{a.pieces[k].step, a.pieces[k].pass}] = k;
        // weight gradients and reductions of those passes as they began
        std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::pair<Ns, double>>> began;
        for (std::uint32_t k = 0; k < a.pieces.size(); ++k) {
          const std::pair pass{a.pieces[k].step, a.pieces[k].pass};
          if (!last.contains(pass)) continue;
          const PieceItems& items = program.pieces[r][k];
          const bool bucket = a.pieces[k].kind == PieceKind::bucket;
          if (bucket && k != last.at(pass)) least = std::min(least, bucket_parameters(r, k));
          for (std::uint32_t i = items.first; i < items.first + items.count; ++i) {
            const Item& item = program.items[i];
            const float ready = rates.ready_before[item.node];
            if (bucket && item.comm != kNone && !item.transfer)
              began[pass].emplace_back(g.observed_start[item.node], k == last.at(pass) ? -2.0 : -1.0);
            else if (ready > 0 && backward(a.pieces[k].kind))
              began[pass].emplace_back(g.observed_start[item.node], static_cast<double>(ready));
          }
        }
        for (auto& [pass, events] : began) {
          std::sort(events.begin(), events.end());
          double gathered = 0;
          for (const auto& [at, ready] : events) {
            gathered += std::max(ready, 0.0);
            if (ready >= 0) continue;
            if (ready == -1.0 && gathered > 0) least_ready = std::min(least_ready, gathered);
            gathered = 0;
          }
        }
      }
    if (least > 1e29) {  // one bucket holds all
      buckets.size = 1e30;
      return;
    }
    const auto usual = [](const JobLayout& l) { return std::max(40e6, 1e6 * static_cast<double>(l.dp)); };
    // counted parameters come with all kernels of a layer alike: they do not tell when a gradient was there
    if (old.layer_parameters > 0) least_ready = least;
    buckets.size = least >= usual(old.layout) ? usual(now.layout) : std::min(least, least_ready);
  }

  static bool backward(PieceKind kind) {
    return kind == PieceKind::backward_begin || kind == PieceKind::backward_layer || kind == PieceKind::backward_end;
  }

  double bucket_parameters(std::uint32_t r, std::uint32_t piece) const {
    double bytes = 0;
    const PieceItems& items = program.pieces[r][piece];
    for (std::uint32_t i = 0; i < items.count; ++i) {
      const Item& item = program.items[items.first + i];
      if (item.comm != kNone && !item.transfer) bytes = std::max(bytes, static_cast<double>(c.rows[item.comm].bytes));
    }
    return bytes / gradient_bytes;
  }

  // ---- the new job's program ----

  struct Column {
    std::int64_t t, d;
    std::vector<std::uint32_t> rank;  // by stage: row of the traced job
  };
  struct PassPieces {
    std::map<std::int32_t, std::uint32_t> begin, end;  // by step
    std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t, PieceKind, std::int32_t>, std::uint32_t> pass;
  };
  struct ExchangePiece {
    std::uint32_t rank, piece;
    std::uint8_t mask;
    std::int32_t stage;
  };

  // Replica by replica, each with the same tensor ranks: see keep_whole_replicas.
  const Column& column_for(std::int64_t t, std::int64_t d) const {
    const auto each = static_cast<std::int64_t>(columns_each), all = std::ssize(columns);
    return columns[static_cast<std::size_t>((d % (all / each)) * each + t % each)];
  }

  // Of replicas of which some ranks have no trace, collectives met fewer partners than others': ranks put together of
  // both kinds would wait for each other. Kept are those with the same, the most, tensor ranks.
  void keep_whole_replicas() {
    std::map<std::int64_t, std::vector<std::int64_t>> tensor_of;  // by replica
    for (const Column& column : columns) tensor_of[column.d].push_back(column.t);
    const auto best = std::max_element(tensor_of.begin(), tensor_of.end(),
                                       [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    columns_each = best->second.size();
    std::erase_if(columns, [&, kept = best->second](const Column& column) { return tensor_of.at(column.d) != kept; });
  }

  std::uint32_t pass_piece(std::uint32_t rank, std::int32_t step, std::int32_t chunk, std::int32_t micro_batch,
                           PieceKind kind, std::int32_t layer = -1) const {
    const auto it = pass_pieces[rank].pass.find({step, chunk, micro_batch, kind, layer});
    return it == pass_pieces[rank].pass.end() ? kNone : it->second;
  }

  // Refuses what would take all memory, before anything is laid out.
  Status check_size() {
    constexpr std::size_t kKinds = static_cast<std::size_t>(PieceKind::step_end) + 1;
    std::array<double, kKinds> items{}, pieces{};
    for (const Column& column : columns)
      for (const std::uint32_t r : column.rank)
        for (std::size_t k = 0; k < program.pieces[r].size(); ++k) {
          const auto kind = static_cast<std::size_t>(program.anatomy.ranks[r].pieces[k].kind);
          items[kind] += program.pieces[r][k].count;
          ++pieces[kind];
        }
    const auto each = [&](PieceKind kind) {  // a use of it costs something even where it is empty
      const auto i = static_cast<std::size_t>(kind);
      return 1 + (pieces[i] > 0 ? items[i] / pieces[i] : 0);
    };
    const JobLayout& l = now.layout;
    const auto stages = static_cast<double>(l.pp), parts = stages * now.chunks;
    const double pass =
        static_cast<double>(l.layers) * (each(PieceKind::forward_layer) + each(PieceKind::backward_layer)) +
        parts * (each(PieceKind::forward_begin) + each(PieceKind::forward_end) + each(PieceKind::backward_begin) +
                 each(PieceKind::backward_end)) +
        (l.pp > 1 ? 2 * parts * each(PieceKind::exchange) : 0);
    const double step = static_cast<double>(l.num_microbatches) * pass +
                        stages * (each(PieceKind::step_begin) + each(PieceKind::step_end));
    const double nodes = step * base_steps * static_cast<double>(tensor) * static_cast<double>(replicas);
    if (nodes <= static_cast<double>(options.max_nodes)) {
      reserve(nodes);
      return {};
    }
    return fail("the changed job is too large to be put together: some " + std::to_string(std::llround(nodes / 1e6)) +
                    " million events, more than " + std::to_string(options.max_nodes / 1'000'000) + " million",
                "", "fewer micro-batches, layers, traced steps or replicas");
  }

  // Columns that grow by doubling would need half as much again.
  void reserve(double nodes) const {
    ExecGraph& o = out->build.graph;
    const auto n = static_cast<std::size_t>(1.02 * nodes);
    const double each = g.size() == 0 ? 0 : static_cast<double>(g.edges()) / static_cast<double>(g.size());
    const auto e = static_cast<std::size_t>(1.1 * nodes * each);
    o.duration.reserve(n);
    o.observed_start.reserve(n);
    o.lane.reserve(n);
    o.kind.reserve(n);
    o.at_begin.reserve(n);
    o.rank.reserve(n);
    o.source.reserve(n);
    o.first_pred.reserve(n + 1);
    o.pred.reserve(e);
    o.pred_kind.reserve(e);
    o.pred_lag.reserve(e);
  }

  Status plan() {
    const JobLayout& l = now.layout;
    const auto stages = static_cast<std::int32_t>(l.pp);
    const std::int32_t parts = stages * now.chunks;
    if (l.layers % parts != 0)
      return fail(std::to_string(l.layers) + " layers are not divisible by " + std::to_string(stages) + " stages" +
                  (now.chunks > 1 ? " of " + std::to_string(now.chunks) + " chunks" : ""));
    tensor = std::min<std::int64_t>(l.tp, options.max_tensor != 0 ? options.max_tensor : old.layout.tp);
    replicas = std::min<std::int64_t>(l.dp, options.max_replicas != 0 ? options.max_replicas : old.layout.dp);
    if (Status s = check_size(); !s) return s;
    auto made = make_schedule(now.schedule, stages, now.chunks, static_cast<std::int32_t>(l.num_microbatches),
                              overlaps(now), now.all_forward_first);
    if (!made) return tl::unexpected(made.error());
    schedule = std::move(*made);
    if (schedule.kind == ScheduleKind::zero_bubble &&
        std::find(program.weight.begin(), program.weight.end(), 1) == program.weight.end())
      return fail("zero-bubble needs the products that are gradients of weights, which the traces do not tell", "",
                  "record input shapes (record_shapes=True)");
    const std::int32_t part_layers = static_cast<std::int32_t>(l.layers) / parts;
    const std::int32_t old_parts = static_cast<std::int32_t>(old.layout.pp) * old.chunks;
    const std::int32_t old_layers = static_cast<std::int32_t>(old.layout.layers) / old_parts;
    const auto old_micro = static_cast<std::int32_t>(old.layout.num_microbatches);
    const auto old_layer = [&](std::int32_t layer) {  // the traced layer at the same place of the model
      return static_cast<std::int32_t>((2 * static_cast<std::int64_t>(layer) + 1) * old.layout.layers / (2 * l.layers));
    };
    for (std::int32_t s = 0; s < stages; ++s)
      for (std::int64_t d = 0; d < replicas; ++d)
        for (std::int64_t t = 0; t < tensor; ++t) {
          NewRank rank;
          rank.t = t, rank.d = d, rank.stage = s;
          rank.number = rank_number(l, t, d, s);
          rank.slow = slowness(rank);
          const Column& column = column_for(t, d);
          rank.column = static_cast<std::uint32_t>(&column - columns.data());
          const auto rotate = static_cast<std::int32_t>(d / old.layout.dp + t / old.layout.tp);
          // the traced stage that begins and ends steps alike
          const auto old_stages = static_cast<std::int32_t>(old.layout.pp);
          const std::int32_t alike = s == 0                 ? 0
                                     : s == stages - 1      ? old_stages - 1
                                     : old_stages == stages ? s
                                                            : std::min(1, old_stages - 1);
          rank.source = column.rank[static_cast<std::size_t>(alike)];
          std::map<std::uint8_t, std::int32_t> numbers;  // of exchanges that carry the same
          for (std::int32_t step = 0; step < base_steps; ++step) {
            const auto use = [&](std::uint32_t r, std::uint32_t piece) -> Use& {
              Use u;
              u.rank = r, u.piece = piece, u.step = step;
              rank.uses.push_back(u);
              return rank.uses.back();
            };
            use(rank.source, pass_pieces[rank.source].begin.at(step));
            for (std::size_t k = 0; k < schedule.stage[static_cast<std::size_t>(s)].size(); ++k) {
              const Slot& slot = schedule.stage[static_cast<std::size_t>(s)][k];
              if (!slot.is_pass) {
                const ExchangePiece* e = exchange_for(column, slot, rank.source, numbers);
                if (e == nullptr) return fail("the traced job has no exchange between stages to model new ones on");
                // overlapped: each its own call and kernel
                const auto transfers = static_cast<std::int32_t>(slot.transfers.size());
                const std::int32_t calls = !schedule.overlap || overlaps(old) ? 1 : transfers;
                for (std::int32_t i = 0; i < calls; ++i) {
                  Use& u = use(e->rank, e->piece);
                  u.slot = static_cast<std::int32_t>(k);
                  if (schedule.overlap && !overlaps(old)) u.transfer = i;
                }
                continue;
              }
              const std::size_t begins = rank.uses.size();
              const std::int32_t part = slot.chunk * stages + s;
              const bool first = part == 0, last = part == parts - 1;
              const bool forward = slot.pass == Pass::forward;
              const Use::Half half = schedule.kind != ScheduleKind::zero_bubble || forward ? Use::Half::both
                                     : slot.pass == Pass::weight                           ? Use::Half::weight
                                                                                           : Use::Half::input;
              const bool reduces = half != Use::Half::input && !forward && last_backward(s, slot);
              const std::int32_t from = (slot.micro_batch + rotate) % old_micro;
              // where a pass begins and ends
              const auto at_end = [&](bool input_side, PieceKind kind) {
                // the traced part whose end is alike: the first one's input side, the last one's output side
                const bool special = input_side ? first : last;
                const bool own = old_parts == parts && old_stages == stages;  // an unchanged pipeline keeps its own
                std::int32_t source = input_side ? (special ? 0 : old_parts - 1) : (special ? old_parts - 1 : 0);
                // best the part that the layer beside it is of: all ranks cut layers in their own place
                const std::int32_t beside =
                    old_layer(part * part_layers + (input_side ? 0 : part_layers - 1)) / old_layers;
                if (special == (beside == (input_side ? 0 : old_parts - 1))) source = beside;
                if (own) source = part;
                const std::uint32_t r = column.rank[static_cast<std::size_t>(source % old_stages)];
                const std::uint32_t piece = pass_piece(r, step, source / old_stages, from, kind);
                if (piece == kNone) return;
                Use& u = use(r, piece);
                u.part = part;
                const bool same = special == (input_side ? source == 0 : source == old_parts - 1);
                u.half = half;
                u.last_pass = kind == PieceKind::backward_begin && reduces;
                if (own) return;
                if (kind == PieceKind::forward_begin && !first && (!last || !same)) u.tail = true;
                if (kind == PieceKind::forward_begin && last && !first && same) u.tail = false;
                if (!same && kind == PieceKind::forward_end) u.head = true;
                if (!same && (kind == PieceKind::backward_begin || kind == PieceKind::backward_end))
                  u.without_tasks = true;
              };
              const auto layer_uses = [&](PieceKind kind) {
                for (std::int32_t j = 0; j < part_layers; ++j) {
                  const std::int32_t own = kind == PieceKind::forward_layer ? j : part_layers - 1 - j;
                  const std::int32_t global = part * part_layers + own;
                  const std::int32_t alike_layer = old_layer(global);
                  const std::int32_t old_part = alike_layer / old_layers, old_own = alike_layer % old_layers;
                  const std::uint32_t r = column.rank[static_cast<std::size_t>(old_part % old_stages)];
                  const std::uint32_t piece =
                      pass_piece(r, step, old_part / old_stages, from, kind,
                                 kind == PieceKind::forward_layer ? old_own : old_layers - 1 - old_own);
                  if (piece == kNone) continue;
                  Use& u = use(r, piece);
                  u.part = part;
                  u.half = half;
                  u.last_pass = kind == PieceKind::backward_layer && reduces;
                }
              };
              if (forward) {
                at_end(true, PieceKind::forward_begin);
                layer_uses(PieceKind::forward_layer);
                at_end(false, PieceKind::forward_end);
              } else {
                at_end(false, PieceKind::backward_begin);
                layer_uses(PieceKind::backward_layer);
                at_end(true, PieceKind::backward_end);
                rank.uses.back().last_pass = reduces;
              }
              if (schedule.overlap && begins < rank.uses.size()) rank.uses[begins].slot = static_cast<std::int32_t>(k);
            }
            use(rank.source, pass_pieces[rank.source].end.at(step));
          }
          ranks.push_back(std::move(rank));
        }
    return {};
  }

  bool last_backward(std::int32_t, const Slot& slot) const {
    return slot.micro_batch == now.layout.num_microbatches - 1;
  }

  // The traced exchange to make one of: of the same column, carrying the same, best of the stage that is alike; the
  // k-th of those for the k-th such of the new rank, so that an unchanged job is put together as it was.
  const ExchangePiece* exchange_for(const Column& column, const Slot& slot, std::uint32_t source,
                                    std::map<std::uint8_t, std::int32_t>& number) {
    std::uint8_t mask = 0;
    for (const Transfer& t : slot.transfers) mask |= bit_of(t);
    const auto key = std::tuple(static_cast<std::uint32_t>(&column - columns.data()), source, mask);
    auto it = fitting.find(key);
    if (it == fitting.end()) {
      std::vector<const ExchangePiece*> best;
      int score = -100;
      for (const ExchangePiece& e : exchanges) {
        if (std::find(column.rank.begin(), column.rank.end(), e.rank) == column.rank.end()) continue;
        const int common = __builtin_popcount(e.mask & mask), extra = __builtin_popcount(e.mask & ~mask);
        const int fits = 8 * common - 2 * extra + (e.mask == mask ? 16 : 0) + (e.rank == source ? 1 : 0);
        if (fits > score) score = fits, best.clear();
        if (fits == score) best.push_back(&e);
      }
      it = fitting.emplace(key, std::move(best)).first;
    }
    if (it->second.empty()) return nullptr;
    return it->second[static_cast<std::size_t>(number[mask]++) % it->second.size()];
  }

  // Buckets are those of a rank's own pipeline, whose rows are in its trace.
  Status check_buckets() const {
    if (!buckets.overlapped) return {};
    for (const NewRank& rank : ranks) {
      const std::vector<std::uint32_t>& own = columns[rank.column].rank;
      if (std::none_of(buckets.samples.begin(), buckets.samples.end(),
                       [&](const auto& x) { return std::find(own.begin(), own.end(), x.first) != own.end(); }))
        return fail("rank " + std::to_string(g.ranks[rank.source].rank) +
                        " reduces no gradients beside its backward pass, others do",
                    "", "are all files of one run?");
    }
    return {};
  }

  // ---- traces of the new ranks: names and lanes of a column's ranks together ----

  void merge_traces() {
    column_of.assign(g.ranks.size(), kNone);
    for (const Column& column : columns)
      for (const std::uint32_t r : column.rank) column_of[r] = static_cast<std::uint32_t>(&column - columns.data());
    op_offset.assign(g.ranks.size(), 0);
    lane_offset.assign(g.ranks.size(), 0);
    std::vector<std::uint8_t> used(columns.size(), 0);
    for (const NewRank& rank : ranks) used[rank.column] = 1;
    for (const Column& column : columns) {
      RankTrace merged;
      if (!used[static_cast<std::size_t>(&column - columns.data())]) {
        made_lane.emplace_back();
        made_op.emplace_back();
        out->parts.emplace_back();
        out->traces.ranks.push_back(std::move(merged));
        continue;
      }
      const RankTrace& first = traces.ranks[g.ranks[column.rank.front()].trace];
      merged.file = first.file;
      merged.host = first.host;
      merged.rank = first.rank;
      merged.world_size = now.layout.tp * now.layout.pp * now.layout.dp;
      merged.devices = first.devices;
      merged.base_ns = first.base_ns;
      merged.window_start = first.window_start;
      merged.window_end = first.window_end;
      for (const std::uint32_t r : column.rank) {
        const RankTrace& t = traces.ranks[g.ranks[r].trace];
        op_offset[r] = static_cast<std::uint32_t>(merged.ops.size());
        lane_offset[r] = static_cast<std::uint32_t>(merged.lanes.size());
        if (!options.names) {
          merged.ops.name.resize(merged.ops.size() + t.ops.size());
          const std::size_t lanes = merged.lanes.size() + t.lanes.size();
          merged.lanes.kind.resize(lanes);
          merged.lanes.pid.resize(lanes);
          merged.lanes.tid.resize(lanes);
          merged.lanes.pid_text.resize(lanes);
          merged.lanes.tid_text.resize(lanes);
          merged.lanes.name.resize(lanes);
          continue;
        }
        std::vector<StrId> renamed(t.strings.size(), StrId{kNone});
        const auto text = [&](StrId s) {
          StrId& to = renamed[raw(s)];
          if (raw(to) == kNone) to = merged.strings.intern(t.strings.view(s));
          return to;
        };
        for (std::size_t i = 0; i < t.ops.size(); ++i) {
          merged.ops.name.push_back(text(t.ops.name[i]));
          merged.ops.lane.push_back(LaneId{raw(t.ops.lane[i]) + lane_offset[r]});
          merged.ops.kind.push_back(t.ops.kind[i]);
        }
        const bool whole = t.ops.start.size() == t.ops.size();
        for (std::size_t i = 0; whole && i < t.ops.size(); ++i) {
          merged.ops.start.push_back(t.ops.start[i]);
          merged.ops.dur.push_back(t.ops.dur[i]);
          merged.ops.corr.push_back(t.ops.corr[i]);
          merged.ops.ext.push_back(t.ops.ext[i]);
          merged.ops.extra.push_back(kNone);
        }
        for (std::size_t i = 0; i < t.lanes.size(); ++i) {
          merged.lanes.kind.push_back(t.lanes.kind[i]);
          merged.lanes.pid.push_back(t.lanes.pid[i]);
          merged.lanes.tid.push_back(t.lanes.tid[i]);
          merged.lanes.pid_text.push_back(text(t.lanes.pid_text[i]));
          merged.lanes.tid_text.push_back(text(t.lanes.tid_text[i]));
          merged.lanes.name.push_back(text(t.lanes.name[i]));
        }
      }
      add_made(merged, column);
      add_foreign(merged, column);
      if (schedule.overlap) add_exchange_streams(merged);
      std::vector<std::uint32_t> parts;
      for (const std::uint32_t r : column.rank) parts.push_back(g.ranks[r].trace);
      out->parts.push_back(std::move(parts));
      out->traces.ranks.push_back(std::move(merged));
    }
  }

  // The host work of what is made is like that of one rank, of whichever pipeline: its names are wanted here too.
  void add_foreign(RankTrace& merged, const Column& column) {
    const auto k = static_cast<std::uint32_t>(&column - columns.data());
    const bool whole = merged.ops.start.size() == merged.ops.size();
    for (const std::uint32_t r : column.rank)
      for (const PieceItems& piece : program.pieces[r])
        for (std::uint32_t i = piece.first; i < piece.first + piece.count; ++i) {
          const std::uint32_t n = program.items[i].node;
          if (column_of[g.rank[n]] == k) continue;
          if (!foreign.try_emplace({k, n}, static_cast<std::uint32_t>(merged.ops.size())).second) continue;
          const RankTrace& t = traces.ranks[g.ranks[g.rank[n]].trace];
          const bool named = g.source[n] != kNoOp;
          merged.ops.name.push_back(merged.strings.intern(named ? t.name_of(g.source[n]) : std::string_view()));
          merged.ops.lane.push_back(LaneId{0});
          merged.ops.kind.push_back(named ? t.ops.kind[raw(g.source[n])] : OpKind::other);
          if (!whole) continue;
          merged.ops.start.push_back(merged.window_start);
          merged.ops.dur.push_back(0);
          merged.ops.corr.push_back(0);
          merged.ops.ext.push_back(0);
          merged.ops.extra.push_back(kNone);
        }
  }
  // Row of a column's merged trace that a node of the traced job came from.
  OpId source_in(std::uint32_t column, std::uint32_t n) const {
    if (column_of[g.rank[n]] == column)
      return g.source[n] == kNoOp ? kNoOp : OpId{raw(g.source[n]) + op_offset[g.rank[n]]};
    const auto it = foreign.find({column, n});
    return it == foreign.end() ? kNoOp : OpId{it->second};
  }

  // Streams and names of what is made.
  void add_made(RankTrace& merged, const Column& column) {
    std::vector<std::uint32_t>& lanes = made_lane.emplace_back(program.roles.size(), kNone);
    std::vector<std::uint32_t>& ops = made_op.emplace_back();
    for (const MadeTask& m : program.made) {
      ops.push_back(static_cast<std::uint32_t>(merged.ops.size()));
      if (m.replaces || m.lane == kNone) continue;
      const bool exists = std::any_of(column.rank.begin(), column.rank.end(), [&](std::uint32_t r) {
        return program.lane_of[r].find(m.lane) != program.lane_of[r].end();
      });
      if (!exists && lanes[m.lane] == kNone) {
        lanes[m.lane] = static_cast<std::uint32_t>(merged.lanes.size());
        std::int64_t device = 0, stream = 0;
        for (std::size_t i = 0; i < merged.lanes.size(); ++i)
          if (merged.lanes.kind[i] == LaneKind::stream)
            device = merged.lanes.pid[i], stream = std::max(stream, merged.lanes.tid[i]);
        merged.lanes.kind.push_back(LaneKind::stream);
        merged.lanes.pid.push_back(device);
        merged.lanes.tid.push_back(stream + 1);
        const StrId none = merged.strings.intern("");
        merged.lanes.pid_text.push_back(none);
        merged.lanes.tid_text.push_back(none);
        merged.lanes.name.push_back(none);
      }
      const bool whole = merged.ops.start.size() == merged.ops.size();
      merged.ops.name.push_back(merged.strings.intern(m.name));
      merged.ops.lane.push_back(LaneId{lanes[m.lane] == kNone ? 0 : lanes[m.lane]});
      merged.ops.kind.push_back(OpKind::kernel);
      if (!whole) continue;
      merged.ops.start.push_back(merged.window_start);
      merged.ops.dur.push_back(0);
      merged.ops.corr.push_back(0);
      merged.ops.ext.push_back(0);
      merged.ops.extra.push_back(kNone);
    }
  }
  // Streams of overlapped transfers, as torch and Megatron-LM have them: one for each peer, which both its sends and
  // its receives share; of two stages, where next and previous are one peer, one for the sends and one for the receives
  // (Megatron-LM takes another process group for one direction then).
  static constexpr std::uint32_t kExchangeStreams = 2;
  void add_exchange_streams(RankTrace& merged) {
    std::size_t like = 0;
    std::int64_t number = 0;
    for (std::size_t i = 0; i < merged.lanes.size(); ++i)
      if (merged.lanes.kind[i] == LaneKind::stream) {
        like = i;
        number = std::max(number, merged.lanes.tid[i]);
      }
    for (std::uint32_t k = 0; k < kExchangeStreams; ++k) {
      merged.lanes.kind.push_back(merged.lanes.kind[like]);
      merged.lanes.pid.push_back(merged.lanes.pid[like]);
      merged.lanes.tid.push_back(number + 1 + k);
      merged.lanes.pid_text.push_back(merged.lanes.pid_text[like]);
      merged.lanes.tid_text.push_back(merged.strings.intern(std::to_string(number + 1 + k)));
      merged.lanes.name.push_back(merged.strings.intern("stream " + std::to_string(number + 1 + k)));
    }
  }
  // Row past those of Program::roles.
  std::uint32_t exchange_role(const Transfer& t) const {
    const bool second = schedule.stages == 2 ? !t.send : direction_of(t) == Direction::previous;
    return static_cast<std::uint32_t>(program.roles.size()) + (second ? 1 : 0);
  }

  void make_ranks() {
    ExecGraph& o = out->build.graph;
    std::uint32_t first_lane = 0;
    for (NewRank& rank : ranks) {
      const Column& column = columns[rank.column];
      GraphRank k = g.ranks[rank.source];
      k.rank = rank.number;
      k.trace = rank.column;
      k.first_lane = first_lane;
      k.lanes = static_cast<std::uint32_t>(out->traces.ranks[rank.column].lanes.size());
      first_lane += k.lanes;
      o.ranks.push_back(k);
      out->build.quality.push_back(base.quality[rank.source]);
      // a lane for each role: the source's own, else another's of the column
      rank.lane.assign(program.roles.size(), kNone);
      for (std::uint32_t role = 0; role < program.roles.size(); ++role) {
        const auto own = program.lane_of[rank.source].find(role);
        if (own != program.lane_of[rank.source].end()) {
          rank.lane[role] = k.first_lane + lane_offset[rank.source] + own->second;
          continue;
        }
        for (const std::uint32_t r : column.rank) {
          const auto other = program.lane_of[r].find(role);
          if (other == program.lane_of[r].end()) continue;
          rank.lane[role] = k.first_lane + lane_offset[r] + other->second;
          break;
        }
        const std::uint32_t fresh = made_lane[rank.column][role];
        if (rank.lane[role] == kNone && fresh != kNone) rank.lane[role] = k.first_lane + fresh;
      }
      for (std::uint32_t i = 0; schedule.overlap && i < kExchangeStreams; ++i)
        rank.lane.push_back(k.first_lane + k.lanes - kExchangeStreams + i);
      rank.order.resize(rank.lane.size());
      rank.tasks.resize(rank.lane.size());
    }
    // servers
    Communication& next = out->build.communication;
    std::map<std::int64_t, std::uint32_t> servers;
    for (std::uint32_t r = 0; r < ranks.size(); ++r) {
      const std::int64_t server = ranks[r].number / std::max<std::int64_t>(1, now.layout.gpus_per_node);
      const auto [it, fresh] = servers.try_emplace(server, static_cast<std::uint32_t>(next.clocks.size()));
      if (fresh) {
        HostClock clock;
        clock.known = true;
        next.clocks.push_back(clock);
      }
      next.clocks[it->second].ranks.push_back(r);
      next.clock_of_rank.push_back(it->second);
    }
    next.op_names = c.op_names;
    made_name = static_cast<std::uint32_t>(next.op_names.size());
    for (const MadeTask& m : program.made) next.op_names.emplace_back(name_of_op(m.op));
  }

  // ---- emission ----

  struct NewRow {
    std::uint32_t row = 0;   // of the new Communication::rows
    std::uint32_t slot = 0;  // of `pending`
    std::uint32_t rank = 0;  // new rank
    std::uint32_t open = 0;  // meetings that are not complete
    std::uint32_t base_node = 0;
    Ns duration = 0;
    bool waits = true;
    std::vector<std::uint32_t> meetings;
  };
  struct NewMeeting {
    std::uint32_t expected = 0;
    std::vector<std::uint32_t> rows;  // of new_rows
    std::uint32_t node = kNone;
    std::uint32_t group = kNone;
    CommOp op = CommOp::other;
    std::uint32_t member_base = kNone;  // a row of the traced job
  };

  struct NewEdge {
    std::uint32_t from;
    EdgeKind kind;
    Ns lag;
  };

  Status emit() {
    std::vector<std::uint32_t> ready;
    for (std::uint32_t r = static_cast<std::uint32_t>(ranks.size()); r-- > 0;) ready.push_back(r);
    woken.clear();
    while (!ready.empty()) {
      const std::uint32_t r = ready.back();
      ready.pop_back();
      go_on(r);
      for (const std::uint32_t w : woken) ready.push_back(w);
      woken.clear();
    }
    for (const NewRank& rank : ranks)
      if (rank.use_at < rank.uses.size())
        return fail("the changed job would wait for itself: rank " + std::to_string(rank.number) + " in its " +
                    std::string(name_of(
                        program.anatomy.ranks[rank.uses[rank.use_at].rank].pieces[rank.uses[rank.use_at].piece].kind)));
    return {};
  }

  std::uint32_t resolve(std::uint32_t ref) const {  // kPending when not placed yet
    if (ref == kNone || (ref & kPending) == 0) return ref;
    const std::uint32_t node = pending[ref & ~kPending];
    return node == kNone ? ref : node;
  }
  static bool open(std::uint32_t ref) { return ref != kNone && (ref & kPending) != 0; }

  // Runs a rank's program until it is at its end or waits for another rank.
  void go_on(std::uint32_t r) {
    NewRank& rank = ranks[r];
    rank.blocked = kNone;
    while (rank.use_at < rank.uses.size()) {
      if (rank.inserted.active) {
        if (!run_piece(r, rank.inserted)) return;
        rank.inserted.active = false;
      }
      if (!rank.main.active) {
        const Use& use = rank.uses[rank.use_at];
        if (schedule.overlap && use.slot >= 0) wait_for_input(rank, use);
        start(rank, rank.main, use);
      }
      if (!run_piece(r, rank.main)) {
        if (rank.inserted.active && rank.blocked == kNone) continue;  // a bucket comes first
        return;
      }
      after_exchange(rank);
      rank.main.active = false;
      ++rank.use_at;
    }
  }

  // A pass begins with waiting for what it works on.
  void wait_for_input(NewRank& rank, const Use& use) {
    const Slot& slot = schedule.stage[static_cast<std::size_t>(rank.stage)][static_cast<std::size_t>(use.slot)];
    const auto t = input_of(schedule, static_cast<std::int32_t>(rank.stage), slot);
    if (!t) return;
    const auto it = rank.received.find({t->peer_stage, t->forward, t->chunk, t->micro_batch, use.step});
    if (it == rank.received.end()) return;
    add_wait(rank, it->second);
  }
  void add_wait(NewRank& rank, std::uint32_t transfer) const {
    const Ns lag = g.ranks[rank.source].lags.at(EdgeKind::event, NodeKind::comm, NodeKind::kernel);
    for (std::uint32_t role = 0; role < program.roles.size(); ++role)
      if (program.roles[role] == LaneRole{LaneRole::Kind::compute, 0, 0})
        rank.waits[role].push_back({transfer, EdgeKind::event, lag});
  }

  void after_exchange(NewRank& rank) {
    if (schedule.overlap) return;
    const Cursor& at = rank.main;
    if (overlaps(old)) {  // what it waits for was learnt of other passes
      for (const auto& [row, slot] : at.transfer_of) add_wait(rank, slot);
      return;
    }
    for (std::uint32_t i = 0; i < at.carries.size(); ++i) {
      if (at.carries[i].empty()) continue;
      const Item& item = program.items[program.pieces[at.use->rank][at.use->piece].first + i];
      for (const auto& [row, slot] : at.transfer_of)
        if (row == item.comm)
          for (const ExchangeWait& w : program.waited[row]) rank.waits[w.lane].push_back({slot, w.kind, w.lag});
    }
  }

  void start(NewRank& rank, Cursor& at, const Use& use) {
    at.active = true;
    at.use = &use;
    at.item = 0;
    const PieceItems& items = program.pieces[use.rank][use.piece];
    at.refs.assign(items.count, kNone);
    at.from = 0;
    at.to = items.count;
    at.flush_before = kNone;
    if (use.tail || use.head) {
      std::uint32_t first = items.count, last = 0;
      for (std::uint32_t i = 0; i < items.count; ++i) {
        if (g.kind[program.items[items.first + i].node] == NodeKind::host) continue;
        first = std::min(first, i);
        last = i + 1;
      }
      if (use.tail) at.from = last;
      if (use.head) at.to = first;
    }
    at.carries.clear();
    const PieceKind kind = program.anatomy.ranks[use.rank].pieces[use.piece].kind;
    if (kind == PieceKind::exchange) assign_transfers(rank, at, items);
    if (kind == PieceKind::backward_end && use.last_pass && buckets.overlapped) {
      // what is left of the gradients is reduced before backward returns
      for (std::uint32_t i = at.from; i < at.to; ++i) {
        const Item& item = program.items[items.first + i];
        if (g.kind[item.node] == NodeKind::host && program.roles[item.lane].kind == LaneRole::Kind::thread &&
            program.roles[item.lane].ordinal != 0)
          at.flush_before = i;
      }
    }
    at.transfer_of.clear();
  }

  // Which kernel of an exchange carries what.
  void assign_transfers(NewRank& rank, Cursor& at, const PieceItems& items) {
    at.carries.assign(items.count, {});
    const Slot& slot = schedule.stage[static_cast<std::size_t>(rank.stage)][static_cast<std::size_t>(at.use->slot)];
    std::vector<std::uint32_t> kernels;
    for (std::uint32_t i = 0; i < items.count; ++i) {
      const Item& item = program.items[items.first + i];
      if (exchanges_by(item)) kernels.push_back(i);
    }
    if (kernels.empty()) return;
    std::vector<std::uint8_t> used(kernels.size(), 0);
    for (std::uint32_t k = 0; k < slot.transfers.size(); ++k) {
      if (at.use->transfer >= 0 && at.use->transfer != static_cast<std::int32_t>(k)) continue;
      const std::uint8_t bit = bit_of(slot.transfers[k]);
      std::size_t best = 0;
      for (std::size_t i = 0; i < kernels.size(); ++i)
        if ((mask_of(program.items[items.first + kernels[i]]) & ~used[i] & bit) != 0) {
          best = i;
          used[i] |= bit;
          break;
        }
      at.carries[kernels[best]].push_back(k);
    }
    if (schedule.overlap && !in_order_of_streams(slot, at)) {
      for (auto& carries : at.carries) carries.clear();
      std::size_t next = 0;
      for (std::uint32_t k = 0; k < slot.transfers.size(); ++k) {
        at.carries[kernels[next]].push_back(k);
        if (next + 1 < kernels.size()) ++next;
      }
    }
  }
  // Whether transfers that share a stream are issued in the schedule's order: both peers must have the same.
  bool in_order_of_streams(const Slot& slot, const Cursor& at) const {
    std::map<std::uint32_t, std::uint32_t> last;  // by stream
    for (const auto& carries : at.carries)
      for (const std::uint32_t k : carries) {
        const auto [it, fresh] = last.try_emplace(exchange_role(slot.transfers[k]), k);
        if (!fresh && k < it->second) return false;
        it->second = k;
      }
    return true;
  }

  // False: waits for another rank, or an inserted piece comes first.
  bool run_piece(std::uint32_t r, Cursor& at) {
    NewRank& rank = ranks[r];
    const PieceItems& items = program.pieces[at.use->rank][at.use->piece];
    const bool is_main = &at == &rank.main;
    for (std::uint32_t i = std::max(at.item, at.from); i < at.to; ++i) {
      at.item = i;
      if (is_main && i == at.flush_before) {
        at.flush_before = kNone;
        const double left = part_parameters(at.use->part) - rank.reduced[at.use->part];
        // biases and norms alone, which are not counted one by one, went with the buckets before
        if (left > 0.005 * part_parameters(at.use->part) && insert_bucket(rank, left)) {
          rank.gathered = 0;
          rank.reduced[at.use->part] = 0;
          return false;
        }
      }
      if (!of_half(*at.use, items.first + i)) {
        pass_waits_on(rank, at, program.items[items.first + i]);
        continue;
      }
      if (!place(r, at, items, i)) return false;
      if (!is_main || !at.use->last_pass || !buckets.overlapped) continue;
      const Item& item = program.items[items.first + i];
      if (!rates.ready.empty() && item.made == kNone && !at.use->without_tasks && g.kind[item.node] != NodeKind::host)
        rank.gathered += rates.ready[item.node];
      if (rank.gathered >= buckets.size && buckets.size > 0 && item.queue != kNone && !buckets.samples.empty()) {
        at.item = i + 1;
        const double full = rank.gathered;
        rank.gathered = 0;
        rank.reduced[at.use->part] += full;
        if (insert_bucket(rank, full)) return false;
      }
    }
    at.item = at.to;
    return true;
  }

  bool of_half(const Use& use, std::uint32_t item) const {
    return use.half == Use::Half::both || (use.half == Use::Half::weight) == (program.weight[item] != 0);
  }
  // What a gradient of weights waited for, the work behind it on its stream waited for as well.
  void pass_waits_on(NewRank& rank, const Cursor& at, const Item& item) const {
    if (at.use->half != Use::Half::input) return;
    for (std::uint32_t e = item.first_edge; e < item.first_edge + item.edges; ++e) {
      const ItemEdge& edge = program.edges[e];
      if (edge.kind != EdgeKind::event) continue;
      const std::uint32_t from = source_of(rank, at, edge);
      if (from != kNone) rank.waits[item.lane].push_back({from, edge.kind, edge.lag});
    }
  }

  // What an edge of a piece leads from; kNone = nothing is there.
  static std::uint32_t source_of(const NewRank& rank, const Cursor& at, const ItemEdge& edge) {
    if (edge.inside) return at.refs[edge.ref];
    const auto& order = rank.order[edge.ref];
    return edge.back < order.size() ? order[order.size() - 1 - edge.back] : kNone;
  }

  bool insert_bucket(NewRank& rank, double parameters) {
    const Column& column = columns[rank.column];
    std::vector<std::pair<std::uint32_t, std::uint32_t>> mine;
    for (const auto& sample : buckets.samples)
      if (std::find(column.rank.begin(), column.rank.end(), sample.first) != column.rank.end()) mine.push_back(sample);
    if (mine.empty()) return false;
    const auto& [base_rank, piece] = mine[rank.buckets++ % mine.size()];
    const double before = bucket_parameters(base_rank, piece);
    rank.bucket_use = Use{};
    rank.bucket_use.rank = base_rank;
    rank.bucket_use.piece = piece;
    rank.bucket_factor = before > 0 ? parameters / before : 1;
    rank.bucket_parameters = parameters;
    start(rank, rank.inserted, rank.bucket_use);
    return true;
  }

  double part_parameters(std::int32_t part) const {
    const std::int32_t parts = schedule.stages * schedule.chunks;
    return stage_parameters(now, static_cast<double>(now.layout.layers) / parts, part == 0,
                            part == parts - 1 && !(part == 0 && now.tied_embedding));
  }
  double rank_parameters(const JobShape& shape, std::int64_t stage, std::int32_t chunks) const {
    const double layers = static_cast<double>(shape.layout.layers) / static_cast<double>(shape.layout.pp);
    (void)chunks;
    return stage_parameters(shape, layers, stage == 0,
                            stage == shape.layout.pp - 1 && !(stage == 0 && shape.tied_embedding));
  }
  // How a rank's parameters compare with those of the traced rank whose step it takes.
  double parameter_factor(const NewRank& rank, std::uint32_t base_rank) const {
    const double before = rank_parameters(old, traced_stage[base_rank], old.chunks);
    return before > 0 ? rank_parameters(now, rank.stage, now.chunks) / before : 1;
  }

  bool place(std::uint32_t r, Cursor& at, const PieceItems& items, std::uint32_t i) {
    NewRank& rank = ranks[r];
    const Item& item = program.items[items.first + i];
    const Use& use = *at.use;
    const bool host = g.kind[item.node] == NodeKind::host;
    if (item.lane == kNone || (!host && use.without_tasks)) return true;
    if (item.marks) {
      for (std::uint32_t e = item.first_edge; e < item.first_edge + item.edges; ++e) {
        const ItemEdge& edge = program.edges[e];
        std::uint32_t from = kNone;
        if (edge.inside)
          from = at.refs[edge.ref];
        else if (!rank.order[edge.ref].empty())
          from = rank.order[edge.ref].back();
        if (from != kNone) rank.waits[item.lane].push_back({from, edge.kind, edge.lag});
      }
      return true;
    }
    const PieceKind kind = program.anatomy.ranks[use.rank].pieces[use.piece].kind;
    const bool overlapped = schedule.overlap && kind == PieceKind::exchange;
    if (overlapped && host && blocks_for_tasks(items, i)) return true;
    if (item.transfer) {  // placed when its partners are there
      for (const auto& [row, slot] : at.transfer_of)
        if (row == item.comm) at.refs[i] = slot;
      return true;
    }
    const MadeTask* made = invented(item);
    const bool communicates = item.comm != kNone || (made != nullptr && !made->computes);
    std::vector<std::uint32_t>* carried = nullptr;
    if (communicates && kind == PieceKind::exchange) {
      carried = &at.carries[i];
      if (carried->empty()) return true;  // nothing for this kernel to do
    }
    GroupRole role = GroupRole::other;
    if (communicates && carried == nullptr) {
      if (item.made != kNone) {
        role = program.made[item.made].role;
      } else {
        const CommRow& row = c.rows[item.comm];
        role = row.group == kNone ? GroupRole::other : old.layout.role[row.group];
      }
      if (members_of(role) < 2) return true;
      if (role == GroupRole::embedding && rank.stage != 0 && rank.stage != schedule.stages - 1) return true;
    }
    // what it waits for
    edges.clear();
    if (overlapped && communicates) return issue(r, at, item, *carried);
    // the schedule's own thread computes the gradients of weights, not autograd's
    const bool weights = use.half == Use::Half::weight;
    const std::uint32_t lane = weights && host ? main_role : item.lane;
    // A stream runs in order whatever it is given; what was first on it in the trace tells no lag of its own.
    if ((item.in_order || !host) && !rank.order[lane].empty()) {
      const std::uint32_t before = resolve(rank.order[lane].back());
      if (open(before)) return block(rank, before);
      const Ns usual =
          g.ranks[g.rank[item.node]].lags.at(EdgeKind::stream, out->build.graph.kind[before], g.kind[item.node]);
      edges.push_back({before, host ? EdgeKind::thread : EdgeKind::stream, item.in_order ? item.order_lag : usual});
    }
    for (std::uint32_t e = item.first_edge; e < item.first_edge + item.edges; ++e) {
      const ItemEdge& edge = program.edges[e];
      std::uint32_t from = kNone;
      if (edge.inside) {
        from = at.refs[edge.ref];
      } else if (weights) {
        continue;  // long over
      } else if (overlaps(old) && kind != PieceKind::exchange && edge.kind == EdgeKind::event &&
                 program.roles[edge.ref].kind == LaneRole::Kind::exchange) {
        continue;  // of the transfer that this pass needed where it was: see wait_for_input
      } else {
        const auto& order = rank.order[edge.ref];
        if (edge.back < order.size()) from = order[order.size() - 1 - edge.back];
      }
      from = resolve(from);
      if (from == kNone) continue;
      if (open(from)) return block(rank, from);
      edges.push_back({from, edge.kind, edge.lag});
    }
    const auto waited = rank.waits.find(lane);
    if (waited != rank.waits.end()) {
      for (const NewRank::Wait& w : waited->second) {
        const std::uint32_t from = resolve(w.ref);
        if (open(from)) return block(rank, from);
        if (from != kNone) edges.push_back({from, w.kind, w.lag});
      }
    }
    if (item.queue != kNone) {
      const auto& tasks = rank.tasks[item.queue];
      if (tasks.size() > program.queue_depth) {
        const std::uint32_t from = tasks[tasks.size() - 1 - program.queue_depth];
        const Ns took = out->build.graph.duration[from];
        edges.push_back({from, EdgeKind::queue, -took});
      }
    }
    if (edges.empty()) edges.push_back({kNone, EdgeKind::root, item.root ? item.root_lag : 0});
    // its time
    Ns took = item.took >= 0 ? item.took : g.duration[item.node];
    double factor = 1;
    if (made != nullptr) {
      took = std::llround(made->ns_each * made_elements(rank, *made));
    } else if (host) {
      factor = rates.host;
    } else if (!rates.factor.empty()) {
      factor = static_cast<double>(rates.factor[item.node]);
    }
    if (!host && made == nullptr && kind == PieceKind::bucket && !communicates) factor = rank.bucket_factor;
    if (!host && made == nullptr && !rates.parameter.empty() && rates.parameter[item.node] != 0 &&
        kind != PieceKind::bucket)
      factor = parameter_factor(rank, use.rank) * shard_factor();
    if (!host && made == nullptr && !rates.slow.empty() && !communicates) factor *= rank.slow / rates.slow[use.rank];
    if (factor != 1) took = std::llround(static_cast<double>(took) * factor);
    // An unexplained pause before the first work of a pass is the waiting for its input: of several events that calls
    // waited for, the trace does not tell which is which.
    const Piece& piece = program.anatomy.ranks[use.rank].pieces[use.piece];
    if (g.kind[item.node] == NodeKind::stall && overlaps(old) &&
        (kind == PieceKind::forward_begin || kind == PieceKind::backward_begin || piece.layer == 0))
      took = 0;
    const bool meets = communicates && (made != nullptr || c.rows[item.comm].last != c.rows[item.comm].node);
    const std::uint32_t node = add_node(r, item, meets ? 0 : took, g.at_begin[item.node]);
    if (made != nullptr) {
      out->build.graph.kind[node] = made->computes ? NodeKind::kernel : NodeKind::comm;
      out->build.graph.source[node] = OpId{made_op[rank.column][item.made]};
    }
    if (weights && host) out->build.graph.lane[node] = rank.lane[lane];
    at.refs[i] = node;
    if (waited != rank.waits.end()) rank.waits.erase(waited);
    rank.order[lane].push_back(node);
    if (!host) rank.tasks[lane].push_back(node);
    if (host) mark_steps(r, item.node, node, use);
    if (!communicates) return true;
    if (made != nullptr) {
      meet_made(r, at, item, i, node, *made, carried);
    } else {
      meet(r, at, item, i, node, role, carried, kind);
    }
    return true;
  }

  // A call that returns when tasks have ended; begin and end.
  bool blocks_for_tasks(const PieceItems& items, std::uint32_t i) const {
    const auto syncs = [&](std::uint32_t k) {
      const Item& item = program.items[items.first + k];
      for (std::uint32_t e = item.first_edge; e < item.first_edge + item.edges; ++e)
        if (program.edges[e].kind == EdgeKind::sync) return true;
      return false;
    };
    if (syncs(i)) return true;
    const Item& item = program.items[items.first + i];
    for (std::uint32_t k = i + 1; k < items.count; ++k) {
      const Item& next = program.items[items.first + k];
      if (next.lane == item.lane) return g.source[next.node] == g.source[item.node] && syncs(k);
    }
    return false;
  }

  // ---- overlapped transfers ----

  // A transfer whose call is made, but whose stream is busy with one that is not placed yet. The thread goes on.
  struct Issued {
    std::uint32_t rank = 0, role = 0, slot = 0;
    const Use* use = nullptr;
    const Item* item = nullptr;
    Transfer transfer;
    std::vector<NewEdge> edges;
  };

  bool issue(std::uint32_t r, Cursor& at, const Item& item, const std::vector<std::uint32_t>& carried) {
    NewRank& rank = ranks[r];
    Issued made;
    made.rank = r;
    made.use = at.use;
    made.item = &item;
    for (std::uint32_t e = item.first_edge; e < item.first_edge + item.edges; ++e) {
      const ItemEdge& edge = program.edges[e];
      if (!edge.inside && program.roles[edge.ref].kind == LaneRole::Kind::exchange) continue;
      std::uint32_t from = source_of(rank, at, edge);
      from = resolve(from);
      if (from == kNone) continue;
      if (open(from)) return block(rank, from);
      made.edges.push_back({from, edge.kind, edge.lag});
    }
    const Slot& slot = schedule.stage[static_cast<std::size_t>(rank.stage)][static_cast<std::size_t>(at.use->slot)];
    for (const std::uint32_t k : carried) {
      made.transfer = slot.transfers[k];
      made.role = exchange_role(made.transfer);
      made.slot = static_cast<std::uint32_t>(pending.size());
      pending.push_back(kNone);
      auto& order = rank.order[made.role];
      const std::uint32_t before = order.empty() ? kNone : resolve(order.back());
      order.push_back(kPending | made.slot);
      if (!made.transfer.send)
        rank.received[{made.transfer.peer_stage, made.transfer.forward, made.transfer.chunk, made.transfer.micro_batch,
                       at.use->step}] = kPending | made.slot;
      if (open(before))
        issued_after[before].push_back(made);
      else
        place_transfer(made, before);
    }
    return true;
  }

  void place_transfer(const Issued& made, std::uint32_t before) {
    NewRank& rank = ranks[made.rank];
    Communication& next = out->build.communication;
    const Item& item = *made.item;
    const CommRow& was = c.rows[item.comm];
    edges = made.edges;
    if (before != kNone)
      edges.push_back(
          {before, EdgeKind::stream, g.ranks[rank.source].lags.at(EdgeKind::stream, NodeKind::comm, NodeKind::comm)});
    if (edges.empty()) edges.push_back({kNone, EdgeKind::root, 0});
    const std::uint32_t node = add_node(made.rank, item, 0, g.at_begin[item.node]);
    out->build.graph.lane[node] = rank.lane[made.role];
    const Transfer& t = made.transfer;
    const std::int64_t sender = t.send ? rank.stage : t.peer_stage;
    const std::uint32_t group = group_of(rank, GroupRole::pipeline, part_group(was));
    const double each = exchange_bytes(was);
    const std::int64_t peer = rank_number(now.layout, rank.t, rank.d, t.peer_stage);
    CommRow row = was;
    row.rank = made.rank;
    row.node = row.last = node;
    row.stream = rank.lane[made.role];
    row.op = t.send ? CommOp::send : CommOp::recv;
    row.first_part = static_cast<std::uint32_t>(next.parts.size());
    row.parts = 1;
    row.bytes = whole(each);
    row.group = group;
    next.parts.push_back({peer, row.bytes, group, t.send});
    const double was_ns = traced_exchange_ns(was);
    const double factor = was_ns > 0 ? exchange_ns(now.layout, rank.number, peer, each) / was_ns : 1;
    NewRow to;
    to.rank = made.rank;
    to.row = static_cast<std::uint32_t>(next.rows.size());
    to.base_node = was.last;
    to.waits = item.waits;
    to.slot = made.slot;
    to.open = 1;
    to.duration = std::llround(static_cast<double>(g.duration[was.last]) * factor);
    row.transfer = to.duration;
    next.rows.push_back(row);
    const Key key{-1, sender, t.forward, t.chunk, t.micro_batch, rank.t, rank.d, made.use->step};
    to.meetings.push_back(meeting(key, 2, group, CommOp::send));
    const auto id = static_cast<std::uint32_t>(new_rows.size());
    const std::uint32_t m = to.meetings.front();
    new_rows.push_back(std::move(to));
    if (!new_rows[id].waits) finish_row(id, node);
    arrive(m, id, node);
  }

  bool block(NewRank& rank, std::uint32_t ref) {
    rank.blocked = ref;
    return false;
  }

  std::int64_t members_of(GroupRole role) const {
    switch (role) {
      case GroupRole::tensor:
        return now.layout.tp;
      case GroupRole::data:
        return now.layout.dp;
      case GroupRole::embedding:
      case GroupRole::pipeline:
        return now.layout.pp;
      case GroupRole::model:
        return now.layout.tp * now.layout.pp;
      case GroupRole::world:
      case GroupRole::other:
        break;
    }
    return now.layout.tp * now.layout.pp * now.layout.dp;
  }

  // A slow GPU stays where it was, whatever it is given to do.
  double slowness(const NewRank& rank) const {
    if (rates.slow.empty()) return 1;
    for (std::size_t r = 0; r < g.ranks.size(); ++r)
      if (g.ranks[r].rank == rank.number) return rates.slow[r];
    return 1;
  }

  // A sharded optimizer has a replica's share.
  double shard_factor() const {
    const auto share = [](const JobLayout& l) { return l.distributed_optimizer ? static_cast<double>(l.dp) : 1.0; };
    return share(old.layout) / share(now.layout);
  }

  std::uint32_t add_node(std::uint32_t r, const Item& item, Ns took, std::uint8_t at_begin) {
    ExecGraph& o = out->build.graph;
    o.duration.push_back(took);
    o.observed_start.push_back(g.observed_start[item.node]);
    o.lane.push_back(ranks[r].lane[item.lane]);
    o.kind.push_back(g.kind[item.node]);
    o.at_begin.push_back(at_begin);
    o.rank.push_back(r);
    o.source.push_back(source_in(ranks[r].column, item.node));
    for (const NewEdge& e : edges) {
      o.pred.push_back(e.from == kNone ? kNoNode : NodeId{e.from});
      o.pred_kind.push_back(e.kind);
      o.pred_lag.push_back(e.lag);
    }
    o.first_pred.push_back(o.edges());
    return o.size() - 1;
  }

  void mark_steps(std::uint32_t r, std::uint32_t base_node, std::uint32_t node, const Use& use) {
    if (ends_step[base_node] == 0) return;
    for (const Step& s : g.steps) {
      if (s.rank != use.rank) continue;
      if (raw(s.begin_node) == base_node) {
        Step step = s;
        step.rank = r;
        step.begin_node = step.end_node = NodeId{node};
        out->build.graph.steps.push_back(step);
      } else if (raw(s.end_node) == base_node) {
        for (Step& step : out->build.graph.steps)
          if (step.rank == r && step.number == s.number) step.end_node = NodeId{node};
      }
    }
  }

  // ---- meetings ----

  using Key = std::array<std::int64_t, 8>;

  std::uint32_t meeting(const Key& key, std::uint32_t expected, std::uint32_t group, CommOp op) {
    const auto [it, fresh] = meeting_of.try_emplace(key, static_cast<std::uint32_t>(new_meetings.size()));
    if (fresh) {
      NewMeeting m;
      m.expected = expected;
      m.group = group;
      m.op = op;
      new_meetings.push_back(std::move(m));
    }
    return it->second;
  }

  std::uint32_t group_of(const NewRank& rank, GroupRole role, std::uint32_t base_group) {
    const auto [a, b] = group_place(rank, role);
    const std::string label = base_group == kNone ? std::string(name_of(role)) : c.groups[base_group].label;
    const auto key = std::tuple(static_cast<int>(role), label, a, b);
    const auto [it, fresh] =
        group_row.try_emplace(key, static_cast<std::uint32_t>(out->build.communication.groups.size()));
    if (!fresh) return it->second;
    CommGroup group;
    group.label = label;
    group.size = members_of(role);
    const JobLayout& l = now.layout;
    if (group.size <= 64) {
      const auto all = [&](std::int64_t t0, std::int64_t t1, std::int64_t d0, std::int64_t d1, std::int64_t s0,
                           std::int64_t s1) {
        for (std::int64_t s = s0; s < s1; ++s)
          for (std::int64_t d = d0; d < d1; ++d)
            for (std::int64_t t = t0; t < t1; ++t) group.ranks.push_back(rank_number(l, t, d, s));
      };
      const std::int64_t t = rank.t, d = rank.d, s = rank.stage;
      if (role == GroupRole::tensor) all(0, l.tp, d, d + 1, s, s + 1);
      if (role == GroupRole::data) all(t, t + 1, 0, l.dp, s, s + 1);
      if (role == GroupRole::pipeline) all(t, t + 1, d, d + 1, 0, l.pp);
      if (role == GroupRole::embedding) {
        all(t, t + 1, d, d + 1, 0, 1);
        all(t, t + 1, d, d + 1, l.pp - 1, l.pp);
        group.size = 2;
      }
      if (role == GroupRole::model) all(0, l.tp, d, d + 1, 0, l.pp);
      if (role == GroupRole::world || role == GroupRole::other) all(0, l.tp, 0, l.dp, 0, l.pp);
      std::sort(group.ranks.begin(), group.ranks.end());
    }
    out->build.communication.groups.push_back(std::move(group));
    return it->second;
  }

  void meet(std::uint32_t r, Cursor& at, const Item& item, std::uint32_t i, std::uint32_t node, GroupRole role,
            const std::vector<std::uint32_t>* carried, PieceKind kind) {
    NewRank& rank = ranks[r];
    Communication& next = out->build.communication;
    const CommRow& was = c.rows[item.comm];
    CommRow row = was;
    row.rank = r;
    row.node = row.last = node;
    row.stream = ranks[r].lane[item.lane];
    row.parts = 0;
    row.first_part = static_cast<std::uint32_t>(next.parts.size());
    const bool met = was.last != was.node;
    NewRow made;
    made.rank = r;
    made.row = static_cast<std::uint32_t>(next.rows.size());
    made.base_node = was.last;
    made.waits = item.waits;
    const auto id = static_cast<std::uint32_t>(new_rows.size());
    std::vector<std::uint32_t> meetings;
    double factor = 1;
    if (carried != nullptr) {
      const Slot& slot = schedule.stage[static_cast<std::size_t>(rank.stage)][static_cast<std::size_t>(at.use->slot)];
      const double each = exchange_bytes(was);
      double longest = 0;
      for (const std::uint32_t k : *carried) {
        const Transfer& t = slot.transfers[k];
        const std::int64_t sender = t.send ? rank.stage : t.peer_stage;
        const std::uint32_t group = group_of(rank, GroupRole::pipeline, part_group(was));
        const Key key{-1, sender, t.forward, t.chunk, t.micro_batch, rank.t, rank.d, at.use->step};
        meetings.push_back(meeting(key, 2, group, CommOp::send));
        const std::int64_t peer = rank_number(now.layout, rank.t, rank.d, t.peer_stage);
        next.parts.push_back({peer, whole(each), group, t.send});
        ++row.parts;
        longest = std::max(longest, exchange_ns(now.layout, rank.number, peer, each));
      }
      const double before = traced_exchange_ns(was);
      if (before > 0) factor = longest / before;
      row.bytes = whole(each) * row.parts;
      row.group = row.parts > 0 ? next.parts[row.first_part].group : kNone;
    } else {
      double bytes = static_cast<double>(std::max<std::int64_t>(was.bytes, 0)) * message_factor(was, role);
      if (kind == PieceKind::bucket) {
        bytes = static_cast<double>(was.bytes) * rank.bucket_factor;
      } else if (role == GroupRole::data) {
        bytes = static_cast<double>(was.bytes) * parameter_factor(rank, at.use->rank);
      }
      const GroupRole old_role = was.group == kNone ? GroupRole::other : old.layout.role[was.group];
      if (item.made != kNone) row.op = program.made[item.made].op, row.op_name = made_name + item.made;
      const double before =
          transfer_ns(net, pattern_of(was.op), static_cast<double>(std::max<std::int64_t>(was.bytes, 0)),
                      old.layout.placement(old_role));
      const double after = transfer_ns(net, pattern_of(row.op), bytes, now.layout.placement(role));
      if (before > 0 && after > 0) factor = after / before;
      if (was.bytes >= 0) row.bytes = whole(bytes);
      row.group = group_of(rank, role, was.group);
      if (met) {
        const auto members = simulated_members(role);
        const auto [a, b] = group_place(rank, role);
        const std::int64_t number = rank.calls[{static_cast<int>(role), item.lane}]++;
        meetings.push_back(
            meeting({static_cast<int>(role), a, b, item.lane, number, 0, 0, 0}, members, row.group, row.op));
      }
    }
    made.duration = std::llround(static_cast<double>(g.duration[was.last]) * factor);
    row.transfer = made.duration;
    next.rows.push_back(row);
    if (meetings.empty()) {
      out->build.graph.duration[node] = made.duration;
      return;
    }
    made.slot = static_cast<std::uint32_t>(pending.size());
    pending.push_back(kNone);
    made.open = static_cast<std::uint32_t>(meetings.size());
    made.meetings = meetings;
    new_rows.push_back(made);
    at.refs[i] = node;
    at.transfer_of.emplace_back(item.comm, kPending | made.slot);
    rank.order[item.lane].push_back(kPending | made.slot);
    if (!made.waits) finish_row(id, node);
    for (const std::uint32_t m : meetings) arrive(m, id, node);
  }

  double made_elements(const NewRank& rank, const MadeTask& made) const {
    if (made.size == MadeTask::Size::bucket) return rank.bucket_parameters;
    if (made.size == MadeTask::Size::stage_parameters) return rank_parameters(now, rank.stage, now.chunks);
    return made.elements.value(now.dims);
  }

  // As meet(), of a collective or an exchange that the traced job has nothing of.
  void meet_made(std::uint32_t r, Cursor& at, const Item& item, std::uint32_t i, std::uint32_t node,
                 const MadeTask& made, const std::vector<std::uint32_t>* carried) {
    NewRank& rank = ranks[r];
    Communication& next = out->build.communication;
    const double bytes = made_elements(rank, made) * made.bytes_each;
    CommRow row;
    row.rank = r;
    row.node = row.last = node;
    row.op = made.op;
    row.op_name = made_name + item.made;
    row.stream = rank.lane[item.lane];
    row.launched = true;
    row.start = row.end = g.observed_start[item.node];
    row.bytes = whole(bytes);
    row.first_part = static_cast<std::uint32_t>(next.parts.size());
    NewRow to;
    to.rank = r;
    to.row = static_cast<std::uint32_t>(next.rows.size());
    to.base_node = item.node;
    double took = 0;
    if (carried != nullptr) {
      const Slot& slot = schedule.stage[static_cast<std::size_t>(rank.stage)][static_cast<std::size_t>(at.use->slot)];
      row.group = group_of(rank, GroupRole::pipeline, kNone);
      for (const std::uint32_t k : *carried) {
        const Transfer& t = slot.transfers[k];
        const std::int64_t sender = t.send ? rank.stage : t.peer_stage;
        const Key key{-1, sender, t.forward, t.chunk, t.micro_batch, rank.t, rank.d, at.use->step};
        to.meetings.push_back(meeting(key, 2, row.group, CommOp::send));
        const std::int64_t peer = rank_number(now.layout, rank.t, rank.d, t.peer_stage);
        next.parts.push_back({peer, whole(bytes), row.group, t.send});
        ++row.parts;
        took = std::max(took, exchange_ns(now.layout, rank.number, peer, bytes));
      }
      row.bytes *= row.parts;
    } else {
      row.group = group_of(rank, made.role, kNone);
      took = transfer_ns(net, pattern_of(made.op), bytes, now.layout.placement(made.role));
      const std::int64_t number = rank.calls[{static_cast<int>(made.role), item.lane}]++;
      const auto [a, b] = group_place(rank, made.role);
      to.meetings.push_back(meeting({static_cast<int>(made.role), a, b, item.lane, number, 0, 0, 0},
                                    simulated_members(made.role), row.group, made.op));
    }
    to.duration = std::llround(std::max(0.0, took));
    row.transfer = to.duration;
    next.rows.push_back(row);
    to.slot = static_cast<std::uint32_t>(pending.size());
    pending.push_back(kNone);
    to.open = static_cast<std::uint32_t>(to.meetings.size());
    const auto id = static_cast<std::uint32_t>(new_rows.size());
    new_rows.push_back(to);
    at.refs[i] = kPending | to.slot;  // whoever waits for it waits for its end
    rank.order[item.lane].push_back(kPending | to.slot);
    for (const std::uint32_t m : to.meetings) arrive(m, id, node);
  }

  // The group of a role that a rank is in.
  static std::pair<std::int64_t, std::int64_t> group_place(const NewRank& rank, GroupRole role) {
    if (role == GroupRole::tensor) return {rank.stage, rank.d};
    if (role == GroupRole::data) return {rank.stage, rank.t};
    if (role == GroupRole::embedding || role == GroupRole::pipeline) return {rank.t, rank.d};
    if (role == GroupRole::model) return {rank.d, -1};
    return {-1, -1};
  }

  void arrive(std::uint32_t m, std::uint32_t id, std::uint32_t) {
    new_meetings[m].rows.push_back(id);
    if (new_meetings[m].rows.size() < new_meetings[m].expected) return;
    ExecGraph& o = out->build.graph;
    const NewRow& first = new_rows[new_meetings[m].rows.front()];
    o.duration.push_back(0);
    o.observed_start.push_back(g.observed_start[first.base_node]);
    o.lane.push_back(kNone);
    o.kind.push_back(NodeKind::rendezvous);
    o.at_begin.push_back(0);
    o.rank.push_back(first.rank);
    o.source.push_back(source_in(ranks[first.rank].column, first.base_node));
    for (const std::uint32_t k : new_meetings[m].rows) {
      o.pred.push_back(NodeId{out->build.communication.rows[new_rows[k].row].node});
      o.pred_kind.push_back(EdgeKind::collective);
      o.pred_lag.push_back(0);
    }
    o.first_pred.push_back(o.edges());
    new_meetings[m].node = o.size() - 1;
    const std::vector<std::uint32_t> met = new_meetings[m].rows;  // what follows may add meetings
    for (const std::uint32_t k : met)
      if (--new_rows[k].open == 0 && new_rows[k].waits) finish_row(k, kNone);
  }

  // The second half of a kernel: after its meetings, or (it waits for nobody) after its arrival.
  void finish_row(std::uint32_t id, std::uint32_t arrival) {
    ExecGraph& o = out->build.graph;
    NewRow& row = new_rows[id];
    CommRow& comm = out->build.communication.rows[row.row];
    o.duration.push_back(row.duration);
    o.observed_start.push_back(g.observed_start[row.base_node]);
    o.lane.push_back(o.lane[comm.node]);
    o.kind.push_back(NodeKind::comm);
    o.at_begin.push_back(0);
    o.rank.push_back(row.rank);
    o.source.push_back(o.source[comm.node]);
    const auto add = [&](std::uint32_t from) {
      o.pred.push_back(NodeId{from});
      o.pred_kind.push_back(EdgeKind::collective);
      o.pred_lag.push_back(0);
    };
    if (arrival != kNone) {
      add(arrival);
    } else {
      for (const std::uint32_t m : row.meetings) add(new_meetings[m].node);
    }
    o.first_pred.push_back(o.edges());
    comm.last = o.size() - 1;
    pending[row.slot] = comm.last;
    NewRank& rank = ranks[row.rank];
    const std::uint32_t ref = kPending | row.slot, last = comm.last;
    if (rank.blocked == ref) {
      rank.blocked = kNone;
      woken.push_back(row.rank);
    }
    const auto after = issued_after.find(ref);
    if (after == issued_after.end()) return;
    const std::vector<Issued> issued = std::move(after->second);
    issued_after.erase(after);
    for (const Issued& i : issued) place_transfer(i, last);
  }

  std::uint32_t simulated_members(GroupRole role) const {
    const auto stages = static_cast<std::uint32_t>(schedule.stages);
    const auto t = static_cast<std::uint32_t>(tensor), d = static_cast<std::uint32_t>(replicas);
    switch (role) {
      case GroupRole::tensor:
        return t;
      case GroupRole::data:
        return d;
      case GroupRole::embedding:
        return 2;
      case GroupRole::pipeline:
        return stages;
      case GroupRole::model:
        return t * stages;
      case GroupRole::world:
      case GroupRole::other:
        break;
    }
    return t * d * stages;
  }

  // ---- sizes of messages ----

  std::uint32_t part_group(const CommRow& row) const {
    return row.parts != 0 ? c.parts[row.first_part].group : row.group;
  }
  // Of one send or receive.
  double exchange_bytes(const CommRow& row) const {
    std::int64_t bytes = row.parts == 0 ? row.bytes : 0;
    for (std::uint32_t k = 0; k < row.parts; ++k) bytes = std::max(bytes, c.parts[row.first_part + k].bytes);
    const auto size = [](const Dims& d) { return d.seq * d.mbs * d.hidden / (d.sequence_parallel ? d.tp : 1); };
    const double before = size(old.dims), after = size(now.dims);
    return static_cast<double>(std::max<std::int64_t>(bytes, 0)) * (before > 0 ? after / before : 1);
  }
  double exchange_ns(const JobLayout& l, std::int64_t a, std::int64_t b, double bytes) const {
    const std::int64_t n = std::max<std::int64_t>(1, l.gpus_per_node);
    return transfer_ns(net, Pattern::point_to_point, bytes, {2, a / n == b / n ? 2 : 1});
  }
  double traced_exchange_ns(const CommRow& row) const {
    double longest = 0;
    const std::int64_t own = g.ranks[row.rank].rank;
    for (std::uint32_t k = 0; k < row.parts; ++k) {
      const CommPart& part = c.parts[row.first_part + k];
      longest = std::max(
          longest, exchange_ns(old.layout, own, part.peer, static_cast<double>(std::max<std::int64_t>(part.bytes, 0))));
    }
    return longest;
  }

  // Of collectives that are not of gradients: activations, or one number a token.
  double message_factor(const CommRow& row, GroupRole role) const {
    const Dims &a = old.dims, &b = now.dims;
    if (row.bytes <= 0) return 1;
    const auto bytes = static_cast<double>(row.bytes);
    const auto is = [&](double elements) {
      for (const double each : {1.0, 2.0, 4.0, 8.0})
        if (elements > 0 && std::abs(bytes - each * elements) < 0.5) return true;
      return false;
    };
    const double tokens = a.seq * a.mbs, new_tokens = b.seq * b.mbs;
    if (role == GroupRole::tensor) {
      if (is(tokens * a.hidden)) return new_tokens * b.hidden / (tokens * a.hidden);
      if (is(tokens) || is(2 * tokens)) return new_tokens / tokens;
      if (is(a.hidden)) return b.hidden / a.hidden;
    }
    if (role == GroupRole::embedding && is(a.vocab * a.hidden / a.tp))
      return b.vocab * b.hidden / b.tp / (a.vocab * a.hidden / a.tp);
    return 1;
  }

  // ---- after ----

  // Without step markers the whole run is one step: from the first that is done to the last, as in build_graph.
  void mark_whole_runs() {
    ExecGraph& o = out->build.graph;
    for (const Step& s : g.steps) {
      if (g.kind[raw(s.begin_node)] != NodeKind::rendezvous) continue;
      for (std::uint32_t r = 0; r < ranks.size(); ++r) {
        if (ranks[r].source != s.rank) continue;
        const auto add = [&](NodeId base_node, bool begin) {
          const std::uint32_t n = raw(base_node);
          o.duration.push_back(0);
          o.observed_start.push_back(g.observed_start[n]);
          o.lane.push_back(kNone);
          o.kind.push_back(NodeKind::rendezvous);
          o.at_begin.push_back(begin ? 1 : 0);
          o.rank.push_back(r);
          o.source.push_back(source_in(ranks[r].column, n));
          if (begin) {
            o.pred.push_back(kNoNode);
            o.pred_kind.push_back(EdgeKind::root);
            o.pred_lag.push_back(g.pred_lag[g.first_pred[n]]);
          }
          for (std::uint32_t role = 0; !begin && role < ranks[r].order.size(); ++role) {
            if (ranks[r].order[role].empty()) continue;
            const std::uint32_t last = resolve(ranks[r].order[role].back());
            if (open(last)) continue;
            o.pred.push_back(NodeId{last});
            const bool thread = role < program.roles.size() && program.roles[role].kind == LaneRole::Kind::thread;
            o.pred_kind.push_back(thread ? EdgeKind::thread : EdgeKind::stream);
            o.pred_lag.push_back(0);
          }
          o.first_pred.push_back(o.edges());
          return NodeId{o.size() - 1};
        };
        Step step = s;
        step.rank = r;
        step.begin_node = add(s.begin_node, true);
        step.end_node = add(s.end_node, false);
        o.steps.push_back(step);
      }
    }
  }

  void finish() {
    mark_whole_runs();
    Communication& next = out->build.communication;
    for (const NewMeeting& m : new_meetings) {
      Meeting to;
      to.first = static_cast<std::uint32_t>(next.members.size());
      to.members = static_cast<std::uint32_t>(m.rows.size());
      to.group = m.group;
      to.op = m.op;
      to.node = m.node == kNone ? kNoNode : NodeId{m.node};
      std::vector<Ns> times;
      for (const std::uint32_t k : m.rows) {
        next.members.push_back({new_rows[k].row, new_rows[k].waits, new_rows[k].duration});
        times.push_back(new_rows[k].duration);
      }
      if (times.empty()) continue;
      std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
      to.transfer = times[times.size() / 2];
      // a send first, then its receive
      if (m.op == CommOp::send && to.members == 2) {
        const CommRow &x = next.rows[next.members[to.first].row], &y = next.rows[next.members[to.first + 1].row];
        const std::int64_t peer = out->build.graph.ranks[y.rank].rank;
        bool sends = false;
        for (std::uint32_t k = 0; k < x.parts; ++k)
          sends |= next.parts[x.first_part + k].send && next.parts[x.first_part + k].peer == peer;
        if (!sends) std::swap(next.members[to.first], next.members[to.first + 1]);
      }
      next.meetings.push_back(to);
    }
    next.expected = next.rows.size();
    next.matched = next.rows.size();
    out->build.notes = base.notes;
    out->unlike = program.unlike;
    refresh_queue_lags(out->build.graph);
  }

  const TraceSet& traces;
  const GraphBuild& base;
  const ExecGraph& g;
  const Communication& c;
  const Program& program;
  const JobShape &old, &now;
  const Rates& rates;
  const NetworkModel& net;
  const RebuildOptions& options;
  Rebuilt* out = nullptr;
  std::vector<Column> columns;
  std::size_t columns_each = 1;  // of one replica
  std::vector<PassPieces> pass_pieces;
  std::vector<std::int64_t> traced_stage;  // by rank of the traced job
  std::vector<std::uint8_t> ends_step;     // by node of the traced job: 1 = begin or end of a step
  std::vector<ExchangePiece> exchanges;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint8_t>, std::vector<const ExchangePiece*>> fitting;
  std::map<std::uint32_t, std::uint8_t> named_mask;           // by row of the traced job
  std::map<std::uint32_t, std::vector<Issued>> issued_after;  // by pending transfer
  Bucketing buckets;
  double gradient_bytes = 4;
  std::int32_t base_steps = 0;
  Schedule schedule;
  std::int64_t tensor = 1, replicas = 1;
  std::uint32_t main_role = 0;  // the thread that runs the schedule
  std::vector<NewRank> ranks;
  std::vector<std::vector<std::uint32_t>> made_lane,
      made_op;                           // by column: by role, the lane added; by made task, its name
  std::uint32_t made_name = 0;           // of Communication::op_names: the first made task's
  std::vector<std::uint32_t> column_of;  // by rank of the traced job; kNone = its pipeline is not whole
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> foreign;  // column, node of another: row
  std::vector<std::uint32_t> op_offset, lane_offset;  // by rank of the traced job, in its column's merged trace
  std::vector<std::uint32_t> pending;                 // by slot: the node of a transfer, kNone = not placed
  std::vector<NewRow> new_rows;
  std::vector<NewMeeting> new_meetings;
  std::map<Key, std::uint32_t> meeting_of;
  std::map<std::tuple<int, std::string, std::int64_t, std::int64_t>, std::uint32_t> group_row;
  std::vector<NewEdge> edges;
  std::vector<std::uint32_t> woken;
};

}  // namespace

Result<JobShape> with_schedule(const JobShape& job, std::string_view schedule) {
  constexpr std::string_view kInterleaved = "interleaved:";
  JobShape next = job;
  next.chunks = 1;
  if (schedule == "1f1b") {
    next.schedule = ScheduleKind::one_f_one_b;
  } else if (schedule == "zero-bubble") {
    next.schedule = ScheduleKind::zero_bubble;
  } else {
    const std::string_view number = schedule.substr(std::min(schedule.size(), kInterleaved.size()));
    const auto [end, wrong] = std::from_chars(number.data(), number.data() + number.size(), next.chunks);
    if (!schedule.starts_with(kInterleaved) || wrong != std::errc{} || end != number.data() + number.size() ||
        next.chunks < 1)
      return fail("not a schedule: " + std::string(schedule), "--schedule", "1f1b, interleaved:V or zero-bubble");
    next.schedule = next.chunks > 1 ? ScheduleKind::interleaved : ScheduleKind::one_f_one_b;
  }
  next.overlap = next.chunks > 1 && (job.chunks > 1 ? job.overlap : true);
  return next;
}

double stage_parameters(const Dims& d, double layers, bool first, bool last, bool gated, double positions) {
  const double attention = d.heads * d.head_dim, keys = d.kv_heads * d.head_dim;
  const double layer =
      (d.hidden * (attention + 2 * keys) + attention * d.hidden + (gated ? 3.0 : 2.0) * d.hidden * d.ffn) / d.tp +
      4 * d.hidden;
  const double table = d.vocab * d.hidden / d.tp;
  return layers * layer + (first ? table + positions * d.hidden : 0) + (last ? table : 0);
}

double stage_parameters(const JobShape& shape, double layers, bool first, bool last) {
  if (shape.layer_parameters > 0)
    return layers * shape.layer_parameters + (first ? shape.first_parameters : 0) + (last ? shape.last_parameters : 0);
  return stage_parameters(shape.dims, layers, first, last, shape.gated_mlp, shape.positions);
}

Result<Rebuilt> rebuild(const TraceSet& traces, const GraphBuild& build, const Program& program, const JobShape& base,
                        const JobShape& next, const Rates& rates, const NetworkModel& net,
                        const RebuildOptions& options) {
  Rebuilt out;
  if (Status s = Rebuilder(traces, build, program, base, next, rates, net, options).run(out); !s)
    return tl::unexpected(s.error());
  return out;
}

}  // namespace orrery
