// Stands in for libnvidia-ml.so.1: two GPUs, of which the first has 30 GiB in use and draws 300 W, the second 5 GiB and
// 50 W.
#include <cstdint>
#include <cstdio>

namespace {
struct Memory {
  unsigned long long total, free, used;
};
int index_of(void* device) { return static_cast<int>(reinterpret_cast<std::intptr_t>(device)) - 1; }
}  // namespace

extern "C" {
int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* n) {
  *n = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** device) {
  *device = reinterpret_cast<void*>(static_cast<std::intptr_t>(i + 1));
  return 0;
}
int nvmlDeviceGetName(void*, char* text, unsigned size) {
  std::snprintf(text, size, "A GPU");
  return 0;
}
int nvmlDeviceGetUUID(void* device, char* text, unsigned size) {
  std::snprintf(text, size, "GPU-%d", index_of(device));
  return 0;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* mw) {
  *mw = index_of(device) == 0 ? 300'000 : 50'000;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* m) {
  const unsigned long long gib = 1ull << 30;
  m->total = 80 * gib;
  m->used = (index_of(device) == 0 ? 30 : 5) * gib;
  m->free = m->total - m->used;
  return 0;
}
}
