#include "cli/bench_runs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <set>

#include "base/json_text.h"
#include "base/output.h"
#include "base/progress.h"
#include "bench/sweep.h"
#include "cli/bench_ops.h"
#include "cli/bench_readers.h"
#include "cli/common_options.h"
#include "cli/options.h"
#include "cli/output_paths.h"
#include "cli/read_options.h"
#include "reports/bench.h"
#include "writers/html.h"

namespace orrery {
namespace {

std::atomic<bool> stop_asked{false};  // a handler of signals has no other way to tell

// SIGINT and SIGTERM end the run that is under way and then this program. A second one does what it always does.
void stop_on_signals() {
  struct sigaction how {};
  how.sa_handler = [](int) { stop_asked = true; };
  how.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &how, nullptr);
  ::sigaction(SIGTERM, &how, nullptr);
}

struct Asked {
  RunOptions options;
  BenchConfig config;
  RunPlanTerms terms;
};

// Errors: runs of operators would be refused for their options as they begin, of whatever number of ranks.
Status check_operators(const BenchConfig& c) {
  if (c.operator_options.empty()) return {};
  std::optional<Error> first;
  for (const MatrixAxes& m : c.matrices) {
    if (std::find(m.tasks.begin(), m.tasks.end(), BenchTask::operators) == m.tasks.end()) continue;
    for (const std::int64_t ranks : m.gpus) {
      BenchRun run;
      run.task = BenchTask::operators, run.framework = BenchFramework::orrery, run.gpus = ranks;
      const auto launch = launch_of(c, run, {}, "/", "/");
      if (!launch) return tl::unexpected(launch.error());
      constexpr std::ptrdiff_t kProgram = 3;  // orrery bench ops
      const Status ok = check_bench_ops({launch->argv.begin() + kProgram, launch->argv.end()});
      if (ok) return {};
      if (!first) first = ok.error();
    }
  }
  if (!first) return {};
  return fail("operator_options: " + (first->where.empty() ? first->what : first->where + ": " + first->what), c.path,
              first->what.ends_with("is given twice") ? "bench gives it itself: leave it out" : first->advice);
}

Result<Asked> understood(const Args& args) {
  Asked a;
  const auto options = understand(*find_command("bench"), args);
  if (!options) return tl::unexpected(options.error());
  a.options = *options;
  auto config = read_bench_config(args.positional[1]);
  if (!config) return tl::unexpected(config.error());
  a.config = std::move(*config);
  if (args.has("--store")) a.config.store = args.value("--store");
  a.terms.only = args.value("--runs");
  a.terms.unfit = args.has("--unfit");
  a.terms.repeat = args.has("--repeat");
  if (const Status ok = real(args, "--time-budget", a.terms.budget_s, 1, 1e9); !ok) return tl::unexpected(ok.error());
  return a;
}

bool is_meant(const std::string& id, const RunPlanTerms& terms) { return id.find(terms.only) != std::string::npos; }

// A matrix and its store, at one moment: the estimate is fitted to these rows, and the plan is of them.
struct Standing {
  std::vector<RunRow> rows;
  RunPlan plan;
};

Result<Standing> standing(const Asked& a, RunEstimator& estimator, Result<std::vector<RunRow>> rows) {
  if (!rows) return tl::unexpected(rows.error());
  Standing s{std::move(*rows), {}};
  if (const Status ok = estimator.fit(s.rows); !ok) return tl::unexpected(ok.error());
  s.plan = plan_runs(a.config, estimator, s.rows, a.terms);
  return s;
}

// Takes the rows.
BenchFacts facts_of(const Asked& a, RunEstimator& estimator, Standing& s) {
  BenchFacts facts;
  facts.entries = entries_of(s.plan, s.rows, estimator);
  facts.rows = std::move(s.rows);
  facts.has_platform = estimator.has_platform();
  facts.compare_cpu = a.config.compare_cpu;
  facts.fitted = estimator.fitted();
  facts.tables = estimator.noisy_rows();
  return facts;
}

// References, and of the runs the results that the entries stand on: not those of another specification.
std::vector<RunRow> those_that_count(const BenchFacts& facts) {
  std::set<std::int64_t> ids;
  for (const BenchEntry& e : facts.entries)
    if (e.row) ids.insert(e.row->id);
  std::vector<RunRow> rows = facts.rows;
  std::erase_if(rows, [&](const RunRow& r) { return r.kind == RunKind::run && !ids.contains(r.id); });
  return rows;
}

Result<std::vector<RunRow>> rows_of(const std::string& store) {
  if (::access(store.c_str(), F_OK) != 0 && errno == ENOENT) return std::vector<RunRow>();
  const auto opened = ResultStore::open(store, false);
  if (!opened) return tl::unexpected(opened.error());
  return opened->rows();
}

// Errors: a file is there that is no store, or cannot be read.
Status check_store(const std::string& store) {
  if (::access(store.c_str(), F_OK) != 0) return {};
  const auto opened = ResultStore::open(store, true);
  if (!opened) return tl::unexpected(opened.error());
  const auto rows = opened->rows();
  return rows ? Status{} : Status(tl::unexpected(rows.error()));
}

Status finish_facts(const ResultStore& store, BenchFacts& facts) {
  auto shares = store.shares();
  if (!shares) return tl::unexpected(shares.error());
  auto operators = store.operators();
  if (!operators) return tl::unexpected(operators.error());
  auto environments = store.environments();
  if (!environments) return tl::unexpected(environments.error());
  facts.shares = std::move(*shares);
  facts.operators = std::move(*operators);
  facts.environments = std::move(*environments);
  return {};
}

// Errors: no run of the matrix is meant.
Status check_chosen(const BenchConfig& config, const RunPlan& plan, const RunPlanTerms& terms) {
  const bool any = std::any_of(plan.runs.begin(), plan.runs.end(),
                               [&](const PlannedRun& p) { return p.run.id().find(terms.only) != std::string::npos; });
  if (any || terms.only.empty()) return {};
  return fail(fmt::format("no run of {} has this in its id", config.path), "--runs " + terms.only,
              "`orrery bench plan` with --json has the ids");
}

// Of a report: what the store has of a matrix as it was counts, too.
Status check_reported(const BenchConfig& config, const std::vector<RunRow>& rows, const RunPlan& plan,
                      const RunPlanTerms& terms) {
  if (std::any_of(rows.begin(), rows.end(), [&](const RunRow& r) { return is_meant(r.run, terms); })) return {};
  return check_chosen(config, plan, terms);
}

std::string duration(double s) {
  if (s < 90) return fmt::format("{:.0f} s", s);
  if (s < 5400) return fmt::format("{:.0f} min", s / 60);
  return fmt::format("{:.1f} h", s / 3600);
}

std::string outcome(const std::string& store, const RunRow& r) {
  if (r.state != RunState::done)
    return fmt::format("{}: {}{}{}; logs in {}", name_of(r.state), r.reason, r.root_cause.empty() ? "" : ": ",
                       quote_for_people(r.root_cause, 300), logs_of(store, r));
  if (r.step_ms.count == 0) return "done";
  return fmt::format("{:.1f} ms a step", r.step_ms.median);
}

}  // namespace

Result<int> run_bench_plan(const Args& args) {
  auto asked = understood(args);
  if (!asked) return tl::unexpected(asked.error());
  if (const Status ok = check_operators(asked->config); !ok) return tl::unexpected(ok.error());
  auto estimator = RunEstimator::of(asked->config);
  if (!estimator) return tl::unexpected(estimator.error());
  auto now = standing(*asked, *estimator, rows_of(asked->config.store));
  if (!now) return tl::unexpected(now.error());
  if (const Status ok = check_chosen(asked->config, now->plan, asked->terms); !ok) return tl::unexpected(ok.error());
  const BenchFacts facts = facts_of(*asked, *estimator, *now);
  return emit(bench_plan_document(asked->config, now->plan, facts), asked->options);
}

Result<int> run_bench_run(const Args& args) {
  auto asked = understood(args);
  if (!asked) return tl::unexpected(asked.error());
  if (const Status ok = check_operators(asked->config); !ok) return tl::unexpected(ok.error());
  const BenchConfig& config = asked->config;
  auto estimator = RunEstimator::of(config);
  if (!estimator) return tl::unexpected(estimator.error());
  // First of all: a file that is refused gets no directory beside it.
  if (const Status ok = check_store(config.store); !ok) return tl::unexpected(ok.error());
  const auto lock = RunnerLock::take(state_directory(config.store));
  if (!lock) return tl::unexpected(lock.error());
  auto store = ResultStore::open(config.store, true);
  if (!store) return tl::unexpected(store.error());
  const auto settled = settle_interrupted(*store);
  if (!settled) return tl::unexpected(settled.error());
  auto now = standing(*asked, *estimator, store->rows());
  if (!now) return tl::unexpected(now.error());
  if (const Status ok = check_chosen(config, now->plan, asked->terms); !ok) return tl::unexpected(ok.error());
  const auto measured = std::count_if(now->plan.runs.begin(), now->plan.runs.end(), [&](const PlannedRun& p) {
    return p.state == PlanState::measured && p.run.id().find(asked->terms.only) != std::string::npos;
  });
  const bool nothing = now->plan.order.empty();
  if (nothing && measured == 0) return fail("nothing to run", config.path, "`orrery bench plan` says why");
  if (const Status ok = check_programs(config, now->plan); !ok) return tl::unexpected(ok.error());
  stop_on_signals();
  const BenchReaders readers = bench_readers(asked->options.threads);
  const auto tools = prepare_sweep(*store, readers);
  if (!tools) return tl::unexpected(tools.error());
  Progress progress(asked->options.show_progress);
  const bool lines = !asked->options.quiet && !asked->options.show_progress;
  SweepTerms terms;
  terms.tools = &*tools;
  terms.readers = &readers;
  terms.stop = &stop_asked;
  terms.progress = [&](const SweepProgress& p) {
    if (p.ended != nullptr && lines)
      (void)write_all(STDERR_FILENO,
                      fmt::format("[{}/{}] {}: {}; about {} left\n", p.done, p.all, p.what,
                                  outcome(config.store, *p.ended), duration(p.left_s)),
                      "standard error");
    progress.stage(
        fmt::format("{} of {}, about {} left: {}", std::min(p.done + 1, p.all), p.all, duration(p.left_s), p.what));
    progress.update(p.done, p.all);
  };
  const double budget = asked->terms.budget_s > 0 ? asked->terms.budget_s : config.budget_s;
  const auto begin = std::chrono::steady_clock::now();
  auto result = sweep(config, *estimator, now->plan, *store, terms);
  if (!result) return tl::unexpected(result.error());
  // What nobody had timed was guessed: what the runs left of the budget is given out again, by what they took.
  while (budget > 0 && !asked->terms.repeat && !result->stopped) {
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    asked->terms.budget_s = std::max(1e-3, budget - taken.count());
    now = standing(*asked, *estimator, store->rows());
    if (!now) return tl::unexpected(now.error());
    if (now->plan.order.empty()) break;
    const auto more = sweep(config, *estimator, now->plan, *store, terms);
    if (!more) return tl::unexpected(more.error());
    *result += *more;
    if (more->ran == 0) break;
  }
  progress.finish();
  if (*settled > 0)
    result->notes.add("interrupted", Severity::info, static_cast<std::uint64_t>(*settled), "",
                      "runs that an earlier runner did not end: they were run again");
  if (nothing)
    result->notes.add("measured-already", Severity::info, static_cast<std::uint64_t>(measured), "",
                      "nothing was left to run; --repeat runs them again");
  asked->terms.repeat = false;
  now = standing(*asked, *estimator, store->rows());
  if (!now) return tl::unexpected(now.error());
  const BenchFacts facts = facts_of(*asked, *estimator, *now);
  const auto status = emit(bench_run_document(config, *result, facts), asked->options);
  if (!status) return status;
  return result->stopped ? kIncomplete : *status;
}

Result<int> run_bench_report(const Args& args) {
  auto asked = understood(args);
  if (!asked) return tl::unexpected(asked.error());
  const BenchConfig& config = asked->config;
  std::vector<std::string> read = {config.path, config.store, args.value("--against"), config.platform};
  read.insert(read.end(), config.calibrate.begin(), config.calibrate.end());
  if (const Status ok = refuse_output_over("--html", args.value("--html"), read); !ok)
    return tl::unexpected(ok.error());
  auto estimator = RunEstimator::of(config);
  if (!estimator) return tl::unexpected(estimator.error());
  const auto store = ResultStore::open(config.store, false);
  if (!store) {
    const bool none = ::access(config.store.c_str(), F_OK) != 0 && errno == ENOENT;
    return fail(store.error().what, store.error().where, none ? "`orrery bench run` makes it" : store.error().advice);
  }
  auto now = standing(*asked, *estimator, store->rows());
  if (!now) return tl::unexpected(now.error());
  if (const Status ok = check_reported(config, now->rows, now->plan, asked->terms); !ok)
    return tl::unexpected(ok.error());
  BenchFacts facts = facts_of(*asked, *estimator, *now);
  std::erase_if(facts.entries, [&](const BenchEntry& e) { return !is_meant(e.run.id(), asked->terms); });
  if (const Status ok = finish_facts(*store, facts); !ok) return tl::unexpected(ok.error());
  if (args.has("--against")) {
    const auto old_store = ResultStore::open(args.value("--against"), false);
    if (!old_store)
      return fail(old_store.error().what, "--against " + old_store.error().where, old_store.error().advice);
    auto before = old_store->rows();
    if (!before) return tl::unexpected(before.error());
    auto operators = old_store->operators();
    if (!operators) return tl::unexpected(operators.error());
    std::erase_if(*before, [&](const RunRow& r) { return r.kind == RunKind::run && !is_meant(r.run, asked->terms); });
    facts.compared = compare({std::move(*before), std::move(*operators)}, {those_that_count(facts), facts.operators});
    if (std::none_of(facts.compared.begin(), facts.compared.end(),
                     [](const ComparedRun& c) { return c.change != Change::only_new && c.change != Change::only_old; }))
      return fail(
          "no run of the matrix as it is now has a result in both stores", "--against " + args.value("--against"),
          "name a store of the same runs; the note measured-otherwise of a report without --against tells those "
          "of other settings");
  }
  const Document d = bench_report_document(config, facts);
  if (const std::string path = args.value("--html"); !path.empty()) {
    const PageText text{.title = config.name, .subtitle = config.store};
    if (const Status ok = write_html(path, d, bench_charts(facts), text); !ok) return tl::unexpected(ok.error());
  }
  const auto status = emit(d, asked->options);
  if (!status) return status;
  const bool worse = std::any_of(facts.compared.begin(), facts.compared.end(), [](const ComparedRun& c) {
    return c.change == Change::slower || c.change == Change::fails_now || c.is_gone();
  });
  return worse ? kIncomplete : *status;
}

std::vector<OptionSpec> bench_runs_options() {
  return {
      {"--store", "FILE", "results, instead of where the matrix says", Takes::file},
      {"--runs", "TEXT", "of the matrix those whose id has TEXT in it", Takes::word},
      {"--unfit", "", "run what does not fit by the estimate, too"},
      {"--repeat", "", "run: what is measured already again; the newest result counts"},
      {"--time-budget", "S", "seconds that the runs may take together: the most informative are chosen", Takes::word},
      {"--against", "OLD.db",
       "report: compare with an older store; what became slower is exit status 1, nothing to compare 2", Takes::file},
      {"--html", "FILE", "report: write one self-contained page, tables and plots", Takes::file}};
}

std::vector<Example> bench_runs_examples() {
  return {{"Which runs a matrix has, in which order, and what they should take:",
           "orrery bench plan samples/bench-a800.toml"},
          {"Measure on this machine, without Python, with the example trainer; then the tables:",
           "orrery bench run samples/bench-trainer.toml --store /tmp/orrery-trainer.db --runs b1"}};
}

}  // namespace orrery
