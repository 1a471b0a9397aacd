#include "bench/worker_lines.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/number_text.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

constexpr double kShortestStep = 1e-3, kLongestStep = 1e10;  // ms
constexpr double kMostBytes = 1e15;                          // of a rank: more than any machine has
constexpr double kMostWatts = 1e8;

bool is_step(double ms) { return ms >= kShortestStep && ms <= kLongestStep; }

// A key that may be left out. false: it is there and not a number from 0 to `most`.
bool may_say(const Json& j, const char* key, double most, std::optional<double>& out) {
  const auto it = j.find(key);
  if (it == j.end() || it->is_null()) return true;
  if (!it->is_number()) return false;
  const double x = it->get<double>();
  if (!std::isfinite(x) || x < 0 || x > most) return false;
  out = x;
  return true;
}

std::string word(const Json& j, const char* key) {
  const auto it = j.find(key);
  return it != j.end() && it->is_string() ? it->get<std::string>() : std::string();
}

// false: not as docs/formats/bench.md has it
bool take(const Json& j, WorkerReport& r) {
  const std::string kind = word(j, "orrery_bench");
  if (kind == "step") {
    std::optional<double> ms, cpu, prefill, decode;
    if (!may_say(j, "ms", kLongestStep, ms) || !ms || !is_step(*ms)) return false;
    if (!may_say(j, "cpu_ms", kLongestStep, cpu) || !may_say(j, "prefill_ms", kLongestStep, prefill) ||
        !may_say(j, "decode_ms", kLongestStep, decode))
      return false;
    const auto warm = j.find("warmup");
    if (warm != j.end() && !warm->is_boolean()) return false;
    if (warm != j.end() && warm->get<bool>()) {
      ++r.warm_steps;
      return true;
    }
    r.steps.push_back({0, *ms, cpu});
    if (prefill) r.prefill_ms.push_back(*prefill);
    if (decode) r.decode_ms.push_back(*decode);
    return true;
  }
  if (kind == "memory") {
    const auto larger = [](std::optional<double>& a, std::optional<double> b) {
      if (b) a = std::max(a.value_or(0), *b);
    };
    std::optional<double> peak, allocated, used, host, base;
    if (!may_say(j, "device_peak_bytes", kMostBytes, peak) ||
        !may_say(j, "device_allocated_bytes", kMostBytes, allocated) ||
        !may_say(j, "device_used_bytes", kMostBytes, used) || !may_say(j, "host_peak_bytes", kMostBytes, host) ||
        !may_say(j, "host_base_bytes", kMostBytes, base))
      return false;
    larger(r.device_peak_bytes, peak);
    larger(r.device_allocated_bytes, allocated);
    larger(r.device_used_bytes, used);
    if (host) {
      r.host_peak_bytes = r.host_peak_bytes.value_or(0) + *host;
      r.host_base_bytes += std::min(*host, base.value_or(0));
    }
    return true;
  }
  if (kind == "environment") {
    Json of = j;
    of.erase("orrery_bench");
    r.environment = of.dump(-1, ' ', false, Json::error_handler_t::replace);
    r.on_host = word(j, "device") == "cpu";
    return true;
  }
  if (kind == "missing") {
    r.missing = word(j, "package");
    return !r.missing.empty();
  }
  if (kind == "refused") {
    r.refused = word(j, "reason");
    return !r.refused.empty();
  }
  if (kind == "trace") {
    r.trace_directory = word(j, "directory");
    return !r.trace_directory.empty();
  }
  if (kind == "power") {
    return may_say(j, "watts", kMostWatts, r.power_w) && r.power_w.has_value();
  }
  return kind == "ready" || kind == "done";
}

template <class Take>
void each_line(std::string_view text, std::string_view ends, Take line) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = std::min(text.find_first_of(ends, i), text.size());
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
  each_line(text, "\n", [&](std::string_view line) {
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
  // A bar that is drawn anew for each step has no line ends.
  each_line(text, "\n\r", [&](std::string_view line) {
    std::string found;
    double ms = 0;
    if (!RE2::PartialMatch(re2::StringPiece(line.data(), line.size()), step, &found)) return;
    if (read_double(found, ms) != NumberState::ok || !is_step(ms)) {
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
    if (s.seconds < 0) continue;
    if (!is_step(s.seconds * 1e3)) {
      ++r.bad_lines;
      if (r.first_bad.empty()) r.first_bad = fmt::format("a step of {:g} s", s.seconds);
      continue;
    }
    if (r.warm_steps < warm) {
      ++r.warm_steps;
    } else {
      r.steps.push_back({0, s.seconds * 1e3});
    }
  }
  number_steps(r);
  return r;
}

std::string who_reported(const WorkerReport& report, std::string_view output, BenchCommand::Reports reports,
                         const std::string& step_ms) {
  std::int64_t lines = 0;
  each_line(output, "\n\r", [&](std::string_view line) { lines += line.empty() ? 0 : 1; });
  std::string expected = "step times as `orrery diagnose` reads them from logs";
  if (reports == BenchCommand::Reports::pattern) expected = "what matches step_ms = '" + step_ms + "'";
  if (reports == BenchCommand::Reports::lines) expected = R"({"orrery_bench": "step", "ms": NUMBER})";
  return fmt::format("{} of {} lines of its output reported a step; expected {}", report.seen_steps(), lines,
                     quote_for_people(expected, 200));
}

std::string last_words(std::string_view text) {
  std::string last;
  each_line(text, "\n\r", [&](std::string_view line) {
    const bool says = std::any_of(line.begin(), line.end(), [](unsigned char c) { return std::isalnum(c) != 0; });
    if (says && line.find("\"orrery_bench\"") == std::string_view::npos) last = line;
  });
  return last;
}

}  // namespace orrery
