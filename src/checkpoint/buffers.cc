#include "checkpoint/buffers.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <cerrno>
#include <system_error>
#include <vector>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older C libraries do not name it
#endif

namespace orrery::ckpt {

std::shared_ptr<CudaRuntime> CudaRuntime::find(const std::string& library) {
  std::vector<std::string> names{library};
  if (library.empty()) names = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"};
  for (const std::string& name : names) {  // one may be there that is too new for the driver
    void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) continue;
    if (auto cuda = usable(handle)) return cuda;
  }
  return nullptr;
}

std::shared_ptr<CudaRuntime> CudaRuntime::usable(void* handle) {
  const std::shared_ptr<CudaRuntime> cuda(new CudaRuntime);
  cuda->handle_ = handle;
  const auto load = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
    return function != nullptr;
  };
  int (*device_count)(int*) = nullptr;
  const bool complete = load(device_count, "cudaGetDeviceCount") && load(cuda->host_register_, "cudaHostRegister") &&
                        load(cuda->host_unregister_, "cudaHostUnregister") && load(cuda->memcpy_, "cudaMemcpy") &&
                        load(cuda->synchronize_, "cudaDeviceSynchronize") &&
                        load(cuda->error_string_, "cudaGetErrorString");
  int devices = 0;
  if (!complete || device_count(&devices) != 0 || devices < 1) return nullptr;
  return cuda;
}

CudaRuntime::~CudaRuntime() {
  if (handle_ != nullptr) ::dlclose(handle_);
}

bool CudaRuntime::pin(void* data, std::uint64_t bytes) const {
  constexpr unsigned portable = 1;  // cudaHostRegisterPortable: for every device
  return host_register_(data, bytes, portable) == 0;
}

void CudaRuntime::unpin(void* data) const { (void)host_unregister_(data); }

Status CudaRuntime::wait() const {
  const int code = synchronize_();
  if (code == 0) return {};
  return fail(std::string("cannot wait for the GPU: ") + error_string_(code));
}

Status CudaRuntime::copy(void* host, const void* device, std::uint64_t bytes) const {
  constexpr int device_to_host = 2;  // cudaMemcpyDeviceToHost, on the default stream
  const int code = memcpy_(host, device, bytes, device_to_host);
  if (code == 0) return {};
  return fail(std::string("cannot copy a tensor from the GPU: ") + error_string_(code));
}

HostBuffer::~HostBuffer() { release(); }

void HostBuffer::release() {
  if (pinned_) pinned_->unpin(data_);
  pinned_.reset();
  if (data_ != nullptr) ::munmap(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

Status HostBuffer::reserve(std::uint64_t bytes, const std::shared_ptr<CudaRuntime>& cuda) {
  if (bytes <= bytes_) return {};
  release();
  constexpr std::uint64_t huge = std::uint64_t{2} << 20;
  const std::uint64_t rounded = (bytes + huge - 1) / huge * huge;
  void* data = ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return fail(
        "no host memory for a copy of the tensors: " + std::error_code(errno, std::generic_category()).message(), {},
        "fewer buffers need less");
  }
  data_ = data;
  bytes_ = rounded;
  ::madvise(data, rounded, MADV_HUGEPAGE);
  ::madvise(data, rounded, MADV_DONTFORK);  // a forked child would make every page a copy at the next save
  if (::madvise(data, rounded, MADV_POPULATE_WRITE) != 0) {
    if (errno == ENOMEM || errno == EFAULT) {
      release();
      return fail("no host memory for a copy of the tensors", {}, "fewer buffers need less");
    }
    volatile char* touch = static_cast<char*>(data);
    for (std::uint64_t at = 0; at < rounded; at += 4096) touch[at] = 0;
  }
  if (cuda && cuda->pin(data, rounded)) pinned_ = cuda;
  return {};
}

}  // namespace orrery::ckpt
