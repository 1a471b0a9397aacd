// What a run of requests comes to: rates, and quantiles of the times that users feel. Of simulated and of measured runs
// alike.
#pragma once
#include <utility>
#include <vector>

#include "serving/simulate.h"

namespace orrery {

struct Quantiles {  // ms; all 0 without values
  double mean = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
  double count = 0;
};
// Between two values in proportion (as numpy does).
Quantiles quantiles_of(std::vector<double> values);
Quantiles quantiles_of(const LogHistogram& ns);

struct ServingFigures {
  std::int64_t completed = 0, failed = 0;
  std::int64_t input_tokens = 0, output_tokens = 0;  // of completed requests
  double seconds = 0;                                // from the first arrival to the last end
  double requests_per_s = 0, tokens_per_s = 0, output_tokens_per_s = 0;
  Quantiles latency, ttft, tpot, itl;
  std::vector<std::pair<double, double>> cdf;  // of latency: ms, share of completed requests at or below; 100 points
};

// latency: end - arrival; ttft: first token - arrival; tpot: (end - first token) / (tokens - 1), of requests with at
// least two tokens; itl: between one token and the next.
ServingFigures figures_of(const std::vector<RequestRecord>& requests, const LogHistogram& itl);

// A service level: both hold for a request. 0 = not asked.
struct ServiceLevel {
  double ttft_ms = 0, tpot_ms = 0, latency_ms = 0;
  double share = 0.9;  // of requests that it has to hold for
  bool asked() const { return ttft_ms > 0 || tpot_ms > 0 || latency_ms > 0; }
};
// Share of the requests that keep it; refused and failed ones do not. An answer of one token has no time per token
// after the first: where that is asked for and it breaks nothing else, it does not count. NaN: no request tells.
double share_within(const std::vector<RequestRecord>& requests, const ServiceLevel& level);

struct RateFound {
  double rate = 0;  // highest that keeps the level, requests a second; 0 = none does
  double share = 0;
  bool bounded = true;       // false: still kept with all requests at once
  bool known = true;         // false: no request tells whether it keeps the level
  bool at_capacity = false;  // the level is kept up to the rate at which all at once are answered, and no rate above it
                             // is looked at: a run that is over before a queue forms says nothing about it
  std::int64_t runs = 0;
};
// Bisects over the rate to 1 %, up to that at which the same requests are answered when all come at once, with the same
// requests and the same random numbers for each.
RateFound highest_rate(const StepCosts& costs, const ServeMemory& memory, Workload workload, double cv,
                       std::uint64_t seed, const ServeOptions& options, const ServiceLevel& level);

}  // namespace orrery
