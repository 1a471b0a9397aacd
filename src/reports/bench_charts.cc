// What the page of `orrery bench report` draws.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "reports/bench_tables.h"

namespace orrery {
namespace {

constexpr std::size_t kMostCharts = 12, kMostBars = 40;

std::string letters(const BenchRun& r) {
  const std::string text = r.techniques_text();
  return text.empty() ? "none" : text;
}

// One chart a series, one bar a technique and batch.
template <class Value>
void by_technique(const BenchFacts& facts, const std::string& title, const std::string& unit, Value value,
                  std::vector<Chart>& out) {
  std::map<std::string, std::vector<const BenchEntry*>> series;
  for (const BenchEntry& e : facts.entries)
    if (e.done() && value(e)) series[bench_series(e.run)].push_back(&e);
  std::size_t charts = 0;
  for (const auto& [name, list] : series) {
    if (list.size() < 2 || ++charts > kMostCharts) continue;
    Chart c{.kind = Chart::Kind::bars, .title = title + ", " + name};
    c.x_title = unit;
    std::map<std::int64_t, std::size_t> batches;
    for (const BenchEntry* e : list) batches.try_emplace(e->run.batch, batches.size());
    std::size_t k = 0;
    for (auto& [batch, place] : batches) {
      place = k++;
      c.series.push_back({batch == 0 ? "largest batch" : "batch " + std::to_string(batch), {}, {}});
    }
    for (const BenchEntry* e : list) {
      const std::string label = letters(e->run);
      auto at = std::find(c.labels.begin(), c.labels.end(), label);
      if (at == c.labels.end()) {
        if (c.labels.size() == kMostBars) continue;
        c.labels.push_back(label);
        for (ChartSeries& s : c.series) s.y.push_back(0);
        at = c.labels.end() - 1;
      }
      c.series[batches[e->run.batch]].y[static_cast<std::size_t>(at - c.labels.begin())] = *value(*e);
    }
    out.push_back(std::move(c));
  }
}

void measured_beside_estimated(const BenchFacts& facts, std::vector<Chart>& out) {
  Chart c{.kind = Chart::Kind::bars, .title = "Measured beside estimated"};
  c.x_title = "ms of a step";
  c.series = {{"measured", {}, {}}, {"estimated", {}, {}}};
  for (const BenchEntry& e : facts.entries) {
    if (!e.error_pct() || c.labels.size() == kMostBars) continue;
    c.labels.push_back(e.run.id());
    c.series[0].y.push_back(e.row->step_ms.median);
    c.series[1].y.push_back(e.estimate.step_ms);
  }
  if (!c.labels.empty()) out.push_back(std::move(c));
}

void scaling(const BenchFacts& facts, std::vector<Chart>& out) {
  std::map<std::string, std::vector<std::pair<double, double>>> lines;
  for (const BenchEntry& e : facts.entries) {
    if (!e.tokens_per_s() || e.run.batch == 0) continue;
    BenchRun one = e.run;
    one.gpus = 1;
    lines[one.id()].emplace_back(static_cast<double>(e.run.gpus), *e.tokens_per_s());
  }
  Chart c{.kind = Chart::Kind::lines, .title = "Scaling"};
  c.x_title = "GPUs";
  c.y_title = "tokens/s";
  for (auto& [name, points] : lines) {
    if (points.size() < 2 || c.series.size() == kMostCharts) continue;
    std::sort(points.begin(), points.end());
    ChartSeries s{name, {}, {}};
    for (const auto& [x, y] : points) {
      s.x.push_back(x);
      s.y.push_back(y);
    }
    c.series.push_back(std::move(s));
  }
  if (!c.series.empty()) out.push_back(std::move(c));
}

// Rows: runs; columns: phases, or modules; cells: per cent of the step.
void shares(const BenchFacts& facts, const std::string& level, const std::string& title, std::vector<Chart>& out) {
  std::unordered_map<std::int64_t, std::string> names;
  for (const BenchEntry& e : facts.entries)
    if (e.row) names[e.row->id] = e.run.id();
  Chart c{.kind = Chart::Kind::heat, .title = title};
  std::vector<std::string> rows;
  for (const auto& [id, s] : facts.shares) {
    const auto name = names.find(id);
    if (s.level != level || name == names.end()) continue;
    const auto place = [](std::vector<std::string>& list, const std::string& what) {
      const auto at = std::find(list.begin(), list.end(), what);
      if (at != list.end()) return static_cast<std::size_t>(at - list.begin());
      list.push_back(what);
      return list.size() - 1;
    };
    const std::size_t row = place(c.rows, name->second), column = place(c.labels, s.name);
    if (row >= kMostBars || column >= kMostBars) continue;
    c.cells.resize(std::max(c.cells.size(), row + 1));
    if (c.cells[row].size() <= column) c.cells[row].resize(column + 1, 0);
    c.cells[row][column] += s.pct;
  }
  if (c.cells.empty()) return;
  c.rows.resize(c.cells.size());
  c.labels.resize(std::min(c.labels.size(), kMostBars));
  for (auto& row : c.cells) row.resize(c.labels.size(), 0);
  c.caption = "per cent of the step";
  out.push_back(std::move(c));
}

void noise(const BenchFacts& facts, std::vector<Chart>& out) {
  const NoiseCheck n = noise_of(facts.rows);
  if (n.series.size() < 2) return;
  Chart c{.kind = Chart::Kind::lines, .title = "The reference, run again: " + n.series.front().run};
  c.x_title = "minutes since its first run";
  c.y_title = "ms of a step";
  c.series.push_back({"median", {}, {}});
  for (const RunRow& r : n.series) {
    c.series[0].x.push_back((r.started - n.series.front().started) / 60);
    c.series[0].y.push_back(r.step_ms.median);
  }
  out.push_back(std::move(c));
}

}  // namespace

std::vector<Chart> bench_charts(const BenchFacts& facts) {
  std::vector<Chart> out;
  by_technique(
      facts, "Throughput", "tokens/s", [](const BenchEntry& e) { return e.tokens_per_s(); }, out);
  by_technique(
      facts, "Memory", "GiB", [](const BenchEntry& e) { return e.memory_gib(); }, out);
  measured_beside_estimated(facts, out);
  scaling(facts, out);
  shares(facts, "phase", "Stages", out);
  shares(facts, "module", "Modules", out);
  noise(facts, out);
  return out;
}

}  // namespace orrery
