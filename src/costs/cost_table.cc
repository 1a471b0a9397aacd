#include "costs/cost_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "base/byte_source.h"
#include "base/number_text.h"
#include "costs/csv_records.h"
#include "costs/operator_table.h"

namespace orrery {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 20;
constexpr std::string_view kAdvice = "columns: kernel,shape,time_us";

// "1x2048x4096x1024" -> "2048x4096x1024". False: none.
bool canonical_shape(std::string_view text, std::string& shape) {
  shape.clear();
  if (text.empty()) return true;
  std::vector<std::int64_t> parts;
  while (true) {
    const std::size_t end = std::min(text.find_first_of("xX"), text.size());
    std::int64_t value = 0;
    if (read_int(trimmed(text.substr(0, end)), value) != NumberState::ok || value < 1 || parts.size() == 4)
      return false;
    parts.push_back(value);
    if (end == text.size()) break;
    text.remove_prefix(end + 1);
  }
  if (parts.size() == 2) return false;
  for (std::size_t i = parts.size() == 4 && parts[0] == 1 ? 1 : 0; i < parts.size(); ++i)
    shape += (shape.empty() ? "" : "x") + std::to_string(parts[i]);
  return true;
}

std::uint64_t hash_of(std::string_view kernel, std::string_view shape) {
  const std::hash<std::string_view> hash;
  std::uint64_t h = hash(kernel) * 0x9e3779b97f4a7c15u + hash(shape);
  h ^= h >> 32;
  return h * 0x9e3779b97f4a7c15u;
}

}  // namespace

std::size_t CostTable::slot_of(std::string_view kernel, std::string_view shape, std::uint64_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t k = hash >> 32;; ++k) {
    const Slot& slot = slots_[k & mask];
    if (slot.row == kNone) return k & mask;
    if (slot.hash == hash && rows_[slot.row].shape == shape && rows_[slot.row].kernel == kernel) return k & mask;
  }
}

std::uint32_t CostTable::add(CostRow row) {
  if (slots_.size() <= 2 * rows_.size()) {
    const std::vector<Slot> old =
        std::exchange(slots_, std::vector<Slot>(std::max<std::size_t>(64, 2 * slots_.size())));
    for (const Slot& taken : old) {
      if (taken.row == kNone) continue;
      std::size_t k = taken.hash >> 32;
      while (slots_[k & (slots_.size() - 1)].row != kNone) ++k;
      slots_[k & (slots_.size() - 1)] = taken;
    }
  }
  const std::uint64_t hash = hash_of(row.kernel, row.shape);
  Slot& slot = slots_[slot_of(row.kernel, row.shape, hash)];
  if (slot.row != kNone) return slot.row;
  slot = {hash, static_cast<std::uint32_t>(rows_.size())};
  rows_.push_back(std::move(row));
  return kNone;
}

const CostRow* CostTable::find(std::string_view kernel, std::string_view shape) const {
  if (slots_.empty()) return nullptr;
  const std::uint32_t row = slots_[slot_of(kernel, shape, hash_of(kernel, shape))].row;
  return row == kNone ? nullptr : &rows_[row];
}

const CostRow* CostTable::lookup(std::string_view kernel, std::string_view shape) const {
  const CostRow* row = find(kernel, shape);
  return row == nullptr && !shape.empty() ? find(kernel, {}) : row;
}

const CostRow* CostTable::lookup(const WorkSize& size) const {
  if (size.kind != WorkKind::gemm) return nullptr;
  constexpr std::array<std::string_view, 2> kTwoBytes = {"gemm-bf16", "gemm-fp16"},
                                            kFourBytes = {"gemm-fp32", "gemm-tf32"};
  if (size.bytes_per_element != 2 && size.bytes_per_element != 4) return nullptr;
  const std::string shape = shape_text(size);
  for (const std::string_view name : size.bytes_per_element == 2 ? kTwoBytes : kFourBytes)
    if (const CostRow* row = find(name, shape); row != nullptr) return row;
  return nullptr;
}

std::string shape_text(const WorkSize& size) {
  const auto whole = [](double x) { return std::to_string(std::isfinite(x) && x < 9e18 ? std::llround(x) : 0); };
  switch (size.kind) {
    case WorkKind::gemm:
    case WorkKind::attention:
    case WorkKind::attention_backward: {
      const std::string batch = size.batch == 1 ? "" : whole(size.batch) + "x";
      return batch + whole(size.m) + "x" + whole(size.n) + "x" + whole(size.k);
    }
    case WorkKind::memory:
      return whole(size.m * size.batch);
    case WorkKind::fixed:
    case WorkKind::unknown:
      break;
  }
  return {};
}

Result<CostTable> parse_cost_table(std::string_view text, const std::string& where) {
  constexpr std::array<std::string_view, 3> kColumns = {"kernel", "shape", "time_us"};
  CostTable table;
  CsvRecords reader(text);
  std::vector<std::string> fields;
  std::array<std::size_t, 3> column = {};
  std::size_t width = 0;
  std::optional<std::size_t> device, machine;
  for (CsvRecords::State state; (state = reader.next(fields)) != CsvRecords::State::end;) {
    const auto wrong = [&](std::string what, std::string advice) {
      return fail(std::move(what), where + ", line " + std::to_string(reader.line()), std::move(advice));
    };
    if (state == CsvRecords::State::open_quote) return wrong("a quoted field has no end", "write \"\" for a quote");
    if (state == CsvRecords::State::stray_quote)
      return wrong("text after a quoted field", "write \"\" for a quote within one");
    if (fields.size() == 1 && fields[0].empty()) continue;
    if (width == 0) {
      width = fields.size();
      for (std::size_t c = 0; c < kColumns.size(); ++c) {
        const auto found = std::find(fields.begin(), fields.end(), kColumns[c]);
        if (found == fields.end())
          return wrong("no column " + std::string(kColumns[c]) + " in the header", std::string(kAdvice));
        column[c] = static_cast<std::size_t>(found - fields.begin());
      }
      for (std::size_t c = 0; c < width; ++c) {
        if (fields[c] == "device") device = c;
        if (fields[c] == "machine") machine = c;
      }
      continue;
    }
    if (fields.size() != width)
      return wrong(std::to_string(fields.size()) + " fields, the header has " + std::to_string(width),
                   "quote kernel names that have commas");
    if (device && table.device_.empty()) table.device_ = fields[*device];
    if (machine && table.machine_.empty()) table.machine_ = fields[*machine];
    CostRow row;
    row.kernel = fields[column[0]];
    row.line = reader.line();
    if (row.kernel.empty()) return wrong("no kernel name", std::string(kAdvice));
    if (!canonical_shape(fields[column[1]], row.shape))
      return wrong("'" + fields[column[1]] + "' is not a shape",
                   "MxNxK or BxMxNxK, a number of elements, or empty for any");
    double us = 0;
    if (read_double(fields[column[2]], us) != NumberState::ok || us <= 0 || us > 1e12)
      return wrong("'" + fields[column[2]] + "' is not a time", "microseconds, above 0");
    row.ns = us * 1e3;
    if (const std::uint32_t before = table.add(std::move(row)); before != CostTable::kNone)
      return wrong("the same kernel and shape as in line " + std::to_string(table.rows_[before].line),
                   "keep one of them");
  }
  if (width == 0) return fail("empty", where, std::string(kAdvice));
  return table;
}

Result<CostTable> read_cost_table(const std::string& path) {
  Result<SourcePtr> file = open_file(path);
  if (!file) return tl::unexpected<Error>(file.error());
  Result<SourcePtr> source = decompressed(std::move(*file), path);
  if (!source) return tl::unexpected<Error>(source.error());
  Result<std::string> text = read_at_most(**source, kMostBytes + 1);
  if (!text) return tl::unexpected<Error>(text.error());
  if (text->size() > kMostBytes) return fail("above 64 MiB", path, "a cost table has one row a kernel and shape");
  const SourceTrouble trouble = (*source)->trouble();
  if (trouble.kind != SourceTrouble::Kind::none) return fail(trouble.what, path, "the cost table is not whole");
  if (text->starts_with("{")) {  // the document of `orrery bench ops --json`
    const auto table = parse_operator_table(*text, path);
    if (!table) return tl::unexpected<Error>(table.error());
    *text = write_operator_table(*table);
  }
  return parse_cost_table(*text, path);
}

}  // namespace orrery
