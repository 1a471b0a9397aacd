#include "facts/fact_file.h"

#include <algorithm>
#include <cmath>

#include "base/byte_source.h"
#include "base/closest.h"
#include "base/toml.h"

namespace orrery {
namespace {

constexpr std::size_t kLargest = 64 << 10;  // bytes; the largest file of ours has 3 KiB
constexpr std::ptrdiff_t kMostDots = 100;   // in a line

std::int64_t line_of_node(const toml::node& node) { return static_cast<std::int64_t>(node.source().begin.line); }

// Errors: dates, tables, arrays of anything but texts.
Result<FactValue> value_of(const FactFile& file, const toml::node& node, const std::string& key) {
  if (const auto* b = node.as_boolean()) return FactValue(b->get());
  if (const auto* i = node.as_integer()) return FactValue(i->get());
  if (const auto* d = node.as_floating_point()) return FactValue(d->get());
  if (const auto* s = node.as_string()) return FactValue(s->get());
  const toml::array* list = node.as_array();
  std::vector<std::string> texts;
  if (list != nullptr) {
    for (const toml::node& item : *list) {
      const auto* s = item.as_string();
      if (s == nullptr) return fail_at(file, line_of_node(item), key + " holds something else than texts");
      texts.push_back(s->get());
    }
    return FactValue(std::move(texts));
  }
  return fail_at(file, line_of_node(node), key + " is neither a number, a text, true or false, nor a list of texts");
}

// { value = ..., source = "...", sure = "..." }
Result<FactEntry> entry_with_source(const FactFile& file, FactEntry e, const toml::table& table) {
  bool has_value = false;
  for (const auto& [name, node] : table) {
    auto value = value_of(file, node, e.key + "." + std::string(name.str()));
    if (!value) return tl::unexpected(value.error());
    const bool text = std::holds_alternative<std::string>(*value);
    if (name.str() == "value") {
      e.value = std::move(*value);
      has_value = true;
    } else if (name.str() == "source" && text) {
      e.source = std::get<std::string>(*value);
    } else if (name.str() == "sure" && text) {
      e.sure = std::get<std::string>(*value);
    } else {
      return fail_at(file, e.line, e.key + " has an unknown part " + std::string(name.str()),
                     "{ value = ..., source = \"...\", sure = \"...\" }");
    }
  }
  if (!has_value) return fail_at(file, e.line, e.key + " has no value", "{ value = ..., source = \"...\" }");
  return e;
}

Result<FactEntry> entry_of(const FactFile& file, const std::string& table, const toml::key& key,
                           const toml::node& node) {
  FactEntry e{table, std::string(key.str()), {}, {}, {}, line_of_node(node)};
  if (const toml::table* parts = node.as_table()) return entry_with_source(file, std::move(e), *parts);
  auto value = value_of(file, node, e.key);
  if (!value) return tl::unexpected(value.error());
  e.value = std::move(*value);
  return e;
}

std::string shown(double x) {
  std::string s = std::to_string(x);
  s.erase(s.find_last_not_of('0') + 1);
  if (s.back() == '.') s.pop_back();
  return s;
}

Status in_limits(const FactFile& file, const FactEntry& e, double x, double least, double most) {
  if (x >= least && x <= most) return {};  // not so: NaN
  return fail_at(file, e.line, e.key + " = " + shown(x) + " is not possible",
                 "from " + shown(least) + " to " + shown(most));
}

const char* kind_of(const FactValue& v) {
  constexpr const char* kNames[] = {"true or false", "a whole number", "a number", "a text", "a list of texts"};
  return kNames[v.index()];
}

tl::unexpected<Error> wrong_kind(const FactFile& file, const FactEntry& e, const std::string& wanted) {
  return fail_at(file, e.line, e.key + " is " + kind_of(e.value), "must be " + wanted);
}

}  // namespace

tl::unexpected<Error> fail_at(const FactFile& file, std::int64_t line, std::string what, std::string advice) {
  std::replace_if(
      what.begin(), what.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
  return fail(std::move(what), file.where + ":" + std::to_string(line), std::move(advice));
}

bool FactFile::has(std::string_view table) const {
  return std::any_of(tables.begin(), tables.end(), [&](const auto& t) { return t.first == table; });
}

std::int64_t FactFile::line_of(std::string_view table) const {
  for (const auto& t : tables)
    if (t.first == table) return t.second;
  return 1;
}

const FactEntry* FactFile::find(std::string_view table, std::string_view key) const {
  for (const FactEntry& e : entries)
    if (e.table == table && e.key == key) return &e;
  return nullptr;
}

Result<FactFile> parse_facts(std::string_view text, const std::string& where) {
  FactFile file{.where = where, .tables = {}, .entries = {}};
  if (text.size() > kLargest) return fail_at(file, 1, "too large for a file of facts", "64 KiB at most");
  const auto parsed = toml_text::parse(text, kMostDots);
  if (!parsed) return fail_at(file, parsed.error().line, parsed.error().what);
  for (const auto& [key, node] : *parsed) {
    const toml::table* table = node.as_table();
    const std::string name(key.str());
    if (table == nullptr) {
      return fail_at(file, line_of_node(node), name + " stands outside of a table",
                     "begin with [model], [gpu], [host], [link] or [platform]");
    }
    file.tables.emplace_back(name, line_of_node(node));
    for (const auto& [k, n] : *table) {
      auto e = entry_of(file, name, k, n);
      if (!e) return tl::unexpected(e.error());
      file.entries.push_back(std::move(*e));
    }
  }
  std::stable_sort(file.entries.begin(), file.entries.end(),
                   [](const auto& a, const auto& b) { return a.line < b.line; });
  return file;
}

Result<FactFile> read_fact_file(const std::string& path) {
  const auto text = read_at_most(path, kLargest + 1);
  if (!text) return tl::unexpected(text.error());
  return parse_facts(*text, path);
}

namespace fact_fields {

Status put(const FactFile& file, const FactEntry& e, std::int64_t& to, double least, double most) {
  const auto* i = std::get_if<std::int64_t>(&e.value);
  if (i == nullptr) return wrong_kind(file, e, "a whole number");
  to = *i;
  return in_limits(file, e, static_cast<double>(*i), least, most);
}

Status put(const FactFile& file, const FactEntry& e, int& to, double least, double most) {
  std::int64_t wide = 0;
  const Status ok = put(file, e, wide, least, std::min(most, 1e9));
  if (ok) to = static_cast<int>(wide);
  return ok;
}

Status put(const FactFile& file, const FactEntry& e, double& to, double least, double most) {
  const auto* i = std::get_if<std::int64_t>(&e.value);
  const auto* d = std::get_if<double>(&e.value);
  if (i == nullptr && d == nullptr) return wrong_kind(file, e, "a number");
  to = i != nullptr ? static_cast<double>(*i) : *d;
  return in_limits(file, e, to, least, most);
}

Status put(const FactFile& file, const FactEntry& e, bool& to, double, double) {
  const auto* b = std::get_if<bool>(&e.value);
  if (b == nullptr) return wrong_kind(file, e, "true or false");
  to = *b;
  return {};
}

Status put(const FactFile& file, const FactEntry& e, std::string& to, double, double) {
  const auto* s = std::get_if<std::string>(&e.value);
  if (s == nullptr) return wrong_kind(file, e, "a text");
  if (s->empty()) return fail_at(file, e.line, e.key + " is empty");
  to = *s;
  return {};
}

Status put(const FactFile& file, const FactEntry& e, std::vector<std::string>& to, double, double) {
  const auto* list = std::get_if<std::vector<std::string>>(&e.value);
  if (list == nullptr) return wrong_kind(file, e, "a list of texts");
  for (const std::string& s : *list)
    if (s.empty()) return fail_at(file, e.line, e.key + " holds an empty text");
  to = *list;
  return {};
}

tl::unexpected<Error> unknown(const FactFile& file, const FactEntry& e, const std::vector<std::string_view>& keys) {
  const std::string_view near = closest(e.key, keys);
  return fail_at(file, e.line, "[" + e.table + "] has no field " + e.key,
                 near.empty() ? "docs/formats/facts.md lists them" : "did you mean " + std::string(near) + "?");
}

Status check_sure(const FactFile& file, const FactEntry& e, const std::string& sure) {
  if (sure.empty()) return {};
  for (const std::string_view word :
       {"seen", "measured", "derived", "digitised", "inferred", "remembered", "assumed", "stated"})
    if (sure.substr(0, word.size()) == word) return {};
  return fail_at(file, e.line, "sure = \"" + sure + "\" says nothing of how sure it is",
                 "begin with seen, measured, derived, digitised, inferred, remembered, assumed or stated");
}

void add_exception(const FactEntry& e, std::string& source, std::string& sure) {
  if (!e.source.empty()) source += "; " + e.key + ": " + e.source;
  if (!e.sure.empty()) sure += "; " + e.key + ": " + e.sure;
}

}  // namespace fact_fields

}  // namespace orrery
