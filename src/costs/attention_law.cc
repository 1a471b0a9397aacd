#include "costs/attention_law.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace orrery {
namespace {

double norm3(double a, double b) {
  const double most = std::max(a, b), r = std::min(a, b) / most;
  return most > 0 ? most * std::cbrt(1 + r * r * r) : 0;
}

}  // namespace

double attention_pairs(double queries, double keys, bool causal) {
  if (!causal || queries <= 1) return queries * keys;
  // query i of the last `queries` of `keys` sees keys - queries + i + 1
  const double seen = std::min(queries, keys);
  return seen * (keys - seen) + seen * (seen + 1) / 2;
}

double cached_ns(double bytes, double share, double cache_part, double cache_speed, const AttentionOnGpu& gpu) {
  const double memory = bytes / (gpu.bandwidth * share);
  if (gpu.cache_bytes <= 0 || cache_part <= 0) return memory;
  const double fill = bytes / (gpu.cache_bytes * cache_part), fill2 = fill * fill;
  return memory * (1 - (1 - 1 / std::max(cache_speed, 1.0)) / (1 + fill2 * fill2));
}

AttentionParts attention_parts(const AttentionFit& fit, const AttentionOnGpu& gpu, const AttentionShape& s,
                               bool backward) {
  const double sms = gpu.multiprocessors;
  const double lost = 1 + fit.wide * std::max(0.0, s.head_dim - 128) / 128;
  const double per_pair = 2 * (s.head_dim + s.value_head_dim + fit.softmax) * (backward ? 2.5 : 1) * lost /
                          (gpu.peak * fit.peak_share / sms);
  // tiles are padded: queries to the tile's, keys by half a tile of 64 at the diagonal
  const double tiles = std::ceil(s.queries / fit.queries), padded = tiles * fit.queries;
  const double full = padded * s.keys;
  const double pairs =
      s.causal && s.queries > 1
          ? std::min(full, attention_pairs(s.queries, s.keys, true) * padded / s.queries + padded * fit.queries / 2)
          : full;
  const double units = s.batch * s.heads * tiles, mean = pairs / tiles * per_pair + fit.tile_ns;
  const double waves = units / sms;
  const double rounds = fit.wave * std::ceil(waves) + (1 - fit.wave) * std::max(waves, 1.0);
  const double longest = fit.queries * s.keys * per_pair + fit.tile_ns;
  const double compute = std::max(rounds * mean, longest);
  const double q = s.batch * s.heads * s.queries * s.element, kv = s.batch * s.kv_heads * s.keys * s.kv_element;
  const double bytes = (q + kv) * (s.head_dim + s.value_head_dim) * (backward ? 2.5 : 1);
  const double memory = cached_ns(bytes, fit.memory_share, fit.cache_part, fit.cache_speed, gpu);
  return {fit.overhead_ns, compute, memory, fit.overhead_ns + norm3(compute, memory)};
}

AttentionParts decode_parts(const DecodeFit& fit, const AttentionOnGpu& gpu, const AttentionShape& s, bool warm) {
  constexpr std::array<double, 9> kSlices = {1, 2, 4, 8, 16, 32, 64, 128, 256};
  const double sms = gpu.multiprocessors, key_bytes = (s.head_dim + s.value_head_dim) * s.kv_element;
  const double step = std::max(key_bytes / (gpu.bandwidth / sms * fit.feed), fit.step_ns);
  const double units = s.batch * s.kv_heads;
  double compute = 1e300;
  for (const double slices : kSlices) {
    if (slices > 1 && (units * slices > 4 * sms || s.keys < 32 * slices)) break;
    const double waves = units * slices / sms;
    const double rounds = fit.wave * std::ceil(waves) + (1 - fit.wave) * std::max(waves, 1.0);
    compute = std::min(compute, rounds * (s.keys / slices * step + fit.tile_ns) + (slices > 1 ? fit.split_ns : 0));
  }
  const double bytes =
      units * s.keys * key_bytes + s.batch * s.heads * s.queries * (s.head_dim + s.value_head_dim) * s.element;
  const double memory = cached_ns(bytes, fit.memory_share, warm ? fit.cache_part : 0, fit.cache_speed, gpu) +
                        fit.ramp_ns * bytes / (bytes + fit.ramp_bytes);
  return {fit.overhead_ns, compute, memory, fit.overhead_ns + norm3(compute, memory)};
}

}  // namespace orrery
