#include "operators/measure_operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace orrery {
namespace {

// Of what the floors allow, what an operator is expected to reach: to tell what does not fit into the budget.
constexpr double kExpectedOfPeak = 0.5, kExpectedOfStream = 0.3, kLeastNs = 2'000;
constexpr double kMostOfBudget = 0.15;  // for one operator
constexpr std::size_t kReferences = 4;
constexpr double kQuickS = 5;  // a budget below: the reference is small

class Run {
 public:
  Run(OperatorDevice& device, const MeasureAllTerms& terms, Lockstep& ranks)
      : device_(device), terms_(terms), ranks_(ranks), begin_(terms.now_s()) {}

  Result<MeasuredAll> all(const std::vector<OperatorRow>& plan) {
    for (std::size_t i = 0; i < plan.size(); ++i) {
      if (terms_.progress) terms_.progress(i, plan.size());
      if (i % std::max<std::size_t>(1, plan.size() / kReferences) == 0)
        if (const Status ok = reference(); !ok) return tl::unexpected(ok.error());
      const double left = std::max(0.0, terms_.budget_s - (terms_.now_s() - begin_));
      const double share = left / static_cast<double>(plan.size() - i);
      if (const Status ok = one(plan[i], 1e9 * share); !ok) return tl::unexpected(ok.error());
    }
    if (const Status ok = reference(); !ok) return tl::unexpected(ok.error());
    tell_drift();
    return std::move(out_);
  }

 private:
  double expected_ns(const OperatorRow& r) const {
    const double peak = floor(OperatorKind::peak, r.precision, &OperatorRow::flops);
    const double stream = floor(OperatorKind::stream, Precision::fp32, &OperatorRow::bytes);
    double ns = kLeastNs;
    if (peak > 0) ns += r.flops / (peak * kExpectedOfPeak);
    if (stream > 0) ns += r.bytes / (stream * kExpectedOfStream) * (is_collective(r.kind) ? 3 : 1);
    return ns;
  }
  double floor(OperatorKind kind, Precision p, double OperatorRow::*work) const {
    double best = 0;
    for (const OperatorRow& r : out_.rows)
      if (r.kind == kind && r.precision == p) best = std::max(best, r.*work / r.least_ns);
    return best;
  }

  Status one(OperatorRow row, double share_ns) {
    // Five batches and the warm-up of what takes long.
    const double most = kMostOfBudget * 1e9 * terms_.budget_s;
    const bool fits =
        7 * expected_ns(row) <= most || row.kind == OperatorKind::peak || row.kind == OperatorKind::stream;
    if (ranks_.of_first(fits ? 1 : 0) == 0) {
      out_.notes.add("operators-too-long", Severity::info, 1, kernel_text(row) + " " + shape_text(row),
                     "left out: too long for the budget of time; a larger --budget has them");
      return {};
    }
    auto prepared = device_.prepare(row);
    if (ranks_.most(prepared ? 0 : 1) > 0) {
      out_.notes.add("operators-left-out", Severity::info, 1, prepared ? kernel_text(row) : prepared.error().line(),
                     "the device, or a library that is not here, does not do them");
      return {};
    }
    if (!prepared) return gone(row);  // most() says 0 where a rank is gone
    row.library = prepared->library;
    MeasureTerms how;
    how.noisy = terms_.noisy;
    how.budget_ns = ranks_.of_first(std::min(share_ns, most));
    how.batch_ns = std::clamp(how.budget_ns / 20, 50e3, 2e6);
    how.least_batches = row.kind == OperatorKind::stream ? 10 : 5;
    if (!ranks_.meet() || prepared->run(1) <= 0) return gone(row);
    const Status right = prepared->check();
    if (ranks_.most(right ? 0 : 1) > 0)
      return right ? Status(fail("wrong on another rank", kernel_text(row)))
                   : Status(fail(right.error().what, kernel_text(row) + " " + shape_text(row)));
    if (!right) return gone(row);
    const Timing t = measure(prepared->run, how, ranks_);
    if (t.ns <= 0) return gone(row);
    row.ns = t.ns, row.least_ns = t.least_ns, row.spread = t.spread, row.repetitions = t.batches * t.repetitions;
    row.noisy = t.noisy;
    if (t.noisy)
      out_.notes.add("noisy-operators", Severity::warning, 1, kernel_text(row) + " " + shape_text(row),
                     fmt::format("times that spread by more than {:.0f} %: something else runs, or the clock changes",
                                 100 * terms_.noisy));
    out_.rows.push_back(std::move(row));
    return {};
  }

  // A product that is measured again and again, so that a change of the clock is seen.
  Status reference() {
    OperatorRow row;
    const double side = terms_.budget_s < kQuickS ? 96 : 512;
    row.size = {1, side, side, side};
    row.flops = 2 * side * side * side;
    row.bytes = 3 * 4 * side * side;
    auto prepared = device_.prepare(row);
    if (ranks_.most(prepared ? 0 : 1) > 0) return {};
    if (!prepared) return gone(row);
    MeasureTerms how;
    how.budget_ns = std::min(0.01e9 * terms_.budget_s, 200e6);
    const Timing t = measure(prepared->run, how, ranks_);
    if (t.ns <= 0) return gone(row);
    references_.push_back(t.ns);
    return {};
  }
  void tell_drift() {
    if (references_.size() < 2) return;
    const auto [least, most] = std::minmax_element(references_.begin(), references_.end());
    const double drift = *most / *least - 1;
    if (drift > terms_.noisy)
      out_.notes.add("clock-drift", Severity::warning, 1, fmt::format("{:.0f} %", 100 * drift),
                     "the same product took so much longer at one time than at another: measure again when "
                     "nothing else runs");
  }
  static Status gone(const OperatorRow& row) {
    return fail("failed while it was timed, or another rank is gone", kernel_text(row) + " " + shape_text(row));
  }

  OperatorDevice& device_;
  const MeasureAllTerms& terms_;
  Lockstep& ranks_;
  double begin_;
  MeasuredAll out_;
  std::vector<double> references_;
};

}  // namespace

Result<MeasuredAll> measure_operators(OperatorDevice& device, const std::vector<OperatorRow>& plan,
                                      const MeasureAllTerms& terms, Lockstep& ranks) {
  return Run(device, terms, ranks).all(plan);
}

}  // namespace orrery
