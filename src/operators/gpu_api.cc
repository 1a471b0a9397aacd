#include "operators/gpu_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>

namespace orrery {
namespace {

// Names of what both vendors have. Runtimes: CUDA's and HIP's differ in their prefix alone, HIP's types are CUDA's.
struct Names {
  std::vector<const char*> runtime, blas, collectives, compiler, driver;
  const char* prefix;  // of the runtime
  const char* rtc;     // of the compiler
  const char* code;    // what it yields
};
const Names kNvidia = {{"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"},
                       {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so"},
                       {"libnccl.so.2", "libnccl.so"},
                       {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"},
                       {"libcuda.so.1", "libcuda.so"},
                       "cuda",
                       "nvrtc",
                       "PTX"};
// rocBLAS, which hipBLAS is a thin layer over: its functions have been the same for years, hipBLAS' types have not.
const Names kAmd = {{"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"},
                    {"librocblas.so.5", "librocblas.so.4", "librocblas.so.3", "librocblas.so"},
                    {"librccl.so.1", "librccl.so"},
                    {"libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "libhiprtc.so", "libamdhip64.so"},
                    {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"},
                    "hip",
                    "hiprtc",
                    "Code"};

constexpr int kHostToDevice = 1, kDeviceToHost = 2, kOnDevice = 3;  // cudaMemcpyKind, hipMemcpyKind
constexpr int kFloat = 7, kSum = 0;                                 // ncclFloat32, ncclSum
constexpr int kMultiprocessors = 16;                                // cudaDevAttrMultiProcessorCount

// One row a block; numbers of two bytes are the upper halves of floats.
constexpr const char* kSource = R"(
typedef unsigned short half_float;
__device__ float wide(float x) { return x; }
__device__ float wide(half_float x) { return __uint_as_float((unsigned)x << 16); }
__device__ void narrow(float* to, float x) { *to = x; }
__device__ void narrow(half_float* to, float x) {
  unsigned u = __float_as_uint(x);
  *to = (half_float)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
template <class T>
__device__ void add(const T* a, const T* b, T* out, unsigned long long n) {
  unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
  for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
    narrow(out + i, wide(a[i]) + wide(b[i]));
}
__device__ float over_block(float x, bool sum) {
  __shared__ float all[1024];
  all[threadIdx.x] = x;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      float other = all[threadIdx.x + half];
      all[threadIdx.x] = sum ? all[threadIdx.x] + other : fmaxf(all[threadIdx.x], other);
    }
    __syncthreads();
  }
  float result = all[0];
  __syncthreads();
  return result;
}
template <class T>
__device__ void softmax(const T* x, T* out, unsigned long long width, float scale) {
  x += blockIdx.x * width, out += blockIdx.x * width;
  float most = -3e38f, sum = 0;
  for (unsigned long long i = threadIdx.x; i < width; i += blockDim.x) most = fmaxf(most, scale * wide(x[i]));
  most = over_block(most, false);
  for (unsigned long long i = threadIdx.x; i < width; i += blockDim.x) sum += __expf(scale * wide(x[i]) - most);
  sum = over_block(sum, true);
  for (unsigned long long i = threadIdx.x; i < width; i += blockDim.x)
    narrow(out + i, __expf(scale * wide(x[i]) - most) / sum);
}
extern "C" {
__global__ void orrery_empty() {}
__global__ void orrery_add_fp32(const float* a, const float* b, float* out, unsigned long long n) { add(a, b, out, n); }
__global__ void orrery_add_bf16(const half_float* a, const half_float* b, half_float* out, unsigned long long n) {
  add(a, b, out, n);
}
__global__ void orrery_softmax_fp32(const float* x, float* out, unsigned long long width, float scale) {
  softmax(x, out, width, scale);
}
__global__ void orrery_softmax_bf16(const half_float* x, half_float* out, unsigned long long width, float scale) {
  softmax(x, out, width, scale);
}
}
)";
constexpr const char* kKernels[] = {"orrery_empty", "orrery_add_fp32", "orrery_add_bf16", "orrery_softmax_fp32",
                                    "orrery_softmax_bf16"};

struct Opened {
  void* handle = nullptr;
  std::string name;
};
Opened first_of(const std::vector<const char*>& names, const std::string& instead) {
  if (!instead.empty())
    return {::dlopen(instead.c_str(), RTLD_NOW | RTLD_LOCAL), instead.substr(instead.rfind('/') + 1)};
  for (const char* name : names)
    if (void* handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL); handle != nullptr) return {handle, name};
  return {};
}

template <class F>
bool find(void* library, F& function, const std::string& symbol) {
  if (library == nullptr) return false;
  function = reinterpret_cast<F>(::dlsym(library, symbol.c_str()));
  return function != nullptr;
}

// As cublasGemmStridedBatchedEx takes them (cuBLAS 11 and later), and rocblas_gemm_strided_batched_ex.
using CublasGemm = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int, long long, const void*,
                           int, int, long long, const void*, void*, int, int, long long, int, int, int);
using RocblasGemm = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int, long long, const void*,
                            int, int, long long, const void*, const void*, int, int, long long, void*, int, int,
                            long long, int, int, int, std::int32_t, std::uint32_t);

struct TypeOf {
  int cuda, rocblas;
};
TypeOf type_of(Precision p) {
  switch (p) {
    case Precision::fp16:
      return {2, 150};
    case Precision::bf16:
      return {14, 168};
    default:
      return {0, 151};
  }
}

}  // namespace

bool GpuApi::good(int code, const char* what) const {
  if (code == 0) return true;
  const char* text = error_string_ != nullptr ? error_string_(code) : nullptr;
  error_ = fmt::format("{}: {} ({})", what, text != nullptr ? text : "error", code);
  return false;
}
std::string GpuApi::error() const { return error_.empty() ? "refused" : error_; }

Result<std::shared_ptr<GpuApi>> GpuApi::open(GpuVendor vendor, const std::string& library) {
  const std::shared_ptr<GpuApi> api(new GpuApi);
  api->vendor_ = vendor;
  if (const Status ok = api->load(library); !ok) return tl::unexpected(ok.error());
  return api;
}

Status GpuApi::load(const std::string& library) {
  const bool amd = vendor_ == GpuVendor::amd;
  const Names& names = amd ? kAmd : kNvidia;
  const std::string where = amd ? "--device rocm" : "--device cuda";
  const Opened runtime = first_of(names.runtime, library);
  if (runtime.handle == nullptr)
    return fail(
        library.empty() ? fmt::format("no library {} here", names.runtime.back()) : "cannot be opened: " + library,
        where, "the GPU's runtime must be where the linker looks (LD_LIBRARY_PATH)");
  const std::string p = names.prefix;
  void* const r = runtime.handle;
  const bool whole = find(r, device_count_, p + "GetDeviceCount") && find(r, set_device_, p + "SetDevice") &&
                     find(r, malloc_, p + "Malloc") && find(r, free_, p + "Free") && find(r, memcpy_, p + "Memcpy") &&
                     find(r, memcpy_async_, p + "MemcpyAsync") && find(r, synchronize_, p + "DeviceSynchronize") &&
                     find(r, event_create_, p + "EventCreate") && find(r, event_destroy_, p + "EventDestroy") &&
                     find(r, event_record_, p + "EventRecord") && find(r, event_synchronize_, p + "EventSynchronize") &&
                     find(r, event_elapsed_, p + "EventElapsedTime") && find(r, error_string_, p + "GetErrorString") &&
                     find(r, memory_info_, p + "MemGetInfo") &&
                     find(r, host_alloc_, amd ? "hipHostMalloc" : "cudaHostAlloc") &&
                     find(r, free_host_, amd ? "hipHostFree" : "cudaFreeHost");
  if (!whole) return fail("lacks functions of the runtime: " + runtime.name, where);
  if (!good(device_count_(&devices_), "counting devices") || devices_ < 1)
    return fail(devices_ < 1 && error_.empty() ? "no GPU here" : error(), where);
  std::size_t free_bytes = 0, bytes = 0;
  if (!use(0) || !good(memory_info_(&free_bytes, &bytes), "memory")) return fail(error(), where);
  memory_gib_ = static_cast<double>(bytes) / (1 << 30);
  // The name is the first field of the properties, 256 characters, in every version; what follows differs.
  std::vector<char> properties(std::size_t{16} << 10, '\0');
  const bool asked = find(r, properties_, p + "GetDeviceProperties_v2") ||
                     find(r, properties_, p + "GetDevicePropertiesR0600") ||
                     find(r, properties_, p + "GetDeviceProperties");
  if (asked && properties_(properties.data(), 0) == 0) {
    properties[255] = '\0';
    name_ = properties.data();
  }
  if (!amd && find(r, attribute_, "cudaDeviceGetAttribute")) (void)attribute_(&multiprocessors_, kMultiprocessors, 0);
  for (void*& m : marks_)
    if (!good(event_create_(&m), "an event")) return fail(error(), where);

  const Opened blas = first_of(names.blas, library);
  if (find(blas.handle, blas_create_, amd ? "rocblas_create_handle" : "cublasCreate_v2") &&
      find(blas.handle, gemm_, amd ? "rocblas_gemm_strided_batched_ex" : "cublasGemmStridedBatchedEx") &&
      find(blas.handle, blas_destroy_, amd ? "rocblas_destroy_handle" : "cublasDestroy_v2")) {
    (void)find(blas.handle, math_mode_, "cublasSetMathMode");
    if (!good(blas_create_(&blas_), "a handle of BLAS")) blas_ = nullptr;
    blas_name_ = blas.name;
  }
  const Opened nccl = first_of(names.collectives, library);
  collectives_ = find(nccl.handle, comm_init_all_, "ncclCommInitAll") &&
                 find(nccl.handle, comm_destroy_, "ncclCommDestroy") &&
                 find(nccl.handle, group_start_, "ncclGroupStart") && find(nccl.handle, group_end_, "ncclGroupEnd") &&
                 find(nccl.handle, all_reduce_, "ncclAllReduce") && find(nccl.handle, all_gather_, "ncclAllGather") &&
                 find(nccl.handle, reduce_scatter_, "ncclReduceScatter") && find(nccl.handle, send_, "ncclSend") &&
                 find(nccl.handle, receive_, "ncclRecv");
  collectives_name_ = nccl.name;

  const Opened compiler = first_of(names.compiler, library), driver = first_of(names.driver, library);
  const std::string c = names.rtc;
  int (*create)(void**, const char*, const char*, int, const char* const*, const char* const*) = nullptr;
  int (*compile)(void*, int, const char* const*) = nullptr;
  int (*size_of)(void*, std::size_t*) = nullptr;
  int (*code_of)(void*, char*) = nullptr;
  int (*destroy)(void**) = nullptr;
  int (*module_load)(void**, const void*) = nullptr;
  int (*function_of)(void**, void*, const char*) = nullptr;
  const std::string m = amd ? "hipModule" : "cuModule";
  const bool compiles =
      find(compiler.handle, create, c + "CreateProgram") && find(compiler.handle, compile, c + "CompileProgram") &&
      find(compiler.handle, size_of, c + "Get" + names.code + "Size") &&
      find(compiler.handle, code_of, c + "Get" + names.code) && find(compiler.handle, destroy, c + "DestroyProgram") &&
      find(driver.handle, module_load, m + "LoadData") && find(driver.handle, function_of, m + "GetFunction") &&
      find(driver.handle, module_unload_, m + "Unload") &&
      find(driver.handle, launch_, amd ? "hipModuleLaunchKernel" : "cuLaunchKernel");
  if (!compiles) return {};
  void* program = nullptr;
  std::size_t size = 0;
  if (create(&program, kSource, "orrery.cu", 0, nullptr, nullptr) != 0) return {};
  std::string code;
  if (compile(program, 0, nullptr) == 0 && size_of(program, &size) == 0) {
    code.resize(size);
    if (code_of(program, code.data()) != 0) code.clear();
  }
  destroy(&program);
  if (code.empty() || module_load(&module_, code.data()) != 0) {
    module_ = nullptr;
    return {};
  }
  for (std::size_t k = 0; k < std::size(kKernels); ++k)
    if (function_of(&functions_[k], module_, kKernels[k]) != 0) {
      module_unload_(module_);
      module_ = nullptr;
      return {};
    }
  return {};
}

GpuApi::~GpuApi() {
  for (void* c : communicators_) comm_destroy_(c);
  if (module_ != nullptr) module_unload_(module_);
  if (blas_ != nullptr) blas_destroy_(blas_);
  for (void* m : marks_)
    if (m != nullptr) event_destroy_(m);
  // The libraries stay open: their own threads and exit handlers may still run.
}

bool GpuApi::use(int device) const { return good(set_device_(device), "choosing a device"); }
void* GpuApi::allocate(std::size_t bytes) const {
  void* data = nullptr;
  return good(malloc_(&data, bytes), "memory of the device") ? data : nullptr;
}
void GpuApi::release(void* data) const {
  if (data != nullptr) (void)free_(data);
}
void* GpuApi::allocate_host(std::size_t bytes) const {
  void* data = nullptr;
  return good(host_alloc_(&data, bytes, 0), "pinned memory") ? data : nullptr;
}
void GpuApi::release_host(void* data) const {
  if (data != nullptr) (void)free_host_(data);
}
bool GpuApi::to_device(void* to, const void* from, std::size_t bytes) const {
  return good(memcpy_(to, from, bytes, kHostToDevice), "a copy to the device");
}
bool GpuApi::to_host(void* to, const void* from, std::size_t bytes) const {
  return good(memcpy_(to, from, bytes, kDeviceToHost), "a copy from the device");
}
bool GpuApi::copy(void* to, const void* from, std::size_t bytes) const {
  return good(memcpy_async_(to, from, bytes, kOnDevice, nullptr), "a copy on the device");
}
bool GpuApi::wait() const { return good(synchronize_(), "waiting for the device"); }
bool GpuApi::mark(bool end) const { return good(event_record_(marks_[end ? 1 : 0], nullptr), "an event"); }
double GpuApi::between_marks_ns() const {
  float ms = 0;
  if (!good(event_synchronize_(marks_[1]), "waiting for the device")) return 0;
  if (!good(event_elapsed_(&ms, marks_[0], marks_[1]), "the time between events")) return 0;
  return std::max(1.0, 1e6 * static_cast<double>(ms));  // shorter than its clock is no refusal
}

bool GpuApi::supports(Precision p) const {
  return p == Precision::fp32 || p == Precision::fp16 || p == Precision::bf16 ||
         (p == Precision::tf32 && vendor_ == GpuVendor::nvidia && math_mode_ != nullptr);
}

bool GpuApi::gemm(const GpuGemm& g) const {
  const float one = 1, zero = 0;
  const TypeOf type = type_of(g.precision);
  if (vendor_ == GpuVendor::nvidia) {
    constexpr int kComputeFp32 = 68, kComputeTf32 = 77, kDefault = -1;
    const int compute = g.precision == Precision::tf32 ? kComputeTf32 : kComputeFp32;
    const int code = reinterpret_cast<CublasGemm>(gemm_)(
        blas_, g.transpose_a ? 1 : 0, 0, g.m, g.n, g.k, &one, g.a, type.cuda, g.lda, g.stride_a, g.b, type.cuda, g.ldb,
        g.stride_b, &zero, g.c, g.wide_result ? 0 : type.cuda, g.ldc, g.stride_c, g.batch, compute, kDefault);
    return good(code, "cublasGemmStridedBatchedEx");
  }
  constexpr int kNone = 111, kTransposed = 112, kFp32 = 151, kStandard = 0;
  const int out = g.wide_result ? kFp32 : type.rocblas;
  const int code = reinterpret_cast<RocblasGemm>(gemm_)(
      blas_, g.transpose_a ? kTransposed : kNone, kNone, g.m, g.n, g.k, &one, g.a, type.rocblas, g.lda, g.stride_a, g.b,
      type.rocblas, g.ldb, g.stride_b, &zero, g.c, out, g.ldc, g.stride_c, g.c, out, g.ldc, g.stride_c, g.batch, kFp32,
      kStandard, 0, 0);
  return good(code, "rocblas_gemm_strided_batched_ex");
}

bool GpuApi::launch(Kernel k, unsigned blocks, unsigned threads, void** arguments) const {
  return good(
      launch_(functions_[static_cast<std::size_t>(k)], blocks, 1, 1, threads, 1, 1, 0, nullptr, arguments, nullptr),
      "a launch");
}

bool GpuApi::join(int count) {
  if (!collectives_ || count > devices_) return false;
  if (static_cast<int>(communicators_.size()) == count) return true;
  for (void* c : communicators_) comm_destroy_(c);
  communicators_.assign(static_cast<std::size_t>(count), nullptr);
  if (good(comm_init_all_(communicators_.data(), count, nullptr), "ncclCommInitAll")) return true;
  communicators_.clear();
  return false;
}

bool GpuApi::exchange(Collective c, const std::vector<float*>& in, const std::vector<float*>& out,
                      std::size_t each) const {
  if (!good(group_start_(), "ncclGroupStart")) return false;
  bool ok = true;
  for (std::size_t d = 0; d < communicators_.size() && ok; ++d) {
    void* const comm = communicators_[d];
    ok = use(static_cast<int>(d));
    int code = 0;
    switch (c) {
      case Collective::all_reduce:
        code = all_reduce_(in[d], out[d], each, kFloat, kSum, comm, nullptr);
        break;
      case Collective::all_gather:
        code = all_gather_(in[d], out[d], each, kFloat, comm, nullptr);
        break;
      case Collective::reduce_scatter:
        code = reduce_scatter_(in[d], out[d], each, kFloat, kSum, comm, nullptr);
        break;
      case Collective::all_to_all:
        for (std::size_t peer = 0; peer < communicators_.size() && code == 0; ++peer) {
          code = send_(in[d] + peer * each, each, kFloat, static_cast<int>(peer), comm, nullptr);
          if (code == 0) code = receive_(out[d] + peer * each, each, kFloat, static_cast<int>(peer), comm, nullptr);
        }
        break;
    }
    ok = ok && good(code, "a collective");
  }
  return good(group_end_(), "ncclGroupEnd") && ok && use(0);
}

}  // namespace orrery
