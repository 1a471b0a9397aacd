#include "graph/build.h"

#include <algorithm>
#include <limits>

#include "base/parallel.h"
#include "graph/comm_rows.h"
#include "graph/draft.h"
#include "graph/join.h"
#include "graph/match.h"

namespace orrery {
namespace {

// Whether sums of the rank's times stay inside 64 bits, whatever waits for what: the ends of its window, all durations,
// and for each lane once the window. False for what no recording holds (tens of years).
bool times_fit(const RankTrace& t) {
  __extension__ using Wide = __int128;
  Ns first = 0, last = 0;
  Wide sum = 0;
  for (std::size_t i = 0; i < t.ops.size(); ++i) {
    first = std::min(first, t.ops.start[i]);
    last = std::max(last, t.ops.end(i));
    sum += t.ops.dur[i];
  }
  const Wide begin = t.window_start, end = t.window_end;
  sum += Wide{last} - Wide{first} + (end - begin) * static_cast<Wide>(t.lanes.size() + 2);
  return sum < std::numeric_limits<Ns>::max() / 2 * Wide{2} && first > std::numeric_limits<Ns>::min() / 2;
}

void draft_rank(const RankTrace& t, const GraphOptions& options, Draft& d) {
  d.clear();
  d.trace = &t;
  d.options = &options;
  d.begin_node.assign(t.ops.size(), kNone);
  d.end_node.assign(t.ops.size(), kNone);
  add_tasks(d);
  add_threads(d);
  link_launches(d);
  add_handoffs(d);
  add_events(d);
  add_syncs(d);
  add_device(d);
  add_steps(d);
}

}  // namespace

struct GraphBuilder::Room {
  Draft draft;
  AssembleScratch scratch;
};

GraphBuilder::GraphBuilder() = default;
GraphBuilder::~GraphBuilder() = default;
GraphBuilder::GraphBuilder(GraphBuilder&&) noexcept = default;
GraphBuilder& GraphBuilder::operator=(GraphBuilder&&) noexcept = default;

void GraphBuilder::reserve(unsigned workers) {
  while (rooms_.size() < workers) rooms_.push_back(std::make_unique<Room>());
}

Status GraphBuilder::draft(const RankTrace& trace, const GraphOptions& options, unsigned worker, RankGraph& out) {
  if (!times_fit(trace)) {
    return fail("times too far apart for one graph (tens of years)", trace.file,
                "one broken time stamp can do this: see the events with the smallest and largest ts");
  }
  Room& room = *rooms_[worker];
  draft_rank(trace, options, room.draft);
  collect_communication(room.draft, out.communication);
  assemble(room.draft, 0, room.scratch, out.graph);
  for (CommRow& c : out.communication.rows) c.node = c.last = room.scratch.place[c.node];
  out.quality = room.draft.quality;
  std::swap(out.notes, room.draft.notes);
  return {};
}

Status GraphBuilder::join(const TraceSet& traces, const GraphOptions& options, std::vector<RankGraph>& ranks,
                          GraphBuild& out) {
  out.quality.clear();
  out.notes.rows.clear();
  out.communication.clear();
  std::uint64_t nodes = 0, edges = 0;
  for (std::size_t k = 0; k < ranks.size(); ++k) {
    RankGraph& r = ranks[k];
    r.graph.ranks.front().rank = r.communication.rank = traces.ranks[k].rank;
    r.graph.ranks.front().trace = static_cast<std::uint32_t>(k);
    out.quality.push_back(r.quality);
    out.notes.merge(r.notes);
    nodes += r.graph.size() + 2 * r.communication.rows.size();
    edges += r.graph.edges() + 4 * r.communication.rows.size();
    if (nodes < kNone / 2 && edges < kNone / 2) continue;
    return fail("too many events for one graph (over two billion nodes or edges)", traces.ranks[k].file,
                "give fewer ranks or steps");
  }
  const bool joined = (options.without_edges >> static_cast<unsigned>(EdgeKind::collective) & 1u) == 0;
  if (joined) {
    if (Status s = check_same_job(ranks); !s) return s;
  }
  match_communication(ranks, out.communication, out.notes);
  const Communication& c = out.communication;
  const bool described = std::any_of(c.groups.begin(), c.groups.end(), [](const CommGroup& g) { return !g.inferred; });
  if (joined && described && c.expected >= 8 && c.matched * 10 < c.expected) {
    return fail("traces of different jobs: " + std::to_string(c.matched) + " of " + std::to_string(c.expected) +
                    " communication kernels find their partners",
                "", "give the ranks of one job; `orrery diff` compares two");
  }
  if (ranks.size() == 1) {
    std::swap(out.graph, ranks.front().graph);
    out.communication.meetings.clear();  // with itself: a peer's number that is the rank's own
    if (Status s = weigh_meetings(ranks, out.communication, out.notes); !s) return s;
  } else {
    if (!joined) out.communication.meetings.clear();
    use_clocks(ranks, fit_clocks(ranks, out.communication), out.communication, out.notes);
    if (Status s = weigh_meetings(ranks, out.communication, out.notes); !s) return s;
    if (joined && !ranks.empty()) note_oddities(ranks, out.communication, out.notes);
    join_graphs(ranks, out);
  }
  if (out.graph.size() == 0) {
    return fail("no CPU or GPU work in the trace", traces.ranks.empty() ? "" : traces.ranks.front().file,
                "record with ProfilerActivity.CPU and ProfilerActivity.CUDA");
  }
  return {};
}

Status GraphBuilder::build(const TraceSet& traces, const GraphOptions& options, GraphBuild& out) {
  const std::size_t ranks = traces.ranks.size();
  const auto workers = static_cast<unsigned>(std::min<std::size_t>(worker_count(options.threads), ranks));
  reserve(workers);
  ranks_.resize(ranks);
  std::vector<Status> failed(ranks);
  if (ranks == 1) std::swap(ranks_.front().graph, out.graph);  // one rank is assembled in place
  for_each_row(ranks, workers,
               [&](std::size_t k, unsigned worker) { failed[k] = draft(traces.ranks[k], options, worker, ranks_[k]); });
  for (const Status& s : failed)
    if (!s) return s;
  return join(traces, options, ranks_, out);
}

Result<GraphBuild> build_graph(const TraceSet& traces, const GraphOptions& options) {
  GraphBuild out;
  GraphBuilder builder;
  if (Status s = builder.build(traces, options, out); !s) return tl::unexpected<Error>(s.error());
  return out;
}

}  // namespace orrery
