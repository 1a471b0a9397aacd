// Compiled for the CPUs that its name says (CMakeLists.txt); called on those alone.
#define ORRERY_LANES 16
#define ORRERY_ROWS 12
#define ORRERY_VECTORS 2
#define ORRERY_NAME kernels_of_sixteen_floats
#define ORRERY_TITLE "avx512"
#define ORRERY_KEEP(x) asm volatile("" : "+v"(x))
#include "operators/cpu_kernels.inc"
