// The result of a measured run -> MeasuredRun.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/byte_source.h"
#include "serving/calibrate.h"

namespace orrery {

Result<MeasuredRun> parse_measured_run(std::string_view text, const std::string& where) {
  const std::string advice = "a file that `orrery loadgen --out FILE` wrote";
  const nlohmann::json j = nlohmann::json::parse(text, nullptr, false);
  if (!j.is_object() || !j.contains("requests") || !j["requests"].is_array())
    return fail("not a result of loadgen", where, advice);
  MeasuredRun run;
  std::size_t number = 0;
  for (const nlohmann::json& q : j["requests"]) {
    ++number;
    const auto value = [&](const char* key) {
      const auto it = q.is_object() ? q.find(key) : q.end();
      return q.is_object() && it != q.end() && it->is_number() ? it->get<double>() : -1.0;
    };
    RequestRecord r;
    const double s = value("s"), input = value("input_tokens"), output = value("output_tokens");
    const double ttft = value("ttft_ms"), latency = value("latency_ms");
    if (!(s >= 0 && s < 1e9 && input >= 1 && input < 1e8 && output >= 0 && output < 1e8))
      return fail(fmt::format("request {} has no time or tokens", number), where, advice);
    r.arrival = 1e9 * s;
    r.input = std::llround(input), r.output = std::llround(output);
    if (ttft >= 0 && latency >= ttft && latency < 1e12 && r.output >= 1) {
      r.first_token = r.arrival + 1e6 * ttft;
      r.end = r.arrival + 1e6 * latency;
    }
    run.requests.push_back(r);
  }
  if (std::none_of(run.requests.begin(), run.requests.end(), [](const RequestRecord& r) { return r.end >= 0; }))
    return fail("no request that was answered", where, advice);
  return run;
}

Result<MeasuredRun> read_measured_run(const std::string& path) {
  auto file = open_file(path);
  if (!file) return tl::unexpected(file.error());
  auto source = decompressed(std::move(*file), path);
  if (!source) return tl::unexpected(source.error());
  constexpr std::size_t kMost = std::size_t{1} << 30;
  const auto text = read_at_most(**source, kMost + 1);
  if (!text) return tl::unexpected(text.error());
  if (text->size() > kMost) return fail("larger than 1 GiB", path);
  return parse_measured_run(*text, path);
}

}  // namespace orrery
