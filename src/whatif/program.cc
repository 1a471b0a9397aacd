#include "whatif/program.h"

#include <algorithm>
#include <numeric>

namespace orrery {
namespace {

class Learner {
 public:
  Learner(const GraphBuild& build, const JobLayout& l, Program& out) : b(build), g(b.graph), layout(l), p(out) {}

  void run() {
    row_of.assign(g.size(), kNone);
    for (std::uint32_t k = 0; k < b.communication.rows.size(); ++k)
      row_of[b.communication.rows[k].node] = row_of[b.communication.rows[k].last] = k;
    name_lanes();
    inside.assign(g.size(), 0);
    ordinal.assign(g.size(), 0);
    done.assign(g.size(), 0);
    placed.assign(g.size(), 0);
    const auto ranks = static_cast<std::uint32_t>(g.ranks.size());
    p.pieces.resize(ranks);
    std::vector<std::vector<std::uint32_t>> nodes(ranks);
    for (std::uint32_t n = 0; n < g.size(); ++n)
      if (g.kind[n] != NodeKind::rendezvous) nodes[g.rank[n]].push_back(n);
    meeting_edges();
    p.waited.resize(b.communication.rows.size());
    for (std::uint32_t r = 0; r < ranks; ++r) take_apart(r, nodes[r]);
    learn_depth();
  }

 private:
  std::uint32_t role_row(const LaneRole& role) {
    const auto [it, fresh] = rows.try_emplace(role, static_cast<std::uint32_t>(p.roles.size()));
    if (fresh) p.roles.push_back(role);
    return it->second;
  }

  // Towards the next stage 0, the previous 1, both 2.
  std::uint8_t direction(const CommRow& row) const {
    bool next = false, previous = false;
    for (std::uint32_t k = 0; k < row.parts; ++k) {
      const CommPart& part = b.communication.parts[row.first_part + k];
      (part.peer > g.ranks[row.rank].rank ? next : previous) = true;
    }
    return next && previous ? 2 : previous ? 1 : 0;
  }

  void name_lanes() {
    const auto ranks = g.ranks.size();
    role_of_lane.resize(ranks);
    p.lane_of.resize(ranks);
    struct Seen {
      bool host = false, task = false;
      double busy = 0;
      std::map<std::pair<std::uint8_t, std::uint8_t>, double> comm;  // what it carries
    };
    std::vector<std::vector<Seen>> seen(ranks);
    for (std::size_t r = 0; r < ranks; ++r) seen[r].resize(g.ranks[r].lanes);
    for (std::uint32_t n = 0; n < g.size(); ++n) {
      if (g.lane[n] == kNone) continue;
      const std::uint32_t r = g.rank[n];
      Seen& s = seen[r][g.lane[n] - g.ranks[r].first_lane];
      (g.kind[n] == NodeKind::host ? s.host : s.task) = true;
      const std::uint32_t k = row_of[n];
      if (g.kind[n] != NodeKind::comm || k == kNone) {
        s.busy += static_cast<double>(g.duration[n]) + 1;
        continue;
      }
      const CommRow& row = b.communication.rows[k];
      const bool exchange = row.parts != 0 || is_point_to_point(row.op);
      const auto role = exchange || row.group == kNone ? GroupRole::pipeline : layout.role[row.group];
      s.comm[{exchange ? 1 : 0, exchange ? direction(row) : static_cast<std::uint8_t>(role)}] += 1;
    }
    for (std::uint32_t r = 0; r < ranks; ++r) {
      role_of_lane[r].assign(g.ranks[r].lanes, kNone);
      std::vector<std::uint32_t> threads, streams;
      std::map<LaneRole, std::uint8_t> next;
      for (std::uint32_t l = 0; l < seen[r].size(); ++l) {
        const Seen& s = seen[r][l];
        if (s.host) threads.push_back(l);
        if (s.task && s.comm.empty()) streams.push_back(l);
        if (!s.task || s.comm.empty()) continue;
        const auto most = std::max_element(s.comm.begin(), s.comm.end(),
                                           [](const auto& x, const auto& y) { return x.second < y.second; });
        LaneRole role{most->first.first ? LaneRole::Kind::exchange : LaneRole::Kind::collective, most->first.second, 0};
        if (role.kind == LaneRole::Kind::exchange && s.comm.size() > 1) role.role = 2;
        role.ordinal = next[role]++;
        give(r, l, role);
      }
      const std::uint32_t main = p.anatomy.ranks[r].main_lane - g.ranks[r].first_lane;
      const auto more = [&](std::uint32_t x, std::uint32_t y) {
        if ((x == main) != (y == main)) return x == main;
        return seen[r][x].busy > seen[r][y].busy;
      };
      std::stable_sort(threads.begin(), threads.end(), more);
      std::stable_sort(streams.begin(), streams.end(), more);
      for (std::size_t i = 0; i < threads.size(); ++i)
        give(r, threads[i], {LaneRole::Kind::thread, 0, static_cast<std::uint8_t>(i)});
      for (std::size_t i = 0; i < streams.size(); ++i)
        give(r, streams[i], {LaneRole::Kind::compute, 0, static_cast<std::uint8_t>(i)});
    }
  }

  void give(std::uint32_t r, std::uint32_t local, const LaneRole& role) {
    const std::uint32_t row = role_row(role);
    role_of_lane[r][local] = row;
    p.lane_of[r][row] = local;
  }

  // Whether a transfer waits for its meeting, by row.
  void meeting_edges() {
    waits.assign(b.communication.rows.size(), 1);
    for (const Meeting& m : b.communication.meetings)
      for (std::uint32_t k = 0; k < m.members; ++k) {
        const Member& member = b.communication.members[m.first + k];
        waits[member.row] = member.waits;
      }
  }

  std::uint32_t lane_row(std::uint32_t n) const {
    return g.lane[n] == kNone ? kNone : role_of_lane[g.rank[n]][g.lane[n] - g.ranks[g.rank[n]].first_lane];
  }

  void take_apart(std::uint32_t r, const std::vector<std::uint32_t>& nodes) {
    const RankAnatomy& a = p.anatomy.ranks[r];
    const auto& piece_of = p.anatomy.piece;
    // nodes by piece, in their order
    std::vector<std::uint32_t> first(a.pieces.size() + 2, 0), order(nodes.size());
    for (const std::uint32_t n : nodes) ++first[piece_of[n] + 2];
    for (std::size_t i = 2; i < first.size(); ++i) first[i] += first[i - 1];
    for (const std::uint32_t n : nodes) order[first[piece_of[n] + 1]++] = n;
    for (std::size_t piece = 0; piece < a.pieces.size(); ++piece)
      in_program_order(order, first[piece], first[piece + 1]);
    lane_order.assign(p.roles.size(), {});
    for (const std::uint32_t n : nodes)
      if (const std::uint32_t lane = lane_row(n); lane != kNone) {
        ordinal[n] = static_cast<std::uint32_t>(lane_order[lane].size());
        lane_order[lane].push_back(n);
      }
    for (std::uint32_t piece = 0; piece < a.pieces.size(); ++piece) {
      PieceItems out;
      out.first = static_cast<std::uint32_t>(p.items.size());
      std::vector<std::uint32_t> before;  // by role: nodes of the lane that come before the piece; told when asked for
      for (std::uint32_t i = first[piece]; i < first[piece + 1]; ++i) {
        const std::uint32_t n = order[i];
        Item item;
        item.node = n;
        item.lane = lane_row(n);
        item.first_edge = static_cast<std::uint32_t>(p.edges.size());
        inside[n] = static_cast<std::uint32_t>(p.items.size()) - out.first;
        done[n] = 1;
        if (row_of[n] != kNone) {
          item.comm = row_of[n];
          const CommRow& row = b.communication.rows[item.comm];
          item.transfer = row.last == n && row.last != row.node;
          item.waits = waits[item.comm] != 0;
        }
        for (std::uint32_t e = g.first_pred[n]; e < g.first_pred[n + 1]; ++e)
          add_edge(item, n, e, piece, before, order[first[piece]]);
        item.edges = static_cast<std::uint32_t>(p.edges.size()) - item.first_edge;
        p.items.push_back(item);
      }
      out.count = static_cast<std::uint32_t>(p.items.size()) - out.first;
      p.pieces[r].push_back(out);
      mark_calls(out);
    }
  }

  struct Key {  // place in the program: when its host work was done, or its launch
    Ns at;
    std::uint32_t task, node;
    bool operator<(const Key& o) const {
      return at != o.at ? at < o.at : task != o.task ? task < o.task : node < o.node;
    }
  };
  Key key_of(std::uint32_t n) const {
    const bool second = row_of[n] != kNone && b.communication.rows[row_of[n]].last == n;
    const std::uint32_t launched = second ? b.communication.rows[row_of[n]].node : n;
    Ns at = g.observed_start[n] + (g.kind[n] == NodeKind::host ? g.duration[n] : 0);
    for (std::uint32_t e = g.first_pred[launched]; e < g.first_pred[launched + 1]; ++e)
      if (g.pred_kind[e] == EdgeKind::launch && g.pred[e] != kNoNode)
        at = g.observed_start[raw(g.pred[e])] + g.duration[raw(g.pred[e])];
    return {at, g.kind[n] == NodeKind::host ? 0u : second ? 2u : 1u, n};
  }

  // Host work as it was done, each task right after its launch; nothing before what it waits for.
  void in_program_order(std::vector<std::uint32_t>& order, std::uint32_t from, std::uint32_t to) {
    std::vector<Key> keys;
    for (std::uint32_t i = from; i < to; ++i) keys.push_back(key_of(order[i]));
    std::sort(keys.begin(), keys.end());
    const std::uint32_t piece = to > from ? p.anatomy.piece[order[from]] : 0,
                        rank = to > from ? g.rank[order[from]] : 0;
    std::uint32_t out = from;
    std::vector<std::uint32_t> open;
    for (const Key& k : keys) {
      open.assign(1, k.node);
      while (!open.empty()) {
        const std::uint32_t n = open.back();
        if (placed[n]) {
          open.pop_back();
          continue;
        }
        const std::size_t before = open.size();
        for (std::uint32_t e = g.first_pred[n]; e < g.first_pred[n + 1]; ++e) {
          if (g.pred[e] == kNoNode) continue;
          const std::uint32_t q = raw(g.pred[e]);
          if (g.rank[q] == rank && p.anatomy.piece[q] == piece && !placed[q]) open.push_back(q);
        }
        if (open.size() != before) continue;
        placed[n] = 1;
        order[out++] = n;
        open.pop_back();
      }
    }
  }

  void add_edge(Item& item, std::uint32_t n, std::uint32_t e, std::uint32_t piece, std::vector<std::uint32_t>& before,
                std::uint32_t begin) {
    const EdgeKind kind = g.pred_kind[e];
    if (g.pred[e] == kNoNode) {
      item.root = true;
      item.root_lag = g.pred_lag[e];
      return;
    }
    const std::uint32_t from = raw(g.pred[e]);
    if (kind == EdgeKind::collective || kind == EdgeKind::queue) return;
    if ((kind == EdgeKind::thread || kind == EdgeKind::stream) && g.lane[from] == g.lane[n]) {
      item.in_order = true;
      item.order_lag = g.pred_lag[e];
      return;
    }
    if (p.anatomy.piece[from] == piece && done[from]) {
      p.edges.push_back({kind, true, inside[from], 0, g.pred_lag[e]});
      return;
    }
    const std::uint32_t lane = lane_row(from);
    if (lane == kNone) return;
    if (row_of[from] != kNone && piece - p.anatomy.piece[from] <= 2 &&
        p.anatomy.ranks[g.rank[n]].pieces[p.anatomy.piece[from]].kind == PieceKind::exchange) {
      // whatever comes next on that lane waits for the exchange, not this very node
      auto& waits_for = p.waited[row_of[from]];
      if (std::none_of(waits_for.begin(), waits_for.end(), [&](const ExchangeWait& w) { return w.lane == item.lane; }))
        waits_for.push_back({item.lane, kind, g.pred_lag[e]});
      return;
    }
    std::uint32_t back = 0;
    if (before.empty()) before.assign(p.roles.size(), kNone);
    if (before[lane] == kNone) {
      const auto& order = lane_order[lane];
      const Key start = key_of(begin);
      before[lane] = static_cast<std::uint32_t>(
          std::partition_point(order.begin(), order.end(), [&](std::uint32_t x) { return key_of(x) < start; }) -
          order.begin());
    }
    if (before[lane] <= ordinal[from]) {
      ++p.unlike;
    } else {
      back = before[lane] - 1 - ordinal[from];
    }
    p.edges.push_back({kind, false, lane, back, g.pred_lag[e]});
  }

  // The node after the begin of a launch call, on the same thread: there the call waits when the queue is full.
  void mark_calls(const PieceItems& piece) {
    for (std::uint32_t i = 0; i < piece.count; ++i) {
      const Item& task = p.items[piece.first + i];
      if (g.kind[task.node] == NodeKind::host || task.transfer) continue;
      for (std::uint32_t e = task.first_edge; e < task.first_edge + task.edges; ++e) {
        if (p.edges[e].kind != EdgeKind::launch || !p.edges[e].inside) continue;
        const Item& call = p.items[piece.first + p.edges[e].ref];
        for (std::uint32_t k = p.edges[e].ref + 1; k < piece.count; ++k) {
          Item& end = p.items[piece.first + k];
          if (end.lane != call.lane) continue;
          end.queue = task.lane;
          break;
        }
        break;
      }
    }
  }

  void learn_depth() {
    // the distance that queue edges of the traced job have, where it has any
    std::vector<std::uint32_t> depth;
    std::vector<std::uint32_t> number(g.size(), 0);
    std::map<std::uint32_t, std::uint32_t> next;
    for (std::uint32_t n = 0; n < g.size(); ++n)
      if (g.lane[n] != kNone && g.kind[n] != NodeKind::host &&
          !(row_of[n] != kNone && b.communication.rows[row_of[n]].last == n &&
            b.communication.rows[row_of[n]].node != n))
        number[n] = next[g.lane[n]]++;
    std::map<std::uint32_t, std::uint32_t> launched;  // by call's end node: its task
    for (std::uint32_t n = 0; n < g.size(); ++n)
      for (std::uint32_t e = g.first_pred[n]; e < g.first_pred[n + 1]; ++e)
        if (g.pred_kind[e] == EdgeKind::queue && g.pred[e] != kNoNode) launched[n] = raw(g.pred[e]);
    if (launched.empty()) return;
    for (std::uint32_t n = 0; n < g.size(); ++n)
      for (std::uint32_t e = g.first_pred[n]; e < g.first_pred[n + 1]; ++e) {
        if (g.pred_kind[e] != EdgeKind::launch || g.pred[e] == kNoNode) continue;
        const auto it = launched.find(raw(g.pred[e]) + 1);
        if (it != launched.end() && g.lane[it->second] == g.lane[n] && number[n] > number[it->second])
          depth.push_back(number[n] - number[it->second]);
      }
    if (depth.empty()) return;
    const auto mid = depth.begin() + static_cast<std::ptrdiff_t>(depth.size() / 2);
    std::nth_element(depth.begin(), mid, depth.end());
    p.queue_depth = *mid;
  }

  const GraphBuild& b;
  const ExecGraph& g;
  const JobLayout& layout;
  Program& p;
  std::map<LaneRole, std::uint32_t> rows;
  std::vector<std::vector<std::uint32_t>> role_of_lane;  // by rank and lane of the rank
  std::vector<std::uint32_t> row_of;                     // by node
  std::vector<std::uint8_t> waits;                       // by row
  std::vector<std::uint32_t> inside, ordinal;            // by node: item of its piece; place on its lane
  std::vector<std::vector<std::uint32_t>> lane_order;    // by role: nodes of the rank
  std::vector<std::uint8_t> done, placed;
};

}  // namespace

Result<Program> learn_program(const TraceSet& traces, const GraphBuild& build, const JobLayout& layout,
                              const std::vector<std::uint8_t>* packs) {
  Program out;
  auto anatomy = dissect_job(traces, build, layout, packs);
  if (!anatomy) return tl::unexpected(anatomy.error());
  out.anatomy = std::move(*anatomy);
  const std::int64_t across = layout.stage_stride();
  for (const GraphRank& r : build.graph.ranks) out.stage.push_back(r.rank / across % layout.pp);
  Learner(build, layout, out).run();
  return out;
}

}  // namespace orrery
