#include "bench/worker_lines.h"

#include <re2/re2.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/number_text.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

constexpr double kLongestStep = 1e10;  // ms

std::optional<double> number(const Json& j, const char* key) {
  const auto it = j.find(key);
  if (it == j.end() || !it->is_number()) return std::nullopt;
  const double x = it->get<double>();
  if (!std::isfinite(x) || x < 0) return std::nullopt;
  return x;
}

std::string word(const Json& j, const char* key) {
  const auto it = j.find(key);
  return it != j.end() && it->is_string() ? it->get<std::string>() : std::string();
}

// false: not as docs/formats/bench.md has it
bool take(const Json& j, WorkerReport& r) {
  const std::string kind = word(j, "orrery_bench");
  if (kind == "step") {
    const auto ms = number(j, "ms");
    if (!ms || *ms > kLongestStep) return false;
    const auto warm = j.find("warmup");
    if (warm != j.end() && !warm->is_boolean()) return false;
    if (warm != j.end() && warm->get<bool>()) {
      ++r.warm_steps;
      return true;
    }
    const auto n = number(j, "step");
    r.steps.push_back({n && *n < 1e15 ? static_cast<std::int64_t>(*n) : static_cast<std::int64_t>(r.steps.size()), *ms,
                       number(j, "cpu_ms")});
    if (const auto p = number(j, "prefill_ms")) r.prefill_ms.push_back(*p);
    if (const auto d = number(j, "decode_ms")) r.decode_ms.push_back(*d);
    return true;
  }
  if (kind == "memory") {
    const auto larger = [](std::optional<double>& a, std::optional<double> b) {
      if (b) a = std::max(a.value_or(0), *b);
    };
    larger(r.device_peak_bytes, number(j, "device_peak_bytes"));
    larger(r.device_allocated_bytes, number(j, "device_allocated_bytes"));
    if (const auto host = number(j, "host_peak_bytes")) {
      r.host_peak_bytes = r.host_peak_bytes.value_or(0) + *host;
      r.host_base_bytes += std::min(*host, number(j, "host_base_bytes").value_or(0));
    }
    return true;
  }
  if (kind == "environment") {
    Json of = j;
    of.erase("orrery_bench");
    r.environment = of.dump(-1, ' ', false, Json::error_handler_t::replace);
    return true;
  }
  if (kind == "missing") {
    r.missing = word(j, "package");
    r.missing_error = word(j, "error");
    return !r.missing.empty();
  }
  if (kind == "refused") {
    r.refused = word(j, "reason");
    return !r.refused.empty();
  }
  if (kind == "trace") {
    r.traces = word(j, "directory");
    return !r.traces.empty();
  }
  if (kind == "power") {
    r.power_w = number(j, "watts");
    return r.power_w.has_value();
  }
  if (kind == "ready") return r.ready = true;
  if (kind == "done") return r.done = true;
  return false;
}

template <class Take>
void each_line(std::string_view text, Take line) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = std::min(text.find('\n', i), text.size());
    line(text.substr(i, end - i));
    i = end + 1;
  }
}

// A number of its own for every step, in the order that they came: a worker may count as it likes.
void number_steps(WorkerReport& r) {
  for (std::size_t i = 0; i < r.steps.size(); ++i) r.steps[i].step = static_cast<std::int64_t>(i);
}

}  // namespace

WorkerReport read_worker_lines(std::string_view text) {
  WorkerReport r;
  each_line(text, [&](std::string_view line) {
    const std::size_t from = line.find('{');
    // What launchers put before a line ("[rank0]: ") is theirs.
    if (from == std::string_view::npos || line.find("\"orrery_bench\"") == std::string_view::npos) return;
    const Json j = Json::parse(line.substr(from), nullptr, false);
    if (j.is_object() && take(j, r)) return;
    ++r.bad_lines;
    if (r.first_bad.empty()) r.first_bad = std::string(line.substr(0, 200));
  });
  number_steps(r);
  return r;
}

WorkerReport read_by_pattern(std::string_view text, const std::string& pattern, std::int64_t warm) {
  WorkerReport r;
  const RE2 step(pattern, RE2::Quiet);
  each_line(text, [&](std::string_view line) {
    std::string found;
    double ms = 0;
    if (!RE2::PartialMatch(re2::StringPiece(line.data(), line.size()), step, &found)) return;
    if (read_double(found, ms) != NumberState::ok || ms < 0 || ms > kLongestStep) {
      ++r.bad_lines;
      if (r.first_bad.empty()) r.first_bad = std::string(line.substr(0, 200));
      return;
    }
    if (r.warm_steps < warm) {
      ++r.warm_steps;
    } else {
      r.steps.push_back({0, ms});
    }
  });
  number_steps(r);
  return r;
}

WorkerReport read_logged_steps(const std::vector<LoggedStep>& logged, std::int64_t warm) {
  WorkerReport r;
  for (const LoggedStep& s : logged) {
    if (!(s.seconds >= 0) || s.seconds * 1e3 > kLongestStep) continue;
    if (r.warm_steps < warm) {
      ++r.warm_steps;
    } else {
      r.steps.push_back({0, s.seconds * 1e3});
    }
  }
  number_steps(r);
  return r;
}

}  // namespace orrery
