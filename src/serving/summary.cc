#include "serving/summary.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace orrery {
namespace {

constexpr double kMs = 1e6;
constexpr std::size_t kCdfPoints = 100;

double at(const std::vector<double>& sorted, double q) {
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(place);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (place - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

}  // namespace

Quantiles quantiles_of(std::vector<double> v) {
  Quantiles q;
  if (v.empty()) return q;
  std::sort(v.begin(), v.end());
  double sum = 0;
  for (const double x : v) sum += x;
  q.count = static_cast<double>(v.size());
  q.mean = sum / q.count;
  q.p50 = at(v, 0.5), q.p90 = at(v, 0.9), q.p95 = at(v, 0.95), q.p99 = at(v, 0.99), q.max = v.back();
  return q;
}

Quantiles quantiles_of(const LogHistogram& ns) {
  return {ns.mean() / kMs,
          ns.quantile(0.5) / kMs,
          ns.quantile(0.9) / kMs,
          ns.quantile(0.95) / kMs,
          ns.quantile(0.99) / kMs,
          ns.largest() / kMs,
          ns.count()};
}

ServingFigures figures_of(const std::vector<RequestRecord>& requests, const LogHistogram& itl) {
  ServingFigures f;
  std::vector<double> latency, ttft, tpot;
  double begin = 0, end = 0;
  bool any = false;
  for (const RequestRecord& r : requests) {
    if (r.end < 0) {
      ++f.failed;
      continue;
    }
    begin = any ? std::min(begin, r.arrival) : r.arrival;
    end = any ? std::max(end, r.end) : r.end;
    any = true;
    ++f.completed;
    f.input_tokens += r.input, f.output_tokens += r.output;
    latency.push_back((r.end - r.arrival) / kMs);
    ttft.push_back((r.first_token - r.arrival) / kMs);
    if (r.output > 1) tpot.push_back((r.end - r.first_token) / kMs / static_cast<double>(r.output - 1));
  }
  f.seconds = (end - begin) / 1e9;
  if (f.seconds > 0) {
    f.requests_per_s = static_cast<double>(f.completed) / f.seconds;
    f.output_tokens_per_s = static_cast<double>(f.output_tokens) / f.seconds;
    f.tokens_per_s = static_cast<double>(f.input_tokens + f.output_tokens) / f.seconds;
  }
  std::sort(latency.begin(), latency.end());
  for (std::size_t k = 1; k <= kCdfPoints && !latency.empty(); ++k) {
    const std::size_t below = (latency.size() * k + kCdfPoints - 1) / kCdfPoints;
    f.cdf.emplace_back(latency[below - 1], static_cast<double>(below) / static_cast<double>(latency.size()));
  }
  f.latency = quantiles_of(std::move(latency));
  f.ttft = quantiles_of(std::move(ttft));
  f.tpot = quantiles_of(std::move(tpot));
  f.itl = quantiles_of(itl);
  return f;
}

double share_within(const std::vector<RequestRecord>& requests, const ServiceLevel& level) {
  std::size_t kept = 0, told = 0;
  for (const RequestRecord& r : requests) {
    ++told;
    if (r.end < 0) continue;
    const double ttft = (r.first_token - r.arrival) / kMs, latency = (r.end - r.arrival) / kMs;
    if ((level.ttft_ms > 0 && ttft > level.ttft_ms) || (level.latency_ms > 0 && latency > level.latency_ms)) continue;
    if (level.tpot_ms > 0) {
      if (r.output < 2) {
        --told;
        continue;
      }
      if ((r.end - r.first_token) / kMs / static_cast<double>(r.output - 1) > level.tpot_ms) continue;
    }
    ++kept;
  }
  if (told == 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(kept) / static_cast<double>(told);
}

RateFound highest_rate(const StepCosts& costs, const ServeMemory& memory, Workload workload, double cv,
                       std::uint64_t seed, const ServeOptions& options, const ServiceLevel& level) {
  RateFound found;
  const auto run_at = [&](double rate) {
    set_arrivals(workload, rate, cv, seed);
    ++found.runs;
    return simulate(costs, memory, workload, options);
  };
  const auto share_at = [&](double rate) { return share_within(run_at(rate).requests, level); };
  const Simulation at_once = run_at(0);
  const double share = share_within(at_once.requests, level);
  if (std::isnan(share)) {
    found.known = false;
    return found;
  }
  if (share >= level.share) {
    found.bounded = false, found.share = share;
    return found;
  }
  const double capacity = figures_of(at_once.requests, at_once.itl).requests_per_s;
  // Far below what one request after the other takes the level is kept, if ever.
  double low = std::min(1e-3, capacity), high = capacity;
  double kept = share_at(low);
  if (!(kept >= level.share) || capacity <= 0) return found;
  if (const double most = share_at(capacity); most >= level.share) {
    found.rate = capacity, found.share = most, found.at_capacity = true;
    return found;
  }
  while (high / low > 1.01) {
    const double mid = std::sqrt(low * high), there = share_at(mid);
    if (there >= level.share)
      low = mid, kept = there;
    else
      high = mid;
  }
  found.rate = low, found.share = kept;
  return found;
}

}  // namespace orrery
