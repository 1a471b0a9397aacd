// libFuzzer target of files of requests and of distributions of lengths. The first byte chooses. Any bytes must give
// requests within their limits, in order of time, or an error of one line.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "serving/workload.h"

namespace {

using namespace orrery;

void require(bool ok) {
  if (!ok) std::abort();
}

template <class T>
bool good(const Result<T>& r) {
  if (r) return true;
  require(!r.error().what.empty() && r.error().line().find('\n') == std::string::npos);
  return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 4 == 0) {
    const auto d = read_length_distribution(text.substr(0, 100), "fuzz");
    if (!good(d)) return 0;
    WorkloadAsked asked;
    asked.requests = 20;
    asked.input = *d;
    for (const Request& r : made_workload(asked).requests)
      require(static_cast<double>(r.input) >= std::floor(d->least) && static_cast<double>(r.input) <= d->most + 1);
    return 0;
  }
  Notes notes;
  const auto w = parse_workload(text, "fuzz", notes);
  if (!good(w)) return 0;
  require(!w->requests.empty());
  double before = 0;
  for (const Request& r : w->requests) {
    require(r.input >= 1 && r.output >= 1 && std::isfinite(r.arrival_ns) && r.arrival_ns >= before);
    require(static_cast<std::size_t>(r.first_prefix) + r.prefixes <= w->prefixes.size());
    require(static_cast<std::int64_t>(r.prefixes) * w->prefix_piece <= r.input);
    before = r.arrival_ns;
  }
  return 0;
}
