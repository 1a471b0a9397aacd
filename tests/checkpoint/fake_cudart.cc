// Stands in for CUDA's runtime where there is no GPU: memory of the "device" is memory whose bytes are all inverted, so
// that a plain copy of it is seen.
#include <cstddef>
#include <cstdlib>
#include <set>

namespace {
std::set<void*>& pinned() {
  static std::set<void*> all;
  return all;
}
bool waited = false;
}  // namespace

extern "C" {
int cudaGetDeviceCount(int* count) {
  *count = std::getenv("FAKE_CUDA_NO_DEVICE") == nullptr ? 1 : 0;
  return 0;
}
int cudaHostRegister(void* data, std::size_t, unsigned) { return pinned().insert(data).second ? 0 : 1; }
int cudaHostUnregister(void* data) { return pinned().erase(data) == 1 ? 0 : 1; }
// What was launched is done only once somebody waited for it.
int cudaDeviceSynchronize() {
  waited = true;
  return 0;
}
int cudaMemcpy(void* to, const void* from, std::size_t bytes, int kind) {
  if (kind != 2) return 1;
  if (std::getenv("FAKE_CUDA_COPY_FAILS") != nullptr) return 700;
  for (std::size_t i = 0; i < bytes; ++i) {
    const auto byte = static_cast<unsigned char>(~static_cast<const unsigned char*>(from)[i]);
    static_cast<unsigned char*>(to)[i] = waited ? byte : 0;
  }
  return 0;
}
const char* cudaGetErrorString(int) { return "an illegal memory access was encountered"; }
int fake_pinned() { return static_cast<int>(pinned().size()); }
}
