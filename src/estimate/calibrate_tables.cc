#include "estimate/calibrate_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "costs/fit_logs.h"

namespace orrery {
namespace {

// How well the laws are known before steps are measured (one standard deviation of a logarithm). Products of another
// library than a framework's differ little; what PyTorch's kernels make of memory differs more; what Python and the
// dispatcher take, and what Gloo makes of memory that is shared, is hardly known.
constexpr double kGemmDoubt = 0.2, kAttentionDoubt = 0.4, kMemoryDoubt = 0.5, kOptimizerDoubt = 0.5,
                 kDispatchDoubt = 0.7, kNetworkDoubt = 1.2, kEmulatedDoubt = 0.7;
constexpr double kEmulatedDoubtAfter = 0.2;  // of the layouts' shares of the steps

constexpr double kFarBeyond = 8;  // times the work of the largest product measured

struct RowSums {  // of a table's rows: as measured, and as the laws before and after say
  double work = 0, measured = 0, before = 0, after = 0;
  std::uint64_t rows = 0;
};

}  // namespace

Status TableCalibration::add(OperatorTable table, const std::string& where) {
  if (!tables_.empty() && (tables_.front().device != table.device || tables_.front().machine != table.machine))
    return fail("of another device than " + where_.front(), where, "calibrate by one device's tables");
  for (const OperatorRow& r : table.rows) {
    const std::size_t index = tables_.size();
    const bool known = std::any_of(parts_.begin(), parts_.end(), [&](const Part& p) {
      return p.table == index && p.ranks == r.ranks && p.threads == r.threads;
    });
    if (!known) parts_.push_back({index, r.ranks, r.threads});
  }
  tables_.push_back(std::move(table));
  where_.push_back(where);
  return {};
}

Result<TableCalibration::Applied> TableCalibration::apply(const EstimateJob& job, JobCosts& costs) const {
  Applied applied;
  if (tables_.empty()) return applied;
  const GpuFacts& gpu = job.platform.gpu;
  const bool cpu = costs.operators.architecture() == Architecture::cpu;
  const OperatorTable& first = tables_.front();
  if (cpu != (first.device == "cpu"))
    return fail(
        fmt::format("the table is of a {}, the platform has {}", first.device == "cpu" ? "CPU" : "GPU", gpu.name),
        where_.front(), "give a table of that device, or another --platform");
  if (const GpuFacts* known = cpu ? nullptr : find_gpu(first.machine); known != nullptr && known->name != gpu.name)
    return fail(fmt::format("the table is of {}, the platform has {}", known->name, gpu.name), where_.front(),
                "give a table of that GPU, or another --platform");
  // Of a GPU transfers alone depend on the ranks; threads are a CPU's.
  const std::int64_t wanted = std::min(job.world(), std::max<std::int64_t>(1, job.platform.gpus_per_node));
  const Part *best = nullptr, *transfers = nullptr;
  const auto far = [&](const Part& p) {
    return std::abs(std::log(static_cast<double>(p.ranks) / static_cast<double>(wanted)));
  };
  for (const Part& p : parts_) {
    if (cpu && p.threads != gpu.sms) continue;
    const bool better = best == nullptr || (cpu ? far(p) < far(*best) : p.ranks < best->ranks);
    if (better) best = &p;
    const auto samples = transfer_samples(tables_[p.table], p.ranks);
    if (!samples.empty() && (transfers == nullptr || far(p) < far(*transfers))) transfers = &p;
  }
  if (best == nullptr)
    return fail(
        fmt::format("the table is of {} threads, the platform's processes have {}", parts_.front().threads, gpu.sms),
        where_.front(), "measure with --threads " + std::to_string(gpu.sms));
  if (cpu && best->ranks != wanted)
    applied.assumed = fmt::format("operators were measured in {} process{} at once, {} share this machine", best->ranks,
                                  best->ranks == 1 ? "" : "es", wanted);
  const OperatorTable& table = tables_[best->table];
  const OperatorCosts before = costs.operators;
  auto measured =
      std::make_shared<const MeasuredOperators>(MeasuredOperators::of_table(table, best->ranks, gpu, before));
  costs.operators.use(measured);
  const auto add = [&](std::string fact, const char* unit, const RowSums& r, double scale) {
    if (r.rows == 0 || r.before <= 0 || r.after <= 0) return;
    applied.facts.push_back({std::move(fact), unit, r.work / r.before * scale, r.work / r.after * scale, r.rows});
  };
  std::array<RowSums, kPrecisionCount> products;
  RowSums attention, memory;
  for (const OperatorRow& row : table.rows) {
    if (row.ranks != best->ranks) continue;
    const double flops = 2 * row.size[0] * row.size[1] * row.size[2] * row.size[3];
    LargestMeasured::One& largest =
        row.kind == OperatorKind::gemm ? applied.largest.product : applied.largest.attention;
    const bool counts =
        row.kind == OperatorKind::gemm || (row.kind == OperatorKind::attention && row.way == AttentionWay::tiled);
    if (counts && flops > largest.flops) largest = {flops, shape_text(row)};
    RowSums* r = row.kind == OperatorKind::gemm        ? &products[static_cast<std::size_t>(row.precision)]
                 : row.kind == OperatorKind::attention ? &attention
                 : moves_memory(row.kind)              ? &memory
                                                       : nullptr;
    if (r == nullptr) continue;
    const double law = modelled_ns(row, before), now = modelled_ns(row, costs.operators);
    if (law <= 0 || now <= 0) continue;
    r->work += r == &memory ? row.bytes : row.flops;
    r->before += law, r->after += now;
    ++r->rows;
  }
  for (std::size_t p = 0; p < kPrecisionCount; ++p)
    add("matrix products, " + std::string(name_of(static_cast<Precision>(p))), "TFLOP/s", products[p], 1e-3);
  if (cpu) add("attention, forward", "TFLOP/s", attention, 1e-3);
  add("kernels bound by memory", "GB/s", memory, 1);
  if (const double launch = measured->launch_ns(); launch > 0) {
    applied.facts.push_back({"launch call", "us", costs.launch_ns / 1e3, launch / 1e3, 1});
    costs.launch_ns = launch;
  }
  if (transfers == nullptr) return applied;
  const auto samples = transfer_samples(tables_[transfers->table], transfers->ranks);
  const NetworkModel net = fit_network(samples, cpu ? nullptr : &gpu), facts = costs.network;
  if (!net.intra.seen) return applied;
  costs.network = net;
  costs.network.inter = facts.inter, costs.network.rail_loss = facts.rail_loss;
  const auto seen = static_cast<std::uint64_t>(samples.size());
  applied.facts.push_back({"links inside a server", "GB/s", facts.intra.gb_per_s, net.intra.gb_per_s, seen});
  applied.facts.push_back({"start of a collective", "us", facts.small_ns / 1e3, net.small_ns / 1e3, seen});
  return applied;
}

Notes TableCalibration::noisy_rows() const {
  Notes notes;
  for (std::size_t t = 0; t < tables_.size(); ++t)
    for (const OperatorRow& row : tables_[t].rows)
      if (row.noisy || row.spread > kNoisySpread)
        notes.add("noisy-rows", Severity::warning, 1,
                  notes.rows.empty() ? fmt::format("{}: {} {}", where_[t], kernel_text(row), shape_text(row)) : "",
                  "measured times that vary by more than 10 %: they count with their quickest batch, and little; "
                  "measure again on a quiet machine, or with a larger --budget of bench ops");
  return notes;
}

void note_beyond(const LargestMeasured& largest, const EstimateJob& job, const JobCosts& costs, Notes& notes) {
  double most = 0;  // times the largest
  std::string first;
  std::uint64_t beyond = 0;
  const auto look = [&](const LayerWork& w) {
    for (const auto* pass : {&w.forward, &w.backward})
      for (const Operation& o : *pass) {
        const bool product = o.m > 0;
        if (!product && o.part != Part::attention) continue;
        const LargestMeasured::One& known = product ? largest.product : largest.attention;
        const double flops = product ? 2 * o.batch * o.m * o.n * o.k : o.flops / (pass == &w.backward ? 2.5 : 1);
        if (known.flops <= 0 || flops <= kFarBeyond * known.flops) continue;
        ++beyond;
        const double times = flops / known.flops;
        if (times <= most) continue;
        most = times;
        const std::string what = !product      ? "the attention"
                                 : o.batch > 1 ? fmt::format("{:.0f}x{:.0f}x{:.0f}x{:.0f}", o.batch, o.m, o.n, o.k)
                                               : fmt::format("{:.0f}x{:.0f}x{:.0f}", o.m, o.n, o.k);
        first = fmt::format("{} is {:.0f} times the work of {}, the largest measured", what, times, known.shape);
      }
  };
  look(layer_work(job, costs, job.model.layers - 1));
  look(head_work(job, costs));
  if (beyond == 0) return;
  notes.add("beyond-the-table", Severity::warning, beyond, first,
            "products and attention of a layer and the head whose time is drawn on from smaller ones, and known less "
            "well: measure the job's own with `orrery bench ops --model`, or larger --sizes");
}

void StepFactors::apply(JobCosts& c) const {
  c.factors.gemm *= gemm;
  c.factors.attention *= attention, c.factors.attention_backward *= attention;
  c.factors.memory *= memory, c.factors.loss *= memory;
  c.factors.optimizer *= optimizer;
  if (c.emulated && knows_emulated) {
    for (std::size_t i = 0; i < kGemmLayouts; ++i) c.factors.emulated[i] *= emulated[i];
    c.emulation_doubt = kEmulatedDoubtAfter;
  }
  for (double* host : {&c.launch_ns, &c.operator_ns, &c.step_ns, &c.pass_ns}) *host *= dispatch;
  NetworkModel& n = c.network;
  for (Level* level : {&n.intra, &n.inter}) {
    level->gb_per_s /= network;
    for (double* ns : {&level->p2p_ns, &level->small_hop_ns, &level->large_hop_ns}) *ns *= network;
  }
  for (double* ns : {&n.small_ns, &n.large_ns, &n.switch_ns, &n.all_to_all_ns}) *ns *= network;
}

Result<StepFactors> fit_steps(const std::vector<CalibrationStep>& samples,
                              const std::vector<JobCosts>& costs_of_samples) {
  if (std::all_of(samples.begin(), samples.end(), [](const CalibrationStep& s) { return s.held_out; }))
    return fail("no step was measured, or all are held out", "--calibrate");
  StepFactors f;
  std::vector<FittedTime> times;
  bool meets = false, fuses = false;
  for (std::size_t k = 0; k < samples.size(); ++k) {
    const CalibrationStep& s = samples[k];
    times.push_back({s.held_out ? 0 : s.ns, s.doubt});
    if (s.held_out) continue;
    f.knows_emulated |= costs_of_samples[k].emulated;
    meets |= s.job.world() > 1;
    fuses |= s.job.attention == AttentionKind::flash;
  }
  std::vector<FittedNumber> numbers = {
      {&f.gemm, kGemmDoubt}, {&f.memory, kMemoryDoubt}, {&f.optimizer, kOptimizerDoubt}, {&f.dispatch, kDispatchDoubt}};
  if (fuses) numbers.push_back({&f.attention, kAttentionDoubt});
  if (meets) numbers.push_back({&f.network, kNetworkDoubt});
  if (f.knows_emulated)
    for (double& layout : f.emulated) numbers.push_back({&layout, kEmulatedDoubt});
  EstimateScratch scratch;
  fit_logs(numbers, times, [&](std::size_t k) {
    if (samples[k].held_out) return 0.0;
    JobCosts costs = costs_of_samples[k];
    f.apply(costs);
    return estimate(samples[k].job, costs, scratch).iteration_ns;
  });
  return f;
}

std::vector<CalibratedFact> facts_of(const StepFactors& f, std::uint64_t samples) {
  std::vector<CalibratedFact> facts;
  const auto add = [&](const char* name, double factor) {
    if (factor != 1) facts.push_back({name, "times the law", 1, factor, samples});
  };
  add("matrix products", f.gemm);
  add("attention", f.attention);
  add("kernels bound by memory", f.memory);
  add("optimizer", f.optimizer);
  add("host, an operator and a step", f.dispatch);
  add("transfers", f.network);
  add("emulated products, forward (nt)", f.emulated[0]);
  add("emulated products, gradients of inputs (nn)", f.emulated[1]);
  add("emulated products, gradients of weights (tn)", f.emulated[2]);
  return facts;
}

}  // namespace orrery
