// --dp: another degree of data parallelism.
#include <algorithm>
#include <cmath>

#include "whatif/layout.h"
#include "whatif/optimizer.h"

namespace orrery {
Result<Changed> change_dp(const TraceSet& traces, GraphBuild& build, JobLayout& layout, std::int64_t dp) {
  if (dp < 1) return fail("data parallelism of less than 1", "--dp " + std::to_string(dp));
  if (dp == layout.dp) return Changed{};
  if (layout.dp < 2)
    return fail("the traced job has no data parallelism to change", "--dp " + std::to_string(dp),
                "collectives that are not in the trace cannot be told yet");
  const auto& all = build.communication.meetings;
  if (std::none_of(all.begin(), all.end(),
                   [&](const Meeting& m) { return role_of(layout, build.communication, m) == GroupRole::data; }))
    return fail("no collective of the traces is known as data parallel", "--dp " + std::to_string(dp),
                "all ranks of a data-parallel group are needed, with NCCL metadata");
  const NetworkModel net = learn_network(traces, build, layout);
  JobLayout next = layout;
  next.dp = dp;
  next.world = layout.tp * layout.pp * layout.cp * dp;
  if (next.tp * next.cp * dp % (next.ep * next.etp) != 0)
    return fail(std::to_string(next.tp * next.cp * dp) + " ranks of a stage are not divisible by the " +
                    std::to_string(next.ep * next.etp) + " that share its experts",
                "--dp " + std::to_string(dp));
  if (layout.ep > 1 && layout.expert_replicas() == 1)
    return fail("experts have no replicas yet: the reduction of their gradients is not in the traces",
                "--dp " + std::to_string(dp));
  ExecGraph& g = build.graph;
  const Communication& c = build.communication;
  Changed changed;
  std::vector<std::uint8_t> done(c.rows.size(), 0);
  for (const Meeting& m : c.meetings) {
    const GroupRole role = role_of(layout, c, m);
    const CommRow& row = c.rows[c.members[m.first].row];
    const double bytes = static_cast<double>(std::max<std::int64_t>(row.bytes, 0));
    // The shard that a rank reduces or gathers to shrinks; the message as NCCL's tests count it stays.
    const Pattern pattern = pattern_of(m.op);
    const Placement old_place = layout.placement(role), new_place = next.placement(role);
    const bool moves = old_place.members != new_place.members || old_place.one_server() != new_place.one_server();
    if (row.bytes < 0 && moves)
      return fail("the traces do not say how large the job's collectives are", "--dp " + std::to_string(dp),
                  "record them with NCCL metadata (a recent PyTorch), or change the network alone");
    const double before = transfer_ns(net, pattern, bytes, old_place);
    const double after = transfer_ns(net, pattern, bytes, new_place);
    if (before < 0 || after < 0)
      return fail("nothing tells how fast servers are connected", "--dp", "--network inter=GB/s");
    const double factor = before > 0 ? after / before : 0;
    if (std::abs(factor - 1) < 1e-9) continue;
    for (std::uint32_t k = 0; k < m.members; ++k) {
      const std::uint32_t r = c.members[m.first + k].row;
      const std::uint32_t n = c.rows[r].last;
      if (done[r]++ == 0) {
        g.duration[n] = std::llround(static_cast<double>(g.duration[n]) * factor);
        ++changed.nodes;
      }
      for (std::uint32_t e = g.first_pred[n]; e < g.first_pred[n + 1]; ++e) {
        if (g.pred[e] != m.node || g.pred_lag[e] == 0) continue;
        g.pred_lag[e] = std::llround(static_cast<double>(g.pred_lag[e]) * factor);
        ++changed.edges;
      }
    }
  }
  if (layout.distributed_optimizer && dp != layout.dp) {
    const Changed optimizer =
        scale_kernels(g, traces, is_optimizer_kernel, static_cast<double>(layout.dp) / static_cast<double>(dp));
    changed.nodes += optimizer.nodes;
  }
  refresh_queue_lags(g);
  layout = next;
  return changed;
}

}  // namespace orrery
