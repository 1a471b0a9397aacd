// --num-microbatches: more or fewer micro-batches in a step.
//
// Backward runs on autograd's thread while its caller waits: each of its bursts is one micro-batch's backward, wherever
// the framework comes from. The cut after each burst makes slices of a rank; in the steady state of a pipeline each has
// one forward and one backward and is like the one before. One such slice in the middle of each step is repeated, or
// the first of them are left out. Ramp-up and ramp-down of the pipeline stay as they are, without a pipeline the first
// and the last slice.
#include <algorithm>
#include <string>

#include "whatif/layout.h"
#include "whatif/resequence.h"

namespace orrery {
namespace {

struct Burst {
  Ns at;  // its observed end
  std::uint32_t step;
};

}  // namespace

Result<Changed> change_microbatches(GraphBuild& build, JobLayout& layout, std::int64_t microbatches) {
  const std::string where = "--num-microbatches " + std::to_string(microbatches);
  const ExecGraph& g = build.graph;
  if (microbatches < 1) return fail("less than one micro-batch", where);

  // bursts: nodes of a step's own thread that another thread wakes
  std::vector<std::vector<Burst>> cuts(g.ranks.size());
  std::vector<std::uint32_t> step_lane(g.ranks.size(), kNone);
  for (const Step& s : g.steps) step_lane[s.rank] = g.lane[raw(s.begin_node)];
  for (std::uint32_t n = 0; n < g.size(); ++n) {
    if (g.kind[n] != NodeKind::host || g.lane[n] != step_lane[g.rank[n]]) continue;
    for (std::uint32_t e = g.first_pred[n]; e < g.first_pred[n + 1]; ++e) {
      if (g.pred_kind[e] != EdgeKind::handoff) continue;
      const Ns at = g.observed_start[n] + g.duration[n];
      for (std::uint32_t s = 0; s < g.steps.size(); ++s)
        if (g.steps[s].rank == g.rank[n] && g.steps[s].begin <= at && at <= g.steps[s].end)
          cuts[g.rank[n]].push_back({at, s});
      break;
    }
  }
  std::int64_t base = -1;
  for (std::uint32_t r = 0; r < g.ranks.size(); ++r) {
    std::sort(cuts[r].begin(), cuts[r].end(), [](const Burst& a, const Burst& b) { return a.at < b.at; });
    for (std::uint32_t s = 0; s < g.steps.size(); ++s) {
      if (g.steps[s].rank != r) continue;
      const auto n = std::count_if(cuts[r].begin(), cuts[r].end(), [&](const Burst& c) { return c.step == s; });
      if (base < 0) base = n;
      if (n != base || n == 0)
        return fail("the micro-batches cannot be told: " + std::to_string(n) + " backward passes in a step of rank " +
                        std::to_string(g.ranks[r].rank) + ", " + std::to_string(base) + " elsewhere",
                    where);
    }
  }
  if (base < 1) return fail("the micro-batches cannot be told: no backward passes on a thread of their own", where);
  layout.num_microbatches = base;
  if (microbatches == base) return Changed{};

  std::vector<std::vector<Cut>> ends(cuts.size());
  for (std::size_t r = 0; r < cuts.size(); ++r)
    for (const Burst& c : cuts[r]) ends[r].push_back({c.at});
  const Slices slices = slice(build, ends);

  // the sequence: the slice in the middle of each step again, or the middle ones left out
  const std::int64_t more = microbatches - base;
  std::vector<std::vector<std::uint32_t>> sequence(g.ranks.size());
  for (std::uint32_t r = 0; r < g.ranks.size(); ++r) {
    for (std::uint32_t k = 0; k < slices.count[r];) {
      if (k == cuts[r].size()) {
        sequence[r].push_back(k++);
        continue;
      }
      // the slices of one step
      std::uint32_t last = k;
      while (last < cuts[r].size() && cuts[r][last].step == cuts[r][k].step) ++last;
      // The first slice begins with the end of the step before, the last ends with the gradients: neither is like
      // others.
      const std::int64_t ramp = std::max<std::int64_t>(1, layout.pp - 1);
      const std::int64_t steady = (last - k) - 2 * ramp;  // slices alike: neither ramp-up nor ramp-down
      const std::int64_t kept = layout.pp > 1 ? 1 : 0;    // of these: a pipeline without any has another ramp
      if (more > 0 ? steady < 1 : steady + more < kept)
        return fail("too few micro-batches between the first ones and the last ones of a step to go from " +
                        std::to_string(base) + " to " + std::to_string(microbatches),
                    where);
      const auto middle = static_cast<std::uint32_t>(k + ramp + (steady - 1) / 2);
      const auto first = static_cast<std::uint32_t>(k + ramp);
      for (std::uint32_t s = k; s < last; ++s) {
        if (s >= first && s < first - more) continue;  // left out
        sequence[r].push_back(s);
        for (std::int64_t c = 0; s == middle && c < more; ++c) sequence[r].push_back(s);
      }
      k = last;
    }
  }
  const std::uint32_t nodes = g.size();
  std::uint64_t unlike = 0;
  if (Status s = resequence(build, slices, sequence, unlike); !s)
    return fail(s.error().what, where, "the micro-batches of the traced job are too different from each other");
  layout.num_microbatches = microbatches;
  Changed changed;
  changed.nodes = build.graph.size() > nodes ? build.graph.size() - nodes : nodes - build.graph.size();
  changed.edges = unlike;
  return changed;
}

}  // namespace orrery
