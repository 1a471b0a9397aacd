// orrery jobs: who uses a datacenter's GPUs, how long jobs run and wait, how they end.
#include <fmt/format.h>

#include "base/number_text.h"
#include "cli/command.h"
#include "cli/common_options.h"
#include "cli/jobs_inputs.h"
#include "reports/jobs.h"
#include "reports/jobs_utilization.h"

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

// A number from an option, within limits.
Result<double> number_of(const Args& args, const char* option, double otherwise, double least, double most) {
  if (!args.has(option)) return otherwise;
  double x = 0;
  if (read_double(args.value(option), x) != NumberState::ok || x < least || x > most)
    return fail("not a number from " + fmt::format("{:g} to {:g}: ", least, most) + args.value(option), option);
  return x;
}

Result<PowerTerms> power_terms(const Args& args) {
  PowerTerms t;
  const auto idle = number_of(args, "--idle-watts", t.idle_gpu_watts, 0, 10'000);
  if (!idle) return tl::unexpected(idle.error());
  const auto pue = number_of(args, "--pue", t.pue, 1, 10);
  if (!pue) return tl::unexpected(pue.error());
  const auto carbon = number_of(args, "--carbon-factor", t.carbon_kg_per_kwh, 0, 10);
  if (!carbon) return tl::unexpected(carbon.error());
  return PowerTerms{*idle, *pue, *carbon};
}

Result<int> run_jobs(const Args& args) {
  const auto options = understand(*find_command("jobs"), args);
  if (!options) return tl::unexpected(options.error());
  const auto import = job_import_options(args);
  if (!import) return tl::unexpected(import.error());
  const auto kind = duration_kind(args);
  if (!kind) return tl::unexpected(kind.error());
  std::vector<SimQuestion> questions;
  if (const auto it = args.options.find("--what-if"); it != args.options.end())
    for (const std::string& text : it->second) {
      auto question = read_sim_question(text);
      if (!question) return tl::unexpected(question.error());
      questions.push_back(std::move(*question));
    }
  const auto power = power_terms(args);
  if (!power) return tl::unexpected(power.error());
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
  if (!stats.empty()) describe_jobs(stats, *kind, d.sections);
  describe_utilization(inputs->utilization, *power, d.sections);
  if (!questions.empty()) {
    progress.stage("simulating");
    auto what_if = jobs_what_if(
        inputs->jobs, questions, [&](std::uint64_t done, std::uint64_t all) { progress.update(done, all); }, d.notes);
    if (!what_if) return tl::unexpected(what_if.error());
    for (Section& s : *what_if) d.sections.push_back(std::move(s));
  }
  if (args.has("--by")) {
    auto by = jobs_by(stats, args.value("--by"));
    if (!by) return tl::unexpected(by.error());
    d.sections.insert(d.sections.begin() + (stats.empty() ? 0 : 1), std::move(*by));
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
      .examples = {{"The sample's jobs:", "orrery jobs samples/jobs.csv"},
                   {"The same jobs on fewer GPUs, with backfilling, and with half of them kept for pretraining:",
                    "orrery jobs samples/jobs.csv --what-if gpus=160,policy=easy --what-if "
                    "gpus=256,policy=easy,reserve=Pretrain:128,preempt=on,checkpoint=1800"}},
      .run = run_jobs};
}

}  // namespace orrery
