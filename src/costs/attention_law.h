// How long fused attention takes on a GPU: forward and backward over tiles of queries (FlashAttention and its like),
// and decoding, one query a sequence, over the keys of a cache.
//
// forward, backward:  overhead + (compute^3 + memory^3)^(1/3)
//   a unit is a tile of `queries` of one head of one sequence. It visits the keys that its queries may see:
//     pairs * 2 * (head_dim + value_head_dim + softmax) * 2.5 in the backward pass / (peak_share * peak of a
//     multiprocessor) + tile softmax: what the exponentials and sums between the two products cost, as if heads were so
//     much wider wide: heads of more than 128 lose (registers)
//   rounds of units over the multiprocessors as of a matrix product; never less than the longest unit
// decoding: overhead + (units^3 + memory^3)^(1/3)
//   a unit is one key-value head of one sequence, its keys cut into slices when units alone do not fill the GPU
//     rounds * (keys / slices * step + tile) + split;  step: bytes of a key at `feed` times the multiprocessor's share
//     of memory bandwidth, at least step_ns
// Sources of the form: FlashAttention-2 and -3 (arXiv 2307.08691, 2407.08608), Flash-Decoding.
#pragma once

namespace orrery {

struct AttentionFit {
  double overhead_ns, peak_share, softmax, wide;
  double wave, tile_ns, queries, memory_share;
  double cache_part, cache_speed;
};
inline constexpr int kAttentionNumbers = 10;

struct DecodeFit {
  double overhead_ns, memory_share;
  double wave, tile_ns, split_ns, feed, step_ns;
  double cache_part, cache_speed;
  double ramp_ns, ramp_bytes;
};
inline constexpr int kDecodeNumbers = 11;

struct AttentionShape {
  double batch = 1, heads = 1, kv_heads = 1, head_dim = 128, value_head_dim = 128, queries = 1, keys = 1;
  bool causal = true;
  double element = 2;  // bytes of queries and results
  double kv_element = 2;
};

struct AttentionOnGpu {  // ns, bytes, FLOP
  double peak = 0, multiprocessors = 1, bandwidth = 0, cache_bytes = 0;
};

struct AttentionParts {
  double overhead_ns = 0, compute_ns = 0, memory_ns = 0, ns = 0;
};
// Key-query pairs that are computed, without padding, of one head of one sequence.
double attention_pairs(double queries, double keys, bool causal);
// Bytes at `share` of the memory's bandwidth, at cache_speed times that where they fit into cache_part of the cache.
double cached_ns(double bytes, double share, double cache_part, double cache_speed, const AttentionOnGpu& gpu);
AttentionParts attention_parts(const AttentionFit& fit, const AttentionOnGpu& gpu, const AttentionShape& s,
                               bool backward);
AttentionParts decode_parts(const DecodeFit& fit, const AttentionOnGpu& gpu, const AttentionShape& s, bool warm);

}  // namespace orrery
