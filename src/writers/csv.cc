#include "writers/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "base/output.h"
#include "writers/json.h"

namespace orrery {
namespace {

std::string quoted(const std::string& s) {
  if (s.find_first_of(",\"\r\n") == std::string::npos && (s.empty() || (s.front() != ' ' && s.back() != ' '))) return s;
  std::string out = "\"";
  for (const char c : s) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + "\"";
}

std::string number(double x) { return std::isfinite(x) ? fmt::format("{:.10g}", x) : std::string(); }

struct CellToCsv {
  std::string operator()(std::monostate) const { return {}; }
  std::string operator()(bool b) const { return b ? "true" : "false"; }
  std::string operator()(std::int64_t i) const { return fmt::format("{}", i); }
  std::string operator()(double x) const { return number(x); }
  std::string operator()(const std::string& s) const { return quoted(s); }
  std::string operator()(const std::vector<double>& values) const {
    std::string out;
    for (const double x : values) {
      if (!out.empty()) out += ' ';
      out += std::isfinite(x) ? fmt::format("{:.6g}", x) : "nan";
    }
    return out;
  }
};

// "clusters[].by_type{}.counts" -> "counts"
std::string file_name(std::string key) {
  if (key.find_first_of("[{") == std::string::npos) return key;
  while (key.ends_with("[]") || key.ends_with("{}")) key.resize(key.size() - 2);
  return key.substr(key.rfind('.') + 1);
}

Table notes_table(const Notes& notes) {
  Table t;
  t.columns = {{"name"}, {"severity"}, {"count"}, {"first"}, {"advice"}};
  for (const Note& n : notes.rows) {
    t.rows.push_back({n.name, std::string(name_of(n.severity)), static_cast<std::int64_t>(n.count), n.first, n.advice});
  }
  return t;
}

bool has_file(const Section& s) { return !for_people_alone(s) && !s.table.columns.empty(); }

constexpr std::string_view kAnd = "_and_";

// Columns whose cells are two numbers each are two columns.
bool is_pair(const Column& c, const std::string& section) {
  return section == "interval" || c.key.find(kAnd) != std::string::npos;
}
std::string pair_header(const std::string& key) {
  const std::size_t at = key.find(kAnd);
  if (at == std::string::npos) return quoted(key + "_from") + "," + quoted(key + "_to");
  return quoted(key.substr(0, at)) + "," + quoted(key.substr(at + kAnd.size()));
}
std::string pair_text(const Cell& cell) {
  const auto* pair = std::get_if<std::vector<double>>(&cell);
  if (pair == nullptr || pair->size() != 2) return std::visit(CellToCsv{}, cell) + ",";
  return number((*pair)[0]) + "," + number((*pair)[1]);
}

}  // namespace

std::string to_csv(const Table& table, const std::string& section) {
  std::string out;
  bool first = true;
  for (const Column& c : table.columns) {
    if (c.text_only) continue;
    if (!std::exchange(first, false)) out += ',';
    out += is_pair(c, section) ? pair_header(c.key) : quoted(c.key);
  }
  out += "\r\n";
  for (const auto& row : table.rows) {
    first = true;
    for (std::size_t c = 0; c < table.columns.size(); ++c) {
      if (table.columns[c].text_only) continue;
      if (!std::exchange(first, false)) out += ',';
      if (is_pair(table.columns[c], section))
        out += c < row.size() ? pair_text(row[c]) : ",";
      else if (c < row.size())
        out += std::visit(CellToCsv{}, row[c]);
    }
    out += "\r\n";
  }
  return out;
}

std::vector<std::string> csv_files(const Document& document) {
  std::vector<std::string> files;
  std::set<std::string> names;
  const auto add = [&](std::string name) {
    std::replace(name.begin(), name.end(), '/', '_');
    for (int k = 2; !names.insert(name).second; ++k) name += "-" + std::to_string(k);
    files.push_back(name + ".csv");
  };
  for (const Section& s : document.sections)
    if (has_file(s)) add(s.key.empty() ? document.command : file_name(s.key));
  add("notes");
  return files;
}

Status check_csv_directory(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error || !std::filesystem::is_directory(directory, error)) {
    return fail("cannot make the directory: " + (error ? error.message() : std::string("a file has that name")),
                directory, "name a directory that can be written");
  }
  return check_writable(directory + "/notes.csv");
}

Status write_csv(const std::string& directory, const Document& document) {
  if (auto ok = check_csv_directory(directory); !ok) return ok;
  std::vector<OutputFile> files;
  const std::vector<std::string> names = csv_files(document);
  const auto add = [&](const Table& table, const std::string& key) -> Status {
    auto file = OutputFile::create(directory + "/" + names[files.size()]);
    if (!file) return tl::unexpected(file.error());
    if (auto ok = file->write(to_csv(table, key)); !ok) return ok;
    files.push_back(std::move(*file));
    return {};
  };
  for (const Section& s : document.sections) {
    if (!has_file(s)) continue;
    if (auto ok = add(s.table, s.key); !ok) return ok;
  }
  if (auto ok = add(notes_table(document.notes), "notes"); !ok) return ok;
  for (OutputFile& f : files) {
    if (auto ok = f.commit(); !ok) return ok;
  }
  return {};
}

}  // namespace orrery
