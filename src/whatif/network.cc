// --network: links with another bandwidth.
#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "whatif/whatif.h"

namespace orrery {
namespace {

constexpr std::int64_t kSmall = 64 * 1024;

std::int64_t bytes_of(const Communication& c, const Meeting& m) { return c.rows[c.members[m.first].row].bytes; }

Ns latency_of(const std::vector<LinkLatency>& known, const Meeting& m, Link link) {
  Ns any = -1;
  for (const LinkLatency& l : known) {
    if (l.link != link) continue;
    if (l.op == m.op && l.members == m.members) return l.latency;
    any = any < 0 ? l.latency : std::min(any, l.latency);
  }
  return std::max<Ns>(any, 0);
}

}  // namespace

Link link_of(const Communication& c, const Meeting& m) {
  const std::uint32_t first = c.clock_of_rank[c.rows[c.members[m.first].row].rank];
  for (std::uint32_t k = 1; k < m.members; ++k)
    if (c.clock_of_rank[c.rows[c.members[m.first + k].row].rank] != first) return Link::inter;
  return Link::intra;
}

std::vector<LinkLatency> learn_latencies(const Communication& c) {
  std::map<std::tuple<CommOp, std::uint32_t, Link>, Ns> least;
  for (const Meeting& m : c.meetings) {
    const std::int64_t bytes = bytes_of(c, m);
    if (bytes < 0 || bytes > kSmall) continue;
    const auto [it, fresh] = least.try_emplace({m.op, m.members, link_of(c, m)}, m.transfer);
    if (!fresh) it->second = std::min(it->second, m.transfer);
  }
  std::vector<LinkLatency> out;
  for (const auto& [key, latency] : least)
    out.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), latency});
  return out;
}

namespace {

// `stretch` gives a transfer's new time from its old one and its latency.
template <class F>
Changed change_transfers(GraphBuild& build, Link link, const F& stretch) {
  ExecGraph& g = build.graph;
  const Communication& c = build.communication;
  const std::vector<LinkLatency> latencies = learn_latencies(c);
  Changed changed;
  std::vector<std::uint8_t> done(c.rows.size(), 0);  // a kernel of several meetings changes once
  for (const Meeting& m : c.meetings) {
    if (link_of(c, m) != link) continue;
    const Ns latency = latency_of(latencies, m, link);
    for (std::uint32_t k = 0; k < m.members; ++k) {
      const std::uint32_t row = c.members[m.first + k].row;
      const std::uint32_t n = c.rows[row].last;
      if (done[row]++ == 0) {
        const Ns t = stretch(g.duration[n], std::min(g.duration[n], latency));
        changed.nodes += t != g.duration[n];
        g.duration[n] = t;
      }
      for (std::uint32_t e = g.first_pred[n]; e < g.first_pred[n + 1]; ++e) {
        if (g.pred[e] != m.node || g.pred_lag[e] == 0) continue;
        g.pred_lag[e] = stretch(g.pred_lag[e], 0);
        ++changed.edges;
      }
    }
  }
  refresh_queue_lags(g);
  return changed;
}

}  // namespace

Changed scale_bandwidth(GraphBuild& build, Link link, double factor) {
  return change_transfers(build, link, [&](Ns t, Ns fixed) {
    return fixed + static_cast<Ns>(std::llround(static_cast<double>(t - fixed) / factor));
  });
}

Changed set_latency(GraphBuild& build, Link link, Ns latency) {
  return change_transfers(build, link, [&](Ns t, Ns fixed) { return fixed == 0 ? t : t - fixed + latency; });
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
  const auto mid = seen.begin() + static_cast<std::ptrdiff_t>(seen.size() / 2);
  std::nth_element(seen.begin(), mid, seen.end());
  return *mid;
}

}  // namespace orrery
