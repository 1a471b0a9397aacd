// The shape of a line: a hash of its letters, so that lines that differ only in numbers are one.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace orrery {

inline constexpr std::size_t kShapeBytes = 160;  // enough to tell messages apart

// Letters keep themselves in lower case, everything else is nothing.
inline constexpr std::array<std::uint8_t, 256> kShapeLetters = [] {
  std::array<std::uint8_t, 256> t{};
  for (std::size_t c = 'a'; c <= 'z'; ++c) {
    t[c] = static_cast<std::uint8_t>(c);
    t[c - 'a' + 'A'] = static_cast<std::uint8_t>(c);
  }
  t['_'] = '_';
  return t;
}();

inline std::uint64_t line_shape(std::string_view line) {
  std::uint64_t h = 1469598103934665603ull;
  const std::size_t n = std::min(line.size(), kShapeBytes);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint8_t c = kShapeLetters[static_cast<unsigned char>(line[i])];
    if (c != 0) h = (h ^ c) * 1099511628211ull;
  }
  return h;
}

}  // namespace orrery
