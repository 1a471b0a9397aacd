// orrery bench: what this machine does, measured. The first operand says what of it.
#include <array>

#include "base/closest.h"
#include "cli/bench_ops.h"
#include "cli/common_options.h"

namespace orrery {
namespace {

struct Part {
  std::string_view name;
  std::size_t operands;  // after the name
  Result<int> (*run)(const Args&);
};
constexpr std::array<Part, 1> kBenchParts = {{{"ops", 0, run_bench_ops}}};

Result<int> run_bench(const Args& args) {
  const std::string& name = args.positional.front();
  std::vector<std::string_view> names;
  for (const Part& p : kBenchParts) {
    names.push_back(p.name);
    if (p.name != name) continue;
    if (args.positional.size() != p.operands + 1)
      return fail(p.operands == 0 ? "takes no operand more" : "needs one operand more", "bench " + name,
                  "see orrery help bench");
    return p.run(args);
  }
  std::string all;
  for (const std::string_view n : names) all += (all.empty() ? "" : ", ") + std::string(n);
  const std::string_view near = closest(name, names);
  return fail("no part named " + name, "bench", near.empty() ? "one of " + all : "did you mean " + std::string(near));
}

}  // namespace

Command bench_command() {
  return {.name = "bench",
          .summary = "measure this machine: operators",
          .operands = "ops",
          .least = 1,
          .most = 1,
          .description = "ops: single operators. docs/formats/operators.md describes the table.",
          .options = with(bench_ops_options(), {kCsv, kJson, kQuiet, kThreads, kHelp}),
          .when_incomplete = "something could not be measured",
          .examples = bench_ops_examples(),
          .run = run_bench};
}

}  // namespace orrery
