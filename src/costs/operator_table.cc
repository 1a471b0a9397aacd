#include "costs/operator_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/number_text.h"
#include "costs/csv_records.h"

namespace orrery {
namespace {

constexpr std::array<std::string_view, kOperatorKinds> kNames = {
    "peak",      "stream",  "launch",     "gemm",       "attention",      "copy",
    "add",       "silu",    "norm",       "softmax",    "embedding",      "adamw",
    "to_device", "to_host", "all_reduce", "all_gather", "reduce_scatter", "all_to_all"};
constexpr std::array<std::string_view, 3> kWays = {"naive", "tiled", "composed"};
constexpr std::string_view kAdvice = "a table that `orrery bench ops -o` wrote";

// Columns of the file; those from `least_us` on may be missing.
enum Column : std::size_t {
  op,
  way,
  causal,
  shape,
  dtype,
  time_us,
  least_us,
  spread_pct,
  bytes,
  flops,
  threads,
  ranks,
  repetitions,
  noisy,
  device,
  machine,
  library,
  kColumns
};
constexpr std::array<std::string_view, kColumns> kColumnNames = {
    "operator", "way",     "causal", "shape",       "dtype", "time_us", "least_us", "spread_pct", "bytes",
    "flops",    "threads", "ranks",  "repetitions", "noisy", "device",  "machine",  "library"};
bool required(std::size_t c) { return c == op || c == shape || c == dtype || c == time_us; }

bool read_shape(std::string_view text, OperatorKind kind, std::array<double, 4>& size) {
  std::vector<double> parts;
  while (true) {
    const std::size_t end = std::min(text.find('x'), text.size());
    double value = 0;
    if (read_double(text.substr(0, end), value) != NumberState::ok || value < 1 || value > 1e15 ||
        value != std::floor(value) || parts.size() == 4)
      return false;
    parts.push_back(value);
    if (end == text.size()) break;
    text.remove_prefix(end + 1);
  }
  size = {1, 1, 1, 1};
  if (kind == OperatorKind::gemm || kind == OperatorKind::attention) {
    if (parts.size() < 3) return false;
    std::copy(parts.begin(), parts.end(), size.begin() + static_cast<std::ptrdiff_t>(4 - parts.size()));
    return true;
  }
  size[0] = parts[0];
  return parts.size() == 1;
}

std::string number(double x) { return fmt::format("{:.6g}", x); }
std::string whole(double x) { return fmt::format("{:.0f}", x); }
std::string quoted(const std::string& s) {
  if (s.find_first_of(",\"\n\r") == std::string::npos) return s;
  std::string out = "\"";
  for (const char c : s) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

// Fields by column; an empty text = none.
using Fields = std::array<std::string, kColumns>;

class Reader {
 public:
  explicit Reader(std::string where) : where_(std::move(where)) {}

  tl::unexpected<Error> wrong(std::string what, std::string advice) const {
    return fail(std::move(what), place_, std::move(advice));
  }
  Status add(const Fields& f, std::string place, std::uint64_t line) {
    place_ = std::move(place);
    OperatorRow r;
    r.line = line;
    if (!read_operator(f[op], r.kind))
      return wrong("'" + f[op] + "' is not an operator", "gemm, attention, copy, add, all_reduce ...");
    if (!f[way].empty()) {
      const auto w = std::find(kWays.begin(), kWays.end(), f[way]);
      if (w == kWays.end()) return wrong("'" + f[way] + "' is not a way of attention", "naive, tiled or composed");
      r.way = static_cast<AttentionWay>(w - kWays.begin());
    }
    if (!flag(f[causal], r.causal) || !flag(f[noisy], r.noisy))
      return wrong("neither true nor false", "in causal, noisy");
    if (!read_shape(f[shape], r.kind, r.size))
      return wrong("'" + f[shape] + "' is not a shape", "MxNxK or BxMxNxK, else a number of elements");
    if (!read_precision(f[dtype], r.precision)) return wrong("'" + f[dtype] + "' is not a precision", "fp32, bf16 ...");
    double us = 0, least = 0, spread = 0, t = 1, n = 1, times = 0;
    if (read_double(f[time_us], us) != NumberState::ok || !(us > 0) || us > 1e12)
      return wrong("'" + f[time_us] + "' is not a time", "microseconds, above 0");
    const std::pair<std::size_t, std::pair<double*, double>> numbers[] = {
        {least_us, {&least, 1e12}},   {spread_pct, {&spread, 1e9}}, {bytes, {&r.bytes, 1e18}},
        {flops, {&r.flops, 1e24}},    {threads, {&t, 1e5}},         {ranks, {&n, 1e6}},
        {repetitions, {&times, 1e12}}};
    for (const auto& [c, to] : numbers) {
      if (f[c].empty()) continue;
      if (read_double(f[c], *to.first) != NumberState::ok || *to.first < 0 || *to.first > to.second)
        return wrong("'" + f[c] + "' is not a number of " + std::string(kColumnNames[c]), "0 or more");
    }
    r.ns = 1e3 * us, r.least_ns = 1e3 * least, r.spread = spread / 100;
    r.threads = std::max<std::int64_t>(1, std::llround(t)), r.ranks = std::max<std::int64_t>(1, std::llround(n));
    r.repetitions = std::llround(times);
    r.library = f[library];
    const std::string kind_of_device = f[device].empty() ? "cpu" : f[device];
    if (table_.rows.empty()) {
      table_.device = kind_of_device, table_.machine = f[machine];
      if (table_.device != "cpu" && table_.device != "cuda" && table_.device != "rocm")
        return wrong("'" + table_.device + "' is not a device", "cpu, cuda or rocm");
    } else if (kind_of_device != table_.device || f[machine] != table_.machine) {
      return wrong("another device than in the rows before", "one table a device");
    }
    const std::string key = fmt::format("{} {} {}", kernel_text(r), shape_text(r), r.threads);
    if (const auto [at, fresh] = seen_.emplace(key, place_); !fresh)
      return wrong("the same operator as in " + at->second, "keep one of them");
    table_.rows.push_back(std::move(r));
    return {};
  }
  Result<OperatorTable> finish() {
    if (table_.rows.empty()) return fail("no operators in it", where_, std::string(kAdvice));
    return std::move(table_);
  }

 private:
  static bool flag(const std::string& text, bool& out) {
    out = text == "true" || text == "1" || text == "yes";
    return out || text.empty() || text == "false" || text == "0" || text == "no";
  }

  std::string where_, place_;
  OperatorTable table_;
  std::map<std::string, std::string> seen_;
};

Result<OperatorTable> from_csv(std::string_view text, const std::string& where) {
  CsvRecords records(text);
  Reader reader(where);
  std::vector<std::string> fields;
  std::array<std::size_t, kColumns> column{};
  constexpr auto kNone = static_cast<std::size_t>(-1);
  std::size_t width = 0;
  for (CsvRecords::State state; (state = records.next(fields)) != CsvRecords::State::end;) {
    const std::string place = fmt::format("{}, line {}", where, records.line());
    if (state == CsvRecords::State::open_quote)
      return fail("a quoted field has no end", place, "write \"\" for a quote");
    if (state == CsvRecords::State::stray_quote)
      return fail("text after a quoted field", place, "write \"\" for a quote");
    if (fields.size() == 1 && fields[0].empty()) continue;
    if (width == 0) {
      width = fields.size();
      for (std::size_t c = 0; c < kColumns; ++c) {
        const auto found = std::find(fields.begin(), fields.end(), kColumnNames[c]);
        if (found == fields.end() && required(c))
          return fail("no column " + std::string(kColumnNames[c]) + " in the header", place, std::string(kAdvice));
        column[c] = found == fields.end() ? kNone : static_cast<std::size_t>(found - fields.begin());
      }
      continue;
    }
    if (fields.size() != width)
      return fail(fmt::format("{} fields, the header has {}", fields.size(), width), place, "quote what has commas");
    Fields row;
    for (std::size_t c = 0; c < kColumns; ++c)
      if (column[c] != kNone) row[c] = fields[column[c]];
    if (const Status ok = reader.add(row, place, records.line()); !ok) return tl::unexpected(ok.error());
  }
  return reader.finish();
}

Result<OperatorTable> from_json(std::string_view text, const std::string& where) {
  const nlohmann::json j = nlohmann::json::parse(text, nullptr, false);
  if (!j.is_object() || !j.contains("operators") || !j["operators"].is_array())
    return fail("not a table of operators", where, std::string(kAdvice));
  Reader reader(where);
  std::uint64_t number_of_row = 0;
  for (const nlohmann::json& o : j["operators"]) {
    Fields row;
    for (std::size_t c = 0; c < kColumns && o.is_object(); ++c) {
      const auto it = o.find(kColumnNames[c]);
      if (it == o.end() || it->is_null()) continue;
      row[c] = it->is_string() ? it->get<std::string>() : it->dump();
    }
    const Status ok = reader.add(row, fmt::format("{}, row {}", where, ++number_of_row), 0);
    if (!ok) return tl::unexpected(ok.error());
  }
  return reader.finish();
}

}  // namespace

std::string_view name_of(OperatorKind k) { return kNames[static_cast<std::size_t>(k)]; }
std::string_view name_of(AttentionWay w) { return kWays[static_cast<std::size_t>(w)]; }

bool read_operator(std::string_view text, OperatorKind& out) {
  const auto found = std::find(kNames.begin(), kNames.end(), text);
  if (found == kNames.end()) return false;
  out = static_cast<OperatorKind>(found - kNames.begin());
  return true;
}

bool is_collective(OperatorKind k) { return k >= OperatorKind::all_reduce; }
bool moves_memory(OperatorKind k) { return k >= OperatorKind::copy && k <= OperatorKind::adamw; }

double OperatorTable::best_flop_per_ns(OperatorKind kind, Precision p) const {
  double best = 0;
  for (const OperatorRow& r : rows)
    if (r.kind == kind && r.precision == p && r.ns > 0)
      best = std::max(best, r.flops / (r.least_ns > 0 ? r.least_ns : r.ns));
  return best;
}
double OperatorTable::best_bytes_per_ns(OperatorKind kind) const {
  double best = 0;
  for (const OperatorRow& r : rows)
    if (r.kind == kind && r.ns > 0) best = std::max(best, r.bytes / (r.least_ns > 0 ? r.least_ns : r.ns));
  return best;
}

std::string kernel_text(const OperatorRow& row) {
  std::string text(name_of(row.kind));
  if (row.kind == OperatorKind::attention) text += "-" + std::string(name_of(row.way)) + (row.causal ? "-causal" : "");
  text += "-" + std::string(name_of(row.precision));
  if (row.ranks > 1) text += fmt::format("-x{}", row.ranks);
  return text;
}

std::string shape_text(const OperatorRow& row) {
  if (row.kind != OperatorKind::gemm && row.kind != OperatorKind::attention) return whole(row.size[0]);
  return (row.size[0] == 1 ? "" : whole(row.size[0]) + "x") + whole(row.size[1]) + "x" + whole(row.size[2]) + "x" +
         whole(row.size[3]);
}

std::string write_operator_table(const OperatorTable& table) {
  std::string out = "kernel";
  for (const std::string_view name : kColumnNames) out += "," + std::string(name);
  out += "\n";
  for (const OperatorRow& r : table.rows) {
    const bool attends = r.kind == OperatorKind::attention;
    out += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", kernel_text(r), name_of(r.kind),
                       attends ? name_of(r.way) : "", attends ? (r.causal ? "true" : "false") : "", shape_text(r),
                       name_of(r.precision), number(r.ns / 1e3), number(r.least_ns / 1e3), number(100 * r.spread),
                       whole(r.bytes), whole(r.flops), r.threads, r.ranks, r.repetitions, r.noisy ? "true" : "false",
                       table.device, quoted(table.machine), quoted(r.library));
  }
  return out;
}

bool looks_like_operator_table(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return false;
  text.remove_prefix(begin);
  if (text.front() == '{') {
    const std::string_view head = text.substr(0, 4'096);
    const std::size_t command = head.find("\"command\"");
    return command != std::string_view::npos &&
           head.substr(command, 40).find("\"bench ops\"") != std::string_view::npos;
  }
  const std::string line = "," + std::string(text.substr(0, std::min(text.find_first_of("\r\n"), text.size()))) + ",";
  return line.find(",operator,") != std::string::npos && line.find(",time_us,") != std::string::npos;
}

Result<OperatorTable> parse_operator_table(std::string_view text, const std::string& where) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  return begin != std::string_view::npos && text[begin] == '{' ? from_json(text, where) : from_csv(text, where);
}

}  // namespace orrery
