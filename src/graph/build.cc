#include "graph/build.h"

#include "graph/draft.h"

namespace orrery {
namespace {

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

Result<GraphBuild> build_graph(const TraceSet& traces, const GraphOptions& options) {
  GraphBuild out;
  Draft d;
  for (std::uint32_t r = 0; r < traces.ranks.size(); ++r) {
    draft_rank(traces.ranks[r], options, d);
    if (std::uint64_t{out.graph.size()} + d.nodes() >= kNone / 2) {
      return fail("too many events for one graph (over two billion nodes)", traces.ranks[r].file,
                  "give fewer ranks or steps");
    }
    assemble(d, r, out.graph);
    out.quality.push_back(d.quality);
    out.notes.merge(d.notes);
  }
  if (out.graph.size() == 0) {
    return fail("no CPU or GPU work in the trace", traces.ranks.empty() ? "" : traces.ranks.front().file,
                "record with ProfilerActivity.CPU and ProfilerActivity.CUDA");
  }
  return out;
}

}  // namespace orrery
