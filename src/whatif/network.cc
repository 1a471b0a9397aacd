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

Changed scale_bandwidth(GraphBuild& build, Link link, double factor) {
  ExecGraph& g = build.graph;
  const Communication& c = build.communication;
  const std::vector<LinkLatency> latencies = learn_latencies(c);
  Changed changed;
  std::vector<std::uint8_t> done(c.rows.size(), 0);  // a kernel of several meetings changes once
  for (const Meeting& m : c.meetings) {
    if (link_of(c, m) != link) continue;
    const Ns latency = latency_of(latencies, m, link);
    const auto stretch = [&](Ns t) {
      const Ns fixed = std::min(t, latency);
      return fixed + std::llround(static_cast<double>(t - fixed) / factor);
    };
    for (std::uint32_t k = 0; k < m.members; ++k) {
      const std::uint32_t row = c.members[m.first + k].row;
      const std::uint32_t n = c.rows[row].last;
      if (done[row]++ == 0) {
        g.duration[n] = stretch(g.duration[n]);
        ++changed.nodes;
      }
      for (std::uint32_t e = g.first_pred[n]; e < g.first_pred[n + 1]; ++e) {
        if (g.pred[e] != m.node || g.pred_lag[e] == 0) continue;
        g.pred_lag[e] = std::llround(static_cast<double>(g.pred_lag[e]) / factor);
        ++changed.edges;
      }
    }
  }
  refresh_queue_lags(g);
  return changed;
}

}  // namespace orrery
