#include "cli/bench_ops.h"

#include "cli/common_options.h"

namespace orrery {

std::vector<OptionSpec> bench_ops_options() {
  return {{"--sizes", "SET", "small, medium or large shapes (default: medium)", Takes::word}};
}

std::vector<Example> bench_ops_examples() { return {{"Operators of this machine:", "orrery bench ops"}}; }

Result<int> run_bench_ops(const Args&) { return fail("measures nothing yet", "bench ops"); }

}  // namespace orrery
