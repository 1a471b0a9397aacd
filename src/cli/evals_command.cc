// orrery evals: evaluation of checkpoints on many datasets, as a plan, as a simulation and for real.
#include <fmt/format.h>

#include <csignal>
#include <filesystem>
#include <sstream>

#include "base/byte_source.h"
#include "base/file_end.h"
#include "base/json_text.h"
#include "base/output.h"
#include "base/progress.h"
#include "cli/common_options.h"
#include "cli/options.h"
#include "cli/output_paths.h"
#include "cli/read_options.h"
#include "importers/log_text.h"
#include "reports/evals.h"
#include "rules/diagnose.h"
#include "trials/config.h"
#include "trials/coordinator.h"
#include "trials/draw.h"
#include "trials/job.h"
#include "trials/words.h"
#include "writers/html.h"

namespace orrery {
namespace {

Status overrides(const Args& args, EvalConfig& config) {
  SimulateTerms& s = config.simulate;
  double error_pct = 100 * s.prior_error;
  if (auto ok = all_of({whole(args, "--nodes", config.cluster.nodes, 10'000), whole(args, "--seeds", s.seeds, 100'000),
                        real(args, "--prior-error", error_pct, 0, 300)});
      !ok)
    return ok;
  if (args.has("--nodes")) s.nodes = {config.cluster.nodes};
  if (s.nodes.empty()) s.nodes = {config.cluster.nodes};
  s.prior_error = error_pct / 100;
  return {};
}

Result<int> answer(Document document, const std::vector<Chart>& charts, const EvalConfig& config, const Args& args,
                   const RunOptions& options) {
  document.inputs = {args.positional[1]};
  if (const std::string path = args.value("--html"); !path.empty()) {
    const PageText text{"Evaluation: " + config.name, args.positional[0] + " of " + args.positional[1]};
    if (auto ok = write_html(path, document, charts, text); !ok) return tl::unexpected(ok.error());
  }
  return emit(document, options);
}

volatile sig_atomic_t asked_to_stop = 0;  // a handler can reach nothing else
void on_stop(int) { asked_to_stop = 1; }

std::string own_program() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::string("orrery") : path.string();
}

// The last line of a log that says something; of a long one its end.
std::string last_words(const std::string& log) {
  std::istringstream in(end_of_file(log));
  std::string last;
  for (std::string line; std::getline(in, line);)
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
  return quote_for_people(last, 400);
}

// A cause that is told no more surely than this ends nothing for good: a lone "Killed" may be memory of the node, which
// trials share, or somebody's kill.
constexpr double kLeastSure = 0.7;

// Why a command failed, by the rules of `orrery diagnose` over what it said.
FailureCause cause_of(const Matcher& matcher, const std::string& log) {
  FailureCause cause;
  cause.line = last_words(log);
  auto source = open_file(log);
  if (!source) return cause;
  const auto table = read_log(std::move(*source), log, matcher, {});
  if (!table) return cause;
  const Diagnosis d = diagnose(*table, matcher);
  if (d.verdict != Verdict::failed && d.verdict != Verdict::interrupted) return cause;
  cause.reason = d.reason;
  cause.again = d.restart != "no" || d.confidence < kLeastSure;
  if (!d.evidence.empty()) cause.line = quote_for_people(d.evidence.front().text, 400);
  return cause;
}

Result<int> run_for_real(const EvalConfig& config, const Args& args, const RunOptions& options) {
  struct sigaction action {};
  action.sa_handler = on_stop;
  for (const int s : {SIGTERM, SIGINT, SIGHUP}) ::sigaction(s, &action, nullptr);
  Progress progress(options.show_progress);
  progress.stage("looking for checkpoints");
  EvalHooks hooks;
  std::shared_ptr<Matcher> matcher;  // takes a second to compile: for the first failure
  hooks.cause = [&](const std::string& log) {
    Notes ignored;
    if (!matcher)
      if (const auto rules = built_in_rules(); rules)
        if (auto compiled = Matcher::compile(*rules, ignored); compiled) matcher = *compiled;
    return matcher ? cause_of(*matcher, log) : FailureCause{};
  };
  hooks.stop = [] { return asked_to_stop != 0; };
  hooks.watch = args.has("--watch");
  bool told = false, told_refused = false;
  hooks.progress = [&](const EvalProgress& p) {
    if (hooks.watch && !p.absent.empty() && !told)
      fmt::print(stderr, "orrery evals: waiting for a directory of checkpoints that is not there: {}\n", p.absent);
    told = told || !p.absent.empty();
    if (!p.refused.empty() && !told_refused)
      fmt::print(stderr, "orrery evals: starts are refused, and asked for again: {}\n", p.refused);
    told_refused = !p.refused.empty();
    progress.stage(fmt::format("{} of {} scored, {} failed; {} trials, {} metrics run", p.scored, p.datasets, p.failed,
                               p.trials, p.metrics));
    progress.update(static_cast<std::uint64_t>(p.scored + p.failed), static_cast<std::uint64_t>(p.datasets));
  };
  const RunsOn runs = config.cluster.runs;
  const std::unique_ptr<TrialRunner> runner = runs == RunsOn::slurm   ? slurm_runner(config, own_program())
                                              : runs == RunsOn::steps ? step_runner(config, own_program())
                                                                      : local_runner(config, own_program());
  auto outcome = coordinate(config, *runner, hooks);
  progress.finish();
  if (!outcome) return tl::unexpected(outcome.error());
  const Document document = evals_run_document(config, *outcome);
  const auto status = answer(document, evals_charts(config, *outcome), config, args, options);
  if (!status) return status;
  return outcome->complete ? *status : kIncomplete;
}

Result<int> run_evals(const Args& args) {
  const auto options = understand(*find_command("evals"), args);
  if (!options) return tl::unexpected(options.error());
  const std::string& what = args.positional[0];
  // What runs on nodes: docs/formats/evals.md.
  if (what == "job") return run_job(job_of_array(args.positional[1]));
  if (what == "sweep") {
    sweep_copies({args.positional[1], 0, 0}, 0);
    return kDone;
  }
  if (what != "plan" && what != "run" && what != "simulate")
    return fail("not known: " + what, "evals", "plan, run or simulate");
  if (auto ok = check_part(args, "evals", what, {{"run", {"--watch"}}, {"simulate", {"--seeds"}}}); !ok)
    return tl::unexpected(ok.error());
  auto config = read_eval_config(args.positional[1]);
  if (!config) return tl::unexpected(config.error());
  if (auto ok = overrides(args, *config); !ok) return tl::unexpected(ok.error());
  if (auto ok = refuse_output_over("--html", args.value("--html"), {args.positional[1]}); !ok)
    return tl::unexpected(ok.error());
  if (const std::string path = args.value("--html"); !path.empty())
    if (auto ok = check_writable(path); !ok) return tl::unexpected(ok.error());
  if (auto ok = check_words(*config); !ok) return tl::unexpected(ok.error());
  if (what == "run") return run_for_real(*config, args, *options);
  if (what == "plan") {
    const auto measured = measured_times(*config);
    if (!measured) return tl::unexpected(measured.error());
    const PlannedEvals plan = plan_evals(*config, draw_units(*config, 1, *measured));
    return answer(evals_plan_document(*config, plan, options->style.width), evals_charts(*config, plan), *config, args,
                  *options);
  }
  std::vector<SimulatedRuns> clusters;
  for (const std::int64_t nodes : config->simulate.nodes)
    clusters.push_back(simulate_runs(*config, nodes, options->threads));
  return answer(evals_simulate_document(*config, clusters, options->style.width), evals_charts(*config, clusters),
                *config, args, *options);
}

}  // namespace

Command evals_command() {
  return {
      .name = "evals",
      .summary = "evaluate checkpoints on many datasets without waiting: plan, run or simulate the trials",
      .operands = "plan|run|simulate CONFIG.toml",
      .least = 2,
      .most = 2,
      .description =
          "Three ideas of a published study (Hu et al., NSDI 2024) make evaluation short: a node loads a checkpoint "
          "once, "
          "into shared memory, and its trials read it there; a trial dumps its outputs and frees its GPU, and the "
          "metric "
          "is computed by a job on CPUs; from times that are known from before, small datasets share a trial, large "
          "ones "
          "are split, and those with long metrics come first.\n\n"
          "plan prints the schedule that run would begin with (one trial a dataset where that is shorter) and its "
          "makespan "
          "beside one trial a dataset (each loads the model from storage and "
          "holds its GPU through the metric), OpenCompass' size partitioner, and a lower bound: an uncontended load, "
          "then the longest piece that cannot be split or all inference over the GPUs. A second bound counts CPU jobs "
          "and judges as well, and `binds` names what is scarce.\n\n"
          "simulate runs the schedule on a model of the cluster, in which loads of a node share its link to storage, "
          "many times: with times drawn from the laws of [[drawn]] tables, or around those of the datasets.\n\n"
          "run does it, on this machine or on Slurm, and ends with one table of scores. Checkpoints are evaluated when "
          "they are complete. It can be killed at any moment: started again it goes on, with the jobs that still run, "
          "and nothing that is done runs twice. What fails is tried elsewhere, unless its log says that this is of no "
          "use. Times are measured, and are the priors of the next plan.\n\n"
          "docs/formats/evals.md describes CONFIG.toml, docs/model.md the model.",
      .options = {{"--nodes", "N", "so many nodes instead of the file's", Takes::word},
                  {"--seeds", "N", "simulate: so many draws (default: the file's, else 20)", Takes::word},
                  {"--prior-error", "PCT",
                   "how far times turn out from what is believed, sigma in % (default: the file's, else 5)",
                   Takes::word},
                  {"--watch", "",
                   "run: when everything is done, wait for checkpoints that appear, until interrupted or "
                   "nothing more can be begun"},
                  {"--html", "FILE",
                   "write one self-contained page: the schedule as a chart (of run: as it went), and the tables",
                   Takes::file},
                  kCsv,
                  kJson,
                  kQuiet,
                  kThreads,
                  kHelp},
      .when_incomplete = "run: a dataset of a checkpoint has no score, or a checkpoint was not complete",
      .examples = {{"Nine datasets on four GPUs:", "orrery evals plan samples/evals.toml"},
                   {"A small model on made text, for real:", "orrery evals run examples/evals/trainer.toml"},
                   {"The case of the study, 63 datasets on one and on four nodes:",
                    "orrery evals simulate samples/evals-study.toml"}},
      .run = run_evals};
}

}  // namespace orrery
