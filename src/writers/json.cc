#include "writers/json.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace orrery {
namespace {

using Json = nlohmann::ordered_json;

// A nanosecond is the sixth decimal of a millisecond; below one, six digits.
double rounded(double x) {
  const double size = std::fabs(x);
  if (size == 0) return 0.0;  // not -0.0
  if (size >= 1e9) return x;
  const int decimals = size >= 1 ? 6 : 6 - static_cast<int>(std::floor(std::log10(size))) - 1;
  if (decimals > 300) return 0;
  const double scale = std::pow(10.0, decimals);
  const double r = std::round(x * scale) / scale;
  return r == 0 ? 0.0 : r;
}

Json number(double x) { return std::isfinite(x) ? Json(rounded(x)) : Json(nullptr); }

struct CellToJson {
  Json operator()(std::monostate) const { return nullptr; }
  Json operator()(bool b) const { return b; }
  Json operator()(std::int64_t i) const { return i; }
  Json operator()(double x) const { return number(x); }
  Json operator()(const std::string& s) const { return s; }
  Json operator()(const std::vector<double>& values) const {
    Json list = Json::array();
    for (const double x : values) list.push_back(number(x));
    return list;
  }
};

void set_nested(Json& object, std::string_view key, Json value) {
  Json* place = &object;
  for (;;) {
    const std::size_t dot = key.find('.');
    const std::string head(key.substr(0, dot));
    if (dot == std::string_view::npos) {
      (*place)[head] = std::move(value);
      return;
    }
    place = &(*place)[head];
    key.remove_prefix(dot + 1);
  }
}

void add_row(Json& object, const std::vector<Column>& columns, const std::vector<Cell>* row) {
  for (std::size_t c = 0; c < columns.size(); ++c) {
    if (columns[c].text_only) continue;
    Json value = row && c < row->size() ? std::visit(CellToJson{}, (*row)[c]) : Json(nullptr);
    set_nested(object, columns[c].key, std::move(value));
  }
}

bool is_path(std::string_view key) { return key.find("[]") != key.npos || key.find("{}") != key.npos; }

Json& element_named(Json& array, const Json& name) {
  if (!array.is_array()) array = Json::array();
  for (Json& element : array)
    if (element["name"] == name) return element;
  array.push_back(Json::object({{"name", name}}));
  return array.back();
}

// The rows of a section whose key is a path.
void add_along_path(Json& out, const Section& s) {
  const auto& columns = s.table.columns;
  if (s.table.rows.empty()) {
    const std::string root = s.key.substr(0, s.key.find_first_of("[{."));
    if (out.find(root) == out.end()) out[root] = s.key[root.size()] == '[' ? Json::array() : Json::object();
  }
  for (const auto& row : s.table.rows) {
    Json* place = &out;
    std::size_t used = 0;  // columns that named elements
    bool on_element = false;
    for (std::string_view rest = s.key; !rest.empty();) {
      const std::size_t dot = rest.find('.');
      std::string_view part = rest.substr(0, dot);
      rest = dot == std::string_view::npos ? std::string_view() : rest.substr(dot + 1);
      on_element = part.ends_with("[]") || part.ends_with("{}");
      const bool in_array = part.ends_with("[]");
      if (on_element) part.remove_suffix(2);
      std::size_t levels = on_element ? 1 : 0;
      for (; part.ends_with("{}"); ++levels) part.remove_suffix(2);  // "scores{}{}": objects within objects
      place = &(*place)[std::string(part)];
      for (std::size_t level = 0; level < levels; ++level) {
        const Json name = std::visit(CellToJson{}, row[used++]);
        place = in_array ? &element_named(*place, name)
                         : &(*place)[name.is_string() ? name.get<std::string>() : name.dump()];
      }
    }
    if (s.values && on_element && s.key.ends_with("{}")) {  // a member's value itself
      *place = std::visit(CellToJson{}, row[used]);
      continue;
    }
    if (s.values) {
      if (!place->is_array()) *place = Json::array();
      Json list = Json::array();
      for (std::size_t c = used; c < columns.size() && c < row.size(); ++c)
        if (!columns[c].text_only) list.push_back(std::visit(CellToJson{}, row[c]));
      place->push_back(list.size() == 1 ? list.front() : std::move(list));
      continue;
    }
    Json object = on_element || s.single ? Json() : Json::object();
    Json& to = on_element || s.single ? *place : object;
    for (std::size_t c = used; c < columns.size(); ++c) {
      if (columns[c].text_only) continue;
      set_nested(to, columns[c].key, c < row.size() ? std::visit(CellToJson{}, row[c]) : Json(nullptr));
    }
    if (&to == &object) {
      if (!place->is_array()) *place = Json::array();
      place->push_back(std::move(object));
    }
  }
}

Json notes_to_json(const Notes& notes) {
  Json list = Json::array();
  for (const Note& n : notes.rows) {
    list.push_back({{"name", n.name},
                    {"severity", name_of(n.severity)},
                    {"count", n.count},
                    {"first", n.first},
                    {"advice", n.advice}});
  }
  return list;
}

}  // namespace

std::string_view name_of(Severity severity) {
  switch (severity) {
    case Severity::info:
      return "info";
    case Severity::warning:
      return "warning";
    case Severity::data_loss:
      return "data-loss";
  }
  return "info";
}

std::string to_json(const Document& document) {
  Json out;
  out["orrery"] = ORRERY_VERSION;
  out["command"] = document.command;
  out["inputs"] = document.inputs;
  out["notes"] = notes_to_json(document.notes);
  for (const Section& s : document.sections) {
    const auto& rows = s.table.rows;
    if (for_people_alone(s)) continue;
    if (is_path(s.key)) {
      add_along_path(out, s);
    } else if (s.key.empty()) {
      add_row(out, s.table.columns, rows.empty() ? nullptr : &rows[0]);
    } else if (s.single) {
      Json object = Json::object();
      add_row(object, s.table.columns, rows.empty() ? nullptr : &rows[0]);
      set_nested(out, s.key, std::move(object));
    } else if (s.values) {
      Json list = Json::array();
      for (const auto& row : rows) list.push_back(std::visit(CellToJson{}, row.front()));
      set_nested(out, s.key, std::move(list));
    } else {
      Json list = Json::array();
      for (const auto& row : rows) {
        Json object = Json::object();
        add_row(object, s.table.columns, &row);
        list.push_back(std::move(object));
      }
      set_nested(out, s.key, std::move(list));
    }
  }
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace orrery
