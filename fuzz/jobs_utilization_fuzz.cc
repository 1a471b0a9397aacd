// libFuzzer target of samples of hardware. Any bytes must give metrics whose quantiles rise, or an error of one line.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "importers/jobs_utilization.h"

namespace {

void require(bool good) {
  if (!good) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const SourcePtr source = open_memory(text);
  const auto file = import_utilization(*source, "fuzz", "metric");
  if (!file) {
    require(!file.error().what.empty() && file.error().line().find('\n') == std::string::npos);
    return 0;
  }
  require(!file->metrics.empty());
  for (const UtilMetric& m : file->metrics) {
    require(m.percentile.size() == m.value.size() && !m.value.empty());
    for (std::size_t i = 1; i < m.value.size(); ++i)
      require(m.percentile[i] >= m.percentile[i - 1] && m.value[i] >= m.value[i - 1]);
    require(m.zero_pct >= 0 && m.zero_pct <= 100);
    require(!std::isnan(m.at(50)) && m.share_at_most(70) >= 0 && m.share_at_most(70) <= 100);
  }
  return 0;
}
