#include "trials/loose_json.h"

#include <cmath>
#include <cstdlib>

namespace orrery {

nlohmann::json loose_json(std::string_view text) {
  std::string strict;
  strict.reserve(text.size() + 16);
  bool quoted = false;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (quoted) {
      quoted = c != '"';
      strict += c;
      if (c == '\\' && i + 1 < text.size()) strict += text[++i];
      ++i;
      continue;
    }
    quoted = c == '"';
    std::string_view word;
    for (const std::string_view w : {"NaN", "Infinity", "-Infinity"})
      if (text.compare(i, w.size(), w) == 0) word = w;
    if (!word.empty()) {
      strict.append("\"").append(word).append("\"");
      i += word.size();
      continue;
    }
    if (c == '-' || (c >= '0' && c <= '9')) {
      const std::size_t end = std::min(text.find_first_not_of("+-.0123456789eE", i), text.size());
      const std::string number(text.substr(i, end - i));
      const double value = std::strtod(number.c_str(), nullptr);
      strict += std::isinf(value) ? (value < 0 ? "\"-Infinity\"" : "\"Infinity\"") : number;
      i = end;
      continue;
    }
    strict += c;
    ++i;
  }
  return nlohmann::json::parse(strict, nullptr, false);
}

}  // namespace orrery
