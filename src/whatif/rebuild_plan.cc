// The traced job by what its pieces are, and the program of every new rank: which piece runs where.
#include <algorithm>
#include <cmath>

#include "whatif/rebuilder.h"

namespace orrery::rebuilding {

Status Rebuilder::run(Rebuilt& result) {
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

std::int64_t Rebuilder::rank_number(const JobLayout& l, std::int64_t t, std::int64_t d, std::int64_t s) const {
  return l.pipeline_outermost ? t + l.tp * (d + l.dp * s) : t + l.tp * (s + l.pp * d);
}

Status Rebuilder::prepare() {
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
          bucketing(owner_of_bucket(r, k)).samples.emplace_back(r, k);
          continue;
        }
        pp.pass[{piece.step, chunk, micro_batch, piece.kind, piece.layer}] = k;
      }
    }
  learn_vectors();
  for (const Owner owner : kOwners) {
    Bucketing& b = bucketing(owner);
    b.overlapped = !b.samples.empty() && (owner == Owner::all ? now.layout.dp : now.layout.expert_replicas()) > 1;
    if (b.overlapped && !rates.ready_before.empty()) learn_buckets(owner);
  }
  // what each exchange kernel carries
  return {};
}

std::uint8_t Rebuilder::mask_of(std::uint32_t r, std::uint32_t piece) const {
  std::uint8_t mask = 0;
  const PieceItems& items = program.pieces[r][piece];
  for (std::uint32_t i = 0; i < items.count; ++i) {
    const Item& item = program.items[items.first + i];
    if (exchanges_by(item)) mask |= mask_of(item);
  }
  return mask;
}

bool Rebuilder::exchanges_by(const Item& item) const {
  return (item.comm != kNone && !item.transfer) || invented(item) != nullptr;
}

const MadeTask* Rebuilder::invented(const Item& item) const {
  if (item.made == kNone || program.made[item.made].replaces) return nullptr;
  return &program.made[item.made];
}

std::uint8_t Rebuilder::mask_of(const CommRow& row) const {
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

void Rebuilder::name_exchanges(std::uint32_t r, const std::vector<Slot>& slots) {
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

std::uint8_t Rebuilder::bit_of(const Transfer& t) {
  return direction_of(t) == Direction::next ? (t.send ? 1 : 2) : (t.send ? 4 : 8);
}

Owner Rebuilder::owner_of_bucket(std::uint32_t r, std::uint32_t piece) const {
  const PieceItems& items = program.pieces[r][piece];
  for (std::uint32_t i = items.first; i < items.first + items.count; ++i) {
    const Item& item = program.items[i];
    const MadeTask* made = invented(item);
    if (made != nullptr && !made->computes) return made->role == GroupRole::expert_data ? Owner::experts : Owner::all;
    if (item.comm == kNone || c.rows[item.comm].group == kNone) continue;
    if (old.layout.role[c.rows[item.comm].group] == GroupRole::expert_data) return Owner::experts;
  }
  return Owner::all;
}

void Rebuilder::learn_buckets(Owner owner) {
  Bucketing& bucket_of = bucketing(owner);
  const double made = owner == Owner::all ? program.bucket_parameters : program.expert_bucket_parameters;
  if (made > 0) {
    bucket_of.size = made;
    return;
  }
  const auto owned = [&](std::uint32_t node) {
    return (owner == Owner::experts) == (!rates.expert.empty() && rates.expert[node] != 0);
  };
  double least = 1e30, least_ready = 1e30, largest = 0;
  for (const Column& column : columns)
    for (const std::uint32_t r : column.rank) {
      const RankAnatomy& a = program.anatomy.ranks[r];
      std::map<std::pair<std::int32_t, std::int32_t>, std::uint32_t> last;  // of a step's pass
      for (std::uint32_t k = 0; k < a.pieces.size(); ++k)
        if (a.pieces[k].kind == PieceKind::bucket && owner_of_bucket(r, k) == owner)
          last[{a.pieces[k].step, a.pieces[k].pass}] = k;
      // weight gradients and reductions of those passes as they began
      std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::pair<Ns, double>>> began;
      for (std::uint32_t k = 0; k < a.pieces.size(); ++k) {
        const std::pair pass{a.pieces[k].step, a.pieces[k].pass};
        if (!last.contains(pass)) continue;
        const PieceItems& items = program.pieces[r][k];
        const bool bucket = a.pieces[k].kind == PieceKind::bucket && owner_of_bucket(r, k) == owner;
        if (bucket) largest = std::max(largest, bucket_parameters(r, k));
        if (bucket && k != last.at(pass)) least = std::min(least, bucket_parameters(r, k));
        for (std::uint32_t i = items.first; i < items.first + items.count; ++i) {
          const Item& item = program.items[i];
          const float ready = owned(item.node) ? rates.ready_before[item.node] : 0;
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
  const auto usual = [](const JobLayout& l) { return std::max(40e6, 1e6 * static_cast<double>(l.dp)); };
  if (least > 1e29) {  // one bucket holds all, as small ones do
    bucket_of.size = largest > usual(old.layout) ? 1e30 : usual(now.layout);
    return;
  }
  // counted parameters come with all kernels of a layer alike: they do not tell when a gradient was there
  if (old.layer_parameters > 0) least_ready = least;
  bucket_of.size = least >= usual(old.layout) ? usual(now.layout) : std::min(least, least_ready);
}

bool Rebuilder::backward(PieceKind kind) {
  return kind == PieceKind::backward_begin || kind == PieceKind::backward_layer || kind == PieceKind::backward_end;
}

double Rebuilder::bucket_parameters(std::uint32_t r, std::uint32_t piece) const {
  double bytes = 0;
  const PieceItems& items = program.pieces[r][piece];
  for (std::uint32_t i = 0; i < items.count; ++i) {
    const Item& item = program.items[items.first + i];
    if (item.comm != kNone && !item.transfer) bytes = std::max(bytes, static_cast<double>(c.rows[item.comm].bytes));
  }
  return bytes / gradient_bytes;
}

const Rebuilder::Column& Rebuilder::column_for(std::int64_t t, std::int64_t d) const {
  const auto each = static_cast<std::int64_t>(columns_each), all = std::ssize(columns);
  return columns[static_cast<std::size_t>((d % (all / each)) * each + t % each)];
}

void Rebuilder::keep_whole_replicas() {
  std::map<std::int64_t, std::vector<std::int64_t>> tensor_of;  // by replica
  for (const Column& column : columns) tensor_of[column.d].push_back(column.t);
  const auto best = std::max_element(tensor_of.begin(), tensor_of.end(),
                                     [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  columns_each = best->second.size();
  std::erase_if(columns, [&, kept = best->second](const Column& column) { return tensor_of.at(column.d) != kept; });
}

std::uint32_t Rebuilder::pass_piece(std::uint32_t rank, std::int32_t step, std::int32_t chunk, std::int32_t micro_batch,
                                    PieceKind kind, std::int32_t layer) const {
  const auto it = pass_pieces[rank].pass.find({step, chunk, micro_batch, kind, layer});
  return it == pass_pieces[rank].pass.end() ? kNone : it->second;
}

Status Rebuilder::check_size() {
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

void Rebuilder::reserve(double nodes) const {
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

Status Rebuilder::plan() {
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
            const bool reduces = half != Use::Half::input && !forward && last_backward(slot);
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

bool Rebuilder::last_backward(const Slot& slot) const { return slot.micro_batch == now.layout.num_microbatches - 1; }

const Rebuilder::ExchangePiece* Rebuilder::exchange_for(const Column& column, const Slot& slot, std::uint32_t source,
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

Status Rebuilder::check_buckets() const {
  for (const NewRank& rank : ranks) {
    const std::vector<std::uint32_t>& own = columns[rank.column].rank;
    const auto lacks = [&](const Bucketing& b) {
      return b.overlapped && std::none_of(b.samples.begin(), b.samples.end(), [&](const auto& x) {
               return std::find(own.begin(), own.end(), x.first) != own.end();
             });
    };
    if (lacks(buckets[0]) || lacks(buckets[1]))
      return fail("rank " + std::to_string(g.ranks[rank.source].rank) +
                      " reduces no gradients beside its backward pass, others do",
                  "", "are all files of one run?");
  }
  return {};
}

}  // namespace orrery::rebuilding
