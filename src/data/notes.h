// What could not be used, was repaired or was assumed: counted under a name, with the first example.
// Every report shows them; a fallback is never silent.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace orrery {

enum class Severity : std::uint8_t { info, warning, data_loss };

struct Note {
  std::string name;  // stable, kebab-case: "kernel-before-launch"
  Severity severity = Severity::info;
  std::uint64_t count = 0;
  std::string first;   // the first example: file, event, value
  std::string advice;  // what it means for the answer, or what to do
};

struct Notes {
  std::vector<Note> rows;

  // Adds `count` to the note `name`, creating it with severity, first example and advice.
  void add(std::string_view name, Severity severity, std::uint64_t count, std::string_view first = {},
           std::string_view advice = {}) {
    if (count == 0) return;
    for (Note& n : rows) {
      if (n.name != name) continue;
      n.count += count;
      if (n.first.empty()) n.first = first;
      return;
    }
    rows.push_back({std::string(name), severity, count, std::string(first), std::string(advice)});
  }
  void merge(const Notes& other) {
    for (const Note& n : other.rows) add(n.name, n.severity, n.count, n.first, n.advice);
  }
  bool lost_data() const {
    for (const Note& n : rows)
      if (n.severity == Severity::data_loss) return true;
    return false;
  }
};

}  // namespace orrery
