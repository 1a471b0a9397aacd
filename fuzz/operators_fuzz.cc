// libFuzzer target of tables of operators, as CSV or JSON: any bytes must give a table that calibrates a law and is
// read again as it was written, or an error of one line.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "costs/cost_table.h"
#include "costs/measured_operators.h"

namespace {

using namespace orrery;

void require(bool ok) {
  if (!ok) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  (void)looks_like_operator_table(text);
  if (const auto costs = parse_cost_table(text, "fuzz"); !costs)
    require(!costs.error().what.empty() && costs.error().line().find('\n') == std::string::npos);
  const auto table = parse_operator_table(text, "fuzz");
  if (!table) {
    require(!table.error().what.empty() && table.error().line().find('\n') == std::string::npos);
    return 0;
  }
  require(!table->rows.empty());
  for (const OperatorRow& r : table->rows) require(r.ns > 0 && r.ranks >= 1 && r.threads >= 1 && std::isfinite(r.ns));
  const auto again = parse_operator_table(write_operator_table(*table), "again");
  require(again && again->rows.size() == table->rows.size());
  GpuFacts cpu;
  cpu.name = "made", cpu.arch = "CPU", cpu.sms = 1;
  cpu.fp32_tflops = 0.1, cpu.memory_gb_per_s = 20, cpu.memory_gib = 8;
  OperatorCosts costs(cpu);
  costs.use(std::make_shared<const MeasuredOperators>(
      MeasuredOperators::of_table(*table, table->rows.front().ranks, cpu, costs)));
  for (const double n : {1.0, 300.0, 1e5}) {
    GemmWork w;
    w.m = w.n = w.k = n, w.precision = Precision::fp32;
    require(costs.gemm(w).ns > 0 && std::isfinite(costs.gemm(w).ns));
    require(costs.memory(n).ns >= 0 && std::isfinite(costs.memory(n).ns));
  }
  return 0;
}
