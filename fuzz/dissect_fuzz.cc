// libFuzzer target of `dissect`: whatever the importer and the graph accept must be taken apart so that all of it adds
// up to the steps, twice alike. Names, shapes and arguments of operators are read here for the first time.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "graph/build.h"
#include "importers/importers.h"
#include "reports/dissect.h"
#include "reports/reports.h"
#include "writers/json.h"

namespace {

void require(bool ok) {
  if (!ok) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  ImportOptions options;
  options.threads = 1;
  options.recover = true;
  auto ranks = import_kineto_ranks(std::string_view(reinterpret_cast<const char*>(data), size), "input", options);
  if (!ranks) return 0;
  TraceSet set;
  for (RankTrace& t : *ranks) {
    t.rank = static_cast<std::int64_t>(set.ranks.size());
    set.ranks.push_back(std::move(t));
  }
  if (set.ranks.empty()) return 0;
  GraphOptions how;
  how.threads = 1;
  const auto build = build_graph(set, how);
  if (!build) return 0;
  DissectReportOptions report;
  report.threads = 1;
  const auto document = dissect_document(set, *build, report);
  require(document.has_value());
  require(to_json(*document) == to_json(*dissect_document(set, *build, report)));
  for (const RankTrace& t : set.ranks) {
    const Ns middle = t.window_start + (t.window_end - t.window_start) / 2;
    const std::vector<Interval> steps{{t.window_start, middle}, {middle, t.window_end}};
    if (steps[0].begin >= steps[0].end || steps[1].begin >= steps[1].end) continue;
    const Dissection d = dissect_rank(t, steps, steps, {});
    Ns gpu = d.idle, host = 0;
    for (const DissectedTask& task : d.tasks) {
      require(task.exclusive >= 0 && task.module < d.modules.size());
      gpu += task.exclusive;
    }
    for (const Ns x : d.host) host += x;
    require(d.idle >= 0 && gpu == d.length && host == d.length);
  }
  return 0;
}
