// Traces of runs, by dissect's code.
#include <algorithm>

#include "cli/bench_readers.h"
#include "cli/run.h"
#include "reports/reports.h"

namespace orrery {
namespace {

constexpr std::size_t kMostOperators = 20;  // of a run, kept

std::size_t column_of(const Table& t, std::string_view key) {
  for (std::size_t i = 0; i < t.columns.size(); ++i)
    if (t.columns[i].key == key) return i;
  return t.columns.size();
}

double number_at(const std::vector<Cell>& row, std::size_t column) {
  if (column >= row.size()) return 0;
  if (const auto* x = std::get_if<double>(&row[column])) return *x;
  if (const auto* n = std::get_if<std::int64_t>(&row[column])) return static_cast<double>(*n);
  return 0;
}

std::string text_at(const std::vector<Cell>& row, std::size_t column) {
  const auto* s = column < row.size() ? std::get_if<std::string>(&row[column]) : nullptr;
  return s ? *s : std::string();
}

// Of a job without a GPU all times are the host's: of stages what its threads spent in them, which adds up to the step;
// of modules what their operators took, and what lies outside of operators (Python, and what it waits for).
void take_rows(const Document& d, std::string_view key, const std::string& level, bool host_alone, double step_ms,
               std::vector<ShareRow>& out) {
  for (const Section& s : d.sections) {
    if (s.key != key) continue;
    const Table& t = s.table;
    const std::size_t name = column_of(t, "name"), phase = column_of(t, "phase"), cpu = column_of(t, "cpu_ms"),
                      gpu = column_of(t, "gpu_ms"), pct = column_of(t, "pct");
    std::vector<ShareRow> rows;
    for (const auto& row : t.rows) {
      ShareRow r{level,
                 text_at(row, name),
                 text_at(row, phase),
                 number_at(row, cpu),
                 number_at(row, gpu),
                 number_at(row, pct)};
      if (host_alone) {
        if (level == "phase" && r.name == "idle") continue;
        if (level == "module") {
          r.cpu_ms = r.gpu_ms;  // operators that were taken for kernels
          if (r.name == "idle") r.name = "outside of operators", r.phase = "host";
        }
        r.gpu_ms = 0;
        r.pct = step_ms > 0 ? 100 * r.cpu_ms / step_ms : 0;
      }
      rows.push_back(std::move(r));
    }
    if (level == "operator") {
      std::stable_sort(rows.begin(), rows.end(),
                       [](const ShareRow& a, const ShareRow& b) { return a.cpu_ms + a.gpu_ms > b.cpu_ms + b.gpu_ms; });
      rows.resize(std::min(rows.size(), kMostOperators));
    }
    out.insert(out.end(), rows.begin(), rows.end());
  }
}

// The host's operators stand in for kernels: host_as_device says so.
bool no_gpu_ran(const RankTrace& t) {
  return std::any_of(t.notes.rows.begin(), t.notes.rows.end(),
                     [](const Note& n) { return n.name == "host-as-device"; });
}

}  // namespace

Result<std::vector<ShareRow>> dissected_shares(const std::string& directory, unsigned threads) {
  RunOptions options;
  options.quiet = true;
  options.keep_rows = true;
  options.host_kernels = true;
  options.threads = options.import.threads = threads;
  Progress silent(false);
  const auto run = read_job({directory}, options, silent);
  if (!run) return tl::unexpected(run.error());
  if (run->pipeline) return fail("steps of pipelines, not a profiler's trace", directory);
  const auto document = dissect_document(run->traces, run->build, {.steps = {}, .by = "", .threads = options.threads});
  if (!document) return tl::unexpected(document.error());
  // Of all ranks: a later table has each rank's own.
  double step_ms = 0;
  const auto step = std::find_if(document->sections.begin(), document->sections.end(), [](const Section& section) {
    return section.single && column_of(section.table, "step_ms") < section.table.columns.size();
  });
  if (step != document->sections.end() && !step->table.rows.empty())
    step_ms = number_at(step->table.rows.front(), column_of(step->table, "step_ms"));
  const bool host_alone =
      std::all_of(run->traces.ranks.begin(), run->traces.ranks.end(), [](const RankTrace& t) { return no_gpu_ran(t); });
  std::vector<ShareRow> shares;
  take_rows(*document, "phases", "phase", host_alone, step_ms, shares);
  take_rows(*document, "modules", "module", host_alone, step_ms, shares);
  take_rows(*document, "operators", "operator", host_alone, step_ms, shares);
  return shares;
}

}  // namespace orrery
