// Fast pieces of JSON text, for writers of millions of events.
#pragma once
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/ids.h"

namespace orrery {

// The inside of a JSON string: quotes, backslashes and control characters escaped; bytes that are not UTF-8 become
// U+FFFD.
void append_escaped(std::string& out, std::string_view s);

inline void append_quoted(std::string& out, std::string_view s) {
  out += '"';
  append_escaped(out, s);
  out += '"';
}

inline void append_int(std::string& out, std::int64_t v) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, v).ptr;
  out.append(digits, static_cast<std::size_t>(end - digits));
}

// Nanoseconds as microseconds with three decimals: 1500 -> 1.500
inline void append_us(std::string& out, Ns t) {
  // The magnitude as unsigned: right even for the least integer.
  std::uint64_t ns = static_cast<std::uint64_t>(t);
  if (t < 0) {
    out += '-';
    ns = 0 - ns;
  }
  char digits[24];
  char* end = std::to_chars(digits, digits + sizeof digits, ns / 1'000).ptr;
  const auto f = static_cast<unsigned>(ns % 1'000);
  *end++ = '.';
  *end++ = static_cast<char>('0' + f / 100);
  *end++ = static_cast<char>('0' + f / 10 % 10);
  *end++ = static_cast<char>('0' + f % 10);
  out.append(digits, static_cast<std::size_t>(end - digits));
}

}  // namespace orrery
