// Files in which the traces of several ranks were fused: every event says `args.rank`. The rows of such a file were
// read into one set of tables; here each rank gets tables of its own. The rank is part of a lane's key, so rows carry
// none.
#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>

#include "base/json_text.h"
#include "importers/kineto.h"

namespace orrery {
namespace {

// Fusing tools name the rank in every event. In less than one of so many it is some argument of that name.
constexpr std::uint64_t kLeastShare = 10;

struct LaneRows {  // of one lane
  std::uint64_t ops = 0, others = 0;
};

LaneKey key_of(const LaneTable& lanes, std::size_t lane, std::int32_t rank) {
  return {lanes.kind[lane], rank, lanes.pid[lane], lanes.tid[lane], lanes.pid_text[lane], lanes.tid_text[lane]};
}

// What events of one lane (or process) say of their rank: all of them, each once.
using RanksOf = std::unordered_map<LaneKey, std::vector<std::int32_t>, LaneHash>;
void add_rank(RanksOf& ranks_of, const LaneKey& key, std::int32_t rank) {
  std::vector<std::int32_t>& ranks = ranks_of[key];
  const auto at = std::lower_bound(ranks.begin(), ranks.end(), rank);
  if (at == ranks.end() || *at != rank) ranks.insert(at, rank);
}

// Lanes as events write them (pid, tid), and streams (device, stream), are two name spaces. Threads of one pid and tid
// and what only flows and names mention are one lane.
LaneKey place_of(const LaneTable& lanes, std::size_t lane) {
  LaneKey key = key_of(lanes, lane, -1);
  if (key.kind != LaneKind::stream) key.kind = LaneKind::other;
  return key;
}
LaneKey process_of(LaneKey place) {
  place.tid = 0;
  place.tid_text = StrId{};
  return place;
}

class RankSplitter {
 public:
  RankSplitter(RankTrace& whole, const RankBuilder& builder, Unfinished& rest)
      : whole_(whole),
        rest_(rest),
        events_of_rank_(builder.events_of_rank),
        written_(builder.lane_ranks()),
        lane_rank_(written_) {}

  std::vector<RankRows> run() {
    count_rows();
    if (!most_events_name_theirs() || ranks_.size() < 2) return one_rank();
    resolve_lanes();
    spread_names();
    note_ranks();
    note_lost();
    renumber_lanes();
    return split();
  }

 private:
  void count_rows() {
    rows_.resize(written_.size());
    for (const LaneId l : whole_.ops.lane) ++rows_[raw(l)].ops;
    for (const HalfEvent& h : rest_.halves) ++rows_[raw(h.lane)].ops;
    for (const LaneId l : whole_.flows.lane) ++rows_[raw(l)].others;
    for (const LaneId l : whole_.memory.lane) ++rows_[raw(l)].others;
    for (std::size_t l = 0; l < written_.size(); ++l)
      if (written_[l] >= 0 && rows_[l].ops + rows_[l].others != 0) ranks_.push_back(written_[l]);
    std::sort(ranks_.begin(), ranks_.end());
    ranks_.erase(std::unique(ranks_.begin(), ranks_.end()), ranks_.end());
  }

  std::string list_of_ranks() const {
    constexpr std::size_t kShown = 4;
    std::string s = ranks_.size() == 1 ? "rank " : "ranks ";
    for (std::size_t k = 0; k < ranks_.size() && k < kShown; ++k) s += (k == 0 ? "" : ", ") + std::to_string(ranks_[k]);
    if (ranks_.size() > kShown) s += " ... " + std::to_string(ranks_.back());
    return s;
  }

  // Of threads and streams: what others draw (a critical path over all ranks, say) is no evidence.
  bool most_events_name_theirs() {
    std::uint64_t naming = 0, all = 0;
    for (std::size_t l = 0; l < rows_.size(); ++l) {
      if (whole_.lanes.kind[l] == LaneKind::other) continue;
      all += rows_[l].ops;
      if (written_[l] >= 0) naming += rows_[l].ops;
    }
    if (naming * kLeastShare >= all) return true;
    if (ranks_.size() == 1 && whole_.rank == ranks_[0]) return false;
    whole_.notes.add(
        "rank-of-few-events", Severity::warning, naming,
        list_of_ranks() + " in " + std::to_string(naming) + " of " + std::to_string(all) + " events",
        "args.rank in less than one of ten host and GPU events is no sign of ranks fused into one file: read as one "
        "rank");
    ranks_.clear();
    return false;
  }

  // No or one rank, or not to be believed: what the events say tells no lanes apart.
  std::vector<RankRows> one_rank() {
    if (ranks_.size() == 1) {
      if (whole_.rank >= 0 && whole_.rank != ranks_[0])
        whole_.notes.add("rank-differs-from-events", Severity::warning, 1,
                         "distributedInfo says rank " + std::to_string(whole_.rank) + ", args.rank of events " +
                             std::to_string(ranks_[0]),
                         "distributedInfo counts; --rank FILE=N says otherwise");
      else
        whole_.rank = ranks_[0];
    }
    std::fill(lane_rank_.begin(), lane_rank_.end(), -1);
    renumber_lanes();
    std::vector<RankRows> all(1);
    all[0].trace = std::move(whole_);
    all[0].rest = std::move(rest_);
    return all;
  }

  // Lanes of events without a rank: that of the other events there, else of their process.
  void resolve_lanes() {
    for (std::size_t l = 0; l < written_.size(); ++l) {
      if (written_[l] < 0) continue;
      const LaneKey place = place_of(whole_.lanes, l);
      add_rank(ranks_of_place_, place, written_[l]);
      add_rank(ranks_of_process_, process_of(place), written_[l]);
    }
    for (std::size_t l = 0; l < written_.size(); ++l) {
      if (written_[l] >= 0) continue;
      const LaneKey place = place_of(whole_.lanes, l);
      auto at = ranks_of_place_.find(place);
      if (at == ranks_of_place_.end()) {
        at = ranks_of_process_.find(process_of(place));
        if (at == ranks_of_process_.end()) continue;
      }
      if (at->second.size() == 1) lane_rank_[l] = at->second[0];
    }
  }

  // A name without a rank, of a thread or process that several ranks have, is the name of each.
  void spread_names() {
    std::map<std::uint32_t, StrId> threads;
    std::unordered_map<LaneKey, StrId, LaneHash> processes;
    std::vector<LaneName> spread;
    for (const LaneName& n : rest_.names) {
      if (lane_rank_[raw(n.lane)] >= 0) continue;
      if (n.process)
        processes[process_of(place_of(whole_.lanes, raw(n.lane)))] = n.name;
      else
        threads[raw(n.lane)] = n.name;
    }
    const auto spread_over = [&](const RanksOf& ranks_of, const LaneKey& place, bool process, StrId name) {
      const auto at = ranks_of.find(place);
      if (at == ranks_of.end()) return;
      for (const std::int32_t rank : at->second) {
        LaneKey key = place;
        key.rank = rank;
        spread.push_back({process, add_lane(key), name});
      }
    };
    for (const auto& [lane, name] : threads) spread_over(ranks_of_place_, place_of(whole_.lanes, lane), false, name);
    for (const auto& [place, name] : processes) spread_over(ranks_of_process_, place, true, name);
    rest_.names.insert(rest_.names.begin(), spread.begin(), spread.end());  // those that name their rank count before
  }

  LaneId add_lane(const LaneKey& key) {
    LaneTable& lanes = whole_.lanes;
    lanes.kind.push_back(key.kind);
    lanes.pid.push_back(key.pid);
    lanes.tid.push_back(key.tid);
    lanes.pid_text.push_back(key.pid_text);
    lanes.tid_text.push_back(key.tid_text);
    lanes.name.push_back(StrId{});
    written_.push_back(key.rank);
    lane_rank_.push_back(key.rank);
    rows_.emplace_back();
    return LaneId{static_cast<std::uint32_t>(lanes.size() - 1)};
  }

  void note_ranks() {
    whole_.notes.add("fused-ranks", Severity::info, ranks_.size(), list_of_ranks(),
                     "args.rank of the events names several ranks: each is read as if it had a file of its own; the "
                     "host is not known of any, devices and world size of the rank that distributedInfo names");
  }

  void note_lost() {
    std::uint64_t ops = 0, others = 0;
    for (std::size_t l = 0; l < rows_.size(); ++l) {
      if (lane_rank_[l] >= 0) continue;
      ops += rows_[l].ops;
      others += rows_[l].others;
    }
    if (ops + others == 0) return;
    const auto lost = [&](LaneId l) { return lane_rank_[raw(l)] < 0; };
    std::string first;
    const OpTable& o = whole_.ops;
    for (std::size_t i = 0; i < o.size() && first.empty(); ++i)
      if (lost(o.lane[i]))
        first = quote_for_people(whole_.strings.view(o.name[i]), 80) + " at ts " + std::to_string(o.start[i] / 1000) +
                " us";
    for (std::size_t i = 0; i < rest_.halves.size() && first.empty(); ++i)
      if (lost(rest_.halves[i].lane)) first = quote_for_people(whole_.strings.view(rest_.halves[i].name), 80);
    for (std::size_t i = 0; i < whole_.flows.size() && first.empty(); ++i)
      if (lost(whole_.flows.lane[i])) first = "flow " + std::to_string(whole_.flows.id[i]);
    if (first.empty()) first = "a memory event";
    whole_.notes.add("fused-without-rank", ops != 0 ? Severity::data_loss : Severity::warning, ops + others, first,
                     "events without args.rank among those of several ranks, on a thread, stream or process that "
                     "none or more than one of them use: not used; give the ranks' own files");
  }

  // Lanes that differ in nothing but whether their events named the rank become one.
  void renumber_lanes() {
    const LaneTable& lanes = whole_.lanes;
    std::unordered_map<LaneKey, LaneId, LaneHash> known;
    LaneTable kept;
    std::vector<LaneId> renamed(lanes.size());
    std::vector<std::int32_t> kept_rank;
    for (std::size_t l = 0; l < lanes.size(); ++l) {
      const auto [at, fresh] =
          known.try_emplace(key_of(lanes, l, lane_rank_[l]), LaneId{static_cast<std::uint32_t>(kept.size())});
      renamed[l] = at->second;
      if (!fresh) continue;
      std::apply([&](auto... column) { ((kept.*column).push_back((lanes.*column)[l]), ...); }, kLaneColumns);
      kept_rank.push_back(lane_rank_[l]);
    }
    // How many events of each rank were not counted as its own, because they do not name it.
    for (std::size_t l = 0; l < written_.size(); ++l)
      if (written_[l] < 0 && lane_rank_[l] >= 0) unnamed_[lane_rank_[l]] += rows_[l].ops + rows_[l].others;
    whole_.lanes = std::move(kept);
    lane_rank_ = std::move(kept_rank);
    for (LaneId& l : whole_.ops.lane) l = renamed[raw(l)];
    for (LaneId& l : whole_.flows.lane) l = renamed[raw(l)];
    for (LaneId& l : whole_.memory.lane) l = renamed[raw(l)];
    for (HalfEvent& h : rest_.halves) h.lane = renamed[raw(h.lane)];
    for (LaneName& n : rest_.names) n.lane = renamed[raw(n.lane)];
    for (LaneAlias& a : rest_.aliases) a = {renamed[raw(a.written)], renamed[raw(a.stream)]};
  }

  // ---- the tables, one rank after the other ----

  // Rows of one table by the part (row of ranks_) that gets them, in their order; kNone: nobody's.
  struct Shares {
    std::vector<std::uint32_t> first;  // by part, and one past the last: of `rows`
    std::vector<std::uint32_t> rows;
    std::vector<std::uint32_t> place;  // by row: which of its part's
  };
  Shares shares_of(const std::vector<std::uint32_t>& part) const {
    Shares s;
    s.first.assign(ranks_.size() + 1, 0);
    for (const std::uint32_t p : part)
      if (p != kNone) ++s.first[p + 1];
    std::partial_sum(s.first.begin(), s.first.end(), s.first.begin());
    s.rows.resize(s.first.back());
    s.place.assign(part.size(), kNone);
    std::vector<std::uint32_t> next(ranks_.size(), 0);
    for (std::size_t row = 0; row < part.size(); ++row) {
      const std::uint32_t p = part[row];
      if (p == kNone) continue;
      s.place[row] = next[p]++;
      s.rows[s.first[p] + s.place[row]] = static_cast<std::uint32_t>(row);
    }
    return s;
  }
  Shares shares_by_lane(const std::vector<LaneId>& lanes) const {
    std::vector<std::uint32_t> part;
    part.reserve(lanes.size());
    for (const LaneId l : lanes) part.push_back(part_of_lane_[raw(l)]);
    return shares_of(part);
  }

  // Column by column, so that no table is there twice as a whole.
  template <class Table, class Columns>
  void share_out(Table RankTrace::*table, const Columns& columns, const Shares& s, std::vector<RankRows>& to) {
    const auto share_column = [&](auto column) {
      auto& from = whole_.*table.*column;
      for (std::size_t p = 0; p < to.size(); ++p) {
        auto& own = to[p].trace.*table.*column;
        own.reserve(s.first[p + 1] - s.first[p]);
        for (std::uint32_t k = s.first[p]; k < s.first[p + 1]; ++k) own.push_back(from[s.rows[k]]);
      }
      from = {};
    };
    std::apply([&](auto... column) { (share_column(column), ...); }, columns);
  }

  // Rows of a table that rows of another point to go where those go, and are pointed to by their new numbers.
  static void follow(std::vector<std::uint32_t>& pointers, const Shares& s) {
    for (std::uint32_t& row : pointers)
      if (row != kNone) row = s.place[row];
  }

  std::vector<RankRows> split() {
    std::vector<RankRows> parts(ranks_.size());
    part_of_lane_.assign(lane_rank_.size(), kNone);
    for (std::size_t l = 0; l < lane_rank_.size(); ++l) {
      const auto at = std::lower_bound(ranks_.begin(), ranks_.end(), lane_rank_[l]);
      if (at != ranks_.end() && *at == lane_rank_[l])
        part_of_lane_[l] = static_cast<std::uint32_t>(at - ranks_.begin());
    }
    const Shares lanes = shares_of(part_of_lane_);
    share_side_tables(parts);
    share_out(&RankTrace::ops, kOpColumns, shares_by_lane(whole_.ops.lane), parts);
    share_out(&RankTrace::flows, kFlowColumns, shares_by_lane(whole_.flows.lane), parts);
    share_out(&RankTrace::memory, kMemoryColumns, shares_by_lane(whole_.memory.lane), parts);
    share_out(&RankTrace::lanes, kLaneColumns, lanes, parts);
    const auto part_of = [&](LaneId l) { return part_of_lane_[raw(l)]; };
    for (const HalfEvent& h : rest_.halves)
      if (part_of(h.lane) != kNone) parts[part_of(h.lane)].rest.halves.push_back(h);
    for (const LaneName& n : rest_.names)
      if (part_of(n.lane) != kNone) parts[part_of(n.lane)].rest.names.push_back(n);
    for (const LaneAlias& a : rest_.aliases)
      if (part_of(a.written) != kNone) parts[part_of(a.written)].rest.aliases.push_back(a);
    for (RankRows& p : parts) {
      const auto rename = [&](LaneId& l) { l = LaneId{lanes.place[raw(l)]}; };
      for (LaneId& l : p.trace.ops.lane) rename(l);
      for (LaneId& l : p.trace.flows.lane) rename(l);
      for (LaneId& l : p.trace.memory.lane) rename(l);
      for (HalfEvent& h : p.rest.halves) rename(h.lane);
      for (LaneName& n : p.rest.names) rename(n.lane);
      for (LaneAlias& a : p.rest.aliases) rename(a.written), rename(a.stream);
    }
    share_strings(parts);
    share_metadata(parts);
    return parts;
  }

  void share_side_tables(std::vector<RankRows>& parts) {
    OpTable& o = whole_.ops;
    std::vector<std::uint32_t> part;
    part.reserve(o.size());
    for (const LaneId l : o.lane) part.push_back(part_of_lane_[raw(l)]);
    std::vector<std::uint32_t> comm_part(whole_.comm_args.size(), kNone);
    const auto side = [&](std::size_t rows, auto is_of, const std::vector<std::uint32_t>* comm) {
      std::vector<std::uint32_t> own(rows, kNone);
      for (std::size_t i = 0; i < o.size(); ++i)
        if (o.extra[i] != kNone && is_of(o.kind[i])) own[o.extra[i]] = part[i];
      Shares s = shares_of(own);
      for (std::size_t i = 0; i < o.size(); ++i)
        if (o.extra[i] != kNone && is_of(o.kind[i])) o.extra[i] = s.place[o.extra[i]];
      for (std::size_t row = 0; comm != nullptr && row < rows; ++row)
        if ((*comm)[row] != kNone) comm_part[(*comm)[row]] = own[row];
      return s;
    };
    const auto is = [](auto... kinds) { return [=](OpKind k) { return ((k == kinds) || ...); }; };
    const Shares op_args =
        side(whole_.op_args.size(), is(OpKind::cpu_op, OpKind::user_annotation), &whole_.op_args.comm);
    const Shares python_args = side(whole_.python_args.size(), is(OpKind::python), nullptr);
    const Shares kernel_args = side(whole_.kernel_args.size(), is(OpKind::kernel), &whole_.kernel_args.comm);
    const Shares copy_args = side(whole_.copy_args.size(), is(OpKind::memcpy, OpKind::memset), nullptr);
    const Shares sync_args = side(whole_.sync_args.size(), is(OpKind::sync), nullptr);
    const Shares comm_args = shares_of(comm_part);
    follow(whole_.op_args.comm, comm_args);
    follow(whole_.kernel_args.comm, comm_args);
    share_out(&RankTrace::op_args, kOpArgsColumns, op_args, parts);
    share_out(&RankTrace::python_args, kPythonColumns, python_args, parts);
    share_out(&RankTrace::kernel_args, kKernelColumns, kernel_args, parts);
    share_out(&RankTrace::copy_args, kCopyColumns, copy_args, parts);
    share_out(&RankTrace::sync_args, kSyncColumns, sync_args, parts);
    share_out(&RankTrace::comm_args, kCommColumns, comm_args, parts);
  }

  // Each rank gets the strings that its rows use.
  void share_strings(std::vector<RankRows>& parts) {
    std::vector<std::uint32_t> own(whole_.strings.size(), kNone);
    std::vector<StrId> used;
    for (RankRows& p : parts) {
      for (const StrId s : used) own[raw(s)] = kNone;
      used.clear();
      const auto rename = [&](StrId& s) {
        std::uint32_t& id = own[raw(s)];
        if (id == kNone) {
          id = raw(p.trace.strings.intern(whole_.strings.view(s)));
          used.push_back(s);
        }
        s = StrId{id};
      };
      const auto all = [&](auto&... columns) {
        const auto each = [&](std::vector<StrId>& column) {
          for (StrId& s : column) rename(s);
        };
        (each(columns), ...);
      };
      RankTrace& t = p.trace;
      all(t.ops.name, t.lanes.pid_text, t.lanes.tid_text, t.lanes.name);
      all(t.op_args.input_dims, t.op_args.input_types, t.op_args.concrete_inputs);
      CommArgs& c = t.comm_args;
      all(c.collective, c.dtype, c.group_name, c.group_desc, c.group_ranks, c.in_split, c.out_split);
      for (HalfEvent& h : p.rest.halves) rename(h.name);
      for (LaneName& n : p.rest.names) rename(n.name);
    }
  }

  void share_metadata(std::vector<RankRows>& parts) {
    for (std::size_t k = 0; k < parts.size(); ++k) {
      RankTrace& t = parts[k].trace;
      t.file = whole_.file;
      t.base_ns = whole_.base_ns;
      t.json_bytes = whole_.json_bytes;
      t.rank = ranks_[k];
      const auto named = events_of_rank_.find(ranks_[k]);
      t.events = (named == events_of_rank_.end() ? 0 : named->second) + unnamed_[ranks_[k]];
      if (t.rank != whole_.rank) continue;
      t.world_size = whole_.world_size;
      t.devices = std::move(whole_.devices);
      t.groups = std::move(whole_.groups);
      t.trace_name = std::move(whole_.trace_name);
    }
    // What was noted of the file is said once.
    parts[0].trace.notes = std::move(whole_.notes);
    parts[0].rest.tallies = std::move(rest_.tallies);
    parts[0].rest.short_fractions = rest_.short_fractions;
    parts[0].rest.zero_padded = rest_.zero_padded;
  }

  RankTrace& whole_;
  Unfinished& rest_;
  const std::map<std::int32_t, std::uint64_t>& events_of_rank_;
  std::vector<std::int32_t> written_, lane_rank_;  // by lane: the rank that its events name, and that they belong to
  std::vector<LaneRows> rows_;                     // by lane
  std::vector<std::int32_t> ranks_;                // that rows name, ascending
  RanksOf ranks_of_place_, ranks_of_process_;
  std::map<std::int32_t, std::uint64_t> unnamed_;
  std::vector<std::uint32_t> part_of_lane_;
};

}  // namespace

std::vector<RankRows> split_ranks(RankTrace& whole, RankBuilder& builder) {
  return RankSplitter(whole, builder, builder.rest).run();
}

}  // namespace orrery
