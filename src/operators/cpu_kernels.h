// Arithmetic of the CPU operators on one thread, once for each width of vectors that a CPU may have.
#pragma once
#include <cstddef>
#include <cstdint>

namespace orrery {

using Bf16 = std::uint16_t;  // the upper half of a float

struct CpuKernels {
  const char* name;
  int tile_rows, tile_columns;  // of a block of C that stays in registers
  // c[rows, columns] += the product of two packed panels: a[k][tile_rows], b[k][tile_columns], both padded with zeros.
  // rows and columns may be less than the tile's.
  void (*gemm_tile)(std::size_t k, const float* a, const float* b, float* c, std::size_t c_stride, int rows,
                    int columns);
  // The same of bf16, two of k beside each other: a[k / 2][tile_rows][2], b[k / 2][tile_columns][2]; fp32 sums.
  // nullptr: the CPU has no instruction for it.
  void (*gemm_tile_bf16)(std::size_t pairs, const Bf16* a, const Bf16* b, float* c, std::size_t c_stride, int rows,
                         int columns);
  void (*add)(const float* a, const float* b, float* out, std::size_t n);
  void (*add_bf16)(const Bf16* a, const Bf16* b, Bf16* out, std::size_t n);
  void (*silu)(const float* x, float* out, std::size_t n);                           // x / (1 + exp(-x))
  void (*softmax)(const float* x, float* out, std::size_t n);                        // of one row
  void (*rms_norm)(const float* x, const float* weight, float* out, std::size_t n);  // of one row
  void (*adamw)(float* weight, const float* gradient, float* first, float* second, std::size_t n);
  // exp(x - most) in place; their sum. The inner step of tiled attention.
  float (*exp_sum)(float* x, float most, std::size_t n);
  float (*maximum)(const float* x, std::size_t n);
  void (*scale)(float* x, float by, std::size_t n);
  // `steps` rounds of independent multiply-adds that never leave the registers: FLOP done. The floor of a product.
  double (*peak)(std::size_t steps);
  double (*peak_bf16)(std::size_t steps);  // nullptr: none
};

// The widest that this CPU runs. `widest`: at most so many floats a vector (tests); 0 = any.
const CpuKernels& cpu_kernels(int widest = 0);

Bf16 to_bf16(float x);  // to the nearest, ties to even
float from_bf16(Bf16 x);

}  // namespace orrery
