#include "costs/kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <tuple>

namespace orrery {
namespace {

// ---- constants of the laws; none is of one GPU or job ----

constexpr double kGemmOverhead = 3'000;   // ns: launch, prologue, epilogue
constexpr double kTilePenalty = 0.17;     // of efficiency, for each halving of the tile (less reuse of operands)
constexpr double kWaves = 0.85;           // how far time goes by whole waves, not by tiles: blocks overlap at the seam
constexpr double kTail = 0.07;            // of a wave: start of the first, end of the last
constexpr double kDepth = 200;            // k at which a GEMM spends half of its time outside of its main loop
constexpr double kGemmEfficiency = 0.75;  // before waves; A100 to B200, cuBLAS

constexpr double kSomePeak = 300'000;  // flops a ns, where nothing tells

constexpr double kAttentionOverhead = 3'000;
constexpr double kAttentionWaves = 0.70, kAttentionPartWave = 0.85;
// Keys that the start and the end of a row of blocks cost: FlashAttention-2's benchmark (README, A100, causal, head
// dim 64 and 128) has 450 to 500. Latencies do not shrink as SMs get faster: with the root of an SM's peak.
constexpr double kAttentionRamp = 480, kAttentionRampSm = 2'890;  // flops a ns of an A100's SM
constexpr double kAttentionHeadDim = 20;
constexpr double kAttentionBlock = 128;
constexpr double kAttentionEfficiency = 0.60;

constexpr double kMemoryOverhead = 2'000;  // ns
constexpr double kCacheNs = 12'000;  // of DRAM bandwidth that fits in the L2: 40 to 50 MB of A100, H100; 126 of B200
constexpr double kCacheGain = 0.20;  // of the time, for what does
constexpr double kMostBytes = 64;    // that a kernel moves for an element
constexpr double kSlowBandwidth = 1'000;  // bytes a ns, where it is not known
constexpr double kMemoryEfficiency = 0.85;

// ---- the regression of GEMMs: standard deviations of log time ----

constexpr double kSmooth = 0.06;     // what goes with the size
constexpr double kIrregular = 0.03;  // what each size has for itself
constexpr double kRole = 0.015;      // what two kernels of one size differ by
constexpr double kMean = 0.25;       // what GPUs and jobs differ by
constexpr double kLength = 1.5;      // of a change of size, in units of log e, over which they have something in common
constexpr double kCarry = 0.7;       // the same for what is a kernel's own
constexpr double kPriorExcess = 1.7;  // of errors over what the above would make of them, before the trace says
constexpr double kPriorGemms = 8;     // how many GEMMs that is worth
constexpr std::size_t kPoints = 32;   // the sizes that take the most time
constexpr std::size_t kAnchors = 12;

double smooth_max(double a, double b) { return std::sqrt(std::sqrt(a * a * a * a + b * b * b * b)); }

struct TileSize {
  double m, n;
  double halvings;  // of 256 x 128
};
constexpr std::array<TileSize, 7> kTiles = {
    {{256, 128, 0}, {128, 256, 0}, {128, 128, 1}, {256, 64, 1}, {128, 64, 2}, {64, 128, 2}, {64, 64, 3}}};

// Waves that `blocks` take over the SMs: whole ones to a degree.
double waves(double blocks, int sms, double whole, double part) {
  const double x = blocks / sms;
  if (x <= 1) return std::pow(x, 1 - part);
  return std::pow(x, 1 - whole) * std::pow(std::ceil(x), whole);
}

// Work of the best tile over the ideal of one that divides everything, in units of time: >= 1.
double tile_loss(const WorkSize& s, int sms) {
  if (sms == 0) return 1;
  double best = std::numeric_limits<double>::infinity();
  for (const TileSize& t : kTiles) {
    const double tiles = std::ceil(s.m / t.m) * std::ceil(s.n / t.n) * s.batch;
    const double whole = std::ceil(tiles / sms) + kTail;
    const double time = whole * t.m * t.n * (1 + kTilePenalty * t.halvings);
    best = std::min(best, time);
  }
  const double ideal = s.m * s.n * s.batch / sms;
  return std::pow(std::max(best / ideal, 1.0), kWaves);
}

double flops(const WorkSize& s) {
  switch (s.kind) {
    case WorkKind::gemm:
      return 2 * s.batch * s.m * s.n * s.k;
    case WorkKind::attention:
      return 4 * s.batch * s.m * s.n * s.k;
    case WorkKind::attention_backward:
      return 10 * s.batch * s.m * s.n * s.k;
    default:
      return 0;
  }
}

double bytes(const WorkSize& s) {
  const double of = s.bytes_per_element;
  switch (s.kind) {
    case WorkKind::gemm:
      return of * s.batch * (s.m * s.k + s.k * s.n + s.m * s.n);
    case WorkKind::attention:
      return of * s.batch * s.k * 2 * (s.m + s.n);
    case WorkKind::attention_backward:
      return of * s.batch * s.k * 4 * (s.m + s.n);
    case WorkKind::memory:
      return of * s.batch * s.m;  // at least one pass
    default:
      return 0;
  }
}

bool is_attention(WorkKind k) { return k == WorkKind::attention || k == WorkKind::attention_backward; }

// Tensor cores do twice as much with half the bytes.
double of_peak(const WorkSize& s) { return 2.0 / std::max(1, s.bytes_per_element); }

WorkSize sane(WorkSize s) {
  const auto whole = [](double x) { return std::isfinite(x) && x > 1 ? std::min(x, 1e12) : 1.0; };
  s.m = whole(s.m), s.n = whole(s.n), s.k = whole(s.k), s.batch = whole(s.batch);
  return s;
}

bool usable(const KernelSample& s) { return std::isfinite(s.ns) && s.ns > 0; }

// Relative error of the median of its durations.
double noise_of(const KernelSample& s) {
  if (!std::isfinite(s.spread)) return 0.1;
  return std::clamp(s.spread, 0.0, 1.0) / (s.count > 1 ? std::sqrt(s.count) : 1);
}

WorkSize folded(WorkSize s) {
  if (s.m < s.n) std::swap(s.m, s.n);
  return s;
}

// Time in units of DRAM bandwidth -> time, and back: what fits in the cache takes less.
double with_cache(double w) { return w < kCacheNs ? w * (1 - kCacheGain) : w - kCacheGain * kCacheNs; }
double without_cache(double t) {
  const double knee = kCacheNs * (1 - kCacheGain);
  return t < knee ? t / (1 - kCacheGain) : t + kCacheGain * kCacheNs;
}

using Logs = std::array<double, 4>;
Logs logs(const WorkSize& s) {
  if (s.kind == WorkKind::memory) return {std::log(s.m * s.batch)};
  return {std::log(s.m), std::log(s.n), std::log(s.k), std::log(s.batch)};
}
double distance(const Logs& a, const Logs& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

// GEMMs of one precision are alike, others are not.
std::size_t precision(const WorkSize& s) {
  return s.bytes_per_element <= 1 ? 0 : s.bytes_per_element == 2 ? 1 : s.bytes_per_element <= 4 ? 2 : 3;
}

std::uint64_t key(std::uint32_t name, WorkKind kind) {
  return (static_cast<std::uint64_t>(name) << 8) | static_cast<std::uint64_t>(kind);
}

// Correlation at a squared distance: rational quadratic, which needs no exponential.
double alike_at(double squared) { return 1 / (1 + squared / (2 * kLength * kLength)); }

void features(const WorkSize& s, double* x) {
  const double m = std::log(s.m), n = std::log(s.n);
  x[0] = (m + n) * 0.7071;
  x[1] = std::abs(m - n) * 0.7071;
  x[2] = std::log(s.k);
  x[3] = std::log(s.batch);
}

}  // namespace

double KernelCosts::roofline_ns(const WorkSize& size) const {
  if (bandwidth_ <= 0) return 0;
  const WorkSize s = sane(size);
  // a causal kernel skips half of the flops
  const double skipped = is_attention(s.kind) ? 0.5 : 1;
  return std::max(skipped * flops(s) / (peak_ * of_peak(s)), s.kind == WorkKind::memory ? 0 : bytes(s) / bandwidth_);
}

// Up to a constant factor of each kind.
double KernelCosts::law_ns(const WorkSize& s) const {
  const double memory = bandwidth_ > 0 ? bytes(s) / (bandwidth_ * kMemoryEfficiency) : 0;
  if (s.kind == WorkKind::gemm) {
    const double compute = flops(s) / (peak_ * of_peak(s) * kGemmEfficiency) * tile_loss(s, sms_) * (1 + kDepth / s.k);
    return kGemmOverhead + smooth_max(compute, memory);
  }
  if (is_attention(s.kind)) {
    const double rows = s.kind == WorkKind::attention ? s.m : s.n;
    const double blocks = s.batch * std::ceil(rows / kAttentionBlock);
    const double ramp = sms_ > 0 ? kAttentionRamp * std::sqrt(peak_ / sms_ / kAttentionRampSm) : kAttentionRamp;
    double loss = (1 + ramp / s.n) * (1 + kAttentionHeadDim / s.k);
    if (sms_ > 0) loss *= waves(blocks, sms_, kAttentionWaves, kAttentionPartWave) / (blocks / sms_);
    const double compute = 0.5 * flops(s) / (peak_ * of_peak(s) * kAttentionEfficiency) * loss;
    return kAttentionOverhead + smooth_max(compute, memory);
  }
  if (s.kind == WorkKind::memory) return overhead_ns_ + with_cache(2 * memory);
  return 0;
}

// `ns` at `from`, a memory-bound kernel, by the law alone at `to`.
double KernelCosts::scaled_memory_ns(const WorkSize& from, double ns, const WorkSize& to) const {
  const double ratio = to.m * to.batch * to.bytes_per_element / (from.m * from.batch * from.bytes_per_element);
  // What goes with the size: what exceeds the overhead, a tenth at least; of a kernel that hardly does, no more than so
  // many bytes can take.
  double varies = std::max(ns - overhead_ns_, 0.1 * ns);
  if (ns < 1.5 * overhead_ns_)
    varies = std::min(varies, kMostBytes * from.m * from.batch / (bandwidth_ > 0 ? bandwidth_ : kSlowBandwidth));
  return ns - varies + with_cache(ratio * without_cache(varies));
}

KernelCosts KernelCosts::learn(std::span<const KernelSample> samples, const GpuFacts* gpu) {
  KernelCosts c;
  c.peak_ = 1;
  c.overhead_ns_ = kMemoryOverhead;
  if (gpu != nullptr && half_tflops(*gpu) > 0 && gpu->memory_gb_per_s > 0) {
    c.sms_ = gpu->sms;
    c.peak_ = half_tflops(*gpu) * 1e3;
    c.bandwidth_ = gpu->memory_gb_per_s;
  } else {  // for the share of the overhead alone: the fastest GEMM has most of the peak
    for (const KernelSample& s : samples)
      if (s.size.kind == WorkKind::gemm && usable(s)) c.peak_ = std::max(c.peak_, flops(sane(s.size)) / s.ns);
    if (c.peak_ <= 1) c.peak_ = kSomePeak;
  }
  c.fit_gemms(samples);
  c.fit_anchors(samples);
  return c;
}

void KernelCosts::fit_gemms(std::span<const KernelSample> samples) {
  struct Sum {
    WorkSize size;
    double weight = 0, log_ns = 0, total = 0, noise = 0;
  };
  std::vector<Sum> sums;
  std::vector<const KernelSample*> chosen;
  for (const KernelSample& s : samples)
    if (s.size.kind == WorkKind::gemm && usable(s)) chosen.push_back(&s);
  const auto less = [](const WorkSize& a, const WorkSize& b) {
    return std::tie(a.m, a.n, a.k, a.batch, a.bytes_per_element) <
           std::tie(b.m, b.n, b.k, b.batch, b.bytes_per_element);
  };
  std::stable_sort(chosen.begin(), chosen.end(), [&](const KernelSample* a, const KernelSample* b) {
    return less(folded(sane(a->size)), folded(sane(b->size)));
  });
  for (const KernelSample* s : chosen) {
    const WorkSize size = folded(sane(s->size));
    if (sums.empty() || !(sums.back().size == size)) sums.push_back({.size = size});
    Sum& sum = sums.back();
    sum.weight += 1, sum.log_ns += std::log(s->ns), sum.total += s->ns * std::max(1.0, s->count);
    sum.noise += noise_of(*s) * noise_of(*s) + kRole * kRole;
  }
  std::stable_sort(sums.begin(), sums.end(), [](const Sum& a, const Sum& b) { return a.total > b.total; });
  if (sums.size() > kPoints) sums.resize(kPoints);
  std::array<double, kPrecisions> sum = {}, number = {};
  for (const Sum& s : sums) {
    Point p;
    p.size = s.size;
    features(s.size, p.x);
    p.residual = s.log_ns / s.weight - std::log(law_ns(s.size));
    p.noise = s.noise / (s.weight * s.weight) + kIrregular * kIrregular;
    sum[precision(p.size)] += p.residual, number[precision(p.size)] += 1;
    points_.push_back(p);
  }
  // The mean of all, with what is known beforehand counting as one GEMM of the sort that GPUs differ by.
  const double one = (kSmooth * kSmooth + kIrregular * kIrregular) / (kMean * kMean);
  for (std::size_t p = 0; p < kPrecisions; ++p)
    if (number[p] > 0) gemm_mean_[p] = sum[p] / (number[p] + (bandwidth_ > 0 ? one : 0)), gemms_[p] = true;
  // alpha = (K + noise)^-1 (residual - mean), by Cholesky
  const std::size_t count = points_.size();
  std::vector<double> l(count * count);
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t j = 0; j <= i; ++j) {
      double d = 0;
      for (int f = 0; f < kFeatures; ++f)
        d += (points_[i].x[f] - points_[j].x[f]) * (points_[i].x[f] - points_[j].x[f]);
      const bool alike = precision(points_[i].size) == precision(points_[j].size);
      double v = alike ? kSmooth * kSmooth * alike_at(d) : 0;
      if (i == j) v += points_[i].noise;
      for (std::size_t t = 0; t < j; ++t) v -= l[i * count + t] * l[j * count + t];
      l[i * count + j] = i == j ? std::sqrt(std::max(v, 1e-9)) : v / l[j * count + j];
    }
  for (std::size_t i = 0; i < count; ++i) {
    double v = points_[i].residual - gemm_mean_[precision(points_[i].size)];
    for (std::size_t t = 0; t < i; ++t) v -= l[i * count + t] * points_[t].alpha;
    points_[i].alpha = v / l[i * count + i];
  }
  // Each GEMM predicted from the others (residual = alpha / Kinv_ii, variance = 1 / Kinv_ii): how regular is this GPU?
  std::vector<double> column(count);
  double excess = kPriorGemms * kPriorExcess * kPriorExcess;
  const auto inverse_diagonal = [&](std::size_t i) {  // of K: a squared column of the inverse of its factor
    double squares = 0;
    for (std::size_t r = i; r < count; ++r) {
      double v = r == i ? 1 : 0;
      for (std::size_t t = i; t < r; ++t) v -= l[r * count + t] * column[t];
      column[r] = v / l[r * count + r];
      squares += column[r] * column[r];
    }
    return squares;
  };
  for (std::size_t i = count; i-- > 0;) {
    double v = points_[i].alpha;
    for (std::size_t t = i + 1; t < count; ++t) v -= l[t * count + i] * points_[t].alpha;
    points_[i].alpha = v / l[i * count + i];
  }
  if (count > 1)
    for (std::size_t i = 0; i < count; ++i) excess += points_[i].alpha * points_[i].alpha / inverse_diagonal(i);
  gemm_excess_ = std::sqrt(excess / (kPriorGemms + (count > 1 ? static_cast<double>(count) : 0)));
}

// Log of time over law at a size.
KernelCosts::Residual KernelCosts::residual(const WorkSize& size) const {
  const WorkSize s = folded(size);
  double x[kFeatures];
  features(s, x);
  const std::size_t of = precision(s);
  Residual r{.smooth = gemm_mean_[of]};
  for (const Point& p : points_) {
    if (precision(p.size) != of) continue;
    double d = 0;
    for (int f = 0; f < kFeatures; ++f) d += (x[f] - p.x[f]) * (x[f] - p.x[f]);
    const double alike = alike_at(d);
    r.similarity = std::max(r.similarity, alike);
    r.smooth += p.alpha * kSmooth * kSmooth * alike;
    if (d == 0 && s == p.size) r.seen = true, r.irregular = p.alpha * kIrregular * kIrregular;
  }
  return r;
}

void KernelCosts::fit_anchors(std::span<const KernelSample> samples) {
  // The overhead: of the memory kernels, the fast tenth; without what reading and writing takes, where none is small.
  std::vector<double> times;
  for (const KernelSample& s : samples)
    if ((s.size.kind == WorkKind::memory || s.size.kind == WorkKind::fixed) && usable(s))
      times.push_back(
          std::max(s.ns - (bandwidth_ > 0 ? with_cache(2 * bytes(sane(s.size)) / bandwidth_) : 0), 0.25 * s.ns));
  if (times.size() >= 5) {
    const auto tenth = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 10);
    std::nth_element(times.begin(), tenth, times.end());
    overhead_ns_ = std::clamp(0.9 * *tenth, 0.5 * kMemoryOverhead, 2 * kMemoryOverhead);
  }
  double log_sum[2] = {}, weights[2] = {};
  for (const KernelSample& s : samples) {
    if (!usable(s) || (s.size.kind != WorkKind::memory && !is_attention(s.size.kind))) continue;
    const WorkSize size = sane(s.size);
    if (is_attention(size.kind)) {
      const int which = size.kind == WorkKind::attention ? 0 : 1;
      const double weight = s.ns * std::max(1.0, s.count);  // helpers of the main kernel take little
      log_sum[which] += weight * std::log(s.ns / law_ns(size));
      weights[which] += weight;
    }
    const double noise = noise_of(s);
    std::vector<Anchor>& of = anchors_[key(s.name, size.kind)];
    const auto same = std::find_if(
        of.begin(), of.end(), [&](const Anchor& a) { return a.size == size && std::abs(a.ns - s.ns) < 0.02 * s.ns; });
    if (same == of.end() && of.size() < kAnchors)
      of.push_back({size, logs(size), s.ns, std::log(s.ns / std::max(law_ns(size), 1e-9)), noise});
  }
  if (weights[0] > 0) attention_ = std::exp(log_sum[0] / weights[0]);
  if (weights[1] > 0) attention_backward_ = std::exp(log_sum[1] / weights[1]);
}

KernelCosts::Estimate KernelCosts::rescale_gemm(const KernelSample& base, const WorkSize& now) const {
  const WorkSize from = sane(base.size), to = sane(now);
  const Residual r_from = residual(from), r_to = residual(to);
  // What the base has for itself, its size included, fades; where the trace has the new size, that is known and only
  // what the base's role has for itself is left.
  const double d = distance(logs(folded(from)), logs(folded(to))), carry = std::exp(-d / kCarry);
  double own = std::log(base.ns / law_ns(from)) - r_from.smooth;
  if (r_to.seen) own -= r_from.irregular;
  const double ns = law_ns(to) * std::exp(r_to.smooth + r_to.irregular + own * carry);
  const double irregular = r_to.seen ? kRole : kIrregular;
  const double unknown = irregular * irregular + kSmooth * kSmooth * (1 - r_to.similarity);
  const double variance = gemm_excess_ * gemm_excess_ * unknown * (1 - carry * carry * carry * carry) +
                          noise_of(base) * noise_of(base) + 0.01 * 0.01 * d * d;
  return {ns, std::sqrt(variance), false};
}

KernelCosts::Estimate KernelCosts::rescale_anchored(const KernelSample& base, const WorkSize& now) const {
  const WorkSize from = sane(base.size), to = sane(now);
  const bool memory = from.kind == WorkKind::memory;
  // Of GPUs with faster SMs less is known: their attention kernels differ more.
  const double sm = memory || sms_ == 0 ? 1 : std::max(1.0, std::sqrt(peak_ / sms_ / kAttentionRampSm));
  const double at_once = 0.025 * sm, per_log = memory ? 0.06 : 0.04 * sm;
  const auto variance = [&](double d, double noise) {
    return noise * noise + at_once * at_once * std::min(1.0, d * d / 0.01) + per_log * per_log * d * d;
  };
  const Logs log_from = logs(from), log_to = logs(to);
  const double log_base = std::log(base.ns);
  const double law_from = memory ? 0 : std::log(law_ns(from)), law_to = memory ? 0 : std::log(law_ns(to));
  const double own_variance = variance(distance(log_from, log_to), noise_of(base));
  double weight = 1 / std::max(own_variance, 1e-8);
  double log_sum = weight * (memory ? std::log(scaled_memory_ns(from, base.ns, to)) : log_base + law_to - law_from);
  const auto at = anchors_.find(key(base.name, from.kind));
  if (at != anchors_.end())
    for (const Anchor& a : at->second) {
      if (a.size == from) continue;
      // One that does other work for the same elements says so at the size of the base: by more than sizes explain.
      const double at_base = memory ? std::log(scaled_memory_ns(a.size, a.ns, from)) : a.log_over_law + law_from;
      const double at_now = memory ? std::log(scaled_memory_ns(a.size, a.ns, to)) : a.log_over_law + law_to;
      const double apart = at_base - log_base, d = distance(a.log, log_from);
      const double other = std::max(0.0, apart * apart - 4 * per_log * per_log * d * d);
      const double w = 1 / (variance(distance(a.log, log_to), a.noise) + other + 1e-4);
      log_sum += w * at_now;
      weight += w;
    }
  return {std::exp(log_sum / weight), std::sqrt(std::min(own_variance, 2 / weight)), false};
}

KernelCosts::Estimate KernelCosts::rescale(const KernelSample& base, const WorkSize& now) const {
  const double noise = noise_of(base);
  if (base.size == now || !usable(base)) return {base.ns, noise, false};
  if (now.kind == WorkKind::fixed || now.kind == WorkKind::unknown)
    return {base.ns, now.kind == WorkKind::fixed ? std::max(noise, 0.01) : 0.25, false};
  if (now.kind != base.size.kind) return from_facts(now);
  Estimate e = now.kind == WorkKind::gemm ? rescale_gemm(base, now) : rescale_anchored(base, now);
  // Never faster than the GPU can; a kernel that already was is of another size than was thought: keep the ratio.
  const double floor = roofline_ns(now), at_base = roofline_ns(base.size);
  if (floor > 0) e.ns = std::max(e.ns, at_base > base.ns ? floor * base.ns / at_base : floor);
  return e;
}

KernelCosts::Estimate KernelCosts::from_facts(const WorkSize& size) const {
  const WorkSize s = sane(size);
  Estimate e{-1, 1, true};
  switch (s.kind) {
    case WorkKind::gemm:
      if (!gemms_[precision(s)] && bandwidth_ <= 0) return e;
      if (gemms_[precision(s)]) {
        const Residual r = residual(s);
        e.ns = law_ns(s) * std::exp(r.smooth + r.irregular);
        const double irregular = r.seen ? kRole : kIrregular;
        e.relative_error = gemm_excess_ * std::sqrt(irregular * irregular + 2 * kSmooth * kSmooth * (1 - r.similarity));
      } else {
        e.ns = law_ns(s), e.relative_error = kMean;
      }
      break;
    case WorkKind::attention:
    case WorkKind::attention_backward: {
      const double seen = s.kind == WorkKind::attention ? attention_ : attention_backward_;
      if (seen <= 0 && bandwidth_ <= 0) return e;
      e.ns = law_ns(s) * (seen > 0 ? seen : 1), e.relative_error = seen > 0 ? 0.15 : 0.4;
      break;
    }
    case WorkKind::memory:
      if (bandwidth_ <= 0) return e;
      e.ns = law_ns(s), e.relative_error = 0.5;  // how many passes it makes is not known
      break;
    case WorkKind::fixed:
      e.ns = overhead_ns_, e.relative_error = 0.3;
      break;
    case WorkKind::unknown:
      return e;
  }
  e.ns = std::max(e.ns, roofline_ns(s));
  return e;
}

}  // namespace orrery
