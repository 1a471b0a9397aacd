// The links between the ranks of a job, from the transfers that its traces show.
#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "base/median.h"
#include "whatif/layout.h"
#include "whatif/platform.h"
#include "whatif/whatif.h"

namespace orrery {

Pattern pattern_of(CommOp op) {
  switch (op) {
    case CommOp::all_reduce:
      return Pattern::all_reduce;
    case CommOp::broadcast:
    case CommOp::reduce:
      return Pattern::broadcast;
    case CommOp::all_to_all:
      return Pattern::all_to_all;
    default:
      return is_point_to_point(op) ? Pattern::point_to_point : Pattern::gather_or_scatter;
  }
}

Placement place_of(const GraphBuild& build, const Meeting& m, std::int64_t gpus_per_node) {
  const Communication& c = build.communication;
  const bool by_host = c.clocks.size() > 1 || gpus_per_node <= 0;
  std::map<std::int64_t, std::int64_t> on_server;
  std::int64_t most = 0;
  for (std::uint32_t k = 0; k < m.members; ++k) {
    const std::uint32_t rank = c.rows[c.members[m.first + k].row].rank;
    const std::int64_t server = by_host ? c.clock_of_rank[rank] : build.graph.ranks[rank].rank / gpus_per_node;
    most = std::max(most, ++on_server[server]);
  }
  return {static_cast<std::int64_t>(m.members) + m.missing, most};
}

std::int64_t message_of(const Communication& c, const Meeting& m) {
  const CommRow& row = c.rows[c.members[m.first].row];
  if (row.parts < 2) return row.bytes;
  std::int64_t bytes = -1;
  for (std::uint32_t k = 0; k < row.parts; ++k) bytes = std::max(bytes, c.parts[row.first_part + k].bytes);
  return bytes;
}

std::vector<TransferSample> transfer_samples(const GraphBuild& build, std::int64_t gpus_per_node) {
  const Communication& c = build.communication;
  struct Alike {
    std::vector<double> times;
    double bytes = 0;  // of all together
  };
  constexpr double kSizes = 64;  // an octave: sizes within 1% are one
  std::map<std::tuple<Pattern, std::int64_t, std::int64_t, std::int64_t>, Alike> groups;
  for (const Meeting& m : c.meetings) {
    const Pattern pattern = pattern_of(m.op);
    const std::int64_t bytes = message_of(c, m);
    if (m.missing != 0 || m.transfer <= 0 || bytes < 0) continue;
    if (pattern == Pattern::point_to_point && m.members != 2) continue;
    if (m.op == CommOp::gather || m.op == CommOp::scatter || m.op == CommOp::other) continue;
    const Placement where = place_of(build, m, gpus_per_node);
    const std::int64_t size = std::llround(kSizes * std::log2(static_cast<double>(bytes) + 1));
    Alike& group = groups[{pattern, where.members, where.members_in_server, size}];
    group.times.push_back(static_cast<double>(m.transfer));
    group.bytes += static_cast<double>(bytes);
  }
  std::vector<TransferSample> out;
  for (const auto& [key, group] : groups) {
    const std::vector<double>& t = group.times;
    TransferSample s;
    s.pattern = std::get<0>(key);
    s.where = {std::get<1>(key), std::get<2>(key)};
    s.bytes = group.bytes / static_cast<double>(t.size());
    s.ns = median(t);
    s.count = static_cast<double>(t.size());
    std::vector<double> off;
    for (const double x : t) off.push_back(std::abs(x / s.ns - 1));
    constexpr double kOfMedian = 1.48;  // standard deviation over the median distance, where errors are normal
    constexpr double kFew = 0.05;       // a handful says nothing of its own spread
    s.spread = t.size() < 4 ? kFew : kOfMedian * median(std::move(off));
    out.push_back(s);
  }
  return out;
}

NetworkModel learn_network(const TraceSet& traces, const GraphBuild& build, const JobLayout& layout) {
  return fit_network(transfer_samples(build, layout.gpus_per_node), gpu_of(traces));
}

}  // namespace orrery
