#include "importers/jobs_log.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <cmath>
#include <limits>

#include "base/number_text.h"
#include "base/text_match.h"
#include "importers/jobs_csv.h"
#include "importers/jobs_time.h"

namespace orrery {
namespace {

constexpr std::size_t kTimeWithin = 80;  // characters of a line's begin
constexpr std::size_t kLongestPattern = 1000;

// Of all versions of RE2: some take std::string_view, some a type of their own.
std::string_view view(const re2::StringPiece& s) { return {s.data(), s.size()}; }
re2::StringPiece piece(std::string_view s) { return {s.data(), s.size()}; }

bool digit(std::string_view s, std::size_t i) { return i < s.size() && s[i] >= '0' && s[i] <= '9'; }

// "2023-09-11 03:11:20,011", with a T or brackets; or "07/25 03:11:20" of a year that is not written.
bool time_in(std::string_view line, TimeReader& times, std::int64_t& ms) {
  const std::string_view begin = line.substr(0, kTimeWithin);
  for (std::size_t i = 0; i + 14 <= begin.size(); ++i) {
    if (!digit(begin, i) || (i > 0 && digit(begin, i - 1))) continue;
    if (i + 19 <= begin.size() && (begin[i + 4] == '-' || begin[i + 4] == '/') && begin[i + 13] == ':') {
      std::size_t end = i + 19;
      if (end < begin.size() && (begin[end] == '.' || begin[end] == ','))
        for (++end; digit(begin, end);) ++end;
      if (times.read(begin.substr(i, end - i), ms) == TimeReader::State::ok) return true;
    }
    if (begin[i + 2] == '/' && begin[i + 5] == ' ' && begin[i + 8] == ':' && begin[i + 11] == ':') {
      const std::string whole =
          fmt::format("2000-{}-{} {}", begin.substr(i, 2), begin.substr(i + 3, 2), begin.substr(i + 6, 8));
      if (times.read(whole, ms) == TimeReader::State::ok) return true;
    }
  }
  return false;
}

}  // namespace

Result<ProgressLog> import_progress_log(ByteSource& source, const std::string& label) {
  static const re2::RE2 step(R"((?i)(?:^|[^a-z_])(?:global_?step|step|iteration|iter)["']?\s*[=: ]\s*(\d{1,15}))");
  static const re2::RE2 loss(R"((?i)loss["']?\s*[=:]\s*([-+]?[0-9.]+(?:e[-+]?\d+)?|nan|inf))");
  static const re2::RE2 elapsed(R"((?i)(?:elapsed )?time per iteration \((ms|s)\):?\s*([0-9.]+))");
  ProgressLog out;
  out.file = label;
  CsvReader lines(source, '|');  // of which only whole lines are of interest
  std::vector<std::string_view> fields;
  TimeReader times;
  double clock_ms = 0;
  bool any_time = false;
  std::vector<bool> timed;  // by point
  std::uint64_t without_time = 0, long_lines = 0, backwards = 0;
  std::int64_t last_ms = std::numeric_limits<std::int64_t>::min();
  for (;;) {
    auto row = lines.next(fields);
    if (!row) return tl::unexpected(row.error());
    if (*row == CsvReader::Row::end) break;
    if (*row == CsvReader::Row::bad) {
      ++long_lines;
      continue;
    }
    const std::string_view line = lines.text();
    if (!has_any(line, {"step", "Step", "iter", "Iter", "STEP"})) continue;
    ProgressPoint p;
    re2::StringPiece number, unit, value;
    if (!re2::RE2::PartialMatch(piece(line), step, &number) || read_int(view(number), p.step) != NumberState::ok)
      continue;
    p.loss = std::numeric_limits<double>::quiet_NaN();
    const bool has_loss = re2::RE2::PartialMatch(piece(line), loss, &value);
    if (has_loss && read_double(view(value), p.loss) != NumberState::ok)
      p.loss = std::numeric_limits<double>::quiet_NaN();
    double took = 0;
    const bool has_elapsed = re2::RE2::PartialMatch(piece(line), elapsed, &unit, &value) &&
                             read_double(view(value), took) == NumberState::ok;
    if (has_elapsed && unit != "ms" && unit != "MS") took *= 1000;
    if (!has_loss && !has_elapsed &&
        !has_any(line, {"tgs", "tflops", "TFLOPs", "throughput", "samples/s", "lr=", "tokens/s"}))
      continue;
    // The same step of another rank, or printed twice.
    if (!out.points.empty() && out.points.back().step == p.step) continue;
    clock_ms += took;
    if (std::int64_t ms = 0; time_in(line, times, ms)) {
      p.at_ms = ms;
      any_time = true;
      timed.push_back(true);
      if (ms < last_ms) ++backwards;
      last_ms = std::max(last_ms, ms);
    } else {
      p.at_ms = static_cast<std::int64_t>(clock_ms);
      ++without_time;
      timed.push_back(false);
    }
    out.points.push_back(p);
  }
  if (out.points.empty())
    return fail("no line that names a training step", label, "a step or an iteration beside a loss or a rate");
  out.timed = any_time;
  if (any_time && without_time != 0) {
    // Times of both kinds cannot be compared.
    std::vector<ProgressPoint> kept;
    for (std::size_t i = 0; i < out.points.size(); ++i)
      if (timed[i]) kept.push_back(out.points[i]);
    out.points.swap(kept);
    out.notes.add("step-without-time", Severity::warning, without_time, label, "left out beside those that have one");
  }
  out.notes.add("line-too-long", Severity::warning, long_lines, label);
  out.notes.add("time-goes-back", Severity::warning, backwards, label,
                "clocks of several hosts, or files out of order");
  return out;
}

Result<TrialLog> import_trial_log(ByteSource& source, const std::string& label, const TrialPatterns& patterns) {
  for (const std::string* p : {&patterns.inference, &patterns.metric})
    if (p->size() > kLongestPattern) return fail("a pattern of over 1000 characters", "--stage");
  re2::RE2::Options options;
  options.set_log_errors(false);
  const re2::RE2 inference(patterns.inference, options), metric(patterns.metric, options);
  for (const re2::RE2* r : {&inference, &metric})
    if (!r->ok()) return fail("not a pattern: " + r->pattern() + ": " + r->error(), "--stage");
  TrialLog out;
  out.file = label;
  CsvReader lines(source, '|');
  std::vector<std::string_view> fields;
  TimeReader times;
  std::int64_t first = 0, inferring = 0, scoring = 0, last = 0;
  bool any = false;
  for (;;) {
    auto row = lines.next(fields);
    if (!row) return tl::unexpected(row.error());
    if (*row == CsvReader::Row::end) break;
    const std::string_view line = lines.text();
    std::int64_t ms = 0;
    if (!time_in(line, times, ms)) continue;
    if (!any) first = last = ms;
    any = true;
    last = std::max(last, ms);
    if (!out.reached_inference && re2::RE2::PartialMatch(piece(line), inference)) {
      out.reached_inference = true;
      inferring = last;
    } else if (out.reached_inference && !out.reached_metric && re2::RE2::PartialMatch(piece(line), metric)) {
      out.reached_metric = true;
      scoring = last;
    }
  }
  if (!any) return fail("no line with a time", label, "2023-09-11 03:11:20 or 07/25 03:11:20 near its begin");
  if (!out.reached_inference) inferring = last;
  if (!out.reached_metric) scoring = last;
  out.load_ms = inferring - first;
  out.inference_ms = scoring - inferring;
  out.metric_ms = last - scoring;
  if (!out.reached_inference)
    out.notes.add("no-inference", Severity::warning, 1, label, "no line begins it; --stage says how it is told");
  return out;
}

}  // namespace orrery
