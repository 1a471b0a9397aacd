// The graphs of single ranks -> the graph of the job: every kernel that met others is cut in two, arrival and transfer,
// and each meeting is one node between them.
//
//   rank 0   ... -> arrival --\                 /-> transfer -> ...
//                              >-- rendezvous --
//   rank 1   ... -> arrival --/                 \-> transfer -> ...
//
// The nodes are put into topological order lane by lane: each lane (a thread or a stream of a rank) is followed as far
// as it goes, until a node waits for one that is not placed yet; that one's placing wakes the lane again.
#include "graph/join.h"

#include <algorithm>
#include <cassert>

#include "graph/match.h"

namespace orrery {
namespace {

class Joiner {
 public:
  Joiner(const std::vector<RankGraph>& ranks, GraphBuild& out)
      : pieces(ranks), comm(out.communication), quality(out.quality), notes(out.notes), g(out.graph) {}

  void run() {
    prepare();
    make_room();
    for (std::uint32_t l = static_cast<std::uint32_t>(lanes.size()); l-- > 0;) ready.push_back(l);
    for (;;) {
      while (!ready.empty()) {
        const std::uint32_t l = ready.back();
        ready.pop_back();
        follow(l);
      }
      if (!cut_cycle()) break;
    }
    finish();
  }

 private:
  struct Lane {
    std::uint32_t rank;
    std::uint32_t at, end;       // rows of `order`
    bool arrived = false;        // the arrival of the node at `at` is placed
    std::uint32_t next = kNone;  // next lane that waits for the same node or meeting
  };

  // ---- before ----

  void prepare() {
    const std::size_t ranks = pieces.size();
    // the meetings of each row
    first_meeting.assign(comm.rows.size() + 2, 0);
    for (const Meeting& m : comm.meetings)
      for (std::uint32_t k = 0; k < m.members; ++k) ++first_meeting[comm.members[m.first + k].row + 2];
    for (std::size_t i = 2; i < first_meeting.size(); ++i) first_meeting[i] += first_meeting[i - 1];
    meeting_of.resize(first_meeting.back());
    for (std::uint32_t i = 0; i < comm.meetings.size(); ++i) {
      const Meeting& m = comm.meetings[i];
      for (std::uint32_t k = 0; k < m.members; ++k)
        meeting_of[first_meeting[comm.members[m.first + k].row + 1]++] = {i, m.first + k};
    }
    left.resize(comm.meetings.size());
    follower.assign(comm.meetings.size(), kNone);
    leader.assign(comm.meetings.size(), kNone);
    std::vector<std::uint32_t> last(comm.groups.size(), kNone);
    for (std::uint32_t i = 0; i < comm.meetings.size(); ++i) {
      const Meeting& m = comm.meetings[i];
      left[i] = m.members;
      if (m.group == kNone || is_point_to_point(m.op)) continue;
      if (waits_for_absent(m) && last[m.group] != kNone) {
        leader[i] = last[m.group];
        follower[last[m.group]] = i;
        ++left[i];
      }
      last[m.group] = i;
    }
    waiters.assign(comm.meetings.size(), kNone);

    place.resize(ranks);
    row_of.resize(ranks);
    std::uint32_t first_lane = 0;
    std::size_t nodes = 0;
    for (std::uint32_t r = 0; r < ranks; ++r) nodes += pieces[r].graph.size();
    order.resize(nodes);
    std::uint32_t base = 0;
    for (std::uint32_t r = 0; r < ranks; ++r) {
      const ExecGraph& p = pieces[r].graph;
      place[r].assign(p.size(), kNone);
      const std::uint32_t count = p.ranks.front().lanes;
      std::vector<std::uint32_t> fill(count + 2, 0);
      const auto lane_of = [&](std::uint32_t n) { return p.lane[n] == kNone ? count : p.lane[n]; };
      for (std::uint32_t n = 0; n < p.size(); ++n) ++fill[lane_of(n) + 1];
      for (std::uint32_t l = 0; l <= count; ++l) fill[l + 1] += fill[l];
      for (std::uint32_t l = 0; l <= count; ++l) lanes.push_back({r, base + fill[l], base + fill[l + 1]});
      for (std::uint32_t n = 0; n < p.size(); ++n) order[base + fill[lane_of(n)]++] = n;
      base += p.size();
      GraphRank rank = p.ranks.front();
      rank.first_lane = first_lane;
      rank.origin = common(r, rank.origin);
      first_lane += count;
      g.ranks.push_back(rank);
    }
    for (std::uint32_t i = 0; i < comm.rows.size(); ++i) {
      if (first_meeting[i] == first_meeting[i + 1]) continue;
      auto& rows = row_of[comm.rows[i].rank];
      rows.emplace_back(comm.rows[i].node, i);
    }
    for (auto& rows : row_of) std::sort(rows.begin(), rows.end());
    node_waiters.resize(ranks);
    for (std::uint32_t r = 0; r < ranks; ++r) node_waiters[r].assign(pieces[r].graph.size(), kNone);
  }

  // A rank's time in the clock of the first host.
  Ns common(std::uint32_t rank, Ns t) const { return t - ahead(comm.clocks[comm.clock_of_rank[rank]], t); }

  bool waits_for_absent(const Meeting& m) const {
    if (m.missing == 0) return false;
    Ns latest = INT64_MIN;
    for (std::uint32_t k = 0; k < m.members; ++k)
      latest = std::max(latest, comm.rows[comm.members[m.first + k].row].start);
    return m.arrival > latest;
  }

  void make_room() {
    std::size_t nodes = comm.meetings.size(), edges = 0;
    for (std::size_t r = 0; r < pieces.size(); ++r) {
      nodes += pieces[r].graph.size() + row_of[r].size();
      edges += pieces[r].graph.edges() + row_of[r].size();
    }
    edges += meeting_of.size() * 2 + comm.meetings.size();
    g.duration.reserve(nodes);
    g.observed_start.reserve(nodes);
    g.lane.reserve(nodes);
    g.kind.reserve(nodes);
    g.at_begin.reserve(nodes);
    g.rank.reserve(nodes);
    g.source.reserve(nodes);
    g.first_pred.reserve(nodes + 1);
    g.pred.reserve(edges);
    g.pred_kind.reserve(edges);
    g.pred_lag.reserve(edges);
  }

  // ---- placing ----

  std::uint32_t row_at(std::uint32_t rank, std::uint32_t node) const {
    const auto& rows = row_of[rank];
    const auto it = std::lower_bound(rows.begin(), rows.end(), std::pair(node, 0u));
    return it != rows.end() && it->first == node ? it->second : kNone;
  }

  std::uint32_t add_node(const ExecGraph& p, std::uint32_t n, std::uint32_t rank, Ns duration, Ns start,
                         std::uint8_t at_begin) {
    g.duration.push_back(duration);
    g.observed_start.push_back(start);
    g.lane.push_back(p.lane[n] == kNone ? kNone : g.ranks[rank].first_lane + p.lane[n]);
    g.kind.push_back(p.kind[n]);
    g.at_begin.push_back(at_begin);
    g.rank.push_back(rank);
    g.source.push_back(p.source[n]);
    return g.size() - 1;
  }

  void add_edge(std::uint32_t from, EdgeKind kind, Ns lag) {
    g.pred.push_back(from == kNone ? kNoNode : NodeId{from});
    g.pred_kind.push_back(kind);
    g.pred_lag.push_back(lag);
  }
  void close_node() { g.first_pred.push_back(g.edges()); }

  void wake(std::uint32_t& list) {
    for (std::uint32_t l = list; l != kNone;) {
      const std::uint32_t next = lanes[l].next;
      lanes[l].next = kNone;
      ready.push_back(l);
      l = next;
    }
    list = kNone;
  }

  void wait(std::uint32_t lane, std::uint32_t& list) {
    lanes[lane].next = list;
    list = lane;
  }

  void follow(std::uint32_t l) {
    Lane& lane = lanes[l];
    const ExecGraph& p = pieces[lane.rank].graph;
    std::vector<std::uint32_t>& placed = place[lane.rank];
    const auto& rows = row_of[lane.rank];
    for (; lane.at < lane.end; ++lane.at) {
      const std::uint32_t n = order[lane.at];
      if (!lane.arrived) {
        for (std::uint32_t e = p.first_pred[n]; e < p.first_pred[n + 1]; ++e) {
          const std::uint32_t from = raw(p.pred[e]);
          if (p.pred[e] == kNoNode || placed[from] != kNone) continue;
          wait(l, node_waiters[lane.rank][from]);
          return;
        }
        const std::uint32_t row = p.kind[n] == NodeKind::comm && !rows.empty() ? row_at(lane.rank, n) : kNone;
        const Ns start = common(lane.rank, p.observed_start[n]);
        const std::uint32_t node = add_node(p, n, lane.rank, row == kNone ? p.duration[n] : 0, start,
                                            row == kNone ? p.at_begin[n] : std::uint8_t{1});
        for (std::uint32_t e = p.first_pred[n]; e < p.first_pred[n + 1]; ++e) {
          const std::uint32_t from = raw(p.pred[e]);
          const std::uint32_t met =
              p.pred_kind[e] == EdgeKind::queue && !rows.empty() ? row_at(lane.rank, from) : kNone;
          if (met != kNone) {  // its place in the queue is free when it arrives
            add_edge(comm.rows[met].node, EdgeKind::queue, 0);
          } else {
            add_edge(p.pred[e] == kNoNode ? kNone : placed[from], p.pred_kind[e], p.pred_lag[e]);
          }
        }
        close_node();
        if (row == kNone) {
          placed[n] = node;
          wake(node_waiters[lane.rank][n]);
          continue;
        }
        comm.rows[row].node = node;
        lane.arrived = true;
        for (std::uint32_t k = first_meeting[row]; k < first_meeting[row + 1]; ++k) arrive(meeting_of[k].meeting);
      }
      if (!transfer(l, n)) return;
    }
  }

  void arrive(std::uint32_t meeting) {
    if (--left[meeting] != 0) return;
    Meeting& m = comm.meetings[meeting];
    const CommRow& first = comm.rows[comm.members[m.first].row];
    g.duration.push_back(0);
    g.observed_start.push_back(m.arrival);
    g.lane.push_back(kNone);
    g.kind.push_back(NodeKind::rendezvous);
    g.at_begin.push_back(0);
    g.rank.push_back(first.rank);
    g.source.push_back(g.source[first.node]);
    m.node = NodeId{g.size() - 1};
    for (std::uint32_t k = 0; k < m.members; ++k) {
      const CommRow& row = comm.rows[comm.members[m.first + k].row];
      add_edge(row.node, EdgeKind::collective, 0);
      ++quality[row.rank].edges[static_cast<std::size_t>(EdgeKind::collective)];
    }
    if (leader[meeting] != kNone) {
      const Meeting& before = comm.meetings[leader[meeting]];
      add_edge(raw(before.node), EdgeKind::collective, m.arrival - before.arrival);
    } else if (waits_for_absent(m)) {
      add_edge(kNone, EdgeKind::root, m.arrival - g.ranks[first.rank].origin);
    }
    close_node();
    wake(waiters[meeting]);
    if (follower[meeting] != kNone) arrive(follower[meeting]);
  }

  // The second half of the kernel at the lane's head. False: it waits for a meeting.
  bool transfer(std::uint32_t l, std::uint32_t n) {
    Lane& lane = lanes[l];
    const std::uint32_t row = row_at(lane.rank, n);
    CommRow& c = comm.rows[row];
    Ns least = INT64_MAX, arrival = INT64_MIN;
    for (std::uint32_t k = first_meeting[row]; k < first_meeting[row + 1]; ++k) {
      const Member& member = comm.members[meeting_of[k].member];
      if (!member.waits) continue;
      const Meeting& m = comm.meetings[meeting_of[k].meeting];
      if (m.node == kNoNode) {
        wait(l, waiters[meeting_of[k].meeting]);
        return false;
      }
      least = std::min(least, member.transfer);
      if (m.arrival > arrival) arrival = m.arrival, c.transfer = member.transfer;
    }
    const bool waits = least != INT64_MAX;
    if (!waits) least = c.transfer = c.end - c.start;
    const ExecGraph& p = pieces[lane.rank].graph;
    const std::uint32_t node = add_node(p, n, lane.rank, least, c.end - least, 0);
    if (!waits) add_edge(c.node, EdgeKind::collective, 0);
    for (std::uint32_t k = first_meeting[row]; waits && k < first_meeting[row + 1]; ++k) {
      const Member& member = comm.members[meeting_of[k].member];
      if (!member.waits) continue;
      add_edge(raw(comm.meetings[meeting_of[k].meeting].node), EdgeKind::collective, member.transfer - least);
      ++quality[lane.rank].edges[static_cast<std::size_t>(EdgeKind::collective)];
    }
    close_node();
    c.last = node;
    place[lane.rank][n] = node;
    lane.arrived = false;
    wake(node_waiters[lane.rank][n]);
    return true;
  }

  // Ranks that wait for each other in a circle: a match that cannot be. The earliest of those that wait goes on.
  bool cut_cycle() {
    std::uint32_t best = kNone;
    Ns earliest = INT64_MAX;
    for (std::uint32_t l = 0; l < lanes.size(); ++l) {
      const Lane& lane = lanes[l];
      if (lane.at == lane.end || !lane.arrived) continue;
      const Ns start = comm.rows[row_at(lane.rank, order[lane.at])].start;
      if (start < earliest) earliest = start, best = l;
    }
    if (best == kNone) return false;
    const std::uint32_t row = row_at(lanes[best].rank, order[lanes[best].at]);
    notes.add("rendezvous-cycle", Severity::warning, 1,
              comm.op_names[comm.rows[row].op_name] + " on rank " + std::to_string(g.ranks[lanes[best].rank].rank),
              "collectives that ranks would wait for in a circle: kept at their measured duration");
    for (std::uint32_t k = first_meeting[row]; k < first_meeting[row + 1]; ++k) {
      const Meeting& m = comm.meetings[meeting_of[k].meeting];
      if (m.node != kNoNode) continue;
      comm.members[meeting_of[k].member].waits = false;
      std::uint32_t* at = &waiters[meeting_of[k].meeting];
      while (*at != kNone && *at != best) at = &lanes[*at].next;
      if (*at == best) *at = lanes[best].next, lanes[best].next = kNone;
    }
    ready.push_back(best);
    return true;
  }

  // ---- after ----

  void finish() {
    for (std::uint32_t r = 0; r < pieces.size(); ++r) {
      for (Step step : pieces[r].graph.steps) {
        step.rank = r;
        step.begin = common(r, step.begin);
        step.end = common(r, step.end);
        step.begin_node = NodeId{place[r][raw(step.begin_node)]};
        step.end_node = NodeId{place[r][raw(step.end_node)]};
        g.steps.push_back(step);
      }
    }
    for (std::size_t i = 0; i < comm.rows.size(); ++i) {
      CommRow& c = comm.rows[i];
      if (first_meeting[i] == first_meeting[i + 1]) c.node = c.last = place[c.rank][c.node];
    }
  }

  struct Seat {
    std::uint32_t meeting, member;  // rows of Communication::meetings and ::members
  };

  const std::vector<RankGraph>& pieces;
  Communication& comm;
  std::vector<RankQuality>& quality;
  Notes& notes;
  ExecGraph& g;
  std::vector<std::uint32_t> first_meeting;  // by row: rows of meeting_of
  std::vector<Seat> meeting_of;
  std::vector<std::uint32_t> left;                              // by meeting: arrivals not placed yet
  std::vector<std::uint32_t> leader, follower;                  // by meeting: the one whose pace an absent member keeps
  std::vector<std::uint32_t> waiters;                           // by meeting: first lane that waits for it
  std::vector<std::vector<std::uint32_t>> node_waiters, place;  // by rank and node of its piece; place of the end
  std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> row_of;  // by rank: node, row
  std::vector<std::uint32_t> order;                                          // nodes by lane
  std::vector<Lane> lanes;
  std::vector<std::uint32_t> ready;
};

}  // namespace

void join_graphs(const std::vector<RankGraph>& ranks, GraphBuild& out) {
  out.graph.clear();
  Joiner(ranks, out).run();
}

}  // namespace orrery
