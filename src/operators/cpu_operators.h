// Operators on the cores of this machine.
#pragma once
#include <memory>
#include <vector>

#include "operators/blas.h"
#include "operators/cpu_gemm.h"
#include "operators/operator_device.h"
#include "operators/rank_group.h"

namespace orrery {

// Memory for operands, whole pages of the system's, kept from one operator to the next.
class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  // Forgets what was given out. False: no memory for `bytes` in all.
  bool reset(std::size_t bytes);
  float* floats(std::size_t n);  // not initialised; 64-byte aligned
  float* random(std::size_t n);  // from -1 to 1, the same for the same calls

 private:
  char* data_ = nullptr;
  std::size_t size_ = 0, used_ = 0;
};

struct CpuTerms {
  unsigned threads = 1;
  int first_core = 0;          // -1: threads are not pinned
  std::shared_ptr<Blas> blas;  // nullptr: our own kernels
  int widest = 0;              // of vectors (tests); 0 = what the CPU has
};

class CpuOperators final : public OperatorDevice {
 public:
  // `ranks`: whom collectives are with; it must outlive this.
  CpuOperators(const CpuTerms& terms, RankGroup& ranks);
  Result<Prepared> prepare(OperatorRow& row) override;
  bool pinned() const { return team_.pinned(); }
  bool has_bf16() const { return kernels_.gemm_tile_bf16 != nullptr || (blas_ && blas_->has_bf16()); }
  const CpuKernels& kernels() const { return kernels_; }

 private:
  Prepared peak(OperatorRow& row);
  template <class T>
  Prepared gemm_of(const OperatorRow& row);
  Prepared attention(const OperatorRow& row);
  Prepared by_elements(const OperatorRow& row);
  Prepared collective(const OperatorRow& row);
  Prepared timed(std::function<bool()> once, std::function<Status()> check, std::string library) const;

  const CpuKernels& kernels_;
  std::shared_ptr<Blas> blas_;
  RankGroup& ranks_;
  Team team_;
  Arena arena_;
  std::vector<GemmScratch> scratch_;
  std::vector<std::vector<float>> rows_;  // of each thread: scores of attention
};

}  // namespace orrery
