// Program and model -> graph.
#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <string>

#include "base/median.h"
#include "graph/pipeline_waits.h"

namespace orrery {
namespace {

CommOp op_of(const PipelineType& type) {
  const auto has = [&](const char* word) { return type.name.find(word) != std::string::npos; };
  if (is_transfer(type.kind)) return is_send(type.kind) ? CommOp::send : CommOp::recv;
  if (has("reduce-scatter")) return CommOp::reduce_scatter;
  if (has("all-reduce")) return CommOp::all_reduce;
  if (has("all-gather")) return CommOp::all_gather;
  if (has("broadcast")) return CommOp::broadcast;
  return CommOp::other;
}

struct Sketch {  // nodes in any order, and their waits
  struct Node {
    Ns duration = 0, observed = 0;
    std::uint32_t lane = kNone, rank = 0;
    NodeKind kind = NodeKind::kernel;
    std::uint8_t at_begin = 0;
    OpId source = kNoOp;
  };
  struct Edge {
    std::uint32_t to, from;  // kNone = root
    EdgeKind kind;
    Ns lag;
  };
  std::vector<Node> nodes;
  std::vector<Edge> edges;

  std::uint32_t add(const Node& n) {
    nodes.push_back(n);
    return static_cast<std::uint32_t>(nodes.size() - 1);
  }
};

// Nodes so that each comes behind what it waits for. Rows that wait for each other in a ring (times that contradict
// themselves) are cut at the first of them. -> number of each draft node
std::vector<std::uint32_t> topological(const Sketch& d, ExecGraph& g, std::uint64_t& cut, Ns fallback_lag) {
  const auto n = static_cast<std::uint32_t>(d.nodes.size());
  std::vector<std::uint32_t> first_in(n + 1, 0), first_out(n + 1, 0), waiting(n, 0), number(n, kNone);
  for (const Sketch::Edge& e : d.edges) {
    ++first_in[e.to + 1];
    if (e.from != kNone) ++first_out[e.from + 1], ++waiting[e.to];
  }
  for (std::uint32_t i = 0; i < n; ++i) first_in[i + 1] += first_in[i], first_out[i + 1] += first_out[i];
  std::vector<std::uint32_t> in(d.edges.size()), out(first_out[n]);
  {
    std::vector<std::uint32_t> i(first_in.begin(), first_in.end() - 1), o(first_out.begin(), first_out.end() - 1);
    for (std::uint32_t e = 0; e < d.edges.size(); ++e) {
      in[i[d.edges[e].to]++] = e;
      if (d.edges[e].from != kNone) out[o[d.edges[e].from]++] = d.edges[e].to;
    }
  }
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> free;
  for (std::uint32_t i = 0; i < n; ++i)
    if (waiting[i] == 0) free.push(i);
  std::uint32_t next = 0, stuck = 0;
  const auto place = [&](std::uint32_t i) {
    number[i] = next++;
    const Sketch::Node& v = d.nodes[i];
    g.duration.push_back(v.duration);
    g.observed_start.push_back(v.observed);
    g.lane.push_back(v.lane);
    g.kind.push_back(v.kind);
    g.at_begin.push_back(v.at_begin);
    g.rank.push_back(v.rank);
    g.source.push_back(v.source);
    const std::size_t before = g.pred.size();
    for (std::uint32_t k = first_in[i]; k < first_in[i + 1]; ++k) {
      const Sketch::Edge& e = d.edges[in[k]];
      if (e.from != kNone && (number[e.from] == kNone || number[e.from] == number[i])) {
        ++cut;
        continue;
      }
      g.pred.push_back(e.from == kNone ? kNoNode : NodeId{number[e.from]});
      g.pred_kind.push_back(e.kind);
      g.pred_lag.push_back(e.lag);
    }
    if (g.pred.size() == before) {
      g.pred.push_back(kNoNode);
      g.pred_kind.push_back(EdgeKind::root);
      g.pred_lag.push_back(fallback_lag);
    }
    g.first_pred.push_back(static_cast<std::uint32_t>(g.pred.size()));
    for (std::uint32_t k = first_out[i]; k < first_out[i + 1]; ++k)
      if (number[out[k]] == kNone && --waiting[out[k]] == 0) free.push(out[k]);
  };
  while (next < n) {
    if (free.empty()) {
      while (number[stuck] != kNone) ++stuck;
      place(stuck);
      continue;
    }
    const std::uint32_t i = free.top();
    free.pop();
    if (number[i] == kNone) place(i);
  }
  return number;
}

}  // namespace

Status assemble_pipeline(const PipelineTrace& t, const PipelineModel& m, const PipelineProgram& p, PipelineBuild& out) {
  out = {};
  ExecGraph& g = out.build.graph;
  Communication& c = out.build.communication;
  if (p.rows.size() > kNone / 8) return fail("too many operations for 32 bits");
  std::uint32_t lanes = 0;
  std::vector<std::uint32_t> lane = lanes_of(t, lanes);
  const Ns origin = t.steps.empty() ? 0 : t.steps.front().begin;
  std::vector<std::uint32_t> op_of_row(t.rows.size()), ops(t.ranks.size(), 0);  // as pipeline_rows numbers them
  for (std::size_t i = 0; i < t.rows.size(); ++i) op_of_row[i] = ops[t.rows.rank[i]]++;
  for (std::uint32_t k = 0; k < t.ranks.size(); ++k)
    g.ranks.push_back(
        {.rank = t.ranks[k].rank, .trace = k, .first_lane = k * lanes, .lanes = lanes, .origin = origin, .lags = {}});

  Sketch d;
  const auto rows = static_cast<std::uint32_t>(p.rows.size());
  std::vector<std::uint32_t> first(rows), last(rows), meeting_of(rows, kNone), run_begin(rows);
  for (std::uint32_t k = 0; k < p.meetings.size(); ++k)
    for (std::uint32_t i = 0; i < p.meetings[k].members; ++i) meeting_of[p.members[p.meetings[k].first + i]] = k;
  std::vector<std::uint8_t> waited_for(rows, 0);
  const std::vector<PipelineWait> waits = waits_of(t, m, p);
  for (const PipelineWait& w : waits)
    if (w.from != kNone && p.rows[w.from].rank == p.rows[w.row].rank) waited_for[w.from] = 1;

  const auto source_of = [&](const PipelineRow& r) {
    if (r.source != kNone) return OpId{op_of_row[r.source]};
    return OpId{ops[r.rank] + (r.type < m.types ? 1 + r.type : 0)};
  };
  struct Bounds {
    std::uint32_t begin, end;
  };
  std::vector<Bounds> bounds;
  for_each_run(p, [&](std::uint32_t a, std::uint32_t b) {
    const std::uint32_t rank = p.rows[a].rank, step_row = p.rows[a].step;
    const PipelineStep& step = t.steps[step_row];
    const OpId marker{ops[rank] + 1 + m.types + step_row};
    const Sketch::Node host{.duration = 0,
                            .observed = step.begin,
                            .lane = rank * lanes,
                            .rank = rank,
                            .kind = NodeKind::host,
                            .at_begin = 1,
                            .source = marker};
    const std::uint32_t begin = d.add(host);
    d.edges.push_back({begin, kNone, EdgeKind::root, step.begin - origin});
    for (std::uint32_t i = a; i < b; ++i) {
      const PipelineRow& r = p.rows[i];
      const bool communicates = is_communication(t.types[r.type].kind);
      Sketch::Node node{.duration = r.duration,
                        .observed = r.source == kNone ? step.begin : t.rows.start[r.source],
                        .lane = rank * lanes + (r.type < lane.size() ? lane[r.type] : 1),
                        .rank = rank,
                        .kind = communicates ? NodeKind::comm : NodeKind::kernel,
                        .at_begin = 0,
                        .source = source_of(r)};
      run_begin[i] = begin;
      // Where the recorder leaves the waiting out, so does the replay: waits lead to the rendezvous itself.
      if (meeting_of[i] == kNone || (m.starts_together && !m.eager[r.type])) {
        first[i] = last[i] = d.add(node);
        continue;
      }
      Sketch::Node arrival = node;
      arrival.duration = 0;
      arrival.at_begin = 1;
      first[i] = d.add(arrival);
      if (r.source != kNone) node.observed = t.rows.end[r.source] - r.duration;
      last[i] = d.add(node);
    }
    Sketch::Node end = host;
    end.at_begin = 0;
    end.observed = std::max(step.begin, step.end[rank]);
    const std::uint32_t stop = d.add(end);
    const Ns tail = m.lag({rank, PipelineModel::kEnd, PipelineModel::kEnd, false});
    for (std::uint32_t i = a; i < b; ++i)
      if (!waited_for[i]) d.edges.push_back({stop, last[i], EdgeKind::sync, tail});
    bounds.push_back({begin, stop});
    g.steps.push_back(
        {.number = step.number, .rank = rank, .begin = step.begin, .end = std::max(step.begin, step.end[rank])});
  });
  // Steps begin when they were measured to, but not before all ranks have ended the one before: one that was made
  // longer holds up the next.
  std::map<Ns, std::vector<std::size_t>> begun;  // measured begin -> rows of bounds
  for (std::size_t k = 0; k < bounds.size(); ++k) begun[g.steps[k].begin].push_back(k);
  const std::vector<std::size_t>* earlier = nullptr;
  for (const auto& [at, now] : begun) {
    if (earlier != nullptr) {
      Sketch::Node all{.rank = g.steps[earlier->front()].rank, .kind = NodeKind::rendezvous};
      for (const std::size_t k : *earlier) all.observed = std::max(all.observed, g.steps[k].end);
      const Ns early = std::min<Ns>(0, at - all.observed);
      const std::uint32_t node = d.add(all);
      for (const std::size_t k : *earlier) d.edges.push_back({node, bounds[k].end, EdgeKind::collective, 0});
      for (const std::size_t k : now) d.edges.push_back({bounds[k].begin, node, EdgeKind::thread, early});
    }
    earlier = &now;
  }
  std::vector<std::uint32_t> rendezvous(p.meetings.size()), enter = first;  // what waits lead to
  for (std::uint32_t k = 0; k < p.meetings.size(); ++k) {
    const PipelineMeeting& meeting = p.meetings[k];
    Sketch::Node node{.rank = p.rows[p.members[meeting.first]].rank, .kind = NodeKind::rendezvous};
    for (std::uint32_t i = 0; i < meeting.members; ++i)
      node.observed = std::max(node.observed, d.nodes[first[p.members[meeting.first + i]]].observed);
    rendezvous[k] = d.add(node);
    for (std::uint32_t i = 0; i < meeting.members; ++i) {
      const std::uint32_t row = p.members[meeting.first + i];
      if (first[row] != last[row]) d.edges.push_back({rendezvous[k], first[row], EdgeKind::collective, 0});
      if (m.eager[p.rows[row].type])
        d.edges.push_back({last[row], first[row], EdgeKind::stream, 0});
      else
        d.edges.push_back({last[row], rendezvous[k], EdgeKind::collective, 0});
      if (first[row] == last[row]) enter[row] = rendezvous[k];
    }
  }
  std::map<PipelineModel::LagKey, Ns> lag_of;
  for (const PipelineWait& w : waits) {
    const auto [it, fresh] = lag_of.try_emplace(key_of(p, w), 0);
    if (fresh) it->second = m.lag(it->first);
    d.edges.push_back({enter[w.row], w.from == kNone ? run_begin[w.row] : last[w.from],
                       w.from == kNone ? EdgeKind::launch
                       : w.hand_over   ? EdgeKind::event
                                       : EdgeKind::stream,
                       it->second});
  }
  if (d.nodes.size() >= kNone || d.edges.size() >= kNone) return fail("too many operations for 32 bits");
  std::uint64_t cut = 0;
  const std::vector<std::uint32_t> number = topological(d, g, cut, 0);
  out.build.notes.add("contradictory-order", Severity::warning, cut, "",
                      "operations whose times say that each waits for the other: one wait of each ring is left out");

  out.node_of_row.resize(rows);
  for (std::uint32_t i = 0; i < rows; ++i) out.node_of_row[i] = number[last[i]];
  for (std::size_t k = 0; k < bounds.size(); ++k) {
    g.steps[k].begin_node = NodeId{number[bounds[k].begin]};
    g.steps[k].end_node = NodeId{number[bounds[k].end]};
  }

  // Who spoke to whom.
  std::map<std::pair<std::string, std::vector<std::int64_t>>, std::uint32_t> groups;
  std::vector<std::uint32_t> op_name(m.types, kNone), comm_row(rows, kNone);
  std::vector<std::pair<std::uint32_t, std::uint32_t>> order;  // rank, row
  for (std::uint32_t i = 0; i < rows; ++i)
    if (is_communication(t.types[p.rows[i].type].kind)) order.emplace_back(p.rows[i].rank, i);
  std::sort(order.begin(), order.end());
  for (const auto& [rank, i] : order) {
    const PipelineRow& r = p.rows[i];
    const PipelineType& type = t.types[r.type];
    if (op_name[r.type] == kNone) {
      op_name[r.type] = static_cast<std::uint32_t>(c.op_names.size());
      c.op_names.push_back(type.name);
    }
    std::vector<std::int64_t> members{t.ranks[rank].rank};
    if (meeting_of[i] != kNone) {
      members.clear();
      const PipelineMeeting& meeting = p.meetings[meeting_of[i]];
      for (std::uint32_t k = 0; k < meeting.members; ++k)
        members.push_back(t.ranks[p.rows[p.members[meeting.first + k]].rank].rank);
      std::sort(members.begin(), members.end());
    }
    const PipelineScope scope = is_transfer(type.kind) ? PipelineScope::pipeline : m.scope[r.type];
    const auto [it, fresh] =
        groups.try_emplace({label_of(scope), members}, static_cast<std::uint32_t>(c.groups.size()));
    if (fresh)
      c.groups.push_back({.label = label_of(scope),
                          .ranks = members,
                          .size = static_cast<std::int64_t>(members.size()),
                          .inferred = true});
    const bool met = meeting_of[i] != kNone, alone = scope == PipelineScope::alone;
    comm_row[i] = static_cast<std::uint32_t>(c.rows.size());
    CommRow row;
    row.rank = rank;
    row.node = number[first[i]];
    row.last = number[last[i]];
    row.op = op_of(type);
    row.op_name = op_name[r.type];
    row.group = it->second;
    row.step = t.steps[r.step].number;
    row.stream = g.lane[row.last];
    row.launched = true;
    row.start = r.source == kNone ? 0 : t.rows.start[r.source];
    row.end = r.source == kNone ? 0 : t.rows.end[r.source];
    row.transfer = met || alone ? r.duration : -1;
    c.rows.push_back(row);
    c.expected += !alone;
    c.matched += met;
    c.alone += alone;
  }
  for (std::uint32_t k = 0; k < p.meetings.size(); ++k) {
    const PipelineMeeting& meeting = p.meetings[k];
    Meeting out_row;
    out_row.first = static_cast<std::uint32_t>(c.members.size());
    out_row.members = meeting.members;
    out_row.node = NodeId{number[rendezvous[k]]};
    std::vector<Ns> transfers;
    for (std::uint32_t i = 0; i < meeting.members; ++i) {
      const std::uint32_t row = p.members[meeting.first + i];
      const CommRow& member = c.rows[comm_row[row]];
      out_row.group = member.group;
      out_row.op = member.op;
      out_row.arrival = std::max(i == 0 ? member.start : out_row.arrival, member.start);
      c.members.push_back({comm_row[row], !m.eager[p.rows[row].type], p.rows[row].duration});
      transfers.push_back(p.rows[row].duration);
    }
    out_row.transfer = median(transfers);
    c.meetings.push_back(out_row);
  }
  c.clock_of_rank.assign(t.ranks.size(), 0);
  c.clocks.resize(1);
  c.clocks[0].known = true;

  out.build.quality.resize(g.ranks.size());
  for (std::uint32_t i = 0; i < g.size(); ++i)
    for (std::uint32_t e = g.first_pred[i]; e < g.first_pred[i + 1]; ++e)
      ++out.build.quality[g.rank[i]].edges[static_cast<std::size_t>(g.pred_kind[e])];
  return check(g);
}

void refresh_durations(const PipelineProgram& p, PipelineBuild& b) {
  for (std::uint32_t i = 0; i < p.rows.size(); ++i) b.build.graph.duration[b.node_of_row[i]] = p.rows[i].duration;
}

}  // namespace orrery
