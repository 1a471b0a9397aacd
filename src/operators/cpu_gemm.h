// Matrix products by our own kernels: where no BLAS is found, and within attention.
#pragma once
#include <cstddef>
#include <vector>

#include "operators/cpu_kernels.h"
#include "operators/team.h"

namespace orrery {

template <class T>
struct MatrixView {  // element (row, column) = data[row * row_stride + column * column_stride]
  const T* data;
  std::size_t row_stride, column_stride;
};

// Packed panels of one thread, kept from call to call.
struct GemmScratch {
  std::vector<float> a, b;
  std::vector<Bf16> a16, b16;
};

// c[m, n] = a[m, k] * b[k, n] on this thread; rows of c are c_stride apart. `add`: c += instead. bf16: sums in fp32.
// Precondition for bf16: the kernels have a tile for it.
void own_gemm(const CpuKernels& kernels, std::size_t m, std::size_t n, std::size_t k, MatrixView<float> a,
              MatrixView<float> b, float* c, std::size_t c_stride, bool add, GemmScratch& scratch);
void own_gemm(const CpuKernels& kernels, std::size_t m, std::size_t n, std::size_t k, MatrixView<Bf16> a,
              MatrixView<Bf16> b, float* c, std::size_t c_stride, bool add, GemmScratch& scratch);

// The same on a team: c in a grid of blocks, one a thread. `scratch`: one a thread.
template <class T>
void own_gemm_on(Team& team, const CpuKernels& kernels, std::size_t m, std::size_t n, std::size_t k, MatrixView<T> a,
                 MatrixView<T> b, float* c, std::vector<GemmScratch>& scratch);

}  // namespace orrery
