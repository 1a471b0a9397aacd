// What is left of logs: lines that rules know, and lines of kinds that are rare. All that an agent, or a store of past
// cases, gets to see.
#pragma once
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "data/logs.h"

namespace orrery {

using KnownShapes = std::unordered_set<std::uint64_t>;  // kinds of lines that healthy runs of the same job had

struct KeptLine {
  std::uint32_t file;
  std::uint64_t line;
  std::string text;
};

// In order of file and line, each kind of line once; the last `most` ones.
std::vector<KeptLine> kept_lines(const LogTable& table, const KnownShapes& known, std::size_t most);

// How many lines that is of all, without the limit.
std::uint64_t count_kept(const LogTable& table, const KnownShapes& known);

// Shapes that a healthy run teaches: all it had; of a failed one only what came often and long before the end.
std::vector<std::pair<std::uint64_t, std::string>> taught_shapes(const LogTable& table, bool healthy);

}  // namespace orrery
