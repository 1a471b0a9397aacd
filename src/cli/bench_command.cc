// orrery bench: what this machine does, measured. The first operand says what of it.
#include <vector>

#include "base/closest.h"
#include "cli/bench_ops.h"
#include "cli/bench_runs.h"
#include "cli/common_options.h"
#include "cli/options.h"

namespace orrery {
namespace {

struct Part {
  PartOptions of;
  std::size_t operands;  // after the name
  Result<int> (*run)(const Args&);
};
const std::vector<Part>& bench_parts() {
  static const std::vector<Part> parts = [] {
    std::vector<Part> all = {
        {{"plan", {"--store", "--runs", "--unfit", "--repeat", "--time-budget"}}, 1, run_bench_plan},
        {{"run", {"--store", "--runs", "--unfit", "--repeat", "--time-budget"}}, 1, run_bench_run},
        {{"report", {"--store", "--runs", "--unfit", "--time-budget", "--against", "--html"}}, 1, run_bench_report},
        {{"ops", {}}, 0, run_bench_ops}};
    for (const OptionSpec& o : bench_ops_options()) all.back().of.options.push_back(o.name);
    return all;
  }();
  return parts;
}

Result<int> run_bench(const Args& args) {
  const std::string& name = args.positional.front();
  std::vector<std::string_view> names;
  std::vector<PartOptions> options;
  for (const Part& p : bench_parts()) options.push_back(p.of);
  for (const Part& p : bench_parts()) {
    names.push_back(p.of.part);
    if (p.of.part != name) continue;
    if (args.positional.size() != p.operands + 1)
      return fail(p.operands == 0 ? "takes no operand more" : "needs one operand more", "bench " + name,
                  "see orrery help bench");
    if (const Status ok = check_part(args, "bench", name, options); !ok) return tl::unexpected(ok.error());
    return p.run(args);
  }
  std::string all;
  for (const std::string_view n : names) all += (all.empty() ? "" : ", ") + std::string(n);
  const std::string_view near = closest(name, names);
  return fail("no part named " + name, "bench", near.empty() ? "one of " + all : "did you mean " + std::string(near));
}

}  // namespace

Command bench_command() {
  std::vector<Example> examples = bench_runs_examples();
  for (const Example& e : bench_ops_examples()) examples.push_back(e);
  return {
      .name = "bench",
      .summary = "measure this machine: a matrix of training runs, or single operators",
      .operands = "plan|run|report CONFIG.toml, or ops",
      .least = 1,
      .most = 2,
      .description =
          "A matrix of runs (tasks, models, techniques, batch sizes, sequence lengths, GPU counts, frameworks) is "
          "planned, measured and reported. CONFIG.toml describes it (docs/formats/bench.md). Models are shapes with "
          "random weights: nothing is downloaded.\n\n"
          "plan: the runs, what each should take by `orrery estimate`, and their order: the most informative first. "
          "What does not fit is left out, as are mixes of techniques that rules refuse, each with its reason.\n\n"
          "run: measures them one by one, each in a process group of its own with a time limit, here or through "
          "Slurm. Out of memory, a hang, a crash or a missing package are results with their reason. Everything "
          "is kept in a store (SQLite) as it comes: killed at any moment, the same command goes on.\n\n"
          "report: throughput and memory by technique and batch, scaling, stages and modules of a step, operators, "
          "measured beside estimated; compared with an older store.\n\n"
          "ops: single operators, measured in C++: matrix products, attention, kernels bound by memory, collectives. "
          "Each result is checked before it is timed; rates stand beside the floor, what the machine could do at most, "
          "which is measured first; what fits into a cache can be above it, as that is the rate of the memory. The "
          "table is what `estimate --calibrate` takes, and of a GPU `predict --cost-table` "
          "(docs/formats/operators.md).",
      .options = with(with(bench_runs_options(), bench_ops_options()), {kCsv, kJson, kQuiet, kThreads, kHelp}),
      .when_incomplete =
          "run: it was told to stop before its last run, or the program cannot be started; report --against: something "
          "became slower or is gone; ops: a product or attention that --gemm or --attention names was not measured",
      .examples = examples,
      .run = run_bench};
}

}  // namespace orrery
