// Collectives and exchanges of the new job: who meets whom, with how many bytes, for how long.
#include <algorithm>
#include <cmath>

#include "whatif/rebuilder.h"

namespace orrery::rebuilding {

std::uint32_t Rebuilder::meeting(const Key& key, std::uint32_t expected, std::uint32_t group, CommOp op) {
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

std::uint32_t Rebuilder::group_of(const NewRank& rank, GroupRole role, std::uint32_t base_group) {
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
    if (is_of_experts(role)) {
      NewRank other;
      for (other.stage = 0; other.stage < l.pp; ++other.stage)
        for (other.d = 0; other.d < l.dp; ++other.d)
          for (other.t = 0; other.t < l.tp; ++other.t)
            if (group_place(other, role) == group_place(rank, role))
              group.ranks.push_back(rank_number(l, other.t, other.d, other.stage));
    }
    if (role == GroupRole::world || role == GroupRole::other) all(0, l.tp, 0, l.dp, 0, l.pp);
    std::sort(group.ranks.begin(), group.ranks.end());
  }
  out->build.communication.groups.push_back(std::move(group));
  return it->second;
}

void Rebuilder::meet(std::uint32_t r, Cursor& at, const Item& item, std::uint32_t i, std::uint32_t node, GroupRole role,
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
    double bytes =
        static_cast<double>(std::max<std::int64_t>(was.bytes, 0)) * message_factor(was, role, kind, rank.stage);
    if (kind == PieceKind::bucket) {
      bytes = static_cast<double>(was.bytes) * rank.bucket_factor;
    } else if (role == GroupRole::data) {
      bytes = static_cast<double>(was.bytes) * parameter_factor(rank, at.use->rank);
    } else if (role == GroupRole::expert_data) {
      bytes = static_cast<double>(was.bytes) * parameter_factor(rank, at.use->rank, Owner::experts);
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
      const auto members = simulated_members(rank, role);
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
  for (const std::uint32_t m : meetings) arrive(m, id);
}

double Rebuilder::made_elements(const NewRank& rank, const MadeTask& made) const {
  if (made.size == MadeTask::Size::bucket) return rank.bucket_parameters;
  if (made.size == MadeTask::Size::stage_parameters) return rank_parameters(now, rank.stage);
  if (made.size == MadeTask::Size::expert_parameters)
    return expert_parameters(now, static_cast<double>(now.layout.layers) / static_cast<double>(now.layout.pp));
  return made.elements.value(now.dims);
}

void Rebuilder::meet_made(std::uint32_t r, Cursor& at, const Item& item, std::uint32_t i, std::uint32_t node,
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
                                  simulated_members(rank, made.role), row.group, made.op));
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
  for (const std::uint32_t m : to.meetings) arrive(m, id);
}

std::pair<std::int64_t, std::int64_t> Rebuilder::group_place(const NewRank& rank, GroupRole role) const {
  // Experts are dealt to the ranks of a stage in their order.
  const std::int64_t among = rank.t + now.layout.tp * rank.d, etp = now.layout.etp, all = etp * now.layout.ep;
  if (role == GroupRole::expert) return {rank.stage, among / all * etp + among % etp};
  if (role == GroupRole::expert_tensor) return {rank.stage, among / etp};
  if (role == GroupRole::expert_model) return {rank.stage, among / all};
  if (role == GroupRole::expert_data) return {rank.stage, among % all};
  if (role == GroupRole::expert_stages) return {among / all, -1};
  if (role == GroupRole::tensor) return {rank.stage, rank.d};
  if (role == GroupRole::data) return {rank.stage, rank.t};
  if (role == GroupRole::embedding || role == GroupRole::pipeline) return {rank.t, rank.d};
  if (role == GroupRole::model) return {rank.d, -1};
  return {-1, -1};
}

void Rebuilder::arrive(std::uint32_t m, std::uint32_t id) {
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

void Rebuilder::finish_row(std::uint32_t id, std::uint32_t arrival) {
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

std::uint32_t Rebuilder::simulated_members(const NewRank& rank, GroupRole role) const {
  if (is_of_experts(role)) {
    const auto [a, b] = group_place(rank, role);
    std::uint32_t& n = members_run[{role, a, b}];
    if (n == 0)
      for (const NewRank& other : ranks) n += group_place(other, role) == std::pair(a, b) ? 1 : 0;
    return n;
  }
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
    default:
      break;
  }
  return t * d * stages;
}

std::uint32_t Rebuilder::part_group(const CommRow& row) const {
  return row.parts != 0 ? c.parts[row.first_part].group : row.group;
}

double Rebuilder::exchange_bytes(const CommRow& row) const {
  std::int64_t bytes = row.parts == 0 ? row.bytes : 0;
  for (std::uint32_t k = 0; k < row.parts; ++k) bytes = std::max(bytes, c.parts[row.first_part + k].bytes);
  const auto size = [](const Dims& d) { return d.seq * d.mbs * d.hidden / (d.sequence_parallel ? d.tp : 1); };
  const double before = size(old.dims), after = size(now.dims);
  return static_cast<double>(std::max<std::int64_t>(bytes, 0)) * (before > 0 ? after / before : 1);
}

double Rebuilder::exchange_ns(const JobLayout& l, std::int64_t a, std::int64_t b, double bytes) const {
  const std::int64_t n = std::max<std::int64_t>(1, l.gpus_per_node);
  return transfer_ns(net, Pattern::point_to_point, bytes, {2, a / n == b / n ? 2 : 1});
}

double Rebuilder::traced_exchange_ns(const CommRow& row) const {
  double longest = 0;
  const std::int64_t own = g.ranks[row.rank].rank;
  for (std::uint32_t k = 0; k < row.parts; ++k) {
    const CommPart& part = c.parts[row.first_part + k];
    longest = std::max(
        longest, exchange_ns(old.layout, own, part.peer, static_cast<double>(std::max<std::int64_t>(part.bytes, 0))));
  }
  return longest;
}

double Rebuilder::vectors_of(const CommRow& row) const {
  const GroupRole role = row.group == kNone ? GroupRole::other : old.layout.role[row.group];
  if (role != GroupRole::tensor || row.op != CommOp::all_reduce || old.dims.hidden < 1) return 0;
  constexpr double kMost = 32;  // of a layer; activations are thousands
  const double layers = static_cast<double>(old.layout.layers) / static_cast<double>(old.layout.pp);
  for (const double each : {4.0, 2.0}) {
    const double n = static_cast<double>(row.bytes) / (each * old.dims.hidden);
    if (n >= 1 && n <= kMost * (layers + 1) && n == std::floor(n)) return n;
  }
  return 0;
}

void Rebuilder::learn_vectors() {
  if (!old.dims.sequence_parallel) return;
  const double layers = static_cast<double>(old.layout.layers) / static_cast<double>(old.layout.pp);
  std::vector<double>& of_stage = stage_vectors;
  of_stage.assign(static_cast<std::size_t>(old.layout.pp), 0);
  for (const Column& column : columns)
    for (const std::uint32_t r : column.rank)
      for (std::uint32_t k = 0; k < program.pieces[r].size(); ++k) {
        if (program.anatomy.ranks[r].pieces[k].kind != PieceKind::step_end) continue;
        const PieceItems& items = program.pieces[r][k];
        for (std::uint32_t i = items.first; i < items.first + items.count; ++i)
          if (program.items[i].comm != kNone) {
            double& most = of_stage[static_cast<std::size_t>(traced_stage[r])];
            most = std::max(most, vectors_of(c.rows[program.items[i].comm]));
          }
      }
  const double least = *std::min_element(of_stage.begin(), of_stage.end());
  layer_vectors = std::floor(least / layers);
  if (layer_vectors < 1) return;
  last_vectors = of_stage.back() - layer_vectors * layers;
  if (old.layout.pp > 1) first_vectors = of_stage.front() - layer_vectors * layers;
}

double Rebuilder::message_factor(const CommRow& row, GroupRole role, PieceKind kind, std::int64_t stage) const {
  const Dims &a = old.dims, &b = now.dims;
  if (row.bytes <= 0) return 1;
  const auto bytes = static_cast<double>(row.bytes);
  const auto is = [&](double elements) {
    for (const double each : {1.0, 2.0, 4.0, 8.0})
      if (elements > 0 && std::abs(bytes - each * elements) < 0.5) return true;
    return false;
  };
  if (const double n = kind == PieceKind::step_end && layer_vectors >= 1 ? vectors_of(row) : 0;
      n > 0 && n == stage_vectors[static_cast<std::size_t>(traced_stage[row.rank])]) {
    const double layers = static_cast<double>(now.layout.layers) / static_cast<double>(now.layout.pp);
    const double all =
        layer_vectors * layers + (stage == 0 ? first_vectors : 0) + (stage == now.layout.pp - 1 ? last_vectors : 0);
    return all / n * (b.hidden / a.hidden);
  }
  const double tokens = a.seq * a.mbs, new_tokens = b.seq * b.mbs;
  if (role == GroupRole::tensor) {
    if (is(tokens * a.hidden)) return new_tokens * b.hidden / (tokens * a.hidden);
    if (is(tokens) || is(2 * tokens)) return new_tokens / tokens;
    if (is(a.hidden)) return b.hidden / a.hidden;
  }
  // Tokens on their way: rows of the hidden state, however many were sent; or numbers of each token.
  if (role == GroupRole::expert || role == GroupRole::expert_tensor || role == GroupRole::expert_model) {
    if (a.hidden > 0 && std::fmod(bytes, a.hidden) == 0 && bytes >= tokens * a.hidden / 64)
      return new_tokens * b.hidden / (tokens * a.hidden);
    return bytes >= tokens ? new_tokens / tokens : 1;
  }
  if (role == GroupRole::embedding && is(a.vocab * a.hidden / a.tp))
    return b.vocab * b.hidden / b.tp / (a.vocab * a.hidden / a.tp);
  return 1;
}

}  // namespace orrery::rebuilding
