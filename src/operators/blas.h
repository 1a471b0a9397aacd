// A BLAS of the system, opened at run time.
#pragma once
#include <memory>
#include <string>

#include "base/result.h"
#include "operators/cpu_kernels.h"

namespace orrery {

class Blas {
 public:
  // The first of the usual libraries that is there; `library`: this one. nullptr: none.
  static std::shared_ptr<Blas> find(const std::string& library = {});
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  const std::string& name() const { return name_; }
  // Whether it can be told how many threads to use; else it uses what it likes.
  bool set_threads(int threads) const;
  // c[m, n] = a[m, k] * b[k, n], all by rows without gaps.
  void gemm(int m, int n, int k, const float* a, const float* b, float* c) const;
  bool has_bf16() const { return gemm_bf16_ != nullptr; }
  void gemm_bf16(int m, int n, int k, const Bf16* a, const Bf16* b, float* c) const;  // only if has_bf16()

 private:
  Blas() = default;
  // Fortran's names and arguments: every BLAS has them.
  using Sgemm = void (*)(const char*, const char*, const int*, const int*, const int*, const float*, const float*,
                         const int*, const float*, const int*, const float*, float*, const int*);
  using Sbgemm = void (*)(const char*, const char*, const int*, const int*, const int*, const float*, const Bf16*,
                          const int*, const Bf16*, const int*, const float*, float*, const int*);
  void* handle_ = nullptr;
  std::string name_;
  Sgemm gemm_ = nullptr;
  Sbgemm gemm_bf16_ = nullptr;
  void (*set_threads_)(int) = nullptr;
  void (*set_blis_threads_)(std::int64_t) = nullptr;
};

}  // namespace orrery
