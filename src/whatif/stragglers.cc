// Ranks that are slower than others at the same work, and the job without them.
//
// Compute: ranks that run the same kernels as often (the replicas of a pipeline stage) are peers. A rank's slowness is
// the median, weighted by time, of its mean duration of a kernel over the median of the peers' means. Host: the same
// with operators and calls. Network: the transfer of each collective over the median of its kind (operation, size,
// members, link), and of a rank the lower quartile over all of its collectives: a slow link shows in every one, a slow
// partner only in those with him.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>

#include "base/median.h"
#include "whatif/whatif.h"

namespace orrery {
namespace {

constexpr std::int64_t kSmall = 64 * 1024;  // messages whose time is latency

struct Work {  // what a rank spent on one kind of work
  std::uint32_t count = 0;
  double ns = 0;
};
using Works = std::vector<std::pair<std::uint32_t, Work>>;  // by kind of work, ascending

const Work* find_work(const Works& works, std::uint32_t kind) {
  const auto it =
      std::lower_bound(works.begin(), works.end(), kind, [](const auto& w, std::uint32_t k) { return w.first < k; });
  return it != works.end() && it->first == kind ? &it->second : nullptr;
}

// Share of work that two ranks have in common, by count.
double alike(const Works& a, const Works& b) {
  double common = 0, of_a = 0, of_b = 0;
  for (const auto& [kind, w] : a) {
    of_a += w.count;
    if (const Work* other = find_work(b, kind)) common += std::min(w.count, other->count);
  }
  for (const auto& [kind, w] : b) of_b += w.count;
  return of_a == 0 || of_b == 0 ? 0 : common / std::max(of_a, of_b);
}

std::vector<std::vector<std::uint32_t>> peers_of(const std::vector<Works>& works) {
  std::vector<std::vector<std::uint32_t>> clusters;
  for (std::uint32_t r = 0; r < works.size(); ++r) {
    auto home = std::find_if(clusters.begin(), clusters.end(),
                             [&](const auto& c) { return alike(works[c.front()], works[r]) >= 0.9; });
    if (home == clusters.end()) home = clusters.insert(clusters.end(), std::vector<std::uint32_t>());
    home->push_back(r);
  }
  return clusters;
}

// Time of `own` over that of the median peer, for the same work.
double slowness(const std::vector<Works>& works, const std::vector<std::uint32_t>& cluster, std::uint32_t own) {
  std::vector<std::pair<double, double>> ratios;  // ratio, weight
  double total = 0;
  for (const auto& [kind, w] : works[own]) {
    std::vector<double> others;
    for (const std::uint32_t r : cluster) {
      if (r == own) continue;
      if (const Work* w_r = find_work(works[r], kind); w_r != nullptr && w_r->ns > 0)
        others.push_back(w_r->ns / w_r->count);
    }
    if (others.empty() || w.ns <= 0) continue;
    // of an even number the lower: the slow one may be one of two peers
    const auto mid = others.begin() + static_cast<std::ptrdiff_t>((others.size() - 1) / 2);
    std::nth_element(others.begin(), mid, others.end());
    const double usual = *mid;
    ratios.emplace_back(w.ns / w.count / usual, usual * w.count);
    total += usual * w.count;
  }
  std::sort(ratios.begin(), ratios.end());
  double sum = 0;
  for (const auto& [ratio, weight] : ratios)
    if ((sum += weight) * 2 >= total) return ratio;
  return 1;
}

// Those of each cluster that stand out: by `least` at any rate, and by four times the spread of the others.
void find(const std::vector<Works>& works, StragglerKind kind, double least, std::vector<Straggler>& out) {
  for (const auto& cluster : peers_of(works)) {
    if (cluster.size() < 2) continue;
    std::vector<double> slow;
    for (const std::uint32_t r : cluster) slow.push_back(slowness(works, cluster, r));
    for (std::size_t k = 0; k < cluster.size(); ++k) {
      std::vector<double> spread;
      for (std::size_t j = 0; j < cluster.size(); ++j)
        if (j != k) spread.push_back(std::abs(slow[j] - 1));
      if (slow[k] - 1 > std::max(least, 4 * median(spread))) out.push_back({cluster[k], kind, slow[k]});
    }
  }
}

using KindOfMeeting = std::tuple<CommOp, std::int64_t, std::uint32_t, Link>;

KindOfMeeting kind_of(const Communication& c, const Meeting& m) {
  return {m.op, c.rows[c.members[m.first].row].bytes, m.members, link_of(c, m)};
}

void find_slow_links(const Communication& c, std::size_t ranks, std::vector<Straggler>& out) {
  std::map<KindOfMeeting, std::vector<double>> transfers;
  for (const Meeting& m : c.meetings) transfers[kind_of(c, m)].push_back(static_cast<double>(m.transfer));
  std::map<KindOfMeeting, double> usual;
  for (const auto& [kind, t] : transfers) usual[kind] = median(t);
  std::vector<std::vector<double>> ratios(ranks);
  for (const Meeting& m : c.meetings) {
    const KindOfMeeting kind = kind_of(c, m);
    if (std::get<1>(kind) <= kSmall || m.missing != 0 || usual[kind] <= 0) continue;
    for (std::uint32_t k = 0; k < m.members; ++k)
      ratios[c.rows[c.members[m.first + k].row].rank].push_back(static_cast<double>(m.transfer) / usual[kind]);
  }
  for (std::uint32_t r = 0; r < ranks; ++r) {
    if (ratios[r].size() < 4) continue;
    const auto at = ratios[r].begin() + static_cast<std::ptrdiff_t>(ratios[r].size() / 4);
    std::nth_element(ratios[r].begin(), at, ratios[r].end());
    if (*at > 1.25) out.push_back({r, StragglerKind::network, *at});
  }
}

}  // namespace

std::string_view name_of(StragglerKind k) {
  switch (k) {
    case StragglerKind::compute:
      return "compute";
    case StragglerKind::host:
      return "host";
    case StragglerKind::network:
      return "network";
  }
  return "";
}

std::vector<Straggler> find_stragglers(const TraceSet& traces, const GraphBuild& build) {
  const ExecGraph& g = build.graph;
  std::vector<Straggler> out;
  if (g.ranks.size() < 2) return out;
  // Kinds of work: names are of each rank, so they meet as text. A kernel's is 4 times its name, a host node's one
  // more, its begin two.
  std::unordered_map<std::string_view, std::uint32_t> names;
  struct Dense {                         // one rank, kinds in the order in which they were met
    std::vector<std::uint32_t> of_name;  // by name and sort of node, kNone = not met yet
    Works works;
  };
  std::vector<Dense> dense(g.ranks.size());
  for (std::uint32_t r = 0; r < g.ranks.size(); ++r)
    dense[r].of_name.assign(3 * traces.ranks[g.ranks[r].trace].strings.size(), kNone);
  for (std::uint32_t n = 0; n < g.size(); ++n) {
    const NodeKind kind = g.kind[n];
    if (g.source[n] == kNoOp || (kind != NodeKind::kernel && kind != NodeKind::host)) continue;
    Dense& d = dense[g.rank[n]];
    const RankTrace& t = traces.ranks[g.ranks[g.rank[n]].trace];
    const std::uint32_t sort = kind == NodeKind::kernel ? 0u : g.at_begin[n] != 0 ? 2u : 1u;
    std::uint32_t& at = d.of_name[3 * raw(t.ops.name[raw(g.source[n])]) + sort];
    if (at == kNone) {
      const std::uint32_t name =
          names.try_emplace(t.name_of(g.source[n]), static_cast<std::uint32_t>(names.size())).first->second;
      at = static_cast<std::uint32_t>(d.works.size());
      d.works.push_back({4 * name + sort, {}});
    }
    Work& w = d.works[at].second;
    ++w.count;
    w.ns += static_cast<double>(g.duration[n]);
  }
  std::vector<Works> kernels(g.ranks.size()), host(g.ranks.size());
  for (std::uint32_t r = 0; r < g.ranks.size(); ++r) {
    std::sort(dense[r].works.begin(), dense[r].works.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& w : dense[r].works) (w.first % 4 == 0 ? kernels[r] : host[r]).push_back(w);
  }
  find(kernels, StragglerKind::compute, 0.03, out);
  find(host, StragglerKind::host, 0.10, out);
  find_slow_links(build.communication, g.ranks.size(), out);
  std::sort(out.begin(), out.end(),
            [](const Straggler& a, const Straggler& b) { return std::tie(a.rank, a.kind) < std::tie(b.rank, b.kind); });
  return out;
}

Changed remove_stragglers(GraphBuild& build, const std::vector<Straggler>& stragglers) {
  ExecGraph& g = build.graph;
  const Communication& c = build.communication;
  Changed changed;
  std::vector<double> link(g.ranks.size(), 1);  // by rank: how slow its links are
  for (const Straggler& s : stragglers) {
    if (s.kind == StragglerKind::network) link[s.rank] = s.slower;
    if (s.kind == StragglerKind::compute) changed.nodes += scale_compute(g, s.rank, 1 / s.slower).nodes;
    if (s.kind == StragglerKind::host) changed.nodes += scale_host(g, 1 / s.slower, s.rank).nodes;
  }
  std::vector<double> transfer(c.rows.size(), 1);  // a kernel of several meetings ends with the slowest of them
  for (const Meeting& m : c.meetings) {
    if (c.rows[c.members[m.first].row].bytes <= kSmall) continue;
    double slowest = 1;
    for (std::uint32_t k = 0; k < m.members; ++k)
      slowest = std::max(slowest, link[c.rows[c.members[m.first + k].row].rank]);
    for (std::uint32_t k = 0; k < m.members; ++k) {
      double& of_row = transfer[c.members[m.first + k].row];
      of_row = std::max(of_row, slowest);
    }
  }
  for (std::uint32_t k = 0; k < c.rows.size(); ++k) {
    if (transfer[k] <= 1) continue;
    Ns& t = g.duration[c.rows[k].last];
    t = std::llround(static_cast<double>(t) / transfer[k]);
    ++changed.nodes;
  }
  refresh_queue_lags(g);
  return changed;
}

}  // namespace orrery
