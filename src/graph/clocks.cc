// The clocks of the hosts, from the ends of collectives.
//
// All members of a collective end together, but for the skew with which a ring completes (20 us at the median, 190 us
// at worst in the traces known to us) and the reading of the clocks. The difference of ends between two hosts, over
// many collectives, is therefore the offset of their clocks with that skew as noise. The median is kept; where the
// recording is long enough to tell a slope from the noise, a line (Theil and Sen: the median of slopes) instead.
// Causality bounds the offset: nobody can end before everybody has arrived. A median outside the bounds is moved to
// their nearer edge.
// Hosts are tied to the first one by one, the best tied first. Only collectives in which every member ends together
// count; where a host has none of those, its sends and receives do.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "base/median.h"
#include "graph/match.h"

namespace orrery {
namespace {

struct Observation {
  Ns at;         // common time
  Ns offset;     // of the host's clock
  Ns low, high;  // what causality allows the offset to be
  Ns transfer;   // least duration of the meeting: short ones tell more
};

constexpr std::size_t kMostPoints = 400;  // slopes are of pairs
constexpr std::size_t kFewestForSlope = 16;
constexpr double kMostDrift = 500e-6;  // crystals differ by 100 ppm at most; daemons slew a clock by 500

// Median of the offsets, short collectives counting more: their ends are told more exactly.
Ns weighted_median(const std::vector<Observation>& seen, const std::vector<Ns>& offsets) {
  std::vector<std::pair<Ns, double>> v;
  double total = 0;
  for (std::size_t k = 0; k < seen.size(); ++k) {
    const double w = 1.0 / (10'000.0 + static_cast<double>(seen[k].transfer));
    v.emplace_back(offsets[k], w);
    total += w;
  }
  std::sort(v.begin(), v.end());
  double sum = 0;
  for (std::size_t k = 0; k < v.size(); ++k) {
    sum += v[k].second;
    if (sum * 2 >= total) {
      if (sum * 2 == total && k + 1 < v.size()) return v[k].first + (v[k + 1].first - v[k].first) / 2;
      return v[k].first;
    }
  }
  return v.back().first;
}

void fit(std::vector<Observation>& seen, HostClock& clock) {
  std::sort(seen.begin(), seen.end(), [](const Observation& a, const Observation& b) { return a.at < b.at; });
  std::vector<Ns> offsets;
  for (const Observation& o : seen) offsets.push_back(o.offset);
  clock.known = true;
  clock.observations = static_cast<std::uint32_t>(seen.size());
  clock.at = seen.front().at;
  clock.offset = weighted_median(seen, offsets);
  const auto spread = [&](const std::vector<Ns>& from_zero) {
    std::vector<Ns> d;
    for (const Ns x : from_zero) d.push_back(x < 0 ? -x : x);
    return median(d);
  };
  std::vector<Ns> left = offsets;
  for (Ns& x : left) x -= clock.offset;
  clock.spread = spread(left);

  if (seen.size() >= kFewestForSlope) {
    // medians of neighbours, where there are too many for all pairs
    std::vector<std::pair<Ns, Ns>> points;  // at, offset
    const std::size_t each = (seen.size() + kMostPoints - 1) / kMostPoints;
    for (std::size_t k = 0; k + each <= seen.size(); k += each) {
      const auto from = offsets.begin() + static_cast<std::ptrdiff_t>(k);
      points.emplace_back(seen[k + each / 2].at,
                          median(std::vector<Ns>(from, from + static_cast<std::ptrdiff_t>(each))));
    }
    std::vector<double> slopes;
    const Ns span = seen.back().at - seen.front().at;
    for (std::size_t a = 0; a < points.size(); ++a)
      for (std::size_t b = a + 1; b < points.size(); ++b)
        if (points[b].first - points[a].first > span / 4)
          slopes.push_back(static_cast<double>(points[b].second - points[a].second) /
                           static_cast<double>(points[b].first - points[a].first));
    const double slope = slopes.empty() ? 0 : median(std::move(slopes));
    if (slope != 0 && std::abs(slope) < kMostDrift) {
      std::vector<Ns> flat = offsets;
      for (std::size_t k = 0; k < flat.size(); ++k)
        flat[k] -= static_cast<Ns>(slope * static_cast<double>(seen[k].at - clock.at));
      const Ns offset = weighted_median(seen, flat);
      std::vector<Ns> rest = flat;
      for (Ns& x : rest) x -= offset;
      const Ns with_slope = spread(rest);
      // Six standard errors of what the slope moves over the recording: sqrt(12 / n) of the noise, which is 1.5 times
      // its median distance.
      const double moved = std::abs(slope) * static_cast<double>(span);
      const double error =
          1.5 * static_cast<double>(with_slope + 1) * std::sqrt(12.0 / static_cast<double>(seen.size()));
      if (moved > 6 * error) {
        clock.drift_ppm = slope * 1e6;
        clock.offset = offset;
        clock.spread = with_slope;
      }
    }
  }
  // Causality, where the noise has led the median outside of it.
  if (clock.drift_ppm == 0) {
    Ns low = INT64_MIN, high = INT64_MAX;
    for (const Observation& o : seen) low = std::max(low, o.low), high = std::min(high, o.high);
    if (low <= high) clock.offset = std::clamp(clock.offset, low, high);
  }
}

}  // namespace

Ns HostClock::error() const {
  if (observations == 0) return 0;
  // 1.4826 median distances are a standard deviation, a median is 1.2533 times less exact than a mean
  return std::llround(1.4826 * 1.2533 * static_cast<double>(spread) / std::sqrt(static_cast<double>(observations)));
}

Clocks fit_clocks(const std::vector<RankGraph>& ranks, const Communication& out) {
  Clocks fitted;
  std::vector<HostClock>& clocks = fitted.clocks;
  fitted.of_rank.assign(ranks.size(), kNone);
  std::map<std::string, std::uint32_t> hosts;
  for (std::uint32_t r = 0; r < ranks.size(); ++r) {
    const auto [it, fresh] =
        hosts.try_emplace(host_of(ranks[r].communication), static_cast<std::uint32_t>(clocks.size()));
    if (fresh) clocks.push_back({.host = ranks[r].communication.host, .ranks = {}});
    clocks[it->second].ranks.push_back(r);
    fitted.of_rank[r] = it->second;
  }
  if (clocks.empty()) return fitted;
  clocks.front().known = true;

  const auto host_of_row = [&](const CommRow& c) { return fitted.of_rank[c.rank]; };
  struct Ends {  // of one meeting on one host
    std::uint32_t host;
    Ns end, earliest_end, latest_start;
  };
  std::vector<Ends> ends;
  std::vector<Ns> scratch;
  std::vector<std::vector<Observation>> seen(clocks.size());
  for (std::size_t round = 1; round < clocks.size(); ++round) {
    bool tied = false;
    for (const bool barriers : {true, false}) {
      for (auto& s : seen) s.clear();
      for (const Meeting& m : out.meetings) {
        if (is_barrier(m.op) != barriers) continue;
        ends.clear();
        Ns transfer = INT64_MAX;
        for (std::uint32_t k = 0; k < m.members; ++k) {
          const CommRow& c = out.rows[out.members[m.first + k].row];
          transfer = std::min(transfer, c.end - c.start);
          const std::uint32_t host = host_of_row(c);
          auto e = std::find_if(ends.begin(), ends.end(), [&](const Ends& x) { return x.host == host; });
          if (e == ends.end()) e = ends.insert(ends.end(), {host, 0, INT64_MAX, INT64_MIN});
          e->earliest_end = std::min(e->earliest_end, c.end);
          e->latest_start = std::max(e->latest_start, c.start);
        }
        if (ends.size() < 2) continue;
        for (Ends& e : ends) {
          scratch.clear();
          for (std::uint32_t k = 0; k < m.members; ++k) {
            const CommRow& c = out.rows[out.members[m.first + k].row];
            if (host_of_row(c) == e.host) scratch.push_back(c.end);
          }
          e.end = median(scratch);
        }
        // what the known clocks say, in common time
        scratch.clear();
        Ns earliest_end = INT64_MAX, latest_start = INT64_MIN;
        for (const Ends& e : ends) {
          const HostClock& clock = clocks[e.host];
          if (!clock.known) continue;
          const Ns shift = ahead(clock, e.end);
          scratch.push_back(e.end - shift);
          earliest_end = std::min(earliest_end, e.earliest_end - shift);
          latest_start = std::max(latest_start, e.latest_start - shift);
        }
        if (scratch.empty()) continue;
        const Ns common = median(scratch);
        for (const Ends& e : ends) {
          if (clocks[e.host].known) continue;
          // own end >= their latest start, their end >= own latest start
          const Ns low = barriers ? e.latest_start - earliest_end : INT64_MIN;
          const Ns high = barriers ? e.earliest_end - latest_start : INT64_MAX;
          seen[e.host].push_back({common, e.end - common, low, high, transfer});
        }
      }
      const auto best =
          std::max_element(seen.begin(), seen.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
      if (best->empty()) continue;
      fit(*best, clocks[static_cast<std::size_t>(best - seen.begin())]);
      tied = true;
      break;
    }
    if (!tied) break;
  }

  return fitted;
}

void use_clocks(const std::vector<RankGraph>& ranks, Clocks fitted, Communication& out, Notes& notes) {
  out.clocks = std::move(fitted.clocks);
  out.clock_of_rank = std::move(fitted.of_rank);
  std::uint64_t untied = 0;
  std::string first;
  for (const HostClock& c : out.clocks) {
    if (c.known) continue;
    ++untied;
    if (first.empty()) first = "host of rank " + std::to_string(ranks[c.ranks.front()].communication.rank);
  }
  notes.add("clock-unknown", Severity::warning, untied, first,
            "no collective ties the clock of the host to that of the first: its times are taken as they are");
  for (CommRow& c : out.rows) {
    const Ns shift = ahead(out.clocks[out.clock_of_rank[c.rank]], c.start);
    c.start -= shift;
    c.end -= shift;
  }
}

}  // namespace orrery
