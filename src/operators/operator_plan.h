// Which operators are measured: shapes, precisions, and the work in each.
#pragma once
#include <string>
#include <vector>

#include "costs/operator_table.h"
#include "facts/models.h"

namespace orrery {

enum class SizeSet : std::uint8_t { tiny, small, medium, large };  // tiny: to try whether it works

struct PlanTerms {
  SizeSet sizes = SizeSet::medium;
  std::vector<Precision> precisions = {Precision::fp32};
  std::vector<OperatorKind> only;                                // empty = all
  std::vector<std::array<double, 4>> gemms;                      // batch, m, n, k: beside those of `sizes`
  std::vector<std::array<double, 4>> attentions;                 // sequences * heads, queries, keys, head size
  const ModelFacts* model = nullptr;                             // its products and attention ...
  double tokens = 2'048, tensor_parallel = 1, sequence = 1'024;  // ... of so many tokens on one of so many ranks
  std::int64_t ranks = 1, threads = 1;
  double cache_mib = 0;  // of the last level of a CPU, what the ranks may use together; 0 = not known
  std::string device = "cpu";
};

// Rows without times, in the order in which they are measured: floors first, then each kind by size. Each once.
std::vector<OperatorRow> plan_operators(const PlanTerms& terms);

// Whether attention is planned in this precision.
bool attends_in(Precision precision, bool gpu);

// Fills bytes and flops of the row from its kind, size and precision. Attention counts two products, half of them where
// causal; bytes are what must be read and written once.
void count_work(OperatorRow& row);

}  // namespace orrery
