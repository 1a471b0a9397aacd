// Samples of hardware -> distributions: DCGM and node metrics, quantile functions, power by IPMI.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_source.h"
#include "data/utilization.h"

namespace orrery {

struct UtilFile {
  std::vector<UtilMetric> metrics;
  Notes notes;
};

// "percentile,value", or a column of times beside columns of numbers.
bool looks_like_utilization(std::string_view first_bytes);

// `stem` names the metric where columns are devices. Read front to back: up to 4 million samples of a metric are kept
// exactly, more fall into classes 0.02 % wide. Errors: not such a file, nothing usable in it, the medium.
Result<UtilFile> import_utilization(ByteSource& source, const std::string& label, const std::string& stem);

// Samples one by one, then their distribution.
class Distribution {
 public:
  void add(double x);
  std::uint64_t size() const { return count_; }
  // Fills the percentiles, mean, maximum and share of zeros.
  void describe(UtilMetric& m);
  void scale(double by) { scale_ = by; }
  double max() const { return max_; }

  static constexpr std::size_t kExact = 4'000'000;

 private:
  void fold();
  std::vector<float> exact_;
  // Classes by the leading bits of the value: sign, exponent and 12 bits of mantissa.
  std::vector<std::uint64_t> classes_;
  bool folded_ = false;
  std::uint64_t count_ = 0, zeros_ = 0;
  long double sum_ = 0;
  double max_ = 0, min_ = 0, scale_ = 1;
};

}  // namespace orrery
