// libFuzzer target of the configuration of evaluations, and of results as suites write them. Any bytes must give a
// configuration whose plan has every item of every dataset once, or an error of one line; what is JSON must be read as
// what it is.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "trials/draw.h"
#include "trials/loose_json.h"

namespace {

void require(bool ok) {
  if (!ok) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const nlohmann::json loose = loose_json(text), strict = nlohmann::json::parse(text, nullptr, false);
  require(strict.is_discarded() || loose == strict);
  const auto config = parse_eval_config(text, "fuzz");
  if (!config) {
    require(!config.error().what.empty() && config.error().line().find('\n') == std::string::npos);
    return 0;
  }
  if (config->datasets.size() + config->drawn.size() > 50 || config->models.size() > 4) return 0;
  for (const DrawnDatasets& d : config->drawn)
    if (d.count > 50) return 0;
  if (config->cluster.nodes * config->cluster.gpus_per_node > 64) return 0;
  const PlannedEvals plan = plan_evals(*config, draw_units(*config, 1));
  std::vector<std::int64_t> items(plan.believed.units.size(), 0);
  for (const EvalTrial& t : plan.trials)
    for (const TrialPiece& p : t.pieces) items[p.unit] += p.items;
  for (std::size_t u = 0; u < items.size(); ++u) require(items[u] == plan.believed.units[u].items);
  require(std::isfinite(plan.timeline.makespan_s) && plan.timeline.makespan_s >= plan.bound_s * (1 - 1e-9));
  return 0;
}
