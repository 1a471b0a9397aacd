// Laws of operators with the numbers of one machine, from a table of what was measured on it (operator_table.h); and
// those of a CPU from facts alone.
//
//   matrix product on a CPU
//     time = overhead + (compute^4 + memory^4)^(1/4)
//     compute = 2 * batch * (m + edge_m) * (n + edge_n) * (k + edge_k) / (share * peak)
//       edges: tiles that are not full, packing of operands, sums that begin and end
//     memory = operands and result at bandwidth
//   attention on a CPU: overhead + pairs * 4 * (head size + edge) / (share * peak)
//   both, and products on a GPU by gemm_law.h: times what the law leaves unexplained, as a smooth function of the size
//   kernels bound by memory: a line through the logarithms of time and bytes, each kind of its own
//   collectives: the numbers of collective.h
//
// On a CPU, whose law is fitted to the rows, a product or an attention of more work than the largest of them is known
// less well: by 3 and 10 % (one standard deviation of the logarithm) for each factor of e beyond it. An assumption:
// docs/model.md, "Facts from tables and steps".
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "costs/collective.h"
#include "costs/log_residual.h"
#include "costs/operator_table.h"

namespace orrery {

struct CpuGemmFit {
  double overhead_ns = 500, share = 0.8, edge_m = 2, edge_n = 8, edge_k = 16, memory_share = 1;
};
struct CpuAttentionFit {
  double overhead_ns = 1'000, share = 0.35, edge = 16;
};

class MeasuredOperators {
 public:
  // Of a CPU, from facts alone.
  static MeasuredOperators of_cpu(const GpuFacts& cpu);
  // Of the rows with so many ranks. Noisy rows count with their quickest batch and a wide doubt. Operators that were
  // not measured keep their laws. `gpu`: the device's facts, `laws`: of it, without any table (not asked on a CPU).
  static MeasuredOperators of_table(const OperatorTable& table, std::int64_t ranks, const GpuFacts& gpu,
                                    const OperatorCosts& laws);

  // What was measured stands in for the law; nullopt: it was not. `law`: of a GPU.
  std::optional<OperatorTime> gemm(const GemmWork& w, const OperatorTime& law) const;
  std::optional<OperatorTime> attention(const AttentionWork& w) const;
  std::optional<OperatorTime> memory(double bytes, MemoryKernel kind, Precision p) const;
  double launch_ns() const { return launch_ns_; }  // of a GPU, on its host; 0 = not measured

 private:
  struct Gemm {
    bool measured = false;
    CpuGemmFit fit;
    LogResidual residual;
    double error = 0.25, largest_flop = 0;  // of the rows
  };
  struct Curve {  // logarithms of bytes and of ns, ascending
    std::vector<std::pair<double, double>> points;
    double error = 0.1;
    double ns(double bytes) const;
  };
  double cpu_gemm_ns(const CpuGemmFit& fit, const GemmWork& w) const;
  double cpu_attention_ns(const CpuAttentionFit& fit, const AttentionWork& w) const;
  void fit_gemms(const std::vector<const OperatorRow*>& rows, Precision p, const OperatorCosts& laws);
  void fit_attention(const std::vector<const OperatorRow*>& rows);
  const Curve* curve_of(OperatorKind kind, Precision p) const;

  bool cpu_ = false;
  GpuFacts gpu_;
  std::array<Gemm, kPrecisionCount> gemm_;
  bool attention_measured_ = false;
  CpuAttentionFit attention_;
  LogResidual attention_residual_;
  double attention_error_ = 0.35, attention_largest_flop_ = 0;
  std::array<std::array<Curve, 2>, kOperatorKinds> curves_;  // by kind; of four bytes an element, of two
  double launch_ns_ = 0;
};

// What the law makes of a row: the time that MeasuredOperators, or without them `laws`, give it; 0 = none of them has
// it.
double modelled_ns(const OperatorRow& row, const OperatorCosts& laws);

// The transfers among the rows, for fit_network.
std::vector<TransferSample> transfer_samples(const OperatorTable& table, std::int64_t ranks);
// The time to go by and its doubt: of a noisy row that of its quickest batch.
std::pair<double, double> time_of(const OperatorRow& row);

}  // namespace orrery
