// The new ranks: their names, lanes and servers.
#include <algorithm>
#include <cmath>

#include "whatif/rebuilder.h"

namespace orrery::rebuilding {

void Rebuilder::merge_traces() {
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

void Rebuilder::add_foreign(RankTrace& merged, const Column& column) {
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

OpId Rebuilder::source_in(std::uint32_t column, std::uint32_t n) const {
  if (column_of[g.rank[n]] == column)
    return g.source[n] == kNoOp ? kNoOp : OpId{raw(g.source[n]) + op_offset[g.rank[n]]};
  const auto it = foreign.find({column, n});
  return it == foreign.end() ? kNoOp : OpId{it->second};
}

void Rebuilder::add_made(RankTrace& merged, const Column& column) {
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

void Rebuilder::add_exchange_streams(RankTrace& merged) {
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

std::uint32_t Rebuilder::exchange_role(const Transfer& t) const {
  const bool second = schedule.stages == 2 ? !t.send : direction_of(t) == Direction::previous;
  return static_cast<std::uint32_t>(program.roles.size()) + (second ? 1 : 0);
}

void Rebuilder::make_ranks() {
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

}  // namespace orrery::rebuilding
