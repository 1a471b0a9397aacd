// --network: links with another bandwidth or latency.
#include <algorithm>
#include <cmath>

#include "base/median.h"
#include "whatif/layout.h"
#include "whatif/whatif.h"

namespace orrery {
namespace {

constexpr std::int64_t kSmall = 64 * 1024;

std::int64_t bytes_of(const Communication& c, const Meeting& m) { return c.rows[c.members[m.first].row].bytes; }

}  // namespace

Link link_of(const Communication& c, const Meeting& m) {
  const std::uint32_t first = c.clock_of_rank[c.rows[c.members[m.first].row].rank];
  for (std::uint32_t k = 1; k < m.members; ++k)
    if (c.clock_of_rank[c.rows[c.members[m.first + k].row].rank] != first) return Link::inter;
  return Link::intra;
}

namespace {

// `stretch` gives a transfer's new time from its old one, the part of it that is latency (as traced) and the quotient
// of its new time over its old one with other bandwidths (the model's).
template <class F>
Changed change_transfers(GraphBuild& build, Link link, double bandwidth, const F& stretch) {
  ExecGraph& g = build.graph;
  const Communication& c = build.communication;
  // The edited links are in the trace, so no facts of a GPU are needed.
  const NetworkModel net = fit_network(transfer_samples(build, 0), nullptr);
  NetworkModel next = net;
  (link == Link::intra ? next.intra : next.inter).gb_per_s *= bandwidth;
  Changed changed;
  std::vector<std::uint8_t> done(c.rows.size(), 0);  // a kernel of several meetings changes once
  for (const Meeting& m : c.meetings) {
    if (link_of(c, m) != link) continue;
    const std::int64_t bytes = message_of(c, m);
    const Placement where = place_of(build, m, 0);
    const Pattern pattern = pattern_of(m.op);
    const TransferParts was =
        transfer_parts(net, pattern, static_cast<double>(std::max<std::int64_t>(bytes, 0)), where);
    const TransferParts is =
        transfer_parts(next, pattern, static_cast<double>(std::max<std::int64_t>(bytes, 0)), where);
    for (std::uint32_t k = 0; k < m.members; ++k) {
      const std::uint32_t row = c.members[m.first + k].row;
      const std::uint32_t n = c.rows[row].last;
      if (done[row]++ == 0) {
        const auto traced = static_cast<double>(c.rows[row].transfer >= 0 ? c.rows[row].transfer : g.duration[n]);
        double latency = 0, factor = 1 / bandwidth;
        if (bytes >= 0 && was.bytes_ns >= 0 && was.total() > 0) {
          latency = traced * was.latency_ns / was.total();
          factor = is.total() / was.total();
        } else {  // sizes or bandwidth that the trace does not tell: small messages are latency, others go with the
                  // bandwidth
          latency = bytes >= 0 && bytes <= kSmall ? traced : std::min(traced, was.latency_ns);
          if (traced > 0) factor = (latency + (traced - latency) / bandwidth) / traced;
        }
        const Ns t = stretch(g.duration[n], static_cast<Ns>(std::llround(latency)), factor);
        changed.nodes += t != g.duration[n];
        g.duration[n] = t;
      }
      for (std::uint32_t e = g.first_pred[n]; e < g.first_pred[n + 1]; ++e) {
        if (g.pred[e] != m.node || g.pred_lag[e] == 0) continue;
        g.pred_lag[e] = stretch(g.pred_lag[e], 0, 1 / bandwidth);
        ++changed.edges;
      }
    }
  }
  refresh_queue_lags(g);
  return changed;
}

}  // namespace

Changed scale_bandwidth(GraphBuild& build, Link link, double factor) {
  return change_transfers(build, link, factor, [&](Ns t, Ns, double quotient) {
    return static_cast<Ns>(std::llround(static_cast<double>(t) * quotient));
  });
}

Changed set_latency(GraphBuild& build, Link link, Ns latency) {
  return change_transfers(
      build, link, 1, [&](Ns t, Ns fixed, double) { return fixed == 0 ? t : std::max<Ns>(0, t - fixed) + latency; });
}

double bus_bandwidth(const Communication& c, Link link) {
  std::int64_t largest = 0;
  for (const Meeting& m : c.meetings)
    if (link_of(c, m) == link && m.missing == 0) largest = std::max(largest, bytes_of(c, m));
  std::vector<double> seen;
  for (const Meeting& m : c.meetings) {
    if (link_of(c, m) != link || m.missing != 0 || bytes_of(c, m) < largest / 2 || m.transfer <= 0) continue;
    seen.push_back(static_cast<double>(bytes_of(c, m)) * bus_factor(m.op, m.members) / static_cast<double>(m.transfer));
  }
  if (largest == 0 || seen.empty()) return 0;
  return median(std::move(seen));
}

}  // namespace orrery
