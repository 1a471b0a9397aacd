#include "costs/measured_operators.h"

#include <algorithm>
#include <cmath>

#include "base/median.h"
#include "costs/fit_logs.h"

namespace orrery {
namespace {

constexpr double kReach = 1.5, kSpread = 0.3;  // of what laws leave unexplained
constexpr double kLeastDoubt = 0.02, kNoisyDoubt = 0.15;
// For each factor of e of work beyond the largest measured.
constexpr double kGemmBeyond = 0.03, kAttentionBeyond = 0.1;

LogResidual::Size size_of(const GemmWork& w) { return {w.batch, w.m, w.n, w.k}; }

GemmWork work_of(const OperatorRow& r) {
  GemmWork w;
  w.batch = r.size[0], w.m = r.size[1], w.n = r.size[2], w.k = r.size[3];
  w.precision = r.precision;
  w.warm = true;
  return w;
}
AttentionWork attention_work_of(const OperatorRow& r) {
  AttentionWork w;
  w.heads = w.kv_heads = r.size[0], w.queries = r.size[1], w.keys = r.size[2], w.head_dim = r.size[3];
  w.causal = r.causal;
  w.precision = r.precision;
  return w;
}
LogResidual::Size size_of(const AttentionWork& w) { return {w.batch * w.heads, w.queries, w.keys, w.head_dim}; }

double flop_of(const GemmWork& w) { return 2 * w.batch * w.m * w.n * w.k; }
double flop_of(const AttentionWork& w) {
  return 4 * w.batch * w.heads * attention_pairs(w.queries, w.keys, w.causal) * w.head_dim;
}

double factors_beyond(double flop, double largest) {
  return largest > 0 && flop > largest ? std::log(flop / largest) : 0;
}

// Of the residuals: how far the law is off where nothing was measured.
double spread_of(const std::vector<LogResidual::Sample>& samples) {
  std::vector<double> far;
  for (const auto& s : samples) far.push_back(std::abs(s.off));
  return far.empty() ? kSpread : std::clamp(1.5 * median(far), 0.05, kSpread);
}

MemoryKernel kernel_of(OperatorKind k) {
  switch (k) {
    case OperatorKind::copy:
      return MemoryKernel::copy;
    case OperatorKind::silu:
      return MemoryKernel::activation;
    case OperatorKind::norm:
      return MemoryKernel::norm;
    case OperatorKind::softmax:
      return MemoryKernel::softmax;
    case OperatorKind::embedding:
      return MemoryKernel::embedding;
    case OperatorKind::adamw:
      return MemoryKernel::optimizer;
    default:
      return MemoryKernel::elementwise;
  }
}

}  // namespace

std::pair<double, double> time_of(const OperatorRow& r) {
  if (r.noisy && r.least_ns > 0) return {r.least_ns, kNoisyDoubt};
  return {r.ns, std::max(kLeastDoubt, r.spread)};
}

double MeasuredOperators::Curve::ns(double bytes) const {
  const double x = std::log(std::max(1.0, bytes));
  if (x <= points.front().first) {  // on as the first two go
    const double slope =
        points.size() < 2
            ? 1
            : std::clamp((points[1].second - points[0].second) / std::max(1e-9, points[1].first - points[0].first), 0.0,
                         1.0);
    return std::exp(points.front().second + slope * (x - points.front().first));
  }
  if (x >= points.back().first) return std::exp(points.back().second + x - points.back().first);
  const auto high = std::upper_bound(points.begin(), points.end(), std::make_pair(x, 1e300));
  const auto low = high - 1;
  const double share = (x - low->first) / (high->first - low->first);
  return std::exp(low->second + share * (high->second - low->second));
}

MeasuredOperators MeasuredOperators::of_cpu(const GpuFacts& cpu) {
  MeasuredOperators m;
  m.cpu_ = true;
  m.gpu_ = cpu;
  return m;
}

MeasuredOperators MeasuredOperators::of_table(const OperatorTable& table, std::int64_t ranks, const GpuFacts& gpu,
                                              const OperatorCosts& laws) {
  MeasuredOperators m;
  m.cpu_ = table.device == "cpu";
  m.gpu_ = gpu;
  std::array<std::vector<const OperatorRow*>, kPrecisionCount> gemms;
  std::vector<const OperatorRow*> attention;
  for (const OperatorRow& r : table.rows) {
    if (r.ranks != ranks) continue;
    if (r.kind == OperatorKind::gemm) gemms[static_cast<std::size_t>(r.precision)].push_back(&r);
    if (r.kind == OperatorKind::attention && r.way == AttentionWay::tiled) attention.push_back(&r);
    if (r.kind == OperatorKind::launch && !m.cpu_) m.launch_ns_ = r.ns;
    if (!moves_memory(r.kind)) continue;
    Curve& c = m.curves_[static_cast<std::size_t>(r.kind)][bytes_of(r.precision) < 4 ? 1 : 0];
    c.points.emplace_back(std::log(std::max(1.0, r.bytes)), std::log(time_of(r).first));
  }
  for (auto& kinds : m.curves_)
    for (Curve& c : kinds) {
      std::sort(c.points.begin(), c.points.end());
      // More bytes do not take less time.
      for (std::size_t i = 1; i < c.points.size(); ++i)
        c.points[i].second = std::max(c.points[i].second, c.points[i - 1].second);
    }
  for (std::size_t p = 0; p < kPrecisionCount; ++p)
    if (!gemms[p].empty()) m.fit_gemms(gemms[p], static_cast<Precision>(p), laws);
  if (!attention.empty()) m.fit_attention(attention);
  return m;
}

double MeasuredOperators::cpu_gemm_ns(const CpuGemmFit& f, const GemmWork& w) const {
  const double e = bytes_of(w.precision), b = w.weight_bytes > 0 ? w.weight_bytes : e, out = std::max(e, 4.0);
  const double peak = peak_flop_per_ns(gpu_, w.precision);
  const double compute = 2 * w.batch * (w.m + f.edge_m) * (w.n + f.edge_n) * (w.k + f.edge_k) / (f.share * peak);
  const double memory =
      w.batch * (e * w.m * w.k + b * w.k * w.n + out * w.m * w.n) / (f.memory_share * gpu_.memory_gb_per_s);
  return f.overhead_ns + std::pow(std::pow(compute, 4) + std::pow(memory, 4), 0.25);
}

double MeasuredOperators::cpu_attention_ns(const CpuAttentionFit& f, const AttentionWork& w) const {
  const double value = w.value_head_dim > 0 ? w.value_head_dim : w.head_dim, units = w.batch * w.heads;
  const double flop = 2 * units * attention_pairs(w.queries, w.keys, w.causal) * (w.head_dim + value + 2 * f.edge) *
                      (w.backward ? 2.5 : 1);
  const double element = bytes_of(w.precision);
  const double keys = w.batch * (w.shared_kv ? std::max(1.0, w.kv_heads) : w.heads) * w.keys;
  const double bytes = element * (w.head_dim + value) * (units * w.queries + keys) * (w.backward ? 2.5 : 1);
  return f.overhead_ns + std::max(flop / (f.share * peak_flop_per_ns(gpu_, w.precision)), bytes / gpu_.memory_gb_per_s);
}

void MeasuredOperators::fit_gemms(const std::vector<const OperatorRow*>& rows, Precision p, const OperatorCosts& laws) {
  Gemm& g = gemm_[static_cast<std::size_t>(p)];
  g.measured = true;
  if (cpu_) {
    CpuGemmFit& f = g.fit;
    std::vector<FittedTime> times;
    for (const OperatorRow* r : rows) {
      const auto [ns, doubt] = time_of(*r);
      times.push_back({ns, std::hypot(doubt, 0.1)});  // the law itself is no better than that
    }
    fit_logs({{&f.overhead_ns, 1.5},
              {&f.share, 0.5},
              {&f.edge_m, 1},
              {&f.edge_n, 1},
              {&f.edge_k, 1},
              {&f.memory_share, 0.7}},
             times, [&](std::size_t k) { return cpu_gemm_ns(f, work_of(*rows[k])); });
  }
  std::vector<LogResidual::Sample> samples;
  for (const OperatorRow* r : rows) {
    const GemmWork w = work_of(*r);
    const auto [ns, doubt] = time_of(*r);
    const double law = cpu_ ? cpu_gemm_ns(g.fit, w) : laws.gemm(w).ns;
    samples.push_back({size_of(w), std::log(ns / law), doubt});
    g.largest_flop = std::max(g.largest_flop, flop_of(w));
  }
  const double spread = cpu_ ? spread_of(samples) : kSpread;
  g.residual = LogResidual::learn(std::move(samples), kReach, spread);
}

void MeasuredOperators::fit_attention(const std::vector<const OperatorRow*>& rows) {
  attention_measured_ = true;
  std::vector<FittedTime> times;
  for (const OperatorRow* r : rows) {
    const auto [ns, doubt] = time_of(*r);
    times.push_back({ns, std::hypot(doubt, 0.1)});
  }
  CpuAttentionFit& f = attention_;
  fit_logs({{&f.overhead_ns, 1.5}, {&f.share, 0.7}, {&f.edge, 1}}, times,
           [&](std::size_t k) { return cpu_attention_ns(f, attention_work_of(*rows[k])); });
  std::vector<LogResidual::Sample> samples;
  for (const OperatorRow* r : rows) {
    const AttentionWork w = attention_work_of(*r);
    const auto [ns, doubt] = time_of(*r);
    samples.push_back({size_of(w), std::log(ns / cpu_attention_ns(f, w)), doubt});
    attention_largest_flop_ = std::max(attention_largest_flop_, flop_of(w));
  }
  const double spread = spread_of(samples);
  attention_residual_ = LogResidual::learn(std::move(samples), kReach, spread);
  attention_error_ = 0.15;
}

std::optional<OperatorTime> MeasuredOperators::gemm(const GemmWork& given, const OperatorTime& law) const {
  GemmWork w = given;
  if (cpu_ && cpu_emulates(gpu_, w.precision)) w.precision = Precision::fp32;
  const Gemm& g = gemm_[static_cast<std::size_t>(w.precision)];
  if (!g.measured && !cpu_) return std::nullopt;
  const LogResidual::Estimate off = g.residual.at(size_of(w));
  OperatorTime t = law;
  if (cpu_) {
    t.ns = cpu_gemm_ns(g.fit, w);
    const double compute = 2 * w.batch * w.m * w.n * w.k / (g.fit.share * peak_flop_per_ns(gpu_, w.precision));
    t.bound = 2 * g.fit.overhead_ns > t.ns ? Bound::latency : compute > 0.5 * t.ns ? Bound::compute : Bound::memory;
  }
  t.ns *= std::exp(off.off);
  t.relative_error = g.measured ? std::hypot(off.doubt, 0.03) : g.error;
  if (cpu_) t.relative_error = std::hypot(t.relative_error, kGemmBeyond * factors_beyond(flop_of(w), g.largest_flop));
  return t;
}

std::optional<OperatorTime> MeasuredOperators::attention(const AttentionWork& w) const {
  if (!cpu_) return std::nullopt;
  const double off = w.queries > 1 ? attention_residual_.at(size_of(w)).off : 0;
  const double error =
      std::hypot(attention_error_, kAttentionBeyond * factors_beyond(flop_of(w), attention_largest_flop_));
  return OperatorTime{cpu_attention_ns(attention_, w) * std::exp(off), error, Bound::compute};
}

const MeasuredOperators::Curve* MeasuredOperators::curve_of(OperatorKind kind, Precision p) const {
  const auto& both = curves_[static_cast<std::size_t>(kind)];
  const std::size_t own = bytes_of(p) < 4 ? 1 : 0;
  if (!both[own].points.empty()) return &both[own];
  return both[1 - own].points.empty() ? nullptr : &both[1 - own];
}

std::optional<OperatorTime> MeasuredOperators::memory(double bytes, MemoryKernel kind, Precision p) const {
  const auto of = [&](OperatorKind k) { return curve_of(k, p); };
  const Curve* add = of(OperatorKind::add);
  const auto mixed = [&](const Curve* part, double share) -> std::optional<OperatorTime> {
    if (part == nullptr)
      return add == nullptr ? std::nullopt : std::optional(OperatorTime{add->ns(bytes), 0.2, Bound::memory});
    const double rest = add == nullptr ? part->ns(bytes) : add->ns(bytes);
    return OperatorTime{share * part->ns(bytes) + (1 - share) * rest, 0.15, Bound::memory};
  };
  std::optional<OperatorTime> t;
  switch (kind) {
    case MemoryKernel::copy:
      t = mixed(of(OperatorKind::copy), 1);
      break;
    case MemoryKernel::norm:
      t = mixed(of(OperatorKind::norm), 1);
      break;
    case MemoryKernel::softmax:
      t = mixed(of(OperatorKind::softmax), 1);
      break;
    case MemoryKernel::embedding:
      t = mixed(of(OperatorKind::embedding), 1);
      break;
    case MemoryKernel::optimizer:
      t = mixed(of(OperatorKind::adamw), 1);
      break;
    case MemoryKernel::activation:  // of a gated activation's five passes two are those of the exponentials
      t = mixed(of(OperatorKind::silu), 0.4);
      break;
    case MemoryKernel::loss:  // a softmax among casts and copies
      t = mixed(of(OperatorKind::softmax), 0.3);
      break;
    case MemoryKernel::elementwise:
    case MemoryKernel::rotary:
      t = mixed(add, 1);
      break;
  }
  if (t || !cpu_) return t;
  // A CPU without a table: its memory's bandwidth, and a call.
  constexpr double kCallNs = 500, kOfBandwidth = 0.8;
  return OperatorTime{kCallNs + bytes / (kOfBandwidth * gpu_.memory_gb_per_s), 0.4, Bound::memory};
}

double modelled_ns(const OperatorRow& row, const OperatorCosts& laws) {
  if (row.kind == OperatorKind::gemm) return laws.gemm(work_of(row)).ns;
  if (row.kind == OperatorKind::attention && row.way == AttentionWay::tiled)
    return laws.attention(attention_work_of(row)).ns;
  if (row.kind == OperatorKind::silu) return 0;  // no kernel of a framework is that alone
  return moves_memory(row.kind) ? laws.memory(row.bytes, kernel_of(row.kind), row.precision).ns : 0;
}

std::vector<TransferSample> transfer_samples(const OperatorTable& table, std::int64_t ranks) {
  std::vector<TransferSample> samples;
  for (const OperatorRow& r : table.rows) {
    if (!is_collective(r.kind) || r.ranks != ranks || ranks < 2) continue;
    TransferSample s;
    s.pattern = r.kind == OperatorKind::all_reduce   ? Pattern::all_reduce
                : r.kind == OperatorKind::all_to_all ? Pattern::all_to_all
                                                     : Pattern::gather_or_scatter;
    s.where = {r.ranks, r.ranks};
    s.bytes = r.bytes;
    const auto [ns, doubt] = time_of(r);
    s.ns = ns, s.spread = doubt;
    samples.push_back(s);
  }
  return samples;
}

}  // namespace orrery
