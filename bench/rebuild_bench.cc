// How fast is another configuration of a job that is loaded already? Taking the job apart (once), then for each
// configuration putting it together and replaying it.
// usage: rebuild_bench [TRACES]   (default: the simulated job of 16 ranks of ../shared/data, else the sample)
// The floor of a configuration: each node and edge of the new graph written once and read once by the replay.
#include <fmt/core.h>
#include <sys/resource.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <string>

#include "graph/build.h"
#include "importers/importers.h"
#include "whatif/search.h"
#include "whatif/target.h"

namespace {

using namespace orrery;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double memory_gb() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return static_cast<double>(use.ru_maxrss) / 1e6;
}

// Seconds to write and read so many bytes with one thread, as this machine does now.
double copy_seconds(std::size_t bytes) {
  std::vector<char> from(bytes, 1), to(bytes);
  const double begin = seconds();
  std::copy(from.begin(), from.end(), to.begin());
  return seconds() - begin + (to.back() == 1 ? 0 : 1);
}

int fail_with(const Error& e) {
  fmt::print(stderr, "rebuild_bench: {}\n", e.line());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::string path = argc > 1 ? argv[1] : "../shared/data/oracle/gpt3-15b/base";
  if (argc < 2 && !std::filesystem::exists(path)) path = "samples/gpt-tp2-pp2-dp2";
  auto traces = import_traces({path});
  if (!traces) return fail_with(traces.error());
  auto build = build_graph(*traces);
  if (!build) return fail_with(build.error());
  Replay base;
  replay(build->graph, base);
  auto layout = recognise_layout(*traces, *build);
  if (!layout) return fail_with(layout.error());

  const double begin = seconds();
  const Overlap overlap = overlap_of(build->graph, learn_contention(*traces, *build), base);
  auto job = learn_job(*traces, *build, *layout, {}, overlap);
  if (!job) return fail_with(job.error());
  fmt::print("{}: {} nodes, taken apart in {:.0f} ms\n", path, build->graph.size(), 1000 * (seconds() - begin));
  fmt::print("{:<44} {:>10} {:>9} {:>9} {:>10} {:>9} {:>7}\n", "configuration", "nodes", "build ms", "replay ms",
             "together", "floor ms", "times");
  const auto text = [](std::int64_t n) { return std::to_string(n); };
  const JobLayout& l = job->base.layout;
  const std::vector<std::pair<std::string, std::map<std::string, std::string>>> cases = {
      {"as it is", {}},
      {"twice the data parallelism", {{"--dp", text(2 * l.dp)}}},
      {"twice the stages", {{"--pp", text(2 * l.pp)}}},
      {"twice the layers", {{"--layers", text(2 * l.layers)}}},
      {"half the layers, twice the micro-batches",
       {{"--layers", text(l.layers / 2)}, {"--num-microbatches", text(2 * l.num_microbatches)}}}};
  for (const auto& [name, asked] : cases) {
    const auto shape = target_shape(*job, asked);
    if (!shape) return fail_with(shape.error());
    const double start = seconds();
    RatesError error;
    auto made = rebuild_as(*traces, *build, *job, *shape, nullptr, {}, error);
    if (!made) return fail_with(made.error());
    const double built = seconds();
    Replay r;
    replay_with_contention(made->build.graph, overlap_for(*made, overlap, *traces), r);
    const double done = seconds();
    const ExecGraph& g = made->build.graph;
    if (asked.empty()) {  // the answer before the time
      const double off = iteration_ms(g, r) / iteration_ms(build->graph, base) - 1;
      if (std::abs(off) > 0.002) {
        fmt::print(stderr, "rebuild_bench: put together as it was the job takes {:+.2f} % more\n", 100 * off);
        return 1;
      }
    }
    const std::size_t bytes =
        std::size_t{g.size()} * (8 + 8 + 4 + 1 + 1 + 4 + 4 + 4 + 21) + std::size_t{g.edges()} * 13;
    const double floor = copy_seconds(bytes);
    fmt::print("{:<44} {:>10} {:>9.0f} {:>9.0f} {:>7.0f} ms {:>9.0f} {:>7.1f}\n", name, g.size(),
               1000 * (built - start), 1000 * (done - built), 1000 * (done - start), 1000 * floor,
               (done - start) / floor);
  }
  fmt::print("memory: {:.2f} GB; bound of a further configuration of 16 ranks: 500 ms\n", memory_gb());
  return 0;
}
