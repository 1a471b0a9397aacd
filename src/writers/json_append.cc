#include "writers/json_append.h"

#include <array>

namespace orrery {
namespace {

enum class Byte : std::uint8_t { plain, escape, high };

constexpr std::array<Byte, 256> kinds() {
  std::array<Byte, 256> k{};
  for (unsigned c = 0; c < 256; ++c) {
    k[c] = c < 0x20 || c == '"' || c == '\\' || c == 0x7f ? Byte::escape : c >= 0x80 ? Byte::high : Byte::plain;
  }
  return k;
}
constexpr std::array<Byte, 256> kByte = kinds();

// Length of the well-formed UTF-8 sequence at the start of `s` (first byte >= 0x80), 0 = none.
std::size_t utf8_length(std::string_view s) {
  const auto at = [&](std::size_t i) { return i < s.size() ? static_cast<unsigned char>(s[i]) : 0u; };
  const auto follows = [&](std::size_t i) { return (at(i) & 0xc0u) == 0x80u; };
  const unsigned c = at(0), d = at(1);
  if (c >= 0xc2 && c <= 0xdf) return follows(1) ? 2 : 0;
  if (c >= 0xe0 && c <= 0xef) {
    if (c == 0xe0 && d < 0xa0) return 0;  // longer than needed
    if (c == 0xed && d > 0x9f) return 0;  // half of a UTF-16 pair
    return follows(1) && follows(2) ? 3 : 0;
  }
  if (c >= 0xf0 && c <= 0xf4) {
    if (c == 0xf0 && d < 0x90) return 0;
    if (c == 0xf4 && d > 0x8f) return 0;  // above U+10FFFF
    return follows(1) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

void append_escape(std::string& out, unsigned char c) {
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\t':
      out += "\\t";
      return;
    default: {
      constexpr char kHex[] = "0123456789abcdef";
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
    }
  }
}

}  // namespace

void append_escaped(std::string& out, std::string_view s) {
  std::size_t i = 0;
  while (i < s.size()) {
    std::size_t run = i;
    while (run < s.size() && kByte[static_cast<unsigned char>(s[run])] == Byte::plain) ++run;
    out.append(s, i, run - i);
    i = run;
    if (i == s.size()) return;
    const auto c = static_cast<unsigned char>(s[i]);
    if (kByte[c] == Byte::escape) {
      append_escape(out, c);
      ++i;
      continue;
    }
    const std::size_t n = utf8_length(s.substr(i));
    if (n == 0)
      out += "\xef\xbf\xbd";
    else
      out.append(s, i, n);
    i += n == 0 ? 1 : n;
  }
}

}  // namespace orrery
