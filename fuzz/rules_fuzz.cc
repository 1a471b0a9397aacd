// libFuzzer target of files of rules: refused with a line, or rules whose patterns compile or are refused by name.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "rules/matcher.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  if (size > 4096) return 0;
  const auto rules = parse_rules(std::string_view(reinterpret_cast<const char*>(data), size), "input");
  if (!rules) {
    if (rules.error().what.empty()) std::abort();
    return 0;
  }
  Notes notes;
  const auto matcher = Matcher::compile({*rules}, notes);
  if (!matcher) return 0;
  std::vector<PatternHit> hits;
  (*matcher)->finder()->find("RuntimeError: CUDA error: out of memory\n", hits);
  return 0;
}
