// NVIDIA's and AMD's libraries, opened at run time: one table of functions for both, whose names and constants alone
// differ. Nothing here is linked with, so that the same binary measures whatever it finds.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "costs/operators.h"

namespace orrery {

enum class GpuVendor : std::uint8_t { nvidia, amd };

// What a matrix product is called with; both vendors' BLAS count columns first, as Fortran does.
struct GpuGemm {
  int m = 1, n = 1, k = 1, batch = 1;  // of the column-major product
  bool transpose_a = false;
  const void *a = nullptr, *b = nullptr;
  void* c = nullptr;
  int lda = 1, ldb = 1, ldc = 1;
  long long stride_a = 0, stride_b = 0, stride_c = 0;
  Precision precision = Precision::fp32;
  bool wide_result = false;  // c in fp32 whatever the operands are
};

class GpuApi {
 public:
  // The vendor's runtime, BLAS, and where they are found its collectives and its run-time compiler. `library`: one file
  // that has all of them (a stand-in); "": the usual names. Errors: no library, no device.
  static Result<std::shared_ptr<GpuApi>> open(GpuVendor vendor, const std::string& library);
  ~GpuApi();
  GpuApi(const GpuApi&) = delete;
  GpuApi& operator=(const GpuApi&) = delete;

  GpuVendor vendor() const { return vendor_; }
  int devices() const { return devices_; }
  std::string device_name() const { return name_; }
  int multiprocessors() const { return multiprocessors_; }  // 0 = not known
  double memory_gib() const { return memory_gib_; }
  bool has_blas() const { return blas_ != nullptr; }
  bool has_collectives() const { return collectives_; }
  bool has_kernels() const { return module_ != nullptr; }
  const std::string& blas_name() const { return blas_name_; }
  const std::string& collectives_name() const { return collectives_name_; }

  // ---- memory and time; false or null: the library refuses, error() says what ----
  bool use(int device) const;
  void* allocate(std::size_t bytes) const;
  void release(void* data) const;
  void* allocate_host(std::size_t bytes) const;  // pinned
  void release_host(void* data) const;
  bool to_device(void* to, const void* from, std::size_t bytes) const;
  bool to_host(void* to, const void* from, std::size_t bytes) const;
  bool copy(void* to, const void* from, std::size_t bytes) const;  // on the device, in its queue
  bool wait() const;                                               // for all that was asked of the device
  bool mark(bool end) const;                                       // an event in the queue
  double between_marks_ns() const;                                 // waits for the end; 0 = refused
  std::string error() const;

  // ---- work ----
  bool supports(Precision p) const;  // of products
  bool gemm(const GpuGemm& g) const;
  enum class Kernel : std::uint8_t { empty, add_fp32, add_bf16, softmax_fp32, softmax_bf16 };
  bool launch(Kernel k, unsigned blocks, unsigned threads, void** arguments) const;

  // ---- collectives among the first `count` devices, in this process ----
  bool join(int count);
  enum class Collective : std::uint8_t { all_reduce, all_gather, reduce_scatter, all_to_all };
  // Each device's buffers; `each`: elements (fp32) of a rank's part, of an all-reduce all of them.
  bool exchange(Collective c, const std::vector<float*>& in, const std::vector<float*>& out, std::size_t each) const;

 private:
  GpuApi() = default;
  Status load(const std::string& library);
  bool good(int code, const char* what) const;

  GpuVendor vendor_ = GpuVendor::nvidia;
  std::vector<void*> handles_;
  int devices_ = 0, multiprocessors_ = 0;
  double memory_gib_ = 0;
  std::string name_, blas_name_, collectives_name_;
  mutable std::string error_;

  // The runtime.
  int (*device_count_)(int*) = nullptr;
  int (*set_device_)(int) = nullptr;
  int (*malloc_)(void**, std::size_t) = nullptr;
  int (*free_)(void*) = nullptr;
  int (*host_alloc_)(void**, std::size_t, unsigned) = nullptr;
  int (*free_host_)(void*) = nullptr;
  int (*memcpy_)(void*, const void*, std::size_t, int) = nullptr;
  int (*memcpy_async_)(void*, const void*, std::size_t, int, void*) = nullptr;
  int (*synchronize_)() = nullptr;
  int (*event_create_)(void**) = nullptr;
  int (*event_destroy_)(void*) = nullptr;
  int (*event_record_)(void*, void*) = nullptr;
  int (*event_synchronize_)(void*) = nullptr;
  int (*event_elapsed_)(float*, void*, void*) = nullptr;
  const char* (*error_string_)(int) = nullptr;
  int (*properties_)(void*, int) = nullptr;
  int (*memory_info_)(std::size_t*, std::size_t*) = nullptr;
  int (*attribute_)(int*, int, int) = nullptr;
  void* marks_[2] = {nullptr, nullptr};
  // BLAS.
  void* blas_ = nullptr;  // handle
  int (*blas_create_)(void**) = nullptr;
  int (*blas_destroy_)(void*) = nullptr;
  void* gemm_ = nullptr;  // cublasGemmStridedBatchedEx, rocblas_gemm_strided_batched_ex
  int (*math_mode_)(void*, int) = nullptr;
  // Kernels compiled here.
  void* module_ = nullptr;
  void* functions_[5] = {};
  int (*launch_)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                 void**) = nullptr;
  int (*module_unload_)(void*) = nullptr;
  // Collectives.
  bool collectives_ = false;
  std::vector<void*> communicators_;
  int (*comm_init_all_)(void**, int, const int*) = nullptr;
  int (*comm_destroy_)(void*) = nullptr;
  int (*group_start_)() = nullptr;
  int (*group_end_)() = nullptr;
  int (*all_reduce_)(const void*, void*, std::size_t, int, int, void*, void*) = nullptr;
  int (*all_gather_)(const void*, void*, std::size_t, int, void*, void*) = nullptr;
  int (*reduce_scatter_)(const void*, void*, std::size_t, int, int, void*, void*) = nullptr;
  int (*send_)(const void*, std::size_t, int, int, void*, void*) = nullptr;
  int (*receive_)(void*, std::size_t, int, int, void*, void*) = nullptr;
};

}  // namespace orrery
