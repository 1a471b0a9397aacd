// Files of requests -> Workload. docs/formats/workloads.md describes them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/byte_source.h"
#include "base/number_text.h"
#include "base/text_match.h"
#include "serving/workload.h"

namespace orrery {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;
constexpr std::int64_t kMostTokens = 1 << 24;
constexpr std::string_view kAdvice =
    "columns or keys for time, input and output tokens: docs/formats/workloads.md names them";

enum class Field : std::uint8_t { time, input, output, prefix };

// Letters and digits alone, lower case.
std::string plain(std::string_view name) {
  std::string out;
  for (const char c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

struct Known {
  std::string_view name;
  Field field;
  double to_ns = 0;  // of times: 0 = seconds unless the file says otherwise
};
constexpr std::array<Known, 33> kNames = {{{"timestamp", Field::time},
                                           {"time", Field::time},
                                           {"arrival", Field::time},
                                           {"arrivaltime", Field::time},
                                           {"arrivedat", Field::time},
                                           {"arrivals", Field::time, 1e9},
                                           {"times", Field::time, 1e9},
                                           {"timems", Field::time, 1e6},
                                           {"timestampms", Field::time, 1e6},
                                           {"arrivaltimems", Field::time, 1e6},
                                           {"arrivaltimeus", Field::time, 1e3},
                                           {"arrivaltimens", Field::time, 1},
                                           {"arrivaltimes", Field::time, 1e9},
                                           {"input", Field::input},
                                           {"inputtokens", Field::input},
                                           {"inputlength", Field::input},
                                           {"inputlen", Field::input},
                                           {"inputtoks", Field::input},
                                           {"prompttokens", Field::input},
                                           {"promptlen", Field::input},
                                           {"requesttokens", Field::input},
                                           {"contexttokens", Field::input},
                                           {"numprefilltokens", Field::input},
                                           {"output", Field::output},
                                           {"outputtokens", Field::output},
                                           {"outputlength", Field::output},
                                           {"outputlen", Field::output},
                                           {"outputtoks", Field::output},
                                           {"completiontokens", Field::output},
                                           {"responsetokens", Field::output},
                                           {"generatedtokens", Field::output},
                                           {"numdecodetokens", Field::output},
                                           {"hashids", Field::prefix}}};

const Known* known(std::string_view name) {
  const std::string text = plain(name);
  for (const Known& k : kNames)
    if (k.name == text) return &k;
  return nullptr;
}

bool is_bare(std::string_view name) {
  const std::string text = plain(name);
  return text == "input" || text == "output";
}

// Days since 1970-01-01 of a date of the Gregorian calendar (H. Hinnant, days_from_civil).
std::int64_t days_of(std::int64_t y, std::int64_t m, std::int64_t day) {
  y -= m <= 2;
  const std::int64_t era = (y >= 0 ? y : y - 399) / 400, yoe = y - era * 400;
  const std::int64_t doy = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * 146'097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719'468;
}

// "2023-11-16 18:15:46.6805900", also with a T; what follows the seconds' digits is not looked at.
std::optional<double> date_ns(std::string_view text) {
  const auto number = [&](std::size_t at, std::size_t n) -> std::int64_t {
    std::int64_t x = 0;
    for (std::size_t k = at; k < at + n; ++k) {
      if (k >= text.size() || text[k] < '0' || text[k] > '9') return -1;
      x = 10 * x + (text[k] - '0');
    }
    return x;
  };
  if (text.size() < 19 || text[4] != '-' || text[7] != '-' || text[13] != ':' || text[16] != ':') return std::nullopt;
  const std::int64_t y = number(0, 4), mo = number(5, 2), day = number(8, 2), h = number(11, 2), mi = number(14, 2),
                     s = number(17, 2);
  if (y < 0 || mo < 1 || mo > 12 || day < 1 || day > 31 || h < 0 || h > 24 || mi < 0 || mi > 60 || s < 0 || s > 60)
    return std::nullopt;
  double part = 0, scale = 0.1;
  for (std::size_t k = 20; text.size() > 19 && text[19] == '.' && k < text.size(); ++k, scale /= 10) {
    if (text[k] < '0' || text[k] > '9') break;
    part += scale * (text[k] - '0');
  }
  return (static_cast<double>(((days_of(y, mo, day) * 24 + h) * 60 + mi) * 60 + s) + part) * 1e9;
}

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '"')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '"' || s.back() == '\r')) s.remove_suffix(1);
  return s;
}

// Rows as they come: what can be used becomes requests, the rest is counted.
class Rows {
 public:
  Rows(std::string where, Notes& notes) : where_(std::move(where)), notes_(notes) {}

  void add(std::optional<double> ns, double input, double output, std::int64_t line) {
    const std::string at = fmt::format("{}:{}", where_, line);
    if (output == 0 && input >= 0) {
      notes_.add("request-without-answer", Severity::warning, 1, at,
                 "no output tokens: a request that failed; left out");
      return;
    }
    if (!(input >= 1 && output >= 1 && input <= kMostTokens && output <= kMostTokens)) {
      notes_.add("unusable-request", Severity::data_loss, 1, at, "tokens are no whole numbers from 1 to 16777216");
      return;
    }
    if (!ns && has_times_) {
      notes_.add("unusable-request", Severity::data_loss, 1, at, "its time cannot be read");
      return;
    }
    Request r;
    r.arrival_ns = ns.value_or(0);
    r.input = std::llround(input), r.output = std::llround(output);
    r.first_prefix = static_cast<std::uint32_t>(w_.prefixes.size());
    w_.requests.push_back(r);
  }
  void expect_times(bool on) { has_times_ = on; }
  void add_prefix(std::uint64_t id) {
    if (w_.requests.empty()) return;
    Request& r = w_.requests.back();
    if (static_cast<std::int64_t>(r.prefixes + 1) * w_.prefix_piece > r.input) return;  // whole pieces
    w_.prefixes.push_back(id);
    ++r.prefixes;
  }
  Workload& workload() { return w_; }

  Result<Workload> finish() {
    if (w_.requests.empty()) return fail("no request in it", where_, std::string(kAdvice));
    w_.timed = has_times_;
    std::stable_sort(w_.requests.begin(), w_.requests.end(),
                     [](const Request& a, const Request& b) { return a.arrival_ns < b.arrival_ns; });
    const double first = w_.requests.front().arrival_ns;
    for (Request& r : w_.requests) r.arrival_ns -= first;
    return std::move(w_);
  }

 private:
  std::string where_;
  Notes& notes_;
  Workload w_;
  bool has_times_ = true;
};

std::vector<std::string_view> split(std::string_view line, char at) {
  std::vector<std::string_view> out;
  bool quoted = false;
  std::size_t begin = 0;
  for (std::size_t k = 0; k < line.size(); ++k) {
    if (line[k] == '"') quoted = !quoted;
    if (line[k] != at || quoted) continue;
    out.push_back(trimmed(line.substr(begin, k - begin)));
    begin = k + 1;
  }
  out.push_back(trimmed(line.substr(begin)));
  return out;
}

// Calls with each line that is not blank, and its number from 1.
template <class F>
void each_line(std::string_view text, const F& f) {
  std::int64_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    ++number;
    if (line.find_first_not_of(" \t\r") != std::string_view::npos && !f(line, number)) return;
    at = end + 1;
  }
}

std::optional<double> time_of(std::string_view text, double to_ns) {
  if (const auto date = date_ns(text)) return date;
  double x = 0;
  if (read_double(text, x) != NumberState::ok || std::abs(x) > 1e18) return std::nullopt;
  return x * (to_ns > 0 ? to_ns : 1e9);
}

Result<Workload> parse_table(std::string_view text, const std::string& where, Notes& notes) {
  Rows rows(where, notes);
  const std::size_t first_end = std::min(text.find('\n'), text.size());
  const std::string_view head = text.substr(0, first_end);
  const char at = head.find('\t') != std::string_view::npos  ? '\t'
                  : head.find(';') != std::string_view::npos ? ';'
                                                             : ',';
  std::array<std::ptrdiff_t, 4> column = {-1, -1, -1, -1};
  double to_ns = 0;
  const std::vector<std::string_view> names = split(head, at);
  for (std::size_t k = 0; k < names.size(); ++k) {
    const Known* name = known(names[k]);
    if (name == nullptr) continue;
    // The first of a kind, but for a bare "input" or "output": beside a column of tokens it is the text.
    std::ptrdiff_t& place = column[static_cast<std::size_t>(name->field)];
    if (place >= 0 && !is_bare(names[static_cast<std::size_t>(place)])) continue;
    if (place >= 0 && is_bare(names[k])) continue;
    place = static_cast<std::ptrdiff_t>(k);
    if (name->field == Field::time) to_ns = name->to_ns;
  }
  if (column[1] < 0 || column[2] < 0)
    return fail("no columns for the tokens of requests and answers", where, std::string(kAdvice));
  rows.expect_times(column[0] >= 0);
  each_line(text, [&](std::string_view line, std::int64_t number) {
    if (number == 1) return true;
    const std::vector<std::string_view> fields = split(line, at);
    const auto field = [&](std::size_t f) {
      const auto k = static_cast<std::size_t>(column[f]);
      return column[f] >= 0 && k < fields.size() ? fields[k] : std::string_view();
    };
    double input = -1, output = -1;
    if (read_double(field(1), input) != NumberState::ok) input = -1;
    if (read_double(field(2), output) != NumberState::ok) output = -1;
    rows.add(column[0] >= 0 ? time_of(field(0), to_ns) : std::nullopt, input, output, number);
    return true;
  });
  return rows.finish();
}

Result<Workload> parse_lines(std::string_view text, const std::string& where, Notes& notes) {
  Rows rows(where, notes);
  rows.workload().prefix_piece = 512;  // Mooncake's hash_ids are of blocks of 512 tokens
  bool first = true;
  std::string trouble;
  each_line(text, [&](std::string_view line, std::int64_t number) {
    const nlohmann::json j = nlohmann::json::parse(line, nullptr, false);
    if (!j.is_object()) {
      notes.add("unusable-request", Severity::data_loss, 1, fmt::format("{}:{}", where, number),
                "the line is no JSON object");
      return true;
    }
    std::optional<double> ns;
    double input = -1, output = -1;
    bool timed = false;
    const nlohmann::json* prefix = nullptr;
    // Mooncake's times are in milliseconds, and it alone says input_length beside a timestamp.
    const bool mooncake = j.contains("hash_ids") || (j.contains("input_length") && j.contains("timestamp"));
    for (const auto& [key, value] : j.items()) {
      const Known* name = known(key);
      if (name == nullptr) continue;
      const double number_value = value.is_number() ? value.get<double>() : -1;
      switch (name->field) {
        case Field::time:
          timed = true;
          if (value.is_string())
            ns = time_of(value.get_ref<const std::string&>(), name->to_ns);
          else if (value.is_number() && std::abs(number_value) <= 1e18)
            ns = number_value * (name->to_ns > 0 ? name->to_ns : mooncake ? 1e6 : 1e9);
          break;
        case Field::input:
          input = number_value;
          break;
        case Field::output:
          output = number_value;
          break;
        case Field::prefix:
          if (value.is_array()) prefix = &value;
          break;
      }
    }
    if (first) {
      if (input < 0 || output < 0) {
        trouble = "no keys for the tokens of requests and answers";
        return false;
      }
      rows.expect_times(timed);
      first = false;
    }
    const std::size_t before = rows.workload().requests.size();
    rows.add(ns, input, output, number);
    if (prefix != nullptr && rows.workload().requests.size() > before)
      for (const auto& id : *prefix)
        if (id.is_number_integer()) rows.add_prefix(static_cast<std::uint64_t>(id.get<std::int64_t>()));
    return true;
  });
  if (!trouble.empty()) return fail(trouble, where, std::string(kAdvice));
  return rows.finish();
}

}  // namespace

Result<Workload> parse_workload(std::string_view text, const std::string& where, Notes& notes) {
  const std::size_t at = text.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (at == std::string_view::npos) return fail("it is empty", where, std::string(kAdvice));
  if (text[at] == '{') return parse_lines(text, where, notes);
  return parse_table(text.substr(at), where, notes);
}

Result<Workload> read_workload(const std::string& path, Notes& notes) {
  auto file = open_file(path);
  if (!file) return tl::unexpected(file.error());
  auto source = decompressed(std::move(*file), path);
  if (!source) return tl::unexpected(source.error());
  const auto text = read_at_most(**source, kMostBytes + 1);
  if (!text) return tl::unexpected(text.error());
  if (text->size() > kMostBytes) return fail("larger than 1 GiB", path, "a part of it");
  if (const SourceTrouble t = (*source)->trouble(); t.kind != SourceTrouble::Kind::none)
    notes.add("file-cut", Severity::data_loss, 1, path + ": " + t.what, "requests up to there are used");
  return parse_workload(*text, path, notes);
}

}  // namespace orrery
