#include "costs/gemm_law.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace orrery {
namespace {

constexpr std::array<double, 5> kEdges = {16, 32, 64, 128, 256};
struct Tile {
  std::size_t m, n;  // of kEdges
};
constexpr std::array<Tile, 9> kTiles = {{{0, 2}, {1, 2}, {2, 2}, {2, 3}, {3, 2}, {3, 3}, {2, 4}, {3, 4}, {4, 3}}};
constexpr std::array<double, 8> kSlices = {1, 2, 3, 4, 6, 8, 16, 32};
constexpr double kPowerNs = 100'000;
// No product that was fitted lasts longer: a clock that has fallen for so long is taken to have come to rest.
constexpr double kLongestNs = 20e6;

// std::ceil of what is not negative, without a call.
double up(double x) {
  const double whole = static_cast<double>(static_cast<std::int64_t>(x));
  return whole + (whole < x ? 1 : 0);
}

}  // namespace

GemmParts gemm_parts(const GemmFit& fit, const GemmOnGpu& gpu, const GemmShape& shape) {
  const double m = shape.m, n = shape.n, k = shape.k, batch = shape.batch;
  const double sms = gpu.multiprocessors, per_sm = 1 / sms;
  const double flop_per_sm = gpu.peak * fit.peak_share / sms, feed = gpu.bandwidth / sms * fit.feed;
  const double element = std::max(gpu.a_bytes, gpu.b_bytes);
  std::array<double, kEdges.size()> rows, columns;
  for (std::size_t i = 0; i < kEdges.size(); ++i) {
    rows[i] = up(m / kEdges[i]);
    columns[i] = up(n / kEdges[i]);
  }
  const double written = batch * m * n * 4 / gpu.bandwidth * fit.reduce;
  double compute = 1e300;
  for (const Tile& t : kTiles) {
    const double tile_m = kEdges[t.m], tile_n = kEdges[t.n];
    const double around = tile_m + tile_n;
    const double step =
        std::max({2 * (tile_m * tile_n + fit.edge * around) / flop_per_sm, around * element / feed, fit.step_ns});
    const double tiles = rows[t.m] * columns[t.n] * batch;
    for (const double slices : kSlices) {
      if (slices > 1 && tiles * slices > 4 * sms) break;
      const double waves = tiles * slices * per_sm;
      const double rounds = fit.wave * up(waves) + (1 - fit.wave) * std::max(waves, 1.0);
      const double ns = rounds * (k / slices * step + fit.tile_ns) + (slices > 1 ? fit.split_ns + written * slices : 0);
      compute = std::min(compute, ns);
    }
  }
  const double useful = 2 * batch * m * n * k / (gpu.peak * fit.peak_share);
  compute *= std::pow(1 + std::min(useful, kLongestNs) / kPowerNs, fit.power);
  const double operands = batch * (gpu.a_bytes * m * k + gpu.b_bytes * n * k), result = batch * gpu.out_bytes * m * n;
  double memory = (operands + result) / (gpu.bandwidth * fit.memory_share);
  if (shape.warm && gpu.cache_bytes > 0 && fit.cache_part > 0) {
    const double fill = (operands + result) / (gpu.cache_bytes * fit.cache_part), fill2 = fill * fill;
    const double hit = 1 / (1 + fill2 * fill2);
    memory *= 1 - hit * (1 - 1 / std::max(fit.cache_speed, 1.0));
  }
  const double most = std::max(compute, memory), least = std::min(compute, memory);
  const double quantise =
      shape.quantise ? fit.quantise_ns + batch * m * (fit.quantise * 3 * k / gpu.bandwidth + fit.row_ns) : 0;
  return {fit.overhead_ns, compute, memory,
          fit.overhead_ns + quantise + most * std::pow(1 + std::pow(least / most, fit.p), 1 / fit.p)};
}

}  // namespace orrery
