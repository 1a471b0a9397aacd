// Where the time goes
//   phase          CPU ms   GPU ms  % of step
//   forward        31.121   27.215       18.1
//   backward       62.304   55.112       36.7
//   ...
//   idle                     5.316        3.5
//
// Everything is a mean: over the chosen steps of a rank, then over the ranks. GPU time of phases, modules and layers is
// counted once (dissect_time.cc), so that with the idle row it adds up to the step; CPU time of phases does as well
// (dissect_host.cc). GPU time of operators and kernels is the sum of their tasks' durations, overlaps counted twice;
// their share of the step is not. Counts are a step's: kernels and calls; of a module its visits (tasks launched one
// after the other for it).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/parallel.h"
#include "graph/build.h"
#include "reports/dissect.h"
#include "reports/dissect_tables.h"
#include "reports/reports.h"

namespace orrery {
namespace {

// The windows of a rank's chosen steps in the clock of its own rows; the graph's are in the common clock.
Interval window_of(const RankTrace& t, const ExecGraph& g, const Step& s) {
  const OpId row = s.begin_node == kNoNode ? kNoOp : g.source[raw(s.begin_node)];
  if (row != kNoOp && raw(row) < t.ops.size()) return {t.ops.start[raw(row)], t.ops.end(raw(row))};
  Interval all{INT64_MAX, INT64_MIN};  // no markers: all that is work
  for (std::size_t i = 0; i < t.ops.size(); ++i) {
    const OpKind k = t.ops.kind[i];
    if (!is_gpu_task(k) && k != OpKind::cpu_op && k != OpKind::user_annotation && k != OpKind::runtime) continue;
    all.begin = std::min(all.begin, t.ops.start[i]);
    all.end = std::max(all.end, t.ops.end(i));
  }
  return all.begin < all.end ? all : Interval{0, 0};
}

std::vector<Interval> disjoint(std::vector<Interval> steps) {
  std::sort(steps.begin(), steps.end(),
            [](const Interval& a, const Interval& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });
  std::vector<Interval> out;
  for (Interval s : steps) {
    if (!out.empty()) s.begin = std::max(s.begin, out.back().end);
    if (s.begin < s.end) out.push_back(s);
  }
  return out;
}

// Without its namespaces of PyTorch and its parameters, which are the same for many.
std::string short_name(std::string_view kernel) {
  std::string out;
  int depth = 0;
  for (std::size_t i = 0; i < kernel.size();) {
    bool skipped = false;
    for (const std::string_view part : {"void ", "at::native::", "(anonymous namespace)::"}) {
      if (kernel.substr(i, part.size()) != part || (part == "void " && i > 0)) continue;
      i += part.size();
      skipped = true;
      break;
    }
    if (skipped) continue;
    const char c = kernel[i++];
    if (c == '(' && depth <= 0) break;
    depth += c == '<' ? 1 : c == '>' ? -1 : 0;
    out += c;
  }
  return out.empty() ? std::string(kernel) : out;
}

std::vector<CommLabel> labels_of(const TraceSet& traces, const GraphBuild& build, std::uint32_t rank) {
  std::vector<CommLabel> out;
  const Communication& c = build.communication;
  for (const CommRow& row : c.rows) {
    if (row.rank != rank || row.node == kNone || build.graph.source[row.node] == kNoOp) continue;
    std::string label = c.op_names[row.op_name];
    if (label.substr(0, 5) == "void ") label.erase(0, 5);
    if (label.empty()) {  // a name that the row could not make one of
      const RankTrace& t = traces.ranks[build.graph.ranks[rank].trace];
      label = short_name(t.name_of(build.graph.source[row.node]));
      label = label.substr(0, label.find('<'));
    }
    if (row.group != kNone && !c.groups[row.group].label.empty()) label += " " + c.groups[row.group].label;
    out.push_back({raw(build.graph.source[row.node]), label});
  }
  std::sort(out.begin(), out.end(), [](const CommLabel& a, const CommLabel& b) { return a.row < b.row; });
  return out;
}

// ---- means over ranks ----

struct Mean {      // a step's, ms
  DissectSum sum;  // of all ranks and steps, for ratios
  double cpu = 0, gpu = 0, exclusive = 0, count = 0;
  double least = INFINITY, most = 0;  // of the ranks: exclusive
  std::size_t ranks = 0;
};

class Means {
 public:
  explicit Means(const std::vector<RankTables>& all) : all_(all) {
    for (const RankTables& r : all) {
      if (r.steps == 0) continue;
      ++ranks_;
      step_ms_ += to_ms(r.length) / static_cast<double>(r.steps);
      idle_ms_ += to_ms(r.idle) / static_cast<double>(r.steps);
    }
    if (ranks_ > 0) step_ms_ /= static_cast<double>(ranks_), idle_ms_ /= static_cast<double>(ranks_);
  }
  double step_ms() const { return step_ms_; }
  double idle_ms() const { return idle_ms_; }
  std::size_t ranks() const { return ranks_; }

  template <class Key>
  std::map<Key, Mean> of(std::map<Key, DissectSum> RankTables::*rows) const {
    std::map<Key, Mean> out;
    for (const RankTables& r : all_)
      if (r.steps > 0)
        for (const auto& [key, sum] : r.*rows) add(out[key], sum, r.steps);
    for (auto& [key, m] : out) finish(m);
    return out;
  }
  Mean phase(std::size_t p) const {
    Mean m;
    for (const RankTables& r : all_)
      if (r.steps > 0) add(m, r.phases[p], r.steps);
    finish(m);
    return m;
  }
  Cell share(double ms) const { return percent(ms, step_ms_); }

 private:
  void add(Mean& m, const DissectSum& sum, std::size_t steps) const {
    const double n = static_cast<double>(steps) * static_cast<double>(ranks_);
    m.sum.add(sum);
    m.cpu += to_ms(sum.cpu) / n;
    m.gpu += to_ms(sum.gpu) / n;
    m.exclusive += to_ms(sum.exclusive) / n;
    m.count += sum.count / n;
    const double own = to_ms(sum.exclusive) / static_cast<double>(steps);
    m.least = std::min(m.least, own);
    m.most = std::max(m.most, own);
    ++m.ranks;
  }
  void finish(Mean& m) const {
    if (m.ranks < ranks_) m.least = 0;
  }

  const std::vector<RankTables>& all_;
  std::size_t ranks_ = 0;
  double step_ms_ = 0, idle_ms_ = 0;
};

// A whole number where it is one.
Cell count_cell(double n) {
  const double whole = std::round(n);
  if (std::fabs(n - whole) < 1e-9) return static_cast<std::int64_t>(whole);
  return n;
}

template <class Key>
std::vector<std::pair<const Key*, const Mean*>> by_time(const std::map<Key, Mean>& rows, double Mean::*first,
                                                        double Mean::*second) {
  std::vector<std::pair<const Key*, const Mean*>> order;
  for (const auto& [key, m] : rows) order.emplace_back(&key, &m);
  std::stable_sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    return std::pair{a.second->*first, a.second->*second} > std::pair{b.second->*first, b.second->*second};
  });
  return order;
}

std::vector<Column> shared_columns(bool several) {
  return {{.key = "gpu_ms", .title = "GPU ms"},
          {.key = "pct", .title = "% of step", .digits = 1},
          {.key = "min_gpu_ms", .title = "least of a rank", .json_only = !several},
          {.key = "max_gpu_ms", .title = "most", .json_only = !several}};
}

// ---- the sections ----

Section step_section(const Means& means) {
  Section s{.key = "", .title = "The step", .single = true, .table = {}};
  s.table.columns = {{.key = "step_ms", .title = "step ms (mean)"}, {.key = "ranks_read", .title = "ranks"}};
  s.table.rows.push_back(
      {means.ranks() > 0 ? Cell{means.step_ms()} : Cell{}, static_cast<std::int64_t>(means.ranks())});
  return s;
}

Section phases_section(const Means& means, bool gpu) {
  const bool several = means.ranks() > 1;
  Section s{.key = "phases", .title = "Phases", .table = {}};
  s.table.columns = {{.key = "name", .title = "phase"}, {.key = "cpu_ms", .title = "CPU ms"}};
  for (Column& c : shared_columns(several)) s.table.columns.push_back(std::move(c));
  for (std::size_t p = 0; p < kPhases; ++p) {
    const Mean m = means.phase(p);
    if (m.cpu == 0 && m.gpu == 0 && m.exclusive == 0) continue;
    s.table.rows.push_back({std::string(name_of(static_cast<Phase>(p))), m.cpu, m.exclusive,
                            means.share(gpu ? m.exclusive : m.cpu), m.least, m.most});
  }
  if (gpu)
    s.table.rows.push_back(
        {std::string("idle"), Cell{}, means.idle_ms(), means.share(means.idle_ms()), Cell{}, Cell{}});
  return s;
}

Section modules_section(const Means& means) {
  Section s{.key = "modules", .title = "Modules", .table = {}};
  s.text_rows = 40;
  s.table.columns = {{.key = "name", .title = "module"}, {.key = "phase"}};
  for (Column& c : shared_columns(means.ranks() > 1)) s.table.columns.push_back(std::move(c));
  s.table.columns.push_back({.key = "count", .digits = 1});
  const auto rows = means.of(&RankTables::modules);
  for (const auto& [key, m] : by_time(rows, &Mean::exclusive, &Mean::gpu))
    s.table.rows.push_back({key->first, std::string(name_of(key->second)), m->exclusive, means.share(m->exclusive),
                            m->least, m->most, count_cell(m->count)});
  s.table.rows.push_back({std::string("idle"), std::string("idle"), means.idle_ms(), means.share(means.idle_ms()),
                          Cell{}, Cell{}, Cell{}});
  return s;
}

Section layers_section(const Means& means, bool told) {
  Section s{.key = "layers", .title = told ? "Layers" : "", .table = {}};
  s.text_rows = 12;
  s.table.columns = {{.key = "layer"}, {.key = "phase"}};
  for (Column& c : shared_columns(means.ranks() > 1)) s.table.columns.push_back(std::move(c));
  s.table.columns.push_back({.key = "count", .title = "GPU tasks", .digits = 1});
  if (!told) return s;
  const auto rows = means.of(&RankTables::layers);
  for (const bool outside : {false, true})
    for (const auto& [key, m] : rows)
      if ((key.first < 0) == outside)
        s.table.rows.push_back({outside ? Cell{} : Cell{std::int64_t{key.first}}, std::string(name_of(key.second)),
                                m.exclusive, means.share(m.exclusive), m.least, m.most, count_cell(m.count)});
  s.table.rows.push_back(
      {Cell{}, std::string("idle"), means.idle_ms(), means.share(means.idle_ms()), Cell{}, Cell{}, Cell{}});
  return s;
}

Section operators_section(const Means& means) {
  Section s{.key = "operators", .title = "Operators (CPU ms without what they call)", .table = {}};
  s.text_rows = 20;
  s.table.columns = {{.key = "name", .title = "operator"},
                     {.key = "cpu_ms", .title = "CPU ms"},
                     {.key = "gpu_ms", .title = "GPU ms"},
                     {.key = "pct", .title = "% of step", .digits = 1},
                     {.key = "count", .digits = 1}};
  const auto rows = means.of(&RankTables::operators);
  for (const auto& [name, m] : by_time(rows, &Mean::gpu, &Mean::cpu))
    s.table.rows.push_back({*name, m->cpu, m->gpu, means.share(m->exclusive), count_cell(m->count)});
  return s;
}

Cell rate(double work, double ns, double scale) { return work > 0 && ns > 0 ? Cell{work / ns / scale} : Cell{}; }

Section kernels_section(const Means& means) {
  Section s{.key = "kernels", .title = "Kernels", .table = {}};
  s.text_rows = 25;
  s.table.columns = {{.key = "name", .json_only = true},
                     {.key = "short", .title = "kernel", .text_only = true},
                     {.key = "class"},
                     {.key = "gpu_ms", .title = "GPU ms"},
                     {.key = "pct", .title = "% of step", .digits = 1},
                     {.key = "count", .digits = 1},
                     {.key = "mean_us", .title = "mean us", .digits = 1},
                     {.key = "achieved_tflops", .title = "TFLOP/s", .digits = 1},
                     {.key = "achieved_gb_per_s", .title = "GB/s", .digits = 1},
                     {.key = "roofline_pct", .title = "% of roofline", .digits = 1},
                     {.key = "bound", .json_only = true}};
  const auto rows = means.of(&RankTables::kernels);
  for (const auto& [key, m] : by_time(rows, &Mean::gpu, &Mean::exclusive)) {
    const DissectSum& x = m->sum;
    s.table.rows.push_back(
        {key->first, short_name(key->first), std::string(name_of(key->second)), m->gpu, means.share(m->exclusive),
         count_cell(m->count), m->count > 0 ? Cell{m->gpu * 1e3 / m->count} : Cell{}, rate(x.flops, x.flops_ns, 1e3),
         rate(x.bytes, x.bytes_ns, 1), x.bounded_ns > 0 ? percent(x.bound_ns, x.bounded_ns) : Cell{},
         x.bounded_ns > 0 ? Cell{std::string(x.compute_ns > x.memory_ns ? "compute" : "memory")} : Cell{}});
  }
  return s;
}

// told_pct: how much of a class's time is of kernels whose work is known; rates are of those alone.
Section classes_section(const Means& means) {
  std::map<KernelClass, DissectSum> all;
  const auto rows = means.of(&RankTables::kernels);
  std::map<KernelClass, Mean> classes;
  for (const auto& [key, m] : rows) {
    Mean& c = classes[key.second];
    c.gpu += m.gpu;
    c.exclusive += m.exclusive;
    c.count += m.count;
    c.sum.add(m.sum);
  }
  Section s{.key = "classes", .title = "Classes of kernels", .table = {}};
  s.table.columns = {{.key = "name", .title = "class"},
                     {.key = "gpu_ms", .title = "GPU ms"},
                     {.key = "pct", .title = "% of step", .digits = 1},
                     {.key = "count", .digits = 1},
                     {.key = "achieved_tflops", .title = "TFLOP/s", .digits = 1},
                     {.key = "achieved_gb_per_s", .title = "GB/s", .digits = 1},
                     {.key = "roofline_pct", .title = "% of roofline", .digits = 1},
                     {.key = "told_pct", .title = "% of time told", .digits = 1}};
  for (const auto& [key, m] : by_time(classes, &Mean::gpu, &Mean::exclusive))
    s.table.rows.push_back({std::string(name_of(*key)), m->gpu, means.share(m->exclusive), count_cell(m->count),
                            rate(m->sum.flops, m->sum.flops_ns, 1e3), rate(m->sum.bytes, m->sum.bytes_ns, 1),
                            m->sum.bounded_ns > 0 ? percent(m->sum.bound_ns, m->sum.bounded_ns) : Cell{},
                            percent(std::max(m->sum.flops_ns, m->sum.bytes_ns), static_cast<double>(m->sum.gpu))});
  return s;
}

Section dissected_ranks_section(const TraceSet& traces, const ExecGraph& g, const std::vector<RankTables>& all) {
  Section s{.key = "ranks", .title = all.size() > 1 ? "Ranks (GPU ms of a step)" : "", .table = {}};
  s.text_rows = 32;
  s.table.columns = {{.key = "rank"}, {.key = "file", .json_only = true}, {.key = "step_ms", .title = "step"}};
  std::vector<std::size_t> shown;
  for (std::size_t p = 0; p < kPhases; ++p) {
    if (std::none_of(all.begin(), all.end(), [&](const RankTables& r) { return r.phases[p].exclusive > 0; })) continue;
    shown.push_back(p);
    std::string key(name_of(static_cast<Phase>(p)));
    std::string title = key;
    std::replace(key.begin(), key.end(), ' ', '_');
    s.table.columns.push_back({.key = key + "_ms", .title = title});
  }
  s.table.columns.push_back({.key = "idle_ms", .title = "idle"});
  s.table.columns.push_back({.key = "gpu_busy_pct", .title = "GPU busy %", .digits = 1});
  for (std::size_t k = 0; k < all.size(); ++k) {
    const RankTables& r = all[k];
    const auto n = static_cast<double>(r.steps);
    const auto mean = [&](Ns x) { return r.steps > 0 ? Cell{to_ms(x) / n} : Cell{}; };
    std::vector<Cell> row{g.ranks[k].rank, traces.ranks[g.ranks[k].trace].file, mean(r.length)};
    for (const std::size_t p : shown) row.push_back(mean(r.phases[p].exclusive));
    row.push_back(mean(r.idle));
    row.push_back(percent(static_cast<double>(r.busy), static_cast<double>(r.length)));
    s.table.rows.push_back(std::move(row));
  }
  return s;
}

Section memory_section(const ExecGraph& g, const std::vector<RankTables>& all) {
  const MemoryLevels* most = nullptr;
  std::int64_t rank = 0;
  for (std::size_t k = 0; k < all.size(); ++k) {
    if (!all[k].memory.told || (most != nullptr && all[k].memory.peak <= most->peak)) continue;
    most = &all[k].memory;
    rank = g.ranks[k].rank;
  }
  Section s{.key = "memory",
            .title = most == nullptr ? "" : "Memory of the GPU that holds most",
            .single = true,
            .table = {}};
  s.table.columns = {{.key = "rank"},
                     {.key = "peak_gib", .title = "peak allocated GiB"},
                     {.key = "peak_at_ms", .title = "at ms of the steps"},
                     {.key = "least_gib", .title = "least allocated GiB"},
                     {.key = "reserved_gib", .title = "peak reserved GiB"},
                     {.key = "per_ms", .json_only = true}};
  if (most == nullptr)
    s.table.rows.push_back({Cell{}, Cell{}, Cell{}, Cell{}, Cell{}, std::vector<double>{}});
  else
    s.table.rows.push_back({rank, most->peak, most->peak_at_ms, most->least,
                            most->reserved > 0 ? Cell{most->reserved} : Cell{}, most->per_ms});
  return s;
}

Section busy_section(const std::vector<RankTables>& all) {
  Section s{.key = "gpu_busy", .title = "GPU busy", .single = true, .table = {}};
  s.table.columns = {{.key = "pct", .title = "% of the steps", .digits = 1},
                     {.key = "per_ms", .title = "share of each ms"}};
  double busy = 0, length = 0;
  std::vector<double> shares, ranks;
  for (const RankTables& r : all) {
    busy += static_cast<double>(r.busy);
    length += static_cast<double>(r.length);
    shares.resize(std::max(shares.size(), r.busy_per_ms.size()), 0.0);
    ranks.resize(shares.size(), 0.0);
    for (std::size_t i = 0; i < r.busy_per_ms.size(); ++i) shares[i] += r.busy_per_ms[i], ranks[i] += 1;
  }
  for (std::size_t i = 0; i < shares.size(); ++i) shares[i] /= ranks[i];
  s.table.rows.push_back({percent(busy, length), std::move(shares)});
  return s;
}

Section gpu_section(const TraceSet& traces, const std::vector<RankTables>& all) {
  Section s{.key = "gpu", .title = "", .single = true, .table = {}};
  s.table.columns = {{.key = "name"}, {.key = "bf16_tflops"}, {.key = "memory_gb_per_s"}, {.key = "source"}};
  const GpuFacts* gpu = nullptr;
  for (const RankTables& r : all) gpu = gpu == nullptr ? r.gpu : gpu;
  std::string name;
  for (const RankTrace& t : traces.ranks)
    if (name.empty() && !t.devices.empty()) name = t.devices.front().name;
  const auto known = [](double x) { return x > 0 ? Cell{x} : Cell{}; };
  s.table.rows.push_back({name.empty() ? Cell{} : Cell{name}, gpu ? known(gpu->bf16_tflops) : Cell{},
                          gpu ? known(gpu->memory_gb_per_s) : Cell{}, gpu ? Cell{std::string(gpu->source)} : Cell{}});
  return s;
}

// ---- notes ----

void add_notes(const TraceSet& traces, const ExecGraph& g, const std::vector<RankTables>& all, Notes& notes) {
  for (std::size_t k = 0; k < all.size(); ++k) {
    const RankTables& r = all[k];
    const std::string& file = traces.ranks[g.ranks[k].trace].file;
    if (r.steps == 0) continue;
    if (r.tasks == 0 && r.busy == 0)
      notes.add("no-gpu-work", Severity::info, 1, file, "no GPU task runs in the steps: shares are of the host's time");
    if (r.outside > r.length / 100)
      notes.add("work-outside-steps", Severity::warning, 1, fmt::format("{:.3f} ms in {}", to_ms(r.outside), file),
                "GPU work that runs before the first or after the last step marker: no step ends with a "
                "synchronisation; it is in no table");
    if (r.unlaunched > 0)
      notes.add("launch-not-recorded", Severity::info, r.unlaunched, file,
                "GPU tasks without their launch: told by the name of the kernel alone");
    if (r.decode_by_graph)
      notes.add("graph-taken-for-decode", Severity::info, 1, file,
                "attention in a CUDA graph is taken for decoding where nothing says otherwise");
    if (r.gpu == nullptr && r.tasks > 0)
      notes.add("gpu-unknown", Severity::info, 1, file, "no facts of this GPU: no share of its roofline");
  }
}

}  // namespace

Result<Document> dissect_document(const TraceSet& traces, const GraphBuild& build,
                                  const DissectReportOptions& options) {
  const ExecGraph& g = build.graph;
  const auto rows = select_steps(g, options.steps);
  if (!rows) return tl::unexpected(rows.error());
  std::vector<std::vector<Interval>> chosen(g.ranks.size()), every(g.ranks.size());
  for (const Step& s : g.steps) every[s.rank].push_back(window_of(traces.ranks[g.ranks[s.rank].trace], g, s));
  for (const std::uint32_t row : *rows) {
    const Step& s = g.steps[row];
    chosen[s.rank].push_back(window_of(traces.ranks[g.ranks[s.rank].trace], g, s));
  }
  std::vector<RankTables> all(g.ranks.size());
  const unsigned workers =
      std::min<unsigned>(worker_count(options.threads), static_cast<unsigned>(std::max<std::size_t>(1, all.size())));
  for_each_row(all.size(), workers, [&](std::size_t k, unsigned) {
    const std::vector<CommLabel> labels = labels_of(traces, build, static_cast<std::uint32_t>(k));
    all[k] = tables_of(dissect_rank(traces.ranks[g.ranks[k].trace], disjoint(chosen[k]), disjoint(every[k]), labels));
  });

  const Means means(all);
  bool gpu = false, layers = false;
  for (const RankTables& r : all) gpu = gpu || r.busy > 0, layers = layers || r.layers_told;
  Document d;
  d.command = "dissect";
  d.notes = traces.notes;
  for (const RankTrace& t : traces.ranks) d.notes.merge(t.notes);
  d.notes.merge(build.notes);
  add_notes(traces, g, all, d.notes);
  d.sections.push_back(step_section(means));
  d.sections.push_back(phases_section(means, gpu));
  d.sections.push_back(dissected_ranks_section(traces, g, all));
  d.sections.push_back(modules_section(means));
  d.sections.push_back(layers_section(means, layers));
  d.sections.push_back(operators_section(means));
  d.sections.push_back(classes_section(means));
  d.sections.push_back(kernels_section(means));
  d.sections.push_back(collectives_section(build.communication));
  d.sections.push_back(communication_section(g, build.communication, *rows));
  d.sections.push_back(memory_section(g, all));
  d.sections.push_back(busy_section(all));
  d.sections.push_back(gpu_section(traces, all));
  if (options.by.empty()) {
    for (Section& s : d.sections)
      if (s.key == "communication") s.title.clear();  // long; --by collective
    return d;
  }
  const std::pair<std::string_view, std::vector<std::string_view>> kLevels[] = {
      {"phase", {"phases", "ranks"}},
      {"module", {"modules"}},
      {"layer", {"layers"}},
      {"operator", {"operators"}},
      {"kernel", {"classes", "kernels"}},
      {"collective", {"collectives", "communication"}}};
  for (Section& s : d.sections) {
    bool shown = s.key.empty();
    for (const auto& [level, keys] : kLevels)
      for (const std::string_view key : keys) shown = shown || (options.by == level && s.key == key);
    if (shown)
      s.text_rows = 0;
    else
      s.title.clear();
  }
  return d;
}

}  // namespace orrery
