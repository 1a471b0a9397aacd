#include "operators/cpu_kernels.h"

#include <bit>

namespace orrery {

const CpuKernels& kernels_of_four_floats();
#if defined(__x86_64__)
const CpuKernels& kernels_of_eight_floats();
const CpuKernels& kernels_of_sixteen_floats();
const CpuKernels& kernels_of_sixteen_floats_bf16();
#endif

const CpuKernels& cpu_kernels(int widest) {
#if defined(__x86_64__)
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if ((widest == 0 || widest >= 16) && wide)
    return __builtin_cpu_supports("avx512bf16") ? kernels_of_sixteen_floats_bf16() : kernels_of_sixteen_floats();
  if ((widest == 0 || widest >= 8) && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return kernels_of_eight_floats();
#endif
  (void)widest;
  return kernels_of_four_floats();
}

Bf16 to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<Bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
float from_bf16(Bf16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16); }

}  // namespace orrery
