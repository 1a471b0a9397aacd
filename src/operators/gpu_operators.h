// Operators on a GPU, through the libraries of gpu_api.h: products by the vendor's BLAS, attention as two batched
// products and a softmax, copies, and kernels compiled at run time; collectives among the GPUs of this machine.
#pragma once
#include <memory>
#include <vector>

#include "operators/gpu_api.h"
#include "operators/operator_device.h"

namespace orrery {

class GpuOperators final : public OperatorDevice {
 public:
  // Collectives are among `ranks` devices.
  GpuOperators(std::shared_ptr<GpuApi> api, int ranks);
  ~GpuOperators() override;
  Result<Prepared> prepare(OperatorRow& row) override;
  const GpuApi& api() const { return *api_; }

 private:
  struct Buffer {
    void* data = nullptr;
    int device = 0;
    bool host = false;
  };
  void* buffer(std::size_t bytes, int device = 0, bool host = false);  // null: no memory
  bool fill(void* device_data, std::size_t elements, Precision p);     // from -1 to 1
  void forget();
  Prepared timed(std::function<bool()> once, std::function<Status()> check, std::string library) const;
  Result<Prepared> gemm(const OperatorRow& row);
  Result<Prepared> attention(const OperatorRow& row);
  Result<Prepared> by_elements(const OperatorRow& row);
  Result<Prepared> host_copy(const OperatorRow& row);
  Result<Prepared> collective(const OperatorRow& row);
  Prepared launch();
  tl::unexpected<Error> refused(const OperatorRow& row, const std::string& why) const;
  // Elements of a buffer of the device, as floats.
  bool read(const void* data, std::size_t elements, Precision p, std::vector<float>& out) const;

  std::shared_ptr<GpuApi> api_;
  int ranks_;
  std::vector<Buffer> buffers_;
};

}  // namespace orrery
