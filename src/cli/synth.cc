// orrery synth: the traces that an estimated job would leave.
#include "cli/synth.h"

#include <fmt/format.h>

#include <charconv>
#include <numeric>
#include <set>

#include "cli/estimate_options.h"
#include "cli/options.h"
#include "estimate/estimate.h"
#include "synthesis/estimated_job.h"

namespace orrery {
namespace {

constexpr std::int64_t kMostRanks = 512, kMostSteps = 100;

// N, or N-M, separated by commas.
Result<std::vector<std::int64_t>> read_ranks(const std::string& text, std::int64_t world) {
  std::set<std::int64_t> ranks;
  for (std::size_t i = 0; i <= text.size();) {
    const std::size_t end = std::min(text.find(',', i), text.size());
    const char *at = text.data() + i, *last = text.data() + end;
    std::int64_t from = 0, to = 0;
    auto [next, error] = std::from_chars(at, last, from);
    to = from;
    if (error == std::errc{} && next != last && *next == '-') {
      const auto [stop, wrong] = std::from_chars(next + 1, last, to);
      next = stop, error = wrong;
    }
    if (error != std::errc{} || next != last || from < 0 || to < from)
      return fail("not a list of ranks: " + text, "--ranks", "for example --ranks 0,8,16-23");
    if (to >= world) return fail(fmt::format("rank {} of a job of {}", to, world), "--ranks", "they count from 0");
    for (std::int64_t r = from; r <= to; ++r) ranks.insert(r);
    i = end + 1;
  }
  return std::vector<std::int64_t>(ranks.begin(), ranks.end());
}

Document document_of(const EstimatedRun& run, double estimated_ns, const std::vector<std::int64_t>& ranks,
                     const std::vector<std::string>& files, const std::vector<std::string>& assumptions) {
  constexpr double kMs = 1e6;
  Document d;
  d.command = "synth";
  for (const std::string& a : assumptions) d.notes.add("assumed", Severity::info, 1, a);
  Section answer{.key = "", .title = "Synthesised", .single = true, .table = {}};
  answer.table.columns = {{.key = "iteration_ms"}, {.key = "estimated_ms"}, {.key = "ranks"}};
  answer.table.rows.push_back({run.iteration_ns / kMs, estimated_ns / kMs, static_cast<std::int64_t>(ranks.size())});
  Section names{.key = "files", .title = "", .table = {}};
  names.values = true;
  names.table.columns = {{.key = "file"}};
  for (const std::string& f : files) names.table.rows.push_back({f});
  Section list{.key = "traces", .title = "Traces", .table = {}};
  list.text_rows = 8;
  list.table.columns = {{.key = "rank"}, {.key = "file"}, {.key = "stage"}, {.key = "events"}};
  const std::int64_t in_stage = run.job.tp * run.job.replicas();
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::int64_t stage = ranks[i] / in_stage;
    list.table.rows.push_back(
        {ranks[i], files[i], stage, static_cast<std::int64_t>(run.stages[static_cast<std::size_t>(stage)].ops.size())});
  }
  d.sections = {std::move(answer), std::move(names), std::move(list)};
  return d;
}

}  // namespace

std::vector<OptionSpec> synth_options() {
  return {{"-o", "DIR", "where the traces go: a directory that is not there yet, or an empty one", Takes::directory},
          {"--steps", "N", "training steps in the traces (default: 2)", Takes::word},
          {"--ranks", "N,N-M,...", "only the traces of these ranks (default: all; needed beyond 512)", Takes::word}};
}

Result<int> run_synth(const Args& args) {
  Args own = args;
  own.options.erase("--steps");  // not those of a trace that is read
  const auto options = understand(*find_command("synth"), own);
  if (!options) return tl::unexpected(options.error());
  const std::string directory = args.value("-o");
  if (directory.empty()) return fail("where to?", "-o", "for example -o traces");
  std::int64_t steps = 2;
  if (args.has("--steps")) {
    const std::string text = args.value("--steps");
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), steps);
    if (error != std::errc{} || end != text.data() + text.size() || steps < 1 || steps > kMostSteps)
      return fail(fmt::format("not a whole number from 1 to {}: {}", kMostSteps, text), "--steps");
  }
  const bool finetune = args.has("--method") && args.value("--method") != "full";
  auto described = described_job(args, finetune);
  if (!described) return tl::unexpected(described.error());
  const EstimateJob& job = described->job;
  if (described->largest_micro_batch) return fail("traces are of one size", "--micro-batch-size", "give a number");

  std::vector<std::int64_t> ranks;
  if (args.has("--ranks")) {
    auto list = read_ranks(args.value("--ranks"), job.world());
    if (!list) return tl::unexpected(list.error());
    ranks = std::move(*list);
  } else {
    if (job.world() > kMostRanks)
      return fail(fmt::format("{} ranks would be {} files", job.world(), job.world()), "synth",
                  fmt::format("say which: --ranks 0-{}", kMostRanks - 1));
    ranks.resize(static_cast<std::size_t>(job.world()));
    std::iota(ranks.begin(), ranks.end(), 0);
  }

  Progress progress(options->show_progress);
  progress.stage("recording");
  const JobCosts costs = costs_of(job);
  EstimateScratch scratch;
  const Estimate e = estimate(job, costs, scratch);
  auto run = record_estimated(job, costs, steps);
  if (!run) return tl::unexpected(run.error());
  progress.stage("writing " + directory);
  const auto files = write_traces(*run, ranks, directory, options->threads, progress);
  if (!files) return tl::unexpected(files.error());
  progress.finish();
  return emit(document_of(*run, e.iteration_ns, ranks, *files, described->assumptions), *options);
}

}  // namespace orrery
