// Compiled for the CPUs that its name says (CMakeLists.txt); called on those alone.
#define ORRERY_LANES 4
#define ORRERY_ROWS 4
#define ORRERY_VECTORS 2
#define ORRERY_NAME kernels_of_four_floats
#define ORRERY_TITLE "plain"
#if defined(__x86_64__)
#define ORRERY_KEEP(x) asm volatile("" : "+x"(x))
#elif defined(__aarch64__)
#define ORRERY_KEEP(x) asm volatile("" : "+w"(x))
#else
#define ORRERY_KEEP(x) asm volatile("" : : "r"(&(x)) : "memory")
#endif
#include "operators/cpu_kernels.inc"
