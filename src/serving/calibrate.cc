#include "serving/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/byte_source.h"

namespace orrery {
namespace {

constexpr double kMost = 20;  // times the estimate

Workload workload_of(const MeasuredRun& run) {
  Workload w;
  for (const RequestRecord& r : run.requests) {
    if (r.end < 0) continue;
    Request q;
    q.arrival_ns = r.arrival;
    q.input = r.input, q.output = r.output;
    w.requests.push_back(q);
  }
  std::stable_sort(w.requests.begin(), w.requests.end(),
                   [](const Request& a, const Request& b) { return a.arrival_ns < b.arrival_ns; });
  return w;
}

}  // namespace

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
  std::string text;
  std::vector<char> buffer(1 << 20);
  for (;;) {
    const auto n = (*source)->read(buffer.data(), buffer.size());
    if (!n) return tl::unexpected(n.error());
    if (*n == 0) break;
    text.append(buffer.data(), *n);
    if (text.size() > (std::size_t{1} << 30)) return fail("larger than 1 GiB", path);
  }
  return parse_measured_run(text, path);
}

Result<std::vector<ServiceFactor>> calibrate_service(const MeasuredRun& run, ServeJob& job, StepCosts& costs,
                                                     const ServeOptions& options) {
  const Workload w = workload_of(run);
  const ServeMemory memory = memory_of(job);
  const ServingFigures measured = figures_of(run.requests, {});
  if (measured.tpot.count == 0)
    return fail("only answers of one token: they do not tell what a token takes", "--calibrate", "longer answers");
  const auto simulated = [&](double factor) {
    costs.scale(factor, factor);
    return figures_of(simulate(costs, memory, w, options).requests, {});
  };
  const ServingFigures before = simulated(1);
  if (before.tpot.count == 0) return fail("the estimate refuses all of its requests", "--calibrate");
  double low = 1 / kMost, high = kMost;
  if (simulated(low).tpot.mean > measured.tpot.mean || simulated(high).tpot.mean < measured.tpot.mean) {
    costs.scale(1, 1);
    return fail(fmt::format("{:.3f} ms a token measured, {:.3f} estimated: more than {:g} times apart",
                            measured.tpot.mean, before.tpot.mean, kMost),
                "--calibrate", "is it the same model on the same platform?");
  }
  while (high / low > 1.0005) {
    const double mid = std::sqrt(low * high);
    (simulated(mid).tpot.mean < measured.tpot.mean ? low : high) = mid;
  }
  const double factor = std::sqrt(low * high);
  const ServingFigures after = simulated(factor);
  const double request_us = job.engine.request_us;
  job.engine.request_us = std::max(0.0, request_us + 1e3 * (measured.ttft.p50 - after.ttft.p50));
  const auto events = static_cast<std::uint64_t>(measured.completed);
  return std::vector<ServiceFactor>{
      {"time of a step, kernels and host", "times", 1, factor, events},
      {"mean time per token (TPOT), as simulated", "ms", before.tpot.mean, after.tpot.mean, events},
      {"work of a new request before it waits", "us", request_us, job.engine.request_us, events}};
}

}  // namespace orrery
