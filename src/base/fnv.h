// FNV-1a, 64 bits: tells texts apart, protects nothing. http://www.isthe.com/chongo/tech/comp/fnv/
#pragma once
#include <cstdint>
#include <string_view>

namespace orrery {

constexpr std::uint64_t kFnvBegin = 0xcbf29ce484222325;

// Of more than one text: each with what the one before gave.
constexpr std::uint64_t fnv1a(std::string_view text, std::uint64_t h = kFnvBegin) {
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return h;
}

}  // namespace orrery
