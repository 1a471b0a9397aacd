// What every answer is: named columns with units. Reports make them, writers print them; reports never print.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "data/notes.h"

namespace orrery {

using Cell = std::variant<std::monostate, bool, std::int64_t, double, std::string, std::vector<double>>;

struct Column {
  std::string key;         // JSON key with its unit: "measured_ms"; a dot nests: "measured.other_ms"
  std::string title{};     // for people; "" = key
  bool text_only = false;  // shown to people only
  bool json_only = false;  // not in the printed table
  int digits = 3;          // decimals of a printed double
};

struct Table {
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;
};

struct Section {
  std::string key;      // JSON key: "steps"; "" = its columns are top-level keys; "a[].b{}": writers/json.h
  std::string title;    // heading for people; "" = not printed
  bool single = false;  // one row, written as an object instead of an array
  Table table;
  bool values = false;        // of one column: written to JSON as a list of its values, and not printed
  std::size_t text_rows = 0;  // print at most so many rows for people (0 = all); JSON and CSV have all
};

// A second view of what another section answers: all of its columns are text only.
inline bool for_people_alone(const Section& s) {
  for (const Column& c : s.table.columns)
    if (!c.text_only) return false;
  return !s.table.columns.empty();
}

struct Document {
  std::string command;
  std::vector<std::string> inputs;
  Notes notes;
  std::vector<Section> sections;
};

}  // namespace orrery
