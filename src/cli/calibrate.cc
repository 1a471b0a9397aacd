#include "cli/calibrate.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/byte_source.h"
#include "cli/measured_steps.h"
#include "cli/run.h"
#include "estimate/calibrate.h"
#include "estimate/calibrate_tables.h"
#include "reports/calibration.h"
#include "whatif/given_layout.h"

namespace orrery {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 20;

// What the file is, by its beginning. Directories and patterns are traces.
enum class Kind { table, steps, trace };
struct Text {
  Kind kind = Kind::trace;
  std::string text;  // of a table or of steps
};

Result<Text> look_at(const std::string& path) {
  Text t;
  std::error_code none;
  if (path == "-" || !std::filesystem::is_regular_file(path, none)) return t;
  auto file = open_file(path);
  if (!file) return tl::unexpected(file.error());
  auto source = decompressed(std::move(*file), path);
  if (!source) return tl::unexpected(source.error());
  constexpr std::size_t kBegin = 4'096;  // that tells
  std::vector<char> block(std::size_t{1} << 16);
  for (bool told = false;;) {
    const auto n = (*source)->read(block.data(), block.size());
    if (!n) return tl::unexpected(n.error());
    t.text.append(block.data(), *n);
    if (!told && (t.text.size() >= kBegin || *n == 0)) {
      told = true;
      t.kind = looks_like_operator_table(t.text) ? Kind::table : looks_like_steps(t.text) ? Kind::steps : Kind::trace;
      if (t.kind == Kind::trace) return Text{};
    }
    if (*n == 0) break;
    if (t.text.size() > kMostBytes)
      return fail("above 64 MiB", path, "a table has one row an operator, a run one line");
  }
  if (const SourceTrouble trouble = (*source)->trouble(); trouble.kind != SourceTrouble::Kind::none)
    return fail(trouble.what, path, "the file is not whole");
  return t;
}

Status by_traces(const std::vector<std::string>& paths, const RunOptions& options, const EstimateJob& job,
                 JobCosts& costs, std::vector<CalibratedFact>& all) {
  Progress progress(options.show_progress);
  RunOptions reading = options;
  reading.keep_rows = true;
  auto run = run_again(paths, reading, progress);
  if (!run) return tl::unexpected(run.error());
  if (run->pipeline)
    return fail("the traces have steps of pipelines, no kernels", "--calibrate", "give traces of PyTorch's profiler");
  progress.stage("taking the traced job apart");
  const Overlap overlap = overlap_of(run->build.graph, learn_contention(run->traces, run->build), run->replay);
  const auto layout = recognise_layout(run->traces, run->build, GivenLayout{});
  if (!layout) return fail(layout.error().what, "--calibrate", layout.error().advice);
  const auto learned = learn_job(run->traces, run->build, *layout, GivenLayout{}, overlap);
  if (!learned) return fail(learned.error().what, "--calibrate", learned.error().advice);
  const auto facts = calibrate(run->traces, run->build, *learned, job, costs);
  if (!facts) return tl::unexpected(facts.error());
  all.insert(all.end(), facts->begin(), facts->end());
  return {};
}

// Every measured step by the laws as they are now, and by those that came of them.
Section steps_section(const std::vector<CalibrationStep>& samples, const std::vector<JobCosts>& before,
                      const StepFactors& factors) {
  Section s{.key = "calibrated_steps", .title = "Measured steps", .table = {}};
  s.table.columns = {{.key = "run"},
                     {.key = "measured_ms"},
                     {.key = "before_ms"},
                     {.key = "after_ms"},
                     {.key = "error_pct", .title = "error %", .digits = 1},
                     {.key = "held_out"}};
  EstimateScratch scratch;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    JobCosts after = before[i];
    factors.apply(after);
    const double first = estimate(samples[i].job, before[i], scratch).iteration_ns;
    const double last = estimate(samples[i].job, after, scratch).iteration_ns;
    s.table.rows.push_back({samples[i].name, samples[i].ns / 1e6, first / 1e6, last / 1e6,
                            100 * (last / samples[i].ns - 1), samples[i].held_out});
  }
  return s;
}

}  // namespace

OptionSpec calibrate_option() {
  return {"--calibrate", "FILE",
          "take the speed of kernels, host and links from what was measured on such GPUs: traces of a job (a file, a "
          "directory or a pattern), a table of `orrery bench ops`, or step times of `orrery bench report --json` or as "
          "JSON lines (may be repeated: the files of one run, tables of several ranks, a table and steps)",
          Takes::file, true};
}

Status calibrate_by(const Args& args, const RunOptions& options, const EstimateJob& job, JobCosts& costs,
                    Calibration& out, std::vector<std::string>& assumptions) {
  if (!args.has("--calibrate")) return {};
  TableCalibration tables;
  std::vector<CalibrationStep> steps;
  std::vector<std::string> traces;
  for (const std::string& path : args.options.find("--calibrate")->second) {
    auto looked = look_at(path);
    if (!looked) return tl::unexpected(looked.error());
    if (looked->kind == Kind::trace) traces.push_back(path);
    if (looked->kind == Kind::table) {
      auto table = parse_operator_table(looked->text, path);
      if (!table) return tl::unexpected(table.error());
      if (const Status ok = tables.add(std::move(*table), path); !ok) return ok;
    }
    if (looked->kind == Kind::steps) {
      auto read = parse_steps(looked->text, path, job);
      if (!read) return tl::unexpected(read.error());
      steps.insert(steps.end(), read->begin(), read->end());
    }
  }
  if (!steps.empty() && !traces.empty())
    return fail("step times and traces", "--calibrate", "traces have the steps as well: give one of both");
  std::vector<CalibratedFact> facts;
  if (!tables.empty()) {
    const auto applied = tables.apply(job, costs);
    if (!applied) return tl::unexpected(applied.error());
    facts = applied->facts;
    if (!applied->assumed.empty()) assumptions.push_back(applied->assumed);
    out.notes = tables.noisy_rows();
    out.largest = applied->largest;
  }
  if (!traces.empty())
    if (const Status ok = by_traces(traces, options, job, costs, facts); !ok) return ok;
  std::optional<Section> measured;
  if (!steps.empty()) {
    std::vector<JobCosts> before;
    for (const CalibrationStep& s : steps) {
      before.push_back(costs_of(s.job));
      const auto applied = tables.apply(s.job, before.back());
      if (!applied) return tl::unexpected(applied.error());
    }
    const auto factors = fit_steps(steps, before);
    if (!factors) return tl::unexpected(factors.error());
    factors->apply(costs);
    const auto fitted = std::count_if(steps.begin(), steps.end(), [](const CalibrationStep& s) { return !s.held_out; });
    const auto moved = facts_of(*factors, static_cast<std::uint64_t>(fitted));
    facts.insert(facts.end(), moved.begin(), moved.end());
    measured = steps_section(steps, before, *factors);
  }
  out.sections.push_back(calibration_section(facts));
  if (measured) out.sections.push_back(std::move(*measured));
  return {};
}

}  // namespace orrery
