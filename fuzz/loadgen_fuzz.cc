// libFuzzer target of what loadgen reads: streams of events, cut in two anywhere, chunks of completions, and results
// that --calibrate takes. The first byte chooses.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "loadgen/event_stream.h"
#include "serving/calibrate.h"

namespace {

using namespace orrery;

void require(bool ok) {
  if (!ok) std::abort();
}

std::vector<std::string> events_of(std::string_view a, std::string_view b) {
  std::vector<std::string> out;
  EventStream s([&](std::string_view data) { out.emplace_back(data); });
  s.feed(a);
  s.feed(b);
  s.finish();
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  if (data[0] % 3 == 0) {
    const auto run = parse_measured_run(text, "fuzz");
    if (!run) {
      require(run.error().line().find('\n') == std::string::npos);
      return 0;
    }
    for (const RequestRecord& r : run->requests)
      require(r.end < 0 || (r.first_token >= r.arrival && r.end >= r.first_token));
    return 0;
  }
  if (data[0] % 3 == 1) {
    const CompletionChunk c = read_chunk(text);
    require(c.error.empty() || !(c.done || c.text));
    return 0;
  }
  const std::size_t cut = text.empty() ? 0 : data[1] % (text.size() + 1);
  require(events_of(text.substr(0, cut), text.substr(cut)) == events_of(text, {}));
  return 0;
}
