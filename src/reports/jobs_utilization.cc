#include "reports/jobs_utilization.h"

#include <fmt/format.h>

#include "base/text_match.h"
#include "reports/jobs.h"

namespace orrery {
namespace {

// "gpu_mem_pct (util_gpu_b)": of two files
std::string bare(const std::string& metric) { return lower(metric.substr(0, metric.find(" ("))); }

// Where doing nothing shows as zero.
bool is_busyness(const std::string& metric) {
  return has_any(bare(metric), {"util", "active", "occupancy", "send", "recv", "receive", "busy"});
}

bool is_gpu_power(const std::string& metric) {
  const std::string name = bare(metric);
  return is_power(name) && (has(name, "power_usage") || (has(name, "gpu") && !has(name, "server")));
}

}  // namespace

void describe_utilization(const std::vector<UtilMetric>& metrics, const PowerTerms& terms, std::vector<Section>& out) {
  if (metrics.empty()) return;
  Section s{.key = "clusters[].utilization{}", .title = "Utilisation", .table = {}};
  // For people what tells rows apart comes first: a first column is not cut.
  s.table.columns = {{.key = "cluster", .json_only = true},
                     {.key = "metric", .json_only = true},
                     {.key = "of", .title = "metric", .text_only = true},
                     {.key = "where", .title = "cluster", .text_only = true},
                     {.key = "samples"},
                     {.key = "devices"},
                     {.key = "missing_pct", .title = "% missing", .digits = 1},
                     {.key = "mean", .digits = 1},
                     {.key = "p10", .json_only = true},
                     {.key = "p25", .digits = 1},
                     {.key = "p50", .title = "median", .digits = 1},
                     {.key = "p75", .digits = 1},
                     {.key = "p90", .digits = 1},
                     {.key = "p95", .json_only = true},
                     {.key = "p99", .digits = 1},
                     {.key = "max", .digits = 1},
                     {.key = "pct_zero", .title = "% at zero", .digits = 1},
                     {.key = "idle_pct", .title = "% idle", .digits = 1},
                     {.key = "approximate", .json_only = true},
                     {.key = "file", .json_only = true}};
  Section e{.key = "clusters[].energy{}", .title = "", .table = {}};
  e.table.columns = {{.key = "cluster"},
                     {.key = "metric"},
                     {.key = "devices"},
                     {.key = "device_hours", .digits = 1},
                     {.key = "energy_kwh", .title = "energy kWh", .digits = 1},
                     {.key = "site_energy_kwh", .title = "of the site kWh", .digits = 1},
                     {.key = "carbon_kg", .title = "CO2e kg", .digits = 1},
                     {.key = "pue", .json_only = true},
                     {.key = "carbon_kg_per_kwh", .json_only = true}};
  e.title = fmt::format("Energy (power times the time between samples; PUE {:g}, {:g} kg CO2e a kWh)", terms.pue,
                        terms.carbon_kg_per_kwh);
  for (const UtilMetric& m : metrics) {
    std::vector<Cell> row{m.cluster,
                          m.name,
                          m.name,
                          m.cluster,
                          cell_if(!m.quantiles_only, static_cast<double>(m.samples)),
                          cell_if(!m.quantiles_only, static_cast<double>(m.devices))};
    const auto cells = static_cast<double>(m.samples + m.missing);
    row.push_back(cell_if(!m.quantiles_only && cells > 0, 100 * static_cast<double>(m.missing) / std::max(1.0, cells)));
    row.push_back(whole_or_real(m.mean));
    for (const double p : {10., 25., 50., 75., 90., 95., 99.}) row.push_back(whole_or_real(m.at(p)));
    row.push_back(whole_or_real(m.max));
    row.push_back(whole_or_real(m.zero_pct));
    const bool gpu_power = is_gpu_power(m.name);
    const double idle = gpu_power ? m.share_at_most(terms.idle_gpu_watts) : m.zero_pct;
    row.push_back(cell_if(gpu_power || is_busyness(m.name), idle));
    row.emplace_back(m.approximate);
    row.emplace_back(m.file);
    s.table.rows.push_back(std::move(row));
    if (!is_power(m.name) || m.quantiles_only || m.step_s <= 0) continue;
    const double hours = static_cast<double>(m.samples) * m.step_s / 3600;
    const double kwh = m.sum * m.step_s / 3.6e6;
    e.table.rows.push_back({m.cluster, m.name, cell_of_count(m.devices), hours, kwh, kwh * terms.pue,
                            kwh * terms.pue * terms.carbon_kg_per_kwh, terms.pue, terms.carbon_kg_per_kwh});
  }
  out.push_back(std::move(s));
  if (!e.table.rows.empty()) out.push_back(std::move(e));
}

}  // namespace orrery
