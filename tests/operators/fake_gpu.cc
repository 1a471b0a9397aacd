// Stands in for CUDA and HIP, cuBLAS and rocBLAS, NCCL, NVRTC and the driver where there is no GPU. Memory of the
// "device" is the host's, with every pointer known: a host pointer where one of the device belongs is an error, as is
// one of another device. Work is done in order when it is asked for. FAKE_GPU says what goes wrong: no-device,
// no-memory, wrong (products), no-compiler, dies (the third product).
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {

constexpr int kDevices = 4;
int current = 0;
std::map<const char*, std::pair<std::size_t, int>> blocks;  // begin -> bytes, device (-1: pinned host memory)

bool told(const char* what) {
  const char* all = std::getenv("FAKE_GPU");
  return all != nullptr && std::string(all).find(what) != std::string::npos;
}
// The device that has all of [data, data + bytes); -2: none.
int device_of(const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  auto it = blocks.upper_bound(at);
  if (it == blocks.begin()) return -2;
  --it;
  return at + bytes <= it->first + it->second.first ? it->second.second : -2;
}
bool here(const void* data, std::size_t bytes) { return device_of(data, bytes) == current; }

float wide(std::uint16_t h, int type) {
  if (type == 14) {
    const std::uint32_t bits = static_cast<std::uint32_t>(h) << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
  }
  const int exponent = (h >> 10) & 31;
  const double value =
      exponent == 0 ? std::ldexp((h & 1023) / 1024.0, -14) : std::ldexp(1 + (h & 1023) / 1024.0, exponent - 15);
  return static_cast<float>((h & 0x8000) != 0 ? -value : value);
}
std::uint16_t bf16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
float at(const void* data, std::size_t i, int type) {
  return type == 0 ? static_cast<const float*>(data)[i] : wide(static_cast<const std::uint16_t*>(data)[i], type);
}
void put(void* data, std::size_t i, int type, float x) {
  if (type == 0)
    static_cast<float*>(data)[i] = x;
  else
    static_cast<std::uint16_t*>(data)[i] = bf16(x);
}

int product(bool transposed, int m, int n, int k, const void* a, int a_type, int lda, long long sa, const void* b,
            int b_type, int ldb, long long sb, void* c, int c_type, int ldc, long long sc, int batch) {
  static int products = 0;
  if (told("dies") && ++products > 2) return 13;
  const auto bytes = [](int type) { return static_cast<std::size_t>(type == 0 ? 4 : 2); };
  const std::size_t a_last = static_cast<std::size_t>((batch - 1) * sa) +
                             static_cast<std::size_t>(lda) * static_cast<std::size_t>(transposed ? m : k);
  if (!here(a, a_last * bytes(a_type)) ||
      !here(b, static_cast<std::size_t>((batch - 1) * sb + static_cast<long long>(ldb) * n) * bytes(b_type)) ||
      !here(c, static_cast<std::size_t>((batch - 1) * sc + static_cast<long long>(ldc) * n) * bytes(c_type)))
    return 14;
  if (lda < (transposed ? k : m) || ldb < k || ldc < m) return 7;
  for (int of = 0; of < batch; ++of)
    for (int j = 0; j < n; ++j)
      for (int i = 0; i < m; ++i) {
        double sum = told("wrong") ? 0.5 : 0;
        for (int d = 0; d < k; ++d) {
          const long long ia =
              of * sa + (transposed ? static_cast<long long>(i) * lda + d : static_cast<long long>(d) * lda + i);
          sum += static_cast<double>(at(a, static_cast<std::size_t>(ia), a_type)) *
                 at(b, static_cast<std::size_t>(of * sb + static_cast<long long>(j) * ldb + d), b_type);
        }
        put(c, static_cast<std::size_t>(of * sc + static_cast<long long>(j) * ldc + i), c_type,
            static_cast<float>(sum));
      }
  return 0;
}

struct Event {
  std::chrono::steady_clock::time_point time;
};

std::string source;
const char* const kFunctions[] = {"orrery_empty", "orrery_add_fp32", "orrery_add_bf16", "orrery_softmax_fp32",
                                  "orrery_softmax_bf16"};

// ---- NCCL: calls are collected until the group ends ----
struct Call {
  int kind, device, peer;
  const float* in;
  float* out;
  std::size_t count;
};
std::vector<Call> calls;
int ranks = 0;

int collect(int kind, const void* in, void* out, std::size_t count, int type, void* comm, int peer = 0) {
  const int device = static_cast<int>(reinterpret_cast<std::intptr_t>(comm)) - 1;
  if (type != 7 || device != current || device < 0 || device >= ranks) return 4;
  calls.push_back({kind, device, peer, static_cast<const float*>(in), static_cast<float*>(out), count});
  return 0;
}

}  // namespace

extern "C" {
// ---- the runtimes ----
int cudaGetDeviceCount(int* n) { return *n = told("no-device") ? 0 : kDevices, 0; }
int cudaSetDevice(int d) { return d >= 0 && d < kDevices ? (current = d, 0) : 101; }
int cudaMalloc(void** p, std::size_t bytes) {
  if (told("no-memory") && bytes > 10'000) return 2;
  *p = std::malloc(bytes);
  std::memset(*p, 0xff, bytes);
  blocks[static_cast<const char*>(*p)] = {bytes, current};
  return 0;
}
int cudaFree(void* p) { return blocks.erase(static_cast<const char*>(p)) == 1 ? (std::free(p), 0) : 1; }
int cudaHostAlloc(void** p, std::size_t bytes, unsigned) {
  *p = std::malloc(bytes);
  blocks[static_cast<const char*>(*p)] = {bytes, -1};
  return 0;
}
int cudaFreeHost(void* p) { return cudaFree(p); }
int cudaMemcpy(void* to, const void* from, std::size_t bytes, int kind) {
  const bool to_device = kind == 1 || kind == 3, from_device = kind == 2 || kind == 3;
  if ((to_device && !here(to, bytes)) || (from_device && !here(from, bytes))) return 700;
  if ((!to_device && device_of(to, bytes) >= 0) || (!from_device && device_of(from, bytes) >= 0)) return 701;
  std::memcpy(to, from, bytes);
  return 0;
}
int cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, int kind, void*) {
  return cudaMemcpy(to, from, bytes, kind);
}
int cudaDeviceSynchronize() { return 0; }
int cudaEventCreate(void** e) { return *e = new Event, 0; }
int cudaEventDestroy(void* e) { return delete static_cast<Event*>(e), 0; }
int cudaEventRecord(void* e, void*) { return static_cast<Event*>(e)->time = std::chrono::steady_clock::now(), 0; }
int cudaEventSynchronize(void*) { return 0; }
int cudaEventElapsedTime(float* ms, void* a, void* b) {
  *ms = std::chrono::duration<float, std::milli>(static_cast<Event*>(b)->time - static_cast<Event*>(a)->time).count();
  return 0;
}
const char* cudaGetErrorString(int code) {
  return code == 2 ? "out of memory" : "an illegal memory access was encountered";
}
int cudaGetDeviceProperties_v2(void* p, int) { return std::strcpy(static_cast<char*>(p), "NVIDIA H100 80GB HBM3"), 0; }
int cudaMemGetInfo(std::size_t* free_bytes, std::size_t* all) { return *free_bytes = *all = std::size_t{80} << 30, 0; }
int cudaDeviceGetAttribute(int* x, int which, int) { return *x = which == 16 ? 132 : 0, 0; }
int hipGetDeviceCount(int* n) { return cudaGetDeviceCount(n); }
int hipSetDevice(int d) { return cudaSetDevice(d); }
int hipMalloc(void** p, std::size_t bytes) { return cudaMalloc(p, bytes); }
int hipFree(void* p) { return cudaFree(p); }
int hipHostMalloc(void** p, std::size_t bytes, unsigned flags) { return cudaHostAlloc(p, bytes, flags); }
int hipHostFree(void* p) { return cudaFree(p); }
int hipMemcpy(void* to, const void* from, std::size_t bytes, int kind) { return cudaMemcpy(to, from, bytes, kind); }
int hipMemcpyAsync(void* to, const void* from, std::size_t bytes, int kind, void*) {
  return cudaMemcpy(to, from, bytes, kind);
}
int hipDeviceSynchronize() { return 0; }
int hipEventCreate(void** e) { return cudaEventCreate(e); }
int hipEventDestroy(void* e) { return cudaEventDestroy(e); }
int hipEventRecord(void* e, void* s) { return cudaEventRecord(e, s); }
int hipEventSynchronize(void*) { return 0; }
int hipEventElapsedTime(float* ms, void* a, void* b) { return cudaEventElapsedTime(ms, a, b); }
const char* hipGetErrorString(int code) { return cudaGetErrorString(code); }
int hipGetDevicePropertiesR0600(void* p, int) { return std::strcpy(static_cast<char*>(p), "AMD Instinct MI300X"), 0; }
int hipMemGetInfo(std::size_t* free_bytes, std::size_t* all) { return *free_bytes = *all = std::size_t{192} << 30, 0; }

// ---- BLAS ----
int cublasCreate_v2(void** h) { return *h = new int, 0; }
int cublasDestroy_v2(void* h) { return delete static_cast<int*>(h), 0; }
int cublasSetMathMode(void*, int) { return 0; }
int cublasGemmStridedBatchedEx(void*, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int at_,
                               int lda, long long sa, const void* b, int bt, int ldb, long long sb, const void* beta,
                               void* c, int ct, int ldc, long long sc, int batch, int compute, int) {
  if (tb != 0 || *static_cast<const float*>(alpha) != 1 || *static_cast<const float*>(beta) != 0) return 7;
  if (compute != 68 && compute != 77) return 15;
  return product(ta == 1, m, n, k, a, at_, lda, sa, b, bt, ldb, sb, c, ct, ldc, sc, batch);
}
int rocblas_create_handle(void** h) { return cublasCreate_v2(h); }
int rocblas_destroy_handle(void* h) { return cublasDestroy_v2(h); }
int rocblas_gemm_strided_batched_ex(void*, int ta, int tb, int m, int n, int k, const void*, const void* a, int at_,
                                    int lda, long long sa, const void* b, int bt, int ldb, long long sb, const void*,
                                    const void* c, int ct, int ldc, long long sc, void* d, int dt, int ldd,
                                    long long sd, int batch, int compute, int, std::int32_t, std::uint32_t) {
  if (ta < 111 || ta > 112 || tb != 111 || compute != 151 || c != d || ct != dt || ldc != ldd || sc != sd) return 11;
  const auto type = [](int t) { return t == 151 ? 0 : t == 168 ? 14 : 2; };
  return product(ta == 112, m, n, k, a, type(at_), lda, sa, b, type(bt), ldb, sb, d, type(dt), ldd, sd, batch);
}

// ---- compiler and driver ----
int nvrtcCreateProgram(void** p, const char* text, const char*, int, const char* const*, const char* const*) {
  if (told("no-compiler")) return 1;
  source = text;
  return *p = &source, 0;
}
int nvrtcCompileProgram(void*, int, const char* const*) {
  for (const char* name : kFunctions)
    if (source.find("__global__ void " + std::string(name) + "(") == std::string::npos) return 6;
  return 0;
}
int nvrtcGetPTXSize(void*, std::size_t* n) { return *n = 4, 0; }
int nvrtcGetPTX(void*, char* out) { return std::memcpy(out, "ptx", 4), 0; }
int nvrtcDestroyProgram(void** p) { return *p = nullptr, 0; }
int hiprtcCreateProgram(void** p, const char* t, const char* n, int h, const char* const* a, const char* const* b) {
  return nvrtcCreateProgram(p, t, n, h, a, b);
}
int hiprtcCompileProgram(void* p, int n, const char* const* o) { return nvrtcCompileProgram(p, n, o); }
int hiprtcGetCodeSize(void* p, std::size_t* n) { return nvrtcGetPTXSize(p, n); }
int hiprtcGetCode(void* p, char* out) { return nvrtcGetPTX(p, out); }
int hiprtcDestroyProgram(void** p) { return nvrtcDestroyProgram(p); }
int cuModuleLoadData(void** m, const void* code) { return *m = &source, std::memcmp(code, "ptx", 4) == 0 ? 0 : 218; }
int cuModuleUnload(void*) { return 0; }
int cuModuleGetFunction(void** f, void*, const char* name) {
  for (const char* const& known : kFunctions)
    if (std::strcmp(known, name) == 0) return *f = const_cast<char*>(known), 0;
  return 500;
}
int cuLaunchKernel(void* f, unsigned gx, unsigned, unsigned, unsigned bx, unsigned, unsigned, unsigned, void*,
                   void** arguments, void**) {
  const std::string name = static_cast<const char*>(f);
  if (bx == 0 || bx > 1024 || gx == 0) return 1;
  if (name == "orrery_empty") return 0;
  const int type = name.ends_with("bf16") ? 14 : 0;
  const std::size_t bytes = type == 0 ? 4 : 2;
  const void* a = *static_cast<const void**>(arguments[0]);
  if (name.starts_with("orrery_add")) {
    const void* b = *static_cast<const void**>(arguments[1]);
    void* out = *static_cast<void**>(arguments[2]);
    const auto n = static_cast<std::size_t>(*static_cast<unsigned long long*>(arguments[3]));
    if (!here(a, bytes * n) || !here(b, bytes * n) || !here(out, bytes * n)) return 700;
    for (std::size_t i = 0; i < n; ++i) put(out, i, type, at(a, i, type) + at(b, i, type));
    return 0;
  }
  void* out = *static_cast<void**>(arguments[1]);
  const auto width = static_cast<std::size_t>(*static_cast<unsigned long long*>(arguments[2]));
  const float scale = *static_cast<float*>(arguments[3]);
  if (!here(a, bytes * width * gx) || !here(out, bytes * width * gx)) return 700;
  for (std::size_t row = 0; row < gx; ++row) {
    double most = -1e300, sum = 0;
    std::vector<double> x(width);
    for (std::size_t i = 0; i < width; ++i)
      most = std::max(most, x[i] = static_cast<double>(scale) * at(a, row * width + i, type));
    for (double& v : x) sum += v = std::exp(v - most);
    for (std::size_t i = 0; i < width; ++i) put(out, row * width + i, type, static_cast<float>(x[i] / sum));
  }
  return 0;
}
int hipModuleLoadData(void** m, const void* code) { return cuModuleLoadData(m, code); }
int hipModuleUnload(void*) { return 0; }
int hipModuleGetFunction(void** f, void* m, const char* name) { return cuModuleGetFunction(f, m, name); }
int hipModuleLaunchKernel(void* f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned s,
                          void* q, void** x, void** y) {
  return cuLaunchKernel(f, a, b, c, d, e, g, s, q, x, y);
}

// ---- collectives ----
int ncclCommInitAll(void** comms, int n, const int*) {
  ranks = n;
  for (int i = 0; i < n; ++i) comms[i] = reinterpret_cast<void*>(static_cast<std::intptr_t>(i + 1));
  return 0;
}
int ncclCommDestroy(void*) { return 0; }
int ncclGroupStart() { return calls.clear(), 0; }
int ncclAllReduce(const void* in, void* out, std::size_t n, int type, int op, void* comm, void*) {
  return op != 0 ? 4 : collect(0, in, out, n, type, comm);
}
int ncclAllGather(const void* in, void* out, std::size_t n, int type, void* comm, void*) {
  return collect(1, in, out, n, type, comm);
}
int ncclReduceScatter(const void* in, void* out, std::size_t n, int type, int op, void* comm, void*) {
  return op != 0 ? 4 : collect(2, in, out, n, type, comm);
}
int ncclSend(const void* in, std::size_t n, int type, int peer, void* comm, void*) {
  return collect(3, in, nullptr, n, type, comm, peer);
}
int ncclRecv(void* out, std::size_t n, int type, int peer, void* comm, void*) {
  return collect(4, nullptr, out, n, type, comm, peer);
}
int ncclGroupEnd() {
  const auto all = std::move(calls);
  calls.clear();
  const auto size = static_cast<std::size_t>(ranks);
  for (const Call& c : all) {
    const std::size_t in = c.kind == 2 ? c.count * size : c.count, out = c.kind == 1 ? c.count * size : c.count;
    if (c.in != nullptr && device_of(c.in, 4 * in) != c.device) return 4;
    if (c.out != nullptr && device_of(c.out, 4 * out) != c.device) return 4;
    if (c.kind == 3) continue;
    for (const Call& from : all) {
      if (c.kind == 4) {
        if (from.kind == 3 && from.device == c.peer && from.peer == c.device) std::copy_n(from.in, c.count, c.out);
        continue;
      }
      if (from.kind != c.kind || from.count != c.count) continue;
      const bool first = &from == all.data();
      for (std::size_t i = 0; i < c.count; ++i) {
        const float x = from.in[c.kind == 2 ? static_cast<std::size_t>(c.device) * c.count + i : i];
        if (c.kind == 1)
          c.out[static_cast<std::size_t>(from.device) * c.count + i] = x;
        else
          c.out[i] = first ? x : c.out[i] + x;
      }
    }
  }
  return 0;
}
int fake_gpu_blocks() { return static_cast<int>(blocks.size()); }
}
