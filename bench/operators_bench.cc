// Operators of this machine, measured; a fourth of the shapes left out, and how near the laws come to them that the
// other three fourths calibrate (beside the laws without a table).
//   operators_bench [SECONDS [TABLE.csv]]     default: 30 s of measuring; or a table that `orrery bench ops -o` wrote
// Checked first: the same table, nothing left out, gives back what was measured. Yardstick of speed: a question to the
// calibrated law against one to the law of facts.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "costs/measured_operators.h"
#include "operators/cpu_operators.h"
#include "operators/machine.h"
#include "operators/measure_operators.h"
#include "operators/operator_plan.h"

namespace {

using namespace orrery;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

class Alone final : public RankGroup {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string transport() const override { return "none"; }
  bool all_reduce(float*, std::size_t) override { return true; }
  bool all_gather(const float*, std::size_t, float*) override { return true; }
  bool reduce_scatter(const float*, std::size_t, float*) override { return true; }
  bool all_to_all(const float*, std::size_t, float*) override { return true; }
};

Result<OperatorTable> measured(double seconds) {
  Alone alone;
  const Machine machine = this_machine();
  CpuTerms terms;
  terms.threads = static_cast<unsigned>(machine.cores);
  terms.blas = Blas::find();
  CpuOperators device(terms, alone);
  PlanTerms plan;
  plan.threads = machine.cores;
  if (device.has_bf16()) plan.precisions.push_back(Precision::bf16);
  auto all =
      measure_operators(device, plan_operators(plan), {.budget_s = seconds, .noisy = 0.1, .now_s = now_s}, alone);
  if (!all) return tl::unexpected(all.error());
  OperatorTable t;
  t.machine = machine.cpu;
  t.rows = std::move(all->rows);
  return t;
}

GpuFacts facts_of(const OperatorTable& t) {
  GpuFacts g;
  g.name = t.machine, g.arch = "CPU";
  g.sms = static_cast<int>(t.rows.front().threads);
  g.fp32_tflops = t.best_flop_per_ns(OperatorKind::peak, Precision::fp32) / 1e3;
  g.bf16_tflops = t.best_flop_per_ns(OperatorKind::peak, Precision::bf16) / 1e3;
  g.memory_gb_per_s = t.best_bytes_per_ns(OperatorKind::stream);
  return g;
}

OperatorCosts calibrated(const OperatorTable& t, const GpuFacts& g) {
  OperatorCosts costs(g);
  costs.use(std::make_shared<const MeasuredOperators>(MeasuredOperators::of_table(t, t.rows.front().ranks, g, costs)));
  return costs;
}

struct Errors {
  double law = 0, table = 0, worst = 0;
  int n = 0, noisy = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 30;
  Result<OperatorTable> table = fail("");
  if (argc > 2) {
    std::ifstream in(argv[2]);
    std::ostringstream text;
    text << in.rdbuf();
    table = parse_operator_table(text.str(), argv[2]);
  } else {
    table = measured(seconds);
  }
  if (!table) {
    fmt::print(stderr, "{}\n", table.error().line());
    return 2;
  }
  const GpuFacts gpu = facts_of(*table);
  const OperatorCosts law(gpu), whole = calibrated(*table, gpu);
  // Checked before anything is told: what was measured, and was not noisy, comes back.
  for (const OperatorRow& r : table->rows) {
    const double ns = modelled_ns(r, whole);
    const double lowest = r.least_ns > 0 ? r.least_ns : r.ns;
    if (ns > 0 && r.kind != OperatorKind::attention && !r.noisy && (ns < 0.7 * lowest || ns > 1.4 * r.ns)) {
      fmt::print(stderr, "{} {} is measured as {:.0f} ns and modelled as {:.0f}\n", kernel_text(r), shape_text(r), r.ns,
                 ns);
      return 1;
    }
  }
  std::map<std::string, Errors> errors;
  for (std::size_t fold = 0; fold < 4; ++fold) {
    OperatorTable rest = *table;
    rest.rows.clear();
    for (std::size_t i = 0; i < table->rows.size(); ++i)
      if (i % 4 != fold) rest.rows.push_back(table->rows[i]);
    const OperatorCosts costs = calibrated(rest, gpu);
    for (std::size_t i = fold; i < table->rows.size(); i += 4) {
      const OperatorRow& r = table->rows[i];
      const double now = modelled_ns(r, costs), before = modelled_ns(r, law), told = time_of(r).first;
      if (now <= 0 || before <= 0) continue;
      const std::string kind = moves_memory(r.kind) ? "bound by memory" : kernel_text(r);
      for (Errors* e : {&errors[kind], &errors["all"]}) {
        ++e->n, e->noisy += r.noisy;
        e->table += std::abs(now / told - 1), e->law += std::abs(before / told - 1);
        e->worst = std::max(e->worst, std::abs(now / told - 1));
      }
    }
  }
  fmt::print("{}: {} rows; each fourth left out in turn, mean error of the laws\n", table->machine, table->rows.size());
  fmt::print("{:<32}{:>8}{:>8}{:>16}{:>16}{:>10}\n", "kind", "shapes", "noisy", "from facts %", "calibrated %",
             "worst %");
  for (const auto& [kind, e] : errors)
    fmt::print("{:<32}{:>8}{:>8}{:>16.1f}{:>16.1f}{:>10.1f}\n", kind, e.n, e.noisy, 100 * e.law / e.n,
               100 * e.table / e.n, 100 * e.worst);
  const auto question = [](const OperatorCosts& costs) {
    constexpr int kQuestions = 20'000;
    double sum = 0;
    const double begin = now_s();
    for (int i = 0; i < kQuestions; ++i) {
      GemmWork w;
      w.m = 64 + i % 512, w.n = 256, w.k = 512, w.precision = Precision::fp32;
      sum += costs.gemm(w).ns;
    }
    return sum > 0 ? 1e9 * (now_s() - begin) / kQuestions : 0;
  };
  const double plain = question(law), fitted = question(whole);
  fmt::print("a question of a product: {:.0f} ns by the law of facts, {:.0f} calibrated ({:.1f} times)\n", plain,
             fitted, fitted / plain);
  return 0;
}
