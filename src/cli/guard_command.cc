// orrery guard simulate: months of failures under policies of restarting and saving.
#include <fmt/format.h>

#include <algorithm>

#include "cli/common_options.h"
#include "cli/guard_run.h"
#include "cli/options.h"
#include "cli/read_options.h"
#include "reports/guard.h"
#include "supervisor/simulate.h"

namespace orrery {
namespace {

constexpr Policy kPolicies[] = {{Restarts::guard, Saves::async},
                                {Restarts::guard, Saves::sync},
                                {Restarts::people, Saves::async},
                                {Restarts::people, Saves::sync}};
constexpr double kMostFailures = 2e8;  // minutes of work

Result<std::vector<Policy>> read_policies(const Args& args) {
  std::vector<Policy> policies;
  if (!args.has("--policy")) return std::vector<Policy>(std::begin(kPolicies), std::end(kPolicies));
  const std::string text = args.value("--policy");
  for (std::size_t i = 0; i <= text.size();) {
    const std::size_t end = std::min(text.find(',', i), text.size());
    const std::string name = text.substr(i, end - i);
    const auto* const known =
        std::find_if(std::begin(kPolicies), std::end(kPolicies), [&](Policy p) { return name_of(p) == name; });
    if (known == std::end(kPolicies))
      return fail("not known: " + name, "--policy", "guard-async, guard-sync, manual-async, manual-sync");
    const auto same = [&](Policy p) { return name_of(p) == name; };
    if (std::any_of(policies.begin(), policies.end(), same)) return fail("given twice: " + name, "--policy");
    policies.push_back(*known);
    i = end + 1;
  }
  return policies;
}

Result<MonthsQuestion> read_question(const Args& args) {
  MonthsQuestion q;
  double mtbf_h = 0, repair_h = q.repair_s / 3600, automatic_pct = 100 * q.automatic;
  std::int64_t seed = 1;
  const bool best = args.value("--interval") == "best";
  if (const Status ok =
          all_of({whole(args, "--gpus", q.gpus, 10'000'000), whole(args, "--gpus-per-node", q.gpus_per_node, 1024),
                  real(args, "--days", q.days, 0.001, 3650), real(args, "--mtbf", mtbf_h, 0.001, 1e9),
                  best ? Status{} : real(args, "--interval", q.interval_s, 0.1, 1e9),
                  real(args, "--save", q.save_s, 0.001, 1e6), real(args, "--startup", q.startup_s, 0, 1e6),
                  real(args, "--detect", q.detect_s, 0, 1e6), real(args, "--check", q.check_s, 0, 1e6),
                  real(args, "--automatic", automatic_pct, 0, 100), whole(args, "--spares", q.spares, 1'000'000, 0),
                  real(args, "--repair", repair_h, 0, 1e6), whole(args, "--trials", q.trials, 100'000),
                  whole(args, "--seed", seed, 1'000'000'000'000'000'000, 0)});
      !ok)
    return tl::unexpected(ok.error());
  q.copy_s = q.save_s / 10;
  if (const Status ok = real(args, "--copy", q.copy_s, 0.0001, 1e6); !ok) return tl::unexpected(ok.error());
  if (q.copy_s > q.save_s)
    return fail(fmt::format("copying takes {:g} s, longer than the whole save of {:g} s", q.copy_s, q.save_s), "--copy",
                "at most what --save says");
  // Of no more use, and each costs memory; a small job on large nodes may have its few all the same.
  const std::int64_t most_spares = std::max<std::int64_t>(16, 100 * q.gpus / q.gpus_per_node);
  if (q.spares > most_spares)
    return fail(fmt::format("{} nodes stand by for {} GPUs", q.spares, q.gpus), "--spares",
                fmt::format("{} at most", most_spares));
  q.mtbf_s = 3600 * mtbf_h;
  q.repair_s = 3600 * repair_h;
  q.automatic = automatic_pct / 100;
  q.seed = static_cast<std::uint64_t>(seed);
  if (best) q.interval_s = 0;
  if (const double n = expected_failures(q); n > kMostFailures)
    return fail(fmt::format("{:.2g} failures to go through, {:.0g} at most", n, kMostFailures), "--trials",
                "fewer trials or days");
  return q;
}

Result<int> run_simulate(const Args& args) {
  const auto options = understand(*find_command("guard"), args);
  if (!options) return tl::unexpected(options.error());
  if (args.positional.size() > 1) return fail("too many operands: " + args.positional[1], "guard simulate", "none");
  const auto policies = read_policies(args);
  if (!policies) return tl::unexpected(policies.error());
  const auto question = read_question(args);
  if (!question) return tl::unexpected(question.error());
  std::vector<PolicyMonths> months;
  for (const Policy p : *policies) months.push_back(simulate_months(*question, p, options->threads));
  return emit(months_document(*question, months), *options);
}

std::vector<OptionSpec> simulate_options() {
  return {
      {"--gpus", "N", "simulate: GPUs of the job (default: 2048)", Takes::word},
      {"--gpus-per-node", "N", "GPUs of a node, for spares (default: 8)", Takes::word},
      {"--days", "N", "how long (default: 30)", Takes::word},
      {"--policy", "NAME,...",
       "guard-async, guard-sync, manual-async, manual-sync (default: all; the first one's figures are the "
       "document's own)",
       Takes::word},
      {"--interval", "S|best", "seconds of training between checkpoints, or each policy's best (default: 1800)",
       Takes::word},
      {"--save", "S", "seconds until a checkpoint is on storage (default: 60)", Takes::word},
      {"--copy", "S", "seconds that an asynchronous save blocks (default: a tenth of --save)", Takes::word},
      {"--startup", "S", "seconds from a start to the first step (default: 300)", Takes::word},
      {"--detect", "S", "guard: seconds until a failure is noticed (default: 30)", Takes::word},
      {"--check", "S", "guard: seconds until the bad nodes are found (default: 60)", Takes::word},
      {"--automatic", "PCT", "guard: failures that need no person, in % (default: 90)", Takes::word},
      {"--spares", "N", "guard: nodes that stand by (default: 2)", Takes::word},
      {"--repair", "H", "guard: mean hours until a bad node is a spare (default: 24)", Takes::word},
      {"--mtbf", "H", "hours between failures of the whole job (default: the study's rate a GPU hour)", Takes::word},
      {"--trials", "N", "runs to take the mean of (default: 200)", Takes::word},
      {"--seed", "N", "another seed, other failures (default: 1)", Takes::word}};
}

Status none_of(const Args& args, const std::vector<OptionSpec>& options, const std::string& with, const char* of,
               std::string_view but = {}) {
  for (const OptionSpec& o : options)
    if (o.name != but && args.has(o.name)) return fail("not with " + with, std::string(o.name), of);
  return {};
}

Status options_belong(const Args& args, const std::string& first) {
  constexpr const char* of_run = "only with -- COMMAND";
  constexpr const char* of_simulate = "only with simulate";
  if (first == "simulate") return none_of(args, guard_run_options(), first, of_run);
  if (first.empty()) return none_of(args, simulate_options(), "-- COMMAND", of_simulate);
  if (first != "status") return {};
  const Status ok = none_of(args, guard_run_options(), first, of_run, "--state");
  return ok ? none_of(args, simulate_options(), first, of_simulate) : ok;
}

Result<int> run_guard_words(const Args& args) {
  const std::string first = args.positional.empty() || args.before_dashes == 0 ? "" : args.positional.front();
  if (first == "keep") return run_guard_keeper(args);
  if (first == "batch" || first == "rank") return run_guard_on_node(args);
  if (const Status ok = options_belong(args, first); !ok) return tl::unexpected(ok.error());
  if (first == "simulate") return run_simulate(args);
  if (first == "status") return run_guard_status(args);
  if (first.empty() && (args.before_dashes || args.has("--config"))) return run_guard_command(args);
  return fail(first.empty() ? "needs a command" : "not known: " + first, "guard",
              "orrery guard [OPTION...] -- COMMAND..., or guard status, or guard simulate");
}

}  // namespace

Command guard_command() {
  return {
      .name = "guard",
      .summary = "keep a training job alive; what failures cost it, and what would save it",
      .operands = "[status [DIR]|simulate] [-- COMMAND...]",
      .least = 0,
      .most = kMany,
      .description =
          "orrery guard -- COMMAND... runs a training job and keeps it running. It reads the job's logs as orrery "
          "diagnose does, its steps, losses and heartbeats, and decides: failures of the machine are answered with a "
          "restart from the newest good checkpoint, without nodes that are bad; an error of the program or of its "
          "script is reported, never restarted blindly; a job that stands still has its stacks taken, is ended and "
          "started again; a loss that is not finite or stays high is answered with an earlier checkpoint, and the "
          "batches in between are left out; before a preemption or a time limit it saves and ends. Nothing is killed "
          "while any rank makes progress. Everything of an attempt is seen dead before the next is started.\n\n"
          "In the arguments of COMMAND, {checkpoint}, {skip_from}, {skip_to}, {attempt}, {state}, {heartbeat} and "
          "{nodes} are replaced; no shell sees them. Every event and decision is written to the state directory before "
          "it is acted on: guard that was killed, started again with the same --state, goes on with the same job, "
          "which lives on meanwhile. SIGTERM or SIGINT: the job saves and ends, and guard with it; a second one ends "
          "it at once. guard status says what became of it. docs/guard.md has the table of decisions.\n\n"
          "--slurm runs it as jobs of Slurm: COMMAND once a task, where {rank}, {world}, {local_rank}, {node} and "
          "{first_node} are replaced, too. A lost node is noticed within seconds by the keepers of its ranks, drained "
          "with "
          "the reason and left out; the next job starts on a spare, or on fewer nodes where --nodes N-M allows it. "
          "Cancelled by a person it is not started again; requeued or preempted it goes on as a job of its own.\n\n"
          "guard simulate runs a job through months of failures under policies and answers with goodput (the share of "
          "the "
          "GPU time of runs that was of use), the effective training time ratio (ETTR: the share of the time from "
          "begin to end), what was lost to which cause, and the best interval between checkpoints beside Young's and "
          "Daly's.\n\n"
          "Failures come at a constant rate, which grows with the GPUs, and of the reasons that a study of two "
          "clusters saw in its large jobs (Hu et al., NSDI 2024). manual: people start the job again, as fast as "
          "there. guard: failures are noticed, nodes tested, bad ones replaced by spares and the job started again "
          "without people, but for the share that needs them. sync: training stops until a checkpoint is on storage; "
          "async: until it is copied to host memory. Failures of the job's own code are not simulated: a restart does "
          "not help there. docs/model.md says what is taken for granted.",
      .options = with(with(guard_run_options(), simulate_options()), {kCsv, kJson, kQuiet, kThreads, kHelp}),
      .when_incomplete = "the job was stopped or has failed for good, as the report says why",
      .examples = {{"A job, guarded; its steps are seen in what it writes:",
                    "orrery guard --state \"$(mktemp -d)\" -- printf 'iteration %d/3 lm loss: 2.0\\n' 1 2 3"},
                   {"What became of a job that was killed, stood still and lost its numbers:",
                    "orrery guard status samples/guarded-job"},
                   {"A month on 2,048 GPUs, under all policies:", "orrery guard simulate"},
                   {"... when each saves as often as is best for it:", "orrery guard simulate --interval best"},
                   {"How often to save on 16,384 GPUs that fail every three hours:",
                    "orrery guard simulate --gpus 16384 --mtbf 3 --policy guard-async --json | jq "
                    ".best_checkpoint_interval_s"}},
      .run = run_guard_words};
}

}  // namespace orrery
