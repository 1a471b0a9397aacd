#include "whatif/rebuild.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/median.h"
#include "whatif/rebuilder.h"

namespace orrery {
namespace rebuilding {

void Rebuilder::mark_whole_runs() {
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

void Rebuilder::finish() {
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
    to.transfer = median(std::move(times));
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

}  // namespace rebuilding

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
      d.hidden * d.router + 4 * d.hidden;
  const double table = d.vocab * d.hidden / d.tp;
  return layers * layer + (first ? table + positions * d.hidden : 0) + (last ? table : 0);
}

double stage_parameters(const JobShape& shape, double layers, bool first, bool last) {
  if (shape.layer_parameters > 0)
    return layers * shape.layer_parameters + (first ? shape.first_parameters : 0) + (last ? shape.last_parameters : 0);
  return stage_parameters(shape.dims, layers, first, last, shape.gated_mlp, shape.positions);
}

double expert_parameters(const JobShape& shape, double layers) {
  return layers * shape.dims.hidden * shape.dims.expert_width;
}

Result<Rebuilt> rebuild(const TraceSet& traces, const GraphBuild& build, const Program& program, const JobShape& base,
                        const JobShape& next, const Rates& rates, const NetworkModel& net,
                        const RebuildOptions& options) {
  Rebuilt out;
  if (Status s = rebuilding::Rebuilder(traces, build, program, base, next, rates, net, options).run(out); !s)
    return tl::unexpected(s.error());
  return out;
}

}  // namespace orrery
