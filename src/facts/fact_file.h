// A TOML file of facts: tables of numbers, each with its line, its source and how sure it is; and the reading of them
// into a struct. docs/formats/facts.md describes the files.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

namespace orrery {

using FactValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::string>>;

// `key = value`, or `key = { value = ..., source = "...", sure = "..." }`.
struct FactEntry {
  std::string table, key;
  FactValue value;
  std::string source, sure;  // "" = what the table says of all
  std::int64_t line = 0;
};

struct FactFile {
  std::string where;  // named in errors
  std::vector<std::pair<std::string, std::int64_t>> tables;
  std::vector<FactEntry> entries;  // in the order of lines

  bool has(std::string_view table) const;
  std::int64_t line_of(std::string_view table) const;  // 1 without
  const FactEntry* find(std::string_view table, std::string_view key) const;
};

// Errors, with the line: not TOML; larger than any file of facts; a value of a kind that facts do not have.
Result<FactFile> parse_facts(std::string_view text, const std::string& where);

// The same from a file.
Result<FactFile> read_fact_file(const std::string& path);

tl::unexpected<Error> fail_at(const FactFile& file, std::int64_t line, std::string what, std::string advice = {});

// Where a value goes, and between which limits it is believed.
template <class Facts>
struct FactField {
  std::string_view key;
  std::variant<std::int64_t Facts::*, int Facts::*, double Facts::*, bool Facts::*, std::string Facts::*,
               std::vector<std::string> Facts::*>
      member;
  bool required = false;
  double least = 0, most = 0;  // of numbers
};

namespace fact_fields {

// Errors: another kind of value; outside of the limits.
Status put(const FactFile& file, const FactEntry& e, std::int64_t& to, double least, double most);
Status put(const FactFile& file, const FactEntry& e, int& to, double least, double most);
Status put(const FactFile& file, const FactEntry& e, double& to, double least, double most);
Status put(const FactFile& file, const FactEntry& e, bool& to, double least, double most);
Status put(const FactFile& file, const FactEntry& e, std::string& to, double least, double most);
Status put(const FactFile& file, const FactEntry& e, std::vector<std::string>& to, double least, double most);
tl::unexpected<Error> unknown(const FactFile& file, const FactEntry& e, const std::vector<std::string_view>& keys);
Status check_sure(const FactFile& file, const FactEntry& e, const std::string& sure);
void add_exception(const FactEntry& e, std::string& source, std::string& sure);

}  // namespace fact_fields

// All entries of the table `name` into `out`. A number with a source or a sureness of its own adds it to out.source and
// out.sure: "seen; vocab: remembered". Errors, with the line: an unknown key (with the nearest one), another kind of
// value, a value outside of the field's limits. What is missing is not looked for here.
template <class Facts>
Status read_fields(const FactFile& file, std::string_view name, std::span<const FactField<Facts>> fields, Facts& out) {
  std::vector<std::string_view> keys;
  for (const FactField<Facts>& f : fields) keys.push_back(f.key);
  for (const FactEntry& e : file.entries) {
    if (e.table != name) continue;
    const FactField<Facts>* field = nullptr;
    for (const FactField<Facts>& f : fields)
      if (f.key == e.key) field = &f;
    if (field == nullptr) return fact_fields::unknown(file, e, keys);
    const Status put = std::visit(
        [&](auto member) { return fact_fields::put(file, e, out.*member, field->least, field->most); }, field->member);
    if (!put) return put;
    const Status sure = fact_fields::check_sure(file, e, e.key == "sure" ? out.sure : e.sure);
    if (!sure) return sure;
  }
  for (const FactEntry& e : file.entries)
    if (e.table == name) fact_fields::add_exception(e, out.source, out.sure);
  return {};
}

// Errors: a required field that the table `name` does not have.
template <class Facts>
Status require_fields(const FactFile& file, std::string_view name, std::span<const FactField<Facts>> fields) {
  for (const FactField<Facts>& f : fields) {
    if (!f.required || file.find(name, f.key) != nullptr) continue;
    return fail_at(file, file.line_of(name), "[" + std::string(name) + "] has no " + std::string(f.key),
                   "add a line " + std::string(f.key) + " = ...");
  }
  return {};
}

}  // namespace orrery
