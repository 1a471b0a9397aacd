// Host memory that tensors are copied to: touched beforehand, so that a save never waits for the kernel to find pages,
// and page-locked where CUDA's runtime is there, so that the GPU copies at full speed.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "checkpoint/checkpoint.h"

namespace orrery::ckpt {

// CUDA's runtime, found by dlopen: nothing of it is needed to build or to run without a GPU.
class CudaRuntime {
 public:
  // Null when there is none, or it has no device. `library` = "" tries the usual names.
  static std::shared_ptr<CudaRuntime> find(const std::string& library);
  ~CudaRuntime();
  bool pin(void* data, std::uint64_t bytes) const;
  void unpin(void* data) const;
  // For all that was launched on the calling thread's device, by whatever stream: the copy's own stream does not wait
  // for the others of a framework.
  Status wait() const;
  Status copy(void* host, const void* device, std::uint64_t bytes) const;  // done when it returns

 private:
  CudaRuntime() = default;
  static std::shared_ptr<CudaRuntime> usable(void* handle);
  void* handle_ = nullptr;
  int (*host_register_)(void*, std::size_t, unsigned) = nullptr;
  int (*host_unregister_)(void*) = nullptr;
  int (*synchronize_)() = nullptr;
  int (*memcpy_)(void*, const void*, std::size_t, int) = nullptr;
  const char* (*error_string_)(int) = nullptr;
};

class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  ~HostBuffer();
  // At least `bytes`, every page touched. What was in it is lost when it grows.
  Status reserve(std::uint64_t bytes, const std::shared_ptr<CudaRuntime>& cuda);
  std::uint64_t capacity() const { return bytes_; }
  bool pinned() const { return pinned_ != nullptr; }
  char* data() const { return static_cast<char*>(data_); }

 private:
  void release();
  void* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::shared_ptr<CudaRuntime> pinned_;
};

}  // namespace orrery::ckpt
