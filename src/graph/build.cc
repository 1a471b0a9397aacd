#include "graph/build.h"

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <limits>
#include <thread>

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

Status GraphBuilder::build(const TraceSet& traces, const GraphOptions& options, GraphBuild& out) {
  out.quality.clear();
  out.notes.rows.clear();
  out.graph.clear();
  const std::size_t ranks = traces.ranks.size();
  const unsigned cores = std::max(1u, options.threads != 0 ? options.threads : std::thread::hardware_concurrency());
  const std::size_t side_by_side = std::min<std::size_t>(cores, ranks);
  while (rooms_.size() < side_by_side) rooms_.push_back(std::make_unique<Room>());

  for (const RankTrace& t : traces.ranks) {
    if (!times_fit(t)) {
      return fail("times too far apart for one graph (tens of years)", t.file,
                  "one broken time stamp can do this: see the events with the smallest and largest ts");
    }
  }

  const bool joined = (options.without_edges >> static_cast<unsigned>(EdgeKind::collective) & 1u) == 0;
  pieces_.resize(ranks);
  std::vector<RankComm> communication(ranks);
  out.communication.clear();

  tbb::task_arena arena(static_cast<int>(std::min(cores, std::max(1u, std::thread::hardware_concurrency()))));
  for (std::size_t first = 0; first < ranks; first += side_by_side) {
    const std::size_t batch = std::min(side_by_side, ranks - first);
    auto draft = [&](std::size_t k) {
      Room& room = *rooms_[k];
      const std::size_t row = first + k;
      draft_rank(traces.ranks[row], options, room.draft);
      collect_communication(room.draft, communication[row]);
      // one rank alone is assembled in place
      assemble(room.draft, static_cast<std::uint32_t>(row), room.scratch, ranks == 1 ? out.graph : pieces_[row]);
      for (CommRow& c : communication[row].rows) c.node = c.last = room.scratch.place[c.node];
    };
    if (batch == 1) {
      draft(0);
    } else {
      arena.execute([&] { tbb::parallel_for(std::size_t{0}, batch, draft); });
    }
    for (std::size_t k = 0; k < batch; ++k) {
      out.quality.push_back(rooms_[k]->draft.quality);
      out.notes.merge(rooms_[k]->draft.notes);
    }
  }
  std::uint64_t nodes = 0, edges = 0;
  for (std::size_t row = 0; row < ranks && ranks > 1; ++row) {
    nodes += pieces_[row].size() + 2 * communication[row].rows.size();
    edges += pieces_[row].edges() + 4 * communication[row].rows.size();
    if (nodes < kNone / 2 && edges < kNone / 2) continue;
    return fail("too many events for one graph (over two billion nodes or edges)", traces.ranks[row].file,
                "give fewer ranks or steps");
  }
  if (joined && ranks > 1) {
    if (Status s = check_same_job(communication); !s) return s;
  }
  match_communication(communication, out.communication, out.notes);
  if (ranks > 1) {
    if (!joined) out.communication.meetings.clear();
    fit_clocks(communication, out.communication, out.notes);
    if (Status s = weigh_meetings(communication, out.communication, out.notes); !s) return s;
    join(pieces_, out.communication, out.quality, out.notes, out.graph);
  }
  if (out.graph.size() == 0) {
    return fail("no CPU or GPU work in the trace", traces.ranks.empty() ? "" : traces.ranks.front().file,
                "record with ProfilerActivity.CPU and ProfilerActivity.CUDA");
  }
  return {};
}

Result<GraphBuild> build_graph(const TraceSet& traces, const GraphOptions& options) {
  GraphBuild out;
  GraphBuilder builder;
  if (Status s = builder.build(traces, options, out); !s) return tl::unexpected<Error>(s.error());
  return out;
}

}  // namespace orrery
