#include "serving/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace orrery {
namespace {

constexpr double kMost = 20;  // times the estimate

Workload workload_of(const MeasuredRun& run) {
  Workload w;
  for (const RequestRecord& r : run.requests) {
    if (r.end < 0) continue;
    Request q;
    q.arrival_ns = r.arrival;
    q.input = r.input, q.output = r.output;
    w.requests.push_back(q);
  }
  std::stable_sort(w.requests.begin(), w.requests.end(),
                   [](const Request& a, const Request& b) { return a.arrival_ns < b.arrival_ns; });
  return w;
}

// Time to the first token of requests that nothing kept waiting: of the quickest tenth the slowest, ns.
double unhindered_ttft(const std::vector<RequestRecord>& requests) {
  std::vector<double> ttft;
  for (const RequestRecord& r : requests)
    if (r.end >= 0) ttft.push_back(r.first_token - r.arrival);
  if (ttft.empty()) return 0;
  const auto at = ttft.begin() + static_cast<std::ptrdiff_t>(ttft.size() / 10);
  std::nth_element(ttft.begin(), at, ttft.end());
  return *at;
}

}  // namespace

Result<std::vector<ServiceFactor>> calibrate_service(const MeasuredRun& run, ServeJob& job, StepCosts& costs,
                                                     const ServeOptions& options) {
  const Workload w = workload_of(run);
  const ServeMemory memory = memory_of(job);
  const ServingFigures measured = figures_of(run.requests, {});
  if (measured.tpot.count == 0)
    return fail("only answers of one token: they do not tell what a token takes", "--calibrate", "longer answers");
  double ttft = 0;  // of the last simulation
  const auto simulated = [&](double factor) {
    costs.scale(factor, factor);
    const Simulation s = simulate(costs, memory, w, options);
    ttft = unhindered_ttft(s.requests);
    return figures_of(s.requests, {});
  };
  const ServingFigures before = simulated(1);
  if (before.tpot.count == 0) return fail("the estimate refuses all of its requests", "--calibrate");
  double low = 1 / kMost, high = kMost;
  if (simulated(low).tpot.mean > measured.tpot.mean || simulated(high).tpot.mean < measured.tpot.mean) {
    costs.scale(1, 1);
    return fail(fmt::format("{:.3f} ms a token measured, {:.3f} estimated: more than {:g} times apart",
                            measured.tpot.mean, before.tpot.mean, kMost),
                "--calibrate", "is it the same model on the same platform?");
  }
  while (high / low > 1.0005) {
    const double mid = std::sqrt(low * high);
    (simulated(mid).tpot.mean < measured.tpot.mean ? low : high) = mid;
  }
  const double factor = std::sqrt(low * high);
  const ServingFigures after = simulated(factor);
  const double request_us = job.engine.request_us;
  job.engine.request_us = std::max(0.0, request_us + (unhindered_ttft(run.requests) - ttft) / 1e3);
  const auto events = static_cast<std::uint64_t>(measured.completed);
  return std::vector<ServiceFactor>{
      {"time of a step, kernels and host", "times", 1, factor, events},
      {"mean time per token (TPOT), as simulated", "ms", before.tpot.mean, after.tpot.mean, events},
      {"work of a new request before it waits", "us", request_us, job.engine.request_us, events}};
}

}  // namespace orrery
