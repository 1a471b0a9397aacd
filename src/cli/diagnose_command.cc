// orrery diagnose: why did it fail? Logs -> rows of interest -> evidence -> verdict.
#include <algorithm>
#include <atomic>
#include <optional>

#include "base/parallel.h"
#include "base/progress.h"
#include "cli/common_options.h"
#include "cli/diagnose_templates.h"
#include "cli/options.h"
#include "importers/find_inputs.h"
#include "importers/log_text.h"
#include "reports/diagnose.h"
#include "rules/diagnose.h"

namespace orrery {
namespace {

constexpr std::uint64_t kRareShape = 3;  // lines of a kind that comes no more often are kept

std::uint64_t kept_lines(const LogTable& t) {
  std::uint64_t kept = t.rows.size();
  for (std::size_t i = 0; i < t.shapes.size(); ++i)
    if (t.shapes.count[i] <= kRareShape) kept += t.shapes.count[i];
  std::uint64_t lines = 0;
  for (const LogFile& f : t.files) lines += f.lines;
  return std::min(kept, lines);
}

LogVerdict verdict_of(const LogTable& table, const Matcher& matcher, const std::string& label) {
  LogVerdict v;
  v.label = label;
  for (const LogFile& f : table.files) {
    v.files.push_back(f.label);
    v.lines += f.lines;
    v.bytes += f.bytes;
  }
  v.kept_lines = kept_lines(table);
  v.diagnosis = diagnose(table, matcher);
  return v;
}

Result<std::shared_ptr<Matcher>> compile_rules(const Args& args, Notes& notes) {
  auto set = built_in_rules();
  if (!set) return tl::unexpected(set.error());
  const auto own = args.options.find("--rules");
  if (own != args.options.end()) {
    for (const std::string& path : own->second) {
      auto rules = read_rule_file(path);
      if (!rules) return tl::unexpected(rules.error());
      for (Rule& r : *rules) {
        std::erase_if(set->rules, [&](const Rule& known) { return known.id == r.id; });
        set->rules.push_back(std::move(r));
      }
    }
  }
  return Matcher::compile(*set, notes);
}

}  // namespace

Result<int> run_diagnose(const Args& args) {
  auto options = understand(*find_command("diagnose"), args);
  if (!options) return tl::unexpected(options.error());
  Notes notes;
  const auto matcher = compile_rules(args, notes);
  if (!matcher) return tl::unexpected(matcher.error());
  auto inputs = find_inputs(args.positional);
  if (!inputs) return tl::unexpected(inputs.error());
  std::erase_if(*inputs, [&](const TraceInput& i) {
    if (i.unusable.empty()) return false;
    notes.add("input-skipped", Severity::warning, 1, i.label + ": " + i.unusable, "not among the logs");
    return true;
  });
  Progress progress(options->show_progress);
  if (args.has("--templates")) {
    progress.stage("finding templates");
    if (const Status ok = write_templates(*inputs, args.value("--templates"), notes); !ok)
      return tl::unexpected(ok.error());
  }
  progress.stage("reading");
  std::uint64_t total = 0;
  for (const TraceInput& i : *inputs) total += i.size;
  std::atomic<std::uint64_t> taken{0};
  std::vector<std::optional<Result<LogTable>>> tables(inputs->size());
  for_each_row(inputs->size(), worker_count(options->threads), [&](std::size_t row, unsigned) {
    const TraceInput& input = (*inputs)[row];
    auto source = open_input(input);
    if (!source) {
      tables[row] = tl::unexpected(source.error());
      return;
    }
    std::uint64_t before = 0;
    LogReadOptions how;
    how.on_progress = [&](std::uint64_t now) {
      taken += now - before;
      before = now;
      progress.update(taken, total);
    };
    tables[row] = read_log(std::move(*source), input.label, **matcher, how);
    if (*tables[row]) (*tables[row])->files[0].rank = static_cast<std::int32_t>(rank_in_path(input.label));
  });
  std::vector<LogVerdict> verdicts;
  LogTable job;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    auto& table = *tables[i];
    if (!table) return tl::unexpected(table.error());
    notes.merge(table->notes);
    table->notes = {};
    if (args.has("--job")) {
      append_log(job, std::move(*table));
    } else {
      verdicts.push_back(verdict_of(*table, **matcher, (*inputs)[i].label));
    }
  }
  if (args.has("--job")) verdicts.push_back(verdict_of(job, **matcher, args.positional.front()));
  progress.finish();
  Document document = diagnose_document(verdicts, std::move(notes));
  document.inputs = args.positional;
  const auto status = emit(document, *options);
  if (!status) return status;
  const bool unknown = std::any_of(verdicts.begin(), verdicts.end(),
                                   [](const LogVerdict& v) { return v.diagnosis.verdict == Verdict::unknown; });
  return unknown ? kIncomplete : *status;
}

Command diagnose_command() {
  return {.name = "diagnose",
          .summary = "why did a job fail, who has to act, and does a restart help",
          .operands = "LOG...",
          .least = 1,
          .most = kMany,
          .description = "Reads the logs of a job.",
          .options = {{"--job", "", "the files are one job's ranks, nodes and kernels: one verdict for all"},
                      {"--rules", "FILE", "rules of your own, added to the built-in ones (may be repeated)",
                       Takes::file, true},
                      {"--templates", "OUT.csv", "write line,id,template of every line", Takes::file},
                      kCsv,
                      kJson,
                      kQuiet,
                      kThreads,
                      kHelp},
          .when_incomplete = "a verdict is unknown, or a log was damaged",
          .examples = {},
          .run = run_diagnose};
}

}  // namespace orrery
