// The way of GotoBLAS: a block of k rows of b stays in the last cache, a block of rows of a in the second, a tile of c
// in registers (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008).
#include "operators/cpu_gemm.h"

#include <algorithm>

namespace orrery {
namespace {

constexpr std::size_t kDepth = 256, kHeight = 192, kWidth = 2048;  // of blocks: k, m, n
static_assert(kHeight % 12 == 0 && kHeight % 6 == 0 && kHeight % 4 == 0);

// Panels of `tile` rows: [rows / tile][depth / pair][tile][pair], padded with zeros.
template <class T>
void pack(const T* from, std::size_t stride_row, std::size_t stride_depth, std::size_t rows, std::size_t depth,
          std::size_t tile, std::size_t pair, std::vector<T>& to) {
  const std::size_t deep = (depth + pair - 1) / pair * pair;
  to.resize(std::max(to.size(), (rows + tile - 1) / tile * tile * deep));
  T* out = to.data();
  for (std::size_t r = 0; r < rows; r += tile) {
    const std::size_t height = std::min(tile, rows - r);
    const T* base = from + r * stride_row;
    if (pair == 1 && stride_row == 1 && height == tile) {
      for (std::size_t d = 0; d < depth; ++d, out += tile) std::copy_n(base + d * stride_depth, tile, out);
      continue;
    }
    for (std::size_t d = 0; d < deep; d += pair)
      for (std::size_t i = 0; i < tile; ++i)
        for (std::size_t p = 0; p < pair; ++p)
          *out++ = i < height && d + p < depth ? base[i * stride_row + (d + p) * stride_depth] : T{};
  }
}

void call(const CpuKernels& k, std::size_t depth, const float* a, const float* b, float* c, std::size_t stride,
          int rows, int columns) {
  k.gemm_tile(depth, a, b, c, stride, rows, columns);
}
void call(const CpuKernels& k, std::size_t depth, const Bf16* a, const Bf16* b, float* c, std::size_t stride, int rows,
          int columns) {
  k.gemm_tile_bf16(depth / 2, a, b, c, stride, rows, columns);
}

template <class T>
void blocked(const CpuKernels& kernels, std::size_t m, std::size_t n, std::size_t k, MatrixView<T> a, MatrixView<T> b,
             float* c, std::size_t c_stride, bool add, std::vector<T>& packed_a, std::vector<T>& packed_b) {
  constexpr std::size_t kPair = sizeof(T) == 2 ? 2 : 1;
  const auto rows = static_cast<std::size_t>(kernels.tile_rows),
             columns = static_cast<std::size_t>(kernels.tile_columns);
  if (!add)
    for (std::size_t i = 0; i < m; ++i) std::fill_n(c + i * c_stride, n, 0.0f);
  for (std::size_t j = 0; j < n; j += kWidth) {
    const std::size_t width = std::min(kWidth, n - j);
    for (std::size_t d = 0; d < k; d += kDepth) {
      const std::size_t depth = std::min(kDepth, k - d), deep = (depth + kPair - 1) / kPair * kPair;
      pack(b.data + d * b.row_stride + j * b.column_stride, b.column_stride, b.row_stride, width, depth, columns, kPair,
           packed_b);
      for (std::size_t i = 0; i < m; i += kHeight) {
        const std::size_t height = std::min(kHeight, m - i);
        pack(a.data + i * a.row_stride + d * a.column_stride, a.row_stride, a.column_stride, height, depth, rows, kPair,
             packed_a);
        for (std::size_t jj = 0; jj < width; jj += columns)
          for (std::size_t ii = 0; ii < height; ii += rows)
            call(kernels, deep, packed_a.data() + ii * deep, packed_b.data() + jj * deep,
                 c + (i + ii) * c_stride + j + jj, c_stride, static_cast<int>(std::min(rows, height - ii)),
                 static_cast<int>(std::min(columns, width - jj)));
      }
    }
  }
}

// How many columns of blocks: as square as the threads allow.
unsigned grid_columns(unsigned threads, std::size_t m, std::size_t n) {
  unsigned best = 1;
  double least = 1e300;
  for (unsigned columns = 1; columns <= threads; ++columns) {
    if (threads % columns != 0) continue;
    const double around = static_cast<double>(m) / (threads / columns) + static_cast<double>(n) / columns;
    if (around < least) least = around, best = columns;
  }
  return best;
}

}  // namespace

void own_gemm(const CpuKernels& kernels, std::size_t m, std::size_t n, std::size_t k, MatrixView<float> a,
              MatrixView<float> b, float* c, std::size_t c_stride, bool add, GemmScratch& s) {
  blocked(kernels, m, n, k, a, b, c, c_stride, add, s.a, s.b);
}
void own_gemm(const CpuKernels& kernels, std::size_t m, std::size_t n, std::size_t k, MatrixView<Bf16> a,
              MatrixView<Bf16> b, float* c, std::size_t c_stride, bool add, GemmScratch& s) {
  blocked(kernels, m, n, k, a, b, c, c_stride, add, s.a16, s.b16);
}

template <class T>
void own_gemm_on(Team& team, const CpuKernels& kernels, std::size_t m, std::size_t n, std::size_t k, MatrixView<T> a,
                 MatrixView<T> b, float* c, std::vector<GemmScratch>& scratch) {
  const unsigned columns = grid_columns(team.size(), m, n), rows = team.size() / columns;
  scratch.resize(std::max<std::size_t>(scratch.size(), team.size()));
  team.run([&](unsigned worker) {
    const WorkShare r = share_of(m, worker / columns, rows, static_cast<std::size_t>(kernels.tile_rows));
    const WorkShare w = share_of(n, worker % columns, columns, static_cast<std::size_t>(kernels.tile_columns));
    if (r.from == r.to || w.from == w.to) return;
    MatrixView<T> left = a, right = b;
    left.data += r.from * a.row_stride, right.data += w.from * b.column_stride;
    own_gemm(kernels, r.to - r.from, w.to - w.from, k, left, right, c + r.from * n + w.from, n, false, scratch[worker]);
  });
}
template void own_gemm_on<float>(Team&, const CpuKernels&, std::size_t, std::size_t, std::size_t, MatrixView<float>,
                                 MatrixView<float>, float*, std::vector<GemmScratch>&);
template void own_gemm_on<Bf16>(Team&, const CpuKernels&, std::size_t, std::size_t, std::size_t, MatrixView<Bf16>,
                                MatrixView<Bf16>, float*, std::vector<GemmScratch>&);

}  // namespace orrery
