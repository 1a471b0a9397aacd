#include "importers/jobs_utilization.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <unordered_set>

#include "base/json_text.h"
#include "base/number_text.h"
#include "base/text_match.h"
#include "importers/jobs_csv.h"
#include "importers/jobs_time.h"

namespace orrery {
namespace {

constexpr std::size_t kMantissa = 12;

std::uint32_t class_of(float x) {
  // Ordered as the numbers are: negatives reversed below positives.
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return ordered >> (23 - kMantissa);
}

float value_of(std::uint32_t c) {  // the middle of the class; whole numbers up to 4,096 are their class's lower end
  const std::uint32_t ordered = c << (23 - kMantissa);
  return std::bit_cast<float>(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

bool is_time_name(std::string_view name) {
  const std::string n = lower(name);
  return n == "time" || n == "timestamp" || n == "date" || n == "datetime";
}

// Columns that name devices or number rows.
bool is_id_name(std::string_view name) {
  const std::string n = lower(name);
  return n.empty() || n == "node" || n == "host" || n == "hostname" || n == "machineid" || n == "machine_id" ||
         n == "ip" || n == "instance" || n == "gpu" || n == "idx" || n == "index" || n == "unnamed: 0" || n == "job" ||
         n == "server";
}

// "10.140.0.1", "172.31.15.112-6", "node12", "gpu-node-3:1": a device, not a quantity.
bool is_device_name(std::string_view name) {
  int dots = 0, digits = 0, others = 0;
  for (const char c : name) {
    dots += c == '.';
    digits += c >= '0' && c <= '9';
    others += (c < '0' || c > '9') && c != '.' && c != '-' && c != ':' && c != '_';
  }
  if (dots >= 3 && digits >= 4 && others == 0) return true;
  const std::string n = lower(name);
  for (const std::string_view word : {"node", "host", "server", "worker"})
    if (n.rfind(word, 0) == 0 && n.size() > word.size() && n.back() >= '0' && n.back() <= '9') return true;
  return others > 0 && digits > 0 && (has(n, "-") || has(n, ":")) && n.back() >= '0' && n.back() <= '9';
}

// "gpu0_util" of eight GPUs -> "gpu_util"
std::string without_gpu_number(std::string_view name) {
  const std::string n = lower(name);
  const std::size_t at = n.find("gpu");
  if (at == std::string::npos) return std::string(name);
  std::size_t end = at + 3;
  while (end < n.size() && n[end] >= '0' && n[end] <= '9') ++end;
  if (end == at + 3) return std::string(name);
  return std::string(name.substr(0, at + 3)) + std::string(name.substr(end));
}

struct Metric {
  std::string name;
  Distribution values;
  std::uint64_t missing = 0, columns = 0;
  std::vector<bool> seen;  // by column: any value
};

enum class Part : std::uint8_t { time, id, value, dropped };

class Series {
 public:
  Series(std::string label, std::string stem) : label_(std::move(label)), stem_(std::move(stem)) {}

  bool header(const std::vector<std::string_view>& fields, std::uint64_t line) {
    parts_.clear();
    metric_.clear();
    node_column_ = -1;
    std::unordered_set<std::string_view> names;
    bool time = false;
    for (std::size_t i = 0; i < fields.size(); ++i) {
      std::string_view name = fields[i];
      if (i == 0 && name.starts_with("\xef\xbb\xbf")) name.remove_prefix(3);
      Part part = Part::value;
      if (!time && is_time_name(name)) {
        part = Part::time;
        time = true;
      } else if (is_id_name(name)) {
        part = Part::id;
        if (node_column_ < 0 && lower(name) != "idx" && lower(name) != "index" && !name.empty())
          node_column_ = static_cast<int>(i);
      } else if (const bool again = !names.insert(name).second; again || repeats(names, name)) {
        // "10.140.0.1.1" beside "10.140.0.1": a column written twice
        if (dropped_++ == 0) first_dropped_ = fmt::format("{}:{}: {}", label_, line, quote_for_people(name, 60));
        part = Part::dropped;
      }
      parts_.push_back(part);
      std::size_t m = 0;
      if (part == Part::value) {
        const std::string of = is_device_name(name) ? stem_ : without_gpu_number(name);
        while (m < metrics_.size() && metrics_[m].name != of) ++m;
        if (m == metrics_.size()) {
          metrics_.emplace_back();
          metrics_.back().name = of;
        }
        if (metrics_[m].seen.size() <= i) metrics_[m].seen.resize(i + 1);
      }
      metric_.push_back(m);
    }
    find_rest();
    return time && !metrics_.empty();
  }

  void row(const std::vector<std::string_view>& f, std::uint64_t line) {
    if (f.size() != parts_.size()) return bad(line, fmt::format("{} fields of {}", f.size(), parts_.size()));
    std::int64_t at = kNone64;
    for (std::size_t i = 0; i < f.size(); ++i)
      if (parts_[i] == Part::time && times_.read(f[i], at) != TimeReader::State::ok)
        return bad(line, "not a time: " + quote_for_people(f[i], 40));
    const std::string_view node = node_column_ >= 0 ? f[static_cast<std::size_t>(node_column_)] : std::string_view();
    if (!node.empty()) nodes_.insert(std::string(node));
    const std::uint64_t key =
        static_cast<std::uint64_t>(at) ^ (std::hash<std::string_view>{}(node)*0x9e3779b97f4a7c15ull);
    if (!instants_.insert(key).second) {
      if (repeated_++ == 0) first_repeated_ = fmt::format("{}:{}", label_, line);
      return;
    }
    if (node_column_ < 0 || last_ == kNone64 || at != last_) {
      if (last_ != kNone64 && at > last_) steps_.push_back(at - last_);
      last_ = at;
    }
    double rest = 0;
    bool has_rest = rest_metric_ >= 0;
    for (std::size_t i = 0; i < f.size(); ++i) {
      if (parts_[i] != Part::value) continue;
      Metric& m = metrics_[metric_[i]];
      double x = 0;
      if (is_missing(f[i])) {
        ++m.missing;
        has_rest &= !of_rest(i);
        continue;
      }
      if (read_double(f[i], x) != NumberState::ok) {
        if (not_numbers_++ == 0) first_not_number_ = fmt::format("{}:{}: {}", label_, line, quote_for_people(f[i], 40));
        ++m.missing;
        has_rest &= !of_rest(i);
        continue;
      }
      m.values.add(x);
      m.seen[i] = true;
      if (of_rest(i)) rest += static_cast<int>(i) == rest_[0] ? x : -x;
    }
    if (has_rest) {
      Metric& m = metrics_[static_cast<std::size_t>(rest_metric_)];
      m.values.add(rest);
      m.seen[0] = true;
    }
  }

  void bad(std::uint64_t line, const std::string& why) {
    if (bad_++ == 0) first_bad_ = fmt::format("{}:{}: {}", label_, line, why);
  }

  UtilFile finish() {
    UtilFile out;
    double step = 0;
    if (!steps_.empty()) {
      const auto mid = steps_.begin() + static_cast<std::ptrdiff_t>(steps_.size() / 2);
      std::nth_element(steps_.begin(), mid, steps_.end());
      step = static_cast<double>(*mid) / 1000;
    }
    std::uint64_t fractions = 0;
    for (Metric& m : metrics_) {
      if (m.values.size() == 0) continue;
      UtilMetric u;
      u.name = m.name;
      u.file = label_;
      const std::string name = lower(m.name);
      // DCGM's ratios and node_exporter's shares: 0 to 1 becomes 0 to 100, as every other share here is.
      if (has_any(name, {"active", "occupancy", "utilization"}) && m.values.max() <= 1 && m.values.max() > 0) {
        m.values.scale(100);
        ++fractions;
      }
      m.values.describe(u);
      u.missing = m.missing;
      u.devices =
          !nodes_.empty() ? nodes_.size() : static_cast<std::uint64_t>(std::count(m.seen.begin(), m.seen.end(), true));
      u.step_s = step;
      out.metrics.push_back(std::move(u));
    }
    out.notes.add("bad-row", Severity::data_loss, bad_, first_bad_, "rows that cannot be read are in no table");
    out.notes.add("not-a-number", Severity::warning, not_numbers_, first_not_number_, "taken as missing");
    out.notes.add("repeated-time", Severity::info, repeated_, first_repeated_, "the first row of an instant counts");
    out.notes.add("repeated-column", Severity::info, dropped_, first_dropped_, "the first of equal columns counts");
    out.notes.add("fraction-as-percent", Severity::warning, fractions, label_,
                  "values from 0 to 1 are shown as 0 to 100");
    return out;
  }

 private:
  static constexpr std::int64_t kNone64 = std::numeric_limits<std::int64_t>::min();

  static bool repeats(const std::unordered_set<std::string_view>& names, std::string_view name) {
    const std::size_t dot = name.rfind('.');
    if (dot == std::string_view::npos || dot + 1 == name.size()) return false;
    for (std::size_t i = dot + 1; i < name.size(); ++i)
      if (name[i] < '0' || name[i] > '9') return false;
    return names.count(name.substr(0, dot)) != 0 && is_device_name(name.substr(0, dot));
  }

  // Of IPMI: what a server draws beside its CPUs and memory, GPUs for the most part.
  void find_rest() {
    rest_ = {-1, -1, -1};
    rest_metric_ = -1;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i] != Part::value) continue;
      const std::string name = lower(metrics_[metric_[i]].name);
      if (name == "sys_total_power") rest_[0] = static_cast<int>(i);
      if (name == "cpu_power") rest_[1] = static_cast<int>(i);
      if (name == "memory_power") rest_[2] = static_cast<int>(i);
    }
    if (rest_[0] < 0 || rest_[1] < 0 || rest_[2] < 0) return;
    for (std::size_t m = 0; m < metrics_.size(); ++m)
      if (metrics_[m].name == "Rest_Power") rest_metric_ = static_cast<int>(m);
    if (rest_metric_ >= 0) return;
    metrics_.emplace_back();
    metrics_.back().name = "Rest_Power";
    metrics_.back().seen.resize(1);
    rest_metric_ = static_cast<int>(metrics_.size() - 1);
  }
  bool of_rest(std::size_t i) const {
    const int c = static_cast<int>(i);
    return rest_metric_ >= 0 && (c == rest_[0] || c == rest_[1] || c == rest_[2]);
  }

  std::string label_, stem_;
  std::vector<Part> parts_;
  std::vector<std::size_t> metric_;  // by column
  std::vector<Metric> metrics_;
  int node_column_ = -1, rest_metric_ = -1;
  std::array<int, 3> rest_{};
  TimeReader times_;
  std::unordered_set<std::uint64_t> instants_;
  std::unordered_set<std::string> nodes_;
  std::vector<std::int64_t> steps_;
  std::int64_t last_ = kNone64;
  std::uint64_t bad_ = 0, repeated_ = 0, dropped_ = 0, not_numbers_ = 0;
  std::string first_bad_, first_repeated_, first_dropped_, first_not_number_;
};

// "percentile,value": the file's own quantile function.
Result<UtilFile> read_quantiles(CsvReader& reader, const std::string& label, const std::string& stem) {
  UtilFile out;
  UtilMetric m;
  m.name = stem;
  m.file = label;
  m.quantiles_only = true;
  std::vector<std::string_view> f;
  std::uint64_t bad = 0;
  std::string first_bad;
  for (;;) {
    auto row = reader.next(f);
    if (!row) return tl::unexpected(row.error());
    if (*row == CsvReader::Row::end) break;
    double p = 0, v = 0;
    const bool numbers = *row == CsvReader::Row::row && f.size() == 2 && read_double(f[0], p) == NumberState::ok &&
                         read_double(f[1], v) == NumberState::ok;
    if (!numbers || p < 0 || p > 100) {
      if (bad++ == 0)
        first_bad = fmt::format("{}:{}: not a percentile and a value: {}", label, reader.line(),
                                quote_for_people(reader.text(), 40));
      continue;
    }
    m.percentile.push_back(p);
    m.value.push_back(v);
  }
  if (m.value.empty()) return fail("no quantiles in it", label);
  // Read off a picture, points may stand in a wrong order: as many lie below each value as before.
  if (!std::is_sorted(m.value.begin(), m.value.end()) || !std::is_sorted(m.percentile.begin(), m.percentile.end())) {
    out.notes.add("quantiles-reordered", Severity::info, 1, label,
                  "percentiles and values do not rise together; sorted");
    std::sort(m.value.begin(), m.value.end());
    std::sort(m.percentile.begin(), m.percentile.end());
  }
  for (std::size_t i = 1; i < m.value.size(); ++i)
    m.mean += (m.percentile[i] - m.percentile[i - 1]) * (m.value[i] + m.value[i - 1]) / 200;
  m.max = m.value.back();
  const auto above = std::upper_bound(m.value.begin(), m.value.end(), 0.0);
  if (above != m.value.begin()) m.zero_pct = m.percentile[static_cast<std::size_t>(above - m.value.begin()) - 1];
  out.notes.add("bad-row", Severity::data_loss, bad, first_bad, "rows that cannot be read are in no table");
  out.metrics.push_back(std::move(m));
  return out;
}

std::vector<std::string_view> fields_of(std::string_view bytes) {
  const std::string_view line = bytes.substr(0, bytes.find('\n'));
  std::vector<std::string_view> fields;
  const char separator = separator_of(line);
  for (std::size_t i = 0; i <= line.size();) {
    const std::size_t end = std::min(line.find(separator, i), line.size());
    std::string_view f = line.substr(i, end - i);
    if (f.ends_with('\r')) f.remove_suffix(1);
    if (fields.empty() && f.starts_with("\xef\xbb\xbf")) f.remove_prefix(3);
    fields.push_back(f);
    i = end + 1;
  }
  return fields;
}

bool is_quantile_header(const std::vector<std::string_view>& f) {
  return f.size() == 2 && lower(f[0]) == "percentile" && lower(f[1]) == "value";
}

}  // namespace

void Distribution::add(double x) {
  if (count_ == 0) max_ = min_ = x;
  ++count_;
  sum_ += x;
  zeros_ += x <= 0;
  max_ = std::max(max_, x);
  min_ = std::min(min_, x);
  if (!folded_ && exact_.size() == kExact) fold();
  if (folded_)
    ++classes_[class_of(static_cast<float>(x))];
  else
    exact_.push_back(static_cast<float>(x));
}

void Distribution::fold() {
  folded_ = true;
  classes_.resize(std::size_t{1} << (9 + kMantissa));
  for (const float x : exact_) ++classes_[class_of(x)];
  std::vector<float>().swap(exact_);
}

void Distribution::describe(UtilMetric& m) {
  m.samples = count_;
  if (count_ == 0) return;
  m.mean = static_cast<double>(sum_ / static_cast<long double>(count_)) * scale_;
  m.sum = static_cast<double>(sum_) * scale_;
  m.max = max_ * scale_;
  m.zero_pct = 100 * static_cast<double>(zeros_) / static_cast<double>(count_);
  m.approximate = folded_;
  std::sort(exact_.begin(), exact_.end());
  std::size_t cls = 0;
  std::uint64_t below = 0;  // samples in classes before `cls`
  const auto order = [&](std::uint64_t k) {
    if (!folded_) return static_cast<double>(exact_[static_cast<std::size_t>(k)]);
    while (below + classes_[cls] <= k) below += classes_[cls++];
    return static_cast<double>(value_of(static_cast<std::uint32_t>(cls)));
  };
  constexpr int kPoints = 1000;
  for (int i = 0; i <= kPoints; ++i) {
    const double x = static_cast<double>(i) / kPoints * static_cast<double>(count_ - 1);
    const auto k = static_cast<std::uint64_t>(x);
    double v = order(k);
    if (x > static_cast<double>(k) && !folded_) v += (order(k + 1) - v) * (x - static_cast<double>(k));
    m.percentile.push_back(100.0 * i / kPoints);
    m.value.push_back(std::clamp(v, min_, max_) * scale_);
  }
}

bool looks_like_utilization(std::string_view bytes) {
  const auto f = fields_of(bytes);
  if (is_quantile_header(f)) return true;
  bool time = false, value = false;
  for (const std::string_view name : f) {
    const bool is_time = is_time_name(name);
    value |= !is_time && !is_id_name(name);
    time |= is_time;
  }
  return time && value;
}

Result<UtilFile> import_utilization(ByteSource& source, const std::string& label, const std::string& stem) {
  CsvReader reader(source, ',');
  std::vector<std::string_view> f;
  auto row = reader.next(f);
  if (!row) return tl::unexpected(row.error());
  if (*row != CsvReader::Row::row) return fail("no header", label);
  if (is_quantile_header(fields_of(reader.text()))) return read_quantiles(reader, label, stem);
  Series series(label, stem);
  if (!series.header(f, reader.line()))
    return fail("no column of times beside columns of numbers: " + quote_for_people(reader.text(), 80), label);
  for (;;) {
    row = reader.next(f);
    if (!row) return tl::unexpected(row.error());
    if (*row == CsvReader::Row::end) break;
    if (*row == CsvReader::Row::bad) {
      series.bad(reader.line(), "a quote that does not end, or a line too long");
      continue;
    }
    // Files put together: a header again, with other columns.
    if (is_time_name(f[0]) || (f.size() > 1 && is_time_name(f[1]))) {
      series.header(f, reader.line());
      continue;
    }
    series.row(f, reader.line());
  }
  UtilFile out = series.finish();
  const SourceTrouble trouble = source.trouble();
  if (trouble.kind != SourceTrouble::Kind::none)
    out.notes.add("truncated", Severity::data_loss, 1, fmt::format("{}: {}", label, trouble.what),
                  "the rows before it are answered for");
  if (out.metrics.empty())
    return fail(out.notes.rows.empty() ? "a header and no samples" : "no usable sample: " + out.notes.rows[0].first,
                label);
  return out;
}

}  // namespace orrery
