// Where the interval comes from
//   cause                      share %  half width ms
//   transfers between servers    71.20          3.104
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reports/predict_parts.h"

namespace orrery {
namespace {

constexpr double kLeast = 0.005;  // of the prediction

const char* what_narrows(Cause c) {
  switch (c) {
    case Cause::kernels_rescaled:
    case Cause::kernels_from_facts:
      return "measured times: --cost-table";
    case Cause::transfers_intra:
    case Cause::transfers_inter:
      return "a base with such transfers in its traces";
    case Cause::structure:
      return "a base nearer to this configuration";
    case Cause::untraced_partners:
      return "traces of all ranks";
    case Cause::replay:
      return "see orrery replay: what it does not explain";
    case Cause::host:
    case Cause::stragglers:
    case Cause::least:
      break;
  }
  return "";
}

}  // namespace

Doubt interval_of(const std::vector<AppliedEdit>& edits, double measured, double replayed, double predicted,
                  double unknown) {
  const double moved = std::abs(predicted - replayed);
  Doubt parts(Cause::replay, std::abs(replayed - measured));
  for (const AppliedEdit& e : edits) {
    if (e.changed.nodes == 0 && e.changed.edges == 0) continue;  // what changed nothing is not in doubt
    parts.add(e.doubt, moved);
    parts.add(e.floor, predicted);
  }
  if (moved > 0) parts.add(Cause::untraced_partners, unknown);
  const double least = kLeast * predicted, all = parts.total();
  if (all < least) parts.add(Cause::least, std::sqrt(least * least - all * all));
  return parts;
}

Section interval_section(const Doubt& parts) {
  Section s{.key = "predicted.interval", .title = "Where the interval comes from", .table = {}};
  s.table.columns = {{.key = "cause"},
                     {.key = "share_pct", .digits = 1},
                     {.key = "half_width_ms"},
                     {.key = "narrowed_by", .title = "what would narrow it"}};
  std::vector<std::size_t> order;
  for (std::size_t c = 0; c < kCauses; ++c)
    if (parts.by_cause[c] > 0) order.push_back(c);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return parts.by_cause[a] > parts.by_cause[b]; });
  const double all = parts.total();
  for (const std::size_t c : order) {
    const auto cause = static_cast<Cause>(c);
    const std::string narrows = what_narrows(cause);
    s.table.rows.push_back({std::string(name_of(cause)), percent(std::pow(parts.by_cause[c], 2), all * all),
                            parts.by_cause[c], narrows.empty() ? Cell{} : Cell{narrows}});
  }
  if (!order.empty()) {
    const double share = 100 * std::pow(parts.by_cause[order[0]] / all, 2);
    s.title += fmt::format(": {:.0f} % of it {}", share, name_of(static_cast<Cause>(order[0])));
  }
  return s;
}

}  // namespace orrery
