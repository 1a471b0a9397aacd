#include "reports/dissect_tables.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/text_match.h"
#include "reports/reports.h"
#include "whatif/measured_memory.h"

namespace orrery {
namespace {

// Dense operations a ns of the units that the kernel uses; 0 = not known.
double peak_of(const GpuFacts& gpu, const TaskCost& cost, std::string_view kernel) {
  if (cost.element_bytes == 2) return gpu.bf16_tflops * 1e3;
  if (cost.element_bytes == 1) return gpu.fp8_tflops * 1e3;
  if (cost.element_bytes != 4) return 0;
  const bool tensor = has(kernel, "tf32") || has(kernel, "s1688gemm") || has(kernel, "TF32");
  return (tensor ? gpu.tf32_tflops : gpu.fp32_tflops) * 1e3;
}

void add_work(const Dissection& d, const DissectedTask& task, DissectSum& sum) {
  const auto ns = static_cast<double>(d.trace->ops.dur[task.row]);
  if (ns <= 0) return;
  if (task.cost.flops > 0) sum.flops += task.cost.flops, sum.flops_ns += ns;
  if (task.cost.bytes > 0) sum.bytes += task.cost.bytes, sum.bytes_ns += ns;
  if (d.gpu == nullptr || task.cost.bytes <= 0 || d.gpu->memory_gb_per_s <= 0) return;
  const std::string_view name = d.trace->name_of(OpId{task.row});
  if (d.trace->ops.kind[task.row] == OpKind::memcpy && !has(name, "DtoD")) return;  // bound by the bus
  double compute = 0;
  if (task.cost.flops > 0 || task.kind == KernelClass::gemm || task.kind == KernelClass::attention) {
    const double peak = peak_of(*d.gpu, task.cost, name);
    if (peak <= 0 || task.cost.flops <= 0) return;
    compute = task.cost.flops / peak;
  }
  const double memory = task.cost.bytes / d.gpu->memory_gb_per_s;
  sum.compute_ns += compute;
  sum.memory_ns += memory;
  sum.bound_ns += std::max(compute, memory);
  sum.bounded_ns += ns;
}

// "cudaGraphLaunch" for what a graph runs; what is known where no operator is round the launch.
std::string operator_of(const Dissection& d, const DissectedTask& task) {
  if (task.op != kNone) return std::string(d.trace->name_of(OpId{task.op}));
  if (task.call == kNone) return "(launch not recorded)";
  if (task.graph) return std::string(d.trace->name_of(OpId{task.call}));
  return "(outside of operators)";
}

// Host time of operators without the operators that they call, and of calls that no operator makes.
void add_operators(const Dissection& d, RankTables& out) {
  const RankTrace& t = *d.trace;
  const Operators& o = d.operators;
  const auto inside = [&](Ns at) {
    const auto s =
        std::upper_bound(d.steps.begin(), d.steps.end(), at, [](Ns x, const Interval& i) { return x < i.begin; });
    return s != d.steps.begin() && at < std::prev(s)->end;
  };
  std::vector<Ns> called(t.ops.size(), 0);
  const auto outer = [&](std::uint32_t row) {
    std::uint32_t p = o.parent[row];
    while (p != kNone && t.ops.kind[p] != OpKind::cpu_op) p = o.parent[p];
    return p;
  };
  for (std::uint32_t i = 0; i < t.ops.size(); ++i) {
    if (t.ops.kind[i] != OpKind::cpu_op) continue;
    if (const std::uint32_t p = outer(i); p != kNone)
      called[p] += std::min(t.ops.end(i), t.ops.end(p)) - t.ops.start[i];
  }
  std::map<StrId, DissectSum> by_name;
  for (std::uint32_t i = 0; i < t.ops.size(); ++i) {
    const bool op = t.ops.kind[i] == OpKind::cpu_op;
    const bool call = t.ops.kind[i] == OpKind::runtime && t.ops.corr[i] != 0 && outer(i) == kNone;
    if ((!op && !call) || !inside(t.ops.start[i])) continue;
    DissectSum& sum = by_name[t.ops.name[i]];
    sum.cpu += std::max<Ns>(0, t.ops.dur[i] - called[i]);
    ++sum.count;
  }
  for (const auto& [name, sum] : by_name) out.operators[std::string(t.strings.view(name))].add(sum);
}

MemoryLevels memory_of(const Dissection& d) {
  MemoryLevels out;
  const MeasuredMemory measured = measured_memory(*d.trace);
  if (measured.peak_allocated <= 0 || d.steps.empty()) return out;
  out.told = true;
  out.peak = measured.peak_allocated;
  out.least = measured.least_allocated;
  out.reserved = measured.peak_reserved;
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  constexpr std::int32_t kCpu = 0;
  const MemoryTable& m = d.trace->memory;
  std::size_t peak = m.size();
  for (std::size_t i = 0; i < m.size(); ++i) {
    if (m.device_type[i] == kCpu || m.total_allocated[i] < 0) continue;
    const auto level = [&](std::size_t k) { return std::max(m.total_allocated[k], m.total_allocated[k] - m.bytes[k]); };
    if (peak == m.size() || level(i) > level(peak) || (level(i) == level(peak) && m.ts[i] < m.ts[peak])) peak = i;
  }
  if (peak == m.size()) return out;
  out.peak_at_ms = to_ms(m.ts[peak] - d.steps.front().begin);
  std::vector<std::size_t> rows;
  for (std::size_t i = 0; i < m.size(); ++i)
    if (m.device_type[i] == m.device_type[peak] && m.device[i] == m.device[peak] && m.total_allocated[i] >= 0)
      rows.push_back(i);
  std::stable_sort(rows.begin(), rows.end(), [&](std::size_t a, std::size_t b) { return m.ts[a] < m.ts[b]; });
  if (d.length > Ns{1'000'000} * 1'000'000) return out;  // as gpu_busy: no single milliseconds of a quarter of an hour
  std::size_t next = 0;
  double level = rows.empty() ? 0 : static_cast<double>(m.total_allocated[rows[0]] - m.bytes[rows[0]]) / kGiB;
  for (const Interval& s : d.steps) {
    for (Ns begin = s.begin; begin < s.end; begin += 1'000'000) {
      while (next < rows.size() && m.ts[rows[next]] < begin)
        level = static_cast<double>(m.total_allocated[rows[next++]]) / kGiB;
      double most = level;
      for (; next < rows.size() && m.ts[rows[next]] < std::min(s.end, begin + 1'000'000); ++next) {
        level = static_cast<double>(m.total_allocated[rows[next]]) / kGiB;
        most = std::max(most, level);
      }
      out.per_ms.push_back(most);
    }
  }
  return out;
}

}  // namespace

void DissectSum::add(const DissectSum& o) {
  exclusive += o.exclusive;
  gpu += o.gpu;
  cpu += o.cpu;
  count += o.count;
  flops += o.flops, bytes += o.bytes, flops_ns += o.flops_ns, bytes_ns += o.bytes_ns;
  bound_ns += o.bound_ns, bounded_ns += o.bounded_ns, compute_ns += o.compute_ns, memory_ns += o.memory_ns;
}

RankTables tables_of(const Dissection& d) {
  const RankTrace& t = *d.trace;
  RankTables out;
  out.steps = d.steps.size();
  out.length = d.length;
  out.idle = d.idle;
  out.outside = d.outside;
  out.layers_told = d.layers_told;
  out.gpu = d.gpu;
  out.phases.resize(kPhases);
  for (std::size_t p = 0; p < kPhases; ++p) out.phases[p].cpu = d.host[p];

  // by numbers first: names are long and few
  std::map<std::pair<std::uint32_t, Phase>, DissectSum> modules;
  std::map<std::pair<StrId, KernelClass>, DissectSum> kernels;
  std::map<std::uint32_t, DissectSum> operators;  // by StrId of the operator
  std::set<std::tuple<std::uint32_t, std::uint32_t, bool>> visits, layer_visits;
  std::map<std::pair<std::int32_t, Phase>, DissectSum> layers;
  for (const DissectedTask& task : d.tasks) {
    if (task.step == kNone && task.exclusive == 0) continue;
    const bool counts = task.step != kNone;
    DissectSum sum;
    sum.exclusive = task.exclusive;
    sum.gpu = counts ? t.ops.dur[task.row] : 0;
    sum.count = counts ? 1 : 0;
    if (counts) add_work(d, task, sum);
    out.phases[static_cast<std::size_t>(task.phase)].add(sum);
    kernels[{t.ops.name[task.row], task.kind}].add(sum);
    if (task.op != kNone) {
      DissectSum& op = operators[raw(t.ops.name[task.op])];
      op.exclusive += sum.exclusive;
      op.gpu += sum.gpu;
    } else {
      DissectSum& op = out.operators[operator_of(d, task)];
      op.exclusive += sum.exclusive;
      op.gpu += sum.gpu;
      if (task.call == kNone || !task.graph) op.count += sum.count;
    }
    DissectSum visited = sum;
    visited.count = counts && visits.emplace(task.visit, task.step, false).second ? 1 : 0;
    modules[{task.module, task.phase}].add(visited);
    if (d.layers_told) layers[{task.layer, task.phase}].add(sum);
    out.tasks += counts;
    out.unlaunched += counts && task.call == kNone;
    out.graphs = out.graphs || task.graph;
    out.decode_by_graph = out.decode_by_graph || (task.graph && task.phase == Phase::decode);
  }
  for (const auto& [key, sum] : modules) out.modules[{d.modules[key.first], key.second}].add(sum);
  for (const auto& [key, sum] : kernels) out.kernels[{std::string(t.strings.view(key.first)), key.second}].add(sum);
  for (const auto& [name, sum] : operators) out.operators[std::string(t.strings.view(StrId{name}))].add(sum);
  out.layers = std::move(layers);
  add_operators(d, out);

  DeviceTime device;
  device.busy = d.busy;
  std::vector<Window> windows;
  for (const Interval& s : d.steps) windows.push_back({s.begin, s.end});
  BusyShares busy = busy_shares(device, windows);
  out.busy = busy.busy;
  out.busy_per_ms = std::move(busy.shares);
  out.memory = memory_of(d);
  return out;
}

}  // namespace orrery
