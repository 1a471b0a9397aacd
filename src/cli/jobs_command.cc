// orrery jobs: who uses a datacenter's GPUs, how long jobs run and wait, how they end.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <set>

#include "base/byte_source.h"
#include "base/json_text.h"
#include "base/number_text.h"
#include "cli/command.h"
#include "cli/common_options.h"
#include "cli/jobs_inputs.h"
#include "cli/jobs_logs.h"
#include "importers/jobs_reasons.h"
#include "reports/jobs.h"
#include "reports/jobs_charts.h"
#include "reports/jobs_utilization.h"
#include "writers/html.h"

namespace orrery {
namespace {

// Everything that the options say beside what is read.
struct Asked {
  DurationKind kind = DurationKind::file;
  PowerTerms power;
  FailureTerms failures;
  std::vector<SimQuestion> questions;
};

Result<DurationKind> duration_kind(const Args& args) {
  const std::string text = args.has("--duration") ? args.value("--duration") : "file";
  for (const DurationKind k : {DurationKind::file, DurationKind::run, DurationKind::total})
    if (text == name_of(k)) return k;
  return fail("no such duration: " + text, "--duration", "file, run (start to end) or total (submission to end)");
}

// A number from an option, within limits; the target keeps its value where the option is not given.
Status number(const Args& args, const char* option, double least, double most, double& to) {
  if (!args.has(option)) return {};
  double x = 0;
  if (read_double(args.value(option), x) != NumberState::ok || x < least || x > most)
    return fail(fmt::format("not a number from {:g} to {:g}: {}", least, most, args.value(option)), option);
  to = x;
  return {};
}

Result<Asked> understand_jobs(const Args& args) {
  Asked a;
  const auto kind = duration_kind(args);
  if (!kind) return tl::unexpected(kind.error());
  a.kind = *kind;
  struct Number {
    const char* option;
    double least, most;
    double* to;
  };
  for (const Number& n : {Number{"--idle-watts", 0, 10'000, &a.power.idle_gpu_watts},
                          {"--pue", 1, 10, &a.power.pue},
                          {"--carbon-factor", 0, 10, &a.power.carbon_kg_per_kwh},
                          {"--checkpoint-interval", 0, 1e7, &a.failures.checkpoint_s},
                          {"--restart-overhead", 0, 1e6, &a.failures.restart_s},
                          {"--gpus-per-node", 1, 1024, &a.failures.gpus_per_node}})
    if (auto ok = number(args, n.option, n.least, n.most, *n.to); !ok) return tl::unexpected(ok.error());
  if (const auto it = args.options.find("--what-if"); it != args.options.end())
    for (const std::string& text : it->second) {
      auto question = read_sim_question(text);
      if (!question) return tl::unexpected(question.error());
      for (const SimQuestion& q : a.questions)
        if (q.text == text) return fail("given twice: " + text, "--what-if");
      a.questions.push_back(std::move(*question));
    }
  return a;
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

// Reasons of all --reasons files into the tables.
Status join(const Args& args, std::vector<JobTable>& tables, Categories& categories, Notes& notes) {
  const auto it = args.options.find("--reasons");
  if (it == args.options.end()) return {};
  for (const std::string& path : it->second) {
    auto file = open_file(path);
    if (!file) return tl::unexpected(file.error());
    auto source = decompressed(std::move(*file), path);
    if (!source) return tl::unexpected(source.error());
    const auto reasons = import_reasons(**source, path);
    if (!reasons) return tl::unexpected(reasons.error());
    std::uint64_t joined = 0;
    std::vector<bool> used(reasons->reason_of.size());
    for (JobTable& t : tables) joined += join_reasons(t, *reasons, &used);
    if (joined == 0)
      return fail("no job has an id of this file", path, "ids are those of the job records; logs are named after them");
    for (const auto& [reason, category] : reasons->categories) categories.emplace(reason, category);
    notes.merge(reasons->notes);
    notes.add("reasons-joined", Severity::info, joined, path, "jobs that got a reason");
    const auto unmatched = static_cast<std::uint64_t>(std::count(used.begin(), used.end(), false));
    if (unmatched != 0) {
      const auto first = static_cast<std::size_t>(std::find(used.begin(), used.end(), false) - used.begin());
      notes.add("reasons-unmatched", Severity::warning, unmatched,
                path + ": " + quote_for_people(reasons->reason_of[first].first, 60), "reasons of no job that was read");
    }
  }
  return {};
}

// Who waits long without a bar to look at (standard error is no terminal) gets a line now and then.
struct Told {
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now(),
                                        next = begin + std::chrono::seconds(10);
};
void tell_simulated(std::uint64_t done, std::uint64_t all, Told& told) {
  const auto now = std::chrono::steady_clock::now();
  if (now < told.next) return;
  told.next = now + std::chrono::seconds(30);
  const double seconds = std::chrono::duration<double>(now - told.begin).count();
  fmt::print(stderr, "orrery jobs: simulating, {} of {} jobs submitted, {:.0f} s\n", done, all, seconds);
}

// The files that are read: the page, or a table of --csv, must not be one of them.
std::vector<std::string> read_paths(const Args& args) {
  std::vector<std::string> paths = args.positional;
  if (const auto it = args.options.find("--reasons"); it != args.options.end())
    paths.insert(paths.end(), it->second.begin(), it->second.end());
  return paths;
}

Result<int> run_jobs(const Args& args) {
  const auto options = understand(*find_command("jobs"), args);
  if (!options) return tl::unexpected(options.error());
  if (const std::string& first = args.positional.front(); first == "progress" || first == "trials") {
    const std::vector<std::string> logs(args.positional.begin() + 1, args.positional.end());
    for (const auto& [option, values] : args.options) {
      static const std::set<std::string_view> kOfLogs{"--html", "--csv", "--json", "--quiet", "--threads"};
      if (kOfLogs.count(option) == 0 && !(option == "--stage" && first == "trials"))
        return fail(option + " is for job records", "jobs " + first, "see orrery help jobs");
    }
    if (logs.empty()) return fail("which logs?", "jobs " + first, "orrery jobs " + first + " LOG...");
    if (auto ok = refuse_output_over_input("--html", args.value("--html"), logs); !ok)
      return tl::unexpected(ok.error());
    return first == "trials" ? run_jobs_trials(args, logs, *options) : run_jobs_progress(args, logs, *options);
  }
  if (args.has("--stage")) return fail("is for the logs of trials", "--stage", "orrery jobs trials LOG...");
  const auto import = job_import_options(args);
  if (!import) return tl::unexpected(import.error());
  const auto asked = understand_jobs(args);
  if (!asked) return tl::unexpected(asked.error());
  if (auto ok = refuse_output_over_input("--html", args.value("--html"), read_paths(args)); !ok)
    return tl::unexpected(ok.error());
  Progress progress(options->show_progress);
  auto inputs = read_job_inputs(args.positional, *import, options->threads, progress);
  if (!inputs) return tl::unexpected(inputs.error());
  std::vector<JobTable>& tables = inputs->jobs;

  progress.stage("counting");
  Document d;
  d.command = "jobs";
  d.inputs = args.positional;
  d.notes = inputs->notes;
  note_durations(tables, asked->kind, d.notes);
  Categories categories;
  if (auto ok = join(args, tables, categories, d.notes); !ok) return tl::unexpected(ok.error());
  std::vector<JobStats> stats;
  std::vector<FailureStats> failures;
  std::vector<Patterns> times;
  for (const JobTable& t : tables) {
    stats.push_back(job_stats(t, asked->kind));
    if (const std::size_t more = stats.back().types.size(); more > kMostTypes)
      d.notes.add("many-types", Severity::warning, more - kMostTypes, t.cluster,
                  "only the 1,000 with most GPU time are described one by one");
    failures.push_back(failure_stats(t, asked->failures, categories));
    times.push_back(patterns(t));
  }
  if (!stats.empty()) {
    describe_jobs(stats, asked->kind, d.sections);
    describe_failures(failures, asked->failures, d.sections);
    describe_patterns(times, d.sections);
  }
  describe_utilization(inputs->utilization, asked->power, d.sections);
  if (!asked->questions.empty()) {
    progress.stage("simulating");
    const bool say_so = !options->show_progress && !args.has("--quiet");
    Told told;
    auto what_if = jobs_what_if(
        tables, asked->questions,
        [&](std::uint64_t done, std::uint64_t all) {
          progress.update(done, all);
          if (say_so) tell_simulated(done, all, told);
        },
        d.notes);
    if (!what_if) return tl::unexpected(what_if.error());
    for (Section& s : *what_if) d.sections.push_back(std::move(s));
  }
  if (args.has("--by")) {
    auto by = jobs_by(stats, args.value("--by"));
    if (!by) return tl::unexpected(by.error());
    d.sections.insert(d.sections.begin() + (stats.empty() ? 0 : 1), std::move(*by));
  }
  if (auto ok = refuse_tables_over_input(args.value("--csv"), d, read_paths(args)); !ok)
    return tl::unexpected(ok.error());
  if (const std::string path = args.value("--html"); !path.empty()) {
    progress.stage("writing " + path);
    std::string names;
    for (const JobTable& t : tables) names += (names.empty() ? "" : ", ") + t.cluster;
    const std::string subtitle =
        fmt::format("Durations: {}.", asked->kind == DurationKind::file  ? "as the files' columns have them"
                                      : asked->kind == DurationKind::run ? "start to end"
                                                                         : "submission to end");
    const PageText text{names.empty() ? std::string("Utilisation") : "Jobs of " + names, subtitle};
    if (auto ok = write_html(path, d, jobs_charts(stats, failures, times, inputs->utilization), text); !ok)
      return tl::unexpected(ok.error());
  }
  progress.finish();
  return emit(d, *options);
}

std::vector<OptionSpec> jobs_options() {
  return with(
      job_input_options(),
      {{"--duration", "file|run|total", "the file's column (default), start to end, or submission to end", Takes::word},
       {"--by", "type|state|gpus|user|group", "one more table: this grouping in full", Takes::word},
       {"--reasons", "FILE",
        "why jobs failed: a CSV job_id,reason[,category], or what orrery diagnose --json printed on logs named after "
        "their jobs (may be repeated)",
        Takes::file, true},
       {"--checkpoint-interval", "S", "a failed run loses half of it (default: it loses all it did)", Takes::word},
       {"--restart-overhead", "S", "of each run, before it is of use (default: 0)", Takes::word},
       {"--gpus-per-node", "N", "for node-hours where the records have no nodes (default: 8)", Takes::word},
       {"--what-if", "gpus=N,KEY=VALUE,...",
        "the same jobs on N GPUs under policy=fifo|easy|conservative, reserve=TYPE:GPUS (for that type alone), "
        "preempt=on "
        "(others use what is reserved until it is needed), checkpoint=SECONDS (where a stopped job goes on), "
        "depth=JOBS "
        "(that a pass looks at: 1000; 100 under conservative with limits or a reservation); may be repeated "
        "(docs/model.md)",
        Takes::word, true},
       {"--stage", "inference|metric=REGEX", "trials: the line that begins this stage (RE2; may be repeated)",
        Takes::word, true},
       {"--idle-watts", "W", "a GPU that draws no more is idle (default: 70)", Takes::word},
       {"--pue", "X", "what the site draws for each watt of its servers (default: 1)", Takes::word},
       {"--carbon-factor", "KG", "kg of CO2 equivalents a kWh (default: 0.478)", Takes::word},
       {"--html", "FILE", "write one self-contained page: charts and tables, readable without a network", Takes::file},
       kCsv,
       kJson,
       kQuiet,
       kThreads,
       kHelp});
}

}  // namespace

Command jobs_command() {
  return {
      .name = "jobs",
      .summary = "a datacenter's jobs: who uses the GPUs, how long jobs run and wait, how they end",
      .operands = "[progress|trials] FILE...",
      .least = 1,
      .most = kMany,
      .description =
          "Reads job records and answers with counts and shares of GPU time by type, state, user and size, with "
          "durations and waiting by type, failures and what they cost, and when jobs come, cluster beside cluster. "
          "Schemas are told by the columns: AcmeTrace (Seren, Kalos), Slurm's sacct (--parsable2 or --json), "
          "Philly, Helios, Alibaba PAI and openb, or a plain CSV (docs/formats/jobs.md). Plain, gzip, zstd and zip "
          "files; - is standard input.\n\n"
          "Samples of hardware may stand beside them: DCGM and node metrics (a column of times, a column a device), "
          "power by IPMI, quantile functions (percentile,value). They go to the cluster whose name their own name, "
          "or their directory's, shares a word with (--cluster says otherwise).\n\n"
          "A GPU job asks for GPUs; GPU time is its duration times its GPUs. Some traces count the waiting in the "
          "column of durations: --duration run and total are computed from the times instead, and the answer says "
          "which is shown. Failures, patterns and simulations always take start to end. Rows that cannot be read "
          "are counted, with the first. In a directory or a list a file without jobs is noted; in a directory so is "
          "one "
          "that cannot be used (exit status 1). No output is written over an input.\n\n"
          "orrery jobs progress LOG...: the logs of one pretraining run, attempt after attempt: the curve of its "
          "steps, "
          "its rollbacks, what was done again, when it stood still. orrery jobs trials LOG...: of evaluation trials, "
          "a log each, the stages (load, inference, metric) and how long the GPU was idle.",
      .options = jobs_options(),
      .when_incomplete = "rows or files could not be read, or a file was cut; the others are answered for",
      .examples = {{"The sample's jobs:", "orrery jobs samples/jobs.csv"},
                   {"A page to look at:", "orrery jobs samples/jobs.csv --html jobs.html"},
                   {"The same jobs on fewer GPUs, and with half of them kept for pretraining:",
                    "orrery jobs samples/jobs.csv --what-if gpus=160,policy=easy --what-if "
                    "gpus=256,policy=easy,reserve=Pretrain:128,preempt=on,checkpoint=1800"}},
      .run = run_jobs};
}

}  // namespace orrery
