// How long a matrix product takes on a GPU: tiles in waves over the multiprocessors, against its memory's bandwidth.
//
//   time = overhead + (compute^p + memory^p)^(1/p)
//   compute = the quickest of a few kernels. A kernel is a tile of the output and the number of slices that k is cut
//     into; a multiprocessor works off its tiles one after the other:
//       tiles = ceil(m / tile_m) * ceil(n / tile_n) * batch * slices;   rounds = wave * ceil(tiles / multiprocessors) +
//       (1 - wave) * max(tiles / multiprocessors, 1)
//       rounds * (k / slices * step + tile) + what adding the slices costs
//     step, for one k of a tile: the most of its products at `peak_share` of the multiprocessor's peak (tiles with a
//     short edge lose: `edge`), its operands at `feed` times the multiprocessor's share of memory bandwidth, and `step`
//     Compute that lasts long slows down by (1 + ms * 10)^power, up to 20 ms: the clock falls.
//   memory = operands once, result once, at `memory_share` of the bandwidth; operands that the second-level cache still
//     holds (micro-benchmarks that repeat one product) at `cache_speed` of it
//   quantised operands: a kernel of its own brings activations to their few bits: quantise_ns, quantise * 3 bytes of
//     each at memory bandwidth, and row_ns for each row
// The form is that of LLMCompass' and NeuSight's tiles and waves (arXiv 2312.03134, 2407.13853) with the choice of
// kernel that cuBLAS makes reduced to the quickest of a list. Every kernel's time grows with m, n and k, and so does
// the least of them.
#pragma once

namespace orrery {

struct GemmFit {
  double overhead_ns, peak_share, memory_share;
  double edge;  // elements lost at each edge of a tile
  double wave, tile_ns, p;
  double power;
  double split_ns, reduce;  // adding slices: once, and times of writing them at memory bandwidth
  double feed, step_ns;
  double cache_part, cache_speed;
  double quantise_ns, quantise, row_ns;
};
inline constexpr int kGemmNumbers = 17;

struct GemmOnGpu {  // what does not depend on the shape; ns, bytes, FLOP
  double peak = 0;  // FLOP a ns, all multiprocessors
  double multiprocessors = 1;
  double bandwidth = 0;  // bytes a ns
  double cache_bytes = 0;
  double a_bytes = 2, b_bytes = 2, out_bytes = 2;  // of an element
};

struct GemmParts {
  double overhead_ns = 0, compute_ns = 0, memory_ns = 0, ns = 0;
};
struct GemmShape {
  double m = 1, n = 1, k = 1, batch = 1;
  bool warm = false, quantise = false;
};
GemmParts gemm_parts(const GemmFit& fit, const GemmOnGpu& gpu, const GemmShape& shape);

}  // namespace orrery
