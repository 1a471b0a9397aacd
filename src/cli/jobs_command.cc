// orrery jobs: who uses a datacenter's GPUs, how long jobs run and wait, how they end.
#include <fmt/format.h>

#include "cli/command.h"
#include "cli/common_options.h"
#include "cli/jobs_inputs.h"
#include "reports/jobs.h"

namespace orrery {
namespace {

Result<DurationKind> duration_kind(const Args& args) {
  const std::string text = args.has("--duration") ? args.value("--duration") : "file";
  for (const DurationKind k : {DurationKind::file, DurationKind::run, DurationKind::total})
    if (text == name_of(k)) return k;
  return fail("no such duration: " + text, "--duration", "file, run (start to end) or total (submission to end)");
}

// Which of the two durations a file's column is, where it tells.
void note_durations(const std::vector<JobTable>& tables, DurationKind kind, Notes& notes) {
  if (kind != DurationKind::file) return;
  for (const JobTable& t : tables)
    if (t.duration_counts_waiting())
      notes.add("duration-counts-waiting", Severity::info, t.span_totals,
                fmt::format("{}: the column is end - submission", t.file),
                "GPU time counts the waiting, too; --duration run leaves it out");
}

Result<int> run_jobs(const Args& args) {
  const auto options = understand(*find_command("jobs"), args);
  if (!options) return tl::unexpected(options.error());
  const auto import = job_import_options(args);
  if (!import) return tl::unexpected(import.error());
  const auto kind = duration_kind(args);
  if (!kind) return tl::unexpected(kind.error());
  Progress progress(options->show_progress);
  auto inputs = read_job_inputs(args.positional, *import, options->threads, progress);
  if (!inputs) return tl::unexpected(inputs.error());

  progress.stage("counting");
  std::vector<JobStats> stats;
  for (const JobTable& t : inputs->jobs) stats.push_back(job_stats(t, *kind));
  Document d;
  d.command = "jobs";
  d.inputs = args.positional;
  d.notes = inputs->notes;
  note_durations(inputs->jobs, *kind, d.notes);
  describe_jobs(stats, *kind, d.sections);
  if (args.has("--by")) {
    auto by = jobs_by(stats, args.value("--by"));
    if (!by) return tl::unexpected(by.error());
    d.sections.insert(d.sections.begin() + 1, std::move(*by));
  }
  progress.finish();
  return emit(d, *options);
}

}  // namespace

Command jobs_command() {
  return {
      .name = "jobs",
      .summary = "a datacenter's jobs: who uses the GPUs, how long jobs run and wait, how they end",
      .operands = "FILE...",
      .least = 1,
      .most = kMany,
      .description =
          "Reads job records and answers with counts and shares of GPU time by type, state, user and size, with "
          "durations and waiting by type, cluster beside cluster. Schemas are told by the columns: AcmeTrace "
          "(Seren, Kalos), Slurm's sacct (--parsable2 or --json), Philly, Helios, Alibaba PAI and openb, or a plain "
          "CSV (docs/formats/jobs.md). Plain, gzip, zstd and zip files; - is standard input.\n\n"
          "A GPU job asks for GPUs; GPU time is its duration times its GPUs. Some traces count the waiting in the "
          "column of durations: --duration run and total are computed from the times instead, and the answer says "
          "which is shown. Rows that cannot be read are counted, with the first.",
      .options = with(job_input_options(),
                      {{"--duration", "file|run|total",
                        "the file's column (default), start to end, or submission to end", Takes::word},
                       {"--by", "type|state|gpus|user|group", "one more table: this grouping in full", Takes::word},
                       kCsv,
                       kJson,
                       kQuiet,
                       kThreads,
                       kHelp}),
      .when_incomplete = "rows could not be read, or a file was cut; the others are answered for",
      .examples = {{"The sample's jobs:", "orrery jobs samples/jobs.csv"}},
      .run = run_jobs};
}

}  // namespace orrery
