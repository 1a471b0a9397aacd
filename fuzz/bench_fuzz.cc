// libFuzzer target of what `orrery bench` reads: the first byte chooses a matrix's file, lines of a worker, a table of
// techniques or a specification that the store holds. Any bytes must give what is within its limits, or an error of one
// line.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "bench/launch.h"
#include "bench/matrix.h"
#include "bench/worker_lines.h"

namespace {

using namespace orrery;

void require(bool ok) {
  if (!ok) std::abort();
}

template <class T>
bool good(const Result<T>& r) {
  if (r) return true;
  require(!r.error().what.empty() && r.error().line().find('\n') == std::string::npos);
  return false;
}

void check_matrix(const std::string& text) {
  // Files of facts are not the fuzzer's.
  if (text.find(".toml") != std::string::npos || text.find("facts") != std::string::npos) return;
  const auto c = parse_bench_config(text, "fuzz.toml");
  if (!good(c)) return;
  const ExpandedMatrix e = expand(*c);
  require(e.runs.size() + e.refused.size() <= static_cast<std::size_t>(kMostRuns));
  for (const RefusedRun& r : e.refused) require(!r.reason.empty());
  std::size_t looked = 0;
  for (const BenchRun& r : e.runs) {
    if (++looked > 20) break;
    require(r.gpus > 0 && r.batch >= 0 && r.seq_length > 0);
    const auto back = run_of_spec(spec_of(*c, r));
    require(good(back) && back->id() == r.id());
    (void)good(launch_of(*c, r, {.batch = 1, .steps = 1}, "/d", "/w"));
  }
}

void check_lines(const std::string& text) {
  for (const WorkerReport& r : {read_worker_lines(text), read_by_pattern(text, "([0-9.e+-]+) ms", 1)})
    for (const MeasuredStep& s : r.steps) require(std::isfinite(s.ms) && s.ms >= 0 && s.step >= 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0]) {
    case 'l':
      check_lines(text);
      break;
    case 't':
      (void)good(parse_techniques(text, "fuzz"));
      if (const auto t = read_techniques(text); good(t)) (void)refused_because(*t, "pretrain", "pytorch");
      break;
    case 's':
      (void)good(run_of_spec(text));
      break;
    default:
      check_matrix(text);
  }
  return 0;
}
