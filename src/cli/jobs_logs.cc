#include "cli/jobs_logs.h"

#include <algorithm>

#include "cli/jobs_inputs.h"
#include "importers/find_inputs.h"
#include "importers/jobs_log.h"
#include "reports/jobs_logs.h"
#include "writers/html.h"

namespace orrery {
namespace {

// Reads every log with `read` and hands what it gave to `take`; files that a directory holds beside are skipped.
template <class Read, class Take>
Status each_log(const std::vector<std::string>& paths, Notes& notes, Read read, Take take) {
  const auto inputs = find_inputs(paths);
  if (!inputs) return tl::unexpected(inputs.error());
  for (const TraceInput& input : *inputs) {
    if (!input.unusable.empty()) {
      notes.add("skipped-file", Severity::info, 1, input.label + ": " + input.unusable);
      continue;
    }
    auto source = open_input(input);
    if (!source) return tl::unexpected(source.error());
    auto log = read(**source, input.label);
    if (!log && !input.optional) return tl::unexpected(log.error());
    if (!log) {
      notes.add("skipped-file", Severity::info, 1, log.error().line());
      continue;
    }
    if (const SourceTrouble trouble = (*source)->trouble(); trouble.kind != SourceTrouble::Kind::none)
      notes.add("truncated", Severity::data_loss, 1, input.label + ": " + trouble.what,
                "what came before is answered for");
    notes.merge(log->notes);
    take(std::move(*log));
  }
  return {};
}

Result<int> answer(const Args& args, Document& d, const std::vector<Chart>& charts, const std::string& title,
                   const RunOptions& options) {
  const std::vector<std::string> logs(args.positional.begin() + 1, args.positional.end());
  if (auto ok = refuse_tables_over_input(args.value("--csv"), d, logs); !ok) return tl::unexpected(ok.error());
  if (const std::string path = args.value("--html"); !path.empty())
    if (auto ok = write_html(path, d, charts, {title, ""}); !ok) return tl::unexpected(ok.error());
  return emit(d, options);
}

}  // namespace

Result<int> run_jobs_progress(const Args& args, const std::vector<std::string>& paths, const RunOptions& options) {
  Document d;
  d.command = "jobs";
  d.inputs = paths;
  std::vector<ProgressLog> logs;
  if (auto ok = each_log(paths, d.notes, import_progress_log, [&](ProgressLog log) { logs.push_back(std::move(log)); });
      !ok)
    return tl::unexpected(ok.error());
  if (logs.empty()) return fail("no log of a training run", paths[0]);
  const auto timed =
      static_cast<std::size_t>(std::count_if(logs.begin(), logs.end(), [](const auto& l) { return l.timed; }));
  if (logs.size() > 1 && timed != logs.size())
    return fail("logs without times cannot be put in order", logs.front().file, "give one of them at a time");
  std::stable_sort(logs.begin(), logs.end(), [](const ProgressLog& a, const ProgressLog& b) {
    return a.points.front().at_ms < b.points.front().at_ms;
  });
  if (timed == 0)
    d.notes.add("log-without-times", Severity::warning, 1, logs.front().file,
                "time is the sum of what the iterations took: pauses do not show");
  const RunProgress run = run_progress(logs);
  describe_progress(run, d.sections);
  return answer(args, d, {progress_chart(run)}, "Progress of a run", options);
}

Result<int> run_jobs_trials(const Args& args, const std::vector<std::string>& paths, const RunOptions& options) {
  TrialPatterns patterns;
  if (const auto it = args.options.find("--stage"); it != args.options.end())
    for (const std::string& text : it->second) {
      const std::size_t equals = text.find('=');
      const std::string key = text.substr(0, equals);
      if (equals == std::string::npos || (key != "inference" && key != "metric"))
        return fail("not inference=REGEX or metric=REGEX: " + text, "--stage");
      (key == "metric" ? patterns.metric : patterns.inference) = text.substr(equals + 1);
    }
  Document d;
  d.command = "jobs";
  d.inputs = paths;
  std::vector<TrialLog> trials;
  const auto read = [&](ByteSource& source, const std::string& label) {
    return import_trial_log(source, label, patterns);
  };
  if (auto ok = each_log(paths, d.notes, read, [&](TrialLog t) { trials.push_back(std::move(t)); }); !ok)
    return tl::unexpected(ok.error());
  if (trials.empty()) return fail("no log of a trial", paths[0]);
  describe_trials(trials, d.sections);
  return answer(args, d, {trials_chart(trials)}, "Evaluation trials", options);
}

}  // namespace orrery
