// How fast are months of failures simulated? The yardstick: a month of 2,048 GPUs in under a second.
//
//   guard_bench [MONTHS, 2000]
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdlib>

#include "supervisor/checkpoint_interval.h"
#include "supervisor/simulate.h"

int main(int argc, char** argv) {
  using namespace orrery;
  using Clock = std::chrono::steady_clock;
  MonthsQuestion q;
  q.trials = argc > 1 ? std::atoll(argv[1]) : 2000;
  q.automatic = 1;  // restarts of one length, so that the answer has a closed form
  q.repair_s = 0;
  if (q.trials < 100) {
    fmt::print(stderr, "guard_bench: at least 100 months\n");
    return 2;
  }
  const auto begin = Clock::now();
  const PolicyMonths m = simulate_months(q, {Restarts::guard, Saves::sync}, 1);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();

  const double kept = q.interval_s * std::exp(-(q.startup_s + q.interval_s + q.save_s) / m.mtbf_s) /
                      -std::expm1(-(q.interval_s + q.save_s) / m.mtbf_s);
  const double expected = kept / (m.mtbf_s + q.detect_s + q.check_s);
  // a month ends before its last run fails: half an interval of a month more is of use
  if (std::abs(m.ettr_mean() / expected - 1) > 0.003) {
    fmt::print(stderr, "guard_bench: ETTR {:.4f}, not {:.4f}\n", m.ettr_mean(), expected);
    return 1;
  }
  const double failures = m.failures * static_cast<double>(q.trials);
  fmt::print("{} months of {} GPUs, one thread: {:.3f} s, the search for the best interval included\n", q.trials,
             q.gpus, seconds);
  fmt::print("{:.0f} months a second (yardstick 1), {:.1f} million failures a second\n",
             static_cast<double>(q.trials) / seconds, failures / seconds / 1e6);
  return 0;
}
