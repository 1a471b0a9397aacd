// orrery predict: the same job, changed.
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>

#include "cli/options.h"
#include "cli/predict_steps.h"
#include "cli/run.h"
#include "facts/library.h"
#include "reports/reports.h"
#include "whatif/edits.h"
#include "whatif/platform.h"
#include "whatif/search.h"
#include "whatif/target.h"

namespace orrery {
namespace {

// What changes the job's kernels as they were measured comes first, then its shape, then what runs it; in this order.
constexpr std::string_view kBefore[] = {"--without-stragglers", "--kernel", "--fuse"};
constexpr std::string_view kAfter[] = {"--network",     "--host",  "--launch",
                                       "--cuda-graphs", "--delay", "--perfect-overlap"};

template <class Names>
std::vector<Edit> edits_among(const Names& names, const Args& args) {
  std::vector<Edit> edits;
  for (const std::string_view name : names) {
    const auto it = args.options.find(name);
    if (it == args.options.end()) continue;
    if (it->second.empty()) edits.push_back({std::string(name), ""});
    for (const std::string& value : it->second) edits.push_back({std::string(name), value});
  }
  return edits;
}

constexpr std::pair<const char*, const char*> kShortNames[] = {{"--microbatches", "--num-microbatches"},
                                                               {"--seq", "--seq-length"}};
// The other names of options.
Args with_full_names(Args args) {
  for (const auto& [name, full] : kShortNames)
    if (const auto it = args.options.find(name); it != args.options.end()) args.options.emplace(full, it->second);
  return args;
}

std::uint64_t moved_nodes(const ExecGraph& before, const ExecGraph& after) {
  if (before.size() != after.size())
    return before.size() > after.size() ? before.size() - after.size() : after.size() - before.size();
  std::uint64_t n = 0;
  for (std::uint32_t i = 0; i < before.size(); ++i) n += before.duration[i] != after.duration[i];
  return std::max<std::uint64_t>(n, 1);
}

// What half of the machine's memory holds of a graph, at some 100 bytes an event.
std::uint64_t most_nodes() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), size = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || size <= 0) return kMostNodes;
  return std::min(kMostNodes, static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(size) / 200);
}

// Where the job's passes and layers cannot be told its data parallelism still can be changed: transfers alone.
Result<AppliedEdit> dp_alone(const Run& run, GraphBuild& build, JobLayout& layout, const std::string& text) {
  std::int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc{} || end != text.data() + text.size() || n < 1 || n > 1'000'000)
    return fail("not a whole number from 1: " + text, "--dp");
  const NetworkModel net = learn_network(run.traces, run.build, layout);
  AppliedEdit edit{{"--dp", text}, {}, "transfers alone change: gradient buckets stay as they are"};
  if (n != layout.dp)
    edit.floor = {net.inter.seen ? Cause::transfers_inter : Cause::transfers_intra,
                  net.intra.seen && net.inter.seen ? 0.03 : 0.06};
  edit.doubt = {Cause::structure, 0.2};
  const auto done = change_dp(run.traces, build, layout, n);
  if (!done) return tl::unexpected(done.error());
  edit.changed = *done;
  return edit;
}

// `--platform list`
Result<int> list_platforms(const Args& args) {
  const auto options = understand(*find_command("predict"), args);
  if (!options) return tl::unexpected(options.error());
  Document d;
  d.command = "predict";
  const auto gpus = known_gpus();
  if (!gpus) return tl::unexpected(gpus.error());
  d.sections.push_back(gpus_section(*gpus));
  return emit(d, *options);
}

// Why the job cannot be told: where data were lost the file that lost them comes first.
Error blamed(const Run& run, const Error& error) {
  const auto lost_in = [&](const Notes& notes) -> const Note* {
    for (const Note& n : notes.rows)
      if (n.severity == Severity::data_loss) return &n;
    return nullptr;
  };
  const Note* lost = lost_in(run.traces.notes);
  std::string file;
  for (const RankTrace& t : run.traces.ranks)
    if (lost == nullptr && (lost = lost_in(t.notes)) != nullptr) file = t.file;
  if (lost == nullptr) return error;
  if (lost->first.find(file) != std::string::npos) file.clear();
  return {lost->name + ": " + lost->first + "; so this cannot be told: " + error.what, file,
          "leave the damaged file out, or give a whole one"};
}

// "pipeline stage 1 of 4": those of which no rank has a trace; "" = none.
std::string untraced_stages(const JobLayout& layout, const ExecGraph& g) {
  std::vector<std::uint8_t> seen(static_cast<std::size_t>(layout.pp), 0);
  for (const GraphRank& r : g.ranks) seen[static_cast<std::size_t>(layout.stage_of(r.rank))] = 1;
  std::string which;
  std::size_t count = 0;
  for (std::size_t s = 0; s < seen.size(); ++s)
    if (seen[s] == 0 && ++count <= 8) which += (which.empty() ? "" : ",") + std::to_string(s);
  if (count == 0) return "";
  return "pipeline stage " + which + (count > 8 ? ",..." : "") + " of " + std::to_string(layout.pp);
}

// The layouts that are feasible; what was asked for is not varied.
Result<SearchResult> try_layouts(const Run& run, const GraphBuild& edited, const JobModel& job, const JobShape& from,
                                 SearchSpace space, const CostTable& table, const Overlap& overlap,
                                 const std::map<std::string, std::string>& asked, const RunOptions& options,
                                 Progress& progress) {
  if (asked.contains("--tp")) space.tp = from.layout.tp, space.max_tp = from.layout.tp;
  if (asked.contains("--pp")) space.pp = from.layout.pp;
  if (asked.contains("--dp")) space.dp = from.layout.dp;
  space.most_nodes = most_nodes();
  progress.stage("trying layouts");
  return search(run.traces, run.build, edited, job, from, space, &table, overlap,
                iteration_ms(run.build.graph, run.replay), options.threads,
                [&](std::uint64_t done, std::uint64_t all) { progress.update(done, all); });
}

// As a shell takes it.
std::string shell_word(const std::string& word) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) || std::string_view("-_./=,:+@%").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// The command line without the search, and with the layout that it found.
std::string repeat_command(const Args& args, const JobShape& shape) {
  constexpr std::string_view kVaried[] = {"--search",
                                          "--tp",
                                          "--pp",
                                          "--dp",
                                          "--micro-batch-size",
                                          "--num-microbatches",
                                          "--microbatches",
                                          "--global-batch-size",
                                          "--schedule",
                                          "--seq"};
  constexpr std::string_view kAnswer[] = {"--json", "--quiet", "--csv", "--threads", "--explain"};
  std::string out = "orrery predict";
  for (const std::string& path : args.positional) out += " " + shell_word(path);
  const auto among = [](const auto& names, std::string_view name) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  const bool splits_no_sequence = shape.layout.tp == 1;  // one rank has nothing to split
  for (const auto& [name, values] : args.options) {
    if (among(kVaried, name) || among(kAnswer, name)) continue;
    if (splits_no_sequence && name == "--sequence-parallel") continue;
    if (values.empty()) out += " " + name;
    for (const std::string& value : values) out += " " + name + " " + shell_word(value);
  }
  const JobLayout& l = shape.layout;
  out += " --tp " + std::to_string(l.tp) + " --pp " + std::to_string(l.pp) + " --dp " + std::to_string(l.dp);
  out += " --micro-batch-size " + std::to_string(std::llround(shape.dims.mbs)) + " --num-microbatches " +
         std::to_string(l.num_microbatches) + " --schedule " + schedule_text(shape);
  if (splits_no_sequence) out += " --sequence-parallel off";
  return out;
}

// A table that says what it was measured on is of the traces' GPU.
Status check_device(const CostTable& table, const TraceSet& traces, const std::string& where) {
  if (table.device() == "cpu") return fail("is of a CPU: traces have kernels of a GPU", where, "measure with --device");
  const GpuFacts *of_table = find_gpu(table.machine()), *of_traces = gpu_of(traces);
  if (of_table == nullptr || of_traces == nullptr || of_table->name == of_traces->name) return {};
  return fail("is of " + of_table->name + ", the traces of " + of_traces->name, where, "give a table of that GPU");
}

}  // namespace

Result<int> run_predict(const Args& given) {
  for (const auto& [name, full] : kShortNames)
    if (given.has(name) && given.has(full))
      return fail("the same as " + std::string(full) + ", which is given too", std::string(name));
  if (given.value("--platform") == "list") return list_platforms(given);
  if (given.positional.empty()) return fail("needs TRACE...", "predict", "see orrery help predict");
  const Args args = with_full_names(given);
  if (args.has("--search") && args.has("--export"))
    return fail("a search ranks many runs and writes none", "--export",
                "predict the layout that you choose with the command that the search answers, and export that");
  if (args.has("--platform"))
    if (const auto known = known_platform(args.value("--platform")); !known) return tl::unexpected(known.error());
  auto options = understand(*find_command("predict"), args);
  if (!options) return tl::unexpected(options.error());
  std::map<std::string, std::string> asked;
  for (const std::string& name : shape_edits())
    if (args.has(name)) asked[name] = args.value(name);
  if (Status ok = check_values(asked); !ok) return tl::unexpected(ok.error());
  GivenLayout said;
  if (args.has("--layout")) {
    auto read = parse_layout(args.value("--layout"));
    if (!read) return tl::unexpected(read.error());
    said = std::move(*read);
  }
  CostTable table;
  if (args.has("--cost-table")) {
    auto read = read_cost_table(args.value("--cost-table"));
    if (!read) return tl::unexpected(read.error());
    table = std::move(*read);
  }
  std::optional<SearchSpace> space;
  if (args.has("--search")) {
    auto read = parse_search(args.value("--search"));
    if (!read) return tl::unexpected(read.error());
    space = std::move(*read);
  }
  Progress progress(options->show_progress);
  options->keep_rows = true;
  auto run = run_again(args.positional, *options, progress);
  if (!run) return tl::unexpected(run.error());
  if (run->pipeline) return predict_steps(*run, args, *options, progress);
  if (Status ok = check_device(table, run->traces, args.value("--cost-table")); !ok) return tl::unexpected(ok.error());

  progress.stage("taking the job apart");
  const Overlap overlap = overlap_of(run->build.graph, learn_contention(run->traces, run->build), run->replay);
  auto layout = recognise_layout(run->traces, run->build, said);
  Result<JobModel> job = layout ? learn_job(run->traces, run->build, *layout, said, overlap)
                                : Result<JobModel>(tl::unexpected(layout.error()));
  const bool dp_asked_alone = layout && asked.size() == 1 && asked.contains("--dp");
  if (!job && (args.has("--layout") || (!asked.empty() && !dp_asked_alone)))
    return tl::unexpected(blamed(*run, job.error()));

  progress.stage("changing the job");
  Run changed;
  changed.build = run->build;
  std::vector<AppliedEdit> applied;
  Scenario measured{run->traces, changed.build};
  for (const Edit& e : edits_among(kBefore, args)) {
    auto done = apply_edit(measured, e);
    if (!done) return tl::unexpected(done.error());
    applied.push_back(std::move(*done));
    if (e.name == "--without-stragglers" && job) std::fill(job->slow.begin(), job->slow.end(), 1.0);
  }
  if (args.has("--platform")) {
    if (!job) return tl::unexpected(blamed(*run, job.error()));
    AppliedEdit edit{
        {"--platform", args.value("--platform")}, {}, "work goes with throughput and bandwidth of the GPUs"};
    edit.doubt = {Cause::kernels_from_facts, 0.3};
    edit.floor = {Cause::kernels_from_facts, 0.1};
    const auto done = change_platform(run->traces, changed.build, *job, edit.edit.value);
    if (!done) return tl::unexpected(done.error());
    if (done->nodes == 0) edit.floor = {};
    edit.changed = *done;
    applied.push_back(std::move(edit));
  }
  JobLayout new_layout = layout ? *layout : JobLayout{};
  JobShape next = job ? job->base : JobShape{};
  std::optional<Rebuilt> rebuilt;
  Overlap new_overlap;
  SearchResult found;
  if (space && !job) return tl::unexpected(blamed(*run, job.error()));
  if (job) {
    auto shape = target_shape(*job, asked);
    if (!shape) return tl::unexpected(shape.error());
    next = std::move(*shape);
    if (Status ok = check_dimensions(*job, next); !ok) return tl::unexpected(ok.error());
    if (space) {
      auto tried = try_layouts(*run, changed.build, *job, next, *space, table, overlap, asked, *options, progress);
      if (!tried) return tl::unexpected(tried.error());
      found = std::move(*tried);
      for (Candidate& c : found.candidates) c.repeat = repeat_command(args, c.shape);
    }
    if (!same_shape(job->base, next))
      if (const std::string stages = untraced_stages(*layout, run->build.graph); !stages.empty())
        return fail("no rank of " + stages + " has a trace", "", "another configuration needs one of each stage");
    RatesError error;
    Changed moved;
    if (!same_shape(job->base, next) || !table.rows().empty()) {
      const RebuildOptions limits{.max_nodes = most_nodes()};
      auto made = rebuild_as(run->traces, changed.build, *job, next, &table, limits, error);
      if (!made) return tl::unexpected(made.error());
      moved.nodes = moved_nodes(run->build.graph, made->build.graph);
      moved.edges = made->unlike;
      rebuilt = std::move(*made);
      new_overlap = overlap_for(*rebuilt, overlap, run->traces);
      changed.build = std::move(rebuilt->build);
    }
    for (AppliedEdit& edit : describe_shape_edits(*job, next, asked, error, moved)) applied.push_back(std::move(edit));
    if (args.has("--cost-table")) {
      if (error.from_table == 0)
        return fail(
            "no kernel of the job has a row of the table", "--cost-table " + args.value("--cost-table"),
            "names are those of the trace or, as bench ops writes them, of operators; shapes as MxNxK or a number of "
            "elements");
      applied.push_back({{"--cost-table", args.value("--cost-table")}, moved, "times of the table as they are"});
    }
    new_layout = next.layout;
  } else if (asked.contains("--dp")) {
    auto done = dp_alone(*run, changed.build, new_layout, asked.at("--dp"));
    if (!done) return tl::unexpected(done.error());
    applied.push_back(std::move(*done));
  }
  const TraceSet& traces = rebuilt ? rebuilt->traces : run->traces;
  Scenario scenario{traces, changed.build};
  for (const Edit& e : edits_among(kAfter, args)) {
    auto done = apply_edit(scenario, e);
    if (!done) return tl::unexpected(done.error());
    applied.push_back(std::move(*done));
  }
  if (Status ok = check_times(changed.build.graph); !ok) return tl::unexpected(ok.error());
  progress.stage("replaying");
  replay_with_contention(changed.build.graph, rebuilt ? new_overlap : overlap, changed.replay);

  progress.stage("writing reports");
  MemoryParts memory;
  const bool sized = job && next.dims.hidden > 0 && next.dims.seq > 0;
  if (sized) memory = with_activations_scaled(memory_of_job(memory_job(*job, next)), job->activation_scale);
  PredictReportOptions report{.steps = options->steps, .explain = args.has("--explain")};
  if (layout) report.layout = job ? &job->base.layout : &*layout, report.new_layout = &new_layout;
  if (job) report.shape = &job->base, report.new_shape = &next, report.capacity_gib = job->capacity_gib;
  if (rebuilt) report.new_traces = &rebuilt->traces;
  if (sized) report.memory = &memory;
  if (space && !found.candidates.empty() &&
      std::none_of(found.candidates.begin(), found.candidates.end(),
                   [](const Candidate& c) { return c.why_not.empty(); }))
    return fail("none of the layouts can be put together: " + found.candidates.front().why_not, "--search");
  if (space) report.search = &found;
  Section stragglers;
  if (args.has("--without-stragglers")) {
    const auto rows = select_steps(run->build.graph, options->steps);
    if (!rows) return tl::unexpected(rows.error());
    stragglers = stragglers_section(run->traces, run->build, run->replay, *rows);
    report.stragglers = &stragglers;
  }
  auto document =
      predict_document(run->traces, run->build, run->replay, changed.build, changed.replay, applied, report);
  if (!document) return tl::unexpected(document.error());
  document->inputs = args.positional;
  if (const std::string stages = layout ? untraced_stages(*layout, run->build.graph) : ""; !stages.empty())
    document->notes.add("stages-without-trace", Severity::data_loss, 1, stages,
                        "no rank of it has a trace, so its work is not known: give one rank of each stage at least");
  if (job)
    for (const LeftAsItIs& left : left_as_it_is(job->base, next, asked))
      document->notes.add(left.note, Severity::info, 1, left.edit + " leaves " + left.stays,
                          left.options.empty() ? "no other dimension follows"
                                               : "no other dimension follows; to change it too: " + left.options);
  if (!job)
    document->notes.add(layout ? "shape-unknown" : "layout-unknown", Severity::warning, 1, job.error().what,
                        "edits of the layout and of the model cannot be made on this job");
  if (job)
    for (const std::string& why : job->shape.doubts)
      document->notes.add("model-inferred", Severity::info, 1, why, "the traces do not say it");
  if (rebuilt)
    for (const std::string& what : rebuilt->modelled)
      document->notes.add("modelled", Severity::info, 1, what, "the traced job has nothing like it");
  if (space)
    for (const Edit& e : edits_among(kAfter, args))
      document->notes.add("edit-not-searched", Severity::warning, 1, e.name + (e.value.empty() ? "" : " " + e.value),
                          "layouts are ranked without it; the command of each has it");
  if (applied.empty())
    document->notes.add("no-edit", Severity::info, 1, "", "nothing is changed: the prediction is the replay");
  if (!options->export_path.empty()) {
    progress.stage("writing " + options->export_path);
    changed.traces = rebuilt ? std::move(rebuilt->traces) : std::move(run->traces);
    if (auto ok = export_run(changed, *options); !ok) return tl::unexpected(ok.error());
  }
  progress.finish();
  auto status = emit(*document, *options);
  const bool fits = !sized || job->capacity_gib <= 0 || memory.total <= job->capacity_gib;
  if (status && *status == 0 && !fits) return kIncomplete;
  return status;
}

}  // namespace orrery
