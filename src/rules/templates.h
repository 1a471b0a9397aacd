// Templates of log lines: what is constant in lines of a kind, one configuration for all logs. Lines are masked
// (numbers, addresses, paths, times, quoted texts, values of keys) and grouped by what is left, as they come; in the
// end groups that differ in one word only are one where that word varies. docs/model.md describes it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace orrery {

class TemplateMiner {
 public:
  // The group of a line, from 0, before merging. Memory grows with the number of groups, not of lines.
  std::uint32_t add(std::string_view line);

  struct Result {
    std::vector<std::uint32_t> merged;   // group -> template
    std::vector<std::string> templates;  // "Block <*> stored as bytes in memory ( estimated size <*> )"
    std::vector<std::uint64_t> lines;    // of each template
  };
  Result finish() const;

 private:
  std::unordered_map<std::string, std::uint32_t> group_of_;
  std::vector<std::vector<std::string>> tokens_;
  std::vector<std::uint64_t> lines_;
};

// The masked tokens of a line; "*" stands for what varies.
std::vector<std::string> masked_tokens(std::string_view line);

}  // namespace orrery
