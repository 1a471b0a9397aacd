// Techniques by their letters, and which go together: data (src/bench/tables/techniques.toml), built into the tool.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace orrery {

struct Techniques {  // a set, in the order of the table
  std::vector<std::string> letters;
  bool has(std::string_view letter) const;
  bool operator==(const Techniques& other) const = default;
};
std::string to_text(const Techniques& t);  // "R+F"; "" = none

struct TechniqueFacts {
  std::string letter, name;
};

// Refuses a run of one of `tasks` and `frameworks` (empty: any) that has more than `at_most` of `of`; `beside`: at
// least one of `of` and one of these; `alone`: one of `of` and any other. Without `of` every such run.
struct TechniqueRule {
  std::vector<std::string> tasks, frameworks, of, beside;
  std::int64_t at_most = 0;
  bool alone = false;
  std::string reason;
};

struct TechniqueTable {
  std::vector<TechniqueFacts> techniques;
  std::vector<TechniqueRule> rules;
};

// Errors, with the line: not TOML, unknown keys, letters that no technique has.
Result<TechniqueTable> parse_techniques(std::string_view text, const std::string& where);
const TechniqueTable& technique_table();  // the built-in one

// "R+F", "r, f", "" or "none". Errors: an unknown letter, with the nearest; one given twice.
Result<Techniques> read_techniques(std::string_view text);

// Why such a mix is refused; "" = it is not.
std::string refused_because(const Techniques& t, std::string_view task, std::string_view framework);

// Every subset of `letters`, the empty one first, by size and then by the table.
std::vector<Techniques> all_mixes(const Techniques& letters);

}  // namespace orrery
