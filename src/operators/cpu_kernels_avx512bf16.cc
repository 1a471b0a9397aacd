// Compiled for the CPUs that its name says (CMakeLists.txt); called on those alone.
#if defined(__clang__) && __clang_major__ < 18
// These clangs crash on the products of pairs: such a build has the kernels without them.
#include "operators/cpu_kernels.h"

namespace orrery {
const CpuKernels& kernels_of_sixteen_floats();
const CpuKernels& kernels_of_sixteen_floats_bf16() { return kernels_of_sixteen_floats(); }
}  // namespace orrery
#else
#define ORRERY_LANES 16
#define ORRERY_ROWS 12
#define ORRERY_VECTORS 2
#define ORRERY_NAME kernels_of_sixteen_floats_bf16
#define ORRERY_TITLE "avx512bf16"
#define ORRERY_BF16_DOT
#define ORRERY_KEEP(x) asm volatile("" : "+v"(x))
#include "operators/cpu_kernels.inc"
#endif
