#include "operators/blas.h"

#include <dlfcn.h>

#include <array>
#include <vector>

namespace orrery {
namespace {

// Debian's libblas.so.3 may be the reference, which is no yardstick: it is not among them.
constexpr std::array<const char*, 6> kLibraries = {"libmkl_rt.so.2", "libmkl_rt.so", "libopenblas.so.0",
                                                   "libopenblas.so", "libblis.so.4", "libblis.so"};

}  // namespace

std::shared_ptr<Blas> Blas::find(const std::string& library) {
  std::vector<std::string> names(kLibraries.begin(), kLibraries.end());
  if (!library.empty()) names = {library};
  for (const std::string& name : names) {
    void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) continue;
    const std::shared_ptr<Blas> blas(new Blas);
    blas->handle_ = handle;
    blas->name_ = name.substr(name.rfind('/') + 1);
    const auto load = [&](auto& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, symbol));
      return function != nullptr;
    };
    if (!load(blas->gemm_, "sgemm_")) continue;
    load(blas->gemm_bf16_, "sbgemm_");
    if (!load(blas->set_threads_, "openblas_set_num_threads")) load(blas->set_threads_, "MKL_Set_Num_Threads");
    load(blas->set_blis_threads_, "bli_thread_set_num_threads");
    return blas;
  }
  return nullptr;
}

// Not closed: its threads may still run its code.
Blas::~Blas() = default;

bool Blas::set_threads(int threads) const {
  if (set_threads_ != nullptr) set_threads_(threads);
  if (set_blis_threads_ != nullptr) set_blis_threads_(threads);
  return set_threads_ != nullptr || set_blis_threads_ != nullptr;
}

// By columns, as Fortran has them, the rows of c are those of its transpose: c' = b' * a'.
void Blas::gemm(int m, int n, int k, const float* a, const float* b, float* c) const {
  const float one = 1, zero = 0;
  gemm_("N", "N", &n, &m, &k, &one, b, &n, a, &k, &zero, c, &n);
}
void Blas::gemm_bf16(int m, int n, int k, const Bf16* a, const Bf16* b, float* c) const {
  const float one = 1, zero = 0;
  gemm_bf16_("N", "N", &n, &m, &k, &one, b, &n, a, &k, &zero, c, &n);
}

}  // namespace orrery
