#include "whatif/resequence.h"

#include <algorithm>

namespace orrery {
namespace {

constexpr std::uint32_t kNowhere = kNone;

class Resequencer {
 public:
  Resequencer(const GraphBuild& build, const Slices& all, const std::vector<std::vector<std::uint32_t>>& new_order)
      : b(build), g(build.graph), slices(all), sequence(new_order) {}

  Status run(GraphBuild& out, std::uint64_t& unlike_out) {
    list_slices();
    number_instances();
    find_runs();
    link();
    if (Status s = sort(); !s) return s;
    write(out);
    unlike_out = unlike;
    return {};
  }

 private:
  struct Lane {
    std::uint32_t lane, first, last;  // rows of `members`
  };

  std::uint32_t lane_key(std::uint32_t n) const {
    // rendezvous have no lane: those of one kind and one group are told apart by their order alone
    return g.lane[n];
  }

  void list_slices() {
    first_slice.push_back(0);
    for (const std::uint32_t c : slices.count) first_slice.push_back(first_slice.back() + c);
    const std::uint32_t total = first_slice.back();
    std::vector<std::uint32_t> fill(total + 1, 0);
    slice_of.resize(g.size());
    for (std::uint32_t n = 0; n < g.size(); ++n) {
      slice_of[n] = first_slice[g.rank[n]] + slices.of_node[n];
      ++fill[slice_of[n] + 1];
    }
    for (std::uint32_t k = 0; k < total; ++k) fill[k + 1] += fill[k];
    first_member = fill;
    members.resize(g.size());
    for (std::uint32_t n = 0; n < g.size(); ++n) members[fill[slice_of[n]]++] = n;
    place.resize(g.size());
    lanes.resize(total);
    for (std::uint32_t k = 0; k < total; ++k) {
      const auto from = members.begin() + first_member[k], to = members.begin() + first_member[k + 1];
      std::stable_sort(from, to, [&](std::uint32_t x, std::uint32_t y) { return lane_key(x) < lane_key(y); });
      for (auto it = from; it != to; ++it) {
        const auto at = static_cast<std::uint32_t>(it - members.begin());
        place[*it] = at;
        if (lanes[k].empty() || lanes[k].back().lane != lane_key(*it)) lanes[k].push_back({lane_key(*it), at, at});
        lanes[k].back().last = at + 1;
      }
    }
  }

  void number_instances() {
    offset.resize(sequence.size());
    std::uint64_t next = 0;
    for (std::uint32_t r = 0; r < sequence.size(); ++r) {
      for (const std::uint32_t s : sequence[r]) {
        offset[r].push_back(static_cast<std::uint32_t>(next));
        const std::uint32_t k = first_slice[r] + s;
        for (std::uint32_t i = first_member[k]; i < first_member[k + 1]; ++i) node_of.push_back(members[i]);
        position_of.insert(position_of.end(), first_member[k + 1] - first_member[k],
                           static_cast<std::uint32_t>(offset[r].size() - 1));
        next += first_member[k + 1] - first_member[k];
      }
    }
  }

  // Where the waits of node `n`, at `own` of its rank, find `p`.
  std::int64_t position_for(std::uint32_t n, std::int64_t own, std::uint32_t p) const {
    const std::int64_t delta =
        static_cast<std::int64_t>(slices.of_node[n]) - static_cast<std::int64_t>(slices.of_node[p]);
    if (slices.runs.empty()) return own - delta;
    const std::uint32_t rank = g.rank[p];
    const Slices::Place from = slices.runs[rank][slices.of_node[p]];
    if (from.run == kNone) return fixed_at[rank][slices.of_node[p]];
    const Run& run = runs[rank][from.run];
    const std::uint32_t mine = g.rank[n];
    const Slices::Place to = slices.runs[mine][slices.of_node[n]];
    std::int64_t inside = static_cast<std::int64_t>(run.after) - (run.base - from.index);  // from its end
    if (to.run == from.run) {
      const std::int64_t at = own - runs[mine][to.run].first;
      inside = at - (static_cast<std::int64_t>(to.index) - static_cast<std::int64_t>(from.index));
    }
    return run.first + std::clamp<std::int64_t>(inside, 0, run.after - 1);
  }

  struct Run {
    std::int64_t first = -1;           // position of its first slice
    std::int64_t base = 0, after = 0;  // slices before and after the change
  };
  void find_runs() {
    if (slices.runs.empty()) return;
    runs.resize(sequence.size());
    fixed_at.resize(sequence.size());
    for (std::uint32_t r = 0; r < sequence.size(); ++r) {
      fixed_at[r].assign(slices.count[r], 0);
      for (const Slices::Place& p : slices.runs[r]) {
        if (p.run == kNone) continue;
        if (runs[r].size() <= p.run) runs[r].resize(p.run + 1);
        ++runs[r][p.run].base;
      }
      for (std::size_t k = 0; k < sequence[r].size(); ++k) {
        const Slices::Place& p = slices.runs[r][sequence[r][k]];
        if (p.run == kNone) {
          fixed_at[r][sequence[r][k]] = static_cast<std::int64_t>(k);
          continue;
        }
        Run& run = runs[r][p.run];
        if (run.first < 0) run.first = static_cast<std::int64_t>(k);
        ++run.after;
      }
    }
  }

  // The rows of `node`'s lane in a slice; nullptr when the slice has none.
  const Lane* lane_in(std::uint32_t slice, std::uint32_t node) const {
    const auto& rows = lanes[slice];
    const auto it = std::lower_bound(rows.begin(), rows.end(), lane_key(node),
                                     [](const Lane& l, std::uint32_t lane) { return l.lane < lane; });
    return it != rows.end() && it->lane == lane_key(node) ? &*it : nullptr;
  }

  // What comes right before instance `i` on its lane.
  std::uint32_t before_on_lane(std::uint32_t i, std::uint32_t node) const {
    const std::uint32_t r = g.rank[node];
    const std::uint32_t k = slice_of[node];
    if (const Lane* own = lane_in(k, node); place[node] > own->first) return i - 1;
    for (std::size_t at = position_of[i]; at-- > 0;) {
      const std::uint32_t slice = first_slice[r] + sequence[r][at];
      if (const Lane* rows = lane_in(slice, node)) return offset[r][at] + rows->last - 1 - first_member[slice];
    }
    return kNowhere;
  }

  // The instance of what `p` is in the slice at `position` of its rank.
  std::uint32_t instance(std::uint32_t p, std::int64_t position) {
    const std::uint32_t r = g.rank[p];
    position = std::clamp<std::int64_t>(position, 0, std::ssize(sequence[r]) - 1);
    const auto at = static_cast<std::size_t>(position);
    const std::uint32_t target = first_slice[r] + sequence[r][at];
    if (target == slice_of[p]) return offset[r][at] + place[p] - first_member[target];
    // the same lane and place there
    const Lane* const from = lane_in(slice_of[p], p);
    const Lane* const to = lane_in(target, p);
    if (to == nullptr) {  // the last of that lane before
      ++unlike;
      for (std::size_t back = at; back-- > 0;) {
        const std::uint32_t k = first_slice[r] + sequence[r][back];
        if (const Lane* rows = lane_in(k, p)) return offset[r][back] + rows->last - 1 - first_member[k];
      }
      return kNowhere;
    }
    const std::uint32_t index = place[p] - from->first, count = to->last - to->first;
    // of slices of another length the end is what later slices wait for
    std::uint32_t there = index;
    if (from->last - from->first != count) {
      ++unlike;
      const std::uint32_t from_end = from->last - place[p];
      there = from_end <= count ? count - from_end : 0;
    }
    return offset[r][at] + to->first + there - first_member[target];
  }

  void link() {
    const auto n = static_cast<std::uint32_t>(node_of.size());
    first_pred.assign(1, 0);
    for (std::uint32_t i = 0; i < n; ++i) {
      const std::uint32_t node = node_of[i];
      const std::int64_t own = position_of[i], slice = slices.of_node[node];
      for (std::uint32_t e = g.first_pred[node]; e < g.first_pred[node + 1]; ++e) {
        const NodeId p = g.pred[e];
        std::uint32_t from = kNone;
        if (p != kNoNode) {
          const bool in_order = g.pred_kind[e] == EdgeKind::stream || g.pred_kind[e] == EdgeKind::thread;
          from = in_order && g.lane[raw(p)] == g.lane[node] && g.lane[node] != kNone
                     ? before_on_lane(i, node)
                     : instance(raw(p), position_for(node, own, raw(p)));
          if (from == kNowhere || from == i) continue;
        } else if (own != first_position(g.rank[node], static_cast<std::uint32_t>(slice))) {
          continue;  // what starts by itself does so once
        }
        pred.push_back(from);
        pred_edge.push_back(e);
      }
      first_pred.push_back(static_cast<std::uint32_t>(pred.size()));
    }
  }

  std::int64_t first_position(std::uint32_t r, std::uint32_t slice) const {
    const auto it = std::find(sequence[r].begin(), sequence[r].end(), slice);
    return it - sequence[r].begin();
  }

  Status sort() {
    const auto n = static_cast<std::uint32_t>(node_of.size());
    std::vector<std::uint32_t> first_out(n + 2, 0), out, waiting(n, 0), ready;
    for (const std::uint32_t p : pred)
      if (p != kNone) ++first_out[p + 2];
    for (std::uint32_t i = 2; i < n + 2; ++i) first_out[i] += first_out[i - 1];
    out.resize(first_out[n + 1]);
    for (std::uint32_t i = 0; i < n; ++i)
      for (std::uint32_t e = first_pred[i]; e < first_pred[i + 1]; ++e) {
        if (pred[e] == kNone) continue;
        out[first_out[pred[e] + 1]++] = i;
        ++waiting[i];
      }
    for (std::uint32_t i = n; i-- > 0;)
      if (waiting[i] == 0) ready.push_back(i);
    number.assign(n, kNone);
    while (!ready.empty()) {
      const std::uint32_t i = ready.back();
      ready.pop_back();
      number[i] = static_cast<std::uint32_t>(order.size());
      order.push_back(i);
      for (std::uint32_t o = first_out[i + 1]; o-- > first_out[i];)
        if (--waiting[out[o]] == 0) ready.push_back(out[o]);
    }
    if (order.size() != n) return fail("the changed job would wait for itself: its slices are not alike");
    return {};
  }

  void write(GraphBuild& result) {
    ExecGraph o;
    const auto n = static_cast<std::uint32_t>(order.size());
    o.first_pred.clear();
    o.first_pred.push_back(0);
    for (std::uint32_t k = 0; k < n; ++k) {
      const std::uint32_t i = order[k], node = node_of[i];
      o.duration.push_back(g.duration[node]);
      o.observed_start.push_back(g.observed_start[node]);
      o.lane.push_back(g.lane[node]);
      o.kind.push_back(g.kind[node]);
      o.at_begin.push_back(g.at_begin[node]);
      o.rank.push_back(g.rank[node]);
      o.source.push_back(g.source[node]);
      for (std::uint32_t e = first_pred[i]; e < first_pred[i + 1]; ++e) {
        o.pred.push_back(pred[e] == kNone ? kNoNode : NodeId{number[pred[e]]});
        o.pred_kind.push_back(g.pred_kind[pred_edge[e]]);
        o.pred_lag.push_back(g.pred_lag[pred_edge[e]]);
      }
      if (first_pred[i] == first_pred[i + 1]) {  // all that it waited for is left out
        o.pred.push_back(kNoNode);
        o.pred_kind.push_back(EdgeKind::root);
        o.pred_lag.push_back(g.observed_start[node] - g.ranks[g.rank[node]].origin);
      }
      o.first_pred.push_back(o.edges());
    }
    o.ranks = g.ranks;
    // the first instance of a step's begin, the last of its end
    const auto instance_at = [&](NodeId node, bool last) {
      const std::uint32_t r = g.rank[raw(node)], slice = slices.of_node[raw(node)];
      std::size_t at = sequence[r].size();
      for (std::size_t k = 0; k < sequence[r].size(); ++k)
        if (sequence[r][k] == slice && (last || at == sequence[r].size())) at = k;
      return NodeId{number[offset[r][at] + place[raw(node)] - first_member[first_slice[r] + slice]]};
    };
    for (Step s : g.steps) {
      s.begin_node = instance_at(s.begin_node, false);
      s.end_node = instance_at(s.end_node, true);
      o.steps.push_back(s);
    }
    write_communication(o, result);
    result.graph = std::move(o);
  }

  // Rows and meetings again, from the instances of their nodes.
  void write_communication(const ExecGraph& o, GraphBuild& result) {
    const Communication& c = b.communication;
    Communication next = c;
    next.rows.clear();
    next.meetings.clear();
    next.members.clear();
    std::vector<std::uint32_t> row_of_node(g.size(), kNone), meeting_of_node(g.size(), kNone);
    for (std::uint32_t k = 0; k < c.rows.size(); ++k) row_of_node[c.rows[k].node] = k;
    for (std::uint32_t k = 0; k < c.meetings.size(); ++k)
      if (c.meetings[k].node != kNoNode) meeting_of_node[raw(c.meetings[k].node)] = k;
    std::vector<std::uint32_t> new_row(o.size(), kNone);
    for (std::uint32_t i = 0; i < node_of.size(); ++i) {
      const std::uint32_t base = row_of_node[node_of[i]];
      if (base == kNone) continue;
      CommRow row = c.rows[base];
      row.last = number[instance(row.last, position_of[i])];
      row.node = number[i];
      new_row[row.node] = static_cast<std::uint32_t>(next.rows.size());
      next.rows.push_back(row);
    }
    for (std::uint32_t i = 0; i < node_of.size(); ++i) {
      const std::uint32_t base = meeting_of_node[node_of[i]];
      if (base == kNone) continue;
      Meeting m = c.meetings[base];
      m.first = static_cast<std::uint32_t>(next.members.size());
      m.members = 0;
      m.node = NodeId{number[i]};
      for (std::uint32_t e = o.first_pred[number[i]]; e < o.first_pred[number[i] + 1]; ++e) {
        if (o.pred[e] == kNoNode || new_row[raw(o.pred[e])] == kNone) continue;
        Member member;
        member.row = new_row[raw(o.pred[e])];
        for (std::uint32_t k = 0; k < c.meetings[base].members; ++k) {
          const Member& old = c.members[c.meetings[base].first + k];
          if (c.rows[old.row].rank == next.rows[member.row].rank)
            member.waits = old.waits, member.transfer = old.transfer;
        }
        next.members.push_back(member);
        ++m.members;
      }
      next.meetings.push_back(m);
    }
    result.communication = std::move(next);
  }

  const GraphBuild& b;
  const ExecGraph& g;
  const Slices& slices;
  const std::vector<std::vector<std::uint32_t>>& sequence;
  std::vector<std::uint32_t> first_slice;           // by rank: its slices in the tables below
  std::vector<std::uint32_t> slice_of;              // by node
  std::vector<std::uint32_t> first_member;          // by slice
  std::vector<std::uint32_t> members;               // nodes by slice, then lane
  std::vector<std::uint32_t> place;                 // by node: its row of `members`
  std::vector<std::vector<Lane>> lanes;             // by slice
  std::vector<std::vector<std::uint32_t>> offset;   // by rank and position: its first instance
  std::vector<std::uint32_t> node_of, position_of;  // by instance
  std::vector<std::uint32_t> first_pred, pred, pred_edge;
  std::vector<std::vector<Run>> runs;               // by rank
  std::vector<std::vector<std::int64_t>> fixed_at;  // by rank and slice: its position, of those in no run
  std::vector<std::uint32_t> order, number;
  std::uint64_t unlike = 0;
};

}  // namespace

Slices slice(const GraphBuild& build, const std::vector<std::vector<Cut>>& cuts) {
  const ExecGraph& g = build.graph;
  Slices slices;
  slices.of_node.assign(g.size(), 0);
  for (const auto& c : cuts) slices.count.push_back(static_cast<std::uint32_t>(c.size() + 1));
  for (std::uint32_t n = 0; n < g.size(); ++n) {
    const auto& c = cuts[g.rank[n]];
    if (g.kind[n] == NodeKind::host) {
      const Ns end = g.observed_start[n] + g.duration[n];
      const auto it = std::partition_point(c.begin(), c.end(), [&](const Cut& x) { return x.at < end; });
      slices.of_node[n] = static_cast<std::uint32_t>(it - c.begin());
      continue;
    }
    std::uint32_t from = kNone;
    for (std::uint32_t e = g.first_pred[n]; e < g.first_pred[n + 1]; ++e) {
      if (g.pred[e] == kNoNode) continue;
      const std::uint32_t p = raw(g.pred[e]);
      if (g.rank[p] != g.rank[n]) continue;
      if (g.pred_kind[e] == EdgeKind::launch) from = p;
      if (g.pred_kind[e] == EdgeKind::collective && from == kNone) from = p;
      if (from == kNone && g.pred_kind[e] == EdgeKind::stream) from = p;
      if (g.pred_kind[e] == EdgeKind::launch) break;
    }
    if (from != kNone) slices.of_node[n] = slices.of_node[from];
  }
  for (const CommRow& row : build.communication.rows) slices.of_node[row.last] = slices.of_node[row.node];
  for (const Step& s : g.steps)
    if (g.kind[raw(s.end_node)] != NodeKind::host) slices.of_node[raw(s.end_node)] = slices.count[s.rank] - 1;
  return slices;
}

Status resequence(GraphBuild& build, const Slices& slices, const std::vector<std::vector<std::uint32_t>>& sequence,
                  std::uint64_t& unlike) {
  GraphBuild out = build;
  if (Status s = Resequencer(build, slices, sequence).run(out, unlike); !s) return s;
  build = std::move(out);
  return {};
}

}  // namespace orrery
