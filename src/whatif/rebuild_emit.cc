// The nodes of the new job, in an order in which nothing comes before what it waits for.
#include <algorithm>
#include <cmath>

#include "whatif/rebuilder.h"

namespace orrery::rebuilding {

Status Rebuilder::emit() {
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

void Rebuilder::go_on(std::uint32_t r) {
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

void Rebuilder::wait_for_input(NewRank& rank, const Use& use) {
  const Slot& slot = schedule.stage[static_cast<std::size_t>(rank.stage)][static_cast<std::size_t>(use.slot)];
  const auto t = input_of(schedule, static_cast<std::int32_t>(rank.stage), slot);
  if (!t) return;
  const auto it = rank.received.find({t->peer_stage, t->forward, t->chunk, t->micro_batch, use.step});
  if (it == rank.received.end()) return;
  add_wait(rank, it->second);
}

void Rebuilder::add_wait(NewRank& rank, std::uint32_t transfer) const {
  const Ns lag = g.ranks[rank.source].lags.at(EdgeKind::event, NodeKind::comm, NodeKind::kernel);
  for (std::uint32_t role = 0; role < program.roles.size(); ++role)
    if (program.roles[role] == LaneRole{LaneRole::Kind::compute, 0, 0})
      rank.waits[role].push_back({transfer, EdgeKind::event, lag});
}

void Rebuilder::after_exchange(NewRank& rank) {
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

void Rebuilder::start(NewRank& rank, Cursor& at, const Use& use) {
  at.active = true;
  at.use = &use;
  at.item = 0;
  const PieceItems& items = program.pieces[use.rank][use.piece];
  at.refs.assign(items.count, kNone);
  at.from = 0;
  at.to = items.count;
  at.flush_before = kNone;
  at.flushed = 0;
  at.idle_from = at.idle_to = 0;
  if (use.tail || use.head || use.without_tasks) {
    const auto [first, last] = span_of_tasks(items);
    if (use.tail) at.from = last;
    if (use.head) at.to = first;
    if (use.without_tasks) at.idle_from = first, at.idle_to = last;
  }
  at.carries.clear();
  const PieceKind kind = program.anatomy.ranks[use.rank].pieces[use.piece].kind;
  if (kind == PieceKind::exchange) assign_transfers(rank, at, items);
  if (kind == PieceKind::backward_end && use.last_pass && buckets_overlap()) {
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

std::pair<std::uint32_t, std::uint32_t> Rebuilder::span_of_tasks(const PieceItems& items) const {
  std::uint32_t first = items.count, last = 0, thread = kNone;
  for (std::uint32_t i = 0; i < items.count; ++i) {
    const Item& item = program.items[items.first + i];
    if (g.kind[item.node] == NodeKind::host) continue;
    first = std::min(first, i);
    last = i + 1;
    for (std::uint32_t e = item.first_edge; e < item.first_edge + item.edges && thread == kNone; ++e)
      if (program.edges[e].kind == EdgeKind::launch && program.edges[e].inside)
        thread = program.items[items.first + program.edges[e].ref].lane;
  }
  if (thread == kNone) return {first, last};
  std::vector<std::int32_t> depth(items.count + 1, 0);  // of the thread's open operators, before each item
  for (std::uint32_t i = 0; i < items.count; ++i) {
    const Item& item = program.items[items.first + i];
    const bool own = item.lane == thread && !item.marks && g.kind[item.node] == NodeKind::host;
    depth[i + 1] = depth[i] + (own ? (g.at_begin[item.node] != 0 ? 1 : -1) : 0);
  }
  std::uint32_t from = first, to = last;
  for (std::uint32_t i = first + 1; i-- > 0;)
    if (depth[i] < depth[from]) from = i;
  for (std::uint32_t i = last; i <= items.count; ++i)
    if (depth[i] < depth[to]) to = i;
  return {from, to};
}

void Rebuilder::assign_transfers(NewRank& rank, Cursor& at, const PieceItems& items) {
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
  if (!schedule.overlap && now.layout.pp != old.layout.pp) order_between_stages(rank, slot, at, items);
  if (schedule.overlap && !in_order_of_streams(slot, at)) {
    for (auto& carries : at.carries) carries.clear();
    std::size_t next = 0;
    for (std::uint32_t k = 0; k < slot.transfers.size(); ++k) {
      at.carries[kernels[next]].push_back(k);
      if (next + 1 < kernels.size()) ++next;
    }
  }
}

void Rebuilder::order_between_stages(const NewRank& rank, const Slot& slot, Cursor& at, const PieceItems& items) const {
  std::vector<std::uint32_t> single;  // items that carry one transfer
  for (std::uint32_t i = 0; i < at.carries.size(); ++i)
    if (at.carries[i].size() == 1) single.push_back(i);
  for (std::size_t x = 0; x < single.size(); ++x)
    for (std::size_t y = x + 1; y < single.size(); ++y) {
      auto &first = at.carries[single[x]], &second = at.carries[single[y]];
      const Transfer &a = slot.transfers[first.front()], &b = slot.transfers[second.front()];
      const bool one_stream =
          program.items[items.first + single[x]].lane == program.items[items.first + single[y]].lane;
      if (one_stream && a.peer_stage == b.peer_stage && a.send != b.send && a.send == (rank.stage % 2 != 0))
        std::swap(first, second);
    }
}

bool Rebuilder::in_order_of_streams(const Slot& slot, const Cursor& at) const {
  std::map<std::uint32_t, std::uint32_t> last;  // by stream
  for (const auto& carries : at.carries)
    for (const std::uint32_t k : carries) {
      const auto [it, fresh] = last.try_emplace(exchange_role(slot.transfers[k]), k);
      if (!fresh && k < it->second) return false;
      it->second = k;
    }
  return true;
}

bool Rebuilder::run_piece(std::uint32_t r, Cursor& at) {
  NewRank& rank = ranks[r];
  const PieceItems& items = program.pieces[at.use->rank][at.use->piece];
  const bool is_main = &at == &rank.main;
  for (std::uint32_t i = std::max(at.item, at.from); i < at.to; ++i) {
    at.item = i;
    while (is_main && i == at.flush_before && at.flushed < kOwners.size()) {
      const Owner owner = kOwners[at.flushed++];
      if (!bucketing(owner).overlapped) continue;
      const auto o = static_cast<std::size_t>(owner);
      const double all = part_parameters(at.use->part, owner), left = all - rank.reduced[o][at.use->part];
      // biases and norms alone, which are not counted one by one, went with the buckets before
      if (left > 0.005 * all && insert_bucket(rank, left, owner)) {
        rank.gathered[o] = 0;
        rank.reduced[o][at.use->part] = 0;
        return false;
      }
    }
    if (!of_half(*at.use, items.first + i)) {
      pass_waits_on(rank, at, program.items[items.first + i]);
      continue;
    }
    if (!place(r, at, items, i)) return false;
    if (!is_main || !at.use->last_pass || !buckets_overlap()) continue;
    const Item& item = program.items[items.first + i];
    if (!rates.ready.empty() && item.made == kNone && !at.use->without_tasks && g.kind[item.node] != NodeKind::host)
      rank.gathered[!rates.expert.empty() && rates.expert[item.node] != 0 ? 1 : 0] += rates.ready[item.node];
    for (const Owner owner : kOwners) {
      const Bucketing& b = bucketing(owner);
      double& gathered = rank.gathered[static_cast<std::size_t>(owner)];
      if (!b.overlapped || gathered < b.size || b.size <= 0 || item.queue == kNone || b.samples.empty()) continue;
      at.item = i + 1;
      const double full = gathered;
      gathered = 0;
      rank.reduced[static_cast<std::size_t>(owner)][at.use->part] += full;
      if (insert_bucket(rank, full, owner)) return false;
    }
  }
  at.item = at.to;
  return true;
}

bool Rebuilder::of_half(const Use& use, std::uint32_t item) const {
  return use.half == Use::Half::both || (use.half == Use::Half::weight) == (program.weight[item] != 0);
}

void Rebuilder::pass_waits_on(NewRank& rank, const Cursor& at, const Item& item) const {
  if (at.use->half != Use::Half::input) return;
  for (std::uint32_t e = item.first_edge; e < item.first_edge + item.edges; ++e) {
    const ItemEdge& edge = program.edges[e];
    if (edge.kind != EdgeKind::event) continue;
    const std::uint32_t from = source_of(rank, at, edge);
    if (from != kNone) rank.waits[item.lane].push_back({from, edge.kind, edge.lag});
  }
}

std::uint32_t Rebuilder::source_of(const NewRank& rank, const Cursor& at, const ItemEdge& edge) {
  if (edge.inside) return at.refs[edge.ref];
  const auto& order = rank.order[edge.ref];
  return edge.back < order.size() ? order[order.size() - 1 - edge.back] : kNone;
}

bool Rebuilder::insert_bucket(NewRank& rank, double parameters, Owner owner) {
  const Column& column = columns[rank.column];
  std::vector<std::pair<std::uint32_t, std::uint32_t>> mine;
  for (const auto& sample : bucketing(owner).samples)
    if (std::find(column.rank.begin(), column.rank.end(), sample.first) != column.rank.end()) mine.push_back(sample);
  if (mine.empty()) return false;
  const auto& [base_rank, piece] = mine[rank.buckets[static_cast<std::size_t>(owner)]++ % mine.size()];
  const double before = bucket_parameters(base_rank, piece);
  rank.bucket_use = Use{};
  rank.bucket_use.rank = base_rank;
  rank.bucket_use.piece = piece;
  rank.bucket_factor = before > 0 ? parameters / before : 1;
  rank.bucket_parameters = parameters;
  start(rank, rank.inserted, rank.bucket_use);
  return true;
}

double Rebuilder::part_parameters(std::int32_t part, Owner owner) const {
  const std::int32_t parts = schedule.stages * schedule.chunks;
  if (owner == Owner::experts) return expert_parameters(now, static_cast<double>(now.layout.layers) / parts);
  return stage_parameters(now, static_cast<double>(now.layout.layers) / parts, part == 0,
                          part == parts - 1 && !(part == 0 && now.tied_embedding));
}

double Rebuilder::rank_parameters(const JobShape& shape, std::int64_t stage) const {
  const double layers = static_cast<double>(shape.layout.layers) / static_cast<double>(shape.layout.pp);
  return stage_parameters(shape, layers, stage == 0,
                          stage == shape.layout.pp - 1 && !(stage == 0 && shape.tied_embedding));
}

double Rebuilder::parameter_factor(const NewRank& rank, std::uint32_t base_rank, Owner owner) const {
  if (owner == Owner::experts) {
    const auto layers = [](const JobLayout& l) { return static_cast<double>(l.layers) / static_cast<double>(l.pp); };
    const double was = expert_parameters(old, layers(old.layout));
    return was > 0 ? expert_parameters(now, layers(now.layout)) / was : 1;
  }
  const double before = rank_parameters(old, traced_stage[base_rank]);
  return before > 0 ? rank_parameters(now, rank.stage) / before : 1;
}

bool Rebuilder::place(std::uint32_t r, Cursor& at, const PieceItems& items, std::uint32_t i) {
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
  } else if (!host) {
    if (!rates.factor.empty()) factor = static_cast<double>(rates.factor[item.node]);
    if (kind == PieceKind::bucket) {
      if (!communicates) factor = rank.bucket_factor;
    } else if (!rates.parameter.empty() && rates.parameter[item.node] != 0) {
      factor = update_factor(rank, use.rank);
    }
    if (!rates.slow.empty() && !communicates) factor *= rank.slow / rates.slow[use.rank];
  }
  if (factor != 1) took = std::llround(static_cast<double>(took) * factor);
  if (host && i >= at.idle_from && i < at.idle_to) took = 0;
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

bool Rebuilder::blocks_for_tasks(const PieceItems& items, std::uint32_t i) const {
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

bool Rebuilder::issue(std::uint32_t r, Cursor& at, const Item& item, const std::vector<std::uint32_t>& carried) {
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

CommRow Rebuilder::made_row(const Item& item, const MadeTask& made) const {
  CommRow row;
  row.op = made.op;
  row.op_name = made_name + item.made;
  row.launched = true;
  row.start = row.end = g.observed_start[item.node];
  return row;
}

void Rebuilder::place_transfer(const Issued& made, std::uint32_t before) {
  NewRank& rank = ranks[made.rank];
  Communication& next = out->build.communication;
  const Item& item = *made.item;
  const MadeTask* fresh = invented(item);  // the traced job has no exchange
  const CommRow was = fresh != nullptr ? made_row(item, *fresh) : c.rows[item.comm];
  edges = made.edges;
  if (before != kNone)
    edges.push_back(
        {before, EdgeKind::stream, g.ranks[rank.source].lags.at(EdgeKind::stream, NodeKind::comm, NodeKind::comm)});
  if (edges.empty()) edges.push_back({kNone, EdgeKind::root, 0});
  const std::uint32_t node = add_node(made.rank, item, 0, g.at_begin[item.node]);
  out->build.graph.lane[node] = rank.lane[made.role];
  if (fresh != nullptr) {
    out->build.graph.kind[node] = NodeKind::comm;
    out->build.graph.source[node] = OpId{made_op[rank.column][item.made]};
  }
  const Transfer& t = made.transfer;
  const std::int64_t sender = t.send ? rank.stage : t.peer_stage;
  const std::uint32_t group = group_of(rank, GroupRole::pipeline, part_group(was));
  const double each = fresh != nullptr ? made_elements(rank, *fresh) * fresh->bytes_each : exchange_bytes(was);
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
  const double ns = exchange_ns(now.layout, rank.number, peer, each), factor = was_ns > 0 ? ns / was_ns : 1;
  NewRow to;
  to.rank = made.rank;
  to.row = static_cast<std::uint32_t>(next.rows.size());
  to.base_node = fresh != nullptr ? item.node : was.last;
  to.waits = item.waits;
  to.slot = made.slot;
  to.open = 1;
  to.duration = fresh != nullptr ? std::llround(std::max(0.0, ns))
                                 : std::llround(static_cast<double>(g.duration[was.last]) * factor);
  row.transfer = to.duration;
  next.rows.push_back(row);
  const Key key{-1, sender, t.forward, t.chunk, t.micro_batch, rank.t, rank.d, made.use->step};
  to.meetings.push_back(meeting(key, 2, group, CommOp::send));
  const auto id = static_cast<std::uint32_t>(new_rows.size());
  const std::uint32_t m = to.meetings.front();
  new_rows.push_back(std::move(to));
  if (!new_rows[id].waits) finish_row(id, node);
  arrive(m, id);
}

bool Rebuilder::block(NewRank& rank, std::uint32_t ref) {
  rank.blocked = ref;
  return false;
}

std::int64_t Rebuilder::members_of(GroupRole role) const {
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
    case GroupRole::expert:
      return now.layout.ep;
    case GroupRole::expert_tensor:
      return now.layout.etp;
    case GroupRole::expert_model:
      return now.layout.ep * now.layout.etp;
    case GroupRole::expert_data:
      return now.layout.expert_replicas();
    case GroupRole::expert_stages:
      return now.layout.ep * now.layout.etp * now.layout.pp;
    case GroupRole::context:
    case GroupRole::world:
    case GroupRole::other:
      break;
  }
  return now.layout.tp * now.layout.pp * now.layout.dp;
}

double Rebuilder::slowness(const NewRank& rank) const {
  if (rates.slow.empty()) return 1;
  for (std::size_t r = 0; r < g.ranks.size(); ++r)
    if (g.ranks[r].rank == rank.number) return rates.slow[r];
  return 1;
}

double Rebuilder::update_factor(const NewRank& rank, std::uint32_t base_rank) const {
  const auto sharded = [](const JobLayout& l, std::int64_t among) {
    return l.distributed_optimizer ? static_cast<double>(among) : 1.0;
  };
  const auto work = [&](const JobShape& shape, std::int64_t stage) {
    const JobLayout& l = shape.layout;
    const double layers = static_cast<double>(l.layers) / static_cast<double>(l.pp);
    return rank_parameters(shape, stage) / sharded(l, l.dp) +
           expert_parameters(shape, layers) / sharded(l, l.expert_replicas());
  };
  const double before = work(old, traced_stage[base_rank]);
  return before > 0 ? work(now, rank.stage) / before
                    : sharded(old.layout, old.layout.dp) / sharded(now.layout, now.layout.dp);
}

std::uint32_t Rebuilder::add_node(std::uint32_t r, const Item& item, Ns took, std::uint8_t at_begin) {
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

void Rebuilder::mark_steps(std::uint32_t r, std::uint32_t base_node, std::uint32_t node, const Use& use) {
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

}  // namespace orrery::rebuilding
