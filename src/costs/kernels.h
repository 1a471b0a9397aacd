// How long a kernel takes at another size: learnt from the trace's own kernels, bounded by the facts of the GPU.
//
//   GEMM       overhead + max(flops / (peak * efficiency), bytes / bandwidth). The efficiency is that of the best tile
//              (quantised to whole tiles and, in part, to whole waves over the GPU's SMs) times k / (k + k0), times a
//              smooth function of the size: the regression of what this law does not explain, over all GEMMs of the
//              trace, drawn to their mean where there are few (Gaussian process).
//   attention  overhead + flops / rate, with waves of 128 rows (of queries forward, of keys backward) and a start-up of
//              each row of blocks worth some hundred keys (FlashAttention-2's published benchmark: 450 causal)
//   memory     overhead + bytes / bandwidth, faster for what fits the L2 cache
// A kernel keeps what sets its measured time apart from the law: wholly at its own size, less the further away. Other
// sizes of the same kernel in the trace count, too.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "costs/work.h"
#include "facts/gpus.h"

namespace orrery {

// A size in numbers: what the terms of a Work are worth in one job.
struct WorkSize {
  WorkKind kind = WorkKind::unknown;
  double m = 1, n = 1, k = 1, batch = 1;
  int bytes_per_element = 2;
  bool operator==(const WorkSize&) const = default;
};

struct KernelSample {
  std::uint32_t name = 0;  // id of the kernel's name
  std::uint32_t role = 0;  // same number: launched from the same place of the job (forward qkv GEMM ...)
  WorkSize size;
  double ns = 0;      // median of the durations that nothing disturbed
  double spread = 0;  // relative standard deviation of one duration
  double count = 1;
};

class KernelCosts {
 public:
  // gpu: nullptr = not known; no roofline and no waves then. Samples without a positive time are skipped.
  static KernelCosts learn(std::span<const KernelSample> samples, const GpuFacts* gpu);

  struct Estimate {
    double ns = 0;              // -1: neither the trace nor facts tell
    double relative_error = 0;  // one standard deviation
    bool from_facts = false;    // nothing like it in the trace
  };
  // What the kernel of `base` takes at the size `now`. At its own size its own time. Kinds `fixed` and `unknown` keep
  // their time.
  Estimate rescale(const KernelSample& base, const WorkSize& now) const;
  // A kernel that the trace does not have.
  Estimate from_facts(const WorkSize& size) const;
  // What no kernel of this size can be faster than, ns; 0 = not known.
  double roofline_ns(const WorkSize& size) const;

 private:
  static constexpr int kFeatures = 4;
  static constexpr std::size_t kPrecisions = 4;  // 1, 2, 4 and more bytes an element
  struct Point {                                 // of the regression: one size of a GEMM
    double x[kFeatures] = {};
    WorkSize size;  // m >= n: transposed roles are one size
    double residual = 0, noise = 0, alpha = 0;
  };
  struct Anchor {  // one size of a kernel by name
    WorkSize size;
    std::array<double, 4> log = {};  // of its dimensions
    double ns = 0, log_over_law = 0;
    double noise = 0;  // relative error of ns
  };

  struct Residual {         // of a GEMM, log of time over law
    double smooth = 0;      // of sizes like it
    double irregular = 0;   // of this very size, where the trace has it
    double similarity = 0;  // of the nearest size that the trace has; 1 = the same
    bool seen = false;
  };
  double law_ns(const WorkSize& size) const;
  double scaled_memory_ns(const WorkSize& from, double ns, const WorkSize& to) const;
  Residual residual(const WorkSize& size) const;
  void fit_gemms(std::span<const KernelSample> samples);
  void fit_anchors(std::span<const KernelSample> samples);
  Estimate rescale_gemm(const KernelSample& base, const WorkSize& now) const;
  Estimate rescale_anchored(const KernelSample& base, const WorkSize& now) const;

  int sms_ = 0;                                     // 0 = not known
  double peak_ = 0;                                 // flops a ns, two-byte elements; not known: what GEMMs reach
  double bandwidth_ = 0;                            // bytes a ns; 0 = not known
  std::array<double, kPrecisions> gemm_mean_ = {};  // log of time over law, mean of the trace's GEMMs
  double gemm_excess_ = 1;                          // spread of GEMMs round the regression over that assumed
  std::array<bool, kPrecisions> gemms_ = {};        // seen any
  double overhead_ns_ = 0;                          // of kernels that do next to nothing
  double attention_ = 0, attention_backward_ = 0;   // time over law; 0 = none seen
  std::vector<Point> points_;
  std::unordered_map<std::uint64_t, std::vector<Anchor>> anchors_;  // by name and kind
};

}  // namespace orrery
