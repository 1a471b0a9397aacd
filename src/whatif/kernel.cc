// --kernel: some kernels faster or slower.
#include <cmath>

#include "whatif/whatif.h"

namespace orrery {
namespace {

void scale(ExecGraph& g, std::uint32_t n, double factor, Changed& changed) {
  const Ns t = std::llround(static_cast<double>(g.duration[n]) * factor);
  changed.nodes += t != g.duration[n];
  g.duration[n] = t;
}

}  // namespace

Changed scale_kernels(ExecGraph& g, const TraceSet& traces, const std::function<bool(std::string_view)>& chosen,
                      double factor) {
  Changed changed;
  std::vector<std::vector<std::uint8_t>> asked(traces.ranks.size());  // by trace and name: 0 = not yet, 1 = no, 2 = yes
  for (std::size_t t = 0; t < asked.size(); ++t) asked[t].assign(traces.ranks[t].strings.size(), 0);
  for (std::uint32_t n = 0; n < g.size(); ++n) {
    if (g.kind[n] != NodeKind::kernel || g.source[n] == kNoOp) continue;
    const std::uint32_t t = g.ranks[g.rank[n]].trace;
    std::uint8_t& answer = asked[t][raw(traces.ranks[t].ops.name[raw(g.source[n])])];
    if (answer == 0) answer = chosen(traces.ranks[t].name_of(g.source[n])) ? 2 : 1;
    if (answer == 2) scale(g, n, factor, changed);
  }
  refresh_queue_lags(g);
  return changed;
}

Changed scale_compute(ExecGraph& g, std::uint32_t rank, double factor) {
  Changed changed;
  for (std::uint32_t n = 0; n < g.size(); ++n) {
    const NodeKind k = g.kind[n];
    if (g.rank[n] == rank && (k == NodeKind::kernel || k == NodeKind::memcpy || k == NodeKind::memset))
      scale(g, n, factor, changed);
  }
  refresh_queue_lags(g);
  return changed;
}

}  // namespace orrery
