// What became slower or faster (ms)
//   kernels                               a ms      b ms     delta ms  a count  b count
//     ncclDevKernel_SendRecv(...)        392.11    501.20     +109.09      512      512
//     ampere_bf16_s16816gemm_...         410.05    205.02     -205.03     2304     2304
//
// Sums over all ranks and the whole traces, the largest change first; where the runs have different numbers of steps or
// ranks, that of the sums divided by the steps of all ranks:
//   kernels    measured time of GPU tasks by name, copies and memsets too
//   operators  host time by the innermost operator or call, waits left out (they are under edges); count = calls
//   classes    measured time of the steps by class; count = steps times ranks
//   edges      time that a thread or stream stood still, by what released it in the replayed run; count = times
// Names meet after addresses, hashes and step numbers in them are made '*'.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "reports/names.h"
#include "reports/reports.h"

namespace orrery {
namespace {

struct Sum {
  Ns ns = 0;
  std::int64_t count = 0;
};
using Sums = std::map<std::string, Sum>;

// Sums by row of each rank's names first; names are written out and merged once each.
struct ByName {
  std::vector<std::vector<Sum>> rows;  // by rank row and StrId
  ByName(const TraceSet& traces, const ExecGraph& g) : rows(g.ranks.size()) {
    for (std::size_t k = 0; k < g.ranks.size(); ++k)
      if (g.ranks[k].trace < traces.ranks.size()) rows[k].resize(traces.ranks[g.ranks[k].trace].strings.size());
  }
  Sum* at(const TraceSet& traces, const ExecGraph& g, std::uint32_t rank, OpId op) {
    if (rows[rank].empty()) return nullptr;
    const OpTable& ops = traces.ranks[g.ranks[rank].trace].ops;
    return op != kNoOp && raw(op) < ops.size() ? &rows[rank][raw(ops.name[raw(op)])] : nullptr;
  }
  Sums merged(const TraceSet& traces, const ExecGraph& g) const {
    Sums out;
    for (std::size_t k = 0; k < rows.size(); ++k)
      for (std::size_t s = 0; s < rows[k].size(); ++s) {
        const Sum& x = rows[k][s];
        if (x.count == 0 && x.ns == 0) continue;
        const StringPool& strings = traces.ranks[g.ranks[k].trace].strings;
        Sum& y = out[diff_name(strings.view(StrId{static_cast<std::uint32_t>(s)}))];
        y.ns += x.ns;
        y.count += x.count;
      }
    return out;
  }
};

struct Totals {
  double iteration_measured_ms = 0, iteration_replayed_ms = 0;
  std::int64_t ranks = 0, steps = 0, step_rows = 0, gpu_tasks = 0, cpu_tasks = 0;
  Ns gpu = 0, host = 0;
  Sums kernels, operators, classes, edges;
};

void add_classes(const ExecGraph& g, const Replay& r, const DeviceTasks& tasks, Totals& t) {
  const auto rows = *select_steps(g, {});
  std::vector<StepTimes> times(rows.size());
  DeviceRuns device;
  for (std::uint32_t k = 0; k < g.ranks.size(); ++k) {
    look_at_device(g, r, tasks, k, device);
    add_step_times(g, r, device, rows, times);
  }
  for (std::size_t k = 0; k < times.size(); ++t.steps) {
    Ns measured = 0, replayed = 0;
    const std::int64_t number = g.steps[times[k].step].number;
    for (; k < times.size() && g.steps[times[k].step].number == number; ++k) {
      measured = std::max(measured, times[k].measured);
      replayed = std::max(replayed, times[k].replayed);
    }
    t.iteration_measured_ms += to_ms(measured);
    t.iteration_replayed_ms += to_ms(replayed);
  }
  if (t.steps > 0) {
    t.iteration_measured_ms /= static_cast<double>(t.steps);
    t.iteration_replayed_ms /= static_cast<double>(t.steps);
  }
  t.step_rows = static_cast<std::int64_t>(times.size());
  for (const StepTimes& s : times) {
    const auto add = [&](const char* name, Ns ns) {
      Sum& sum = t.classes[name];
      sum.ns += ns;
      ++sum.count;
    };
    add("exposed_compute", s.measured_classes.exposed_compute);
    add("overlapped", s.measured_classes.overlapped);
    add("exposed_comm", s.measured_classes.exposed_comm);
    add("other", s.measured_classes.other);
    add("memory", s.measured_classes.memory);
  }
}

Totals totals_of(const DiffSide& side) {
  const ExecGraph& g = side.build.graph;
  Totals t;
  t.ranks = static_cast<std::int64_t>(g.ranks.size());
  for (const RankTrace& trace : side.traces.ranks)
    for (OpKind k : trace.ops.kind) t.cpu_tasks += is_cpu_task(k);
  const auto tasks = device_tasks(g);
  add_classes(g, side.replay, tasks, t);
  t.gpu_tasks = static_cast<std::int64_t>(tasks.rows.size());

  ByName kernels(side.traces, g), operators(side.traces, g);
  HostOwner owner(g);
  Sum between;
  for (const DeviceTask& task : tasks.rows) {
    const Ns ns = observed_time(g, task);
    t.gpu += ns;
    if (Sum* s = kernels.at(side.traces, g, g.rank[task.last], g.source[task.last])) {
      s->ns += ns;
      ++s->count;
    }
  }
  constexpr Ns kNever = std::numeric_limits<Ns>::min();
  std::vector<Ns> lane_end(lane_count(g), kNever);
  std::array<Sum, kEdgeKinds> waits{};
  for (std::uint32_t i = 0; i < g.size(); ++i) {
    if (g.kind[i] == NodeKind::host) {
      t.host += g.duration[i];
      Sum* s = operators.at(side.traces, g, g.rank[i], owner.next(i));
      (s ? *s : between).ns += g.duration[i];
      if (g.at_begin[i])
        if (Sum* call = operators.at(side.traces, g, g.rank[i], g.source[i])) ++call->count;
    }
    if (g.lane[i] == kNone) continue;
    Ns& last = lane_end[g.lane[i]];
    if (last != kNever && side.replay.start[i] > last) {
      Sum& w = waits[static_cast<std::size_t>(side.replay.released_how[i])];
      w.ns += side.replay.start[i] - last;
      ++w.count;
    }
    last = std::max(last, side.replay.end[i]);
  }
  t.kernels = kernels.merged(side.traces, g);
  t.operators = operators.merged(side.traces, g);
  if (between.ns > 0) t.operators["(between operators)"] = between;
  for (std::size_t k = 0; k < kEdgeKinds; ++k)
    if (waits[k].count > 0) t.edges[std::string(name_of(static_cast<EdgeKind>(k)))] = waits[k];
  return t;
}

std::string counted(std::int64_t n, const char* what) { return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s"); }
std::string amount(const Totals& t) { return counted(t.steps, "step") + " of " + counted(t.ranks, "rank"); }

bool same_amount(const Totals& a, const Totals& b) {
  return a.steps == b.steps && a.ranks == b.ranks && a.step_rows == b.step_rows;
}

// What the times of a table are sums over; nothing to say of one step of one rank on each side.
std::string sums_over(const Totals& a, const Totals& b) {
  if (!same_amount(a, b)) return fmt::format(" (sums: A {}, B {})", amount(a), amount(b));
  return a.step_rows > 1 ? fmt::format(" (sums over {})", amount(a)) : "";
}

Section compare(const char* key, const char* title, const Totals& x, const Totals& y, Sums Totals::*which,
                std::size_t text_rows) {
  const Sums &a = x.*which, &b = y.*which;
  const bool same = same_amount(x, y) || x.step_rows == 0 || y.step_rows == 0;
  struct Row {
    const std::string* name;
    Sum a, b;
    Ns size() const { return std::max(a.ns, b.ns); }
  };
  // Per step of one rank.
  const auto a_each = [&](const Row& r) { return to_ms(r.a.ns) / static_cast<double>(x.step_rows); };
  const auto b_each = [&](const Row& r) { return to_ms(r.b.ns) / static_cast<double>(y.step_rows); };
  std::vector<Row> rows;
  for (const auto& [name, sum] : a) {
    const auto other = b.find(name);
    rows.push_back({&name, sum, other == b.end() ? Sum{} : other->second});
  }
  for (const auto& [name, sum] : b)
    if (!a.contains(name)) rows.push_back({&name, Sum{}, sum});
  const auto change = [&](const Row& r) {
    return same ? std::abs(to_ms(r.b.ns - r.a.ns)) : std::abs(b_each(r) - a_each(r));
  };
  std::stable_sort(rows.begin(), rows.end(), [&](const Row& r, const Row& q) {
    const double dr = change(r), dq = change(q);
    if (dr != dq) return dr > dq;
    return r.size() > q.size();
  });

  Section s{.key = key, .title = title + sums_over(x, y), .table = {}};
  s.text_rows = text_rows;
  s.table.columns = {{.key = "name"},     {.key = "a_ms"},    {.key = "b_ms"},
                     {.key = "delta_ms"}, {.key = "a_count"}, {.key = "b_count"}};
  for (const char* each : {"a_per_step_ms", "b_per_step_ms", "delta_per_step_ms"})
    s.table.columns.push_back({.key = each, .json_only = same});
  for (const Row& r : rows) {
    s.table.rows.push_back({*r.name, to_ms(r.a.ns), to_ms(r.b.ns), to_ms(r.b.ns - r.a.ns), r.a.count, r.b.count});
    std::vector<Cell>& row = s.table.rows.back();
    row.resize(row.size() + 3);
    Cell* const each = &row[row.size() - 3];
    if (x.step_rows > 0) each[0] = a_each(r);
    if (y.step_rows > 0) each[1] = b_each(r);
    if (x.step_rows > 0 && y.step_rows > 0) each[2] = b_each(r) - a_each(r);
  }
  return s;
}

Section side_section(const char* key, const char* title, const Totals& t) {
  Section s{.key = key, .title = title, .single = true, .table = {}};
  s.table.columns = {{.key = "iteration_measured_ms"},
                     {.key = "iteration_replayed_ms"},
                     {.key = "gpu_ms", .title = "GPU tasks ms (sum)"},
                     {.key = "host_ms", .title = "host work ms (sum)"},
                     {.key = "ranks"},
                     {.key = "steps"},
                     {.key = "gpu_tasks", .title = "GPU tasks"},
                     {.key = "cpu_tasks", .title = "CPU tasks"}};
  const auto mean = [&](double x) { return t.steps > 0 ? Cell{x} : Cell{}; };
  s.table.rows.push_back({mean(t.iteration_measured_ms), mean(t.iteration_replayed_ms), to_ms(t.gpu), to_ms(t.host),
                          t.ranks, t.steps, t.gpu_tasks, t.cpu_tasks});
  return s;
}

bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

}  // namespace

std::string diff_name(std::string_view name) {
  constexpr std::size_t kHash = 32;  // no identifier in small letters and digits alone is as long
  constexpr std::string_view kStep = "ProfilerStep#";
  std::string out;
  for (std::size_t i = 0; i < name.size();) {
    if (name.substr(i, 2) == "0x" && i + 2 < name.size() && is_hex(name[i + 2])) {
      out += "0x*";
      for (i += 2; i < name.size() && is_hex(name[i]);) ++i;
      continue;
    }
    if (name.substr(i, kStep.size()) == kStep) {
      out += kStep;
      out += '*';
      for (i += kStep.size(); i < name.size() && is_digit(name[i]);) ++i;
      continue;
    }
    std::size_t end = i;
    bool digits = false, plain = true;
    for (; end < name.size() && is_word(name[end]); ++end) {
      digits |= is_digit(name[end]);
      plain &= is_digit(name[end]) || (name[end] >= 'a' && name[end] <= 'z');
    }
    // A word is taken whole, so that an "0x" or a hash is only found where one begins.
    if (end == i) ++end;
    if (end - i >= kHash && plain && digits)
      out += '*';
    else
      out += name.substr(i, end - i);
    i = end;
  }
  return out;
}

Document diff_document(const DiffSide& a, const DiffSide& b) {
  const Totals x = totals_of(a), y = totals_of(b);
  Document d;
  d.command = "diff";
  for (const DiffSide* side : {&a, &b}) {
    d.notes.merge(side->traces.notes);
    for (const RankTrace& t : side->traces.ranks) d.notes.merge(t.notes);
    d.notes.merge(side->build.notes);
  }
  if (!same_amount(x, y))
    d.notes.add(
        "different-amounts", Severity::warning, 1, fmt::format("A has {}, B {}", amount(x), amount(y)),
        "the sums cannot be compared; the columns per step are the sums divided by the steps of all ranks (what "
        "ran outside of the steps included)");
  d.sections.push_back(side_section("a", "A", x));
  d.sections.push_back(side_section("b", "B", y));
  d.sections.push_back(compare("classes", "Classes of time in the steps", x, y, &Totals::classes, 0));
  d.sections.push_back(compare("kernels", "Kernels", x, y, &Totals::kernels, 20));
  d.sections.push_back(compare("operators", "Host time by operator and call", x, y, &Totals::operators, 20));
  d.sections.push_back(compare("edges", "Waits of threads and streams", x, y, &Totals::edges, 0));
  return d;
}

}  // namespace orrery
