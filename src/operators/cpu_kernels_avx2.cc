// Compiled for the CPUs that its name says (CMakeLists.txt); called on those alone.
#define ORRERY_LANES 8
#define ORRERY_ROWS 6
#define ORRERY_VECTORS 2
#define ORRERY_NAME kernels_of_eight_floats
#define ORRERY_TITLE "avx2"
#define ORRERY_KEEP(x) asm volatile("" : "+v"(x))
#include "operators/cpu_kernels.inc"
